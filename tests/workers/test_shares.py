"""Who owns which clients, and which rows cross between those who do."""

import os
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from gossamer.graphs import GRAPHS
from gossamer.mixing.exchange import RowExchange
from gossamer.workers import Group, as_group, balanced_ranges, can_fork, launch
from gossamer.workers.board import Board
from gossamer.workers.group import Distributed
from gossamer.workers.ranges import MIXING_WORK

CPU = torch.device("cpu")
ways = pytest.mark.parametrize("way", ["board", "sockets"])
forks = pytest.mark.skipif(not can_fork(), reason="workers are forked on Linux only")


@st.composite
def loads(draw: Any) -> tuple[np.ndarray, int]:
    """Clients with some work each, a few of them with a great deal, and workers for them."""
    work = draw(st.lists(st.one_of(st.just(0), st.integers(0, 20), st.integers(0, 10**6)), min_size=1, max_size=40))
    return np.array(work, dtype=np.int64), draw(st.integers(1, len(work)))


@given(loads())
@settings(max_examples=200, deadline=None)
def test_shares_are_stretches_that_cover_everyone_and_leave_nobody_idle(load: tuple[np.ndarray, int]) -> None:
    work, workers = load
    places = balanced_ranges(work, workers)
    assert len(places) == workers
    assert [client for place in places for client in place] == list(range(len(work)))
    assert all(len(place) > 0 for place in places)


@given(loads())
@settings(max_examples=200, deadline=None)
def test_the_heaviest_share_is_at_most_one_client_above_the_mean(load: tuple[np.ndarray, int]) -> None:
    work, workers = load
    counts = work + MIXING_WORK  # so that clients without work are shared out as well
    heaviest = max(int(counts[place.start : place.stop].sum()) for place in balanced_ranges(work, workers))
    assert heaviest <= counts.sum() / workers + counts.max()


