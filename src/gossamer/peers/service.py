"""The way in: a gRPC server that nothing gets past which is not expected.

Who calls is the name in the certificate. A letter is judged by its header before a byte of it is stored; what is stored
goes to disk, not to memory; what turns out wrong is dropped, counted by its reason, and never stops the peer.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import grpc
from cryptography import x509

from gossamer.errors import GossamerError
from gossamer.peers import tls
from gossamer.peers import wire_pb2 as wire
from gossamer.peers.certificates import CertificateError, identity
from gossamer.peers.kit import Kit
from gossamer.peers.letters import Draft, Hash, Letter
from gossamer.peers.links import SERVICE
from gossamer.peers.mailbox import Mailbox
from gossamer.peers.schema import Refused, Schema

#: Seconds that a caller may pause in the middle of a letter.
STALL = 20.0
#: Calls that are served at once, of each connection and of all.
CALLS_AT_ONCE = 8
HANDSHAKE_MS = 10_000


class Answer(NamedTuple):
    """What a peer makes of a letter, by its header; `verdict` None: let it in."""

    verdict: int | None
    reason: str = ""


class Service:
    """The server of one peer."""

    def __init__(
        self,
        kit: Kit,
        schema: Schema,
        mailbox: Mailbox,
        judge: Callable[[int, wire.Header], Answer],
        hello: Callable[[], wire.Hello],
        greeted: Callable[[int, wire.Hello], None],
        status: Callable[[], str],
        through: Callable[[int], int],
        log: Callable[..., None],
        sync: bool,
    ) -> None:
        self._kit, self._schema, self._mailbox = kit, schema, mailbox
        self._judge, self._hello, self._greeted = judge, hello, greeted
        self._status, self._through, self._log = status, through, log
        self._sync = sync
        self._revoked = {revoked.serial_number for revoked in x509.load_pem_x509_crl(kit.crl)}
        self._numbers = {member.name: number for number, member in enumerate(kit.roster.members)}
        #: Messages that were refused, by reason.
        self.refused: Counter[str] = Counter()
        self.received_bytes = 0
        self._receiving: dict[int, asyncio.Task[Any]] = {}
        self._last_logged: dict[str, float] = {}
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Listen."""
        member = self._kit.roster.members[self._kit.number]
        self._server = grpc.aio.server(
            options=[
                *tls.OPTIONS,
                ("grpc.so_reuseport", 0),
                ("grpc.max_concurrent_streams", CALLS_AT_ONCE),
                ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
                ("grpc.max_metadata_size", 8 << 10),
                ("grpc.absolute_max_metadata_size", 16 << 10),
            ],
        )
        serialize = {"response_serializer": lambda message: message.SerializeToString()}
        handlers = {
            "Greet": grpc.unary_unary_rpc_method_handler(
                self.greet, request_deserializer=wire.Hello.FromString, **serialize
            ),
            "Deliver": grpc.stream_unary_rpc_method_handler(
                self.deliver, request_deserializer=wire.Piece.FromString, **serialize
            ),
            "Report": grpc.unary_unary_rpc_method_handler(
                self.report, request_deserializer=wire.Question.FromString, **serialize
            ),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        try:
            self._server.add_secure_port(member.address, tls.server_credentials(self._kit))
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

    async def greet(self, hello: wire.Hello, context: Any) -> wire.Hello:
        """Say who is here."""
        self._greeted(await self._caller(context), hello)
        return self._hello()

    async def report(self, question: wire.Question, context: Any) -> wire.Status:
        """Say how this peer is doing."""
        await self._caller(context)
        return wire.Status(json=self._status())

    async def deliver(self, pieces: AsyncIterator[wire.Piece], context: Any) -> wire.Receipt:
        """Take a letter in, or say why not."""
        sender = await self._caller(context)
        earlier = self._receiving.get(sender)
        if earlier is not None and not earlier.done():
            earlier.cancel()  # who starts again has given up the line before; it may hang on it for minutes
        task = asyncio.current_task()
        assert task is not None
        self._receiving[sender] = task
        try:
            return await self._take_in(sender, pieces)
        except Refused as refusal:
            self._count(sender, str(refusal))
            return self._receipt(sender, wire.REFUSED, str(refusal))
        except TimeoutError:
            self._count(sender, f"stalled: nothing came for {STALL:.0f} s")
            return self._receipt(sender, wire.REFUSED, "stalled")
        except GossamerError as error:  # the disk is full, say: the sender will try again
            self._log("cannot store", sender=self._name(sender), reason=str(error))
            return self._receipt(sender, wire.EARLY, "cannot be stored just now")
        finally:
            if self._receiving.get(sender) is task:
                del self._receiving[sender]

    async def _take_in(self, sender: int, pieces: AsyncIterator[wire.Piece]) -> wire.Receipt:
        stream = aiter(pieces)
        first = await self._next(stream)
        if first is None or first.WhichOneof("part") != "header":
            raise Refused("no header: a letter starts with one")
        header = first.header
        answer = self._judge(sender, header)
        if answer.verdict is not None:
            if answer.verdict in (wire.PAST, wire.REFUSED):
                self._count(sender, answer.reason)
            return self._receipt(sender, answer.verdict, answer.reason)
        self._schema.check_header(header)
        place = self._mailbox.place(header.kind, sender, header.step)
        hashed, left = Hash(), header.bytes
        with Draft(place, header) as draft:
            while (piece := await self._next(stream)) is not None:
                if piece.WhichOneof("part") != "chunk":
                    raise Refused("a second header in one letter")
                left -= len(piece.chunk)
                if left < 0:
                    raise Refused("too long: more bytes came than were declared")
                hashed.update(piece.chunk)
                draft.add(piece.chunk)
            if left:
                raise Refused(f"truncated: {left} bytes of {header.bytes} did not come")
            if hashed.digest() != header.digest:
                raise Refused("wrong digest: the bytes are not those that were declared")
            # Its values are looked at before anybody finds it, and it is found before it is acknowledged.
            await asyncio.to_thread(self._schema.check_values, Letter(draft.aside))
            draft.keep(self._sync)
        self.received_bytes += header.bytes
        await self._mailbox.arrived(header.kind, sender, header.step)
        return self._receipt(sender, wire.ACCEPTED)

    async def _next(self, stream: AsyncIterator[wire.Piece]) -> wire.Piece | None:
        """The next piece; None at the end."""
        try:
            return await asyncio.wait_for(anext(stream), STALL)
        except StopAsyncIteration:
            return None

    def _receipt(self, sender: int, verdict: int, reason: str = "") -> wire.Receipt:
        round, through = self._hello().round, self._through(sender)
        return wire.Receipt(verdict=verdict, reason=reason, round=round, through=through)  # type: ignore[arg-type]

    async def _caller(self, context: Any) -> int:
        """The number of the peer whose certificate the caller holds."""
        (pem,) = context.auth_context()["x509_pem_cert"]
        try:
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
        self.refused[kind] += 1
        if time.monotonic() - self._last_logged.get(kind, -1.0) >= 1:
            self._last_logged[kind] = time.monotonic()
            self._log("refused", sender=None if sender is None else self._name(sender), reason=reason)

    def _name(self, number: int) -> str:
        return self._kit.roster.members[number].name
