"""How averaging methods talk: send the local result, keep the average of what arrives."""

from typing import ClassVar

from torch import Tensor

from gossamer.methods.contract import Local, Message, Operator, Round, State


class AveragesModels:
    """The conduct shared by every method that only differs in its local step: z_i sent, x_i = Σ_j W_ij z_j kept.

    Nothing in here is overridden; a method adds what a round starts with (`begin`) and its `step` on `local["y"]`.
    """

    sends: ClassVar[dict[str, Operator]] = {"x": "average"}

    def init(self, x0: Tensor) -> State:
        return {"x": x0}

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        return state, {"x": local["y"]}

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        return {"x": mixed["x"]}

    def model(self, state: State) -> Tensor:
        return state["x"]
