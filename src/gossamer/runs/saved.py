"""Models of a run that has been saved, with the live parts of its experiment: everything from the run folder and the
data set."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gossamer.engines.stacked import initial_rows
from gossamer.errors import RunFolderError
from gossamer.experiment import Experiment, PreparedExperiment, load_experiment, prepare
from gossamer.runs.folder import BEST, EXPERIMENT, FINAL, RunFolder
from gossamer.system.machine import usable_cores
from gossamer.training import Training
from gossamer.workers import can_fork

Which = Literal["final", "best"]


class SavedModel(NamedTuple):
    """A model vector of a saved run."""

    #: "average", or "client 3".
    name: str
    round: int
    x: Tensor

    @property
    def digest(self) -> str:
        """A short fingerprint of the vector."""
        return hashlib.blake2b(self.x.cpu().numpy().tobytes(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class SavedRun:
    """A run folder and its experiment, prepared."""

    folder: RunFolder
    prepared: PreparedExperiment

    @classmethod
    def open(cls, path: Path, data_dir: Path | None = None, experiment: Experiment | None = None) -> "SavedRun":
        """A saved run. `experiment` is needed only if it holds objects that no file can express."""
        folder = RunFolder.open(path)
        if folder.peer is not None:
            raise RunFolderError(
                f"{path}: is the run of one peer of a network; only a simulation has all clients' data"
            )
        return cls(folder, prepare(experiment or load_experiment(path / EXPERIMENT), data_dir))

    @property
    def training(self) -> Training:
        """Model, loss, data set and method."""
        return self.prepared.training

    def average(self, which: Which = "final") -> SavedModel:
        """The averaged model at the end, or of the best round."""
        name, path = {"final": FINAL, "best": BEST}[which], self.folder.path
        if not (path / name).is_file():
            ending = self.folder.ending()
            why = f"{ending}" if ending else f"it has not ended: {self.folder.how_to_go_on} goes on with it"
            better = ". The best model so far is there: --model best" if (path / BEST).is_file() else ""
            raise RunFolderError(f"{path}: has no {which} model: {why}{better if which == 'final' else ''}")
        about, tensors = self.folder.load_model(name)
        model = self.training.model
        shapes = {key: tuple(shape) for key, shape in zip(model.names, model.shapes, strict=True)}
        if shapes != {key: tuple(value.shape) for key, value in tensors.items()}:
            raise RunFolderError(
                f"{path / name}: holds other tensors than the model of the experiment. Has it changed?"
            )
        x = torch.cat([tensors[key].reshape(-1) for key in model.names]).to(model.initial)
        return SavedModel("average", int(about.get("round", 0)), x)

    def client(self, number: int, note: Callable[[str], None] = lambda message: None) -> SavedModel:
        """A client's own model, from the newest checkpoint."""
        training, clients = self.training, self.training.network.clients
        if not 0 <= number < clients:
            raise RunFolderError(f"{self.folder.path}: has clients 0 to {clients - 1} (got {number})")
        state = initial_rows(training, 1)
        digest, own = self.prepared.experiment.digest, range(number, number + 1)
        done = self.folder.load_state(digest, state, own, clients, say=note)
        if not done:
            raise RunFolderError(f"{self.folder.path}: has no checkpoint, so no client's own model")
        x = training.method.model({name: rows[0] for name, rows in state.items()})
        return SavedModel(f"client {number}", done, x.detach())


def measuring_workers(wanted: int | None, training: Training) -> int:
    """The number of processes that measure a model: as wanted, or one for each core."""
    possible = training.model.initial.device.type == "cpu" and can_fork()
    return (wanted or usable_cores()) if possible else 1
