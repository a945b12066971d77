"""The tables and figures of papers as studies, with the papers' numbers and conclusions beside our runs.

A file of `papers/` is a study (see `Study`) with a table `[paper]`: the source, the numbers of the paper by cell, and
its conclusions, each as a comparison of cells that can be checked. A cell is a variant of the study with its label.
"""

import csv
import json
import math
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, Unpack

from gossamer.errors import ExperimentError, RunFolderError, did_you_mean
from gossamer.experiment import Experiment, experiment_from, read_toml
from gossamer.measure import METRICS
from gossamer.runs.files import make_folder, write_text
from gossamer.runs.folder import ENVIRONMENT, EXPERIMENT
from gossamer.runs.record import RunRecord, read_run
from gossamer.simulation import Interrupted, Observer, Options, RoundRecord
from gossamer.studies.execution import has_ended, plan, run_once
from gossamer.studies.results import Difference, Measure, StudyRun, VariantResult
from gossamer.studies.study import Study
from gossamer.studies.targets import Target
from gossamer.studies.tuning import Tuning, read_tuning
from gossamer.studies.variants import Variant, slug

#: The files of all papers, inside the package.
PAPERS = Path(__file__).with_name("papers")
#: The metrics of a stored run.
STORED = "metrics.csv"
KEPT = (
    "round", "local_loss", "test_loss", "test_accuracy", "train_accuracy", "client_accuracy_mean",
    "client_accuracy_worst", "consensus", "top_eigenvalue", "hessian_trace", "sam_sharpness",
    "bytes_total", "messages_total", "gradients_total",
)  # fmt: skip
#: Keys of a quick run, in place of the file's: a few clients with a small model, on data that need no download.
QUICK: dict[str, Any] = {
    "clients": 60, "rounds": 2, "dataset": "digits", "model": "softmax", "batch_size": 32,
    "local_epochs": None, "local_steps": 1, "evaluate": {"every": 1, "clients": 1, "training": 0},
}  # fmt: skip

Verdict = Literal["holds", "does not hold", "cannot be told"]


class PaperNumbers(NamedTuple):
    """What a paper says of a cell."""

    #: Accuracy in percent, the best over the rounds.
    best: float | None = None
    #: The round in which each accuracy (in percent, as text) was reached; None: not in the paper's rounds.
    rounds: Mapping[str, int | None] = {}
    #: Traffic of all rounds in GiB.
    traffic: float | None = None


class Conclusion(NamedTuple):
    """A sentence of a paper as a comparison: `cell` is better than each of `than`, in `measure`."""

    says: str
    cell: str
    than: tuple[str, ...]
    #: "best" or "last" accuracy, a metric after the last round, or the fewest rounds to an accuracy such as "97".
    measure: str = "best"


class Judgement(NamedTuple):
    """Whether a conclusion holds for our runs, with the reason."""

    verdict: Verdict
    why: str


