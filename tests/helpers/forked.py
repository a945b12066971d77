"""Commands in processes of their own, from a fork server that has the imports behind it.

They are real processes, to be limited, frozen and killed with real signals; a test does not wait for their imports.
"""

import itertools
import multiprocessing
import os
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["gossamer.commands.app", "gossamer.peers.tools.process", "pandas"])
NUMBERS = itertools.count()
#: The scripts that run in the process of a command.
SCRIPTS = Path(__file__).parent


class Forked:
    """A `gossamer` command that runs in `cwd`. Other parameters are those of `child.run`."""

    def __init__(self, arguments: list[str], cwd: Path, environment: dict[str, str], **parameters: Any) -> None:
        self.place, number = cwd, next(NUMBERS)
        self._out, self._err = (cwd / f"{name}-{number}.txt" for name in ("stdout", "stderr"))
        given = {
            "arguments": arguments, "cwd": str(cwd), "environment": environment,
            "out": str(self._out), "err": str(self._err), **parameters,
        }  # fmt: skip
        child = str(SCRIPTS / "child.py")
        with _no_main_module():
            self.process = CONTEXT.Process(target=runpy.run_path, args=(child, {"parameters": given}, "__main__"))
            self.process.start()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def runs(self) -> bool:
        return self.process.is_alive()

    def end(self, seconds: float) -> tuple[int, str, str]:
        """Its exit code, and what it has printed."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, "the command does not end"
        return self.process.exitcode, *(p.read_text() if p.exists() else "" for p in (self._out, self._err))

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once, unless it has ended."""
        if self.runs():
            self.process.kill()
        self.process.join()


@contextmanager
def _no_main_module() -> Iterator[None]:
    """A child must not run this program's main module again: it is pytest's."""
    main = sys.modules["__main__"]
    kept = {name: main.__dict__.pop(name) for name in ("__spec__", "__file__") if name in main.__dict__}
    main.__spec__ = None
    try:
        yield
    finally:
        main.__dict__.update(kept)
