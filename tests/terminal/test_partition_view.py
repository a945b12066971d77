"""The table of a partition."""

from io import StringIO

import numpy as np
from rich.console import Console

from gossamer.data import PartitionSummary
from gossamer.terminal.partition_view import partition_table


def shown(summary):
    console = Console(file=StringIO(), width=80)
    console.print(partition_table(summary))
    return console.file.getvalue()


def test_table():
    text = shown(PartitionSummary(np.array([[4, 0, 0], [1, 1, 2], [0, 0, 0]])))
    assert "8 samples, 3 clients" in text
    assert "heterogeneity 0.38" in text
    assert "▂▂▄" in text
    assert "more clients" not in text


def test_table_of_many_clients_and_labels_fits_a_terminal():
    text = shown(PartitionSummary(np.ones((120, 100), int)))
    assert "and 100 more clients" in text
    assert "label 0 to 99" in text
    assert "…" not in text
    assert "│     19 │" in text
    assert "│     20 │" not in text
