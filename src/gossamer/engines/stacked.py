"""All clients in one process, their states stacked as rows.

Clients run in chunks: one at a time, or many at once under `vmap`. Either way they run the same functions of the same
method on the same batches, so the chunk size changes the speed and nothing else.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.utils._pytree import tree_map

from gossamer.data import Batch, Gathered
from gossamer.engines.client import (
    About,
    Differentiate,
    Training,
    about_client,
    full_gradient,
    take_step,
    this_round,
    with_tape,
)
from gossamer.errors import ExperimentError
from gossamer.methods import Local, Message, Operator, Round, State, gossip_steps, mixes
from gossamer.mixing import Traffic, mix
from gossamer.randomness import Purpose, torch_seed

#: Below this many parameters a step is mostly overhead, which clients under `vmap` share.
SMALL_MODEL = 100_000
SMALL_MODEL_CHUNK = 50


class RoundReport(NamedTuple):
    """What a round did, beside changing the state."""

    #: Each client's mean training loss over its last local epoch, taken before each step; NaN if it did not train.
    losses: Tensor
    #: Whether a client's loss or message left the finite numbers.
    broken: Tensor
    client_bytes: np.ndarray
    server_bytes: int
    seconds_local: float
    seconds_mixing: float


class Stacked:
    """The engine. `state` holds every client's vectors as rows: {"x": [clients, d], ...}."""

    def __init__(self, training: Training, chunk: int | None = None) -> None:
        self.training = training
        self.clients = len(training.batches.parts)
        self.device = training.model.initial.device
        self.dtype = training.model.initial.dtype
        initial = training.method.init(training.model.initial)
        self.state: State = {name: value.expand(self.clients, *value.shape).clone() for name, value in initial.items()}
        self.chunk, self.chunk_reason = self._choose_chunk(chunk)

    def round(self, index: int) -> RoundReport:
        """One round of all clients: local steps, messages, mixing, receiving.

        `state` is replaced at the very end and never changed in place, so an interrupted round leaves it whole.
        """
        network, method = self.training.network, self.training.method
        hops = gossip_steps(method)
        started = self._now()
        traffic = Traffic(np.zeros(self.clients, dtype=np.int64), 0)
        before = self.state
        if index == 0 and hasattr(method, "open"):
            before = self._open(method, traffic)
        with self._own_random_stream():
            state, messages, losses = self._local_work(index, before)
        broken = ~torch.isfinite(
            torch.stack([rows.reshape(self.clients, -1).sum(1) for rows in messages.values()]).sum(0)
        )
        broken |= losses.isinf() | (losses.isnan() & self._trains(index))
        mixing, sent = self._now(), list(messages)
        known = self._share_losses(losses, traffic) if getattr(method, "shares_loss", False) else None
        for step in range(index * hops, (index + 1) * hops):
            messages = {name: messages[name] for name in sent}  # what is mixed in a second way is not sent on
            traffic.add(network, method, messages, step, known)
            messages = mix(network, method.sends, messages, step, known)
        about = self._about(np.arange(self.clients), index)
        self.state = vmap(lambda s, m, a: method.receive(s, m, self._round(index, a)))(state, messages, about)
        return RoundReport(losses, broken, traffic.clients, traffic.server, mixing - started, self._now() - mixing)

    def models(self) -> Tensor:
        """Every client's model vector: [clients, d]."""
        vectors: Tensor = vmap(self.training.method.model)(self.state)
        return vectors

    def average(self) -> Tensor:
        """The average model; where clients carry push-sum weights, they count by these."""
        models, weigh = self.models(), getattr(self.training.method, "weight", None)
        if weigh is None:
            return models.mean(0)
        weights: Tensor = vmap(weigh)(self.state)
        return (weights / weights.sum()) @ models

    def _open(self, method: Any, traffic: Traffic) -> State:
        """The exchange before the first round, for a method that has one."""
        network, opened = self.training.network, []
        for client in range(self.clients):
            about = about_client(self.training, client, 0, opening=True)
            state = {name: rows[client] for name, rows in self.state.items()}
            gradient = partial(full_gradient, self.training, client, method.model(state))
            opened.append(method.open(state, gradient, self._round(0, about)))
        state, messages = _stack([s for s, _ in opened]), _stack([m for _, m in opened])
        operators: dict[str, Operator] = dict.fromkeys(messages, "server" if network.sample is not None else "average")
        for step in range(method.open_mixings):
            traffic.add(network, None, messages, step, None)
            messages = mix(network, operators, messages, step, None)
        about = self._about(np.arange(self.clients), 0)
        after: State = vmap(lambda s, m, a: method.opened(s, m, self._round(0, a)))(state, messages, about)
        return after

    def _share_losses(self, losses: Tensor, traffic: Traffic) -> np.ndarray:
        """Every client tells all others its training loss: one number each."""
        traffic.clients += (self.clients - 1) * losses.element_size()
        # A client that did not train has no loss to tell; the others take it for an average one.
        known: np.ndarray = torch.nan_to_num(losses, nan=float(losses.nanmean())).double().cpu().numpy()
        return known

    def _local_work(self, index: int, before: State) -> tuple[State, Message, Tensor]:
        """Every working client's round up to its message; the others keep their state and send nothing."""
        self.training.model.template.train()
        working = self.training.network.participants(index * gossip_steps(self.training.method))
        clients = np.arange(self.clients) if working is None else working
        state = {name: rows.clone() for name, rows in before.items()}
        losses = torch.full((self.clients,), torch.nan, dtype=self.dtype, device=self.device)
        messages: Message = {}
        # Clients of similar work go together, so that few wait for the longest.
        ordered = clients[np.argsort(self.training.batches.steps[clients], kind="stable")]
        for start in range(0, len(ordered), self.chunk):
            chunk = ordered[start : start + self.chunk]
            rows = torch.as_tensor(chunk, device=self.device)
            after, message, losses[rows] = self._run_chunk({n: v[rows] for n, v in before.items()}, chunk, index)
            for name, value in after.items():
                state[name][rows] = value
            for name, value in message.items():
                if name not in messages:
                    messages[name] = value.new_zeros((self.clients, *value.shape[1:]))
                messages[name][rows] = value
        return state, messages, losses

    def _run_chunk(self, state: State, clients: np.ndarray, index: int) -> tuple[State, Message, Tensor]:
        work, method = self.training, self.training.method
        gathered = Gathered(work.batches, work.dataset, clients.tolist(), index, self.dtype)
        about = self._about(clients, index)
        each, differentiate = _how_to_run(len(clients))
        local = each(lambda s, a: method.begin(s, self._round(index, a)))(state, about)
        step = each(partial(self._step, index, differentiate))
        total = torch.zeros(len(clients), dtype=self.dtype, device=self.device)
        for k in range(gathered.steps):
            if work.model.draws_randomness:  # such a model runs one client at a time
                torch.manual_seed(torch_seed(work.seed, Purpose.DROPOUT, int(clients[0]), index, k))
            taken, loss = step(state, local, gathered.take(k), about)
            active = gathered.active[k]
            if not gathered.everyone[k]:  # a client that has done its steps keeps what it has
                taken = tree_map(lambda new, old, a=active: torch.where(_like(a, new), new, old), taken, local)
            local = taken
            total += torch.where(active, loss * gathered.shares[k], 0.0)
        after, message = each(lambda s, y, a: method.finish(s, y, self._round(index, a)))(state, local, about)
        return after, message, torch.where(about["steps"] > 0, total, torch.nan)

    def _about(self, clients: np.ndarray, index: int) -> About:
        """What each of these clients knows of a round, as rows."""
        return _stack([about_client(self.training, int(client), index) for client in clients])

    def _round(self, index: int, about: About) -> Round:
        return this_round(self.training, index, about)

    def _step(
        self, index: int, differentiate: Differentiate, state: State, local: Local, batch: Batch, about: About
    ) -> tuple[Local, Tensor]:
        return take_step(self.training, differentiate, state, local, batch, self._round(index, about))

    def _trains(self, index: int) -> Tensor:
        """Which clients take local steps in a round."""
        trains = self.training.batches.steps > 0
        working = self.training.network.participants(index * gossip_steps(self.training.method))
        if working is not None:
            trains = trains & np.isin(np.arange(self.clients), working)
        return torch.as_tensor(trains, device=self.device)

    def _choose_chunk(self, wanted: int | None) -> tuple[int, str]:
        """How many clients run at once, and why."""
        model = self.training.model
        if model.draws_randomness:
            return 1, "the model has dropout, whose draws are keyed client by client"
        if wanted is None:
            small = model.size <= SMALL_MODEL
            wanted, reason = (SMALL_MODEL_CHUNK, "small model") if small else (1, "large model")
        else:
            reason = "as asked"
        trainable = np.flatnonzero(self.training.batches.steps)
        if failure := self._try_step(trainable[:1]):
            shape = "x".join(map(str, self.training.dataset.shape))
            what = f"{type(failure).__name__}: {failure}"
            raise ExperimentError(
                f"the model, the loss or the method fails on samples of shape {shape}: {what}"
            ) from failure
        if model.draws_randomness:  # found in the trial
            return 1, "the model draws random numbers, which are keyed client by client"
        if wanted > 1 and (failure := self._try_step(trainable[:2])):
            return 1, f"vmap cannot run this model or method: {failure}"
        return min(wanted, self.clients), reason

    def _try_step(self, clients: np.ndarray) -> Exception | None:
        """The error, if any, of one local step of these clients up to what they receive; nothing is kept of it."""
        if not len(clients):
            return None
        work, method = self.training, self.training.method
        each, differentiate = _how_to_run(len(clients))
        about = self._about(clients, 0)
        state = {name: rows[clients] for name, rows in self.state.items()}
        batch = Gathered(work.batches, work.dataset, clients.tolist(), 0, self.dtype).take(0)
        buffers = {name: value.clone() for name, value in work.model.template.named_buffers()}
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            before = torch.get_rng_state()
            try:
                local = each(lambda s, a: method.begin(s, self._round(0, a)))(state, about)
                local, _ = each(partial(self._step, 0, differentiate))(state, local, batch, about)
                after, message = each(lambda s, y, a: method.finish(s, y, self._round(0, a)))(state, local, about)
                # Nobody to talk to here: each hears itself, which has the shapes of what it will hear.
                mixed = {key: message[name] for key, (name, _) in mixes(method.sends, message).items()}
                received = each(lambda s, m, a: method.receive(s, m, self._round(0, a)))(after, mixed, about)
                _same_shapes(state, received)
                each(method.model)(received)
            except Exception as error:
                return error
            work.model.draws_randomness |= not torch.equal(torch.get_rng_state(), before)
        for name, value in work.model.template.named_buffers():
            if not torch.equal(value, buffers[name]):
                return ValueError(f"the model changes its buffer '{name}' while it trains, which no client sends")
        return None

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


def _how_to_run(clients: int) -> tuple[Callable[..., Any], Differentiate]:
    """How a function of one client is applied to a chunk, and how its objective is differentiated there."""
    return (_alone, with_tape) if clients == 1 else (vmap, grad_and_value)


def _alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """`vmap` for one client, without its cost: drop the leading dimension, call, put it back."""

    def call(*stacked: Any) -> Any:
        return tree_map(lambda t: t.unsqueeze(0), function(*tree_map(lambda t: t.squeeze(0), stacked)))

    return call


def _stack(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def _same_shapes(kept: State, received: State) -> None:
    """Refuse a method that forgets a part of its state, or changes its shape."""
    for name, rows in kept.items():
        if name not in received or received[name].shape != rows.shape:
            found = tuple(received[name].shape[1:]) if name in received else "nothing"
            raise ValueError(f"after receive, '{name}' of the state is {found}, not {tuple(rows.shape[1:])}")


def _like(active: Tensor, value: Tensor) -> Tensor:
    return active.view(-1, *[1] * (value.dim() - 1))
