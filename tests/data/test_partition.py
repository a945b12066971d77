import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.data import PARTITIONS, check_partition, split, summarise
from gossamer.data.partition import Dirichlet, DirichletByClass, Explicit, Iid, Shards
from gossamer.errors import DataError, ExperimentError

DRAWN = [Iid(), Dirichlet(), Dirichlet(alpha=1e-9), Dirichlet(alpha=np.inf), DirichletByClass(), Shards()]
ALPHAS = st.sampled_from([5e-324, 1e-6, 0.1, 1.0, 1e6, np.inf])


def labels(samples: int, classes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, classes, samples)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 200), st.integers(1, 30), st.integers(1, 12), st.integers(0, 2**63), ALPHAS)
def test_every_sample_goes_to_exactly_one_client(samples, clients, classes, seed, alpha):
    targets = labels(samples, classes, seed % 1000)
    for partition in (Iid(), Dirichlet(alpha=alpha), DirichletByClass(alpha=alpha)):
        parts = partition.split(targets, clients, seed)
        assert len(parts) == clients
        assert all(indices.dtype == np.int64 for indices in parts)
        check_partition(parts, samples)
        if not isinstance(partition, DirichletByClass | Shards):
            sizes = [len(indices) for indices in parts]
            assert max(sizes) - min(sizes) <= 1


def test_a_refilled_class_starts_again_and_clients_have_the_mixtures_that_they_drew():
    targets = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 600))
    parts = split(Dirichlet(alpha=0.3, refill=True), targets, 30, 0)
    assert set(parts.sizes) == {200}
    times = np.bincount(parts.indices, minlength=len(targets))
    assert times.max() > 1
    assert times.min() == 0
    for label in range(10):  # in turn: no sample is used twice more often than another of its class
        assert np.ptp(times[targets == label]) <= 1

    def variance(partition):
        shares = [summarise(partition.split(targets, 30, seed), targets, 10).labels / 200 for seed in range(20)]
        return np.var(shares)

    drawn = 0.1 * 0.9 / (10 * 0.3 + 1)  # of Dir(alpha) itself; 200 draws of a client's mixture add their own
    assert variance(Dirichlet(alpha=0.3, refill=True)) == pytest.approx(drawn * (1 - 1 / 200) + 0.09 / 200, rel=0.05)
    assert variance(Dirichlet(alpha=0.3)) < 0.9 * drawn
    with pytest.raises(DataError, match="sample"):
        check_partition(parts, len(targets))


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 10), st.integers(1, 4), st.integers(0, 100), st.integers(0, 2**63))
def test_shards_are_exact_and_hold_few_classes(clients, per_client, extra, seed):
    targets = labels(clients * per_client + extra, 5, seed % 1000)
    parts = Shards(classes_per_client=per_client).split(targets, clients, seed)
    check_partition(parts, len(targets))
    assert len(parts) == clients


def test_shards_of_whole_classes_hold_that_many():
    targets = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 40))
    summary = summarise(Shards().split(targets, 20, 3), targets, 10)
    assert set(summary.sizes) == {20}
    assert set(summary.distinct) == {2}


@settings(deadline=None, max_examples=100)
@given(st.integers(2, 12), st.integers(1, 5), st.integers(2, 12), st.integers(2, 30), st.integers(0, 2**63))
def test_shards_are_of_one_class_and_those_of_a_client_of_different_ones(clients, per_client, classes, size, seed):
    """Whenever that is possible: there are no more classes than shards, and no class has more shards than clients."""
    targets = labels(clients * per_client * size, classes, seed % 1000)
    parts = Shards(classes_per_client=per_client).split(targets, clients, seed)
    check_partition(parts, len(targets))
    held = summarise(parts, targets, classes)
    sizes = np.unique(targets, return_counts=True)[1]
    if len(sizes) <= clients * per_client:
        assert held.distinct.max() <= per_client
        if sizes.max() / len(targets) * per_client <= 1 - 1 / clients:  # with room for rounding up
            assert held.distinct.min() == per_client


