"""Digests of the user's own code that an experiment names: peers with different code would train different methods."""

import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from gossamer.experiment import CATALOGS, Experiment

DOTTED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def code_digests(experiment: Experiment) -> dict[str, str]:
    """The digest of each part that comes from the user's modules, by key and name, such as `method lab:Mine`.

    A digest covers the source text of the part's module and of the user's modules that this one imports.
    """
    named = {
        f"{key} {name}": name
        for key, value in experiment.describe().items()
        if key in CATALOGS
        for name in _names(value)
    }
    return {part: _digest(name.partition(":")[0]) for part, name in sorted(named.items())}


def different_parts(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """The parts whose code differs."""
    return sorted(part for part in ours.keys() | theirs.keys() if ours.get(part) != theirs.get(part))


def _names(value: Any) -> Iterator[str]:
    """The `package.module:name` in a description, also in the parameters of a part."""
    if isinstance(value, str) and DOTTED.fullmatch(value):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _names(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _names(inner)


def _digest(module: str) -> str:
    hashed = sha256()
    for name, path in sorted(_sources(module).items()):
        text = path.read_bytes().replace(b"\r\n", b"\n")
        hashed.update(f"{name} {len(text)} ".encode() + text)
    return hashed.hexdigest()[:16]


def _sources(start: str) -> dict[str, Path]:
    """The files of a module and of the user's modules that it refers to."""
    found: dict[str, Path] = {}
    left = [start]
    while left:
        name = left.pop()
        module = sys.modules.get(name)
        path = _source(module) if module is not None else None
        if module is None or path is None or name in found:
            continue
        found[name] = path
        for value in list(vars(module).values()):
            left.append(value.__name__ if isinstance(value, ModuleType) else str(getattr(value, "__module__", "")))
    return found


def _source(module: ModuleType) -> Path | None:
    """The file of a module of the user's own: not of Gossamer, of Python or of an installed package."""
    file = getattr(module, "__file__", None)
    if file is None or module.__name__.split(".")[0] == "gossamer":
        return None
    path = Path(file).resolve()
    installed = any(path.is_relative_to(folder) for folder in _installed())
    return path if path.suffix == ".py" and path.is_file() and not installed else None


@cache
def _installed() -> tuple[Path, ...]:
    places = sysconfig.get_paths()
    return tuple({Path(places[key]).resolve() for key in ("stdlib", "platstdlib", "purelib", "platlib")})
