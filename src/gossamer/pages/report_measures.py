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
from gossamer.runs.record import RunRecord
from gossamer.studies import Comparison, Estimate, VariantResult
from gossamer.studies.sharpness import read_sharpness
from gossamer.system.words import counted, number
from gossamer.theory import analyse

#: The metrics of flatness and their heads.
FLATNESS = {
    "top_eigenvalue": "largest eigenvalue of the Hessian",
    "hessian_trace": "its trace",
    "sam_sharpness": "rise of the loss at distance 0.05",
}
#: The measures of `gossamer sharpness` and their heads.
SHARPNESS = {
    "loss": "loss",
    "top": "largest eigenvalue of the Hessian",
    "trace": "its trace",
    "sam_sharpness": "rise of the loss at distance ρ",
}
#: What measurements have in common that stand in one table.
ALIKE = ("saved", "on", "sample_count", "rho", "seed", "probes")
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


def sharpness_sheets(comparison: Comparison) -> Iterator[Sheet]:
    """What `gossamer sharpness` measured: per way to measure, a table for averaged models and one for clients' own."""
    measured = {
        label: [_sharpness_lines(run) for run in variant.runs.values()]
        for label, variant in comparison.variants.items()
    }
    every = [line for runs in measured.values() for lines in runs for line in lines]
    for alike in dict.fromkeys(tuple(line[key] for key in ALIKE) for line in every):
        for own in (False, True):
            chosen = {
                label: [values for lines in runs if (values := _mean_measures(lines, alike, own))]
                for label, runs in measured.items()
            }
            if any(chosen.values()):
                yield _sharpness_sheet(comparison, chosen, dict(zip(ALIKE, alike, strict=True)), own)


def _sharpness_lines(run: RunRecord) -> list[dict[str, Any]]:
    """The whole measurements that a run folder holds; with several eigenvalues, the largest."""
    found = []
    for line in read_sharpness(run.folder) if run.folder is not None else ():
        top = line.get("top")
        whole = {**line, "top": top[0] if isinstance(top, list) and top else None}
        if all(key in whole for key in (*ALIKE, "model")) and all(
            isinstance(whole.get(key), int | float) for key in SHARPNESS
        ):
            found.append(whole)
    return found


def _mean_measures(lines: list[dict[str, Any]], alike: tuple[Any, ...], own: bool) -> dict[str, float]:
    """The measures of a run's averaged model, or the means of those of its clients' own; empty if there are none."""
    last = {
        line["model"]: line
        for line in lines
        if tuple(line[key] for key in ALIKE) == alike and (line["model"] != "average") == own
    }
    count = len(last)
    return {key: sum(line[key] for line in last.values()) / count for key in SHARPNESS} if last else {}


def _sharpness_sheet(
    comparison: Comparison, chosen: dict[str, list[dict[str, float]]], how: dict[str, Any], own: bool
) -> Sheet:
    columns = key_columns(comparison)
    for key, head in SHARPNESS.items():
        estimates = [Estimate.of(run[key] for run in runs) for runs in chosen.values()]
        best = leading([estimate.mean for estimate in estimates], "down")
        cells = [Cell(number(*estimate), mark) for estimate, mark in zip(estimates, best, strict=True)]
        columns.append(Column(head, cells))
    when = "at the end" if how["saved"] == "final" else "of the best round"
    whose = "Clients' own models" if own else "The averaged model"
    title = f"{whose} {when}, on {counted(how['sample_count'], how['on'] + ' sample')}"
    notes = [f"Measured by gossamer sharpness, without weight decay; ρ = {how['rho']:g}. Lower is flatter."]
    if own:
        notes.append("Means over the clients that were measured.")
    if len({len(runs) for runs in chosen.values()} | {len(v.runs) for v in comparison.variants.values()}) > 1:
        notes.append("Not of all seeds.")
    return Sheet(title, columns, [" ".join(notes)])


def landscapes(comparison: Comparison) -> list[dict[str, Any]]:
    """The landscapes that the first seeds of the variants have, in two directions or in one."""
    found = []
    for place, variant in enumerate(comparison.variants.values()):
        folder = next(iter(variant.runs.values())).folder
        for file in sorted(folder.glob("landscape-*.json")) if folder is not None else ():
            if (read := landscape(file)) is not None:
                about = {"label": variant.label, "variant": place, "name": file.stem.removeprefix("landscape-")}
                found.append({**about, **read})
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
        held = "hold" if not broken else f"{len(broken)} of {len(bound.conditions)} broken"
        at = bound.best_values
        value = number(at.total) if at.total is not None and math.isfinite(at.total) else "–"
        name = f"{bound.theorem.name}, {bound.theorem.place}"
        yield (variant.label, name, held, value, number(at.lr), *measured)
