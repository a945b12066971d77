"""Running an experiment: from its description to live parts, round after round, to a `Run`.

`simulate` is what the command line and a notebook both call.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, get_args

import pandas as pd
import torch
from torch import Tensor, nn

from gossamer.data import Batches, Dataset, PartitionSummary, Samples, as_dataset, data_directory, split, summarise
from gossamer.engines import RoundReport, Stacked, Training
from gossamer.errors import DivergenceError, ExperimentError, RunFolderError
from gossamer.experiment import Experiment, load_experiment
from gossamer.fit import check_fit
from gossamer.graphs import as_graph, check
from gossamer.measure import Evaluator, consensus_distance
from gossamer.methods import Setting, State, fitted, local_work
from gossamer.models import VectorModel, build_model, make_module
from gossamer.parts import own_code
from gossamer.randomness import Purpose, torch_seed
from gossamer.runs.files import write_text
from gossamer.runs.folder import BEST, EXPERIMENT, FINAL, RunFolder, read_lines, to_json

OnDivergence = Literal["stop", "continue"]
Metrics = dict[str, Any]


class Prepared(NamedTuple):
    """The live parts of an experiment, checked and fitting each other."""

    experiment: Experiment
    training: Training
    partition: PartitionSummary


class Observer(Protocol):
    """Who watches a run go by: a progress bar, a log, a test."""

    def start(self, prepared: Prepared, chunk: str, done: int) -> None:
        """A run is about to do its first round, or to go on after `done` of them."""

    def round(self, metrics: Metrics, timings: Metrics) -> None:
        """A round is over."""

    def say(self, message: str) -> None:
        """Something that the user should know."""


class Silent:
    """The observer that does nothing."""

    def start(self, prepared: Prepared, chunk: str, done: int) -> None: ...

    def round(self, metrics: Metrics, timings: Metrics) -> None: ...

    def say(self, message: str) -> None: ...


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM during a run; `folder` holds a checkpoint to resume from, if there is a folder."""

    def __init__(self, round: int, folder: Path | None) -> None:
        super().__init__()
        self.round = round
        self.folder = folder


@dataclass(frozen=True, eq=False)
class Run:
    """What a run gave."""

    experiment: Experiment
    #: One row per round.
    metrics: pd.DataFrame
    #: One row per round: seconds of local work, mixing, evaluation.
    timings: pd.DataFrame
    #: Every client's model vector: [clients, d].
    vectors: Tensor
    #: Who held how many samples of which class.
    partition: PartitionSummary
    folder: Path | None = None
    #: Why the run stopped early, if it did.
    diverged: str | None = None
    _vector_model: VectorModel = field(repr=False, kw_only=True)
    _average: Tensor = field(repr=False, kw_only=True)

    @property
    def model(self) -> nn.Module:
        """The average of all clients' models; push-sum clients count by their weight."""
        return self._vector_model.module(self._average)

    @property
    def best(self) -> Metrics:
        """The metrics of the best round: highest test accuracy, or lowest test loss where accuracy has no meaning."""
        return best_round([{str(k): v for k, v in row.items()} for row in self.metrics.to_dict("records")])

    @property
    def last(self) -> Metrics:
        """The metrics of the last round."""
        return {str(k): v for k, v in self.metrics.to_dict("records")[-1].items()} if len(self.metrics) else {}


