"""Who runs the clients."""

from gossamer.engines.chunk import How, Plan
from gossamer.engines.client import Training
from gossamer.engines.isolated import Isolated, Trace
from gossamer.engines.memory import OutOfMemory, check_room
from gossamer.engines.stacked import RoundReport, Stacked
from gossamer.engines.tuning import Wanted, check_first_step, choose_plan

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
    "check_first_step",
    "check_room",
    "choose_plan",
]
