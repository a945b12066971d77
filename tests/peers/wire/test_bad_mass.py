"""Mass that is wrong: a peer that took it would count some of it twice, or divide by nothing."""

import math
import struct
from collections.abc import Callable, Iterator

import pytest

from attacker import Live, experiment, pieces
from bad_letters import Bad, attack, digest
from gossamer.peers.wire import wire_pb2 as wire
from networks import make_kits


@pytest.fixture(scope="module")
def pushing(tmp_path_factory: pytest.TempPathFactory, errors: list[str]) -> Iterator[Live]:
    with Live(make_kits(tmp_path_factory.mktemp("mass"), experiment("sgp"))) as network:
        yield network
    assert not errors


def parcel(change: Callable[[wire.Header], None], value: float = 0.5) -> Bad:
    """A parcel whose first four bytes, the weight, are of this value (tensors lie in the order of their names)."""

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
    "more weight than all peers have": (parcel(same, 3.1), "wrong weight"),
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
    live.until(lambda: live.attacker.report(1)["round"] >= 0 and live.attacker.report(0)["round"] >= 1)
    weight = live.attacker.report(0)["weight"]
    assert 0 < weight < 4
