"""Running an experiment: from its description to the workers that run its rounds."""

import json
import shlex
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Unpack

from gossamer.engines import (
    PRODUCERS,
    SMALL_STATE,
    ExecutionPlan,
    PlanOverrides,
    check_memory,
    choose_plan,
    engine_of,
    explain_lack_of_memory,
    number_of_workers,
    shared_sizes,
    why_not,
)
from gossamer.errors import RunFolderError
from gossamer.experiment import Experiment, PreparedExperiment, load_experiment, prepare, read_toml
from gossamer.runs.ending import Ending
from gossamer.runs.files import write_text
from gossamer.runs.folder import EXPERIMENT, RunFolder, to_json
from gossamer.simulation.loop import Loop
from gossamer.simulation.observer import Observer, Observers, Outcome, StopAtMetric
from gossamer.simulation.options import Options, check_options
from gossamer.simulation.result import Diverged, Interrupted, Run
from gossamer.system.torch_private import defer_compiler_import
from gossamer.system.words import counted
from gossamer.training import Training, check_first_step
from gossamer.workers import Group, WorkerLost, as_group, first_process, launched_from_outside, restarted


def simulate(
    experiment: Experiment,
    *,
    out: Path | str | None = None,
    observers: Sequence[Observer] = (),
    **options: Unpack[Options],
) -> Run:
    """Run an experiment. With `out`, everything is also written to that folder as it happens, and can be resumed.

    The options (workers, chunk, ...: see `Options`) change the speed and not the numbers. `observers` are called as the
    run goes, and may stop it: see `Observer`.

    >>> run = simulate(Experiment(rounds=1, clients=4, local_steps=1))
    >>> run.vectors.shape[0]
    4
    """
    path = Path(out) if out is not None else None
    return _observed(observers, lambda observer: _launch(experiment, path, False, observer, options))


def resume(
    path: Path | str,
    *,
    experiment: Experiment | None = None,
    observers: Sequence[Observer] = (),
    **options: Unpack[Options],
) -> Run:
    """Continue an interrupted run, to the same numbers as an uninterrupted one. A run that has ended is read back.

    `experiment` is needed only if it holds objects that no file can express. The number of workers may be another.
    """

    def launch(observer: Observers) -> Run:
        check_options(options)
        folder = RunFolder.open(Path(path))
        if folder.peer is not None:
            raise RunFolderError(f"{path}: is the run of a peer of a network. Go on with {folder.how_to_go_on}.")
        return _launch(same_experiment(folder, experiment), folder.path, True, observer, options)

    return _observed(observers, launch)


def same_experiment(folder: RunFolder, given: Experiment | None) -> Experiment:
    """The experiment of a run folder, or the one given for it, which must be the same."""
    path = folder.path / EXPERIMENT
    if given is None:
        return load_experiment(path)
    if given.to_toml() != path.read_text(encoding="utf-8"):
        there, here = read_toml(path), tomllib.loads(given.to_toml())
        other = [key for key in {**there, **here} if there.get(key) != here.get(key)]
        raise RunFolderError(f"{folder.path}: is a run of another experiment (other {', '.join(other)}); see {path}")
    return given


def _observed(observers: Sequence[Observer], launch: Callable[[Observers], Run]) -> Run:
    """Launch a run and call the observers' `end`, whatever happens."""
    observer = Observers(observers)
    told = observer.heard_by(first_process())
    try:
        run = launch(observer)
    except KeyboardInterrupt as error:
        stop = error if isinstance(error, Interrupted) else Interrupted(0, None)
        told.end(_outcome(stop))
        raise stop.with_traceback(None) from None  # without the frames of torch
    except BaseException as error:
        told.end(_outcome(error))
        raise
    told.end(Outcome(run.ending, run))
    return run


def _outcome(error: BaseException) -> Outcome:
    """The outcome of a run that ended with an exception."""
    run = error.run if isinstance(error, Diverged | Interrupted) else None
    if run is not None:
        return Outcome(run.ending, run, error)
    if isinstance(error, Interrupted):
        return Outcome(Ending("interrupted", error.round, "interrupted by a signal"), None, error)
    return Outcome(Ending("failed", 0, f"{type(error).__name__}: {error}"), None, error)


