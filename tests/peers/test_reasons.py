"""Why a neighbour is not there: said by a peer that looks for it, in words that lead to a remedy."""

import asyncio
import json
import shutil
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from attacker import experiment
from gossamer.errors import GossamerError
from gossamer.peers import neighbours, report
from gossamer.peers.data import peer_training
from gossamer.peers.identity.certificates import CERTIFICATE, KEY, Authority
from gossamer.peers.identity.kit import open_kit, renew, revoke
from gossamer.peers.identity.roster import Address
from gossamer.peers.peer import Peer
from gossamer.peers.wire import links, service
from gossamer.peers.wire.service import AT_ONCE, CALLS_A_SECOND, LONGEST_WAIT, CallLimit
from networks import SECONDS, make_kits, make_peers, run_together


@pytest.fixture
def kits(tmp_path: Path) -> list[Path]:
    return make_kits(tmp_path, experiment("dfedavg", clients=2).but(rounds=400))


def log_of(kit: Path) -> list[dict[str, Any]]:
    path = kit / "run/log.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def until(found: Any) -> Any:
    async with asyncio.timeout(SECONDS):
        while not (what := found()):
            await asyncio.sleep(0.01)
    return what


def together(peers: list[Peer], while_running: Any) -> None:
    """Run some peers, with something that happens meanwhile; then stop them."""

    async def run() -> None:
        running = [asyncio.create_task(peer.run()) for peer in peers]
        try:
            await while_running()
            assert not any(task.done() for task in running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    asyncio.run(run())


def event(kit: Path, name: str) -> dict[str, Any] | None:
    return next((line for line in log_of(kit) if line["event"] == name), None)


def give(kit: Path, authority: Path, name: str, **issued: Any) -> None:
    """Give a peer a certificate that `open_kit` would not take."""
    key, certificate = Authority.load(authority).issue(name, "127.0.0.1", **issued)
    (kit / KEY).write_bytes(key)
    (kit / CERTIFICATE).write_bytes(certificate)


NOW = datetime.now(UTC).replace(microsecond=0)


@pytest.mark.parametrize(
    ("issued", "kind", "reason"),
    [
        ({"days": 1, "not_before": NOW - timedelta(days=3)}, "certificate refused", "its certificate has expired"),
        ({"days": 9, "not_before": NOW + timedelta(days=3)}, "certificate refused", "not valid yet; is a clock wrong?"),
        ({"name": "p0"}, "certificate refused", "it has another peer's certificate, not that of 'p1'"),
        (None, "not of this network", "signed by somebody else than this network's authority"),
    ],
    ids=["expired", "a clock is wrong", "wrong name", "another network"],
)
def test_a_certificate_is_the_reason(
    issued: dict[str, Any] | None, kind: str, reason: str, kits: list[Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(neighbours, "REMIND", 0.1)
    first, second = make_peers(kits)
    authority = kits[0].parent / "authority"
    if issued is None:
        authority = make_kits(tmp_path / "other", experiment("dfedavg", clients=2))[0].parent / "authority"
    give(kits[1], authority, **{"name": "p1", **(issued or {})})
    bad = second.kit.__class__(**{**second.kit.__dict__, "key": (kits[1] / KEY).read_bytes(),
                                  "certificate": (kits[1] / CERTIFICATE).read_bytes()})  # fmt: skip
    second.service._kit = bad

    async def meanwhile() -> None:
        await second.service.start()
        running = asyncio.create_task(first.run())
        try:
            line = await until(lambda: event(kits[0], kind))
            assert reason in line["reason"]
            hint = (await until(lambda: event(kits[0], "waiting for")))["hint"]
            assert ("network renew" if kind == "certificate refused" else "the same 'gossamer network create'") in hint
            assert "start it" not in hint
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await second.service.stop()

    asyncio.run(meanwhile())


def test_an_unknown_host_is_the_reason(kits: list[Path]) -> None:
    network = kits[0] / "network.toml"
    table, port = '[peers.p1]\nhost = "127.0.0.1"', str(open_kit(kits[1]).member.port)
    assert table in network.read_text()
    assert port in network.read_text()
    network.write_text(network.read_text().replace(table, '[peers.p1]\nhost = "nowhere.invalid"'))
    (peer,) = make_peers(kits[:1])

    async def meanwhile() -> None:
        line = await until(lambda: event(kits[0], "not there yet"))
        assert "no such host" in line["reason"]

    together([peer], meanwhile)


def test_whoever_waits_says_for_whom_how_long_why_and_what_to_do(
    kits: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "REMIND", 0.2)
    (peer,) = make_peers(kits[:1])

    async def meanwhile() -> None:
        line = await until(lambda: event(kits[0], "waiting for"))
        address = open_kit(kits[1]).member.address
        assert line["for_peers"] == {"p1": f"not there yet: nobody listens there, at {address}"}
        assert line["seconds"] >= 0.2
        assert "start it, with its kit" in line["hint"]
        assert list(peer.status()["waiting_for"]) == ["p1"]
        await asyncio.sleep(1.5)

    together([peer], meanwhile)
    assert len([line for line in log_of(kits[0]) if line["event"] == "waiting for"]) <= 4  # ever less often


def test_a_finished_peer_says_for_whom_it_stays(tmp_path: Path) -> None:
    kits = make_kits(tmp_path, experiment("dfedavg", clients=2).but(rounds=2), late="reweigh", patience=0.2)
    (peer,) = make_peers(kits[:1])
    asyncio.run(peer.run())
    line = event(kits[0], "staying for")
    assert line is not None
    assert line["for_peers"] == ["p1"]
    assert line["for_unreachable_at_most"] == 3


def test_a_renewed_certificate_is_used_without_a_restart(kits: list[Path]) -> None:
    peers = make_peers(kits)
    for peer in peers:
        assert peer.kit.folder in kits

    async def meanwhile() -> None:
        await until(lambda: all(peer.progress.done >= 3 for peer in peers))
        revoke(kits[0].parent, "p1")  # the old certificate alone: without the new one it is out
        renew(kits[0].parent, ["p1"])
        before = peers[0].progress.done
        await until(lambda: peers[0].progress.done > before + 20)
        found = await peers[0].neighbours.links[1].probe()
        assert found.shown == (kits[1] / CERTIFICATE).read_bytes()

    together(peers, meanwhile)


def test_no_letter_goes_to_a_revoked_peers_server(kits: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "LAST_RETRY", 0.1)
    peers = make_peers(kits)

    async def meanwhile() -> None:
        await until(lambda: all(peer.progress.done >= 3 for peer in peers))
        shutil.copy(kits[1] / "crl.pem", kits[1] / "before")
        revoke(kits[0].parent, "p1")
        shutil.copy(kits[1] / "before", kits[1] / "crl.pem")  # its own list is as short as it likes
        link = peers[0].neighbours.links[1]
        await until(lambda: "revoked" in link.last_error)
        sent = link.sent_bytes
        await asyncio.sleep(0.5)
        assert link.sent_bytes == sent

    together(peers, meanwhile)


def test_a_taken_port_leaves_no_run_folder(kits: list[Path]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", open_kit(kits[0]).member.port))
        taken.listen()
        with pytest.raises(GossamerError, match="cannot listen on"):
            make_peers(kits[:1])
    assert not (kits[0] / "run").exists()


def test_a_peer_that_others_reach_by_another_address_than_its_own(kits: list[Path]) -> None:
    """Behind a router, or in a container, it listens where it is told."""
    own, network = open_kit(kits[0]).member, kits[0] / "network.toml"
    text = network.read_text().replace("rounds = 400", "rounds = 2")
    network.write_text(text.replace('[peers.p0]\nhost = "127.0.0.1"', '[peers.p0]\nhost = "203.0.113.9"'))
    (kits[1] / "network.toml").write_text((kits[1] / "network.toml").read_text().replace("rounds = 400", "rounds = 2"))
    with pytest.raises(
        GossamerError, match=r"cannot listen on 203\.0\.113\.9:\d+ \(Cannot assign requested address\).* with --listen"
    ):
        make_peers(kits[:1])
    kit = open_kit(kits[0])
    first = Peer(kit, peer_training(kit), kit.folder / "run", listen=Address(own.host, own.port))
    run_together([first, *make_peers(kits[1:])])


def test_a_long_log_is_begun_anew(kits: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "LONGEST_LOG", 2000)
    (peer,) = make_peers(kits[:1])
    for number in range(100):
        peer.report.log("event", number=number)
    sizes = [(kits[0] / "run" / name).stat().st_size for name in ("log.jsonl", "log.1.jsonl")]
    assert max(sizes) < 2200
    assert log_of(kits[0])[-1]["number"] == 99
    peer._lock.release()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    now = [100.0]
    monkeypatch.setattr(service.time, "monotonic", lambda: now[0])
    return now  # type: ignore[return-value]


def test_the_calls_of_one_peer_are_spread_over_time(clock: list[float]) -> None:
    """A flood gets as many calls as there are in the limit, whatever it tries; another peer does not wait."""
    limit, served = CallLimit(), 0
    for _ in range(10_000):
        served += limit.wait(1) <= LONGEST_WAIT
        clock[0] += 0.001
    assert served <= CALLS_A_SECOND * (10 + LONGEST_WAIT) + AT_ONCE + 1
    assert limit.wait(2) <= 0
    for _ in range(10 * CALLS_A_SECOND):  # letters that are accepted
        assert limit.wait(2) <= 0
        limit.refund(2)
    clock[0] += 60
    assert limit.wait(1) <= 0
    limit.charge(1, 16 << 20)  # half a second of letters that came in vain
    assert limit.wait(1) == pytest.approx(0.5)
    limit.charge(1, 1 << 40)
    assert limit.wait(1) <= LONGEST_WAIT


def test_a_finished_peer_stays_until_its_last_letters_are_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a step is mixed only with all letters, a neighbour that is away for long needs them still."""
    monkeypatch.setattr(neighbours, "GRACE", 0.1)
    described = experiment("dfedavg", clients=2).but(rounds=3)
    kits = make_kits(tmp_path, described, patience=0.3)
    peers = make_peers(kits)
    deliver, held = service.Service.deliver, asyncio.Event()

    async def slow(self: service.Service, *call: Any) -> Any:
        if self is peers[1].service and peers[1].progress.done == 2:
            await held.wait()  # longer than a call may take
        return await deliver(self, *call)

    monkeypatch.setattr(service.Service, "deliver", slow)

    async def run() -> None:
        running = [asyncio.create_task(peer.run()) for peer in peers]
        await until(lambda: peers[0].progress.finished)
        await asyncio.sleep(1.5)
        held.set()
        await asyncio.wait_for(asyncio.gather(*running), SECONDS)

    asyncio.run(run())
    assert [peer.progress.done for peer in peers] == [3, 3]
