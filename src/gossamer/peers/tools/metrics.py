"""A peer's numbers for Prometheus, on request, as plain text over HTTP.

The port has no access control, so it listens on the loopback address unless another is given. It shows no model and no
sample, and accepts no commands.
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import Any

from gossamer.errors import GossamerError
from gossamer.peers.identity.roster import Address

TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Seconds that a caller may take for its request.
STALL = 5.0
#: Bytes of the longest request.
LONGEST = 16 << 10

#: Key in the status, name, type and description of each metric.
NUMBERS = (
    ("round", "gossamer_round", "gauge", "Completed rounds."),
    ("rounds", "gossamer_rounds", "gauge", "Rounds of the whole run."),
    ("finished", "gossamer_finished", "gauge", "1 after the last round."),
    ("loss", "gossamer_loss", "gauge", "Training loss of the last round."),
    ("test_loss", "gossamer_test_loss", "gauge", "Loss on the held-out samples, when last measured."),
    ("accuracy", "gossamer_accuracy", "gauge", "Accuracy on the held-out samples, when last measured."),
    ("weight", "gossamer_push_sum_weight", "gauge", "Push-sum weight."),
    ("sent_bytes", "gossamer_sent_bytes_total", "counter", "Bytes of messages that were sent."),
    ("received_bytes", "gossamer_received_bytes_total", "counter", "Bytes of messages that were accepted."),
    ("process", "gossamer_starts", "gauge", "Number of times that this peer was started."),
)


def exposition(status: dict[str, Any]) -> str:
    """A peer's status in Prometheus' text format, without values that are not known yet."""
    peer = {"peer": status["peer"]}
    lines: list[str] = []
    for key, name, kind, meaning in NUMBERS:
        if status.get(key) is not None:
            lines += _family(name, kind, meaning, [(peer, status[key])])
    refused = [({**peer, "reason": reason}, count) for reason, count in status["refused"].items()]
    lines += _family("gossamer_refused_total", "counter", "Messages that were refused, by reason.", refused)
    used = {name: about for name, about in status["neighbours"].items() if about["sends"]}
    reached = [({**peer, "neighbour": name}, about["reachable"]) for name, about in used.items()]
    lines += _family("gossamer_neighbour_reachable", "gauge", "1 if the last attempt to reach it succeeded.", reached)
    return "\n".join(lines) + "\n"


def _family(name: str, kind: str, meaning: str, samples: list[tuple[dict[str, str], float]]) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"
    for labels, value in samples:
        inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        yield f"{name}{{{inside}}} {float(value)!r}"


def _escaped(text: str) -> str:
    r"""A label's value, escaped for the format.

    >>> print(_escaped('a "word"'))
    a \"word\"
    """
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def as_address(text: str, option: str = "--metrics-port", host: str = "127.0.0.1") -> Address:
    """The address in the text of an option: host:port, or a port on this host.

    >>> [str(as_address(text)) for text in ("9100", "10.0.0.1:9100", "[::1]:9100")]
    ['127.0.0.1:9100', '10.0.0.1:9100', '[::1]:9100']
    """
    usual = host
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) <= 65535:
        raise GossamerError(f"{option}: should be a port or host:port, like 9100 or 10.0.0.1:9100 (got '{text}')")
    return Address(host.strip("[]") or usual, int(port))


async def serve(address: Address, status: Callable[[], dict[str, Any]]) -> asyncio.Server:
    """Serve Prometheus, in the peer's event loop."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(STALL):
                asked = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)
                known = asked[0] == b"GET" and asked[1].partition(b"?")[0] in (b"/", b"/metrics")
                body = exposition(status()).encode() if known else b"only GET /metrics\n"
                head = f"HTTP/1.1 {'200 OK' if known else '404 Not Found'}\r\nContent-Type: {TYPE}\r\n"
                writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
                await writer.drain()
        except (OSError, TimeoutError, IndexError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a malformed request gets no answer
        finally:
            writer.close()

    try:
        return await asyncio.start_server(answer, address.host, address.port, limit=LONGEST)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or error
        raise GossamerError(f"--metrics-port: cannot listen on {address}: {reason}") from None
