"""How flat the loss is around a model: Hessian eigenvalues, Hessian trace, SAM-sharpness.

Each is that of an `Objective`, so with weight decay or without. Weight decay wd adds wd to every eigenvalue and wd·d to
the trace (`shifted`), without another Hessian-vector product. Random vectors depend on the seed alone: all models of a
comparison, and all rounds of a run, are measured along the same ones.
"""

import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.errors import ExperimentError
from gossamer.measure.lanczos import AsymmetryError, Eigenvalues, lanczos
from gossamer.measure.objective import Objective
from gossamer.randomness import Purpose, generator


class Trace(NamedTuple):
    """An estimate of a trace."""

    value: float
    #: Standard error of the value: the standard deviation of the estimates / √(their number).
    error: float

    def shifted(self, by: float) -> "Trace":
        """That of H + (by / d) I: for weight decay wd, `by` is wd times the number of parameters d."""
        return self._replace(value=self.value + by)


def top_eigenvalues(
    objective: Objective,
    x: Tensor,
    count: int = 1,
    seed: int = 0,
    tolerance: float = 1e-4,
    limit: int = 200,
    magnitude: bool = False,
) -> Eigenvalues:
    """The `count` largest eigenvalues of ∇²f(x), by value or (`magnitude`) by absolute value.

    The errors tell how good they are, also where `limit` Hessian-vector products were not enough to converge.
    """
    *_, last = eigenvalue_estimates(objective, x, count, seed, tolerance, limit, magnitude)
    return last


def eigenvalue_estimates(
    objective: Objective,
    x: Tensor,
    count: int = 1,
    seed: int = 0,
    tolerance: float = 1e-4,
    limit: int = 200,
    magnitude: bool = False,
) -> Iterator[Eigenvalues]:
    """What `top_eigenvalues` has after each Hessian-vector product; the last is the result."""
    if not 1 <= count <= objective.model.size:
        raise ExperimentError(f"count must be 1 to {objective.model.size:,}, the model's parameters (got {count})")
    if not 0 < tolerance < 1:
        raise ExperimentError(f"tolerance must be between 0 and 1 (got {tolerance})")
    if limit < count:
        raise ExperimentError(f"limit must be at least count = {count} Hessian-vector products (got {limit})")
    objective.finite_value(x)

    def draw(number: int) -> Tensor:
        normal = generator(seed, Purpose.LANCZOS, step=number).standard_normal(x.numel(), dtype="float32")
        return torch.from_numpy(normal).to(x)

    try:
        yield from lanczos(partial(objective.hessian_product, x), draw, count, tolerance, limit, magnitude)
    except AsymmetryError:
        raise ExperimentError(
            f"{objective.name}: its matrix of second derivatives is not symmetric, so its gradient is not that of any "
            "function. A detach() or an own backward pass does this."
        ) from None


def hessian_trace(objective: Objective, x: Tensor, probes: int = 30, seed: int = 0) -> Trace:
    """tr ∇²f(x) as the mean of `probes` estimates zᵀ ∇²f(x) z, with its standard error."""
    if probes < 2:
        raise ExperimentError(f"probes must be 2 or more, or the trace has no standard error (got {probes})")
    return trace_of(trace_estimates(objective, x, range(probes), seed))


def trace_estimates(objective: Objective, x: Tensor, probes: Iterable[int], seed: int = 0) -> Iterator[float]:
    """Hutchinson's estimates zᵀ ∇²f(x) z, the entries of z being ±1 with equal probability: E[zᵀ H z] = tr H.

    An estimate depends on the seed and the probe's number alone, so probes can be shared among workers.
    """
    objective.finite_value(x)
    for number in probes:
        bits = generator(seed, Purpose.TRACE, step=number).integers(0, 2, x.numel(), dtype="int8")
        z = torch.from_numpy(bits).to(x).mul_(2).sub_(1)
        yield float((z * objective.hessian_product(x, z)).sum(dtype=torch.float64))


def trace_of(estimates: Iterable[float]) -> Trace:
    """Mean and standard error of two or more estimates.

    >>> trace_of([1.0, 3.0])
    Trace(value=2.0, error=1.0)
    """
    numbers = list(estimates)
    mean = math.fsum(numbers) / len(numbers)
    variance = math.fsum((number - mean) ** 2 for number in numbers) / (len(numbers) - 1)
    return Trace(mean, math.sqrt(variance / len(numbers)))


def sam_sharpness(objective: Objective, x: Tensor, rho: float = 0.05) -> float:
    """max over ‖δ‖ ≤ ρ of f(x + δ) − f(x), to first order: f(x + ρ g / ‖g‖) − f(x), g = ∇f(x); 0 where g is 0."""
    if not 0 < rho < math.inf:
        raise ExperimentError(f"rho must be a finite radius above 0 (got {rho})")
    value, gradient = objective.finite_value(x), objective.gradient(x)
    norm = gradient.norm()
    if float(norm) == 0:
        return 0.0
    return objective.value(x + gradient * (rho / norm)) - value
