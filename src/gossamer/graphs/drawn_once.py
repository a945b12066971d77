"""Random graphs that are drawn once and then stay the same.

Both draw from Python's generator in the order in which networkx does, and are the same graphs. But they are made in
arrays: for a million clients with ten neighbours each, networkx would keep some ten million Python objects.
"""

import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from gossamer.errors import GraphError
from gossamer.graphs.construction import (
    WeightsField,
    require_clients,
    require_memory,
    require_regular,
    static_network,
    undirected_adjacency,
)
from gossamer.graphs.network import Network
from gossamer.graphs.weights import WEIGHTS, uniform
from gossamer.parts import part
from gossamer.randomness import Purpose, generator

#: Draws before a random graph is declared too sparse to be connected.
TRIES = 100
#: Numbers that are drawn at once.
BLOCK = 1 << 20


@part
class ErdosRenyi:
    """Every pair talks with the same probability; drawn once, and again until connected."""

    p: Annotated[float, Field(gt=0, le=1, description="the probability that a pair talks")] = 0.3
    weights: WeightsField = "metropolis"

    def bind(self, clients: int, seed: int) -> Network:
        require_clients(2, clients, "erdos-renyi")
        require_memory("erdos-renyi", clients, int(self.p * clients * (clients - 1)))
        adjacency = _draw_connected(
            lambda key: random_pairs(clients, self.p, key),
            seed,
            f"graph 'erdos-renyi' with p = {self.p:g} on {clients} clients",
            f"p above ln(n)/n = {np.log(clients) / clients:.3g} usually is",
        )
        return static_network("erdos-renyi", WEIGHTS[self.weights](adjacency))


@part
class KRegular:
    """Everyone talks to k others, drawn at random once, and again until connected."""

    k: Annotated[int, Field(ge=1, description="how many others each client talks to")] = 10

    def bind(self, clients: int, seed: int) -> Network:
        require_regular("k-regular", self.k, clients)
        if self.k == 1 and clients > 2:
            raise GraphError(f"graph 'k-regular': with k = 1, {clients} clients fall into pairs; k = 2 would connect")

        require_memory("k-regular", clients, clients * self.k)
        adjacency = _draw_connected(
            lambda key: draw_regular(self.k, clients, key),
            seed,
            f"graph 'k-regular' with k = {self.k} on {clients} clients",
            "a larger k usually is",
        )
        return static_network("k-regular", uniform(adjacency))


def random_regular(clients: int, k: int, key: int) -> csr_array:
    """The adjacency of a random graph in which everyone has k neighbours.

    The way of Steger and Wormald, "Generating random regular graphs quickly": everyone holds k ends of links, and all
    ends are paired at random. Pairs that make no new link are taken apart and their ends paired again.
    """
    stream = random.Random(key)
    while (links := _paired(clients, k, stream)) is None:
        pass
    return undirected_adjacency(clients, *np.divmod(links, clients))


def _paired(clients: int, k: int, stream: random.Random) -> NDArray[np.int64] | None:
    """The links of one try, each as the number `lower * clients + higher`; None if some ends fit nowhere."""
    links = np.empty(0, dtype=np.int64)
    ends = list(range(clients)) * k
    while ends:
        stream.shuffle(ends)
        pairs = np.sort(np.array(ends, dtype=np.int64).reshape(-1, 2), axis=1)
        lower, higher = pairs.T
        made = lower * clients + higher
        first = np.zeros(len(made), dtype=bool)
        first[np.unique(made, return_index=True)[1]] = True
        new = first & (lower != higher) & ~np.isin(made, links)
        links = np.concatenate([links, made[new]])
        again = Counter(pairs[~new].ravel().tolist())  # counted in the order in which they first occur
        if again and not _some_fit(list(again), set(links[np.isin(links // clients, list(again))].tolist()), clients):
            return None
        ends = list(again.elements())
    return links


def _some_fit(free: list[int], links: set[int], clients: int) -> bool:
    """Whether some two of the clients with free ends have no link yet.

    As networkx looks for them: once a client was the higher of two, the lower one is compared in its place. So a try is
    given up now and then that could have gone on; but the graph of a seed stays what it was.
    """
    for one in free:
        for other in free:
            if one == other:
                break
            lower, higher = min(one, other), max(one, other)
            if lower * clients + higher not in links:
                return True
            one = lower
    return False


def random_pairs(clients: int, p: float, key: int) -> csr_array:
    """The adjacency of a random graph in which every pair talks with probability p.

    The way of Batagelj and Brandes, "Efficient generation of large random networks": of all pairs in a row, the number
    that is skipped until the next one that talks is drawn.
    """
    if p == 1:
        return csr_array(1 - np.eye(clients))
    draws = np.random.RandomState()
    _, state, _ = random.Random(key).getstate()
    words = np.array(state[:-1], dtype=np.uint32)
    draws.set_state(("MT19937", words, state[-1], 0, 0.0))  # numpy's numbers from here on are Python's
    pairs, end, found = clients * (clients - 1) // 2, -1, list[NDArray[np.int64]]()
    while end < pairs:
        skipped = np.log(1 - draws.random_sample(BLOCK)) / math.log(1 - p)
        places = end + np.cumsum(1 + np.minimum(skipped, pairs).astype(np.int64))
        found.append(places[places < pairs])
        end = int(places[-1])
    place = np.concatenate(found)
    # Pair (v, w) with w < v has place v (v - 1) / 2 + w.
    v = np.floor((1 + np.sqrt(1 + 8 * place.astype(np.float64))) / 2).astype(np.int64)
    v -= v * (v - 1) // 2 > place  # of large numbers the root may be rounded to the next
    v += v * (v + 1) // 2 <= place
    return undirected_adjacency(clients, v, place - v * (v - 1) // 2)


def draw_regular(k: int, clients: int, key: int) -> csr_array:
    """The adjacency of a random graph in which each client has k neighbours."""
    if 2 * k < clients:
        return random_regular(clients, k, key)
    # Drawing many links at random without a clash takes long; drawing those left out is quick.
    return csr_array(1 - np.eye(clients) - random_regular(clients, clients - 1 - k, key).toarray())


def _draw_connected(draw: Callable[[int], csr_array], seed: int, what: str, hint: str) -> csr_array:
    for attempt in range(TRIES):
        key = int(generator(seed, Purpose.GRAPH, step=attempt).integers(2**31))
        adjacency = draw(key)
        if connected_components(adjacency, directed=False, return_labels=False) == 1:
            return adjacency
    raise GraphError(f"{what} was not connected in any of {TRIES} draws; {hint}")
