"""Every method on a problem small enough for paper: three clients, two parameters, two rounds.

Client i minimises ½‖x − m_i‖², so its gradient is x − m_i. All start at 0, η = ½: a plain step goes half of the way,
x ← ½(x + m_i). Clients sit on a path 0 – 1 – 2 with Metropolis-Hastings weights

        ⎡ 2/3 1/3  0  ⎤
    W = ⎢ 1/3 1/3 1/3 ⎥     and, unless said otherwise, m = (3,0), (0,3), (−3,−3).
        ⎣  0  1/3 2/3 ⎦
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gossamer import per_client
from gossamer.methods import DPSGD, DFedAvg, DFedAvgM, DFedSAM, DFedSAMMGS, FedAvg
from problems import engine, play

PATH = {"name": "edges", "edges": [(0, 1), (1, 2)]}
MINIMA = ((3.0, 0.0), (0.0, 3.0), (-3.0, -3.0))


class Point(nn.Module):
    """The model is the point itself; its output is how far it is from each input."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.zeros(2))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.place - inputs


def two_rounds(method: Any, steps: int = 1, graph: Any = PATH, minima: Any = MINIMA) -> list[Tensor]:
    data = per_client([([m], [[0.0, 0.0]]) for m in minima])
    run = engine(method, graph, data, model=Point, loss="squared-error", lr=0.5, local_steps=steps)
    return [play(run, 1).clone(), play(run, 1)]


def check(found: list[Tensor], *expected: list[tuple[float, float]]) -> None:
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64), rtol=0, atol=1e-12)


def test_dpsgd_adapt_then_combine() -> None:
    # Round 1: z = ½m = (1.5,0), (0,1.5), (−1.5,−1.5);      W z = (1,½), (0,0), (−1,−½)
    # Round 2: z = ½(x+m) = (2,¼), (0,1.5), (−2,−1.75);     W z = (4/3,2/3), (0,0), (−4/3,−2/3)
    check(two_rounds(DPSGD()), [(1, 0.5), (0, 0), (-1, -0.5)], [(4 / 3, 2 / 3), (0, 0), (-4 / 3, -2 / 3)])


def test_dpsgd_combine_then_adapt() -> None:
    # Round 1: all agree on 0, so W x = 0 and x = ½m = (1.5,0), (0,1.5), (−1.5,−1.5)
    # Round 2: W x = (1,½), (0,0), (−1,−½); the step taken at the old x is ½(m − x) = (¾,0), (0,¾), (−¾,−¾)
    expected = [(1.75, 0.5), (0.0, 0.75), (-1.75, -1.25)]
    check(two_rounds(DPSGD(order="combine-then-adapt")), [(1.5, 0), (0, 1.5), (-1.5, -1.5)], expected)


def test_dfedavg_with_two_local_steps() -> None:
    # Two steps leave a quarter of the way: z = ¼x + ¾m.
    # Round 1: z = (2.25,0), (0,2.25), (−2.25,−2.25);                 W z = (1.5,¾), (0,0), (−1.5,−¾)
    # Round 2: z = (2.625,.1875), (0,2.25), (−2.625,−2.4375);         W z = (1.75,.875), (0,0), (−1.75,−.875)
    expected = [(1.75, 0.875), (0.0, 0.0), (-1.75, -0.875)]
    check(two_rounds(DFedAvg(), steps=2), [(1.5, 0.75), (0, 0), (-1.5, -0.75)], expected)


def test_dfedavgm_with_two_local_steps() -> None:
    # θ = ½: v_1 = g, y_1 = x − ½g, there the gradient is ½g, v_2 = ½g + ½g = g, y_2 = x − g = m.
    # So z = m in every round, and x = W m = (2,1), (0,0), (−2,−1).
    expected = [(2.0, 1.0), (0.0, 0.0), (-2.0, -1.0)]
    check(two_rounds(DFedAvgM(momentum=0.5), steps=2), expected, expected)


