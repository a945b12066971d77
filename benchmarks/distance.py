"""Letters over a long way: links to one neighbour and to several at once, against plain TLS through the same delay.

A proxy on loopback holds back all bytes, in both directions, for half of the round-trip time, and has no more of them
under way than a line of this rate would. Links and plain sockets stay connected and take turns.
"""

import asyncio
import json
import socket
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import peers
from gossamer.peers.data import peer_training
from gossamer.peers.identity.certificates import server_name
from gossamer.peers.identity.kit import open_kit
from gossamer.peers.peer import Peer
from gossamer.peers.store import letters
from gossamer.peers.wire import wire_pb2 as wire
from gossamer.peers.wire.links import Link

#: Seconds there and back, and bytes in a second.
ROUND_TRIP, RATE = 0.1, 125e6
#: Bytes under way in one direction, and those read at once.
UNDER_WAY, PIECE = int(RATE * ROUND_TRIP / 2), 1 << 16
NEIGHBOURS = 3
HEADS = [
    "neighbours at once", "plain TLS: seconds", "link: seconds", "first letter: seconds", "plain TLS: MB/s",
    "link: MB/s", "of plain TLS",
]  # fmt: skip


async def proxy(targets: Sequence[int]) -> None:
    """Stand before each of these ports, as long as somebody is there."""
    servers = []
    for target in targets:

        async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: int = target) -> None:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target)
            await asyncio.gather(hold_back(reader, far_writer), hold_back(far_reader, writer))

        servers.append(await asyncio.start_server(meet, "127.0.0.1", 0, limit=PIECE))
    print(json.dumps({"ports": [server.sockets[0].getsockname()[1] for server in servers]}), flush=True)
    await asyncio.Event().wait()


async def hold_back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass all bytes on, each half a round trip after it came; wait for room where too many are under way."""
    held: deque[tuple[float, bytes]] = deque()
    changed, size, ended = asyncio.Condition(), 0, False

    def has_room() -> bool:
        return size < UNDER_WAY

    async def take() -> None:
        nonlocal size, ended
        while True:
            try:
                piece = await reader.read(PIECE)
            except ConnectionError:
                piece = b""
            async with changed:
                await changed.wait_for(has_room)
                held.append((time.monotonic() + ROUND_TRIP / 2, piece))
                size += len(piece)
                ended = not piece
                changed.notify_all()
            if ended:
                return

    async def give() -> None:
        nonlocal size
        while True:
            async with changed:
                await changed.wait_for(lambda: bool(held))
                due, piece = held.popleft()
            if (early := due - time.monotonic()) > 0:
                await asyncio.sleep(early)
            if not piece:
                break
            try:
                writer.write(piece)
                await writer.drain()
            except ConnectionError:
                pass  # nobody hears it any more
            async with changed:
                size -= len(piece)
                changed.notify_all()
        writer.close()

    await asyncio.gather(take(), give())


@dataclass(frozen=True)
class Distance:
    """Seconds of each turn, over plain sockets and over links, to so many neighbours at once."""

    neighbours: int
    size: int
    plain: list[float]
    linked: list[float]
    #: Of the first letters, for which links connect.
    first: float

    @property
    def share(self) -> float:
        """The speed of links relative to that of plain sockets, by the median over turns that follow each other."""
        return statistics.median(a / b for a, b in zip(self.plain, self.linked, strict=True))

    def cells(self) -> list[str]:
        """One line of the table."""
        seconds = [statistics.median(turns) for turns in (self.plain, self.linked)]
        speeds = [f"{self.neighbours * self.size / peers.MB / each:,.0f}" for each in seconds]
        return [
            str(self.neighbours),
            *(f"{each:.3f}" for each in [*seconds, self.first]),
            *speeds,
            f"{100 * self.share:.0f} %",
        ]


async def measure(model: str, repeats: int, neighbours: int) -> Distance:
    """Send one model after the other to all neighbours, in both ways. The first turn, which connects, is told apart."""
    import torch

    rounds = repeats + 1
    plain, linked = [], []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        members = max(3, neighbours + 1)
        kits = peers.make_kits(Path(folder) / "kits", peers.experiment("dfedavg", members, model, rounds, "full"))
        kit = open_kit(kits[0])
        sender = Peer(kit, peer_training(kit), kits[0] / "run")
        message = {"x": torch.randn_like(sender.client.state["x"])}
        receipts: asyncio.Queue[wire.Receipt] = asyncio.Queue()

        async def on_receipt(_link: Link, _kind: int, _step: int, receipt: wire.Receipt) -> None:
            receipts.put_nowait(receipt)

        lines, links = [], []
        there = [
            stack.enter_context(peers.child("receive", str(kits[n]), str(rounds))) for n in range(1, neighbours + 1)
        ]
        for number, other in enumerate(there, start=1):
            member = kit.roster.members[number]
            between = stack.enter_context(peers.child("proxy", str(other.hear()["port"]), str(member.port)))
            near, far = between.hear()["ports"]
            raw = socket.create_connection(("127.0.0.1", near))
            secured = peers.context(kit, server=False)
            lines.append(secured.wrap_socket(raw, server_hostname=server_name(member.name)))
            around = list(kit.roster.members)
            around[number] = member.model_copy(update={"port": far})
            through = replace(kit, roster=replace(kit.roster, members=tuple(around)))
            links.append(Link(through, number, on_receipt, resend_refused=True))
        running = [asyncio.create_task(link.run()) for link in links]
        for step in range(rounds):
            header = sender_header(sender, step)
            path = await sender.outbox.write_letter(header, message)
            content = b"".join(letters.Letter(path).chunks())

            def send(line: socket.socket, content: bytes = content) -> None:
                line.sendall(content)
                assert line.recv(1) == peers.ANSWER

            for which in ("link", "plain") if step % 2 else ("plain", "link"):
                began = time.perf_counter()
                if which == "plain":
                    await asyncio.gather(*(asyncio.to_thread(send, line) for line in lines))
                    plain.append(time.perf_counter() - began)
                    continue
                for link in links:
                    link.post(wire.LETTER, step, path)
                for _ in links:
                    receipt = await receipts.get()
                    assert receipt.verdict == wire.ACCEPTED, receipt
                linked.append(time.perf_counter() - began)
            path.unlink()
        for task, link, line in zip(running, links, lines, strict=True):
            task.cancel()
            await link.close()
            line.close()
    return Distance(neighbours, len(content), plain[1:], linked[1:], linked[0])


def sender_header(sender: Peer, step: int) -> wire.Header:
    """The header of a letter."""
    progress = sender.progress
    return wire.Header(
        network=progress.network, version=progress.version, process=progress.process, kind=wire.LETTER, step=step,
        losses=sender.losses.to_wire(),
    )  # fmt: skip


def note(found: Sequence[Distance]) -> str:
    """What a reader must know to judge the table."""
    return (
        f"Letters of {found[0].size / peers.MB:.1f} MB over {1000 * ROUND_TRIP:.0f} ms there and back and "
        f"{RATE / peers.MB:.0f} MB/s to each neighbour, by a proxy on loopback. The last column is the median over "
        f"{len(found[0].plain)} pairs of turns."
    )
