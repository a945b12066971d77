"""A server in place of a graph: the centralized baseline."""

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.sparse import csr_array

from gossamer.graphs.construction import require_clients
from gossamer.graphs.network import Claims, Network
from gossamer.parts import part
from gossamer.randomness import Purpose, generator


@part
class Server:
    """A server averages the clients it calls and sends the result to all: the centralized baseline."""

    participation: Annotated[float, Field(gt=0, le=1, description="the share of clients called per round")] = 1.0
    sampling: Annotated[
        Literal["fixed", "coin"],
        Field(description="fixed: always the same number of clients; coin: each client is called independently"),
    ] = "fixed"

    def bind(self, clients: int, seed: int) -> Network:
        require_clients(1, clients, "server")
        size = max(1, round(self.participation * clients))
        everyone = self.participation == 1 or clients == 1 or (self.sampling == "fixed" and size == clients)

        def sample(step: int) -> NDArray[np.int64]:
            if everyone:
                return np.arange(clients)
            rng = generator(seed, Purpose.PARTICIPATION, round=step)
            if self.sampling == "fixed":
                return np.sort(rng.choice(clients, size, replace=False))
            called = np.flatnonzero(rng.random(clients) < self.participation)
            return (
                called if called.size else rng.integers(clients, size=1)
            )  # at least one: the mean of no model is not defined

        def build(step: int) -> csr_array:
            called = sample(step)
            row = np.zeros(clients)
            row[called] = 1 / len(called)
            return csr_array(np.broadcast_to(row, (clients, clients)))

        claims = Claims(rows=True, columns=everyone, symmetric=everyone, self_loops=False, connected=True)
        return Network("server", clients, 1 if everyone else None, claims, build, sample)
