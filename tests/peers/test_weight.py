"""No peer's push-sum weight runs down while a neighbour gives nothing, whatever the reason."""

import asyncio
import signal
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer import Experiment
from gossamer.graphs import GRAPHS
from gossamer.peers.mass import CRUMB
from gossamer.peers.weight import WeightGuard
from networks import SECONDS, Process, make_kits, make_peers, replayed, state_of


@settings(max_examples=200, deadline=None)
@given(gifts=st.lists(st.tuples(st.floats(0, 2), st.booleans()), min_size=1, max_size=60), own=st.floats(0.05, 0.9))
def test_while_a_sender_gives_nothing_half_of_the_weight_stays(gifts: list[tuple[float, bool]], own: float) -> None:
    """One sender gives as it likes, the other one never: what was there when the lack began is never less than half."""
    guard, weight, floor = WeightGuard(), 1.0, None
    for gift, honest in gifts:
        if floor is None and guard.state()["silent"]:
            floor = weight / 2
        weight -= guard.fraction(weight, (1 - own) * weight) * (1 - own) * weight
        taken = {1: gift if honest else gift * CRUMB}
        weight += taken[1]
        guard.took([1, 2], taken)
        assert floor is None or weight >= floor * (1 - 1e-12)


def test_a_sender_that_comes_and_goes_does_not_wear_the_weight_down() -> None:
    """Restraint ends only when the weight of before is regained: not with the first gift, however small."""
    guard, weight = WeightGuard(), 1.0
    for step in range(200):
        weight -= guard.fraction(weight, weight / 2) * weight / 2
        gift = 1e-4 if step % 2 else 0.0
        weight += gift
        guard.took([1], {1: gift})
    assert weight > 0.2


STEPS = 120


@cache
def matrices(graph: str, clients: int, seed: int) -> list[np.ndarray]:
    ring = [(i, (i + 1) % clients) for i in range(clients)]
    specs: dict[str, Any] = {
        "directed-random": {"name": graph, "neighbours": 2},
        "directed ring": {"name": "edges", "edges": ring, "directed": True},
    }
    network = GRAPHS.build(specs.get(graph, graph)).bind(clients, seed)
    return [network.matrix(step).toarray() for step in range(STEPS)]


@cache
def least_weight(graph: str, clients: int, seed: int, away: frozenset[int], start: int, stop: int) -> float:
    """The least weight of a peer that is there, where some give nothing for a while and are still given to at first."""
    weights, guards, least = np.ones(clients), [WeightGuard() for _ in range(clients)], 1.0
    for step, matrix in enumerate(matrices(graph, clients, seed)):
        np.fill_diagonal(shares := matrix.copy(), 0)
        gone = away if start <= step < stop else frozenset()
        for j in range(clients):
            usual = weights[j] * shares[:, j].sum()
            shares[:, j] *= 0 if j in gone else guards[j].fraction(weights[j], usual)
        for j in gone if step > start + 2 else ():  # by then its neighbours have noticed
            shares[j] = 0
        gifts = shares * weights
        weights = weights - gifts.sum(0) + gifts.sum(1)
        assert weights.sum() == pytest.approx(clients)
        for i in set(range(clients)) - gone:
            due = [j for j in np.flatnonzero(matrix[i]).tolist() if j != i]
            guards[i].took(due, {j: gifts[i, j] for j in due})
            least = min(least, weights[i])
    return least


@settings(max_examples=30, deadline=None)
@given(data=st.data(), clients=st.integers(3, 5), seed=st.integers(0, 4))
@pytest.mark.parametrize("graph", ["exponential", "one-peer-exponential", "full", "directed-random", "directed ring"])
def test_whoever_is_away_and_whenever_no_weight_runs_down(graph: str, data: Any, clients: int, seed: int) -> None:
    """On random graphs a weight may be small although all are there: it may be smaller by a factor, not run down."""
    away = frozenset(data.draw(st.sets(st.integers(0, clients - 1), min_size=1, max_size=clients - 1)))
    start, stop = data.draw(st.integers(0, 5)), data.draw(st.integers(6, STEPS))
    healthy = least_weight(graph, clients, seed, frozenset(), 0, 0)
    assert least_weight(graph, clients, seed, away, start, stop) > healthy / clients**2


def experiment(method: str, rounds: int) -> Experiment:
    return Experiment(
        method=method, graph="exponential", clients=3, rounds=rounds, model="softmax", dtype="float64", batch_size=16,
        dataset={"name": "digits", "train_samples": 200}, evaluate={"every": 0, "clients": 0, "training": 0},
        local_steps=2 if method == "dfedsgpsm" else None,
    )  # fmt: skip


@pytest.mark.parametrize("method", ["overlap-sgp", "dfedsgpsm"])
def test_a_finished_neighbour_that_acknowledges_mass_and_gives_none(method: str, tmp_path: Path) -> None:
    """The second of three has done its rounds alone when the others begin. They end with their weight, and finite."""
    described = experiment(method, rounds=25)
    kits = make_kits(tmp_path, described, late="reweigh", patience=0.3)
    peers = make_peers(kits)

    async def run() -> None:
        early = asyncio.create_task(peers[1].run())
        while not peers[1].progress.finished:
            await asyncio.sleep(0.01)
        await asyncio.gather(peers[0].run(), early, peers[2].run())

    asyncio.run(asyncio.wait_for(run(), SECONDS))
    for peer in peers:
        assert float(peer.method.weight(peer.client.state)) > 0.05
    vectors = torch.stack([peer.method.model(peer.client.state) for peer in peers])
    torch.testing.assert_close(vectors, replayed(described, kits), rtol=0, atol=1e-10)


def test_two_of_three_that_are_paused_until_the_third_has_finished(tmp_path: Path) -> None:
    described = experiment("overlap-sgp", rounds=40)
    kits = make_kits(tmp_path, described, late="reweigh", patience=0.5)
    processes = [Process(kit) for kit in kits]
    try:
        for frozen in (0, 2):
            processes[frozen].wait_for_round(4)
            processes[frozen].send(signal.SIGSTOP)
        processes[1].wait_for_round(40)
        for frozen in (0, 2):
            processes[frozen].send(signal.SIGCONT)
        for process in processes:
            assert process.ended()[0] == 0, process.ended()
    finally:
        for process in processes:
            process.kill()
    assert all(float(described.method.weight(state_of(kit))) > 0.02 for kit in kits)
    vectors = torch.stack([described.method.model(state_of(kit)) for kit in kits])
    torch.testing.assert_close(vectors, replayed(described, kits), rtol=0, atol=1e-10)
