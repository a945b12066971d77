"""Run a study: every variant on identical data, initial weights and batches.

Every random draw is keyed by the seed and its purpose, so variants of one seed differ only in the swept keys.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Unpack

from gossamer.errors import ExperimentError
from gossamer.experiment import Experiment, prepare
from gossamer.measure import Score
from gossamer.runs.folder import EXPERIMENT, RunFolder
from gossamer.runs.record import RunRecord, read_run, score_of
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
from gossamer.studies.study import Study
from gossamer.studies.variants import Sweep, variants

if TYPE_CHECKING:
    import pandas as pd


class StudyRun(NamedTuple):
    """One run of a comparison: a variant with a seed, its place among all runs, and its run folder, if any."""

    label: str
    experiment: Experiment
    number: int
    total: int
    folder: Path | None


@dataclass(frozen=True, eq=False)
class Comparison:
    """The runs of a comparison by variant, one run for each seed."""

    runs: dict[str, list[RunRecord]]
    folder: Path | None = None
    #: Whether the experiment's partition split the data; False for data that comes with its own clients.
    partitioned: bool = True

    @property
    def records(self) -> list[RunRecord]:
        return [record for records in self.runs.values() for record in records]

    @property
    def score(self) -> Score:
        """The metric by which the variants are judged."""
        return score_of(self.records)

    @property
    def table(self) -> "pd.DataFrame":
        """One row per variant: the mean over its seeds and, of several, their standard deviation as `... spread`."""
        return summary_table(self.runs)


def compare(
    experiment: Experiment,
    sweep: Sweep,
    *,
    seeds: int = 1,
    out: Path | str | None = None,
    observe: Callable[[StudyRun], Sequence[Observer]] = lambda run: (),
    **options: Unpack[Options],
) -> Comparison:
    """Run every variant for every seed. With `out`, finished runs in that folder are not run again.

    `observe` gives the observers of each run. A variant that diverges is kept up to its last finite round; the others
    are run to their end.

    >>> result = compare(Experiment(rounds=1, clients=4, local_steps=1), {"method": ["dfedavg", "dfedavgm"]})
    >>> list(result.table.index)
    ['dfedavg', 'dfedavgm']
    """
    if seeds < 1:
        raise ExperimentError(f"seeds: should be at least 1 (got {seeds})")
    if seeds > 1 and "seed" in sweep:
        raise ExperimentError(
            f"seeds: the sweep over 'seed' names the seeds already, and {seeds} more from each of them would overlap; "
            "sweep the seed or set the number of seeds, not both"
        )
    check_options(options)
    options["keep_vectors"] = False  # a record has no place for them
    planned = _planned(experiment, sweep, seeds)
    # An invalid variant is refused before the first run, not after the last.
    data = [prepare(seeded, options.get("data_dir")).training.dataset.clients for _, _, seeded in planned]
    study = Study(experiment, {key: list(values) for key, values in sweep.items()}, seeds)
    folder = study.claim(Path(out)) if out is not None else None
    runs: dict[str, list[RunRecord]] = {}
    for number, (label, name, seeded) in enumerate(planned, start=1):
        run = StudyRun(label, seeded, number, len(planned), folder / name if folder else None)
        try:
            runs.setdefault(label, []).append(_run_once(run, observe(run), options))
        except Interrupted as stop:  # the whole comparison is resumed, not this run
            raise Interrupted(stop.round, folder) from None
    return Comparison(runs, folder, partitioned=any(clients is None for clients in data))


def _planned(experiment: Experiment, sweep: Sweep, seeds: int) -> list[tuple[str, str, Experiment]]:
    """Label, folder name and experiment of every run. Seeds count from the experiment's own seed."""
    return [
        (variant.label, f"{variant.folder}-seed{seed}", variant.experiment.but(seed=seed))
        for variant in variants(experiment, sweep)
        for seed in range(variant.experiment.seed, variant.experiment.seed + seeds)
    ]


def _run_once(run: StudyRun, observers: Sequence[Observer], options: Options) -> RunRecord:
    try:
        if run.folder is None:
            return record_of(simulate(run.experiment, observers=observers, **options), run.label)
        if not (run.folder / EXPERIMENT).exists():
            simulate(run.experiment, out=run.folder, observers=observers, **options)
        elif not RunFolder.open(run.folder).finished:
            resume(run.folder, experiment=run.experiment, observers=observers, **options)
        else:
            same_experiment(RunFolder.open(run.folder), run.experiment)
    except Diverged as error:
        if run.folder is None:
            return record_of(error.run, run.label)
    return read_run(run.folder, run.label)


def record_of(run: Run, label: str) -> RunRecord:
    """The record of a run that has no folder."""
    stopped = None if run.ending.kind == "finished" else str(run.ending)
    return RunRecord(label, run.experiment.resolved(), run.metrics, run.timings, stopped)


def summary_table(runs: Mapping[str, Sequence[RunRecord]]) -> "pd.DataFrame":
    """One row per variant: mean over its runs and, of several, their standard deviation as `... spread`."""
    import pandas as pd  # takes a third of a second, which no run should wait for before its first round

    rows = {}
    score = score_of(record for records in runs.values() for record in records)
    for label, records in runs.items():
        values = pd.DataFrame([_summary(record, score) for record in records])
        spread = values.std(ddof=1) if len(values) > 1 else pd.Series()
        rows[label] = {**values.mean(), **{f"{key} spread": value for key, value in spread.items()}}
    return pd.DataFrame.from_dict(rows, orient="index")


def _summary(record: RunRecord, score: Score) -> dict[str, float]:
    return {
        f"best {score.words}": record.best(score.key),
        f"last {score.words}": record.last(score.key),
        **({f"worst client {score.words}": record.last(score.worst)} if score.worst else {}),
        **({"gap": record.last("generalisation_gap")} if score.key == "test_accuracy" else {}),
        **({"last test loss": record.last("test_loss")} if score.key != "test_loss" else {}),
        "consensus": record.last("consensus"),
        "bytes sent by a client in all rounds": record.client_bytes,
        "bytes sent by clients and server in all rounds": record.last("bytes_total"),
        "seconds": record.seconds,
    }
