"""The measurement of a round: from the engine's report and the clients' models to one record."""

import time
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from gossamer.engines import RoundReport, Stacked
from gossamer.measure.metrics import Evaluator, Quality, consensus_distance
from gossamer.measure.table import Metrics, add_totals


class Cadence(Protocol):
    """How often something is measured, in rounds; 0 is never. The last round is always measured in full."""

    @property
    def every(self) -> int: ...

    @property
    def clients(self) -> int: ...

    @property
    def training(self) -> int: ...


class Measured(NamedTuple):
    """The record of one round."""

    #: The metrics of the round by name, see `METRICS`; what was not measured in this round is absent.
    metrics: Metrics
    #: Seconds of the round: local work, waiting for other workers, mixing, evaluation.
    timings: Metrics
    #: Values of every client by name, for observers that want them: see `CLIENT_VALUES`.
    clients: dict[str, np.ndarray]
    #: The averaged model, if the round needed it.
    average: Tensor | None


class Measurement:
    """Measures the rounds of one run. All workers call it together and get the same record."""

    def __init__(
        self,
        engine: Stacked,
        cadence: Cadence,
        wants: Collection[str] = (),
        note: Callable[[str], None] = lambda message: None,
    ) -> None:
        training = engine.training
        self._engine, self._cadence, self._wants = engine, cadence, wants
        self._rounds = training.rounds
        self._has_test = bool(len(training.dataset.test))
        self._evaluator = Evaluator(
            training.model, training.loss, training.dataset, engine.plan.chunk, engine.group, note, training.metric
        )

    def measure(self, round: int, report: RoundReport | None, history: Sequence[Metrics]) -> Measured:
        """The record of a round, after the rounds in `history`; of round 0, before the first, there is no report."""
        started = time.perf_counter()
        metrics: Metrics = {"round": round}
        if report is not None:
            training = self._engine.training
            metrics["lr"] = training.lr_at(round - 1)
            # A client that did not train has no loss; the loss of a client that diverged is not a number.
            metrics["local_loss"] = float(report.losses[~report.losses.isnan() | report.broken].mean())
        metrics |= _counts(report, history)
        clients: dict[str, np.ndarray] = {}
        if report is not None:
            clients = {"client_local_loss": report.losses.cpu().numpy(), "client_bytes": report.client_bytes}
        average = self._models(round, metrics, clients)
        timings = {
            "round": round,
            "seconds_local": report.seconds_local if report else 0.0,
            "seconds_waiting": report.seconds_waiting if report else 0.0,
            "seconds_mixing": report.seconds_mixing if report else 0.0,
            "seconds_evaluation": time.perf_counter() - started,
        }
        wanted = {name: values for name, values in clients.items() if name in self._wants}
        return Measured(metrics, timings, wanted, average)

    def _models(self, round: int, metrics: Metrics, clients: dict[str, np.ndarray]) -> Tensor | None:
        """Evaluate the models that this round asks for; the averaged model, if it was among them."""
        every, own, training = (self._due(round, each) for each in
                                (self._cadence.every, self._cadence.clients, self._cadence.training))  # fmt: skip
        average = self._engine.average() if every or training else None
        if average is not None and every:
            engine = self._engine
            metrics["consensus"] = consensus_distance(engine.model_blocks, engine.own, engine.clients, engine.group)
            if quality := self._evaluator.test(average[None], together=True):
                metrics |= quality.of_one("test", engine.training.metric)
        if self._has_test and (own or not {"client_accuracy", "client_loss"}.isdisjoint(self._wants)):
            loss, accuracy, _ = self._own_models()
            clients |= {"client_accuracy": accuracy.cpu().numpy(), "client_loss": loss.cpu().numpy()}
            if own and not bool(accuracy.isnan().all()):
                metrics["client_accuracy_mean"] = float(accuracy.mean())
                metrics["client_accuracy_worst"] = float(accuracy.min())
                metrics["client_accuracy_best"] = float(accuracy.max())
            if own:
                metrics["client_loss_mean"] = float(loss.mean())
                metrics["client_loss_worst"] = float(loss.max())
                metrics["client_loss_best"] = float(loss.min())
        if average is not None and training and (quality := self._evaluator.training(average[None], together=True)):
            metrics |= quality.of_one("train")
            if "test_accuracy" in metrics:
                metrics["generalisation_gap"] = metrics["train_accuracy"] - metrics["test_accuracy"]
        return average

    def _own_models(self) -> Quality:
        """Loss and accuracy of every client's own model on the test samples."""
        engine = self._engine
        found = [quality for rows in engine.model_blocks() if (quality := self._evaluator.test(rows))]
        own = torch.stack([torch.cat(values) for values in zip(*found, strict=True)], dim=1)
        return Quality(*engine.group.gather_clients(own, engine.own, engine.clients).unbind(1))

    def _due(self, round: int, every: int) -> bool:
        return round == self._rounds or (every > 0 and round % every == 0)


def _counts(report: RoundReport | None, history: Sequence[Metrics]) -> Metrics:
    """What was sent and computed, in the round and in all."""
    counts = {"bytes": 0, "messages": 0, "gradients": 0}
    if report is not None:
        sent = int(report.client_bytes.sum()) + report.server_bytes
        counts = {"bytes": sent, "messages": report.messages, "gradients": report.gradients}
    per_client = float(report.client_bytes.mean()) if report is not None else 0.0
    return {"client_bytes_round": per_client, **add_totals(counts, history[-1] if history else {})}
