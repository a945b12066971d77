"""Running an experiment, round after round, to a `Run`.

`simulate` is what the command line and a notebook both call.
"""

import json
import os
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, Unpack, get_args

import torch
from torch import Tensor, nn

from gossamer.data import PartitionSummary
from gossamer.engines import (
    ExecutionPlan,
    PlanOverrides,
    RoundReport,
    Stacked,
    StepMode,
    check_first_step,
    check_memory,
    choose_plan,
    explain_lack_of_memory,
    shared_sizes,
)
from gossamer.errors import DivergenceError, ExperimentError, RunFolderError
from gossamer.experiment import Experiment, load_experiment
from gossamer.experiment.preparation import PreparedExperiment, prepare
from gossamer.measure import Evaluator, consensus_distance
from gossamer.models import VectorModel
from gossamer.parts import in_user_code
from gossamer.runs.files import write_text
from gossamer.runs.folder import BEST, EXPERIMENT, FINAL, RunFolder, read_lines, to_json
from gossamer.system.machine import usable_cores
from gossamer.system.startup import put_off_compiler
from gossamer.system.threads import on_threads
from gossamer.system.words import counted
from gossamer.training import Training
from gossamer.workers import (
    Group,
    WorkerLost,
    as_group,
    can_fork,
    launched_from_outside,
    restarted,
)

if TYPE_CHECKING:
    import pandas as pd

OnDivergence = Literal["stop", "continue"]
Metrics = dict[str, Any]


#: So much work a round must have for each worker, or a second one hardly helps: see `busy`. Two were 1.26 times as fast
#: as one on W2 of docs/benchmarks.md (1.7e7), and 1.45 times with 100 clients of the curve in docs/scaling.md (2.4e7).
WORTH_A_WORKER = 8e6


class Options(TypedDict, total=False):
    """How an experiment is run, which changes the speed and what is kept, but not the numbers.

    Left out or None: as many workers as cores if a round is long enough, and the rest by a short measurement.
    """

    #: Processes that share the clients out among them.
    workers: int | None
    #: Clients that a worker runs at once.
    chunk: int | None
    #: How a local step is run: "eager", "traced" or "compiled".
    step: StepMode | None
    #: Images with their channels last.
    channels_last: bool | None
    #: A folder for a state that is larger than the memory.
    spill: Path | str | None
    #: Where data sets are.
    data_dir: Path | None
    #: "stop" or "continue" when a loss is not finite any more.
    on_divergence: OnDivergence
    #: False: the clients' vectors are not gathered at the end, which takes the memory of one state.
    keep_vectors: bool


class Observer(Protocol):
    """Who watches a run go by: a progress bar, a log, a test.

    If it has a method `preparing(what)` as well, that is told what takes a while before the first round.
    """

    def start(self, prepared: PreparedExperiment, how: str, done: int) -> None:
        """A run is about to do its first round, or to go on after `done` of them."""

    def round(self, metrics: Metrics, timings: Metrics) -> None:
        """A round is over."""

    def say(self, message: str) -> None:
        """Something that the user should know."""


class Silent:
    """The observer that does nothing."""

    def start(self, prepared: PreparedExperiment, how: str, done: int) -> None: ...

    def round(self, metrics: Metrics, timings: Metrics) -> None: ...

    def say(self, message: str) -> None: ...


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM during a run; `folder`, if there is one, holds a checkpoint of `round` (0: none yet).

    If it came in the last round, `run` is what the run gave.
    """

    def __init__(self, round: int, folder: Path | None, run: "Run | None" = None) -> None:
        super().__init__()
        self.round = round
        self.folder = folder
        self.run = run


@dataclass(frozen=True, eq=False)
class Run:
    """What a run gave."""

    experiment: Experiment
    #: Every client's model vector: [clients, d]; no rows if they were not to be kept.
    vectors: Tensor
    #: Who held how many samples of which class.
    partition: PartitionSummary
    folder: Path | None = None
    #: Why the run stopped early, if it did.
    diverged: str | None = None
    _history: list[Metrics] = field(repr=False, kw_only=True)
    _seconds: list[Metrics] = field(repr=False, kw_only=True)
    _vector_model: VectorModel = field(repr=False, kw_only=True)
    _average: Tensor = field(repr=False, kw_only=True)

    @cached_property
    def metrics(self) -> "pd.DataFrame":
        """What was measured, one row per round."""
        import pandas as pd

        return pd.DataFrame(self._history)

    @cached_property
    def timings(self) -> "pd.DataFrame":
        """Seconds of local work, waiting, mixing and evaluation, one row per round."""
        import pandas as pd

        return pd.DataFrame(self._seconds)

    @property
    def model(self) -> nn.Module:
        """The average of all clients' models; push-sum clients count by their weight."""
        return self._vector_model.module(self._average)

    @property
    def best(self) -> Metrics:
        """The metrics of the best round: highest test accuracy, or lowest test loss where accuracy has no meaning."""
        return best_round(self._history)

    @property
    def last(self) -> Metrics:
        """The metrics of the last round."""
        return self._history[-1] if self._history else {}

    @property
    def sent_per_client(self) -> float:
        """Bytes that a client sent in all, in the mean."""
        return float(sum(line["bytes_per_client"] for line in self._history))


