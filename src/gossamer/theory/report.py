"""The theorems applied to an experiment: the terms of each bound, whether its assumptions hold, and what would help."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.errors import ExperimentError
from gossamer.experiment import Experiment, prepare
from gossamer.graphs import GraphSummary, summarise
from gossamer.measure import Metrics
from gossamer.methods import DFedADMM, QGDSGDm
from gossamer.methods.dfedadmm import AlternatesDirections
from gossamer.methods.dfedavg import LocalMomentumSGD
from gossamer.methods.dfedsam import LocalSAM
from gossamer.methods.g_ecl import StepsFromAggregated, TracksGradients
from gossamer.methods.push_sum import PushesWithMomentum
from gossamer.system.threads import on_threads
from gossamer.theory.bounds import (
    DFEDSAM,
    THEOREMS,
    Condition,
    Constants,
    Kind,
    Term,
    Theorem,
    Undefined,
    phi,
    total,
)
from gossamer.theory.measures import Measured, measure, mixing_of, pull_of, push_sum_is_measured
from gossamer.theory.rates import RATES, Rate
from gossamer.training import Training, check_first_step

#: What reduces the terms of each kind.
ADVICE = {
    "start": "more rounds would help most",
    "noise": "larger mini-batches would help most",
    "heterogeneity": "clients with more alike data, or fewer local steps, would help most",
    "gradient size": "fewer local steps or a smaller step size would help most",
    "momentum": "less momentum would help most",
    "perturbation": "a smaller ρ would help most",
    "graph": "a better connected graph would help most",
}


@dataclass(frozen=True)
class Values:
    """A bound at one step size."""

    lr: float
    penalty: float
    terms: tuple[Term, ...]
    #: The bound with the same constants on the complete graph.
    complete: float | None
    #: The reason if there is no value.
    undefined: str | None = None

    @property
    def total(self) -> float | None:
        """The bound."""
        return None if self.undefined else total(self.terms)

    def share(self, term: Term) -> float | None:
        """A term's share of the bound."""
        whole = self.total
        if whole == 0:
            return 0.0
        return None if whole is None or not math.isfinite(whole) else term.value / whole


