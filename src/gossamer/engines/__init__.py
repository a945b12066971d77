"""Who runs the clients."""

from gossamer.engines.memory import OutOfMemory, check_room
from gossamer.engines.planning.choice import Wanted, check_first_step, choose_plan
from gossamer.engines.reference import Isolated, Trace
from gossamer.engines.stacked import RoundReport, Stacked
from gossamer.engines.steps.chunk import How, Plan

__all__ = [
    "How",
    "Isolated",
    "OutOfMemory",
    "Plan",
    "RoundReport",
    "Stacked",
    "Trace",
    "Wanted",
    "check_first_step",
    "check_room",
    "choose_plan",
]
