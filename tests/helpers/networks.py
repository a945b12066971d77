"""Networks of real peers on loopback: in the test's own process, or as processes that can be killed."""

import asyncio
import json
import signal
import socket
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forked import Forked
from gossamer import Experiment
from gossamer.experiment import prepare
from gossamer.peers.data import peer_training
from gossamer.peers.identity.kit import open_kit, write_kits
from gossamer.peers.identity.roster import Exchange, Member, Roster
from gossamer.peers.peer import Peer
from gossamer.peers.replay import replay
from gossamer.peers.store.journal import with_prefix
from gossamer.peers.wire.faults import Faults
from gossamer.runs.folder import read_lines

SECONDS = 120


def free_ports(number: int) -> list[int]:
    listeners = [socket.socket() for _ in range(number)]
    for listener in listeners:
        listener.bind(("127.0.0.1", 0))
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def make_kits(folder: Path, experiment: Experiment, **exchange: Any) -> list[Path]:
    """Kits for as many peers as the experiment has clients."""
    ports = free_ports(experiment.clients)
    members = tuple(Member(name=f"p{number}", port=port) for number, port in enumerate(ports))
    write_kits(Roster(experiment, members, Exchange(**exchange)), folder / "kits")
    return [folder / "kits" / member.name for member in members]


def make_peers(kits: list[Path], faults: dict[int, Faults] | None = None) -> list[Peer]:
    peers = []
    for number, kit in enumerate(map(open_kit, kits)):
        peers.append(Peer(kit, peer_training(kit), kit.folder / "run", (faults or {}).get(number)))
    return peers


def run_together(peers: list[Peer]) -> Tensor:
    """All peers to their end, in this process, over real sockets; gives their vectors."""

    async def together() -> None:
        await asyncio.wait_for(asyncio.gather(*(peer.run() for peer in peers)), SECONDS)

    asyncio.run(together())
    return torch.stack([peer.method.model(peer.client.state) for peer in peers])


def traces_of(kits: list[Path]) -> list[list[dict[str, Any]]]:
    return [[json.loads(line) for line in (kit / "run/trace.jsonl").read_text().splitlines()] for kit in kits]


def replayed(experiment: Experiment, kits: list[Path]) -> Tensor:
    return replay(prepare(experiment).training, traces_of(kits))


class Process(Forked):
    """A peer as a process."""

    def __init__(self, kit: Path, *options: str, **parameters: Any) -> None:
        self.kit = kit
        place = kit.parent.parent  # nothing is written into a kit but its run
        super().__init__(["peer", str(kit), "-q", *options], place, {"OMP_NUM_THREADS": "1"}, **parameters)

    def rounds(self) -> int:
        return max((line["round"] for line in read_lines(self.kit / "run" / "metrics.jsonl")), default=0)

    def wait_for_round(self, number: int) -> None:
        until = time.monotonic() + SECONDS
        while self.rounds() < number and self.runs() and time.monotonic() < until:
            time.sleep(0.01)
        assert self.rounds() >= number, "too slow" if self.runs() else self.ended()

    def ended(self) -> tuple[int, str]:
        """Its exit code, and what it said."""
        code, out, err = self.end(SECONDS)
        return code, out + err

    def kill(self) -> None:
        if self.runs():
            self.send(signal.SIGCONT)
        super().kill()


def state_of(kit: Path) -> dict[str, Tensor]:
    """The state that a peer has committed last."""
    from gossamer.runs.checkpoint import checkpoint_paths, load_tensors

    newest = checkpoint_paths(kit / "run" / "checkpoints")[0][0]
    _, tensors = load_tensors(newest)
    return with_prefix("state/", tensors)
