import gc
import itertools

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gossamer.methods import Gradient, Round, combine
from gossamer.methods.dfedadmm import DFedADMM

NUMBERS = (1, 0.5, -2.0)


@pytest.mark.parametrize("tensors", list(itertools.product([False, True], repeat=3)))
def test_weights_may_be_numbers_or_scalar_tensors_in_any_place(tensors: tuple[bool, ...]) -> None:
    vectors = torch.randn(3, 5, dtype=torch.float64)
    weights = [torch.tensor(float(w)) if is_tensor else w for w, is_tensor in zip(NUMBERS, tensors, strict=True)]
    expected = sum(weight * vector for weight, vector in zip(NUMBERS, vectors, strict=True))
    torch.testing.assert_close(combine(*zip(weights, vectors, strict=True)), expected)


def test_a_first_weight_other_than_one_counts() -> None:
    torch.testing.assert_close(combine((2, torch.ones(3)), (0.5, torch.ones(3))), torch.full((3,), 2.5))


def test_weights_may_differ_between_clients_under_vmap() -> None:
    x, g, rate = torch.randn(4, 5), torch.randn(4, 5), torch.rand(4)
    stacked = torch.vmap(lambda x, g, rate: combine((1, x), (-rate, g)))(x, g, rate)
    torch.testing.assert_close(stacked, x - rate[:, None] * g)


def test_no_argument_is_changed() -> None:
    x, g = torch.ones(3), torch.ones(3)
    combine((1, x), (-1, g), (3, x))
    assert x.tolist() == g.tolist() == [1, 1, 1]


class Counts(TorchDispatchMode):
    """The most vectors of a size that were alive after an operation."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.most = size, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        alive = {t.data_ptr() for t in gc.get_objects() if type(t) is Tensor and t.numel() == self.size}
        self.most = max(self.most, len(alive))
        return result


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)])
def test_a_step_of_dfedadmm_holds_its_state_the_gradient_and_one_sum(lr: float) -> None:
    one, x, dual, y = torch.ones(()), torch.randn(1009), torch.randn(1009), torch.randn(1009)
    gradient = Gradient(lambda x: (x.cos(), one))
    round = Round(number=0, rounds=1, lr=lr, steps=one, degree=one, own_weight=one)
    with Counts(1009) as counts:
        DFedADMM().step({"x": x, "dual": dual}, {"y": y}, gradient, round)
    assert counts.most == 3 + 2
