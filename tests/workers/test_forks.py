"""Work in a fork of this process, which returns a text and leaves nothing else."""

import os
import signal
import time
from pathlib import Path

import pytest

from gossamer.workers import ForkFailed, can_fork, forks, run_in_fork

pytestmark = pytest.mark.skipif(not can_fork(), reason="forks are for Linux only")


def test_work_in_a_fork_does_not_change_this_process() -> None:
    kept: list[int] = []

    def work() -> str:
        kept.append(1)
        print("not seen")
        return f"ü {os.getpid()} " + "long " * 50_000

    text = run_in_fork(work)
    assert text.startswith("ü ")
    assert text.split()[1] != str(os.getpid())
    assert len(text.split()) == 50_002
    assert kept == []


def test_an_error_in_a_fork_is_reported() -> None:
    def work() -> str:
        raise LookupError("there is none")

    with pytest.raises(ForkFailed, match="LookupError: there is none"):
        run_in_fork(work)


def test_a_fork_that_is_killed_is_reported_with_the_signal() -> None:
    def work() -> str:
        os.kill(os.getpid(), signal.SIGKILL)
        return "never returned"

    with pytest.raises(ForkFailed, match="killed by SIGKILL"):
        run_in_fork(work)


def test_a_fork_that_does_not_end_is_killed(tmp_path: Path) -> None:
    def work() -> str:
        (tmp_path / "process").write_text(str(os.getpid()))
        time.sleep(600)
        return "never returned"

    with pytest.raises(ForkFailed, match="did not end within"):
        run_in_fork(work, timeout=0.2)
    with pytest.raises(ProcessLookupError):  # and it is gone
        os.kill(int((tmp_path / "process").read_text()), 0)


def test_a_fork_that_does_not_start_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that another thread held at the fork may stop it at once."""
    monkeypatch.setattr(forks, "START_TIMEOUT", 0.2)
    monkeypatch.setattr(forks, "die_with_parent", lambda _: time.sleep(60))
    with pytest.raises(ForkFailed, match=r"did not start within 0\.2 s"):
        run_in_fork(lambda: "done")