def simulate(
    experiment: Experiment,
    *,
    out: Path | str | None = None,
    observer: Observer | None = None,
    **options: Unpack[Options],
) -> Run:
    """Run an experiment. With `out`, everything is also written there as it happens, and can be resumed.

    How it is run (workers, chunk, ...: see `Options`) changes the speed and not the numbers.

    >>> run = simulate(Experiment(rounds=1, clients=4, local_steps=1))
    >>> run.vectors.shape[0]
    4
    """
    return _start(experiment, Path(out) if out is not None else None, False, observer, options)


def resume(
    path: Path | str,
    *,
    experiment: Experiment | None = None,
    observer: Observer | None = None,
    **options: Unpack[Options],
) -> Run:
    """Go on with an interrupted run, to the very numbers that an uninterrupted one gives.

    `experiment` is needed only where it holds objects that no file can express. The number of workers may be another.
    """
    check_options(options)
    folder = RunFolder.open(Path(path))
    if folder.peer is not None:
        raise RunFolderError(f"{path}: is the run of a peer of a network. Go on with {folder.how_to_go_on}.")
    return _start(same_experiment(folder, experiment), folder.path, True, observer, options)


def _start(
    experiment: Experiment, path: Path | None, going_on: bool, observer: Observer | None, options: Options
) -> Run:
    """Prepare everything once, then run it in all workers."""
    check_options(options)
    put_off_compiler()
    observer = observer or Silent()
    prepared = prepare(experiment, options.get("data_dir"))
    workers = number_of_workers(options.get("workers"), prepared, observer)
    training, spill = prepared.training, Path(folder) if (folder := options.get("spill")) is not None else None
    check_memory(training, workers, spill)
    rooms = shared_sizes(training, spill) if options.get("keep_vectors", True) else []
    plan = None
    if not launched_from_outside():  # before the fork: measured and compiled once, for all workers
        plan = _plan(prepared.training, options, workers, RunFolder(path) if path and going_on else None, observer)

    def work(group: Group) -> Run:
        speaker: Observer = observer if group.first else Silent()
        chosen = plan
        if chosen is None:
            mine = _plan(prepared.training, options, group.size, RunFolder(path) if path else None, speaker)
            chosen = ExecutionPlan.from_json(group.broadcast(mine.to_json() if group.first else ""))
        if chosen.step == "compiled":
            _preparing(speaker)("compiling local steps, or finding those of an earlier run")
        for difference in _not_as_asked(options, chosen):
            speaker.say(f"{difference} as asked: {chosen.reason}")
        with explain_lack_of_memory(training, group.size):
            engine = Stacked(prepared.training, chosen, group, spill)
        folder, locked, past_rounds = None, nullcontext(), False
        if path is not None:
            group.barrier()  # nothing is written before everyone has room
            folder, past_rounds = _folder(group, path, experiment, going_on, prepared, chosen)
            if group.first and not folder.finished:
                locked = folder.locked()  # type: ignore[assignment]
        with locked, explain_lack_of_memory(training, group.size):
            past = _take_back(folder, experiment, engine, speaker) if folder and past_rounds else []
            quiet = folder is not None and folder.finished and len(past) == experiment.rounds
            watcher = Silent() if quiet else speaker
            return _Simulation(prepared, engine, folder, options, watcher).run(past)

    try:
        return as_group(workers, training.model.initial.device, work, rooms)
    except WorkerLost as error:
        # Where a launcher restarts the workers, it is the launcher that goes on with the run.
        if launched_from_outside() or path is None or not (path / EXPERIMENT).is_file():
            raise
        kept = f"Every checkpoint is kept; go on with:  gossamer resume {shlex.quote(str(path))}"
        raise WorkerLost(f"{error} {kept}") from error


