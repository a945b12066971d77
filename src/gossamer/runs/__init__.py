"""The run folder: metrics, checkpoints, models, and how the run ended."""

from gossamer.runs.folder import RunFolder

__all__ = ["RunFolder"]
