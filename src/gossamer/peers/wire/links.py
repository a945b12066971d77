"""The gRPC client of a peer: for each neighbour a queue of letters, each sent until it is acknowledged."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError

from gossamer.peers.identity.kit import Kit
from gossamer.peers.identity.renewed import RenewedKit
from gossamer.peers.identity.revoked import Revoked
from gossamer.peers.identity.roster import Member
from gossamer.peers.store.letters import DamagedFile, Letter
from gossamer.peers.wire import tls
from gossamer.peers.wire import wire_pb2 as wire
from gossamer.peers.wire.faults import Faults
from gossamer.peers.wire.probe import Connection, meet

SERVICE = "gossamer.peers.Peer"
#: Seconds between tries: the first, and the longest.
FIRST_RETRY, LAST_RETRY = 0.05, 2.0
#: Seconds after which the certificate of the other end is compared again with the list of revoked ones.
VERIFIED_FOR = 60.0
#: Bytes in a second of the slowest line: a letter may take the time that this takes, besides the network's patience.
SLOWEST = 1 << 14
#: Seconds that a probe of the other end may take.
PROBE = 2.0
#: Characters of a reason of the other end that are kept.
LONGEST = 300
NOBODY = "nobody listens there"

Message = TypeVar("Message", wire.Hello, wire.Piece, wire.Receipt, wire.Status)
OnReceipt = Callable[["Link", int, int, wire.Receipt], Awaitable[None]]


class InjectedFault(Exception):
    """A request, or the answer to it, was lost on purpose."""


class Unverified(Exception):
    """The other end does not have a valid certificate of its peer, or it is not known whether it has."""


class Unreadable(ValueError):
    """Bytes that are not a message of the expected type."""


def read(kind: type[Message], received: bytes) -> Message:
    """Parse a message."""
    try:
        return kind.FromString(received)  # type: ignore[no-any-return]
    except DecodeError as error:
        raise Unreadable("unreadable: not a message of this protocol") from error


class Link:
    """The queue of letters to one peer. `resend_refused`: a refused letter is sent again, since a peer waits for it."""

    def __init__(
        self, kit: Kit, number: int, on_receipt: OnReceipt, resend_refused: bool, faults: Faults | None = None
    ) -> None:
        self.member: Member = kit.roster.members[number]
        self.number = number
        self.sent_bytes = 0
        self.sent_letters = 0
        self.failures = 0
        self.last_error = ""
        #: Why the peer cannot take the letters that wait, as it says; empty if it takes them.
        self.last_verdict = ""
        self.finished = False
        #: Whether the peer refused the last letter: then it is not worth waiting for its acknowledgements.
        self.refuses = False
        self._renewed, self._revoked = RenewedKit(kit), Revoked(kit, lambda *_, **__: None)
        self._verified: tuple[int, float] | None = None  # by which list of revoked certificates, and when
        self._connect(kit)
        self._on_receipt = on_receipt
        self._faults = faults
        self._patience = kit.roster.exchange.patience
        self._queue: dict[tuple[int, int], Path] = {}  # (kind, step) -> file, in the order of posting
        self._posted = asyncio.Event()
        self._woken = asyncio.Event()
        self._stubborn = resend_refused
        self._down_since: float | None = None

    def _connect(self, kit: Kit) -> None:
        self._channel = tls.channel(kit, self.member)
        # Answers are parsed here and not by gRPC, which prints those that it cannot parse.
        calls = {"request_serializer": lambda message: message.SerializeToString()}
        self._greet = self._channel.unary_unary(f"/{SERVICE}/Greet", **calls)
        self._deliver = self._channel.stream_unary(f"/{SERVICE}/Deliver", **calls)

    async def _check_certificates(self) -> None:
        """Connect anew with a renewed certificate, and make sure that the other end's is not revoked."""
        if self._renewed.reload():
            old = self._channel
            self._connect(self._renewed.kit)
            self._closing = asyncio.create_task(old.close(LAST_RETRY))
        if not len(self._revoked):
            return
        now, number = time.monotonic(), self._revoked.number
        if self._verified is not None and self._verified[0] == number and now - self._verified[1] < VERIFIED_FOR:
            return
        # gRPC checks name, authority and dates, but no list, and does not show the certificate of the other end.
        if (found := await self.probe()).problem is not None:
            raise Unverified(found.problem)
        self._verified = (number, now)

    async def probe(self) -> Connection:
        """Why this peer cannot be reached, in a connection of its own."""
        kit = replace(self._renewed.kit, crl=self._revoked.pem)
        return await asyncio.to_thread(meet, kit, self.member, PROBE)

    @property
    def waiting(self) -> list[tuple[int, int]]:
        """Kind and step of the letters that are not acknowledged yet."""
        return list(self._queue)

    @property
    def reachable(self) -> bool:
        """Whether the last try to reach this peer succeeded."""
        return self._down_since is None

    def down_for(self) -> float:
        """Seconds since it could last be reached."""
        return 0.0 if self._down_since is None else time.monotonic() - self._down_since

    def post(self, kind: int, step: int, path: Path) -> None:
        """Add a letter to the queue. A parcel of mass replaces an older one, which it contains."""
        if kind == wire.MASS:
            for key in [key for key in self._queue if key[0] == kind]:
                del self._queue[key]
        self._queue[kind, step] = path
        self._posted.set()

    def drop(self, before: int) -> None:
        """Remove letters of steps before this one; mass is never removed."""
        for key in [key for key in self._queue if key[0] == wire.LETTER and key[1] < before]:
            del self._queue[key]

    async def run(self) -> None:
        """Send the letters of the queue, for as long as the peer runs."""
        pause = FIRST_RETRY
        while True:
            if not self._queue:
                self._posted.clear()
                await self._posted.wait()
            (kind, step), path = next(iter(self._queue.items()), ((0, 0), Path()))
            if not self._queue:
                continue
            try:
                receipt = await self._send(kind, step, path)
            except (
                grpc.aio.AioRpcError,
                grpc.RpcError,
                InjectedFault,
                TimeoutError,
                DamagedFile,
                Unreadable,
                Unverified,
            ) as error:
                self._failed(error)
                await self._rest(pause)
                pause = min(2 * pause, LAST_RETRY)
                continue
            self._down_since, pause = None, FIRST_RETRY
            self.refuses = receipt.verdict == wire.REFUSED
            self.last_verdict = receipt.reason[:LONGEST] if receipt.verdict in (wire.EARLY, wire.REFUSED) else ""
            if receipt.verdict == wire.EARLY:
                await self._on_receipt(self, kind, step, receipt)
                await asyncio.sleep(4 * FIRST_RETRY)
                continue
            if receipt.verdict == wire.REFUSED and self._stubborn:
                await self._on_receipt(self, kind, step, receipt)
                await self._rest(LAST_RETRY)
                continue
            if self._queue.get((kind, step)) == path:
                del self._queue[kind, step]
            await self._on_receipt(self, kind, step, receipt)

    def wake(self) -> None:
        """Try again at once: the peer has been heard."""
        self._woken.set()

    async def _rest(self, seconds: float) -> None:
        self._woken.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()

    async def greet(self, hello: wire.Hello, seconds: float) -> wire.Hello:
        """Exchange greetings."""
        try:
            await self._check_certificates()
            answer = read(wire.Hello, await self._greet(hello, timeout=seconds))
        except (grpc.aio.AioRpcError, Unreadable, Unverified) as error:
            self._failed(error)
            raise
        self._down_since = None
        self.finished = answer.finished
        return answer

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close(None)

    async def _send(self, kind: int, step: int, path: Path) -> wire.Receipt:
        faults = self._faults
        if faults is not None:
            await asyncio.sleep(faults.draw_delay())
            if faults.loses(self.number, kind, step):
                raise InjectedFault("lost on purpose")
        receipt = await self._deliver_once(path)
        if faults is not None:
            if faults.doubles():
                receipt = await self._deliver_once(path)
            if faults.loses_receipt():
                raise InjectedFault("receipt lost on purpose")
        return receipt

    async def _deliver_once(self, path: Path) -> wire.Receipt:
        letter = Letter(path)
        await self._check_certificates()
        try:
            answer = await self._deliver(self._pieces(letter), timeout=self._patience + letter.header.bytes / SLOWEST)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # gRPC cancels its own call if the deadline passes just after the last piece was sent.
            raise TimeoutError("no answer in time") from None
        receipt = read(wire.Receipt, answer)
        self.sent_bytes += letter.header.bytes
        self.sent_letters += 1
        return receipt

    async def _pieces(self, letter: Letter) -> AsyncIterator[wire.Piece]:
        yield wire.Piece(header=letter.header)
        for chunk in letter.chunks():
            yield wire.Piece(chunk=chunk)

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        self._verified = None
        if not isinstance(error, InjectedFault):
            self._down_since = self._down_since or time.monotonic()
            self.last_error = describe_failure(error)


def describe_failure(error: Any) -> str:
    """A short description of a failed call."""
    with suppress(Exception):
        details = str(error.details())
        if "Connection refused" in details:
            return NOBODY
        return f"{error.code().name.lower().replace('_', ' ')}: {details.splitlines()[0][:200]}"
    return str(error)[:200]
