"""ECL, PDMM and ECL-ISVR: edge-consensus learning, in its node form.

Every edge carries a dual variable z_{i|j} that pulls its two ends together. The updates only need two sums over a
client's edges, S_i = Σ_j A_{i|j} z_{i|j} and T_i = Σ_j A_{i|j} z_{j|i} (A_{i|j} = ±1, opposite at the two ends), so a
client keeps nothing per edge and sends only its model. With E_i neighbours and the coupling η_c:

    ECL    x ← (x − η g(x) + η η_c S_i) / (1 + η η_c E_i)              K times: a linearised proximal step
    PDMM   x ← x − η (g(x) + η_c (E_i x − S_i))                        K times: the local problem by plain steps
    then   S_i ← (1−θ) S_i + θ (T_i + 2 Σ_j x_j),   T_i ← (1−θ) T_i + θ (S_i − 2 E_i x_i)

θ = 1, or ½ for the ADMM variant. The graph must be static, and no message may be lost.
"""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from gossamer.methods.averaging import KeepsModel
from gossamer.methods.contract import FullGradient, Local, Message, Need, Operator, Round, State
from gossamer.methods.local import Gradient, Weight, combine
from gossamer.parts import part

Coupling = Annotated[
    float | None, Field(gt=0, description="η_c, strength of the pull; none: 1 / (η E_i max(K − 1, 1))")
]


@part
class CouplesEdges(KeepsModel):
    """What the three share: the summed duals and their exchange."""

    relaxation: Annotated[float, Field(gt=0, le=1, description="θ: 1, or 0.5 for the ADMM variant")] = 1.0
    start: Annotated[
        Literal["zero", "agreed"],
        Field(description="the first duals: zero, or as if all clients had agreed on x⁰"),
    ] = "zero"

    family: ClassVar = "edge consensus"
    sends: ClassVar[dict[str, Operator]] = {"x": "sum"}
    needs: ClassVar[tuple[Need, ...]] = ("undirected", "static")
    open_mixings: ClassVar = 0

    def init(self, x0: Tensor) -> State:
        return {**super().init(x0), "S": x0 * 0, "T": x0 * 0}

    def open(self, state: State, full_gradient: FullGradient, round: Round) -> tuple[State, Message]:
        if self.start == "zero":
            return state, {}
        pull = round.degree * state["x"]
        return {"x": state["x"], "S": pull, "T": -pull}, {}

    def opened(self, state: State, mixed: Message, round: Round) -> State:
        return state

    def finish(self, state: State, local: Local, round: Round) -> tuple[State, Message]:
        return {**state, "x": local["y"]}, {"x": local["y"]}

    def receive(self, state: State, mixed: Message, round: Round) -> State:
        x, S, T, theta = state["x"], state["S"], state["T"], self.relaxation
        return {
            "x": x,
            "S": (1 - theta) * S + theta * (T + 2 * mixed["x"]),
            "T": (1 - theta) * T + theta * (S - 2 * round.degree * x),
        }


def coupling_of(chosen: float | None, round: Round) -> Weight:
    """The chosen coupling, or 1 / (η E (K − 1)), which the C-ECL code takes; that code leaves K = 1 undefined."""
    if chosen is not None:
        return chosen
    return 1 / (round.lr * torch.clamp(round.degree, min=1) * torch.clamp(round.steps - 1, min=1))


def proximal_step(state: State, local: Local, gradient: Gradient, coupling: Weight, round: Round) -> Local:
    """One linearised step on the local problem, with the pull of the edges taken at the new point."""
    y, pull = local["y"], round.lr * coupling
    return {"y": combine((1, y), (-round.lr, gradient(y)), (pull, state["S"])) / (1 + pull * round.degree)}


@part
class ECL(CouplesEdges):
    """Edge-consensus learning: linearised proximal steps, pulled together along every edge."""

    coupling: Coupling = None

    paper: ClassVar = "Niwa et al. 2020, KDD"

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        return proximal_step(state, local, gradient, coupling_of(self.coupling, round), round)


@part
class ECLISVR(CouplesEdges):
    """ECL with the coupling that makes it a variance-reduced method: η_c = 1 / (η (K E + K − E))."""

    paper: ClassVar = "Niwa et al. 2021, ICML (PMLR 139)"

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        K, E = round.steps, round.degree
        return proximal_step(state, local, gradient, 1 / (round.lr * (K * E + K - E)), round)


@part
class PDMM(CouplesEdges):
    """The primal-dual method of multipliers, its local problem solved by K plain steps."""

    coupling: Coupling = None

    paper: ClassVar = "Zhang and Heusdens 2018, IEEE TSIPN 4(1)"

    def refuse(self, lr: float, degree: int) -> str | None:
        if self.coupling is None or lr * self.coupling * degree < 2:
            return None
        limit = f"an lr below {2 / (self.coupling * degree):g} or a coupling below {2 / (lr * degree):g} would do"
        return f"with coupling={self.coupling:g} and {degree} neighbours the pull of the edges alone diverges; {limit}"

    def step(self, state: State, local: Local, gradient: Gradient, round: Round) -> Local:
        y, lr, pull = local["y"], round.lr, round.lr * coupling_of(self.coupling, round)
        return {"y": combine((1, y), (-lr, gradient(y)), (-pull * round.degree, y), (pull, state["S"]))}