def _not_as_asked(options: Options, plan: ExecutionPlan) -> Iterator[str]:
    """What a plan does in another way than the user wants, in words."""
    if (step := options.get("step")) and step != plan.step:
        yield f"steps are {plan.step}, not {step}"
    if (chunk := options.get("chunk")) and chunk != plan.chunk:
        yield f"{counted(plan.chunk, 'client')} at a time, not {chunk}"
    if options.get("channels_last") and not plan.channels_last:
        yield "images lie as they are, not with their channels last"


def _preparing(observer: Observer) -> Callable[[str], None]:
    """How to tell an observer what takes a while; most do not want to know."""
    tell: Callable[[str], None] = getattr(observer, "preparing", lambda what: None)
    return tell


def number_of_workers(wanted: int | None, prepared: PreparedExperiment, observer: Observer) -> int:
    """How many processes share the clients out among them."""
    experiment = prepared.experiment
    if launched_from_outside():
        size = int(os.environ["WORLD_SIZE"])
        if wanted is not None and wanted != size:
            raise ExperimentError(f"workers: the launcher started {size} of them; leave --workers out (got {wanted})")
        if size > experiment.clients:
            raise ExperimentError(
                f"workers: {size} for {experiment.clients} clients; start at most one for each client"
            )
        return size
    number = wanted if wanted is not None else _workers_of_environment()
    if number is None:
        if torch.device(experiment.device).type != "cpu" or not can_fork():
            return 1
        return min(usable_cores(), experiment.clients, busy(prepared.training))
    if number > experiment.clients:
        observer.say(f"{number} workers for {experiment.clients} clients: {experiment.clients} will do")
        number = experiment.clients
    if number > 1 and torch.device(experiment.device).type != "cpu":
        raise ExperimentError("workers: on a GPU start one process for each with torchrun (see docs/scaling.md)")
    if number > 1 and not can_fork():
        raise ExperimentError(
            "workers: they cannot be forked here (only on Linux, and not in a process of somebody's pool); leave "
            "--workers out, or start them with torchrun (see docs/scaling.md)"
        )
    return number


def busy(training: Training) -> int:
    """How many workers a round keeps busy, at least one: it counts how often a parameter meets a sample."""
    meetings = float(training.batches.work().sum()) * training.model.initial.numel()
    return max(1, int(meetings / WORTH_A_WORKER))


def _workers_of_environment() -> int | None:
    """The number of workers that GOSSAMER_WORKERS names."""
    value = os.environ.get("GOSSAMER_WORKERS", "")
    if value and not (value.isdecimal() and int(value)):
        raise ExperimentError(f"GOSSAMER_WORKERS: should be a whole number, at least 1 (got {value})")
    return int(value) if value else None


def _plan(
    training: Training, options: Options, workers: int, folder: RunFolder | None, observer: Observer
) -> ExecutionPlan:
    """How the clients are run: as asked; as before, to the last bit, for a run that goes on; or as is best."""
    wanted = PlanOverrides(options.get("chunk"), options.get("step"), options.get("channels_last"))
    if folder is not None and wanted == PlanOverrides():
        with suppress(KeyError, TypeError, ValueError):
            before = ExecutionPlan.from_json(json.dumps(folder.engine()["plan"]))
            check_first_step(training)
            return before
    return choose_plan(training, wanted, workers, _preparing(observer))