@pytest.mark.parametrize("seed", range(3))
def test_classes_of_unequal_sizes_give_two_classes_to_every_client(seed):
    """MNIST's classes have 5,421 to 6,742 samples: 200 equal shards would lie across their borders."""
    sizes = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    targets = np.random.default_rng(0).permutation(np.repeat(np.arange(10), sizes))
    held = summarise(Shards().split(targets, 100, seed), targets, 10)
    assert held.sizes.sum() == 60_000
    assert set(held.distinct) == {2}
    assert held.sizes.min() >= 580
    assert held.sizes.max() <= 620


@pytest.mark.parametrize("seed", range(5))
def test_the_pathological_split_of_the_paper(seed):
    """100 clients, 200 shards of 10 classes: two classes for everyone, and pairs of all kinds."""
    targets = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 600))
    parts = Shards().split(targets, 100, seed)
    held = summarise(parts, targets, 10)
    assert set(held.distinct) == {2}
    assert set(held.sizes) == {60}
    assert len({tuple(np.unique(targets[rows])) for rows in parts}) > 25


@pytest.mark.parametrize("partition", DRAWN, ids=repr)
def test_the_same_seed_gives_the_same_partition(partition):
    targets = labels(300, 10)
    once, again, other = (split(partition, targets, 7, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(once, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(once, other, strict=True))


@pytest.mark.parametrize("kind", [Dirichlet, DirichletByClass])
def test_alpha_goes_from_one_class_each_to_all_alike(kind):
    targets = labels(20_000, 10)
    far, near, even = (
        summarise(kind(alpha=alpha).split(targets, 10, 0), targets, 10).heterogeneity for alpha in (0.01, 0.3, 1e5)
    )
    assert far > near > even
    assert even < 0.06
    assert far > 0.6


def test_dirichlet_draws_from_each_clients_own_distribution():
    # While no class runs out, the counts of a client follow its p_i; its law over seeds is symmetric in the classes.
    targets = np.repeat(np.arange(4), 500)
    counts = np.array([summarise(Dirichlet(alpha=1).split(targets, 50, s), targets, 4).labels[0] for s in range(60)])
    assert np.allclose(counts.mean(axis=0) / 40, 0.25, atol=0.08)
    # Var(p) of Dir(1, 1, 1, 1) is 3/80; far above what 40 fair draws would show (3/640).
    assert 0.02 < (counts / 40).var(axis=0).mean() < 0.06


@pytest.mark.parametrize(("clients", "milder"), [(10, 0.34), (16, 0.27)])
def test_dirichlet_is_milder_than_its_distribution_by_as_much_as_the_manual_says(clients, milder):
    targets, alpha = np.repeat(np.arange(10), 200), 0.3
    drawn = [summarise(Dirichlet(alpha=alpha).split(targets, clients, s), targets, 10).labels for s in range(60)]
    shares = np.array([labels / labels.sum(1, keepdims=True) for labels in drawn])
    assert ((shares - 0.1) ** 2).mean() / (0.09 / (10 * alpha + 1)) == pytest.approx(1 - milder, abs=0.06)


def test_infinite_alpha_by_class_is_the_equal_split():
    targets = np.repeat(np.arange(10), 60)
    assert (summarise(DirichletByClass(alpha=np.inf).split(targets, 10, 0), targets, 10).labels == 6).all()


def test_fewer_samples_than_clients():
    for partition in (Iid(), Dirichlet(), DirichletByClass()):
        parts = split(partition, labels(3, 2), 8, 0)
        assert sum(len(indices) for indices in parts) == 3
    with pytest.raises(DataError, match="need 16 shards, but there are only 3 samples"):
        split(Shards(), labels(3, 2), 8, 0)


def test_min_samples():
    targets = labels(400, 10)
    parts = split(DirichletByClass(alpha=0.3, min_samples=10), targets, 10, 0)
    assert min(len(indices) for indices in parts) >= 10
    with pytest.raises(DataError, match="10 clients cannot hold min_samples=41 each of 400 samples"):
        split(DirichletByClass(min_samples=41), targets, 10, 0)
    with pytest.raises(DataError, match="always held fewer than min_samples=40"):
        split(DirichletByClass(alpha=0.01, min_samples=40), targets, 10, 0)


def test_explicit_lists(tmp_path):
    lists = [[3, 1], [], [0, 2]]
    path = tmp_path / "who.json"
    path.write_text(json.dumps(lists))
    for given_ in (lists, [np.array(row, int) for row in lists], path, str(path)):
        parts = split(Explicit(indices=given_), np.zeros(4), 3, 0)
        assert [indices.tolist() for indices in parts] == lists
    assert split(Explicit(indices=np.array([[0, 1], [2, 3]])), np.zeros(4), 2, 0)[1].tolist() == [2, 3]
    spec = PARTITIONS.describe(Explicit(indices=path))
    assert PARTITIONS.build(json.loads(json.dumps(spec))) == Explicit(indices=str(path))


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([[0, 1]], "1 lists of indices for 2 clients"),
        ([[0, 1], [1, 2]], "sample 1 is given to clients 0 and 1"),
        ([[0, 0, 1], [2]], "client 0: sample 0 is listed 2 times"),
        ([[0], [1]], "1 of 3 samples belong to no client: 2"),
        ([[0, 1], [3]], "client 1: no sample has index 3; there are 3, counted from 0"),
        ([[0, 1], [-1]], "client 1: no sample has index -1"),
    ],
)
def test_explicit_lists_that_are_no_partition(lists, message):
    with pytest.raises(DataError, match=message):
        split(Explicit(indices=lists), np.zeros(3), 2, 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        ("[[0, 1", "not a JSON file"),
        ('{"a": 1}', "expected one list"),
        ("[[0, true]]", "expected one list"),
        ("[0, 1]", "expected one list"),
    ],
)
def test_explicit_files_that_are_wrong(tmp_path, content, message):
    path = tmp_path / "who.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=message):
        split(Explicit(indices=path), np.zeros(2), 1, 0)


