"""Methods with a server, on paper (see `paper.py`): every client keeps the server's model."""

from fractions import Fraction as F

import pytest
import torch

from gossamer.methods import FedAvg, FedPD, FedSAM, LocalGECL, Scaffold
from paper import along, check, check_along, two_rounds


def test_fedavg_with_a_careful_server() -> None:
    # m = a: 3, 0, 3 and b: 0, 3, 3, both with mean 2; η_g = ½. The mean of ½(x + m) is ½x + 1.
    # Round 1: x = 0 + ½(1 − 0) = ½.   Round 2: mean z = ¼ + 1 = 5/4, x = ½ + ½(5/4 − ½) = 7/8
    one, two = two_rounds(FedAvg(server_lr=0.5), (3, 0, 3), (0, 3, 3), graph="server")
    check(one.models, [0.5] * 3, [0.5] * 3)
    check(two.models, [0.875] * 3, [0.875] * 3)


@pytest.mark.parametrize("participation", [1 / 3, 2 / 3])
def test_fedavg_moves_by_the_sampled_clients_alone(participation: float) -> None:
    # One client alone leads to ½m = (1.5,0), (0,1.5) or (−1.5,−1.5); two of them to the middle of their two.
    graph = {"name": "server", "participation": participation}
    one, _ = two_rounds(FedAvg(), (3, 0, -3), (0, 3, -3), graph=graph)
    sampled = {1: [(1.5, 0.0), (0.0, 1.5), (-1.5, -1.5)], 2: [(0.75, 0.75), (0.0, -0.75), (-0.75, 0.0)]}
    assert tuple(one.models[0].tolist()) in sampled[round(3 * participation)]
    assert torch.equal(one.models, one.models[:1].repeat(3, 1))


def test_fedsam() -> None:
    # Minima s·(3,4) with s = 11, 15, −9, and ρ = 5, so that ρ g/‖g‖ = ±(3,4): along the line a SAM step is
    # s ← s − ½(s − m + σ), σ the sign of s − m.
    # Round 1: s = 0, σ = −, −, +: z = ½(11 + 1), ½(15 + 1), ½(−9 − 1) = 6, 8, −5;  mean 3
    # Round 2: s − m = −8, −12, 12, with σ: −9, −13, 13;  z = 3 + 9/2, 3 + 13/2, 3 − 13/2 = 15/2, 19/2, −7/2;  mean 9/2
    one, two = two_rounds(FedSAM(rho=5.0), *along(11, 15, -9), graph="server")
    check_along(one.models, [3] * 3)
    check_along(two.models, [4.5] * 3)


def test_scaffold() -> None:
    # K = 2, so Kη = 1. A corrected step goes half of the way to m + c_i − c, two of them leave ¼ of it:
    # y = ¼x + ¾(m + c_i − c);  c_i⁺ = c_i − c + x − y;  x⁺, c⁺ = means.
    # Round 1, from zeros: y = ¾m, c_i = −¾m.
    #   a: m = 4, 8, 0:   y = 3, 6, 0,  x = 3;   c_i = −3, −6, 0,   c = −3
    #   b: m = 8, 4, 12:  y = 6, 3, 9,  x = 6;   c_i = −6, −3, −9,  c = −6
    # Round 2
    #   a: m + c_i − c = 4, 5, 3;  y = ¾ + 3, ¾ + 15/4, ¾ + 9/4 = 3.75, 4.5, 3;  x = 3.75
    #      c_i − c = 0, −3, 3, plus 3 − y = −.75, −1.5, 0:  c_i = −.75, −4.5, 3;  c = −.75
    #   b: m + c_i − c = 8, 7, 9;  y = 1.5 + 6, 1.5 + 5.25, 1.5 + 6.75 = 7.5, 6.75, 8.25;  x = 7.5
    #      c_i − c = 0, 3, −3, plus 6 − y = −1.5, −.75, −2.25:  c_i = −1.5, 2.25, −5.25;  c = −1.5
    one, two = two_rounds(Scaffold(), (4, 8, 0), (8, 4, 12), steps=2, graph="server")
    check(one.models, [3] * 3, [6] * 3)
    check(one.state["control"], (-3, -6, 0), (-6, -3, -9))
    check(one.state["mean_control"], [-3] * 3, [-6] * 3)
    check(two.models, [3.75] * 3, [7.5] * 3)
    check(two.state["control"], (-0.75, -4.5, 3), (-1.5, 2.25, -5.25))
    check(two.state["mean_control"], [-0.75] * 3, [-1.5] * 3)


