"""The plain loop: ordinary PyTorch over the same clients' batches, to compare the engine with."""

import copy
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from gossamer.bench.processor import finish_work
from gossamer.models import call_module
from gossamer.system.threads import on_threads
from gossamer.training import Training

#: Steps that are not timed: memory is fetched in them.
WARM_UP = 2


@dataclass(frozen=True)
class LoopSpeed:
    """The plain loop with some number of threads. It trains and does nothing else: no mixing, no evaluation."""

    threads: int
    #: The median of its turns.
    gradients_per_second: float


def plain_loop(training: Training, threads: int, seconds: float) -> float:
    """Gradients per second of an ordinary loop: a module and an optimizer for each client, batch after batch.

    Clients are made as the loop comes to them, so what it needs does not depend on how many there are. Only the
    steps are timed: gathering a batch, the forward and the backward pass, the update.
    """
    dataset, batches, loss, dtype = training.dataset, training.batches, training.loss, training.model.initial.dtype
    clients = np.flatnonzero(batches.steps).tolist()
    learners: dict[int, tuple[nn.Module, torch.optim.SGD]] = {}

    def step(client: int, rows: Tensor) -> None:
        module, optimizer = learners[client]
        some = dataset.train.select(rows)
        inputs = dataset.scaling.apply(some.inputs, dtype)
        optimizer.zero_grad()
        losses = loss(call_module(module, inputs), some.targets)
        losses.mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def everyone() -> Iterator[tuple[int, Tensor]]:
        for round in itertools.count():
            for client in clients:
                if client not in learners:
                    module = copy.deepcopy(training.model.template).train()
                    decay = training.weight_decay
                    learners[client] = (
                        module,
                        torch.optim.SGD(module.parameters(), lr=training.lr, weight_decay=decay),
                    )
                for rows in batches.indices(client, round):
                    yield client, torch.as_tensor(rows, device=dataset.train.device)

    spent, timed = 0.0, 0
    with on_threads(threads), torch.random.fork_rng():  # dropout draws from torch's own stream
        for number, (client, rows) in enumerate(everyone()):
            started = time.perf_counter()
            step(client, rows)
            finish_work(rows.device)
            if number >= WARM_UP:
                spent, timed = spent + time.perf_counter() - started, timed + 1
                if spent >= seconds:
                    break
    return timed / spent
