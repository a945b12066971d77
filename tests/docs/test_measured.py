"""Every measured number in the README and the documentation stands in a section that names its command."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from gossamer.commands.app import app

ROOT = Path(__file__).parents[2]
#: The tables alone are printed again, or linked, on a page that says how they are made.
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "tables")]
#: What only a run can have given: a spread, a percentage with decimals, seconds or bytes with decimals.
MEASURED = re.compile(r"\d ± \d|\d\.\d+ ?(%|s\b|ms\b|MB\b|GB\b|points\b)")
COMMAND = re.compile(r"gossamer ([a-z]+)|make ([a-z-]+)|python -m ((?:benchmarks|gossamer)[a-z.]*)")


def sections(text: str) -> Iterator[tuple[str, str]]:
    """Every section's heading with its text, and with the text of the page before its first subsection."""
    parts = re.split(r"^(## .*)$", text, flags=re.MULTILINE)
    top = parts[0]
    yield "the beginning", top
    for heading, body in zip(parts[1::2], parts[2::2], strict=True):
        yield heading, top + body


def commands_of(text: str) -> set[str]:
    """The commands that a text names and that exist."""
    known = set(get_command(app).commands)  # type: ignore[attr-defined]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    found = set()
    for command, target, module in COMMAND.findall(text):
        path = module.replace(".", "/")
        exists = [(ROOT / base / f"{path}{end}").exists() for base in ("", "src") for end in (".py", "/__main__.py")]
        if command in known or target in targets or (module and any(exists)):
            found.add(command or target or module)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_measured_number_has_its_command(page: Path) -> None:
    for heading, text in sections(page.read_text(encoding="utf-8")):
        lines = [line for line in text.splitlines() if MEASURED.search(line)]
        assert not lines or commands_of(text), f"{heading}: no command that exists beside: {lines[0]}"


def test_a_number_without_a_command_is_found() -> None:
    ((_, text),) = sections("We measured 93.4 % with `gossamer compair`.")
    assert MEASURED.search(text)
    assert not commands_of(text)
    assert commands_of("`gossamer compare`, make reproduction, python -m benchmarks.scaling") == {
        "compare",
        "reproduction",
        "benchmarks.scaling",
    }
