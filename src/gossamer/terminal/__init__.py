"""The terminal: where output goes, progress of a run, and one view for everything that a command prints."""

from gossamer.terminal import console
from gossamer.terminal.console import say, say_next, say_where
from gossamer.terminal.progress import StudyDisplay, make_observer, show_progress

__all__ = [
    "StudyDisplay",
    "console",
    "make_observer",
    "say",
    "say_next",
    "say_where",
    "show_progress",
]
