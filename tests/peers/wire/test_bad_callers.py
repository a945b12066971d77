"""Callers that stall, crowd, or have no business here; connections without TLS, and certificates that are no good."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
import trustme

from attacker import CALL, SECONDS, Live, experiment, pieces
from bad_letters import PICKLED
from gossamer.peers.identity.certificates import Authority, server_name
from gossamer.peers.identity.kit import open_kit
from gossamer.peers.identity.roster import Member
from gossamer.peers.wire import service, tls
from gossamer.peers.wire import wire_pb2 as wire
from networks import make_kits, make_peers

# Calls


def test_who_stalls_is_hung_up_on(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    live.settle()  # so that no honest letter is under way, which might stall too
    header, _ = live.good()
    over = threading.Event()

    def slowly() -> Iterator[wire.Piece]:
        yield from pieces(header)[:1]
        over.wait(SECONDS)

    before = live.refused().get("stalled", 0)
    monkeypatch.setattr(service, "STALL", 0.1)
    receipt = live.attacker.deliver(0, slowly())
    over.set()
    monkeypatch.undo()
    assert (receipt.verdict, receipt.reason[:7]) == (wire.REFUSED, "stalled")
    assert live.refused()["stalled"] == before + 1
    assert live.inbox() == []
    live.round()


def test_many_calls_at_once(live: Live) -> None:
    """A caller has one letter under way, the last one; the others are answered, not left to wait."""
    live.settle()
    header, body = live.good()
    before = live.refused().get("superseded", 0)
    over = threading.Event()

    def endless() -> Iterator[bytes]:
        yield wire.Piece(header=header).SerializeToString()
        over.wait(SECONDS)

    channels = [tls.blocking_channel(live.attacker.kit, live.attacker.kit.roster.members[0]) for _ in range(4)]
    calls = [channel.stream_unary(f"{CALL}/Deliver").future(endless()) for channel in channels for _ in range(2)]
    live.until(lambda: live.refused().get("superseded", 0) >= before + len(calls) - 1)
    assert live.attacker.deliver(0, pieces(header, body)).verdict == wire.ACCEPTED
    for call in calls:
        assert wire.Receipt.FromString(call.result(SECONDS)).verdict == wire.EARLY
    more = [channel.stream_unary(f"{CALL}/Deliver").future(endless()) for channel in channels for _ in range(50)]
    live.round()
    over.set()
    for call in more:
        call.cancel()
    for channel in channels:
        channel.close()
    live.until(lambda: not [name for name in live.inbox() if name.startswith(".")])
    live.round()


@pytest.mark.parametrize("method", ["Greet", "Report", "Nothing"])
def test_other_calls(live: Live, method: str) -> None:
    for request in (b"\xff" * 20, b"", PICKLED, bytes(2_000_000)):
        with suppress(grpc.RpcError):
            live.attacker.channel(0).unary_unary(f"{CALL}/{method}")(request, timeout=SECONDS)
    live.round()


def test_large_metadata(live: Live) -> None:
    with pytest.raises(grpc.RpcError):
        live.attacker.channel(0).unary_unary(f"{CALL}/Report")(b"", metadata=[("x", "y" * 100_000)], timeout=SECONDS)
    live.round()


# Connections


def no_word(connection: socket.socket, said: bytes) -> None:
    """What is said is not answered, but for the alert of TLS, and the peer hangs up."""
    with suppress(ConnectionError):
        connection.sendall(said)
        while answer := connection.recv(1000):
            assert len(answer) <= 7


def test_no_tls_no_answer(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random bytes, an HTTP request: no word comes back, and they are counted."""
    monkeypatch.setattr(service, "HANDSHAKE", 0.0)  # counted at once
    address = (live.attacker.kit.roster.members[0].host, live.attacker.kit.roster.members[0].port)
    before = live.refused().get("no call", 0)
    for said in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", bytes(range(256)) * 9):
        with socket.create_connection(address, SECONDS) as plain:
            no_word(plain, said)
    assert live.refused()["no call"] >= before + 3
    live.round()


def test_who_says_nothing_is_hung_up_on(live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte and then nothing, or nothing at all: the same, after a while."""
    # A peer of another network, whom nobody else calls: so short a time might cut off honest callers too.
    monkeypatch.setattr(service, "HANDSHAKE", 0.1)
    (other,) = make_peers(make_kits(tmp_path, experiment("dfedavg"))[:1])
    address = (other.kit.member.host, other.kit.member.port)
    with live.beside(other):
        with ExitStack() as stack:
            silent = {said: stack.enter_context(socket.create_connection(address, SECONDS)) for said in (b"\x16", b"")}
            for said, connection in silent.items():
                no_word(connection, said)
        monkeypatch.setattr(service, "HANDSHAKE", 0.0)
        assert live.ask(other.status)["refused"] == {"no call": 2}
    monkeypatch.undo()
    live.round()


def test_plaintext_grpc(live: Live) -> None:
    with grpc.insecure_channel(live.attacker.kit.roster.members[0].address) as channel:
        with pytest.raises(grpc.RpcError) as refusal:
            channel.unary_unary(f"{CALL}/Report")(b"", timeout=SECONDS)
        assert refusal.value.code() == grpc.StatusCode.UNAVAILABLE
    live.round()


def test_old_tls_is_not_spoken(live: Live) -> None:
    member = live.attacker.kit.roster.members[0]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection((member.host, member.port), SECONDS) as plain, pytest.raises(OSError):  # noqa: PT011
        context.wrap_socket(plain)
    live.round()


# Certificates


def impostors(live: Live) -> dict[str, tuple[bytes, bytes] | None]:
    """Keys and certificates that are no good."""
    authority, now = Authority.load(live.kits[0].parent / "authority"), datetime.now(UTC)
    name = live.attacker.kit.name
    foreign = trustme.CA().issue_cert(server_name(name))
    return {
        "missing": None,
        "expired": authority.issue(name, "127.0.0.1", 1, now - timedelta(days=9)),
        "not yet valid": authority.issue(name, "127.0.0.1", 9, now + timedelta(days=1)),
        "of another authority": Authority.create().issue(name, "127.0.0.1"),
        "of a stranger's authority": (foreign.private_key_pem.bytes(), foreign.cert_chain_pems[0].bytes()),
    }


@pytest.mark.parametrize(
    "which", ["missing", "expired", "not yet valid", "of another authority", "of a stranger's authority"]
)
def test_no_good_certificate(live: Live, which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "HANDSHAKE", 0.0)  # counted at once
    before = live.refused().get("no call", 0)
    assert live.attacker.told(impostors(live)[which]) == grpc.StatusCode.UNAVAILABLE
    assert live.refused()["no call"] > before
    live.round()


def test_a_name_that_is_no_peers(live: Live) -> None:
    before = live.refused().get("stranger", 0)
    stranger = Authority.load(live.kits[0].parent / "authority").issue("mallory", "127.0.0.1")
    assert live.attacker.told(stranger) == grpc.StatusCode.PERMISSION_DENIED
    assert live.refused()["stranger"] == before + 1
    live.round()


def test_a_server_with_anothers_certificate_gets_nothing(live: Live) -> None:
    """A peer calls only who holds the certificate of the peer that it means."""
    wrong = Member(name="p0", port=live.attacker.kit.member.port)
    with tls.blocking_channel(open_kit(live.kits[1]), wrong) as channel, pytest.raises(grpc.RpcError) as refusal:
        channel.unary_unary(f"{CALL}/Greet")(b"", timeout=SECONDS)
    assert refusal.value.code() == grpc.StatusCode.UNAVAILABLE
