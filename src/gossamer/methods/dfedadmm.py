"""FedPD, DFedADMM and DFedADMM-SAM: local problems held together by a dual variable and a quadratic penalty.

    y_0 = x_i;   y_{k+1} = y_k − η (G_k − ĝ_i + (y_k − x_i)/λ),   G_k a plain or a SAM gradient at y_k
    ĝ_i⁺ = ĝ_i − (y_K − x_i)/λ;      z_i = y_K − λ ĝ_i;      x_i ← Σ_j W_ij z_j   (FedPD: the server's mean)

The paper prints the old dual in the message and its proofs use it; FedPD's equation 5 and the code of the same lineage
use the new one. Both are here. The paper's "λ = 0.1" is read as the coefficient 1/λ of the penalty, so λ = 10: with
λ = 0.1 = η every local step would start again from x_i. `penalty=0.1` is that literal value.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from gossamer.methods.contract import Local, Message, Need, Operator, Round, State, descend
from gossamer.methods.local import Gradient, sam_gradient
from gossamer.parts import part

WeightDecay = Annotated[float, Field(ge=0)] | Literal["experiment"]
Penalty = Annotated[float, Field(gt=0, description="λ, length of the penalty: 1/λ multiplies the quadratic")]


@part
class AlternatesDirections:
    """What the three share: the dual, the penalised local step, and the message."""

    penalty: Penalty = 10.0

    def init(self, x0: Tensor) -> State:
        return {"x": x0, "dual": x0 * 0}

    def begin(self, state: State, round: Round) -> Local:
        return {"y": state["x"]}

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        return {"x": mixed["x"], "dual": state["dual"]}

    def model(self, state: State) -> Tensor:
        return state["x"]

    def refuse(self, lr: float, degree: int) -> str | None:
        if lr < 2 * self.penalty:
            return None
        limits = f"an lr below {2 * self.penalty:g} or a penalty above {lr / 2:g} would do"
        return (
            f"a step of lr={lr:g} is at least 2λ={2 * self.penalty:g}, so the penalty alone makes it diverge; {limits}"
        )

    def _descend(self, state: State, y: Tensor, direction: Tensor, round: Round) -> Local:
        # Term by term: of a large model, no more is ever held than y, a term and the sum.
        pull = round.lr / self.penalty
        after = descend(y, direction, round.lr)
        del direction
        after = descend(after, state["dual"], -round.lr)
        after = descend(after, state["x"], -pull)
        return {"y": descend(after, y, pull)}

    def _send(self, state: State, y: Tensor, dual: Literal["old", "new"]) -> tuple[State, Message]:
        after = descend(state["dual"], y - state["x"], 1 / self.penalty)
        told = state["dual"] if dual == "old" else after
        return {"x": state["x"], "dual": after}, {"x": descend(y, told, self.penalty)}


@part
class FedPD(AlternatesDirections):
    """A server's mean of local problems with duals, all clients in every round."""

    family: ClassVar = "server"
    paper: ClassVar = "Zhang et al. 2021, arXiv 2005.11418"
    laws: ClassVar[tuple[str, ...]] = ("I11", "I12", "I20", "I21", "I22")
    sends: ClassVar[dict[str, Operator]] = {"x": "server"}
    needs: ClassVar[tuple[Need, ...]] = ("everyone",)

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        return self._descend(state, local["y"], gradient(local["y"]), round)

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        return self._send(state, local["y"], "new")


@part
class DFedADMM(AlternatesDirections):
    """Local problems with duals, averaged with the neighbours."""

    dual: Annotated[Literal["old", "new"], Field(description="the dual in the message")] = "old"
    weight_decay: WeightDecay = 0.0

    family: ClassVar = "ADMM"
    paper: ClassVar = "Li et al. 2023, arXiv 2308.08290"
    laws: ClassVar[tuple[str, ...]] = ("I11", "I12", "I20", "I21", "I22")
    sends: ClassVar[dict[str, Operator]] = {"x": "average"}
    needs: ClassVar[tuple[Need, ...]] = ("undirected", "doubly stochastic")

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        return self._descend(state, local["y"], gradient(local["y"]), round)

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        return self._send(state, local["y"], self.dual)


@part
class DFedADMMSAM(AlternatesDirections):
    """DFedADMM with sharpness-aware (SAM) local steps."""

    rho: Annotated[float, Field(ge=0, description="ρ, radius of the perturbation")] = 0.1
    dual: Annotated[Literal["old", "new"], Field(description="the dual in the message")] = "old"
    weight_decay: WeightDecay = 0.0

    family: ClassVar = "ADMM"
    paper: ClassVar = "Li et al. 2023, arXiv 2308.08290"
    laws: ClassVar[tuple[str, ...]] = ("I9", "I11", "I20", "I21", "I22")
    sends: ClassVar[dict[str, Operator]] = {"x": "average"}
    needs: ClassVar[tuple[Need, ...]] = ("undirected", "doubly stochastic")

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        return self._descend(state, local["y"], sam_gradient(gradient, local["y"], self.rho), round)

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        return self._send(state, local["y"], self.dual)
