"""Mixing across workers: the rows that are sent, and the product that comes of it."""

import shutil
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from gossamer import Experiment, simulate
from gossamer.graphs import GRAPHS
from gossamer.mixing.exchange import RowExchange
from gossamer.mixing.product import product
from gossamer.system.cpp import cpp_library
from gossamer.workers import Group, balanced_ranges
from groups import in_group, needs_forks, over_each_transport
from observers import Listening


@st.composite
def mixings(draw: Any) -> tuple[np.ndarray, list[range], int]:
    """A matrix with few or many entries, and ranges of its rows for two or three workers."""
    clients, workers = draw(st.integers(3, 12)), draw(st.integers(2, 3))
    cuts = sorted(draw(st.sets(st.integers(1, clients - 1), min_size=workers - 1, max_size=workers - 1)))
    seed, density = draw(st.integers(0, 2**31)), draw(st.sampled_from([0.0, 0.1, 0.3, 1.0]))
    rng = np.random.default_rng(seed)
    matrix = np.where(rng.random((clients, clients)) < density, rng.normal(size=(clients, clients)), 0.0)
    if draw(st.booleans()):  # many send to few: what crosses are sums
        matrix[1:] = np.diag(np.ones(clients))[1:]
    return matrix, [range(a, b) for a, b in zip([0, *cuts], [*cuts, clients], strict=True)], seed


