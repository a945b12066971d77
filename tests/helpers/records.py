"""Runs and comparisons with numbers that can be checked by hand."""

from typing import Any

import pandas as pd

from gossamer.runs.record import RunRecord
from gossamer.studies import Comparison, Target, VariantResult

NINETY = Target("test_accuracy", 0.9)


def record(*accuracies: float | None, **experiment: Any) -> RunRecord:
    """A run with these accuracies, ten bytes and two seconds a round."""
    rounds = range(1, len(accuracies) + 1)
    metrics = pd.DataFrame({
        "round": rounds, "test_accuracy": accuracies, "consensus": 0.5, "client_bytes_round": 5.0,
        "bytes_total": [10 * r for r in rounds], "messages_total": [3 * r for r in rounds],
        "gradients_total": [7 * r for r in rounds],
    })  # fmt: skip
    timings = pd.DataFrame({"round": rounds, "seconds_local": 1.5, "seconds_mixing": 0.5})
    described = {"rounds": len(accuracies), "dataset": "digits", "seed": 0, **experiment}
    return RunRecord("run", described, metrics, timings)


def comparison(
    variants: dict[str, dict[int, RunRecord]], targets: tuple[Target, ...] = (), baseline: str | None = None
) -> Comparison:
    found = {label: VariantResult(label, {"variant": label}, runs) for label, runs in variants.items()}
    return Comparison(found, targets, {label: baseline for label in found if label != baseline} if baseline else {})
