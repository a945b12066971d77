"""Methods that average with their neighbours, on paper (see `paper.py`)."""

import torch
from torch import Tensor, nn

from gossamer import per_client
from gossamer.methods import DPSGD, DFedAvg, DFedAvgM, DFedSAM, DFedSAMMGS, Gossip, OledFL, QDFedAvgM, QGDSGDm
from paper import check, two_rounds
from problems import engine, play
from quadratic import Point

THIRDS = (3, 0, -3), (0, 3, -3)
NINTHS = (36, 0, 0), (0, 36, -36)


def test_d_psgd_adapt_then_combine() -> None:
    # Round 1: z = ½m.   a: 18, 0, 0;  W z = 12, 6, 0        b: 0, 18, −18;   W z = 6, 0, −6
    # Round 2: z = ½(x + m).  a: 24, 3, 0;  W z = 17, 9, 1   b: 3, 18, −21;   W z = 8, 0, −8
    one, two = two_rounds(DPSGD(), *NINTHS)
    check(one.models, (12, 6, 0), (6, 0, -6))
    check(two.models, (17, 9, 1), (8, 0, -8))


def test_d_psgd_combine_then_adapt() -> None:
    # Round 1: all agree on 0, so W x = 0 and x = ½m.   a: 1.5, 0, −1.5   b: 0, 1.5, −1.5
    # Round 2: W x, a: 1, 0, −1, b: ½, 0, −½; the step taken at the old x is ½(m − x), a: ¾, 0, −¾, b: 0, ¾, −¾
    one, two = two_rounds(DPSGD(order="combine-then-adapt"), *THIRDS)
    check(one.models, (1.5, 0, -1.5), (0, 1.5, -1.5))
    check(two.models, (1.75, 0, -1.75), (0.5, 0.75, -1.25))


def test_gossip_with_two_local_steps() -> None:
    # z = ¼x + ¾m.
    # Round 1, a: z = 27, 0, 0;          W z = 18, 9, 0            b: z = 0, 27, −27;         W z = 9, 0, −9
    # Round 2, a: z = 31.5, 2.25, 0;     W z = 21.75, 11.25, .75   b: z = 2.25, 27, −29.25;   W z = 10.5, 0, −10.5
    one, two = two_rounds(Gossip(), *NINTHS, steps=2)
    check(one.models, (18, 9, 0), (9, 0, -9))
    check(two.models, (21.75, 11.25, 0.75), (10.5, 0, -10.5))


def test_dfedavg_with_two_local_steps() -> None:
    # z = ¼x + ¾m.
    # Round 1, a: z = 2.25, 0, −2.25;     W z = 1.5, 0, −1.5      b: z = 0, 2.25, −2.25;        W z = .75, 0, −.75
    # Round 2, a: z = 2.625, 0, −2.625;   W z = 1.75, 0, −1.75    b: z = .1875, 2.25, −2.4375;  W z = .875, 0, −.875
    one, two = two_rounds(DFedAvg(), *THIRDS, steps=2)
    check(one.models, (1.5, 0, -1.5), (0.75, 0, -0.75))
    check(two.models, (1.75, 0, -1.75), (0.875, 0, -0.875))


def test_dfedavgm_with_two_local_steps() -> None:
    # θ = ½: v_1 = g, y_1 = x − ½g, there the gradient is ½g, v_2 = ½g + ½g = g, y_2 = x − g = m.
    # So z = m in every round, and x = W m.   a: 2, 0, −2   b: 1, 0, −1
    one, two = two_rounds(DFedAvgM(momentum=0.5), *THIRDS, steps=2)
    check(one.models, (2, 0, -2), (1, 0, -1))
    check(two.models, (2, 0, -2), (1, 0, -1))


