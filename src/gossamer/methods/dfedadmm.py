"""FedPD, DFedADMM and DFedADMM-SAM: local problems held together by a dual variable and a quadratic penalty.

    y_0 = x_i;   y_{k+1} = y_k − η (G_k − ĝ_i + (y_k − x_i)/λ),   G_k a plain or a SAM gradient at y_k
    ĝ_i⁺ = ĝ_i − (y_K − x_i)/λ;      z_i = y_K − λ ĝ_i;      x_i ← Σ_j W_ij z_j   (FedPD: the server's mean)

The paper's listing and proofs have the old dual in the message; FedPD's equation 5 and the code that DFedADMM descends
from have the new one. `dual` selects either. The paper's "λ = 0.1" is read as the coefficient 1/λ of the penalty, so
λ = 10: with λ = 0.1 = η every local step would start again from x_i. The paper's words on small λ and Theorem 1's
K ≥ λ/η speak for the literal value, `penalty=0.1`; its reported speed does not.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from gossamer.methods.averaging import KeepsModel
from gossamer.methods.contract import Local, Message, Need, Operator, Round, State
from gossamer.methods.local import Gradient, combine, sam_gradient
from gossamer.parts import part

WeightDecay = Annotated[
    Annotated[float, Field(ge=0)] | Literal["experiment"], Field(description="its own, or that of the experiment")
]
Penalty = Annotated[float, Field(gt=0, description="λ, length of the penalty: 1/λ multiplies the quadratic")]
MessageDual = Annotated[Literal["old", "new"], Field(description="the dual in the message")]


class AlternatesDirections(KeepsModel):
    """Algorithm 1 without its communication: the dual ĝ, the penalised local steps and the message."""

    penalty: float
    #: The defaults: plain gradients, and the new dual in the message.
    rho: float = 0.0
    dual: Literal["old", "new"] = "new"

    def init(self, x0: Tensor) -> State:
        return {**super().init(x0), "dual": x0 * 0}

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        """Lines 7 and 13: y ← y − η (g − ĝ + (y − x)/λ)."""
        x, dual, y = state["x"], state["dual"], local["y"]
        lr, pull = round.lr, round.lr / self.penalty
        return {"y": combine((1, y), (-lr, sam_gradient(gradient, y, self.rho)), (lr, dual), (pull, x), (-pull, y))}

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        """Lines 16 and 17: ĝ⁺ = ĝ − (y − x)/λ and z = y − λ ĝ."""
        x, old, y = state["x"], state["dual"], local["y"]
        new = combine((1, old), (-1 / self.penalty, y - x))
        return {"x": x, "dual": new}, {"x": combine((1, y), (-self.penalty, old if self.dual == "old" else new))}

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        return {"x": mixed["x"], "dual": state["dual"]}

    def refuse(self, lr: float, degree: int) -> str | None:
        if lr < 2 * self.penalty:
            return None
        limits = f"an lr below {2 * self.penalty:g} or a penalty above {lr / 2:g} would do"
        return (
            f"a step of lr={lr:g} is at least 2λ={2 * self.penalty:g}, so the penalty alone makes it diverge; {limits}"
        )


@part
class FedPD(AlternatesDirections):
    """A server's mean of local problems with duals, all clients in every round."""

    penalty: Penalty = 10.0

    family: ClassVar = "server"
    paper: ClassVar = "Zhang et al. 2021, arXiv 2005.11418"
    sends: ClassVar[dict[str, Operator]] = {"x": "server"}
    needs: ClassVar[tuple[Need, ...]] = ("everyone",)


@part
class DFedADMM(AlternatesDirections):
    """Local problems with duals, averaged with the neighbours."""

    penalty: Penalty = 10.0
    dual: MessageDual = "old"
    weight_decay: WeightDecay = 0.0

    family: ClassVar = "ADMM"
    paper: ClassVar = "Li et al. 2023, arXiv 2308.08290"
    sends: ClassVar[dict[str, Operator]] = {"x": "average"}
    needs: ClassVar[tuple[Need, ...]] = ("doubly stochastic",)
    assumes: ClassVar[tuple[Need, ...]] = ("undirected",)


@part
class DFedADMMSAM(AlternatesDirections):
    """DFedADMM with sharpness-aware (SAM) local steps."""

    penalty: Penalty = 10.0
    rho: Annotated[float, Field(ge=0, description="ρ, radius of the perturbation")] = 0.1
    dual: MessageDual = "old"
    weight_decay: WeightDecay = 0.0

    family: ClassVar = "ADMM"
    paper: ClassVar = "Li et al. 2023, arXiv 2308.08290"
    sends: ClassVar[dict[str, Operator]] = {"x": "average"}
    needs: ClassVar[tuple[Need, ...]] = ("doubly stochastic",)
    assumes: ClassVar[tuple[Need, ...]] = ("undirected",)
