"""Gossamer: federated learning with no server."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gossamer.data import per_client
    from gossamer.errors import GossamerError
    from gossamer.experiment import Experiment
    from gossamer.simulation import Observer, Run, resume, simulate
    from gossamer.studies import Study, compare

#: What a user may import from here, and the room it lives in. Loaded when first asked for, since torch takes seconds.
_ROOMS = {
    "Experiment": "gossamer.experiment",
    "GossamerError": "gossamer.errors",
    "Observer": "gossamer.simulation",
    "Run": "gossamer.simulation",
    "Study": "gossamer.studies",
    "compare": "gossamer.studies",
    "per_client": "gossamer.data",
    "resume": "gossamer.simulation",
    "simulate": "gossamer.simulation",
}

__all__ = ["Experiment", "GossamerError", "Observer", "Run", "Study", "compare", "per_client", "resume", "simulate"]


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module 'gossamer' has no attribute '{name}'")
    return getattr(importlib.import_module(_ROOMS[name]), name)


def __dir__() -> list[str]:
    return __all__
