"""Digests of the user's own code that an experiment names: peers with different code would train different methods."""

import ast
import importlib.util
import re
import sysconfig
from collections.abc import Iterator, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from gossamer.experiment import CATALOGS, Experiment

#: The folders into which packages are installed.
PACKAGES = frozenset({"site-packages", "dist-packages"})
DOTTED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def code_digests(experiment: Experiment) -> dict[str, str]:
    """The digest of each part that comes from the user's modules, by key and name, such as `method lab:Mine`.

    A digest covers the source text of the part's module, of the packages that it is in, and of the user's modules that
    these import: those of the part's own package, and those that are not installed.
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
    """The files of a module, of the packages that it is in, and of the user's modules that its text imports."""
    package = start.partition(".")[0]
    found: dict[str, Path] = {}
    seen: set[str] = set()
    left = [start]
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        path = _source(name, package)
        if path is not None and path.suffix == ".py":
            found[name] = path
            left += [name.rpartition(".")[0], *_imported(name, path, package)]
    return found


def _imported(name: str, path: Path, package: str) -> Iterator[str]:
    """The modules that the text of a module imports, also in its functions: they need not be imported yet."""
    inside = name if path.name == "__init__.py" else name.rpartition(".")[0]
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # it would fail if it were imported
        return
    for statement in ast.walk(tree):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            above = inside.rsplit(".", statement.level - 1)[0] if statement.level else ""
            home = ".".join(filter(None, (above, statement.module)))
            yield home
            there = _source(home, package)
            if there is not None and (there.is_dir() or there.name == "__init__.py"):  # a package, and its modules
                yield from (f"{home}.{alias.name}" for alias in statement.names)


def _source(name: str, package: str) -> Path | None:
    """The file of a module of the user's own: of the package that the part is in, wherever that is installed, or of
    another one that is not installed; a folder for a package without a file. Nothing of Gossamer or of Python is."""
    top = name.partition(".")[0]
    path = None if top == "gossamer" else _file(top)
    return None if path is None or (top != package and _is_installed(path)) else _file(name)


def _file(name: str) -> Path | None:
    """The file of a module, imported or not, or the folder of a package without one; None if there is none."""
    try:
        spec = importlib.util.find_spec(name)  # imports the packages that it is in
    except Exception:  # one of them does not exist, or fails
        return None
    if spec is None:
        return None
    places = [spec.origin] if spec.has_location else list(spec.submodule_search_locations or ())
    return Path(places[0]).resolve() if places and places[0] else None


def _is_installed(path: Path) -> bool:
    """Whether a file belongs to Python or to a package that an installer has put in its place.

    By the names of its folders: packages of the user or of the system may be outside this interpreter's own paths.
    """
    return not PACKAGES.isdisjoint(path.parts) or any(map(path.is_relative_to, _standard_library()))


@cache
def _standard_library() -> tuple[Path, ...]:
    return tuple({Path(sysconfig.get_path(key)).resolve() for key in ("stdlib", "platstdlib")})
