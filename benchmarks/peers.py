"""What a letter between two peers costs: a ResNet-18 of 45 MB over a real link, against plain TLS sockets.

    python -m benchmarks.peers
    python -m benchmarks.peers --out docs/tables/peers.md
    python -m benchmarks.peers --distance --out docs/tables/distance.md

One process sends, another receives, over loopback, with the same certificates on both sides. The link does all that it
does in a network: it reads the letter from its outbox, and the receiver checks header, digest and every value and has
it on disk before it says so. The plain sockets (Python's `ssl`, TLS 1.3) send the same bytes into a buffer that is
there already, and wait for one byte back. Both stay connected and take turns; a ratio is taken between turns that
follow each other, and the median of them is told.

Then peers run some rounds with the same model, each a process. From the most memory that one held, that of the same run
with a model of almost nothing is taken off.
"""

import argparse
import asyncio
import json
import os
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.contender import PATH, ROOT
from benchmarks.run import measured_by, progress
from gossamer import Experiment
from gossamer.bench.memory import size_of
from gossamer.experiment import prepare
from gossamer.methods import probe
from gossamer.peers.data import peer_training
from gossamer.peers.identity.certificates import server_name
from gossamer.peers.identity.kit import Kit, open_kit, write_kits
from gossamer.peers.identity.roster import Exchange, Member, Roster
from gossamer.peers.message_format import MessageFormat
from gossamer.peers.peer import Peer
from gossamer.peers.store import letters
from gossamer.peers.tools.process import run_peer
from gossamer.peers.wire import wire_pb2 as wire
from gossamer.peers.wire.links import Link
from gossamer.training import Training

#: 11.2 million parameters, on images of 8 × 8: it is the model that is large. And one of almost nothing.
LARGE = "resnet-18"
IDLE = "softmax"
#: Peers of the run whose memory is measured; on a ring each hears from two others.
PEERS, ROUNDS = 3, 3
METHODS = ("dfedavg", "dfedadmm-sam", "sgp")
MB = 1e6
ANSWER = b"!"


def experiment(method: str, peers: int, model: str, rounds: int, graph: str = "ring") -> Experiment:
    """Little work, with a large model or a small one."""
    return Experiment(
        method=method, graph=graph, clients=peers, rounds=rounds, model=model, batch_size=4,
        local_steps=2, dataset={"name": "digits", "train_samples": 8 * peers}, lr=0.01,
        evaluate={"every": 0, "clients": 0, "training": 0},
    )  # fmt: skip


def free_ports(number: int) -> list[int]:
    """Ports that nobody listens on."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def make_kits(folder: Path, described: Experiment) -> list[Path]:
    """A kit for every client."""
    members = tuple(Member(name=f"p{n}", port=port) for n, port in enumerate(free_ports(described.clients)))
    write_kits(Roster(described, members, Exchange()), folder)
    return [folder / member.name for member in members]


# Plain sockets


def context(kit: Kit, server: bool) -> ssl.SSLContext:
    """TLS 1.3 with the certificates of a kit, asked for on both sides."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.load_cert_chain(kit.folder / "certificate.pem", kit.folder / "key.pem")
    made.load_verify_locations(kit.folder / "authority.pem")
    made.verify_mode = ssl.CERT_REQUIRED
    return made


def take_plainly(listener: socket.socket, secured: ssl.SSLContext, size: int) -> None:
    """The receiver: fill a buffer, answer, again and again, until the other end hangs up."""
    room = memoryview(bytearray(size))
    with secured.wrap_socket(listener.accept()[0], server_side=True) as line:
        while True:
            filled = 0
            while filled < size:
                came = line.recv_into(room[filled:])
                if not came:
                    return
                filled += came
            line.sendall(ANSWER)


# The receiver of both, as a process


async def receive(folder: Path, rounds: int) -> None:
    """Take in letters, and whatever comes over plain sockets, for as long as somebody is there."""
    kit = open_kit(folder)
    peer = Peer(kit, peer_training(kit), folder / "run")
    listener = socket.create_server(("127.0.0.1", 0))
    told = listener, context(kit, server=True), peer.format.largest
    threading.Thread(target=take_plainly, args=told, daemon=True).start()
    await peer.service.start()
    print(json.dumps({"port": listener.getsockname()[1]}), flush=True)

    async def forget() -> None:
        for step in range(rounds):  # as a peer does that has mixed it
            await peer.mailbox.wait(lambda step=step: peer.mailbox.has(wire.LETTER, 0, step), None)
            peer.progress.next_step = step + 1
            peer.mailbox.drop(wire.LETTER, peer.progress.next_step)

    forgetting = asyncio.create_task(forget())
    await asyncio.to_thread(sys.stdin.read)  # nothing, until nobody is there any more
    forgetting.cancel()
    await peer.service.stop()


class Child:
    """Another process of this module; it says one line of JSON, and ends with this one at the latest."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peers", *arguments], cwd=ROOT, text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": PATH},
        )  # fmt: skip

    def hear(self) -> dict[str, Any]:
        """The line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args} ended early")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()


