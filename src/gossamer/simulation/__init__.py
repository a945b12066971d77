"""Running an experiment, round after round, to a `Run`."""

from gossamer.simulation.loop import (
    WORTH_A_WORKER,
    Diverged,
    Interrupted,
    Metrics,
    Observer,
    OnDivergence,
    Options,
    Run,
    Silent,
    _folder,
    check_options,
    number_of_workers,
    resume,
    same_experiment,
    simulate,
)

__all__ = [
    "WORTH_A_WORKER",
    "Diverged",
    "Interrupted",
    "Metrics",
    "Observer",
    "OnDivergence",
    "Options",
    "Run",
    "Silent",
    "_folder",
    "check_options",
    "number_of_workers",
    "resume",
    "same_experiment",
    "simulate",
]
