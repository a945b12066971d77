"""Parts: the named, parametrised pieces an experiment is put together from.

A method, a graph, a data set, a partition, a model: each is a small frozen dataclass whose fields are its parameters,
with their ranges. A room lists its own in a `Catalog`; a user names one (`"ring"`), names one with parameters
(`{"name": "k-regular", "k": 4}`), gives the dotted path of an own one (`"mylab.graphs:petersen"`), or passes the
object.
"""

import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from gossamer.errors import ExperimentError, GossamerError, did_you_mean

T = TypeVar("T")

#: How a file names a part that only the Python program that made it can express.
PYTHON_ONLY = "python:"
#: Modules whose code no user has written.
NOT_THE_USERS = sys.stdlib_module_names | {"gossamer", "torch", "numpy", "scipy"}


@dataclass_transform(frozen_default=True)
def part(cls: type[T]) -> type[T]:
    """Make a class a part: a frozen dataclass whose parameters are checked when it is made."""
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)
    return pydantic_dataclass(cls, frozen=True, config=config)  # type: ignore[return-value]  # same class, checked


class Catalog(Mapping[str, Callable[..., Any]]):
    """The parts of one kind, by the name a user writes.

    `role` is the method that makes a thing a part of this kind (`bind` of a graph, `step` of a method). A user's own
    class that has it is made at once, with its parameters; any other callable (a function that makes a network, a loss)
    is kept, with its parameters bound, for the room that knows what to call it with.
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
        """The part that `spec` describes; anything but a name or a table of parameters is taken to be the part."""
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
        """The maker called `name`: one of ours, or a user's own by its dotted path."""
        if name in self._parts:
            return self._parts[name]
        if name.startswith(PYTHON_ONLY):
            raise ExperimentError(
                f"{self.kind} '{name}' was an object in a Python program: go on from there with "
                "gossamer.resume(folder, experiment=...)"
            )
        if ":" in name:
            found: Callable[..., Any] = import_dotted(self.kind, name)
            return found
        own = f". An own one is written package.module:name, not '{name}'" if "." in name else ""
        raise ExperimentError(f"unknown {self.kind} '{name}': {did_you_mean(name, self)}{own}")

    def describe(self, thing: Any) -> Any:
        """The spec that builds `thing` again: a name, a table, or `thing` itself where only Python can say it."""
        name, parameters = self._origin(thing)
        return thing if name is None or not _sayable(parameters) else _spec(name, parameters)

    def _origin(self, thing: Any) -> tuple[str | None, Mapping[str, Any]]:
        """The name of what made `thing`, with the parameters it was given; None where it has no name."""
        for name, maker in self._parts.items():
            if type(thing) is maker:
                return name, _parameters(thing)
        if isinstance(thing, partial) and not thing.args:
            return _dotted(thing.func), thing.keywords
        if is_dataclass(thing) and not isinstance(thing, type):
            return _dotted(type(thing)), _parameters(thing)
        return _dotted(thing), {}


