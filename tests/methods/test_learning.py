"""Every method learns: real digits, 16 clients with strongly skewed labels, each on the graph it runs on by default."""

import pytest

from gossamer import Experiment, simulate
from gossamer.methods import METHODS, traits_of

CHANCE = 0.1


@pytest.mark.parametrize("name", METHODS)
def test_every_method_learns_on_digits(name: str) -> None:
    method = METHODS.build(name)
    # One step a round needs many rounds; duals that start at zero first pull the model towards zero.
    rounds = 80 if traits_of(method).local_work else 40 if method.family == "edge consensus" else 12
    experiment = Experiment(
        method=name,
        clients=16,
        rounds=rounds,
        partition={"name": "dirichlet", "alpha": 0.1},
        model={"name": "mnist-2nn", "width": 32},
        evaluate={"every": 4, "clients": 0, "training": 0},
    )
    # Eagerly: to find out how these runs are fastest would take longer than they do.
    assert simulate(experiment, step="eager").best["test_accuracy"] > 2.5 * CHANCE
