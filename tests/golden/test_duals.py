"""Methods with duals, on paper (see `paper.py`): DFedADMM's local problems, and edge consensus."""

from fractions import Fraction as F

from gossamer.methods import ECL, ECLISVR, PDMM, DFedADMM, DFedADMMSAM
from paper import along, check, check_along, two_rounds


def test_dfedadmm_with_the_old_dual() -> None:
    # λ = 2, K = 2: y ← y − ½(y − m − ĝ + ½(y − x)) = ¼y + ¼x + ½(m + ĝ), twice: y = ⅜x + ⅝(m + ĝ).
    # ĝ⁺ = ĝ − ½(y − x);  z = y − 2ĝ;  x⁺ = W z.
    # Round 1, from zeros: y = z = ⅝m, ĝ = −5/16 m.
    #   a: z = 30, 0, 0;      x = 20, 10, 0;      ĝ = −15, 0, 0
    #   b: z = 0, 30, −60;    x = 10, −10, −30;   ĝ = 0, −15, 30
    # Round 2
    #   a: m + ĝ = 33, 0, 0;      y = 7.5 + 20.625, 3.75, 0 = 28.125, 3.75, 0
    #      ĝ⁺ = −15 − 4.0625, 0 + 3.125, 0 = −19.0625, 3.125, 0
    #      z = 28.125 + 30, 3.75, 0 = 58.125, 3.75, 0;          x = 120/3, 61.875/3, 3.75/3 = 40, 20.625, 1.25
    #   b: m + ĝ = 0, 33, −66;    y = 3.75, −3.75 + 20.625, −11.25 − 41.25 = 3.75, 16.875, −52.5
    #      ĝ⁺ = 0 + 3.125, −15 − 13.4375, 30 + 11.25 = 3.125, −28.4375, 41.25
    #      z = 3.75, 16.875 + 30, −52.5 − 60 = 3.75, 46.875, −112.5
    #      x = 54.375/3, −61.875/3, −178.125/3 = 18.125, −20.625, −59.375
    one, two = two_rounds(DFedADMM(penalty=2.0), (48, 0, 0), (0, 48, -96), steps=2)
    check(one.models, (20, 10, 0), (10, -10, -30))
    check(one.state["dual"], (-15, 0, 0), (0, -15, 30))
    check(two.models, (40, 20.625, 1.25), (18.125, -20.625, -59.375))
    check(two.state["dual"], (-19.0625, 3.125, 0), (3.125, -28.4375, 41.25))


def test_dfedadmm_with_the_new_dual() -> None:
    # As above, but z = y − 2ĝ⁺. Round 1: z = ⅝m + ⅝m = 5/4 m, the duals are the same.
    #   a: z = 60, 0, 0;      x = 40, 20, 0;      ĝ = −15, 0, 0
    #   b: z = 0, 60, −120;   x = 20, −20, −60;   ĝ = 0, −15, 30
    # Round 2
    #   a: y = 15 + 20.625, 7.5, 0 = 35.625, 7.5, 0;   ĝ⁺ = −15 + 2.1875, 0 + 6.25, 0 = −12.8125, 6.25, 0
    #      z = 35.625 + 25.625, 7.5 − 12.5, 0 = 61.25, −5, 0;       x = 117.5/3, 56.25/3, −5/3
    #   b: y = 7.5, −7.5 + 20.625, −22.5 − 41.25 = 7.5, 13.125, −63.75
    #      ĝ⁺ = 0 + 6.25, −15 − 16.5625, 30 + 1.875 = 6.25, −31.5625, 31.875
    #      z = 7.5 − 12.5, 13.125 + 63.125, −63.75 − 63.75 = −5, 76.25, −127.5;   x = 66.25/3, −56.25/3, −178.75/3
    one, two = two_rounds(DFedADMM(penalty=2.0, dual="new"), (48, 0, 0), (0, 48, -96), steps=2)
    check(one.models, (40, 20, 0), (20, -20, -60))
    check(one.state["dual"], (-15, 0, 0), (0, -15, 30))
    check(two.models, (117.5 / 3, 18.75, -5 / 3), (66.25 / 3, -18.75, -178.75 / 3))
    check(two.state["dual"], (-12.8125, 6.25, 0), (6.25, -31.5625, 31.875))


