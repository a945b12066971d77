"""The command line in a process of its own, for what only a real process can show: signals and limits.

Run by `forked.Forked`.
"""

import os
import resource
import runpy
import sys
import time
from typing import Any


def run(
    arguments: list[str],
    cwd: str,
    environment: dict[str, str],
    out: str,
    err: str,
    limit: int | None = None,
    pause: float = 0.0,
    first: tuple[str, dict[str, Any]] | None = None,
) -> None:
    """`limit` is the largest file it may write, `pause` slows every round, `first` is a script to run before."""
    os.chdir(cwd)
    os.environ.update(environment)
    for path, stream in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)

    import torch

    from gossamer import cli
    from gossamer.engines import Stacked

    torch.set_num_threads(1)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    whole_round = Stacked.round

    def slow_round(self: Stacked, *arguments: Any) -> Any:
        time.sleep(pause)  # long enough for a signal to arrive in the middle
        return whole_round(self, *arguments)

    if pause:
        Stacked.round = slow_round  # type: ignore[method-assign]
    if first:
        runpy.run_path(*first)
    sys.argv = ["gossamer", *arguments]
    try:
        cli.main()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))  # whoever measures this process still has to write


if __name__ == "__main__":
    run(**globals()["parameters"])
