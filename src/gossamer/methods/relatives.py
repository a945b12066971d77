"""Related methods: quasi-global momentum, gradient tracking with local steps, and steps from beyond the average.

QG-DSGDm   y ← y − η (β m + g), K times;   x⁺ = W y;   m ← β m + (1−β)(x − x⁺)/(K η)
K-GT       y ← y − η (g + c), K times;   z = (x − y)/(K η);   c ← c − z + W z;   x⁺ = W (x − η_s K η z)
OledFL     y_0 = x + β (x − z_last), z_last the client's own last local result; then the steps of DFedSAM
"""

from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from gossamer.methods.averaging import KeepsModel, SendsModel
from gossamer.methods.contract import Local, Message, Need, Operator, Round, State, per_step
from gossamer.methods.dfedsam import LocalSAM, Rho
from gossamer.methods.local import Gradient, combine
from gossamer.parts import part


@part
class QGDSGDm(SendsModel):
    """Momentum that follows the global model: the direction in which mixing has moved the client."""

    momentum: Annotated[float, Field(ge=0, lt=1, description="β, how much of the direction is kept")] = 0.9

    family: ClassVar = "averaging"
    paper: ClassVar = "Lin et al. 2021, arXiv 2102.04761"
    may_miss_messages: ClassVar = True
    sends: ClassVar[dict[str, Operator]] = {"x": "average"}

    def init(self, x0: Tensor) -> State:
        return {**super().init(x0), "direction": x0 * 0}

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        y = local["y"]
        return {"y": combine((1, y), (-round.lr, self.momentum * state["direction"] + gradient(y)))}

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        moved = per_step(state["x"] - mixed["x"], round)
        direction = self.momentum * state["direction"] + (1 - self.momentum) * moved
        return {"x": mixed["x"], "direction": direction}


@part
class KGT(KeepsModel):
    """Gradient tracking with K local steps."""

    server_lr: Annotated[float, Field(gt=0, description="η_s, how far a round's displacement is followed")] = 1.0

    family: ClassVar = "gradient tracking"
    paper: ClassVar = "Liu et al. 2024, arXiv 2301.01313"
    sends: ClassVar[dict[str, Operator]] = {"x": "average", "z": "average"}
    needs: ClassVar[tuple[Need, ...]] = ("undirected", "doubly stochastic")

    def init(self, x0: Tensor) -> State:
        return {**super().init(x0), "correction": x0 * 0, "z": x0 * 0}

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        y = local["y"]
        return {"y": combine((1, y), (-round.lr, gradient(y) + state["correction"]))}

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        x, y = state["x"], local["y"]
        z = per_step(x - y, round)
        return {**state, "z": z}, {"x": x - self.server_lr * (x - y), "z": z}

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        return {"x": mixed["x"], "correction": state["correction"] - state["z"] + mixed["z"], "z": state["z"]}


@part
class OledFL(LocalSAM, KeepsModel):
    """Local steps that start beyond the average, away from the client's own last result."""

    beta: Annotated[float, Field(ge=0, lt=1, description="β, how far beyond")] = 0.5
    rho: Rho = 0.0

    family: ClassVar = "averaging"
    paper: ClassVar = "as in the public DFedCata code"
    may_miss_messages: ClassVar = True
    sends: ClassVar[dict[str, Operator]] = {"x": "average"}

    def init(self, x0: Tensor) -> State:
        return {**super().init(x0), "last": x0}

    def begin(self, state: State, round: Round) -> Local:
        return {"y": state["x"] + self.beta * (state["x"] - state["last"])}

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        return {**state, "last": local["y"]}, {"x": local["y"]}

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        return {**state, "x": mixed["x"]}