def test_dfedadmm_sam() -> None:
    # Minima s·(3,4) with s = 47, −47, 95, and ρ = 5, so that ρ g/‖g‖ = σ·(3,4), σ the sign of y − m. Nobody crosses its
    # minimum, so every step is one of DFedADMM towards m − σ = 48, −48, 96. λ = 2, K = 2, the old dual.
    # Round 1: y = z = ⅝(m − σ) = 30, −30, 60;   x = 10, 20, 30;   ĝ = −15, 15, −30
    # Round 2: m − σ + ĝ = 33, −33, 66;   y = 3.75 + 20.625, 7.5 − 20.625, 11.25 + 41.25 = 24.375, −13.125, 52.5
    #          ĝ⁺ = −15 − 7.1875, 15 + 16.5625, −30 − 11.25 = −22.1875, 31.5625, −41.25
    #          z = y − 2ĝ = 54.375, −43.125, 112.5;   x = 65.625/3, 123.75/3, 181.875/3 = 21.875, 41.25, 60.625
    one, two = two_rounds(DFedADMMSAM(penalty=2.0, rho=5.0), *along(47, -47, 95), steps=2)
    check_along(one.models, (10, 20, 30))
    check_along(one.state["dual"], (-15, 15, -30))
    check_along(two.models, (21.875, 41.25, 60.625))
    check_along(two.state["dual"], (-22.1875, 31.5625, -41.25))


# Edge consensus on the path: E = 1, 2, 1 neighbours, N their sum.  S⁺ = T + 2N,  T⁺ = S − 2E x,  both zero at first.


def test_ecl() -> None:
    # K = 2, the default coupling η_c = 1/(ηE(K−1)) = 2/E, so ηη_c E = 1: y ← (½(y + m) + S/E)/2, twice:
    # x⁺ = x/16 + 5/16 m + ⅝ S/E.
    # Round 1, a: x = 20, 0, 0;     S = 0, 40, 0;       T = −40, 0, 0
    #          b: x = 0, 20, −20;   S = 40, −40, 40;    T = 0, −80, 40
    # Round 2, a: x = 1.25 + 20, ⅝·20, 0 = 21.25, 12.5, 0
    #             S = −40 + 25, 0 + 42.5, 0 + 25 = −15, 42.5, 25;      T = 0 − 42.5, 40 − 50, 0 = −42.5, −10, 0
    #          b: x = ⅝·40, 1.25 + 20 − ⅝·20, −1.25 − 20 + ⅝·40 = 25, 8.75, 3.75
    #             S = 0 + 17.5, −80 + 57.5, 40 + 17.5 = 17.5, −22.5, 57.5
    #             T = 40 − 50, −40 − 35, 40 − 7.5 = −10, −75, 32.5
    one, two = two_rounds(ECL(), (64, 0, 0), (0, 64, -64), steps=2)
    check(one.models, (20, 0, 0), (0, 20, -20))
    check(one.state["S"], (0, 40, 0), (40, -40, 40))
    check(one.state["T"], (-40, 0, 0), (0, -80, 40))
    check(two.models, (21.25, 12.5, 0), (25, 8.75, 3.75))
    check(two.state["S"], (-15, 42.5, 25), (17.5, -22.5, 57.5))
    check(two.state["T"], (-42.5, -10, 0), (-10, -75, 32.5))


