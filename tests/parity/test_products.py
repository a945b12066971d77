"""Whichever library multiplies, in whichever way steps are run, the numbers are the same; or a model is refused."""

import shutil
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from gossamer import Experiment, simulate
from gossamer.data import Dataset, Samples, Scaling
from gossamer.engines.planning import trials
from gossamer.errors import ExperimentError
from gossamer.system import own_product
from observers import Listening

TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
LIBRARIES = ("auto", "mkl", "onednn", "own")
needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="there is no C++ compiler")


class Own(nn.Module):
    """Products that are no layer's, a weight used twice, an activation between."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 48), nn.Linear(48, 3)
        self.square = nn.Parameter(torch.randn(48, 48) / 7)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.relu(self.first(inputs.flatten(1)))
        outputs: Tensor = self.last(torch.tanh(hidden @ self.square) @ self.square.t())
        return outputs


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 48), nn.ReLU(), nn.Linear(48, 3)
    )


def images(clients: int = 4) -> Dataset:
    random = torch.Generator().manual_seed(0)
    train = Samples(torch.randn(16 * clients, 1, 8, 8, generator=random), torch.arange(16 * clients) % 3)
    owners = tuple(part.numpy() for part in torch.arange(16 * clients).chunk(clients))
    return Dataset("noise", train, train, 3, (1, 8, 8), Scaling(), clients=owners)


def trained(model: Any, listener: Listening | None = None, dtype: str = "float32", **how: Any) -> Tensor:
    described = Experiment(
        method="dfedsam", graph="ring", dataset=images(), model=model, batch_size=16, lr=0.05, local_steps=1, rounds=4,
        clients=4, dtype=dtype,
    )  # fmt: skip
    run = simulate(described, observers=[listener] if listener else [], **{"workers": 1, "chunk": 1, **how})
    vectors: Tensor = run.vectors
    assert torch.isfinite(vectors).all()
    return vectors


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("model", [Own, convolutional])
def test_traced_steps(model: Any, dtype: str, workers: int) -> None:
    eager = trained(model, dtype=dtype, step="eager")
    for products in LIBRARIES:
        found = trained(model, dtype=dtype, step="traced", products=products, workers=workers)
        torch.testing.assert_close(found, eager, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("model", "dtype", "products", "workers"),
    [(Own, "float32", "auto", 2), (Own, "float64", "own", 1), (convolutional, "float32", "own", 2)],
)
def test_compiled_steps(model: Any, dtype: str, products: str, workers: int) -> None:
    listener = Listening()
    found = trained(model, listener, dtype, step="compiled", products=products, workers=workers)
    assert "compiled steps" in listener.how
    assert not [note for note in listener.notes if "compiled" in note]
    torch.testing.assert_close(found, trained(model, dtype=dtype, step="eager"), rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("products", LIBRARIES)
def test_without_other_libraries_any_choice_gives_the_numbers_of_MKL(
    products: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    monkeypatch.setattr(own_product, "_library", lambda: (None, "there is no g++"))
    listener = Listening()
    found = trained(Own, listener, step="traced", products=products)
    assert "products by MKL" in listener.how
    words = {"onednn": "not by oneDNN as asked: torch was", "own": "not by Gossamer's kernel as asked: there is no g++"}
    assert [words[products] in note for note in listener.notes] == ([True] if products in words else [])
    assert torch.equal(found, trained(Own, step="traced", products="mkl"))


@pytest.mark.slow
@pytest.mark.parametrize("step", ["compiled", "lanes"])
def test_without_a_compiler_steps_are_traced_and_it_is_said(
    step: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # nothing that was compiled earlier
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert not trials.has_compiler()
    listener = Listening()
    found = trained(Own, listener, step=step)
    assert "traced steps" in listener.how
    assert listener.notes, "it does not say so"
    torch.testing.assert_close(found, trained(Own, step="eager"), rtol=0, atol=1e-5)


class Halves(nn.Module):
    """Products in bfloat16, of parameters in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 48), nn.Linear(48, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = torch.relu(self.first(inputs.flatten(1)))
        weight, bias = (p.bfloat16() for p in self.last.parameters())
        return linear(hidden.bfloat16(), weight, bias).float()


class Complex(Halves):
    """Products of complex numbers."""

    def forward(self, inputs: Tensor) -> Tensor:
        weight = torch.complex(self.first.weight, -self.first.weight)
        outputs: Tensor = self.last((inputs.flatten(1).to(torch.complex64) @ weight.t()).abs())
        return outputs


class Sparse(Halves):
    """A product with a sparse matrix."""

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.last(torch.sparse.mm(inputs.flatten(1).relu().to_sparse(), self.first.weight.t()))
        return outputs


class SparseGradient(nn.Module):
    """A table whose gradient is sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(5, 4, sparse=True), nn.Linear(64 * 4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.table(inputs.flatten(1).abs().long().clamp(max=4)).flatten(1))
        return outputs


@pytest.mark.parametrize("products", ["auto", "onednn", "own"])
@pytest.mark.parametrize("model", [Halves, Complex, Sparse, SparseGradient])
def test_products_of_other_numbers_stay_what_they_are(model: Any, products: str) -> None:
    listener = Listening()
    found = trained(model, listener, step="traced", products=products)
    torch.testing.assert_close(found, trained(model, step="eager"), rtol=0, atol=1e-5)
    recorded = "traced steps" in listener.how
    assert recorded or any("cannot be recorded" in note for note in listener.notes)
    assert recorded == (model is not SparseGradient)


@pytest.mark.parametrize(
    ("parameter", "words"),
    [
        (lambda: torch.randn(3, 64, dtype=torch.bfloat16), "a bfloat16 parameter at 'weight'"),
        (lambda: torch.randn(3, 64, dtype=torch.complex64), "a complex64 parameter at 'weight'"),
        (lambda: torch.randn(3, 64).to_sparse(), "a sparse_coo parameter at 'weight'"),
    ],
)
def test_parameters_that_a_vector_of_floats_cannot_hold_are_refused(parameter: Any, words: str) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(parameter())

        def forward(self, inputs: Tensor) -> Tensor:
            return linear(inputs.flatten(1), self.weight)

    with pytest.raises(ExperimentError, match=words):
        trained(Odd)
