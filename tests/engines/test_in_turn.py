"""Clients that take turns: each mixes what the others have by then, and trains from there."""

from pathlib import Path

import pytest
import torch

from gossamer import Experiment, simulate
from gossamer.engines import Reference, number_of_workers
from gossamer.errors import ExperimentError, GossamerError
from gossamer.experiment import prepare
from gossamer.peers.identity.roster import _check_method
from gossamer.simulation import Observer, RoundRecord, resume
from gossamer.training.steps import full_gradient

#: One step of the full gradient in each round, in double precision.
PLAIN = {
    "method": "d-psgd", "clients": 6, "rounds": 5, "partition": "iid", "batch_size": 10_000, "model": "softmax",
    "weight_decay": 0.0, "lr_decay": 1.0, "dtype": "float64", "order": "in-turn",
    "evaluate": {"every": 0, "clients": 0, "training": 0},
}  # fmt: skip


def run(**changes: object) -> torch.Tensor:
    return simulate(Experiment(**{**PLAIN, **changes}), workers=1, step="eager").vectors


def by_hand(experiment: Experiment) -> torch.Tensor:
    """The same, written out: a table of models, whose rows are mixed, trained and overwritten one after the other."""
    training = prepare(experiment).training
    table = training.model.initial.repeat(experiment.clients, 1)
    weights = torch.tensor(training.network.matrix(0).toarray())
    for _ in range(experiment.rounds):
        for client in range(experiment.clients):
            x = weights[client] @ table
            table[client] = x - experiment.lr * full_gradient(training, client, x)
    return table


@pytest.mark.parametrize("graph", ["full", "ring", "exponential"])
def test_a_table_that_is_overwritten_row_by_row(graph: str) -> None:
    experiment = Experiment(**{**PLAIN, "graph": graph})
    torch.testing.assert_close(run(graph=graph), by_hand(experiment), rtol=1e-9, atol=1e-12)


def test_alone_every_order_is_the_same() -> None:
    torch.testing.assert_close(run(graph="isolated"), run(graph="isolated", order="together"), rtol=1e-12, atol=1e-12)


def test_on_the_full_graph_the_average_goes_twice_as_far() -> None:
    """Of small steps, whose gradients are all about the same: n (1 + 1/n)^n - n in the first round, 2 n later."""
    far = {"graph": "full", "clients": 20, "lr": 1e-6}

    def moved(rounds: int, order: str) -> torch.Tensor:
        start = prepare(Experiment(**{**PLAIN, **far})).training.model.initial
        return (run(**far, rounds=rounds, order=order).mean(0) - start).norm()

    first = moved(1, "in-turn") / moved(1, "together")
    assert first == pytest.approx((1 + 1 / 20) ** 20 - 1, rel=0.01)
    later = (moved(9, "in-turn") - moved(8, "in-turn")) / moved(1, "together")
    assert later == pytest.approx(2, rel=0.06)  # 2 n / (n + 1): a client's own row is a whole round old


class Failing(Observer):
    """Fails after the third round, between two checkpoints."""

    def round(self, record: RoundRecord) -> bool:
        if record.metrics["round"] == 3:
            raise RuntimeError("the machine went away")
        return False


@pytest.mark.parametrize("method", ["dfedavgm", "dfedadmm", "dfedsam"])
def test_a_run_goes_on_to_the_same_numbers(method: str, tmp_path: Path) -> None:
    changes = {**PLAIN, "method": method, "graph": "ring", "batch_size": 64, "checkpoint_every": 2}
    whole = simulate(Experiment(**changes), workers=1, step="eager").vectors
    with pytest.raises(RuntimeError):
        simulate(Experiment(**changes), out=tmp_path / "run", observers=[Failing()], workers=1, step="eager")
    assert torch.equal(resume(tmp_path / "run", workers=1, step="eager").vectors, whole)
    few = simulate(Experiment(**changes), workers=1, chunk=3, step="traced", small_state=0).vectors
    torch.testing.assert_close(few, whole, rtol=1e-9, atol=1e-12)


def test_one_worker_has_all_clients() -> None:
    training = prepare(Experiment(**{**PLAIN, "graph": "ring"})).training
    said: list[str] = []
    assert number_of_workers(2, training, said.append) == 1
    assert "take turns" in said[0]


@pytest.mark.parametrize("method", ["fedavg", "local-g-ecl", "dfedsam-mgs", "osgp", "q-dfedavgm"])
def test_methods_that_cannot_are_refused(method: str) -> None:
    with pytest.raises(ExperimentError, match=r"order: .*Leave order out"):
        prepare(Experiment(method=method, order="in-turn", clients=4))


def test_it_is_for_simulations() -> None:
    with pytest.raises(GossamerError, match="order"):
        _check_method(Experiment(**PLAIN))
    with pytest.raises(ExperimentError, match="order"):
        Reference(prepare(Experiment(**PLAIN)).training)
