"""FedAvg: the server's mean of the sampled clients' local results. The baseline with a server.

    y_i = local SGD from x, for the sampled clients S;   x ← x + η_g (mean_{i∈S} y_i − x)

Every client keeps the server's x, so the server needs no state of its own and FedAvg is a method like any other, on the
server graph.
"""

from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from gossamer.methods.contract import Local, Message, Operator, Round, State
from gossamer.methods.local import Gradient
from gossamer.parts import part


@part
class FedAvg:
    """Local SGD on the sampled clients, averaged by a server."""

    server_lr: Annotated[float, Field(gt=0, description="η_g, how far the server moves to the clients' mean")] = 1.0

    paper: ClassVar = "McMahan et al. 2017, arXiv 1602.05629"
    laws: ClassVar[tuple[str, ...]] = ("I13", "I21", "I22")
    sends: ClassVar[dict[str, Operator]] = {"x": "server"}

    def init(self, x0: Tensor) -> State:
        return {"x": x0}

    def begin(self, state: State, round: Round) -> Local:
        return {"y": state["x"]}

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        y = local["y"]
        return {"y": y - round.lr * gradient(y)}

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        return state, {"x": local["y"]}

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        x = state["x"]
        return {"x": x + self.server_lr * (mixed["x"] - x)}

    def model(self, state: State) -> Tensor:
        return state["x"]
