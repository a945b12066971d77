"""What a person sees in the terminal."""

from gossamer.terminal.console import err, number, out, percent, say_where
from gossamer.terminal.progress import Watching, make_observer, tensorboard_observer, watching
from gossamer.terminal.tables import catalog_list, graph_table, method_list, results_markdown, results_table, run_table

__all__ = [
    "Watching",
    "catalog_list",
    "err",
    "graph_table",
    "make_observer",
    "method_list",
    "number",
    "out",
    "percent",
    "results_markdown",
    "results_table",
    "run_table",
    "say_where",
    "tensorboard_observer",
    "watching",
]
