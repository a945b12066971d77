"""The engines, which run the clients of an experiment round by round."""

from gossamer.engines.in_turn import engine_of
from gossamer.engines.memory import SMALL_STATE, OutOfMemory, check_memory, explain_lack_of_memory, shared_sizes
from gossamer.engines.planning.choice import PlanOverrides, choose_plan
from gossamer.engines.planning.workers import number_of_workers
from gossamer.engines.reference import Reference, Trace
from gossamer.engines.stacked import RoundReport, Stacked
from gossamer.engines.steps.chunk import PRODUCERS, ExecutionPlan, StepMode
from gossamer.engines.steps.products import FastProducts, Products, no_onednn, why_not

__all__ = [
    "PRODUCERS",
    "SMALL_STATE",
    "ExecutionPlan",
    "FastProducts",
    "OutOfMemory",
    "PlanOverrides",
    "Products",
    "Reference",
    "RoundReport",
    "Stacked",
    "StepMode",
    "Trace",
    "check_memory",
    "choose_plan",
    "engine_of",
    "explain_lack_of_memory",
    "no_onednn",
    "number_of_workers",
    "shared_sizes",
    "why_not",
]