def test_dfedsam() -> None:
    # m = (5,0), (0,5), (−3,−4), each at distance 5 from the start; ρ = 1. At x + g/‖g‖ the gradient is g(1 + 1/‖g‖).
    # Round 1: z = ½·(6/5) m = (3,0), (0,3), (−1.8,−2.4);  W z = (2,1), (.4,.2), (−1.2,−.6)
    # Round 2: g = (−3,1), (.4,−4.8), (1.8,3.4), and z = x − ½ g (1 + 1/‖g‖) goes through W once more.
    first = [(2.0, 1.0), (0.4, 0.2), (-1.2, -0.6)]
    g = torch.tensor([(-3.0, 1.0), (0.4, -4.8), (1.8, 3.4)], dtype=torch.float64)
    norms = torch.tensor([10.0, 23.2, 14.8], dtype=torch.float64).sqrt()[:, None]
    z = torch.tensor(first, dtype=torch.float64) - 0.5 * g * (1 + 1 / norms)
    w = torch.tensor([(2, 1, 0), (1, 1, 1), (0, 1, 2)], dtype=torch.float64) / 3
    found = two_rounds(DFedSAM(rho=1.0), minima=((5.0, 0.0), (0.0, 5.0), (-3.0, -4.0)))
    check(found, first, (w @ z).tolist())


def test_dfedsam_mgs() -> None:
    # ρ = 0, Q = 2: D-PSGD's z, averaged twice.
    # Round 1: z = ½m; W z = (1,½), (0,0), (−1,−½); W²z = (2/3,1/3), (0,0), (−2/3,−1/3)
    # Round 2: z = (11/6,1/6), (0,3/2), (−11/6,−5/3); W z = (11/9,11/18), (0,0), (−11/9,−11/18); W²z = ⅔ W z outside
    first, second = [(2 / 3, 1 / 3), (0, 0), (-2 / 3, -1 / 3)], [(22 / 27, 11 / 27), (0, 0), (-22 / 27, -11 / 27)]
    check(two_rounds(DFedSAMMGS(rho=0.0, gossip_steps=2)), first, second)


def test_fedavg_with_a_careful_server() -> None:
    # m = (3,0), (0,3), (3,3) with mean (2,2); η_g = ½. The mean of ½(x+m) is ½x + (1,1).
    # Round 1: x = 0 + ½(1) = ½.   Round 2: mean z = ¼ + 1 = 1.25, x = ½ + ½(1.25 − ½) = .875
    found = two_rounds(FedAvg(server_lr=0.5), graph="server", minima=((3.0, 0.0), (0.0, 3.0), (3.0, 3.0)))
    check(found, [(0.5, 0.5)] * 3, [(0.875, 0.875)] * 3)


@pytest.mark.parametrize("participation", [1 / 3, 2 / 3])
def test_fedavg_moves_by_the_sampled_clients_alone(participation: float) -> None:
    found = two_rounds(FedAvg(), graph={"name": "server", "participation": participation})
    sampled = {1: [(1.5, 0.0), (0.0, 1.5), (-1.5, -1.5)], 2: [(0.75, 0.75), (0.0, -0.75), (-0.75, 0.0)]}
    assert tuple(found[0][0].tolist()) in sampled[round(3 * participation)]
    assert torch.equal(found[0], found[0][:1].repeat(3, 1))


def test_weight_decay_is_applied_at_x_and_clipping_to_the_gradient_alone() -> None:
    # One client at m = (3,4), x_0 = 0, η = ½. Plain gradient −m has norm 5; clipped to 1 it is −m/5; decay acts on x.
    data = per_client([([(3.0, 4.0)], [[0.0, 0.0]])])
    run = engine(
        DFedAvg(), "full", data, model=Point, loss="squared-error", lr=0.5, local_steps=2, clip=1.0, weight_decay=0.1
    )
    # Step 1: x = ½(.6,.8) = (.3,.4). Step 2: gradient again of norm > 1 in the same direction, plus .1·(.3,.4).
    x = torch.tensor([[0.3 + 0.5 * (0.6 - 0.03), 0.4 + 0.5 * (0.8 - 0.04)]], dtype=torch.float64)
    torch.testing.assert_close(play(run, 1), x, rtol=0, atol=1e-6)  # clipping divides by (norm + 1e-6)


def test_sam_takes_weight_decay_at_x_and_the_ascent_without_it() -> None:
    # x_0 = (0,0), m = (5,0), ρ = 1, decay ½: ascent direction from −m alone; then decay at x, not at x + δ.
    data = per_client([([(5.0, 0.0)], [[0.0, 0.0]])])
    run = engine(
        DFedSAM(rho=1.0), "full", data, model=Point, loss="squared-error", lr=0.5, local_steps=2, weight_decay=0.5
    )
    # Step 1: g = −5, at x − 1: −6, decay 0: x = 3. Step 2: g = −2, at x − 1: −3, decay 1.5: x = 3 + ½(3 − 1.5) = 3.75
    torch.testing.assert_close(play(run, 1), torch.tensor([[3.75, 0.0]], dtype=torch.float64), rtol=0, atol=1e-10)
