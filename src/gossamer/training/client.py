"""One client as an object: its state, its own samples, its mailbox. The reference engine and peers run it."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch

from gossamer.data import Batches, ChunkBatches, ClientRows
from gossamer.errors import GossamerError
from gossamer.methods import Message, Operator, Round
from gossamer.randomness import Purpose, torch_seed
from gossamer.training.letters import Delivery, mix_letters, pushed_names, share_of, together
from gossamer.training.rounds import client_round
from gossamer.training.steps import full_gradient, steps_without_samples, take_step, with_tape
from gossamer.training.training import Training
from gossamer.training.watch import call, watched_round


class Client:
    """One client. It sees the experiment, its number, its own samples, and its mailbox."""

    def __init__(self, number: int, training: Training) -> None:
        self.number = number
        self.work = own_samples_only(number, training)
        self.method, self.traits = training.method, training.traits
        self.state = self.method.init(training.model.initial.clone())
        self.message: Message = {}
        #: The tensors that are sent, by name.
        self.names: list[str] = []
        self.mailbox: list[Delivery] = []
        self.seen: set[tuple[int, int]] = set()

    def round(self, index: int, opening: bool = False) -> Round:
        """The round as this client knows it."""
        return client_round(self.work, self.number, index, opening)

    def open(self) -> None:
        """Make the message of the exchange before the first round."""
        assert self.traits.opening is not None
        gradient = partial(full_gradient, self.work, self.number, self.method.model(self.state))
        self.state, self.message = call(
            "open", 0, self.traits.opening.open, self.state, gradient, self.round(0, opening=True)
        )
        self.names = list(self.message)

    def opened(self) -> None:
        """Take the mixed message of the exchange before the first round."""
        assert self.traits.opening is not None
        self.state = call("opened", 0, self.traits.opening.opened, self.state, self.message, self.round(0))

    def train(self, index: int) -> float:
        """Take the local steps and make the message; returns the mean training loss, NaN without samples."""
        with watched_round(self.method, index, self.work.model.draws_randomness):
            return self._train(index)

    def _train(self, index: int) -> float:
        round, dtype = self.round(index), self.work.model.initial.dtype
        own = ChunkBatches(self.work.batches, self.work.dataset, [self.number], index, dtype)
        local, total = call("begin", index, self.method.begin, self.state, round), 0.0
        step = partial(take_step, self.work, with_tape)
        self.work.model.template.train()
        for k in range(own.steps):
            if self.work.model.draws_randomness:
                torch.manual_seed(torch_seed(self.work.seed, Purpose.DROPOUT, self.number, index, k))
            local, loss = call("step", index, step, self.state, local, own.take(k).at(0), round)
            total += float(loss * own.loss_weights[k, 0])
        batches = self.work.batches
        if not batches.sizes[self.number]:
            local = steps_without_samples(self.method, self.state, local, batches.local_steps[self.number], round)
        self.state, self.message = call("finish", index, self.method.finish, self.state, local, round)
        self.names = list(self.message)
        return total if own.steps else float("nan")

    def mix(self, step: int, operators: dict[str, Operator], row: dict[int, float], own: float) -> None:
        """Mix the message with the letters in the mailbox; `row` holds the weight of each neighbour.

        Of a late letter only the mass counts, whenever it arrives, and once; the mass of a lost letter is lost.
        """
        letters = {(x.sender, x.step): x for x in self.mailbox if (x.sender, x.step) not in self.seen}
        self.mailbox, self.seen = [], self.seen | set(letters)
        # The exchange before the first round, at steps below 0, is not encoded.
        messages = {
            (sender, at): self.traits.decoded(letters[sender, at].wire) if at >= 0 else letters[sender, at].wire
            for sender, at in sorted(letters)
        }
        heard = {sender: message for (sender, at), message in messages.items() if at == step and sender in row}
        pushed = pushed_names(operators, self.message)
        shares: dict[int, list[Message]] = {}
        for (sender, at), message in messages.items():
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
        """Mix the message with these letters and this mass, as `mix_letters` does."""
        if "sum" in operators.values() and (silent := sorted(set(row) - set(heard))):
            raise GossamerError(f"client {self.number} did not hear from client {silent[0]} at step {step}")
        self.message = mix_letters(operators, self.message, own, row, heard, mass, kept)

    def receive(self, index: int) -> None:
        """Take the mixed message: the end of a round."""
        with watched_round(self.method, index, self.work.model.draws_randomness):
            self.state = call("receive", index, self.method.receive, self.state, self.message, self.round(index))

    def letter(self, coded: bool = True) -> Message:
        """The tensors that travel at a gossip step. The result of a second mixing is not sent on in the next step."""
        self.message = {name: self.message[name] for name in self.names if name in self.message}
        return self.traits.encoded(self.message) if coded else self.message


def own_samples_only(number: int, training: Training) -> Training:
    """The same training with the samples of one client only."""
    rows = torch.as_tensor(training.batches.client_rows[number], device=training.dataset.train.device)
    train = training.dataset.train[rows]
    batches = training.batches
    client_rows = ClientRows.of_one(number, len(rows), len(batches.client_rows))
    own = Batches(client_rows, batches.batch_size, batches.epochs, batches.asked_steps, batches.seed)
    return replace(training, dataset=replace(training.dataset, train=train, clients=None), batches=own)
