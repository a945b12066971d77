"""Kills and freezes peers of small networks, and checks all that must hold afterwards.

    python -m benchmarks.chaos --seconds 600 --seed 1
    python -m benchmarks.chaos --seed 1 --only 17        # one trial again

Each trial is a network of three or four real processes on loopback with a method of one family. Either some of its
peers are frozen for a while (every subset is tried), or one is killed with SIGKILL at some await of its rounds or of
its server, up to three times, and started again. Then every process must have ended with exit code 0 and without a
traceback; every push-sum weight must be finite and not have run down; the mass on all disks, summed here without the
ledger's code, must be that of the beginning; and a replay of the traces must give the same models. A trial follows from
the seed and its number, except for the timing of the machine.
"""

import argparse
import itertools
import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gossamer import Experiment
from gossamer.errors import GossamerError
from gossamer.peers.identity.kit import write_kits
from gossamer.peers.identity.roster import Exchange, Member, Roster
from gossamer.peers.peer import Peer
from gossamer.peers.replay import replay_kits
from gossamer.peers.store.letters import Letter
from gossamer.peers.tools.demo import free_ports
from gossamer.peers.tools.process import run_peer
from gossamer.peers.wire.service import Service
from gossamer.runs.checkpoint import checkpoint_paths, load_tensors

#: A method of each family, the graph and the policy that it is tried with.
NETWORKS = [
    ("dfedavg", "full", "reweigh"), ("dfedavg", "ring", "wait"), ("dfedsam-mgs", "full", "reweigh"),
    ("q-dfedavgm", "full", "reweigh"), ("sgp", "exponential", "reweigh"), ("overlap-sgp", "exponential", "reweigh"),
    ("overlap-sgp", "one-peer-exponential", "reweigh"), ("dfedsgpsm", "directed-random", "reweigh"),
    ("dfedsgpsm", "full", "wait"), ("dfedadmm", "ring", "wait"), ("local-g-ecl", "ring", "wait"),
    ("k-gt", "ring", "wait"), ("ecl", "ring", "wait"), ("dispfl", "ring", "wait"),
]  # fmt: skip
SIZES = (3, 4)
ROUNDS = 16
#: Seconds after which a network that has not ended stands still.
LONGEST = 120.0
#: A weight below this has run down: see `gossamer.peers.weight`.
LEAST_WEIGHT = 1e-3
#: The awaits at which a peer may be killed: about as many as it has in half of its rounds.
AWAITS = 160
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["gossamer.peers.tools.process", "gossamer.peers.replay"])


@dataclass(frozen=True)
class Trial:
    """One network and what happens to it."""

    number: int
    method: str
    graph: str
    late: str
    peers: int
    #: The peers that are frozen together; none: one is killed.
    frozen: tuple[int, ...]

    def __str__(self) -> str:
        what = f"freeze {','.join(map(str, self.frozen))}" if self.frozen else "kill"
        return f"{self.number:4d}  {self.method:12s} {self.graph:20s} {self.late:8s} {self.peers} peers  {what}"


def trials(seed: int) -> list[Trial]:
    """Every network with every subset of its peers frozen, and as many kills, in an order that the seed gives."""
    kinds: list[tuple[Any, int, tuple[int, ...]]] = []
    for network, peers in itertools.product(NETWORKS, SIZES):
        subsets = [s for size in range(1, peers + 1) for s in itertools.combinations(range(peers), size)]
        kinds += [(network, peers, subset) for subset in subsets] + [(network, peers, ())] * len(subsets)
    random.Random(seed).shuffle(kinds)
    return [Trial(n, *network, peers, frozen) for n, (network, peers, frozen) in enumerate(kinds)]


# One peer in a process


def live(kit: str, output: str, die_at: int) -> None:
    """Run a peer in this process; it kills itself at so many awaits, if at all."""
    said = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(said, 1)
    os.dup2(said, 2)
    if die_at:
        count = itertools.count(1)

        def passed() -> None:
            if next(count) == die_at:
                os.kill(os.getpid(), signal.SIGKILL)

        _count_awaits(Peer, "_all_rounds", passed)
        _count_awaits(Service, "deliver", passed)
    code = 0
    try:
        run_peer(Path(kit))
    except GossamerError as error:
        print(f"error: {error}", file=sys.stderr)
        code = error.exit_code
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)


