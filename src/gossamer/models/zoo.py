"""The networks of the papers, for any image size they can take. Normalisation is GroupNorm throughout."""

import inspect
import math
from typing import Annotated, Any, Literal

from pydantic import Field
from torch import Tensor, nn

from gossamer.data import Shape as InputShape
from gossamer.errors import ExperimentError
from gossamer.parts import Catalog, part

Shape = tuple[int, ...]


@part
class Softmax:
    """Softmax regression: one linear layer."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        return _mlp(math.prod(shape), [], classes)


@part
class TwoHidden:
    """Two hidden layers of 200 units (784-200-200-10 on MNIST: 199,210 parameters)."""

    width: Annotated[int, Field(ge=1, description="units in each hidden layer")] = 200
    init: Annotated[
        Literal["xavier", "kaiming"] | None,
        Field(description="initial weights, with zero biases; unset: torch's own, which are smaller"),
    ] = None

    def build(self, shape: Shape, classes: int) -> nn.Module:
        network = _mlp(math.prod(shape), [self.width, self.width], classes)
        for layer in network.modules() if self.init else ():
            if isinstance(layer, nn.Linear):
                (nn.init.xavier_uniform_ if self.init == "xavier" else nn.init.kaiming_normal_)(layer.weight)
                nn.init.zeros_(layer.bias)
        return network


@part
class OneHidden:
    """One hidden layer of 500 units (784-500-10 on MNIST: 397,510 parameters)."""

    width: Annotated[int, Field(ge=1, description="units in the hidden layer")] = 500

    def build(self, shape: Shape, classes: int) -> nn.Module:
        return _mlp(math.prod(shape), [self.width], classes)


@part
class LeNet:
    """LeNet: two 5x5 convolutions, three linear layers (62,006 parameters on CIFAR-10)."""

    group_norm: Annotated[bool, Field(description="GroupNorm after each pooling (62,050 parameters)")] = False

    def build(self, shape: Shape, classes: int) -> nn.Module:
        channels, height, width = _image("lenet", shape, smallest=16)
        features = nn.Sequential(
            *(nn.Conv2d(channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2), *([nn.GroupNorm(2, 6)] * self.group_norm)),
            *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), *([nn.GroupNorm(4, 16)] * self.group_norm)),
        )
        left = 16 * _after_two_5x5(height) * _after_two_5x5(width)
        return nn.Sequential(features, _mlp(left, [120, 84], classes))


@part
class CifarCNN:
    """Two 5x5 convolutions of 64 channels, three linear layers (797,962 parameters on CIFAR-10)."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        channels, height, width = _image("cifar-cnn", shape, smallest=16)
        features = nn.Sequential(
            *(nn.Conv2d(channels, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(64, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
        )
        left = 64 * _after_two_5x5(height) * _after_two_5x5(width)
        return nn.Sequential(features, _mlp(left, [384, 192], classes))


@part
class VGG11:
    """VGG-11 with GroupNorm and one linear layer (9,231,114 parameters on CIFAR-10)."""

    groups: Annotated[int, Field(ge=1, description="groups in each GroupNorm")] = 32

    def build(self, shape: Shape, classes: int) -> nn.Module:
        channels, _, _ = _image("vgg-11", shape, smallest=32)
        _check_groups("vgg-11", self.groups)
        layers: list[nn.Module] = []
        for width, pooled in [(64, 1), (128, 1), (256, 0), (256, 1), (512, 0), (512, 1), (512, 0), (512, 1)]:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.GroupNorm(self.groups, width), nn.ReLU()]
            layers += [nn.MaxPool2d(2)] * pooled
            channels = width
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes)]
        module = nn.Sequential(*layers)
        for layer in module:
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]  # these convolutions have a bias
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, 0.0, 0.01)
                nn.init.zeros_(layer.bias)
        return module


