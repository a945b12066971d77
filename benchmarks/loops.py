"""The clean PyTorch loop that Gossamer is measured against: what someone who knows PyTorch well writes by hand.

One module and one `torch.optim.SGD` for each client, samples as one tensor of bytes, batches gathered by index. The
modules' parameters are views of the rows of one matrix, so that averaging with neighbours needs no copies into and out
of the modules. Of several ways to write each line the fastest was taken: `index_select` for a batch, in-place sums of
rows for the averages, SGD's default implementation (its `foreach` and `fused` forms are no faster here).

A second form of it calls the fastest products in reach (`fastest_products`), so that one sees what comes from them.

Nothing of Gossamer is used. `tests/bench` holds each loop to the engine's numbers, so both do the same work.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

#: The batches of one client in one round, as indices of samples.
Draw = Callable[[int, int], Sequence[Tensor]]


@dataclass(frozen=True)
class Work:
    """What all loops need to know."""

    make: Callable[[], nn.Module]
    #: All samples, as they are stored; `factor` turns a batch of them into what a model is given.
    inputs: Tensor
    targets: Tensor
    factor: float
    #: Which samples a client holds.
    client_rows: Sequence[Tensor]
    #: Whom a client listens to, itself included, and with what weight.
    weights: Sequence[Sequence[tuple[int, float]]]
    batch_size: int
    steps: int
    lr: float
    weight_decay: float = 0.0
    dtype: torch.dtype = torch.float32
    #: Images with their channels last, which a convolution on a CPU likes better.
    channels_last: bool = False
    #: Linear layers by whichever library is the fastest for each shape, and not as PyTorch does by itself.
    fastest_products: bool = False


class Loop(ABC):
    """What the loops share: everything but the local step."""

    def __init__(self, work: Work, draw: Draw | None = None) -> None:
        self.work = work
        self.clients = len(work.client_rows)
        self.draw = draw or self._epochs
        self.done = 0
        self.modules = [work.make() for _ in range(self.clients)]
        for module in self.modules if work.fastest_products else ():
            replace_linear(module)
        self.models = torch.stack([parameters_to_vector(m.parameters()).detach() for m in self.modules])
        self.mixed = torch.empty_like(self.models)
        for module, row in zip(self.modules, self.models, strict=True):
            vector_to_parameters(row, module.parameters())  # from here on they are views of the row
        self.optimizers = [
            torch.optim.SGD(m.parameters(), lr=work.lr, weight_decay=work.weight_decay) for m in self.modules
        ]

    def round(self) -> None:
        """Everyone's local steps, then one average with the neighbours."""
        for client in range(self.clients):
            self.begin(client)
            for rows in self.draw(client, self.done):
                self.step(client, *self.gather(rows))
            self.finish(client)
        self.mix()
        self.done += 1

    def gather(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The tensors of one batch."""
        inputs = self.work.inputs.index_select(0, rows).to(self.work.dtype).mul_(self.work.factor)
        if self.work.channels_last:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return inputs, self.work.targets.index_select(0, rows)

    def begin(self, client: int) -> None:  # noqa: B027  # most methods have nothing to do here
        """Before a client's first step of a round."""

    @abstractmethod
    def step(self, client: int, inputs: Tensor, targets: Tensor) -> None:
        """One local step."""

    def finish(self, client: int) -> None:  # noqa: B027  # most methods send the model as it is
        """After a client's last step of a round."""

    def differentiate(self, client: int, inputs: Tensor, targets: Tensor) -> None:
        """Leave the gradient of one batch with the client's parameters."""
        self.optimizers[client].zero_grad()
        cross_entropy(self.modules[client](inputs), targets).backward()  # type: ignore[no-untyped-call]

    def mix(self) -> None:
        """Every model becomes the weighted average of those its client listens to."""
        rows, mixed = self.models.unbind(), self.mixed.unbind()
        for row, ((first, weight), *others) in zip(mixed, self.work.weights, strict=True):
            torch.mul(rows[first], weight, out=row)
            for other, weight in others:
                row.add_(rows[other], alpha=weight)
        self.models.copy_(self.mixed)

    def _epochs(self, client: int, round: int) -> Sequence[Tensor]:
        part, batches = self.work.client_rows[client], list[Tensor]()
        while len(batches) < self.work.steps:
            batches += torch.split(part[torch.randperm(len(part))], self.work.batch_size)
        return batches[: self.work.steps]


#: Whether oneDNN is faster than `torch.mm` for matrices of these shapes and strides, with or without a bias.
ONEDNN_IS_FASTER: dict[tuple[Any, ...], bool] = {}


def multiply(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """a b + bias by the faster library, which is measured the first time."""
    key = (a.shape, a.stride(), b.shape, b.stride(), bias is None)
    if key not in ONEDNN_IS_FASTER:
        ONEDNN_IS_FASTER[key] = a.dtype == torch.float32 and fastest(by_onednn, a, b, bias) < fastest(by_mm, a, b, bias)
    return by_onednn(a, b, bias) if ONEDNN_IS_FASTER[key] else by_mm(a, b, bias)


def by_mm(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    """As PyTorch does."""
    return torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)


def by_onednn(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    """The same by oneDNN, which is a part of PyTorch."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.t(), bias, "none", [-1], "")
    return product


def fastest(product: Callable[..., Tensor], *arguments: Tensor | None) -> float:
    """The least seconds that a product took."""
    seconds = []
    for _ in range(10):
        started = time.perf_counter()
        product(*arguments)
        seconds.append(time.perf_counter() - started)
    return min(seconds)


class FastProduct(torch.autograd.Function):
    """A linear layer of which all three products, forward and backward, are done by `multiply`."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(inputs, weight)
        return multiply(inputs, weight.t(), bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:  # type: ignore[override]
        inputs, weight = ctx.saved_tensors
        back = multiply(gradient, weight) if ctx.needs_input_grad[0] else None
        return back, multiply(gradient.t(), inputs), gradient.sum(0)


class FastLinear(nn.Module):
    """A linear layer, with the parameters of another one."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = FastProduct.apply(inputs, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return outputs


def replace_linear(module: nn.Module) -> None:
    """Put a `FastLinear` in the place of every linear layer."""
    for name, layer in module.named_children():
        if isinstance(layer, nn.Linear):
            setattr(module, name, FastLinear(layer))
        else:
            replace_linear(layer)


class DFedAvgLoop(Loop):
    """Plain local SGD."""

    def step(self, client: int, inputs: Tensor, targets: Tensor) -> None:
        self.differentiate(client, inputs, targets)
        self.optimizers[client].step()


class DFedSAMLoop(Loop):
    """SAM: climb by ρ along the gradient, in place, differentiate there, climb back, step."""

    rho = 0.01

    @torch.no_grad()
    def climb(self, gradients: list[Tensor], parameters: list[Tensor]) -> None:
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        torch._foreach_mul_(gradients, self.rho / (norm + 1e-12))
        torch._foreach_add_(parameters, gradients)

    def step(self, client: int, inputs: Tensor, targets: Tensor) -> None:
        parameters = list[Tensor](self.modules[client].parameters())
        self.differentiate(client, inputs, targets)
        climbed = [p.grad for p in parameters if p.grad is not None]
        self.climb(climbed, parameters)
        self.differentiate(client, inputs, targets)
        with torch.no_grad():
            torch._foreach_sub_(parameters, climbed)
        self.optimizers[client].step()


class DFedADMMLoop(Loop):
    """DFedADMM with the old dual in the message.

    y ← y − η (g − dual + (y − x)/λ), after the steps z = y − λ dual and dual ← dual − (y − x)/λ. What stays the same
    within a client's round, dual + x/λ, is added up once.
    """

    penalty = 10.0

    def __init__(self, work: Work, draw: Draw | None = None) -> None:
        super().__init__(work, draw)
        self.duals = torch.zeros_like(self.models)
        self.anchor = torch.empty_like(self.models[0])
        shapes = [p.shape for p in self.modules[0].parameters()]
        pieces = torch.split(self.anchor, [shape.numel() for shape in shapes])
        self.anchors = [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]

    def begin(self, client: int) -> None:
        torch.add(self.duals[client], self.models[client], alpha=1 / self.penalty, out=self.anchor)

    def step(self, client: int, inputs: Tensor, targets: Tensor) -> None:
        parameters = list[Tensor](self.modules[client].parameters())
        self.differentiate(client, inputs, targets)
        gradients = [p.grad for p in parameters if p.grad is not None]
        with torch.no_grad():
            torch._foreach_add_(gradients, parameters, alpha=1 / self.penalty)
            torch._foreach_sub_(gradients, self.anchors)
        self.optimizers[client].step()

    def finish(self, client: int) -> None:
        y, dual = self.models[client], self.duals[client]
        self.anchor.sub_(y, alpha=1 / self.penalty)  # the new dual
        y.sub_(dual, alpha=self.penalty)
        dual.copy_(self.anchor)


LOOPS: dict[str, type[Loop]] = {"dfedavg": DFedAvgLoop, "dfedsam": DFedSAMLoop, "dfedadmm": DFedADMMLoop}
