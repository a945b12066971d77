"""Traces, replayed, give the vectors of the simulator: of a perfect network, and of any that it can express."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from gossamer import Experiment
from gossamer.engines import Reference, Stacked, Trace
from gossamer.engines.reference import on_time
from gossamer.errors import GossamerError
from gossamer.experiment import prepare
from gossamer.methods import METHODS, LocalGECL, traits_of
from gossamer.peers.replay import replay
from gossamer.training import pushed_names
from problems import graph_for, samples, tiny_net

PEERS, ROUNDS = 5, 6
CLOSE = {"rtol": 0.0, "atol": 1e-10}
METHODS_OF_PEERS: list[Any] = [
    "dfedavg",
    "dfedsam-mgs",
    "dfedadmm-sam",
    "local-g-ecl",
    {"name": "local-g-ecl", "warm_start": 2},
    {"name": "local-g-ecl", "alpha": 0.05, "warm_start": 1},
    "dfedsgpsm",
    "sgp",
    "overlap-sgp",
    "dfedsgpsm-s",
    "q-dfedavgm",
    "ecl",
]
Traces = list[list[dict[str, Any]]]
#: (step, sender, receiver) -> whether a letter arrives; the mass of one that does not comes with the next that does.
Arrives = Callable[[int, int, int], bool]


def work_of(spec: Any, graph: Any = None, sizes: list[int] | None = None) -> Any:
    name = spec if isinstance(spec, str) else spec["name"]
    if graph is None:
        by_loss = {"name": "directed-by-loss", "neighbours": 2}
        graph = by_loss if name == "dfedsgpsm-s" else graph_for(name, PEERS)
    own = traits_of(METHODS.build(spec)).local_work is not None
    data = samples(sizes or [6, 5, 7, 4, 6], seed=1)
    experiment = Experiment(
        method=spec, graph=graph, dataset=data, clients=PEERS, model=tiny_net, batch_size=4,
        local_steps=None if own else 2, lr=0.05, dtype="float64", rounds=ROUNDS,
    )  # fmt: skip
    return prepare(experiment).training


class Recorded(Reference):
    """The simulator, which also keeps the losses by which neighbours were chosen."""

    def __init__(self, training: Any, trace: Trace = on_time) -> None:
        super().__init__(training, trace)
        self.losses: dict[int, Any] = {}

    def _exchange(self, step: int, operators: Any, losses: Any, at: int | None = None) -> None:
        self.losses[step if at is None else at] = losses
        super()._exchange(step, operators, losses, at)


def played(work: Any, trace: Trace = on_time) -> Recorded:
    run = Recorded(work, trace)
    for t in range(work.rounds):
        run.round(t)
    return run


def always(step: int, sender: int, receiver: int) -> bool:
    return True


def perfect_traces(work: Any, rounds: int = ROUNDS, arrives: Arrives = always, losses: Any = None) -> Traces:
    """What peers would have written down."""
    traces: Traces = [[] for _ in range(PEERS)]
    opening = work.traits.opening.mixings if work.traits.opening else 0
    operators = set(work.method.sends.values())
    added: dict[tuple[int, int], int] = {}
    for at in range(-opening, rounds * work.traits.gossip_steps):
        known = (losses or {}).get(at)
        weights = work.network.matrix(at + opening if at < 0 else at, known).toarray()
        for i, trace in enumerate(traces):
            others = [j for j in range(PEERS) if j != i]
            line: dict[str, Any] = {"step": at}
            if at < 0 or operators & {"average", "sum"}:
                line["heard"] = {j: at for j in others if weights[i, j] and (at < 0 or arrives(at, j, i))}
            if at >= 0 and operators & {"push", "deliver"}:
                added.update({(j, i): at for j in others if weights[i, j]})
                line["mass"] = {j: added[j, i] for j in others if weights[i, j] and arrives(at, j, i)}
            if known is not None:
                line["losses"] = known.tolist()
            trace.append(json.loads(json.dumps(line)))  # as it comes from disk
    return traces


@pytest.mark.parametrize("spec", METHODS_OF_PEERS, ids=str)
def test_the_traces_of_a_perfect_network_give_the_simulators_vectors(spec: Any) -> None:
    work = work_of(spec, sizes=[6] * PEERS if isinstance(spec, dict) and "alpha" in spec else None)
    isolated = played(work)
    vectors = replay(work, perfect_traces(work, losses=isolated.losses))
    stacked = Stacked(work)
    for t in range(ROUNDS):
        stacked.round(t)
    torch.testing.assert_close(vectors, isolated.models(), **CLOSE)
    torch.testing.assert_close(vectors, stacked.models(), **CLOSE)
    assert torch.equal(vectors, isolated.models())  # the same arithmetic in the same order


def some(step: int, sender: int, receiver: int) -> bool:
    return bool(np.random.default_rng([step, sender, receiver]).random() > 0.4)


@pytest.mark.parametrize("spec", ["dfedavg", "dfedsam-mgs", "dfedadmm-sam"])
def test_missing_letters_leave_their_weight_as_in_the_simulator(spec: str) -> None:
    work = work_of(spec)
    isolated = played(work, lambda *letter: (0,) if some(*letter) else ())
    assert not torch.equal(isolated.models(), played(work).models())
    torch.testing.assert_close(replay(work, perfect_traces(work, arrives=some)), isolated.models(), **CLOSE)


@pytest.mark.parametrize("graph", [{"name": "directed-random", "neighbours": 2}, "one-peer-exponential"], ids=str)
@pytest.mark.parametrize("spec", ["dfedsgpsm", "sgp", "overlap-sgp"])
def test_late_mass_comes_with_the_next_parcel_as_in_the_simulator(spec: str, graph: Any) -> None:
    work = work_of(spec, graph)

    def late(step: int, sender: int, receiver: int) -> tuple[int, ...]:
        """To the first step at which this edge is there and its letter arrives."""
        for at in range(step, ROUNDS):
            if work.network.matrix(at).toarray()[receiver, sender] and some(at, sender, receiver):
                return (at - step,)
        return ()  # under way at the end

    isolated = played(work, late)
    assert not torch.equal(isolated.models(), played(work).models())
    torch.testing.assert_close(replay(work, perfect_traces(work, arrives=some)), isolated.models(), **CLOSE)


def away(step: int, sender: int, receiver: int) -> bool:
    return not (2 <= step < 4 and 3 in (sender, receiver))


def test_a_peer_that_was_away_is_one_without_samples_that_nobody_hears() -> None:
    """Peer 3 leaves rounds 2 and 3 out. It has no samples, so that in the simulator it does not move either."""
    work = work_of("dfedavg", sizes=[6, 5, 7, 0, 6])
    traces = perfect_traces(work, arrives=away)
    traces[3][2:4] = [{"skip": [2, 4]}]
    isolated = played(work, lambda *letter: (0,) if away(*letter) else ())
    torch.testing.assert_close(replay(work, traces), isolated.models(), **CLOSE)


def test_mass_that_waited_for_a_peer_is_taken_when_it_is_back() -> None:
    """All of the weight is there in the end, in peers that have heard everything up to the last step."""
    work = replace(work_of("sgp", "ring"), lr=0.0)
    traces = perfect_traces(work, arrives=away)
    traces[3][2:4] = [{"skip": [2, 4]}]
    vectors = replay(work, traces)
    torch.testing.assert_close(vectors, work.model.initial.expand_as(vectors), **CLOSE)
    traces[2][4]["mass"]["3"] = 3  # a step that peer 3 has not made
    with pytest.raises(GossamerError, match=r"peer 2 mixed at step 4 .* peer 3 .*step 3"):
        replay(work, traces)


@pytest.mark.parametrize("hops", [1, 2])
def test_a_peer_that_was_killed_after_it_had_written_was_heard(hops: int) -> None:
    """Peer 1 writes in round 2, is killed, comes back for round 4 as it was before round 2."""
    work = work_of({"name": "dfedsam-mgs", "gossip_steps": hops})
    first = 2 * hops

    def arrives(step: int, sender: int, receiver: int) -> bool:
        return sender != 1 or not first < step < 4 * hops

    traces = perfect_traces(work, arrives=arrives)
    traces[1][first : 4 * hops] = [{"skip": [2, 4]}]
    vectors = replay(work, traces)
    isolated = Reference(work, lambda *letter: (0,) if arrives(*letter) else ())
    for t in range(ROUNDS):
        before = isolated.clients[1].state
        isolated.round(t)
        if t in (2, 3):
            isolated.clients[1].state = before
    torch.testing.assert_close(vectors, isolated.models(), **CLOSE)


def test_a_trace_that_ends_early_leaves_the_peer_where_it_was() -> None:
    work = work_of("dfedavg", graph="full")
    traces = perfect_traces(work, rounds=3)
    half = Reference(work)
    for t in range(3):
        half.round(t)
    torch.testing.assert_close(replay(work, traces), half.models(), **CLOSE)
    torch.testing.assert_close(replay(work, [[]] * PEERS), work.model.initial.repeat(PEERS, 1), **CLOSE)


def test_two_gossip_steps_of_what_is_summed_as_well() -> None:
    class Twice(LocalGECL):
        """Local G-ECL that mixes twice."""

        gossip_steps = 2

    work = replace(work_of("local-g-ecl", sizes=[6] * PEERS), method=Twice(alpha=0.1))
    torch.testing.assert_close(replay(work, perfect_traces(work)), played(work).models(), **CLOSE)


def spoiled(spec: Any, change: Callable[[Traces], object]) -> Callable[[], Any]:
    work = work_of(spec, "ring")
    traces = perfect_traces(work)
    change(traces)
    return lambda: replay(work, traces)


@pytest.mark.parametrize(
    ("spec", "change", "words"),
    [
        ("dfedavg", lambda t: t[4].__delitem__(slice(3, None)), "peer 0 mixed at step 4 .* peer 4"),
        ("sgp", lambda t: t[0][2]["mass"].update({"1": 9}), "peer 0 mixed at step 2 .* peer 1 .*step 9"),
        ("sgp", lambda t: (t[0][1]["mass"].update({"1": 2}), t[1][1]["mass"].update({"0": 2})), "at step 1 .* peer"),
        ("dfedavg", lambda t: t[0][1]["heard"].update({"2": 1}), "peer 0 mixed at step 1 a letter of peer 2, not its"),
        ("ecl", lambda t: t[2][1]["heard"].pop("3"), "client 2 did not hear from client 3 at step 1"),
        ("dfedavg", lambda t: t[2].pop(1), "trace of peer 2: says step 2 where step 1 should follow"),
        ("dfedavg", lambda t: t[2].insert(1, {"skip": [3, 5]}), "peer 2: goes from round 3 to 5 where round 1"),
        ("dfedavg", lambda t: t.pop(), "4 traces for 5 peers"),
    ],
)  # fmt: skip
def test_a_trace_that_cannot_be_is_refused_with_its_peer_and_step(spec: str, change: Any, words: str) -> None:
    with pytest.raises(GossamerError, match=words):
        spoiled(spec, change)()


def test_mass_is_what_is_pushed() -> None:
    message = {"x": torch.ones(2), "y": torch.ones(2)}
    assert pushed_names({"x": "push", "y": "average"}, message) == ["x"]