def test_q_dfedavgm_rounding_down_to_three_bits() -> None:
    # θ = ½, K = 2: z = m as above, so the change is m − x. Three bits: levels −4 … 3, s = max|change| / 3 of a client.
    # m = (9,4), (−5,6), (3,−12).
    # Round 1: change m; s = 3, 2, 4; levels (3, 4/3), (−5/2, 3), (3/4, −3), rounded down (3,1), (−3,3), (0,−3)
    #          q = (9,3), (−6,6), (0,−12).   a: 9, −6, 0, W q = 4, 1, −2        b: 3, 6, −12, W q = 4, −1, −6
    # Round 2: change (5,0), (−6,7), (5,−6); s = 5/3, 7/3, 2; levels (3, 0), (−18/7, 3), (5/2, −3),
    #          rounded down (3,0), (−3,3), (2,−3)
    #          q = (5,0), (−7,7), (4,−6).    a: 5, −7, 4, W q = 1, 2/3, 1/3     b: 0, 7, −6, W q = 7/3, 1/3, −5/3
    #          x⁺ = x + W q, not W z.        a: 5, 5/3, −5/3                    b: 19/3, −2/3, −23/3
    method = QDFedAvgM(momentum=0.5, bits=3, rounding="down")
    one, two = two_rounds(method, (9, -5, 3), (4, 6, -12), steps=2)
    check(one.models, (4, 1, -2), (4, -1, -6))
    check(two.models, (5, 5 / 3, -5 / 3), (19 / 3, -2 / 3, -23 / 3))


def test_dfedsam() -> None:
    # m = (5,0), (0,5), (−3,−4), each at distance 5 from the start; ρ = 1. At x + g/‖g‖ the gradient is g(1 + 1/‖g‖).
    # Round 1: z = ½·(6/5) m = (3,0), (0,3), (−1.8,−2.4);  W z = (2,1), (.4,.2), (−1.2,−.6)
    # Round 2: g = (−3,1), (.4,−4.8), (1.8,3.4), and z = x − ½ g (1 + 1/‖g‖) goes through W once more.
    one, two = two_rounds(DFedSAM(rho=1.0), (5, 0, -3), (0, 5, -4))
    check(one.models, (2, 0.4, -1.2), (1, 0.2, -0.6))
    g = torch.tensor([(-3.0, 1.0), (0.4, -4.8), (1.8, 3.4)], dtype=torch.float64)
    norms = torch.tensor([10.0, 23.2, 14.8], dtype=torch.float64).sqrt()[:, None]
    z = one.models - 0.5 * g * (1 + 1 / norms)
    w = torch.tensor([(2, 1, 0), (1, 1, 1), (0, 1, 2)], dtype=torch.float64) / 3
    check(two.models, *(w @ z).T.tolist())


def test_dfedsam_mgs() -> None:
    # ρ = 0, Q = 2: D-PSGD's z, averaged twice.
    # Round 1, a: z = 18, 0, 0;  W z = 12, 6, 0;  W²z = 10, 6, 2         b: z = 0, 18, −18;   6, 0, −6;   4, 0, −4
    # Round 2, a: z = 23, 3, 1;  W z = 49/3, 9, 5/3;  W²z = 125/9, 9, 37/9
    #          b: z = 2, 18, −20;  W z = 22/3, 0, −22/3;  W²z = 44/9, 0, −44/9
    one, two = two_rounds(DFedSAMMGS(rho=0.0, gossip_steps=2), *NINTHS)
    check(one.models, (10, 6, 2), (4, 0, -4))
    check(two.models, (125 / 9, 9, 37 / 9), (44 / 9, 0, -44 / 9))