def _launch(experiment: Experiment, path: Path | None, resumes: bool, observers: Observers, options: Options) -> Run:
    """Prepare everything once, then run it in all workers."""
    check_options(options)
    defer_compiler_import()
    if experiment.stop_at is not None:
        observers = Observers([*observers.each, StopAtMetric(experiment.stop_at)])
    speaker = observers.heard_by(first_process())
    prepared = prepare(experiment, options.get("data_dir"))
    for note in prepared.notes:
        speaker.note(note)
    training, spill = prepared.training, Path(folder) if (folder := options.get("spill")) is not None else None
    with explain_lack_of_memory(training, 1):
        check_first_step(training)
    workers = number_of_workers(options.get("workers"), training, speaker.note)
    check_memory(training, workers, spill)
    small_state = options.get("small_state", SMALL_STATE)
    shared = shared_sizes(training, spill, small_state)
    plan = None
    if not launched_from_outside():  # before the fork: measured and compiled once, for all workers
        plan = _plan(training, options, workers, RunFolder(path) if path and resumes else None, speaker)

    def work(group: Group) -> Run:
        observer = observers.heard_by(group.first)
        chosen = plan
        if chosen is None:
            mine = _plan(training, options, group.size, RunFolder(path) if path else None, observer)
            chosen = ExecutionPlan.from_json(group.broadcast(mine.to_json() if group.first else ""))
        if chosen.step in ("compiled", "lanes"):
            observer.waiting("compiling local steps, or finding those of an earlier run")
        for difference in _not_as_asked(training, experiment, options, chosen):
            observer.note(difference)
        with explain_lack_of_memory(training, group.size):
            engine = engine_of(training)(training, chosen, group, spill, small_state)
        folder, locked, restores = None, nullcontext(), False
        if path is not None:
            group.barrier()  # nothing is written before every worker has its memory
            folder, restores = open_folder(group, path, resumes, prepared, chosen)
            if group.first and not folder.finished:
                locked = folder.locked()  # type: ignore[assignment]
        with locked, explain_lack_of_memory(training, group.size):
            return Loop(prepared, engine, folder, observer, options).run(restores)

    try:
        return as_group(workers, training.model.initial.device, work, shared)
    except WorkerLost as error:
        # A launcher that restarts the workers resumes the run itself.
        if launched_from_outside() or path is None or not (path / EXPERIMENT).is_file():
            raise
        kept = f"Every checkpoint is kept; go on with:  gossamer resume {shlex.quote(str(path))}"
        raise WorkerLost(f"{error} {kept}") from error


def _plan(
    training: Training, options: Options, workers: int, folder: RunFolder | None, observer: Observer
) -> ExecutionPlan:
    """How the clients are run: as asked; as before, to the last bit, in a run that is resumed; or as is fastest."""
    wanted = PlanOverrides(*(options.get(name) for name in PlanOverrides._fields))  # type: ignore[arg-type]
    if folder is not None and wanted == PlanOverrides():
        with suppress(KeyError, TypeError, ValueError):
            return ExecutionPlan.from_json(json.dumps(folder.engine()["plan"]))
    return choose_plan(training, wanted, workers, observer.waiting, options.get("small_state", SMALL_STATE))


def _not_as_asked(training: Training, experiment: Experiment, options: Options, plan: ExecutionPlan) -> Iterator[str]:
    """What is done in another way than the user asked for, in words."""
    if (step := options.get("step")) and step != plan.step:
        yield f"steps are {plan.step}, not {step} as asked: {plan.reason}"
    if (chunk := options.get("chunk")) and chunk != plan.chunk:
        yield f"{counted(plan.chunk, 'client')} at a time, not {chunk} as asked: {plan.reason}"
    if options.get("channels_last") and not plan.channels_last:
        yield f"images lie as they are, not with their channels last as asked: {plan.reason}"
    if products := options.get("products"):
        initial = training.model.initial
        reason = why_not(products, initial.dtype, initial.device)
        if products in ("onednn", "own") and (reason := "steps are eager" if plan.step == "eager" else reason):
            yield f"matrices are multiplied by torch's own library, not by {PRODUCERS[products]} as asked: {reason}"
    if (experiment.local_epochs or experiment.local_steps) and (own := experiment.traits.local_work):
        unit, count = ("step", own.steps) if own.steps else ("epoch", own.epochs)
        yield f"this method does {count} local {unit} a round, whatever the experiment says"


def open_folder(
    group: Group, path: Path, resumes: bool, prepared: PreparedExperiment, plan: ExecutionPlan
) -> tuple[RunFolder, bool]:
    """The run folder, the same for all workers; and whether it holds a run to be resumed."""
    # A launcher announces a restart only on the machine of the worker that died: those workers know the folder.
    knowing = group.ranks_where(restarted() and (path / EXPERIMENT).is_file())
    # A folder that is named by the time has another name in every process.
    path = Path(group.broadcast(str(path), source=knowing[0] if knowing else 0))
    if knowing:
        resumes = True
        same_experiment(RunFolder(path), prepared.experiment)
    if group.first and not resumes:
        engine = {"workers": group.size, "plan": plan._asdict()}
        folder = RunFolder.create(path, prepared.experiment.to_toml(), engine)
        write_text(folder.path / "partition.json", to_json(prepared.partition.to_dict()) + "\n")
    group.barrier()
    if not (path / EXPERIMENT).is_file():
        raise RunFolderError(
            f"{path}: worker {group.rank} does not see it. All workers need the same file system there."
        )
    return RunFolder(path), resumes
