"""The line of letters to one neighbour."""

import asyncio
from collections.abc import AsyncIterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from attacker import experiment
from gossamer import Experiment
from gossamer.peers.identity.kit import open_kit
from gossamer.peers.store import letters
from gossamer.peers.wire import links, tls
from gossamer.peers.wire import wire_pb2 as wire
from gossamer.peers.wire.service import Service
from networks import SECONDS, make_kits, make_peers, run_together

#: Letters that are given up; in a few of a hundred, at the worst moment.
TRIES = 300


class Impatient(links.Link):
    """It waits for a receipt a little longer each time, and in the end for as long as it takes."""

    patiences = chain((2e-4 * (n % 97) for n in range(TRIES)), repeat(float(SECONDS)))

    async def _deliver_once(self, path: Path) -> wire.Receipt:
        self._patience = next(self.patiences)
        return await super()._deliver_once(path)


def test_time_that_is_over_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was under way just then (a handshake, a piece, the last one): the letter is sent again, and arrives."""
    monkeypatch.setattr(links, "FIRST_RETRY", 0.0)
    monkeypatch.setattr(links, "LAST_RETRY", 0.0)
    monkeypatch.setattr(links, "SLOWEST", float("inf"))
    described = Experiment(method="dfedavg", clients=2, graph="full", dataset="digits", model="softmax")
    mine, theirs = map(open_kit, make_kits(tmp_path, described))
    letters.write(tmp_path / "letter", wire.Header(kind=wire.LETTER), {"x": torch.zeros(3 * letters.CHUNK // 4)})
    asked = 0

    async def deliver(stream: AsyncIterator[bytes], _context: Any) -> bytes:
        nonlocal asked
        asked += 1
        for _ in range(asked % 6):
            await anext(stream, None)
        if link.failures < TRIES:
            await asyncio.sleep(0.01 if asked % 2 else SECONDS)
            return b"\xff"  # not understood: as if it had not come
        return wire.Receipt(verdict=wire.ACCEPTED).SerializeToString()

    async def sent() -> None:
        nonlocal link
        arrived = asyncio.Event()

        async def on_receipt(*_about: Any) -> None:
            arrived.set()

        link = Impatient(mine, 1, on_receipt, resend_refused=True)
        server = grpc.aio.server(options=tls.OPTIONS)
        handlers = {"Deliver": grpc.stream_unary_rpc_method_handler(deliver)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(links.SERVICE, handlers),))
        server.add_secure_port(theirs.member.address, tls.server_credentials(theirs, lambda: None))
        await server.start()
        link.post(wire.LETTER, 0, tmp_path / "letter")
        running = asyncio.create_task(link.run())
        waiting = asyncio.create_task(arrived.wait())
        await asyncio.wait((running, waiting), timeout=SECONDS, return_when=asyncio.FIRST_COMPLETED)
        assert not running.done()
        assert arrived.is_set()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):  # this time it is meant
            await running
        await link.close()
        await server.stop(None)

    link: Impatient
    asyncio.run(sent())
    assert link.failures == TRIES


def test_a_letter_may_take_longer_than_the_patience_on_a_slow_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be begun anew again and again otherwise, and never arrive."""
    monkeypatch.setattr(links, "SLOWEST", 1 << 10)
    receive_body = Service._receive_body

    async def slow(self: Service, *given: Any) -> None:
        await asyncio.sleep(0.4)
        await receive_body(self, *given)

    monkeypatch.setattr(Service, "_receive_body", slow)
    kits = make_kits(tmp_path, experiment("dfedavg", clients=2).but(rounds=1), patience=0.1)
    peers = make_peers(kits)
    run_together(peers)
    assert not any(peer.service.refused for peer in peers)
