"""Gradient tracking in its many forms, on paper (see `paper.py`): K = 2 local steps, so Kη = 1, but for G-ECL."""

from gossamer.methods import GECL, KGT, DScaffold, LocalGECL
from paper import After, check, two_rounds

NINTHS = (36, 0, 0), (0, 36, -36)
TWELFTHS = (48, 0, 0), (0, 48, -48)


def test_d_scaffold_tracked() -> None:
    # Two corrected steps: y = ¼x + ¾(m + c − c̃);  c⁺ = c − c̃ + x − y;  x⁺ = W y;  c̃⁺ = W(c̃ + c⁺ − c).
    # Round 1, from zeros: y = ¾m, c = −¾m.
    #   a: y = 36, 0, 0;    c = −36, 0, 0;    x = 24, 12, 0;    c̃ = −24, −12, 0
    #   b: y = 0, 36, −36;  c = 0, −36, 36;   x = 12, 0, −12;   c̃ = −12, 0, 12
    # Round 2
    #   a: m + c − c̃ = 36, 12, 0;     y = 6 + 27, 3 + 9, 0 = 33, 12, 0;          x = 26, 15, 4
    #      c⁺ = −12 + 24 − 33, 12 + 12 − 12, 0 = −21, 12, 0
    #      c̃ + c⁺ − c = −24 + 15, −12 + 12, 0 = −9, 0, 0;                        c̃ = −6, −3, 0
    #   b: m + c − c̃ = 12, 12, −24;   y = 3 + 9, 0 + 9, −3 − 18 = 12, 9, −21;    x = 11, 0, −11
    #      c⁺ = 12 + 12 − 12, −36 + 0 − 9, 24 − 12 + 21 = 12, −45, 33
    #      c̃ + c⁺ − c = −12 + 12, 0 − 9, 12 − 3 = 0, −9, 9;                      c̃ = −3, 0, 3
    two = _d_scaffold(DScaffold())
    check(two.state["mean_control"], (-6, -3, 0), (-3, 0, 3))


def test_d_scaffold_neighbourhood() -> None:
    # As above up to the last line of each parameter, which is c̃ = W c⁺.
    #   a: W(−21, 12, 0) = −30/3, −9/3, 12/3 = −10, −3, 4       b: W(12, −45, 33) = −21/3, 0, 21/3 = −7, 0, 7
    two = _d_scaffold(DScaffold(reading="neighbourhood"))
    check(two.state["mean_control"], (-10, -3, 4), (-7, 0, 7))


def _d_scaffold(method: DScaffold) -> After:
    """What both readings share; they part in what the second round makes of c̃."""
    one, two = two_rounds(method, *TWELFTHS, steps=2)
    check(one.models, (24, 12, 0), (12, 0, -12))
    check(one.state["control"], (-36, 0, 0), (0, -36, 36))
    check(one.state["mean_control"], (-24, -12, 0), (-12, 0, 12))
    check(two.models, (26, 15, 4), (11, 0, -11))
    check(two.state["control"], (-21, 12, 0), (12, -45, 33))
    return two


def test_g_ecl() -> None:
    # One step: v = x − m − λ, the gradient at x;  x⁺ = x̃ − ½v;  x̃⁺ = W x⁺;  λ⁺ = λ − W v + v. The model is x̃.
    # Round 1, from zeros: v = −m, x = ½m.
    #   a: v = −36, 0, 0;   x = 18, 0, 0;    x̃ = 12, 6, 0;    W v = −24, −12, 0;   λ = −12, 12, 0
    #   b: v = 0, −36, 36;  x = 0, 18, −18;  x̃ = 6, 0, −6;    W v = −12, 0, 12;    λ = 12, −36, 24
    # Round 2
    #   a: v = −18 + 12, 0 − 12, 0 = −6, −12, 0;            x = 12 + 3, 6 + 6, 0 = 15, 12, 0;       x̃ = 14, 9, 4
    #      W v = −8, −6, −4;   λ = −12 + 8 − 6, 12 + 6 − 12, 0 + 4 + 0 = −10, 6, 4
    #   b: v = 0 − 12, −18 + 36, 18 − 24 = −12, 18, −6;     x = 6 + 6, 0 − 9, −6 + 3 = 12, −9, −3;  x̃ = 5, 0, −5
    #      W v = −2, 0, 2;     λ = 12 + 2 − 12, −36 + 18, 24 − 2 − 6 = 2, −18, 16
    one, two = two_rounds(GECL(), *NINTHS)
    check(one.models, (12, 6, 0), (6, 0, -6))
    check(one.state["dual"], (-12, 12, 0), (12, -36, 24))
    check(two.models, (14, 9, 4), (5, 0, -5))
    check(two.state["x"], (15, 12, 0), (12, -9, -3))
    check(two.state["dual"], (-10, 6, 4), (2, -18, 16))


