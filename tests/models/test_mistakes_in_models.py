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


class CountingNet(Net):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(inputs) / min(self.calls, 2)


class RememberingNet(Net):
    last: Tensor | float = 0.0

    def forward(self, inputs: Tensor) -> Tensor:
        self.last = super().forward(inputs) + 0.1 * self.last
        return self.last


class CachingNet(Net):
    def forward(self, inputs: Tensor) -> Tensor:
        self.seen, self.samples = inputs, len(inputs)  # harmless: nothing is made of it
        return super().forward(inputs)


class CentredNet(Net):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs - inputs.mean(0))


class FirstDimensionIsTime(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.layer = nn.RNN(8, 6), nn.Linear(6, 10)  # batch_first is missing

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(self.rnn(inputs.squeeze(1))[0][:, -1])


class AlwaysDrops(Net):
    def forward(self, inputs: Tensor) -> Tensor:
        return functional.dropout(super().forward(inputs))


class EvalNet(Net):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs if self.training else inputs.mul_(0.5))


class NineScores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 9)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs.flatten(1))


class NoReturn(Net):
    def forward(self, inputs: Tensor) -> None:
        super().forward(inputs)


class PairNet(Net):
    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        scores = super().forward(inputs)
        return scores, scores.softmax(1)


class LazyNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LazyLinear(10)


class BatchStatistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(64, track_running_stats=False)
        self.layer = nn.Linear(64, 10)


class ClippedEmbedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(300, 4, max_norm=0.1), nn.Linear(4, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(self.embedding((255 * inputs).long().flatten(1)).mean(1))


class Moving:
    """A loss with a state of its own."""

    def __init__(self) -> None:
        self.mean = 0.0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses = functional.cross_entropy(outputs, targets, reduction="none")
        self.mean = 0.9 * self.mean + 0.1 * float(losses.detach().mean())
        return losses / (1 + self.mean)


def shifts_outputs(outputs: Tensor, targets: Tensor) -> Tensor:
    outputs -= outputs.max()
    return functional.cross_entropy(outputs, targets, reduction="none")


def merges_labels(outputs: Tensor, targets: Tensor) -> Tensor:
    targets[targets == 9] = 1
    return functional.cross_entropy(outputs, targets, reduction="none")


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
        (CountingNet, "cross-entropy", ("CountingNet", "self.calls", "one module serves all clients")),
        (RememberingNet, "cross-entropy", ("RememberingNet", "other outputs when it is called again")),
        (CentredNet, "cross-entropy", ("CentredNet", "beside other samples", "statistics of a batch")),
        (FirstDimensionIsTime, "cross-entropy", ("beside other samples", "batch_first=True")),
        (AlwaysDrops, "cross-entropy", ("AlwaysDrops", "when it is evaluated", "self.training")),
        (EvalNet, "cross-entropy", ("EvalNet", "inputs in place", "in forward")),
        (NineScores, "cross-entropy", ("NineScores", "9 scores", "10 classes")),
        (NoReturn, "cross-entropy", ("is a `return` missing", "forward")),
        (PairNet, "cross-entropy", ("type tuple", "`loss`", "one number for each sample")),
        (LazyNet, "cross-entropy", ("LazyNet", "'layer'", "LazyLinear", "input shape")),
        (BatchStatistics, "cross-entropy", ("BatchNorm1d at 'norm'", "other samples", "nn.GroupNorm")),
        (ClippedEmbedding, "cross-entropy", ("ClippedEmbedding", "parameters in place", "max_norm")),
        (Net, Moving(), ("loss", "other numbers when it is called again")),
        (Net, shifts_outputs, ("loss", "its outputs", "in place", "in shifts_outputs")),
        (Net, merges_labels, ("loss", "its targets", "in place", "in merges_labels")),
    ],
)
def test_a_loss_or_model_that_would_mislead_is_refused(model: Any, loss: Any, says: tuple[str, ...]) -> None:
    for run in (lambda it: simulate(it, workers=1), analyse, benchmark):
        with pytest.raises(ExperimentError) as refused:
            run(experiment(model, loss))
        for word in says:
            assert word in str(refused.value), str(refused.value)


def test_what_a_model_keeps_for_looking_at_is_no_mistake() -> None:
    kept, plain = (simulate(experiment(model), workers=1).vectors for model in (CachingNet, Net))
    assert torch.equal(kept, plain)


def test_an_embedding_that_is_too_small_is_told_the_numbers() -> None:
    tokens = [(np.array([[0, 7], [3, 2]]), np.array([0, 1]))] * 2
    embedding = nn.Sequential
    with pytest.raises(ExperimentError, match=r"IndexError.* reach from 0 to 7: an nn\.Embedding"):
        simulate(
            experiment(lambda: embedding(nn.Embedding(7, 2), nn.Flatten(), nn.Linear(4, 2)), clients=2, graph="full",
                       dataset=per_client(tokens)), workers=1,
        )  # fmt: skip


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
