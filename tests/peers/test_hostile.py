"""Everything that can be wrong with what reaches a peer, tried on live ones over real sockets with real TLS.

The honest peers wait for the last one of the network, whose certificate the attacker holds: a round is over only when
they have also taken a good letter of it. So each attack is followed by a round.
"""

import asyncio
import contextlib
import json
import logging
import math
import pickle
import resource
import shutil
import socket
import ssl
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer import Experiment, cli
from gossamer.errors import GossamerError
from gossamer.peers import neighbours, service, tls
from gossamer.peers import wire_pb2 as wire
from gossamer.peers.certificates import Authority, server_name
from gossamer.peers.journal import TwoProcesses
from gossamer.peers.kit import open_kit, revoke
from gossamer.peers.letters import Letter
from gossamer.peers.links import SERVICE
from gossamer.peers.peer import Peer
from gossamer.peers.roster import Member
from networks import Process, make_kits, make_peers

SECONDS = 60
QUIET = {"every": 0, "clients": 0, "training": 0}
EVIL = 3
CALL = f"/{SERVICE}"


def experiment(method: str, **changed: Any) -> Experiment:
    return Experiment(**{
        "method": method, "clients": EVIL + 1, "rounds": 10_000, "model": "softmax", "graph": "full", "local_steps": 1,
        "dataset": {"name": "digits", "train_samples": 200}, "evaluate": QUIET, **changed,
    })  # fmt: skip


class Attacker:
    """Whoever has the kit of a peer: calls the others, and answers their calls as it likes."""

    def __init__(self, kit: Path) -> None:
        self.kit = open_kit(kit)
        self.number = self.kit.number
        self.process = wire.Process(number=1, token=7)
        self.answer: Callable[[], bytes] = lambda: wire.Receipt(verdict=wire.ACCEPTED).SerializeToString()
        self.channels: dict[int, grpc.Channel] = {}
        self._server = grpc.server(futures.ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        hello = wire.Hello(version="0", network=self.kit.roster.digest, round=1 << 60).SerializeToString()
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {
            "Greet": grpc.unary_unary_rpc_method_handler(lambda request, context: hello),
            "Deliver": grpc.stream_unary_rpc_method_handler(self._deliver),
        }),))  # fmt: skip
        own = grpc.ssl_server_credentials([(self.kit.key, self.kit.certificate)], self.kit.authority, True)
        self._server.add_secure_port(self.kit.member.address, own)
        self._server.start()

    def _deliver(self, pieces: Iterable[bytes], context: Any) -> bytes:
        for _ in pieces:
            pass
        return self.answer()

    def channel(self, victim: int) -> grpc.Channel:
        if victim not in self.channels:
            member = self.kit.roster.members[victim]
            own = grpc.ssl_channel_credentials(self.kit.authority, self.kit.key, self.kit.certificate)
            options = [
                ("grpc.ssl_target_name_override", server_name(member.name)),
                ("grpc.max_send_message_length", -1),
            ]
            self.channels[victim] = grpc.secure_channel(member.address, own, options)
        return self.channels[victim]

    def deliver(self, victim: int, pieces: Iterable[bytes | wire.Piece], **about: Any) -> wire.Receipt:
        raw = (each if isinstance(each, bytes) else each.SerializeToString() for each in pieces)
        call = self.channel(victim).stream_unary(f"{CALL}/Deliver")
        return wire.Receipt.FromString(call(raw, timeout=SECONDS, **about))

    def report(self, victim: int) -> dict[str, Any]:
        answer = self.channel(victim).unary_unary(f"{CALL}/Report")(b"", timeout=SECONDS)
        return json.loads(wire.Status.FromString(answer).json)  # type: ignore[no-any-return]

    def close(self) -> None:
        for channel in self.channels.values():
            channel.close()
        self._server.stop(0).wait()


