"""What happens when a user's code fails: one message that names the part and the user's own line."""

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from gossamer.errors import ExperimentError, GossamerError
from gossamer.system.streams import STREAMS, drawn_since, keep_streams, start_elsewhere, stream_states

T = TypeVar("T")

#: Top-level modules that never hold a user's code.
LIBRARY_MODULES = sys.stdlib_module_names | {"gossamer", "torch", "numpy", "scipy"}


@contextmanager
def user_code(kind: str) -> Iterator[None]:
    """Around the call of a user's function: every failure becomes an `ExperimentError` that names the part."""
    try:
        yield
    except GossamerError:
        raise
    except (Exception, SystemExit) as error:
        if is_out_of_memory(error):
            raise ExperimentError(f"{kind}: out of memory: it is too large for this machine ({error})") from error
        raise ExperimentError(f"{kind}: it fails with {describe_error(error)}") from error


def made_by_user(kind: str, make: Callable[[], T]) -> T:
    """What a user's function makes before a run: a data set, a graph, a partition, a model.

    Refused if it draws from a global stream that it has not seeded: another process (a resumed run, a worker on another
    machine, a peer) would make something else, without a word.
    """
    with user_code(kind):
        before = stream_states()
        made = make()
        if drawn := drawn_since(before):
            after = stream_states()
            with keep_streams():
                start_elsewhere()
                make()
                again = stream_states()
            if unseeded := [name for name in drawn if again[name] != after[name]]:
                raise ExperimentError(
                    f"{kind}: it draws random numbers from {STREAMS[unseeded[0]]}, so that a resumed run or a peer "
                    "would get others. Seed them: np.random.default_rng(seed), or the seed that the function is given."
                )
    return made


@contextmanager
def in_user_code(where: str | Callable[[], str]) -> Iterator[None]:
    """Around Gossamer's own code that calls a user's: a failure with a user's line in its traceback becomes an
    `ExperimentError` that begins with `where` (a function is called only then). Any other failure is a bug and keeps
    its traceback."""
    try:
        yield
    except (GossamerError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        if not user_line(error) or is_out_of_memory(error):
            raise
        place = where if isinstance(where, str) else where()
        raise ExperimentError(f"{place}: {describe_error(error)}") from error


def describe_error(error: BaseException) -> str:
    """The type and message of an error on one line, with the line of user code that raised it."""
    line, message = user_line(error), " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" + (f" ({line})" if line else "")


def user_line(error: BaseException) -> str | None:
    """The innermost line of user code in the traceback; None if there is none."""
    lines = [
        f"{frame.f_code.co_filename}, line {number}, in {frame.f_code.co_name}"
        for frame, number in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in LIBRARY_MODULES
    ]
    return lines[-1] if lines else None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out. On a CPU, torch raises a plain RuntimeError."""
    message = str(error)
    return isinstance(error, MemoryError) or "allocate memory" in message or "out of memory" in message
