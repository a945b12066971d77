"""Whichever library multiplies matrices, the numbers are the same; and what others cannot take stays with MKL."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gossamer import Experiment, simulate
from gossamer.data import Dataset, Samples, Scaling
from gossamer.engines import ExecutionPlan, FastProducts, Products, no_onednn
from gossamer.engines.planning import choice
from gossamer.engines.steps import products as library
from gossamer.engines.steps.products import Product, Seconds, replace_products, seconds_of
from gossamer.errors import ExperimentError
from gossamer.system.own_product import multiply
from gossamer.system.torch_private import onednn_linear, trace
from observers import Listening

TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="there is no C++ compiler")
needs_onednn = pytest.mark.skipif(onednn_linear() is None, reason="torch was built without oneDNN")


class Wide(nn.Module):
    """A user's own module: layers that are called with three dimensions, a product of its own, a weight used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 32), nn.Linear(32, 3, bias=False)
        self.square = nn.Parameter(torch.randn(32, 32) / 6)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.relu(self.first(inputs.flatten(1)))
        out: Tensor = self.last(torch.tanh(hidden @ self.square) @ self.square.t())
        return out


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 32), nn.ReLU(), nn.Linear(32, 3)
    )


def images(clients: int = 4) -> Dataset:
    random = torch.Generator().manual_seed(0)
    train = Samples(torch.randn(16 * clients, 1, 8, 8, generator=random), torch.arange(16 * clients) % 3)
    owners = tuple(part.numpy() for part in torch.arange(16 * clients).chunk(clients))
    return Dataset("noise", train, train, 3, (1, 8, 8), Scaling(), clients=owners)


def experiment(**changed: Any) -> Experiment:
    settings: dict[str, Any] = {
        "method": "dfedavg", "graph": "ring", "dataset": images(), "model": Wide, "batch_size": 16, "lr": 0.05,
        "local_steps": 2, "rounds": 4, "clients": 4, "weight_decay": 1e-3, **changed,
    }  # fmt: skip
    return Experiment(**settings)


