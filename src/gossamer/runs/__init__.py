"""What a run leaves behind."""

from gossamer.runs.folder import RunFolder

__all__ = ["RunFolder"]
