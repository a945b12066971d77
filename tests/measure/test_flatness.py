"""Flatness, against spectra known beforehand, dense Hessians and values computed by hand."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gossamer.data import Samples, Scaling
from gossamer.errors import DivergenceError, ExperimentError
from gossamer.measure.flatness import (
    eigenvalue_estimates,
    hessian_trace,
    sam_sharpness,
    top_eigenvalues,
    trace_estimates,
    trace_of,
)
from gossamer.measure.lanczos import lanczos
from gossamer.measure.objective import Objective
from gossamer.models import CrossEntropy, SquaredError, VectorModel, sample_losses


class Quadratic(nn.Module):
    """½ xᵀ A x for every sample, A having the given eigenvalues and random eigenvectors."""

    def __init__(self, spectrum: list[float]) -> None:
        super().__init__()
        normal = torch.randn(len(spectrum), len(spectrum), generator=torch.Generator().manual_seed(1)).double()
        vectors = torch.linalg.qr(normal).Q
        self.matrix = vectors @ torch.diag(torch.tensor(spectrum, dtype=torch.float64)) @ vectors.T
        self.x = nn.Parameter(torch.ones(len(spectrum), dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return (0.5 * self.x @ self.matrix @ self.x).expand(len(inputs), 1)


def its_output(outputs: Tensor, targets: Tensor) -> Tensor:
    assert len(targets)
    return outputs[:, 0]


def quadratic(spectrum: list[float], **settings: Any) -> tuple[Objective, Tensor]:
    model = VectorModel(Quadratic(spectrum))
    some = Samples(torch.zeros(3, 1, dtype=torch.float64), torch.zeros(3, dtype=torch.int64))
    return Objective(model, its_output, some, **settings), model.initial


def net(activation: nn.Module, dtype: torch.dtype = torch.float64, **settings: Any) -> tuple[Objective, Tensor]:
    """A net of 67 parameters on 40 samples of three classes."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        module = nn.Sequential(nn.Linear(4, 8), activation, nn.Linear(8, 3)).to(dtype)
        rows = Samples(torch.randn(40, 4, dtype=torch.float64).to(dtype), torch.randint(3, (40,)))
    model = VectorModel(module)
    return Objective(model, settings.pop("loss", CrossEntropy()), rows, **settings), 2 * model.initial


def dense(objective: Objective, x: Tensor) -> Tensor:
    """The Hessian, entry by entry."""

    def mean(vector: Tensor) -> Tensor:
        outputs = objective.model(vector, objective.samples.inputs)
        losses = sample_losses(objective.loss, outputs, objective.samples.targets)
        return losses.mean() + 0.5 * objective.weight_decay * vector.square().sum()

    return torch.autograd.functional.hessian(mean, x)


SPECTRUM = [9.0, 7.5, 7.4, *torch.linspace(-2, 2, 60).tolist(), -8.0]


@pytest.mark.parametrize("weight_decay", [0.0, 0.5])
def test_the_spectrum_of_a_quadratic(weight_decay: float) -> None:
    objective, x = quadratic(SPECTRUM, weight_decay=weight_decay)
    found = top_eigenvalues(objective, x, count=3, tolerance=1e-8)
    assert found.converged
    assert found.values == pytest.approx([9 + weight_decay, 7.5 + weight_decay, 7.4 + weight_decay], abs=1e-6)
    plain = top_eigenvalues(replace(objective, weight_decay=0), x, count=3, tolerance=1e-8)
    assert plain.shifted(weight_decay).values == pytest.approx(found.values, abs=1e-6)


def test_the_second_derivative_agrees_with_differences_of_gradients() -> None:
    objective, x = net(nn.Tanh())
    v, step = torch.linspace(-1, 1, len(x), dtype=x.dtype), 1e-5
    differences = (objective.gradient(x + step * v) - objective.gradient(x - step * v)) / (2 * step)
    torch.testing.assert_close(objective.hessian_product(x, v), differences, rtol=1e-6, atol=1e-8)


def test_the_largest_by_magnitude_keep_their_signs() -> None:
    objective, x = quadratic(SPECTRUM)
    assert top_eigenvalues(objective, x, 2, tolerance=1e-8, magnitude=True).values == pytest.approx([9, -8], abs=1e-6)