def vectors(described: Experiment, listener: Listening | None = None, **options: Any) -> Tensor:
    run = simulate(described, observers=[listener] if listener else [], **{"workers": 1, **options})
    found: Tensor = run.vectors
    assert torch.isfinite(found).all()
    return found


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("model", "dtype", "method", "libraries"),
    [
        (Wide, "float32", "dfedadmm", ("mkl", "onednn", "auto")),
        (convolutional, "float32", "dfedsam", ("onednn",)),
        (Wide, "float64", "dfedavg", ("onednn", "auto")),
    ],
)
def test_traced_steps_have_the_same_numbers_whichever_library_multiplies(
    model: Any, dtype: str, method: str, libraries: tuple[str, ...]
) -> None:
    described = experiment(model=model, dtype=dtype, method=method)
    eager = vectors(described, chunk=1, step="eager")
    for products in libraries:
        found = vectors(described, chunk=1, step="traced", products=products)
        torch.testing.assert_close(found, eager, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.slow
def test_two_workers_and_vectorised_clients_have_the_same_numbers() -> None:
    eager = vectors(experiment(), chunk=1, step="eager")
    for how in ({"workers": 2, "chunk": 1}, {"workers": 1, "chunk": 4}):
        found = vectors(experiment(), step="traced", products="onednn", **how)
        torch.testing.assert_close(found, eager, rtol=0, atol=1e-5)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(("model", "dtype"), [(Wide, "float32"), (convolutional, "float32")])
def test_compiled_steps_have_the_same_numbers(model: Any, dtype: str) -> None:
    described, listener = experiment(model=model, dtype=dtype, local_steps=1), Listening()
    found = vectors(described, listener, chunk=1, step="compiled", products="onednn")
    assert not [note for note in listener.notes if "compiled" in note]
    torch.testing.assert_close(found, vectors(described, chunk=1, step="eager"), rtol=0, atol=TOLERANCE[dtype])


def test_a_plan_says_which_library_multiplies_and_is_kept() -> None:
    listener = Listening()
    vectors(experiment(), listener, chunk=1, step="traced", products="mkl")
    assert "traced steps, products by MKL" in listener.how
    vectors(experiment(dtype="float64"), listener, chunk=1, step="traced", products="onednn")
    assert "products by MKL" in listener.how  # oneDNN has no product in float64
    plan = ExecutionPlan(2, "traced", products="onednn", reason="as asked")
    assert ExecutionPlan.from_json(plan.to_json()) == plan
    assert "products" not in str(ExecutionPlan(1, "eager"))


@pytest.mark.parametrize(
    ("changed", "step", "words"),
    [({"dtype": "float64"}, "traced", "the model is in float64"), ({}, "eager", "steps are eager")],
)
def test_oneDNN_that_is_asked_for_in_vain_is_said(changed: dict[str, Any], step: str, words: str) -> None:
    listener = Listening()
    vectors(experiment(**changed), listener, chunk=1, step=step, products="onednn")
    (note,) = [note for note in listener.notes if "oneDNN" in note]
    assert words in note


def test_without_oneDNN_everything_stays_with_MKL(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "onednn_linear", lambda: None)
    assert no_onednn(torch.float32, torch.device("cpu")) == "torch was built without oneDNN"
    listener = Listening()
    found = vectors(experiment(), listener, chunk=1, step="traced", products="onednn")
    assert any("built without oneDNN" in note for note in listener.notes)
    assert torch.equal(found, vectors(experiment(), chunk=1, step="traced", products="mkl"))


def test_an_unknown_library_is_refused() -> None:
    with pytest.raises(ExperimentError, match="products: should be 'auto' or 'mkl' or 'onednn' or 'own'"):
        simulate(experiment(), products="cublas")  # type: ignore[arg-type]


CALLS: dict[Products, str] = {"onednn": "mkldnn", "own": "own_product"}


def product_of(a: Tensor, b: Tensor, products: Products = "onednn") -> tuple[str, Tensor, Tensor]:
    """The code of a traced product, what it gives, and what `torch.mm` gives."""
    graph = trace(lambda a, b: [a @ b], [a, b])
    replace_products(graph, products)
    return graph.code, graph(a, b)[0], a @ b


@needs_onednn
@needs_compiler
@pytest.mark.parametrize("products", CALLS)
@pytest.mark.parametrize("layout", ["plain", "transposed", "columns", "expanded", "every other"])
def test_matrices_may_lie_in_memory_as_they_like(layout: str, products: Products) -> None:
    random = torch.Generator().manual_seed(0)
    a, b = torch.randn(48, 80, generator=random), torch.randn(80, 40, generator=random)
    if layout == "transposed":
        a, b = a.t().contiguous().t(), b.t().contiguous().t()
    elif layout == "columns":
        a, b = torch.randn(48, 200, generator=random)[:, 7:87], torch.randn(80, 90, generator=random)[:, 3:43]
    elif layout == "expanded":
        a, b = a[:1].expand(48, 80), b[:, :1].expand(80, 40)
    elif layout == "every other":
        a, b = torch.randn(96, 160, generator=random)[::2, ::2], torch.randn(160, 80, generator=random)[::2, ::2]
    code, found, expected = product_of(a, b, products)
    assert CALLS[products] in code
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (15, 37, 9), (17, 401, 63), (8, 1000, 64), (30, 5, 130), (70, 1700, 37)])
def test_our_kernel_multiplies_matrices_of_any_size(sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    rows, inner, columns = sizes
    random = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=random, dtype=dtype) for shape in ((rows, inner), (columns, inner)))
    bias = torch.randn(2 * columns, generator=random, dtype=dtype)[::2]
    exact = a.double() @ b.double().t() + bias.double()
    close = {"rtol": 0, "atol": 1e-3 if dtype == torch.float32 else 1e-11}
    torch.testing.assert_close(multiply(a, b.t(), bias, False).double(), exact, **close)
    torch.testing.assert_close(multiply(a, b.t().contiguous(), bias, True).double(), exact.relu(), **close)
    torch.testing.assert_close(multiply(a, b.t(), None, False).double(), exact - bias.double(), **close)
    a[0, 0] = torch.nan  # in one row only
    found = multiply(a, b.t(), bias, True)
    assert found[0].isnan().all()
    assert found[1:].isfinite().all()


@needs_compiler
def test_a_product_without_an_inner_dimension_is_the_bias() -> None:
    bias = torch.arange(5.0) - 2
    expected = bias.relu().expand(3, 5)
    assert torch.equal(multiply(torch.ones(3, 0), torch.ones(0, 5), bias, True), expected)
    assert torch.equal(multiply(torch.ones(3, 0), torch.ones(5, 0).t(), bias, True), expected)  # turned


