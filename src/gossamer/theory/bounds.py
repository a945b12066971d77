"""The convergence theorems of four papers as plain functions of their constants; every bound is a sum of named terms.

The formulas are those printed in the theorems. docs/theory.md lists where a paper's proof gives another factor.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from gossamer.methods import (
    GECL,
    OSGP,
    SGP,
    DFedADMM,
    DFedADMMSAM,
    DFedAvg,
    DFedSAM,
    DFedSAMMGS,
    DFedSGPM,
    DFedSGPSM,
    DFedSGPSMS,
    FedAvg,
    FedSAM,
    Gossip,
    LocalGECL,
    Method,
)
from gossamer.methods.dfedadmm import AlternatesDirections
from gossamer.methods.g_ecl import LocalGECLByServer, LocalGECLOfUnequalSteps

Kind = Literal["start", "noise", "heterogeneity", "gradient size", "momentum", "perturbation", "graph"]


@dataclass(frozen=True)
class Constants:
    """The constants of the theorems. Defaults are those of the complete graph and of plain local SGD."""

    #: m.
    clients: int
    #: K, local steps in a round.
    steps: float
    #: T.
    rounds: int
    #: η, the same in all rounds.
    lr: float
    #: f(x⁰) − f*.
    gap: float
    #: L.
    smoothness: float
    #: Gradient noise: E‖∇F_i(x; ξ) − ∇f_i(x)‖² ≤ σ_l².
    sigma_l: float
    #: Heterogeneity: (1/m) Σ‖∇f_i(x) − ∇f(x)‖² ≤ σ_g².
    sigma_g: float
    #: B: ‖∇f_i(x)‖ ≤ B.
    gradient: float
    #: β: ‖∇f_i(x) − ∇f(x)‖ ≤ β; at least σ_g.
    beta: float = 0.0
    #: ‖x⁰‖.
    x0: float = 0.0
    #: The second largest |eigenvalue| of W.
    lambda_: float = 0.0
    #: Q.
    gossip_steps: int = 1
    #: C and q: the push-sum disagreement after t steps is at most C qᵗ.
    push_factor: float = 1.0
    push_rate: float = 0.0
    #: δ, the smallest push-sum weight that occurs.
    least_weight: float = 1.0
    #: ρ, the radius of the perturbation.
    rho: float = 0.0
    #: α.
    momentum: float = 0.0
    #: λ of DFedADMM.
    penalty: float = 10.0
    #: ‖D − E‖₂ of Local G-ECL: α times the largest eigenvalue of the graph's Laplacian.
    pull: float = 0.0
    #: r̃ of Local G-ECL.
    warm_start: int = 0
    #: W is symmetric, and the same in all rounds.
    symmetric: bool = True
    #: The columns of W sum to one.
    columns: bool = True
    #: Every client takes part in every round.
    everyone: bool = True

    @property
    def p(self) -> float:
        """The share of the squared disagreement that one mixing removes: 1 − λ²."""
        return 1 - self.lambda_**2

    def on_the_complete_graph(self) -> "Constants":
        """The same constants on the complete graph."""
        return replace(self, lambda_=0.0, push_factor=1.0, push_rate=0.0, least_weight=1.0)


class Term(NamedTuple):
    """One term of a bound: its cause, its formula, its value."""

    kind: Kind
    formula: str
    value: float


class Condition(NamedTuple):
    """An assumption of a theorem, and whether it holds."""

    text: str
    holds: bool


class Undefined(Exception):
    """A bound has no value for these constants; the message gives the reason."""


@dataclass(frozen=True)
class Theorem:
    """A paper's theorem: its assumptions, its bound, and the nearest setting that satisfies the assumptions."""

    name: str
    place: str
    bounds: str
    covers: tuple[type, ...]
    conditions: Callable[[Constants], list[Condition]]
    allowed: Callable[[Constants], Constants]
    terms: Callable[[Constants], list[Term]]
    #: Of the squared gradient norms over the rounds, the one that is bounded.
    over_rounds: Literal["least", "mean"]
    up_to_a_constant: bool = False
    #: The lemma on the consensus distance (1/m) Σ‖x_i − x̄‖², where it is, and the bound after the last round.
    consensus_place: str = ""
    consensus: Callable[[Constants], float] | None = None

    def applies_to(self, method: Method) -> bool:
        """Whether the method is the theorem's or a special case of it. DFedADMM's proof needs the old dual."""
        new_dual = isinstance(method, AlternatesDirections) and method.dual == "new"
        return type(method) in self.covers and not new_dual


