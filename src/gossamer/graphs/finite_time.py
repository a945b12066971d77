"""Sequences of sparse matrices that average exactly after finitely many steps, for any number of clients.

The Base-(k+1) graph of Takezawa et al. (2023). A step is a list of weighted undirected edges; a client that is on none
of them waits. Two ideas carry it:

- When n is a product of factors of at most k+1, number the clients in that mixed radix and let, factor by factor, those
  that differ in one digit alone average among themselves (the hyper-hypercube).
- Otherwise write n in base k+1 and split the clients into one block per digit. Each block averages within itself.
  Then the largest block trades with all later clients: once, with just the weight that brings both sides to the common
  mean; it finishes within itself while the next block does the same with those after it.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import combinations

Edge = tuple[int, int, float]
Step = list[Edge]


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
    """Sequences on disjoint clients, or made to wait for each other, as one."""
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