@dataclass(frozen=True)
class PaperStudy:
    """A table or a figure of a paper: the study that repeats it, and what the paper has."""

    name: str
    study: Study
    source: str
    shows: str
    #: The accuracy that the paper reports: of the averaged model, or the mean of the clients' own models.
    metric: str
    numbers: Mapping[str, PaperNumbers]
    conclusions: tuple[Conclusion, ...]
    #: How each method's best settings are found, if not by the paper.
    tuning: Tuning | None = None
    #: Further metrics after the last round that the table has.
    columns: tuple[str, ...] = ()

    @cached_property
    def labels(self) -> list[str]:
        """The cells of the table."""
        return [cell.label for cell in self.study.cells]

    @property
    def targets(self) -> list[str]:
        """The accuracies in percent to which rounds are counted."""
        if self.tuning is not None:
            return list(self.tuning.targets)
        return sorted({target for numbers in self.numbers.values() for target in numbers.rounds}, key=float)

    def chosen(self, cells: Sequence[str], seeds: int | None, quick: bool) -> Study:
        """The study of some cells, named by their labels or any part of them; a quick one on digits with few rounds."""

        def named(text: str) -> set[str]:
            return {text} if text in self.labels else {label for label in self.labels if text.lower() in label.lower()}

        wanted = set().union(*map(named, cells)) if cells else set(self.labels)
        kept = [cell for cell in self.study.cells if cell.label in wanted]
        if unknown := [text for text in cells if not named(text)]:
            words = dict.fromkeys(str(value) for cell in self.study.cells for value in cell.values.values())
            raise ExperimentError(f"cells: '{unknown[0]}' is in no label: {did_you_mean(unknown[0], words)}")
        if self.tuning is not None:
            return self._of(kept, [self.tuning.seed], quick)
        return self._of(kept, seeds or (1 if quick else self.study.seeds), quick)

    def finals(
        self, study: Study, runs: Mapping[str, VariantResult], seeds: int | None, quick: bool = False
    ) -> Study | None:
        """Of a tuned study whose candidates have been run: the winners with the seeds that are reported."""
        if self.tuning is None:
            return None
        tried = {cell.label for cell in study.cells}
        winners = self.tuning.winners({label: run for label, run in runs.items() if label in tried}, self.metric)
        kept = [cell for cell in self.study.cells if cell.label in winners.values()]
        return self._of(kept, self.tuning.seeds[: seeds or (1 if quick else None)], quick) if kept else None

    def _of(self, cells: Sequence[Variant], seeds: int | Sequence[int], quick: bool) -> Study:
        """The study of some cells; a quick one on digits with few rounds."""
        experiment, variants = self.study.experiment, [{"label": c.label, **c.changes} for c in cells]
        if quick:
            experiment = experiment.but(QUICK)
            variants = [{k: v for k, v in t.items() if k.split(".")[0] not in QUICK} for t in variants]
        return Study(experiment, variants=variants, seeds=seeds)

    def reported(self, runs: Mapping[str, VariantResult]) -> Mapping[str, VariantResult]:
        """The runs that tables and conclusions are about, by label: of a tuned study the winners', by method."""
        return runs if self.tuning is None else self.tuning.reported(runs, self.metric)

    def judge(self, conclusion: Conclusion, runs: Mapping[str, VariantResult]) -> Judgement:
        """Whether a conclusion holds: in every pair the difference over common seeds exceeds its standard error."""
        runs = self.reported(runs)
        if missing := [label for label in (conclusion.cell, *conclusion.than) if label not in runs]:
            if len(missing) == 1 + len(conclusion.than):
                return Judgement("cannot be told", "not run")
            some = missing[0] if len(missing) == 1 else f"{len(missing)} of its {1 + len(conclusion.than)} cells"
            return Judgement("cannot be told", f"not run: {some}")
        one, others = runs[conclusion.cell], [runs[label] for label in conclusion.than]
        if reasons := [why for other in others if (why := self._incomparable(one, other, conclusion.measure))]:
            return Judgement("cannot be told", reasons[0])
        pairs = [Difference.between(one, other, self._advantage(conclusion.measure)) for other in others]
        if unknown := [pair.words for pair in pairs if math.isnan(pair.mean)]:
            return Judgement("cannot be told", unknown[0])
        named = _without_common_end(conclusion.than) if len(pairs) > 1 else [""]
        told = ", ".join(f"{name} {pair.mean:+.2f}".strip() for name, pair in zip(named, pairs, strict=True))
        unit = "points" if conclusion.measure in ("best", "last") else "rounds fewer"
        if conclusion.measure in METRICS:
            falls = METRICS[conclusion.measure].direction == "down"
            unit = f"{conclusion.measure.replace('_', ' ')}, {'lower' if falls else 'higher'}"
        if any(pair.error is None for pair in pairs):
            way = "for it" if all(pair.mean > 0 for pair in pairs) else "against it"
            return Judgement("cannot be told", f"one seed, which speaks {way}: {told} {unit}")
        if all(pair.exceeds and pair.mean > 0 for pair in pairs):
            return Judgement("holds", f"{told} {unit}")
        if any(pair.exceeds and pair.mean < 0 for pair in pairs):
            return Judgement("does not hold", f"{told} {unit}")
        return Judgement("cannot be told", f"within the standard error: {told} {unit}")

    def _advantage(self, measure: str) -> Measure:
        """A number of a run, the larger the better: accuracy in points, or minus the rounds to an accuracy.

        A run that did not reach the accuracy counts as one more round than it has.
        """
        if measure == "best":
            return lambda run: 100 * run.best(self.metric)
        if measure == "last":
            return lambda run: 100 * run.last(self.metric)
        if measure in METRICS:
            sign = -1 if METRICS[measure].direction == "down" else 1
            return lambda run: sign * run.last(measure)
        return lambda run: -(reached_in(run, self.metric, measure) or run.rounds + 1)

    def _incomparable(self, one: VariantResult, other: VariantResult, measure: str) -> str | None:
        """Why two variants have no difference in a measure, if they have none."""
        seeds = [seed for seed in one.runs if seed in other.runs]
        if not seeds:
            return f"no seed in common: {one.label}, {other.label}"
        for mine, theirs in ((one.runs[seed], other.runs[seed]) for seed in seeds):
            if measure in METRICS and any(math.isnan(run.last(measure)) for run in (mine, theirs)):
                return f"{measure.replace('_', ' ')} was not measured"
            if measure in ("best", "last", *METRICS):
                if mine.rounds != theirs.rounds:
                    return f"{one.label} was run to round {mine.rounds}, {other.label} to {theirs.rounds}"
                continue
            rounds = [reached_in(run, self.metric, measure) for run in (mine, theirs)]
            reached = [round for round in rounds if round is not None]
            # A run that did not reach it takes longer than one that did, if it went on for as many rounds.
            if not reached or (len(reached) == 1 and min(mine.rounds, theirs.rounds) < reached[0]):
                return f"{measure} % was not reached"
        return None