def test_ecl_with_a_given_coupling_in_the_admm_flavour() -> None:
    # K = 1, η_c = 2, so ηη_c = 1: x⁺ = (½(x + m) + S)/(1 + E).  θ = ½: S⁺ = ½S + ½(T + 2N), T⁺ = ½T + ½(S − 2E x).
    # Round 1, a: x = 24/2, 0, 0 = 12, 0, 0;              S = 0, 12, 0;       T = −12, 0, 0
    #          b: x = 0, 36/3, −24/2 = 0, 12, −12;        S = 12, −12, 12;    T = 0, −24, 12
    # Round 2, a: x = 30/2, 12/3, 0 = 15, 4, 0
    #             S = ½(−12 + 8), 6 + ½·30, ½·8 = −2, 21, 4;              T = −6 − 15, ½(12 − 16), 0 = −21, −2, 0
    #          b: x = 12/2, (42 − 12)/3, (−30 + 12)/2 = 6, 10, −9
    #             S = 6 + ½·20, −6 + ½(−24 − 6), 6 + ½(12 + 20) = 16, −21, 22
    #             T = ½(12 − 12), −12 + ½(−12 − 40), 6 + ½(12 + 18) = 0, −38, 21
    one, two = two_rounds(ECL(coupling=2.0, relaxation=0.5), (48, 0, 0), (0, 72, -48))
    check(one.models, (12, 0, 0), (0, 12, -12))
    check(one.state["S"], (0, 12, 0), (12, -12, 12))
    check(two.models, (15, 4, 0), (6, 10, -9))
    check(two.state["S"], (-2, 21, 4), (16, -21, 22))
    check(two.state["T"], (-21, -2, 0), (0, -38, 21))


def test_pdmm() -> None:
    # η_c = ½: y ← y − ½(y − m + ½(E y − S)) = (½ − ¼E)y + ½m + ¼S. K = 2 of them:
    # at the ends (E = 1) x/16 + ⅝m + 5/16 S, in the middle (E = 2) ½m + ¼S, which solves the local problem.
    # Round 1, a: x = 40, 0, 0;      S = 0, 80, 0;        T = −80, 0, 0
    #          b: x = 0, 32, −40;    S = 64, −80, 64;     T = 0, −128, 80
    # Round 2, a: x = 2.5 + 40, 20, 0 = 42.5, 20, 0
    #             S = −80 + 40, 0 + 85, 0 + 40 = −40, 85, 40;       T = 0 − 85, 80 − 80, 0 = −85, 0, 0
    #          b: x = 20, 32 − 20, −2.5 − 40 + 20 = 20, 12, −22.5
    #             S = 0 + 24, −128 − 5, 80 + 24 = 24, −133, 104;    T = 64 − 40, −80 − 48, 64 + 45 = 24, −128, 109
    one, two = two_rounds(PDMM(coupling=0.5), (64, 0, 0), (0, 64, -64), steps=2)
    check(one.models, (40, 0, 0), (0, 32, -40))
    check(one.state["S"], (0, 80, 0), (64, -80, 64))
    check(two.models, (42.5, 20, 0), (20, 12, -22.5))
    check(two.state["S"], (-40, 85, 40), (24, -133, 104))
    check(two.state["T"], (-85, 0, 0), (24, -128, 109))


def test_ecl_isvr() -> None:
    # K = 2: ηη_c = 1/(KE + K − E) is ⅓ at the ends and ¼ in the middle.
    # Ends: y ← (½(y + m) + ⅓S)/(4/3) = ⅜(y + m) + ¼S, twice: 9/64 x + 33/64 m + 11/32 S
    # Middle: y ← (½(y + m) + ¼S)/(3/2) = ⅓(y + m) + S/6, twice: x/9 + 4/9 m + 2/9 S
    # Round 1, a: x = 33, 0, 0;     S = 0, 66, 0;       T = −66, 0, 0
    #          b: x = 0, 8, −33;    S = 16, −66, 16;    T = 0, −32, 66
    # Round 2, a: x = 297/64 + 33, 44/3, 0 = 2409/64, 44/3, 0
    #             S = −66 + 88/3, 2409/32, 88/3 = −110/3, 2409/32, 88/3
    #          b: x = 11/2, 8/9 + 8 − 44/3, −297/64 − 33 + 11/2 = 11/2, −52/9, −2057/64
    #             S = 0 − 104/9, −32 + 11 − 2057/32, 66 − 104/9 = −104/9, −2729/32, 490/9
    one, two = two_rounds(ECLISVR(), (64, 0, 0), (0, 18, -64), steps=2)
    check(one.models, (33, 0, 0), (0, 8, -33))
    check(one.state["S"], (0, 66, 0), (16, -66, 16))
    check(two.models, (F(2409, 64), F(44, 3), 0), (5.5, F(-52, 9), F(-2057, 64)))
    check(two.state["S"], (F(-110, 3), F(2409, 32), F(88, 3)), (F(-104, 9), F(-2729, 32), F(490, 9)))
