"""The command line in a process of its own, for what only a real process can show: signals and limits.

Run by `forked.Forked`.
"""

import os
import resource
import runpy
import sys
import time
from pathlib import Path
from typing import Any


def run(
    arguments: list[str],
    cwd: str,
    environment: dict[str, str],
    out: str,
    err: str,
    limit: int | None = None,
    hold: tuple[str, int] | None = None,
    first: tuple[str, dict[str, Any]] | None = None,
) -> None:
    """`limit`: the largest file that it may write; `hold`: a run folder, and the rounds after which it is held until it
    is let go; `first`: a script to be run before, and what it finds as its globals."""
    os.chdir(cwd)
    os.environ.update(environment)
    for path, stream in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)

    import torch

    from gossamer.commands.app import app
    from gossamer.engines import Stacked

    torch.set_num_threads(1)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    whole_round = Stacked.round

    def held_round(self: Stacked, index: int) -> Any:
        folder, rounds = hold or ("", 0)
        if Path(folder, "metrics.jsonl").exists() and index >= rounds:
            while not Path(cwd, "go.txt").exists():  # so that a signal arrives here, however late
                time.sleep(0.005)
        return whole_round(self, index)

    if hold:
        Stacked.round = held_round  # type: ignore[method-assign]
    if first:
        runpy.run_path(*first)
    sys.argv = ["gossamer", *arguments]
    try:
        app()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))  # whoever measures this process still has to write


if __name__ == "__main__":
    run(**globals()["parameters"])
