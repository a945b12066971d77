"""Laws of the methods that send less than a model: quantized and sparse messages."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.methods import DFedAvg, DFedAvgM, DisPFL, QDFedAvgM
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