@contextmanager
def child(*arguments: str) -> Iterator[Child]:
    """A process that is gone when this is over."""
    there = Child(*arguments)
    try:
        yield there
    finally:
        there.close()


@dataclass(frozen=True)
class Speed:
    """Seconds of each turn: to write the letter, to deliver it, and to send its bytes over plain sockets."""

    size: int
    written: list[float]
    linked: list[float]
    plain: list[float]

    def ratios(self, seconds: list[float]) -> list[float]:
        """How many times longer than over plain sockets, turn by turn."""
        return [a / b for a, b in zip(seconds, self.plain, strict=True)]

    @property
    def ratio(self) -> float:
        """How many times longer the link takes."""
        return statistics.median(self.ratios(self.linked))


async def take_turns(model: str, repeats: int) -> Speed:
    """Send one model after the other, in both ways; the first turn of each, which connects, is not counted."""
    import torch

    rounds = repeats + 1
    written, linked, plain = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        kits = make_kits(Path(folder) / "kits", experiment("dfedavg", PEERS, model, rounds))
        kit = open_kit(kits[0])
        sender = Peer(kit, peer_training(kit), kits[0] / "run")
        message = {"x": torch.randn_like(sender.client.state["x"])}
        receipts: asyncio.Queue[wire.Receipt] = asyncio.Queue()

        async def on_receipt(_link: Link, _kind: int, _step: int, receipt: wire.Receipt) -> None:
            receipts.put_nowait(receipt)

        with child("receive", str(kits[1]), str(rounds)) as there:
            port = there.hear()["port"]
            raw = socket.create_connection(("127.0.0.1", port))
            name = server_name(sender.kit.roster.members[1].name)
            line = context(kit, server=False).wrap_socket(raw, server_hostname=name)
            link = Link(kit, 1, on_receipt, resend_refused=True)
            running = asyncio.create_task(link.run())
            for step in range(rounds):
                header = wire.Header(
                    network=sender.progress.network, version=sender.progress.version, process=sender.progress.process,
                    kind=wire.LETTER, step=step, losses=sender.losses.to_wire(),
                )  # fmt: skip
                began = time.perf_counter()
                path = await sender.outbox.write_letter(header, message)
                written.append(time.perf_counter() - began)
                content = b"".join(letters.Letter(path).chunks())
                for which in ("link", "plain") if step % 2 else ("plain", "link"):
                    began = time.perf_counter()
                    if which == "link":
                        link.post(wire.LETTER, step, path)
                        receipt = await receipts.get()
                        assert receipt.verdict == wire.ACCEPTED, receipt
                        linked.append(time.perf_counter() - began)
                    else:
                        line.sendall(content)
                        assert line.recv(1) == ANSWER
                        plain.append(time.perf_counter() - began)
                path.unlink()
            running.cancel()
            await link.close()
            line.close()
    return Speed(len(content), written[1:], linked[1:], plain[1:])


# Memory


@dataclass(frozen=True)
class Memory:
    """The most that a peer held, with a model of so many bytes and with almost none, and what its method asks for."""

    method: str
    model: int
    #: Kept between rounds; and beside that, carried through local steps and kept for each edge.
    state: int
    working: int
    #: Of each peer, in each run.
    peaks: list[int]
    idle: int

    @property
    def models(self) -> list[float]:
        """Model sizes beyond the idle process and the method's state, of each peer in each run."""
        return [(peak - self.idle - self.state) / self.model for peak in self.peaks]


def most_memory() -> int:
    """The most bytes that this process ever held."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("this system does not tell")


def load_convolutions() -> None:
    """Have the library's code for convolutions in memory, with whatever model: it is no part of what a model takes."""
    from torch import nn, randn

    layers = [nn.Conv2d(1, 32, 3, 1, 1), nn.GroupNorm(32, 32), nn.ReLU(), nn.Conv2d(32, 32, 3, 2, 1)]
    layers += [nn.Conv2d(32, 32, 1, 2), nn.AdaptiveAvgPool2d(1)]
    nn.Sequential(*layers)(randn(4, 1, 8, 8)).sum().backward()


def peaks_of(method: str, model: str) -> list[int]:
    """The most that each peer of a short run held."""
    with tempfile.TemporaryDirectory() as folder:
        kits = make_kits(Path(folder) / "kits", experiment(method, PEERS, model, ROUNDS))
        running = [Child("peer", str(kit)) for kit in kits]
        try:
            return [int(each.hear()["peak"]) for each in running]
        finally:
            for each in running:
                each.close()


def measure_memory(method: str, model: str, runs: int) -> Memory:
    """The same run with a large model, some times, and with almost none."""
    training = prepare(experiment(method, PEERS, model, ROUNDS)).training
    state, working = state_of(training)
    peaks = [peak for _ in range(runs) for peak in peaks_of(method, model)]
    idle = int(statistics.median(peaks_of(method, IDLE)))
    return Memory(method, training.model.initial.nbytes, state, working, peaks, idle)