def phi(lambda_: float, clients: int, gossip_steps: int) -> float:
    """Φ(λ, m, Q) = (λ^Q + 1) / ((1−λ)² m^(2(Q−1))) + (λ^Q + 1) / (1−λ^Q)²: the graph in DFedSAM's bound.

    >>> phi(0.0, clients=8, gossip_steps=1), phi(0.5, clients=8, gossip_steps=1)
    (2.0, 12.0)
    """
    power = lambda_**gossip_steps
    first = over((power + 1) * float(clients) ** (-2 * (gossip_steps - 1)), (1 - lambda_) ** 2)
    return first + over(power + 1, (1 - power) ** 2)


def over(above: float, below: float) -> float:
    """A ratio that may be infinite: λ = 1 if clients never agree."""
    if below == 0:
        return math.inf if above else 0.0
    return above / below


def number(value: float) -> str:
    """A number in a condition."""
    return f"{value:.3g}"


def at_most(formula: str, limit: float, value: float) -> Condition:
    """η ≤ limit."""
    return Condition(f"η ≤ {formula} = {number(limit)}", value <= limit)


def symmetric_graph(c: Constants) -> list[Condition]:
    """The assumption of three theorems on the graph."""
    return [Condition("one symmetric graph in all rounds", c.symmetric), *all_take_part(c)]


def all_take_part(c: Constants) -> list[Condition]:
    """No theorem here covers partial participation."""
    return [Condition("every client in every round", c.everyone)]


# DFedSAM, DFedSAM-MGS


def sam_limit(c: Constants) -> float:
    return over(1, 10 * c.steps * c.smoothness)


def sam_terms(c: Constants) -> list[Term]:
    """Theorem 4.5: 2Δ/(T·D) + α(K, ρ, η) + Φ(λ, m, Q)·β(K, ρ, η), with D = ηK − 32η³K²L² − 6η²KL."""
    K, L, η, ρ = c.steps, c.smoothness, c.lr, c.rho
    σl2, σg2 = c.sigma_l**2, c.sigma_g**2
    D = η * K - 32 * η**3 * K**2 * L**2 - 6 * η**2 * K * L
    if D <= 0:
        raise Undefined("its denominator ηK − 32η³K²L² − 6η²KL is not positive")
    alpha = η * K * L / (2 * D)
    ascent = 4 * K**3 * L**2 * η**2 * ρ**4 / (2 * K - 1) + 8 * K * η**2 * L**2 * ρ**2 + ρ**2 / (2 * K - 1)
    drift = 2 * K * (4 * K**3 * L**2 * ρ**4 / (2 * K - 1) + 8 * K * (L**2 * ρ**2 + σg2 + σl2))
    drift += 2 * K * ρ**2 / (η**2 * (2 * K - 1))
    beta = η**4 * K * L**3 * (16 * η * K * L + 3) / D * drift
    graph = phi(c.lambda_, c.clients, c.gossip_steps)
    return [
        Term("start", "2Δ/(T·D)", 2 * c.gap / (c.rounds * D)),
        Term("noise", "σ_l² in α(K,ρ,η)", alpha * (16 * K**2 * L * η**2 + η) * σl2),
        Term("heterogeneity", "σ_g² in α(K,ρ,η)", alpha * 16 * K**2 * L * η**2 * σg2),
        Term("perturbation", "ρ in α(K,ρ,η)", alpha * (2 * K * L * ascent + η * L**2 * ρ**2)),
        Term("graph", "Φ(λ,m,Q)·β(K,ρ,η)", graph * beta if beta else 0.0),
    ]


def sam_consensus(c: Constants) -> float:
    """Lemmas D.5 and D.6: C₂η²/(1−λ)² for Q = 1, C₂η²Φ(λ, m, Q) otherwise; ‖∇f(x_i)‖ in C₂ is at most B."""
    K, L, η, ρ = c.steps, c.smoothness, c.lr, c.rho
    size = L**2 * ρ**2 + c.sigma_g**2 + c.sigma_l**2 + c.gradient**2
    C2 = 2 * K * (4 * K**3 * L**2 * ρ**4 / (2 * K - 1) + 8 * K * size) + 2 * K * ρ**2 / (η**2 * (2 * K - 1))
    if c.gossip_steps == 1:
        return over(C2 * η**2, (1 - c.lambda_) ** 2)
    return C2 * η**2 * phi(c.lambda_, c.clients, c.gossip_steps)


DFEDSAM = Theorem(
    name="DFedSAM",
    place="Theorem 4.5",
    bounds="E‖∇f(x̄)‖², the least over the rounds",
    covers=(DFedSAM, DFedSAMMGS, DFedAvg, Gossip, FedAvg, FedSAM),
    conditions=lambda c: [at_most("1/(10KL)", sam_limit(c), c.lr), *symmetric_graph(c)],
    allowed=lambda c: replace(c, lr=min(c.lr, sam_limit(c))),
    terms=sam_terms,
    over_rounds="least",
    consensus_place="Lemmas D.5, D.6",
    consensus=sam_consensus,
)


