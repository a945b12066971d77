"""The variants of an experiment: one for every combination of the swept values, with its label and folder name."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from gossamer.errors import ExperimentError
from gossamer.experiment import CATALOGS, Experiment
from gossamer.parts import PYTHON_ONLY

#: Longest name of a variant's folder. File systems allow 255 bytes; the seed is still to be appended.
LONGEST_NAME = 100
Sweep = Mapping[str, Sequence[Any]]


class Variant(NamedTuple):
    """One combination of swept values."""

    label: str
    #: Name of its runs' folders inside the comparison's folder, without the seed.
    folder: str
    experiment: Experiment


def variants(experiment: Experiment, sweep: Sweep) -> list[Variant]:
    """Every combination of the swept values, each checked to be a valid experiment."""
    for key, values in sweep.items():
        if isinstance(values, str | Mapping) or not isinstance(values, Iterable) or not list(values):
            raise ExperimentError(f"sweep: '{key}' needs a list of values to compare (got {values!r})")
    if not sweep:
        raise ExperimentError("sweep: is empty; give values to compare, for example method=dfedavg,dfedsam")
    made = []
    for values in product(*sweep.values()):
        changes = dict(zip(sweep, values, strict=True))
        labels = {key: value_label(describe(key, value)) for key, value in changes.items()}
        label = ", ".join(labels.values())
        folder = slug(label if len(sweep) == 1 else ",".join(f"{key}={text}" for key, text in labels.items()))
        made.append(Variant(label, folder, experiment.but(changes)))
    folders = [variant.folder for variant in made]
    if twice := [variant.label for variant in made if folders.count(variant.folder) > 1]:
        raise ExperimentError(f"sweep: the same variant twice: {', '.join(dict.fromkeys(twice))}")
    return made


def describe(key: str, value: Any) -> Any:
    """A swept value as it is written in a file; an object that no file can express is given by its type's name."""
    described = CATALOGS[key].describe(value) if key in CATALOGS else value
    if described is None:
        return "none"
    if isinstance(described, str | int | float | bool | list | tuple | Mapping):
        return described
    return f"{PYTHON_ONLY}{getattr(described, '__name__', type(described).__name__)}"


def value_label(value: Any) -> str:
    """A swept value as a label: `dfedsam`, `dfedsam(rho=0.1)`, `0.05`.

    >>> value_label({"name": "dfedsam", "rho": 0.1})
    'dfedsam(rho=0.1)'
    """
    if isinstance(value, Mapping) and "name" in value:
        inner = ", ".join(f"{k}={v}" for k, v in value.items() if k != "name")
        return f"{value['name']}({inner})" if inner else str(value["name"])
    return str(value)


def part_label(experiment: Experiment, key: str) -> str:
    """A part of an experiment as a label, with its parameters.

    >>> part_label(Experiment(method={"name": "dfedsam", "rho": 0.1}), "method")
    'dfedsam(rho=0.1)'
    """
    value = experiment.resolved().get(key, "")
    return value_label(value) if isinstance(value, str | Mapping) else type(value).__name__


def slug(label: str) -> str:
    """A label as a folder name."""
    name = re.sub(r"[^A-Za-z0-9.=_-]+", "-", label).strip("-")
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[:LONGEST_NAME]}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"