@dataclass(frozen=True)
class Bound:
    """A theorem applied to an experiment: at its step size and, if that is too large, at the nearest allowed one."""

    theorem: Theorem
    covers: bool
    conditions: tuple[Condition, ...]
    here: Values
    allowed: Values | None

    #: The bound of the consensus lemma at the experiment's step size; NaN if the paper has none.
    consensus: float

    @property
    def valid(self) -> bool:
        """Whether the theorem's conditions hold in the experiment."""
        return all(condition.holds for condition in self.conditions)

    @property
    def best_values(self) -> Values:
        """The values at the nearest allowed setting, or those of the experiment if it is allowed."""
        return self.allowed or self.here

    @property
    def dominant(self) -> Kind | None:
        """The kind of terms with the largest sum."""
        causes: dict[Kind, float] = {}
        for term in self.best_values.terms:
            causes[term.kind] = causes.get(term.kind, 0.0) + term.value
        return max(causes, key=lambda kind: causes[kind], default=None)

    @property
    def verdict(self) -> str:
        """The dominant kind of terms, and what would reduce it."""
        values = self.best_values
        whole, kind = values.total, self.dominant
        if whole is None or kind is None:
            return f"no value: {values.undefined}"
        if not math.isfinite(whole):
            return "infinite: clients on this graph never agree"
        if whole == 0:
            return "the bound is 0"
        share = math.fsum(term.value for term in values.terms if term.kind == kind) / whole
        gossip = " or more gossip steps" if self.theorem is DFEDSAM else ""
        advice = ADVICE[kind].replace("graph would", f"graph{gossip} would")
        left = 1.0 if values.complete is None else values.complete / whole
        if kind == "graph" and left > 0.5:
            advice = "but the complete graph would be little better: more rounds or a smaller step size would help more"
        word = "dominates" if share >= 0.5 else "is the largest"
        text = f"the {kind} term {word}: {percent(share)} — {advice}"
        return text if left > 0.995 else f"{text}; the complete graph would leave {percent(left)} of the bound"

    def to_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON."""
        return {
            "method": self.theorem.name,
            "theorem": self.theorem.place,
            "bounds": self.theorem.bounds,
            "up_to_a_constant": self.theorem.up_to_a_constant,
            "covers_this_method": self.covers,
            "valid": self.valid,
            "dominant": self.dominant,
            "conditions": [condition._asdict() for condition in self.conditions],
            "here": values_dict(self.here),
            "allowed": None if self.allowed is None else values_dict(self.allowed),
            "verdict": self.verdict,
            "consensus_lemma": self.theorem.consensus_place or None,
            "consensus_bound": finite(self.consensus),
        }


@dataclass(frozen=True)
class RunMeasures:
    """What a run measured of the quantities that the theorems bound."""

    #: The last round, and in how many rounds the squared gradient norm of the averaged model was measured.
    last_round: int
    rounds: int
    #: The least ‖∇f(x̄)‖² over these rounds, and the mean; NaN if it was never measured.
    least: float
    mean: float
    #: The largest consensus distance of a round, and the last.
    consensus_largest: float
    consensus: float

    @classmethod
    def of(cls, metrics: Sequence[Metrics]) -> "RunMeasures":
        """From the metrics of a run."""

        def known(key: str) -> list[float]:
            return [value for line in metrics if (value := line.get(key)) is not None and math.isfinite(value)]

        norms, apart = known("gradient_norm_squared"), known("consensus")
        return cls(
            int(metrics[-1]["round"]) if metrics else 0,
            len(norms),
            min(norms, default=math.nan),
            math.fsum(norms) / len(norms) if norms else math.nan,
            max(apart, default=math.nan),
            apart[-1] if apart else math.nan,
        )


@dataclass(frozen=True)
class Theory:
    """Constants, measurements and bounds of an experiment."""

    graph: GraphSummary
    constants: Constants
    measured: Measured
    bounds: tuple[Bound, ...]
    notes: tuple[str, ...]
    #: Measures of a run of this experiment.
    run: RunMeasures | None = None

    def rounds_to(self, epsilon: float) -> dict[str, float]:
        """Rounds until ‖∇f‖² ≤ ε by the papers' corollaries and Table I, up to constant factors, by method."""
        if not 0 < epsilon < math.inf:
            raise ExperimentError(f"epsilon: should be a positive number (got {epsilon:g})")
        return {rate.method: _finite_or_infinite(rate, self.constants, epsilon) for rate in RATES}

    @property
    def phi(self) -> float:
        """Φ(λ, m, Q)."""
        return phi(self.constants.lambda_, self.constants.clients, self.constants.gossip_steps)

    def to_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON; infinite and undefined values are null."""
        constants = {key.rstrip("_"): finite(value) for key, value in asdict(self.constants).items()}
        return {
            "graph": {
                "name": self.graph.name,
                "clients": self.graph.clients,
                "lambda": self.constants.lambda_,
                "spectral_gap": 1 - self.constants.lambda_,
                "p": self.constants.p,
                "phi": finite(self.phi),
                "gossip_steps": self.constants.gossip_steps,
            },
            "constants": constants,
            "measured": {key: finite(value) for key, value in self.measured._asdict().items()},
            "bounds": [bound.to_dict() for bound in self.bounds],
            "run": None if self.run is None else {key: finite(value) for key, value in asdict(self.run).items()},
            "notes": list(self.notes),
        }


def analyse(
    experiment: Experiment,
    data_dir: Path | None = None,
    smoothness: float | None = None,
    metrics: Sequence[Metrics] | None = None,
) -> Theory:
    """The constants of an experiment, measured at its initial model, and the bounds of the four papers.

    `metrics` of a run of this experiment put what it measured beside the bounds.

    >>> said = analyse(Experiment(clients=4, local_steps=2, rounds=5, model="softmax"))
    >>> [bound.theorem.name for bound in said.bounds]
    ['DFedSAM', 'Local G-ECL', 'DFedSGPSM', 'DFedADMM']
    """
    if smoothness is not None and not (math.isfinite(smoothness) and smoothness > 0):
        raise ExperimentError(f"smoothness: should be a positive number (got {smoothness:g})")
    work = prepare(experiment, data_dir).training
    check_first_step(work)
    taken = work.batches.steps[work.batches.steps > 0]
    if not len(taken):
        raise ExperimentError("local work: no client takes a local step, so there is nothing to bound")
    graph = summarise(work.network)
    mixing = mixing_of(work.network, graph)
    with on_threads(1):
        measured = measure(work, smoothness)
    method, claims = work.method, work.network.claims
    constants = Constants(
        clients=work.network.clients,
        steps=float(np.mean(taken)),
        rounds=work.rounds,
        lr=work.lr,
        gap=measured.loss,
        smoothness=measured.smoothness,
        sigma_l=measured.sigma_l,
        sigma_g=measured.sigma_g,
        gradient=measured.gradient,
        beta=measured.beta,
        x0=measured.x0,
        lambda_=mixing.rate,
        gossip_steps=work.traits.gossip_steps,
        push_factor=mixing.factor,
        push_rate=mixing.rate,
        least_weight=mixing.least_weight,
        rho=method.rho if isinstance(method, LocalSAM | AlternatesDirections | PushesWithMomentum) else 0.0,
        momentum=method.momentum if isinstance(method, LocalMomentumSGD | PushesWithMomentum | QGDSGDm) else 0.0,
        penalty=method.penalty if isinstance(method, AlternatesDirections) else DFedADMM().penalty,
        pull=pull_of(work.network, method.alpha if isinstance(method, TracksGradients) else 0.0),
        warm_start=method.warm_start if isinstance(method, StepsFromAggregated) else 0,
        symmetric=(claims.symmetric and graph.period == 1) or work.network.has_server,
        columns=claims.columns or work.network.has_server,
        everyone=work.network.participation(0) == 1,
    )
    bounds = tuple(evaluate(theorem, constants, theorem.applies_to(method)) for theorem in THEOREMS)
    notes = list(notes_on(work, graph, smoothness))
    if not any(bound.covers for bound in bounds):
        notes.insert(
            0, "no theorem here covers this method: the bounds are those of other methods on its data and graph"
        )
    return Theory(
        graph, constants, measured, bounds, tuple(notes), None if metrics is None else RunMeasures.of(metrics)
    )


def evaluate(theorem: Theorem, constants: Constants, covers: bool = False) -> Bound:
    """A theorem applied to these constants."""
    conditions = tuple(theorem.conditions(constants))
    allowed = theorem.allowed(constants)
    nearest = None if allowed == constants else values_of(theorem, allowed)
    consensus = theorem.consensus(constants) if theorem.consensus else math.nan
    return Bound(theorem, covers, conditions, values_of(theorem, constants), nearest, consensus)


def values_of(theorem: Theorem, c: Constants) -> Values:
    """The terms of a theorem, or the reason why they have no value."""
    try:
        terms = tuple(theorem.terms(c))
        return Values(c.lr, c.penalty, terms, total(theorem.terms(c.on_the_complete_graph())))
    except Undefined as reason:
        return Values(c.lr, c.penalty, (), None, str(reason))
    except ZeroDivisionError:
        return Values(c.lr, c.penalty, (), None, "the largest allowed step size is 0: clients never agree")


def notes_on(work: Training, graph: GraphSummary, smoothness: float | None) -> Iterator[str]:
    """Notes on how the numbers are to be read."""
    if smoothness is None:
        yield "L is a local estimate, at the initial model only; --smoothness sets it"
    steps = work.batches.steps[work.batches.steps > 0]
    if steps.min() != steps.max():
        yield f"clients take {steps.min()} to {steps.max()} local steps: K is their mean"
    if work.lr_decay != 1:
        yield f"η is that of the first round, as in the theorems; the experiment decays it by {work.lr_decay:g} a round"
    if work.network.has_server:
        yield "a server's mean is exact, so λ = 0"
    elif graph.exact_after and graph.period != 1:
        m = graph.exact_after
        yield f"the graph changes and is exact after {m} steps: λ = 1 − 1/{m} stands for it"
    elif graph.period != 1:
        yield "the graph changes: λ is what one of its steps leaves of the disagreement, all steps taken together"
    if not push_sum_is_measured(work.network):
        yield "C = δ = 1 are not measured on so large a directed graph: DFedSGPSM's bound is too small"
    if not isinstance(work.method, AlternatesDirections):
        yield f"the method has no penalty: λ = {DFedADMM().penalty:g}, the default of dfedadmm, in DFedADMM's bound"
    if work.clip is not None:
        yield "gradients are clipped in training, which no theorem covers"


def _finite_or_infinite(rate: Rate, constants: Constants, epsilon: float) -> float:
    """The rounds of a rate; infinite where clients never agree, NaN where push-sum has no constants."""
    try:
        return rate.rounds(constants, epsilon)
    except (OverflowError, ZeroDivisionError):
        return math.inf


def values_dict(values: Values) -> dict[str, Any]:
    """Terms, shares and totals, ready for JSON."""
    return {
        "lr": values.lr,
        "penalty": values.penalty,
        "bound": finite(values.total),
        "on_the_complete_graph": finite(values.complete),
        "undefined": values.undefined,
        "terms": [
            {**term._asdict(), "value": finite(term.value), "share": values.share(term)} for term in values.terms
        ],
    }


def finite(value: Any) -> Any:
    """None for infinity and NaN, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def percent(share: float) -> str:
    """A share in per cent.

    >>> percent(0.834), percent(0.0004), percent(0.0), percent(0.9999)
    ('83 %', '< 1 %', '0 %', '> 99 %')
    """
    if 0.99 < share < 1:
        return "> 99 %"
    return "< 1 %" if 0 < share < 0.01 else f"{100 * share:.0f} %"
