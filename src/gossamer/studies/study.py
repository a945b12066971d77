"""Comparing: the same experiment with one or more keys swept, on identical data, initial weights and batches.

Every random draw is keyed by the seed and its purpose, so variants of one seed differ in what was swept and in nothing
else.
"""

import hashlib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Unpack

import tomli_w

from gossamer.errors import ExperimentError, RunFolderError
from gossamer.experiment import CATALOGS, Experiment, experiment_from, plain, read_toml
from gossamer.experiment.preparation import prepare
from gossamer.parts import PYTHON_ONLY
from gossamer.runs.files import make_folder, write_text
from gossamer.runs.folder import EXPERIMENT, RunFolder
from gossamer.runs.record import RunRecord, read_run
from gossamer.simulation import (
    Diverged,
    Interrupted,
    Observer,
    Options,
    Run,
    Silent,
    check_options,
    resume,
    same_experiment,
    simulate,
)

if TYPE_CHECKING:
    import pandas as pd

COMPARISON = "comparison.toml"
LONGEST_NAME = 100  # of a folder; file systems take 255 bytes, and a seed is still to come
DEFAULT_SWEEP = {"method": ["dfedavg", "dfedavgm", "dfedsam", "dfedsam-mgs"]}
Sweep = Mapping[str, Sequence[Any]]


class Variant(NamedTuple):
    """One combination of swept values."""

    label: str
    #: Where its runs go, inside the comparison's folder.
    folder: str
    experiment: Experiment


class Watcher(Protocol):
    """Who watches a comparison: asked for an observer of each run."""

    def begin(self, label: str, seed: int, number: int, total: int) -> Observer:
        """Run `number` of `total` is about to start."""


class _Nobody:
    def begin(self, label: str, seed: int, number: int, total: int) -> Observer:
        return Silent()


@dataclass(frozen=True, eq=False)
class Comparison:
    """The runs of a comparison, by variant, with one run for each seed."""

    runs: dict[str, list[RunRecord]]
    folder: Path | None = None

    @property
    def records(self) -> list[RunRecord]:
        return [record for records in self.runs.values() for record in records]

    @property
    def table(self) -> "pd.DataFrame":
        """Mean over the seeds of what matters, and the spread (standard deviation) of each."""
        return summary_table(self.runs)


def variants(experiment: Experiment, sweep: Sweep) -> list[Variant]:
    """Every combination of the swept values, checked to be a valid experiment."""
    for key, values in sweep.items():
        if isinstance(values, str | Mapping) or not isinstance(values, Iterable) or not list(values):
            raise ExperimentError(f"sweep: '{key}' needs a list of values to compare (got {values!r})")
    if not sweep:
        raise ExperimentError("nothing to compare: give a sweep, for example method=dfedavg,dfedsam")
    made = []
    for values in product(*sweep.values()):
        changes = dict(zip(sweep, values, strict=True))
        shown = {key: show_value(describe(key, value)) for key, value in changes.items()}
        label = ", ".join(shown.values())
        folder = slug(label if len(sweep) == 1 else ",".join(f"{key}={text}" for key, text in shown.items()))
        made.append(Variant(label, folder, experiment.but(changes)))
    folders = [variant.folder for variant in made]
    if twice := [variant.label for variant in made if folders.count(variant.folder) > 1]:
        raise ExperimentError(f"sweep: the same variant twice: {', '.join(dict.fromkeys(twice))}")
    return made


def compare(
    experiment: Experiment,
    sweep: Sweep,
    *,
    seeds: int = 1,
    out: Path | str | None = None,
    watcher: Watcher | None = None,
    **options: Unpack[Options],
) -> Comparison:
    """Run every variant for every seed. With `out`, finished runs found there are taken as they are.

    A variant that diverges is kept up to its last finite round; the others go on.

    >>> result = compare(Experiment(rounds=1, clients=4, local_steps=1), {"method": ["dfedavg", "dfedavgm"]})
    >>> list(result.table.index)
    ['dfedavg', 'dfedavgm']
    """
    if seeds < 1:
        raise ExperimentError(f"seeds: should be at least 1 (got {seeds})")
    check_options(options)
    options["keep_vectors"] = False  # a record has no place for them
    chosen = variants(experiment, sweep)
    for variant in chosen:  # whatever does not fit is refused before the first run, not after the last
        for seed in range(seeds):
            prepare(variant.experiment.but(seed=variant.experiment.seed + seed), options.get("data_dir"))
    plan = Plan(experiment, {key: list(values) for key, values in sweep.items()}, seeds)
    folder = _folder(Path(out), plan) if out is not None else None
    runs: dict[str, list[RunRecord]] = {variant.label: [] for variant in chosen}
    number, total = 0, len(chosen) * seeds
    for variant in chosen:
        first = variant.experiment.seed  # the experiment's, unless it is the seed that is swept
        for seed in range(first, first + seeds):
            number += 1
            observer = (watcher or _Nobody()).begin(variant.label, seed, number, total)
            path = folder / f"{variant.folder}-seed{seed}" if folder else None
            seeded = variant.experiment.but(seed=seed)
            try:
                runs[variant.label].append(
                    _run_once(variant.label, seeded, path, observer, {**options, "keep_vectors": False})
                )
            except Interrupted as stop:  # it is the comparison that can be gone on with
                raise Interrupted(stop.round, folder) from None
    return Comparison(runs, folder)


