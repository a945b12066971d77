"""How a command ends before its end: with an error, or with Ctrl-C."""

import shlex
import sys

from rich.markup import escape

from gossamer.errors import GossamerError
from gossamer.simulation import Diverged, Interrupted
from gossamer.studies import COMPARISON
from gossamer.terminal.console import note
from gossamer.workers import WorkerLost


def say_error(error: GossamerError) -> None:
    """Print an error, and what was kept of a run that diverged."""
    if isinstance(error, WorkerLost):  # from every process: each may have lost another worker
        print(f"error: {error}", file=sys.stderr)
        return
    note(f"[bold red]error:[/] {escape(str(error))}")
    if isinstance(error, Diverged) and error.run.folder:
        kept = f"The rounds before it are kept: 'gossamer show {error.run.folder}'. " if error.run.last else ""
        note(f"{escape(kept)}'--on-divergence continue' goes on regardless.")


def say_interrupted(stop: Interrupted) -> None:
    """Print how an interrupted run or comparison is continued."""
    kept = f"after round {stop.round}, checkpoint written" if stop.round else "before the first checkpoint"
    if stop.folder is not None and (stop.folder / COMPARISON).exists():
        kept = "the comparison; what is done is kept"
    again = f"{kept}. Go on with:  gossamer resume {shlex.quote(str(stop.folder))}"
    note(f"\n[yellow]stopped[/] {escape(again)}")


def say_stopped() -> None:
    """Print that a command was stopped which has nothing to continue."""
    note("\n[yellow]stopped[/]; nothing that was written is lost.")
