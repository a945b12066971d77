"""Letters that are wrong in every way there is, and letters that are wrong by chance: refused, and rounds go on."""

from contextlib import suppress
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attacker import Live, pieces
from bad_letters import BAD_LETTERS, attack, digest
from gossamer.peers.wire import wire_pb2 as wire


@pytest.mark.parametrize("name", BAD_LETTERS)
def test_bad_letters(live: Live, name: str) -> None:
    bad, reason = BAD_LETTERS[name]
    live.settle()
    attack(live, bad, reason)
    live.round()


def test_a_letter_that_comes_again(live: Live) -> None:
    """The first one stands as long as it is of use; then it is past."""
    live.settle()
    header, body = live.good()
    header.step += 1  # so that it lies there for a while
    assert live.attacker.deliver(0, pieces(header, body)).verdict == wire.ACCEPTED
    assert live.inbox() == [f"{live.evil}at{header.step}.letter"]
    other = bytes(len(body))
    header.digest = digest(other)
    assert live.attacker.deliver(0, pieces(header, other)).verdict == wire.DOUBLED
    live.settle()
    assert live.at(0) > header.step
    before = live.refused().get("past", 0)
    assert live.attacker.deliver(0, pieces(header, body)).verdict == wire.PAST
    assert live.refused()["past"] == before + 1
    assert live.inbox() == []
    live.round()


def test_nothing_is_unpacked_on_the_way_in(live: Live) -> None:
    def counted() -> int:
        refused = live.refused()
        return refused.get("too long", 0) + refused.get("unreadable", 0)

    live.settle()
    before = counted()
    header, _ = live.good()
    bomb = [wire.Piece(chunk=bytes(5_000_000))]  # 5 kB as it travels
    receipt = live.attacker.deliver(0, [*pieces(header)[:1], *bomb], compression=grpc.Compression.Gzip)
    assert receipt.verdict == wire.REFUSED
    assert counted() == before + 1
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
    with suppress(grpc.RpcError):
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
