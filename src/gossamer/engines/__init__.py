"""Who runs the clients."""

from gossamer.engines.stacked import RoundReport, Stacked, Training

__all__ = ["RoundReport", "Stacked", "Training"]