@pytest.fixture(params=["scipy", "C++"])
def multiplied_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to multiply on a CPU."""
    if request.param == "C++":
        if not shutil.which("g++"):
            pytest.skip("there is no C++ compiler")
        monkeypatch.setattr("gossamer.mixing.product.WORTH_COMPILING", 0)
    return str(request.param)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (40, 7), (40, 32), (40, 101)])
def test_a_product_in_place_and_from_several_tensors(
    multiplied_by: str, dtype: torch.dtype, rows: int, columns: int
) -> None:
    matrix = sparse.random_array((rows, rows), density=0.3, rng=np.random.default_rng(0), format="csr")
    dense = torch.from_numpy(np.random.default_rng(1).normal(size=(rows, columns + 3))).to(dtype)
    expected = matrix @ dense[:, :columns].double().numpy()
    multiply = product(matrix, dense)
    assert (type(multiply).__name__ == "_CppProduct") == (multiplied_by == "C++")
    into = torch.zeros(rows, columns + 5, dtype=dtype)
    some, rest = dense[: rows // 3], dense[rows // 3 :]  # with further columns beside those that are multiplied
    multiply([some[:, :columns], rest[:0, :columns], rest[:, :columns]], into[:, :columns])
    before = dense.clone()
    multiply([dense[:, :columns]], dense[:, :columns])
    for found in (into, dense):
        np.testing.assert_allclose(
            found[:, :columns].double().numpy(), expected, rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-12
        )
    assert torch.equal(dense[:, columns:], before[:, columns:]), "nothing else is written"
    assert not into[:, columns:].any()


def test_without_a_compiler_scipy_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossamer.mixing.product.WORTH_COMPILING", 0)
    monkeypatch.setattr("gossamer.mixing.product._library", lambda dtype: cpp_library("not C++", dtype))
    matrix, rows = sparse.csr_array(np.eye(3)[::-1]), torch.arange(6.0).view(3, 2)
    product(matrix, rows)([rows], rows)
    assert rows.tolist() == [[4.0, 5.0], [2.0, 3.0], [0.0, 1.0]]
    listener = Listening()
    simulate(Experiment(method="dfedavg", clients=3, graph="ring", rounds=2, dataset="digits"), observers=[listener])
    (note,) = [note for note in listener.notes if "scipy" in note]  # once, not in every round
    assert note.startswith(
        "messages are mixed by scipy, which is slower than the C++ that cannot be compiled here: g++"
    )


@needs_forks
@over_each_transport
@given(cases=st.lists(mixings(), min_size=12, max_size=12))
@settings(max_examples=3, deadline=None)
def test_mixing_across_workers_is_the_product_with_the_whole_matrix(transport: str, cases: list[Any]) -> None:
    """Several mixings by one group, since it takes a moment to fork it; one column, and many."""
    for workers in (2, 3):
        mine = [case for case in cases if len(case[1]) == workers]
        rows = [np.random.default_rng(seed).normal(size=(len(matrix), 1 + seed % 40)) for matrix, _, seed in mine]

        def work(group: Group, mine: list[Any] = mine, rows: list[np.ndarray] = rows) -> list[torch.Tensor]:
            found = []
            group.barrier()
            for (matrix, client_ranges, _), every in zip(mine, rows, strict=True):
                own = client_ranges[group.rank]
                held = torch.from_numpy(every[own.start : own.stop].copy())
                into = held if len(matrix) % 2 else torch.empty_like(held)  # in place, and not
                RowExchange(sparse.csr_array(matrix), client_ranges, group.rank).apply(group, held, into)
                found.append(group.gather_clients(into, own, len(matrix)))
            return found

        for (matrix, _, _), every, mixed in zip(mine, rows, in_group(workers, work, transport), strict=True):
            np.testing.assert_allclose(mixed.numpy(), matrix @ every, rtol=0, atol=1e-12)


@needs_forks
@over_each_transport
@pytest.mark.parametrize("cuts", [(2,), (2, 4), (1, 4, 9)])
def test_wide_rows_cross_in_blocks(
    monkeypatch: pytest.MonkeyPatch, multiplied_by: str, transport: str, cuts: tuple[int, ...]
) -> None:
    """Blocks so small that a row takes many, the last one cut short; some workers receive more rows than others."""
    monkeypatch.setattr("gossamer.mixing.exchange.SENDING_BLOCK", 200)
    monkeypatch.setattr("gossamer.mixing.product.CACHE_BLOCK", 1)
    monkeypatch.setattr("gossamer.mixing.exchange.LEAST_COLUMNS", 1)
    graphs: list[Any] = ["full", "ring", "star", {"name": "erdos-renyi", "p": 0.4}, "exponential"]
    matrices = [GRAPHS.build(graph).bind(12, 0).matrix(0) for graph in graphs]
    rows = np.random.default_rng(0).normal(size=(12, 331))
    client_ranges = [range(a, b) for a, b in zip([0, *cuts], [*cuts, 12], strict=True)]

    def work(group: Group) -> list[torch.Tensor]:
        own, found = client_ranges[group.rank], []
        for matrix in matrices:
            held = torch.from_numpy(rows[own.start : own.stop].copy())
            RowExchange(matrix, client_ranges, group.rank).apply(group, held, held)
            found.append(group.gather_clients(held, own, 12))
        return found

    for graph, matrix, mixed in zip(graphs, matrices, in_group(len(client_ranges), work, transport), strict=True):
        np.testing.assert_allclose(mixed.numpy(), matrix @ rows, rtol=0, atol=1e-12, err_msg=str(graph))


def crossing(graph: Any, clients: int, workers: int) -> list[RowExchange]:
    matrix = GRAPHS.build(graph).bind(clients, 0).matrix(0)
    client_ranges = balanced_ranges(np.ones(clients), workers)
    return [RowExchange(matrix, client_ranges, rank) for rank in range(workers)]


def test_on_a_ring_two_rows_cross_each_border_whatever_the_number_of_clients() -> None:
    for clients in (9, 30):
        exchanges = crossing("ring", clients, 3)
        for rank, exchange in enumerate(exchanges):
            before, after = (rank - 1) % 3, (rank + 1) % 3
            assert exchange.receives == {before: 1, after: 1}
            assert {parcel.worker: parcel.number for parcel in exchange.sends} == {before: 1, after: 1}


def test_on_a_star_one_sum_goes_to_the_hub_and_one_row_comes_back() -> None:
    hub, *others = crossing("star", 30, 3)
    assert hub.receives == {1: 1, 2: 1}
    assert {parcel.worker: parcel.number for parcel in hub.sends} == {1: 1, 2: 1}
    assert all(parcel.rows is not None for parcel in hub.sends)  # the hub's own model
    for exchange in others:
        assert exchange.receives == {0: 1}  # and nothing between workers without the hub
        assert [(parcel.worker, parcel.number) for parcel in exchange.sends] == [(0, 1)]
        assert all(parcel.sums is not None for parcel in exchange.sends)  # what ten clients send, weighted and summed


def test_workers_without_neighbouring_clients_send_nothing() -> None:
    for exchange in crossing("isolated", 9, 3):
        assert exchange.receives == {}
        assert exchange.sends == []


@pytest.mark.parametrize("graph", ["ring", "star", "full", "torus", {"name": "erdos-renyi", "p": 0.4}, "exponential"])
def test_what_one_worker_sends_the_other_receives(graph: Any) -> None:
    exchanges = crossing(graph, 16, 3)
    for rank, exchange in enumerate(exchanges):
        given = {parcel.worker: parcel.number for parcel in exchange.sends}
        assert given == {
            other: exchanges[other].receives[rank] for other in range(3) if rank in exchanges[other].receives
        }
        assert all(0 < number <= 6 for number in given.values())
        most = max(max(sum(x.receives.values()), sum(parcel.number for parcel in x.sends)) for x in exchanges)
        assert exchange.most_rows == most