class Live:
    """Honest peers that run in a thread, and the attacker beside them."""

    def __init__(self, kits: list[Path], here: Iterable[int] = range(EVIL)) -> None:
        self.kits = kits
        self.folders = {number: kits[number] / "run" for number in range(EVIL)}
        self.attacker = Attacker(kits[EVIL])
        self.peers = {number: make_peers([kits[number]])[0] for number in here}
        self.faults: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        self._thread.start()
        until(lambda: all(peer.now.doing != "starting" for peer in self.peers.values()))

    async def _run(self) -> None:
        self._loop.set_exception_handler(lambda loop, about: self.faults.append(str(about)))
        self.tasks = [asyncio.create_task(peer.run()) for peer in self.peers.values()]
        for ended in await asyncio.gather(*self.tasks, return_exceptions=True):
            if not isinstance(ended, asyncio.CancelledError):
                self.faults.append(f"a peer ended: {ended!r}")

    def close(self) -> None:
        for task in self.tasks:
            self._loop.call_soon_threadsafe(task.cancel)
        self._thread.join()
        self._loop.close()
        self.attacker.close()

    def run(self, peer: Peer) -> None:
        """One more peer, to its end."""
        asyncio.run_coroutine_threadsafe(peer.run(), self._loop).result(SECONDS)

    def good(self, victim: int = 0, kind: str = "letter") -> tuple[wire.Header, bytes]:
        """A letter for the step that a peer is at: what it sends itself, in the attacker's name."""
        step = self.attacker.report(victim)["round"]
        path = self.folders[victim] / "outbox" / (f"{step}.letter" if kind == "letter" else f"{EVIL}.mass")
        until(path.exists)
        letter = Letter(path)
        header = wire.Header.FromString(letter.header.SerializeToString())
        header.process.CopyFrom(self.attacker.process)
        return header, b"".join(letter.chunks())

    def round(self) -> None:
        """A round of all honest peers, with a good letter of the attacker for each."""
        before = [self.attacker.report(number)["round"] for number in range(EVIL)]
        for victim in range(EVIL):
            receipt = self.attacker.deliver(victim, pieces(*self.good(victim)))
            # It may have had one before, and have gone on meanwhile.
            assert receipt.verdict in (wire.ACCEPTED, wire.DOUBLED, wire.PAST), receipt
        until(lambda: all(self.attacker.report(v)["round"] > round for v, round in enumerate(before)))
        assert not self.faults

    def together(self) -> None:
        """Bring all honest peers to the same step, waiting for the attacker."""

        def rounds() -> list[int]:
            return [self.attacker.report(number)["round"] for number in range(EVIL)]

        until(lambda: len(set(rounds())) == 1 or not self.round())  # type: ignore[func-returns-value]

    def refused(self, victim: int = 0) -> dict[str, int]:
        return self.attacker.report(victim)["refused"]  # type: ignore[no-any-return]

    def inbox(self, victim: int = 0) -> list[str]:
        """Files of the attacker, whole or half written."""
        inside = [path.name for path in (self.folders[victim] / "inbox").iterdir()]
        return sorted(name for name in inside if name.startswith((f"{EVIL}at", f".{EVIL}at")))


def until(ready: Callable[[], bool]) -> None:
    ends = time.monotonic() + SECONDS
    while not ready():
        assert time.monotonic() < ends, "waited in vain"
        time.sleep(0.005)


def pieces(header: wire.Header, body: bytes = b"", *more: bytes) -> list[wire.Piece]:
    return [wire.Piece(header=header), *(wire.Piece(chunk=chunk) for chunk in (body, *more))]


def digest(body: bytes) -> bytes:
    return sha256(body).digest()


@pytest.fixture(scope="module")
def errors() -> Iterator[list[str]]:
    """What would be printed on a terminal."""
    seen: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: seen.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    yield seen
    logging.getLogger().removeHandler(handler)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, errors: list[str]) -> Iterator[Live]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "HANDSHAKE", 1.0)
        network = Live(make_kits(tmp_path_factory.mktemp("letters"), experiment("dfedavg")))
        yield network
        network.close()
    assert not network.faults
    assert not errors


@pytest.fixture(scope="module")
def pushing(tmp_path_factory: pytest.TempPathFactory, errors: list[str]) -> Iterator[Live]:
    described = experiment("sgp", graph="full")
    network = Live(make_kits(tmp_path_factory.mktemp("mass"), described, patience=SECONDS))
    yield network
    network.close()
    assert not network.faults
    assert not errors


# Letters

Bad = Callable[[wire.Header, bytes], Iterable[bytes | wire.Piece]]


def with_header(change: Callable[[wire.Header], Any]) -> Bad:
    def bad(header: wire.Header, body: bytes) -> list[wire.Piece]:
        change(header)
        return pieces(header, body)

    return bad


def with_values(change: Callable[[bytes], bytes]) -> Bad:
    def bad(header: wire.Header, body: bytes) -> list[wire.Piece]:
        body = change(body)
        header.digest = digest(body)
        return pieces(header, body)

    return bad


