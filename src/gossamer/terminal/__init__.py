"""The terminal: where output goes, progress of a run, and one view for everything that a command prints."""

from gossamer.terminal import console
from gossamer.terminal.console import say, say_next, say_where
from gossamer.terminal.progress import StudyDisplay, TensorBoard, make_observer

__all__ = [
    "StudyDisplay",
    "TensorBoard",
    "console",
    "make_observer",
    "say",
    "say_next",
    "say_where",
]
