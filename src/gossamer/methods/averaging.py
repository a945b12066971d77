"""How methods talk that send one model and keep one: over a graph, or through a server."""

from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from gossamer.methods.contract import Local, Message, Operator, Round, State
from gossamer.parts import part


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


@part
class AveragedByServer:
    """The same through a server: x ← x + η_g (mean of the sampled clients' z − x).

    Every client keeps the server's x, so the server needs no state of its own.
    """

    server_lr: Annotated[float, Field(gt=0, description="η_g, how far the server moves to the clients' mean")] = 1.0

    sends: ClassVar[dict[str, Operator]] = {"x": "server"}

    def init(self, x0: Tensor) -> State:
        return {"x": x0}

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        return state, {"x": local["y"]}

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        x = state["x"]
        return {"x": x + self.server_lr * (mixed["x"] - x)}

    def model(self, state: State) -> Tensor:
        return state["x"]
