"""The mixing speed of a graph: its spectrum, its contraction, and the rounds and messages that follow."""

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

#: Steps that represent a randomly drawn graph.
DRAWS = 20
#: The largest number of clients for which all eigenvalues, or the product of all steps, are computed.
DENSE = 2000
#: The number of clients beyond which iteration is tried first if the matrix is not symmetric.
DENSE_DIRECTED = 300
#: The largest number of clients for which all shortest paths are computed.
DIAMETER = 5000


@dataclass(frozen=True)
class GraphSummary:
    """The cost and the mixing speed of a graph. None: not defined for this graph, or too large to compute."""

    name: str
    clients: int
    directed: bool
    #: 1: static; m: repeats after m steps; None: drawn anew at every step.
    period: int | None
    #: Messages that a client sends per step: minimum, mean and maximum.
    degree_min: int
    degree_mean: float
    degree_max: int
    #: Hops between the two clients furthest apart, over all links of the window.
    diameter: int | None
    #: The second largest modulus of an eigenvalue; for a graph that changes, the mean over its steps.
    lambda_: float | None
    #: 1 - lambda.
    spectral_gap: float | None
    #: 1 - lambda², of a static symmetric matrix.
    p: float | None
    #: The factor by which disagreement shrinks per step; lambda for a static graph.
    contraction: float | None
    #: Steps until disagreement is at most a tenth.
    rounds_to_tenth: int | None
    #: Steps until every client holds the exact mean.
    exact_after: int | None
    #: Messages per step, of all clients and the server.
    links_per_step: float

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, ready for JSON."""
        return asdict(self)


def summarise(network: Network) -> GraphSummary:
    """Degrees, diameter, spectrum and mixing speed of a network; of a random one, of its first 20 steps."""
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
        directed=not network.claims.undirected and not network.has_server,  # a server receives and sends
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
        return 1.0  # every component has an eigenvalue 1 of its own
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
    start = np.random.default_rng(0).standard_normal(n)  # fixed: summaries are reproducible
    options = {"v0": start, "maxiter": 500, "return_eigenvectors": False}
    try:
        if not symmetric:
            return eigs(matrix, k=2, which="LM", **options)
        if matrix.nnz > 20 * n:
            return eigsh(matrix, k=2, which="LM", **options)
        # Eigenvalues of a large sparse graph cluster near 1; shift-invert separates them.
        top = eigsh(matrix.tocsc(), k=2, sigma=1 + 1e-3 / n, which="LM", **options)
        bottom = eigsh(matrix, k=1, which="SA", tol=1e-6, **options)
        return np.concatenate([top, bottom])
    except ArpackNoConvergence:
        return None


def _product(network: Network, steps: range) -> tuple[float, int | None]:
    """The factor by which disagreement shrinks per step, over all steps, and the steps until none is left."""
    doubly = network.claims.rows and network.claims.columns
    # The axis along which disagreement is measured; if rows and columns sum to one, both give the distance to the mean.
    # With columns alone, push-sum divides by the weights, so the difference between senders counts.
    axis = 0 if network.claims.rows else 1
    product: NDArray[np.float64] = np.eye(network.clients)
    apart, taken = product, 0
    for step in steps:
        product = network.matrix(step) @ product
        rest = product - product.mean(axis=axis, keepdims=True)
        if np.abs(rest).max() <= TOLERANCE:
            if doubly and network.period:
                return 0.0, step + 1
            break  # the rest is below the precision of float64
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
        return 2 if n > 1 else 0  # to the server and back
    if n > DIAMETER:
        return None
    union = union_links(network, DRAWS)
    if union.nnz == n * (n - 1):
        return min(1, n - 1)
    hops = shortest_path(union, unweighted=True).max()
    return int(hops) if np.isfinite(hops) else None
