"""What a peer writes for people to read: its log, and a run folder like that of a simulation."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from gossamer.measure import Evaluator
from gossamer.peers.identity.kit import Kit
from gossamer.runs.files import append_line
from gossamer.runs.folder import FINAL, RunFolder, read_lines, to_json
from gossamer.training.steps import Training


class Log(Protocol):
    """Writes down that something happened."""

    def __call__(self, event: str, **about: Any) -> None: ...


class Report:
    """The report of one peer. `watch` gets every line of the log."""

    def __init__(
        self, kit: Kit, training: Training, folder: Path, watch: Callable[[dict[str, Any]], None] | None
    ) -> None:
        self._kit, self._training, self._watch = kit, training, watch
        self._log, self._run = folder / "log.jsonl", RunFolder(folder)
        #: Of the last round that was measured.
        self.metrics: dict[str, Any] = next(reversed(read_lines(folder / "metrics.jsonl")), {})
        self._sent_before = 0

    def log(self, event: str, **about: Any) -> None:
        """One structured line."""
        line = {"time": round(time.time(), 3), "peer": self._kit.name, "event": event, **about}
        append_line(self._log, to_json(line))
        if self._watch is not None:
            self._watch(line)

    def measure(self, round: int, vector: Tensor) -> dict[str, float]:
        """How good the model is after a round, where it is one to be measured."""
        every = self._kit.roster.experiment.evaluate.every
        if round != self._training.rounds and not (every and round % every == 0):
            return {}
        quality = Evaluator(self._training.model, self._training.loss, self._training.dataset, 1).test(vector[None])
        return {"test_loss": float(quality.loss), "test_accuracy": float(quality.accuracy)} if quality else {}

    def round(
        self, round: int, loss: float, quality: dict[str, float], sent_bytes: int, seconds: dict[str, float]
    ) -> None:
        """Write a round down. `sent_bytes` are all that this process has sent."""
        experiment = self._kit.roster.experiment
        sent, self._sent_before = sent_bytes - self._sent_before, sent_bytes
        self.metrics = {
            "round": round, "lr": experiment.lr * experiment.lr_decay ** (round - 1), "local_loss": loss,
            "bytes_per_client": float(sent), "bytes_round": sent,
            "bytes_total": self.metrics.get("bytes_total", 0) + sent, **quality,
        }  # fmt: skip
        self._run.record(self.metrics, {"round": round, **seconds})
        self.log("round", **self.metrics)

    def final(self, round: int, vector: Tensor) -> None:
        """Keep the model after the last round."""
        self._run.save_model(FINAL, self._training.model.unflatten(vector), round)
        self.log("finished", **self.metrics)
