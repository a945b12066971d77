"""The mean loss over samples as a function of the model vector: its value, gradient and Hessian-vector products."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import backward, grad
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel

from gossamer.data import UNSCALED, Inputs, Samples, Scaling
from gossamer.errors import DivergenceError, ExperimentError, GossamerError
from gossamer.models import Loss, VectorModel, sample_losses
from gossamer.parts import describe_error, is_out_of_memory, user_code
from gossamer.training import Training
from gossamer.workers import ALONE, Group

#: Samples in a chunk, at most; where the model cannot be probed, and samples that probe it.
LARGEST_CHUNK, UNKNOWN_CHUNK, PROBE = 1000, 32, 4
#: Bytes that autograd may keep of one forward pass. A Hessian-vector product takes about four times as much.
FORWARD_BYTES = 256 << 20
#: Samples, at most, on which flatness is measured unless a user asks for more.
FLATNESS_SAMPLES = 10_000


class _Chunk(NamedTuple):
    inputs: Inputs
    targets: Tensor
    weights: Tensor | None


@dataclass(frozen=True, eq=False)
class Objective:
    """f(x) = (1/N) Σ_s ℓ_s(x) + (wd/2) ‖x‖², over N samples, with the model in evaluation mode.

    Sums go over chunks of samples, which bounds memory, and are float64; the chunk changes results by rounding errors
    only. Vectors stay on the device of x. In a group, every worker calls the same functions with the same vectors, sums
    some of the chunks, and gets the whole.

    >>> from torch import nn
    >>> from gossamer.models import SquaredError
    >>> one = Samples(torch.tensor([[2.0]]), torch.tensor([[1.0]]))
    >>> f = Objective(VectorModel(nn.Linear(1, 1, bias=False)), SquaredError(), one)
    >>> x = torch.tensor([3.0])  # ½ (2 x − 1)²
    >>> f.value(x), f.gradient(x).tolist(), f.hessian_product(x, torch.ones(1)).tolist()
    (12.5, [10.0], [4.0])
    """

    model: VectorModel
    loss: Loss
    samples: Samples
    #: How stored inputs become those of the model.
    scaling: Scaling = UNSCALED
    #: The coefficient wd; 0 is the loss alone.
    weight_decay: float = 0.0
    #: Samples in a chunk; None chooses by the memory that the model needs.
    chunk: int | None = None
    #: A factor for each sample, in place of 1/N.
    weights: Tensor | None = None
    group: Group = ALONE

    def __post_init__(self) -> None:
        if not len(self.samples):
            raise ExperimentError("flatness and landscape need samples, and this data set has none of this kind")
        if not 0 <= self.weight_decay < float("inf"):
            raise ExperimentError(f"weight_decay must be a finite number, 0 or more (got {self.weight_decay})")
        if self.chunk is not None and self.chunk < 1:
            raise ExperimentError(f"chunk must be 1 sample or more (got {self.chunk})")

    @property
    def name(self) -> str:
        """The loss and the model, for messages."""
        loss = self.loss.func if isinstance(self.loss, partial) else self.loss
        name = getattr(loss, "__name__", type(loss).__name__)
        return f"loss '{name}' of model '{type(self.model.template).__name__}'"

    def value(self, x: Tensor) -> float:
        """f(x); not finite where the model has diverged."""
        # One place for each chunk: summed in the same order by any number of workers, so to the same bits.
        sums = torch.zeros(self._count, dtype=torch.float64, device=x.device)
        with torch.no_grad(), user_code(self.name):
            for number, chunk in self._chunks(x):
                sums[number] = self._sum(x, chunk)
        total = self.group.all_sum(sums).sum() / self._divisor
        return float(total + 0.5 * self.weight_decay * x.square().sum(dtype=torch.float64))

    def finite_value(self, x: Tensor) -> float:
        """f(x), or an error if it is not a finite number."""
        value = self.value(x)
        if not abs(value) < float("inf"):
            raise DivergenceError(f"{self.name} is {value} at this model: a diverged model has no flatness")
        return value

    def gradient(self, x: Tensor) -> Tensor:
        """∇f(x) = (1/N) Σ_s ∇ℓ_s(x) + wd x."""
        total = torch.zeros_like(x, dtype=torch.float64)
        with user_code(f"{self.name}, its gradient"):
            for _, chunk in self._chunks(x):
                leaf = x.detach().requires_grad_()
                total += grad(self._sum(leaf, chunk), leaf)[0]
        return self._mean(total, x)

    def hessian_product(self, x: Tensor, v: Tensor) -> Tensor:
        """∇²f(x) v = (1/N) Σ_s ∇²ℓ_s(x) v + wd v: exact, by differentiating the gradient once more."""
        total = torch.zeros_like(x, dtype=torch.float64)
        for _, chunk in self._chunks(x):
            try:
                total += self._second(x, v, chunk)
            except GossamerError:
                raise
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                reason = f"its second derivative fails with {describe_error(error)}"
                raise ExperimentError(f"{self._culprit(x, chunk)}: {reason}") from error
        product = self._mean(total, v)
        if not bool(torch.isfinite(product).all()):
            self.finite_value(x)
            raise ExperimentError(
                f"{self.name}: its second derivative is not finite at this model, though the loss is. A square root or "
                "a power below 2 of zero does this; add a small constant inside."
            )
        return product

    @property
    def _divisor(self) -> int:
        return len(self.samples) if self.weights is None else 1

    def _mean(self, total: Tensor, decayed: Tensor) -> Tensor:
        """The mean of what all workers summed, and the weight decay."""
        mean = self.group.all_sum(total).div_(self._divisor)
        return mean.add_(decayed, alpha=self.weight_decay).to(decayed.dtype)

    def _second(self, x: Tensor, v: Tensor, chunk: _Chunk) -> Tensor:
        """Σ_s ∇²ℓ_s(x) v over one chunk. Its graph is freed on return."""
        leaf = x.detach().requires_grad_()
        with sdpa_kernel(SDPBackend.MATH):  # the only form of attention with a second derivative
            return _twice(self._sum(leaf, chunk), leaf, v)

    def _sum(self, x: Tensor, chunk: _Chunk) -> Tensor:
        losses = sample_losses(self.loss, self.model(x, chunk.inputs), chunk.targets)
        return losses.sum() if chunk.weights is None else (losses * chunk.weights).sum()

    @property
    def _count(self) -> int:
        """The number of chunks."""
        return -(-len(self.samples) // self._chunk)

    def _chunks(self, x: Tensor) -> Iterator[tuple[int, _Chunk]]:
        """This worker's chunks of the samples, as the model takes them, by their numbers."""
        if x.shape != (self.model.size,):
            raise ExperimentError(f"a vector of shape {tuple(x.shape)} for a model of {self.model.size:,} parameters")
        self.model.template.eval()
        for number in range(self.group.rank, self._count, self.group.size):
            rows = slice(number * self._chunk, (number + 1) * self._chunk)
            some = self.samples[rows].to(x.device)
            weights = None if self.weights is None else self.weights[rows].to(x)
            yield number, _Chunk(self.scaling.apply(some.inputs, x.dtype), some.targets, weights)

    @cached_property
    def _chunk(self) -> int:
        """`chunk`, or as many samples as keep a forward pass within FORWARD_BYTES."""
        if self.chunk is not None:
            return self.chunk
        with suppress(Exception):  # a model that cannot be probed; its own failure is reported where it counts
            few, many = (self._kept(count) for count in (PROBE // 2, PROBE))
            most = max(1, min(LARGEST_CHUNK, FORWARD_BYTES * (PROBE - PROBE // 2) // max(1, many - few)))
            return -(-len(self.samples) // -(-len(self.samples) // most))  # chunks of about the same size
        return UNKNOWN_CHUNK

    def _kept(self, count: int) -> int:
        """Bytes that autograd keeps of a forward pass over `count` samples."""
        x = self.model.initial.detach().requires_grad_()
        inputs = self.samples[torch.arange(count) % len(self.samples)].to(x.device).inputs
        storages: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
            return tensor.detach()

        with saved_tensors_hooks(keep, lambda tensor: tensor):
            outputs = self.model(x, self.scaling.apply(inputs, x.dtype))
        del outputs  # alive until here, so that no address is used twice
        return sum(storages.values())

    def _culprit(self, x: Tensor, chunk: _Chunk) -> str:
        """Which of loss and model has no second derivative: the loss, if it fails as a function of the outputs."""
        loss, model = self.name.split(" of ")
        try:
            outputs = self.model(x, chunk.inputs).detach().requires_grad_()
        except Exception:
            return model
        try:
            _twice(sample_losses(self.loss, outputs, chunk.targets).sum(), outputs, torch.ones_like(outputs))
        except Exception:
            return loss
        return model


def training_objective(
    training: Training,
    group: Group = ALONE,
    weights: Tensor | None = None,
    weight_decay: float = 0.0,
    most: int | None = None,
    test: bool = False,
) -> Objective:
    """The mean loss over the training samples of all clients, or over the test samples.

    Of more than `most` samples, so many are taken at even distances.
    """
    dataset = training.dataset
    samples = dataset.test if test else dataset.train
    if most is not None and len(samples) > most:
        samples = samples[torch.arange(most, device=samples.device) * len(samples) // most]
    return Objective(
        training.model, training.loss, samples, dataset.scaling, weight_decay, weights=weights, group=group
    )


def _twice(total: Tensor, leaf: Tensor, v: Tensor) -> Tensor:
    """The derivative of (∂ total / ∂ leaf)ᵀ v by leaf.

    A backward pass marked `once_differentiable` raises only if it is given a gradient that needs one itself, hence the
    factor, and only in a pass over the whole graph, hence `backward`: `grad` would take it for a constant.
    """
    factor = torch.ones_like(total).requires_grad_()
    (gradient,) = grad(total * factor, leaf, create_graph=True)
    backward(gradient, v)
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