def test_equal_clients_are_shared_out_equally() -> None:
    for clients, workers in [(12, 1), (12, 2), (12, 3), (12, 4), (12, 12)]:
        assert {len(place) for place in balanced_ranges(np.full(clients, 7), workers)} == {clients // workers}


def test_clients_that_do_nothing_are_shared_out_too() -> None:
    assert {len(place) for place in balanced_ranges(np.zeros(10, dtype=np.int64), 2)} == {5}
    few_work = np.where(np.arange(100_000) < 1437, 5, 0)  # no worker may hold nearly all models
    assert all(len(place) > 45_000 for place in balanced_ranges(few_work, 2))


@pytest.mark.parametrize("workers", [0, -1, 4])
def test_there_is_no_worker_without_a_client(workers: int) -> None:
    with pytest.raises(ValueError, match="3 clients cannot be shared out"):
        balanced_ranges(np.ones(3), workers)


def together(workers: int, work: Callable[[Group], Any], way: str = "board") -> Any:
    """What work gives in a group that talks as forked workers do, or as those of a launcher."""
    if way == "board":
        return as_group(workers, CPU, work)
    with tempfile.TemporaryDirectory() as folder:

        def over_sockets(forked: Group) -> Any:
            group = Distributed(forked.rank, workers, CPU, init_method=f"file://{folder}/meeting")
            try:
                return work(group)
            finally:
                forked.barrier()  # nobody hangs up on another
                group.close()

        return as_group(workers, CPU, over_sockets)


@st.composite
def mixings(draw: Any) -> tuple[np.ndarray, list[range], int]:
    """A matrix with few or many entries, and stretches of its rows for two or three workers."""
    clients, workers = draw(st.integers(3, 12)), draw(st.integers(2, 3))
    cuts = sorted(draw(st.sets(st.integers(1, clients - 1), min_size=workers - 1, max_size=workers - 1)))
    seed, density = draw(st.integers(0, 2**31)), draw(st.sampled_from([0.0, 0.1, 0.3, 1.0]))
    rng = np.random.default_rng(seed)
    matrix = np.where(rng.random((clients, clients)) < density, rng.normal(size=(clients, clients)), 0.0)
    if draw(st.booleans()):  # many send to few: what crosses are sums
        matrix[1:] = np.diag(np.ones(clients))[1:]
    return matrix, [range(a, b) for a, b in zip([0, *cuts], [*cuts, clients], strict=True)], seed


@forks
@ways
@given(cases=st.lists(mixings(), min_size=12, max_size=12))
@settings(max_examples=3, deadline=None)
def test_mixing_across_workers_is_the_product_with_the_whole_matrix(way: str, cases: list[Any]) -> None:
    """Several mixings by one group, since it takes a moment to fork it; one column, and many."""
    for workers in (2, 3):
        mine = [case for case in cases if len(case[1]) == workers]
        rows = [np.random.default_rng(seed).normal(size=(len(matrix), 1 + seed % 40)) for matrix, _, seed in mine]

        def work(group: Group, mine: list[Any] = mine, rows: list[np.ndarray] = rows) -> list[torch.Tensor]:
            found = []
            group.barrier()
            for (matrix, places, _), every in zip(mine, rows, strict=True):
                own = places[group.rank]
                held = torch.from_numpy(every[own.start : own.stop].copy())
                into = held if len(matrix) % 2 else torch.empty_like(held)  # in place, and not
                RowExchange(sparse.csr_array(matrix), places, group.rank).apply(group, held, into)
                found.append(group.gather_clients(into, own, len(matrix)))
            return found

        for (matrix, _, _), every, mixed in zip(mine, rows, together(workers, work, way), strict=True):
            np.testing.assert_allclose(mixed.numpy(), matrix @ every, rtol=0, atol=1e-12)


@forks
@ways
@pytest.mark.parametrize("cuts", [(2,), (2, 4), (1, 4, 9)])
def test_wide_rows_cross_in_blocks(monkeypatch: pytest.MonkeyPatch, way: str, cuts: tuple[int, ...]) -> None:
    """Blocks so small that a row takes many, the last one cut short; some workers hear more rows than others."""
    monkeypatch.setattr("gossamer.mixing.exchange.CROSSING_BLOCK", 200)
    monkeypatch.setattr("gossamer.mixing.exchange.CACHE_BLOCK", 1)
    monkeypatch.setattr("gossamer.mixing.exchange.LEAST", 1)
    graphs: list[Any] = ["full", "ring", "star", {"name": "erdos-renyi", "p": 0.4}, "exponential"]
    matrices = [GRAPHS.build(graph).bind(12, 0).matrix(0) for graph in graphs]
    rows = np.random.default_rng(0).normal(size=(12, 331))
    places = [range(a, b) for a, b in zip([0, *cuts], [*cuts, 12], strict=True)]

    def work(group: Group) -> list[torch.Tensor]:
        own, found = places[group.rank], []
        for matrix in matrices:
            held = torch.from_numpy(rows[own.start : own.stop].copy())
            RowExchange(matrix, places, group.rank).apply(group, held, held)
            found.append(group.gather_clients(held, own, 12))
        return found

    for graph, matrix, mixed in zip(graphs, matrices, together(len(places), work, way), strict=True):
        np.testing.assert_allclose(mixed.numpy(), matrix @ rows, rtol=0, atol=1e-12, err_msg=str(graph))


@forks
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 300)), max_size=6), st.integers(1, 70))
@settings(max_examples=15, deadline=None)
def test_what_does_not_fit_on_the_board_crosses_in_pieces(parcels: list[tuple[int, int, int]], slot: int) -> None:
    """Between any two of three workers, of any length; a place on the board takes a few numbers."""
    posts = {(sender, receiver): length for sender, receiver, length in parcels if sender != receiver}

    def post(sender: int, receiver: int) -> torch.Tensor:
        return torch.arange(posts[sender, receiver]) * 10 + sender

    def work(group: Group) -> list[int]:
        for _ in range(3):
            gives = {to: post(group.rank, to) for sender, to in posts if sender == group.rank}
            takes = {by: torch.zeros_like(post(by, to)) for by, to in posts if to == group.rank}
            group.exchange(gives, takes)
            assert all(torch.equal(taken, post(by, group.rank)) for by, taken in takes.items())
            everyone = group.all_sum(torch.arange(100.0).view(10, 10).T * (group.rank + 1))  # not in one piece, either
            assert torch.equal(everyone, 6 * torch.arange(100.0).view(10, 10).T)
        return [1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "Board", partial(Board, slot=8 * slot))
        assert together(3, work) == [1]


