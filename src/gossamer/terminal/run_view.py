"""Runs: the end of one, several side by side, their curves."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from gossamer.runs.record import RunRecord
from gossamer.simulation import Run
from gossamer.studies import value_label
from gossamer.system.words import size
from gossamer.terminal.console import number, percent, ruled_table, say, say_next, say_where


def say_run(run: Run, folder: Path) -> None:
    """Print what a run reached and where its files are."""
    if run.ending.kind == "stopped":
        say(escape(str(run.ending)))
    say(", ".join([*_reached(run), f"sent per client {size(run.sent_per_client)}"]))
    say_where(folder)
    say_next(f"gossamer show {shlex.quote(str(folder))}")


def _reached(run: Run) -> Iterator[str]:
    best, last = run.best, run.last
    if (accuracy := best.get("test_accuracy")) is not None and accuracy == accuracy:
        yield f"best accuracy [bold]{percent(accuracy)}[/] in round {best['round']:.0f}"
        yield f"last {percent(last.get('test_accuracy'))}"
        yield f"worst client {percent(last.get('client_accuracy_worst'))}"
    elif best:  # a regression has a loss and no accuracy
        yield f"best test loss [bold]{number(best['test_loss'])}[/] in round {best['round']:.0f}"
        yield f"last {number(last.get('test_loss'))}"
    else:
        yield f"training loss {number(last.get('local_loss'))}"


def run_table(records: Sequence[RunRecord], wide: bool) -> Table:
    """One row per run; on a wide terminal with its method and graph."""
    shown = ruled_table()
    shown.add_column("run", overflow="fold", min_width=16)
    for name in ("method", "graph") if wide else ():
        shown.add_column(name)
    for name in ("rounds", "best", "last", "worst\nclient", "consensus", "sent per\nclient", "time"):
        shown.add_column(name, justify="right", no_wrap=True)
    for record in records:
        sent = record.metrics["bytes_per_client"].sum() if len(record.metrics) else 0
        shown.add_row(
            escape(record.label),
            *(escape(value_label(record.experiment.get(key, ""))) for key in ("method", "graph") if wide),
            f"{record.rounds}/{record.experiment['rounds']}",
            percent(record.best()),
            percent(record.last("test_accuracy")),
            percent(record.last("client_accuracy_worst")),
            number(record.last("consensus")),
            size(sent),
            f"{record.seconds:.1f} s",
        )
    return shown


def say_early_ends(records: Sequence[RunRecord]) -> None:
    """Print why runs ended before their last round."""
    for record in records:
        if record.stopped:
            say(f"[yellow]{escape(record.label)}[/]: {escape(record.stopped)}")


def say_curves(runs: Mapping[str, Sequence[RunRecord]], folder: Path, title: str, *also: Path) -> None:
    """Draw the curves, if any round was finished, and print where they and other files are."""
    from gossamer.pages.curves import draw_curves, drawn_panels

    if drawn_panels(runs):
        also = (*draw_curves(runs, folder, title), *also)
    if also:
        say_where(*also)
