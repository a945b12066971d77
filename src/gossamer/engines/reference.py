"""The contract in its plainest form: every client an object that sees its state, its data and its mailbox.

Slow and simple on purpose. It is the reference that faster engines are held to. A `trace` may delay, double or drop
messages; `Client.mix` and `mix_letters` say what follows from that.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from gossamer.errors import ExperimentError
from gossamer.methods import Operator
from gossamer.training import Client, Delivery, Training

#: (step, sender, receiver) -> by how many steps each copy is late: () is lost, (0,) on time, (0, 0) doubled.
Trace = Callable[[int, int, int], tuple[int, ...]]


def on_time(step: int, sender: int, receiver: int) -> tuple[int, ...]:  # noqa: ARG001  # a perfect network
    """The trace of a perfect network."""
    return (0,)


class Reference:
    """Runs clients that know nothing of each other but their letters."""

    def __init__(self, training: Training, trace: Trace = on_time) -> None:
        if training.in_turn:
            raise ExperimentError("order: the reference engine takes all clients together")
        self.training = training
        self.clients = [Client(number, training) for number in range(len(training.batches.client_rows))]
        self.trace = trace
        self.post: list[tuple[int, int, Delivery]] = []  # (arrives at step, receiver, letter)

    def round(self, index: int) -> None:
        """One round: clients train, letters are delivered, clients receive."""
        training, steps = self.training, self.training.gossip_steps(index)
        if index == 0 and training.traits.opening:
            self._open(training.traits.opening.mixings)
        called = training.network.participants(steps.start)
        working = self.clients if called is None else [self.clients[i] for i in called]
        losses = np.full(len(self.clients), np.nan)
        for client in working:
            losses[client.number] = client.train(index)
        # Losses are broadcast before the gossip steps, whose graph may depend on them.
        known = np.nan_to_num(losses, nan=float(np.nanmean(losses))) if training.traits.shares_loss else None
        for step in steps:
            self._exchange(step, training.method.sends, known)
        for client in self.clients:
            client.receive(index)

    def models(self) -> Tensor:
        """Every client's model vector: [clients, d]."""
        return torch.stack([client.method.model(client.state) for client in self.clients])

    def _open(self, mixings: int) -> None:
        for client in self.clients:
            client.open()
        operator: Operator = "server" if self.training.network.has_server else "average"
        for step in range(mixings):
            # Steps before the first are numbered from below, so that no letter is taken for one of a round.
            operators = dict.fromkeys(self.clients[0].message, operator)
            self._exchange(step, operators, None, at=step - mixings)
        for client in self.clients:
            client.opened()

    def _exchange(
        self, step: int, operators: dict[str, Operator], losses: np.ndarray | None, at: int | None = None
    ) -> None:
        """One gossip step: every client writes to its out-neighbours, then mixes what its mailbox holds."""
        at = step if at is None else at
        if "server" in operators.values():
            self._through_server(step, operators)
            return
        weights = self.training.network.matrix(step, losses).toarray()
        coded = at >= 0  # what is exchanged before the first round has no packed form
        for sender in self.clients:
            wire = sender.letter(coded)
            for receiver in np.flatnonzero(weights[:, sender.number]):
                if receiver != sender.number:
                    copy = {name: tensor.clone() for name, tensor in wire.items()}  # as if it had travelled
                    letter = Delivery(sender.number, at, float(weights[receiver, sender.number]), copy)
                    late = self.trace(at, sender.number, int(receiver))
                    self.post += [(at + delay, int(receiver), letter) for delay in late]
        for _, addressee, letter in [entry for entry in self.post if entry[0] <= at]:
            self.clients[addressee].mailbox.append(letter)
        self.post = [entry for entry in self.post if entry[0] > at]
        for client in self.clients:
            heard = {int(j): float(weights[client.number, j]) for j in np.flatnonzero(weights[client.number])}
            own = heard.pop(client.number, 0.0)
            client.mix(at, operators, heard, own)

    def _through_server(self, step: int, operators: dict[str, Operator]) -> None:
        """The server's step: the mean of the messages of the called clients, sent to all clients."""
        called = self.training.network.participants(step)
        sent = [self.clients[i].message for i in (range(len(self.clients)) if called is None else called)]
        means = {name: torch.stack([message[name] for message in sent]).mean(0) for name in operators}
        for client in self.clients:
            client.message = {name: mean.clone() for name, mean in means.items()}
