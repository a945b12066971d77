"""Catalogs of parts: the named pieces with parameters that an experiment is made of.

A method, a graph, a data set, a partition, a model: each is a small frozen dataclass whose fields are its parameters
with their ranges, and each package lists its own in a `Catalog`. A user gives a name (`"ring"`), a name with parameters
(`{"name": "k-regular", "k": 4}`), the dotted path of a user-defined part (`"mylab.graphs:petersen"`), or the object.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, dataclass_transform

from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from gossamer.errors import ExperimentError, did_you_mean

T = TypeVar("T")

#: Prefix in a run's files for a part that no file can express: an object made by a Python program.
PYTHON_ONLY = "python:"


@dataclass_transform(frozen_default=True)
def part(cls: type[T]) -> type[T]:
    """Class decorator: a frozen dataclass whose parameters are validated when it is constructed."""
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)
    return pydantic_dataclass(cls, frozen=True, config=config)  # type: ignore[return-value]  # same class, checked


class Catalog(Mapping[str, Callable[..., Any]]):
    """The parts of one kind, by the name a user writes.

    `role` is the method that every part of this kind has (`bind` of a graph, `step` of a method). A user's class that
    has it is constructed at once, with its parameters. Any other callable (a function that makes a network, a loss) is
    kept with its parameters bound; the caller knows its arguments.
    """

    def __init__(self, kind: str, parts: Mapping[str, Callable[..., Any]], role: str) -> None:
        self.kind = kind
        self.role = role
        self._parts = dict(parts)

    def __getitem__(self, name: str) -> Callable[..., Any]:
        return self._parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def build(self, spec: Any) -> Any:
        """The part that `spec` describes. Anything but a name or a table of parameters is already a part."""
        if isinstance(spec, str):
            spec = {"name": spec}
        if isinstance(spec, type) and hasattr(spec, self.role):
            return construct(self.kind, spec.__name__, spec, {})
        if not isinstance(spec, Mapping):
            return spec
        if "name" not in spec:
            raise ExperimentError(f"{self.kind}: a table of parameters needs a 'name'; {did_you_mean('', self)}")
        name, parameters = spec["name"], {key: value for key, value in spec.items() if key != "name"}
        maker = self.find(str(name))
        if isinstance(maker, type) and hasattr(maker, self.role):
            return construct(self.kind, str(name), maker, parameters)
        if not parameters:
            return maker
        if not callable(maker):
            raise ExperimentError(f"{self.kind} '{name}' is a finished object and takes no parameters")
        check_parameters(self.kind, str(name), maker, parameters)
        return partial(maker, **parameters)

    def find(self, name: str) -> Callable[..., Any]:
        """The class or function called `name`: from this catalog, or a user's by its dotted path."""
        if name in self._parts:
            return self._parts[name]
        if name.startswith(PYTHON_ONLY):
            raise ExperimentError(
                f"{self.kind} '{name}' was an object in a Python program: continue the run from Python with "
                "gossamer.resume(folder, experiment=...)"
            )
        if ":" in name:
            found: Callable[..., Any] = import_dotted(self.kind, name)
            return found
        hint = f". A part of your own is written package.module:name, not '{name}'" if "." in name else ""
        raise ExperimentError(f"unknown {self.kind} '{name}': {did_you_mean(name, self)}{hint}")

    def describe(self, thing: Any) -> Any:
        """The spec that builds `thing` again: a name, a table, or `thing` itself if no file can express it."""
        name, parameters = self._origin(thing)
        return thing if name is None or not _is_plain(parameters) else _spec(name, parameters)

    def _origin(self, thing: Any) -> tuple[str | None, Mapping[str, Any]]:
        """The name (None if there is none) of the class or function behind `thing`, and its parameters."""
        for name, maker in self._parts.items():
            if type(thing) is maker:
                return name, _parameters(thing)
        if isinstance(thing, partial) and not thing.args:
            return _dotted(thing.func), thing.keywords
        if is_dataclass(thing) and not isinstance(thing, type):
            return _dotted(type(thing)), _parameters(thing)
        return _dotted(thing), {}


