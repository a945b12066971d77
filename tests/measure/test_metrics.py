"""What is measured, against the same numbers computed the plain way."""

import pytest
import torch
from torch.nn import functional

from gossamer.data import per_client
from gossamer.measure import Evaluator, consensus_distance
from gossamer.models import CrossEntropy, SquaredError, VectorModel
from problems import samples, tiny_net


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_loss_and_accuracy_of_each_model(chunk: int) -> None:
    data = samples([30, 20], seed=0)
    model = VectorModel(tiny_net().double())
    vectors = torch.randn(5, model.size, dtype=torch.float64)
    evaluator = Evaluator(model, CrossEntropy(), data, chunk)
    for quality, rows in ((evaluator.test(vectors), data.test), (evaluator.training(vectors), data.train)):
        assert quality is not None
        for i, x in enumerate(vectors):
            outputs = model.module(x)(rows.inputs.double()).detach()
            assert float(quality.loss[i]) == pytest.approx(float(functional.cross_entropy(outputs, rows.targets)))
            assert float(quality.accuracy[i]) == pytest.approx(
                float((outputs.argmax(1) == rows.targets).double().mean())
            )


def test_more_samples_than_one_evaluation_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    data = samples([30], seed=0)
    model = VectorModel(tiny_net().double())
    x = model.initial[None]
    whole = Evaluator(model, CrossEntropy(), data, 1).training(x)
    monkeypatch.setattr("gossamer.measure.metrics.EVALUATION_BATCH", 7)
    pieces = Evaluator(model, CrossEntropy(), data, 1).training(x)
    assert whole is not None
    assert pieces is not None
    torch.testing.assert_close(pieces.loss, whole.loss)
    torch.testing.assert_close(pieces.accuracy, whole.accuracy)


class Watched(torch.nn.Module):
    """A wide layer that keeps how many samples came at once."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last, self.came = torch.nn.Linear(3, 500), torch.nn.Linear(500, 3), set[int]()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.came.add(len(inputs))
        scores: torch.Tensor = self.last(self.layer(inputs))
        return scores


@pytest.mark.parametrize("chunk", [1, 5])
def test_of_a_wide_model_fewer_samples_are_evaluated_at_once(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    data, model = samples([60], seed=0), VectorModel(Watched().double())
    vectors = torch.randn(5, model.size, dtype=torch.float64)
    whole = Evaluator(model, CrossEntropy(), data, chunk).training(vectors)
    monkeypatch.setattr("gossamer.measure.metrics.WIDTH", 7 * 500 * 8)
    model.template.came.clear()
    pieces = Evaluator(model, CrossEntropy(), data, chunk).training(vectors)
    assert max(model.template.came) == 7
    assert whole is not None
    assert pieces is not None
    torch.testing.assert_close(pieces.loss, whole.loss)


def test_targets_that_are_no_classes_have_no_accuracy() -> None:
    data = per_client([([[1.0], [2.0]], [0.5, 1.5])], test=([[1.0]], [2.0]))
    model = VectorModel(torch.nn.Linear(1, 1))
    quality = Evaluator(model, SquaredError(), data, 1).test(model.initial[None])
    assert quality is not None
    assert quality.accuracy.isnan().all()
    assert float(quality.loss) == pytest.approx(float(0.5 * (model.initial.sum() - 2.0) ** 2))


def test_without_test_samples_there_is_nothing_to_say() -> None:
    data = per_client([([[1.0]], [0])], classes=2)
    model = VectorModel(torch.nn.Linear(1, 2))
    assert Evaluator(model, CrossEntropy(), data, 1).test(model.initial[None]) is None


def test_consensus_distance_is_the_mean_squared_distance_to_the_mean() -> None:
    x = torch.randn(6, 10, dtype=torch.float64)
    assert consensus_distance(lambda: [x[:4], x[4:]], range(6), 6) == pytest.approx(
        float(((x - x.mean(0)) ** 2).sum() / 6)
    )
    assert consensus_distance(lambda: [x[:1].repeat(3, 1)], range(3), 3) == pytest.approx(0.0, abs=1e-25)
