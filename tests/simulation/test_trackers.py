"""Trackers get every finite number of a round, and are told how the run ended."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gossamer import Experiment, GossamerError, simulate
from gossamer.simulation import Diverged, MLflow, TensorBoard

SMALL = Experiment(rounds=2, clients=3, local_steps=1, model="softmax")


class RefusalError(Exception):
    """What MLflow raises."""


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """A module in the place of MLflow, and its calls."""
    calls: list[tuple[str, Any]] = []
    module: Any = ModuleType("mlflow")
    for name in ("start_run", "log_params", "log_metrics", "end_run"):
        setattr(module, name, lambda *args, name=name, **named: calls.append((name, (*args, *named.values()))))
    module.MlflowClient, module.MlflowException, module.get_tracking_uri = object, RefusalError, lambda: "http://there"
    monkeypatch.setitem(sys.modules, "mlflow", module)
    return calls


def test_mlflow_is_told_everything(mlflow: list[tuple[str, Any]], tmp_path: Path) -> None:
    simulate(SMALL, observers=[MLflow()], out=tmp_path / "r")
    assert [name for name, _ in mlflow] == ["start_run", "log_params", "log_metrics", "log_metrics", "end_run"]
    assert mlflow[0][1] == ("r",)
    assert mlflow[1][1][0]["rounds"] == 2
    values, step = mlflow[3][1]
    assert step == 2
    assert values["test_accuracy"] >= 0
    assert "round" not in values
    assert mlflow[4][1] == ("FINISHED",)


def test_mlflow_hears_of_a_divergence(mlflow: list[tuple[str, Any]]) -> None:
    with pytest.raises(Diverged):
        simulate(SMALL.but(lr=1e30, local_steps=20, rounds=9), observers=[MLflow("wild")])
    assert mlflow[0][1] == ("wild",)
    assert mlflow[-1] == ("end_run", ("FAILED",))


@pytest.mark.parametrize("call", ["MlflowClient", "start_run", "log_metrics", "end_run"])
def test_what_mlflow_refuses_is_said_with_its_address(
    mlflow: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RefusalError("not today")

    monkeypatch.setattr(sys.modules["mlflow"], call, refuse)
    with pytest.raises(GossamerError, match=r"mlflow, writing to http://there \(MLFLOW_TRACKING_URI\): not today"):
        simulate(SMALL, observers=[MLflow()])


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(GossamerError, match=r"pip install 'gossamer\[mlflow\]'"):
        MLflow()
    with pytest.raises(GossamerError, match="this run has no folder"):
        simulate(SMALL, observers=[TensorBoard()])


def test_tensorboard_without_a_run_folder(tmp_path: Path) -> None:
    simulate(SMALL, observers=[TensorBoard(tmp_path / "events")])
    assert list((tmp_path / "events").glob("events.out.tfevents.*"))
