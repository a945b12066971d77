"""The measurement of a round: from the engine's report and the clients' models to one record."""

import time
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from gossamer.data import summarise
from gossamer.engines import RoundReport, Stacked
from gossamer.errors import DivergenceError
from gossamer.measure.flatness import hessian_trace, sam_sharpness, top_eigenvalues
from gossamer.measure.metrics import Evaluator, Quality, squared_distances
from gossamer.measure.objective import FLATNESS_SAMPLES, Objective, training_objective
from gossamer.measure.table import Metrics, add_totals

#: Random vectors for the trace of a round.
TRACE_PROBES = 10


class Cadence(Protocol):
    """How often something is measured, in rounds; 0 is never. See `Evaluate` of an experiment."""

    @property
    def every(self) -> int: ...

    @property
    def clients(self) -> int: ...

    @property
    def training(self) -> int: ...

    @property
    def gradient(self) -> int: ...

    @property
    def sharpness(self) -> int: ...

    @property
    def personal(self) -> int: ...


class Measured(NamedTuple):
    """The record of one round."""

    #: The metrics of the round by name, see `METRICS`; what was not measured in this round is absent.
    metrics: Metrics
    #: Seconds of the round: local work, waiting for other workers, mixing, evaluation.
    timings: Metrics
    #: Values of every client by name, for observers that want them: see `CLIENT_VALUES`.
    clients: dict[str, np.ndarray]
    #: Values of every client that the run keeps; empty if the clients' own models were not due.
    kept: dict[str, np.ndarray]
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
        plan = engine.plan
        self._evaluator = Evaluator(
            training.model, training.loss, training.dataset, plan.chunk, engine.group, note, training.metric,
            "mkl" if plan.step in ("eager", "lanes") else plan.products,
        )  # fmt: skip

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
        due = self._due(round, self._cadence.clients, last=True) or self._due(round, self._cadence.personal)
        if not due or "client_loss" not in clients:
            return Measured(metrics, timings, wanted, {}, average)
        kept = {name: each for name, each in clients.items() if name != "client_bytes" and not np.isnan(each).all()}
        return Measured(metrics, timings, wanted, kept, average)

    def _models(self, round: int, metrics: Metrics, clients: dict[str, np.ndarray]) -> Tensor | None:
        """Evaluate the models that this round asks for; the averaged model, if it was among them."""
        cadence = self._cadence
        every, own, training = (self._due(round, each, last=True)
                                for each in (cadence.every, cadence.clients, cadence.training))  # fmt: skip
        gradient, sharpness, personal = (
            self._due(round, each) for each in (cadence.gradient, cadence.sharpness, cadence.personal)
        )
        personal = (personal or "client_personal_accuracy" in self._wants) and self._label_shares is not None
        average = self._engine.average() if every or training or gradient or sharpness or personal else None
        by_class: Tensor | None = None
        if average is not None and (every or personal):
            engine = self._engine
            if every:
                apart = squared_distances(engine.model_blocks, engine.own, engine.clients, engine.group)
                metrics["consensus"] = float(apart.sum()) / engine.clients
                clients["client_distance"] = apart.cpu().numpy()
            if quality := self._evaluator.test(average[None], together=True, by_class=personal):
                metrics |= quality.of_one("test", engine.training.metric) if every else {}
                by_class = quality.by_class
        if self._has_test and (own or personal or not {"client_accuracy", "client_loss"}.isdisjoint(self._wants)):
            loss, accuracy, _, own_by_class = self._own_models(personal)
            clients |= {"client_accuracy": accuracy.cpu().numpy(), "client_loss": loss.cpu().numpy()}
            if by_class is not None and own_by_class is not None:
                self._personal(by_class, own_by_class, metrics, clients)
            if own and not bool(accuracy.isnan().all()):
                metrics["client_accuracy_mean"] = float(accuracy.mean())
                metrics["client_accuracy_worst"] = float(accuracy.min())
                metrics["client_accuracy_best"] = float(accuracy.max())
            if own and (weights := self._engine.weights()) is not None:
                clients["client_weight"] = weights.cpu().numpy()
            if own:
                metrics["client_loss_mean"] = float(loss.mean())
                metrics["client_loss_worst"] = float(loss.max())
                metrics["client_loss_best"] = float(loss.min())
        if average is not None and training and (quality := self._evaluator.training(average[None], together=True)):
            metrics |= quality.of_one("train")
            if "test_accuracy" in metrics:
                metrics["generalisation_gap"] = metrics["train_accuracy"] - metrics["test_accuracy"]
        if average is not None and gradient:
            slope = self._mean_of_clients.gradient(average)
            metrics["gradient_norm_squared"] = float(slope.square().sum(dtype=torch.float64))
        if average is not None and sharpness:
            metrics |= self._flatness(average)
        return average

    def _own_models(self, by_class: bool) -> Quality:
        """Loss and accuracy of every client's own model on the test samples."""
        engine = self._engine
        blocks = [quality for rows in engine.model_blocks() if (quality := self._evaluator.test(rows, False, by_class))]
        rows = [torch.column_stack([value for value in quality if value is not None]) for quality in blocks]
        loss, accuracy, metric, *classes = engine.group.gather_clients(
            torch.cat(rows), engine.own, engine.clients
        ).unbind(1)
        return Quality(loss, accuracy, metric, torch.stack(classes, 1) if by_class else None)

    def _personal(self, average: Tensor, own: Tensor, metrics: Metrics, clients: dict[str, np.ndarray]) -> None:
        """Accuracies on test samples in the proportions of each client's own labels: of its model and the average."""
        shares = self._label_shares
        assert shares is not None, "checked before"
        for name, by_class in (("personal_accuracy", own), ("personal_average_accuracy", average)):
            held = shares * by_class.isfinite().cpu()  # labels that some test sample has
            accuracy = (held * by_class.nan_to_num().cpu()).sum(1) / held.sum(1)  # NaN: none of the client's labels
            clients[f"client_{name}"] = accuracy.numpy()
            if len(known := accuracy[accuracy.isfinite()]):
                metrics |= {
                    f"{name}_mean": float(known.mean()),
                    f"{name}_worst": float(known.min()),
                    f"{name}_best": float(known.max()),
                }

    @cached_property
    def _label_shares(self) -> Tensor | None:
        """The share of each label in the samples of each client; None where samples do not have one label each."""
        training = self._engine.training
        targets = training.dataset.train.targets
        if targets.dim() != 1 or targets.is_floating_point() or not self._has_test:
            return None
        counts = summarise(training.batches.client_rows, targets.cpu().numpy(), training.dataset.classes).labels
        return torch.from_numpy(counts / np.maximum(1, counts.sum(1, keepdims=True)))

    @cached_property
    def _mean_of_clients(self) -> Objective:
        """What the theorems bound: f = (1/n) Σ f_i, f_i being the mean loss of client i with weight decay."""
        training, group = self._engine.training, self._engine.group
        rows = training.batches.client_rows
        weights = np.zeros(len(training.dataset.train))
        sizes = np.maximum(1, rows.sizes)
        np.add.at(weights, rows.indices, 1 / (len(rows) * sizes[rows.owners]))
        return training_objective(training, group, torch.from_numpy(weights), training.weight_decay)

    @cached_property
    def _training_loss(self) -> Objective:
        return training_objective(self._engine.training, self._engine.group, most=FLATNESS_SAMPLES)

    def _flatness(self, average: Tensor) -> Metrics:
        """How flat the training loss is at a model; nothing if the model has diverged."""
        loss = self._training_loss
        try:
            trace = hessian_trace(loss, average, TRACE_PROBES)
            return {
                "top_eigenvalue": top_eigenvalues(loss, average, tolerance=1e-3, limit=100).values[0],
                "hessian_trace": trace.value,
                "hessian_trace_error": trace.error,
                "sam_sharpness": sam_sharpness(loss, average),
            }
        except DivergenceError:
            return {}

    def _due(self, round: int, every: int, last: bool = False) -> bool:
        """Whether something that is measured so often is measured in this round; with `last`, always in the last."""
        if round == self._rounds:
            return last or every > 0
        return every > 0 and round % every == 0


def _counts(report: RoundReport | None, history: Sequence[Metrics]) -> Metrics:
    """What was sent and computed, in the round and in all."""
    counts = {"bytes": 0, "messages": 0, "gradients": 0}
    if report is not None:
        sent = int(report.client_bytes.sum()) + report.server_bytes
        counts = {"bytes": sent, "messages": report.messages, "gradients": report.gradients}
    per_client = float(report.client_bytes.mean()) if report is not None else 0.0
    return {"client_bytes_round": per_client, **add_totals(counts, history[-1] if history else {})}
