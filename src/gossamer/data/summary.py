"""Summary of a partition: the number of samples of each label that each client holds, and a figure of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossamer.data.client_rows import ClientRows
from gossamer.errors import DataError

SUFFIXES = (".png", ".svg", ".pdf")


@dataclass(frozen=True, eq=False)
class PartitionSummary:
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


def draw(summary: PartitionSummary, path: Path) -> None:
    """A heat map of labels by client in a .png, .svg or .pdf file."""
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(f"{path}: a figure is written as {', '.join(SUFFIXES)}; '{path.suffix}' is none of them.")
    # Imported here: it takes half a second, and few runs draw. No pyplot: it keeps global state.
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    clients, classes = summary.labels.shape
    # Near-square cells while that gives a figure of a sane size.
    figure = Figure(
        figsize=(float(np.clip(2.4 + 0.16 * clients, 5, 14)), float(np.clip(1.6 + 0.26 * classes, 2.6, 9))),
        layout="constrained",
    )
    axes = figure.add_subplot()
    # No sample at all is grey, so that one sample can be told from none.
    axes.set_facecolor("#eeeeee")
    shown = np.ma.masked_equal(summary.labels.T, 0)
    image = axes.imshow(shown, aspect="auto", cmap="YlGnBu", interpolation="nearest", origin="lower", vmin=0)
    axes.set_xlabel("client")
    axes.set_ylabel("label")
    axes.set_title(
        f"{summary.sizes.sum():,} samples, {clients:,} clients, heterogeneity {summary.heterogeneity:.2f}",
        loc="left",
        fontsize="medium",
    )
    for axis, length in ((axes.xaxis, clients), (axes.yaxis, classes)):
        axis.set_major_locator(MaxNLocator(nbins=min(length, 20), integer=True))
    # Thin white lines between cells read as a table; with very many cells they would be all there is to see.
    if clients * classes <= 5_000:
        axes.set_xticks(np.arange(clients + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(classes + 1) - 0.5, minor=True)
        axes.grid(which="minor", color="white", linewidth=0.8)
        axes.tick_params(which="minor", length=0)
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=axes, pad=0.02, fraction=0.05)
    bar.set_label("samples")
    bar.outline.set_visible(False)
    bar.locator = MaxNLocator(nbins=6, integer=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror}).") from None