def _folder(
    group: Group, path: Path, experiment: Experiment, going_on: bool, prepared: PreparedExperiment, plan: ExecutionPlan
) -> tuple[RunFolder, bool]:
    """The run folder, seen by all workers; and whether it holds a run to go on with."""
    # A launcher tells a restart only to those on the machine of the one that died, and they know where to go on.
    knowing = group.ranks_where(restarted() and (path / EXPERIMENT).is_file())
    # Where a folder was named by the time, every process has a name of its own.
    path = Path(group.broadcast(str(path), source=knowing[0] if knowing else 0))
    if knowing:
        going_on = True
        same_experiment(RunFolder(path), experiment)
    if group.first and not going_on:
        engine = {"workers": group.size, "plan": plan._asdict()}
        folder = RunFolder.create(path, experiment.to_toml(), engine)
        write_text(folder.path / "partition.json", to_json(prepared.partition.to_dict()) + "\n")
    group.barrier()
    if not (path / EXPERIMENT).is_file():
        raise RunFolderError(
            f"{path}: worker {group.rank} does not see it. All workers need the same file system there."
        )
    return RunFolder(path), going_on


def _take_back(folder: RunFolder, experiment: Experiment, engine: Stacked, observer: Observer) -> list[Metrics]:
    """Put the newest whole checkpoint into the engine and give the rounds that led to it."""
    done = folder.load_state(experiment.digest, engine.state, engine.own, engine.clients, engine.group, observer.say)
    past = [line for line in read_lines(folder.metrics) if line["round"] <= done]
    if len(past) < done:
        raise RunFolderError(
            f"{folder.metrics}: holds {len(past)} whole rounds, but the checkpoint is of round {done}. "
            "The file was cut or edited; delete the checkpoints folder to compute the run again from the start."
        )
    if folder.finished and done == experiment.rounds:
        observer.say(f"{folder.path}: is finished already; there is nothing left to do.")
    elif engine.group.first:
        folder.rewind(done)
    engine.done = done
    if done == 0:
        engine.undo(0)  # half a checkpoint may have been read
    engine.group.barrier()
    return past


def same_experiment(folder: RunFolder, given: Experiment | None) -> Experiment:
    """The experiment of a run folder, or the one given for it, which must be the same."""
    path = folder.path / EXPERIMENT
    if given is None:
        return load_experiment(path)
    if given.to_toml() != path.read_text(encoding="utf-8"):
        raise RunFolderError(f"{folder.path}: is a run of another experiment; see {path}")
    return given


def check_options(options: Options) -> None:
    """Refuse to run nobody at a time, and words that mean nothing."""
    if unknown := options.keys() - Options.__annotations__.keys():
        raise TypeError(f"unknown option {', '.join(sorted(unknown))}; known: {', '.join(Options.__annotations__)}")
    for name in ("workers", "chunk"):
        number = options.get(name)
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
            raise ExperimentError(f"{name}: should be a whole number, at least 1 (got {number!r})")
    if options.get("spill") == "":
        raise ExperimentError("spill: names no folder")
    for name, words in (("on_divergence", get_args(OnDivergence)), ("step", get_args(StepMode))):
        word = options.get(name)
        if word is not None and word not in words:
            raise ExperimentError(f"{name}: should be {' or '.join(map(repr, words))} (got {word!r})")


