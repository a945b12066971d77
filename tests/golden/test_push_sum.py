"""Push-sum, on paper (see `paper.py`): client 0 sends thirds, the others halves.

Where no weight is under way, weights do not depend on the minima: w = 1 at first, then

    P 1 = 5/6, 5/6, 4/3        and        P (5/6, 5/6, 4/3) = 17/18, 25/36, 49/36

so in round 2 models are z = x/w = 6/5 x, 6/5 x, 3/4 x.
"""

import torch
from torch import Tensor

from gossamer.methods import OSGP, SGP, AsyNG, DFedSGPM, DFedSGPSM, DFedSGPSMS, OverlapSGP
from paper import PUSH, After, Numbers, along, check, check_along, two_rounds

WEIGHTS = (5 / 6, 5 / 6, 4 / 3), (17 / 18, 25 / 36, 49 / 36)


def check_weights(rounds: list[After], expected: tuple[Numbers, Numbers] = WEIGHTS) -> None:
    """The push-sum weights of both rounds; the model is x over its weight."""
    for after, weights in zip(rounds, expected, strict=True):
        w = torch.tensor(weights, dtype=torch.float64)
        close(after.state["weight"], w)
        close(after.models, after.state["x"] / w[:, None])


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


def test_sgp() -> None:
    # One step x − ½(z − m), then P.
    # Round 1, a: ½m = 180, 0, 0;     P: 60, 60, 60        b: ½m = 0, 60, −60;   P: −30, 30, 0
    # Round 2, a: z = 72, 72, 45;     z − m = −288, 72, 45;    x = 204, 24, 37.5
    #             P: 68 + 18.75, 68 + 12, 68 + 12 + 18.75 = 86.75, 80, 98.75
    #          b: z = −36, 36, 0;     z − m = −36, −84, 120;   x = −12, 72, −60
    #             P: −4 − 30, −4 + 36, −4 + 36 − 30 = −34, 32, 2
    rounds = two_rounds(SGP(), (360, 0, 0), (0, 120, -120), graph=PUSH)
    check_weights(rounds)
    check(rounds[0].state["x"], (60, 60, 60), (-30, 30, 0))
    check(rounds[0].models, (72, 72, 45), (-36, 36, 0))
    check(rounds[1].state["x"], (86.75, 80, 98.75), (-34, 32, 2))


def test_osgp() -> None:
    # K = 2, z taken anew at every step: x ← x − ½(x/w − m).
    # Round 1: ¾m.   a: 180, 0, 0;   P: 60, 60, 60        b: 0, 120, −120;   P: −60, 60, 0
    # Round 2: w = 5/6: x ← .4x + ½m, twice .16x + .7m;   w = 4/3: x ← ⅝x + ½m, twice 25/64 x + 13/16 m
    #   a: 9.6 + 168, 9.6, 23.4375 = 177.6, 9.6, 23.4375;   P: 59.2 + 11.71875, 59.2 + 4.8, 59.2 + 4.8 + 11.71875
    #   b: −9.6, 9.6 + 112, −130 = −9.6, 121.6, −130;       P: −3.2 − 65, −3.2 + 60.8, −3.2 + 60.8 − 65
    rounds = two_rounds(OSGP(), (240, 0, 0), (0, 160, -160), steps=2, graph=PUSH)
    check_weights(rounds)
    check(rounds[0].state["x"], (60, 60, 60), (-60, 60, 0))
    check(rounds[1].state["x"], (70.91875, 64, 75.71875), (-68.2, 57.6, -7.4))


def test_overlap_sgp() -> None:
    # Shares p = 1/3, ½, ½ of x and w are sent and as much is kept before the step; they arrive a round later.
    # Round 1: 0 is sent, with weights p; kept w = 1/3, ½, ½. z = 0, x = ½m, in flight 0 and ½, 1/3, 1/3 + ½ to each.
    #          With what arrives: w = 5/6, 5/6, 4/3;  a: x = 30, 0, 0, z = 36, 0, 0;  b: x = 0, 40, −40, z = 0, 48, −30
    # Round 2: kept w = 5/18, 5/12, 2/3, in flight ½·4/3, ⅓·5/6, ⅓·5/6 + ½·5/6 = 2/3, 5/18, 25/36 to each.
    #   a: kept 10, 0, 0;      z as before, x = 10 − ½(36 − 60), 0, 0 = 22, 0, 0;               in flight 0, 10, 10
    #   b: kept 0, 20, −20;    x = 0, 20 − ½(48 − 80), −20 − ½(−30 + 80) = 0, 36, −45;          in flight −20, 0, 20
    #   With what arrives: w = 17/18, 25/36, 49/36;   a: 22, 10, 10    b: −20, 36, −25
    one, two = two_rounds(OverlapSGP(), (60, 0, 0), (0, 80, -80), graph=PUSH)
    close(one.state["weight"], torch.tensor([1 / 3, 1 / 2, 1 / 2], dtype=torch.float64))
    close(one.state["arriving_weight"], torch.tensor([1 / 2, 1 / 3, 5 / 6], dtype=torch.float64))
    check(one.state["x"], (30, 0, 0), (0, 40, -40))
    check(one.models, (36, 0, 0), (0, 48, -30))
    close(two.state["weight"], torch.tensor([5 / 18, 5 / 12, 2 / 3], dtype=torch.float64))
    close(two.state["arriving_weight"], torch.tensor([2 / 3, 5 / 18, 25 / 36], dtype=torch.float64))
    check(two.state["x"], (22, 0, 0), (0, 36, -45))
    check(two.state["arriving"], (0, 10, 10), (-20, 0, 20))
    check(two.models, (22 * 18 / 17, 10 * 36 / 25, 10 * 36 / 49), (-20 * 18 / 17, 36 * 36 / 25, -25 * 36 / 49))


