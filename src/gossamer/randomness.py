"""Random draws keyed by their purpose, never taken from a global stream.

A draw depends only on (seed, purpose, client, round, step), so results do not depend on the order or grouping of
clients, or on interruptions. Philox is a counter-based generator: the seed and the purpose are its key, the rest is the
start of its counter.
"""

from enum import IntEnum
from typing import Any

import numpy as np


class Purpose(IntEnum):
    """The purpose of a draw. The numbers are part of every result: append, never renumber."""

    PARTITION = 1
    MODEL = 2
    GRAPH = 3
    PARTICIPATION = 4
    BATCHES = 5
    AUGMENTATION = 6
    DROPOUT = 7
    SPLIT = 8
    METHOD = 9
    LANCZOS = 10
    TRACE = 11
    LANDSCAPE = 12


def generator(seed: int, purpose: Purpose, client: int = 0, round: int = 0, step: int = 0) -> np.random.Generator:
    """The generator of one draw.

    >>> a = generator(0, Purpose.BATCHES, client=3, round=7)
    >>> b = generator(0, Purpose.BATCHES, client=3, round=7)
    >>> bool((a.permutation(10) == b.permutation(10)).all())
    True
    """
    return np.random.Generator(np.random.Philox(key=[seed, purpose], counter=[0, step, round, client]))


class Draws:
    """Many draws with one seed and purpose, without a new generator for each.

    Making a generator takes longer than shuffling a client's samples. Here one generator is moved from draw to draw, so
    the result of `at` is valid until the next call of `at`. `generator` makes one to keep.

    >>> draws = Draws(0, Purpose.BATCHES)
    >>> moved = [draws.at(client=3, round=7, step=k).permutation(10) for k in (0, 1)]
    >>> made = [generator(0, Purpose.BATCHES, client=3, round=7, step=k).permutation(10) for k in (0, 1)]
    >>> bool(np.array_equal(moved, made))
    True
    """

    def __init__(self, seed: int, purpose: Purpose) -> None:
        self._generator = generator(seed, purpose)
        self._bits = self._generator.bit_generator
        fresh: Any = self._bits.state
        # Numpy reads a state one number at a time, which is faster from a list than from an array.
        self._start = {"counter": (0, 0, 0, 0), "key": fresh["state"]["key"].tolist()}
        self._state = {**fresh, "state": self._start, "buffer": fresh["buffer"].tolist()}

    def at(self, client: int = 0, round: int = 0, step: int = 0) -> np.random.Generator:
        """The generator at the start of one draw, as `generator` would make it."""
        self._start["counter"] = (0, step, round, client)
        self._bits.state = self._state
        return self._generator


def torch_seed(seed: int, purpose: Purpose, client: int = 0, round: int = 0, step: int = 0) -> int:
    """A seed for torch's generator, for draws that only torch makes (layer initialisation, dropout)."""
    return int(generator(seed, purpose, client, round, step).integers(2**63))
