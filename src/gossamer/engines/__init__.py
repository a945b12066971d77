"""Who runs the clients."""

from gossamer.engines.client import Training
from gossamer.engines.isolated import Isolated, Trace
from gossamer.engines.stacked import RoundReport, Stacked

__all__ = ["Isolated", "RoundReport", "Stacked", "Trace", "Training"]