@part
class ResNet18:
    """ResNet-18 with GroupNorm (11,173,962 parameters on CIFAR-10)."""

    groups: Annotated[int, Field(ge=1, description="groups in each GroupNorm")] = 32
    stem: Annotated[
        Literal["small", "large"], Field(description="small: 3x3 stride 1; large: 7x7 stride 2 and pooling")
    ] = "small"

    def build(self, shape: Shape, classes: int) -> nn.Module:
        channels, _, _ = _image("resnet-18", shape, smallest=8)
        _check_groups("resnet-18", self.groups)
        if self.stem == "small":
            stem: list[nn.Module] = [nn.Conv2d(channels, 64, 3, 1, 1, bias=False)]
        else:
            stem = [nn.Conv2d(channels, 64, 7, 2, 3, bias=False)]
        stem += [nn.GroupNorm(self.groups, 64), nn.ReLU()]
        stem += [nn.MaxPool2d(3, 2, 1)] * (self.stem == "large")
        plan = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
        plan += [(128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
        blocks = [_ResidualBlock(before, after, stride, self.groups) for before, after, stride in plan]
        return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


class _ResidualBlock(nn.Module):
    def __init__(self, before: int, after: int, stride: int, groups: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.GroupNorm(groups, after), nn.ReLU()),
            *(nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.GroupNorm(groups, after)),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.GroupNorm(groups, after))

    def forward(self, inputs: Tensor) -> Tensor:
        return nn.functional.relu(self.body(inputs) + self.shortcut(inputs))


MODELS = Catalog(
    "model",
    {
        "softmax": Softmax,
        "mnist-2nn": TwoHidden,
        "mlp-500": OneHidden,
        "lenet": LeNet,
        "cifar-cnn": CifarCNN,
        "vgg-11": VGG11,
        "resnet-18": ResNet18,
    },
    role="build",
)


def make_module(model: Any, shape: InputShape, classes: int) -> nn.Module:
    """The module of a built-in model or of a user's factory.

    A factory is called with (input shape, number of classes) if it has two required parameters, else without arguments.
    """
    if hasattr(model, "build"):
        if isinstance(shape, dict) and type(model) in MODELS.values():
            raise ExperimentError(
                f"model: the built-in ones take one tensor; this data set has inputs {', '.join(shape)}. Give a "
                "function that makes an nn.Module whose forward takes arguments of these names."
            )
        module = model.build(shape, classes)
    elif isinstance(model, nn.Module):
        raise ExperimentError(
            f"model: pass a function that makes the {type(model).__name__}, not a finished one, "
            "so that its initial weights follow the experiment's seed"
        )
    elif callable(model):
        required = [
            p
            for p in inspect.signature(model).parameters.values()
            if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        if len(required) not in (0, 2):
            raise ExperimentError(
                "model: a factory takes no argument, or (input shape, number of classes); "
                f"this one needs {', '.join(p.name for p in required)}"
            )
        module = model(shape, classes) if required else model()
        again = model(shape, classes) if required else model()
        _refuse_made_before(module, again)
    else:
        raise ExperimentError(f"model: expected a name or a function that makes an nn.Module (got {model!r})")
    if not isinstance(module, nn.Module):
        raise ExperimentError(f"model: the factory must return an nn.Module (got {type(module).__name__})")
    return module


def _refuse_made_before(module: Any, again: Any) -> None:
    """Refuse a factory that hands out parameters that it has made before: they would not follow the seed."""
    if not isinstance(module, nn.Module) or not isinstance(again, nn.Module):
        return  # refused by the caller
    shared = {id(p) for p in again.parameters() if p.requires_grad}
    if name := next((name for name, p in module.named_parameters() if id(p) in shared), None):
        raise ExperimentError(
            f"model: the function gives the same parameter '{name}' in every call. Make the layers inside of it, so "
            "that their initial weights follow the experiment's seed; only frozen ones may be shared"
        )


def _mlp(inputs: int, hidden: list[int], classes: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, classes))


def _after_two_5x5(side: int) -> int:
    """What two rounds of "5x5 convolution, halve" leave of an image side."""
    return ((side - 4) // 2 - 4) // 2


def _image(name: str, shape: Shape, smallest: int) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise ExperimentError(
            f"model '{name}' needs images of at least {smallest}x{smallest} pixels; this data set has samples of shape "
            f"{'x'.join(map(str, shape))}. 'softmax', 'mnist-2nn' and 'mlp-500' take any shape."
        )
    return shape[0], shape[1], shape[2]


def _check_groups(name: str, groups: int) -> None:
    if 64 % groups:
        raise ExperimentError(f"model '{name}': groups must divide 64, its smallest number of channels (got {groups})")
