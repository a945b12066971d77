"""The gRPC server of a peer, which stores the letters that are admitted.

The caller's identity is the name in its certificate. A letter is checked by its header before a byte is stored, and is
stored on disk, not in memory. A letter that turns out wrong is dropped and counted by its reason; it never stops the
peer.
"""

import asyncio
import json
import resource
import socket
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from hashlib import sha256
from typing import Any

import grpc
from cryptography import x509

from gossamer.errors import GossamerError
from gossamer.peers.identity.certificates import CertificateError, identity
from gossamer.peers.identity.kit import Kit
from gossamer.peers.identity.renewed import RenewedKit
from gossamer.peers.identity.revoked import Revoked
from gossamer.peers.identity.roster import Address, Member
from gossamer.peers.store.letters import CHUNK, Draft, Letter
from gossamer.peers.store.mailbox import Mailbox
from gossamer.peers.wire import tls
from gossamer.peers.wire import wire_pb2 as wire
from gossamer.peers.wire.admission import Admission, NotAdmitted
from gossamer.peers.wire.links import SERVICE, Unreadable, read

#: Seconds that a caller may pause in the middle of a letter.
STALL = 20.0
#: Concurrent calls of one connection.
CALLS_AT_ONCE = 8
#: Calls of one peer in a second, and at once after a pause, besides letters that are accepted. Honest peers make a few.
#: Fifty take less than a tenth of a processor.
CALLS_A_SECOND, AT_ONCE = 50, 100
#: Bytes of letters in a second that one peer may send in vain.
WASTED_BYTES_A_SECOND = 32 << 20
#: Seconds that a call of a peer with too many of them waits to be answered, or else to be refused.
LONGEST_WAIT, REFUSED_AFTER = 2.0, 20.0
#: Seconds until a caller must have shown its certificate, and that a connection may stay without a call.
HANDSHAKE, IDLE = 10.0, 300.0
#: Connections whose first call is remembered.
CALLERS = 10_000
#: Bytes of a message around a piece of a letter.
AROUND = 64
#: Characters of a reason that are logged: some of it may come from others.
LONGEST = 300


class Superseded(Exception):
    """A letter whose sender has started another one."""


class CallLimit:
    """Spreads the calls of one peer over time, so that none can take the time of this one by calling."""

    def __init__(self) -> None:
        self._next: dict[int, float] = {}  # when the next call of each peer is due

    def wait(self, sender: int) -> float:
        """Seconds that a call has to wait. A call that has to wait too long is not counted."""
        now = time.monotonic()
        due = max(self._next.get(sender, 0.0), now - AT_ONCE / CALLS_A_SECOND)
        if due - now <= LONGEST_WAIT:
            self._next[sender] = due + 1 / CALLS_A_SECOND
        return due - now

    def refund(self, sender: int) -> None:
        """Do not count a call of a peer: a letter that is accepted is one of those that are waited for."""
        self._next[sender] -= 1 / CALLS_A_SECOND

    def charge(self, sender: int, wasted: int) -> None:
        """Let the next call of a peer wait for the bytes of a letter that was received in vain."""
        now = time.monotonic()
        due = max(self._next.get(sender, 0.0), now) + wasted / WASTED_BYTES_A_SECOND
        self._next[sender] = min(due, now + LONGEST_WAIT)


