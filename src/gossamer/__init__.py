"""Gossamer: federated learning with no server."""

import importlib
from typing import TYPE_CHECKING, Any

from gossamer.system.notebook import Displayed

if TYPE_CHECKING:
    from gossamer.data import per_client
    from gossamer.errors import GossamerError
    from gossamer.experiment import Experiment
    from gossamer.runs import read_run
    from gossamer.simulation import Observer, Run, resume, simulate
    from gossamer.studies import Study, compare
    from gossamer.terminal import show_progress

#: What a user may import from here, and the room it lives in. Loaded when first asked for, since torch takes seconds.
_ROOMS = {
    "Experiment": "gossamer.experiment",
    "GossamerError": "gossamer.errors",
    "Observer": "gossamer.simulation",
    "Run": "gossamer.simulation",
    "Study": "gossamer.studies",
    "compare": "gossamer.studies",
    "per_client": "gossamer.data",
    "read_run": "gossamer.runs",
    "resume": "gossamer.simulation",
    "show_progress": "gossamer.terminal",
    "simulate": "gossamer.simulation",
}

__all__ = [
    "Experiment",
    "GossamerError",
    "Observer",
    "Run",
    "Study",
    "compare",
    "per_client",
    "read_run",
    "resume",
    "show_progress",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module 'gossamer' has no attribute '{name}'")
    return getattr(importlib.import_module(_ROOMS[name]), name)


def __dir__() -> list[str]:
    return __all__


#: Results draw themselves with a later room than their own, which takes half a second to import.
Displayed.room = staticmethod(lambda: importlib.import_module("gossamer.pages.notebook"))