def test_many_missing_samples_are_not_all_named():
    with pytest.raises(DataError, match=r"99 of 100 samples belong to no client: 1, 2, 3, 4, 5, …"):
        check_partition([np.array([0])], 100)


class Halves:
    def split(self, targets, *_):
        return [list(range(0, len(targets), 2)), list(range(1, len(targets), 2))]


def test_a_users_own_partition():
    own = Halves()
    for partition in (own, own.split):
        parts = split(partition, np.zeros(5), 2, 0)
        assert [indices.tolist() for indices in parts] == [[0, 2, 4], [1, 3]]
        assert all(indices.dtype == np.int64 for indices in parts)


@pytest.mark.parametrize(
    ("partition", "clients", "message"),
    [
        (Halves(), 3, "the partition gave 2 parts for 3 clients"),
        (lambda *_: None, 1, "the partition gave NoneType for 1 clients"),
        (lambda *_: [np.array([0.0, 1.0])], 1, "client 0: expected a flat array of sample indices"),
        (lambda *_: [[0], [0, 1]], 2, "sample 0 is given to clients 0 and 1"),
        (Iid(), 0, "among 0 clients"),
        ("iid", 1, "a partition is one of iid, dirichlet"),
        (3, 1, "got 3"),
    ],
)
def test_own_partitions_that_are_wrong(partition, clients, message):
    with pytest.raises(DataError, match=message):
        split(partition, np.zeros(2), clients, 0)


@pytest.mark.parametrize("name", ["dirichlet", "dirichlet-by-class", "shards"])
def test_splitting_values_by_class_is_refused(name):
    with pytest.raises(DataError, match=f"partition '{name}' splits by class and needs integer labels"):
        split(PARTITIONS.build(name), np.linspace(0, 1, 10), 2, 0)


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "dirichlet", "alpha": 0},
        {"name": "dirichlet", "alpha": float("nan")},
        {"name": "dirichlet-by-class", "min_samples": -1},
        {"name": "shards", "classes_per_client": 0},
        {"name": "explicit"},
        {"name": "explicit", "indices": 3},
        {"name": "explicit", "indices": [["a"]]},
        {"name": "iid", "alpha": 1},
        "dirichlett",
    ],
)
def test_wrong_parameters_are_refused(spec):
    with pytest.raises(ExperimentError):
        PARTITIONS.build(spec)
