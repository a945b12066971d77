"""Rounds in which one client after the other mixes and trains, in place.

Public simulators of the papers' authors keep one table of models. In a round they take the clients in the order of
their numbers; each averages its neighbours' rows *as they are by then*, trains from there, and overwrites its own row.
So a client hears some neighbours' models of this round and some of the last one, where a real network has those of the
last round alone. If local work moves a model by s, the average moves by s divided by the mean age, in rounds, of the
rows that are mixed: on the full graph twice as fast.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer.engines.stacked import RoundReport, Stacked, default_plan
from gossamer.engines.steps.chunk import ExecutionPlan
from gossamer.methods import Round, State
from gossamer.mixing import Traffic
from gossamer.training import Training, call
from gossamer.training.rounds import first_of


class InTurn(Stacked):
    """The engine of `order = "in-turn"`. One worker has all clients: each needs what the one before it has made.

    Between rounds `x` of a client is the model that it has sent, not yet mixed: what the average is taken of. Clients
    without samples have the last turns.
    """

    def __init__(self, training: Training, plan: ExecutionPlan | None = None, *how: Any, **more: Any) -> None:
        super().__init__(training, (plan or default_plan(training))._replace(chunk=1), *how, **more)

    def _round(self, index: int) -> RoundReport:
        """One round: every client in turn mixes, receives, trains and sends."""
        training, buffers = self.training, self._buffers
        started, (step,) = self._now(), training.gossip_steps(index)
        training.model.template.train()
        buffers.begin()
        if buffers.double:
            for name, rows in buffers.front.items():
                buffers.back[name].copy_(rows)
        state, weights = buffers.back, training.network.matrix(step).tocsr()
        weights.sort_indices()
        losses = torch.full((self.clients,), torch.nan, dtype=self.dtype, device=self.device)
        broken = torch.zeros(self.clients, dtype=torch.bool, device=self.device)
        with self._own_random_stream():
            for inputs in self._chunks(np.arange(self.clients), index):
                (client,) = inputs.clients.tolist()
                own, round = slice(client, client + 1), first_of(inputs.round)
                low, high = weights.indptr[client : client + 2]
                heard = torch.as_tensor(weights.indices[low:high].astype(np.int64), device=self.device)
                factors = torch.as_tensor(weights.data[low:high], device=self.device).to(self.dtype)
                # Chosen rows are a copy, which is most of the work of a round if they are all.
                sent = state["x"] if len(heard) == self.clients else state["x"][heard]
                self._receive_one(state, client, factors @ sent, round)
                outcome = self.runner.run({name: rows[own] for name, rows in state.items()}, inputs)
                buffers.write(state, own, outcome.state)
                self._receive_one(state, client, outcome.message["x"][0], round)
                losses[client] = outcome.losses[0]
                worked = bool(training.batches.steps[client])
                finite = torch.isfinite(outcome.message["x"]).all()
                broken[client] = ~finite | (worked & ~torch.isfinite(losses[client]))
        traffic = Traffic(np.zeros(self.clients, dtype=np.int64))
        traffic.add(training.network, training.traits, {"x": state["x"][:1]}, step, None)
        buffers.swap()
        self.done = index + 1
        counted = (traffic.clients, traffic.server, traffic.messages)
        return RoundReport(losses, broken, *counted, self._gradients_taken(index), self._now() - started, 0.0, 0.0)

    def _receive_one(self, state: State, client: int, x: Tensor, round: Round) -> None:
        """The state of one client after a message has arrived."""
        before = {name: rows[client] for name, rows in state.items()}
        after = call("receive", round.number, self.training.method.receive, before, {"x": x}, round)
        self._buffers.write(state, slice(client, client + 1), {name: value[None] for name, value in after.items()})


def engine_of(training: Training) -> type[Stacked]:
    """The engine that runs a training."""
    return InTurn if training.in_turn else Stacked
