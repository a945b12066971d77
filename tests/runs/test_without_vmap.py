"""Models and methods that `vmap` cannot run: training, evaluation and mixing go on one client at a time."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gossamer import Experiment, resume, simulate
from gossamer.engines import Reference
from gossamer.experiment import prepare
from gossamer.methods import DFedAvg
from gossamer.simulation import Interrupted
from observers import Listening, PressesCtrlC
from problems import samples, tiny_net
from sequences import gru, lstm, signals


@pytest.mark.parametrize("model", [lstm, gru])
def test_a_recurrent_network_trains_and_is_evaluated_to_the_same_numbers(model: Any) -> None:
    experiment = Experiment(
        model=model, dataset=signals(), clients=4, rounds=6, local_steps=2, batch_size=8, dtype="float64"
    )
    seen = Listening()
    run = simulate(experiment, observers=[seen])
    assert sum("evaluated one at a time" in note for note in seen.notes) == 1
    assert {"client_accuracy_mean", "test_accuracy"} <= run.last.keys()
    reference = Reference(prepare(experiment).training)
    for t in range(6):
        reference.round(t)
    torch.testing.assert_close(run.vectors, reference.models(), rtol=0, atol=1e-10)


def test_the_run_of_a_recurrent_network_is_resumed(tmp_path: Path) -> None:
    experiment = Experiment(model=lstm, dataset=signals(), clients=4, rounds=7, local_steps=1, evaluate={"clients": 3})
    with pytest.raises(Interrupted):
        simulate(experiment, out=tmp_path / "run", observers=[PressesCtrlC(after=4)])
    resumed = resume(tmp_path / "run", experiment=experiment)
    assert torch.equal(resumed.vectors, simulate(experiment).vectors)


class Cautious(DFedAvg):
    """A method whose functions branch on the value of a tensor."""

    def receive(self, state: Any, message: Any, round: Any) -> Any:
        return super().receive(state, message, round) if message["x"].abs().sum() < 1e9 else state

    def model(self, state: Any) -> Any:
        return state["x"] if state["x"].isfinite().all() else torch.zeros_like(state["x"])


def test_a_method_that_branches_on_a_value_runs_as_if_it_did_not() -> None:
    settings: dict[str, Any] = {
        "model": tiny_net, "dataset": samples([6, 9, 4], seed=0), "clients": 3, "rounds": 3, "dtype": "float64"
    }  # fmt: skip
    vectors = [simulate(Experiment(method=method, **settings)).vectors for method in (Cautious(), DFedAvg())]
    torch.testing.assert_close(*vectors, rtol=0, atol=1e-12)
