"""Forks of this process: when they are possible, and one that does a piece of work and leaves nothing but its words."""

import gc
import json
import multiprocessing
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from gossamer.system.orphans import die_with_parent


def can_fork() -> bool:
    """Whether workers can be forked: on Linux (elsewhere a fork of a process that has used torch may hang), and not
    from a process that is itself a worker of somebody else's pool."""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


@contextmanager
def forking() -> Iterator[None]:
    """Around a fork. Of what the child inherits nothing may be collected, from the fork on until it has frozen all of
    it: a process group that a traceback of the parent's still holds would wait for its threads, which are not there."""
    sys.stdout.flush()
    sys.stderr.flush()  # or what is still in the buffers would be printed once more by the child
    was = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            # Python 3.12 warns of forks beside threads; the children touch nothing the threads hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        if was:
            gc.enable()


#: Seconds that work apart may take. Longer than any that comes to an end: a fork beside threads may hang for good.
PATIENCE = 900.0


class ForkFailed(RuntimeError):
    """What was to be done in another process was not."""


def run_in_fork(work: Callable[[], str]) -> str:
    """What `work` returns in a fork of this process. Whatever it imports and allocates is gone with the fork.

    >>> run_in_fork(lambda: "done")
    'done'
    """
    parent = os.getpid()
    hears, says = os.pipe()
    with forking():
        child = os.fork()
        if not child:
            os.close(hears)
            _be_apart(work, says, parent)
    with suppress(
        OSError
    ):  # in a group of its own, with whatever it starts; both of us say so, since either may be first
        os.setpgid(child, child)
    os.close(says)
    try:
        with open(hears, encoding="utf-8") as words:
            if not select.select([words], [], [], PATIENCE)[0]:
                raise ForkFailed(f"its process did not end within {PATIENCE:g} s")
            said = words.read()
    except BaseException:  # Ctrl-C, say: we do not wait for it
        with suppress(OSError):
            os.killpg(child, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(child, 0)
    if not said:
        code = os.waitstatus_to_exitcode(status)
        raise ForkFailed(f"its process was killed by {signal.Signals(-code).name}" if code < 0 else "its process ended")
    answer = json.loads(said)
    if "failed" in answer:
        raise ForkFailed(answer["failed"])
    return str(answer["said"])


def _be_apart(work: Callable[[], str], says: int, parent: int) -> None:
    """The life of the fork, which ends here."""
    code = 1
    try:
        with suppress(OSError):
            os.setpgid(0, 0)
        die_with_parent(parent)
        gc.freeze()
        gc.enable()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        warnings.simplefilter("ignore")
        with open(os.devnull, "w") as nowhere:  # compilers may talk
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        try:
            answer = {"said": work()}
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {error}"}
        with open(says, "w", encoding="utf-8") as words:
            words.write(json.dumps(answer))
        code = 0
    finally:
        os._exit(code)
