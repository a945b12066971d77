"""Run a study: every variant on identical data, initial weights and batches.

Every random draw is keyed by the seed and its purpose, so variants of one seed differ only in what they set.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Unpack

from gossamer.engines import number_of_workers
from gossamer.errors import ExperimentError, GossamerError
from gossamer.experiment import Evaluate, prepare
from gossamer.measure import METRICS, metric_key
from gossamer.runs.folder import EXPERIMENT, RunFolder
from gossamer.runs.record import RunRecord, read_run
from gossamer.simulation import (
    Diverged,
    Interrupted,
    Observer,
    Options,
    Run,
    check_options,
    resume,
    same_experiment,
    simulate,
)
from gossamer.studies.results import Comparison, StudyRun, VariantResult
from gossamer.studies.side_by_side import run_side_by_side, runs_at_once
from gossamer.studies.study import Study
from gossamer.studies.targets import Target, resolve_targets


def compare(
    study: Study,
    *,
    out: Path | str | None = None,
    observe: Callable[[StudyRun], Sequence[Observer]] = lambda run: (),
    budget: float | None = None,
    side_by_side: bool = False,
    **options: Unpack[Options],
) -> Comparison:
    """Run every variant for every seed. With `out`, runs in that folder that have ended are not run again.

    `observe` gives the observers of each run. A variant that diverges is kept up to its last finite round; the others
    are run to their end. After `budget` minutes no further run is started: the result names those that are left.
    With `side_by_side` and `out`, several runs go at once where one does not keep all cores busy; then observers cannot
    stop a run, and have no values of single clients.

    >>> from gossamer import Experiment
    >>> study = Study(Experiment(rounds=1, clients=4, local_steps=1), sweep={"method": ["dfedavg", "dfedavgm"]})
    >>> list(compare(study).table.index)
    ['dfedavg', 'dfedavgm']
    """
    started = time.monotonic()
    check_options(options)
    if budget is not None and not budget > 0:
        raise ExperimentError(f"budget: should be minutes, more than 0 (got {budget})")
    options["keep_vectors"] = False  # a record has no place for them
    planned = plan(study, Path(out) if out is not None else None)
    # An invalid variant is refused before the first run, not after the last.
    facts = [_facts(run, options) for run in planned]
    targets = targets_of(study, facts)
    folder = study.claim(Path(out)) if out is not None else None
    found = {cell.label: VariantResult(cell.label, cell.values, {}) for cell in study.cells}
    left: dict[int, StudyRun] = {}

    def in_time() -> Iterator[StudyRun]:
        for run in planned:
            if budget is not None and time.monotonic() - started > 60 * budget and not has_ended(run, options):
                left[run.number] = run
            else:
                yield run

    try:
        at_once = runs_at_once(max(each.workers for each in facts), min(each.work for each in facts), options)
        if side_by_side and folder is not None and at_once > 1:
            run_side_by_side(
                (run for run in in_time() if not has_ended(run, options)),
                at_once,
                lambda run, relay: run_once(run, lambda run: [relay], options),
                observe,
                options.get("data_dir"),
            )
        for run in in_time():
            found[run.label].runs[run.experiment.seed] = run_once(run, observe, options)
    except KeyboardInterrupt as stop:  # the whole comparison is resumed, not this run
        raise Interrupted(stop.round if isinstance(stop, Interrupted) else 0, folder) from None
    known = {label: variant for label, variant in found.items() if variant.runs}
    baselines = {label: other for label, other in study.baselines.items() if {label, other} <= known.keys()}
    return Comparison(known, targets, baselines, folder, any(each.partitioned for each in facts), tuple(left.values()))


def plan(study: Study, out: Path | None = None) -> list[StudyRun]:
    """Every run of a study: all seeds of the first variant, then of the next."""
    runs = [
        (cell, experiment.but(seed=seed))
        for cell in study.cells
        for experiment in [cell.of(study.experiment)]
        for seed in study.seeds_of(experiment)
    ]
    return [
        StudyRun(cell, seeded, number, len(runs), out and out / f"{cell.folder}-seed{seeded.seed}")
        for number, (cell, seeded) in enumerate(runs, start=1)
    ]


class Facts(NamedTuple):
    """What a study must know of a run before the first one; the samples are not kept for it."""

    evaluate: Evaluate
    #: The metric by which the run is going to be judged.
    judged_by: str
    has_accuracies: bool
    has_test_samples: bool
    #: Whether the experiment's partition splits the data.
    partitioned: bool
    #: How many workers the run has.
    workers: int
    #: How often a parameter meets a sample in all rounds; 0 on a GPU, which takes one run at a time.
    work: float


def _facts(run: StudyRun, options: Options) -> Facts:
    """Prepare a run and keep the facts; an error names the variant."""
    try:
        prepared = prepare(run.experiment, options.get("data_dir"))
        workers = number_of_workers(options.get("workers"), prepared.training)
    except GossamerError as error:
        raise type(error)(f"variant '{run.label}': {error}") from error
    training, dataset = prepared.training, prepared.training.dataset
    work = float(training.batches.work().sum()) * training.model.initial.numel() * training.rounds
    has_accuracies = not dataset.train.targets.is_floating_point()
    judged_by = "test_accuracy" if has_accuracies else "test_loss"
    if run.experiment.metric is not None:
        judged_by = metric_key(run.experiment.metric)
    return Facts(
        run.experiment.evaluate,
        judged_by if len(dataset.test) else "local_loss",
        has_accuracies,
        bool(len(dataset.test)),
        dataset.clients is None,
        workers,
        work if run.experiment.device == "cpu" else 0.0,
    )


def targets_of(study: Study, facts: Sequence[Facts]) -> tuple[Target, ...]:
    """The targets of a study, checked: every variant must measure their metrics."""
    if not study.targets:
        return ()
    judged = list(dict.fromkeys(each.judged_by for each in facts))
    if len(judged) > 1 and not isinstance(study.targets, Mapping):
        raise ExperimentError(
            f"targets: some variants are judged by {judged[0]}, others by {judged[1]}: name the metric, as in "
            f"targets = {{{judged[0]} = [...]}}"
        )
    targets = resolve_targets(study.targets, judged[0], all(each.has_accuracies for each in facts))
    for target in targets:
        for each in facts:
            key = METRICS[target.metric].cadence
            if key and not getattr(each.evaluate, key):
                raise ExperimentError(f"targets: {target.metric} is not measured round by round: set evaluate.{key}")
            if target.metric.startswith(("test_", "client_")) and not each.has_test_samples:
                raise ExperimentError(f"targets: {target.metric}: the data set has no test samples")
            if target.metric in ("test_score", "test_error") and each.judged_by != target.metric:
                raise ExperimentError(f"targets: {target.metric}: the experiment has no 'metric' that is written there")
    return targets


def has_ended(run: StudyRun, options: Options) -> bool:
    """Whether a run has ended before: after its last round, on purpose, or because it diverged."""
    if run.folder is None or not (run.folder / EXPERIMENT).exists():
        return False
    folder = RunFolder.open(run.folder)
    same_experiment(folder, run.experiment)
    ending = folder.ending()
    diverged = ending is not None and ending.kind == "diverged" and options.get("on_divergence") != "continue"
    return folder.finished or diverged


def run_once(run: StudyRun, observe: Callable[[StudyRun], Sequence[Observer]], options: Options) -> RunRecord:
    """Run a run, or go on with it, unless it has ended."""
    try:
        if run.folder is None:
            return record_of(simulate(run.experiment, observers=observe(run), **options), run.label)
        if not (run.folder / EXPERIMENT).exists():
            simulate(run.experiment, out=run.folder, observers=observe(run), **options)
        elif not has_ended(run, options):
            resume(run.folder, experiment=run.experiment, observers=observe(run), **options)
    except Diverged as error:
        if run.folder is None:
            return record_of(error.run, run.label)
    return read_run(run.folder, run.label)


def record_of(run: Run, label: str) -> RunRecord:
    """The record of a run that has no folder."""
    stopped = None if run.ending.kind == "finished" else str(run.ending)
    return RunRecord(label, run.experiment.resolved(), run.metrics, run.timings, stopped)