@needs_compiler
def test_the_gradient_of_a_weight_is_written_as_a_part_of_the_vector() -> None:
    random = torch.Generator().manual_seed(0)
    g, x = torch.randn(48, 80, generator=random), torch.randn(48, 40, generator=random)
    ways = {
        True: lambda g, x: [torch.cat([(g.t() @ x).t().t().view(-1), g[0]])],
        False: lambda g, x: [torch.cat([(g.t() @ x).t().contiguous().view(-1), g[0]])],
    }
    for flat, gradient in ways.items():
        graph = trace(gradient, [g, x])
        replace_products(graph, "own")
        assert ("None, False, True)" in graph.code) == flat
        torch.testing.assert_close(graph(g, x), gradient(g, x), rtol=1e-5, atol=1e-4)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64])
def test_other_types_of_numbers_and_tiny_products_stay(dtype: torch.dtype) -> None:
    a, b = torch.ones(48, 80, dtype=dtype), torch.ones(80, 40, dtype=dtype)
    assert "mkldnn" not in product_of(a, b)[0]
    assert ("own_product" in product_of(a, b, "own")[0]) == (dtype == torch.float64)
    for products in CALLS:
        code, *_ = product_of(torch.ones(4, 8), torch.ones(8, 4), products)
        assert CALLS[products] not in code


@needs_onednn
@needs_compiler
def test_the_fastest_library_is_taken_and_the_measurement_kept(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Product] = []

    def measure(**seconds: float) -> None:
        def found(product: Product, libraries: Any) -> Seconds:
            measured.append(product)
            return Seconds(seconds, busy=False)  # type: ignore[arg-type]

        monkeypatch.setattr(library, "_measure", found)

    a, b = torch.ones(48, 80), torch.ones(80, 40)
    measure(mkl=2.0, onednn=1.0, own=1.5)
    assert "mkldnn" in product_of(a, b, "auto")[0]
    assert "mkldnn" in product_of(a, b, "auto")[0]
    assert len(measured) == 1
    measure(mkl=1.0, onednn=0.99, own=0.98)
    assert "mm" in product_of(a.t(), b[:48], "auto")[0]  # hardly faster
    measure(mkl=2.0, onednn=1.0, own=0.5)
    assert "own_product" in product_of(a[:40], b, "auto")[0]


def test_what_was_measured_on_a_busy_machine_is_measured_again_when_it_is_quiet(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    product, busy = Product(48, 80, 40, (80, 1), (40, 1)), [True]
    times = iter([Seconds({"mkl": 1.0}, True), Seconds({"mkl": 2.0}, False), Seconds({"mkl": 9.0}, False)])
    monkeypatch.setattr(library, "_measure", lambda product, libraries: next(times))
    monkeypatch.setattr(library, "is_busy", lambda: busy[0])
    assert seconds_of(product).of["mkl"] == 1.0
    assert seconds_of(product).of["mkl"] == 1.0  # still busy
    busy[0] = False
    assert seconds_of(product).of["mkl"] == 2.0
    assert seconds_of(product).of["mkl"] == 2.0


def test_a_plan_of_a_busy_machine_is_marked(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy, kept_in = [True], own_cache / "plan.json"
    monkeypatch.setattr(choice, "is_busy", lambda: busy[0])
    kept_in.write_text('["{\\"chunk\\": 2, \\"step\\": \\"traced\\", \\"channels_last\\": false, '
                       '\\"products\\": \\"mkl\\", \\"reason\\": \\"measured\\"}", true]')  # fmt: skip
    found = choice._measured_earlier(kept_in)
    assert found is not None
    assert found.reason == "measured; on a busy machine; kept from an earlier run"
    busy[0] = False
    assert choice._measured_earlier(kept_in) is None


@needs_onednn
def test_evaluation_multiplies_by_the_same_library() -> None:
    layer, inputs = nn.Linear(64, 32), torch.randn(100, 64)
    called: list[int] = []
    fast = FastProducts("onednn")
    linear = fast._linear
    fast._linear = lambda *given: called.append(1) or linear(*given)
    with torch.no_grad(), fast:
        torch.testing.assert_close(layer(inputs), torch.addmm(layer.bias, inputs, layer.weight.t()))
        assert called == [1]
        layer(inputs[None])
        layer.double()(inputs.double())
    with fast:
        layer.float()(inputs)  # a tape would not know it
    assert called == [1]
    described = experiment(evaluate={"every": 1, "clients": 1})
    runs = [simulate(described, workers=1, chunk=1, step="traced", products=each) for each in ("mkl", "onednn")]
    for name in ("test_loss", "client_loss_mean"):
        one, other = (torch.tensor(run.metrics[name].to_numpy()) for run in runs)
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