def prepare(experiment: Experiment, data_dir: Path | None = None) -> Prepared:
    """Turn an experiment into its live parts; whatever does not fit is refused here, before anything runs."""
    device, dtype = as_device(experiment.device), getattr(torch, experiment.dtype)
    with own_code("graph"):
        network = as_graph(experiment.graph_or_default).bind(experiment.clients, experiment.seed)
        check(network)
    check_fit(experiment.method, network)
    with own_code("dataset"):
        dataset = on_device(as_dataset(experiment.dataset, data_directory(data_dir)), device)
    if dataset.clients is not None:
        if len(dataset.clients) != experiment.clients:
            raise ExperimentError(
                f"clients: the data set '{dataset.name}' comes with {len(dataset.clients)} clients, "
                f"but the experiment says {experiment.clients}"
            )
        parts = list(dataset.clients)
    else:
        labels = dataset.train.targets.cpu().numpy()
        with own_code("partition"):
            parts = split(experiment.partition, labels, experiment.clients, experiment.seed)
    with own_code("model"):
        model = build_model(
            lambda: make_module(experiment.model, dataset.shape, dataset.classes),
            torch_seed(experiment.seed, Purpose.MODEL),
            dtype,
            device,
        )
    work = experiment.local_work
    method = fitted(experiment.method, Setting(network.sample is not None, tuple(tuple(s) for s in model.shapes)))
    refuse: Callable[[float, int], str | None] | None = getattr(method, "refuse", None)
    if refuse is not None and (reason := refuse(experiment.lr, int(network.hears(0).max()))):
        raise ExperimentError(f"lr: {reason}")
    batches = Batches(parts, experiment.batch_size, work.epochs, work.steps, experiment.seed)
    if getattr(method, "needs_equal_steps", False) and batches.steps.min() < batches.steps.max():
        raise ExperimentError(
            f"method: with these parameters every client must take the same number of local steps, but here they take "
            f"{batches.steps.min()} to {batches.steps.max()}. Set local_steps, and give every client a sample."
        )
    own_decay: float | str = getattr(method, "weight_decay", "experiment")
    training = Training(
        method=method,
        model=model,
        loss=experiment.loss,
        dataset=dataset,
        batches=batches,
        network=network,
        rounds=experiment.rounds,
        lr=experiment.lr,
        lr_decay=experiment.lr_decay,
        weight_decay=experiment.weight_decay if isinstance(own_decay, str) else own_decay,
        clip=experiment.clip,
        seed=experiment.seed,
    )
    return Prepared(experiment, training, summarise(parts, dataset.train.targets.cpu().numpy(), dataset.classes))


def simulate(
    experiment: Experiment,
    *,
    out: Path | str | None = None,
    chunk: int | None = None,
    data_dir: Path | None = None,
    on_divergence: OnDivergence = "stop",
    observer: Observer | None = None,
) -> Run:
    """Run an experiment. With `out`, everything is also written there as it happens, and can be resumed.

    >>> run = simulate(Experiment(rounds=1, clients=4, local_steps=1))
    >>> run.vectors.shape[0]
    4
    """
    check_options(chunk, on_divergence)
    prepared = prepare(experiment, data_dir)
    engine = Stacked(prepared.training, chunk)
    folder = RunFolder.create(Path(out), experiment.to_toml()) if out is not None else None
    simulation = _Simulation(prepared, engine, folder, on_divergence, observer or Silent())
    if folder is None:
        return simulation.run([])
    with folder.locked():
        write_text(folder.path / "partition.json", to_json(prepared.partition.to_dict()) + "\n")
        return simulation.run([])


def resume(
    path: Path | str,
    *,
    experiment: Experiment | None = None,
    chunk: int | None = None,
    data_dir: Path | None = None,
    on_divergence: OnDivergence = "stop",
    observer: Observer | None = None,
) -> Run:
    """Go on with an interrupted run, to the very numbers that an uninterrupted one gives.

    `experiment` is needed only where it holds objects that no file can express.
    """
    check_options(chunk, on_divergence)
    folder, observer = RunFolder.open(Path(path)), observer or Silent()
    experiment = same_experiment(folder, experiment)
    prepared = prepare(experiment, data_dir)
    engine = Stacked(prepared.training, chunk)
    with nullcontext() if folder.finished else folder.locked():
        past = _take_back(folder, experiment, engine, observer)
        quiet = folder.finished and len(past) == experiment.rounds
        simulation = _Simulation(prepared, engine, folder, on_divergence, Silent() if quiet else observer)
        return simulation.run(past)


def _take_back(folder: RunFolder, experiment: Experiment, engine: Stacked, observer: Observer) -> list[Metrics]:
    """Put the newest whole checkpoint into the engine and give the rounds that led to it."""
    checkpoint = folder.latest(experiment.digest, engine.device, observer.say)
    done = 0
    if checkpoint is not None:
        check_state(folder, checkpoint.state, engine.state)
        done, engine.state = checkpoint.round, checkpoint.state
    past = [line for line in read_lines(folder.metrics) if line["round"] <= done]
    if len(past) < done:
        raise RunFolderError(
            f"{folder.metrics}: holds {len(past)} whole rounds, but the checkpoint is of round {done}. "
            "The file was cut or edited; delete the checkpoints folder to compute the run again from the start."
        )
    if folder.finished and done == experiment.rounds:
        observer.say(f"{folder.path}: is finished already; there is nothing left to do.")
    else:
        folder.rewind(done)
    return past