def state_of(training: Training) -> tuple[int, int]:
    """Bytes that a method keeps between rounds; and those of its local steps and of push-sum's sums for each edge."""
    client = probe(training.method, training.model.initial)
    state, local = client.state, client.local
    weights = training.network.matrix(0)
    edges = int((weights[:, [0]] != 0).sum() + (weights[[0], :] != 0).sum()) - 2  # without those from 0 to 0
    summed = edges * size_of(state[name] for name in MessageFormat(training).pushed)
    return size_of(state.values()), size_of(local.values()) + summed


# The page

HEADS = ["", "seconds", "MB/s", "× plain TLS"]
MEMORY_HEADS = [
    "method", "state: models", "peak beyond idle: models", "beyond state too: models", "from", "to",
    "local steps and edges: models",
]  # fmt: skip


def cells(speed: Speed) -> list[list[str]]:
    """The lines of the table of speeds."""
    rows = []
    for name, seconds in (("plain TLS", speed.plain), ("link", speed.linked), ("writing the letter", speed.written)):
        middle = statistics.median(seconds)
        ratio = statistics.median(speed.ratios(seconds))
        rows.append([name, f"{middle:.3f}", f"{speed.size / MB / middle:,.0f}", f"{ratio:.2f}"])
    return rows


def memory_cells(found: Sequence[Memory]) -> list[list[str]]:
    """The lines of the table of memory."""
    rows = []
    for m in found:
        middle = statistics.median(m.models)
        state = m.state / m.model
        numbers = [state, middle + state, middle, min(m.models), max(m.models), m.working / m.model]
        rows.append([m.method, *(f"{number:.2f}" for number in numbers)])
    return rows


def notes(speed: Speed, command: str) -> list[str]:
    """What a reader must know to judge the tables."""
    ratios = speed.ratios(speed.linked)
    return [
        f"A letter of {speed.size / MB:.1f} MB. The link takes {speed.ratio:.2f} times as long as plain TLS sockets: "
        f"the median of {len(ratios)} pairs of turns, from {min(ratios):.2f} to {max(ratios):.2f}.",
        f"Memory is the most that a peer held in {ROUNDS} rounds, less that of the same run with a model of almost "
        f"nothing: the median of {PEERS} peers in each of some runs, and their range. The state is what the method "
        "keeps between rounds. The last column is part of what is beyond it: what the method carries through its local "
        "steps, and of push-sum one running sum for each edge out and in.",
        measured_by(command),
    ]


def markdown(heads: list[str], rows: list[list[str]]) -> str:
    """A table for a page."""
    lines = [f"| {' | '.join(heads)} |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write down if asked."""
    from benchmarks import distance  # which uses this module

    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description="Letters against plain sockets.")
    parser.add_argument("--repeats", type=int, default=9, help="turns of each way (default: 9)")
    parser.add_argument("--model", default=LARGE, help=f"what is sent (default: {LARGE}, of 45 MB)")
    parser.add_argument("--runs", type=int, default=3, help="runs whose memory is measured (default: 3)")
    parser.add_argument("--methods", default=",".join(METHODS), help="whose memory is measured")
    parser.add_argument("--distance", action="store_true", help="letters over 100 ms there and back, and nothing else")
    parser.add_argument("--out", type=Path, help="also write the tables there, as Markdown")
    given = parser.parse_args(arguments)
    command = " ".join(["python -m benchmarks.peers", *(sys.argv[1:] if arguments is None else arguments)])
    if given.distance:
        found = [asyncio.run(distance.measure(given.model, given.repeats, n)) for n in (1, distance.NEIGHBOURS)]
        tables = [(distance.HEADS, [each.cells() for each in found])]
        lines = [distance.note(found), measured_by(command)]
    else:
        speed = asyncio.run(take_turns(given.model, given.repeats))
        tables = [(HEADS, cells(speed))]
        if methods := [name for name in given.methods.split(",") if name]:
            memories = [measure_memory(name, given.model, given.runs) for name in methods]
            tables.append((MEMORY_HEADS, memory_cells(memories)))
        lines = notes(speed, command)
    console = Console(highlight=False)
    for heads, rows in tables:
        shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
        for index, head in enumerate(heads):
            shown.add_column(head, justify="right" if index else "left")
        for row in rows:
            shown.add_row(*row)
        console.print(shown)
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        pages = [markdown(heads, rows) for heads, rows in tables] + ["\n".join(f"- {line}" for line in lines) + "\n"]
        given.out.write_text("\n".join(pages), encoding="utf-8")
        progress.print(f"written to {given.out}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["receive"]:
        asyncio.run(receive(Path(sys.argv[2]), int(sys.argv[3])))
    elif sys.argv[1:2] == ["proxy"]:
        from benchmarks.distance import proxy

        asyncio.run(proxy([int(port) for port in sys.argv[2:]]))
    elif sys.argv[1:2] == ["peer"]:
        load_convolutions()
        run_peer(Path(sys.argv[2]))
        print(json.dumps({"peak": most_memory()}), flush=True)
    else:
        main()
