"""Models and losses as users write them: each is trained as meant, or refused with what to write."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from gossamer import Experiment, per_client, simulate
from gossamer.bench.benchmark import benchmark
from gossamer.errors import DataError, ExperimentError
from gossamer.theory import analyse


@dataclass
class Outputs:
    logits: Tensor
    hidden: Tensor


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, inputs: Tensor) -> Any:
        return self.layer(inputs.flatten(1))


class ObjectNet(Net):
    def forward(self, inputs: Tensor) -> Outputs:
        return Outputs(super().forward(inputs), inputs)


class DictNet(Net):
    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        return {"logits": super().forward(inputs), "hidden": inputs}


class InPlaceNet(Net):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.sub_(0.5))


class NumpyDropout(Net):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs * float(np.random.rand()))  # noqa: NPY002


def weights() -> Tensor:
    return torch.linspace(0.1, 3, 10)


def weighted(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, weight=weights())


def weighted_samples(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none") * weights()[targets]


def summed(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="sum")


def relative(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = functional.cross_entropy(outputs, targets, reduction="none")
    return losses / losses.mean().detach()


def of_object(outputs: Outputs, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.logits, targets, reduction="none")


def mean_of_object(outputs: Outputs, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.logits, targets)


def mean_of_dict(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs["logits"], targets)


def experiment(model: Any = Net, loss: Any = "cross-entropy", **settings: Any) -> Experiment:
    return Experiment(**{"clients": 4, "rounds": 2, "local_steps": 2, "model": model, "loss": loss, **settings})


@pytest.mark.parametrize(
    ("model", "loss", "says"),
    [
        (Net, weighted, ("loss", "batch of 32", 'reduction="none"', "weight[targets]")),
        (Net, summed, ("loss", "sum", 'reduction="none"')),
        (Net, relative, ("loss", "beside other samples")),
        (ObjectNet, "cross-entropy", ("type Outputs", "`loss`", "one number for each sample")),
        (ObjectNet, mean_of_object, ("type Outputs", "one number for each sample")),
        (Net, "squared-error", ("10 numbers", "have 1", "'cross-entropy'")),
        (InPlaceNet, "cross-entropy", ("InPlaceNet", "inputs in place", "in forward", "x = x - 1")),
        (NumpyDropout, "cross-entropy", ("numpy's global stream", "torch.rand")),
    ],
    ids=["weighted", "summed", "relative", "object", "mean of object", "classes", "in place", "numpy"],
)
def test_a_loss_or_model_that_would_mislead_is_refused(model: Any, loss: Any, says: tuple[str, ...]) -> None:
    for run in (lambda it: simulate(it, workers=1), analyse, benchmark):
        with pytest.raises(ExperimentError) as refused:
            run(experiment(model, loss))
        for word in says:
            assert word in str(refused.value), str(refused.value)


def test_weights_of_samples_count() -> None:
    plain = simulate(experiment(), workers=1).vectors
    assert not torch.equal(simulate(experiment(loss=weighted_samples), workers=1).vectors, plain)


@pytest.mark.parametrize(("model", "loss"), [(ObjectNet, of_object), (DictNet, mean_of_dict)])
def test_outputs_that_are_no_tensor_train_with_a_loss_of_their_own(model: Any, loss: Any) -> None:
    run, plain = simulate(experiment(model, loss), workers=1), simulate(experiment(), workers=1)
    torch.testing.assert_close(run.vectors, plain.vectors)
    assert run.last["test_loss"] == pytest.approx(plain.last["test_loss"])
    assert "test_accuracy" not in run.last


def labelled(kind: str, classes: int | None) -> Any:
    rng = np.random.default_rng(0)

    def some(number: int) -> tuple[Any, Any]:
        labels = rng.integers(3, size=number)
        given = {"float": labels.astype("float32"), "one-hot": np.eye(3, dtype="int64")[labels]}[kind]
        return rng.normal(size=(number, 5)).astype("float32"), given

    return per_client([some(9), some(8)], some(5), classes=classes)


def test_labels_that_are_no_class_numbers_are_named() -> None:
    with pytest.raises(DataError, match=r"float32.*targets\.long\(\)"):
        labelled("float", 3)
    tokens = experiment(lambda: nn.Linear(5, 3), clients=2, graph="full", dataset=labelled("one-hot", None))
    with pytest.raises(ExperimentError, match=r"int64.*targets\.argmax\(1\)"):
        simulate(tokens, workers=1)
    numbers = experiment(lambda: nn.Linear(5, 3), clients=2, graph="full", dataset=labelled("float", None))
    with pytest.raises(ExperimentError, match=r"float32.*targets\.long\(\).*'squared-error'"):
        simulate(numbers, workers=1)
