"""Which samples a client sees: whole epochs, keyed shuffles, padding that weighs nothing."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.data import Augmentation, Batches, ChunkBatches, Dataset, Samples, Scaling
from gossamer.randomness import Draws, Purpose, generator

sizes = st.lists(st.integers(0, 12), min_size=1, max_size=5)


def parts_of(counts: list[int]) -> list[np.ndarray]:
    return np.split(np.arange(sum(counts)), np.cumsum(counts)[:-1])


def dataset(count: int) -> Dataset:
    rows = Samples(torch.arange(count, dtype=torch.float32)[:, None], torch.arange(count))
    return Dataset("numbers", rows, rows, max(count, 1), (1,), Scaling(scale=1.0))


def images(count: int, dtype: torch.dtype = torch.uint8) -> Dataset:
    rows = Samples(torch.randint(0, 256, (count, 3, 6, 5)).to(dtype), torch.arange(count))
    scaling = Scaling(mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
    return Dataset("images", rows, rows, count, (3, 6, 5), scaling, Augmentation(pad=1))


def shuffled(n: int, seed: int, purpose: int, client: int, round: int, epoch: int) -> np.ndarray:
    """An epoch's order straight from its definition, in numpy's own terms."""
    return np.random.Generator(np.random.Philox(key=[seed, purpose], counter=[0, epoch, round, client])).permutation(n)


@pytest.mark.parametrize(("epochs", "steps"), [(0, None), (1, None), (3, None), (None, 0), (None, 1), (None, 7)])
@pytest.mark.parametrize("clients", [[0, 1, 2, 3, 4, 5, 6], [5, 0, 3], [2], [0], []])
def test_batches_are_those_of_the_definition(epochs: int | None, steps: int | None, clients: list[int]) -> None:
    size, seed, round = 4, 11, 2
    counts = [0, 1, size - 1, size, size + 1, 3 * size, 23]
    rows = np.random.default_rng(0).permutation(sum(counts))  # parts that are neither sorted nor side by side
    parts = np.split(rows, np.cumsum(counts)[:-1])
    batches = Batches(parts, size, epochs, steps, seed)

    def golden(client: int) -> list[list[int]]:
        part, cut = parts[client], []
        for epoch in range(9 if len(part) else 0):
            order = np.arange(len(part))  # one batch has no order
            if len(part) > size:
                order = shuffled(len(part), seed, 5, client, round, epoch)
            cut += [part[order[i : i + size]].tolist() for i in range(0, len(part), size)]
        return cut[: steps if epochs is None else epochs * -(-len(part) // size)]

    gathered = ChunkBatches(batches, dataset(len(rows)), clients, round, torch.float32)
    expected = [golden(client) for client in clients]
    assert gathered.steps == max(map(len, expected), default=0)
    for place, (client, cut) in enumerate(zip(clients, expected, strict=True)):
        assert [chosen.tolist() for chosen in batches.indices(client, round)] == cut
        assert batches.work()[client] == sum(map(len, cut))
        for k in range(gathered.steps):
            batch, own = gathered.take(k), cut[k] if k < len(cut) else []
            padding = batch.targets.shape[1] - len(own)
            assert batch.targets[place].tolist() == own + (own[:1] or [0]) * padding
            assert batch.inputs[place, :, 0].tolist() == batch.targets[place].tolist()
            assert batch.weights[place].tolist() == pytest.approx([1 / max(len(own), 1)] * len(own) + [0] * padding)


@settings(deadline=None)
@given(counts=sizes, size=st.integers(1, 6), amount=st.integers(0, 9), by_steps=st.booleans())
def test_work_is_the_samples_of_all_local_steps(counts: list[int], size: int, amount: int, by_steps: bool) -> None:
    batches = Batches(parts_of(counts), size, *((None, amount) if by_steps else (amount, None)), seed=0)
    assert batches.work().tolist() == [sum(map(len, batches.indices(c, 0))) for c in range(len(counts))]


def test_a_moved_generator_draws_what_a_new_one_does() -> None:
    draws = Draws(2**40 + 3, Purpose.AUGMENTATION)
    keys = [(client, round, step) for client in (0, 70_000) for round in (0, 5) for step in (0, 1)]
    kept = [generator(2**40 + 3, Purpose.AUGMENTATION, *key) for key in keys]
    for key, own in zip(keys, kept, strict=True):
        moved = draws.at(*key)
        # An odd number of 32-bit draws leaves half a word behind, which must not reach the next key.
        for rng_draw in (lambda rng: rng.integers(0, 9, 3), lambda rng: rng.permutation(7), lambda rng: rng.random(3)):
            assert (rng_draw(moved) == rng_draw(own)).all()


def test_augmentation_is_drawn_for_each_client_and_step_from_its_own_key() -> None:
    torch.manual_seed(0)
    data, counts = images(12), [5, 0, 7]
    batches = Batches(parts_of(counts), 4, 2, None, seed=3)
    gathered = ChunkBatches(batches, data, [2, 1, 0], 6, torch.float64)
    assert data.augmentation is not None
    for k in range(gathered.steps):
        batch = gathered.take(k)
        for place, client in enumerate([2, 1, 0]):
            own = batches.indices(client, 6)[k : k + 1]
            if not own:
                continue
            draw = data.augmentation.draw(generator(3, Purpose.AUGMENTATION, client, 6, k), len(own[0]))
            choices = [torch.from_numpy(values) for values in (draw.flips, draw.rows, draw.columns)]
            expected = data.augmentation.apply(data.train.inputs[torch.from_numpy(own[0])], *choices)
            assert torch.equal(batch.inputs[place, : len(own[0])], expected)


@pytest.mark.parametrize("clients", [[1], [0, 1, 2]])
def test_channels_last_is_the_same_images_laid_out_otherwise(clients: list[int]) -> None:
    data = images(12)
    batches = Batches(parts_of([5, 4, 3]), 4, 1, None, seed=0)
    plain = ChunkBatches(batches, data, clients, 0, torch.float32)
    last = ChunkBatches(batches, data, clients, 0, torch.float32, memory_format=torch.channels_last)
    for k in range(plain.steps):
        assert plain.take(k).inputs.is_contiguous()
        assert torch.equal(last.take(k).inputs, plain.take(k).inputs)
        assert all(own.is_contiguous(memory_format=torch.channels_last) for own in last.take(k).inputs)
    flat = ChunkBatches(batches, dataset(12), clients, 0, torch.float32, memory_format=torch.channels_last)
    assert flat.take(0).inputs.is_contiguous()  # there are no channels to put last


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("mean", [(0.5,), (0.5, 0.4, 0.3)])
def test_scaling_leaves_the_data_set_alone(dtype: torch.dtype, mean: tuple[float, ...]) -> None:
    data = images(6, dtype)
    before = data.train.inputs.clone()
    Scaling(mean=mean, std=mean).apply(data.train.inputs, torch.float32)
    Scaling(scale=1.0, mean=mean, std=(1.0,) * len(mean)).apply(data.train.inputs, torch.float32)
    assert torch.equal(data.train.inputs, before)


@settings(deadline=None)
@given(counts=sizes, size=st.integers(1, 6), epochs=st.integers(0, 3), round=st.integers(0, 5))
def test_an_epoch_shows_every_sample_once(counts: list[int], size: int, epochs: int, round: int) -> None:
    batches = Batches(parts_of(counts), size, epochs, None, seed=0)
    for client, count in enumerate(counts):
        cut = batches.indices(client, round)
        assert len(cut) == batches.steps[client] == epochs * -(-count // size)
        seen = np.concatenate(cut) if cut else np.array([], dtype=int)
        assert sorted(seen) == sorted(np.tile(batches.client_rows[client], epochs))


@settings(deadline=None)
@given(counts=sizes, size=st.integers(1, 6), steps=st.integers(0, 9))
def test_steps_go_through_fresh_epochs(counts: list[int], size: int, steps: int) -> None:
    batches = Batches(parts_of(counts), size, None, steps, seed=0)
    for client, count in enumerate(counts):
        cut = batches.indices(client, 0)
        assert len(cut) == (steps if count else 0)
        per_epoch = -(-count // size)
        for start in range(0, len(cut) - per_epoch + 1, per_epoch) if count else ():
            assert sorted(np.concatenate(cut[start : start + per_epoch])) == list(batches.client_rows[client])


def test_shuffles_are_keyed_by_client_round_and_epoch() -> None:
    batches, again, other = (Batches([np.arange(50), np.arange(50)], 25, 2, None, seed=seed) for seed in (3, 3, 4))
    assert all((a == b).all() for a, b in zip(batches.indices(0, 1), again.indices(0, 1), strict=True))
    orders = [tuple(b) for w in (batches, other) for c in (0, 1) for r in (0, 1) for b in w.indices(c, r)]
    assert len(set(orders)) == len(orders)


@settings(deadline=None)
@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=5), size=st.integers(1, 6))
def test_padding_weighs_nothing_and_real_samples_weigh_the_same(counts: list[int], size: int) -> None:
    batches = Batches(parts_of(counts), size, 1, None, seed=0)
    clients = list(range(len(counts)))
    gathered = ChunkBatches(batches, dataset(max(sum(counts), 1)), clients, 0, torch.float64)
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
                assert set(batch.targets[client].tolist()) <= set(batches.client_rows[client].tolist())
        assert gathered.all_active[k] == bool(gathered.active[k].all())


def test_local_work_is_epochs_or_steps() -> None:
    for epochs, steps in ((None, None), (1, 1)):
        with pytest.raises(ValueError, match="one of the two"):
            Batches([np.arange(3)], 1, epochs, steps, seed=0)
