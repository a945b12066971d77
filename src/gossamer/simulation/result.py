"""The result of a run, and the two ways in which a run ends with an exception."""

import shlex
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn

from gossamer.data import PartitionSummary
from gossamer.errors import DivergenceError
from gossamer.experiment import Experiment
from gossamer.measure import Metrics, best_round
from gossamer.models import VectorModel
from gossamer.runs.ending import Ending
from gossamer.system.notebook import Displayed

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Run(Displayed):
    """The result of a run."""

    experiment: Experiment
    #: Every client's model vector: [clients, d]; no rows if they were not to be kept.
    vectors: Tensor
    #: How many samples of each class every client held.
    partition: PartitionSummary
    #: How the run ended: finished, stopped on purpose, or diverged.
    ending: Ending
    folder: Path | None = None
    _history: list[Metrics] = field(repr=False, kw_only=True)
    _seconds: list[Metrics] = field(repr=False, kw_only=True)
    _vector_model: VectorModel = field(repr=False, kw_only=True)
    _average: Tensor = field(repr=False, kw_only=True)

    @cached_property
    def metrics(self) -> "pd.DataFrame":
        """The metrics, one row per round."""
        import pandas as pd

        return pd.DataFrame(self._history)

    @cached_property
    def timings(self) -> "pd.DataFrame":
        """Seconds of local work, waiting, mixing and evaluation, one row per round."""
        import pandas as pd

        return pd.DataFrame(self._seconds)

    @property
    def model(self) -> nn.Module:
        """The average of all clients' models; push-sum clients count by their weight."""
        return self._vector_model.module(self._average)

    @property
    def best(self) -> Metrics:
        """The metrics of the best round: highest test accuracy, or lowest test loss where accuracy has no meaning."""
        return best_round(self._history)

    @property
    def last(self) -> Metrics:
        """The metrics of the last round."""
        return self._history[-1] if self._history else {}

    @property
    def sent_per_client(self) -> float:
        """Bytes that a client sent in all rounds, the mean over all clients; through a server, the way up alone."""
        return float(sum(line["client_bytes_round"] for line in self._history))


class Diverged(DivergenceError):
    """A run left the finite numbers; `run` holds everything up to the round before."""

    def __init__(self, message: str, run: Run) -> None:
        super().__init__(message)
        self.run = run


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM during a run; `folder`, if there is one, holds a checkpoint of `round` (0: none yet).

    If the signal came in the last round, `run` is the result.
    """

    def __init__(self, round: int, folder: Path | None, run: Run | None = None) -> None:
        when = f"after round {round}" if round else "before the first checkpoint"
        go_on = f"; go on with: gossamer resume {shlex.quote(str(folder))}" if folder is not None else ""
        super().__init__(f"stopped {when}{go_on}")
        self.round = round
        self.folder = folder
        self.run = run
