"""Studies that are tuned first: each method's candidates run with one seed, the best of them with others.

What is reported never decides what is chosen: the seeds that are reported have other partitions, initial weights and
batches than the one that chose.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from gossamer.studies.results import VariantResult


class Tuning(NamedTuple):
    """How a study is tuned."""

    #: The seed that chooses, and those that are reported.
    seed: int
    seeds: tuple[int, ...]
    #: Accuracies in percent, as text, to which rounds, bytes and gradients are counted.
    targets: tuple[str, ...]
    #: The labels of each method's candidates, by the method's label.
    candidates: Mapping[str, tuple[str, ...]]

    def winners(self, runs: Mapping[str, VariantResult], metric: str) -> dict[str, str]:
        """The best candidate of every method: that with the highest last value among those that ran to the end."""
        found = {}
        for method, labels in self.candidates.items():
            tried = {label: runs[label].runs.get(self.seed) for label in labels if label in runs}
            whole = {
                label: run.last(metric)
                for label, run in tried.items()
                if run is not None and run.rounds == run.experiment["rounds"]
            }
            if whole:
                found[method] = max(whole, key=lambda label: whole[label])
        return found

    def reported(self, runs: Mapping[str, VariantResult], metric: str) -> dict[str, VariantResult]:
        """The runs of every winner with the seeds that are reported, by the method's label."""
        found = {}
        for method, label in self.winners(runs, metric).items():
            kept = {seed: run for seed, run in runs[label].runs.items() if seed != self.seed}
            if kept:
                found[method] = VariantResult(method, runs[label].values, kept)
        return found


def read_tuning(table: Mapping[str, Any], variants: Sequence[Mapping[str, Any]]) -> tuple[Tuning, list[dict[str, Any]]]:
    """The tuning of a file's `[paper.tuning]`, and one variant for each candidate.

    A candidate is a `[[variant]]` with a learning rate of `lr` and a value of its `own` parameter, if it has one.
    """
    candidates: dict[str, tuple[str, ...]] = {}
    made: list[dict[str, Any]] = []
    for variant in variants:
        own = table["own"].get(variant["label"], {})
        tried = []
        for lr, *values in product(table["lr"], *own.values()):
            settings = dict(zip(own, values, strict=True))
            words = [f"{key.removeprefix('method.').replace('_', ' ')} {value:g}" for key, value in settings.items()]
            tried.append(
                {**variant, **settings, "lr": lr, "label": ", ".join([variant["label"], *words, f"lr {lr:g}"])}
            )
        candidates[variant["label"]] = tuple(each["label"] for each in tried)
        made += tried
    return Tuning(table["seed"], tuple(table["seeds"]), tuple(table["targets"]), candidates), made
