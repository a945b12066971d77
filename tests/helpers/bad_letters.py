"""Letters that are wrong, each in one way, and the reason that a peer has to refuse them."""

import hashlib
import math
import pickle
import struct
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import grpc

from attacker import Live, pieces
from gossamer.peers.wire import wire_pb2 as wire

#: What a peer is sent, made of a good letter.
Bad = Callable[[wire.Header, bytes], Iterable[bytes | wire.Piece]]


def digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


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
MANY_TENSORS = b"\x0a\xa0\xc2\x1e" + b"\x32\x00" * 250_000
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
    "very many tensors": (lambda header, body: [MANY_TENSORS], "too long"),
    "very many tensors for a body": (lambda header, body: [wire.Piece(header=header), MANY_TENSORS], "too long"),
    "a name of half a megabyte": (tensor(name="x" * 500_000), "too long"),
    "a header of two megabytes": (tensor(name="x" * 2_000_000), "no header or broken off"),
    "a chunk of two megabytes": (lambda header, body: pieces(header, bytes(2_000_000)), "truncated or broken off"),
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
    with suppress(grpc.RpcError):  # what is too large for the library never gets an answer of ours
        receipt = live.attacker.deliver(0, bad(*live.good(0, kind)))
        assert receipt.verdict in (wire.REFUSED, wire.EARLY), receipt
        assert receipt.reason.startswith(reason), receipt.reason
    live.until(lambda: live.refused() != before)  # counted at once, but for those without an answer
    counted = dict(Counter(live.refused()) - Counter(before))
    assert counted in [{each: 1} for each in reason.split(" or ")], counted
    assert set(live.inbox()) <= set(was_there)