def fields(**values: Any) -> Bad:
    def change(header: wire.Header) -> None:
        for name, value in values.items():
            setattr(header, name, value)

    return with_header(change)


def tensor(**values: Any) -> Bad:
    def change(header: wire.Header) -> None:
        for name, value in values.items():
            if name == "shape":
                header.tensors[0].shape[:] = value
            else:
                setattr(header.tensors[0], name, value)

    return with_header(change)


def losses(*told: tuple[int, int, float]) -> Bad:
    return with_header(
        lambda header: header.losses.extend(wire.Loss(peer=peer, round=round, loss=loss) for peer, round, loss in told)
    )


def first_value(value: float) -> Bad:
    return with_values(lambda body: struct.pack("<f", value) + body[4:])


def extra(header: wire.Header) -> None:
    header.tensors.add(name="more", dtype="float32", shape=[1])


PICKLED = pickle.dumps({"x": [1.0] * 650})
#: A header with as many tensors, each of two bytes on the wire and of many more in memory.
HALF_A_MILLION = b"\x0a\xc0\x84\x3d" + b"\x32\x00" * 500_000
BAD_LETTERS: dict[str, tuple[Bad, str]] = {
    "an empty stream": (lambda header, body: [], "no header"),
    "chunks before the header": (lambda header, body: pieces(header, body[:9])[::-1], "no header"),
    "a piece that is neither": (lambda header, body: [wire.Piece()], "no header"),
    "two headers": (lambda header, body: [*pieces(header), *pieces(header, body)], "truncated"),
    "a second header": (lambda header, body: pieces(header, body)[:1] * 2, "a second header in one letter"),
    "random bytes": (lambda header, body: [bytes(range(256))], "unreadable"),
    "random bytes after the header": (lambda header, body: [*pieces(header)[:1], b"\xff" * 99], "unreadable"),
    "a pickle": (lambda header, body: [PICKLED[:900]], "unreadable"),
    "a pickle for a header": (lambda header, body: [b"\x0a" + bytes([9]) + PICKLED[:9]], "unreadable"),
    "a pickle for a body": (lambda header, body: pieces(header, PICKLED), "too long"),
    "a pickle as long as a body": (
        lambda header, body: pieces(header, PICKLED[: len(body)].ljust(len(body), b".")), "wrong digest",
    ),
    "no body": (lambda header, body: pieces(header, body)[:1], "truncated"),
    "a truncated chunk": (lambda header, body: pieces(header, body[:-1]), "truncated"),
    "small chunks": (lambda header, body: pieces(header, body[:10], body[10:]), "truncated"),
    "empty chunks": (lambda header, body: pieces(header, *[b""] * 100, body), "truncated"),
    "too long a chunk": (lambda header, body: pieces(header, body + b"\0"), "too long"),
    "a chunk too many": (lambda header, body: pieces(header, body, body), "too long"),
    "an empty chunk at the end": (lambda header, body: pieces(header, body, b""), "too long"),
    "a wrong digest": (fields(digest=bytes(32)), "wrong digest"),
    "a short digest": (fields(digest=b"short"), "wrong digest"),
    "a terabyte": (fields(bytes=1 << 40), "wrong size"),
    "no size": (fields(bytes=0), "wrong size"),
    "the largest size there is": (fields(bytes=(1 << 64) - 1), "wrong size"),
    "a terabyte of a tensor": (tensor(shape=[1 << 38]), "wrong shape"),
    "an overflowing shape": (tensor(shape=[(1 << 63) - 1] * 4), "wrong shape"),
    "a negative shape": (tensor(shape=[-1, -650]), "wrong shape"),
    "a scalar": (tensor(shape=[]), "wrong shape"),
    "a shape of many dimensions": (tensor(shape=[1] * 900 + [650]), "wrong shape"),
    "another type": (tensor(dtype="float64"), "wrong type"),
    "no type": (tensor(dtype="object\x1b[2J"), "wrong type"),
    "another name": (tensor(name="y"), "missing tensor"),
    "a path for a name": (tensor(name="../../../etc/passwd"), "missing tensor"),
    "no tensor": (with_header(lambda header: header.ClearField("tensors")), "missing tensor"),
    "an extra tensor": (with_header(extra), "extra tensor"),
    "a tensor twice": (with_header(lambda header: header.tensors.append(header.tensors[0])), "wrong order of tensors"),
    "many tensors": (with_header(lambda header: [extra(header) for _ in range(50)]), "extra tensor"),
    "half a million tensors": (lambda header, body: [HALF_A_MILLION], "too long"),
    "half a million tensors for a body": (lambda header, body: [wire.Piece(header=header), HALF_A_MILLION], "too long"),
    "a name of a megabyte": (tensor(name="x" * 1_000_000), "too long"),
    "a header of ten megabytes": (tensor(name="x" * 10_000_000), "no header or broken off"),
    "a chunk of ten megabytes": (lambda header, body: pieces(header, bytes(10_000_000)), "truncated or broken off"),
    "nan": (first_value(math.nan), "not finite"),
    "infinity": (first_value(math.inf), "not finite"),
    "minus infinity": (first_value(-math.inf), "not finite"),
    "an unknown kind": (fields(kind=7), "unknown kind of message"),
    "mass where none is pushed": (fields(kind=wire.MASS), "unexpected"),
    "a step after the last": (fields(step=10_000), "wrong step"),
    "an absurd step": (fields(step=(1 << 63) - 1), "wrong step"),
    "a negative step": (fields(step=-1), "wrong step"),
    "an absurdly negative step": (fields(step=-(1 << 63)), "wrong step"),
    "a future round": (fields(step=9_999), "future"),
    "another experiment": (fields(network="0" * 16), "another network"),
    "no experiment": (fields(network=""), "another network"),
    "another version": (fields(version="9.9"), "another version"),
    "another process": (with_header(lambda header: header.process.CopyFrom(wire.Process(number=1, token=8))),
                        "another process speaks for this peer"),
    "thousands of losses": (losses(*[(0, 0, 1.0)] * 5000), "too long"),
    "more losses than peers": (losses(*[(0, 0, 1.0)] * 5), "wrong losses"),
    "the loss of nobody": (losses((99, 0, 1.0)), "wrong losses"),
    "a loss of a round to come": (losses((1, 1 << 62, 1.0)), "wrong losses"),
    "a loss that is not a number": (losses((1, 0, math.nan)), "wrong losses"),
    "an infinite loss": (losses((1, 0, -math.inf)), "wrong losses"),
    "an absurd loss": (losses((1, 0, 1e308)), "wrong losses"),
}  # fmt: skip