# Local G-ECL


def gecl_limits(c: Constants) -> dict[str, float]:
    """The limits on η by formula: Lemma 2's, the theorem's with the constant 1, and that of the pull of the edges."""
    KL = c.steps * c.smoothness
    limits = {"p/(48KL)": over(c.p, 48 * KL), "p²/(KL)": over(c.p**2, KL)}
    if c.pull and c.p < 1:
        limits["p²/(√(1−p)·K·‖D−E‖)"] = over(c.p**2, math.sqrt(1 - c.p) * c.steps * c.pull)
    return limits


def gecl_conditions(c: Constants) -> list[Condition]:
    formula, limit = min(gecl_limits(c).items(), key=lambda item: item[1])
    return [at_most(formula, limit, c.lr), *symmetric_graph(c)]


def gecl_terms(c: Constants) -> list[Term]:
    """Theorem 4: O(Δ/(ηKR) + (ηL/n + Kη²L²/p⁴) σ² + K²η²L²/(p³R) E⁰), the constants of O(·) taken as 1."""
    K, L, η, p = c.steps, c.smoothness, c.lr, c.p
    unequal = (c.lambda_**c.warm_start * c.sigma_g) ** 2  # E⁰: what r̃ mixings of the first gradients leave
    return [
        Term("start", "Δ/(ηKT)", c.gap / (η * K * c.rounds)),
        Term("noise", "ηLσ_l²/m", η * L * c.sigma_l**2 / c.clients),
        Term("heterogeneity", "K²η²L²E⁰/(p³T)", over(K**2 * η**2 * L**2 * unequal, p**3 * c.rounds)),
        Term("graph", "Kη²L²σ_l²/p⁴", over(K * η**2 * L**2 * c.sigma_l**2, p**4)),
    ]


LOCAL_G_ECL = Theorem(
    name="Local G-ECL",
    place="Theorem 4",
    bounds="E‖∇f(x̄)‖², the mean over all local steps",
    covers=(LocalGECL, LocalGECLByServer, LocalGECLOfUnequalSteps, GECL),
    conditions=gecl_conditions,
    allowed=lambda c: replace(c, lr=min(c.lr, *gecl_limits(c).values())),
    terms=gecl_terms,
    over_rounds="mean",
    up_to_a_constant=True,
)


# DFedSGPSM


def push_limit(c: Constants) -> float:
    return over(c.least_weight, 8 * c.smoothness * c.steps)


def push_terms(c: Constants) -> list[Term]:
    """Theorem 1 of DFedSGPSM, with C₁ = 8Kσ_l² + 64K²σ_g² + 32K²α²/(1−α)² (σ_l²+B²) + 64KL²ρ² taken apart."""
    K, L, η, ρ, α = c.steps, c.smoothness, c.lr, c.rho, c.momentum
    if math.isnan(c.push_factor):
        raise Undefined("there is no push-sum on this graph: its columns do not sum to one")
    σl2, σg2, B2, C2, q = c.sigma_l**2, c.sigma_g**2, c.gradient**2, c.push_factor**2, c.push_rate
    local = over(3 * η**2 * L**2, c.least_weight)
    apart_at_first = over(6 * L**2 * C2 * c.x0**2, c.rounds * (1 - q**2))
    apart = over(6 * L**2 * η**2 * K**2 * C2 * (B2 + σl2), (1 - α) ** 2 * (1 - q) ** 2)
    return [
        Term("start", "2(1−α)Δ/(TηK)", 2 * (1 - α) * c.gap / (c.rounds * η * K)),
        Term("noise", "LηKσ_l²/(1−α) + …", L * η * K * σl2 / (1 - α) + local * 8 * K * σl2),
        Term("heterogeneity", "192η²L²K²σ_g²/δ", local * 64 * K**2 * σg2),
        Term("gradient size", "192η²L²K²B²/δ", local * 64 * K**2 * B2),
        Term("momentum", "α in 3η²L²C₁/δ", local * 32 * K**2 * α**2 / (1 - α) ** 2 * (σl2 + B2)),
        Term("perturbation", "3L²ρ² + …", 3 * L**2 * ρ**2 + local * 64 * K * L**2 * ρ**2),
        Term("graph", "6L²C²‖x⁰‖²/(T(1−q²))", apart_at_first),
        Term("graph", "B²+σ_l² over (1−q)²", apart),
    ]


