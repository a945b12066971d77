"""What can go wrong for a user, each with a message that says what, where, and what would be right.

The command line prints the message of a `GossamerError` alone and leaves with its `exit_code`; every other exception
is a bug and keeps its traceback.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class GossamerError(Exception):
    """Base of every error a user can cause or must know of."""

    exit_code = 2


class ExperimentError(GossamerError):
    """The experiment itself is wrong: an unknown key, a value out of range, parts that do not fit each other."""


class DataError(GossamerError):
    """Samples are missing, damaged, or cannot be split as asked."""


class GraphError(GossamerError):
    """The graph cannot be built, is not connected, or is not weighted as it claims."""


class RunFolderError(GossamerError):
    """A run folder exists already, belongs to another experiment, is damaged, or cannot be written."""


class DivergenceError(GossamerError):
    """Training left the finite numbers. Not a mistake in the input, so not exit code 2."""

    exit_code = 1


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error message: the nearest known names, or all of them when none is near.

    >>> did_you_mean("dfedsma", ["dfedsam", "dfedavg"])
    "did you mean 'dfedsam'?"
    >>> did_you_mean("x", ["ring", "full"])
    'known: full, ring'
    """
    names = sorted(known)
    near = get_close_matches(word, names, n=1, cutoff=0.6)
    return f"did you mean '{near[0]}'?" if near else f"known: {', '.join(names)}"
