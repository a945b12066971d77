"""`gossamer network watch`: ask every peer for its status, with one kit, over mutual TLS."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from gossamer.peers.identity.kit import Kit
from gossamer.peers.identity.roster import Member
from gossamer.peers.wire import tls
from gossamer.peers.wire import wire_pb2 as wire
from gossamer.peers.wire.links import NOBODY, SERVICE, describe_failure
from gossamer.peers.wire.probe import probe

#: Seconds that a peer has to answer.
TIMEOUT = 3.0
#: Seconds between two requests.
EVERY = 0.5
#: Seconds between two probes of a peer that cannot be asked: it counts each as a connection without a call.
PROBE_EVERY = 10.0
#: Seconds without any answer after which a network that had answered counts as gone.
GONE_AFTER = 10.0


@dataclass
class PeerView:
    """The known status of one peer, and why it cannot be asked now."""

    member: Member
    status: dict[str, Any] = field(default_factory=dict)
    #: Why it could not be asked; None if it answered.
    problem: str | None = "not asked yet"
    #: Whether it has completed all rounds. A finished peer leaves, so this may be known from others or from before.
    finished: bool = False

    @property
    def name(self) -> str:
        """The peer's name."""
        return self.member.name

    @property
    def neighbours(self) -> dict[str, dict[str, Any]]:
        """Its view of the peers that it exchanges letters with."""
        everybody: dict[str, dict[str, Any]] = self.status.get("neighbours", {})
        return {name: about for name, about in everybody.items() if about["sends"] or about["hears"]}

    @property
    def away(self) -> list[str]:
        """The neighbours that it sends to and cannot reach."""
        return [
            name for name, about in self.neighbours.items()
            if about["sends"] and not about["reachable"] and not about["finished"]
        ]  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        known = {"peer": self.name, "address": self.member.address, "problem": self.problem}
        return {**self.status, **known, "finished": self.finished}


class NetworkWatcher:
    """Asks all peers of a network; created and used in one event loop."""

    def __init__(self, kit: Kit, timeout: float = TIMEOUT) -> None:
        self.seen = [PeerView(member) for member in kit.roster.members]
        self._kit, self._timeout = kit, timeout
        self._channels = [tls.channel(kit, member) for member in kit.roster.members]
        self._calls = [
            channel.unary_unary(
                f"/{SERVICE}/Report",
                request_serializer=wire.Question.SerializeToString,
                response_deserializer=wire.Status.FromString,
            )
            for channel in self._channels
        ]
        self._heard = 0.0
        self._probed: dict[str, tuple[float, str]] = {}

    @property
    def over(self) -> bool:
        """Whether all peers have finished, or none has answered for a while."""
        gone = self._heard > 0 and time.monotonic() - self._heard > GONE_AFTER
        return gone or all(seen.finished for seen in self.seen)

    async def look(self) -> list[PeerView]:
        """Ask every peer once, concurrently."""
        await asyncio.gather(*(self._ask(seen, call) for seen, call in zip(self.seen, self._calls, strict=True)))
        said = [seen.status.get("neighbours", {}) for seen in self.seen if seen.problem is None]
        for seen in self.seen:
            if seen.problem is None:
                seen.finished = bool(seen.status["finished"])
                self._heard = time.monotonic()
            else:  # it may have finished and left since its last answer
                seen.finished = seen.finished or any(about.get(seen.name, {}).get("finished") for about in said)
        return self.seen

    async def close(self) -> None:
        """Close all connections."""
        for channel in self._channels:
            await channel.close(None)

    async def _ask(self, seen: PeerView, call: Any) -> None:
        try:
            answer: wire.Status = await call(wire.Question(), timeout=self._timeout)
            seen.status, seen.problem = json.loads(answer.json), None
        except grpc.aio.AioRpcError as error:
            seen.problem = await self._why(seen.member, error)

    async def _why(self, member: Member, error: grpc.aio.AioRpcError) -> str:
        """Why a call failed, or why no call is possible."""
        if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"no answer within {self._timeout:g} s"
        words = describe_failure(error)
        if error.code() != grpc.StatusCode.UNAVAILABLE or words == NOBODY:
            return words
        last, reason = self._probed.get(member.name, (-PROBE_EVERY, ""))
        if time.monotonic() - last >= PROBE_EVERY:
            found = await asyncio.to_thread(probe, self._kit, member, self._timeout)
            reason = found or "has just started or ended"
            self._probed[member.name] = time.monotonic(), reason
        return reason


async def snapshot(kit: Kit) -> list[PeerView]:
    """Ask every peer of a kit's network once."""
    watcher = NetworkWatcher(kit)
    try:
        return await watcher.look()
    finally:
        await watcher.close()


async def follow(kit: Kit, show: Callable[[list[PeerView]], None]) -> None:
    """Show the network of a kit repeatedly until it is over."""
    watcher = NetworkWatcher(kit)
    try:
        while not watcher.over:
            show(await watcher.look())
            await asyncio.sleep(EVERY)
    finally:
        await watcher.close()