def crossing(graph: Any, clients: int, workers: int) -> list[RowExchange]:
    matrix = GRAPHS.build(graph).bind(clients, 0).matrix(0)
    places = balanced_ranges(np.ones(clients), workers)
    return [RowExchange(matrix, places, rank) for rank in range(workers)]


def test_on_a_ring_two_rows_cross_each_border_whatever_the_number_of_clients() -> None:
    for clients in (9, 30):
        exchanges = crossing("ring", clients, 3)
        for rank, exchange in enumerate(exchanges):
            before, after = (rank - 1) % 3, (rank + 1) % 3
            assert exchange.takes == {before: 1, after: 1}
            assert {give.worker: give.number for give in exchange.gives} == {before: 1, after: 1}


def test_on_a_star_one_sum_goes_to_the_hub_and_one_row_comes_back() -> None:
    hub, *others = crossing("star", 30, 3)
    assert hub.takes == {1: 1, 2: 1}
    assert {give.worker: give.number for give in hub.gives} == {1: 1, 2: 1}
    assert all(give.rows is not None for give in hub.gives)  # the hub's own model
    for exchange in others:
        assert exchange.takes == {0: 1}  # and nothing between workers without the hub
        assert [(give.worker, give.number) for give in exchange.gives] == [(0, 1)]
        assert all(give.sums is not None for give in exchange.gives)  # what ten clients send, weighted and summed


def test_nothing_crosses_where_nobody_talks() -> None:
    for exchange in crossing("isolated", 9, 3):
        assert exchange.takes == {}
        assert exchange.gives == []


@pytest.mark.parametrize("graph", ["ring", "star", "full", "torus", {"name": "erdos-renyi", "p": 0.4}, "exponential"])
def test_what_one_gives_the_other_takes(graph: Any) -> None:
    exchanges = crossing(graph, 16, 3)
    for rank, exchange in enumerate(exchanges):
        given = {give.worker: give.number for give in exchange.gives}
        assert given == {other: exchanges[other].takes[rank] for other in range(3) if rank in exchanges[other].takes}
        assert all(0 < number <= 6 for number in given.values())
        most = max(max(sum(x.takes.values()), sum(give.number for give in x.gives)) for x in exchanges)
        assert exchange.crossing == most


@forks
@ways
def test_what_the_workers_say_to_each_other(way: str) -> None:
    def work(group: Group) -> Any:
        own = range(group.rank * 2, group.rank * 2 + 2)
        values = torch.tensor([float("nan"), 1.0]) if group.rank else torch.tensor([float("inf"), 2.0])
        group.barrier()
        return (
            group.broadcast(f"worker {group.rank} says ü" * (1 + group.rank)),
            group.broadcast("" if group.first else "x"),
            group.broadcast("second" if group.rank else "first", source=1),
            group.ranks_where(group.rank == 1),
            group.any(group.rank == 1),
            group.any(False),
            group.all_sum(torch.ones(2) * (group.rank + 1)).tolist(),
            group.gather_clients(values, own, 4).tolist(),
            os.getpid(),
        )

    words, silence, second, who, yes, no, total, everyone, process = together(2, work, way)
    assert words == "worker 0 says ü"
    assert (silence, second, who) == ("", "second", [1])
    assert (yes, no, total) == (True, False, [3.0, 3.0])
    assert everyone[0] == float("inf")
    assert everyone[1] == 2.0
    assert everyone[2] != everyone[2]
    assert everyone[3] == 1.0
    assert process == os.getpid()  # the first worker is this process


@forks
def test_a_group_in_a_thread_of_its_own() -> None:
    found = []
    thread = threading.Thread(
        target=lambda: found.append(together(3, lambda group: group.all_sum(torch.ones(1)).item()))
    )
    thread.start()
    thread.join(60)
    assert found == [3.0]
