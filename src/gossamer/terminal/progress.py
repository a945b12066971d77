"""Observers for a person: a live bar on a terminal, one line that changes in a notebook, plain lines elsewhere."""

import os
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Self

from rich.control import Control
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn
from rich.segment import ControlType
from rich.table import Column
from rich.text import Text

from gossamer.measure import Metrics
from gossamer.simulation import Observer, Outcome, RoundRecord, RunStart
from gossamer.studies import StudyRun
from gossamer.system.words import percent
from gossamer.terminal.console import err

#: A narrower terminal has no bar beside the numbers of a round.
WIDE = 110


class Quiet(Observer):
    """Shows nothing but what the user must know."""

    #: The notes so far, none of which is repeated: the runs of a comparison share them.
    noted: set[str] | None = None

    def note(self, message: str) -> None:
        if self.noted is not None:
            if message in self.noted:
                return
            self.noted.add(message)
        err.print(f"[yellow]note:[/] {escape(message)}", soft_wrap=True)

    def end(self, outcome: Outcome) -> None:
        self.close()

    def close(self) -> None:
        """Take the display off the terminal; nothing if it is off already."""


class PlainLines(Quiet):
    """One line for a round, for logs and pipes; at most about fifty lines for a run."""

    def __init__(self, label: str, verbose: bool) -> None:
        self._label = label
        self._verbose = verbose
        self._rounds = 0

    def waiting(self, reason: str) -> None:
        self.say(f"{self._label}: {reason} ...")

    def start(self, run: RunStart) -> None:
        self._rounds = run.experiment.rounds
        if self._verbose:
            self.say(f"{self._label}: {opening(run)}; clients run {run.how}")
        if run.rounds_done:
            self.say(f"{self._label}: going on after round {run.rounds_done}")

    def round(self, record: RoundRecord) -> bool:
        if record.round % max(1, self._rounds // 50) == 0 or record.round == self._rounds:
            self.say(f"{self._label}: round {record.round}/{self._rounds}  {progress_text(record.metrics)}")
        return False

    def say(self, line: str) -> None:
        """Show a line."""
        _print_plain(line)


class ChangingLine(PlainLines):
    """One line in the output of a notebook's cell, written over as the run goes."""

    #: The newest line, in which the next run of the same comparison goes on.
    newest: Any = None

    def __init__(self, label: str, verbose: bool) -> None:
        super().__init__(label, verbose)
        self.line: Any = None

    def say(self, line: str) -> None:
        if self.line is None:
            from IPython import display

            show: Any = display.display
            self.line = ChangingLine.newest = show({"text/plain": line}, raw=True, display_id=True)
        else:
            self.line.update({"text/plain": line}, raw=True)


class LiveBar(Quiet):
    """A live bar with round, accuracy, consensus and the time left; before the first round, a line in its place.

    Several runs at once have one bar each, below those that have ended.
    """

    def __init__(self, label: str, verbose: bool, beside: Quiet | None = None) -> None:
        self._label = label
        self._verbose = verbose
        self._task: TaskID | None = None
        self._progress: Progress
        if isinstance(beside, LiveBar) and beside._is_live:
            self._progress = beside._progress
            return
        whole = Column(no_wrap=True)  # of all columns, only the label is cut on a narrow terminal
        self._progress = Progress(
            _LabelColumn(),
            *([BarColumn(bar_width=24, table_column=whole)] if err.width >= WIDE else []),
            _RoundColumn(table_column=whole),
            TextColumn("{task.fields[text]}", table_column=whole),
            _TimeColumn(table_column=whole),
            console=err,
        )
        self._show_line("preparing")  # data may have to be read or downloaded first

    @property
    def _is_live(self) -> bool:
        return bool(self._progress.live.is_started)

    def waiting(self, reason: str) -> None:
        if not self._is_live:
            erase_line()
            self._show_line(reason)

    def _show_line(self, text: str) -> None:
        # The cursor goes back, so that the next output, for example the bar of a download, overwrites the line.
        err.print(f"[bold]{escape(self._label)}[/] {escape(text)} ...", end="\r", no_wrap=True, overflow="ellipsis")

    def start(self, run: RunStart) -> None:
        if not self._is_live:
            erase_line()
        if self._verbose:
            err.print(f"[dim]{opening(run)}; clients run {run.how}[/]", soft_wrap=True)
        rounds, label = run.experiment.rounds, self._label
        self._task = self._progress.add_task("", total=rounds, completed=run.rounds_done, label=label, text="starting")
        self._progress.start()

    def round(self, record: RoundRecord) -> bool:
        if self._task is not None:
            text = progress_text(record.metrics)
            self._progress.update(self._task, completed=record.round, text=text, refresh=record.round <= 1)
        return False

    def note(self, message: str) -> None:
        if not self._is_live:
            erase_line()
        super().note(message)

    def close(self) -> None:
        tasks = self._progress.tasks
        if not self._is_live:
            erase_line()
        elif self._task is not None and len(tasks) > 1:
            err.print(self._progress.make_tasks_table([task for task in tasks if task.id == self._task]))
            self._progress.remove_task(self._task)
        elif tasks and tasks[0].id == self._task:
            self._progress.stop()
        self._task = None


class _LabelColumn(ProgressColumn):
    def render(self, task: Any) -> Text:
        return Text(task.fields["label"], style="bold", no_wrap=True, overflow="ellipsis")


class _TimeColumn(ProgressColumn):
    """The time that is left, or at the end the time that it took."""

    max_refresh = 0.5

    def render(self, task: Any) -> Text:
        seconds = task.finished_time if task.finished else task.time_remaining
        if seconds is None:
            return Text("")
        clock = str(timedelta(seconds=int(seconds))).removeprefix("0:")
        return Text(f"took {clock}" if task.finished else f"{clock} left")


class _RoundColumn(ProgressColumn):
    def render(self, task: Any) -> Text:
        return Text(f"round {int(task.completed)}/{int(task.total)}")


def make_observer(label: str, quiet: bool, verbose: bool, beside: Quiet | None = None) -> Quiet:
    """The display that suits the terminal at hand, beside that of another run if there is one."""
    if quiet:
        return Quiet()
    if err.is_jupyter:
        return ChangingLine(label, verbose)
    return LiveBar(label, verbose, beside) if err.is_terminal else PlainLines(label, verbose)


def show_progress(run: StudyRun | str = "run") -> list[Observer]:
    """Observers that show how far a run is, as it suits a terminal, a notebook or a log.

    `simulate(..., observers=show_progress("label"))`, or for all runs of a comparison
    `compare(..., observe=show_progress)`: in a notebook these share one line.
    """
    if isinstance(run, str):
        return [make_observer(run, quiet=False, verbose=False)]
    display = make_observer(numbered(run), quiet=False, verbose=False)
    if isinstance(display, ChangingLine) and run.number > 1:
        display.line = ChangingLine.newest
    return [display, TellsDivergence(run.label)]


def numbered(run: StudyRun) -> str:
    """A run of a comparison with its place among all of them."""
    return f"[{run.number:{len(str(run.total))}}/{run.total}] {run}"


class TellsDivergence(Quiet):
    """Tells at the end of a run that it diverged: a comparison goes on with the next one."""

    def __init__(self, label: str) -> None:
        self._label = label

    def end(self, outcome: Outcome) -> None:
        if outcome.ending.kind == "diverged":
            super().note(f"{self._label}: {outcome.ending}")

    def note(self, message: str) -> None: ...


class StudyDisplay:
    """The displays of a comparison, one for each run; several runs may be shown at once."""

    def __init__(self, quiet: bool, verbose: bool, trackers: Sequence[Callable[[], Observer]] = ()) -> None:
        self._quiet, self._verbose, self._trackers = quiet, verbose, trackers
        self._noted: set[str] = set()
        self._displays: list[Quiet] = []

    @property
    def takes_several(self) -> bool:
        """Whether several runs may be observed at once: a tracker has one that it writes to."""
        return not self._trackers

    def __enter__(self) -> Self:
        # All variants are checked before the first one runs.
        self._displays = [make_observer("all variants", self._quiet, self._verbose)]
        return self

    def __exit__(self, *_: object) -> None:
        for display in self._displays:
            display.close()

    def observers(self, run: StudyRun) -> list[Observer]:
        """The observers of the next run."""
        if len(self._displays) == 1:
            self._displays[0].close()
        display = make_observer(numbered(run), self._quiet, self._verbose, beside=self._displays[-1])
        display.noted = self._noted
        self._displays.append(display)
        return [display, TellsDivergence(run.label), *(tracker() for tracker in self._trackers)]


def erase_line() -> None:
    """Empty the line that the cursor is on."""
    err.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))


def _print_plain(line: str) -> None:
    try:
        print(line, file=sys.stderr, flush=True)
    except BrokenPipeError:  # the reader of the pipe has gone; the run continues
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # for the rest of the process


def progress_text(metrics: Metrics) -> str:
    """A round in a few words."""
    words = []
    accuracy = metrics.get("test_accuracy")
    if accuracy is not None and accuracy == accuracy:
        words.append(f"accuracy {percent(accuracy)}")
    elif metrics.get("test_loss") is not None:
        words.append(f"test loss {metrics['test_loss']:.4g}")
    elif metrics.get("local_loss") is not None:
        words.append(f"loss {metrics['local_loss']:.4g}")
    if metrics.get("consensus") is not None:
        words.append(f"consensus {metrics['consensus']:.3g}")
    return "  ".join(words)


def opening(run: RunStart) -> str:
    """The run that is about to start, in one line."""
    training = run.training
    return (
        f"{training.network.clients} clients on {training.network.name}, {training.model.size:,} parameters, "
        f"{len(training.dataset.train):,} training samples of {training.dataset.name}"
    )
