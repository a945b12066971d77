"""The measures of a round that an experiment asks for, against the same numbers computed the plain way."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from gossamer import Experiment, simulate
from gossamer.data import per_client
from gossamer.experiment import prepare
from gossamer.runs import read_clients
from gossamer.simulation import Observer, RoundRecord
from groups import needs_forks

EVERYTHING = {"every": 1, "clients": 2, "gradient": 1, "sharpness": 3, "personal": 2, "start": True}
EXPERIMENT = Experiment(
    rounds=3,
    clients=5,
    local_steps=3,
    model="softmax",
    dataset={"name": "digits", "train_samples": 300},
    evaluate=EVERYTHING,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    simulate(EXPERIMENT, out=path, workers=1)
    return path


def metrics_of(folder: Path) -> pd.DataFrame:
    return pd.read_json(folder / "metrics.jsonl", lines=True).set_index("round")


def plain_loss(x: torch.Tensor, rows: Any) -> torch.Tensor:
    training = prepare(EXPERIMENT).training
    some = training.dataset.train[torch.as_tensor(rows)]
    outputs = training.model(x, training.dataset.scaling.apply(some.inputs, x.dtype))
    return torch.nn.functional.cross_entropy(outputs, some.targets)


def test_the_gradient_is_that_of_the_mean_of_the_clients_objectives(folder: Path) -> None:
    training = prepare(EXPERIMENT).training
    x = training.model.initial.clone().requires_grad_()
    losses = [plain_loss(x, rows) for rows in training.batches.client_rows]
    f = torch.stack(losses).mean() + 0.5 * training.weight_decay * x.square().sum()
    (gradient,) = torch.autograd.grad(f, x)
    found = metrics_of(folder).gradient_norm_squared
    assert found[0] == pytest.approx(float(gradient.square().sum()), rel=1e-5)
    assert found.notna().all()


def test_flatness_is_that_of_the_training_loss(folder: Path) -> None:
    training = prepare(EXPERIMENT).training
    hessian = torch.autograd.functional.hessian(lambda x: plain_loss(x, range(300)), training.model.initial)
    found = metrics_of(folder).loc[0]
    assert found.top_eigenvalue == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]), rel=1e-3)
    assert abs(found.hessian_trace - float(hessian.trace())) < 4 * found.hessian_trace_error
    assert 0 < found.sam_sharpness < 1
    assert metrics_of(folder).top_eigenvalue.notna().tolist() == [True, False, False, True]


def test_personal_accuracy_weighs_classes_by_the_clients_own_labels(folder: Path) -> None:
    """The same as the accuracy on test samples drawn for each client in the proportions of its own labels."""
    prepared = prepare(EXPERIMENT)
    run = simulate(EXPERIMENT, workers=1)
    test = prepared.training.dataset.test
    inputs = prepared.training.dataset.scaling.apply(test.inputs, torch.float32)
    shares = torch.from_numpy(prepared.partition.labels / prepared.partition.sizes[:, None])
    found = read_clients(folder).set_index(["round", "client"]).loc[3]
    average = run.model(inputs).argmax(1)
    for client, x in enumerate(run.vectors):
        for name, predicted in (
            ("client_personal_accuracy", prepared.training.model(x, inputs).argmax(1)),
            ("client_personal_average_accuracy", average),
        ):
            weights = (shares[client] / torch.bincount(test.targets, minlength=10))[test.targets]
            expected = float((weights * (predicted == test.targets)).sum())
            assert found.loc[client, name] == pytest.approx(expected, abs=1e-5)
    last = metrics_of(folder).loc[3]
    assert last.personal_accuracy_mean == pytest.approx(found.client_personal_accuracy.mean(), abs=1e-5)
    assert last.personal_average_accuracy_worst == pytest.approx(found.client_personal_average_accuracy.min(), abs=1e-5)


def test_the_values_of_clients_are_one_line_of_pandas(folder: Path) -> None:
    table = pd.read_json(folder / "clients.jsonl", lines=True).set_index("round").client_accuracy.apply(pd.Series)
    assert table.shape == (3, 5)
    assert table.index.tolist() == [0, 2, 3]
    tidy = read_clients(folder)
    assert len(tidy) == 15
    assert tidy[tidy["round"] == 2].client_accuracy.tolist() == pytest.approx(table.loc[2].tolist())
    assert tidy[tidy["round"] == 3].client_accuracy.mean() == pytest.approx(
        metrics_of(folder).client_accuracy_mean[3], abs=1e-5
    )


@needs_forks
@pytest.mark.slow
def test_two_workers_measure_the_same_to_the_last_bit(folder: Path, tmp_path: Path) -> None:
    simulate(EXPERIMENT, out=tmp_path / "two", workers=2)
    one, two = (metrics_of(path).drop(columns="local_loss") for path in (folder, tmp_path / "two"))
    pd.testing.assert_frame_equal(one, two, check_exact=True)


def test_what_is_not_asked_for_is_not_measured_in_the_last_round_either(tmp_path: Path) -> None:
    run = simulate(EXPERIMENT.but(evaluate={"clients": 0}), out=tmp_path / "run", workers=1)
    assert {"test_accuracy", "client_accuracy_mean", "train_loss"} <= run.last.keys()
    assert not {"gradient_norm_squared", "top_eigenvalue", "personal_accuracy_mean"} & run.last.keys()
    assert read_clients(tmp_path / "run")["round"].unique().tolist() == [3]


def test_a_run_that_diverges_has_no_flatness() -> None:
    wild = EXPERIMENT.but(lr=1e30, evaluate={"sharpness": 1, "gradient": 1})
    run = simulate(wild, workers=1, on_divergence="continue")
    assert "top_eigenvalue" not in run.last


class Watches(Observer):
    wants = ("client_personal_accuracy",)

    def __init__(self) -> None:
        self.seen: list[int] = []

    def round(self, record: RoundRecord) -> bool:
        self.seen.append(len(record.clients["client_personal_accuracy"]))
        return False


def test_an_observer_may_want_personal_accuracies_of_every_round() -> None:
    observer = Watches()
    simulate(EXPERIMENT.but(evaluate={}), observers=[observer], workers=1)
    assert observer.seen == [5, 5, 5]


def test_a_regression_has_no_personal_accuracy(tmp_path: Path) -> None:
    data = per_client(
        [(torch.randn(8, 3), torch.randn(8, 1)) for _ in range(4)], (torch.randn(6, 3), torch.randn(6, 1))
    )
    regression = Experiment(
        dataset=data, model="softmax", loss="squared-error", clients=4, rounds=2, local_steps=1,
        evaluate={"personal": 1, "sharpness": 1, "gradient": 1},
    )  # fmt: skip
    last = simulate(regression, out=tmp_path / "run", workers=1).last
    assert "personal_accuracy_mean" not in last
    assert last["top_eigenvalue"] > 0
    assert read_clients(tmp_path / "run").client_loss.notna().all()


def test_clients_distances_have_the_consensus_as_their_mean_and_push_sum_weights_are_kept(tmp_path: Path) -> None:
    graph = {"name": "directed-random", "neighbours": 2}
    run = simulate(
        Experiment(method="osgp", graph=graph, clients=5, rounds=2, local_steps=1, model="softmax"), out=tmp_path / "r"
    )
    found = read_clients(tmp_path / "r").set_index("round").loc[2]
    assert found["client_distance"].mean() == pytest.approx(run.last["consensus"], rel=1e-5)
    assert (found["client_weight"] > 0).all()
