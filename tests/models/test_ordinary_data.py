"""Data, losses and metrics as users of torch bring them: each works as meant, or is refused with what to write."""

import random
from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from gossamer import Experiment, per_client, simulate
from gossamer.errors import ExperimentError

SIZES = (9, 8, 7, 6)


def linear(outputs: int, squeezed: bool = False) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(5, outputs), *([nn.Flatten(0)] if squeezed else []))


def data(make: Callable[[Any, Any], Any], test: bool = True) -> Any:
    rng = np.random.default_rng(0)

    def some(number: int) -> tuple[Any, Any]:
        inputs = rng.normal(size=(number, 5)).astype("float32")
        return inputs, make(inputs, rng.integers(3, size=number))

    return per_client([some(size) for size in SIZES], some(12) if test else None)


def labels(inputs: Any, classes: Any) -> Any:
    return classes


def sums(inputs: Any, classes: Any) -> Any:
    return inputs.sum(1)


def columns(inputs: Any, classes: Any) -> Any:
    return inputs.sum(1, keepdims=True)


def several(inputs: Any, classes: Any) -> Any:
    return np.eye(3)[classes]  # float64, as numpy makes it


def train(make: Any = labels, model: Any = None, test: bool = True, **settings: Any) -> Any:
    settings = {"graph": "ring", "clients": 4, "rounds": 2, "local_steps": 2, "batch_size": 4, **settings}
    return simulate(Experiment(dataset=data(make, test), model=model or linear(3), **settings), workers=1)


def binary(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(1)


def mean_binary(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(outputs, targets)


def mean_square(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.mse_loss(outputs, targets)


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets) ** 2


def test_targets_in_double_precision_train_a_model_in_single() -> None:
    one, other = (train(several, loss=loss) for loss in (binary, mean_binary))
    assert one.vectors.dtype == torch.float32
    torch.testing.assert_close(one.vectors, other.vectors)
    torch.testing.assert_close(train(several).vectors, train(several, loss=nn.CrossEntropyLoss()).vectors)


def test_a_squared_error_takes_one_output_in_any_shape() -> None:
    runs = [train(make, linear(1, squeezed), loss="squared-error") for make in (sums, columns) for squeezed in (0, 1)]
    for run in runs[1:]:
        torch.testing.assert_close(run.vectors, runs[0].vectors)


@pytest.mark.filterwarnings("ignore:Using a target size")  # torch warns of what is refused here
@pytest.mark.parametrize(
    ("make", "outputs", "loss", "says"),
    [
        (sums, 1, mean_square, r"outputs have the shape \(9, 1\), targets \(9,\).*targets\.view_as\(outputs\)"),
        (sums, 1, squares, r"outputs have the shape \(9, 1\), targets \(9,\).*targets\.view_as\(outputs\)"),
        (columns, 1, squares, r"got \(9, 1\)\): .* losses\.flatten\(1\)\.mean\(1\)"),
        (labels, 3, lambda o, t: float(functional.cross_entropy(o, t)), "got float.: .* without .item"),
        (labels, 3, lambda o, t: None, "got NoneType.: is a `return` missing"),
        (labels, 3, lambda o, t: functional.cross_entropy(o, t).detach(), r"a \.detach\(\), .* cuts it off"),
    ],
)
def test_a_loss_that_gives_something_else_is_told_what_to_write(make: Any, outputs: int, loss: Any, says: str) -> None:
    with pytest.raises(ExperimentError, match=says):
        train(make, linear(outputs), loss=loss)


def test_a_metric_without_a_return_is_refused() -> None:
    with pytest.raises(ExperimentError, match=r"metric: .* \(got None \(is a `return` missing\?\)\)"):
        train(metric=lambda outputs, targets: None)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"test": False}, "test_accuracy is never measured here: the data set 'own' has no test samples"),
        ({"make": sums, "model": linear(1), "loss": "squared-error"}, "the targets of 'own' are no classes"),
    ],
)
def test_a_run_is_not_stopped_by_what_is_never_measured(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ExperimentError, match=says):
        train(stop_at={"metric": "test_accuracy", "value": 0.5}, **settings)


class Drawn(nn.Linear):
    def __init__(self, shape: Any, classes: int) -> None:
        super().__init__(64, classes)
        nn.init.constant_(self.bias, float(np.random.rand()))  # noqa: NPY002

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.flatten(1))


def shuffled(targets: Any, clients: int, seed: int) -> Any:
    return np.array_split(np.random.permutation(len(targets)), clients)  # noqa: NPY002


def seeded(targets: Any, clients: int, seed: int) -> Any:
    np.random.seed(seed)  # noqa: NPY002
    return shuffled(targets, clients, seed)


def some_graph() -> Any:
    return nx.gnm_random_graph(4, 5, seed=random)


def some_data() -> Any:
    return per_client([(torch.rand(5, 64), torch.arange(5)) for _ in range(4)])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"partition": shuffled}, "partition: .* numpy's global stream"),
        ({"model": Drawn}, "model: .* numpy's global stream"),
        ({"graph": some_graph}, "graph 'some_graph': .* Python's `random`"),
        ({"dataset": some_data}, "dataset: .* torch's global stream"),
    ],
)
def test_a_part_that_another_process_would_make_otherwise_is_refused(settings: dict[str, Any], says: str) -> None:
    whole = {"clients": 4, "rounds": 1, "local_steps": 1, "model": "softmax", **settings}
    with pytest.raises(ExperimentError, match=says):
        simulate(Experiment(**whole), workers=1)


def test_layers_that_were_made_before_are_refused_unless_they_are_frozen() -> None:
    body, head = nn.Linear(5, 4).requires_grad_(False), nn.Linear(4, 3)
    with pytest.raises(ExperimentError, match=r"model: .* the same parameter '1.weight' in every call"):
        train(model=lambda: nn.Sequential(body, head))
    assert train(model=lambda: nn.Sequential(body, nn.Linear(4, 3))).vectors.shape == (4, 15)


def test_a_part_that_seeds_itself_is_not() -> None:
    simulate(Experiment(clients=4, rounds=1, local_steps=1, model="softmax", partition=seeded), workers=1)


@pytest.mark.parametrize("weights", [[[0.25] * 4] * 4, torch.full((4, 4), 0.25)])
def test_weights_are_any_square_table(weights: Any) -> None:
    like = train(graph=np.full((4, 4), 0.25)).vectors
    assert torch.equal(train(graph=weights).vectors, like)
