"""The constants of the theorems, measured on the clients' data at the initial model.

The theorems need bounds that hold everywhere; a measurement holds at one point, so it is an estimate and no guarantee.
The objective is that of training (the loss and the weight decay), without augmentation and dropout.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import norm
from scipy.sparse.csgraph import laplacian
from torch import Tensor

from gossamer.data import Batches, Inputs
from gossamer.errors import ExperimentError
from gossamer.graphs import GraphSummary, Network
from gossamer.models import Parameters, sample_losses
from gossamer.training import Training
from gossamer.training.steps import FULL_GRADIENT_BATCH, Objective, with_tape

#: Mini-batches of each client for the gradient noise: the first ones of the first round.
NOISE_BATCHES = 5
#: Samples of all clients together for the curvature.
CURVATURE_SAMPLES = 2000
CURVATURE_ITERATIONS = 30
CURVATURE_TOLERANCE = 1e-3
#: Steps over which the contraction of push-sum is measured, and the largest number of clients for it.
PUSH_STEPS, PUSH_CLIENTS = 20, 2000
NEGLIGIBLE = 1e-9


class Measured(NamedTuple):
    """Measurements on the clients' data at the initial model."""

    #: f(x⁰), the mean of the clients' mean losses.
    loss: float
    #: √((1/m) Σ‖∇f_i − ∇f‖²), also called ζ.
    sigma_g: float
    #: max ‖∇f_i − ∇f‖.
    beta: float
    #: max ‖∇f_i‖.
    gradient: float
    #: √ of the mean over clients of E‖mini-batch gradient − ∇f_i‖².
    sigma_l: float
    #: The same for the noisiest client.
    sigma_l_largest: float
    #: The largest |curvature|, or the user's value.
    smoothness: float
    #: ‖x⁰‖.
    x0: float


class Mixing(NamedTuple):
    """The mixing speed of a graph in the constants of the theorems."""

    #: λ.
    rate: float
    #: C.
    factor: float
    #: δ.
    least_weight: float


def measure(work: Training, smoothness: float | None = None) -> Measured:
    """All measurements; `smoothness` is estimated unless it is given."""
    work.model.template.eval()
    x = work.model.initial
    clients = range(len(work.batches.client_rows))
    pairs = [gradient_of(work, work.batches.client_rows[client], x) for client in clients]
    loss = math.fsum(pair[1] for pair in pairs) / len(pairs)
    if not math.isfinite(loss):
        raise ExperimentError("the loss of the initial model is not finite, so its gradients cannot be measured")
    if loss < 0:
        raise ExperimentError(f"loss: is {loss:g} at the initial model; the bounds need a loss that is never negative")
    gradients = torch.stack([pair[0] for pair in pairs])
    away = (gradients - mean_row(gradients)).norm(dim=1).double()
    noise = [noise_of(work, client, gradients[client], x) for client in clients]
    return Measured(
        loss=loss,
        sigma_g=float(away.square().mean().sqrt()),
        beta=float(away.max()),
        gradient=float(gradients.norm(dim=1).max()),
        sigma_l=math.sqrt(math.fsum(noise) / len(noise)),
        sigma_l_largest=math.sqrt(max(noise)),
        smoothness=largest_curvature(work, x) if smoothness is None else smoothness,
        x0=float(x.norm()),
    )


def mean_row(rows: Tensor) -> Tensor:
    """The mean over clients, exact where all rows are equal: the first row and the mean difference to it."""
    return rows[0] + (rows - rows[0]).mean(dim=0)


def objectives(work: Training, rows: NDArray[np.int64], weights: Tensor | None = None) -> Iterator[Objective]:
    """The mean loss of some samples (or their weighted sum) as a sum of functions that fit into memory."""
    train, dtype = work.dataset.train, work.model.initial.dtype
    for start in range(0, len(rows), FULL_GRADIENT_BATCH):
        cut = slice(start, start + FULL_GRADIENT_BATCH)
        some = train[torch.as_tensor(rows[cut], device=train.device)]
        inputs, targets = work.dataset.scaling.apply(some.inputs, dtype), some.targets
        share: Tensor | float = 1 / len(rows) if weights is None else weights[cut]

        def objective(
            x: Parameters, inputs: Inputs = inputs, targets: Tensor = targets, share: Tensor | float = share
        ) -> Tensor:
            return (sample_losses(work.loss, work.model(x, inputs), targets) * share).sum()

        yield objective


def gradient_of(work: Training, rows: NDArray[np.int64], x: Tensor) -> tuple[Tensor, float]:
    """The gradient and the value of the mean loss of some samples, with weight decay."""
    gradient, value = work.weight_decay * x, 0.5 * work.weight_decay * float(x.square().sum())
    for objective in objectives(work, rows):
        piece, loss = with_tape(objective, work.model)(x)
        gradient, value = gradient + piece, value + float(loss)
    return gradient, value


