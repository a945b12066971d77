"""Sharpness and landscapes of saved runs."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from gossamer.studies import Estimate
from gossamer.studies.landscape import Landscape
from gossamer.system.words import counted, number
from gossamer.terminal.console import err, ruled_table, with_caption

#: What a measurement is called, and its key.
COLUMNS = {
    "loss": "loss",
    "top\neigenvalue": "top",
    "trace": "trace",
    "SAM-\nsharpness": "sam_sharpness",
}


class Bar:
    """A live bar on a terminal; elsewhere a line for each part that is begun."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.percentage:3.0f} %"),
            TimeRemainingColumn(), console=err, transient=True, disable=quiet or not err.is_terminal,
        )  # fmt: skip

    def __enter__(self) -> Self:
        self._progress.start()
        self._task = self._progress.add_task("preparing", total=1.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def part(self, index: int, parts: int, label: str) -> Callable[[float, str], None]:
        """The progress of one of several equal parts."""
        said: list[str] = []

        def advance(share: float, doing: str) -> None:
            words = escape(f"{label}: {doing}" if label else doing)
            self._progress.update(self._task, completed=(index + share) / parts, description=words)
            if not self._quiet and not err.is_terminal and not said:
                said.append(label)
                err.print(f"[{index + 1}/{parts}] {words} ...", markup=False, soft_wrap=True)

        return advance


def sharpness_rows(found: Sequence[tuple[Path, dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """The measurements as rows of a table: eigenvalues in columns of their own."""
    for folder, line in found:
        row: dict[str, Any] = {"run": str(folder)}
        for key, value in line.items():
            if isinstance(value, list):
                row |= {f"{key}_{i}": each for i, each in enumerate(value, start=1)}
            else:
                row[key] = value
        yield row


def sharpness_view(found: Sequence[tuple[Path, dict[str, Any]]]) -> Table:
    """One row for each model; runs that differ in the seed of their folder's name alone are one."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    names = [re.sub(r"-seed\d+$", "", folder.resolve().name) for folder, _ in found]
    for (folder, line), name in zip(found, names, strict=True):
        alone = (
            sum(n == name and each["model"] == line["model"] for n, (_, each) in zip(names, found, strict=True)) == 1
        )
        groups.setdefault((folder.resolve().name if alone else name, line["model"]), []).append(line)
    shown = ruled_table()
    shown.add_column("run", overflow="fold", min_width=12)
    if {model for _, model in groups} != {"average"}:
        shown.add_column("model", no_wrap=True)
    for head in COLUMNS:
        shown.add_column(head, justify="right", no_wrap=True)
    for (name, model), lines in groups.items():
        cells = [escape(name)] + ([model] if len(shown.columns) > len(COLUMNS) + 1 else [])
        for key in COLUMNS.values():
            values = [line[key][0] if isinstance(line[key], list) else line[key] for line in lines]
            spread = Estimate.of(values).spread
            if key == "trace" and len(lines) == 1:
                spread = lines[0]["trace_error"]
            cells.append(number(float(np.mean(values)), spread))
        shown.add_row(*cells)
    return with_caption(shown, list(_captions([line for _, line in found], max(map(len, groups.values())))))


def _captions(lines: Sequence[dict[str, Any]], seeds: int) -> Iterator[str]:
    first = lines[0]
    samples = counted(first["sample_count"], f"{first['on']} sample")
    yield f"Loss on {samples}, without weight decay; ρ = {first['rho']:g}."
    if seeds > 1:
        yield f"Mean ± standard deviation over {counted(seeds, 'seed')}."
    else:
        yield f"± of a trace: its standard error over {first['probes']} random vectors."
    if decay := first["weight_decay"]:
        yield f"Weight decay adds {decay:g} to every eigenvalue and {decay * first['parameters']:.3g} to the trace."
    if first["eigenvalues"] > 1 and len(lines) == 1:
        yield "Largest eigenvalues: " + ", ".join(map(number, first["top"]))
    if open_ones := [line for line in lines if not line["converged"]]:
        worst = max(line["top_errors"][0] for line in open_ones)
        yield f"{counted(len(open_ones), 'eigenvalue')} not converged: within {worst:.2g} of a true one."


def landscape_view(found: Sequence[Landscape]) -> Table:
    """The loss at the models, and around them."""
    shown = ruled_table()
    shown.add_column("run", overflow="fold")
    heads = ("loss of\nthe model", "least", "mean at\n½ radius", "mean at\nradius", "not finite")
    for head in heads:
        shown.add_column(head, justify="right", no_wrap=True)
    for each in found:
        axis = np.array(each.settings.grid.axis) / each.settings.grid.radius
        away = np.abs(axis) if each.losses.ndim == 1 else np.maximum.outer(np.abs(axis), np.abs(axis))
        finite = np.isfinite(each.losses)

        def mean_at(distance: float, away: Any = away, finite: Any = finite, losses: Any = each.losses) -> str:
            nearest = np.abs(away - distance).min()
            rim = finite & (np.abs(away - distance) <= nearest + 1e-9)
            return number(float(losses[rim].mean())) if rim.any() else "–"

        least = float(each.losses[finite].min()) if finite.any() else float("nan")
        shown.add_row(
            escape(each.label),
            number(each.centre),
            number(least),
            mean_at(0.5),
            mean_at(1.0),
            str(int((~finite).sum())),
        )
    return shown
