"""The loop that the engine is measured against does the same work: the same numbers from the same batches."""

import json
import os
import subprocess

import pytest
import torch
from benchmarks import environments, loops
from benchmarks.contender import PATH
from benchmarks.workloads import WORKLOADS, loop_of, random_images

from gossamer import simulate
from gossamer.experiment import prepare

ROUNDS = 3


SMALL = {"clients": 7, "batch_size": 8, "rounds": ROUNDS, "model": {"name": "mnist-2nn", "width": 6}}


@pytest.mark.parametrize("name", ["W1", "W1-SAM", "W1-ADMM"])
@pytest.mark.parametrize("graph", ["ring", {"name": "k-regular", "k": 4}])
def test_the_clean_loop_gives_the_engine_s_numbers(name, graph):
    workload = WORKLOADS[name]
    experiment = workload.experiment(
        dataset=random_images((1, 5, 5), 70),  # ten samples a client: a full batch, and one of two
        **SMALL,
        **{"graph": graph, "weight_decay": 0.1, "dtype": "float64"},
    )
    training = prepare(experiment).training

    def same_batches(client, round):
        return [torch.as_tensor(rows) for rows in training.batches.indices(client, round)]

    loop = loop_of(workload.method, training, draw=same_batches)
    for _ in range(ROUNDS):
        loop.round()
    vectors = simulate(experiment, workers=1).vectors
    assert not torch.allclose(vectors, training.model.initial.expand_as(vectors), atol=1e-3)
    assert torch.allclose(loop.models, vectors, rtol=0, atol=1e-10)


def test_the_loop_s_own_batches_have_the_sizes_of_the_engine_s():
    experiment = WORKLOADS["W2"].experiment(clients=30, batch_size=32, local_steps=5)
    training = prepare(experiment).training
    loop = loop_of("dfedavg", training)
    for client in range(3):
        mine, theirs = loop.draw(client, 0), training.batches.indices(client, 0)
        assert [len(rows) for rows in mine] == [len(rows) for rows in theirs]
        assert set(torch.cat(list(mine)).tolist()) <= set(training.batches.client_rows[client].tolist())


def test_channels_last_changes_nothing_but_the_layout():
    experiment = WORKLOADS["W3"].experiment(
        dataset=random_images((3, 16, 16), 24), clients=3, batch_size=4, local_steps=2, dtype="float64"
    )
    training = prepare(experiment).training

    def same_batches(client, round):
        return [torch.as_tensor(rows) for rows in training.batches.indices(client, round)]

    plain, last = (loop_of("dfedavg", training, layout, same_batches) for layout in (False, True))
    plain.round()
    last.round()
    assert torch.allclose(plain.models, last.models, rtol=0, atol=1e-10)


@pytest.mark.parametrize("onednn", [True, False])
def test_the_loop_gives_the_same_numbers_by_the_fastest_products(onednn, monkeypatch):
    """Whichever library multiplies."""
    if onednn and not torch.backends.mkldnn.is_available():
        pytest.skip("torch was built without oneDNN")
    monkeypatch.setattr(loops, "ONEDNN_IS_FASTER", {})
    slow, fast = (loops.by_mm, loops.by_onednn) if onednn else (loops.by_onednn, loops.by_mm)
    seconds = {slow: 2.0, fast: 1.0}
    monkeypatch.setattr(loops, "fastest", lambda product, *arguments: seconds[product])
    experiment = WORKLOADS["W1"].experiment(dataset=random_images((1, 5, 5), 70), **SMALL)
    training = prepare(experiment).training

    def same_batches(client, round):
        return [torch.as_tensor(rows) for rows in training.batches.indices(client, round)]

    plain, other = (loop_of("dfedavg", training, False, same_batches, products) for products in (False, True))
    for loop in (plain, other):
        for _ in range(ROUNDS):
            loop.round()
    assert set(loops.ONEDNN_IS_FASTER.values()) == {onednn}
    assert len(loops.ONEDNN_IS_FASTER) >= 8  # three layers, forward and backward
    assert torch.allclose(plain.models, other.models, rtol=0, atol=1e-5)


def test_the_fastest_product_is_measured_once_for_each_shape(monkeypatch):
    monkeypatch.setattr(loops, "ONEDNN_IS_FASTER", {})
    a, b = torch.rand(8, 16), torch.rand(4, 16)
    for _ in range(2):
        assert torch.allclose(loops.multiply(a, b.t()), a @ b.t(), atol=1e-5)
    assert len(loops.ONEDNN_IS_FASTER) == 1


@pytest.mark.slow
@pytest.mark.skipif(not environments.python_of("jax"), reason="python -m benchmarks.environments jax")
def test_the_loops_in_jax_give_the_engine_s_numbers_in_every_way():
    program = """
import json, os, torch
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
torch.set_num_threads(1)
from benchmarks.jax_loops import differences
from benchmarks.workloads import random_images
small = {"clients": 6, "dataset": random_images((1, 5, 5), 60), "batch_size": 8, "dtype": "float64"}
tiny = {"clients": 4, "dataset": random_images((3, 16, 16), 32), "batch_size": 5, "local_steps": 2, "dtype": "float64"}
many = {"clients": 20, "dataset": random_images((1, 28, 28), 60), "dtype": "float64"}
settings = {"W1": small, "W1-SAM": small, "W1-ADMM": small, "W2": {"clients": 10, "dtype": "float64"}, "W3": tiny}
found = {name: differences(name, **of) for name, of in (settings | {"W4": many}).items()}
print(json.dumps(found))
"""
    command = [environments.python_of("jax"), "-c", program]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": PATH}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert len(found) == 6
    for ways in found.values():
        assert len(ways) == 4  # map and vmap, on one device and on two
        assert max(ways.values()) < 1e-10