def construct(kind: str, name: str, maker: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    """Call `maker` with `parameters`; a wrong one is named together with what would be right."""
    check_parameters(kind, name, maker, parameters)
    try:
        return maker(**parameters)
    except ValidationError as error:
        raise ExperimentError(explain(error, f"{kind} '{name}'")) from None
    except TypeError as error:
        raise ExperimentError(f"{kind} '{name}': {error}") from None


@contextmanager
def own_code(kind: str) -> Iterator[None]:
    """Where a user's own function runs: what goes wrong in it is told in one message that names it."""
    try:
        yield
    except GossamerError:
        raise
    except (Exception, SystemExit) as error:
        if is_lack_of_memory(error):
            raise ExperimentError(f"{kind}: out of memory: it is too large for this machine ({error})") from error
        raise ExperimentError(f"{kind}: it fails with {told(error)}") from error


@contextmanager
def called_back(where: str | Callable[[], str]) -> Iterator[None]:
    """Where a user's own code is called in the midst of ours: what goes wrong in it is told with its line, in one
    message that begins with `where`, if need be asked for only then. Whatever does not come from a user's line is a
    bug, and keeps its traceback."""
    try:
        yield
    except (GossamerError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        if not users_line(error) or is_lack_of_memory(error):
            raise
        place = where if isinstance(where, str) else where()
        raise ExperimentError(f"{place}: {told(error)}") from error


def told(error: BaseException) -> str:
    """What a user must know of an error: its kind, its words, and the line of their own code that it comes from."""
    line, words = users_line(error), " ".join(str(error).split())
    return f"{type(error).__name__}: {words}" + (f" ({line})" if line else "")


def users_line(error: BaseException) -> str | None:
    """The innermost line of a user's own code that an error has passed through, if it has."""
    lines = [
        f"{frame.f_code.co_filename}, line {number}, in {frame.f_code.co_name}"
        for frame, number in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in NOT_THE_USERS
    ]
    return lines[-1] if lines else None


def is_lack_of_memory(error: BaseException) -> bool:
    """Whether an error says that there is no more memory: torch has no exception of its own for a CPU's."""
    words = str(error)
    return isinstance(error, MemoryError) or "allocate memory" in words or "out of memory" in words


def check_parameters(kind: str, name: str, maker: Callable[..., Any], parameters: Mapping[str, Any]) -> None:
    """Refuse a parameter that `maker` does not take."""
    known = parameter_names(maker)
    for key in parameters:
        if key not in known and None not in known:
            hint = did_you_mean(key, [k for k in known if k]) if known else "it takes none"
            raise ExperimentError(f"{kind} '{name}' has no parameter '{key}': {hint}")


def parameter_names(maker: Callable[..., Any]) -> set[str | None]:
    """What `maker` accepts by name; None stands for "anything"."""
    hidden = {f.name for f in fields(maker) if not f.repr} if is_dataclass(maker) else set()  # filled in by `fit`
    parameters = [p for p in inspect.signature(maker).parameters.values() if p.name not in hidden]
    return {None if p.kind is p.VAR_KEYWORD else p.name for p in parameters if p.kind is not p.VAR_POSITIONAL}


def import_dotted(kind: str, path: str) -> Any:
    """The object at `package.module:name`, looked up in the current directory as well."""
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
    except Exception as error:  # the user's module itself is broken; its traceback hangs on as the cause
        raise ExperimentError(f"{kind} '{path}' cannot be imported: {type(error).__name__}: {error}") from error
    return found


def explain(error: ValidationError, where: str) -> str:
    """Pydantic's findings in our words: one line each, with the key, the value and what would be valid."""
    lines = []
    for finding in error.errors():
        # What a union or a validator adds to the place is pydantic's business.
        places = [str(step) for step in finding["loc"]]
        key = ".".join(step for step in places if not re.search(r"^function-|^constrained-|[\[\]]", step))
        message = finding["msg"].removeprefix("Value error, ").removeprefix("Input ")
        given = "" if finding["type"] in ("value_error", "missing") else f" (got {finding['input']!r})"
        lines.append(f"{where}: {key}: {message}{given}" if key else f"{where}: {message}{given}")
    return "\n".join(dict.fromkeys(lines))


def parameters_of(maker: Callable[..., Any]) -> dict[str, str]:
    """Parameter names with their defaults as a user would write them, for the listings."""
    if not is_dataclass(maker):
        return {}
    shown = {}
    for field in fields(maker):
        if not field.init or not field.repr:  # what is filled in later is no user's business
            continue
        required = field.default is MISSING and field.default_factory is MISSING
        shown[field.name] = "required" if required else _literal(getattr(maker, field.name, None))
    return shown


def choices_of(maker: Callable[..., Any], parameter: str) -> tuple[str, ...]:
    """The words a parameter may be, where it is one of a few."""
    hint = get_type_hints(maker).get(parameter)
    hints = get_args(hint) if get_origin(hint) is Union else (hint,)
    return tuple(str(word) for h in hints if get_origin(h) is Literal for word in get_args(h))


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


def _sayable(value: Any) -> bool:
    """Whether a file can hold a parameter."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _sayable(inner) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return all(map(_sayable, value))
    return value is None or isinstance(value, str | int | float | bool)


def _dotted(thing: Any) -> str | None:
    """The path that leads to a function or a class from any program; None if there is none."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not module or not name or module == "__main__":
        return None
    found = sys.modules.get(module)
    for step in name.split("."):
        found = getattr(found, step, None)
    return f"{module}:{name}" if found is thing else None
