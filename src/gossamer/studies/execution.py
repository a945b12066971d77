"""Run a study: every variant on identical data, initial weights and batches.

Every random draw is keyed by the seed and its purpose, so variants of one seed differ only in what they set.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Unpack

from gossamer.errors import ExperimentError, GossamerError
from gossamer.experiment import PreparedExperiment, prepare
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
from gossamer.studies.study import Study
from gossamer.studies.targets import Target, resolve_targets


def compare(
    study: Study,
    *,
    out: Path | str | None = None,
    observe: Callable[[StudyRun], Sequence[Observer]] = lambda run: (),
    budget: float | None = None,
    **options: Unpack[Options],
) -> Comparison:
    """Run every variant for every seed. With `out`, runs in that folder that have ended are not run again.

    `observe` gives the observers of each run. A variant that diverges is kept up to its last finite round; the others
    are run to their end. After `budget` minutes no further run is started: the result names those that are left.

    >>> study = Study(Experiment(rounds=1, clients=4, local_steps=1), sweep={"method": ["dfedavg", "dfedavgm"]})
    >>> list(compare(study).table.index)
    ['dfedavg', 'dfedavgm']
    """
    started = time.monotonic()
    check_options(options)
    if budget is not None and not budget > 0:
        raise ExperimentError(f"budget: should be minutes, more than 0 (got {budget})")
    options["keep_vectors"] = False  # a record has no place for them
    planned = plan(study)
    # An invalid variant is refused before the first run, not after the last.
    prepared = [_prepared(run, options.get("data_dir")) for run in planned]
    targets = targets_of(study, prepared)
    folder = study.claim(Path(out)) if out is not None else None
    found = {cell.label: VariantResult(cell.label, cell.values, {}) for cell in study.cells}
    left = []
    for run in planned:
        name = f"{run.variant.folder}-seed{run.experiment.seed}"
        run = run._replace(folder=folder / name if folder else None)
        if budget is not None and time.monotonic() - started > 60 * budget and not has_ended(run, options):
            left.append(run)
            continue
        try:
            found[run.label].runs[run.experiment.seed] = run_once(run, observe, options)
        except Interrupted as stop:  # the whole comparison is resumed, not this run
            raise Interrupted(stop.round, folder) from None
    partitioned = any(each.training.dataset.clients is None for each in prepared)
    known = {label: variant for label, variant in found.items() if variant.runs}
    baselines = {label: other for label, other in study.baselines.items() if {label, other} <= known.keys()}
    return Comparison(known, targets, baselines, folder, partitioned, tuple(left))


def plan(study: Study) -> list[StudyRun]:
    """Every run of a study, without its folder: all seeds of the first variant, then of the next."""
    runs = [
        (cell, experiment.but(seed=seed))
        for cell in study.cells
        for experiment in [cell.of(study.experiment)]
        for seed in study.seeds_of(experiment)
    ]
    return [StudyRun(cell, seeded, number, len(runs), None) for number, (cell, seeded) in enumerate(runs, start=1)]


def _prepared(run: StudyRun, data_dir: Path | None) -> PreparedExperiment:
    """The live parts of a run; an error names the variant."""
    try:
        return prepare(run.experiment, data_dir)
    except GossamerError as error:
        raise type(error)(f"variant '{run.label}': {error}") from error


def targets_of(study: Study, prepared: Sequence[PreparedExperiment]) -> tuple[Target, ...]:
    """The targets of a study, checked: every variant must measure their metrics."""
    if not study.targets:
        return ()
    judged = list(dict.fromkeys(map(judged_by, prepared)))
    if len(judged) > 1 and not hasattr(study.targets, "keys"):
        raise ExperimentError(
            f"targets: some variants are judged by {judged[0]}, others by {judged[1]}: name the metric, as in "
            f"targets = {{{judged[0]} = [...]}}"
        )
    accuracies = all(_has_labels(each) for each in prepared)
    targets = resolve_targets(study.targets, judged[0], accuracies)
    for target in targets:
        for each in prepared:
            key = METRICS[target.metric].cadence
            if key and not getattr(each.experiment.evaluate, key):
                raise ExperimentError(f"targets: {target.metric} is measured only once: set evaluate.{key}")
            if target.metric.startswith(("test_", "client_")) and not len(each.training.dataset.test):
                raise ExperimentError(f"targets: {target.metric}: the data set has no test samples")
            if target.metric in ("test_score", "test_error") and judged_by(each) != target.metric:
                raise ExperimentError(f"targets: {target.metric}: the experiment has no 'metric' that is written there")
    return targets


def judged_by(prepared: PreparedExperiment) -> str:
    """The metric by which a run is going to be judged."""
    if not len(prepared.training.dataset.test):
        return "local_loss"
    if prepared.experiment.metric is not None:
        return metric_key(prepared.experiment.metric)
    return "test_accuracy" if _has_labels(prepared) else "test_loss"


def _has_labels(prepared: PreparedExperiment) -> bool:
    """Whether the samples have labels, which accuracies are of."""
    return not prepared.training.dataset.train.targets.is_floating_point()


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
