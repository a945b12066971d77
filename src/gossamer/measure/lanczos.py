"""The largest eigenvalues of a symmetric matrix that is known only by its products with vectors."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class Eigenvalues(NamedTuple):
    """Approximate eigenvalues, and how good they are."""

    #: The largest first.
    values: tuple[float, ...]
    #: Residual norms ‖A y − θ y‖, |y| = 1: an eigenvalue of A lies within this distance of each value θ.
    errors: tuple[float, ...]
    #: Matrix-vector products so far.
    products: int
    #: Whether every error is within the tolerance.
    converged: bool

    def shifted(self, by: float) -> "Eigenvalues":
        """Those of A + by·I, such as the Hessian with weight decay `by`."""
        return self._replace(values=tuple(value + by for value in self.values))


class AsymmetryError(ArithmeticError):
    """The matrix is not symmetric."""


def lanczos(
    product: Callable[[Tensor], Tensor],
    draw: Callable[[int], Tensor],
    count: int = 1,
    tolerance: float = 1e-4,
    limit: int = 200,
    magnitude: bool = False,
) -> Iterator[Eigenvalues]:
    """The `count` largest eigenvalues of A, better after each product, until they converge or `limit` is reached.

    Thick-restart Lanczos: the matrix is projected on an orthonormal basis V that grows by v ← (A v − V Vᵀ A v), scaled
    to length one, with full reorthogonalisation. A full basis is replaced by its best Ritz vectors, so memory is that
    of max(20, 2 count + 10) vectors. Converged: every residual norm is at most `tolerance` times the largest |θ|.
    `magnitude` orders by |θ| in place of θ. `draw(i)` is the i-th random vector: the first starts the basis, the others
    continue it where A maps it into itself.

    >>> A = torch.diag(torch.tensor([1.0, -5.0, 3.0], dtype=torch.float64))
    >>> *_, last = lanczos(lambda v: A @ v, lambda i: torch.eye(3, dtype=torch.float64)[i] + 1, count=2)
    >>> [round(value, 9) for value in last.values], last.converged
    ([3.0, 1.0], True)
    """
    start = draw(0)
    size, precision = start.numel(), torch.finfo(start.dtype).eps
    count = min(count, size)
    width = min(size, max(20, 2 * count + 10))
    kept = count + (width - count) // 3
    vector, draws = start / start.norm(), 1
    basis = start.new_empty(width, size)
    projected = torch.zeros(width, width, dtype=torch.float64)
    filled, coupling, invariant = 0, 0.0, False
    for products in range(1, limit + 1):
        basis[filled] = vector
        image = product(vector)
        inner = basis[: filled + 1] @ image
        column = inner.to("cpu", torch.float64)  # at most `width` numbers
        projected[filled, : filled + 1] = projected[: filled + 1, filled] = column
        scale = float(projected.abs().max())
        if coupling and abs(float(column[filled - 1]) - coupling) > 1e-2 * max(scale, coupling):
            raise AsymmetryError("the matrix is not symmetric")
        filled += 1
        rest = image.sub_(basis[:filled].T @ inner)
        rest -= basis[:filled].T @ (basis[:filled] @ rest)
        coupling = float(rest.norm())

        ritz, vectors = torch.linalg.eigh(projected[:filled, :filled])
        order = (ritz.abs() if magnitude else ritz).argsort(descending=True)
        values, errors = ritz[order[:count]], coupling * vectors[-1, order[:count]].abs()
        if filled == size or coupling <= 10 * precision * scale:
            coupling, invariant, errors = 0.0, True, torch.zeros_like(errors)
        # An invariant subspace holds a multiple eigenvalue once: the other copies come with the next random vectors.
        complete = filled == width if invariant else filled >= count
        converged = complete and bool((errors <= tolerance * float(ritz.abs().max())).all())
        yield Eigenvalues(tuple(values.tolist()), tuple(errors.tolist()), products, converged)
        if converged:
            return

        vector = rest / coupling if coupling else _orthogonal(draw(draws), basis[:filled])
        draws += not coupling
        if filled == width:
            best = order[:kept]
            basis[:kept] = vectors[:, best].T.to(basis) @ basis
            projected.zero_()
            projected[range(kept), range(kept)] = ritz[best]
            filled, coupling = kept, 0.0


def _orthogonal(vector: Tensor, basis: Tensor) -> Tensor:
    """The part of a vector outside the span of an orthonormal basis, of length one."""
    for _ in range(2):
        vector = vector - basis.T @ (basis @ vector)
        vector = vector / vector.norm()
    return vector
