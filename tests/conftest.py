"""Every test process computes on one thread: tests run side by side, and small products do not gain from threads."""

import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from gossamer.system.torch_private import defer_compiler_import

torch.set_num_threads(1)
os.environ.setdefault("GOSSAMER_WORKERS", "1")  # tests that want more say so
# What calls the compiled loops takes most of a compiler's time, which pays in long runs alone.
os.environ.setdefault("AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL", "O0")
# Started in the background, this process would not hear Ctrl-C, nor would those it starts; some tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)
defer_compiler_import()  # as the command does

# The same examples in every run, so that a red test means a change; `--hypothesis-profile=explore` draws new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile("repeatable")

#: Files and folders of tests that start processes, compile steps or train for long; so do all that use `spawn`.
SLOW = (
    "bench",
    "commands/test_compare.py",
    "commands/test_figure.py",
    "commands/test_flatness.py",
    "commands/test_network.py",
    "commands/test_network_demo.py",
    "commands/test_resume.py",
    "commands/test_run.py",
    "commands/test_scores.py",
    "commands/test_show.py",
    "commands/test_startup.py",
    "commands/test_torchrun.py",
    "commands/test_workers.py",
    "docs",
    "engines",
    "laws/test_convergence.py",
    "laws/test_duals.py",
    "laws/test_push_sum.py",
    "methods/test_learning.py",
    "methods/test_mistakes.py",
    "mixing",
    "packaging",
    "pages/test_figures.py",
    "parity/test_stacked.py",
    "peers/test_namespaces.py",
    "peers/test_network.py",
    "peers/test_reasons.py",
    "peers/test_run_folder.py",
    "peers/test_weight.py",
    "peers/tools",
    "peers/wire",
    "runs/test_sequences.py",
    "simulation",
    "studies/test_reproduction.py",
    "system/test_torch_private.py",
    "workers",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow tests."""
    here = Path(__file__).parent
    slow = [here / name for name in SLOW]
    for item in items:
        if "spawn" in getattr(item, "fixturenames", ()) or any(item.path.is_relative_to(path) for path in slow):
            item.add_marker(pytest.mark.slow)


def pytest_configure(config: pytest.Config) -> None:
    """Steps are compiled once for all processes of a session, and the user's own are left alone."""
    if not hasattr(config, "workerinput"):
        os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="gossamer-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ["XDG_CACHE_HOME"], ignore_errors=True)
