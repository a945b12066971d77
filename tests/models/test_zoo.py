"""The zoo: parameter counts, and that every model learns."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gossamer import Experiment, per_client, simulate
from gossamer.data import DATASETS, Dataset
from gossamer.errors import ExperimentError
from gossamer.models import MODELS, VectorModel, build_model, make_module

COLOUR, GREY = (3, 32, 32), (1, 28, 28)


@pytest.mark.parametrize(
    ("spec", "shape", "classes", "count"),
    [
        ("softmax", GREY, 10, 7_850),
        ("mnist-2nn", GREY, 10, 199_210),
        ("mlp-500", GREY, 10, 397_510),
        ("mlp-500", COLOUR, 10, 1_541_510),
        ("lenet", COLOUR, 10, 62_006),
        ({"name": "lenet", "group_norm": True}, COLOUR, 10, 62_050),
        ("cifar-cnn", COLOUR, 10, 797_962),
        ("vgg-11", COLOUR, 10, 9_231_114),
        ("resnet-18", COLOUR, 10, 11_173_962),
        ({"name": "resnet-18", "stem": "large", "groups": 2}, COLOUR, 100, 11_227_812),
    ],
)
def test_parameter_counts(spec: Any, shape: tuple[int, ...], classes: int, count: int) -> None:
    model = VectorModel(make_module(MODELS.build(spec), shape, classes))
    assert model.size == count
    assert model(model.initial, torch.zeros(2, *shape)).shape == (2, classes)


@pytest.mark.parametrize(("init", "deviation"), [("xavier", (2 / 984) ** 0.5), ("kaiming", (2 / 784) ** 0.5)])
def test_initial_weights_of_the_papers(init: str, deviation: float) -> None:
    first = next(make_module(MODELS.build({"name": "mnist-2nn", "init": init}), GREY, 10).parameters())
    assert float(first.detach().std()) == pytest.approx(deviation, rel=0.02)


def digits_as_photographs(per: int) -> Dataset:
    """Real images, four clients: the digits enlarged to 32 × 32 in three channels."""
    digits = DATASETS.build("digits").load(None)
    images = digits.train.inputs[: 4 * per].float() / 16
    images = nn.functional.interpolate(images, size=(32, 32)).expand(-1, 3, -1, -1).numpy()
    targets = digits.train.targets[: 4 * per].numpy()
    return per_client([(images[i::4], targets[i::4]) for i in range(4)], classes=10)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_model_learns_a_real_batch_on_four_clients(name: str) -> None:
    lr = 0.01 if name in ("vgg-11", "resnet-18") else 0.05
    experiment = Experiment(
        model=name, dataset=digits_as_photographs(4), clients=4, rounds=2, batch_size=4, local_steps=1, lr=lr,
        evaluate={"training": 1, "every": 0, "clients": 0},
    )  # fmt: skip
    losses = simulate(experiment).metrics["train_loss"]
    assert np.isfinite(losses).all()
    assert losses[1] < losses[0] < 4.0


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("lenet", (1, 8, 8), "at least 16x16"),
        ("vgg-11", (1, 28, 28), "at least 32x32"),
        ("resnet-18", (10,), "needs images"),
        ({"name": "resnet-18", "groups": 3}, COLOUR, "divide 64"),
        ({"name": "vgg-11", "groups": 3}, COLOUR, "divide 64"),
    ],
)
def test_images_that_a_model_cannot_take_are_refused(name: Any, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        make_module(MODELS.build(name), shape, 10)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (lambda a: nn.Linear(a, 2), "this one needs a$"),
        (lambda: "no module", "must return an nn.Module"),
        (nn.Linear(2, 2), "not a finished one"),
        (3, "expected a name or a function"),
    ],
)
def test_what_is_no_factory_is_refused(factory: Any, message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        make_module(factory, (2,), 2)


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(4), nn.InstanceNorm1d(4, track_running_stats=True)])
def test_running_statistics_are_refused_and_group_norm_is_named(layer: nn.Module) -> None:
    with pytest.raises(ExperimentError, match="GroupNorm"):
        VectorModel(nn.Sequential(nn.Linear(3, 4), layer))


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(ExperimentError, match="no trainable parameter"):
        VectorModel(nn.Flatten())


def test_vector_and_module_agree() -> None:
    model = VectorModel(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    x, inputs = torch.randn(model.size), torch.randn(5, 3)
    torch.testing.assert_close(model.module(x)(inputs), model(x, inputs))
    assert torch.equal(VectorModel(model.module(x)).initial, x)


def test_frozen_parameters_stay_out_of_the_vector() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    module[0].requires_grad_(False)
    assert VectorModel(module).size == 10


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_initial_weights_follow_the_seed_and_spare_the_global_stream(dtype: torch.dtype) -> None:
    make: Callable[[], nn.Module] = lambda: nn.Linear(3, 2)  # noqa: E731
    torch.manual_seed(0)
    before = torch.get_rng_state()
    one, same, other = (build_model(make, seed, dtype, torch.device("cpu")).initial for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert one.dtype == dtype
    assert torch.equal(torch.get_rng_state(), before)


def test_frozen_parameters_are_neither_trained_nor_sent() -> None:
    def frozen_body(shape: tuple[int, ...], classes: int) -> nn.Module:
        body = nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.ReLU()).requires_grad_(False)
        return nn.Sequential(body, nn.Linear(3, classes))

    run = simulate(Experiment(model=frozen_body, rounds=2, clients=4, local_steps=2))
    one = simulate(Experiment(model=frozen_body, rounds=1, clients=4, local_steps=1))
    assert run.vectors.shape == (4, 3 * 10 + 10)
    assert run.last["client_bytes_round"] == 2 * 4 * 40  # a ring: two neighbours
    bodies = [dict(each.model.named_parameters())["0.1.weight"] for each in (run, one)]
    assert torch.equal(*bodies)