def _without_common_end(labels: Sequence[str]) -> list[str]:
    """Labels without the parts, after commas, that all of them end with.

    >>> _without_common_end(["FedAvg, iid", "FedSAM, iid"])
    ['FedAvg', 'FedSAM']
    """
    parts = [label.split(", ") for label in labels]
    while min(map(len, parts)) > 1 and len({each[-1] for each in parts}) == 1:
        parts = [each[:-1] for each in parts]
    return [", ".join(each) for each in parts]


def reached_in(run: RunRecord, metric: str, percent: str) -> int | None:
    """The first measured round with this accuracy."""
    target = Target(metric, float(percent) / 100)
    lines = zip(run.metrics["round"], run.metrics.get(metric, ()), strict=False)
    return next((int(round) for round, value in lines if target.met_by(value)), None)


def folder_of(label: str, seed: int | str) -> str:
    """The name of a run's folder."""
    return f"{slug(label)}-seed{seed}"


def names() -> list[str]:
    """The names of all files."""
    return sorted(path.stem for path in PAPERS.glob("*.toml"))


def load_paper(name: str) -> PaperStudy:
    """The table or figure of this name."""
    if name not in names():
        raise ExperimentError(f"unknown table or figure '{name}': {did_you_mean(name, names())}")
    values = read_toml(PAPERS / f"{name}.toml")
    paper, seeds = values.pop("paper"), values.pop("seeds", 1)
    variants, sweep = values.pop("variant", ()), values.pop("sweep", {})
    tuning = None
    if "tuning" in paper:
        tuning, variants = read_tuning(paper["tuning"], variants)
        seeds = [tuning.seed, *tuning.seeds]
    study = Study(experiment_from(values, {}, PAPERS / f"{name}.toml"), sweep, variants, seeds)
    numbers = {}
    for label, cell in paper.get("cells", {}).items():
        rounds = {percent: None if isinstance(v, str) else v for percent, v in cell.pop("rounds", {}).items()}
        numbers[label] = PaperNumbers(rounds=rounds, **cell)
    conclusions = tuple(Conclusion(**{**c, "than": tuple(c["than"])}) for c in paper.get("conclusions", ()))
    made = PaperStudy(
        name,
        study,
        paper["source"],
        paper["shows"],
        paper.get("metric", "test_accuracy"),
        numbers,
        conclusions,
        tuning,
        tuple(paper.get("columns", ())),
    )
    known = made.labels if tuning is None else list(tuning.candidates)
    named = [*numbers, *(label for c in conclusions for label in (c.cell, *c.than))]
    if unknown := [label for label in named if label not in known]:
        raise ExperimentError(f"{name}: '{unknown[0]}' is no cell: {did_you_mean(unknown[0], known)}")
    return made


def reproduce(
    study: Study,
    out: Path,
    *,
    then: Callable[[], Study | None] = lambda: None,
    budget: float | None = None,
    observe: Callable[[StudyRun], Sequence[Observer]] = lambda run: (),
    **options: Unpack[Options],
) -> list[StudyRun]:
    """Run what is not yet run of a study, each run in a folder of its own below `out`; the runs that are left.

    `then` gives another study when all of the first has been run. With a `budget` in minutes, the run that is under way
    then ends after its round, to be resumed in the next sitting.
    """
    started = time.monotonic()
    options["keep_vectors"] = False

    def over() -> bool:
        return budget is not None and time.monotonic() - started >= 60 * budget

    def sitting(study: Study) -> list[StudyRun]:
        runs = [run._replace(folder=out / folder_of(run.label, run.experiment.seed)) for run in plan(study)]
        for run in runs:
            if over():
                break
            try:
                run_once(run, lambda run: [*observe(run), *deadline], options)
            except Interrupted:
                if not over():
                    raise
        return [run for run in runs if not has_ended(run, options)]

    deadline = [] if budget is None else [_Deadline(over)]
    left = sitting(study)
    if not left and (more := then()) is not None:
        left = sitting(more)
    return left