def _run_once(label: str, experiment: Experiment, path: Path | None, observer: Observer, options: Options) -> RunRecord:
    try:
        if path is None:
            return record_of(simulate(experiment, observer=observer, **options), label)
        if not (path / EXPERIMENT).exists():
            simulate(experiment, out=path, observer=observer, **options)
        elif not RunFolder.open(path).finished:
            resume(path, experiment=experiment, observer=observer, **options)
        else:
            same_experiment(RunFolder.open(path), experiment)
    except Diverged as error:
        observer.say(f"{label}: {error}")
        if path is None:
            return record_of(error.run, label)
    return read_run(path, label)


def record_of(run: Run, label: str) -> RunRecord:
    """A finished run as a record among others."""
    return RunRecord(label, run.experiment.resolved(), run.metrics, run.timings, run.diverged)


class Plan(NamedTuple):
    """What a comparison compares."""

    experiment: Experiment
    sweep: dict[str, list[Any]]
    seeds: int

    def to_toml(self) -> str:
        """The plan as a file that `gossamer compare` takes: an experiment with a [sweep]."""
        sweep = {key: [plain(describe(key, value)) for value in values] for key, values in self.sweep.items()}
        return tomli_w.dumps(
            {"seeds": self.seeds, **tomllib.loads(self.experiment.to_toml(resolved=False)), "sweep": sweep}
        )


def load_plan(path: Path | None, overrides: Mapping[str, Any] | None = None) -> Plan:
    """The plan of a TOML file: an experiment, with `seeds` and a table `[sweep]` of what is compared.

    Without a file, and for a file without a sweep, that is the default experiment's four methods.
    """
    values = read_toml(path) if path else {}
    sweep, seeds = values.pop("sweep", dict(DEFAULT_SWEEP)), values.pop("seeds", 1)
    if not isinstance(sweep, dict) or type(seeds) is not int:
        raise ExperimentError(f"{path}: 'sweep' must be a table of lists, 'seeds' a whole number")
    return Plan(experiment_from(values, overrides, path), sweep, seeds)


def _folder(path: Path, plan: Plan) -> Path:
    """A new comparison's folder, or the one of the very same comparison to go on with."""
    file, text = path / COMPARISON, plan.to_toml()
    if file.exists():
        if file.read_text(encoding="utf-8") != text:
            raise RunFolderError(f"{path}: holds another comparison (see {file}). Choose another folder with --out.")
        return path
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RunFolderError(f"{path}: exists and is not a comparison. Choose another folder with --out.")
    make_folder(path)
    write_text(file, text)
    return path


def summary_table(runs: Mapping[str, Sequence[RunRecord]]) -> "pd.DataFrame":
    """One row per variant: mean over its runs and, as `... spread`, their standard deviation."""
    import pandas as pd  # takes a third of a second, which no run should wait for before its first round

    rows = {}
    for label, records in runs.items():
        values = pd.DataFrame(
            [
                {
                    "best accuracy": record.best(),
                    "last accuracy": record.last("test_accuracy"),
                    "worst client": record.last("client_accuracy_worst"),
                    "gap": record.last("generalisation_gap"),
                    "test loss": record.last("test_loss"),
                    "consensus": record.last("consensus"),
                    "bytes per client": record.metrics["bytes_per_client"].sum() if len(record.metrics) else 0.0,
                    "seconds": record.seconds,
                }
                for record in records
            ]
        )
        spread = values.std(ddof=1) if len(values) > 1 else values.std(ddof=0) * 0
        rows[label] = {**values.mean(), **{f"{key} spread": value for key, value in spread.items()}}
    return pd.DataFrame.from_dict(rows, orient="index")


def describe(key: str, value: Any) -> Any:
    """A swept value as a file would say it; an object that no file can express is named."""
    said = CATALOGS[key].describe(value) if key in CATALOGS else value
    if said is None:
        return "none"
    if isinstance(said, str | int | float | bool | list | tuple | Mapping):
        return said
    return f"{PYTHON_ONLY}{getattr(said, '__name__', type(said).__name__)}"


def show_value(value: Any) -> str:
    """A swept value as a label: `dfedsam`, `dfedsam(rho=0.1)`, `0.05`.

    >>> show_value({"name": "dfedsam", "rho": 0.1})
    'dfedsam(rho=0.1)'
    """
    if isinstance(value, Mapping) and "name" in value:
        inner = ", ".join(f"{k}={v}" for k, v in value.items() if k != "name")
        return f"{value['name']}({inner})" if inner else str(value["name"])
    return str(value)


def slug(label: str) -> str:
    """A label as a folder name."""
    name = re.sub(r"[^A-Za-z0-9.=_-]+", "-", label).strip("-")
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[:LONGEST_NAME]}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"
