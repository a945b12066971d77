"""Ways to call the command line as a user does, and to see everything that it leaves."""

import itertools
import multiprocessing
import os
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import pytest

from gossamer import cli, terminal

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

    for console in (terminal.out, terminal.err):
        monkeypatch.setattr(console, "width", 220)  # wide enough to leave lines whole, wherever tests run

    def call(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["gossamer", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit:
            cli.main()
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


class Spawned(NamedTuple):
    """A command in its own process."""

    process: BaseProcess
    place: Path

    def wait(self) -> Answer:
        self.process.join(60)
        assert self.process.exitcode is not None, "the command does not end"
        out, err = ((self.place / f"{name}.txt").read_text() for name in ("stdout", "stderr"))
        return Answer(self.process.exitcode, out, err)

    def signal_after(self, folder: Path, rounds: int, number: int) -> Answer:
        """Send a signal as soon as so many rounds are on record."""
        self.after(folder, rounds)
        assert self.process.pid is not None
        os.kill(self.process.pid, number)
        return self.wait()

    def after(self, folder: Path, rounds: int) -> list[int]:
        """Wait until so many rounds are on record; gives the process ids of the command's workers."""
        until = time.monotonic() + 60
        while time.monotonic() < until and self.process.is_alive() and lines(folder) < rounds:
            time.sleep(0.005)
        return children(self.process.pid)

    def all_gone(self, processes: list[int]) -> bool:
        """Whether these processes end, which they are given some time for."""
        until = time.monotonic() + 15
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
def spawn(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Spawned]]:
    """Start a command in a process of its own; `limit` is the largest file it may write, `pause` slows every round."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gossamer.cli", "pandas"])
    # The child must not run this program's main module again: it is pytest's.
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    started: list[BaseProcess] = []

    def start(*arguments: object, limit: int | None = None, pause: float = 0.0) -> Spawned:
        parameters = {
            "arguments": [str(a) for a in arguments],
            "cwd": str(place),
            "environment": dict(os.environ),
            "limit": limit,
            "pause": pause,
        }
        child = Path(__file__).with_name("child.py")
        process = context.Process(target=runpy.run_path, args=(str(child), {"parameters": parameters}, "__main__"))
        process.start()
        started.append(process)
        return Spawned(process, place)

    yield start
    for process in started:
        if process.is_alive():
            process.kill()
        process.join()


def lines(folder: Path) -> int:
    """Whole lines of a run's metrics."""
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Every file below a folder with its content, and every folder. Caches, a killed process's lock and what a worker
    tells of the lines it has run do not count."""
    found = (p for p in sorted(folder.rglob("*")) if "__pycache__" not in p.parts and p.name != ".lock")
    ours = (p for p in found if not p.name.startswith(".coverage"))
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in ours}