def _count_awaits(owner: Any, name: str, passed: Callable[[], None]) -> None:
    """Call `passed` whenever a coroutine method waits."""
    original = getattr(owner, name)

    class Counted:
        def __init__(self, coroutine: Any) -> None:
            self._inner = coroutine.__await__()

        def __await__(self) -> Generator[Any, Any, Any]:
            send: Callable[[], Any] = lambda: self._inner.send(None)  # noqa: E731
            while True:
                try:
                    waits_for = send()
                except StopIteration as end:
                    return end.value
                passed()
                try:
                    yield waits_for
                    send = lambda: self._inner.send(None)  # noqa: E731
                except BaseException as error:
                    send = lambda error=error: self._inner.throw(error)  # noqa: E731

    async def counted(*arguments: Any) -> Any:
        return await Counted(original(*arguments))

    setattr(owner, name, counted)


class Network:
    """The processes of one trial."""

    def __init__(self, folder: Path, trial: Trial, rounds: int = ROUNDS) -> None:
        settings: dict[str, Any] = {
            "method": trial.method, "graph": trial.graph, "clients": trial.peers, "rounds": rounds, "model": "softmax",
            "dtype": "float64", "batch_size": 16, "dataset": {"name": "digits", "train_samples": 200},
            "evaluate": {"every": 0, "clients": 0, "training": 0},
        }  # fmt: skip
        if trial.graph == "directed-random":
            settings["graph"] = {"name": trial.graph, "neighbours": min(2, trial.peers - 1)}
        if trial.method not in ("sgp", "overlap-sgp", "dispfl"):
            settings["local_steps"] = 2
        names = [f"p{number}" for number in range(trial.peers)]
        members = tuple(Member(name=n, port=port) for n, port in zip(names, free_ports(trial.peers), strict=True))
        self.experiment = Experiment(**settings)
        self.kits = folder / "kits"
        write_kits(Roster(self.experiment, members, Exchange(late=trial.late, patience=1.0)), self.kits)
        self.folders = [self.kits / name for name in names]
        self.outputs = [folder / f"{name}.txt" for name in names]
        self.processes = [self.start(number) for number in range(trial.peers)]

    def start(self, number: int, die_at: int = 0) -> Any:
        """Start a peer."""
        process = CONTEXT.Process(target=live, args=(str(self.folders[number]), str(self.outputs[number]), die_at))
        process.start()
        return process

    def rounds(self, number: int) -> int:
        """The rounds that a peer has recorded."""
        path = self.folders[number] / "run/metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def stop(self) -> None:
        """End all processes."""
        for process in self.processes:
            if process.is_alive():
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGCONT)
                process.kill()
            process.join()


