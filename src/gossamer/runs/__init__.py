"""The run folder: metrics, checkpoints, models, and how the run ended."""

from gossamer.runs.folder import RunFolder
from gossamer.runs.record import read_clients

__all__ = ["RunFolder", "read_clients"]
