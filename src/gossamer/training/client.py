"""One client as an object: its state, its own samples, its mailbox. The reference engine and peers run it."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch

from gossamer.data import Batch, Batches, ChunkBatches, ClientRows, Samples
from gossamer.errors import GossamerError
from gossamer.methods import Message, Operator, Round
from gossamer.randomness import Purpose, torch_seed
from gossamer.training.letters import Delivery, mix_letters, pushed_names, share_of, together
from gossamer.training.steps import about_client, full_gradient, take_step, this_round, with_tape
from gossamer.training.training import Training


class Client:
    """One client. It knows the experiment, its number, its own samples, and what is in its mailbox."""

    def __init__(self, number: int, training: Training) -> None:
        self.number = number
        self.work = own_samples_only(number, training)
        self.method, self.traits = training.method, training.traits
        self.state = self.method.init(training.model.initial.clone())
        self.message: Message = {}
        self.names: list[str] = []  # of the tensors it sends
        self.mailbox: list[Delivery] = []
        self.seen: set[tuple[int, int]] = set()

    def round(self, index: int, opening: bool = False) -> Round:
        """The round as this client knows it."""
        return this_round(self.work, index, about_client(self.work, self.number, index, opening))

    def open(self) -> None:
        """The message before the first round, of a method that has one."""
        assert self.traits.opening is not None
        gradient = partial(full_gradient, self.work, self.number, self.method.model(self.state))
        self.state, self.message = self.traits.opening.open(self.state, gradient, self.round(0, opening=True))
        self.names = list(self.message)

    def opened(self) -> None:
        """Take the mixed message of the exchange before the first round."""
        assert self.traits.opening is not None
        self.state = self.traits.opening.opened(self.state, self.message, self.round(0))

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
        told = {key: self.traits.decoded(letters[key].wire) for key in sorted(letters)}
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

    def receive(self, index: int) -> None:
        """Take the mixed message: the end of a round."""
        self.state = self.method.receive(self.state, self.message, self.round(index))

    def letter(self, coded: bool = True) -> Message:
        """The tensors that travel at a gossip step: what was mixed in a second way is not sent on in the next one."""
        self.message = {name: self.message[name] for name in self.names if name in self.message}
        return self.traits.encoded(self.message) if coded else self.message


def own_samples_only(number: int, training: Training) -> Training:
    """The same training with nobody's samples but this client's."""
    rows = torch.as_tensor(training.batches.client_rows[number], device=training.dataset.train.inputs.device)
    train = Samples(training.dataset.train.inputs[rows], training.dataset.train.targets[rows])
    batches = training.batches
    client_rows = ClientRows.of_one(number, len(rows), len(batches.client_rows))
    own = Batches(client_rows, batches.batch_size, batches.epochs, batches.asked_steps, batches.seed)
    return replace(training, dataset=replace(training.dataset, train=train, clients=None), batches=own)
