"""`gossamer network demo`: a network on this machine, each peer a process of its own, with real TLS.

folder/
  kits/alice/        as 'gossamer network create' writes them; output.txt has the output of the process
  runs/alice/        as a simulation's run folder
"""

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gossamer.errors import GossamerError
from gossamer.peers.identity.kit import KitError, open_kit, write_kits
from gossamer.peers.identity.roster import Exchange, Member, Roster
from gossamer.peers.tools.watch import NetworkWatcher, PeerView
from gossamer.runs.folder import RunFolder, read_lines
from gossamer.system.orphans import PARENT

HOST = "127.0.0.1"
NAMES = ("alice", "bob", "carol", "dave", "erin", "frank", "grace", "heidi", "ivan", "judy", "kim", "laura")
#: Ports outside the range of outgoing connections, so that none of those can take a peer's port.
PORTS = range(20_000, 32_000)
#: Seconds between two requests for the status of all peers.
EVERY = 0.2
#: Seconds that a peer has to end after SIGTERM.
TO_END = 5.0
#: Seconds that a killed peer stays dead, to be visible: after a neighbour misses it, and if none does.
DEAD, DEAD_AND_NOT_MISSED = 1.0, 10.0
OUTPUT = "output.txt"
#: Notes about a peer.
STARTING, KILLED, RESTARTING = "starting", "killed (SIGKILL)", "starting again"
#: Signals that end the demo, and with it its peers.
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Exit codes of a peer after Ctrl-C, which reaches all processes of a terminal.
INTERRUPTED = (130, -signal.SIGINT)


class PeerDied(GossamerError):
    """A peer of the demo ended with an error."""

    exit_code = 1


@dataclass(frozen=True)
class PeerOutcome:
    """The final numbers of one peer."""

    name: str
    rounds: int
    loss: float | None
    accuracy: float | None
    test_loss: float | None
    sent: int
    refused: int
    starts: int


