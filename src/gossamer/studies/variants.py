"""The variants of a study: every `[[variant]]` with every combination of the swept values."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import product
from typing import Any, NamedTuple

from gossamer.errors import ExperimentError
from gossamer.experiment import CATALOGS, Experiment
from gossamer.parts import PYTHON_ONLY

#: Longest name of a variant's folder. File systems allow 255 bytes; the seed is still to be appended.
LONGEST_NAME = 100
Sweep = Mapping[str, Sequence[Any]]


class Variant(NamedTuple):
    """A variant of a study: one `[[variant]]`, if there are any, with one combination of the swept values."""

    label: str
    #: What tells it from the others, one value for each column of a tidy table: "variant" is the label of a
    #: `[[variant]]`, the other keys are those of the sweep. Numbers are numbers, parts are given by their labels.
    values: dict[str, str | int | float]
    #: Name of its runs' folders inside the comparison's folder, without the seed.
    folder: str
    #: The keys of the experiment that it sets.
    changes: dict[str, Any]

    def of(self, experiment: Experiment) -> Experiment:
        """The variant's experiment; an error names the variant."""
        try:
            return experiment.but(self.changes)
        except ExperimentError as error:
            raise ExperimentError(f"variant '{self.label}': {error}") from None


def variants(sweep: Sweep, tables: Sequence[Mapping[str, Any]] = ()) -> list[Variant]:
    """Every `[[variant]]` table with every combination of the swept values, in the order of a file."""
    check_sweep(sweep)
    check_tables(tables, sweep)
    if not sweep and not tables:
        raise ExperimentError("sweep: is empty; give values to compare, for example method=dfedavg,dfedsam")
    made = []
    for table, swept in product(tables or [{}], product(*sweep.values())):
        changes = {**table, **dict(zip(sweep, swept, strict=True))}
        values = {"variant": changes.pop("label")} if table else {}
        values |= {key: _column_value(describe(key, changes[key])) for key in sweep}
        label = ", ".join(map(str, values.values()))
        named = (str(text) if key == "variant" else f"{key}={text}" for key, text in values.items())
        made.append(Variant(label, values, slug(label if len(values) == 1 else ",".join(named)), changes))
    if twice := duplicates([variant.label for variant in made]):
        raise ExperimentError(f"sweep: the same variant twice: {', '.join(twice)}")
    # Labels that differ in signs alone would share a folder.
    shared = duplicates([variant.folder.casefold() for variant in made])
    return [v._replace(folder=with_digest(v.folder, v.label)) if v.folder.casefold() in shared else v for v in made]


def check_sweep(sweep: Sweep) -> None:
    """Refuse a sweep whose values are no lists."""
    for key, values in sweep.items():
        if isinstance(values, str | Mapping) or not isinstance(values, Iterable) or not list(values):
            raise ExperimentError(f"sweep: '{key}' needs a list of values to compare (got {values!r})")


def check_tables(tables: Sequence[Mapping[str, Any]], sweep: Sweep) -> None:
    """Refuse `[[variant]]` tables without a label, with one label, or with a key that is set elsewhere."""
    for number, table in enumerate(tables, start=1):
        if not isinstance(table, Mapping):
            raise ExperimentError(f"variant {number}: should be a table with a label (got {table!r})")
        label = table.get("label")
        if not isinstance(label, str) or not label.strip():
            given = ", ".join(f"{key} = {value!r}" for key, value in table.items()) or "nothing"
            raise ExperimentError(f'variant {number} ({given}): needs a label, for example label = "DFedAvg"')
        if "seed" in table:
            raise ExperimentError(f"variant '{label}': seed: all variants have the same seeds; set 'seeds' of the file")
        if both := [key for key in table if any(key == swept or key.startswith(f"{swept}.") for swept in sweep)]:
            raise ExperimentError(
                f"variant '{label}': sets '{both[0]}', which [sweep] sets too: leave it out of one of them"
            )
    if twice := duplicates([table["label"] for table in tables]):
        raise ExperimentError(f"variant: two have the label '{twice[0]}': give each a label of its own")


def duplicates(names: Sequence[str]) -> list[str]:
    """The names that occur more than once, each once."""
    return [name for name in dict.fromkeys(names) if names.count(name) > 1]


def describe(key: str, value: Any) -> Any:
    """A value as it is written in a file; an object that no file can express is given by its type's name."""
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


def _column_value(value: Any) -> str | int | float:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else value_label(value)


def part_label(experiment: Experiment, key: str) -> str:
    """A part of an experiment as a label, with its parameters but without switches that are off by default.

    >>> part_label(Experiment(method={"name": "dfedsam", "rho": 0.1}), "method")
    'dfedsam(rho=0.1)'
    >>> part_label(Experiment(), "partition")
    'dirichlet(alpha=0.3)'
    """
    value, part = experiment.resolved().get(key, ""), getattr(experiment, key)
    if isinstance(value, Mapping) and is_dataclass(part):
        off = {field.name for field in fields(part) if field.default is False}
        value = {name: given for name, given in value.items() if given is not False or name not in off}
    return value_label(value) if isinstance(value, str | Mapping) else type(value).__name__


def slug(label: str) -> str:
    """A label as a folder name, which is never hidden.

    >>> slug("100 % local"), slug("../x")
    ('100-local', 'x')
    """
    name = re.sub(r"[^A-Za-z0-9.=_-]+", "-", label).strip("-").lstrip("-.")
    return name if name and len(name) <= LONGEST_NAME else with_digest(name[:LONGEST_NAME], label)


def with_digest(name: str, label: str) -> str:
    """A folder name that no other label has."""
    return f"{name}-{hashlib.sha256(label.encode()).hexdigest()[:8]}".lstrip("-.")