def test_g_ecl_with_a_pull() -> None:
    # α = 1: λ⁺ gains ½ Σ_j (x̃_j − x̃_i) with the x̃ at the start of the round, which all agree in round 1.
    # Round 2, a: x̃ = 12, 6, 0:  ½(−6), ½(6 − 6), ½(6) = −3, 0, 3;    λ = −13, 6, 7
    #          b: x̃ = 6, 0, −6:  ½(−6), ½(6 − 6), ½(6) = −3, 0, 3;    λ = −1, −18, 19
    one, two = two_rounds(GECL(alpha=1.0), *NINTHS)
    check(one.state["dual"], (-12, 12, 0), (12, -36, 24))
    check(two.models, (14, 9, 4), (5, 0, -5))
    check(two.state["dual"], (-13, 6, 7), (-1, -18, 19))


def test_local_g_ecl() -> None:
    # With t = m + λ: n = x̃ − ½(x − t), the first gradient at x;  x⁺ = ½n + ½t;  v̄ = x̃ − x⁺;  λ⁺ = λ − W v̄ + v̄.
    # Round 1, from zeros: x = ¾m, v̄ = −¾m.
    #   a: x = 36, 0, 0;    x̃ = 24, 12, 0;    W v̄ = −24, −12, 0;   λ = −12, 12, 0
    #   b: x = 0, 36, −36;  x̃ = 12, 0, −12;   W v̄ = −12, 0, 12;    λ = 12, −36, 24
    # Round 2
    #   a: t = 36, 12, 0;     x − t = 0, −12, 0;       n = 24, 18, 0;       x = 30, 15, 0;     x̃ = 25, 15, 5
    #      v̄ = −6, −3, 0;     W v̄ = −5, −3, −1;        λ = −12 + 5 − 6, 12 + 3 − 3, 0 + 1 + 0 = −13, 12, 1
    #   b: t = 12, 12, −24;   x − t = −12, 24, −12;    n = 18, −12, −6;     x = 15, 0, −15;    x̃ = 10, 0, −10
    #      v̄ = −3, 0, 3;      W v̄ = −2, 0, 2;          λ = 12 + 2 − 3, −36, 24 − 2 + 3 = 11, −36, 25
    one, two = two_rounds(LocalGECL(), *TWELFTHS, steps=2)
    check(one.models, (24, 12, 0), (12, 0, -12))
    check(one.state["dual"], (-12, 12, 0), (12, -36, 24))
    check(two.models, (25, 15, 5), (10, 0, -10))
    check(two.state["x"], (30, 15, 0), (15, 0, -15))
    check(two.state["dual"], (-13, 12, 1), (11, -36, 25))


