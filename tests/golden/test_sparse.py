"""DisPFL on paper (see `paper.py`): every client averages with the neighbours that hold a weight, in equal parts."""

import torch
from torch import Tensor, nn

from gossamer import per_client
from gossamer.methods import DisPFL
from paper import PATH, check, two_rounds
from problems import engine


class Row(nn.Module):
    """`Point` as a 1 × 2 matrix: vectors stay dense under ERK, matrices do not."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.zeros(1, 2))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.place[0] - inputs


def test_dispfl_with_everything_active() -> None:
    # Density 1. Client 0 averages with 1, client 1 with both, client 2 with 1.
    # Round 1, a: z = 18, 0, 0;       x = 9, 6, 0             b: z = 0, 18, −18;        x = 9, 0, 0
    # Round 2, a: z = 22.5, 3, 0;     x = 12.75, 8.5, 1.5     b: z = 4.5, 18, −18;      x = 11.25, 1.5, 0
    one, two = two_rounds(DisPFL(density=1.0), (36, 0, 0), (0, 36, -36))
    check(one.models, (9, 6, 0), (9, 0, 0))
    check(two.models, (12.75, 8.5, 1.5), (11.25, 1.5, 0))


def test_dispfl_with_one_of_two_weights_active() -> None:
    # Density ½ of a 1 × 2 matrix: each client holds one of its two weights. Any drop rate replaces ⌈rate · 1⌉ = 1 of
    # it: the held weight goes, and the weight with the largest gradient grows, which may be the same one. The numbers
    # are such that it is the same whether the gradient is taken before the last step or after it.
    # The masks of the start are set by hand: 0 and 2 hold the first weight, 1 the second. m = (8,12), (2,16), (−20,4).
    # Round 1: z = ½m where held: (4,0), (0,8), (−10,0).   |gradient| = |m|:
    #          client 0 grows the second, client 1 keeps the second, client 2 keeps the first.
    #          Averages over the holders among the neighbours and the client itself, then the new mask:
    #          0 (with 1): (4/1, 8/1) → (0,8)   1 (with both): (−6/2, 8/1) → (0,8)   2 (with 1): (−10/1, 8/1) → (−10,0)
    # Round 2: gradients x − m = (−8,−4), (−2,−8), (10,−4);   z = (0,10), (0,12), (−15,0)
    #          client 0 grows the first, the others keep theirs.
    #          0 (with 1): (nobody, 22/2) → (0,0)    1: (−15/1, 22/2) → (0,11)    2 (with 1): (−15/1, 12/1) → (−15,0)
    data = per_client([([m], [[0.0, 0.0]]) for m in ((8.0, 12.0), (2.0, 16.0), (-20.0, 4.0))])
    method = DisPFL(density=0.5, regrow="gradient")
    run = engine(method, PATH, data, model=Row, loss="squared-error", lr=0.5, local_steps=1, rounds=3)
    run.state["mask"] = torch.tensor([(1, 0), (0, 1), (1, 0)], dtype=torch.float64)
    run.round(1)  # round 0 would draw masks
    check(run.models(), (0, 0, -10), (8, 8, 0))
    check(run.state["mask"], (0, 0, 1), (1, 1, 0))
    run.round(2)
    check(run.models(), (0, 0, -15), (0, 11, 0))
    check(run.state["mask"], (1, 0, 1), (0, 1, 0))
    check(run.state["held"], (0, 0, 1), (1, 1, 0))
