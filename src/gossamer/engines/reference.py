"""The contract in its plainest form: every client an object that sees its state, its data and its mailbox.

Slow and simple on purpose. It is the reference that faster engines are held to, and what a peer on a network does. A
`trace` may delay, double or drop messages; what follows from that is said in `Client.mix` and `mix_letters`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gossamer.data import Batch, Batches, ChunkBatches, ClientRows, Samples
from gossamer.errors import GossamerError
from gossamer.methods import Message, Operator, Round, arrived, gossip_steps, mixes, travelling
from gossamer.randomness import Purpose, torch_seed
from gossamer.training.steps import Training, about_client, full_gradient, take_step, this_round, with_tape

#: (step, sender, receiver) -> by how many steps each copy is late: () is lost, (0,) on time, (0, 0) doubled.
Trace = Callable[[int, int, int], tuple[int, ...]]


def on_time(step: int, sender: int, receiver: int) -> tuple[int, ...]:  # noqa: ARG001  # a perfect network
    """The trace of a perfect network."""
    return (0,)


class Letter(NamedTuple):
    """One message on its way: who sent it at which gossip step, what share of it is meant, the tensors that travel."""

    sender: int
    step: int
    share: float
    wire: Message


class Client:
    """One client. It knows the experiment, its number, its own samples, and what is in its mailbox."""

    def __init__(self, number: int, training: Training) -> None:
        self.number = number
        self.work = own_samples_only(number, training)
        self.method: Any = training.method
        self.state = self.method.init(training.model.initial.clone())
        self.message: Message = {}
        self.names: list[str] = []  # of the tensors it sends
        self.mailbox: list[Letter] = []
        self.seen: set[tuple[int, int]] = set()

    def round(self, index: int, opening: bool = False) -> Round:
        """The round as this client knows it."""
        return this_round(self.work, index, about_client(self.work, self.number, index, opening))

    def open(self) -> None:
        """The message before the first round, of a method that has one."""
        gradient = partial(full_gradient, self.work, self.number, self.method.model(self.state))
        self.state, self.message = self.method.open(self.state, gradient, self.round(0, opening=True))
        self.names = list(self.message)

    def train(self, index: int) -> float:
        """Local steps, up to the message; gives the mean training loss, NaN without a step."""
        round, dtype = self.round(index), self.work.model.initial.dtype
        own = ChunkBatches(self.work.batches, self.work.dataset, [self.number], index, dtype)
        local, total = self.method.begin(self.state, round), 0.0
        self.work.model.template.train()
        for k in range(own.steps):
            if self.work.model.draws_randomness:
                torch.manual_seed(torch_seed(self.work.seed, Purpose.DROPOUT, self.number, index, k))
            batch = Batch(*(tensor[0] for tensor in own.take(k)))
            local, loss = take_step(self.work, with_tape, self.state, local, batch, round)
            total += float(loss * own.shares[k, 0])
        self.state, self.message = self.method.finish(self.state, local, round)
        self.names = list(self.message)
        return total if own.steps else float("nan")

    def mix(self, step: int, operators: dict[str, Operator], row: dict[int, float], own: float) -> None:
        """Turn the message into what the mailbox makes of it; `row` holds the weight of each neighbour to hear.

        A late letter is of no use but for its mass, which counts whenever it arrives, and only once; a lost one's is
        lost.
        """
        letters = {(x.sender, x.step): x for x in self.mailbox if (x.sender, x.step) not in self.seen}
        self.mailbox, self.seen = [], self.seen | set(letters)
        told = {key: arrived(self.method, letters[key].wire) for key in sorted(letters)}
        heard = {sender: message for (sender, at), message in told.items() if at == step and sender in row}
        pushed = pushed_names(operators, self.message)
        shares: dict[int, list[Message]] = {}
        for (sender, at), message in told.items():
            shares.setdefault(sender, []).append(share_of(message, letters[sender, at].share, pushed))
        mass = {sender: together(parts) for sender, parts in shares.items()} if pushed else {}
        self.hear(step, operators, row, own, heard, mass)

    def hear(
        self,
        step: int,
        operators: dict[str, Operator],
        row: dict[int, float],
        own: float,
        heard: Mapping[int, Message],
        mass: Mapping[int, Message],
        kept: float = 0.0,
    ) -> None:
        """Turn the message into what it makes with these letters and this mass, see `mix_letters`."""
        if "sum" in operators.values() and (silent := sorted(set(row) - set(heard))):
            raise GossamerError(f"client {self.number} did not hear from client {silent[0]} at step {step}")
        self.message = mix_letters(operators, self.message, own, row, heard, mass, kept)

    def letter(self, coded: bool = True) -> Message:
        """The tensors that travel at a gossip step: what was mixed in a second way is not sent on in the next one."""
        self.message = {name: self.message[name] for name in self.names if name in self.message}
        return travelling(self.method, self.message) if coded else self.message


def mix_letters(
    operators: dict[str, Operator],
    mine: Message,
    own: float,
    row: dict[int, float],
    heard: Mapping[int, Message],
    mass: Mapping[int, Message],
    kept: float = 0.0,
) -> Message:
    """What one client makes of its own message, the letters of this step that it heard, and the mass that it took.

    `row` holds the weight of each neighbour to hear, `own` that of the client itself; `mass` holds the shares of each
    sender, already weighted, of whatever step they are; `kept` is the share of its own mass that was meant for others
    and given to nobody. Senders are added up in ascending order, so that the same letters give the same bits in
    whatever order they came.

    average   a missing letter leaves its weight with the client's own message
    push      its own share, what was kept, and the mass
    deliver   what was kept, and the mass
    sum       every neighbour must have been heard
    """
    missing = sum(weight for sender, weight in row.items() if sender not in heard)
    mixed = {}
    for key, (name, operator) in mixes(operators, mine).items():
        # Models may be large, and letters on disk: one is read at a time, and added to where the sum lies.
        if operator == "average":
            total = (own + missing) * mine[name]
            for j in sorted(heard):
                total.add_(heard[j][name], alpha=row[j])
        elif operator in ("push", "deliver"):
            total = (kept + (own if operator == "push" else 0)) * mine[name]
            for j in sorted(mass):
                total.add_(mass[j][name])
        else:
            total = 0 * mine[name]
            for j in sorted(row):
                total.add_(heard[j][name])
        mixed[key] = total
    return mixed


def pushed_names(operators: dict[str, Operator], message: Message) -> list[str]:
    """The tensors of a message that carry mass: those that must neither be lost nor be counted twice."""
    return [name for name, operator in mixes(operators, message).values() if operator in ("push", "deliver")]


def share_of(message: Message, share: float, names: list[str]) -> Message:
    """The part of a message's mass that is meant for one receiver."""
    return {name: share * message[name] for name in names}


