"""Real peers over real sockets: the simulator's vectors when nothing is lost, and those of a replay when much is."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from forked import SCRIPTS
from gossamer import Experiment, simulate
from gossamer.experiment import prepare
from gossamer.peers.mass import CRUMB
from gossamer.peers.replay import replay
from gossamer.peers.wire.faults import Faults
from networks import Process, make_kits, make_peers, replayed, run_together, state_of, traces_of

PEERS = 5
QUIET = {"every": 0, "clients": 0, "training": 0}


def experiment(method: Any, **changed: Any) -> Experiment:
    settings: dict[str, Any] = {
        "rounds": 4, "model": "softmax", "dtype": "float64", "evaluate": QUIET,
        "dataset": {"name": "digits", "train_samples": 300}, "batch_size": 16, "local_steps": 2, "clients": PEERS,
        **changed,
    }  # fmt: skip
    return Experiment(method=method, **settings)


PARITY: list[Any] = [
    "dfedavg", "dfedsam-mgs", "dfedadmm-sam", "local-g-ecl", {"name": "local-g-ecl", "warm_start": 2}, "dfedsgpsm",
    "sgp", "overlap-sgp", "dispfl", "q-dfedavgm", "ecl", "k-gt",
]  # fmt: skip


@pytest.mark.parametrize("method", PARITY, ids=str)
def test_five_peers_end_with_the_vectors_of_the_simulator(method: Any, tmp_path: Path) -> None:
    described = experiment(method)
    vectors = run_together(make_peers(make_kits(tmp_path, described)))
    torch.testing.assert_close(vectors, simulate(described, workers=1).vectors, rtol=0, atol=1e-10)


@pytest.mark.parametrize("method", ["dfedavg", "dfedsam-mgs", "dfedadmm-sam", "local-g-ecl", "dfedsgpsm", "sgp"])
def test_in_single_precision_too(method: str, tmp_path: Path) -> None:
    described = experiment(method, dtype="float32", model="mnist-2nn", rounds=2)
    vectors = run_together(make_peers(make_kits(tmp_path, described)))
    torch.testing.assert_close(vectors, simulate(described, workers=1).vectors, rtol=0, atol=1e-5)


BAD = {"lose": 0.2, "double": 0.05, "delay": 0.1}


@pytest.mark.parametrize("method", ["dfedsam-mgs", "dfedadmm-sam", "local-g-ecl"])
def test_who_waits_loses_nothing(method: str, tmp_path: Path) -> None:
    """Lost requests are sent again, doubled ones count once: the numbers are those of a perfect network."""
    described = experiment(method, rounds=3)
    kits = make_kits(tmp_path, described, late="reweigh" if method == "dfedadmm-sam" else "wait")  # duals wait anyway
    faults = {number: Faults(lose_receipts=0.1, seed=number, **BAD) for number in range(PEERS)}
    vectors = run_together(make_peers(kits, faults))
    torch.testing.assert_close(vectors, simulate(described, workers=1).vectors, rtol=0, atol=1e-10)


def test_who_does_not_wait_is_replayed_from_the_trace(tmp_path: Path) -> None:
    described = experiment("dfedavg", rounds=8)
    kits = make_kits(tmp_path, described, late="reweigh", patience=0.7)
    faults = {number: Faults(for_good=True, seed=number, **BAD) for number in range(PEERS)}
    vectors = run_together(make_peers(kits, faults))
    torch.testing.assert_close(vectors, replayed(described, kits), rtol=0, atol=1e-10)
    heard = [len(line["heard"]) for trace in traces_of(kits) for line in trace if "heard" in line]
    assert min(heard) < 2  # on a ring: something was really missing
    assert not torch.allclose(vectors, simulate(described, workers=1).vectors)


@pytest.mark.parametrize(
    ("method", "late", "waits"),
    [
        ("dfedavg", "wait", True), ("dfedavg", "reweigh", False), ("sgp", "reweigh", False), ("sgp", "wait", True),
        ("dfedadmm", "reweigh", True), ("k-gt", "reweigh", True), ("ecl", "reweigh", True), ("dispfl", "reweigh", True),
    ],
)  # fmt: skip
def test_who_keeps_what_a_missing_message_would_spoil_waits_whatever_the_policy(
    method: str, late: str, waits: bool, tmp_path: Path
) -> None:
    kits = make_kits(tmp_path, experiment(method), late=late)
    assert make_peers(kits[:1])[0].waits == waits


@pytest.mark.parametrize("method", ["dfedsgpsm", "dfedsgpsm-s"])
def test_pushed_mass_is_conserved_and_replayed(method: str, tmp_path: Path) -> None:
    described = experiment(method, rounds=8)
    kits = make_kits(tmp_path, described, late="reweigh", patience=0.7)
    faults = {n: Faults(lose=0.3, lose_receipts=0.15, double=0.1, delay=0.1, seed=n) for n in range(PEERS)}
    peers = make_peers(kits, faults)
    vectors = run_together(peers)
    torch.testing.assert_close(vectors, replayed(described, kits), rtol=0, atol=1e-10)
    assert float(total_mass(peers)["weight"]) == pytest.approx(PEERS, rel=1e-12)


ARRIVING = {"x": "arriving", "weight": "arriving_weight"}


def total_mass(peers: list[Any]) -> dict[str, torch.Tensor]:
    """What the peers hold, what lies in their mailboxes, and what is owed to them."""
    from gossamer.peers.ledger import parcel_of
    from gossamer.peers.mass import InEdge
    from gossamer.peers.wire import wire_pb2 as wire

    states = [peer.client.state for peer in peers]
    total = {name: sum(state[name] for state in states) for name in ("x", "weight")}
    if "arriving" in states[0]:
        total = {name: total[name] + sum(state[key] for state in states) for name, key in ARRIVING.items()}
    for receiver in peers:
        for sender in peers:
            edge = InEdge(torch.float64)
            edge.load(*receiver.ledger.in_edge(sender.number).state())
            steps = receiver.mailbox.steps(wire.MASS, sender.number)
            parcels = [parcel_of(receiver.mailbox.letter(wire.MASS, sender.number, step)) for step in steps]
            owed = sender.ledger.out_edge(receiver.number).parcel()
            for parcel in [*parcels, *([owed] if owed else [])]:
                for name, value in (edge.take(parcel) or {}).items():
                    total[name] = total[name] + value
    return total  # type: ignore[return-value]


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    started: list[Process] = []
    yield started
    for process in started:
        process.kill()


def finish(processes: list[Process]) -> None:
    for process in processes:
        code, said = process.ended()
        assert code == 0, said
        assert "Traceback" not in said


@pytest.mark.parametrize(
    ("method", "exchange"),
    [
        ("dfedavg", {"late": "reweigh", "patience": 2.0}),
        ("dfedsgpsm", {"late": "reweigh", "patience": 2.0}),
        ("dfedadmm-sam", {}),
    ],
)
def test_a_bad_network_and_a_killed_peer_are_replayed(
    method: str, exchange: Any, tmp_path: Path, processes: list[Process]
) -> None:
    """20 % lost, 5 % doubled, random delays, and one peer killed with SIGKILL and started again."""
    described = experiment(method, rounds=8)
    kits = make_kits(tmp_path, described, **exchange)
    faults = "lose=0.2,double=0.05,delay=0.1"
    processes += [Process(kit, "--faults", f"{faults},seed={number}") for number, kit in enumerate(kits)]
    processes[2].wait_for_round(3)
    processes[2].kill()
    processes[2] = Process(kits[2], "--faults", f"{faults},seed=7")
    finish(processes)
    vectors = torch.stack([model_of(described, kit) for kit in kits])
    torch.testing.assert_close(vectors, replayed(described, kits), rtol=0, atol=1e-10)
    if not exchange:
        torch.testing.assert_close(vectors, simulate(described, workers=1).vectors, rtol=0, atol=1e-10)


def model_of(described: Experiment, kit: Path) -> torch.Tensor:
    model: torch.Tensor = described.method.model(state_of(kit))
    return model


class Dying(Process):
    """A peer that kills itself at a stage of its third round, or soon after."""

    def __init__(self, kit: Path, stage: str) -> None:
        script = str(SCRIPTS / "dies.py")
        super().__init__(kit, first=(script, {"stage": stage, "round": 2}))


STAGES = ["training", "sending", "checkpoint", "acknowledging"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_peer_that_is_killed_at_any_moment_goes_on_where_it_was(
    stage: str, tmp_path: Path, processes: list[Process]
) -> None:
    """Where everyone waits, the numbers are those of a run that nothing disturbed."""
    described = experiment("dfedadmm-sam", rounds=5, clients=3)
    kits = make_kits(tmp_path, described)
    processes += [Process(kits[0]), Process(kits[1]), Dying(kits[2], stage)]
    code, said = processes[2].ended()
    assert code == -signal.SIGKILL, said
    processes[2] = Process(kits[2])
    finish(processes)
    vectors = torch.stack([model_of(described, kit) for kit in kits])
    torch.testing.assert_close(vectors, simulate(described, workers=1).vectors, rtol=0, atol=1e-10)


@pytest.mark.parametrize("stage", ["sending", "checkpoint", "acknowledging"])
def test_mass_survives_a_kill_at_any_moment(stage: str, tmp_path: Path, processes: list[Process]) -> None:
    described = experiment("dfedsgpsm", rounds=8, clients=3, graph={"name": "directed-random", "neighbours": 2})
    # A restart takes some seconds, and nobody is to be left behind.
    kits = make_kits(tmp_path, described, late="reweigh", patience=20.0)
    processes += [Process(kits[0]), Process(kits[1]), Dying(kits[2], stage)]
    code, said = processes[2].ended()
    assert code == -signal.SIGKILL, said
    processes[2] = Process(kits[2])
    finish(processes)
    peers = make_peers(kits)
    for peer in peers:
        peer._lock.release()
    vectors = torch.stack([peer.method.model(peer.client.state) for peer in peers])
    torch.testing.assert_close(vectors, replayed(described, kits), rtol=0, atol=1e-10)
    assert float(total_mass(peers)["weight"]) == pytest.approx(3, rel=1e-12)


def test_a_frozen_peer_is_left_behind_and_taken_back(tmp_path: Path, processes: list[Process]) -> None:
    described = experiment("dfedsgpsm", rounds=25, local_steps=40, clients=4)
    kits = make_kits(tmp_path, described, late="reweigh", patience=1.0)
    processes += [Process(kit) for kit in kits]
    processes[1].wait_for_round(2)
    processes[1].send(signal.SIGSTOP)
    frozen = processes[1].rounds()
    processes[3].wait_for_round(frozen + 10)  # the others go on
    processes[1].send(signal.SIGCONT)
    finish(processes)
    traces = traces_of(kits)
    assert any("skip" in line for line in traces[1])
    holds = [line["hold"] for line in traces[3] if "hold" in line]
    held_from = [step for step, receivers in holds if receivers.get("1") == CRUMB]
    assert held_from
    assert held_from[-1] < 24  # at the last step it was given its share again
    vectors = torch.stack([model_of(described, kit) for kit in kits])
    torch.testing.assert_close(vectors, replayed(described, kits), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("method", "graph", "there"),
    [("dfedsgpsm", "full", 3), ("overlap-sgp", "one-peer-exponential", 3), ("sgp", "exponential", 2)],
)
def test_who_is_away_does_not_drain_the_others(method: str, graph: str, there: int, tmp_path: Path) -> None:
    """Of four some are never there: their neighbours would give them mass, or get none of them, until none is left."""
    described = experiment(method, rounds=14, clients=4, graph=graph)
    kits = make_kits(tmp_path, described, late="reweigh", patience=0.5)
    peers = make_peers(kits)
    vectors = run_together(peers[:there])
    assert all(described.method.weight(peer.client.state) > 0.1 for peer in peers[:there])
    assert float(total_mass(peers)["weight"]) == pytest.approx(4, rel=1e-12)
    again = replay(prepare(described).training, [*traces_of(kits[:there]), *[[]] * (4 - there)])
    torch.testing.assert_close(vectors, again[:there], rtol=0, atol=1e-10)


def test_a_peer_that_is_stopped_politely_says_how_to_go_on(tmp_path: Path, processes: list[Process]) -> None:
    described = experiment("dfedavg", rounds=300, local_steps=20, clients=3)
    kits = make_kits(tmp_path, described)
    processes += [Process(kit) for kit in kits]
    processes[0].wait_for_round(2)
    processes[0].send(signal.SIGTERM)
    code, said = processes[0].ended()
    assert code == 130
    assert f"gossamer peer {kits[0]}" in said
    assert "Traceback" not in said