def attack(live: Live, bad: Bad, reason: str, kind: str = "letter") -> None:
    """The bad letter is refused, counted once, and leaves nothing behind."""
    before = live.refused()
    was_there = live.inbox()
    with contextlib.suppress(grpc.RpcError):  # what is too large for the library never gets an answer of ours
        receipt = live.attacker.deliver(0, bad(*live.good(0, kind)))
        assert receipt.verdict in (wire.REFUSED, wire.EARLY), receipt
        assert receipt.reason.startswith(reason), receipt.reason
    until(lambda: live.refused() != before)  # counted at once, but for those without an answer
    counted = Counter(live.refused()) - Counter(before)
    assert [(kind in reason.split(" or "), times) for kind, times in counted.items()] == [(True, 1)]
    assert set(live.inbox()) <= set(was_there)


@pytest.mark.parametrize("name", BAD_LETTERS)
def test_bad_letters(live: Live, name: str) -> None:
    bad, reason = BAD_LETTERS[name]
    attack(live, bad, reason)
    live.round()


def test_a_letter_that_comes_again(live: Live) -> None:
    """The first one stands as long as it is of use; then it is past."""
    header, body = live.good()
    header.step += 1  # so that it lies there for a while
    assert live.attacker.deliver(0, pieces(header, body)).verdict == wire.ACCEPTED
    assert live.inbox() == [f"{EVIL}at{header.step}.letter"]
    other = bytes(len(body))
    header.digest = digest(other)
    assert live.attacker.deliver(0, pieces(header, other)).verdict == wire.DOUBLED
    for _ in range(2):
        live.round()
    before = live.refused().get("past", 0)
    assert live.attacker.deliver(0, pieces(header, body)).verdict == wire.PAST
    assert live.refused()["past"] == before + 1
    assert f"{EVIL}at{header.step}.letter" not in live.inbox()
    live.together()


def test_nothing_is_unpacked_on_the_way_in(live: Live) -> None:
    before = live.refused()["too long"]
    header, _ = live.good()
    bomb = [wire.Piece(chunk=bytes(50_000_000))]  # 50 kB as it travels
    receipt = live.attacker.deliver(0, [*pieces(header)[:1], *bomb], compression=grpc.Compression.Gzip)
    assert receipt.verdict == wire.REFUSED
    assert live.refused()["too long"] + live.refused()["unreadable"] > before
    live.round()


