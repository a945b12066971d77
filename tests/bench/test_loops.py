"""The loop that the engine is measured against does the same work: the same numbers from the same batches."""

import pytest
import torch
from benchmarks.workloads import WORKLOADS, loop_of, random_images

from gossamer import simulate
from gossamer.experiment import prepare

ROUNDS = 3


@pytest.mark.parametrize("name", ["W1", "W1-SAM", "W1-ADMM"])
@pytest.mark.parametrize("graph", ["ring", {"name": "k-regular", "k": 4}])
def test_the_clean_loop_gives_the_engine_s_numbers(name, graph):
    workload = WORKLOADS[name]
    experiment = workload.experiment(
        dataset=random_images((1, 5, 5), 70),  # ten samples a client: a full batch, and one of two
        **{"clients": 7, "graph": graph, "batch_size": 8, "rounds": ROUNDS, "dtype": "float64"},
        **{"weight_decay": 0.1, "model": {"name": "mnist-2nn", "width": 6}},
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
