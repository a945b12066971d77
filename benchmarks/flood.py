"""How much a peer of the network can slow another one down by calling it as fast as it can.

    python -m benchmarks.flood --seconds 8 --repeats 3

Two peers on loopback train and average in every round. The third one of the network takes no part, but floods the first
one, in one of the ways below, in turns with calm. (A peer that takes part and sends its own letters late can stop
whoever waits for them.) The first peer has a core of its own; all else runs on the others. What is printed is the
number of rounds in a second, calm and flooded: medians over the turns. Exit code 1 if some flood slows the rounds more
than twofold.
"""

import argparse
import asyncio
import multiprocessing
import os
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import grpc

from benchmarks.chaos import Network, Trial
from gossamer.peers.identity.certificates import CERTIFICATE, KEY, server_name
from gossamer.peers.identity.kit import Kit, open_kit
from gossamer.peers.wire import tls
from gossamer.peers.wire import wire_pb2 as wire
from gossamer.peers.wire.links import SERVICE

#: Connections of the flood, and calls at once on each.
CONNECTIONS, AT_ONCE = 64, 8
ROUNDS = 1_000_000
TRIAL = Trial(0, "dfedavg", "full", "reweigh", 3, ())
FLOODER = 2


def on_cores(cores: set[int]) -> None:
    """Keep this process, and those that it starts, on some of the cores."""
    os.sched_setaffinity(0, cores)


# The floods, each a coroutine that makes one call


async def _greet(channel: grpc.aio.Channel, kit: Kit) -> None:
    await channel.unary_unary(f"/{SERVICE}/Greet")(wire.Hello(network=kit.roster.digest).SerializeToString())


async def _report(channel: grpc.aio.Channel, _: Kit) -> None:
    await channel.unary_unary(f"/{SERVICE}/Report")(b"")


async def _deliver(channel: grpc.aio.Channel, *pieces: wire.Piece) -> None:
    async def sent() -> object:
        for piece in pieces:
            yield piece.SerializeToString()

    await channel.stream_unary(f"/{SERVICE}/Deliver")(sent())


async def _bad_header(channel: grpc.aio.Channel, kit: Kit) -> None:
    await _deliver(channel, wire.Piece(header=wire.Header(network=kit.roster.digest)))


async def _no_message(channel: grpc.aio.Channel, _: Kit) -> None:
    await channel.stream_unary(f"/{SERVICE}/Deliver")(iter([b"\xff" * (1 << 19)]))


async def _connect(_: grpc.aio.Channel, kit: Kit) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=kit.authority.decode())
    context.load_cert_chain(kit.folder / CERTIFICATE, kit.folder / KEY)
    context.set_alpn_protocols(["h2"])
    host = kit.roster.members[0]
    _, writer = await asyncio.open_connection(host.host, host.port, ssl=context, server_hostname=server_name(host.name))
    writer.close()


FLOODS: dict[str, Callable[[grpc.aio.Channel, Kit], Awaitable[None]]] = {
    "greetings": _greet, "questions how it is doing": _report, "letters with a wrong header": _bad_header,
    "half a megabyte that is no letter": _no_message, "connections": _connect,
}  # fmt: skip


def flood(folder: Path, kind: str, seconds: float) -> None:
    """Call the first peer for so many seconds."""
    os.nice(10)  # it shall not take the time of the second peer, which runs on the same cores
    kit = open_kit(folder)

    async def run() -> None:
        until = time.monotonic() + seconds
        channels = [tls.channel(kit, kit.roster.members[0]) for _ in range(CONNECTIONS)]

        async def calls(channel: grpc.aio.Channel) -> None:
            while time.monotonic() < until:
                with suppress(grpc.RpcError, OSError):
                    async with asyncio.timeout(until - time.monotonic()):
                        await FLOODS[kind](channel, kit)

        with suppress(TimeoutError):
            await asyncio.gather(*(calls(channel) for channel in channels for _ in range(AT_ONCE)))

    asyncio.run(run())


def measure(network: Network, kind: str | None, seconds: float) -> float:
    """Rounds in a second of the first peer, in calm or under a flood."""
    flooding = None
    if kind is not None:
        flooding = multiprocessing.get_context("spawn").Process(
            target=flood, args=(network.folders[FLOODER], kind, seconds + 30)
        )
        flooding.start()
        time.sleep(4)  # until it has started
    before, began = network.rounds(0), time.monotonic()
    time.sleep(seconds)
    rate = (network.rounds(0) - before) / (time.monotonic() - began)
    if flooding is not None:
        flooding.kill()
        flooding.join()
    return rate


def main() -> None:
    """Measure every flood, in turns with calm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        sys.exit("a flood is measured on two cores at least")
    on_cores(set(others))
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        network = Network(Path(folder), TRIAL, ROUNDS)
        try:
            os.sched_setaffinity(network.processes[0].pid, {first})
            network.processes[FLOODER].kill()
            while network.rounds(0) < 20:
                time.sleep(0.1)
            for kind in FLOODS:
                calm, flooded = [], []
                for _ in range(given.repeats):
                    calm.append(measure(network, None, given.seconds))
                    flooded.append(measure(network, kind, given.seconds))
                slower = statistics.median(calm) / max(statistics.median(flooded), 1e-9)
                worst = max(worst, slower)
                print(
                    f"{kind:35s} {statistics.median(calm):6.1f} rounds/s calm, "
                    f"{statistics.median(flooded):6.1f} flooded: {slower:.2f} times as slow",
                    flush=True,
                )
        finally:
            network.stop()
    sys.exit(1 if worst > 2 else 0)


if __name__ == "__main__":
    main()
