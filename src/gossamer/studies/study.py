"""A study as a file: an experiment, its variants, seeds, targets and baseline."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli_w

from gossamer.errors import ExperimentError, RunFolderError, did_you_mean
from gossamer.experiment import STUDY_KEYS, Experiment, experiment_from, plain, read_toml
from gossamer.runs.files import make_folder, remove_asides, straight, write_text
from gossamer.studies.targets import Targets, check_targets
from gossamer.studies.variants import Variant, describe, variants

#: The study's file in a comparison's folder.
COMPARISON = "comparison.toml"
#: The study of `gossamer compare` without a file: methods that one ring tells apart, with their spread over seeds.
DEFAULT_SWEEP = {"method": ["d-psgd", "dfedavg", "dfedavgm", {"name": "dfedsam-mgs", "rho": 0.1}, "local-g-ecl"]}
DEFAULT_SEEDS = 3


@dataclass(frozen=True)
class Study:
    """An experiment and the variants of it that are compared: every variant with every swept value and every seed.

    >>> study = Study(
    ...     Experiment(clients=4),
    ...     variants=[{"label": "FedAvg", "method": "fedavg"}, {"label": "DFedAvg", "method": "dfedavg", "lr": 0.05}],
    ...     sweep={"partition.alpha": [0.1, 1.0]},
    ...     seeds=2,
    ... )
    >>> [cell.label for cell in study.cells]
    ['FedAvg, 0.1', 'FedAvg, 1.0', 'DFedAvg, 0.1', 'DFedAvg, 1.0']
    """

    experiment: Experiment
    #: Values by key of the experiment; every combination is run.
    sweep: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    #: A label and any keys of the experiment each, crossed with the sweep.
    variants: Sequence[Mapping[str, Any]] = ()
    #: The seeds of every variant: a list, or how many from the experiment's own seed on.
    seeds: int | Sequence[int] = 1
    #: Values that runs should reach: of the metric by which they are judged, or of each metric by its name.
    targets: Targets = ()
    #: The label of the variant that others are compared with, or one value of a key: then every variant is compared
    #: with the one that has this value and is equal otherwise.
    baseline: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.variants, str | Mapping) or not isinstance(self.variants, Sequence):
            raise ExperimentError("variant: should be [[variant]] tables, each with a label")
        _check_seeds(self.seeds, swept="seed" in self.sweep)
        if self.targets:
            check_targets(self.targets)
        _ = self.baselines

    @cached_property
    def cells(self) -> list[Variant]:
        """The variants, one for each combination of `variants` and `sweep`."""
        return variants(self.sweep, self.variants)

    @cached_property
    def baselines(self) -> dict[str, str]:
        """The label of each variant's baseline, by the variant's label."""
        return find_baselines({cell.label: cell.values for cell in self.cells}, self.baseline)

    def seeds_of(self, experiment: Experiment) -> list[int]:
        """The seeds of a variant's experiment."""
        if isinstance(self.seeds, int):
            return list(range(experiment.seed, experiment.seed + self.seeds))
        return list(self.seeds)

    def to_toml(self) -> str:
        """The study as a file that `gossamer compare` takes."""
        own: dict[str, Any] = {"seeds": self.seeds}
        if self.targets:
            own["targets"] = self.targets
        if self.baseline is not None:
            own["baseline"] = self.baseline
        tables: dict[str, Any] = {}
        if self.variants:
            tables["variant"] = [{key: describe(key, value) for key, value in t.items()} for t in self.variants]
        if self.sweep:
            tables["sweep"] = {key: [describe(key, value) for value in values] for key, values in self.sweep.items()}
        flat = tomllib.loads(self.experiment.to_toml(resolved=False))
        return tomli_w.dumps({**plain(own), **flat, **plain(tables)})

    def claim(self, path: Path) -> Path:
        """Make the folder of this study, or continue in the folder of the very same study."""
        path = straight(path)
        file, text = path / COMPARISON, self.to_toml()
        if file.exists():
            if file.read_text(encoding="utf-8") != text:
                raise RunFolderError(
                    f"{path}: holds another comparison (see {file}). Choose another folder with --out."
                )
            remove_asides(path)
            return path
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RunFolderError(f"{path}: exists and is not a comparison. Choose another folder with --out.")
        make_folder(path)
        write_text(file, text)
        return path


def _check_seeds(seeds: int | Sequence[int], swept: bool) -> None:
    """Refuse seeds that are no whole numbers, none at all, or one twice."""
    numbers = [seeds] if isinstance(seeds, int) else seeds
    if isinstance(numbers, str | Mapping) or not isinstance(numbers, Sequence):
        raise ExperimentError(f"seeds: should be a whole number, or a list of them (got {seeds!r})")
    if any(isinstance(number, bool) or not isinstance(number, int) or number < 0 for number in numbers):
        raise ExperimentError(f"seeds: should be a whole number, or a list of them (got {seeds!r})")
    if seeds == 0 or not numbers:
        raise ExperimentError(f"seeds: should be at least 1 (got {seeds!r})")
    if len(set(numbers)) < len(numbers):
        raise ExperimentError(f"seeds: has one of them twice (got {seeds!r})")
    if swept and seeds != 1:
        raise ExperimentError(
            f"seeds: the sweep over 'seed' names the seeds already, and {seeds} more from each of them would overlap; "
            "sweep the seed or set the number of seeds, not both"
        )


def find_baselines(variants: Mapping[str, Mapping[str, Any]], baseline: str | None) -> dict[str, str]:
    """The label of each variant's baseline, by the variant's label, from the variants' values by key."""
    if baseline is None:
        return {}
    wanted = str(baseline)
    if wanted in variants:
        return {label: wanted for label in variants if label != wanted}
    every = [(key, str(value)) for values in variants.values() for key, value in values.items()]
    keys = list(dict.fromkeys(key for key, value in every if value == wanted))
    if len(keys) != 1:
        known = dict.fromkeys([*variants, *(value for _, value in every)])
        reason = (
            f"is a value of {' and of '.join(keys)}" if keys else f"no variant has it: {did_you_mean(wanted, known)}"
        )
        raise ExperimentError(f"baseline: '{wanted}': {reason}")
    labels = {tuple(map(str, values.values())): label for label, values in variants.items()}
    twins = {
        label: labels.get(tuple(map(str, {**values, keys[0]: wanted}.values()))) for label, values in variants.items()
    }
    return {label: twin for label, twin in twins.items() if twin is not None and twin != label}


def load_study(path: Path | None, overrides: Mapping[str, Any] | None = None) -> Study:
    """The study of a TOML file: an experiment with the keys of a `Study`, whose variants are `[[variant]]` tables.

    Without a file: five methods with three seeds. A file with neither variants nor a sweep compares the same methods.
    """
    values: dict[str, Any] = read_toml(path) if path else {"seeds": DEFAULT_SEEDS}
    own = {key: values.pop(key) for key in STUDY_KEYS if key in values}
    if not isinstance(own.get("sweep", {}), dict):
        raise ExperimentError(f"{path}: 'sweep' must be a table of lists")
    experiment = experiment_from(values, overrides, path)
    own["variants"] = own.pop("variant", ())
    if "sweep" not in own and not own["variants"]:
        own["sweep"] = dict(DEFAULT_SWEEP)
    try:
        return Study(experiment, **own)
    except ExperimentError as error:
        raise ExperimentError(f"{path}: {error}" if path else str(error)) from None
