"""Digests of the user's own code that an experiment names: peers with different code would train different methods."""

import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from gossamer.experiment import CATALOGS, Experiment

#: The folders into which packages are installed.
PACKAGES = frozenset({"site-packages", "dist-packages"})
DOTTED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def code_digests(experiment: Experiment) -> dict[str, str]:
    """The digest of each part that comes from the user's modules, by key and name, such as `method lab:Mine`.

    A digest covers the source text of the part's module and of the user's modules that this one imports: those of the
    part's own package, and those that are not installed.
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
    package = start.split(".")[0]
    found: dict[str, Path] = {}
    seen: set[str] = set()
    left = [start]
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        module = sys.modules.get(name)
        path = _source(module, package) if module is not None else None
        if module is None or path is None:
            continue
        found[name] = path
        left += {home for value in list(vars(module).values()) if (home := _home(value))}
    return found


def _home(value: Any) -> str:
    """The module that a value is, or comes from; empty if it does not say."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an object may warn of its own use
        try:
            return str(getattr(value, "__name__" if isinstance(value, ModuleType) else "__module__", None) or "")
        except Exception:  # or compute its attributes, and fail
            return ""


def _source(module: ModuleType, package: str) -> Path | None:
    """The file of a module of the user's own: of the package that the part is in, wherever that is installed, or of
    another one that is not installed. Nothing of Gossamer or of Python is."""
    file, top = getattr(module, "__file__", None), module.__name__.split(".")[0]
    if file is None or top == "gossamer":
        return None
    path = Path(file).resolve()
    return path if path.suffix == ".py" and (top == package or not _is_installed(path)) and path.is_file() else None


def _is_installed(path: Path) -> bool:
    """Whether a file belongs to Python or to a package that an installer has put in its place.

    By the names of its folders: packages of the user or of the system may be outside this interpreter's own paths.
    """
    return not PACKAGES.isdisjoint(path.parts) or any(map(path.is_relative_to, _standard_library()))


@cache
def _standard_library() -> tuple[Path, ...]:
    return tuple({Path(sysconfig.get_path(key)).resolve() for key in ("stdlib", "platstdlib")})
