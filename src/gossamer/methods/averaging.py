"""What methods share that keep one model: what a client keeps, what it sends, and how it is averaged."""

from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from gossamer.methods.contract import Local, Message, Operator, Round, State
from gossamer.parts import part


class KeepsModel:
    """A client that keeps its model as x and starts the local steps of a round there, at y = x.

    A method with more to keep, or with more scratch values, adds them to `super().init` and `super().begin`.
    """

    def init(self, x0: Tensor) -> State:
        return {"x": x0}

    def begin(self, state: State, round: Round) -> Local:
        return {"y": state["x"]}

    def model(self, state: State) -> Tensor:
        return state["x"]


class SendsModel(KeepsModel):
    """A client that sends the result of its local steps."""

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        return state, {"x": local["y"]}


class AveragesModels(SendsModel):
    """Averaging over a graph: z_i is sent, x_i = Σ_j W_ij z_j is kept. A method adds its `step` on `local["y"]`."""

    sends: ClassVar[dict[str, Operator]] = {"x": "average"}

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        return {"x": mixed["x"]}


@part
class AveragedByServer(SendsModel):
    """Averaging by a server: x ← x + η_g (mean of the sampled clients' z − x).

    Every client keeps the server's x, so the server needs no state of its own.
    """

    server_lr: Annotated[float, Field(gt=0, description="η_g, how far the server moves to the clients' mean")] = 1.0

    sends: ClassVar[dict[str, Operator]] = {"x": "server"}

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        x = state["x"]
        return {"x": x + self.server_lr * (mixed["x"] - x)}