def test_qg_dsgdm() -> None:
    # β = ½, momentum d: h = x − ½(½d + x − m);  x⁺ = W h;  d⁺ = ½d + ½(x − x⁺)/½ = ½d + x − x⁺.
    # Round 1, a: h = 18, 0, 0;   x = 12, 6, 0;   d = −12, −6, 0       b: h = 0, 18, −18;   x = 6, 0, −6;   d = −6, 0, 6
    # Round 2, a: ½d + x − m = −6 − 24, −3 + 6, 0 = −30, 3, 0;         h = 27, 4.5, 0;      x = 19.5, 10.5, 1.5
    #             d = −6 − 7.5, −3 − 4.5, 0 − 1.5 = −13.5, −7.5, −1.5
    #          b: ½d + x − m = −3 + 6, 0 − 36, 3 + 30 = 3, −36, 33;    h = 4.5, 18, −22.5;  x = 9, 0, −9
    #             d = −3 − 3, 0, 3 + 3 = −6, 0, 6
    one, two = two_rounds(QGDSGDm(momentum=0.5), *NINTHS)
    check(one.models, (12, 6, 0), (6, 0, -6))
    check(one.state["direction"], (-12, -6, 0), (-6, 0, 6))
    check(two.models, (19.5, 10.5, 1.5), (9, 0, -9))
    check(two.state["direction"], (-13.5, -7.5, -1.5), (-6, 0, 6))


def test_oledfl() -> None:
    # β = ½: steps start at x + ½(x − z), z the client's own last result; in round 1 at x.
    # Round 1, a: z = 18, 0, 0;   x = 12, 6, 0                              b: z = 0, 18, −18;   x = 6, 0, −6
    # Round 2, a: start 12 − 3, 6 + 3, 0 = 9, 9, 0;    z = 22.5, 4.5, 0;    x = 49.5/3, 27/3, 4.5/3 = 16.5, 9, 1.5
    #          b: start 6 + 3, 0 − 9, −6 + 6 = 9, −9, 0;  z = 4.5, 13.5, −18;  x = 22.5/3, 0, −22.5/3 = 7.5, 0, −7.5
    one, two = two_rounds(OledFL(beta=0.5, rho=0.0), *NINTHS)
    check(one.models, (12, 6, 0), (6, 0, -6))
    check(two.models, (16.5, 9, 1.5), (7.5, 0, -7.5))


def one_client(m: Tensor, **settings: object) -> Tensor:
    """One client alone after one round of two steps, η = ½."""
    data = per_client([([m.tolist()], [[0.0, 0.0]])])
    model: type[nn.Module] = Point
    return play(
        engine(graph="full", dataset=data, model=model, loss="squared-error", lr=0.5, local_steps=2, **settings), 1
    )


def test_weight_decay_is_applied_at_x_and_clipping_to_the_gradient_alone() -> None:
    # One client at m = (3,4), x_0 = 0, η = ½. Plain gradient −m has norm 5; clipped to 1 it is −m/5; decay acts on x.
    # Step 1: x = ½(.6,.8) = (.3,.4). Step 2: gradient again of norm > 1 in the same direction, plus .1·(.3,.4).
    found = one_client(torch.tensor([3.0, 4.0]), method=DFedAvg(), clip=1.0, weight_decay=0.1)
    x = torch.tensor([[0.3 + 0.5 * (0.6 - 0.03), 0.4 + 0.5 * (0.8 - 0.04)]], dtype=torch.float64)
    torch.testing.assert_close(found, x, rtol=0, atol=1e-6)  # clipping divides by (norm + 1e-6)


def test_sam_takes_weight_decay_at_x_and_the_ascent_without_it() -> None:
    # x_0 = (0,0), m = (5,0), ρ = 1, decay ½: ascent direction from −m alone; then decay at x, not at x + δ.
    # Step 1: g = −5, at x − 1: −6, decay 0: x = 3. Step 2: g = −2, at x − 1: −3, decay 1.5: x = 3 + ½(3 − 1.5) = 3.75
    found = one_client(torch.tensor([5.0, 0.0]), method=DFedSAM(rho=1.0), weight_decay=0.5)
    torch.testing.assert_close(found, torch.tensor([[3.75, 0.0]], dtype=torch.float64), rtol=0, atol=1e-10)
