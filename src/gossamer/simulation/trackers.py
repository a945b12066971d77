"""Observers that write every metric to a tracker: TensorBoard and MLflow, each an extra of the package."""

import importlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gossamer.errors import ExperimentError
from gossamer.simulation.observer import Observer, Outcome, RoundRecord, RunStart


def finite(record: RoundRecord) -> dict[str, float]:
    """The numbers of a round by name, without its own number and without those that are not finite."""
    values = {**record.metrics, **record.timings}
    known = {key: value for key, value in values.items() if key != "round" and isinstance(value, int | float)}
    return {key: float(value) for key, value in known.items() if math.isfinite(value)}


def _needed(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ExperimentError(f"{extra} is not installed: pip install 'gossamer[{extra}]'") from None


class TensorBoard(Observer):
    """Writes every metric as TensorBoard events, into `tensorboard` of the run folder if no other one is given."""

    def __init__(self, folder: Path | str | None = None) -> None:
        self._make = _needed("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._folder = folder
        self._writer: Any = None

    def start(self, run: RunStart) -> None:
        if self._folder is None and run.folder is None:
            raise ExperimentError("TensorBoard: this run has no folder: give one, as in TensorBoard('events')")
        self._writer = self._make(str(self._folder or (run.folder and run.folder / "tensorboard")))

    def round(self, record: RoundRecord) -> bool:
        for key, value in finite(record).items():
            self._writer.add_scalar(key, value, record.round)
        return False

    def end(self, outcome: Outcome) -> None:
        if self._writer:
            self._writer.close()


class MLflow(Observer):
    """Logs every metric, and the keys of the experiment as parameters, to the MLflow of the environment."""

    def __init__(self, name: str | None = None) -> None:
        self._mlflow = _needed("mlflow", "mlflow")
        self._name = name
        self._started = False
        with self._refusals():
            self._mlflow.MlflowClient()  # refuses a store that it cannot open; nothing has been written yet

    def start(self, run: RunStart) -> None:
        with self._refusals():
            self._mlflow.start_run(run_name=self._name or (run.folder and run.folder.name))
            self._started = True
            self._mlflow.log_params(flat(run.experiment.resolved()))

    def round(self, record: RoundRecord) -> bool:
        with self._refusals():
            self._mlflow.log_metrics(finite(record), step=record.round)
        return False

    def end(self, outcome: Outcome) -> None:
        if self._started:
            kinds = {"finished": "FINISHED", "stopped": "FINISHED", "interrupted": "KILLED"}
            with self._refusals():
                self._mlflow.end_run(kinds.get(outcome.ending.kind, "FAILED"))

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Say what MLflow refuses, and where it writes to."""
        try:
            yield
        except self._mlflow.MlflowException as error:
            where = self._mlflow.get_tracking_uri()
            raise ExperimentError(f"mlflow, writing to {where} (MLFLOW_TRACKING_URI): {error}") from error


def flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys.

    >>> flat({"lr": 0.1, "method": {"name": "dfedsam", "rho": 0.1}})
    {'lr': 0.1, 'method.name': 'dfedsam', 'method.rho': 0.1}
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{before}{key}.") if isinstance(value, Mapping) else {f"{before}{key}": value}
    return found
