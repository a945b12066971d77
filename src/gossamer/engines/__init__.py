"""Who runs the clients."""

from gossamer.engines.chunk import How, Plan
from gossamer.engines.client import Training
from gossamer.engines.isolated import Isolated, Trace
from gossamer.engines.memory import OutOfMemory
from gossamer.engines.stacked import RoundReport, Stacked
from gossamer.engines.tuning import Wanted, choose_plan

__all__ = [
    "How",
    "Isolated",
    "OutOfMemory",
    "Plan",
    "RoundReport",
    "Stacked",
    "Trace",
    "Training",
    "Wanted",
    "choose_plan",
]
