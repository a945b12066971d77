"""Summary of a partition: the number of samples of each label that each client holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossamer.data.client_rows import ClientRows
from gossamer.system.notebook import Displayed


@dataclass(frozen=True, eq=False)
class PartitionSummary(Displayed):
    """Label counts [clients, classes] and statistics of them."""

    labels: NDArray[np.int64]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of samples of each client."""
        sizes: NDArray[np.int64] = self.labels.sum(axis=1)
        return sizes

    @property
    def distinct(self) -> NDArray[np.int64]:
        """The number of different labels of each client."""
        distinct: NDArray[np.int64] = (self.labels > 0).sum(axis=1)
        return distinct

    @property
    def heterogeneity(self) -> float:
        """The mean total variation distance between a client's label distribution and that of all samples.

        0 if all clients have the same distribution, close to 1 if each holds labels that few others hold. Clients
        without samples are left out.
        """
        held = self.labels[self.sizes > 0]
        if not len(held):
            return 0.0
        everyone = self.labels.sum(axis=0) / self.labels.sum()
        return float(np.abs(held / held.sum(axis=1, keepdims=True) - everyone).sum(axis=1).mean() / 2)

    def to_dict(self) -> dict[str, Any]:
        """All statistics as plain numbers, for JSON."""
        return {
            "clients": len(self.labels),
            "samples": int(self.labels.sum()),
            "sizes": self.sizes.tolist(),
            "distinct": self.distinct.tolist(),
            "labels": self.labels.tolist(),
            "heterogeneity": self.heterogeneity,
        }


def summarise(client_rows: ClientRows | Sequence[Any], targets: NDArray[Any], classes: int) -> PartitionSummary:
    """Count the labels of each client. Without one label for each sample, one column of sizes.

    >>> summary = summarise([np.array([0, 1]), np.array([2, 3])], np.array([0, 0, 1, 1]), classes=2)
    >>> summary.labels.tolist(), summary.heterogeneity
    ([[2, 0], [0, 2]], 0.5)
    """
    rows = ClientRows.of(client_rows)
    if targets.ndim != 1 or targets.dtype.kind not in "iub":
        return PartitionSummary(rows.sizes[:, None])
    cells = rows.owners * classes + targets[rows.indices]
    return PartitionSummary(np.bincount(cells, minlength=len(rows) * classes).reshape(len(rows), classes))
