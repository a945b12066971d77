"""The result depends on the experiment, not on how it is run."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gossamer import Experiment, simulate
from gossamer.data import Augmentation, Dataset, Samples, Scaling
from gossamer.engines.steps.chunk import ChunkRunner
from gossamer.errors import ExperimentError
from gossamer.methods import METHODS
from problems import Weights, engine, metropolis, play, samples, tiny_net

TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
RAGGED = [9, 1, 0, 4, 7, 2, 5, 3, 8]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", METHODS)
def test_every_chunk_size_gives_the_same_metrics(name: str, dtype: str) -> None:
    """Clients of unequal size, one with fewer samples than a batch, one with none at all."""
    data = samples(RAGGED, seed=1)
    experiment = Experiment(
        method=name, dataset=data, clients=9, model=tiny_net, batch_size=4, local_epochs=2, rounds=3, dtype=dtype
    )
    runs = [simulate(experiment, chunk=chunk) for chunk in (1, 2, 7, 9)]
    for run in runs[1:]:
        for column in runs[0].metrics:
            np.testing.assert_allclose(
                run.metrics[column], runs[0].metrics[column], rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
            )
        torch.testing.assert_close(run.vectors, runs[0].vectors, rtol=0, atol=TOLERANCE[dtype])


def colour_images(clients: int) -> Dataset:
    rng = np.random.default_rng(0)
    train = Samples(torch.from_numpy(rng.integers(0, 256, (23, 3, 8, 8), dtype=np.uint8)), torch.arange(23) % 3)
    owners = tuple(np.array_split(np.arange(23), clients))
    return Dataset("noise", train, train, 3, (3, 8, 8), Scaling(), Augmentation(pad=2), clients=owners)


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
    )


def test_augmented_images_and_convolutions_do_not_depend_on_the_chunk() -> None:
    data = colour_images(4)
    results = [
        play(engine("dfedsam", "ring", data, chunk, model=small_cnn, local_epochs=2, batch_size=4))
        for chunk in (1, 3, 4)
    ]
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-10)
    torch.testing.assert_close(results[2], results[0], rtol=0, atol=1e-10)


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 16), nn.Dropout(0.5), nn.Linear(16, 3))


def test_dropout_is_keyed_and_leaves_the_global_stream_alone() -> None:
    data = samples([6, 6, 6], seed=0)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one = engine("dfedavg", "ring", data, chunk=3, model=with_dropout, local_steps=2)
    assert one.plan.chunk == 1
    assert "dropout" in one.plan.reason
    first = play(one)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(4)
    assert torch.equal(play(engine("dfedavg", "ring", data, model=with_dropout, local_steps=2)), first)
    assert not torch.equal(play(engine("dfedavg", "ring", data, model=with_dropout, local_steps=2, seed=1)), first)


def test_dropout_is_off_when_models_are_evaluated() -> None:
    data = samples([6, 6, 6], seed=0)
    run = simulate(Experiment(dataset=data, clients=3, model=with_dropout, local_steps=1, rounds=1, dtype="float64"))
    outputs = run.model(data.test.inputs).detach()
    loss = float(nn.functional.cross_entropy(outputs, data.test.targets))
    assert run.last["test_loss"] == pytest.approx(loss, abs=1e-12)


class Branching(nn.Module):
    """Decides by looking at its data, which no `vmap` can do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        scores = self.layer(inputs)
        return scores if scores.sum() > 0 else 2 * scores


def test_a_model_that_vmap_cannot_run_falls_back_to_one_client_at_a_time_and_says_why() -> None:
    run = engine("dfedavg", "ring", samples([4, 4, 4], 0), chunk=3, model=Branching, local_steps=1)
    assert run.plan.chunk == 1
    assert "vmap" in run.plan.reason
    assert torch.isfinite(play(run)).all()


def test_a_model_that_does_not_fit_the_samples_is_refused_before_the_first_round() -> None:
    with pytest.raises(ExperimentError, match="fails on samples of shape 3"):
        engine("dfedavg", "ring", samples([4, 4, 4], 0), model=lambda: nn.Linear(7, 3))


def test_no_local_steps_is_mixing_alone() -> None:
    run = engine("dfedavg", "ring", samples([4, 4, 4], 0), local_steps=0)
    x = torch.randn(3, run.training.model.size, dtype=torch.float64)
    run.state["x"] = x.clone()
    report = run.round(0)
    torch.testing.assert_close(run.models(), x.mean(0).repeat(3, 1))
    assert report.losses.isnan().all()
    assert not report.broken.any()


def test_a_client_without_samples_only_mixes() -> None:
    run = engine("dfedavg", Weights(np.eye(3)), samples([4, 0, 4], 0), local_steps=2)
    start = run.training.model.initial
    after = play(run, 1)
    assert torch.equal(after[1], start)
    assert not torch.equal(after[0], start)


def test_a_client_with_fewer_samples_than_a_batch_uses_them_all_in_every_step() -> None:
    small = engine("dfedavg", Weights(np.eye(2)), samples([3, 8], 0), batch_size=100, local_steps=2)
    exact = engine("dfedavg", Weights(np.eye(2)), samples([3, 8], 0), batch_size=8, local_steps=2)
    torch.testing.assert_close(play(small), play(exact), rtol=0, atol=1e-12)


def test_one_client_is_ordinary_training() -> None:
    run = engine("dfedavgm", "full", samples([10], 0), local_epochs=1)
    report = run.round(0)
    assert report.client_bytes.tolist() == [0]
    assert run.models().shape[0] == 1


def test_only_sampled_clients_work_and_only_they_are_charged() -> None:
    run = engine("fedavg", {"name": "server", "participation": 0.5}, samples([4] * 6, 0), local_steps=1)
    report = run.round(0)
    size = 8 * run.training.model.size
    assert int(report.losses.isfinite().sum()) == 3
    assert sorted(report.client_bytes.tolist()) == [0] * 3 + [size] * 3
    assert report.server_bytes == 3 * size


def test_an_interrupted_round_leaves_the_state_before_it_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    run = engine("dfedavg", "ring", samples([4, 4, 4], 0), local_steps=1, chunk=1)
    run.round(0)
    before = {name: rows.clone() for name, rows in run.state.items()}
    calls: Iterator[int] = iter(range(100))
    original: Any = ChunkRunner._step

    def interrupt_second(self: ChunkRunner, *arguments: Any) -> Any:
        if next(calls) == 1:
            raise KeyboardInterrupt
        return original(self, *arguments)

    monkeypatch.setattr(ChunkRunner, "_step", interrupt_second)
    with pytest.raises(KeyboardInterrupt):
        run.round(1)
    assert all(torch.equal(run.state[name], rows) for name, rows in before.items())


def test_a_broken_client_is_named() -> None:
    run = engine("dfedavg", Weights(metropolis(3, 0)), samples([4, 4, 4], 0), local_steps=1)
    run.state["x"][2] = torch.nan
    assert run.round(0).broken.tolist() == [False, False, True]


def test_a_loss_that_gives_a_mean_is_asked_about_each_sample() -> None:
    data = samples(RAGGED, seed=2)
    own = engine("dfedavg", "ring", data, loss=nn.functional.cross_entropy, local_epochs=1)
    assert torch.allclose(play(own), play(engine("dfedavg", "ring", data, local_epochs=1)), rtol=0, atol=1e-12)
