"""The number of workers changes who computes a number, and not the number."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from gossamer import Experiment, simulate
from gossamer.simulation import Run
from gossamer.workers import can_fork
from problems import samples, tiny_net

pytestmark = pytest.mark.skipif(not can_fork(), reason="workers are forked on Linux only")

TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
#: One client with fewer samples than a batch, one with none at all; the heavy ones at the ends, so shares are uneven.
RAGGED = [9, 1, 0, 4, 7, 2, 5, 3, 8]


class Case(NamedTuple):
    """A method on a graph."""

    method: Any
    graph: Any
    settings: Mapping[str, Any] = {}

    def __str__(self) -> str:
        names = (part if isinstance(part, str) else part["name"] for part in (self.method, self.graph))
        return "-on-".join(names)


CASES = [
    Case("dfedavg", "ring"),
    Case("dfedavg", "star"),  # partial sums cross to the hub
    Case("dfedsam-mgs", "full"),
    Case("dfedadmm-sam", {"name": "erdos-renyi", "p": 0.5}),
    Case("local-g-ecl", "star"),
    Case("g-ecl", {"name": "random-symmetric", "neighbours": 3}, {"local_epochs": None}),  # an exchange before round 1
    Case("dfedsgpsm", {"name": "directed-random", "neighbours": 3}),
    Case("dfedsgpsm-s", {"name": "directed-by-loss", "neighbours": 3}),  # losses choose the links
    Case("overlap-sgp", {"name": "exponential"}),
    Case("dispfl", {"name": "random-pull", "neighbours": 3}),
    Case("q-dfedavgm", "one-peer-exponential"),  # messages are rounded, at random
    Case("ecl", "torus"),  # sums over the edges, without the client itself
    Case("fedavg", {"name": "server", "participation": 0.5}),
    Case("scaffold", {"name": "server", "participation": 0.4, "sampling": "coin"}),
]  # fmt: skip


def run(case: Case, dtype: str, workers: int, **options: Any) -> Run:
    settings: dict[str, Any] = {"local_epochs": 2, **case.settings}
    experiment = Experiment(
        method=case.method, graph=case.graph, dataset=samples(RAGGED, seed=1), clients=len(RAGGED), model=tiny_net,
        batch_size=4, lr=0.05, rounds=3, dtype=dtype, evaluate={"clients": 1, "training": 2}, **settings,
    )  # fmt: skip
    return simulate(experiment, workers=workers, **options)


def assert_same(one: Run, other: Run, dtype: str) -> None:
    """The same vectors and the same metrics, to the precision of the type."""
    torch.testing.assert_close(one.vectors, other.vectors, rtol=0, atol=TOLERANCE[dtype])
    assert list(one.metrics) == list(other.metrics)
    for column in one.metrics:
        np.testing.assert_allclose(
            one.metrics[column], other.metrics[column], rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype], err_msg=column
        )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_two_and_three_workers_give_the_same_numbers(case: Case) -> None:
    alone = run(case, "float64", 1)
    assert torch.isfinite(alone.vectors).all()
    assert not torch.equal(alone.vectors[0], alone.vectors[-1]) or case.graph == "full" or "server" in str(case)
    for workers in (2, 3):
        assert_same(run(case, "float64", workers), alone, "float64")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_in_single_precision_as_well(case: Case) -> None:
    assert_same(run(case, "float32", 2), run(case, "float32", 1), "float32")


@pytest.mark.parametrize("workers", [4, 9])
def test_a_client_for_every_worker(workers: int) -> None:
    assert_same(run(CASES[0], "float64", workers), run(CASES[0], "float64", 1), "float64")


def test_a_chunk_is_of_clients_of_one_worker() -> None:
    for chunk in (1, 2, 9):
        assert_same(run(CASES[0], "float64", 2, chunk=chunk), run(CASES[0], "float64", 1), "float64")


@pytest.mark.parametrize("method", ["dfedavg", "dfedadmm", "fedavg"])
def test_the_record_of_two_workers_is_that_of_one_to_the_byte(tmp_path: Path, method: str) -> None:
    experiment = Experiment(method=method, rounds=3, clients=10, local_steps=2, dataset={"name": "digits"})
    for workers in (1, 2):
        simulate(experiment, workers=workers, out=tmp_path / str(workers))
    one, two = ((tmp_path / str(workers)) for workers in (1, 2))
    assert (one / "metrics.jsonl").read_bytes() == (two / "metrics.jsonl").read_bytes()
    assert (one / "experiment.toml").read_bytes() == (two / "experiment.toml").read_bytes()
    assert (one / "partition.json").read_bytes() == (two / "partition.json").read_bytes()
    assert len(list((two / "checkpoints").iterdir())) == 2  # each worker wrote its own clients


def test_the_average_model_and_what_is_not_kept() -> None:
    """Without the clients' vectors the average is there all the same."""
    kept, dropped = run(CASES[0], "float64", 2), run(CASES[0], "float64", 2, keep_vectors=False)
    assert dropped.vectors.shape == (0, kept.vectors.shape[1])
    for one, other in zip(kept.model.parameters(), dropped.model.parameters(), strict=True):
        assert torch.equal(one, other)