def construct(kind: str, name: str, maker: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    """Call `maker` with `parameters`. The error names a wrong parameter and what would be right."""
    check_parameters(kind, name, maker, parameters)
    try:
        return maker(**parameters)
    except ValidationError as error:
        raise ExperimentError(explain(error, f"{kind} '{name}'")) from None
    except TypeError as error:
        raise ExperimentError(f"{kind} '{name}': {error}") from None


def check_parameters(kind: str, name: str, maker: Callable[..., Any], parameters: Mapping[str, Any]) -> None:
    """Refuse a parameter that `maker` does not take."""
    known = parameter_names(maker)
    for key in parameters:
        if key not in known and None not in known:
            hint = did_you_mean(key, [k for k in known if k]) if known else "it takes none"
            raise ExperimentError(f"{kind} '{name}' has no parameter '{key}': {hint}")


def parameter_names(maker: Callable[..., Any]) -> set[str | None]:
    """The keyword arguments of `maker`; None stands for `**kwargs`."""
    hidden = {f.name for f in fields(maker) if not f.repr} if is_dataclass(maker) else set()  # not set by users
    parameters = [p for p in inspect.signature(maker).parameters.values() if p.name not in hidden]
    return {None if p.kind is p.VAR_KEYWORD else p.name for p in parameters if p.kind is not p.VAR_POSITIONAL}


def import_dotted(kind: str, path: str) -> Any:
    """The object at `package.module:name`; modules in the current directory are found too."""
    module_name, _, attribute = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
        for step in attribute.split("."):
            found = getattr(found, step)
    except (ImportError, AttributeError, ValueError) as error:
        raise ExperimentError(f"{kind} '{path}' cannot be imported: {error}") from None
    except Exception as error:  # raised by the user's module; kept as the cause
        raise ExperimentError(f"{kind} '{path}' cannot be imported: {type(error).__name__}: {error}") from error
    return found


def explain(error: ValidationError, where: str) -> str:
    """A pydantic error, one line for each finding: the key, the value, and what would be valid."""
    lines = []
    for finding in error.errors():
        # Drop what unions and validators add to the location.
        places = [str(step) for step in finding["loc"]]
        key = ".".join(step for step in places if not re.search(r"^function-|^constrained-|[\[\]]", step))
        message = finding["msg"].removeprefix("Value error, ").removeprefix("Input ")
        given = "" if finding["type"] in ("value_error", "missing") else f" (got {finding['input']!r})"
        lines.append(f"{where}: {key}: {message}{given}" if key else f"{where}: {message}{given}")
    return "\n".join(dict.fromkeys(lines))


def parameters_of(maker: Callable[..., Any]) -> dict[str, str]:
    """Parameter names with their defaults as a user would write them, for listings."""
    if not is_dataclass(maker):
        return {}
    shown = {}
    for field in fields(maker):
        if not field.init or not field.repr:  # not set by users
            continue
        required = field.default is MISSING and field.default_factory is MISSING
        shown[field.name] = "required" if required else _literal(getattr(maker, field.name, None))
    return shown


def summary_of(maker: Callable[..., Any]) -> str:
    """The first line of the docstring."""
    return (inspect.getdoc(maker) or "").split("\n")[0]


def _literal(value: Any) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _parameters(thing: Any) -> dict[str, Any]:
    return {field.name: getattr(thing, field.name) for field in fields(thing) if field.init and field.repr}


def _spec(name: str, parameters: Mapping[str, Any]) -> Any:
    given = {key: value for key, value in parameters.items() if value is not None}
    return {"name": name, **given} if given else name


def _is_plain(value: Any) -> bool:
    """Whether a TOML file can hold the value."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(inner) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | int | float | bool)


def _dotted(thing: Any) -> str | None:
    """The dotted path by which any program can import a function or class; None if there is none."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not module or not name or module == "__main__":
        return None
    found = sys.modules.get(module)
    for step in name.split("."):
        found = getattr(found, step, None)
    return f"{module}:{name}" if found is thing else None