class Service:
    """The server of one peer.

    `hello` gives the answer to a greeting, `greeted` is called with each caller's greeting, and `status` gives the
    peer's report about itself.
    """

    def __init__(
        self,
        kit: Kit,
        admission: Admission,
        mailbox: Mailbox,
        log: Callable[..., None],
        hello: Callable[[int], wire.Hello],
        greeted: Callable[[int, wire.Hello], None],
        status: Callable[[], dict[str, Any]],
        listen: Address | None = None,
    ) -> None:
        self._kit, self._admission, self._mailbox, self._log = kit, admission, mailbox, log
        self._listen = listen or Address(kit.member.host, kit.member.port)
        self._hello, self._greeted, self._status = hello, greeted, status
        self._revoked = Revoked(kit, log)
        self._renewed = RenewedKit(kit)
        self._limit = CallLimit()
        self._numbers = {name: number for number, name in enumerate(kit.roster.names)}
        self._refused: Counter[str] = Counter()
        self._connected: deque[float] = deque()  # the times of connections that have made no call yet
        self._callers: set[str] = set()
        #: Bytes of all letters that were stored.
        self.received_bytes = 0
        self._receiving: dict[int, asyncio.Future[None]] = {}  # per sender; done: superseded
        self._last_logged: dict[str, float] = {}
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Start listening."""
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
        # Requests are parsed by the handlers, which count those that cannot be parsed.
        serialize = {"response_serializer": lambda message: message.SerializeToString()}
        handlers = {
            "Greet": grpc.unary_unary_rpc_method_handler(self.greet, **serialize),
            "Deliver": grpc.stream_unary_rpc_method_handler(self.deliver, **serialize),
            "Report": grpc.unary_unary_rpc_method_handler(self.report, **serialize),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        try:
            self._server.add_secure_port(str(self._listen), tls.server_credentials(self._kit, self._on_connection))
        except RuntimeError as error:
            raise _cannot_listen(self._kit.member, self._listen) from error
        await self._server.start()

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            await self._server.stop(0.5)

    @property
    def refused(self) -> dict[str, int]:
        """Refusals by reason."""
        while self._connected and self._connected[0] < time.monotonic() - HANDSHAKE:
            self._connected.popleft()
            self._count(None, "no call: connected without a valid certificate, without TLS, or to say nothing")
        return dict(self._refused)

    async def greet(self, request: bytes, context: Any) -> wire.Hello:
        """Answer a greeting."""
        sender = await self._caller(context)
        try:
            self._greeted(sender, read(wire.Hello, request))
        except Unreadable as refusal:
            self._count(sender, str(refusal))
        return self._hello(sender)

    async def report(self, request: bytes, context: Any) -> wire.Status:
        """Report how this peer is doing."""
        await self._caller(context)
        return wire.Status(json=json.dumps(self._status()))

    async def deliver(self, pieces: AsyncIterator[bytes], context: Any) -> wire.Receipt:
        """Store a letter, or answer why not."""
        sender = await self._caller(context)
        if sender == self._kit.number:
            return self._refuse(sender, "another process speaks for this peer")
        superseded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            return await self._receive(sender, pieces, superseded)
        except Superseded:  # answered too: the sender waits for an answer to every call
            self._count(sender, "superseded: the same peer has started another letter")
            return self._admission.receipt(sender, wire.EARLY, "superseded")
        except asyncio.CancelledError:  # the connection broke, or gRPC refused a message for its size
            self._count(sender, "broken off: the call ended in the middle of a letter")
            raise
        except NotAdmitted as refusal:
            if refusal.verdict != wire.DOUBLED:
                self._count(sender, str(refusal))
            return self._admission.receipt(sender, refusal.verdict, str(refusal))
        except Unreadable as refusal:
            return self._refuse(sender, str(refusal))
        except TimeoutError:
            return self._refuse(sender, f"stalled: nothing came for {STALL:g} s")
        except GossamerError as error:  # such as a full disk: the sender will try again
            with suppress(GossamerError):
                self._log("cannot store", sender=self._name(sender), reason=str(error))
            return self._admission.receipt(sender, wire.EARLY, "cannot be stored now")
        except Exception as error:  # a fault of this program costs one letter, not the peer
            return self._refuse(sender, f"fault: {type(error).__name__}: {error}")
        finally:
            if self._receiving.get(sender) is superseded:
                del self._receiving[sender]

    async def _receive(
        self, sender: int, pieces: AsyncIterator[bytes], superseded: asyncio.Future[None]
    ) -> wire.Receipt:
        stream = aiter(pieces)
        first = await self._next(stream, self._admission.largest_header, superseded)
        if first is None or first.WhichOneof("part") != "header":
            raise NotAdmitted("no header: a letter starts with one")
        header = first.header
        last_parcel = self._admission.check_header(sender, header)
        # A sender has one letter under way. One that starts another has given up the one before, which may hang.
        earlier = self._receiving.get(sender)
        if earlier is not None and not earlier.done():
            earlier.set_result(None)
        self._receiving[sender] = superseded
        with Draft(self._mailbox.path(header.kind, sender, header.step), header) as draft:
            try:
                await self._receive_body(stream, header, draft, superseded)
                # Values are checked before the letter can be found, and it is in its place before it is acknowledged.
                await asyncio.to_thread(self._admission.check_values, Letter(draft.aside), last_parcel)
                if superseded.done():
                    raise Superseded
            except BaseException:
                self._limit.charge(sender, header.bytes)
                raise
            draft.keep(self._kit.roster.exchange.sync)
        self.received_bytes += header.bytes
        self._limit.refund(sender)
        await self._admission.stored(sender, header)
        return self._admission.receipt(sender, wire.ACCEPTED)

    async def _receive_body(
        self, stream: AsyncIterator[bytes], header: wire.Header, draft: Draft, superseded: asyncio.Future[None]
    ) -> None:
        """Write the bytes of a letter into its draft."""
        hashed, left = sha256(), header.bytes
        while (piece := await self._next(stream, min(CHUNK, left) + AROUND, superseded)) is not None:
            if piece.WhichOneof("part") != "chunk":
                raise NotAdmitted("a second header in one letter")
            chunk = piece.chunk  # the field is copied on each access
            expected, size = min(CHUNK, left), len(chunk)
            if size > expected or not expected:
                raise NotAdmitted(f"too long: a piece of {size} bytes where {expected} were due")
            if size < expected:  # else a letter could come in endless small pieces, or empty ones
                raise NotAdmitted(f"truncated: a piece of {size} bytes where {expected} were due")
            left -= size
            hashed.update(chunk)
            draft.add(chunk)
        if left:
            raise NotAdmitted(f"truncated: {left} bytes of {header.bytes} did not come")
        if hashed.digest() != header.digest:
            raise NotAdmitted("wrong digest: the bytes are not those that were declared")

    async def _next(
        self, stream: AsyncIterator[bytes], most: int, superseded: asyncio.Future[None]
    ) -> wire.Piece | None:
        """The next piece, of at most so many bytes; None at the end."""
        coming = asyncio.ensure_future(anext(stream, None))
        try:
            await asyncio.wait((coming, superseded), timeout=STALL, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                raise Superseded if superseded.done() else TimeoutError
        finally:
            coming.cancel()
        if (request := coming.result()) is None:
            return None
        if len(request) > most:
            raise NotAdmitted(f"too long: a message of {len(request)} bytes where at most {most} were due")
        return read(wire.Piece, request)

    def _refuse(self, sender: int, reason: str) -> wire.Receipt:
        self._count(sender, reason)
        return self._admission.receipt(sender, wire.REFUSED, reason)

    async def _caller(self, context: Any) -> int:
        """The number of the peer that the caller's certificate names."""
        if (address := context.peer()) not in self._callers:
            if len(self._callers) >= CALLERS:
                self._callers.clear()
            self._callers.add(address)
            with suppress(IndexError):
                self._connected.pop()
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
        if (wait := self._limit.wait(number)) > LONGEST_WAIT:
            self._count(number, f"flood: more than {CALLS_A_SECOND} calls a second")
            await asyncio.sleep(REFUSED_AFTER)  # holds one of the caller's concurrent calls
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "flood")
        if wait > 0:
            await asyncio.sleep(wait)
        return number

    def _count(self, sender: int | None, reason: str) -> None:
        """Count a refusal by its kind, and log it, at most once a second for each kind."""
        kind = reason.split(":")[0]
        self._refused[kind] += 1
        if time.monotonic() - self._last_logged.get(kind, -1.0) >= 1:
            self._last_logged[kind] = time.monotonic()
            with suppress(GossamerError):  # a full disk
                self._log("refused", sender=None if sender is None else self._name(sender), reason=reason[:LONGEST])

    def _on_connection(self) -> Kit | None:
        """Count a connection; its first call shows that TLS admitted it. Called from a thread of the gRPC library."""
        self._connected.append(time.monotonic())
        return self._renewed.kit if self._renewed.reload() else None

    def _name(self, number: int) -> str:
        return self._kit.roster.members[number].name


def check_port(member: Member, listen: Address | None = None) -> None:
    """Raise an error if this machine cannot listen on a peer's address, or on the one that it listens on instead."""
    listen = listen or Address(member.host, member.port)
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind(address)
    except OSError as error:
        raise _cannot_listen(member, listen, error.strerror) from error


def _cannot_listen(member: Member, listen: Address, reason: str | None = None) -> GossamerError:
    return GossamerError(
        f"peers.{member.name}: cannot listen on {listen}{f' ({reason})' if reason else ''}. Is another program on that "
        "port (or another process of this peer), or is the address not one of this machine? Where others reach it by "
        "another address than its own, name its own with --listen."
    )


def _connections() -> int:
    """The connections to allow: half of the files that this process may open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (1 << 16 if files == resource.RLIM_INFINITY else min(files, 1 << 16)) // 2