def push_consensus(c: Constants) -> float:
    """Lemma 4, of every client, after T rounds: 2C²q^(2T)‖x⁰‖² + 2η²α̃²C²(B² + σ_l²)/(1−q)², α̃ = Σ_k Σ_{s≤k} α^(k−s)."""
    K, α, C2, q = c.steps, c.momentum, c.push_factor**2, c.push_rate
    effective = K / (1 - α) - α * (1 - α**K) / (1 - α) ** 2
    local = 2 * c.lr**2 * effective**2 * C2 * (c.gradient**2 + c.sigma_l**2)
    return 2 * C2 * q ** (2 * c.rounds) * c.x0**2 + over(local, (1 - q) ** 2)


DFEDSGPSM = Theorem(
    name="DFedSGPSM",
    place="Theorem 1",
    bounds="E‖∇f(x̄)‖², the mean over the rounds",
    covers=(DFedSGPSM, DFedSGPSMS, DFedSGPM, OSGP, SGP),
    conditions=lambda c: [
        at_most("δ/(8LK)", push_limit(c), c.lr),
        Condition("weights whose columns sum to one", c.columns),
        *all_take_part(c),
    ],
    allowed=lambda c: replace(c, lr=min(c.lr, push_limit(c))),
    terms=push_terms,
    over_rounds="mean",
    consensus_place="Lemma 4",
    consensus=push_consensus,
)


# DFedADMM, DFedADMM-SAM


def admm_limit(c: Constants) -> float:
    return over(1, 96 * c.steps * c.smoothness)


def admm_conditions(c: Constants) -> list[Condition]:
    return [
        at_most("1/(96KL)", admm_limit(c), c.lr),
        at_most("2λ", 2 * c.penalty, c.lr),
        Condition(f"penalty λ ≤ ηK = {number(c.lr * c.steps)}", c.penalty <= c.lr * c.steps * (1 + 1e-12)),
        *symmetric_graph(c),
    ]


def admm_allowed(c: Constants) -> Constants:
    """A step size within the limit, and a penalty of at most ηK."""
    lr = min(c.lr, admm_limit(c))
    return replace(c, lr=lr, penalty=min(c.penalty, lr * c.steps))


def admm_terms(c: Constants) -> list[Term]:
    """Theorem 1 of DFedADMM(-SAM), with κ = 1/2 − 1152 L²η²K²."""
    L, λ, T = c.smoothness, c.penalty, c.rounds
    σl2, σg2, B2 = c.sigma_l**2, c.sigma_g**2, c.gradient**2
    s = L**2 * c.lr**2 * c.steps**2
    κ = 0.5 - 1152 * s
    if κ <= 0:
        raise Undefined("its denominator κ = 1/2 − 1152L²η²K² is not positive")
    both = 3 * λ**2 * L**2 * (1 + 384 * s) / κ + L * λ / (2 * κ)  # of σ_l² + B²
    apart = 96 * s * (1 + 192 * s) * (3 * σg2 + 2 * σl2 + 4 * B2) + 6 * λ**2 * L**2 * (1 + 192 * s) * (σl2 + B2)
    return [
        Term("start", "Δ/(λκT)", c.gap / (λ * κ * T)),
        Term("noise", "σ_l² in local terms", (192 * s / κ + both) * σl2),
        Term("heterogeneity", "288L²η²K²σ_g²/κ", 288 * s / κ * σg2),
        Term("gradient size", "B² in local terms", (96 * s / κ + both) * B2),
        Term("perturbation", "6ρ²λL²(σ_l²+B²)/κ", 6 * c.rho**2 * λ * L**2 / κ * (σl2 + B2)),
        Term("graph", "all over κ(1−ψ)²", over(apart, κ * (1 - c.lambda_) ** 2)),
    ]


def admm_consensus(c: Constants) -> float:
    """Lemma 8: 2C₂/(1−ψ)², C₂ = 16η²K²(3σ_g² + 2σ_l² + 4B²) + λ²(σ_l² + B²); for η < 1/(6KL)."""
    σl2, B2 = c.sigma_l**2, c.gradient**2
    C2 = 16 * c.lr**2 * c.steps**2 * (3 * c.sigma_g**2 + 2 * σl2 + 4 * B2) + c.penalty**2 * (σl2 + B2)
    return over(2 * C2, (1 - c.lambda_) ** 2)


DFEDADMM = Theorem(
    name="DFedADMM",
    place="Theorem 1",
    bounds="E‖∇f(w)‖² of its auxiliary sequence w, the mean over the rounds",
    covers=(DFedADMM, DFedADMMSAM),
    conditions=admm_conditions,
    allowed=admm_allowed,
    terms=admm_terms,
    over_rounds="mean",
    consensus_place="Lemma 8",
    consensus=admm_consensus,
)

THEOREMS: tuple[Theorem, ...] = (DFEDSAM, LOCAL_G_ECL, DFEDSGPSM, DFEDADMM)


def total(terms: Iterable[Term]) -> float:
    """The bound itself."""
    return math.fsum(term.value for term in terms)
