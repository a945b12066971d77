"""Peers on machines of their own, as far as a kernel can pretend: packets are lost or late, the network falls apart.

Every peer lives in a network namespace with one cable to a switch; two switches are joined by one cable, which is
pulled out and put back. All of it is in namespaces with names of their own, so nothing of this machine is touched.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forked import SCRIPTS
from gossamer import Experiment, simulate
from gossamer.experiment import prepare
from gossamer.measure import Evaluator
from gossamer.peers.identity.kit import write_kits
from gossamer.peers.identity.roster import Exchange, Member, Roster
from networks import SECONDS, Process, traces_of

PEERS = 5
LEFT = (0, 1)
LOSS = 0.03
PORT = 7000
ROUNDS_APART = 4

#: A filter for kernels without netem: draws a number for each packet, and drops it if that is large. (Classic BPF: load
#: the random number at -4096 + 56, compare, return TC_ACT_OK or TC_ACT_SHOT.)
LOSES = f"4,32 0 0 4294963256,37 0 1 {round((1 - LOSS) * (1 << 32))},6 0 0 2,6 0 0 0"


def ip(*arguments: str, tool: str = "ip") -> subprocess.CompletedProcess[str]:
    return subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=SECONDS)


class Cables:
    """Namespaces, their cables and switches."""

    def __init__(self) -> None:
        self._prefix = f"gossamer-{secrets.token_hex(4)}"
        self._made: list[str] = []
        self.faults = ""

    def build(self) -> None:
        hub = self._namespace("hub")
        for switch in ("left", "right"):
            self._do("-n", hub, "link", "add", switch, "type", "bridge")
            self._do("-n", hub, "link", "set", switch, "up")
        self._do("-n", hub, "link", "add", "middle", "type", "veth", "peer", "name", "elddim")
        for end, switch in (("middle", "left"), ("elddim", "right")):
            self._do("-n", hub, "link", "set", end, "master", switch, "up")
        for number in range(PEERS):
            peer = self._namespace(str(number))
            self._do("-n", hub, "link", "add", f"to{number}", "type", "veth", "peer", "name", "eth0", "netns", peer)
            self._do("-n", hub, "link", "set", f"to{number}", "master", "left" if number in LEFT else "right", "up")
            self._do("-n", peer, "address", "add", f"{address(number)}/24", "dev", "eth0")
            self._do("-n", peer, "link", "set", "lo", "up")
            self._do("-n", peer, "link", "set", "eth0", "up")

    def make_bad(self) -> None:
        """Lose and delay what every peer sends."""
        netem = ["root", "netem", "loss", f"{100 * LOSS:g}%", "delay", "15ms", "5ms"]
        narrow = ["root", "tbf", "rate", "2mbit", "burst", "4kb", "latency", "500ms"]
        for number in range(PEERS):
            put = ["-n", self.name(str(number)), "qdisc", "add", "dev", "eth0"]
            if ip(*put, *netem, tool="tc").returncode == 0:
                self.faults = "netem: loss and delay"
                continue
            # What a narrow line holds back comes late.
            self._do(*put, *narrow, tool="tc")
            self._do(*put, "clsact", tool="tc")
            self._do("-n", self.name(str(number)), "filter", "add", "dev", "eth0", "egress", "bpf", "da", "bytecode",
                     LOSES, tool="tc")  # fmt: skip
            self.faults = "no netem in this kernel: loss by a filter, delay by a narrow line"

    def sent_again(self) -> int:
        """Packets that TCP sent again, of all peers."""
        total = 0
        for number in range(PEERS):
            lines = ip("netns", "exec", self.name(str(number)), "cat", "/proc/net/snmp").stdout.splitlines()
            heads, values = (line.split() for line in lines if line.startswith("Tcp:"))
            total += int(values[heads.index("RetransSegs")])
        return total

    def pull(self) -> None:
        """Part the two switches."""
        self._do("-n", self.name("hub"), "link", "set", "middle", "down")

    def put_back(self) -> None:
        self._do("-n", self.name("hub"), "link", "set", "middle", "up")

    def clean(self) -> None:
        for name in self._made:  # with all that is in it
            ip("netns", "delete", name)

    def name(self, which: str) -> str:
        return f"{self._prefix}-{which}"

    def _namespace(self, which: str) -> str:
        self._made.append(self.name(which))
        self._do("netns", "add", self.name(which))
        return self.name(which)

    def _do(self, *arguments: str, tool: str = "ip") -> None:
        done = ip(*arguments, tool=tool)
        if done.returncode:
            raise OSError(f"{tool} {' '.join(arguments)}: {done.stderr.strip()}")


def address(number: int) -> str:
    return f"10.77.0.{number + 1}"


@pytest.fixture
def cables() -> Iterator[Cables]:
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("network namespaces need Linux and root")
    if missing := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        pytest.skip(f"network namespaces need {' and '.join(missing)} (iproute2)")
    made = Cables()
    try:
        try:
            made.build()
            made.make_bad()
        except OSError as error:
            pytest.skip(f"not permitted, or not known to this kernel: {error}")
        yield made
    finally:
        made.clean()


class Inside(Process):
    """A peer in its namespace."""

    def __init__(self, kit: Path, namespace: str) -> None:
        super().__init__(kit, first=(str(SCRIPTS / "moves.py"), {"namespace": namespace}))


@pytest.fixture
def processes(cables: Cables) -> Iterator[list[Process]]:  # after `cables`, so that they end before these are gone
    started: list[Process] = []
    yield started
    for process in started:
        process.kill()


def accuracy_without_loss(described: Experiment) -> float:
    training = prepare(described).training
    evaluator = Evaluator(training.model, training.loss, training.dataset, PEERS)
    return float(evaluator.test(simulate(described, workers=1).vectors).accuracy.mean())


def last_accuracy(kit: Path) -> float:
    return float(json.loads((kit / "run" / "metrics.jsonl").read_text().splitlines()[-1])["test_accuracy"])


@pytest.mark.parametrize(("method", "lr"), [("dfedavg", 1.0), ("dfedsgpsm", 0.1)])
def test_a_network_that_loses_packets_and_falls_apart_learns_as_well(
    method: str, lr: float, tmp_path: Path, cables: Cables, processes: list[Process]
) -> None:
    described = Experiment(
        method=method, clients=PEERS, rounds=60, model="softmax", lr=lr, lr_decay=0.96, batch_size=32, local_steps=40,
        dataset={"name": "digits"}, evaluate={"every": 0, "clients": 0, "training": 0},
    )  # fmt: skip
    members = tuple(Member(name=f"p{n}", host=address(n), port=PORT) for n in range(PEERS))
    write_kits(Roster(described, members, Exchange(late="reweigh", patience=0.5)), tmp_path / "kits")
    kits = [tmp_path / "kits" / member.name for member in members]
    processes += [Inside(kit, cables.name(str(number))) for number, kit in enumerate(kits)]
    for process in processes:
        process.wait_for_round(5)
    assert cables.sent_again() > 0, f"packets are lost: {cables.faults}"
    cables.pull()
    for process, before in [(process, process.rounds()) for process in processes]:
        process.wait_for_round(before + ROUNDS_APART)  # each part goes on alone
    during = [process.rounds() for process in processes]
    cables.put_back()
    for process in processes:
        code, said = process.ended()
        assert code == 0, said
    assert max(during) < described.rounds, "it was over before the cable was back"
    reached = sum(map(last_accuracy, kits)) / PEERS
    assert reached == pytest.approx(accuracy_without_loss(described), abs=0.01), cables.faults
    if method == "dfedavg":
        heard = [[len(line["heard"]) for line in trace if "heard" in line] for trace in traces_of(kits)]
        assert min(map(min, heard)) < 2, "on a ring: something was missing"
        assert all(2 in each[-10:] for each in heard), "and came back"
