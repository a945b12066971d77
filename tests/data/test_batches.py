"""Which samples a client sees: whole epochs, keyed shuffles, padding that weighs nothing."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.data import Batches, Dataset, Gathered, Samples, Scaling

sizes = st.lists(st.integers(0, 12), min_size=1, max_size=5)


def parts_of(counts: list[int]) -> list[np.ndarray]:
    return np.split(np.arange(sum(counts)), np.cumsum(counts)[:-1])


def dataset(count: int) -> Dataset:
    rows = Samples(torch.arange(count, dtype=torch.float32)[:, None], torch.arange(count))
    return Dataset("numbers", rows, rows, max(count, 1), (1,), Scaling(scale=1.0))


@settings(deadline=None)
@given(counts=sizes, size=st.integers(1, 6), epochs=st.integers(0, 3), round=st.integers(0, 5))
def test_an_epoch_shows_every_sample_once(counts: list[int], size: int, epochs: int, round: int) -> None:
    batches = Batches(parts_of(counts), size, epochs, None, seed=0)
    for client, count in enumerate(counts):
        cut = batches.indices(client, round)
        assert len(cut) == batches.steps[client] == epochs * -(-count // size)
        seen = np.concatenate(cut) if cut else np.array([], dtype=int)
        assert sorted(seen) == sorted(np.tile(batches.parts[client], epochs))


@settings(deadline=None)
@given(counts=sizes, size=st.integers(1, 6), steps=st.integers(0, 9))
def test_steps_go_through_fresh_epochs(counts: list[int], size: int, steps: int) -> None:
    batches = Batches(parts_of(counts), size, None, steps, seed=0)
    for client, count in enumerate(counts):
        cut = batches.indices(client, 0)
        assert len(cut) == (steps if count else 0)
        per_epoch = -(-count // size)
        for start in range(0, len(cut) - per_epoch + 1, per_epoch) if count else ():
            assert sorted(np.concatenate(cut[start : start + per_epoch])) == list(batches.parts[client])


def test_shuffles_are_keyed_by_client_round_and_epoch() -> None:
    batches = Batches([np.arange(50), np.arange(50)], 50, 2, None, seed=3)
    again = Batches([np.arange(50), np.arange(50)], 50, 2, None, seed=3)
    other = Batches([np.arange(50), np.arange(50)], 50, 2, None, seed=4)
    assert all((a == b).all() for a, b in zip(batches.indices(0, 1), again.indices(0, 1), strict=True))
    orders = [tuple(b) for w in (batches, other) for c in (0, 1) for r in (0, 1) for b in w.indices(c, r)]
    assert len(set(orders)) == len(orders)


@settings(deadline=None)
@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=5), size=st.integers(1, 6))
def test_padding_weighs_nothing_and_real_samples_weigh_the_same(counts: list[int], size: int) -> None:
    batches = Batches(parts_of(counts), size, 1, None, seed=0)
    clients = list(range(len(counts)))
    gathered = Gathered(batches, dataset(max(sum(counts), 1)), clients, 0, torch.float64)
    assert gathered.steps == max(batches.steps)
    for k in range(gathered.steps):
        batch = gathered.take(k)
        for client in clients:
            cut = batches.indices(client, 0)
            real = cut[k] if k < len(cut) else []
            assert bool(gathered.active[k, client]) == (len(real) > 0)
            assert batch.targets[client, : len(real)].tolist() == list(real)
            assert batch.weights[client].sum() == pytest.approx(1.0 if len(real) else 0.0)
            assert (batch.weights[client, len(real) :] == 0).all()
            if len(real):  # padding repeats the client's own sample, never another client's
                assert set(batch.targets[client].tolist()) <= set(batches.parts[client].tolist())
        assert gathered.everyone[k] == bool(gathered.active[k].all())


def test_local_work_is_epochs_or_steps() -> None:
    for epochs, steps in ((None, None), (1, 1)):
        with pytest.raises(ValueError, match="one of the two"):
            Batches([np.arange(3)], 1, epochs, steps, seed=0)