def test_fedpd() -> None:
    # λ = 2: y ← y − ½(y − m − ĝ + ½(y − x)) = ¼y + ¼x + ½(m + ĝ);  K = 2 of them: y = ⅜x + ⅝(m + ĝ)
    # ĝ⁺ = ĝ − ½(y − x);  the new dual in the message: z = y − 2ĝ⁺;  x⁺ = mean z.
    # Round 1, from zeros: y = ⅝m, ĝ = −5/16 m, z = 5/4 m.
    #   a: m = 16, 32, 48:    x = 5/4 · 32 = 40;      ĝ = −5, −10, −15
    #   b: m = 48, −16, −80:  x = 5/4 · −16 = −20;    ĝ = −15, 5, 25
    # Round 2
    #   a: m + ĝ = 11, 22, 33;     y = 15 + 55/8, 15 + 110/8, 15 + 165/8 = 21.875, 28.75, 35.625
    #      ĝ = −5 + 9.0625, −10 + 5.625, −15 + 2.1875 = 4.0625, −4.375, −12.8125
    #      z = 21.875 − 8.125, 28.75 + 8.75, 35.625 + 25.625 = 13.75, 37.5, 61.25;  x = 37.5
    #   b: m + ĝ = 33, −11, −55;   y = −7.5 + 20.625, −7.5 − 6.875, −7.5 − 34.375 = 13.125, −14.375, −41.875
    #      ĝ = −15 − 16.5625, 5 − 2.8125, 25 + 10.9375 = −31.5625, 2.1875, 35.9375
    #      z = 13.125 + 63.125, −14.375 − 4.375, −41.875 − 71.875 = 76.25, −18.75, −113.75;  x = −18.75
    one, two = two_rounds(FedPD(penalty=2.0), (16, 32, 48), (48, -16, -80), steps=2, graph="server")
    check(one.models, [40] * 3, [-20] * 3)
    check(one.state["dual"], (-5, -10, -15), (-15, 5, 25))
    check(two.models, [37.5] * 3, [-18.75] * 3)
    check(two.state["dual"], (4.0625, -4.375, -12.8125), (-31.5625, 2.1875, 35.9375))


def test_local_g_ecl_on_the_server_graph() -> None:
    # Algorithm 2, K = 3, so Kη = 3/2. With t = m + λ: the first step goes from x̃ by the gradient at x,
    # n = x̃ − ½(x − t); two more halve what is left, x⁺ = ¼n + ¾t.  λ⁺ = λ + ⅔(x̃⁺ − x⁺).
    # Round 1, from zeros: n = ½m, x = ⅞m.
    #   a: m = 24, 48, 0:    x = 21, 42, 0,   x̃ = 21;   λ = ⅔(0, −21, 21) = 0, −14, 14
    #   b: m = 72, 48, 24:   x = 63, 42, 21,  x̃ = 42;   λ = ⅔(−21, 0, 21) = −14, 0, 14
    # Round 2
    #   a: t = 24, 34, 14;   x − t = −3, 8, −14;   n = 22.5, 17, 28
    #      x = 5.625 + 18, 4.25 + 25.5, 7 + 10.5 = 23.625, 29.75, 17.5;            x̃ = 70.875/3 = 23.625
    #      λ = 0, −14 − ⅔·6.125, 14 + ⅔·6.125 = 0, −217/12, 217/12
    #   b: t = 58, 48, 38;   x − t = 5, −6, −17;   n = 39.5, 45, 50.5
    #      x = 9.875 + 43.5, 11.25 + 36, 12.625 + 28.5 = 53.375, 47.25, 41.125;    x̃ = 141.75/3 = 47.25
    #      λ = −14 − ⅔·6.125, 0, 14 + ⅔·6.125 = −217/12, 0, 217/12
    one, two = two_rounds(LocalGECL(), (24, 48, 0), (72, 48, 24), steps=3, graph="server")
    check(one.models, [21] * 3, [42] * 3)
    check(one.state["x"], (21, 42, 0), (63, 42, 21))
    check(one.state["dual"], (0, -14, 14), (-14, 0, 14))
    check(two.models, [23.625] * 3, [47.25] * 3)
    check(two.state["x"], (23.625, 29.75, 17.5), (53.375, 47.25, 41.125))
    check(two.state["dual"], (0, F(-217, 12), F(217, 12)), (F(-217, 12), 0, F(217, 12)))


def test_local_g_ecl_on_the_server_graph_from_the_aggregated_model() -> None:
    # K = 2: SCAFFOLD's numbers above, with λ_i = c_i − c. Round 1: x = ¾m; a: 3, 6, 0, b: 6, 3, 9; λ = x̃ − x.
    # Round 2: t = m + λ, x⁺ = ¼x̃ + ¾t;  a: t = 4, 5, 3, x⁺ = 3.75, 4.5, 3;  b: t = 8, 7, 9, x⁺ = 7.5, 6.75, 8.25
    #          λ⁺ = λ + x̃⁺ − x⁺;  a: 0 + 0, −3 − .75, 3 + .75;  b: 0 + 0, 3 + .75, −3 − .75
    one, two = two_rounds(LocalGECL(start="aggregated"), (4, 8, 0), (8, 4, 12), steps=2, graph="server")
    check(one.models, [3] * 3, [6] * 3)
    check(one.state["dual"], (0, -3, 3), (0, 3, -3))
    check(two.models, [3.75] * 3, [7.5] * 3)
    check(two.state["dual"], (0, -3.75, 3.75), (0, 3.75, -3.75))