def together(parts: list[Message]) -> Message:
    """Several shares as one; one alone is left as it is, a sum is taken in float64."""
    if len(parts) == 1:
        return parts[0]
    sums = {name: torch.stack([part[name].double() for part in parts]).sum(0) for name in parts[0]}
    return {name: total.to(parts[0][name].dtype) for name, total in sums.items()}


class Reference:
    """Runs clients that know nothing of each other but their letters."""

    def __init__(self, training: Training, trace: Trace = on_time) -> None:
        self.training = training
        self.clients = [Client(number, training) for number in range(len(training.batches.client_rows))]
        self.trace = trace
        self.post: list[tuple[int, int, Letter]] = []  # (arrives at step, receiver, letter)

    def round(self, index: int) -> None:
        """One round: everyone trains, letters travel, everyone receives."""
        network, method = self.training.network, self.training.method
        if index == 0 and hasattr(method, "open"):
            self._open(method)
        called = network.participants(index * gossip_steps(method))
        working = self.clients if called is None else [self.clients[i] for i in called]
        losses = np.full(len(self.clients), np.nan)
        for client in working:
            losses[client.number] = client.train(index)
        # Telling everyone the loss is a broadcast of its own, before anyone chooses whom to write to.
        known = np.nan_to_num(losses, nan=float(np.nanmean(losses))) if getattr(method, "shares_loss", False) else None
        for step in range(index * gossip_steps(method), (index + 1) * gossip_steps(method)):
            self._exchange(step, method.sends, known)
        for client in self.clients:
            client.state = method.receive(client.state, client.message, client.round(index))

    def models(self) -> Tensor:
        """Every client's model vector: [clients, d]."""
        return torch.stack([client.method.model(client.state) for client in self.clients])

    def _open(self, method: Any) -> None:
        for client in self.clients:
            client.open()
        operator: Operator = "server" if self.training.network.sample is not None else "average"
        for step in range(method.open_mixings):
            # Steps before the first are numbered from below, so that no letter is taken for one of a round.
            operators = dict.fromkeys(self.clients[0].message, operator)
            self._exchange(step, operators, None, at=step - method.open_mixings)
        for client in self.clients:
            client.state = method.opened(client.state, client.message, client.round(0))

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
                    letter = Letter(sender.number, at, float(weights[receiver, sender.number]), copy)
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
        """The server's step: the mean of what the called clients sent, told to everyone."""
        called = self.training.network.participants(step)
        sent = [self.clients[i].message for i in (range(len(self.clients)) if called is None else called)]
        means = {name: torch.stack([message[name] for message in sent]).mean(0) for name in operators}
        for client in self.clients:
            client.message = {name: mean.clone() for name, mean in means.items()}


def own_samples_only(number: int, training: Training) -> Training:
    """The same training with nobody's samples but this client's."""
    rows = torch.as_tensor(training.batches.client_rows[number], device=training.dataset.train.inputs.device)
    train = Samples(training.dataset.train.inputs[rows], training.dataset.train.targets[rows])
    batches = training.batches
    client_rows = ClientRows.of_one(number, len(rows), len(batches.client_rows))
    own = Batches(client_rows, batches.batch_size, batches.epochs, batches.asked_steps, batches.seed)
    return training._replace(dataset=replace(training.dataset, train=train, clients=None), batches=own)
