"""Who talks to whom, and with what weight."""

from pathlib import Path

from gossamer.graphs.network import Claims, Network, check
from gossamer.graphs.spectrum import GraphSummary, summarise
from gossamer.graphs.topologies import (
    GRAPHS,
    BaseK,
    Circulant,
    DirectedRandom,
    DoubleRing,
    EdgeList,
    Edges,
    ErdosRenyi,
    Exponential,
    Full,
    Graph,
    Grid,
    Isolated,
    KRegular,
    Matrix,
    OnePeerExponential,
    RandomPull,
    RandomSymmetric,
    Ring,
    Server,
    Star,
    Torus,
    as_graph,
)

__all__ = [
    "GRAPHS",
    "BaseK",
    "Circulant",
    "Claims",
    "DirectedRandom",
    "DoubleRing",
    "EdgeList",
    "Edges",
    "ErdosRenyi",
    "Exponential",
    "Full",
    "Graph",
    "GraphSummary",
    "Grid",
    "Isolated",
    "KRegular",
    "Matrix",
    "Network",
    "OnePeerExponential",
    "RandomPull",
    "RandomSymmetric",
    "Ring",
    "Server",
    "Star",
    "Torus",
    "as_graph",
    "check",
    "draw",
    "summarise",
]


def draw(network: Network, path: str | Path) -> Path:
    """Draw `network` to a png, svg or pdf file; a changing graph shows its first steps side by side."""
    from gossamer.graphs import picture  # matplotlib takes half a second to import, in every worker

    return picture.draw(network, path)
