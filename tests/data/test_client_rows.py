"""The rows of all clients in two arrays behave like one array of indices for each client."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gossamer.data import ClientRows

sizes = st.lists(st.integers(0, 5), min_size=1, max_size=8)


@given(sizes, st.integers(0, 2**32 - 1))
def test_rows_are_those_given_client_by_client(counts: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    lists = np.split(rng.permutation(sum(counts)), np.cumsum(counts)[:-1])
    rows = ClientRows.of(lists)
    assert [held.tolist() for held in rows] == [held.tolist() for held in lists]
    assert rows.sizes.tolist() == counts
    chosen = rng.integers(len(counts), size=7)
    assert rows.gather(chosen).tolist() == np.concatenate([lists[client] for client in chosen]).tolist()
    again = ClientRows.by_owner(rows.indices, rows.owners, len(rows))
    assert [held.tolist() for held in again] == [held.tolist() for held in lists]


@given(st.integers(0, 40), st.integers(1, 9))
def test_cut_is_numpys_even_split(samples: int, clients: int) -> None:
    expected = np.array_split(np.arange(samples), clients)
    assert [held.tolist() for held in ClientRows.cut(np.arange(samples), clients)] == [e.tolist() for e in expected]


def test_one_client_holds_all() -> None:
    assert [held.tolist() for held in ClientRows.of_one(1, 3, clients=3)] == [[], [0, 1, 2], []]
