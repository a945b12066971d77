"""`gossamer network watch`, `network check` and the numbers for Prometheus, against peers that really run."""

import asyncio
import json
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from gossamer import Experiment
from gossamer.commands.app import app
from gossamer.errors import GossamerError
from gossamer.peers.identity.kit import open_kit
from gossamer.peers.identity.roster import Address
from gossamer.peers.neighbours import Neighbours
from gossamer.peers.peer import Peer
from gossamer.peers.tools import check, metrics, watch
from gossamer.peers.tools.watch import NetworkWatcher, PeerView, follow
from gossamer.terminal import console
from gossamer.terminal.network_view import network_table, progress_line
from networks import SECONDS, free_ports, make_kits, make_peers


def small(**changed: Any) -> Experiment:
    settings: dict[str, Any] = {
        "rounds": 4, "model": "softmax", "dataset": {"name": "digits", "train_samples": 200}, "local_steps": 2,
        "clients": 3, **changed,
    }  # fmt: skip
    return Experiment(**settings)


def with_running(peers: list[Peer], work: Callable[[], Awaitable[Any]]) -> Any:
    """Do something while peers run, then stop them."""

    async def both() -> Any:
        tasks = [asyncio.create_task(peer.run()) for peer in peers]
        try:
            return await asyncio.wait_for(work(), SECONDS)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(both())


def as_text(peers: list[PeerView], width: int) -> str:
    console = Console(width=width, record=True, file=sys.stderr)
    console.print(network_table(peers, "title", wide=width >= 90))
    return console.export_text()


@pytest.mark.parametrize("stays", [True, False])
def test_watched_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stays: bool) -> None:
    """A peer that has finished is there for a while, and is seen; or it has gone, and the last look is kept."""
    monkeypatch.setattr(watch, "EVERY", 0.1)
    monkeypatch.setattr(watch, "GONE_AFTER", SECONDS if stays else 2.0)
    kits = make_kits(tmp_path, small(rounds=10))
    screens: list[list[dict[str, Any]]] = []
    text = ""

    async def stay(self: Neighbours) -> None:
        """Stays or leaves; but not before its last letters have arrived and somebody has been seen."""
        while stays or not screens or any(link.waiting for link in self.links.values()):
            await asyncio.sleep(0.01)

    monkeypatch.setattr(Neighbours, "stay", stay)

    def show(peers: list[PeerView]) -> None:
        nonlocal text
        if screens or any(seen.problem is None for seen in peers):
            screens.append([seen.to_dict() for seen in peers])
        text = as_text(peers, 80)

    with_running(make_peers(kits), lambda: follow(open_kit(kits[1]), show))
    if stays:
        assert [(peer["finished"], peer["round"]) for peer in screens[-1]] == [(True, 10)] * 3
        assert text.count("finished") == 3
    else:
        assert all(peer["finished"] or peer["problem"] for peer in screens[-1])
    assert max(len(line) for line in text.splitlines()) <= 80


def test_who_cannot_be_asked_is_shown_with_the_reason(tmp_path: Path) -> None:
    """Two of three run, and wait for the third; one who is away asks, and somebody else listens at another's port."""
    kits = make_kits(tmp_path, small(clients=4))
    stranger = socket.create_server(("127.0.0.1", open_kit(kits[3]).member.port))

    async def look() -> list[PeerView]:
        watcher = NetworkWatcher(open_kit(kits[0]), timeout=1.0)
        try:
            # On a slow machine one of them may miss the time for an answer now and then.
            while not all(seen.away and seen.problem is None for seen in watcher.seen[1:3]):
                await watcher.look()
            return watcher.seen
        finally:
            await watcher.close()

    with stranger:
        peers: list[PeerView] = with_running(make_peers(kits[1:3]), look)
    first, second, third, fourth = peers
    assert (first.problem, second.problem, third.problem) == ("nobody listens there", None, None)
    assert "answer" in str(fourth.problem) or "timed out" in str(fourth.problem)
    assert "p0" in second.away
    assert len(second.neighbours) == 2  # of a ring: those that it talks to, not everybody
    for width in (80, 120):
        text = as_text(peers, width)
        assert "nobody" in text
        assert "p0 away" in text
    assert progress_line(peers)[0] == 0


