"""The run folder: metrics, checkpoints, models, and how the run ended."""

from gossamer.runs.folder import RunFolder
from gossamer.runs.record import RunRecord, read_clients, read_run

__all__ = ["RunFolder", "RunRecord", "read_clients", "read_run"]