@pytest.mark.parametrize("spectrum", [[4.0], [4.0] * 30, [5.0, 5.0, 1.0, *[0.0] * 40], [0.0] * 25, [3.0, 3.0, -1.0]])
def test_equal_eigenvalues_are_counted_as_often_as_they_occur(spectrum: list[float]) -> None:
    objective, x = quadratic(spectrum)
    found = top_eigenvalues(objective, x, count=min(3, len(spectrum)), tolerance=1e-8)
    assert found.converged
    assert found.values == pytest.approx(spectrum[:3], abs=1e-6)


def test_a_basis_that_is_restarted_still_finds_close_eigenvalues() -> None:
    matrix = torch.linspace(0, 1, 2000, dtype=torch.float64).square()
    start = torch.randn(2000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    *_, last = lanczos(lambda v: matrix * v, lambda _: start, count=4, tolerance=1e-7, limit=1000)
    assert last.converged
    assert last.products > 100
    assert last.values == pytest.approx(matrix.flip(0)[:4].tolist(), abs=1e-6)


def test_an_error_bounds_the_distance_to_an_eigenvalue_after_each_product() -> None:
    objective, x = quadratic(SPECTRUM)
    true = torch.tensor(SPECTRUM, dtype=torch.float64)
    for estimate in eigenvalue_estimates(objective, x, count=2, tolerance=1e-8):
        for value, error in zip(estimate.values, estimate.errors, strict=True):
            assert float((true - value).abs().min()) <= error + 1e-9


def test_too_few_products_are_told() -> None:
    objective, x = quadratic(SPECTRUM)
    found = top_eigenvalues(objective, x, tolerance=1e-8, limit=3)
    assert (found.products, found.converged) == (3, False)
    assert found.errors[0] > 1e-8


@pytest.mark.parametrize("activation", [nn.Tanh(), nn.ReLU()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_eigenvalues_and_trace_are_those_of_the_dense_hessian(
    activation: nn.Module, dtype: torch.dtype, weight_decay: float
) -> None:
    objective, x = net(activation, dtype, weight_decay=weight_decay)
    hessian = dense(*net(activation, torch.float64, weight_decay=weight_decay)).double()
    values = torch.linalg.eigvalsh(hessian).flip(0)
    found = top_eigenvalues(objective, x, count=4, tolerance=1e-5)
    assert found.converged
    assert found.values == pytest.approx(values[:4].tolist(), rel=1e-4)
    trace = hessian_trace(objective, x, probes=200)
    assert 0 < trace.error < 0.1 * trace.value
    assert abs(trace.value - float(hessian.trace())) < 3 * trace.error


def test_the_standard_error_of_the_trace_is_that_of_hutchinson() -> None:
    """Of Rademacher vectors, Var(zᵀHz) = 2 (‖H‖² − Σ H_ii²)."""
    objective, x = net(nn.Tanh())
    hessian = dense(objective, x)
    variance = 2 * float(hessian.square().sum() - hessian.diagonal().square().sum())
    assert hessian_trace(objective, x, probes=400).error == pytest.approx((variance / 400) ** 0.5, rel=0.2)


def test_weight_decay_moves_the_trace_by_a_known_amount() -> None:
    objective, x = net(nn.Tanh())
    decayed = hessian_trace(replace(objective, weight_decay=0.1), x)
    shifted = hessian_trace(objective, x).shifted(0.1 * objective.model.size)
    assert (decayed.value, decayed.error) == pytest.approx(tuple(shifted))


def test_probes_shared_among_workers_give_the_same_trace() -> None:
    objective, x = net(nn.Tanh())
    shares = [list(trace_estimates(objective, x, range(rank, 6, 2))) for rank in range(2)]
    together = [shares[number % 2][number // 2] for number in range(6)]
    assert trace_of(together) == hessian_trace(objective, x, probes=6)


@pytest.mark.parametrize(("weight_decay", "expected"), [(0.0, 0.22), (0.5, 0.2725)])
def test_sharpness_by_hand(weight_decay: float, expected: float) -> None:
    """½ (2x − 1)² + (wd/2) x² at x = 1: slope 2 + wd, curvature 4 + wd, ρ = 0.1: 0.1 slope + 0.005 curvature."""
    model = VectorModel(nn.Linear(1, 1, bias=False).double())
    one = Samples(torch.tensor([[2.0]]), torch.tensor([[1.0]]))
    objective = Objective(model, SquaredError(), one, weight_decay=weight_decay)
    x = torch.ones(1, dtype=torch.float64)
    assert sam_sharpness(objective, x, rho=0.1) == pytest.approx(expected, abs=1e-12)


def test_without_a_gradient_there_is_no_sharpness() -> None:
    objective, x = quadratic([2.0, 1.0])
    assert sam_sharpness(objective, torch.zeros_like(x)) == 0


@pytest.mark.parametrize("chunk", [1, 7, 40, 100])
def test_chunks_change_nothing(chunk: int) -> None:
    objective, x = net(nn.Tanh(), weight_decay=0.01)
    pieces, v = replace(objective, chunk=chunk), torch.linspace(-1, 1, len(x), dtype=x.dtype)
    assert pieces.value(x) == pytest.approx(objective.value(x), rel=1e-12)
    torch.testing.assert_close(pieces.gradient(x), objective.gradient(x))
    torch.testing.assert_close(pieces.hessian_product(x, v), objective.hessian_product(x, v))
    torch.testing.assert_close(objective.hessian_product(x, v), dense(objective, x) @ v)


def test_a_chunk_is_as_large_as_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    came: list[int] = []

    class Watched(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            came.append(len(inputs))
            return super().forward(inputs).tanh()

    model = VectorModel(nn.Sequential(Watched(4, 100), nn.Linear(100, 3)))
    rows = Samples(torch.randn(40, 4), torch.randint(3, (40,)))
    monkeypatch.setattr("gossamer.measure.objective.FORWARD_BYTES", 10 * 104 * 4)
    Objective(model, CrossEntropy(), rows).hessian_product(model.initial, model.initial)
    assert came == [2, 4, 10, 10, 10, 10]


def test_a_loss_that_gives_the_mean_of_a_batch() -> None:
    objective, x = net(nn.Tanh(), chunk=7)
    mean = replace(objective, loss=nn.CrossEntropyLoss())
    assert mean.value(x) == pytest.approx(objective.value(x), rel=1e-12)
    assert top_eigenvalues(mean, x).values == pytest.approx(top_eigenvalues(objective, x).values, rel=1e-6)
    assert sam_sharpness(mean, x) == pytest.approx(sam_sharpness(objective, x), rel=1e-9)


def test_stored_pixels_are_scaled_and_dropout_is_off() -> None:
    pixels = torch.randint(256, (20, 4), dtype=torch.uint8)
    model = VectorModel(nn.Sequential(nn.Linear(4, 5), nn.Dropout(), nn.Linear(5, 3)).double())
    model.template.train()
    stored = Objective(model, CrossEntropy(), Samples(pixels, torch.arange(20) % 3), Scaling())
    scaled = Objective(model, CrossEntropy(), Samples(pixels.double() / 255, torch.arange(20) % 3))
    assert stored.value(model.initial) == pytest.approx(scaled.value(model.initial), rel=1e-12)
    assert hessian_trace(stored, model.initial, 2) == pytest.approx(hessian_trace(scaled, model.initial, 2))


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others() -> None:
    objective, x = net(nn.ReLU(), torch.float32)
    first = [top_eigenvalues(objective, x, seed=seed) for seed in (0, 0, 1)]
    assert first[0] == first[1]
    assert first[0].errors != first[2].errors
    traces = [hessian_trace(objective, x, 5, seed=seed) for seed in (0, 0, 1)]
    assert traces[0] == traces[1] != traces[2]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        rows = inputs[:, None].expand(-1, 3, -1)
        scores: Tensor = self.last(self.layer(rows, rows, rows, need_weights=False)[0].mean(1))
        return scores


def test_a_model_with_attention() -> None:
    objective, _ = net(nn.Tanh(), torch.float32)
    objective = replace(objective, model=VectorModel(Attention()))
    assert top_eigenvalues(objective, objective.model.initial, tolerance=1e-3).converged


# Bad input


def absolute(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.sum(1) - targets).abs()


def detached(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.detach().square().sum(1) + 0 * targets


def root(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - outputs.detach()).square().sum(1).sqrt() + 0 * targets


class Twisted(torch.autograd.Function):
    """A backward pass that is not the gradient of anything."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor) -> Tensor:
        ctx.save_for_backward(outputs)
        return outputs.square().sum(1)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        return slope[:, None] * ctx.saved_tensors[0].roll(1, 1)


def twisted(outputs: Tensor, targets: Tensor) -> Tensor:
    return Twisted.apply(outputs) + 0 * targets


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, outputs: Tensor) -> Tensor:
        ctx.save_for_backward(outputs)
        return outputs.square().sum(1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        return 2 * slope[:, None] * ctx.saved_tensors[0]


def once(outputs: Tensor, targets: Tensor) -> Tensor:
    return Once.apply(outputs) + 0 * targets


class OnceModel(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        outputs = super().forward(inputs)
        return outputs * Once.apply(outputs)[:, None]


@pytest.mark.parametrize("activation", [nn.Identity(), nn.ReLU()])
def test_a_piecewise_linear_loss_has_the_curvature_of_its_pieces(activation: nn.Module) -> None:
    objective, x = net(activation, loss=absolute)
    values = torch.linalg.eigvalsh(dense(objective, x)).flip(0)
    assert top_eigenvalues(objective, x, 2).values == pytest.approx(values[:2].tolist(), abs=1e-6)


def test_a_linear_loss_is_flat() -> None:
    objective, _ = net(nn.Tanh(), loss=its_output)
    objective = replace(objective, model=VectorModel(nn.Linear(4, 3).double()))
    assert top_eigenvalues(objective, objective.model.initial).values == (0.0,)


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (once, "loss 'once': its second derivative fails with RuntimeError: trying to differentiate twice"),
        (detached, "loss 'detached': its second derivative fails"),
        (root, "loss 'root' of model 'Sequential': its second derivative is not finite"),
        (twisted, "loss 'twisted' of model 'Sequential': its matrix of second derivatives is not symmetric"),
        (lambda outputs, targets: None, "a loss gives one number for each of 40 samples"),
    ],
)
def test_a_loss_without_a_second_derivative_is_named(loss: Any, told: str) -> None:
    objective, x = net(nn.Tanh(), loss=loss)
    with pytest.raises(ExperimentError, match=told):
        top_eigenvalues(objective, x)


def test_a_model_without_a_second_derivative_is_named() -> None:
    objective, _ = net(nn.Tanh())
    objective = replace(objective, model=VectorModel(OnceModel(4, 3).double()))
    with pytest.raises(ExperimentError, match="model 'OnceModel': its second derivative fails"):
        hessian_trace(objective, objective.model.initial)


def test_a_loss_without_a_gradient_has_no_sharpness() -> None:
    objective, x = net(nn.Tanh(), loss=detached)
    with pytest.raises(ExperimentError, match="loss 'detached' of model 'Sequential', its gradient: it fails with"):
        sam_sharpness(objective, x)


@pytest.mark.parametrize("measure", [top_eigenvalues, hessian_trace, sam_sharpness])
def test_a_diverged_model_is_refused(measure: Any) -> None:
    objective, x = net(nn.Tanh())
    with pytest.raises(DivergenceError, match="is nan at this model"):
        measure(objective, x * torch.nan)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"weight_decay": -1.0}, "weight_decay must be"),
        ({"weight_decay": float("nan")}, "weight_decay must be"),
        ({"chunk": 0}, "chunk must be 1"),
        ({"samples": Samples(torch.zeros(0, 4), torch.zeros(0))}, "has none of this kind"),
    ],
)
def test_an_objective_that_makes_no_sense(settings: Any, told: str) -> None:
    objective, _ = net(nn.Tanh())
    with pytest.raises(ExperimentError, match=told):
        replace(objective, **settings)


def test_options_that_make_no_sense() -> None:
    objective, x = net(nn.Tanh())
    for options, told in (
        ({"count": 0}, "count must be 1 to 67"),
        ({"count": 68}, "count must be 1 to 67"),
        ({"tolerance": 0.0}, "tolerance must be between 0 and 1"),
        ({"count": 3, "limit": 2}, "limit must be at least count = 3"),
    ):
        with pytest.raises(ExperimentError, match=told):
            top_eigenvalues(objective, x, **options)  # type: ignore[arg-type]
    with pytest.raises(ExperimentError, match="probes must be 2"):
        hessian_trace(objective, x, probes=1)
    for rho in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ExperimentError, match="rho must be"):
            sam_sharpness(objective, x, rho)
    with pytest.raises(ExperimentError, match=r"shape \(66,\) for a model of 67 parameters"):
        top_eigenvalues(objective, x[1:])