def same_experiment(folder: RunFolder, given: Experiment | None) -> Experiment:
    """The experiment of a run folder, or the one given for it, which must be the same."""
    path = folder.path / EXPERIMENT
    if given is None:
        return load_experiment(path)
    if given.to_toml() != path.read_text(encoding="utf-8"):
        raise RunFolderError(f"{folder.path}: is a run of another experiment; see {path}")
    return given


def check_options(chunk: int | None, on_divergence: OnDivergence) -> None:
    """Refuse to run no clients at a time, and words that mean nothing."""
    if chunk is not None and (not isinstance(chunk, int) or chunk < 1):
        raise ExperimentError(f"chunk: should be a whole number, at least 1 (got {chunk!r})")
    if on_divergence not in get_args(OnDivergence):
        raise ExperimentError(f"on_divergence: should be 'stop' or 'continue' (got {on_divergence!r})")


def check_state(folder: RunFolder, found: State, expected: State) -> None:
    """Refuse a checkpoint of other vectors: an own object or module may have changed since, which no file tells."""

    def shapes(state: State) -> dict[str, tuple[Any, ...]]:
        return {name: (tuple(rows.shape), rows.dtype) for name, rows in state.items()}

    if shapes(found) != shapes(expected):
        raise RunFolderError(
            f"{folder.path}: its checkpoint holds {_describe(found)}, but the experiment has {_describe(expected)}. "
            "Has the model, the method or the data changed since?"
        )


def _describe(state: State) -> str:
    return ", ".join(f"{name} {'x'.join(map(str, rows.shape))}" for name, rows in sorted(state.items()))


