"""What a report shows where it was measured: flatness, loss landscapes, and the theory beside the gradient norm."""

import csv
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gossamer.errors import GossamerError
from gossamer.experiment import load_experiment
from gossamer.pages.report_data import has_numbers, short
from gossamer.pages.tables import Cell, Column, Sheet, key_columns, leading, plain_column
from gossamer.runs.folder import EXPERIMENT
from gossamer.studies import Comparison, VariantResult
from gossamer.system.words import number
from gossamer.theory import analyse

#: The metrics of flatness and their heads.
FLATNESS = {
    "top_eigenvalue": "largest eigenvalue of the Hessian",
    "hessian_trace": "its trace",
    "sam_sharpness": "rise of the loss at distance 0.05",
}
GRADIENT = "gradient_norm_squared"
#: The most variants whose constants are measured for the theory: each takes seconds.
ANALYSED = 8


def flatness_sheet(comparison: Comparison) -> Sheet | None:
    """The flatness of every variant at its last measured round; None if it was not measured."""
    measured = [key for key in FLATNESS if any(has_numbers(record, key) for record in comparison.records)]
    if not measured:
        return None
    columns = key_columns(comparison)
    for key in measured:
        estimates = [variant.last(key) for variant in comparison.variants.values()]
        best = leading([estimate.mean for estimate in estimates], "down")
        cells = [Cell(number(*estimate), mark) for estimate, mark in zip(estimates, best, strict=True)]
        columns.append(Column(FLATNESS[key], cells))
    return Sheet(
        "", columns, ["Of the training loss, at the averaged model of the last round measured. Lower is flatter."]
    )


def landscapes(comparison: Comparison) -> list[dict[str, Any]]:
    """The landscapes that the first seeds of the variants have, in two directions or in one."""
    found = []
    for variant in comparison.variants.values():
        folder = next(iter(variant.runs.values())).folder
        for file in sorted(folder.glob("landscape-*.json")) if folder is not None else ():
            if (read := landscape(file)) is not None:
                found.append({"label": variant.label, "name": file.stem.removeprefix("landscape-"), **read})
    return found


def landscape(file: Path) -> dict[str, Any] | None:
    """Points and losses of a landscape; None for one that is not finished or cannot be read."""
    try:
        grid = json.loads(file.read_text(encoding="utf-8"))["grid"]
        with file.with_suffix(".csv").open(encoding="utf-8", newline="") as table:
            losses = [short(float(row[-1])) for row in list(csv.reader(table))[1:]]
        across, dimensions = int(grid["points"]), int(grid["dimensions"])
        if len(losses) != across**dimensions:
            return None
        return {"points": across, "dimensions": dimensions, "radius": float(grid["radius"]), "losses": losses}
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None


def theory_sheet(comparison: Comparison, data_dir: Path | None = None) -> Sheet | None:
    """The bounds of the theorems that cover each variant beside its measured gradient norm; None without any."""
    variants = [variant for variant in comparison.variants.values() if _measured(variant)]
    if not variants:
        return None
    rows = [row for variant in variants[:ANALYSED] for row in _bounds(variant, data_dir)]
    heads = ("variant", "theorem", "its conditions", "bound", "at learning rate", "least measured", "mean measured")
    columns = [plain_column(head, (row[i] for row in rows), is_text=i < 3) for i, head in enumerate(heads)]
    notes = [
        "Of ‖∇f(x̄)‖², of the first seed; constants are estimates at the initial model (see gossamer theory). Where the "
        "conditions do not hold, the bound is that of the nearest learning rate that they allow."
    ]
    if len(variants) > ANALYSED:
        notes.append(f"The first {ANALYSED} of {len(variants)} variants with a measured gradient norm.")
    return Sheet("", columns, notes)


def _measured(variant: VariantResult) -> bool:
    return has_numbers(next(iter(variant.runs.values())), GRADIENT)


def _bounds(variant: VariantResult, data_dir: Path | None) -> Iterator[tuple[str, ...]]:
    run = next(iter(variant.runs.values()))
    values = run.metrics[GRADIENT].dropna()
    measured = (number(float(values.min())), number(float(values.mean())))
    if run.folder is None:
        yield (variant.label, "–", "the run has no folder", "–", "–", *measured)
        return
    try:
        bounds = analyse(load_experiment(run.folder / EXPERIMENT), data_dir).bounds
    except GossamerError as error:
        yield (variant.label, "–", f"not computed: {error}", "–", "–", *measured)
        return
    covering = [bound for bound in bounds if bound.covers]
    if not covering:
        yield (variant.label, "none covers it", "–", "–", "–", *measured)
    for bound in covering:
        broken = [condition for condition in bound.conditions if not condition.holds]
        held = "hold" if not broken else f"{len(broken)} of {len(bound.conditions)} do not hold"
        at = bound.best_values
        value = number(at.total) if at.total is not None and math.isfinite(at.total) else "–"
        name = f"{bound.theorem.name}, {bound.theorem.place}"
        yield (variant.label, name, held, value, number(at.lr), *measured)
