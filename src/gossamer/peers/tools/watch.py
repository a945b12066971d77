"""`gossamer network watch`: every peer asked how it is doing, with one kit, over the peers' own mutual TLS."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from gossamer.peers.identity.kit import Kit
from gossamer.peers.identity.roster import Member
from gossamer.peers.tools.check import probe
from gossamer.peers.wire import tls
from gossamer.peers.wire import wire_pb2 as wire
from gossamer.peers.wire.links import NOBODY, SERVICE, describe_failure

#: Seconds that a peer has for its answer.
PATIENCE = 3.0
#: Seconds between two looks.
EVERY = 0.5
#: Seconds between two tries to find out why a peer cannot be asked: it takes each for a caller that says nothing.
PROBE_EVERY = 10.0
#: Seconds after which a network that was there, and of which nobody answers any more, counts as gone.
GONE_AFTER = 10.0


@dataclass
class Seen:
    """What is known of one peer: the last that it said, and why it says nothing now."""

    member: Member
    status: dict[str, Any] = field(default_factory=dict)
    #: Why it could not be asked; None: it answered.
    problem: str | None = "not asked yet"
    #: It has done all its rounds. It leaves then, so that it is told by others, or known from before.
    finished: bool = False

    @property
    def name(self) -> str:
        """The peer's name."""
        return self.member.name

    @property
    def neighbours(self) -> dict[str, dict[str, Any]]:
        """What it knows of the peers that it talks to."""
        everybody: dict[str, dict[str, Any]] = self.status.get("neighbours", {})
        return {name: about for name, about in everybody.items() if about["sends"] or about["hears"]}

    @property
    def away(self) -> list[str]:
        """The neighbours that it has something for and cannot reach."""
        return [
            name for name, about in self.neighbours.items()
            if about["sends"] and not about["reachable"] and not about["finished"]
        ]  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        known = {"peer": self.name, "address": self.member.address, "problem": self.problem}
        return {**self.status, **known, "finished": self.finished}


class NetworkWatcher:
    """Asks all peers of a network; made and used in one event loop."""

    def __init__(self, kit: Kit, patience: float = PATIENCE) -> None:
        self.seen = [Seen(member) for member in kit.roster.members]
        self._kit, self._patience = kit, patience
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
        """Whether there is nothing more to see: all have finished, or all that were there have gone."""
        gone = self._heard > 0 and time.monotonic() - self._heard > GONE_AFTER
        return gone or all(seen.finished for seen in self.seen)

    async def look(self) -> list[Seen]:
        """Ask every peer once, all at the same time."""
        await asyncio.gather(*(self._ask(seen, call) for seen, call in zip(self.seen, self._calls, strict=True)))
        said = [seen.status.get("neighbours", {}) for seen in self.seen if seen.problem is None]
        for seen in self.seen:
            if seen.problem is None:
                seen.finished = bool(seen.status["finished"])
                self._heard = time.monotonic()
            else:  # it may have finished and left since it last answered
                seen.finished = seen.finished or any(about.get(seen.name, {}).get("finished") for about in said)
        return self.seen

    async def close(self) -> None:
        """Hang up."""
        for channel in self._channels:
            await channel.close(None)

    async def _ask(self, seen: Seen, call: Any) -> None:
        try:
            answer: wire.Status = await call(wire.Question(), timeout=self._patience)
            seen.status, seen.problem = json.loads(answer.json), None
        except grpc.aio.AioRpcError as error:
            seen.problem = await self._why(seen.member, error)

    async def _why(self, member: Member, error: grpc.aio.AioRpcError) -> str:
        """The reason in words: of the call itself, or of what is in the way of any call."""
        if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"no answer within {self._patience:g} s"
        words = describe_failure(error)
        if error.code() != grpc.StatusCode.UNAVAILABLE or words == NOBODY:
            return words
        last, reason = self._probed.get(member.name, (-PROBE_EVERY, ""))
        if time.monotonic() - last >= PROBE_EVERY:
            found = await asyncio.to_thread(probe, self._kit, member, self._patience)
            reason = found or "has just come or gone"
            self._probed[member.name] = time.monotonic(), reason
        return reason


async def snapshot(kit: Kit) -> list[Seen]:
    """Every peer of a kit's network, asked once."""
    watcher = NetworkWatcher(kit)
    try:
        return await watcher.look()
    finally:
        await watcher.close()


async def follow(kit: Kit, show: Callable[[list[Seen]], None]) -> None:
    """Show the network of a kit, again and again, until there is nothing more to see."""
    watcher = NetworkWatcher(kit)
    try:
        while not watcher.over:
            show(await watcher.look())
            await asyncio.sleep(EVERY)
    finally:
        await watcher.close()