def noise_of(work: Training, client: int, gradient: Tensor, x: Tensor) -> float:
    """The mean squared distance between the gradients of a client's first mini-batches and its full gradient."""
    b = work.batches
    drawn = Batches(b.client_rows, b.batch_size, None, NOISE_BATCHES, b.seed).indices(client, 0)
    distances = [float((gradient_of(work, rows, x)[0] - gradient).square().sum()) for rows in drawn]
    return math.fsum(distances) / max(1, len(distances))


def largest_curvature(work: Training, x: Tensor) -> float:
    """The largest |eigenvalue| of the Hessian of f at x, by power iteration on up to 2000 samples."""
    client_rows = work.batches.client_rows
    most = max(1, CURVATURE_SAMPLES // len(client_rows))
    chosen = [rows[:: -(-len(rows) // most)] if len(rows) else rows for rows in client_rows]
    weights = [np.full(len(rows), 1 / (len(client_rows) * max(1, len(rows)))) for rows in chosen]
    pieces = list(objectives(work, np.concatenate(chosen), torch.from_numpy(np.concatenate(weights)).to(x)))
    start = np.random.default_rng(0).standard_normal(len(x))  # fixed: the estimate is reproducible
    direction = torch.from_numpy(start).to(x)
    found = 0.0
    for _ in range(CURVATURE_ITERATIONS):
        direction = direction / direction.norm()
        image = work.weight_decay * direction
        for piece in pieces:
            image = image + hessian_times(piece, x, direction)
        before, found = found, abs(float(direction @ image))
        if not math.isfinite(found):
            raise ExperimentError("the curvature of the initial model is not finite; give --smoothness")
        if abs(found - before) <= CURVATURE_TOLERANCE * found or not bool(image.any()):
            break
        direction = image
    if found == 0:
        raise ExperimentError(
            "the loss has no curvature at the initial model: it is linear there, or cannot be differentiated twice; "
            "set the smoothness with --smoothness"
        )
    return found


def hessian_times(objective: Objective, x: Tensor, direction: Tensor) -> Tensor:
    """The Hessian of an objective times a vector, by differentiating twice."""
    leaf = x.detach().requires_grad_()
    try:
        (gradient,) = torch.autograd.grad(objective(leaf), leaf, create_graph=True)
        if not gradient.requires_grad:  # a linear loss
            return torch.zeros_like(x)
        (image,) = torch.autograd.grad(gradient @ direction, leaf, allow_unused=True)
    except (RuntimeError, NotImplementedError) as error:
        raise ExperimentError(
            f"the model cannot be differentiated twice ({error}), so its smoothness cannot be estimated: "
            "set it with --smoothness"
        ) from None
    return torch.zeros_like(x) if image is None else image


def mixing_of(network: Network, summary: GraphSummary) -> Mixing:
    """λ, C and δ of a graph. A server's mean is exact; a graph that is exact after m steps counts as 1 − 1/m."""
    if network.has_server:
        return Mixing(0.0, 1.0, 1.0)
    rate = summary.lambda_
    if summary.period != 1:  # one step alone need not connect all clients
        rate = summary.lambda_ if summary.contraction is None else summary.contraction
        rate = 1 - 1 / summary.exact_after if summary.exact_after else rate
    if rate is None:
        raise ExperimentError(f"graph: λ of '{network.name}' with {network.clients} clients could not be computed")
    return Mixing(rate, *push_sum_constants(network, rate))


def push_sum_is_measured(network: Network) -> bool:
    """Whether C and δ are those of the graph: symmetric weights have C = δ = 1, few clients are measured."""
    exact = network.has_server or network.claims.symmetric or not network.claims.columns
    return exact or network.clients <= PUSH_CLIENTS


def push_sum_constants(network: Network, rate: float) -> tuple[float, float]:
    """The least C with ‖W⁻¹ P_t … P_1 − 11ᵀ/n‖ ≤ C qᵗ, and the least push-sum weight, both over the first steps."""
    n = network.clients
    if not network.claims.columns:  # push-sum is not defined for such weights
        return float("nan"), float("nan")
    if network.claims.symmetric or not push_sum_is_measured(network):
        return 1.0, 1.0
    product: NDArray[np.float64] = np.eye(n)
    factor, least = 1.0, 1.0
    for step in range(PUSH_STEPS):
        product = network.matrix(step) @ product
        weights = product.sum(axis=1)
        least = min(least, float(weights.min()))
        apart = float(norm(product / weights[:, None] - 1 / n, 2))
        if apart < NEGLIGIBLE or not rate:
            break
        factor = max(factor, apart / rate ** (step + 1))
    return factor, least


def pull_of(network: Network, alpha: float) -> float:
    """‖D − E‖₂ of Local G-ECL: α times the largest eigenvalue of the graph's Laplacian."""
    if not alpha or network.has_server:
        return 0.0
    links = (network.matrix(0).toarray() > 0).astype(float)
    np.fill_diagonal(links, 0)
    return alpha * float(norm(laplacian(links), 2))