def test_dfedsgpm() -> None:
    # K = 2, α = ½: g at z, x ← x − ½g; then g' at the new z, x ← x − ½(½g + g').
    # Round 1, w = 1: as in DFedAvgM that leads to m.   a: 180, 0, 0, P: 60, 60, 60     b: 0, 120, −120, P: −60, 60, 0
    # Round 2, a: z = 72, 72, 45;       g = −108, 72, 45;       x = 114, 24, 37.5
    #             z = 136.8, 28.8, 28.125;  g' = −43.2, 28.8, 28.125;   ½g + g' = −97.2, 64.8, 50.625
    #             x = 162.6, −8.4, 12.1875;   P: 54.2 + 6.09375, 54.2 − 4.2, 54.2 − 4.2 + 6.09375
    #          b: z = −72, 72, 0;       g = −72, −48, 120;      x = −24, 84, −60
    #             z = −28.8, 100.8, −45;    g' = −28.8, −19.2, 75;      ½g + g' = −64.8, −43.2, 135
    #             x = 8.4, 105.6, −127.5;     P: 2.8 − 63.75, 2.8 + 52.8, 2.8 + 52.8 − 63.75
    rounds = two_rounds(DFedSGPM(momentum=0.5), (180, 0, 0), (0, 120, -120), steps=2, graph=PUSH)
    check_weights(rounds)
    check(rounds[0].state["x"], (60, 60, 60), (-60, 60, 0))
    check(rounds[1].state["x"], (60.29375, 50, 56.09375), (-60.95, 55.6, -8.15))


def test_dfedsgpsm() -> None:
    # As above with minima s·(3,4), s = 179, 119, −119, and ρ = 5: g = z − m + σ, σ the sign of z − m in z-space.
    # Round 1: σ = −, −, + throughout, which leads to m − σ = 180, 120, −120;   P: 60 − 60, 60 + 60, 60 + 60 − 60
    # Round 2: x = 0, 120, 60;   z = 0, 144, 45, so that now σ = −, +, +
    #          g = −180, 26, 165;           x = 90, 107, −22.5
    #          z = 108, 128.4, −16.875;     g' = −72, 10.4, 103.125;   ½g + g' = −162, 23.4, 185.625
    #          x = 171, 95.3, −115.3125;    P: 57 − 57.65625, 57 + 47.65, 57 + 47.65 − 57.65625
    rounds = two_rounds(DFedSGPSM(momentum=0.5, rho=5.0), *along(179, 119, -119), steps=2, graph=PUSH)
    check_weights(rounds)
    check_along(rounds[0].state["x"], (0, 120, 60))
    check_along(rounds[1].state["x"], (-0.65625, 104.65, 46.99375))


def test_dfedsgpsm_s() -> None:
    # Everyone sends half to the one whose loss ½‖z − m‖² = 25/2 s² differs most. Losses differ by thousands, so the
    # draw with odds exp|f_i − f_j| leaves no doubt. Minima s·(3,4), s = 119, −7, −63; ρ = 5, K = 1, g = z − m + σ.
    # Round 1: distances 119, 7, 63, so 0 → 1, and 1 and 2 → 0.      P = ½(1,1,1), ½(1,1,0), ½(0,0,1)
    #          x = ½(120, −8, −64) = 60, −4, −32;   P x = 30 − 2 − 16, 30 − 2, −16 = 12, 28, −16;   w = 3/2, 1, 1/2
    # Round 2: z = 8, 28, −32;   z − m = −111, 35, 31, so 0 → 2, for 111² − 31² > 111² − 35², and 1 and 2 → 0
    #          g = −112, 36, 32;   x = 12 + 56, 28 − 18, −16 − 16 = 68, 10, −32
    #          P = ½(1,1,1), ½(0,1,0), ½(1,0,1):   P x = 34 + 5 − 16, 5, 34 − 16 = 23, 5, 18;   w = 3/2, 1/2, 1
    graph = {"name": "directed-by-loss", "neighbours": 1}
    rounds = two_rounds(DFedSGPSMS(momentum=0.5, rho=5.0), *along(119, -7, -63), graph=graph)
    check_weights(rounds, ((1.5, 1, 0.5), (1.5, 0.5, 1)))
    check_along(rounds[0].models, (8, 28, -32))
    check_along(rounds[1].models, (46 / 3, 10, 18))


def test_asyng() -> None:
    # K = 2, both gradients at the z of the round's start: x ← x − (z − m).
    # Round 1, a: m = 180, 0, 0;      P: 60, 60, 60         b: m = 0, 120, −120;   P: −60, 60, 0
    # Round 2, a: z = 72, 72, 45;    x = 60 + 108, 60 − 72, 60 − 45 = 168, −12, 15;    P: 56 + 7.5, 56 − 6, 56 − 6 + 7.5
    #          b: z = −72, 72, 0;    x = −60 + 72, 60 + 48, 0 − 120 = 12, 108, −120;   P: 4 − 60, 4 + 54, 4 + 54 − 60
    rounds = two_rounds(AsyNG(), (180, 0, 0), (0, 120, -120), steps=2, graph=PUSH)
    check_weights(rounds)
    check(rounds[0].state["x"], (60, 60, 60), (-60, 60, 0))
    check(rounds[1].state["x"], (63.5, 50, 57.5), (-56, 58, -2))
