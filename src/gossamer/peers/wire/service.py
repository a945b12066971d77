"""The way in: a gRPC server that nothing gets past which is not expected.

Who calls is the name in the certificate. A letter is judged by its header before a byte of it is stored; what is stored
goes to disk, not to memory; what turns out wrong is dropped, counted by its reason, and never stops the peer.
"""

import asyncio
import json
import resource
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import suppress
from hashlib import sha256
from typing import Any, Protocol

import grpc
from cryptography import x509

from gossamer.errors import GossamerError
from gossamer.peers.edges import Edges
from gossamer.peers.identity.certificates import CertificateError, identity
from gossamer.peers.identity.kit import Kit
from gossamer.peers.identity.revoked import Revoked
from gossamer.peers.losses import Losses
from gossamer.peers.neighbours import Neighbours
from gossamer.peers.report import Report
from gossamer.peers.standing import Standing
from gossamer.peers.store.letters import CHUNK, Draft, Letter
from gossamer.peers.store.mailbox import Mailbox
from gossamer.peers.wire import tls
from gossamer.peers.wire import wire_pb2 as wire
from gossamer.peers.wire.door import Door
from gossamer.peers.wire.links import SERVICE, Unreadable, read
from gossamer.peers.wire.schema import Refused, Schema

#: Seconds that a caller may pause in the middle of a letter.
STALL = 20.0
#: Calls that are served at once, of each connection.
CALLS_AT_ONCE = 8
#: Seconds that a caller may take to show its certificate, and to be without a call.
HANDSHAKE, IDLE = 10.0, 300.0
#: Connections whose first call is remembered.
CALLERS = 10_000
#: Bytes of a message around a piece of a letter.
AROUND = 64
#: Characters of a reason that are written down: some of it may come from others.
LONGEST = 300


class Overtaken(Exception):
    """A letter whose sender has begun another one."""


class Host(Protocol):
    """The peer that is served."""

    kit: Kit
    schema: Schema
    mailbox: Mailbox
    edges: Edges
    losses: Losses
    door: Door
    now: Standing
    neighbours: Neighbours
    report: Report

    def status(self) -> dict[str, Any]:
        """How it is doing."""


