"""Sequences of sparse matrices that average exactly after finitely many steps, for any number of clients.

The Base-(k+1) graph of Takezawa et al. (2023). A step is a list of weighted undirected edges; a client without an edge
waits. The construction has two parts:

- When n is a product of factors of at most k+1, number the clients in that mixed radix and let, factor by factor, those
  that differ only in that digit average among themselves (the hyper-hypercube).
- Otherwise write n in base k+1 and split the clients into one block per digit. Each block averages within itself.
  Then the largest block trades with all later clients: once, with just the weight that brings both sides to the common
  mean; it finishes within itself while the next block does the same with those after it.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import combinations
from typing import Annotated

import numpy as np
from pydantic import Field
from scipy.sparse import csr_array

from gossamer.graphs.construction import require_clients
from gossamer.graphs.network import Claims, Network
from gossamer.graphs.weights import with_remainder
from gossamer.parts import part

Edge = tuple[int, int, float]
Step = list[Edge]


@part
class BaseK:
    """A short sequence of sparse steps, at most k neighbours each, whose product is the exact mean for any n."""

    k: Annotated[int, Field(ge=1, description="how many neighbours a client may have at a step")] = 1

    def bind(self, clients: int, seed: int) -> Network:
        require_clients(1, clients, "base-k")
        steps = base_graph(clients, self.k)

        def build(step: int) -> csr_array:
            edges = np.array(steps[step]).reshape(-1, 3)
            i, j = edges[:, :2].astype(int).T
            weights = (np.tile(edges[:, 2], 2), (np.concatenate([i, j]), np.concatenate([j, i])))
            return with_remainder(csr_array(weights, shape=(clients, clients)))

        claims = Claims(rows=True, columns=True, symmetric=True, self_loops=True, connected=True)
        return Network("base-k", clients, len(steps), claims, build, shape=(clients,))


def base_graph(clients: int, most: int) -> list[Step]:
    """The shorter of two exact sequences in which no client has more than `most` neighbours at a step."""
    nodes = range(clients)
    direct = _by_digits(nodes, most)
    smooth = max(d for d in range(1, clients + 1) if clients % d == 0 and _factors(d, most + 1) is not None)
    rest = clients // smooth
    # Average in `smooth` equal groups first, then across them, each client with its twins.
    groups = _together(_by_digits(nodes[g * rest : (g + 1) * rest], most) for g in range(smooth))
    across = _together(_hypercube(nodes[i::rest], most) for i in range(rest))
    return min(direct, groups + across, key=len) or [[]]


def _by_digits(nodes: Sequence[int], most: int) -> list[Step]:
    base = most + 1
    blocks: list[tuple[Sequence[int], int]] = []  # the clients of each digit, and the base to the power of its place
    start, place = 0, 1
    while place * base <= len(nodes):
        place *= base
    while start < len(nodes):
        if digit := (len(nodes) - start) // place:
            blocks.append((nodes[start : start + digit * place], place))
            start += digit * place
        place //= base

    within = _together(_hypercube(block, most) for block, _ in blocks)
    timelines = [within]
    for turn, (block, place) in enumerate(blocks[:-1]):
        later = [node for other, _ in blocks[turn + 1 :] for node in other]
        cells = [block[i : i + place] for i in range(0, len(block), place)]
        # Each later client trades with one client of every cell; later clients are fewer than a cell has members. The
        # weight moves the block's mean, and with it theirs, to the mean of both, as (block equal, later as they are).
        weight = place / (len(block) + len(later))
        trade = [(cell[i], node, weight) for i, node in enumerate(later) for cell in cells]
        wait: list[Step] = [[] for _ in range(len(within) + turn)]
        timelines.append([*wait, trade, *_together(_hypercube(cell, most) for cell in cells)])
    return _together(timelines)


def _hypercube(nodes: Sequence[int], most: int) -> list[Step]:
    steps, stride = [], 1
    factors = _factors(len(nodes), most + 1)
    assert factors is not None, "only called for sizes that have such factors"
    for factor in factors:
        groups = [
            nodes[high + low : high + low + factor * stride : stride]
            for high in range(0, len(nodes), factor * stride)
            for low in range(stride)
        ]
        steps.append([(i, j, 1 / factor) for group in groups for i, j in combinations(group, 2)])
        stride *= factor
    return steps


def _together(timelines: Iterable[list[Step]]) -> list[Step]:
    """Several sequences run side by side: step t of the result has the edges of all their steps t."""
    joint: list[Step] = []
    for timeline in timelines:
        joint += [[] for _ in range(len(timeline) - len(joint))]
        for step, edges in zip(joint, timeline, strict=False):
            step += edges
    return joint


@cache
def _factors(n: int, largest: int) -> tuple[int, ...] | None:
    """The fewest factors of at most `largest` that multiply to n; None when a prime of n is larger."""
    if n == 1:
        return ()
    splits = [(f, _factors(n // f, largest)) for f in range(min(n, largest), 1, -1) if n % f == 0]
    return min(((f, *rest) for f, rest in splits if rest is not None), key=len, default=None)
