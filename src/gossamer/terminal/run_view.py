"""Runs: the end of one, several side by side, their curves."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from gossamer.measure import SCORES
from gossamer.runs.record import RunRecord, score_of
from gossamer.simulation import Run
from gossamer.studies import value_label
from gossamer.system.words import size
from gossamer.terminal.console import number, ruled_table, say, say_next, say_where, score_text, with_caption

#: The caption of a table with runs through a server.
WAY_UP = "Sent by a client through a server: the way up alone."


def say_run(run: Run, folder: Path) -> None:
    """Print what a run reached and where its files are."""
    if run.ending.kind == "stopped":
        say(escape(str(run.ending)))
    say(", ".join([*_reached(run), f"sent by a client {size(run.sent_per_client)}"]))
    say_where(folder)
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


def run_table(records: Sequence[RunRecord], wide: bool) -> Table:
    """One row per run; on a wide terminal with its method and graph."""
    score = score_of(records)
    loss = "" if score.key == "test_accuracy" else "\nloss"
    shown = ruled_table()
    shown.add_column("run", overflow="fold", min_width=16)
    for name in ("method", "graph") if wide else ():
        shown.add_column(name)
    worst = ["worst\nclient"] if score.worst else []
    for name in ("rounds", f"best{loss}", f"last{loss}", *worst, "consensus", "sent by\na client", "time"):
        shown.add_column(name, justify="right", no_wrap=True)
    for record in records:
        keys = [score.worst] if score.worst else []
        shown.add_row(
            escape(record.label),
            *(escape(value_label(record.experiment.get(key, ""))) for key in ("method", "graph") if wide),
            f"{record.rounds}/{record.experiment['rounds']}",
            score_text(score.key, record.best(score.key)),
            *(score_text(score.key, record.last(key)) for key in (score.key, *keys)),
            number(record.last("consensus")),
            size(record.client_bytes),
            f"{record.seconds:.1f} s",
        )
    captions = [] if wide else ["Left out on a narrow terminal: method, graph."]
    return with_caption(shown, [*captions, *([WAY_UP] if has_server(records) else [])])


def has_server(records: Sequence[RunRecord]) -> bool:
    """Whether a server takes part in any of the runs."""
    return any(value_label(record.experiment.get("graph", "")).startswith("server") for record in records)


def say_early_ends(records: Sequence[RunRecord]) -> None:
    """Print why runs ended before their last round."""
    for record in records:
        if record.stopped:
            say(f"[yellow]{escape(record.label)}[/]: {escape(record.stopped)}")


def say_curves(runs: Mapping[str, Sequence[RunRecord]], folder: Path, title: str, *also: Path) -> None:
    """Draw the curves, if any round was finished, and print where they and other files are."""
    from gossamer.pages.curves import draw_curves, drawings

    if drawings(runs):
        also = (*draw_curves(runs, folder, title), *also)
    if also:
        say_where(*also)
