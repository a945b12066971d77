"""A local step of one client, and the gradients it takes."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad_and_value

from gossamer.data import Batch, Inputs
from gossamer.methods import Gradient, Local, Method, Round, State
from gossamer.models import Parameters, VectorModel, sample_losses
from gossamer.training.training import Training
from gossamer.training.watch import call

Objective = Callable[[Parameters], Tensor]
GradientAndLoss = Callable[[Tensor], tuple[Tensor, Tensor]]
#: How the gradient of an objective of a model is taken.
Differentiate = Callable[[Objective, VectorModel], GradientAndLoss]

#: Samples of a full local gradient that are differentiated at once.
FULL_GRADIENT_BATCH = 500


def take_step(
    work: Training, differentiate: Differentiate, state: State, local: Local, batch: Batch, round: Round
) -> tuple[Local, Tensor]:
    """One local step, and the loss of its mini-batch before it. A model that draws random numbers was seeded for it."""
    inputs = work.dataset.scaling.apply(batch.inputs, work.model.initial.dtype)

    def objective(x: Parameters) -> Tensor:
        if work.model.draws_randomness:  # every gradient of the mini-batch has the same dropout mask
            torch.manual_seed(torch.initial_seed())
        losses = sample_losses(work.loss, work.model(x, inputs), batch.targets)
        return (losses * batch.weights).sum().to(batch.weights.dtype)  # of float64 targets, it may be in float64

    gradient = Gradient(differentiate(objective, work.model), work.weight_decay, work.clip)
    after = work.method.step(state, local, gradient, round)
    loss = gradient.losses[0] if gradient.losses else batch.weights.new_zeros(())
    return after, loss


def steps_without_samples(method: Method, state: State, local: Local, steps: int, round: Round) -> Local:
    """The local steps of a client without samples: its objective is zero, and so is every gradient of it.

    There is no weight decay either, so a method whose steps only follow gradients leaves the model as it is.
    """
    gradient = Gradient(lambda x: (torch.zeros_like(x), x.new_zeros(())))
    for _ in range(steps):
        local = call("step", round.number, method.step, state, local, gradient, round)
    return local


def full_gradient(work: Training, client: int, x: Tensor) -> Tensor:
    """The gradient of all of a client's samples at x, without dropout; zero without samples."""
    work.model.template.eval()
    held = work.batches.client_rows[client]
    total = torch.zeros_like(x)
    for start in range(0, len(held), FULL_GRADIENT_BATCH):
        rows = torch.as_tensor(held[start : start + FULL_GRADIENT_BATCH], device=x.device)
        some = work.dataset.train[rows]
        inputs, targets = work.dataset.scaling.apply(some.inputs, x.dtype), some.targets

        def objective(v: Parameters, inputs: Inputs = inputs, targets: Tensor = targets) -> Tensor:
            return sample_losses(work.loss, work.model(v, inputs), targets).sum() / len(held)

        total += with_tape(objective, work.model)(x)[0]
    return total


def with_tape(objective: Objective, model: VectorModel) -> GradientAndLoss:
    """The gradient by autograd's tape, which costs less than `with_functions` where nothing is vectorised.

    Each layer's part of the gradient is written to its place in the vector and freed at once: the derivative of the
    vector itself would be held twice, in parts and as a whole.
    """

    def gradient_and_loss(x: Tensor) -> tuple[Tensor, Tensor]:
        gradient = torch.zeros_like(x)
        leaves = model.unflatten(x.detach())
        for name, room in model.unflatten(gradient).items():
            leaves[name].requires_grad_().grad = room
        with torch.enable_grad():  # a method's `step` may be under torch.no_grad, as that of an optimizer is
            loss = objective(leaves)
        torch.autograd.backward(loss)
        return gradient, loss.detach()

    return gradient_and_loss


def with_functions(objective: Objective, model: VectorModel) -> GradientAndLoss:  # noqa: ARG001  # as `with_tape`
    """The gradient as a function of the vector, which can be vectorised and traced."""
    return grad_and_value(objective)
