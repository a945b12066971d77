"""What is measured, against the same numbers computed the plain way."""

import pytest
import torch
from torch.nn import functional

from gossamer.data import per_client
from gossamer.measure import Evaluator, best_round, squared_distances
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


def test_squared_distances_are_those_from_the_mean() -> None:
    x = torch.randn(6, 10, dtype=torch.float64)
    found = squared_distances(lambda: [x[:4], x[4:]], range(6), 6)
    assert found.tolist() == pytest.approx(((x - x.mean(0)) ** 2).sum(1).tolist())
    assert squared_distances(lambda: [x[:1].repeat(3, 1)], range(3), 3).tolist() == pytest.approx([0.0] * 3, abs=1e-25)


def test_accuracy_of_tokens_counts_those_that_count() -> None:
    ids, targets = [[0, 1, 2], [2, 2, 1]], [[0, 1, 0], [2, -100, -100]]
    data = per_client([(ids, targets)], test=(ids, targets))
    model = VectorModel(torch.nn.Embedding.from_pretrained(torch.eye(3), freeze=False))
    quality = Evaluator(model, CrossEntropy(), data, 1).test(model.initial[None])
    assert quality is not None
    assert float(quality.accuracy) == 3 / 4


def test_classes_may_be_where_torch_has_them_if_the_loss_takes_them_there() -> None:
    ids, targets = [[0, 1, 2, 1]], [[0, 1, 0, 1]]
    data = per_client([(ids, targets)], test=(ids, targets), classes=3)
    table = torch.nn.Embedding.from_pretrained(torch.eye(3), freeze=False)

    class ClassesSecond(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = table

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.table(inputs).transpose(1, 2)
            return scores

    model = VectorModel(ClassesSecond())
    quality = Evaluator(model, functional.cross_entropy, data, 1).test(model.initial[None])
    assert quality is not None
    assert float(quality.accuracy) == 3 / 4


def test_outputs_that_only_the_loss_understands_have_a_loss_and_no_accuracy() -> None:
    data = per_client([([[1.0], [2.0]], [0, 1])], test=([[1.0], [3.0]], [0, 1]))

    class Named(torch.nn.Linear):
        def forward(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
            return {"scores": super().forward(inputs)}

    model = VectorModel(Named(1, 2))
    loss = Evaluator(model, lambda o, t: functional.cross_entropy(o["scores"], t), data, 4)
    quality = loss.test(torch.stack([model.initial, 2 * model.initial]))
    assert quality is not None
    assert quality.loss.isfinite().all()
    assert quality.accuracy.isnan().all()


@pytest.mark.parametrize("each", [True, False])
def test_an_own_metric_is_the_mean_over_all_samples(monkeypatch: pytest.MonkeyPatch, each: bool) -> None:
    data = samples([30, 20], seed=0)
    model = VectorModel(tiny_net().double())
    monkeypatch.setattr("gossamer.measure.metrics.EVALUATION_BATCH", 7)

    def metric(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor | float:
        found = (outputs.argmax(1) - targets).abs().double()
        return found if each else float(found.mean())

    quality = Evaluator(model, CrossEntropy(), data, 5, metric=metric).training(model.initial[None])
    assert quality is not None
    outputs = model.module(model.initial)(data.train.inputs.double())
    assert float(quality.metric) == pytest.approx(float((outputs.argmax(1) - data.train.targets).abs().double().mean()))


def test_the_best_round_is_the_one_of_the_own_metric_or_of_accuracy_or_of_loss() -> None:
    def rounds(**values: list[float]) -> list[dict[str, float]]:
        return [{"round": i + 1, **{name: each[i] for name, each in values.items()}} for i in range(3)]

    assert best_round(rounds(test_loss=[3, 1, 2]))["round"] == 2
    assert best_round(rounds(test_loss=[3, 1, 2], test_accuracy=[0.1, 0.2, 0.3]))["round"] == 3
    assert best_round(rounds(test_accuracy=[0.1, 0.2, 0.3], test_score=[5, 5, 4]))["round"] == 1
    assert best_round(rounds(test_accuracy=[0.1, 0.2, 0.3], test_error=[5, 4, 5]))["round"] == 2
