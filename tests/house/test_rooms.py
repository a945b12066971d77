"""The order of the rooms: a room imports only rooms that come before it, and no two modules import each other."""

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest

from house import PACKAGE, ROOMS


def name_of(path: Path, package: Path) -> str:
    """The dotted name of a module; a package goes by its own name."""
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, modules: set[str]) -> Iterator[tuple[str, int]]:
    """The modules of the package that one of them imports anywhere in it, in functions and for types too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            named = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            named = [node.value] if "." in node.value and node.value in modules else []  # imported when first needed
        else:
            continue
        for name in named:
            while name and name not in modules:
                name = name.rpartition(".")[0]
            if name:
                yield name, node.lineno


def faults(package: Path) -> list[str]:
    """Every import that goes against the order of the rooms, and every cycle of modules."""
    paths = {name_of(path, package): path for path in sorted(package.rglob("*.py"))}
    graph, found = nx.DiGraph(), []
    for module, path in paths.items():
        for imported, line in imports(path, set(paths)):
            if "." not in module or imported == module:  # the package itself, which offers names of all rooms
                continue
            graph.add_edge(module, imported)
            room, used = (name.split(".")[1] if "." in name else "" for name in (module, imported))
            if room == "__main__":
                continue
            if not used or ROOMS.index(used) > ROOMS.index(room):
                found.append(f"{path.relative_to(package)}:{line}: {room} imports {imported}")
    cycles = [sorted(some) for some in nx.strongly_connected_components(graph) if len(some) > 1]
    return found + [f"these import each other: {', '.join(some)}" for some in sorted(cycles)]


def test_every_room_has_its_place_in_the_order() -> None:
    there = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert there - {"__init__", "__main__"} == set(ROOMS)


def test_imports_follow_the_order_and_make_no_cycle() -> None:
    assert faults(PACKAGE) == []


@pytest.mark.parametrize(
    ("file", "code", "named"),
    [
        ("graphs/network.py", "from gossamer.engines import Stacked", "gossamer.engines"),
        ("data/batches.py", "def f():\n    from gossamer.methods.contract import Round", "gossamer.methods"),
        ("mixing/linear.py", "if TYPE_CHECKING:\n    import gossamer.commands.app", "gossamer.commands"),
        ("errors.py", "import gossamer", "gossamer"),
        ("methods/local.py", "from gossamer.methods import dfedavg", "import each other"),
    ],
)
def test_an_import_that_is_turned_round_is_found(tmp_path: Path, file: str, code: str, named: str) -> None:
    package = tmp_path / "gossamer"
    for path in PACKAGE.rglob("*.py"):
        copy = package / path.relative_to(PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    with open(package / file, "a", encoding="utf-8") as module:
        module.write(f"\n{code}\n")
    assert any(named in fault for fault in set(faults(package)) - set(faults(PACKAGE)))