scrambled = st.fixed_dictionaries({}, optional={
    "network": st.text(max_size=20), "version": st.text(max_size=5), "kind": st.integers(-(1 << 31), (1 << 31) - 1),
    "step": st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-5, 5), "base": st.integers(-(1 << 63), (1 << 63) - 1),
    "bytes": st.integers(0, (1 << 64) - 1), "digest": st.binary(max_size=40),
})  # fmt: skip
shapes = st.lists(st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 700), max_size=5)
names, types = st.just("x") | st.text(max_size=9), st.sampled_from(["float32", "q"])
tensors = st.lists(st.builds(wire.Tensor, name=names, dtype=types, shape=shapes), max_size=3)
told = st.lists(
    st.builds(wire.Loss, peer=st.integers(-9, 9), round=st.integers(-9, 1 << 62), loss=st.floats()), max_size=6
)
HOW = settings(max_examples=60, deadline=None)


def try_anything(live: Live, stream: list[bytes | wire.Piece]) -> None:
    """Nothing that is not a whole good letter lies in the inbox afterwards, and nothing was a fault of ours."""
    before, accepted = live.inbox(), False
    with contextlib.suppress(grpc.RpcError):
        accepted = live.attacker.deliver(0, stream).verdict == wire.ACCEPTED
    assert accepted or set(live.inbox()) <= set(before)
    assert "fault" not in live.refused()
    assert not [name for name in live.inbox() if name.startswith(".")]


@HOW
@given(changed=scrambled, described=st.none() | tensors, known=told)
def test_any_header(live: Live, changed: dict[str, Any], described: list[wire.Tensor] | None, known: Any) -> None:
    header, body = live.good()
    for name, value in changed.items():
        setattr(header, name, value)
    if described is not None:
        del header.tensors[:]
        header.tensors.extend(described)
    header.losses.extend(known)
    try_anything(live, pieces(header, body))


@HOW
@given(
    start=st.booleans(),
    rest=st.lists(
        st.binary(max_size=50) | st.binary(max_size=50).map(lambda chunk: wire.Piece(chunk=chunk))
        | st.sampled_from([0, 1, 2599, 2600, 2601]).map(lambda length: wire.Piece(chunk=bytes(length)))
    ),
)  # fmt: skip
def test_any_stream(live: Live, start: bool, rest: list[bytes | wire.Piece]) -> None:
    header, _ = live.good()
    try_anything(live, [*pieces(header)[:1], *rest] if start else rest)


def test_after_all_that_a_round(live: Live) -> None:
    live.round()


# Callers


def test_who_stalls_is_hung_up_on(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "STALL", 0.2)
    header, _ = live.good()
    over = threading.Event()

    def slowly() -> Iterator[wire.Piece]:
        yield from pieces(header)[:1]
        over.wait(SECONDS)

    before = live.refused().get("stalled", 0)
    receipt = live.attacker.deliver(0, slowly())
    over.set()
    assert (receipt.verdict, receipt.reason[:7]) == (wire.REFUSED, "stalled")
    assert live.refused()["stalled"] == before + 1
    assert live.inbox() == []
    monkeypatch.undo()
    live.round()


def test_many_calls_at_once(live: Live) -> None:
    """A caller has one letter under way, the last one; the others are answered, not left to wait."""
    header, body = live.good()
    over = threading.Event()

    def endless() -> Iterator[bytes]:
        yield wire.Piece(header=header).SerializeToString()
        over.wait(SECONDS)

    channels = [tls.blocking_channel(live.attacker.kit, live.attacker.kit.roster.members[0]) for _ in range(4)]
    calls = [channel.stream_unary(f"{CALL}/Deliver").future(endless()) for channel in channels for _ in range(2)]
    until(lambda: live.refused().get("overtaken", 0) >= len(calls) - 1)
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
    until(lambda: not [name for name in live.inbox() if name.startswith(".")])
    live.round()


@pytest.mark.parametrize("method", ["Greet", "Report", "Nothing"])
@pytest.mark.parametrize("request_bytes", [b"\xff" * 20, b"", PICKLED, bytes(2_000_000)], ids=len)
def test_other_calls(live: Live, method: str, request_bytes: bytes) -> None:
    with contextlib.suppress(grpc.RpcError):
        live.attacker.channel(0).unary_unary(f"{CALL}/{method}")(request_bytes, timeout=SECONDS)
    live.round()


