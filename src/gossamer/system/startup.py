"""The start-up of a command, most of which is the import of torch: fast, interruptible, with a notice.

Imported before everything else, so it imports nothing slow itself.
"""

import gc
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

NOTICE = "starting ..."
ERASED = f"\r{' ' * (len(NOTICE) + 2)}\r"  # with the ^C that a terminal adds
#: Options after which no notice is shown.
WITHOUT_NOTICE = re.compile(r"-\w*[qh]|--(quiet|json|help)$")


@contextmanager
def importing(arguments: Sequence[str]) -> Iterator[None]:
    """Around a command's imports, which take seconds: a notice on a terminal, and Ctrl-C that works."""
    noticed = _shows_notice(arguments)

    def say(text: str) -> None:
        with suppress(OSError):  # the terminal was closed: go on without it
            if noticed:
                print(text, end="", file=sys.stderr, flush=True)

    def leave(*_: object) -> None:
        say(ERASED)
        with suppress(OSError):
            os.write(2, b"stopped before anything was done\n")
        os._exit(130)

    # `os._exit`, not an exception, which some packages swallow during their import.
    usual: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    replaced = [number for number, handler in usual.items() if signal.getsignal(number) is handler]
    for number in replaced:
        signal.signal(number, leave)
    # Imported modules live until the end. Hiding them from the garbage collector saves a second.
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


def interrupt_on_sigterm() -> None:
    """Handle a scheduler's SIGTERM like Ctrl-C, unless it is ignored. The training loop has its own handlers."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, stop)


def exit_quietly_on_signals() -> None:
    """After a command has finished: a late signal ends the process without a traceback."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _shows_notice(arguments: Sequence[str]) -> bool:
    """Whether a person waits at a terminal for more than help."""
    terminal = sys.stderr is not None and sys.stderr.isatty()
    completes = "_GOSSAMER_COMPLETE" in os.environ  # called by a shell's tab completion
    return terminal and bool(arguments) and not completes and not any(map(WITHOUT_NOTICE.match, arguments))
