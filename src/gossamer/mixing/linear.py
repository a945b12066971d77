"""Mixing: every client's messages, stacked as rows, times a sparse matrix taken from the graph."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from gossamer.graphs import Network
from gossamer.methods import Message, Operator, Traits, mixes
from gossamer.mixing.exchange import RowExchange
from gossamer.system.sums import sum_rows
from gossamer.workers import ALONE, Group

Losses = np.ndarray | None
#: Exchanges that are kept for graphs that repeat: a static graph has one for each operator.
MOST_EXCHANGES = 64
#: Numbers of the messages to a server that are copied at once.
SERVER_BLOCK = 1 << 20


def operator_matrix(network: Network, operator: Operator, step: int, losses: Losses = None) -> sparse.csr_array:
    """The matrix that an operator multiplies the stacked messages with at one gossip step."""
    weights = network.matrix(step, losses)
    if operator in ("average", "push"):
        # They differ in the sums of the weights that they need, which are checked before a run.
        return weights
    others = sparse.csr_array(weights - sparse.diags_array(weights.diagonal()))
    others.eliminate_zeros()
    if operator == "sum":
        others.data = np.ones_like(others.data)
    return others


class Mixer:
    """Mixes the messages of a worker's own clients with those of all others.

    `client_ranges` are the clients of each worker; the messages of a worker are the rows of its own clients, in order.
    """

    def __init__(self, network: Network, client_ranges: Sequence[range] | None = None, group: Group = ALONE) -> None:
        self._network = network
        self._group = group
        self._client_ranges = client_ranges or [range(network.clients)]
        self._own = self._client_ranges[group.rank]
        self._exchanges: dict[tuple[Operator, int], RowExchange] = {}

    def mix(self, operators: dict[str, Operator], messages: Message, step: int, losses: Losses = None) -> Message:
        """The mixed messages of the own clients, by name: [own clients, ...]. The messages given may be overwritten."""
        mixed = {}
        pairs = mixes(operators, messages)
        for number, (key, (name, operator)) in enumerate(pairs.items()):
            rows = messages[name]
            if operator == "server":
                mixed[key] = self._mean(rows, step).expand_as(rows)
                continue
            # A message that is mixed in a second way later must not be overwritten.
            needed_again = any(later == name for later, _ in list(pairs.values())[number + 1 :])
            into = torch.empty_like(rows) if needed_again else rows
            exchange = self._exchange(operator, step, losses)
            exchange.apply(self._group, rows.view(len(self._own), -1), into.view(len(self._own), -1))
            mixed[key] = into
        return mixed

    def _mean(self, rows: Tensor, step: int) -> Tensor:
        """The mean over the clients that the server called."""
        called = self._network.participants(step)
        assert called is not None
        here = called[(called >= self._own.start) & (called < self._own.stop)] - self._own.start
        flat = rows.view(len(rows), -1)
        total = torch.zeros(flat.shape[1], dtype=torch.float64, device=rows.device)
        for some in torch.split(
            torch.as_tensor(here, device=rows.device), max(1, SERVER_BLOCK // max(1, flat.shape[1]))
        ):
            total += sum_rows(flat[some])
        return (self._group.all_sum(total) / len(called)).to(rows.dtype).view(rows.shape[1:])

    def _exchange(self, operator: Operator, step: int, losses: Losses) -> RowExchange:
        period = self._network.period
        repeats = period is not None and period <= MOST_EXCHANGES and not (self._network.by_loss and losses is not None)
        key = (operator, step % period if period else 0)
        if repeats and key in self._exchanges:
            return self._exchanges[key]
        exchange = RowExchange(
            operator_matrix(self._network, operator, step, losses), self._client_ranges, self._group.rank
        )
        if repeats:
            self._exchanges[key] = exchange
        return exchange


@dataclass
class Traffic:
    """Bytes that each client and the server send in a round, counted from the tensors that are sent."""

    clients: np.ndarray
    server: int = 0
    #: Sent over links, by clients and by the server together.
    messages: int = 0

    def add(self, network: Network, traits: Traits | None, messages: Message, step: int, losses: Losses) -> None:
        """Count one gossip step. The messages of a method with a codec count in their encoded form."""
        sends = network.sends(step, losses)
        first = {name: rows[0] for name, rows in messages.items()}
        if traits is not None:
            first = traits.encoded(first)
        # The messages of all clients have the same shapes, so one of them gives the size.
        one = sum(tensor.numel() * tensor.element_size() for tensor in first.values())
        self.clients += sends.astype(np.int64) * one
        self.server += network.server_sends(step) * one
        if one:
            self.messages += int(sends.sum()) + network.server_sends(step)
