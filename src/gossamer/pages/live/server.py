"""The server of the live page: one page, its scripts, and a stream of events."""

import asyncio
import errno
import ipaddress
import logging
import os
import signal
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Protocol

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from gossamer.errors import GossamerError
from gossamer.pages.live.feed import Bell, Feed, stream
from gossamer.pages.live.guard import Guard

SCRIPTS = (
    "live.js", "live_feed.js", "live_parts.js", "live_runs.js", "live_network.js",
    "numbers.js", "dom.js", "charts.js", "clients.js", "uplot/uPlot.iife.min.js",
)  # fmt: skip
STYLES = ("style.css", "live.css", "uplot/uPlot.min.css")
#: The page and all that it loads, by address; nothing else is served, whatever an address says.
ASSETS = {
    "": ("live.html", "text/html"),
    **{f"scripts/{name}": (name, "text/javascript") for name in SCRIPTS},
    **{f"scripts/{name}": (name, "text/css") for name in STYLES},
    "scripts/icon.svg": ("icon.svg", "image/svg+xml"),
}
#: The most streams at once; a tab that is not looked at closes its own.
STREAMS = 500
#: Seconds between two looks, however many tabs are opened.
AT_LEAST = 0.2
#: Seconds that open connections have to end.
TO_END = 2


class Source(Protocol):
    """Where news comes from."""

    always: bool
    #: Whether there are several things of which a tab shows one.
    shows: bool

    @property
    def every(self) -> float:
        """Seconds until the next look."""

    def feed(self, shown: str | None) -> Feed:
        """The feed of all, or of one thing that is shown."""

    async def look(self, shown: Set[str]) -> None:
        """Read what is new."""

    async def close(self) -> None:
        """Close what is open."""


@dataclass(frozen=True)
class Address:
    """Where the page is served, and to whom."""

    host: str
    port: int
    token: str | None
    password: str | None
    certificate: Path | None = None
    key: Path | None = None

    @property
    def url(self) -> str:
        """What to open in a browser."""
        shown = f"[{self.host}]" if ":" in self.host else self.host
        scheme = "https" if self.certificate is not None else "http"
        return f"{scheme}://{shown}:{self.port}/" + (f"{self.token}/" if self.token else "")


class Live:
    """The page of one source: a reader for all tabs, which rests while nobody looks."""

    def __init__(self, source: Source) -> None:
        self.source, self.bell = source, Bell()
        self._shown: Counter[str] = Counter()
        self._streams = 0
        self._wanted, self._asked = asyncio.Event(), asyncio.Event()
        self.app = Starlette(routes=[
            Route("/events", self._events),
            Route("/{path:path}", self._asset),
        ])  # fmt: skip

    async def read(self) -> None:
        """Look again and again, as long as somebody wants to know."""
        while True:
            if not self.source.always:
                await self._wanted.wait()
            await self.source.look({name for name, tabs in self._shown.items() if tabs})
            self.bell.ring()
            self._asked.clear()
            await asyncio.sleep(min(AT_LEAST, self.source.every))
            with suppress(TimeoutError):  # a tab that has just been opened need not wait for its turn
                async with asyncio.timeout(max(0.0, self.source.every - AT_LEAST)):
                    await self._asked.wait()

    async def _asset(self, request: Request) -> Response:
        found = ASSETS.get(request.path_params["path"])
        if found is None:
            return PlainTextResponse("404: there is nothing here\n", 404)
        return Response(asset(found[0]), media_type=f"{found[1]}; charset=utf-8")

    async def _events(self, request: Request) -> Response:
        if self._streams >= STREAMS:
            return PlainTextResponse(f"503: {STREAMS} tabs are open already; close some\n", 503)
        shown = request.query_params.get("show") if self.source.shows else None
        return StreamingResponse(self._stream(shown), media_type="text/event-stream")

    async def _stream(self, shown: str | None) -> AsyncIterator[bytes]:
        self._streams += 1
        if shown is not None:
            self._shown[shown] += 1
        self._wanted.set()
        self._asked.set()
        try:
            names = [None] if shown is None else [None, shown]
            async for event in stream([partial(self.source.feed, name) for name in names], self.bell):
                yield event
        finally:
            self._streams -= 1
            if shown is not None:
                self._shown[shown] -= 1
            if not self._streams:
                self._wanted.clear()


def asset(name: str) -> bytes:
    """A file of the page."""
    return files("gossamer.pages").joinpath("scripts").joinpath(name).read_bytes()


class Server(uvicorn.Server):
    """Uvicorn without its own way of dying: Ctrl-C ends this command as it ends all others."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to `serve`."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; 0 takes a free port."""
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind(place)
            found.listen(128)
        except OSError:
            found.close()
            raise
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise GossamerError(
                f"--port {port}: is in use on {host}, maybe by another 'gossamer live'. Take another one; --port 0 "
                "takes any that is free."
            ) from None
        if isinstance(error, socket.gaierror):
            raise GossamerError(f"--host {host}: is no address of this machine: {error.strerror}") from None
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise GossamerError(f"cannot listen on {host}, port {port}: {reason}") from None
    return found


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("10.0.0.1")
    (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_certificate(certificate: Path, key: Path) -> None:
    """Refuse a certificate or key that cannot be used."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        wrong = not isinstance(error, OSError) or isinstance(error, ssl.SSLError)
        what = "not a PEM certificate and its key" if wrong else os.strerror(getattr(error, "errno", 0) or 0)
        raise GossamerError(
            f"--certificate {certificate}, --key {key}: cannot be used: {what}. "
            "Both are PEM files, the key without a password."
        ) from None


async def serve(source: Source, address: Address, on: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM."""
    live = Live(source)
    config = uvicorn.Config(
        Guard(live.app, token=address.token, password=address.password),
        log_config=None, access_log=False, log_level=logging.CRITICAL, lifespan="off", ws="none", http="h11",
        loop="asyncio", server_header=False, date_header=False, proxy_headers=False, limit_concurrency=2 * STREAMS,
        timeout_graceful_shutdown=TO_END, ssl_certfile=address.certificate, ssl_keyfile=address.key,
    )  # fmt: skip
    server, loop = Server(config), asyncio.get_running_loop()

    def stop() -> None:
        server.should_exit = True
        live.bell.close()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    reader = asyncio.create_task(live.read())
    reader.add_done_callback(lambda _: stop())
    try:
        serving = asyncio.create_task(server.serve(sockets=[on]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        ready()
        await serving
    finally:
        reader.cancel()
        await source.close()
    if reader.done() and not reader.cancelled():
        reader.result()