class _Simulation:
    """One run in one worker: the engine, what is measured, and, in the first worker, what is written and said."""

    def __init__(
        self,
        prepared: PreparedExperiment,
        engine: Stacked,
        folder: RunFolder | None,
        options: Options,
        observer: Observer,
    ) -> None:
        self.prepared = prepared
        self.experiment = prepared.experiment
        self.engine = engine
        self.group = engine.group
        self.folder = folder
        self.on_divergence = options.get("on_divergence", "stop")
        self.keep_vectors = options.get("keep_vectors", True)
        self.observer = observer
        training = prepared.training
        self.model = training.model
        self.evaluator = Evaluator(training.model, training.loss, training.dataset, engine.plan.chunk, engine.group)
        self.history: list[Metrics] = []
        self.timings: list[Metrics] = []
        self.saved = 0

    def run(self, past: list[Metrics]) -> Run:
        """All rounds that are left after those in `past`."""
        self.history, self.saved = past, len(past)
        if self.folder:
            self.timings = [line for line in read_lines(self.folder.timings) if line["round"] <= len(past)]
        rounds = self.experiment.rounds
        how = f"on {counted(self.group.size, 'worker')}, {self.engine.runner.in_effect}"
        trouble = self.engine.runner.trouble
        if trouble:
            self.observer.say(trouble)
        self.observer.start(self.prepared, how, len(past))
        asked = self.experiment.local_epochs or self.experiment.local_steps
        if asked and (own := self.experiment.traits.local_work):
            unit, count = ("step", own.steps) if own.steps else ("epoch", own.epochs)
            self.observer.say(f"this method does {count} local {unit} a round, whatever the experiment says")
        done, diverged = len(past), None
        try:
            with _StopSignals(self._say_stopping) as stopping, on_threads(1):
                while done < rounds:
                    with in_user_code(f"round {done + 1}"):
                        report = self.engine.round(done)
                    if bool(report.broken.any()) and self.on_divergence == "stop":
                        diverged = self._divergence(done + 1, report)
                        break
                    if (diverged := self._record(done + 1, report)) is not None:
                        break
                    done += 1
                    every = self.experiment.checkpoint_every
                    stop = self.group.any(bool(stopping.asked))
                    if done == rounds or stop or (every and done % every == 0):
                        self._save(done)
                    if stop and done < rounds:
                        raise KeyboardInterrupt
        except KeyboardInterrupt:
            if self.group.size == 1 and self.saved < done and self.engine.undo(done):
                self._save(done)
            raise Interrupted(self.saved, self.folder.path if self.folder else None) from None
        if self.engine.runner.trouble and self.engine.runner.trouble != trouble:
            self.observer.say(self.engine.runner.trouble)
        if diverged:
            if self.engine.undo(done):
                self._save(done)
            if self.folder and self.group.first:
                self.folder.stop(diverged)
        average = self.engine.average()
        if self.folder and not diverged and self.group.first and not self.folder.finished:
            self.folder.save_model(FINAL, self.model.unflatten(average), done)
        run = self._result(diverged, average)
        if diverged:
            raise Diverged(diverged, run)
        if stopping.asked and self.group.first:  # whoever has more to do than this run must hear of it
            raise Interrupted(done, run.folder, run)
        return run

    def _save(self, done: int) -> None:
        """Checkpoint the state after `done` rounds: every worker its own clients."""
        if self.folder:
            engine = self.engine
            self.folder.save_state(done, self.experiment.digest, engine.state, engine.own, engine.clients, self.group)
            self.saved = done

    def _say_stopping(self) -> None:
        self.observer.say(f"finishing round {len(self.history) + 1}, then stopping. Once more stops at once.")

    def _record(self, round: int, report: RoundReport) -> str | None:
        """Measure a round and write it down; or say why not, where the models turn out to be no numbers any more."""
        started = time.perf_counter()
        with in_user_code(f"evaluation after round {round}"):
            average = self.engine.average() if self._is_evaluated(round) else None
            metrics = self._measure(round, report, average)
        if average is not None and self.on_divergence == "stop" and not bool(average.isfinite().all()):
            return self._divergence(round, report)
        timings = {
            "round": round,
            "seconds_local": report.seconds_local,
            "seconds_waiting": report.seconds_waiting,
            "seconds_mixing": report.seconds_mixing,
            "seconds_evaluation": time.perf_counter() - started,
        }
        if self.folder and self.group.first:
            if average is not None and best_round([*self.history, metrics]).get("round") == round:
                self.folder.save_model(BEST, self.model.unflatten(average), round)
            self.folder.record(metrics, timings)
        self.history.append(metrics)
        self.timings.append(timings)
        self.observer.round(metrics, timings)
        return None

    def _due(self, round: int, every: int) -> bool:
        return round == self.experiment.rounds or (every > 0 and round % every == 0)

    def _is_evaluated(self, round: int) -> bool:
        """Whether the average model is needed after a round."""
        cadence = self.experiment.evaluate
        return self._due(round, cadence.every) or self._due(round, cadence.training)

    def _measure(self, round: int, report: RoundReport, average: Tensor | None) -> Metrics:
        cadence = self.experiment.evaluate
        sent = int(report.client_bytes.sum()) + report.server_bytes
        metrics: Metrics = {
            "round": round,
            "lr": self.prepared.training.lr_at(round - 1),
            # Who did not train has no loss; who broke has one that is no number.
            "local_loss": float(report.losses[~report.losses.isnan() | report.broken].mean()),
            "bytes_per_client": float(report.client_bytes.mean()),
            "bytes_round": sent,
            "bytes_total": self._total("bytes") + sent,
            "messages_round": report.messages,
            "messages_total": self._total("messages") + report.messages,
            "gradients_round": report.gradients,
            "gradients_total": self._total("gradients") + report.gradients,
        }
        if average is not None and self._due(round, cadence.every):
            metrics["consensus"] = consensus_distance(
                self.engine.model_blocks, self.engine.own, self.engine.clients, self.group
            )
            if quality := self.evaluator.test(average[None], together=True):
                metrics["test_loss"], metrics["test_accuracy"] = float(quality.loss), float(quality.accuracy)
        if self._due(round, cadence.clients) and len(self.prepared.training.dataset.test):
            accuracy = self._client_accuracies()
            metrics["client_accuracy_mean"] = float(accuracy.mean())
            metrics["client_accuracy_worst"] = float(accuracy.min())
            metrics["client_accuracy_best"] = float(accuracy.max())
        if average is not None and self._due(round, cadence.training):
            quality = self.evaluator.training(average[None], together=True)
            if quality:
                metrics["train_loss"], metrics["train_accuracy"] = float(quality.loss), float(quality.accuracy)
                if "test_accuracy" in metrics:
                    metrics["generalisation_gap"] = metrics["train_accuracy"] - metrics["test_accuracy"]
        return metrics

    def _total(self, what: str) -> int:
        return int(self.history[-1][f"{what}_total"]) if self.history else 0

    def _client_accuracies(self) -> Tensor:
        """Every client's own accuracy on the test samples."""
        own = [quality.accuracy for rows in self.engine.model_blocks() if (quality := self.evaluator.test(rows))]
        return self.group.gather_clients(torch.cat(own), self.engine.own, self.engine.clients)

    def _divergence(self, round: int, report: RoundReport) -> str:
        broken = report.broken.nonzero().flatten().tolist()
        who = f" at client {broken[0]}" if broken else ""  # nobody's loss or message: what came of the messages
        if len(broken) > 1:
            who = f" at {len(broken)} clients, the first of them client {broken[0]}"
        advice = "a smaller lr" if self.experiment.clip else "a smaller lr, or clip (for example clip=10)"
        return f"diverged in round {round}{who}: the loss or the model is not finite any more. Try {advice}."

    def _result(self, diverged: str | None, average: Tensor) -> Run:
        return Run(
            experiment=self.experiment,
            vectors=self.engine.gather_models() if self.keep_vectors else average.new_empty((0, len(average))),
            partition=self.prepared.partition,
            folder=self.folder.path if self.folder else None,
            diverged=diverged,
            _history=self.history,
            _seconds=self.timings,
            _vector_model=self.model,
            _average=average,
        )


