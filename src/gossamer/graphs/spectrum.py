"""How fast a graph mixes: its spectrum, its contraction, and what that means in rounds and messages."""

from dataclasses import asdict, dataclass
from math import ceil, log
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigvals, eigvalsh, norm
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, shortest_path
from scipy.sparse.linalg import ArpackNoConvergence, eigs, eigsh

from gossamer.graphs.network import TOLERANCE, Network, union_links

DRAWS = 20  # steps that stand for an endlessly drawn graph
DENSE = 2000  # clients up to which all eigenvalues, or the product of all steps, are computed
DENSE_DIRECTED = 300  # and beyond which, without symmetry, iteration is tried first
DIAMETER = 5000  # clients up to which all shortest paths are


@dataclass(frozen=True)
class GraphSummary:
    """What a graph costs and how fast it mixes. None: not defined for this graph, or too large to compute."""

    name: str
    clients: int
    directed: bool
    period: int | None  # 1: static; m: repeats after m steps; None: drawn anew at every step
    degree_min: int  # messages that a client sends per step
    degree_mean: float
    degree_max: int
    diameter: int | None  # hops between the two clients furthest apart, over all links of the window
    lambda_: float | None  # second largest modulus of an eigenvalue; time-varying: the mean over steps
    spectral_gap: float | None  # 1 - lambda
    p: float | None  # 1 - lambda², of a static symmetric matrix
    contraction: float | None  # by how much disagreement shrinks per step; static: lambda
    rounds_to_tenth: int | None  # steps until disagreement is at most a tenth
    exact_after: int | None  # steps until every client holds the exact mean
    links_per_step: float  # messages per step, all clients and the server together

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, ready for JSON."""
        return asdict(self)


def summarise(network: Network) -> GraphSummary:
    """Degrees, diameter, spectrum and mixing speed of a network; random ones are judged by their first 20 steps."""
    steps = network.window(DRAWS)
    static = network.period == 1
    sends = np.array([network.sends(step) for step in steps])
    served = np.array([network.server_sends(step) for step in steps])

    lambdas = [second_eigenvalue(network.matrix(step), network.claims.symmetric) for step in steps]
    lambda_ = None if None in lambdas else float(np.mean([value for value in lambdas if value is not None]))
    if static or network.clients > DENSE:
        contraction = lambda_ if static else None
        exact_after = 1 if static and _is_exact(network.matrix(0)) else None
    else:
        contraction, exact_after = _product(network, steps)

    return GraphSummary(
        name=network.name,
        clients=network.clients,
        directed=not network.claims.undirected and not network.has_server,  # a server is talked to and talks back
        period=network.period,
        degree_min=int(sends.min()),
        degree_mean=float(sends.mean()),
        degree_max=int(sends.max()),
        diameter=_diameter(network),
        lambda_=lambda_,
        spectral_gap=None if lambda_ is None else 1 - lambda_,
        p=1 - lambda_**2 if static and network.claims.symmetric and lambda_ is not None else None,
        contraction=contraction,
        rounds_to_tenth=exact_after or _rounds_to_tenth(contraction),
        exact_after=exact_after,
        links_per_step=float((sends.sum(axis=1) + served).mean()),
    )


def second_eigenvalue(matrix: csr_array, symmetric: bool = False) -> float | None:
    """The second largest modulus of an eigenvalue; None when the iteration for a very large matrix does not settle."""
    n = matrix.shape[0]
    if n == 1:
        return 0.0
    if connected_components(matrix, directed=False, return_labels=False) > 1:
        return 1.0  # every part that does not hear from the others has an eigenvalue 1 of its own
    values = None
    if n > (DENSE if symmetric else DENSE_DIRECTED):  # without symmetry, all eigenvalues take twenty times as long
        values = _leading_eigenvalues(matrix, symmetric)
    if values is None and n <= DENSE:
        values = eigvalsh(matrix.toarray()) if symmetric else eigvals(matrix.toarray())
    if values is None:
        return None
    second = np.sort(np.abs(values))[-2]
    return 0.0 if second < TOLERANCE else float(min(second, 1.0))


def _leading_eigenvalues(matrix: csr_array, symmetric: bool) -> Any:
    """The few eigenvalues that can be second in modulus, by iteration; None when it does not settle."""
    n = matrix.shape[0]
    start = np.random.default_rng(0).standard_normal(n)  # fixed, so that a summary says the same every time
    options = {"v0": start, "maxiter": 500, "return_eigenvectors": False}
    try:
        if not symmetric:
            return eigs(matrix, k=2, which="LM", **options)
        if matrix.nnz > 20 * n:
            return eigsh(matrix, k=2, which="LM", **options)
        # Next to 1 the eigenvalues of a large sparse graph crowd; the inverse shifted there tells them apart.
        top = eigsh(matrix.tocsc(), k=2, sigma=1 + 1e-3 / n, which="LM", **options)
        bottom = eigsh(matrix, k=1, which="SA", tol=1e-6, **options)
        return np.concatenate([top, bottom])
    except ArpackNoConvergence:
        return None


def _product(network: Network, steps: range) -> tuple[float, int | None]:
    """How much disagreement shrinks per step, all steps taken together; and after how many of them nothing is left."""
    doubly = network.claims.rows and network.claims.columns
    # What keeps the clients apart. Doubly stochastic: both are the distance to the mean. Columns alone: push-sum
    # divides by the weights, so what counts is whether the clients' values still differ by sender.
    axis = 0 if network.claims.rows else 1
    product: NDArray[np.float64] = np.eye(network.clients)
    apart, taken = product, 0
    for step in steps:
        product = network.matrix(step) @ product
        rest = product - product.mean(axis=axis, keepdims=True)
        if np.abs(rest).max() <= TOLERANCE:
            if doubly and network.period:
                return 0.0, step + 1
            break  # a random graph is at the end of what float64 tells apart; a server is at once
        apart, taken = rest, step + 1
    return (float(norm(apart, 2) ** (1 / taken)) if taken else 0.0), None


def _is_exact(matrix: Any) -> bool:
    return bool(abs(matrix - np.full(matrix.shape, 1 / matrix.shape[0])).max() <= TOLERANCE)


def _rounds_to_tenth(contraction: float | None) -> int | None:
    if contraction is None or contraction > 1 - TOLERANCE:
        return None
    if contraction == 0:
        return 1
    return max(1, ceil(log(10) / -log(contraction) - 1e-9))


def _diameter(network: Network) -> int | None:
    n = network.clients
    if network.has_server:
        return 2 if n > 1 else 0  # up to the server and down again
    if n > DIAMETER:
        return None
    union = union_links(network, DRAWS)
    if union.nnz == n * (n - 1):
        return min(1, n - 1)
    hops = shortest_path(union, unweighted=True).max()
    return int(hops) if np.isfinite(hops) else None
