"""Gossamer: federated learning with no server."""

from gossamer.data import per_client
from gossamer.errors import GossamerError
from gossamer.experiment import Experiment
from gossamer.simulation import Run, resume, simulate

__all__ = ["Experiment", "GossamerError", "Run", "per_client", "resume", "simulate"]