def test_large_metadata(live: Live) -> None:
    with pytest.raises(grpc.RpcError):
        live.attacker.channel(0).unary_unary(f"{CALL}/Report")(b"", metadata=[("x", "y" * 100_000)], timeout=SECONDS)
    live.round()


# Connections


def test_no_tls_no_answer(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random bytes, an HTTP request, a byte and then nothing: no word comes back, and they are counted."""
    address = (live.attacker.kit.roster.members[0].host, live.attacker.kit.roster.members[0].port)
    before = live.refused().get("no call", 0)
    for said in (
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        bytes(range(256)) * 9,
        b"\x16",
        b"",
    ):
        with socket.create_connection(address, SECONDS) as plain, contextlib.suppress(ConnectionError):
            plain.sendall(said)
            answer = plain.recv(1000)
            assert len(answer) <= 7  # nothing, or the alert of TLS
    monkeypatch.setattr(service, "HANDSHAKE", 0.0)
    assert live.refused()["no call"] >= before + 5
    live.round()


def test_plaintext_grpc(live: Live) -> None:
    with grpc.insecure_channel(live.attacker.kit.roster.members[0].address) as channel:
        with pytest.raises(grpc.RpcError) as refusal:
            channel.unary_unary(f"{CALL}/Report")(b"", timeout=SECONDS)
        assert refusal.value.code() == grpc.StatusCode.UNAVAILABLE
    live.round()


def impostors(live: Live) -> dict[str, tuple[bytes, bytes] | None]:
    """Keys and certificates that are no good."""
    authority, now = Authority.load(live.kits[0].parent / "authority"), datetime.now(UTC)
    name = f"p{EVIL}"
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
    before = live.refused().get("no call", 0)
    assert code_of(live, impostors(live)[which]) == grpc.StatusCode.UNAVAILABLE
    monkeypatch.setattr(service, "HANDSHAKE", 0.0)
    assert live.refused()["no call"] > before
    live.round()


def code_of(live: Live, pair: tuple[bytes, bytes] | None) -> grpc.StatusCode:
    """What a caller with this key and certificate is told."""
    kit, member = live.attacker.kit, live.attacker.kit.roster.members[0]
    credentials = grpc.ssl_channel_credentials(kit.authority, *(pair or ()))
    options = [("grpc.ssl_target_name_override", server_name(member.name)), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(member.address, credentials, options) as channel, pytest.raises(grpc.RpcError) as refusal:
        channel.unary_unary(f"{CALL}/Report")(b"", timeout=SECONDS)
    return refusal.value.code()


def test_a_name_that_is_no_peers(live: Live) -> None:
    before = live.refused().get("stranger", 0)
    stranger = Authority.load(live.kits[0].parent / "authority").issue("mallory", "127.0.0.1")
    assert code_of(live, stranger) == grpc.StatusCode.PERMISSION_DENIED
    assert live.refused()["stranger"] == before + 1
    live.round()


def test_a_server_with_anothers_certificate_gets_nothing(live: Live) -> None:
    """A peer calls only who holds the certificate of the peer that it means."""
    (port,) = [kit.member.port for kit in [live.attacker.kit]]
    wrong = Member(name="p0", port=port)
    with tls.blocking_channel(open_kit(live.kits[1]), wrong) as channel, pytest.raises(grpc.RpcError) as refusal:
        channel.unary_unary(f"{CALL}/Greet")(b"", timeout=SECONDS)
    assert refusal.value.code() == grpc.StatusCode.UNAVAILABLE


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


# Hostile answers


def test_answers_that_make_no_sense(live: Live) -> None:
    """A neighbour that answers letters with nonsense, or with lies, loses its own letters and nobody else's."""
    honest = live.attacker.answer
    answers = [
        b"\xff" * 50, b"", bytes(3_000_000), PICKLED,
        wire.Receipt(verdict=77, round=-(1 << 63), through=(1 << 63) - 1).SerializeToString(),  # type: ignore[arg-type]
        wire.Receipt(verdict=wire.REFUSED, reason="another process" + "!" * 100_000).SerializeToString(),
        wire.Receipt(verdict=wire.REFUSED, reason="another network").SerializeToString(),
    ]  # fmt: skip
    try:
        for answer in answers:
            asked = threading.Event()

            def say(answer: bytes = answer, asked: threading.Event = asked) -> bytes:
                asked.set()
                return answer

            live.attacker.answer = say
            live.round()
            assert asked.wait(SECONDS)
            if answer is not answers[-1]:  # who waits does not go far without an answer
                live.attacker.answer = honest
                until(lambda: not any(peer.neighbours.links[EVIL].waiting for peer in live.peers.values()))
        time.sleep(1.5 * neighbours.DOUBT)
    finally:
        live.attacker.answer = honest
    live.round()
    assert max(map(len, (live.folders[0] / "log.jsonl").read_text().splitlines())) < 2000


# One kit, two processes


def test_a_kit_that_is_in_use(live: Live) -> None:
    with pytest.raises(TwoProcesses, match="another process runs this peer"):
        make_peers([live.kits[0]])
    live.round()


def test_a_copied_kit(live: Live, tmp_path: Path) -> None:
    """Its neighbours go on with the first process; the copy is told so and ends."""
    shutil.copytree(live.kits[2], tmp_path / "copy", ignore=shutil.ignore_patterns("run"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    network = tmp_path / "copy" / "network.toml"
    network.write_text(network.read_text().replace(str(open_kit(live.kits[2]).member.port), str(port)))
    honest = live.attacker.answer
    refusal = wire.Receipt(verdict=wire.REFUSED, reason="another process speaks for this peer")
    live.attacker.answer = refusal.SerializeToString
    try:
        with pytest.raises(TwoProcesses, match="One kit is for one process"):
            live.run(make_peers([tmp_path / "copy"])[0])
        assert live.refused()["another process speaks for this peer"] > 0
        live.round()
    finally:
        live.attacker.answer = honest


# Mass


def parcel(change: Callable[[wire.Header], None], value: float = 0.5) -> Bad:
    """A parcel whose last four bytes, the weight, are of this value (tensors lie in the order of their names)."""

    def bad(header: wire.Header, body: bytes) -> list[wire.Piece]:
        assert [each.name for each in header.tensors] == ["weight", "x"]
        body = struct.pack("<f", value) + body[4:]
        header.digest = digest(body)
        change(header)
        return pieces(header, body)

    return bad


def same(header: wire.Header) -> None:
    pass


BAD_MASS: dict[str, tuple[Bad, str]] = {
    "no weight": (parcel(same, 0.0), "wrong weight"),
    "a negative weight": (parcel(same, -1.0), "wrong weight"),
    "a weight that is not a number": (parcel(same, math.nan), "not finite"),
    "an infinite weight": (parcel(same, math.inf), "not finite"),
    "a base after the step": (parcel(lambda header: setattr(header, "base", header.step)), "wrong base"),
    "a base that contradicts": (parcel(lambda header: setattr(header, "base", -2)), "wrong base"),
    "an absurd base": (parcel(lambda header: setattr(header, "base", -(1 << 63))), "wrong base"),
    "a letter where mass is pushed": (parcel(lambda header: setattr(header, "kind", wire.LETTER)), "unexpected"),
    "a negative step": (parcel(lambda header: setattr(header, "step", -1)), "wrong step"),
    "a missing tensor": (parcel(lambda header: header.tensors.pop()), "missing tensor"),
}


@pytest.mark.parametrize("name", BAD_MASS)
def test_bad_mass(pushing: Live, name: str) -> None:
    bad, reason = BAD_MASS[name]
    attack(pushing, bad, reason, kind="mass")


def test_mass_that_takes_back_what_it_gave(pushing: Live) -> None:
    """A second parcel of the same sum with less in it would leave a negative weight; one with too much, infinity."""
    live = pushing
    header, body = live.good(0, "mass")
    assert (header.base, header.step) == (-1, 0)
    live.attacker.deliver(0, parcel(same)(header, body))

    def less(header: wire.Header) -> None:
        header.base, header.step = -1, 2

    attack(live, parcel(less, 0.25), "wrong weight", kind="mass")

    def of_doubles(header: wire.Header, body: bytes) -> list[wire.Piece]:
        count = header.tensors[1].shape[0]
        body = struct.pack(f"<{1 + count}d", 0.75, *[1e300] * count)
        for each in header.tensors:
            each.dtype = "float64"
        header.base, header.step, header.bytes, header.digest = -1, 2, len(body), digest(body)
        return pieces(header, body)

    attack(live, of_doubles, "not finite", kind="mass")
    until(lambda: live.attacker.report(1)["round"] >= 0 and live.attacker.report(0)["round"] >= 1)
    weight = live.attacker.report(0)["weight"]
    assert 0 < weight < 4


# The command


def told_no(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    monkeypatch.setattr(sys, "argv", ["gossamer", "peer", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit:
        cli.main()
    said = capsys.readouterr().err
    assert exit.value.code == 2
    assert "Traceback" not in said
    return " ".join(said.split())


@pytest.fixture
def kits(tmp_path: Path) -> list[Path]:
    return make_kits(tmp_path, experiment("dfedavg"))


def test_a_peer_that_cannot_start(
    kits: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import numpy as np

    np.savez(tmp_path / "wide.npz", x=np.zeros((10, 65), "float32"), y=np.zeros(10, "int64"))
    assert "65" in told_no(monkeypatch, capsys, kits[0], "--data", tmp_path / "wide.npz")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", open_kit(kits[0]).member.port))
        taken.listen()
        said = told_no(monkeypatch, capsys, kits[0])
        assert "cannot listen" in said
        assert "another program on that port" in said
    (kits[1] / "key.pem").chmod(0o644)
    assert "others can read this private key" in told_no(monkeypatch, capsys, kits[1])
    (kits[1] / "key.pem").unlink()
    assert "key.pem missing" in told_no(monkeypatch, capsys, kits[1])
    revoke(kits[0].parent, "p2")
    assert "revoked" in told_no(monkeypatch, capsys, kits[2])


def test_revoked_and_of_another_experiment(kits: list[Path], tmp_path: Path) -> None:
    """Peers that have the list refuse who is on it; a peer that all others disagree with ends with the reason."""
    odd = tmp_path / "odd"
    shutil.copytree(kits[2], odd)
    network = (odd / "network.toml").read_text()
    (odd / "network.toml").write_text(network.replace("rounds = 10000", "rounds = 9999"))
    stolen = (kits[EVIL] / "key.pem").read_bytes(), (kits[EVIL] / "certificate.pem").read_bytes()
    attacker_kit = tmp_path / "before"
    shutil.copytree(kits[EVIL], attacker_kit)
    revoke(kits[0].parent, f"p{EVIL}")
    shutil.copytree(attacker_kit, kits[EVIL], dirs_exist_ok=True)  # the attacker's own list is as short as it likes
    live = Live(kits, here=[0, 1])
    try:
        until(lambda: all(peer.now.doing == "waiting" for peer in live.peers.values()))
        assert code_of(live, stolen) == grpc.StatusCode.PERMISSION_DENIED
        assert live.peers[0].service.refused["revoked certificate"] == 1
        with pytest.raises(GossamerError, match="another network file"):
            live.run(make_peers([odd])[0])
        assert not any(task.done() for task in live.tasks)
    finally:
        live.close()


# A process of its own


def memory(process: Process, what: str) -> int:
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith(what)))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_memory_stays_small(kits: list[Path]) -> None:
    """All of it at once, and a thousand idle connections: within twice the idle size, no traceback, rounds go on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if hard != resource.RLIM_INFINITY else 1 << 20
    idle = min(1000, most // 3)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), hard))  # ours; the other process sees to its own
    victim = Process(kits[0])
    few = min(most, 1024)
    resource.prlimit(victim.process.pid, resource.RLIMIT_NOFILE, (few, few))  # as small machines have it
    live = Live(kits, here=[1, 2])
    open_ones: list[socket.socket] = []
    try:
        until(lambda: (kits[0] / "run" / "outbox" / "0.letter").exists())
        live.round()
        usual = memory(victim, "VmRSS")
        member = live.attacker.kit.roster.members[0]
        open_ones = [socket.create_connection((member.host, member.port), SECONDS) for _ in range(idle)]
        live.round()
        for name, (bad, _) in BAD_LETTERS.items():
            if name != "another process":
                with contextlib.suppress(grpc.RpcError):
                    live.attacker.deliver(0, bad(*live.good()))
        bomb = [wire.Piece(chunk=bytes(200_000_000))]
        live.attacker.deliver(0, bomb, compression=grpc.Compression.Gzip)
        live.round()
        assert memory(victim, "VmHWM") < 2 * usual
        refused = live.refused()
        assert {"truncated", "wrong digest", "not finite", "unreadable"} <= refused.keys()
        assert "fault" not in refused
        assert live.inbox() == []
    finally:
        for each in open_ones:
            each.close()
        live.close()
        victim.send(15)
        code, said = victim.end()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert code == 130
    assert "Traceback" not in said
