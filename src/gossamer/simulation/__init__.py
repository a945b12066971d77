"""Running an experiment, round after round, to a `Run`."""

from gossamer.simulation.launch import resume, same_experiment, simulate
from gossamer.simulation.observer import Observer, Outcome, RoundRecord, RunStart
from gossamer.simulation.options import OnDivergence, Options, check_options
from gossamer.simulation.result import Diverged, Interrupted, Run

__all__ = [
    "Diverged",
    "Interrupted",
    "Observer",
    "OnDivergence",
    "Options",
    "Outcome",
    "RoundRecord",
    "Run",
    "RunStart",
    "check_options",
    "resume",
    "same_experiment",
    "simulate",
]
