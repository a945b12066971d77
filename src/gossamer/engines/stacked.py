"""The engine: a worker's clients in one process, their states stacked as rows.

One worker alone owns all clients. In a group each worker owns a range of them, runs their local steps in chunks, and
takes part in the mixing; `state` and everything else is of its own clients, unless it says "all".
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gossamer.engines.memory import EXTRA_MODELS, SMALL_STATE, Buffers, Receiving, is_small, state_size
from gossamer.engines.rows import Rows
from gossamer.engines.steps.chunk import TRACE_AT, ChunkInputs, ChunkOutcome, ChunkRunner, ExecutionPlan
from gossamer.errors import ExperimentError, GossamerError
from gossamer.methods import Message, Opening, Operator, State, probe
from gossamer.mixing import Mixer, Traffic
from gossamer.parts import in_user_code, is_out_of_memory
from gossamer.system.allocator import LARGEST_THRESHOLD, keep_freed_memory, trim_freed_memory
from gossamer.system.sums import sum_rows
from gossamer.system.threads import on_threads
from gossamer.system.torch_private import quiet_vmap
from gossamer.training import Training, call, count_gradients, watched_round
from gossamer.training.rounds import client_round, over_clients, stacked_round
from gossamer.training.steps import full_gradient
from gossamer.workers import ALONE, Group, balanced_ranges

#: Below this many parameters a step is mostly overhead, which clients under `vmap` share.
SMALL_MODEL = 100_000
SMALL_MODEL_CHUNK = 50
#: Clients whose batches are prepared together where clients run one at a time.
PREPARED_TOGETHER = 32
#: Bytes of state that are worked on at once where a method's functions are applied to all clients.
BLOCK = 32 << 20


class RoundReport(NamedTuple):
    """The results of a round besides the new state. Of all clients, and the same in every worker."""

    #: Each client's mean training loss over its last local epoch, taken before each step; NaN if it did not train.
    losses: Tensor
    #: Whether a client's loss or message is not finite.
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
    """A worker's engine. `state` holds the vectors of its own clients as rows: {"x": [own, d], ...}.

    A state of more than `small_state` bytes is held once, and steps are traced in forks, to save memory.
    """

    def __init__(
        self,
        training: Training,
        plan: ExecutionPlan | None = None,
        group: Group = ALONE,
        spill: Path | None = None,
        small_state: int = SMALL_STATE,
    ) -> None:
        keep_freed_memory()
        quiet_vmap()
        self.training = training
        self.group = group
        self.clients = len(training.batches.client_rows)
        self.client_ranges = balanced_ranges(training.batches.work(), group.size)
        self.own = self.client_ranges[group.rank]
        self.device = training.model.initial.device
        self.dtype = training.model.initial.dtype
        self.plan = plan or default_plan(training)
        initial = training.method.init(training.model.initial)
        self.runner = ChunkRunner(training, self.plan, save_memory=state_size(initial, self.clients) > small_state)
        self._on_rows = Rows()
        self._gradients = count_gradients(training)
        self._make_steps_ready()  # before there is a state: the memory that this takes does not add to it
        # The workers of one machine must decide alike; those of another own about as many clients.
        here = self.clients if group.local_size == group.size else len(self.own) * group.local_size
        double = is_small(initial, here, small_state) and spill is None
        message = probe(training.method, training.model.initial).message
        self._message = {name: value[None] for name, value in message.items()}
        self._receiving: Receiving | None = None
        self._buffers = Buffers(initial, message, self.own, self.clients, double, spill, group)
        mixed = training.rounds * training.traits.gossip_steps * training.model.size
        #: What the user should know, in the order in which it turned out.
        self.notes: list[str] = []
        everyone = self._buffers.all_clients
        self.mixer = Mixer(training.network, self.client_ranges, group, everyone, mixed, self.notes.append)
        self._state_shapes, self._message_shapes = shapes(self.state), shapes(self._message)
        #: Finished rounds; of a state that was loaded, the loader sets it.
        self.done = 0

    @property
    def state(self) -> State:
        """The own clients' state between rounds."""
        return self._buffers.front

    def undo(self, index: int) -> bool:
        """Go back to the state after `index` rounds, from which the last round started; whether that was possible."""
        if index == 0:
            self._buffers.reset()
        elif not self._buffers.double:
            return False
        elif self.done == index + 1:
            self._buffers.swap()
        self.done = index
        return True

    def round(self, index: int) -> RoundReport:
        """One round of all clients: local steps, messages, mixing, receiving.

        A small state is kept until the next round, so that this one can be undone.
        """
        with watched_round(self.training.method, index, self.training.model.draws_randomness):
            return self._round(index)

    def _round(self, index: int) -> RoundReport:
        network, method, traits = self.training.network, self.training.method, self.training.traits
        started = self._now()
        traffic = Traffic(np.zeros(self.clients, dtype=np.int64))
        if index == 0 and traits.opening:
            self._open(traits.opening, traffic)
        with self._own_random_stream():
            messages, losses, broken = self._local_work(index)
        self._free_memory()
        trained = self._now()
        losses, broken = self._all_reduce(losses, broken)
        waited, sent = self._now(), list(messages)
        known = self._share_losses(losses, traffic) if traits.shares_loss else None
        for step in self.training.gossip_steps(index):
            messages = {name: messages[name] for name in sent}  # what is mixed in a second way is not sent on
            traffic.add(network, traits, messages, step, known)
            messages = self.mixer.mix(method.sends, messages, step, known)
        self._receive(messages, index)
        self._free_memory()
        self._buffers.swap()
        self.done = index + 1
        sent_bytes, gradients = (traffic.clients, traffic.server, traffic.messages), self._gradients_taken(index)
        seconds = (trained - started, waited - trained, self._now() - waited)
        return RoundReport(losses, broken, *sent_bytes, gradients, *seconds)

    def models(self) -> Tensor:
        """The own clients' model vectors: [own, d]."""
        vectors: Tensor = self._on_rows(self.training.method.model)(self.state)
        return vectors

    def model_blocks(self) -> Iterator[Tensor]:
        """The same, as many at a time as take little memory."""
        for rows in self._blocks():
            yield self._on_rows(self.training.method.model)({name: value[rows] for name, value in self.state.items()})

    def gather_models(self) -> Tensor:
        """All clients' model vectors, in the first worker: [clients, d]; in the others, those of their own clients."""
        own = self.models().detach()
        if self.group.size == 1:
            return own
        if (shared := self._buffers.all_clients(own)) is not None:
            self.group.barrier()  # after which every worker has written its rows
            return shared
        if not self.group.first:
            self.group.exchange({0: own.contiguous()}, {})
            return own
        vectors = own.new_empty((self.clients, own.shape[1]))
        vectors[: len(own)] = own
        others = enumerate(self.client_ranges[1:], start=1)
        self.group.exchange({}, {worker: vectors[clients.start : clients.stop] for worker, clients in others})
        return vectors

    def average(self) -> Tensor:
        """The average model of all clients; those with push-sum weights count by these."""
        weigh = self.training.traits.weight
        sums = torch.zeros(self.training.model.size + 1, dtype=torch.float64, device=self.device)
        total, weight = sums[:-1], sums[-1:]  # one tensor, so that workers add both up at once
        for rows, vectors in zip(self._blocks(), self.model_blocks(), strict=True):
            weights: Tensor | None = None
            if weigh is not None:
                weights = self._on_rows(weigh)({name: value[rows] for name, value in self.state.items()})
                weight += weights.sum(dtype=torch.float64)
            sum_rows(vectors, weights, onto=total)
        self.group.all_sum(sums)
        total /= self.clients if weigh is None else weight
        return total.to(self.dtype)

    def weights(self) -> Tensor | None:
        """The push-sum weight of every client; None for a method without weights."""
        weigh = self.training.traits.weight
        if weigh is None:
            return None
        own = [self._on_rows(weigh)({name: value[rows] for name, value in self.state.items()})
               for rows in self._blocks()]  # fmt: skip
        return self.group.gather_clients(torch.cat(own), self.own, self.clients)

    def _open(self, opening: Opening, traffic: Traffic) -> None:
        """The exchange before the first round."""
        network, messages = self.training.network, Message()
        for row, client in enumerate(self.own):
            state = {name: rows[row] for name, rows in self.state.items()}
            gradient = partial(full_gradient, self.training, client, self.training.method.model(state))
            round = client_round(self.training, client, 0, opening=True)
            after, message = call("open", 0, opening.open, state, gradient, round)
            self._buffers.write(self.state, slice(row, row + 1), {name: value[None] for name, value in after.items()})
            for name, value in message.items():
                if name not in messages:
                    messages[name] = value.new_empty((len(self.own), *value.shape))
                messages[name][row] = value
        operators: dict[str, Operator] = dict.fromkeys(messages, "server" if network.has_server else "average")
        for step in range(opening.mixings):
            traffic.add(network, None, messages, step, None)
            messages = self.mixer.mix(operators, messages, step, None)
        for rows, after in self._apply("opened", opening.opened, self.state, messages, 0):
            self._buffers.write(self.state, rows, after)

    def _all_reduce(self, losses: Tensor, broken: Tensor) -> tuple[Tensor, Tensor]:
        """All-reduce losses and divergence flags as one tensor."""
        if self.group.size == 1:
            return losses, broken
        n, own = self.clients, slice(self.own.start, self.own.stop)
        values = torch.zeros(2 * n, dtype=torch.float64, device=self.device)
        values[:n][own], values[n:][own] = losses.double(), broken.double()
        values = self.group.all_sum(values)  # a value plus zeros is that value, NaN and infinity included
        return values[:n].to(self.dtype), values[n:] > 0

    def _gradients_taken(self, index: int) -> int:
        """Gradients of mini-batches that all clients took in a round; a full gradient counts as one epoch of them."""
        batches = self.training.batches
        called = self.training.network.participants(self.training.gossip_steps(index).start)
        steps = batches.steps if called is None else batches.steps[called]
        opening = self._gradients.opening * int(batches.per_epoch.sum()) if index == 0 else 0
        return self._gradients.step * int(steps.sum()) + opening

    def _share_losses(self, losses: Tensor, traffic: Traffic) -> np.ndarray:
        """Every client sends its training loss to all others: one number each."""
        traffic.clients += (self.clients - 1) * losses.element_size()
        traffic.messages += self.clients * (self.clients - 1)
        # A client that did not train has no loss; the others assume the mean.
        known: np.ndarray = torch.nan_to_num(losses, nan=float(losses.nanmean())).double().cpu().numpy()
        return known

    def _local_work(self, index: int) -> tuple[Message, Tensor, Tensor]:
        """The round of every participating client up to its message; the others keep their state and send nothing.

        Also each client's training loss, and whether that or its message is not finite.
        """
        if not self.training.model.template.training:  # evaluation turns that off; to look is faster
            self.training.model.template.train()
        self._buffers.begin()
        clients, own = self._participants(index), range(self.own.start, self.own.stop)
        losses = torch.full((len(self.own),), torch.nan, dtype=self.dtype, device=self.device)
        sums = torch.zeros_like(losses)
        if len(clients) < len(own):
            self._buffers.carry_over(torch.as_tensor(np.setdiff1d(np.asarray(own), clients) - self.own.start))
        aliases = self._buffers.find_aliases(self._message, self._watch_receive(index).unread)
        self._buffers.expect(self._message, aliases)
        after, messages = self._buffers.kept(aliases), self._buffers.messages()
        for inputs in self._chunks(clients, index):
            places = torch.as_tensor(inputs.clients - self.own.start)
            if (done := self.runner.run_in_place(inputs, self.state, places, after, messages)) is not None:
                losses[places], sums[places] = done
                continue
            for chunk, outcome in self._outcomes(inputs, index):
                rows = _as_index(chunk, self.own.start)
                self._check("finish", "state", self._state_shapes, outcome.state, index)
                self._check("finish", "message", self._message_shapes, outcome.message, index)
                losses[rows] = outcome.losses
                # Summed here, while they are in the cache: a sum is finite if all numbers in it are, but for overflow.
                for value in outcome.message.values():
                    sums[rows] += value.reshape(len(chunk), -1).sum(1)
                self._buffers.store(rows, outcome.state, outcome.message, aliases)
                del outcome
            del inputs
        worked = np.zeros(len(own), dtype=np.bool_)
        worked[clients - self.own.start] = self.training.batches.steps[clients] > 0
        broken = ~torch.isfinite(sums + losses.where(torch.as_tensor(worked, device=self.device), 0))
        return messages, losses, broken

    def _outcomes(self, inputs: ChunkInputs, index: int) -> Iterator[tuple[np.ndarray, ChunkOutcome]]:
        """What comes of the local work of a chunk.

        The first step was tried under `vmap`; where a later one does what it has no rule for, or fails, the clients of
        the chunk, and all after it, run one at a time.
        """
        if len(inputs.clients) > 1:
            try:
                yield inputs.clients, self._outcome(inputs)
                return
            except GossamerError:
                raise
            except Exception as error:  # a user's own code may raise anything
                if is_out_of_memory(error):
                    raise
                self.runner.run_one_by_one(error)
        for one in inputs.split_clients() if len(inputs.clients) > 1 else [inputs]:
            with in_user_code(f"round {index + 1}, client {one.clients[0]}"):
                outcome = self._outcome(one)
            yield one.clients, outcome
            del outcome

    def _outcome(self, inputs: ChunkInputs) -> ChunkOutcome:
        rows = _as_index(inputs.clients, self.own.start)
        return self.runner.run({name: value[rows] for name, value in self.state.items()}, inputs)

    def _make_steps_ready(self) -> None:
        """Run the first steps of a round and drop the result, so that they are traced or compiled before the round."""
        clients = self._participants(0)
        clients = clients[self.training.batches.steps[clients] > 0]
        if self.plan.step == "eager" or not len(clients):
            return
        with on_threads(1), self._own_random_stream():
            self.training.model.template.train()
            for size in {len(some) for some in _split(clients, self.plan.chunk)}:
                inputs = next(self._chunks(clients[-size:], 0))
                steps = inputs.batches.steps
                whole = steps < TRACE_AT or self.runner.at_once(steps)
                # Compiling takes long and is better done here than in a round: also for the last batch of an epoch.
                often = whole or self.plan.step == "compiled"
                # After so many rounds as one piece, steps alone may have to be recorded.
                for most in [None] * (TRACE_AT + 2 * whole) if often else [TRACE_AT]:
                    self.runner.run(initial_rows(self.training, size), inputs, most)
        trim_freed_memory()  # the first of them ran eagerly, which needs the most memory

    def _free_memory(self) -> None:
        """With a large state there may be little memory: one part of a round must not add much to the next."""
        if self._buffers.double:
            return
        if EXTRA_MODELS * self.runner.in_effect.chunk * self.training.model.initial.nbytes > LARGEST_THRESHOLD:
            trim_freed_memory()

    def _participants(self, index: int) -> np.ndarray:
        """The own clients that take part in a round, by their work: in a chunk, few wait for the longest."""
        called = self.training.network.participants(self.training.gossip_steps(index).start)
        return self._everyone if called is None else self._everyone[np.isin(self._everyone, called)]

    @cached_property
    def _everyone(self) -> np.ndarray:
        return self.own.start + np.argsort(self.training.batches.steps[self.own.start : self.own.stop], kind="stable")

    def _chunks(self, clients: np.ndarray, index: int) -> Iterator[ChunkInputs]:
        """The inputs of chunks of about the same size. For single clients, those of many are prepared together."""
        chunk = self.runner.in_effect.chunk
        usual = clients is self._everyone and chunk == self.plan.chunk
        for some in self._usual_pieces if usual else self._pieces(clients, chunk):
            inputs = self.runner.prepare(some, index)
            if chunk == 1:
                yield from inputs.split_clients()
            else:
                yield inputs

    @cached_property
    def _usual_pieces(self) -> list[np.ndarray]:
        return self._pieces(self._everyone, self.plan.chunk)

    def _pieces(self, clients: np.ndarray, chunk: int) -> list[np.ndarray]:
        """The clients of each chunk. Clients without samples are in chunks of their own, after the others."""
        trains = self.training.batches.sizes[clients] > 0
        most = PREPARED_TOGETHER if chunk == 1 else chunk
        return [*_split(clients[trains], most), *_split(clients[~trains], most)]

    def _watch_receive(self, index: int) -> Receiving:
        """What `receive` does in this round, found by letting one client receive."""
        if self._receiving is None or not self._receiving.always:
            state, first = ({name: rows[0] for name, rows in values.items()} for values in (self.state, self._message))
            round = client_round(self.training, self.own.start, index)
            self._receiving = Receiving.watch(self.training.method, state, first, round)
        return self._receiving

    def _receive(self, messages: Message, index: int) -> None:
        """The state after the mixed messages have arrived."""
        state, takes = self._buffers.back, self._watch_receive(index).takes
        if takes is not None:  # nothing is computed
            for rows in self._blocks():
                after = {name: (state, messages)[which][part][rows] for name, (which, part) in takes.items()}
                self._buffers.write(state, rows, after)
            return
        for rows, after in self._apply("receive", self.training.method.receive, state, messages, index):
            self._check("receive", "state", self._state_shapes, after, index)
            self._buffers.write(state, rows, after)

    def _apply(
        self, name: str, receive: Any, state: State, messages: Message, index: int
    ) -> Iterator[tuple[slice, State]]:
        """A function of state, messages and round, applied to all own clients, block by block."""
        for rows in self._blocks():
            clients = np.arange(self.own.start + rows.start, self.own.start + rows.stop)
            round = stacked_round(self.training, clients, index)
            parts = ({name: value[rows] for name, value in values.items()} for values in (state, messages))
            yield rows, call(name, index, over_clients(self._on_rows, receive, round), *parts)

    def _check(self, function: str, what: str, usual: Any, found: Any, index: int) -> None:
        """Refuse a state or message of another shape: the first step was checked, a later one may differ."""
        if wrong := shape_mismatch(what, usual, found):
            raise ExperimentError(
                f"round {index + 1}: the method's `{function}` gives something else than before: {wrong}"
            )

    def _blocks(self) -> Iterator[slice]:
        """The rows of the own clients, in blocks that fit a cache."""
        row = max(1, sum(value[0].numel() * value.element_size() for value in self.state.values()))
        length = max(1, BLOCK // row)
        for start in range(0, len(self.own), length):
            yield slice(start, min(start + length, len(self.own)))

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    @contextmanager
    def _own_random_stream(self) -> Iterator[None]:
        """Dropout seeds torch's global generator, which is restored afterwards."""
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
    """The shape of each tensor of one client, from rows of several; of anything else, the name of its type.

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


def _split(clients: np.ndarray, most: int) -> list[np.ndarray]:
    """The clients in pieces of about the same size."""
    return np.array_split(clients, -(-len(clients) // most)) if len(clients) else []


def _as_index(clients: np.ndarray, first: int) -> slice | Tensor:
    """The rows of some clients, counted from the first: of neighbours as a slice, which reads without copying."""
    start, end = int(clients[0]) - first, int(clients[-1]) - first + 1
    if len(clients) == end - start and (len(clients) == 1 or (np.diff(clients) == 1).all()):
        return slice(start, end)
    return torch.as_tensor(clients - first)
