"""Runs and comparisons read back from their folders as one comparison."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gossamer.errors import RunFolderError
from gossamer.experiment import read_toml
from gossamer.parts import PYTHON_ONLY
from gossamer.runs.folder import EXPERIMENT
from gossamer.runs.record import RunRecord, read_run, read_runs
from gossamer.studies.results import Comparison, VariantResult, named_score
from gossamer.studies.study import COMPARISON, find_baselines
from gossamer.studies.targets import Targets, check_targets, resolve_targets
from gossamer.studies.variants import duplicates, variants


class FoundRun(NamedTuple):
    """A run with where it was found."""

    record: RunRecord
    #: The label of its variant, or the name of its folder without the seed.
    label: str
    #: What tells its variant from others in its comparison; empty for a run that stands alone.
    values: dict[str, str | int | float]
    #: The folder of its comparison, or its own.
    source: Path

    @property
    def identity(self) -> str:
        """Equal for runs that differ in their seed alone, and may be averaged."""
        experiment = {key: value for key, value in self.record.experiment.items() if key not in NOT_COMPARED}
        described = json.dumps(experiment, sort_keys=True, default=str)
        if self.values:
            return f"{self.label} {self.unfinished} {described}"
        # Of an object that no file can express, a run folder does not say whether it is the same.
        return f"{self.unfinished} {described} {self.source if PYTHON_ONLY in described else ''}"

    @property
    def unfinished(self) -> str:
        """The last round of a run that has not all of its rounds; it is not averaged with others."""
        return f"{self.record.rounds}" if (self.record.stopped or "").startswith(("unfinished", "damaged")) else ""


#: Keys of an experiment in which runs that are averaged may differ.
NOT_COMPARED = ("seed", "checkpoint_every", "device")


def read_comparison(paths: Sequence[Path], targets: Targets = (), baseline: str | None = None) -> Comparison:
    """Runs and comparisons as one comparison. Runs that differ in their seed alone are one variant.

    Two runs of one experiment with the same seed stay two variants, told apart by their folders. A single comparison
    has the targets and the baseline of its file, unless others are given.
    """
    found = [run for path in dict.fromkeys(paths) for run in _found(path)]
    if len(paths) == 1 and (paths[0] / COMPARISON).exists():
        study = read_toml(paths[0] / COMPARISON)
        targets, baseline = targets or study.get("targets", ()), baseline or study.get("baseline")
    groups: dict[str, list[FoundRun]] = {}
    for run in found:
        groups.setdefault(run.identity, []).append(run)
    apart = [group for each in groups.values() for group in _told_apart(each)]
    keys = {tuple(group[0].values) for group in apart}
    labels = [group[0].label for group in apart]
    if repeated := duplicates(labels):
        labels = [_full_label(g[0]) if label in repeated else label for label, g in zip(labels, apart, strict=True)]
    tidy = len(keys) == 1 and () not in keys and not repeated
    made = {
        label: VariantResult(
            label,
            group[0].values if tidy else {"run": label},
            {run.record.experiment["seed"]: run.record for run in group},
        )
        for label, group in zip(labels, apart, strict=True)
    }
    records = [run.record for run in found]
    if targets:
        check_targets(targets)
    accuracies = any("test_accuracy" in record.metrics for record in records)
    resolved = resolve_targets(targets, named_score(records).key, accuracies) if targets else ()
    return Comparison(made, resolved, find_baselines({label: v.values for label, v in made.items()}, baseline))


def _found(path: Path) -> Iterator[FoundRun]:
    """The runs of a folder: of a comparison, variant by variant in the order of its file; or a run; or runs in it."""
    if not (path / COMPARISON).exists():
        for record in read_runs([path]):
            folder = path if (path / EXPERIMENT).exists() else path / record.label
            yield FoundRun(record, re.sub(r"-seed\d+$", "", folder.resolve().name), {}, folder)
        return
    study: dict[str, Any] = read_toml(path / COMPARISON)
    empty = True
    for cell in variants(study.get("sweep", {}), study.get("variant", ())):
        names = {int(match[1]): folder for folder in path.iterdir()
                 if (match := re.fullmatch(rf"{re.escape(cell.folder)}-seed(\d+)", folder.name))}  # fmt: skip
        for _, folder in sorted(names.items()):
            if (folder / EXPERIMENT).exists():
                empty = False
                yield FoundRun(read_run(folder, cell.label), cell.label, cell.values, path)
    if empty:
        raise RunFolderError(f"{path}: its comparison has no run yet. Go on with 'gossamer resume {path}'.")


def _told_apart(group: list[FoundRun]) -> list[list[FoundRun]]:
    """The runs of one variant; one by one if two have the same seed, since they cannot be averaged."""
    seeds = [run.record.experiment["seed"] for run in group]
    return [group] if len(set(seeds)) == len(seeds) else [[run] for run in group]


def _full_label(run: FoundRun) -> str:
    return f"{run.source}: {run.label}" if run.values else str(run.source)
