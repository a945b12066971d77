"""The loss landscape: its centre is the model, its directions have the model's filter norms."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gossamer.data import Samples, per_client
from gossamer.errors import ExperimentError
from gossamer.measure import Evaluator
from gossamer.measure.landscape import Grid, check_same_shape, filter_directions, landscape_losses
from gossamer.measure.objective import Objective
from gossamer.models import CrossEntropy, VectorModel


def convolutional() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = (nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 9, 3))
        return nn.Sequential(*layers)


def problem() -> tuple[Objective, Tensor]:
    rng = torch.Generator().manual_seed(1)
    rows = Samples(torch.randn(30, 2, 5, 5, generator=rng), torch.randint(3, (30,), generator=rng))
    model = VectorModel(convolutional())
    return Objective(model, CrossEntropy(), rows, chunk=8), model.initial


@pytest.mark.parametrize("dimensions", [1, 2])
def test_the_centre_is_the_loss_of_the_model_exactly(dimensions: int) -> None:
    objective, x = problem()
    grid = Grid(dimensions, points=5)
    found = dict(landscape_losses(objective.value, x, filter_directions(objective.model, x, dimensions), grid))
    assert sorted(found) == list(range(5**dimensions))
    assert found[grid.centre] == objective.value(x)
    assert len(set(found.values())) == len(grid)


def test_the_centre_is_the_loss_that_a_run_records_exactly() -> None:
    objective, x = problem()
    data = per_client([(objective.samples.inputs, objective.samples.targets)])
    evaluator = Evaluator(objective.model, objective.loss, data, chunk=1)

    def recorded(vector: Tensor) -> float:
        quality = evaluator.training(vector[None])
        assert quality is not None
        return float(quality.loss[0])

    grid = Grid(1, points=3)
    along = filter_directions(objective.model, x, 1)
    assert dict(landscape_losses(recorded, x, along, grid))[grid.centre] == recorded(x)


def test_a_point_lies_where_its_coordinates_say() -> None:
    objective, x = problem()
    grid, along = Grid(2, points=5, radius=0.5), filter_directions(objective.model, x, 2)
    found = dict(landscape_losses(objective.value, x, along, grid))
    for index in (0, 7, 24):
        first, second = grid.coordinates(index)
        expected = objective.value(x + first * along[0] + second * along[1])
        assert found[index] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("points", [3, 5, 51, 101])
@pytest.mark.parametrize("radius", [0.1, 0.7, 1.0, 3.0])
def test_axes_are_symmetric_with_the_model_in_the_middle(points: int, radius: float) -> None:
    axis = Grid(2, points, radius).axis
    assert axis[0] == -radius
    assert axis[points // 2] == 0
    assert axis == tuple(-each for each in reversed(axis))
    assert Grid(2, points, radius).coordinates(Grid(2, points, radius).centre) == (0, 0)


def test_filters_of_a_direction_have_the_norms_of_the_models_filters() -> None:
    objective, x = problem()
    for direction in filter_directions(objective.model, x, 2):
        for name, own in objective.model.unflatten(x).items():
            drawn = objective.model.unflatten(direction)[name]
            if own.dim() < 2:
                assert not drawn.any(), name
            else:
                torch.testing.assert_close(drawn.flatten(1).norm(dim=1), own.flatten(1).norm(dim=1), rtol=1e-5, atol=0)


def test_two_models_have_the_same_draws_each_scaled_to_its_own_filters() -> None:
    objective, x = problem()
    (one,), (other,) = filter_directions(objective.model, x, 1), filter_directions(objective.model, 3 * x, 1)
    torch.testing.assert_close(other, 3 * one)
    (again,), (different,) = filter_directions(objective.model, x, 1), filter_directions(objective.model, x, 1, seed=1)
    assert torch.equal(again, one)
    assert not torch.equal(different, one)
    first, second = filter_directions(objective.model, x, 2)
    assert torch.equal(first, one)
    assert abs(float(torch.cosine_similarity(first, second, dim=0))) < 0.5


def test_shares_of_workers_and_what_was_left_add_up_to_the_whole() -> None:
    objective, x = problem()
    grid, along = Grid(2, points=3), filter_directions(objective.model, x, 2)
    whole = dict(landscape_losses(objective.value, x, along, grid))
    shares: dict[int, float] = {}
    for rank in range(2):
        shares.update(landscape_losses(objective.value, x, along, grid, range(rank, len(grid), 2)))
    assert shares == whole
    begun = landscape_losses(objective.value, x, along, grid)
    some = dict(next(begun) for _ in range(4))
    some.update(
        landscape_losses(objective.value, x, along, grid, [each for each in range(len(grid)) if each not in some])
    )
    assert some == whole


def test_where_the_loss_overflows_it_is_not_finite() -> None:
    objective, x = problem()
    grid = Grid(1, points=3, radius=1e38)
    found = dict(landscape_losses(objective.value, x, filter_directions(objective.model, x, 1), grid))
    assert found[grid.centre] == objective.value(x)
    assert not torch.tensor(found[0]).isfinite()


def test_weight_decay_is_part_of_the_loss() -> None:
    objective, x = problem()
    decayed = replace(objective, weight_decay=0.1)
    grid, along = Grid(1, points=3), filter_directions(objective.model, x, 1)
    plain, found = (dict(landscape_losses(each.value, x, along, grid)) for each in (objective, decayed))
    assert found[2] - plain[2] == pytest.approx(0.05 * float((x + along[0]).square().sum()), rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"dimensions": 3}, "1 or 2 dimensions"),
        ({"points": 50}, "points must be odd"),
        ({"points": 1}, "points must be odd"),
        ({"radius": 0.0}, "radius must be"),
        ({"radius": float("nan")}, "radius must be"),
    ],
)
def test_a_grid_that_makes_no_sense(settings: Any, told: str) -> None:
    with pytest.raises(ExperimentError, match=told):
        Grid(**settings)


def test_a_model_without_filters_has_no_landscape() -> None:
    objective, x = problem()
    with pytest.raises(ExperimentError, match="no landscape"):
        filter_directions(objective.model, torch.zeros_like(x), 1)
    norm = VectorModel(nn.GroupNorm(2, 4))
    with pytest.raises(ExperimentError, match="no landscape"):
        filter_directions(norm, norm.initial, 1)


def test_vectors_and_directions_that_do_not_belong_together() -> None:
    objective, x = problem()
    with pytest.raises(ExperimentError, match="parameters"):
        filter_directions(objective.model, x[1:], 1)
    with pytest.raises(ExperimentError, match="needs as many directions"):
        next(landscape_losses(objective.value, x, filter_directions(objective.model, x, 1), Grid(2)))


def test_two_models_of_different_shape_are_refused() -> None:
    check_same_shape(VectorModel(convolutional()), VectorModel(convolutional()))
    with pytest.raises(ExperimentError, match=r"tensor 1 is weight \(2, 3\) in the first and weight \(2, 4\)"):
        check_same_shape(VectorModel(nn.Linear(3, 2)), VectorModel(nn.Linear(4, 2)))
    with pytest.raises(ExperimentError, match=r"tensor 2 is bias \(2,\) in the first and none in the second"):
        check_same_shape(VectorModel(nn.Linear(3, 2)), VectorModel(nn.Linear(3, 2, bias=False)))
