"""Forks of this process: when they are possible, and one that does a piece of work and returns a text."""

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

#: Seconds that work in a fork may take, once it has started: longer than any that ends. Beside threads it may hang.
FORK_TIMEOUT = 900.0
#: A fork's first message, and the seconds until it must be there: the fork does nothing before it.
STARTED, START_TIMEOUT = b"started", 120.0


def can_fork() -> bool:
    """Whether workers can be forked: on Linux (elsewhere a fork of a process that has used torch may hang), and not
    from a process that is itself a worker of another pool."""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


@contextmanager
def forking() -> Iterator[None]:
    """Around a fork. The garbage collector stays off from the fork until the child has frozen what it inherits:
    collecting a process group, which a traceback of the parent may hold, would wait for threads that do not exist."""
    sys.stdout.flush()
    sys.stderr.flush()  # or the child would print what is in the buffers once more
    was = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            # Python 3.12 warns of forks beside threads; the children use nothing that the threads hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        if was:
            gc.enable()


class ForkFailed(RuntimeError):
    """The work in a fork failed."""


def run_in_fork(work: Callable[[], str], timeout: float = FORK_TIMEOUT) -> str:
    """What `work` returns in a fork of this process. Whatever it imports and allocates is gone with the fork.

    >>> run_in_fork(lambda: "done")
    'done'
    """
    parent = os.getpid()
    reader, writer = os.pipe()
    with forking():
        child = os.fork()
        if not child:
            os.close(reader)
            _run_child(work, writer, parent)
    # In a process group of its own, with whatever it starts. Parent and child both set it, since either may be first.
    with suppress(OSError):
        os.setpgid(child, child)
    os.close(writer)
    try:
        with open(reader, encoding="utf-8") as pipe:
            if not select.select([pipe], [], [], START_TIMEOUT)[0]:
                raise ForkFailed(f"its process did not start within {START_TIMEOUT:g} s")
            os.read(reader, len(STARTED))
            if not select.select([pipe], [], [], timeout)[0]:
                raise ForkFailed(f"its process did not end within {timeout:g} s")
            text = pipe.read()
    except BaseException:  # Ctrl-C, say
        with suppress(OSError):
            os.killpg(child, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(child, 0)
    if not text:
        code = os.waitstatus_to_exitcode(status)
        raise ForkFailed(f"its process was killed by {signal.Signals(-code).name}" if code < 0 else "its process ended")
    answer = json.loads(text)
    if "error" in answer:
        raise ForkFailed(answer["error"])
    return str(answer["result"])


def _run_child(work: Callable[[], str], writer: int, parent: int) -> None:
    """The child's part, which ends the process."""
    code = 1
    try:
        with suppress(OSError):
            os.setpgid(0, 0)
        die_with_parent(parent)
        os.write(writer, STARTED)
        gc.freeze()
        gc.enable()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        warnings.simplefilter("ignore")
        with open(os.devnull, "w") as nothing:  # compilers print
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        try:
            answer = {"result": work()}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        with open(writer, "w", encoding="utf-8") as pipe:
            pipe.write(json.dumps(answer))
        code = 0
    finally:
        os._exit(code)
