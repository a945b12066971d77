"""The way to the first round: what is imported, what a person sees meanwhile, and that Ctrl-C ends it."""

import gc
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gossamer.system import startup

Command = Callable[..., Any]
Settings = Callable[..., list[str]]

#: Packages that take from a tenth of a second to two seconds, and that a first round needs nothing of.
HEAVY = {"matplotlib", "networkx", "sympy", "tensorboard", "torch._dynamo", "torch._inductor"}


def as_users_have_it() -> dict[str, str]:
    """The environment without what measures coverage, which hears signals itself."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run some lines in a fresh interpreter."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=as_users_have_it())


def test_the_command_line_imports_only_what_every_command_needs() -> None:
    done = python("import sys, gossamer.commands.app; print(*sys.modules)")
    assert done.stderr == ""
    assert (HEAVY | {"pandas"}) & set(done.stdout.split()) == set()  # a run's result is a table, but not its rounds


def test_a_run_imports_only_what_it_needs(settings: Settings, place: Path) -> None:
    code = """
import sys
from gossamer.__main__ import main
try:
    main()
finally:
    open("modules.txt", "w").write(" ".join(sys.modules))
"""
    done = python(code, "run", *settings(), "--out", "r", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    assert HEAVY & set((place / "modules.txt").read_text().split()) == set()


def test_the_compiler_is_put_off_and_not_away() -> None:
    done = python("""
import sys
import torch
from gossamer.system.torch_private import defer_compiler_import

defer_compiler_import()
gradient = torch.func.vmap(torch.func.grad(lambda x: x.pow(3).sum()))
points = torch.arange(6.0).view(2, 3)
before = gradient(points)
assert "torch._dynamo" not in sys.modules
assert isinstance(torch._dynamo.compiled_autograd.compiled_autograd_enabled, bool)
assert torch._dynamo is sys.modules["torch._dynamo"]
assert torch.equal(gradient(points), before) and torch.equal(before, 3 * points**2)
defer_compiler_import()
assert torch._dynamo is sys.modules["torch._dynamo"]
""")
    assert (done.returncode, done.stderr) == (0, "")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """A terminal in the place of standard error."""
    shown = Terminal()
    monkeypatch.setattr(startup, "sys", SimpleNamespace(stderr=shown))
    yield shown
    gc.unfreeze()


def test_a_terminal_shows_that_something_is_starting(screen: Terminal) -> None:
    with startup.importing(["run", "file.toml", "--set", "lr=0.1", "-o", "there"]):
        assert screen.getvalue() == "starting ..."
        assert not gc.isenabled()
    assert gc.isenabled()
    _, *erased = screen.getvalue().split("\r")
    assert [text.strip() for text in erased] == ["", ""]
    assert len(erased[0]) >= len("starting ...")


@pytest.mark.parametrize(
    "arguments", [[], ["--help"], ["run", "-h"], ["run", "-q"], ["run", "-vq"], ["run", "--quiet"], ["graph", "--json"]]
)
def test_nothing_is_shown_to_who_asks_for_an_answer_alone(screen: Terminal, arguments: list[str]) -> None:
    with startup.importing(arguments):
        pass
    assert screen.getvalue() == ""


def test_nothing_is_shown_while_a_shell_completes(screen: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_GOSSAMER_COMPLETE", "complete_bash")
    with startup.importing(["run"]):
        pass
    assert screen.getvalue() == ""


@pytest.mark.parametrize("stream", ["io.StringIO()", "None"])
def test_nothing_is_shown_without_a_terminal(stream: str) -> None:
    done = python(f"""
import io, sys
from gossamer.system.startup import importing
real, sys.stderr = sys.stderr, {stream}
with importing(["run"]):
    pass
print(sys.stderr and sys.stderr.getvalue(), file=real)
""")
    assert done.stderr.strip() in ("", "None")


CTRL_C = """
import os, signal, sys
from gossamer.system.startup import importing
{before}
with importing(["run"]):
    try:
        os.kill(os.getpid(), signal.{name})
        print("went on")
    except BaseException:
        print("swallowed")
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_ctrl_c_ends_the_imports_whatever_they_catch(name: str) -> None:
    done = python(CTRL_C.format(before="", name=name))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped before anything was done\n")


def test_ctrl_c_stays_ignored_where_it_was() -> None:
    done = python(CTRL_C.format(before="signal.signal(signal.SIGINT, signal.SIG_IGN)", name="SIGINT"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "went on\n", "")


SLOW = """
import time

def net(shape, classes):
    print("now", flush=True)
    for _ in range(6000):  # not in one go: a signal just before it begins would be heard when it is over
        time.sleep(0.1)
"""


def test_a_scheduler_s_end_is_told_like_ctrl_c_before_the_first_round(tmp_path: Path) -> None:
    """A model that is never ready holds the command where it prepares."""
    (tmp_path / "slow.py").write_text(SLOW)
    command = [sys.executable, "-m", "gossamer", "run", "--set", "model=slow:net", "--out", "r"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=as_users_have_it() | {"PYTHONPATH": "."}, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "now\n"
        process.terminate()
        _, told = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "stopped" in told
    assert "Traceback" not in told


def test_a_terminal_shows_that_data_are_prepared(
    gossamer: Command, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes any stream for a terminal
    answer = gossamer("run", *settings(), "--out", "r")
    assert answer.err.index("preparing") < answer.err.index("round ")
    answer = gossamer("compare", *settings(rounds=1), "--sweep", "lr=0.1,0.2", "--out", "c")
    assert answer.err.index("all variants") < answer.err.index("(seed 0)")
    # A refusal takes the place of the line.
    answer = gossamer("run", *settings(graph='{name="k-regular", k=9}'), "--out", "x")
    assert answer.code == 2
    waiting, refusal = answer.err.split("\x1b[2K", 1)
    assert waiting.endswith("preparing ...\r\r")
    assert "error:" in refusal
