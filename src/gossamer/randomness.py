"""Every random draw, keyed by what it is for and never taken from a global stream.

A draw depends on (seed, purpose, client, round, step) alone, so a result does not depend on the order in which clients
are run, on how they are grouped, or on where a run was interrupted. Philox is a counter-based generator made for this:
the seed and the purpose are its key, the rest is where its counter starts.
"""

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a draw is for. The numbers are part of every result: append, never renumber."""

    PARTITION = 1
    MODEL = 2
    GRAPH = 3
    PARTICIPATION = 4
    BATCHES = 5
    AUGMENTATION = 6
    DROPOUT = 7
    SPLIT = 8
    METHOD = 9


def generator(seed: int, purpose: Purpose, client: int = 0, round: int = 0, step: int = 0) -> np.random.Generator:
    """The generator of one draw.

    >>> a = generator(0, Purpose.BATCHES, client=3, round=7)
    >>> b = generator(0, Purpose.BATCHES, client=3, round=7)
    >>> bool((a.permutation(10) == b.permutation(10)).all())
    True
    """
    return np.random.Generator(np.random.Philox(key=[seed, purpose], counter=[0, step, round, client]))


def torch_seed(seed: int, purpose: Purpose, client: int = 0, round: int = 0, step: int = 0) -> int:
    """A seed for torch's own generator, for the draws that only torch can make (layer initialisation, dropout)."""
    return int(generator(seed, purpose, client, round, step).integers(2**63))
