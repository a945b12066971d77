"""Laws of the methods that send less than a model: quantized and sparse messages."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.methods import DFedAvg, DFedAvgM, DisPFL, QDFedAvgM, Round
from gossamer.methods.dispfl import active_counts
from gossamer.methods.quantized import pack_bits, quantize, quantizer_step, unpack_bits
from problems import Weights, engine, metropolis, play, samples

CLOSE = {"rtol": 0.0, "atol": 1e-10}
law = settings(max_examples=8, deadline=None)
seeds = st.integers(0, 2**32)
clients = st.integers(3, 6)
bits = st.integers(1, 16)


@law
@given(seed=seeds, b=st.integers(2, 16))
def test_i15_the_quantizer_is_on_its_grid_within_a_step_and_right_on_average(seed: int, b: int) -> None:
    rng = np.random.default_rng(seed)
    values = torch.from_numpy(rng.normal(size=50))
    step = quantizer_step(values, b)
    noise = torch.from_numpy(rng.random((4000, 50)))
    drawn = torch.stack([quantize(values, step, b, row) for row in noise])
    assert float((drawn - values).abs().max()) <= float(step) * (1 + 1e-9)
    torch.testing.assert_close(torch.round(drawn / step) * step, drawn)
    torch.testing.assert_close(drawn.mean(0), values, rtol=0, atol=float(step) * 6 / math.sqrt(4000))
    down = quantize(values, step, b, None)
    assert (down <= values + 1e-12).all()
    torch.testing.assert_close(quantize(drawn[0], step, b, noise[0]), drawn[0])  # grid points are exact


@law
@given(seed=seeds)
def test_i15_one_bit_is_a_sign_that_is_right_on_average(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = torch.from_numpy(rng.normal(size=50))
    step = quantizer_step(values, 1)
    drawn = torch.stack([quantize(values, step, 1, row) for row in torch.from_numpy(rng.random((4000, 50)))])
    assert set(torch.unique(drawn / step).tolist()) <= {-1.0, 1.0}
    torch.testing.assert_close(drawn.mean(0), values, rtol=0, atol=float(step) * 6 / math.sqrt(4000))
    assert torch.equal(quantize(values, step, 1, None) > 0, values > 0)


@settings(max_examples=50, deadline=None)
@given(seed=seeds, b=st.integers(2, 16), rounding=st.sampled_from(["stochastic", "down"]), single=st.booleans())
def test_i15_the_largest_entry_is_sent_whole(seed: int, b: int, rounding: str, single: bool) -> None:
    """It is on the grid, at either end, though the step was rounded."""
    rng = np.random.default_rng(seed)
    values = torch.from_numpy(rng.normal(size=(40, 20)))
    values = values.float() if single else values
    for row in torch.cat([values, -values]):
        noise = torch.from_numpy(rng.random(20)).to(row) if rounding == "stochastic" else None
        largest = row.abs().argmax()
        sent = quantize(row, quantizer_step(row, b), b, noise)[largest]
        torch.testing.assert_close(sent, row[largest], rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("b", [1, 2, 8, 16])
@pytest.mark.parametrize("noise", [None, torch.tensor([0.0, 0.3, 0.999])], ids=["down", "stochastic"])
@pytest.mark.parametrize("size", [0.0, 1e-45])
def test_i15_nothing_to_send_is_sent_as_nothing(b: int, noise: torch.Tensor | None, size: float) -> None:
    """All zeros, and numbers too small for a step of their own."""
    method, values = QDFedAvgM(bits=b, size=3), torch.tensor([0.0, size, -size])
    step = quantizer_step(values, b)
    message = {"change": quantize(values, step, b, noise), "step": step}
    assert float(message["change"].abs().max()) <= 2e-45
    assert all(torch.equal(value, message[name]) for name, value in method.decode(method.encode(message)).items())


@law
@given(n=clients, seed=seeds, b=bits, rounding=st.sampled_from(["stochastic", "down"]))
def test_i15_clients_without_samples_send_nothing(n: int, seed: int, b: int, rounding: Any) -> None:
    data = samples([4] + [0] * (n - 1), seed)
    run = engine(QDFedAvgM(bits=b, rounding=rounding), Weights(np.eye(n)), data, local_steps=2)
    start = run.models().clone()
    assert (play(run, 2) != start).any(1).tolist() == [True] + [False] * (n - 1)


@law
@given(seed=seeds, b=bits, count=st.integers(1, 40))
def test_i15_packing_loses_nothing_and_wastes_nothing(seed: int, b: int, count: int) -> None:
    codes = torch.from_numpy(np.random.default_rng(seed).integers(0, 2**b, count))
    packed = pack_bits(codes, b)
    assert packed.numel() == math.ceil(b * count / 8)
    assert torch.equal(unpack_bits(packed, b)[:count], codes)


@law
@given(n=clients, seed=seeds, b=bits)
def test_i15_messages_survive_the_wire_and_move_the_mean(n: int, seed: int, b: int) -> None:
    run = engine(QDFedAvgM(bits=b), Weights(metropolis(n, seed)), samples([8] * n, seed), local_steps=2)
    method = run.training.method
    assert isinstance(method, QDFedAvgM)
    for t in range(2):
        before = run.models().mean(0)
        messages = {name: rows.clone() for name, rows in run._local_work(t)[0].items()}
        for i in range(n):
            message = {name: rows[i] for name, rows in messages.items()}
            back = method.decode(method.encode(message))
            assert all(torch.equal(back[name], message[name]) for name in message)
        run.round(t)
        torch.testing.assert_close(run.models().mean(0), before + messages["change"].mean(0), **CLOSE)


@law
@given(n=clients, seed=seeds)
def test_i15_fine_enough_on_the_full_graph_it_is_dfedavgm(n: int, seed: int) -> None:
    data = samples([8] * n, seed)
    fine = play(engine(QDFedAvgM(bits=16), "full", data, local_steps=2, lr=0.01), 2)
    torch.testing.assert_close(
        fine, play(engine(DFedAvgM(), "full", data, local_steps=2, lr=0.01), 2), rtol=0, atol=1e-4
    )


@law
@given(seed=seeds, density=st.floats(0.1, 1.0), regrow=st.sampled_from(["random", "gradient"]))
def test_i16_masks_keep_their_density_and_weights_stay_within_them(seed: int, density: float, regrow: str) -> None:
    method = DisPFL(density=density, regrow=regrow)  # type: ignore[arg-type]
    run = engine(method, "ring", samples([8] * 4, seed), local_steps=2, rounds=5)
    shapes = tuple(tuple(s) for s in run.training.model.shapes)
    counts, lengths = active_counts(shapes, density), run.training.model.lengths
    for t in range(4):
        run.round(t)
        for i in range(4):
            per_tensor = [int(m.sum()) for m in torch.split(run.state["mask"][i], lengths)]
            assert per_tensor == counts
            assert (run.state["x"][i][run.state["mask"][i] == 0] == 0).all()


@pytest.mark.parametrize(("number", "rounds", "moved"), [(0, 3, 4), (1, 3, 3), (2, 3, 1), (1, 2, 2)])
def test_i16_as_many_weights_are_replaced_as_the_rate_says(number: int, rounds: int, moved: int) -> None:
    """Of eight active weights the shares 1/2, 3/8, 1/8 and 1/4; 1/8 of 8 is 1.0000000000000004 in floating point."""
    method = DisPFL(density=0.5, shapes=((2, 8),))
    one = torch.ones(())
    x, mask = torch.arange(1.0, 17.0), torch.cat([torch.ones(8), torch.zeros(8)])
    noise = torch.cat([torch.zeros(8), torch.rand(8) + 1])  # what was dropped is not regrown
    state = {"x": x * mask, "mask": mask, "held": mask}
    round = Round(number, rounds, 0.1, one, one, one, noise=noise)
    after, _ = method.finish(state, method.begin(state, round), round)
    assert int((mask - after["mask"]).clamp(min=0).sum()) == moved


def test_i16_every_client_has_a_mask_of_its_own_and_looks_for_a_better_one_from_the_first_round_on() -> None:
    run = engine(DisPFL(density=0.5), "ring", samples([8] * 4, 0), local_steps=2, rounds=5)
    run.round(0)
    assert len({tuple(mask.tolist()) for mask in run.state["held"]}) == 4
    assert (run.state["mask"] != run.state["held"]).any(1).all()


@law
@given(n=clients, seed=seeds)
def test_i16_with_everything_active_it_is_dfedavg_with_uniform_weights(n: int, seed: int) -> None:
    graph, data = {"name": "star", "weights": "uniform"}, samples([8] * n, seed)
    dense = play(engine(DisPFL(density=1.0), graph, data, local_steps=2))
    torch.testing.assert_close(dense, play(engine(DFedAvg(), graph, data, local_steps=2)), **CLOSE)


@pytest.mark.parametrize("density", [0.05, 0.2, 0.5, 0.9])
def test_erk_spends_its_budget_and_leaves_small_tensors_dense(density: float) -> None:
    shapes = ((200, 784), (200,), (200, 200), (200,), (10, 200), (10,))
    counts = active_counts(shapes, density)
    assert counts[1::2] == [200, 200, 10]
    matrices = [math.prod(s) for s in shapes[::2]]
    assert sum(counts[::2]) == pytest.approx(density * sum(matrices), abs=2)
    shares = [c / m for c, m in zip(counts[::2], matrices, strict=True)]
    assert shares[0] <= shares[1] <= shares[2]  # the smaller a matrix is, the denser


def test_sparse_messages_survive_the_wire() -> None:
    run = engine(DisPFL(density=0.3), "ring", samples([8] * 4, 0), local_steps=2)
    run.round(0)
    method = run.training.method
    assert isinstance(method, DisPFL)
    messages, *_ = run._local_work(1)
    for i in range(4):
        message = {name: rows[i] for name, rows in messages.items()}
        back = method.decode(method.encode(message))
        assert all(torch.equal(back[name], message[name]) for name in message)