class _Simulation:
    """One run: the engine, what is measured, and what is written."""

    def __init__(
        self,
        prepared: Prepared,
        engine: Stacked,
        folder: RunFolder | None,
        on_divergence: OnDivergence,
        observer: Observer,
    ) -> None:
        self.prepared = prepared
        self.experiment = prepared.experiment
        self.engine = engine
        self.folder = folder
        self.on_divergence = on_divergence
        self.observer = observer
        training = prepared.training
        self.model = training.model
        self.evaluator = Evaluator(training.model, training.loss, training.dataset, engine.chunk)
        self.history: list[Metrics] = []
        self.timings: list[Metrics] = []

    def run(self, past: list[Metrics]) -> Run:
        """All rounds that are left after those in `past`."""
        self.history = past
        if self.folder:
            self.timings = [line for line in read_lines(self.folder.timings) if line["round"] <= len(past)]
        rounds = self.experiment.rounds
        how = f"{self.engine.chunk} at a time ({self.engine.chunk_reason})"
        self.observer.start(self.prepared, how, len(past))
        asked = self.experiment.local_epochs or self.experiment.local_steps
        if asked and (own := local_work(self.experiment.method)):
            unit, count = ("step", own.steps) if own.steps else ("epoch", own.epochs)
            self.observer.say(f"this method does {count} local {unit} a round, whatever the experiment says")
        done, state = len(past), self.engine.state
        diverged = None
        try:
            with terminate_as_interrupt(), one_thread():
                while done < rounds:
                    report = self.engine.round(done)
                    if bool(report.broken.any()) and self.on_divergence == "stop":
                        diverged = self._divergence(done + 1, report)
                        break
                    self._record(done + 1, report)
                    done, state = done + 1, self.engine.state
                    every = self.experiment.checkpoint_every
                    if self.folder and (done == rounds or (every and done % every == 0)):
                        self.folder.save_state(done, self.experiment.digest, state)
        except KeyboardInterrupt:
            if self.folder:
                self.folder.save_state(done, self.experiment.digest, state)
            raise Interrupted(done, self.folder.path if self.folder else None) from None
        if diverged:
            self.engine.state = state
            if self.folder:
                self.folder.save_state(done, self.experiment.digest, state)
                self.folder.stop(diverged)
        elif self.folder and not self.folder.finished:
            self.folder.save_model(FINAL, self.model.unflatten(self.engine.average()), done)
        run = self._result(diverged)
        if diverged:
            raise Diverged(diverged, run)
        return run

    def _record(self, round: int, report: RoundReport) -> None:
        """Measure a round and write it down."""
        started = time.perf_counter()
        vectors = self.engine.models()
        average = self.engine.average()
        metrics = self._measure(round, report, vectors, average[None])
        timings = {
            "round": round,
            "seconds_local": report.seconds_local,
            "seconds_mixing": report.seconds_mixing,
            "seconds_evaluation": time.perf_counter() - started,
        }
        if self.folder:
            if best_round([*self.history, metrics]).get("round") == round:
                self.folder.save_model(BEST, self.model.unflatten(average), round)
            self.folder.record(metrics, timings)
        self.history.append(metrics)
        self.timings.append(timings)
        self.observer.round(metrics, timings)

    def _measure(self, round: int, report: RoundReport, vectors: Tensor, mean: Tensor) -> Metrics:
        cadence, last = self.experiment.evaluate, round == self.experiment.rounds
        before = self.history[-1]["bytes_total"] if self.history else 0
        sent = int(report.client_bytes.sum()) + report.server_bytes
        metrics: Metrics = {
            "round": round,
            "lr": self.experiment.lr * self.experiment.lr_decay ** (round - 1),
            "local_loss": float(report.losses.nanmean()),
            "bytes_per_client": float(report.client_bytes.mean()),
            "bytes_round": sent,
            "bytes_total": before + sent,
        }

        def due(every: int) -> bool:
            return last or (every > 0 and round % every == 0)

        if due(cadence.every):
            metrics["consensus"] = consensus_distance(vectors)
            if quality := self.evaluator.test(mean):
                metrics["test_loss"], metrics["test_accuracy"] = float(quality.loss), float(quality.accuracy)
        if due(cadence.clients) and (quality := self.evaluator.test(vectors)):
            metrics["client_accuracy_mean"] = float(quality.accuracy.mean())
            metrics["client_accuracy_worst"] = float(quality.accuracy.min())
            metrics["client_accuracy_best"] = float(quality.accuracy.max())
        if due(cadence.training) and (quality := self.evaluator.training(mean)):
            metrics["train_loss"], metrics["train_accuracy"] = float(quality.loss), float(quality.accuracy)
            if "test_accuracy" in metrics:
                metrics["generalisation_gap"] = metrics["train_accuracy"] - metrics["test_accuracy"]
        return metrics

    def _divergence(self, round: int, report: RoundReport) -> str:
        client = int(report.broken.nonzero()[0])
        count = int(report.broken.sum())
        who = f"client {client}" if count == 1 else f"{count} clients, the first of them client {client}"
        advice = "a smaller lr" if self.experiment.clip else "a smaller lr, or clip (for example clip=10)"
        return f"diverged in round {round} at {who}: the loss is not finite any more. Try {advice}."

    def _result(self, diverged: str | None) -> Run:
        return Run(
            experiment=self.experiment,
            metrics=pd.DataFrame(self.history),
            timings=pd.DataFrame(self.timings),
            vectors=self.engine.models().detach(),
            partition=self.prepared.partition,
            folder=self.folder.path if self.folder else None,
            diverged=diverged,
            _vector_model=self.model,
            _average=self.engine.average().detach(),
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


def as_device(name: str) -> torch.device:
    """The torch device called `name`, if this machine has it."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()  # there and back: the "meta" device holds nothing
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n")[0].split(". ")[0].removesuffix(".")
        raise ExperimentError(f"device: '{name}' cannot be used here: {reason}. 'cpu' always can.") from None
    return device


def on_device(dataset: Dataset, device: torch.device) -> Dataset:
    """All samples where the models are, so that no batch crosses over during training."""

    def moved(samples: Samples) -> Samples:
        return Samples(samples.inputs.to(device), samples.targets.to(device))

    return replace(dataset, train=moved(dataset.train), test=moved(dataset.test))


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: the products of small models lose more to threads than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM (a scheduler's "time is up") like Ctrl-C while a run is going."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
