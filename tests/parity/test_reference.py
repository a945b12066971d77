"""Every method gives the same vectors stacked and isolated, where clients see nothing but their letters."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gossamer import Experiment
from gossamer.engines import ExecutionPlan, Reference, Stacked
from gossamer.errors import GossamerError
from gossamer.experiment import prepare
from gossamer.graphs import GRAPHS
from gossamer.methods import METHODS, LocalGECL
from problems import engine, graph_for, samples, tiny_net

CLIENTS = 9
RAGGED = [9, 1, 0, 4, 7, 2, 5, 3, 8]
VARIANTS: list[Any] = [
    *METHODS,
    {"name": "d-psgd", "order": "combine-then-adapt"},
    {"name": "d-scaffold", "reading": "neighbourhood"},
    {"name": "local-g-ecl", "alpha": 0.05, "warm_start": 2, "start": "aggregated"},
    {"name": "g-ecl", "alpha": 0.05},
    {"name": "dfedadmm", "dual": "new", "penalty": 1.0},
    {"name": "q-dfedavgm", "bits": 3, "rounding": "down"},
    {"name": "dispfl", "regrow": "gradient", "density": 0.3},
    {"name": "ecl", "relaxation": 0.5, "coupling": 0.5},
    {"name": "pdmm", "coupling": 0.5},
    {"name": "sgp", "work": "epoch"},
    {"name": "oledfl", "rho": 0.05},
]


def training(spec: Any, dtype: str, graph: Any = None, sizes: list[int] | None = None) -> Any:
    name = spec if isinstance(spec, str) else spec["name"]
    if graph is None:
        graph = {"name": "directed-by-loss", "neighbours": 3} if name == "dfedsgpsm-s" else graph_for(name, CLIENTS)
    even = isinstance(spec, dict) and spec.get("alpha")  # the pull of edges needs clients with equally many steps
    data = samples(sizes or ([6] * CLIENTS if even else RAGGED), seed=1)
    experiment = Experiment(
        method=spec, graph=graph, dataset=data, clients=len(data.clients or ()), model=tiny_net, batch_size=4,
        local_epochs=None if METHODS.build(spec).__class__.__name__ in ("DPSGD", "SGP", "GECL") else 2,
        lr=0.05, dtype=dtype, rounds=3,
    )  # fmt: skip
    return prepare(experiment).training


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("spec", VARIANTS, ids=str)
def test_stacked_and_isolated_agree(spec: Any, dtype: str) -> None:
    work = training(spec, dtype)
    stacked, chunked, isolated = Stacked(work, ExecutionPlan(CLIENTS)), Stacked(work, ExecutionPlan(1)), Reference(work)
    for t in range(3):
        stacked.round(t)
        chunked.round(t)
        isolated.round(t)
    tolerance = 1e-5 if dtype == "float32" else 1e-10
    torch.testing.assert_close(isolated.models(), stacked.models(), rtol=0, atol=tolerance)
    torch.testing.assert_close(chunked.models(), stacked.models(), rtol=0, atol=tolerance)
    assert torch.isfinite(stacked.models()).all()
    assert not torch.equal(stacked.models(), work.model.initial.expand_as(stacked.models()))
    for name in stacked.state:
        kept = torch.stack([client.state[name] for client in isolated.clients])
        torch.testing.assert_close(kept, stacked.state[name], rtol=0, atol=tolerance)


def test_the_exchange_before_the_first_round_is_not_encoded() -> None:
    class Packed(LocalGECL):
        """Local G-ECL whose messages travel as halves; the exchange before the first round sends other tensors."""

        def encode(self, message: Any) -> Any:
            return {f"half {name}": value / 2 for name, value in message.items() if name in ("x", "v")}

        def decode(self, wire: Any) -> Any:
            return {name: 2 * wire[f"half {name}"] for name in ("x", "v")}

    work = replace(training({"name": "local-g-ecl", "warm_start": 2}, "float64"), method=Packed(warm_start=2))
    stacked, isolated = Stacked(work), Reference(work)
    for t in range(2):
        stacked.round(t)
        isolated.round(t)
    torch.testing.assert_close(isolated.models(), stacked.models(), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("sizes", "sent"), [([4, 3, 0, 1], {"x"}), (RAGGED, {"x", "v"})], ids=["equal", "unequal"])
def test_on_the_server_graph_local_g_ecl_is_algorithm_2(sizes: list[int], sent: set[str]) -> None:
    """With equal numbers of steps the model is all that is sent; an epoch without samples is one step."""
    work = training({"name": "local-g-ecl", "warm_start": 1}, "float64", graph="server", sizes=sizes)
    assert set(work.method.sends) == sent
    stacked, isolated = Stacked(work), Reference(work)
    for t in range(3):
        stacked.round(t)
        isolated.round(t)
    torch.testing.assert_close(isolated.models(), stacked.models(), rtol=0, atol=1e-10)


def test_time_varying_graphs_and_gossip_steps_draw_the_same_letters() -> None:
    graph = {"name": "random-symmetric", "neighbours": 3}
    work = training("dfedsam-mgs", "float64", graph=graph)
    stacked, isolated = Stacked(work), Reference(work)
    for t in range(2):
        stacked.round(t)
        isolated.round(t)
    torch.testing.assert_close(isolated.models(), stacked.models(), rtol=0, atol=1e-10)


def test_a_client_holds_nobody_elses_samples() -> None:
    work = training("dfedavg", "float64")
    for client, size in zip(Reference(work).clients, RAGGED, strict=True):
        assert len(client.work.dataset.train) == size


def total_mass(isolated: Reference) -> tuple[torch.Tensor, float]:
    kept = torch.stack([client.state["x"] for client in isolated.clients]).sum(0)
    weight = float(sum(client.state["weight"] for client in isolated.clients))
    for _, addressee, letter in isolated.post:
        if (letter.sender, letter.step) in isolated.clients[addressee].seen:
            continue  # a copy of what has arrived already
        kept = kept + letter.share * letter.wire["x"]
        weight += letter.share * float(letter.wire["weight"])
    return kept, weight


def without_training(spec: Any, trace: Any) -> Reference:
    """Clients that only talk, from different starting points."""
    work = training(spec, "float64", graph={"name": "directed-random", "neighbours": 3})
    isolated = Reference(replace(work, lr=1e-300), trace)
    for client in isolated.clients:
        client.state["x"] = torch.full_like(client.state["x"], float(client.number))
    return isolated


def late(step: int, sender: int, receiver: int) -> tuple[int, ...]:
    return ((sender + receiver + step) % 3,)


def doubled(step: int, sender: int, receiver: int) -> tuple[int, ...]:
    return (0, 0, 1)


def lossy(step: int, sender: int, receiver: int) -> tuple[int, ...]:
    return () if (sender + step) % 4 == 0 else (0,)


@pytest.mark.parametrize("trace", [late, doubled])
def test_push_sum_keeps_its_mass_when_letters_are_late_or_doubled(trace: Any) -> None:
    isolated = without_training("osgp", trace)
    x, weight = total_mass(isolated)
    for t in range(40):
        isolated.round(t)
        now = total_mass(isolated)
        torch.testing.assert_close(now[0], x, rtol=0, atol=1e-9)
        assert now[1] == pytest.approx(weight, abs=1e-12)
    torch.testing.assert_close(isolated.models(), torch.full_like(isolated.models(), 4.0), rtol=0, atol=1e-3)


def test_push_sum_loses_what_is_lost() -> None:
    isolated = without_training("osgp", lossy)
    for t in range(5):
        isolated.round(t)
    assert total_mass(isolated)[1] < CLIENTS - 1


def test_averaging_gives_a_lost_neighbours_weight_to_itself() -> None:
    work = training("dfedavg", "float64", graph="ring")
    isolated = Reference(replace(work, lr=1e-300), lambda step, sender, receiver: () if sender == 0 else (0,))
    for client in isolated.clients:
        client.state["x"] = torch.full_like(client.state["x"], float(client.number))
    isolated.round(0)
    assert float(isolated.models()[1, 0]) == pytest.approx((1 + 1 + 2) / 3)  # its own in place of client 0's
    assert float(isolated.models()[0, 0]) == pytest.approx((0 + 1 + 8) / 3)


def test_edge_consensus_says_which_letter_it_misses() -> None:
    isolated = Reference(training("ecl", "float64"), lambda step, sender, receiver: () if sender == 3 else (0,))
    with pytest.raises(GossamerError, match="client 2 did not hear from client 3"):
        isolated.round(0)


def test_losses_choose_the_neighbours_of_dfedsgpsm_s() -> None:
    """A client far off in loss is written to by everyone."""
    network = GRAPHS.build({"name": "directed-by-loss", "neighbours": 2}).bind(8, seed=0)
    losses = np.zeros(8)
    losses[5] = 1e3
    matrix = network.matrix(3, losses).toarray()
    assert (matrix[5] > 0).all()
    np.testing.assert_allclose(matrix.sum(0), 1)
    assert ((matrix > 0).sum(0) == 3).all()
    assert engine("dfedsgpsm-s", {"name": "directed-by-loss", "neighbours": 2}, samples([4] * 8, 0), local_steps=1)


class TwiceMixed(LocalGECL):
    """Local G-ECL with two gossip steps."""

    gossip_steps = 2


def test_what_is_summed_as_well_is_sent_once_in_every_gossip_step() -> None:
    """α and several gossip steps: two vectors a step travel, whatever is made of them."""
    run = engine(TwiceMixed(alpha=0.1), "ring", samples([4] * 5, 0), local_steps=1)
    assert run.round(0).client_bytes.tolist() == [2 * 2 * 2 * 8 * run.training.model.size] * 5
    isolated = Reference(run.training)
    isolated.round(0)
    torch.testing.assert_close(isolated.models(), run.models(), rtol=0, atol=1e-10)


def test_dropout_is_drawn_alike() -> None:
    """Also after a model was evaluated, which turns dropout off."""
    data = samples([6, 6, 6], seed=0)
    experiment = Experiment(
        method="dfedavg", dataset=data, clients=3, model=with_dropout, batch_size=4, local_steps=2, dtype="float64"
    )
    work = prepare(experiment).training
    stacked, isolated = Stacked(work, ExecutionPlan(1)), Reference(work)
    for index in range(2):
        stacked.round(index)
        work.model.template.eval()
        isolated.round(index)
    torch.testing.assert_close(isolated.models(), stacked.models(), rtol=0, atol=1e-12)


SAM = ["dfedsam", "dfedsam-mgs", "fedsam", "dfedadmm-sam", "dfedsgpsm", "oledfl"]


@pytest.mark.parametrize("make", [lambda work: Stacked(work, ExecutionPlan(1)), Reference], ids=["stacked", "clients"])
@pytest.mark.parametrize("name", SAM)
def test_both_gradients_of_a_sam_step_have_the_same_dropout_mask(name: str, make: Any) -> None:
    """With a vanishing radius it is the plain gradient: a second mask would give another one."""

    def models(rho: float) -> Any:
        experiment = Experiment(
            method={"name": name, "rho": rho}, graph=graph_for(name, 3), dataset=samples([6, 6, 6], seed=0), clients=3,
            model=with_dropout, local_steps=2, batch_size=4, lr=0.1, dtype="float64", rounds=2,
        )  # fmt: skip
        run = make(prepare(experiment).training)
        for index in range(2):
            run.round(index)
        return run.models()

    torch.testing.assert_close(models(1e-9), models(0.0), rtol=0, atol=1e-7)


def test_a_warm_start_does_not_depend_on_dropout() -> None:
    """The full gradients before the first round are taken without it, whatever ran before."""
    found = []
    for seed, mode, make in ((0, True, Stacked), (1, False, Stacked), (2, True, Reference)):
        experiment = Experiment(
            method={"name": "local-g-ecl", "warm_start": 1}, graph="ring", dataset=samples([6] * 5, seed=0),
            clients=5, model=with_dropout, local_steps=1, dtype="float64", rounds=1,
        )  # fmt: skip
        work = prepare(experiment).training
        torch.manual_seed(seed)
        run = make(work)
        work.model.template.train(mode)
        run.round(0)
        found.append(run.models())
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(found[2], found[0], rtol=0, atol=1e-12)


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 16), nn.Dropout(0.5), nn.Linear(16, 3))