class Service:
    """The server of one peer."""

    def __init__(self, host: Host) -> None:
        self._host, self._kit, self._schema, self._mailbox = host, host.kit, host.schema, host.mailbox
        self._log = host.report.log
        self._revoked = Revoked(host.kit, self._log)
        self._numbers = {member.name: number for number, member in enumerate(host.kit.roster.members)}
        self._refused: Counter[str] = Counter()
        self._knocks: deque[float] = deque()
        self._callers: set[str] = set()
        self.received_bytes = 0
        self._receiving: dict[int, asyncio.Future[None]] = {}
        self._last_logged: dict[str, float] = {}
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Listen."""
        member = self._kit.roster.members[self._kit.number]
        self._server = grpc.aio.server(
            options=[
                *tls.OPTIONS,
                ("grpc.so_reuseport", 0),
                ("grpc.max_allowed_incoming_connections", _connections()),
                ("grpc.max_concurrent_streams", CALLS_AT_ONCE),
                ("grpc.server_handshake_timeout_ms", int(1000 * HANDSHAKE)),
                ("grpc.max_connection_idle_ms", int(1000 * IDLE)),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
                ("grpc.max_metadata_size", 8 << 10),
                ("grpc.absolute_max_metadata_size", 16 << 10),
            ],
        )
        # Requests are read by the handlers: what cannot be read is theirs to count.
        serialize = {"response_serializer": lambda message: message.SerializeToString()}
        handlers = {
            "Greet": grpc.unary_unary_rpc_method_handler(self.greet, **serialize),
            "Deliver": grpc.stream_unary_rpc_method_handler(self.deliver, **serialize),
            "Report": grpc.unary_unary_rpc_method_handler(self.report, **serialize),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        try:
            self._server.add_secure_port(member.address, tls.server_credentials(self._kit, self._knocked))
        except RuntimeError as error:
            raise GossamerError(
                f"peers.{member.name}: cannot listen on {member.address}. Is another program on that port (or "
                "another process of this peer), or is the address not one of this machine?"
            ) from error
        await self._server.start()

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            await self._server.stop(0.5)

    @property
    def refused(self) -> dict[str, int]:
        """What was refused, how often, by reason."""
        while self._knocks and self._knocks[0] < time.monotonic() - HANDSHAKE:
            self._knocks.popleft()
            self._count(None, "no call: connected without a valid certificate, without TLS, or to say nothing")
        return dict(self._refused)

    async def greet(self, request: bytes, context: Any) -> wire.Hello:
        """Say who is here."""
        sender = await self._caller(context)
        try:
            self._host.neighbours.greeted(sender, read(wire.Hello, request))
        except Unreadable as refusal:
            self._count(sender, str(refusal))
        return self._host.now.hello()

    async def report(self, request: bytes, context: Any) -> wire.Status:
        """Say how this peer is doing, whatever the question."""
        await self._caller(context)
        return wire.Status(json=json.dumps(self._host.status()))

    async def deliver(self, pieces: AsyncIterator[bytes], context: Any) -> wire.Receipt:
        """Take a letter in, or say why not."""
        sender = await self._caller(context)
        if sender == self._kit.number:
            return self._refuse(sender, "another process speaks for this peer")
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            return await self._take_in(sender, pieces, over)
        except Overtaken:  # answered all the same: a call without an answer is waited for
            self._count(sender, "overtaken: the same peer has begun another letter")
            return self._receipt(sender, wire.EARLY, "overtaken")
        except asyncio.CancelledError:  # the line is cut, or the library refuses a message for its size
            self._count(sender, "broken off: the call ended in the middle of a letter")
            raise
        except (Refused, Unreadable) as refusal:
            return self._refuse(sender, str(refusal))
        except TimeoutError:
            return self._refuse(sender, f"stalled: nothing came for {STALL:g} s")
        except GossamerError as error:  # the disk is full, say: the sender will try again
            with suppress(GossamerError):
                self._log("cannot store", sender=self._name(sender), reason=str(error))
            return self._receipt(sender, wire.EARLY, "cannot be stored just now")
        except Exception as error:  # a fault of ours: one letter is lost by it, not the peer
            return self._refuse(sender, f"fault: {type(error).__name__}: {error}")
        finally:
            if self._receiving.get(sender) is over:
                del self._receiving[sender]

    async def _take_in(self, sender: int, pieces: AsyncIterator[bytes], over: asyncio.Future[None]) -> wire.Receipt:
        stream = aiter(pieces)
        first = await self._next(stream, self._schema.largest_header, over)
        if first is None or first.WhichOneof("part") != "header":
            raise Refused("no header: a letter starts with one")
        header = first.header
        answer = self._host.door.judge(sender, header)
        if answer.verdict is not None:
            if answer.verdict != wire.DOUBLED:
                self._count(sender, answer.reason)
            return self._receipt(sender, answer.verdict, answer.reason)
        self._schema.check_header(header)
        # A sender has one letter under way. Who starts again has given up the one before; it may hang for minutes.
        earlier = self._receiving.get(sender)
        if earlier is not None and not earlier.done():
            earlier.set_result(None)
        self._receiving[sender] = over
        held = self._host.edges.held(sender) if header.kind == wire.MASS else None
        if held is not None:
            self._schema.check_base(header, held)
        place = self._mailbox.place(header.kind, sender, header.step)
        hashed, left = sha256(), header.bytes
        with Draft(place, header) as draft:
            while (piece := await self._next(stream, min(CHUNK, left) + AROUND, over)) is not None:
                if piece.WhichOneof("part") != "chunk":
                    raise Refused("a second header in one letter")
                chunk = piece.chunk  # a copy, each time it is asked for
                due, came = min(CHUNK, left), len(chunk)
                if came > due or not due:
                    raise Refused(f"too long: a piece of {came} bytes where {due} were due")
                if came < due:  # else a letter could come in endless small pieces, or empty ones
                    raise Refused(f"truncated: a piece of {came} bytes where {due} were due")
                left -= came
                hashed.update(chunk)
                draft.add(chunk)
            if left:
                raise Refused(f"truncated: {left} bytes of {header.bytes} did not come")
            if hashed.digest() != header.digest:
                raise Refused("wrong digest: the bytes are not those that were declared")
            # Its values are looked at before anybody finds it, and it is found before it is acknowledged.
            await asyncio.to_thread(self._schema.check_values, Letter(draft.aside), held)
            if over.done():
                raise Overtaken
            draft.keep(self._kit.roster.exchange.sync)
        self.received_bytes += header.bytes
        self._host.losses.hear(header.losses)
        await self._mailbox.arrived(header.kind, sender, header.step)
        return self._receipt(sender, wire.ACCEPTED)

    async def _next(self, stream: AsyncIterator[bytes], most: int, over: asyncio.Future[None]) -> wire.Piece | None:
        """The next piece, of so many bytes at most; None at the end."""
        coming = asyncio.ensure_future(anext(stream, None))
        try:
            await asyncio.wait((coming, over), timeout=STALL, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                raise Overtaken if over.done() else TimeoutError
        finally:
            coming.cancel()
        if (request := coming.result()) is None:
            return None
        if len(request) > most:
            raise Refused(f"too long: a message of {len(request)} bytes where at most {most} were due")
        return read(wire.Piece, request)

    def _refuse(self, sender: int, reason: str) -> wire.Receipt:
        self._count(sender, reason)
        return self._receipt(sender, wire.REFUSED, reason)

    def _receipt(self, sender: int, verdict: int, reason: str = "") -> wire.Receipt:
        round, through = self._host.now.done, self._host.edges.has_through(sender)
        return wire.Receipt(verdict=verdict, reason=reason, round=round, through=through)  # type: ignore[arg-type]

    async def _caller(self, context: Any) -> int:
        """The number of the peer whose certificate the caller holds."""
        if (address := context.peer()) not in self._callers:
            if len(self._callers) >= CALLERS:
                self._callers.clear()
            self._callers.add(address)
            with suppress(IndexError):
                self._knocks.pop()
        try:
            (pem,) = context.auth_context()["x509_pem_cert"]
            number = self._numbers[identity(pem)]
            if x509.load_pem_x509_certificate(pem).serial_number in self._revoked:
                raise CertificateError("revoked certificate")
        except (CertificateError, KeyError) as error:
            stranger = "stranger: the certificate names no peer of this network"
            reason = stranger if isinstance(error, KeyError) else str(error)
            self._count(None, reason)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
            raise AssertionError("abort raises") from error
        return number

    def _count(self, sender: int | None, reason: str) -> None:
        """Count a refusal; it is logged too, but one kind of it at most once a second."""
        kind = reason.split(":")[0]
        self._refused[kind] += 1
        if time.monotonic() - self._last_logged.get(kind, -1.0) >= 1:
            self._last_logged[kind] = time.monotonic()
            with suppress(GossamerError):  # a full disk
                self._log("refused", sender=None if sender is None else self._name(sender), reason=reason[:LONGEST])

    def _knocked(self) -> None:
        """Somebody connects; whether it is let in shows when it calls. Comes from a thread of the library's."""
        self._knocks.append(time.monotonic())

    def _name(self, number: int) -> str:
        return self._kit.roster.members[number].name


def _connections() -> int:
    """How many to allow: half of the files that this process may open; the other half is for its own."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (1 << 16 if files == resource.RLIM_INFINITY else min(files, 1 << 16)) // 2
