"""Rounds until the squared gradient norm is at most ε: the papers' corollaries, and Table I of that on Local G-ECL.

All hold up to constant factors that the papers do not give; they are taken as 1. The corollaries choose the step size.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from gossamer.theory.bounds import Constants, over, phi

#: The largest number of rounds that is looked for.
MOST_ROUNDS = 1e30


class Rate(NamedTuple):
    """The number of rounds that a method needs for a squared gradient norm of ε, up to a constant factor."""

    method: str
    place: str
    #: As printed: of T, or of ε.
    formula: str
    #: Of the constants and ε.
    rounds: Callable[[Constants, float], float]


def rounds_until(rate: Callable[[float], float], epsilon: float) -> float:
    """The least T with rate(T) ≤ ε, for a rate that falls in T; infinite if there is none.

    >>> rounds_until(lambda T: 2 / T, 0.5)
    4.0
    """
    if not rate(MOST_ROUNDS) <= epsilon:
        return math.inf
    low, high = 0.0, 1.0
    while rate(high) > epsilon:
        low, high = high, 2 * high
    while high - low > 1e-12 * high and math.ceil(high) - math.floor(low) > 1:
        middle = (low + high) / 2
        low, high = (middle, high) if rate(middle) > epsilon else (low, middle)
    return float(math.ceil(high))


def dfedsam(c: Constants, T: float) -> float:
    """Corollaries 4.6 (Q = 1) and 4.8."""
    K, apart = c.steps, c.beta**2 + c.sigma_l**2
    graph = over(1, (1 - c.lambda_) ** 2) if c.gossip_steps == 1 else phi(c.lambda_, c.clients, c.gossip_steps)
    late = math.sqrt(K) * math.pow(T, 1.5)
    return (c.gap + c.sigma_l**2) / math.sqrt(K * T) + K * apart / T + (c.smoothness**2 + graph * apart) / late


def dfedsgpsm(c: Constants, T: float) -> float:
    """Corollary 1 of DFedSGPSM."""
    α, q, σl2, B2, C2 = c.momentum, c.push_rate, c.sigma_l**2, c.gradient**2, c.push_factor**2
    local = σl2 / c.steps + c.sigma_g**2 + α**2 / (1 - α) ** 2 * (σl2 + B2) + 1 / (T * c.steps)
    first = (c.smoothness * (1 - α) * c.gap + σl2 / (1 - α)) / math.sqrt(T)
    apart = over(c.smoothness**2 * C2 * c.x0**2, 1 - q**2) + over(C2 * (B2 + σl2), (1 - α) ** 2 * (1 - q) ** 2)
    return first + (over(local, c.least_weight) + apart + 1) / T


def dfedadmm(c: Constants, T: float) -> float:
    """Corollary 1 of DFedADMM and DFedADMM-SAM."""
    K, both = c.steps, c.gradient**2 + c.sigma_l**2
    apart = over(both + c.sigma_g**2 + both / K, (1 - c.lambda_) ** 2)
    ascent = c.smoothness * both / (math.pow(T, 1.5) * math.sqrt(K)) if c.rho else 0.0
    return (c.gap + both / math.sqrt(K)) / math.sqrt(T) + apart / T + ascent


def _until(rate: Callable[[Constants, float], float]) -> Callable[[Constants, float], float]:
    return lambda c, epsilon: rounds_until(lambda T: rate(c, T), epsilon)


def _noise(c: Constants, ε: float) -> float:
    """Lσ²/(Knε²), the last term of every row but one."""
    return c.smoothness * c.sigma_l**2 / (c.steps * c.clients * ε**2)


def _edges(c: Constants, ε: float) -> float:
    """(L + √(1−p) ψ)/(p²ε)."""
    return over(c.smoothness + math.sqrt(1 - c.p) * c.pull, c.p**2 * ε)


def _tracked(c: Constants, ε: float) -> float:
    """Lσ/(p²√K ε^(3/2))."""
    return over(c.smoothness * c.sigma_l, c.p**2 * math.sqrt(c.steps) * ε**1.5)


CORRECTED = "(L + √(1−p)ψ)/(p²ε) + {} + Lσ/(p²√K ε^(3/2)) + Lσ²/(Knε²)"

#: Table I has B and G with (1/n) Σ‖∇f_i‖² ≤ G² + B²‖∇f‖²: at the initial model B = 1, G = σ_g are exact.
RATES = (
    Rate(
        "DFedSAM",
        "Corollaries 4.6, 4.8",
        "(Δ+σ_l²)/√(KT) + K(β²+σ_l²)/T + L²/(√K T^(3/2)) + Φ(β²+σ_l²)/(√K T^(3/2))",
        _until(dfedsam),
    ),
    Rate(
        "DFedSGPSM",
        "Corollary 1",
        "L(1−α)Δ/√T + σ_l²/((1−α)√T) + C₂/(δT) + L²C²‖x⁰‖²/((1−q²)T) + C²(B²+σ_l²)/((1−α)²(1−q)²T) + 1/T",
        _until(dfedsgpsm),
    ),
    Rate(
        "DFedADMM",
        "Corollary 1",
        "(Δ+(B²+σ_l²)/√K)/√T + (B²+σ_l²+σ_g²)/((1−ψ)²T) + L(B²+σ_l²)/(√K T^(3/2)) + (B²+σ_l²)/((1−ψ)²KT)",
        _until(dfedadmm),
    ),
    Rate(
        "FedAvg",
        "Table I",
        "(B²+1)L/ε + √L G/ε^(3/2) + Lσ²/(Knε²)",
        lambda c, ε: 2 * c.smoothness / ε + math.sqrt(c.smoothness) * c.sigma_g / ε**1.5 + _noise(c, ε),
    ),
    Rate("SCAFFOLD", "Table I", "L/ε + Lσ²/(Knε²)", lambda c, ε: c.smoothness / ε + _noise(c, ε)),
    Rate(
        "Gossip",
        "Table I",
        "√(B²+1) L/(pε) + LG/(pε^(3/2)) + Lσ/(√(pK) ε^(3/2)) + Lσ²/(Knε²)",
        lambda c, ε: (
            over(math.sqrt(2) * c.smoothness, c.p * ε)
            + over(c.smoothness * c.sigma_g, c.p * ε**1.5)
            + over(c.smoothness * c.sigma_l, math.sqrt(c.p * c.steps) * ε**1.5)
            + _noise(c, ε)
        ),
    ),
    Rate(
        "D-SCAFFOLD",
        "Table I",
        "(B²+1)L/(p²ε²) + LG²/(p²ε²) + Lσ²/(p²Kε²) + Lσ²/(Knε²)",
        lambda c, ε: over(c.smoothness * (2 + c.sigma_g**2 + c.sigma_l**2 / c.steps), c.p**2 * ε**2) + _noise(c, ε),
    ),
    Rate(
        "G-ECL",
        "Table I",
        "(L + √(1−p)ψ)/(p²ε) + Lσ/(p²ε^(3/2)) + Lσ²/(nε²)",
        lambda c, ε: (
            _edges(c, ε)
            + over(c.smoothness * c.sigma_l, c.p**2 * ε**1.5)
            + c.smoothness * c.sigma_l**2 / (c.clients * ε**2)
        ),
    ),
    Rate(
        "Local G-ECL",
        "Corollary 5",
        CORRECTED.format("L^(2/3) ζ^(2/3)/(pε)"),
        lambda c, ε: (
            _edges(c, ε) + over((c.smoothness * c.sigma_g) ** (2 / 3), c.p * ε) + _tracked(c, ε) + _noise(c, ε)
        ),
    ),
    Rate(
        "Local G-ECL, warm start",
        "Corollary 6",
        CORRECTED.format("log(Lζ/p)/p"),
        lambda c, ε: (
            _edges(c, ε)
            + over(max(0.0, math.log(over(c.smoothness * c.sigma_g, c.p) or 1)), c.p)
            + _tracked(c, ε)
            + _noise(c, ε)
        ),
    ),
)