def test_check_asks_what_a_peer_runs(tmp_path: Path) -> None:
    kits = make_kits(tmp_path, small())
    peers = make_peers(kits[:2])

    async def asked() -> list[check.PeerCheck]:
        return await asyncio.to_thread(check.check_network, tmp_path / "kits")

    def problems() -> list[str | None]:
        return [line.network_problem for line in with_running(peers, asked)]

    assert problems() == [None, None, "refused: nobody listens there"]
    peers = make_peers(kits[1:2])
    peers[0].progress.network = "another"
    assert str(problems()[1]).startswith("runs another experiment (another, here ")
    peers = make_peers(kits[1:2])
    peers[0].progress.version = "9.9"
    assert "runs version 9.9 of Gossamer" in str(problems()[1])


def test_without_a_terminal_one_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kits = make_kits(tmp_path, small())

    def said(*options: str) -> str:
        monkeypatch.setattr(sys, "argv", ["gossamer", "network", "watch", str(kits[0]), *options])
        with pytest.raises(SystemExit) as left:
            app()
        assert left.value.code == 0
        return capsys.readouterr().out

    text = said()
    assert "asked as p0" in text
    assert text.count("nobody") == 3
    assert [peer["problem"] for peer in json.loads(said("--json"))] == ["nobody listens there"] * 3
    monkeypatch.setattr(console, "out", Console(force_terminal=True, width=100))
    assert said("--once").count("nobody") == 3

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watch, "follow", interrupted)
    monkeypatch.setattr(sys, "argv", ["gossamer", "network", "watch", str(kits[0])])
    with pytest.raises(SystemExit) as left:
        app()
    assert left.value.code == 130


async def get(port: int, request: bytes = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n") -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer.decode()


def test_numbers_for_prometheus(tmp_path: Path) -> None:
    kits = make_kits(tmp_path, small(method="sgp", rounds=2))
    peers = make_peers(kits)
    (port,) = free_ports(1)

    async def work() -> str:
        async with await metrics.serve(Address("127.0.0.1", port), peers[0].status):
            while not all(peer.progress.finished for peer in peers):
                await get(port)
                await asyncio.sleep(0.05)
            assert "404" in await get(port, b"GET /secrets HTTP/1.1\r\n\r\n")
            for nonsense in (
                b"\r\n\r\n",
                b"\x16\x03\x01\x00\r\n\r\n",
                b"POST /metrics HTTP/1.1\r\n\r\n",
                b"x" * 40_000,
            ):
                assert "gossamer_round" not in await get(port, nonsense)
            with pytest.raises(GossamerError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
                await metrics.serve(Address("127.0.0.1", port), peers[0].status)
            peers[0].service._count(1, 'a "strange" reason: of somebody')
            return await get(port)

    head, _, body = with_running(peers, work).partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 200 OK")
    assert "text/plain; version=0.0.4" in head
    samples = {s.name: s for family in text_string_to_metric_families(body) for s in family.samples}
    assert samples["gossamer_round"].value == 2
    assert samples["gossamer_round"].labels == {"peer": "p0"}
    assert samples["gossamer_refused_total"].labels["reason"] == 'a "strange" reason'
    assert samples["gossamer_neighbour_reachable"].value in (0, 1)
    assert samples["gossamer_push_sum_weight"].value > 0
    expected = {"loss", "accuracy", "sent_bytes_total", "received_bytes_total", "finished", "rounds", "starts"}
    assert {f"gossamer_{name}" for name in expected} <= samples.keys()


@pytest.mark.parametrize("wrong", ["", "x", "0", "70000", "here:", "here:x", "-1"])
def test_wrong_ports(wrong: str) -> None:
    with pytest.raises(GossamerError, match="should be a port or host:port"):
        metrics.as_address(wrong)


def test_a_peer_whose_port_for_numbers_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kits = make_kits(tmp_path, small())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(sys, "argv", ["gossamer", "peer", str(kits[0]), "-q", "--metrics-port", str(port)])
        with pytest.raises(SystemExit) as left:
            app()
    assert left.value.code == 2
    assert f"--metrics-port: cannot listen on 127.0.0.1:{port}: Address already in use" in capsys.readouterr().err
