"""Every test process computes on one thread: tests run side by side, and small products do not gain from threads."""

import os
import shutil
import signal
import tempfile

import pytest
import torch

from gossamer.system import startup

torch.set_num_threads(1)
os.environ.setdefault("GOSSAMER_WORKERS", "1")  # tests that want more say so
# Started in the background, this process would not hear Ctrl-C, nor would those it starts; some tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)
startup.put_off_compiler()  # as the command does


def pytest_configure(config: pytest.Config) -> None:
    """Steps are compiled once for all processes of a session, and the user's own are left alone."""
    if not hasattr(config, "workerinput"):
        os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="gossamer-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ["XDG_CACHE_HOME"], ignore_errors=True)
