"""The way out: for each neighbour a line of letters, sent in order, again and again until they are acknowledged."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError

from gossamer.peers.identity.kit import Kit
from gossamer.peers.identity.roster import Member
from gossamer.peers.store.letters import Damaged, Letter
from gossamer.peers.wire import tls
from gossamer.peers.wire import wire_pb2 as wire
from gossamer.peers.wire.weather import Weather

SERVICE = "gossamer.peers.Peer"
#: Seconds between tries: the first, and the longest.
FIRST_RETRY, LAST_RETRY = 0.05, 2.0
NOBODY = "nobody listens there"

Message = TypeVar("Message", wire.Hello, wire.Piece, wire.Receipt, wire.Status)
OnReceipt = Callable[["Link", int, int, wire.Receipt], Awaitable[None]]


class Lost(Exception):
    """A request, or the answer to it, was lost on purpose."""


class Unreadable(ValueError):
    """Bytes that are no message of the expected kind."""


def read(kind: type[Message], received: bytes) -> Message:
    """A message from the wire."""
    try:
        return kind.FromString(received)  # type: ignore[no-any-return]
    except DecodeError as error:
        raise Unreadable("unreadable: not a message of this protocol") from error


class Link:
    """The line to one peer. `stubborn`: a letter that it refuses is offered again, because somebody waits for it."""

    def __init__(
        self, kit: Kit, number: int, on_receipt: OnReceipt, stubborn: bool, weather: Weather | None = None
    ) -> None:
        self.member: Member = kit.roster.members[number]
        self.number = number
        self.sent_bytes = 0
        self.failures = 0
        self.last_error = ""
        self.finished = False
        self.refuses = False
        """Whether it refused the last letter: then nothing is gained by waiting for it to take more."""
        self._channel = tls.channel(kit, self.member)
        # Answers are read here, not by the library: it prints those that it cannot read.
        calls = {"request_serializer": lambda message: message.SerializeToString()}
        self._greet = self._channel.unary_unary(f"/{SERVICE}/Greet", **calls)
        self._deliver = self._channel.stream_unary(f"/{SERVICE}/Deliver", **calls)
        self._on_receipt = on_receipt
        self._weather = weather
        self._patience = kit.roster.exchange.patience
        self._line: dict[tuple[int, int], Path] = {}  # (kind, step) -> letter, in the order of posting
        self._more = asyncio.Event()
        self._awake = asyncio.Event()
        self._stubborn = stubborn
        self._down_since: float | None = None

    @property
    def waiting(self) -> list[tuple[int, int]]:
        """Letters that are not acknowledged yet, by kind and step."""
        return list(self._line)

    @property
    def reachable(self) -> bool:
        """Whether the last try to reach this peer succeeded."""
        return self._down_since is None

    def down_for(self) -> float:
        """Seconds since it could last be reached."""
        return 0.0 if self._down_since is None else time.monotonic() - self._down_since

    def post(self, kind: int, step: int, path: Path) -> None:
        """Put a letter into the line. A newer parcel of mass takes the place of an older one, which it contains."""
        if kind == wire.MASS:
            for key in [key for key in self._line if key[0] == kind]:
                del self._line[key]
        self._line[kind, step] = path
        self._more.set()

    def drop(self, before: int) -> None:
        """Give up letters of steps before this one; mass is never given up."""
        for key in [key for key in self._line if key[0] == wire.LETTER and key[1] < before]:
            del self._line[key]

    async def run(self) -> None:
        """Send what is in the line, for as long as the peer runs."""
        pause = FIRST_RETRY
        while True:
            if not self._line:
                self._more.clear()
                await self._more.wait()
            (kind, step), path = next(iter(self._line.items()), ((0, 0), Path()))
            if not self._line:
                continue
            try:
                receipt = await self._send(kind, step, path)
            except (grpc.aio.AioRpcError, grpc.RpcError, Lost, TimeoutError, Damaged, Unreadable) as error:
                self._failed(error)
                await self._rest(pause)
                pause = min(2 * pause, LAST_RETRY)
                continue
            self._down_since, pause = None, FIRST_RETRY
            self.refuses = receipt.verdict == wire.REFUSED
            if receipt.verdict == wire.EARLY:
                await self._on_receipt(self, kind, step, receipt)
                await asyncio.sleep(4 * FIRST_RETRY)
                continue
            if receipt.verdict == wire.REFUSED and self._stubborn:
                await self._on_receipt(self, kind, step, receipt)
                await self._rest(LAST_RETRY)
                continue
            if self._line.get((kind, step)) == path:
                del self._line[kind, step]
            await self._on_receipt(self, kind, step, receipt)

    def hurry(self) -> None:
        """The peer has been heard: do not rest before the next try."""
        self._awake.set()

    async def _rest(self, seconds: float) -> None:
        self._awake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._awake.wait()

    async def greet(self, hello: wire.Hello, seconds: float) -> wire.Hello:
        """Ask who is there."""
        try:
            answer = read(wire.Hello, await self._greet(hello, timeout=seconds))
        except (grpc.aio.AioRpcError, Unreadable) as error:
            self._failed(error)
            raise
        self._down_since = None
        self.finished = answer.finished
        return answer

    async def close(self) -> None:
        """Hang up."""
        await self._channel.close(None)

    async def _send(self, kind: int, step: int, path: Path) -> wire.Receipt:
        weather = self._weather
        if weather is not None:
            await asyncio.sleep(weather.holds_back())
            if weather.loses(self.number, kind, step):
                raise Lost("lost on purpose")
        receipt = await self._deliver_once(path)
        if weather is not None:
            if weather.doubles():
                receipt = await self._deliver_once(path)
            if weather.loses_receipt():
                raise Lost("receipt lost on purpose")
        return receipt

    async def _deliver_once(self, path: Path) -> wire.Receipt:
        letter = Letter(path)
        try:
            answer = await self._deliver(self._pieces(letter), timeout=self._patience)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # The library cancels its own call when the time is over just as the last piece has left.
            raise TimeoutError("no answer in time") from None
        receipt = read(wire.Receipt, answer)
        self.sent_bytes += letter.header.bytes
        return receipt

    async def _pieces(self, letter: Letter) -> AsyncIterator[wire.Piece]:
        yield wire.Piece(header=letter.header)
        for chunk in letter.chunks():
            yield wire.Piece(chunk=chunk)

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        if not isinstance(error, Lost):
            self._down_since = self._down_since or time.monotonic()
            self.last_error = words_of(error)


def words_of(error: Any) -> str:
    """What went wrong with a call, in a few words."""
    with suppress(Exception):
        details = str(error.details())
        if "Connection refused" in details:
            return NOBODY
        return f"{error.code().name.lower().replace('_', ' ')}: {details.splitlines()[0][:200]}"
    return str(error)[:200]
