"""How long a peer waits for its neighbours, where it need not wait for good."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gossamer import Experiment
from gossamer.peers.peer import Peer
from networks import make_kits, make_peers


@pytest.fixture
def peer(tmp_path: Path) -> Peer:
    """One of three who all hear each other; they may take a minute."""
    described = Experiment(method="dfedavg", clients=3, model="softmax", graph="full")
    return make_peers(make_kits(tmp_path, described, late="reweigh", patience=60.0)[:1])[0]


def heard(peer: Peer, before: Callable[[], None], meanwhile: Callable[[set[int]], None]) -> list[int]:
    """Who is heard when something happens while both others are waited for; far from the minute, or it fails."""

    async def wait() -> list[int]:
        here: set[int] = set()
        running = asyncio.create_task(peer.neighbours.run())
        await asyncio.sleep(0)
        before()
        waiting = asyncio.create_task(peer.neighbours.wait_for([1, 2], here.__contains__, 0))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        meanwhile(here)
        await peer.mailbox.notify()
        try:
            return await asyncio.wait_for(waiting, 5)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    return asyncio.run(wait())


def test_who_is_away_is_not_waited_for_together_with_who_is_late(peer: Peer) -> None:
    """One is known to be away, the other comes after a while: then nobody is waited for."""

    def away() -> None:
        peer.neighbours.links[1]._failed(TimeoutError())
        peer.neighbours._paces[1].missed = 2

    assert heard(peer, away, lambda here: here.add(2)) == [2]


def test_who_is_rounds_ahead_is_not_waited_for(peer: Peer) -> None:
    """What it said in this round is gone, and it waits for this peer itself. One round ahead, it says it again."""

    def one_ahead() -> None:
        peer.progress.note_round(1, 1)

    def two_ahead(here: set[int]) -> None:
        peer.progress.note_round(1, 2)
        here.add(2)

    assert heard(peer, one_ahead, two_ahead) == [2]


def test_a_silent_neighbour_is_looked_for(tmp_path: Path) -> None:
    """On a directed graph a peer may send nothing to those it hears: it would take them for being there."""
    described = Experiment(method="sgp", clients=4, model="softmax", graph="exponential")
    peer = make_peers(make_kits(tmp_path, described, late="reweigh", patience=0.1)[:1])[0]
    _, senders, receivers = peer.schedule.at(0)
    (only_heard,) = set(senders) - set(receivers)

    async def wait() -> bool:
        running = asyncio.create_task(peer.neighbours.run())
        await asyncio.sleep(0)
        link = peer.neighbours.links[only_heard]
        assert link.reachable
        await peer.neighbours.wait_for([only_heard], lambda _: False, 0)
        async with asyncio.timeout(20):
            while link.reachable:
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return peer.neighbours._is_alive(only_heard)

    assert not asyncio.run(wait())


def test_a_long_absence_is_two_lines_of_the_log(tmp_path: Path) -> None:
    described = Experiment(method="dfedavg", clients=3, model="softmax", graph="full")
    peer = make_peers(make_kits(tmp_path, described, late="reweigh", patience=0.05)[:1])[0]
    here: set[int] = set()

    async def wait() -> None:
        running = asyncio.create_task(peer.neighbours.run())
        await asyncio.sleep(0)
        for step in range(4):
            await peer.neighbours.wait_for([1], here.__contains__, step)
        here.add(1)
        await peer.neighbours.wait_for([1], here.__contains__, 4)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(wait())
    lines = [json.loads(line) for line in (peer.folder / "log.jsonl").read_text().splitlines()]
    assert [(line["event"], line["step"]) for line in lines] == [("went on without", 0), ("heard again", 4)]
    assert lines[1]["after"] == 4


@pytest.mark.parametrize(("method", "goes_on_with"), [("sgp", 0), ("dfedavg", 9)])
def test_who_comes_back_when_the_others_have_finished(method: str, goes_on_with: int, tmp_path: Path) -> None:
    """Their last letters are worth a last round. But they have no more mass to give: better to train on alone."""
    described = Experiment(method=method, clients=3, rounds=10, model="softmax", graph="full")
    peer = make_peers(make_kits(tmp_path, described, late="reweigh")[:1])[0]

    async def come_back() -> None:
        running = asyncio.create_task(peer.neighbours.run())
        await asyncio.sleep(0)
        for j, link in peer.neighbours.links.items():
            link.finished = True
            peer.progress.note_round(j, 10)
        peer._catch_up()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(come_back())
    assert peer.progress.done == goes_on_with
