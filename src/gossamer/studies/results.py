"""The result of a comparison: the runs of every variant by their seeds, and what follows from them."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gossamer.experiment import Experiment
from gossamer.measure import SCORES, Score
from gossamer.runs.record import RunRecord, score_of
from gossamer.studies.targets import Cost, Reached, Target, reach
from gossamer.studies.variants import Variant, value_label
from gossamer.system.notebook import Displayed

if TYPE_CHECKING:
    import pandas as pd

#: A number of a run, NaN where it has none.
Measure = Callable[[RunRecord], float]
#: Keys of a data set that leave its test samples as they are.
SAME_TEST_SAMPLES = ("train_samples", "augment", "rule", "normalise")


class Estimate(NamedTuple):
    """Mean and sample standard deviation over the seeds. One seed has no spread."""

    mean: float
    spread: float | None

    @classmethod
    def of(cls, values: Iterable[float]) -> "Estimate":
        """The estimate of one value for each seed; not a number if one of them is not.

        >>> Estimate.of([1.0, 3.0]), Estimate.of([2.0])
        (Estimate(mean=2.0, spread=1.4142135623730951), Estimate(mean=2.0, spread=None))
        """
        known = list(values)
        whole = bool(known) and not any(map(math.isnan, known))
        spread = (statistics.stdev(known) if whole else math.nan) if len(known) > 1 else None
        return cls(statistics.fmean(known) if whole else math.nan, spread)


class TargetResult(NamedTuple):
    """What a variant did until it met a target, by seed."""

    by_seed: dict[int, Reached]

    @property
    def met(self) -> int:
        """The number of seeds that met it."""
        return sum(reached.met for reached in self.by_seed.values())

    def estimate(self, quantity: str) -> Estimate | None:
        """Mean and spread of "rounds", "bytes", ...; None unless every seed met the target."""
        if self.met < len(self.by_seed):
            return None
        return Estimate.of(getattr(reached.cost, quantity) for reached in self.by_seed.values())

    def more_than(self, quantity: str) -> float:
        """What the seeds that did not meet it had done at their end: the least of them."""
        return min((getattr(r.cost, quantity) for r in self.by_seed.values() if not r.met), default=math.nan)


class StudyRun(NamedTuple):
    """One run of a comparison: a variant with a seed, its place among all runs, and its run folder, if any."""

    variant: Variant
    experiment: Experiment
    number: int
    total: int
    folder: Path | None

    @property
    def label(self) -> str:
        """The label of its variant."""
        return self.variant.label

    def __str__(self) -> str:
        return f"{self.label} (seed {self.experiment.seed})"


@dataclass(frozen=True, eq=False)
class VariantResult:
    """The runs of one variant."""

    label: str
    #: What tells it from the others, by key: see `Variant.values`.
    values: dict[str, str | int | float]
    #: The runs by seed.
    runs: dict[int, RunRecord]

    @property
    def test_sets(self) -> set[str]:
        """The test samples of its runs."""
        return set(map(test_samples, self.runs.values()))

    def estimate(self, measure: Measure) -> Estimate:
        """Mean and spread of a number of its runs."""
        return Estimate.of(map(measure, self.runs.values()))

    def best(self, metric: str) -> Estimate:
        """Mean and spread of the best value of a metric."""
        return self.estimate(lambda run: run.best(metric))

    def last(self, metric: str) -> Estimate:
        """Mean and spread of the last value of a metric."""
        return self.estimate(lambda run: run.last(metric))

    def until(self, target: Target) -> TargetResult:
        """What its runs did until they met a target."""
        return TargetResult({seed: reach(run, target) for seed, run in self.runs.items()})


class Difference(NamedTuple):
    """A variant minus its baseline, in pairs of one seed: same data, same initial weights, same batches."""

    baseline: str
    #: The seeds that both have.
    seeds: tuple[int, ...]
    mean: float
    #: Standard error of the mean over the seeds; None for one seed.
    error: float | None
    #: Whether the two were tested on different samples, so that there is no difference to speak of.
    other_samples: bool = False

    @classmethod
    def between(cls, variant: VariantResult, baseline: VariantResult, measure: Measure) -> "Difference":
        """The difference in a measure over the seeds that both have."""
        if variant.test_sets != baseline.test_sets:
            return cls(baseline.label, (), math.nan, None, other_samples=True)
        mine, others = variant.runs, baseline.runs
        seeds = tuple(seed for seed in mine if seed in others)
        mean, spread = Estimate.of(measure(mine[seed]) - measure(others[seed]) for seed in seeds)
        return cls(baseline.label, seeds, mean, None if spread is None else spread / math.sqrt(len(seeds)))

    @property
    def exceeds(self) -> bool | None:
        """Whether the difference is larger than its standard error; None where there is none."""
        if self.error is None or math.isnan(self.mean):
            return None
        return abs(self.mean) > self.error

    @property
    def words(self) -> str:
        """Whether the difference is larger than its standard error, in words."""
        if self.other_samples:
            return "not comparable: other test samples"
        if math.isnan(self.mean):
            return "not known" if self.seeds else "no seed in common"
        if self.error is None:
            return "one seed: not known"
        if not self.exceeds:
            return "no"
        return "yes, higher" if self.mean > 0 else "yes, lower"


@dataclass(frozen=True, eq=False)
class Comparison(Displayed):
    """The variants of a comparison by label, each with one run for each seed."""

    variants: dict[str, VariantResult]
    targets: tuple[Target, ...] = ()
    #: The label of a variant's baseline, by its own label.
    baselines: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None
    #: Whether the experiment's partition split the data; False for data that comes with its own clients.
    partitioned: bool = True
    #: Runs that the budget left no time for.
    left: tuple[StudyRun, ...] = ()

    @property
    def runs(self) -> dict[str, list[RunRecord]]:
        """The runs of each variant by its label."""
        return {label: list(variant.runs.values()) for label, variant in self.variants.items()}

    @property
    def records(self) -> list[RunRecord]:
        return [record for records in self.runs.values() for record in records]

    @property
    def remarks(self) -> list[str]:
        """Which runs are not whole, and why: they ended early, diverged or are damaged."""
        return [
            f"{label if len(variant.runs) == 1 else f'{label} (seed {seed})'}: {run.remark}"
            for label, variant in self.variants.items()
            for seed, run in variant.runs.items()
            if run.remark
        ]

    @property
    def keys(self) -> list[str]:
        """What the variants are told apart by: "variant" and the swept keys."""
        return list(dict.fromkeys(key for variant in self.variants.values() for key in variant.values))

    @cached_property
    def score(self) -> Score:
        """The metric by which the variants are judged."""
        return named_score(self.records)

    @cached_property
    def measures(self) -> dict[str, Measure]:
        """The numbers of a run that the tables hold, by their names."""
        return summary_measures(self.records, self.score, self.targets)

    @property
    def table(self) -> "pd.DataFrame":
        """One row per variant: its values by key, its number of seeds, the mean over them and, of several, their
        standard deviation as `... spread`."""
        import pandas as pd  # takes a third of a second, which no run should wait for before its first round

        rows = {}
        several = any(len(variant.runs) > 1 for variant in self.variants.values())
        for label, variant in self.variants.items():
            row: dict[str, str | float | None] = {**variant.values, "seeds": len(variant.runs)}
            for name, measure in self.measures.items():
                row[name], spread = variant.estimate(measure)
                if several:
                    row[f"{name} spread"] = math.nan if spread is None else spread
            rows[label] = row
        return pd.DataFrame.from_dict(rows, orient="index")

    @property
    def run_table(self) -> "pd.DataFrame":
        """One row per run: its variant's values by key, its seed, what is to be said of it, and its numbers."""
        import pandas as pd

        return pd.DataFrame(
            {
                **variant.values,
                "seed": seed,
                "remark": run.remark,
                **{name: measure(run) for name, measure in self.measures.items()},
            }
            for variant in self.variants.values()
            for seed, run in variant.runs.items()
        )

    def difference(self, label: str, measure: Measure | None = None) -> Difference | None:
        """A variant minus its baseline, seed by seed, in the best value of the score or in another measure; None
        for a variant without a baseline."""
        if (baseline := self.baselines.get(label)) is None:
            return None
        measure = measure or (lambda run: run.best(self.score.key))
        return Difference.between(self.variants[label], self.variants[baseline], measure)

    @property
    def difference_table(self) -> "pd.DataFrame":
        """One row per variant with a baseline and measure: the paired difference and its standard error."""
        import pandas as pd

        rows = []
        for label in self.baselines:
            for name, measure in self.measures.items():
                found = self.difference(label, measure)
                assert found is not None, "every label here has a baseline"
                error = {} if found.error is None else {"standard error": found.error}
                rows.append({
                    **self.variants[label].values, "baseline": found.baseline, "measure": name,
                    "seeds": len(found.seeds), "difference": found.mean, **error,
                    "more than its standard error": found.words,
                })  # fmt: skip
        return pd.DataFrame(rows)


