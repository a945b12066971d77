"""The communication graph: which clients send to which, with what weight."""

from pathlib import Path

from gossamer.graphs.catalog import GRAPHS, Graph, as_graph, make_network
from gossamer.graphs.given import Edges, Matrix
from gossamer.graphs.network import Claims, Network, check
from gossamer.graphs.spectrum import GraphSummary, summarise

__all__ = [
    "GRAPHS",
    "Claims",
    "Edges",
    "Graph",
    "GraphSummary",
    "Matrix",
    "Network",
    "as_graph",
    "check",
    "draw",
    "make_network",
    "summarise",
]


def draw(network: Network, path: str | Path) -> Path:
    """Draw `network` to a png, svg or pdf file; a changing graph shows its first steps side by side."""
    from gossamer.graphs import picture  # matplotlib takes half a second to import, in every worker

    return picture.draw(network, path)
