"""Who watches a run for a person: a live bar on a terminal, plain lines elsewhere, TensorBoard on request."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, Self

from rich.control import Control
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.segment import ControlType
from rich.text import Text

from gossamer.errors import ExperimentError
from gossamer.experiment.preparation import PreparedExperiment
from gossamer.simulation import Metrics, Observer
from gossamer.studies import StudyRun
from gossamer.terminal.console import err, percent


class Closing(Observer, Protocol):
    """An observer that holds something open."""

    def preparing(self, what: str) -> None:
        """Something is done before the first round that may take a while."""

    def close(self) -> None:
        """The run is over, one way or another."""


class Quiet:
    """Shows nothing but what the user must know."""

    def preparing(self, what: str) -> None: ...

    def start(self, prepared: PreparedExperiment, how: str, done: int) -> None: ...

    def round(self, metrics: Metrics, timings: Metrics) -> None: ...

    def say(self, message: str) -> None:
        err.print(f"[yellow]note:[/] {escape(message)}", soft_wrap=True)

    def close(self) -> None: ...


class PlainLines(Quiet):
    """One line for a round, for logs and pipes; at most about fifty lines for a run."""

    def __init__(self, label: str, verbose: bool) -> None:
        self._label = label
        self._verbose = verbose
        self._rounds = 0

    def preparing(self, what: str) -> None:
        _print_plain(f"{self._label}: {what} ...")

    def start(self, prepared: PreparedExperiment, how: str, done: int) -> None:
        self._rounds = prepared.experiment.rounds
        if self._verbose:
            _print_plain(f"{self._label}: {opening(prepared)}; clients run {how}")
        if done:
            _print_plain(f"{self._label}: going on after round {done}")

    def round(self, metrics: Metrics, timings: Metrics) -> None:
        now = metrics["round"]
        if now % max(1, self._rounds // 50) == 0 or now == self._rounds:
            _print_plain(f"{self._label}: round {now}/{self._rounds}  {progress_text(metrics)}")


class LiveBar(Quiet):
    """A live bar with round, accuracy, consensus and the time left; a line in its place until there are rounds."""

    def __init__(self, label: str, verbose: bool) -> None:
        self._label = label
        self._verbose = verbose
        self._task: TaskID | None = None
        self._progress = Progress(
            TextColumn("[bold]{task.fields[label]}"),
            BarColumn(bar_width=24),
            _RoundColumn(),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=err,
        )
        self._wait("preparing")  # data may have to be read or downloaded first

    def preparing(self, what: str) -> None:
        erase_line()
        self._wait(what)

    def _wait(self, what: str) -> None:
        # The cursor goes back, so that whatever comes next, a bar of a download say, takes the line over.
        err.print(f"[bold]{escape(self._label)}[/] {escape(what)} ...", end="\r", no_wrap=True, overflow="ellipsis")

    def start(self, prepared: PreparedExperiment, how: str, done: int) -> None:
        erase_line()
        if self._verbose:
            err.print(f"[dim]{opening(prepared)}; clients run {how}[/]", soft_wrap=True)
        rounds, label = prepared.experiment.rounds, escape(self._label)
        self._task = self._progress.add_task("", total=rounds, completed=done, label=label, text="starting")
        self._progress.start()

    def round(self, metrics: Metrics, timings: Metrics) -> None:
        if self._task is not None:
            text = progress_text(metrics)
            self._progress.update(self._task, completed=metrics["round"], text=text, refresh=metrics["round"] == 1)

    def say(self, message: str) -> None:
        if self._task is None:
            erase_line()
        super().say(message)

    def close(self) -> None:
        if self._task is None:
            erase_line()
        self._progress.stop()


class _RoundColumn(ProgressColumn):
    def render(self, task: Any) -> Text:
        return Text(f"round {int(task.completed)}/{int(task.total)}")


def make_observer(label: str, quiet: bool, verbose: bool) -> Quiet:
    """The observer that suits the terminal at hand."""
    if quiet:
        return Quiet()
    return LiveBar(label, verbose) if err.is_terminal else PlainLines(label, verbose)


class Several:
    """Many observers as one."""

    def __init__(self, observers: Sequence[Closing]) -> None:
        self._observers = observers

    def preparing(self, what: str) -> None:
        for observer in self._observers:
            observer.preparing(what)

    def start(self, prepared: PreparedExperiment, how: str, done: int) -> None:
        for observer in self._observers:
            observer.start(prepared, how, done)

    def round(self, metrics: Metrics, timings: Metrics) -> None:
        for observer in self._observers:
            observer.round(metrics, timings)

    def say(self, message: str) -> None:
        for observer in self._observers:
            observer.say(message)


@contextmanager
def watching(observers: Sequence[Closing]) -> Iterator[Several]:
    """All observers as one, closed at the end whatever happens."""
    try:
        yield Several(observers)
    finally:
        for observer in observers:
            observer.close()


class Watching:
    """The watcher of a comparison: one observer for each run, the one before it closed."""

    def __init__(self, quiet: bool, verbose: bool) -> None:
        self._quiet = quiet
        self._verbose = verbose
        self._current = Quiet()

    def __enter__(self) -> Self:
        self._current = make_observer("all variants", self._quiet, self._verbose)  # are checked before the first runs
        return self

    def __exit__(self, *_: object) -> None:
        self._current.close()

    def begin(self, run: StudyRun) -> Observer:
        self._current.close()
        name = f"[{run.number:{len(str(run.total))}}/{run.total}] {run.label} (seed {run.experiment.seed})"
        self._current = make_observer(name, self._quiet, self._verbose)
        return self._current


def tensorboard_observer(folder: Path) -> Closing:
    """Writes every metric as TensorBoard events into the run folder."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ExperimentError("--tensorboard needs tensorboard: pip install 'gossamer[tensorboard]'") from None

    class Events(Quiet):
        writer: Any = None

        def round(self, metrics: Metrics, timings: Metrics) -> None:
            self.writer = self.writer or SummaryWriter(str(folder / "tensorboard"))
            for key, value in {**metrics, **timings}.items():
                if key != "round" and value is not None:
                    self.writer.add_scalar(key, value, metrics["round"])

        def say(self, message: str) -> None: ...

        def close(self) -> None:
            if self.writer:
                self.writer.close()

    return Events()


def erase_line() -> None:
    """Empty the line that the cursor is on."""
    err.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))


def _print_plain(line: str) -> None:
    try:
        print(line, file=sys.stderr, flush=True)
    except BrokenPipeError:  # whoever read along has gone; the run goes on
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # for the rest of the process


def progress_text(metrics: Metrics) -> str:
    """The gist of a round in a few words."""
    words = []
    accuracy = metrics.get("test_accuracy")
    if accuracy is not None and accuracy == accuracy:
        words.append(f"accuracy {percent(accuracy)}")
    elif metrics.get("test_loss") is not None:
        words.append(f"test loss {metrics['test_loss']:.4g}")
    else:
        words.append(f"loss {metrics['local_loss']:.4g}")
    if metrics.get("consensus") is not None:
        words.append(f"consensus {metrics['consensus']:.3g}")
    return "  ".join(words)


def opening(prepared: PreparedExperiment) -> str:
    """What is about to run, in one line."""
    training = prepared.training
    return (
        f"{training.network.clients} clients on {training.network.name}, {training.model.size:,} parameters, "
        f"{len(training.dataset.train):,} training samples of {training.dataset.name}"
    )
