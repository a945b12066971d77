"""The range of clients that each worker owns."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.workers import balanced_ranges
from gossamer.workers.ranges import MIXING_WORK


@st.composite
def loads(draw: Any) -> tuple[np.ndarray, int]:
    """Clients with some work each, a few of them with a great deal, and workers for them."""
    work = draw(st.lists(st.one_of(st.just(0), st.integers(0, 20), st.integers(0, 10**6)), min_size=1, max_size=40))
    return np.array(work, dtype=np.int64), draw(st.integers(1, len(work)))


@given(loads())
@settings(max_examples=200, deadline=None)
def test_ranges_cover_all_clients_and_leave_no_worker_idle(load: tuple[np.ndarray, int]) -> None:
    work, workers = load
    client_ranges = balanced_ranges(work, workers)
    assert len(client_ranges) == workers
    assert [client for owned in client_ranges for client in owned] == list(range(len(work)))
    assert all(len(owned) > 0 for owned in client_ranges)


@given(loads())
@settings(max_examples=200, deadline=None)
def test_the_heaviest_range_is_at_most_one_client_above_the_mean(load: tuple[np.ndarray, int]) -> None:
    work, workers = load
    counts = work + MIXING_WORK  # so that clients without work are shared out as well
    heaviest = max(int(counts[owned.start : owned.stop].sum()) for owned in balanced_ranges(work, workers))
    assert heaviest <= counts.sum() / workers + counts.max()


def test_equal_clients_are_shared_out_equally() -> None:
    for clients, workers in [(12, 1), (12, 2), (12, 3), (12, 4), (12, 12)]:
        assert {len(owned) for owned in balanced_ranges(np.full(clients, 7), workers)} == {clients // workers}


def test_clients_that_do_nothing_are_shared_out_too() -> None:
    assert {len(owned) for owned in balanced_ranges(np.zeros(10, dtype=np.int64), 2)} == {5}
    few_work = np.where(np.arange(100_000) < 1437, 5, 0)  # no worker may hold nearly all models
    assert all(len(owned) > 45_000 for owned in balanced_ranges(few_work, 2))


@pytest.mark.parametrize("workers", [0, -1, 4])
def test_there_is_no_worker_without_a_client(workers: int) -> None:
    with pytest.raises(ValueError, match="3 clients cannot be shared out"):
        balanced_ranges(np.ones(3), workers)
