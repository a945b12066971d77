"""A study as a file: an experiment, the values that are swept and the number of seeds."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from gossamer.errors import ExperimentError, RunFolderError
from gossamer.experiment import Experiment, experiment_from, plain, read_toml
from gossamer.runs.files import make_folder, write_text
from gossamer.studies.variants import describe

#: The study's file in a comparison's folder.
COMPARISON = "comparison.toml"
#: The study of `gossamer compare` without a file: methods that one ring tells apart, with their spread over seeds.
DEFAULT_SWEEP = {"method": ["d-psgd", "dfedavg", "dfedavgm", {"name": "dfedsam-mgs", "rho": 0.1}, "local-g-ecl"]}
DEFAULT_SEEDS = 3


class Study(NamedTuple):
    """An experiment, the values to sweep by key, and the number of seeds of each variant."""

    experiment: Experiment
    sweep: dict[str, list[Any]]
    seeds: int

    def to_toml(self) -> str:
        """The study as a file that `gossamer compare` takes: an experiment with a [sweep]."""
        sweep = {key: [plain(describe(key, value)) for value in values] for key, values in self.sweep.items()}
        return tomli_w.dumps(
            {"seeds": self.seeds, **tomllib.loads(self.experiment.to_toml(resolved=False)), "sweep": sweep}
        )

    def claim(self, path: Path) -> Path:
        """Make the folder of this study, or continue in the folder of the very same study."""
        file, text = path / COMPARISON, self.to_toml()
        if file.exists():
            if file.read_text(encoding="utf-8") != text:
                raise RunFolderError(
                    f"{path}: holds another comparison (see {file}). Choose another folder with --out."
                )
            return path
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RunFolderError(f"{path}: exists and is not a comparison. Choose another folder with --out.")
        make_folder(path)
        write_text(file, text)
        return path


def load_study(path: Path | None, overrides: Mapping[str, Any] | None = None) -> Study:
    """The study of a TOML file: an experiment with `seeds` (default 1) and a table `[sweep]`.

    Without a file: five methods with three seeds.
    """
    values = read_toml(path) if path else {"seeds": DEFAULT_SEEDS}
    sweep, seeds = values.pop("sweep", dict(DEFAULT_SWEEP)), values.pop("seeds", 1)
    if not isinstance(sweep, dict) or type(seeds) is not int:
        raise ExperimentError(f"{path}: 'sweep' must be a table of lists, 'seeds' a whole number")
    return Study(experiment_from(values, overrides, path), sweep, seeds)
