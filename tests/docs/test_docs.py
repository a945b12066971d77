"""The documentation says what the code does: examples run, files load, links lead somewhere, commands exist."""

import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
from typer.main import get_command

from gossamer.commands.app import app
from gossamer.commands.compare import parse_sweep
from gossamer.commands.options import overrides
from gossamer.experiment import load_experiment
from gossamer.methods import Operator, Round
from gossamer.pages.manual import generated
from gossamer.peers.identity.roster import load_roster
from gossamer.studies import load_study

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^]]*\]\((?P<target>[^)\s]+)\)")


class Block(NamedTuple):
    """A fenced block: its language, the words after it, its text."""

    language: str
    words: tuple[str, ...]
    text: str


def blocks(page: Path) -> list[Block]:
    found = []
    for match in FENCE.finditer(page.read_text(encoding="utf-8")):
        language, *words = match["info"].split() or [""]
        found.append(Block(language, tuple(words), match["text"]))
    return found


def pages_with(*languages: str) -> list[Any]:
    return [pytest.param(p, id=p.name) for p in PAGES if any(b.language in languages for b in blocks(p))]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory, whose modules can be imported and are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for file in tmp_path.glob("*.py"):
        sys.modules.pop(file.stem, None)


def write_modules(page: Path, folder: Path) -> None:
    """A Python block with a file name after its language is that file."""
    for block in blocks(page):
        if block.language == "python" and block.words:
            (folder / block.words[0]).write_text(block.text, encoding="utf-8")


@pytest.mark.parametrize("name", generated(ROOT / "docs"))
def test_generated_pages_are_up_to_date(name: str) -> None:
    written = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert written == generated(ROOT / "docs")[name], "run 'make docs'"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_types_are_written_for_readers(page: Path) -> None:
    assert not re.search(r"typing\.|Annotated\[|FieldInfo", page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", pages_with("python"))
def test_python_blocks_run_one_after_the_other(page: Path, workshop: Path) -> None:
    write_modules(page, workshop)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language == "python" and not block.words:
            exec(compile(block.text, str(page), "exec"), names)


@pytest.mark.parametrize("page", pages_with("toml"))
def test_toml_blocks_are_experiments_or_comparisons(page: Path, workshop: Path) -> None:
    write_modules(page, workshop)
    for block in blocks(page):
        if block.language == "toml" and "network" in block.words:
            (workshop / "network.toml").write_text(block.text, encoding="utf-8")
            assert load_roster(workshop / "network.toml").members
            continue
        if block.language != "toml" or "no-check" in block.words:
            continue
        file = workshop / "example.toml"
        file.write_text(block.text, encoding="utf-8")
        if "[sweep]" in block.text or "[[variant]]" in block.text:
            study = load_study(file)
            assert [cell.of(study.experiment) for cell in study.cells]
        else:
            load_experiment(file)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_lead_somewhere(page: Path) -> None:
    for match in LINK.finditer(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in match["target"]:
            continue
        name, _, anchor = match["target"].partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.is_file(), f"{page.name}: {match['target']}"
        assert target.is_relative_to(ROOT)
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {match['target']}"


def commands(page: Path) -> list[list[str]]:
    """The `gossamer ...` commands of a page, from its blocks and from the words in its text."""
    text = page.read_text(encoding="utf-8")
    lines = [
        line.removeprefix("$ ")
        for block in blocks(page)
        for line in block.text.splitlines()
        if block.language == "sh" or (block.language == "console" and line.startswith("$ "))
    ]
    lines += [
        words.removeprefix("`").removesuffix("`") for words in re.findall(r"`gossamer [^`]+`", FENCE.sub("", text))
    ]
    found = [shlex.split(line, comments=True) for line in lines]
    return [words[1:] for words in found if words and words[0] == "gossamer"]


@pytest.mark.parametrize("page", [p for p in PAGES if commands(p)], ids=lambda page: page.name)
def test_commands_and_their_options_exist(page: Path) -> None:
    group: Any = get_command(app)
    for name, *arguments in commands(page):
        assert name in group.commands, f"{page.name}: gossamer {name}"
        command = group.commands[name]
        parser = command.make_parser(command.context_class(command))
        options, _, _ = parser.parse_args(args=list(arguments))  # refuses an option that does not exist
        check_experiment(name, options)


def check_experiment(command: str, options: dict[str, Any]) -> None:
    """What `--set` and `--sweep` say makes a valid experiment, with the file if it is one of ours."""
    if command not in ("run", "compare", "partition"):
        return
    given = ROOT / str(options.get("file") or "")
    file = given if given.is_file() else None
    settings = overrides(options.get("settings") or [])
    if "rouns" in settings:  # the example of a mistake
        return
    if command != "compare":
        load_experiment(file, settings)
        return
    study = load_study(file, settings)
    sweep = dict(map(parse_sweep, options.get("sweep") or [])) or study.sweep
    assert [cell.of(study.experiment) for cell in replace(study, sweep=sweep).cells]


def test_the_method_page_names_every_operator() -> None:
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    assert all(f"`{operator}`" in page for operator in get_args(Operator))


def test_the_architecture_page_names_what_a_client_knows_of_a_round() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in Round._fields)


@pytest.mark.parametrize("table", sorted((ROOT / "docs/tables").glob("which-method-*.md")), ids=lambda path: path.stem)
def test_the_measured_tables_stand_in_the_page_that_speaks_of_them(table: Path) -> None:
    assert table.read_text(encoding="utf-8").strip() in (ROOT / "docs" / "which-method.md").read_text(encoding="utf-8")
