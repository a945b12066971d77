"""Sequences, inputs with names, tokens and several labels: the same numbers however clients are run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gossamer import Experiment, simulate
from gossamer.engines import ExecutionPlan, Reference, Stacked
from gossamer.errors import ExperimentError, GossamerError
from gossamer.experiment.preparation import prepare
from gossamer.theory.measures import gradient_of
from networks import make_kits, make_peers, run_together
from sequences import Pooled, reading, records, several_labels, signals, wrong_labels

MODELS = ["character_lstm", "character_transformer"]


@pytest.mark.parametrize("model", MODELS)
def test_a_model_of_characters_learns_on_four_clients(model: str) -> None:
    run = simulate(reading(model, rounds=12, dtype="float32", local_epochs=2, evaluate={"start": True}))
    first, last = run.metrics["test_loss"].iloc[[0, -1]]
    assert last < 0.8 * first
    assert run.last["test_accuracy"] > run.metrics["test_accuracy"].iloc[0] + 0.1
    assert run.partition.labels.shape == (4, 1)


@pytest.mark.parametrize("model", MODELS)
def test_two_workers_and_every_way_to_take_a_step_give_the_same_numbers(model: str) -> None:
    experiment = reading(model)
    reference = Reference(prepare(experiment).training)
    for t in range(3):
        reference.round(t)
    expected = reference.models()
    alone, shared = (simulate(experiment, workers=workers) for workers in (1, 2))
    torch.testing.assert_close(alone.vectors, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(shared.vectors, expected, rtol=0, atol=1e-10)
    assert shared.last["test_loss"] == pytest.approx(alone.last["test_loss"], abs=1e-10)
    assert shared.last["test_accuracy"] == alone.last["test_accuracy"]
    for plan in (ExecutionPlan(1, "traced"), ExecutionPlan(4, "traced"), ExecutionPlan(3)):
        stacked = Stacked(prepare(experiment).training, plan)
        for t in range(3):
            stacked.round(t)
        torch.testing.assert_close(stacked.models(), expected, rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_three_peers_learn_a_text_to_the_numbers_of_the_simulation(model: str, tmp_path: Path) -> None:
    experiment = reading(model, clients=3)
    kits = make_kits(tmp_path, experiment)
    vectors = run_together(make_peers(kits))
    torch.testing.assert_close(vectors, simulate(experiment, workers=1).vectors, rtol=0, atol=1e-10)
    last = json.loads((kits[0] / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert 0 < last["test_accuracy"] < 1


def labelled(**changed: Any) -> Experiment:
    settings: dict[str, Any] = {
        "model": Pooled, "dataset": records(), "clients": 3, "rounds": 3, "local_epochs": 2, "batch_size": 8,
        "loss": several_labels, "metric": wrong_labels, "dtype": "float64", "lr": 0.5,
    }  # fmt: skip
    return Experiment(**{**settings, **changed})


def test_inputs_with_names_and_several_labels_are_trained_alike_in_every_way() -> None:
    experiment = labelled()
    reference = Reference(prepare(experiment).training)
    for t in range(3):
        reference.round(t)
    for plan in (ExecutionPlan(3), ExecutionPlan(1), ExecutionPlan(1, "traced"), ExecutionPlan(3, "traced")):
        stacked = Stacked(prepare(experiment).training, plan)
        for t in range(3):
            stacked.round(t)
        torch.testing.assert_close(stacked.models(), reference.models(), rtol=0, atol=1e-10)


@pytest.mark.slow
def test_inputs_with_names_are_compiled_too() -> None:
    compiled = simulate(labelled(rounds=2), step="compiled", chunk=1).vectors
    torch.testing.assert_close(compiled, simulate(labelled(rounds=2), step="eager").vectors, rtol=0, atol=1e-9)


def test_an_own_metric_is_recorded_and_decides_which_round_is_best() -> None:
    run = simulate(labelled(rounds=8, stop_at={"metric": "test_error", "value": 0.0}))
    assert "test_accuracy" not in run.last
    assert run.best["test_error"] == run.metrics["test_error"].min()
    module, data = run.model.double(), records().test
    outputs = module(**{name: values.double() if name == "age" else values for name, values in data.inputs.items()})
    assert run.last["test_error"] == pytest.approx(float(wrong_labels(outputs, data.targets).mean()))
    top = simulate(Experiment(rounds=2, clients=3, local_steps=3, metric={"name": "top-k", "k": 3}))
    assert top.last["test_score"] >= top.last["test_accuracy"]


def test_a_metric_that_gives_something_else_is_refused_with_what_it_should_give() -> None:
    with pytest.raises(GossamerError, match="metric: it should give one number for each of 40 samples, or their mean"):
        simulate(labelled(metric=lambda outputs, targets: outputs))
    with pytest.raises(ExperimentError, match="metric: expected a name or a function"):
        labelled(metric=3)


def test_regression_has_a_loss_in_place_of_an_accuracy() -> None:
    rng = np.random.default_rng(0)
    from gossamer import per_client

    def pair(size: int) -> tuple[np.ndarray, np.ndarray]:
        inputs = rng.normal(size=(size, 3))
        return inputs, inputs.sum(1)

    data = per_client([pair(20), pair(10)], test=pair(15))
    run = simulate(
        Experiment(dataset=data, clients=2, model="softmax", loss="squared-error", metric="absolute-error", rounds=5)
    )
    assert not any("accuracy" in name for name in run.metrics.columns)
    assert {"test_loss", "client_loss_worst", "test_error"} <= set(run.metrics.columns)
    assert run.best["round"] == run.metrics.loc[run.metrics["test_error"].idxmin(), "round"]


def test_the_gradient_of_a_model_of_sequences_is_measured() -> None:
    for experiment in (reading("character_lstm"), labelled()):
        work = prepare(experiment).training
        gradient, loss = gradient_of(work, work.batches.client_rows[0], work.model.initial)
        assert gradient.isfinite().all()
        assert loss > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"partition": "dirichlet"}, "partition 'dirichlet' splits by class .* int64 of shape .16,.*'iid'"),
        ({"model": "softmax"}, "give measurements as floats"),
        ({"dataset": signals(), "model": "sequences:character_lstm"}, "Floats stay floats; give tokens as integers"),
        (
            {"dataset": records(), "clients": 3, "model": "softmax"},
            "take one tensor; this data set has inputs age, ids",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(GossamerError, match=message):
        simulate(reading("character_lstm", **settings))
