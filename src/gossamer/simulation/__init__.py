"""Running an experiment, round after round, to a `Run`."""

from gossamer.simulation.launch import resume, same_experiment, simulate
from gossamer.simulation.observer import Observer, Outcome, RoundRecord, RunStart
from gossamer.simulation.options import OnDivergence, Options, check_options
from gossamer.simulation.result import Diverged, Interrupted, Run
from gossamer.simulation.trackers import MLflow, TensorBoard

__all__ = [
    "Diverged",
    "Interrupted",
    "MLflow",
    "Observer",
    "OnDivergence",
    "Options",
    "Outcome",
    "RoundRecord",
    "Run",
    "RunStart",
    "TensorBoard",
    "check_options",
    "resume",
    "same_experiment",
    "simulate",
]