class _Deadline(Observer):
    """Interrupts the run that is under way after its round, as a signal from outside would, once the time is over."""

    def __init__(self, over: Callable[[], bool]) -> None:
        self._over = over

    def round(self, record: RoundRecord) -> bool:
        if self._over() and threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGTERM)
        return False


def read_folders(paper: PaperStudy, folder: Path) -> dict[str, VariantResult]:
    """The runs of a paper's cells in a folder, of run folders or of stored results, by cell."""
    found: dict[str, VariantResult] = {}
    for cell in paper.study.cells:
        runs = {}
        for path in sorted(folder.glob(folder_of(cell.label, "*"))):
            if (path / EXPERIMENT).exists():
                record = read_stored(path, cell.label) if (path / STORED).exists() else read_run(path, cell.label)
                if len(record.metrics):
                    runs[int(path.name.rpartition("-seed")[2])] = record
        if runs:
            found[cell.label] = VariantResult(cell.label, cell.values, runs)
    return found


def read_results(paper: PaperStudy, results: Path, stored: Mapping[str, Path]) -> dict[str, VariantResult]:
    """The stored runs of a paper's cells: its own, and those of other tables that have the same experiment."""
    own, found = read_folders(paper, results / paper.name), {}
    for cell in paper.study.cells:
        runs = dict(own[cell.label].runs) if cell.label in own else {}
        experiment = cell.of(paper.study.experiment)
        for seed in paper.study.seeds_of(experiment):
            if seed not in runs and (path := stored.get(_same_numbers(experiment.but(seed=seed)))):
                runs[seed] = read_stored(path, cell.label)
        if runs:
            found[cell.label] = VariantResult(cell.label, cell.values, runs)
    return found


def stored_by_experiment(results: Path) -> dict[str, Path]:
    """The folders of all stored runs, by what decides their numbers."""
    paths = sorted(results.glob(f"*/*/{EXPERIMENT}"))
    return {_same_numbers(experiment_from(read_toml(path), {}, path)): path.parent for path in paths}


def _same_numbers(experiment: Experiment) -> str:
    """Equal for experiments whose numbers are equal."""
    return experiment.but(checkpoint_every=0).digest


def store(run: Path, target: Path) -> None:
    """Keep the numbers of a run without its models: its experiment, versions and commit, and metrics."""
    record = read_run(run)
    make_folder(target)
    write_text(target / EXPERIMENT, (run / EXPERIMENT).read_text(encoding="utf-8"))
    about = json.loads((run / ENVIRONMENT).read_text(encoding="utf-8"))
    kept = {key: about[key] for key in ("python", "packages", "commit") if key in about}
    kept["workers"] = about.get("engine", {}).get("workers")
    write_text(target / ENVIRONMENT, json.dumps(kept, indent=2) + "\n")
    keys = [key for key in KEPT if key in record.metrics]
    lines = [",".join(keys)]
    for row in record.metrics[keys].to_dict("records"):
        lines.append(",".join("" if math.isnan(row[key]) else f"{row[key]:.10g}" for key in keys))
    write_text(target / STORED, "\n".join(lines) + "\n")


def store_all(paper: PaperStudy, folder: Path, results: Path) -> None:
    """Keep the numbers of all runs of a paper's cells that are in a folder."""
    for label, found in read_folders(paper, folder).items():
        for seed in found.runs:
            store(folder / folder_of(label, seed), results / paper.name / folder_of(label, seed))


def read_stored(path: Path, label: str) -> RunRecord:
    """The record of a stored run."""
    import pandas as pd

    try:
        with (path / STORED).open(encoding="utf-8", newline="") as file:
            rows = [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path / STORED}: cannot be read: {error}") from None
    return RunRecord(label, read_toml(path / EXPERIMENT), pd.DataFrame(rows), pd.DataFrame(), None)
