"""`docs/architecture.md` names files and functions: all of them exist, and its rooms are the rooms, in their order."""

import importlib
import re
from functools import reduce
from pathlib import Path

import pytest

from house import PACKAGE, ROOMS

PAGE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
CODE = r"`([\w./]+)`"


def named_things() -> list[tuple[str, str]]:
    """Rows whose second cell is a file: the functions in the third cell, or else the types in the first."""
    found = []
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 3 and (file := re.fullmatch(r"`([\w/]+\.py)`", cells[1])):
            names = cells[2] if re.fullmatch(CODE, cells[2]) else cells[0]
            found += [(file[1], name) for name in re.findall(CODE, names)]
    return found


def test_the_walk_is_there() -> None:
    assert ("simulation/loop.py", "Loop.run") in named_things()
    assert len(named_things()) > 20


@pytest.mark.parametrize(("file", "name"), named_things())
def test_what_the_page_names_exists(file: str, name: str) -> None:
    module = importlib.import_module(f"gossamer.{file.removesuffix('.py').replace('/', '.')}")
    assert reduce(getattr, name.split("."), module)


def test_every_file_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", PAGE)) - set(re.findall(r"`(tests/[a-z_/]+\.py)`", PAGE))
    assert [
        file for file in sorted(named) if not any((folder / file).is_file() for folder in (PACKAGE, PACKAGE.parent))
    ] == []


def test_the_rooms_of_the_page_are_the_rooms() -> None:
    listing = PAGE[PAGE.index("src/gossamer/\n") : PAGE.index("A room may import")]
    assert [name.rstrip("/").removesuffix(".py") for name in re.findall(r"^  (\w+[/.]\w*)", listing, re.M)] == ROOMS
