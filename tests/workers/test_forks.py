"""Work in a fork of this process, which leaves nothing but its words."""

import os
import signal
import time
from pathlib import Path

import pytest

from gossamer.workers import ForkFailed, can_fork, run_in_fork

pytestmark = pytest.mark.skipif(not can_fork(), reason="forks are for Linux only")


def test_what_is_done_apart_does_not_reach_this_process() -> None:
    kept: list[int] = []

    def work() -> str:
        kept.append(1)
        print("nobody hears this")
        return f"ü {os.getpid()} " + "long " * 50_000

    said = run_in_fork(work)
    assert said.startswith("ü ")
    assert said.split()[1] != str(os.getpid())
    assert len(said.split()) == 50_002
    assert kept == []


def test_an_error_apart_is_told() -> None:
    def work() -> str:
        raise LookupError("there is none")

    with pytest.raises(ForkFailed, match="LookupError: there is none"):
        run_in_fork(work)


def test_who_is_killed_apart_is_named_with_the_signal() -> None:
    def work() -> str:
        os.kill(os.getpid(), signal.SIGKILL)
        return "never said"

    with pytest.raises(ForkFailed, match="killed by SIGKILL"):
        run_in_fork(work)


def test_who_does_not_come_to_an_end_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossamer.workers.forks.PATIENCE", 0.2)

    def work() -> str:
        (tmp_path / "process").write_text(str(os.getpid()))
        time.sleep(600)
        return "never said"

    with pytest.raises(ForkFailed, match="did not end within"):
        run_in_fork(work)
    with pytest.raises(ProcessLookupError):  # and it is gone
        os.kill(int((tmp_path / "process").read_text()), 0)
