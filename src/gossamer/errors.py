"""The errors that a user can meet. Each message says what was wrong, where, and what would be right.

The command line prints only the message of a `GossamerError` and exits with its `exit_code`; every other exception is a
bug and keeps its traceback.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class GossamerError(Exception):
    """Base class of all errors that a user can cause or must know of."""

    exit_code = 2


class ExperimentError(GossamerError):
    """The experiment is wrong: an unknown key, a value out of range, incompatible parts."""


class DataError(GossamerError):
    """Samples are missing or damaged, or cannot be split as requested."""


class GraphError(GossamerError):
    """The graph cannot be built, is not connected, or violates its claims."""


class RunFolderError(GossamerError):
    """A run folder already exists, belongs to another experiment, is damaged, or cannot be written."""


class DivergenceError(GossamerError):
    """Training diverged to infinite numbers. No mistake in the input, so the exit code is 1."""

    exit_code = 1


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error message: the nearest known name, or all names if none is near.

    >>> did_you_mean("dfedsma", ["dfedsam", "dfedavg"])
    "did you mean 'dfedsam'?"
    >>> did_you_mean("x", ["ring", "full"])
    'known: full, ring'
    """
    names = sorted(known)
    near = get_close_matches(word, names, n=1, cutoff=0.6)
    return f"did you mean '{near[0]}'?" if near else f"known: {', '.join(names)}"
