"""Circulant graphs, where client i hears from the clients i - offset: rings and exponential graphs.

All are regular, so uniform weights are doubly stochastic.
"""

from collections.abc import Collection, Iterable
from typing import Annotated

import numpy as np
from pydantic import Field
from scipy.sparse import csr_array

from gossamer.errors import GraphError
from gossamer.graphs.construction import require_clients, require_memory, static_network
from gossamer.graphs.network import Claims, Network
from gossamer.graphs.weights import uniform
from gossamer.parts import part


@part
class Ring:
    """Each client talks to the one before and the one after it."""

    def bind(self, clients: int, seed: int) -> Network:
        require_clients(3, clients, "ring")
        return _circulant("ring", clients, (1, -1))


@part
class DoubleRing:
    """Each client talks to the two before and the two after it."""

    def bind(self, clients: int, seed: int) -> Network:
        require_clients(5, clients, "double-ring")
        return _circulant("double-ring", clients, (1, -1, 2, -2))


@part
class Exponential:
    """Each client sends to those 1, 2, 4, 8, … places further on."""

    symmetric: Annotated[bool, Field(description="send as many places back, too")] = False

    def bind(self, clients: int, seed: int) -> Network:
        require_clients(2, clients, "exponential")
        offsets = [2**j for j in range(_doublings(clients))]
        return _circulant("exponential", clients, offsets + [-o for o in offsets] if self.symmetric else offsets)


@part
class OnePeerExponential:
    """One message per client and step: to the one 1, 2, 4, 8, … places further on, in turn."""

    def bind(self, clients: int, seed: int) -> Network:
        require_clients(2, clients, "one-peer-exponential")
        period = _doublings(clients)
        claims = Claims(rows=True, columns=True, symmetric=clients == 2, self_loops=True, connected=True)
        return Network(
            name="one-peer-exponential",
            clients=clients,
            period=period,
            claims=claims,
            build=lambda step: uniform(_circulant_adjacency(clients, [2**step])),
            shape=(clients,),
        )


@part
class Circulant:
    """Each client talks to those at the given distances."""

    offsets: Annotated[list[int], Field(min_length=1, description="how many places further on the neighbours are")]
    symmetric: Annotated[bool, Field(description="as many places back, too")] = True

    def bind(self, clients: int, seed: int) -> Network:
        require_clients(2, clients, "circulant")
        for offset in self.offsets:
            if offset % clients == 0:
                raise GraphError(
                    f"graph 'circulant': offset {offset} leads a client of {clients} back to itself; "
                    f"offsets from 1 to {clients - 1} lead to others"
                )
        offsets = self.offsets + [-o for o in self.offsets] if self.symmetric else self.offsets
        return _circulant("circulant", clients, offsets)


def _circulant(name: str, clients: int, offsets: Collection[int]) -> Network:
    require_memory(name, clients, clients * len(offsets))
    return static_network(name, uniform(_circulant_adjacency(clients, offsets)), shape=(clients,))


def _circulant_adjacency(clients: int, offsets: Iterable[int]) -> csr_array:
    distinct = np.unique([offset % clients for offset in offsets])
    receiver = np.repeat(np.arange(clients), len(distinct))
    sender = (receiver - np.tile(distinct, clients)) % clients
    return csr_array((np.ones(len(sender)), (receiver, sender)), shape=(clients, clients))


def _doublings(clients: int) -> int:
    """The number of powers of two (1, 2, 4, …) below `clients`."""
    return (clients - 1).bit_length()
