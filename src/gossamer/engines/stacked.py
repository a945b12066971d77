"""The engine: a worker's clients in one process, their states stacked as rows.

Alone, a worker owns all clients. In a group each worker owns a stretch of them, runs their local steps in chunks, and
takes part in the mixing; `state` is the rows of its own clients, and so is everything that is not said to be of all.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gossamer.engines.memory import Buffers, is_small, unread_by_receive
from gossamer.engines.rows import Rows
from gossamer.engines.steps.chunk import RECORD_AT, ChunkInputs, ChunkRunner, ExecutionPlan
from gossamer.errors import ExperimentError
from gossamer.methods import Message, Opening, Operator, Round, State, probe
from gossamer.mixing import Mixer, Traffic
from gossamer.parts import in_user_code
from gossamer.system.allocator import keep_freed_memory, trim_freed_memory
from gossamer.system.sums import sum_rows
from gossamer.system.threads import on_threads
from gossamer.training import Training, count_gradients
from gossamer.training.steps import About, about_client, about_clients, full_gradient, this_round
from gossamer.workers import ALONE, Group, shares

#: Below this many parameters a step is mostly overhead, which clients under `vmap` share.
SMALL_MODEL = 100_000
SMALL_MODEL_CHUNK = 50
#: Clients whose batches are prepared together where clients run one at a time.
PREPARED = 32
#: Bytes of state that are worked on at once where a method's functions are applied to all clients.
BLOCK = 32 << 20


class RoundReport(NamedTuple):
    """What a round did, beside changing the state. Of all clients, and the same in every worker."""

    #: Each client's mean training loss over its last local epoch, taken before each step; NaN if it did not train.
    losses: Tensor
    #: Whether a client's loss or message left the finite numbers.
    broken: Tensor
    client_bytes: np.ndarray
    server_bytes: int
    #: Messages sent over links, by clients and by the server.
    messages: int
    #: Gradients of mini-batches that the clients took.
    gradients: int
    seconds_local: float
    #: For the slowest worker.
    seconds_waiting: float
    seconds_mixing: float


class Stacked:
    """A worker's engine. `state` holds the vectors of its own clients as rows: {"x": [own, d], ...}."""

    def __init__(
        self, training: Training, plan: ExecutionPlan | None = None, group: Group = ALONE, spill: Path | None = None
    ) -> None:
        keep_freed_memory()
        self.group = group
        self.clients = len(training.batches.client_rows)
        self.client_ranges = shares(training.batches.work(), group.size)
        self.own = self.client_ranges[group.rank]
        self.device = training.model.initial.device
        self.dtype = training.model.initial.dtype
        self.plan = plan or default_plan(training)
        initial = training.method.init(training.model.initial)
        self._frugal = not is_small(initial, self.clients)
        self._rows = Rows()
        self.training = training
        self.mixer = Mixer(training.network, self.client_ranges, group)
        self._gradients = count_gradients(training)
        self._rehearse()  # before there is a state: what that needs for a moment does not come on top of it
        self._buffers = Buffers(initial, self.own, self.clients, spill, group)
        self._shapes, self._sends = shapes(self.state), dict[str, tuple[int, ...]]()
        self.done = 0
        """Rounds that are whole; of a state that was loaded, the loader says it."""

    @property
    def training(self) -> Training:
        """How the clients train."""
        return self.runner.training

    @training.setter
    def training(self, training: Training) -> None:
        self.runner = ChunkRunner(training, self.plan, self._frugal)

    @property
    def state(self) -> State:
        """What the own clients keep between rounds."""
        return self._buffers.front

    def undo(self, index: int) -> bool:
        """Go back to the state after `index` rounds, from which the last round started; whether that was possible."""
        if index == 0:
            self._buffers.reset()
        elif not self._buffers.double:
            return False
        elif self.done == index + 1:
            self._buffers.turn()
        self.done = index
        return True

    def round(self, index: int) -> RoundReport:
        """One round of all clients: local steps, messages, mixing, receiving.

        A small state is kept until the next round, so that this one can be undone.
        """
        network, method, traits = self.training.network, self.training.method, self.training.traits
        started = self._now()
        traffic = Traffic(np.zeros(self.clients, dtype=np.int64))
        if index == 0 and traits.opening:
            self._open(traits.opening, traffic)
        with self._own_random_stream():
            messages, losses, broken = self._local_work(index)
        self._tidy_up()
        done = self._now()
        losses, broken = self._tell(losses, broken)
        mixing, sent = self._now(), list(messages)
        known = self._share_losses(losses, traffic) if traits.shares_loss else None
        for step in self.training.gossip_steps(index):
            messages = {name: messages[name] for name in sent}  # what is mixed in a second way is not sent on
            traffic.add(network, traits, messages, step, known)
            messages = self.mixer.mix(method.sends, messages, step, known)
        self._receive(method.receive, messages, index)
        self._tidy_up()
        self._buffers.turn()
        self.done = index + 1
        return RoundReport(
            losses, broken, traffic.clients, traffic.server, traffic.messages, self._gradients_taken(index),
            done - started, mixing - done, self._now() - mixing,
        )  # fmt: skip

    def models(self) -> Tensor:
        """Every own client's model vector: [own, d]."""
        vectors: Tensor = self._rows(self.training.method.model)(self.state)
        return vectors

    def gather_models(self) -> Tensor:
        """Every client's model vector, in the first worker: [clients, d]; in the others, those of the own clients."""
        own = self.models().detach()
        if self.group.size == 1:
            return own
        if (seen := self.group.everyone(own)) is not None:
            return seen
        if not self.group.first:
            self.group.exchange({0: own.contiguous()}, {})
            return own
        everyone = own.new_empty((self.clients, own.shape[1]))
        everyone[: len(own)] = own
        places = enumerate(self.client_ranges[1:], start=1)
        self.group.exchange({}, {worker: everyone[place.start : place.stop] for worker, place in places})
        return everyone

    def model_blocks(self) -> Iterator[Tensor]:
        """The own clients' model vectors, as many at a time as take little memory."""
        for rows in self._blocks():
            yield self._rows(self.training.method.model)({name: value[rows] for name, value in self.state.items()})

    def average(self) -> Tensor:
        """The average model of all clients; where they carry push-sum weights, they count by these."""
        weigh = self.training.traits.weight
        summed = torch.zeros(self.training.model.size + 1, dtype=torch.float64, device=self.device)
        total, weight = summed[:-1], summed[-1:]  # in one piece, so that workers add both up with one word
        for rows, vectors in zip(self._blocks(), self.model_blocks(), strict=True):
            weights: Tensor | None = None
            if weigh is not None:
                weights = self._rows(weigh)({name: value[rows] for name, value in self.state.items()})
                weight += weights.sum(dtype=torch.float64)
            sum_rows(vectors, weights, onto=total)
        self.group.all_sum(summed)
        total /= self.clients if weigh is None else weight
        return total.to(self.dtype)

    def _open(self, opening: Opening, traffic: Traffic) -> None:
        """The exchange before the first round."""
        network, messages = self.training.network, Message()
        for row, client in enumerate(self.own):
            about = about_client(self.training, client, 0, opening=True)
            state = {name: rows[row] for name, rows in self.state.items()}
            gradient = partial(full_gradient, self.training, client, self.training.method.model(state))
            after, message = opening.open(state, gradient, self._round(0, about))
            self._buffers.write(self.state, slice(row, row + 1), {name: value[None] for name, value in after.items()})
            for name, value in message.items():
                if name not in messages:
                    messages[name] = value.new_empty((len(self.own), *value.shape))
                messages[name][row] = value
        operators: dict[str, Operator] = dict.fromkeys(messages, "server" if network.has_server else "average")
        for step in range(opening.mixings):
            traffic.add(network, None, messages, step, None)
            messages = self.mixer.mix(operators, messages, step, None)
        for rows in self._blocks():
            about = about_clients(self.training, np.arange(self.own.start, self.own.stop)[rows], 0)
            after = self._rows(lambda s, m, a: opening.opened(s, m, self._round(0, a)))(
                {name: value[rows] for name, value in self.state.items()},
                {name: value[rows] for name, value in messages.items()},
                about,
            )
            self._buffers.write(self.state, rows, after)

    def _tell(self, losses: Tensor, broken: Tensor) -> tuple[Tensor, Tensor]:
        """All-reduce every client's loss and divergence flag as one tensor."""
        n, own = self.clients, slice(self.own.start, self.own.stop)
        told = torch.zeros(2 * n, dtype=torch.float64, device=self.device)
        told[:n][own], told[n:][own] = losses.double(), broken.double()
        told = self.group.all_sum(told)  # a value plus zeros is that value, NaN and infinity included
        return told[:n].to(self.dtype), told[n:] > 0

    def _gradients_taken(self, index: int) -> int:
        """Gradients of mini-batches that all clients took in a round; a full gradient counts as one epoch of them."""
        batches = self.training.batches
        working = self.training.network.participants(self.training.gossip_steps(index).start)
        steps = batches.steps if working is None else batches.steps[working]
        opening = self._gradients.opening * int(batches.per_epoch.sum()) if index == 0 else 0
        return self._gradients.step * int(steps.sum()) + opening

    def _share_losses(self, losses: Tensor, traffic: Traffic) -> np.ndarray:
        """Every client tells all others its training loss: one number each."""
        traffic.clients += (self.clients - 1) * losses.element_size()
        traffic.messages += self.clients * (self.clients - 1)
        # A client that did not train has no loss to tell; the others take it for an average one.
        known: np.ndarray = torch.nan_to_num(losses, nan=float(losses.nanmean())).double().cpu().numpy()
        return known

    def _local_work(self, index: int) -> tuple[Message, Tensor, Tensor]:
        """Every working client's round up to its message; the others keep their state and send nothing.

        Also each client's training loss, and whether that or its message left the finite numbers.
        """
        self.training.model.template.train()
        self._buffers.begin()
        clients, everyone = self._working(index), np.arange(self.own.start, self.own.stop)
        losses = torch.full((len(self.own),), torch.nan, dtype=self.dtype, device=self.device)
        sums = torch.zeros_like(losses)
        if len(clients) < len(everyone):
            self._buffers.carry_over(torch.as_tensor(np.setdiff1d(everyone, clients) - self.own.start))
        aliases: dict[str, str] | None = None
        chunk = clients
        with in_user_code(lambda: f"round {index + 1}, {_named(chunk)}"):
            for prepared in self._chunks(clients, index):
                chunk = prepared.clients
                rows = _as_index(chunk, self.own.start)
                state = {name: value[rows] for name, value in self.state.items()}
                outcome = self.runner.run(state, prepared, index)
                self._check("finish", "state", self._shapes, outcome.state, index)
                self._sends = self._sends or shapes(outcome.message)
                self._check("finish", "message", self._sends, outcome.message, index)
                losses[rows] = outcome.losses
                # Summed here, while they are in the cache: a sum is finite just if everything in it is, or nearly.
                for value in outcome.message.values():
                    sums[rows] += value.reshape(len(chunk), -1).sum(1)
                if aliases is None:
                    aliases = self._aliases(outcome.message, index)
                self._buffers.keep(rows, outcome.state, outcome.message, aliases)
                del outcome, prepared, state
        if aliases is None:  # a server called others only: nobody here sends, but all take part in the mixing
            message = probe(self.training.method, self.training.model.initial).message
            silent = {name: value[None] for name, value in message.items()}
            self._buffers.expect(silent, self._aliases(silent, index))
        worked = np.isin(everyone, clients[self.training.batches.steps[clients] > 0])
        broken = ~torch.isfinite(sums) | (~torch.isfinite(losses) & torch.as_tensor(worked, device=self.device))
        return self._buffers.messages(), losses, broken

    def _rehearse(self) -> None:
        """Take the first steps of a round once for nothing, so that they are recorded or compiled before it begins."""
        clients = self._working(0)
        if self.plan.step == "eager" or not len(clients):
            return
        with on_threads(1), self._own_random_stream():
            self.training.model.template.train()
            for size in {len(some) for some in _split(clients, self.plan.chunk)}:
                prepared = next(self._chunks(clients[-size:], 0))
                steps = prepared.batches.steps
                whole = steps < RECORD_AT or self.runner.at_once(steps)
                # To compile takes long and is better done here than in a round: also for the last batch of an epoch.
                often = whole or self.plan.step == "compiled"
                for most in [None] * RECORD_AT if often else [RECORD_AT]:
                    self.runner.run(initial_rows(self.training, size), prepared, 0, most)
        trim_freed_memory()  # the first of them were taken as written, which needs the most

    def _tidy_up(self) -> None:
        """Beside a large state there may be little room: what a part of a round needed, the next need not add to."""
        if not self._buffers.double:
            trim_freed_memory()

    def _working(self, index: int) -> np.ndarray:
        """The own clients that work in a round; those of similar work together, so that few wait for the longest."""
        clients = np.arange(self.own.start, self.own.stop)
        working = self.training.network.participants(self.training.gossip_steps(index).start)
        if working is not None:
            clients = np.intersect1d(clients, working)
        return clients[np.argsort(self.training.batches.steps[clients], kind="stable")]

    def _chunks(self, clients: np.ndarray, index: int) -> Iterator[ChunkInputs]:
        """The clients in chunks of about the same size. For single ones, batches are prepared for many at once."""
        alone = self.plan.chunk == 1
        for some in _split(clients, PREPARED if alone else self.plan.chunk):
            prepared = self.runner.prepare(some, index)
            if alone:
                yield from prepared.split_clients()
            else:
                yield prepared

    def _aliases(self, message: Message, index: int) -> dict[str, str]:
        """Which parts of the state nobody reads in this round once a client has sent, and so can hold its message."""
        about = about_client(self.training, self.own.start, index)
        state = {name: rows[0] for name, rows in self.state.items()}
        first = {name: rows[0] for name, rows in message.items()}
        unread = unread_by_receive(self.training.method, state, first, self._round(index, about))
        return self._buffers.fitting(message, unread)

    def _receive(self, receive: Any, messages: Message, index: int) -> None:
        """What becomes of the state when the mixed messages arrive, for as many clients at a time as fit the cache."""
        state = self._buffers.back
        for rows in self._blocks():
            about = about_clients(self.training, np.arange(self.own.start, self.own.stop)[rows], index)
            after = self._rows(lambda s, m, a: receive(s, m, self._round(index, a)))(
                {name: value[rows] for name, value in state.items()},
                {name: value[rows] for name, value in messages.items()},
                about,
            )
            self._check("receive", "state", self._shapes, after, index)
            self._buffers.write(state, rows, after)

    def _check(self, who: str, what: str, usual: Any, found: Any, index: int) -> None:
        """Refuse what a method gives that fits nowhere. Its first step was tried before; this one may be later."""
        if wrong := shape_mismatch(what, usual, found):
            raise ExperimentError(f"round {index + 1}: the method's `{who}` gives something else than before: {wrong}")

    def _blocks(self) -> Iterator[slice]:
        """The own clients' rows, in blocks."""
        row = max(1, sum(value[0].numel() * value.element_size() for value in self.state.values()))
        length = max(1, BLOCK // row)
        for start in range(0, len(self.own), length):
            yield slice(start, min(start + length, len(self.own)))

    def _round(self, index: int, about: About) -> Round:
        return this_round(self.training, index, about)

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    @contextmanager
    def _own_random_stream(self) -> Iterator[None]:
        """Dropout seeds torch's global generator: give it back as it was."""
        if not self.training.model.draws_randomness:
            yield
            return
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            yield


def default_plan(training: Training) -> ExecutionPlan:
    """A plan that needs no measurement."""
    if training.model.draws_randomness:
        return ExecutionPlan(1, reason="the model draws random numbers (dropout), which are keyed client by client")
    small = training.model.size <= SMALL_MODEL
    return ExecutionPlan(SMALL_MODEL_CHUNK, reason="small model") if small else ExecutionPlan(1, reason="large model")


def initial_rows(training: Training, clients: int) -> State:
    """The state of some clients before the first round."""
    initial = training.method.init(training.model.initial)
    return {name: value.expand(clients, *value.shape).clone() for name, value in initial.items()}


def shapes(rows: Any) -> Any:
    """The names and shapes of what one client has, of rows of it; the name of its type where it is something else.

    >>> shapes({"x": torch.zeros(3, 2), "weight": torch.zeros(3)}), shapes(None)
    ({'x': (2,), 'weight': ()}, 'NoneType')
    """
    if not isinstance(rows, dict) or not all(isinstance(value, Tensor) for value in rows.values()):
        return type(rows).__name__
    return {name: tuple(value.shape[1:]) for name, value in rows.items()}


def shape_mismatch(what: str, usual: Any, rows: Any) -> str | None:
    """Where rows differ from the usual shapes, in words.

    >>> shape_mismatch("state", {"x": (2,)}, {"x": torch.zeros(3, 1)}), shape_mismatch("state", {"x": (2,)}, None)
    ("'x' of the state is (1,), not (2,)", 'the state is a NoneType')
    """
    found = shapes(rows)
    if found == usual:
        return None
    if not isinstance(found, dict):
        return f"the {what} is a {found}"
    name = next(name for name in {**usual, **found} if usual.get(name) != found.get(name))
    return f"'{name}' of the {what} is {found.get(name, 'nothing')}, not {usual.get(name, 'nothing')}"


def _named(clients: np.ndarray) -> str:
    """Some clients, in words.

    >>> _named(np.array([3])), _named(np.array([3, 4, 5]))
    ('client 3', 'one of the clients 3 to 5')
    """
    first, last = clients.min(), clients.max()
    return f"client {first}" if first == last else f"one of the clients {first} to {last}"


def _split(clients: np.ndarray, most: int) -> list[np.ndarray]:
    """The clients in pieces of about the same size."""
    return np.array_split(clients, -(-len(clients) // most)) if len(clients) else []


def _as_index(clients: np.ndarray, first: int) -> slice | Tensor:
    """The rows of some clients, counted from the first: a stretch as a slice, which reads without copying."""
    start, end = int(clients[0]) - first, int(clients[-1]) - first + 1
    if len(clients) == end - start and (len(clients) == 1 or (np.diff(clients) == 1).all()):
        return slice(start, end)
    return torch.as_tensor(clients - first)
