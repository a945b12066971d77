"""A peer as a process: opens its kit, runs to the end, and stops on Ctrl-C and SIGTERM."""

import asyncio
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gossamer.peers.data import peer_training
from gossamer.peers.identity.kit import open_kit
from gossamer.peers.identity.roster import Address
from gossamer.peers.peer import Peer
from gossamer.peers.tools.metrics import serve
from gossamer.peers.wire.faults import Faults
from gossamer.system.allocator import return_freed_blocks_of, use_one_arena
from gossamer.system.orphans import die_with_requesting_parent


class Stopped(KeyboardInterrupt):
    """Ctrl-C or SIGTERM; the state after `round` rounds is kept."""

    def __init__(self, round: int) -> None:
        super().__init__()
        self.round = round


def run_peer(
    kit_folder: Path,
    *,
    data: str | None = None,
    data_dir: Path | None = None,
    out: Path | None = None,
    faults: Faults | None = None,
    watch: Callable[[dict[str, Any]], None] | None = None,
    started: Callable[[Peer], None] | None = None,
    metrics: Address | None = None,
    listen: Address | None = None,
) -> Peer:
    """Run the peer of a kit until its last round is over and its neighbours need it no longer.

    `listen`: where it listens, if others reach it by another address.
    """
    die_with_requesting_parent()
    use_one_arena()
    _raise_file_limit()
    kit = open_kit(kit_folder)
    training = peer_training(kit, data, data_dir)
    return_freed_blocks_of(training.model.largest)
    peer = Peer(kit, training, out or kit_folder / "run", faults, watch, listen)
    if started is not None:
        started(peer)

    async def until_stopped() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        served = await serve(metrics, peer.status) if metrics is not None else None
        running, asked = asyncio.create_task(peer.run()), asyncio.create_task(stop.wait())
        await asyncio.wait([running, asked], return_when=asyncio.FIRST_COMPLETED)
        if served is not None:
            served.close()
        if running.done():
            running.result()
            return
        peer.report.log("stopped", round=peer.progress.done)
        raise Stopped(peer.progress.done)

    asyncio.run(until_stopped())
    return peer


def _raise_file_limit() -> None:
    """Raise the limit of open files to the maximum: every connection, also of strangers, is an open file."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems refuse their own maximum
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
