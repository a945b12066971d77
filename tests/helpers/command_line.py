"""Ways to call the command line as a user does, and to see everything that it leaves."""

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from forked import Forked
from gossamer.commands.app import app
from gossamer.runs.folder import read_lines
from gossamer.terminal import console

#: A closed port: every download fails at once, without a network.
NOWHERE = "http://127.0.0.1:9"
ENVIRONMENT = {
    "GOSSAMER_MIRROR": NOWHERE,
    "http_proxy": NOWHERE,
    "https_proxy": NOWHERE,
    "all_proxy": NOWHERE,
    "no_proxy": "127.0.0.1",
}
SMALL = {
    "clients": "4",
    "rounds": "3",
    "dataset": '{name="digits", train_samples=200}',
    "model": "softmax",
    "local_steps": "2",
    "batch_size": "16",
}
numbers = itertools.count()
#: Whoever waits longer than this waits in vain, however slow the machine.
SECONDS = 300


class Answer(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


Command = Callable[..., Answer]


def settings(**changed: object) -> list[str]:
    """`--set` options of a run that takes a moment, with some keys set otherwise (None: left out)."""
    values = {**SMALL, **changed}
    return [f"--set={key.replace('__', '.')}={value}" for key, value in values.items() if value is not None]


@pytest.fixture(name="settings", scope="session")
def settings_fixture() -> Callable[..., list[str]]:
    return settings


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory, no network, an empty data directory."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for key, value in {**ENVIRONMENT, "GOSSAMER_DATA": str(tmp_path / "data")}.items():
        monkeypatch.setenv(key, value)
    return here


@pytest.fixture
def gossamer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The `gossamer` command, in this process; an exception that it lets through fails the test."""

    for stream in (console.out, console.err):
        monkeypatch.setattr(stream, "width", 220)  # wide enough to leave lines whole, wherever tests run

    def call(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["gossamer", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit:
            app()
        printed = capsys.readouterr()
        return Answer(exit.value.code, printed.out, printed.err)

    return call


@pytest.fixture
def refused(gossamer: Command, place: Path) -> Callable[..., str]:
    """Call a command that must be refused: exit code 2, one message on standard error, nothing written."""

    def call(*arguments: object, says: tuple[str, ...], code: int = 2) -> str:
        before = snapshot(place)
        answer = gossamer(*arguments)
        assert answer.code == code, answer.text
        assert answer.out == ""
        assert answer.err.count("error:") == 1
        assert answer.err.startswith("error: ")
        assert "Traceback" not in answer.err
        for word in says:
            assert word in answer.err, answer.err
        assert snapshot(place) == before
        return answer.err

    return call


@pytest.fixture
def own_module(place: Path) -> Iterator[Callable[[str], str]]:
    """Write a user's module into the current directory; gives its name, which no other test has used."""
    made: list[str] = []

    def write(source: str) -> str:
        made.append(f"own_module_{os.getpid()}_{next(numbers)}")
        (place / f"{made[-1]}.py").write_text(source)
        return made[-1]

    yield write
    for name in made:
        sys.modules.pop(name, None)


class Spawned(Forked):
    """A command in its own process."""

    def wait(self) -> Answer:
        return Answer(*self.end(SECONDS))

    def signal_after(self, folder: Path, rounds: int, number: int) -> Answer:
        """Send a signal as soon as so many rounds are on record."""
        self.after(folder, rounds)
        self.send(number)
        self.let_go()
        return self.wait()

    def let_go(self) -> None:
        """Have a run that is held go on."""
        (self.place / "go.txt").touch()

    def after(self, folder: Path, rounds: int) -> list[int]:
        """Wait until so many rounds are on record; gives the process ids of the command's workers."""
        until = time.monotonic() + SECONDS
        while time.monotonic() < until and self.runs() and rounds_recorded(folder) < rounds:
            time.sleep(0.005)
        return children(self.pid)

    def all_gone(self, processes: list[int]) -> bool:
        """Whether these processes end, which they are given some time for."""
        until = time.monotonic() + SECONDS
        while time.monotonic() < until and any(map(alive, processes)):
            time.sleep(0.02)
        return not any(map(alive, processes))


def children(process: int | None) -> list[int]:
    """The processes that another one has started, the oldest first."""
    of = ((int(path.name), about(int(path.name))) for path in Path("/proc").glob("[0-9]*"))
    return sorted(number for number, (_, parent) in of if parent == process)


def alive(process: int) -> bool:
    """Whether a process runs; one that has ended and that nobody asks after does not."""
    return about(process)[0] not in "ZX"


def about(process: int) -> tuple[str, int]:
    """The state of a process by its letter, and who started it."""
    try:
        state, parent, *_ = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    except (OSError, ValueError):  # it is gone
        return "X", 0
    return state, int(parent)


@pytest.fixture
def spawn(place: Path) -> Iterator[Callable[..., Spawned]]:
    """Start a command in a process of its own.

    `limit` is the largest file it may write; `hold`, a run folder and a number of rounds: it goes no further than that,
    but for what is under way, until it is let go.
    """
    started: list[Spawned] = []

    def start(*arguments: object, **parameters: Any) -> Spawned:
        started.append(Spawned([*map(str, arguments)], place, dict(os.environ), **parameters))
        return started[-1]

    yield start
    for each in started:
        each.kill()


def rounds_recorded(folder: Path) -> int:
    """The last round in the metrics of a run that may still be written."""
    return max((line["round"] for line in read_lines(folder / "metrics.jsonl")), default=0)


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Every file below a folder with its content, and every folder. Caches, a killed process's lock and what a worker
    tells of the lines it has run do not count."""
    found = (p for p in sorted(folder.rglob("*")) if "__pycache__" not in p.parts and p.name != ".lock")
    ours = (p for p in found if not p.name.startswith(".coverage"))
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in ours}
