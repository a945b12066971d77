"""Targets: the value of a metric that a run is to reach, and what it took to reach it."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gossamer.errors import ExperimentError, did_you_mean
from gossamer.measure import METRICS
from gossamer.runs.record import RunRecord

#: As in a file: values of the metric by which the study is judged, or a table of values for each metric.
Targets = Sequence[float] | Mapping[str, Sequence[float]]


class Target(NamedTuple):
    """A value of a metric: accuracies and totals rise to it, losses fall to it."""

    metric: str
    value: float

    def met_by(self, value: float) -> bool:
        """Whether a value of the metric is as good."""
        return value >= self.value if METRICS[self.metric].direction == "up" else value <= self.value

    def __str__(self) -> str:
        sign = "≥" if METRICS[self.metric].direction == "up" else "≤"
        shown = f"{100 * self.value:.6g} %" if "accuracy" in self.metric else f"{self.value:.6g}"
        return f"{self.metric.replace('_', ' ')} {sign} {shown}"


class Cost(NamedTuple):
    """What a run had done by the end of a round."""

    rounds: float
    #: Sent by all clients and the server: both ways.
    bytes: float
    messages: float
    #: Mini-batch gradients taken by all clients.
    gradients: float
    seconds: float


class Reached(NamedTuple):
    """The cost of a target in one run: until the first measured round that met it, or in all if none did."""

    met: bool
    cost: Cost


def reach(record: RunRecord, target: Target) -> Reached:
    """What a run did until it met a target."""
    metrics = record.metrics
    met = [target.met_by(value) for value in metrics[target.metric]] if target.metric in metrics else []
    place = met.index(True) if any(met) else len(metrics) - 1
    if place < 0:
        return Reached(False, Cost(0, 0, 0, 0, 0))
    line = metrics.iloc[place]
    sent, messages, gradients = (float(line.get(f"{n}_total", math.nan)) for n in ("bytes", "messages", "gradients"))
    round = int(line["round"])
    return Reached(any(met), Cost(round, sent, messages, gradients, record.seconds_until(round)))


def check_targets(targets: Targets) -> None:
    """Refuse targets that are no numbers, or of a metric that does not exist."""
    tables = targets if isinstance(targets, Mapping) else {"test_accuracy": targets}
    known = [name for name, metric in METRICS.items() if metric.direction is not None]
    for metric, values in tables.items():
        if metric not in known:
            raise ExperimentError(f"targets: unknown metric '{metric}': {did_you_mean(metric, known)}")
        if isinstance(values, str | Mapping) or not isinstance(values, Sequence) or not values:
            raise ExperimentError(f"targets: '{metric}' needs a list of values (got {values!r})")
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                named = isinstance(value, Mapping)
                other = ": of a metric of your choice as targets = {test_loss = [0.5]}" if named else ""
                raise ExperimentError(f"targets: should be numbers{other} (got {value!r})")


def resolve_targets(targets: Targets, judged_by: str, accuracies: bool = True) -> tuple[Target, ...]:
    """The targets, those of a plain list as values of the metric by which runs are judged.

    `accuracies` says whether the runs measure any.
    """
    tables = targets if isinstance(targets, Mapping) else {judged_by: targets}
    found = [Target(metric, float(value)) for metric, values in tables.items() for value in values]
    for metric, value in found:
        if "accuracy" in metric and not accuracies:
            raise ExperimentError(f"targets: these runs have no {metric}; they are judged by {judged_by}")
        if "accuracy" in metric and not 0 <= value <= 1:
            raise ExperimentError(
                f"targets: {value:g} is no accuracy: it is between 0 and 1, as in 0.9 for 90 %. For another metric "
                f"than {metric}, write targets = {{test_loss = [...]}}."
            )
    return tuple(dict.fromkeys(found))