def summary_measures(records: list[RunRecord], score: Score, targets: Iterable[Target]) -> dict[str, Measure]:
    """The numbers of a run that the tables hold: the score, other scores that were measured, bytes, targets, time."""

    def last(key: str) -> Measure:
        return lambda run: run.last(key)

    def until(target: Target, quantity: str) -> Measure:
        def cost(run: RunRecord) -> float:
            reached = reach(run, target)
            return float(getattr(reached.cost, quantity)) if reached.met else math.nan

        return cost

    found: dict[str, Measure] = {
        f"best {score.words}": lambda run: run.best(score.key),
        f"last {score.words}": last(score.key),
    }
    if score.worst:
        found[f"worst client {score.words}"] = last(score.worst)
    for other in SCORES:
        if other.key != score.key and any(not math.isnan(record.last(other.key)) for record in records):
            found[f"last {other.words}"] = last(other.key)
    if any(not math.isnan(record.last("generalisation_gap")) for record in records):
        found["gap"] = last("generalisation_gap")
    found |= {
        "consensus": last("consensus"),
        "bytes uploaded by a client in all rounds": lambda run: run.client_bytes,
        "bytes sent both ways in all rounds": last("bytes_total"),
        "messages in all rounds": last("messages_total"),
        "gradients in all rounds": last("gradients_total"),
    }
    for target in targets:
        for quantity in Cost._fields:
            found[f"{quantity} until {target}"] = until(target, quantity)
    found["seconds"] = lambda run: run.seconds
    return found


def named_score(records: list[RunRecord]) -> Score:
    """The metric by which runs are judged; the experiment's own one is called by its name, if all have the same."""
    score = score_of(records)
    if score.key not in ("test_score", "test_error"):
        return score
    names = {value_label(record.experiment.get("metric", score.words)) for record in records}
    return score._replace(words=names.pop()) if len(names) == 1 else score


def test_samples(record: RunRecord) -> str:
    """The test samples of a run: its data set, whatever training samples it takes, and however images are prepared."""
    dataset = record.experiment.get("dataset", "")
    if isinstance(dataset, Mapping):
        dataset = {key: value for key, value in dataset.items() if key not in SAME_TEST_SAMPLES}
    return value_label(dataset)
