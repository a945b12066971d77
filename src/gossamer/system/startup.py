"""The first seconds of a command, most of which go to importing torch: made short, interruptible, and not silent.

Imported before everything else, so it imports nothing that takes time.
"""

import gc
import importlib
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

NOTICE = "starting ..."
ERASED = f"\r{' ' * (len(NOTICE) + 2)}\r"  # with the ^C that a terminal adds
#: Whoever asks for one of these wants an answer and nothing else.
UNNOTICED = re.compile(r"-\w*[qh]|--(quiet|json|help)$")


@contextmanager
def importing(arguments: Sequence[str]) -> Iterator[None]:
    """Around a command's imports: they take seconds, so a person at a terminal is told, and Ctrl-C ends them."""
    noticed = _someone_waits(arguments)

    def say(text: str) -> None:
        with suppress(OSError):  # a terminal that has gone is no reason to stop
            if noticed:
                print(text, end="", file=sys.stderr, flush=True)

    def leave(*_: object) -> None:
        say(ERASED)
        os._exit(130)

    # Not by an exception: it would have to find its way out of other packages' imports, some of which swallow it.
    usual: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    replaced = [number for number, handler in usual.items() if signal.getsignal(number) is handler]
    for number in replaced:
        signal.signal(number, leave)
    # What is imported stays until the end. A collector that does not search it, now or at the end, saves a second.
    gc.disable()
    say(NOTICE)
    try:
        yield
    finally:
        say(ERASED)
        gc.freeze()
        gc.enable()
        for number in replaced:
            signal.signal(number, usual[number])


def stop_when_terminated() -> None:
    """A scheduler's SIGTERM stops a command as Ctrl-C does, unless it is ignored; rounds have their own way to stop."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, stop)


def end_when_told() -> None:
    """All is said and written: a signal that comes now ends the process, and not in the middle of a traceback."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def put_off_compiler() -> None:
    """Keep `torch.func` from importing torch's compiler at the first gradient, which takes over a second.

    It asks the compiler to stay out of the way, which one that was never imported does anyway. For everything else
    `torch._dynamo` is what it always is: imported when somebody needs it, and then itself again.
    """
    import torch

    compiler = _Later("torch._dynamo")
    compiler.compiled_autograd = _Later("torch._dynamo.compiled_autograd")
    compiler.compiled_autograd._disable = nullcontext
    vars(torch).setdefault("_dynamo", compiler)


class _Later:
    """A module that is imported when something is asked of it that has not been set here."""

    compiled_autograd: "_Later"
    _disable: Any

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


def _someone_waits(arguments: Sequence[str]) -> bool:
    """Whether a person looks at a terminal and waits for more than help."""
    terminal = sys.stderr is not None and sys.stderr.isatty()
    completes = "_GOSSAMER_COMPLETE" in os.environ  # a shell asks, in the middle of its own line
    return terminal and bool(arguments) and not completes and not any(map(UNNOTICED.match, arguments))
