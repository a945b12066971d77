"""What a person sees in the terminal."""

from gossamer.terminal.console import err, out, percent, say_where, size
from gossamer.terminal.progress import Watching, make_observer, tensorboard_observer, watching
from gossamer.terminal.tables import catalog_list, graph_table, results_table, run_table

__all__ = [
    "Watching",
    "catalog_list",
    "err",
    "graph_table",
    "make_observer",
    "out",
    "percent",
    "results_table",
    "run_table",
    "say_where",
    "size",
    "tensorboard_observer",
    "watching",
]