def disturb(network: Network, trial: Trial, rng: random.Random) -> None:
    """Freeze or kill peers, as the trial says."""
    if trial.frozen:
        until = time.monotonic() + LONGEST
        start, seconds = rng.randrange(1, ROUNDS // 2), rng.choice((0.5, 2.0, 5.0))
        while min(map(network.rounds, trial.frozen)) < start and time.monotonic() < until:
            time.sleep(0.01)
        frozen = [network.processes[number] for number in trial.frozen if network.processes[number].is_alive()]
        for process in frozen:
            os.kill(process.pid, signal.SIGSTOP)
        time.sleep(seconds)
        for process in frozen:
            os.kill(process.pid, signal.SIGCONT)
        return
    victim = rng.randrange(trial.peers)
    network.processes[victim].kill()  # this one is replaced by one that counts its awaits
    network.processes[victim].join()
    for _ in range(rng.randrange(1, 4)):
        network.processes[victim] = network.start(victim, rng.randrange(1, AWAITS))
        network.processes[victim].join(LONGEST)
        time.sleep(rng.choice((0.0, 0.5, 3.0)))
        if network.processes[victim].exitcode == 0:
            return
    network.processes[victim] = network.start(victim)


# What must hold afterwards


def problems(network: Network) -> list[str]:
    """What is wrong with a network that should have ended well."""
    found: list[str] = []
    until = time.monotonic() + LONGEST
    for number, process in enumerate(network.processes):
        process.join(max(0.0, until - time.monotonic()))
        said = network.outputs[number].read_text() if network.outputs[number].exists() else ""
        if process.exitcode is None:
            found.append(f"p{number} stands still after {network.rounds(number)} rounds")
        elif process.exitcode != 0 or "Traceback" in said:
            found.append(f"p{number} ended with {process.exitcode}: {said.strip()[-300:]}")
    if found:
        return found
    found += mass_problems(network)
    try:
        agreement = replay_kits(network.kits)
    except GossamerError as error:
        return [*found, f"replay: {error}"]
    return found + [f"replay: {name} differs by {agreement.differences[name]:.1e}" for name in agreement.others]


def mass_problems(network: Network) -> list[str]:
    """Weights that have run down, and mass that is not what it was, summed from the files of all peers."""
    about, tensors = zip(*(_last_state(folder) for folder in network.folders), strict=True)
    if "state/weight" not in tensors[0]:
        return []
    own = [sum(float(t[n]) for n in ("state/weight", "state/arriving_weight") if n in t) for t in tensors]
    found = [f"the weight of p{i} is {weight:g}" for i, weight in enumerate(own)
             if not (math.isfinite(weight) and weight > LEAST_WEIGHT)]  # fmt: skip
    under_way = 0.0
    for sender, receiver in itertools.permutations(range(len(own)), 2):
        edge = about[receiver]["edges"].get(str(sender), {"base": -1, "through": -1})
        taken = float(tensors[receiver].get(f"edge/{sender}/weight", 0.0))
        run = network.folders[receiver] / "run/inbox"
        paths = [*run.glob(f"{sender}at*.mass"), network.folders[sender] / "run/outbox" / f"{receiver}.mass"]
        letters = sorted((Letter(path) for path in paths if path.exists()), key=lambda letter: letter.header.step)
        base, through = edge["base"], edge["through"]
        for letter in letters:
            if letter.header.step <= through:
                continue
            total = float(letter.message["weight"])
            under_way += total - (taken if letter.header.base == base and base != through else 0.0)
            base, through, taken = letter.header.base, letter.header.step, total
    if not math.isclose(sum(own) + under_way, len(own), rel_tol=1e-9):
        found.append(f"the mass is {sum(own) + under_way:.12g}, not {len(own)}")
    return found


def _last_state(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    about, tensors = load_tensors(checkpoint_paths(folder / "run/checkpoints")[0][0])
    return json.loads(about["about"]), tensors


def run_trial(trial: Trial, seed: int, folder: Path) -> list[str]:
    """Run a trial in a folder; gives what was wrong."""
    network = Network(folder, trial)
    try:
        disturb(network, trial, random.Random(f"{seed} {trial.number}"))
        return problems(network)
    finally:
        network.stop()


def main() -> None:
    """Run trials until the time is over; exit code 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0, help="how long to go on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the trial to begin with")
    parser.add_argument("--only", type=int, help="the number of a single trial")
    given = parser.parse_args()
    ends, failed, done = time.monotonic() + given.seconds, 0, 0
    for trial in trials(given.seed)[given.first :]:
        if (given.only is not None and trial.number != given.only) or time.monotonic() > ends:
            continue
        folder = Path(tempfile.mkdtemp(prefix="gossamer-chaos-"))
        found = run_trial(trial, given.seed, folder)
        done, failed = done + 1, failed + bool(found)
        print(f"{trial}  {'ok' if not found else 'FAILED, kept in ' + str(folder)}", flush=True)
        for problem in found:
            print(f"        {problem}", flush=True)
        if not found:
            shutil.rmtree(folder)
    print(f"{done} trials, {failed} failed (seed {given.seed})")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
