"""A peer's log and metrics, in a run folder like that of a simulation."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from gossamer.errors import RunFolderError
from gossamer.measure import Evaluator, add_totals
from gossamer.peers.identity.kit import Kit
from gossamer.runs.files import append_line
from gossamer.runs.folder import FINAL, RunFolder, read_lines, to_json
from gossamer.training import Training, count_gradients

#: Bytes after which a new log file is begun; one older file is kept.
LONGEST_LOG = 16 << 20


class Log(Protocol):
    """Logs an event with its details."""

    def __call__(self, event: str, **details: Any) -> None: ...


class Report:
    """The report of one peer. `watch` is called with every line of the log."""

    def __init__(
        self, kit: Kit, training: Training, folder: Path, watch: Callable[[dict[str, Any]], None] | None
    ) -> None:
        self._kit, self._training, self._watch = kit, training, watch
        self._log, self._run = folder / "log.jsonl", RunFolder(folder)
        #: The metrics of the last round.
        self.metrics: dict[str, Any] = next(reversed(read_lines(folder / "metrics.jsonl")), {})
        self._sent_before = (0, 0)
        self._gradients = count_gradients(training)

    def log(self, event: str, **details: Any) -> None:
        """Write one line, and show it: also where the disk is full, which need not end the peer, and may pass."""
        line = {"time": round(time.time(), 3), "peer": self._kit.name, "event": event, **details}
        if self._watch is not None:
            self._watch(line)
        self._rotate()
        try:
            append_line(self._log, to_json(line))
        except RunFolderError:
            if not self._log.parent.is_dir():  # moved or deleted: nothing can be written any more
                raise

    def _rotate(self) -> None:
        """Keep a log that has grown long as the one before it."""
        with suppress(OSError):  # not there yet; or it cannot be renamed, and then grows on
            if self._log.stat().st_size >= LONGEST_LOG:
                self._log.replace(self._log.with_name("log.1.jsonl"))

    def measure(self, round: int, vector: Tensor) -> dict[str, float]:
        """Evaluate the model after a round, if the experiment says so."""
        every = self._kit.roster.experiment.evaluate.every
        if round != self._training.rounds and not (every and round % every == 0):
            return {}
        training = self._training
        evaluator = Evaluator(training.model, training.loss, training.dataset, 1, metric=training.metric)
        quality = evaluator.test(vector[None])
        return quality.of_one("test", training.metric) if quality else {}

    def round(
        self, round: int, loss: float, quality: dict[str, float], sent: tuple[int, int], seconds: dict[str, float]
    ) -> None:
        """Record a round. `sent` counts the bytes and the messages that this process has sent in all."""
        before, self._sent_before = self._sent_before, sent
        batches, own = self._training.batches, self._kit.number
        gradients = self._gradients.step * int(batches.steps[own])
        if round == 1:
            gradients += self._gradients.opening * int(batches.per_epoch[own])
        counts = {"bytes": sent[0] - before[0], "messages": sent[1] - before[1], "gradients": gradients}
        self.metrics = {
            "round": round, "lr": self._training.lr_at(round - 1), "local_loss": loss,
            "client_bytes_round": float(counts["bytes"]), **add_totals(counts, self.metrics), **quality,
        }  # fmt: skip
        self._run.record(self.metrics, {"round": round, **seconds})
        self.log("round", **self.metrics)

    def final(self, round: int, vector: Tensor) -> None:
        """Save the model after the last round."""
        self._run.save_model(FINAL, self._training.model.unflatten(vector), round)
        self.log("finished", **self.metrics)
