"""What `gossamer partition` prints."""

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from gossamer.data import PartitionSummary

BLOCKS = " ▁▂▃▄▅▆▇█"
#: Clients in the table.
ROWS = 20
#: Blocks in a row: a hundred labels are drawn three to a block, so that a row fits a terminal.
COLUMNS = 40


def partition_table(summary: PartitionSummary) -> Table:
    """One row for each of the first clients, its labels as bars."""
    clients, classes = summary.labels.shape
    more = f"and {clients - ROWS:,} more clients\n" if clients > ROWS else ""
    drawn = Table(
        title=f"{summary.sizes.sum():,} samples, {clients:,} clients",
        caption=f"{more}heterogeneity {summary.heterogeneity:.2f}",
        title_justify="left",
        caption_justify="left",
    )
    drawn.add_column("client", justify="right")
    drawn.add_column("samples", justify="right")
    drawn.add_column("labels", justify="right")
    drawn.add_column(f"label 0 to {classes - 1}", no_wrap=True)
    rows = zip(summary.sizes, summary.distinct, _bars(summary.labels), strict=True)
    for client, (size, distinct, bars) in enumerate(rows):
        if client == ROWS:
            break
        drawn.add_row(str(client), f"{size:,}", str(distinct), Text(bars))
    return drawn


def _bars(labels: NDArray[np.int64]) -> list[str]:
    """A bar for each label (or a few neighbouring ones), all on the scale of the longest."""
    merged = -(-labels.shape[1] // COLUMNS)
    counts = np.add.reduceat(labels, np.arange(0, labels.shape[1], merged), axis=1)
    # Rounded up, so that a single sample shows.
    heights = np.ceil(counts / max(int(counts.max(initial=0)), 1) * (len(BLOCKS) - 1)).astype(int)
    return ["".join(BLOCKS[height] for height in row) for row in heights]
