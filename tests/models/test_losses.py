import pytest
import torch
from torch import Tensor
from torch.nn import functional

from gossamer.models import CrossEntropy, sample_losses


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


def test_cross_entropy_of_tokens_is_their_mean_over_those_that_count() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs, targets = torch.randn(3, 5, 4, generator=generator), torch.randint(0, 4, (3, 5), generator=generator)
    targets[0, 2:], targets[2] = -100, -100
    losses = CrossEntropy()(outputs, targets)
    for i in (0, 1):
        torch.testing.assert_close(losses[i], functional.cross_entropy(outputs[i], targets[i]))
    assert losses[2] == 0  # nothing in it counts


@pytest.mark.parametrize(
    ("outputs", "targets", "message"),
    [
        (torch.zeros(6, 4, 5), torch.zeros(6, 5).long(), r"classes come last: .* outputs.movedim\(1, -1\)"),
        (torch.zeros(6, 2), torch.zeros(6, 4).long(), r"of one-hot labels give the class, y.argmax\(1\)"),
        (torch.zeros(6, 1), torch.zeros(6), "it needs integer class labels, or probabilities"),
    ],
)
def test_cross_entropy_says_what_it_cannot_compare(outputs: Tensor, targets: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CrossEntropy()(outputs, targets)


def test_a_loss_that_vmap_cannot_run_is_asked_sample_by_sample() -> None:
    outputs, targets = torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])

    def branching(scores: Tensor, labels: Tensor) -> Tensor:
        loss = functional.cross_entropy(scores, labels)
        return loss if loss.item() > 0 else 2 * loss

    assert torch.allclose(sample_losses(branching, outputs, targets), CrossEntropy()(outputs, targets))
