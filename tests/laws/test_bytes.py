"""I20: what travels is what the papers say travels, counted from the real tensors."""

import numpy as np
import pytest
import torch

from gossamer import Experiment
from gossamer.engines import Stacked
from gossamer.experiment import prepare
from gossamer.methods import METHODS
from gossamer.methods.dispfl import active_counts
from problems import graph_for, samples, tiny_net

CLIENTS = 8


def per_link(name: str, d: int) -> float:
    """Bytes on one directed link in one round, in single precision: M = 4d is one model."""
    M = 4 * d
    two = ("scaffold", "d-scaffold", "g-ecl", "local-g-ecl", "k-gt")
    pushed = ("sgp", "osgp", "overlap-sgp", "dfedsgpm", "dfedsgpsm", "dfedsgpsm-s", "asyng")
    active = sum(active_counts(tuple(tuple(p.shape) for p in tiny_net().parameters()), 0.5))
    special = {"dfedsam-mgs": 4 * M, "q-dfedavgm": d + 4, "dispfl": 4 * active + -(-d // 8)}
    return special.get(name, 2 * M if name in two else M + 4 if name in pushed else M)


@pytest.mark.parametrize("name", METHODS)
def test_i20_bytes_agree_with_the_papers(name: str) -> None:
    experiment = Experiment(
        method=name, graph=graph_for(name, CLIENTS), dataset=samples([5] * CLIENTS, 0), clients=CLIENTS, model=tiny_net,
        batch_size=4,
    )  # fmt: skip
    engine = Stacked(prepare(experiment).training)
    d = engine.training.model.size
    engine.round(0)
    report = engine.round(1)
    links = engine.training.network.sends(1)
    told = 4 * (CLIENTS - 1) if name == "dfedsgpsm-s" else 0  # its loss, to everyone
    if engine.training.network.has_server:
        assert report.client_bytes.tolist() == (links * per_link(name, d)).tolist()
        assert report.server_bytes == CLIENTS * per_link(name, d)
    else:
        np.testing.assert_array_equal(report.client_bytes, links * per_link(name, d) + told)
        assert report.server_bytes == 0
    assert torch.isfinite(report.losses).all()