class Diverged(DivergenceError):
    """A run that left the finite numbers; `run` holds everything up to the round before."""

    def __init__(self, message: str, run: Run) -> None:
        super().__init__(message)
        self.run = run


def best_round(history: list[Metrics]) -> Metrics:
    """The metrics of the best round so far; the earliest of equals."""

    def known(key: str) -> list[Metrics]:
        return [m for m in history if m.get(key) is not None and m[key] == m[key]]

    if rated := known("test_accuracy"):
        return max(rated, key=lambda m: (m["test_accuracy"], -m["round"]))
    if rated := known("test_loss"):
        return min(rated, key=lambda m: (m["test_loss"], m["round"]))
    return {}


class _StopSignals:
    """Ctrl-C, and SIGTERM (a scheduler's "time is up"): the first stops a run after its round, the second at once."""

    def __init__(self, say: Callable[[], None]) -> None:
        #: The signal that came, if one did.
        self.asked = 0
        self._say = say
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "_StopSignals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:  # as in workers, for whom the first decides
                    self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self.asked and kind is not None and not issubclass(kind, KeyboardInterrupt):
            # Something else has ended the run, an observer who has seen enough, say: the signal is not lost with it.
            signal.raise_signal(self.asked)

    def _ask(self, number: int, *_: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = number
        with suppress(RuntimeError):  # it may have been in the middle of printing something else
            self._say()
