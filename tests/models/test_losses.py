import pytest
import torch
from torch import Tensor
from torch.nn import functional

from gossamer.models import CrossEntropy


def reference(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 1e3])  # where softmax is exactly zero, too
def test_cross_entropy_is_that_of_torch_to_the_last_bit(dtype: torch.dtype, scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = scale * torch.randn(3, 50, 10, dtype=dtype, generator=generator)
    targets = torch.randint(0, 10, (3, 50), generator=generator)

    def gradient_and_losses(loss):
        def summed(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
            losses = loss(x, t)
            return losses.sum(), losses

        return torch.func.grad(summed, has_aux=True)

    own, torchs = gradient_and_losses(CrossEntropy()), gradient_and_losses(reference)
    for mine, theirs in zip(own(outputs[0], targets[0]), torchs(outputs[0], targets[0]), strict=True):
        assert torch.equal(mine, theirs)
    many = zip(torch.func.vmap(own)(outputs, targets), torch.func.vmap(torchs)(outputs, targets), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in many)


def test_cross_entropy_takes_probabilities_of_classes() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs, wanted = torch.randn(5, 4, generator=generator), torch.rand(5, 4, generator=generator).softmax(1)
    assert torch.equal(CrossEntropy()(outputs, wanted), reference(outputs, wanted))