class Demo:
    """The peers of one demo. `await demo.run(show)` runs them to their end and leaves no process behind."""

    def __init__(self, folder: Path, roster: Roster, faults: str = "", kill: bool = False) -> None:
        self.kits, self.runs = folder / "kits", folder / "runs"
        self.roster, self._faults = roster, faults
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        #: What the demo knows about a peer besides the peer's own status.
        self.notes: dict[str, str] = dict.fromkeys(roster.names, STARTING)
        #: The peer to kill halfway; not the one whose kit is used for watching.
        self._victim = roster.names[1] if kill else None
        self._killed: float | None = None
        write_kits(roster, self.kits)

    async def run(self, show: Callable[[list[PeerView]], None], say: Callable[[str], None]) -> list[PeerOutcome]:
        """Start every peer and show all of them until they have ended; `say` reports kills and restarts."""
        task = asyncio.current_task()
        assert task is not None
        for number in ENDS:
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        watcher = NetworkWatcher(open_kit(self.kits / self.roster.names[0]), timeout=1.0)
        try:
            for name in self.roster.names:
                self._start(name)
            while self._killed or any(process.poll() is None for process in self._processes.values()):
                self._note(await watcher.look(), say)
                self._check()
                show(watcher.seen)
                await asyncio.sleep(EVERY)
            self._check()
            return [self._ended(seen) for seen in watcher.seen]
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        finally:
            for number in ENDS:  # a second Ctrl-C must not leave a process behind
                asyncio.get_running_loop().add_signal_handler(number, lambda: None)
            self._stop_all()
            await watcher.close()

    def _start(self, name: str) -> None:
        kit = self.kits / name
        command = [sys.executable, "-m", "gossamer", "peer", str(kit), "--out", str(self.runs / name), "-q"]
        if self._faults:
            command += ["--faults", f"{self._faults},seed={self.roster.number(name)}"]
        with (kit / OUTPUT).open("ab") as output:
            self._processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env={**os.environ, "OMP_NUM_THREADS": "1", PARENT: str(os.getpid())},
            )  # fmt: skip

    def _note(self, peers: list[PeerView], say: Callable[[str], None]) -> None:
        """Kill and restart the chosen peer, and update the notes."""
        for seen in peers:
            if seen.problem is None and seen.name != self._victim:
                self.notes.pop(seen.name, None)
            seen.finished = seen.finished or self._processes[seen.name].poll() == 0
        if self._victim is None:
            return
        victim = self._victim
        (seen,) = (each for each in peers if each.name == victim)
        round, half = seen.status.get("round", 0), self.roster.experiment.rounds // 2
        if self._killed is None:
            if seen.problem is None:
                self.notes.pop(victim, None)
            if round >= half and not seen.finished:
                self._processes[victim].kill()
                self._processes[victim].wait()
                self._killed = time.monotonic()
                self.notes[victim] = KILLED
                say(f"{victim} killed with SIGKILL after round {round}")
        elif self._processes[victim].poll() == -signal.SIGKILL:
            missed = any(victim in each.away for each in peers)
            if time.monotonic() - self._killed >= (DEAD if missed else DEAD_AND_NOT_MISSED):
                self._start(victim)
                self.notes[victim] = RESTARTING
                say(f"{victim} started again with the same kit")
        elif self._processes[victim].poll() is not None or (seen.problem is None and seen.status["process"] > 1):
            say(f"{victim} is back, at round {round}")
            self.notes.pop(victim, None)
            self._victim = self._killed = None

    def _check(self) -> None:
        """Raise an error if a peer has failed."""
        for name, process in self._processes.items():
            code = process.poll()
            if code in INTERRUPTED:
                raise KeyboardInterrupt
            if code and not (name == self._victim and self._killed and code == -signal.SIGKILL):
                raise PeerDied(f"{name}: {self._last_words(name, code)}. The other peers were stopped.")

    def _last_words(self, name: str, code: int) -> str:
        """The last line of a failed peer's output."""
        path = self.kits / name / OUTPUT
        lines = path.read_text(errors="replace").strip().splitlines()
        if not lines:
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            return f"{how} without output"
        said = lines[-1].removeprefix("error: ").removeprefix(f"{name}: ").rstrip(".")
        return f"{said} (its whole output: {path})" if len(lines) > 1 else said

    def _stop_all(self) -> None:
        """End all processes and wait for them."""
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        until = time.monotonic() + TO_END
        for process in self._processes.values():
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _ended(self, seen: PeerView) -> PeerOutcome:
        """The final numbers, from the run folder: the peer may have ended before it could be asked."""
        lines = read_lines(RunFolder(self.runs / seen.name).metrics)
        last: dict[str, Any] = lines[-1] if lines else {}
        return PeerOutcome(
            seen.name, last.get("round", 0), last.get("local_loss"), last.get("test_accuracy"),
            last.get("test_loss"),
            sum(line["bytes_round"] for line in lines),
            sum(seen.status.get("refused", {}).values()),
            seen.status.get("process", 1),
        )  # fmt: skip


def peer_names(count: int) -> list[str]:
    """Names for so many peers.

    >>> peer_names(2), peer_names(13)[-1]
    (['alice', 'bob'], 'peer-13')
    """
    return [NAMES[number] if number < len(NAMES) else f"peer-{number + 1}" for number in range(count)]


def free_ports(count: int) -> list[int]:
    """Free ports of this machine."""
    free: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as tried:
            try:
                tried.bind((HOST, port))
            except OSError:
                continue
        free.append(port)
        if len(free) == count:
            return free
    raise GossamerError(f"there are no {count} free ports from {PORTS.start} to {PORTS.stop - 1} on this machine")


def demo_roster(experiment: Any, late: str) -> Roster:
    """A network on this machine with as many peers as the experiment has clients."""
    names = peer_names(experiment.clients)
    members = (Member(name=name, port=port) for name, port in zip(names, free_ports(len(names)), strict=True))
    return Roster(experiment, tuple(members), Exchange(late=late))


def check_free(folder: Path) -> None:
    """Refuse a folder that is not empty."""
    try:
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        raise KitError(f"{folder}: cannot be used: {error.strerror}") from None
    if taken:
        raise KitError(f"{folder}: exists already; name a new folder with --out")