def test_local_g_ecl_from_the_aggregated_model_with_a_pull() -> None:
    # The first gradient at x̃, so x⁺ = ¼x̃ + ¾t; round 1 is the same, for x = x̃ = 0. α = 2: λ⁺ gains Σ_j (x̃_j − x̃_i).
    # Round 2, a: x = 6 + 27, 3 + 9, 0 = 33, 12, 0;   x̃ = 26, 15, 4;    v̄ = −9, 0, 0;    W v̄ = −6, −3, 0
    #             λ = −12 + 6 − 9, 12 + 3, 0 = −15, 15, 0, and of x̃ = 24, 12, 0 the pull −12, 0, 12:   −27, 15, 12
    #          b: x = 3 + 9, 9, −3 − 18 = 12, 9, −21;  x̃ = 11, 0, −11;   v̄ = 0, −9, 9;    W v̄ = −3, 0, 3
    #             λ = 12 + 3, −36 − 9, 24 − 3 + 9 = 15, −45, 30, and of x̃ = 12, 0, −12 the pull −12, 0, 12:   3, −45, 42
    one, two = two_rounds(LocalGECL(start="aggregated", alpha=2.0), *TWELFTHS, steps=2)
    check(one.models, (24, 12, 0), (12, 0, -12))
    check(one.state["dual"], (-12, 12, 0), (12, -36, 24))
    check(two.models, (26, 15, 4), (11, 0, -11))
    check(two.state["dual"], (-27, 15, 12), (3, -45, 42))


def test_local_g_ecl_with_a_warm_start() -> None:
    # r̃ = 1: λ = G − W G with the gradients G = −m at the start.
    #   a: −48 + 32, 0 + 16, 0 = −16, 16, 0        b: 0 + 16, −48 + 0, 48 − 16 = 16, −48, 32
    # Round 1: t = m + λ, x = ¾t, v̄ = −x.
    #   a: t = 32, 16, 0;    x = 24, 12, 0;    x̃ = 20, 12, 4;   λ = −16 + 20 − 24, 16 + 12 − 12, 0 + 4 = −20, 16, 4
    #   b: t = 16, 0, −16;   x = 12, 0, −12;   x̃ = 8, 0, −8;    λ = 16 + 8 − 12, −48, 32 − 8 + 12 = 12, −48, 36
    # Round 2
    #   a: t = 28, 16, 4;    x − t = −4, −4, −4;  n = 22, 14, 6;   x = 25, 15, 5;    x̃ = 65/3, 15, 25/3
    #   b: t = 12, 0, −12;   x − t = 0, 0, 0;     n = 8, 0, −8;    x = 10, 0, −10;   x̃ = 20/3, 0, −20/3
    one, two = two_rounds(LocalGECL(warm_start=1), *TWELFTHS, steps=2)
    check(one.models, (20, 12, 4), (8, 0, -8))
    check(one.state["dual"], (-20, 16, 4), (12, -48, 36))
    check(two.models, (65 / 3, 15, 25 / 3), (20 / 3, 0, -20 / 3))


def test_k_gt() -> None:
    # y = ¼x + ¾(m − c);  z = x − y;  x⁺ = W y;  c⁺ = c − z + W z.
    # Round 1, from zeros, a: y = 36, 0, 0;    z = −36, 0, 0;   x = 24, 12, 0;   c = 36 − 24, −12, 0 = 12, −12, 0
    #                      b: y = 0, 36, −36;  z = 0, −36, 36;  x = 12, 0, −12;  c = −12, 36, −36 + 12 = −12, 36, −24
    # Round 2, a: m − c = 36, 12, 0;     y = 6 + 27, 3 + 9, 0 = 33, 12, 0;        x = 26, 15, 4
    #             z = −9, 0, 0;   W z = −6, −3, 0;   c = 12 + 9 − 6, −12 − 3, 0 = 15, −15, 0
    #          b: m − c = 12, 12, −24;   y = 3 + 9, 9, −3 − 18 = 12, 9, −21;      x = 11, 0, −11
    #             z = 0, −9, 9;   W z = −3, 0, 3;    c = −12 − 3, 36 + 9, −24 − 9 + 3 = −15, 45, −30
    one, two = two_rounds(KGT(), *TWELFTHS, steps=2)
    check(one.models, (24, 12, 0), (12, 0, -12))
    check(one.state["correction"], (12, -12, 0), (-12, 36, -24))
    check(two.models, (26, 15, 4), (11, 0, -11))
    check(two.state["correction"], (15, -15, 0), (-15, 45, -30))
