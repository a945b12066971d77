"""The terminal: where output goes, progress of a run, and one view for everything that a command prints."""

from gossamer.terminal import console
from gossamer.terminal.console import number, percent, say, say_next, say_where
from gossamer.terminal.progress import Watching, make_observer, tensorboard_observer, watching

__all__ = [
    "Watching",
    "console",
    "make_observer",
    "number",
    "percent",
    "say",
    "say_next",
    "say_where",
    "tensorboard_observer",
    "watching",
]
