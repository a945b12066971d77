"""Runs: the end of one, several side by side, their curves."""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.markup import escape

from gossamer.errors import GossamerError
from gossamer.experiment import CATALOGS
from gossamer.measure import SCORES
from gossamer.pages.tables import Column, plain_column
from gossamer.simulation import Run
from gossamer.studies import Comparison, value_label
from gossamer.system.words import number, score_text, size
from gossamer.terminal.console import say, say_next, say_where


def say_run(run: Run, folder: Path, words: str = "written to") -> None:
    """Print what a run reached and where its files are."""
    if run.ending.kind == "stopped":
        say(escape(str(run.ending)))
    say(", ".join([*_reached(run), f"sent by a client {size(run.sent_per_client)}"]))
    say_where(folder, words=words)
    say_next(f"gossamer show {shlex.quote(str(folder))}")


def _reached(run: Run) -> Iterator[str]:
    best, last = run.best, run.last
    known = [key for key, value in best.items() if value is not None and value == value]
    score = next((score for score in SCORES if score.key in known), SCORES[-1])
    if best:
        yield f"best {score.words} [bold]{score_text(score.key, best[score.key])}[/] in round {best['round']:.0f}"
        yield f"last {score_text(score.key, last.get(score.key))}"
        yield f"worst client {score_text(score.key, last.get(score.worst or ''))}"
    else:
        yield f"{score.words} {number(last.get(score.key))}"


def run_columns(comparison: Comparison) -> list[Column]:
    """Method and graph of every variant, unless they are among its labels, and how far its runs are."""
    first = [next(iter(variant.runs.values())).experiment for variant in comparison.variants.values()]
    parts = [key for key in ("method", "graph") if key not in comparison.keys]
    columns = [
        plain_column(key, (short_label(key, each.get(key, "")) for each in first), is_text=True) for key in parts
    ]
    done = ([run.rounds for run in variant.runs.values()] for variant in comparison.variants.values())
    rounds = (
        f"{'–'.join(map(str, dict.fromkeys((min(each), max(each)))))}/{experiment['rounds']}"
        for each, experiment in zip(done, first, strict=True)
    )
    return [*columns, plain_column("rounds", rounds)]


def short_label(key: str, part: Any) -> str:
    """A part with the parameters that are not its defaults.

    >>> short_label("method", {"name": "dfedsam", "rho": 0.01}), short_label("method", {"name": "dfedsam", "rho": 0.2})
    ('dfedsam', 'dfedsam(rho=0.2)')
    """
    if not isinstance(part, Mapping) or part["name"] not in CATALOGS[key]:
        return value_label(part)
    try:
        usual = CATALOGS[key].describe(CATALOGS[key].build(part["name"]))
    except GossamerError:  # a parameter without a default
        usual = {}
    known = usual.items() if isinstance(usual, Mapping) else ()
    return value_label({"name": part["name"], **{k: v for k, v in part.items() if (k, v) not in known}})


def say_remarks(comparison: Comparison) -> None:
    """Print which runs are not whole, and why."""
    for remark in comparison.remarks:
        say(f"[yellow]{escape(remark)}[/]")


def say_figures(comparison: Comparison, folder: Path, title: str, *also: Path) -> None:
    """Draw the curves, and the score over what was swept, if any round was finished; print where all files are."""
    from gossamer.pages.figures import overview, sweep_figure  # takes half a second, which no run should wait for

    if any(len(record.metrics) for record in comparison.records):
        also = (overview(comparison, title).save(folder / "curves.png"), *also)
        if swept := sweep_figure(comparison, title):
            also = (also[0], swept.save(folder / "sweep.png"), *also[1:])
    if also:
        say_where(*also)
