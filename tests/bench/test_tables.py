"""The tables of `make bench`: medians, ratios and pages; contenders that take turns."""

import io
from dataclasses import replace

import pytest
from benchmarks import run, scaling
from benchmarks.contender import Contender, Watched
from benchmarks.environments import PACKAGES
from benchmarks.run import Outcome
from benchmarks.scaling import Point
from benchmarks.workloads import WORKLOADS, find
from rich.console import Console

from gossamer import simulate


@pytest.fixture
def outcome():
    rates = {"loop 1": [10.0, 20.0, 10.0], "loop all": [20.0] * 3, "engine 1": [20.0] * 3, "engine all": [40.0] * 3}
    rates["products 1"] = [16.0] * 3
    return Outcome(WORKLOADS["W1"], rates, limit=[40.0] * 3, fastest="oneDNN", how="1 at a time", jax="", flops=1e8)


def test_a_ratio_is_taken_turn_by_turn(outcome):
    assert outcome.rate("loop 1") == 10
    assert outcome.ratio("engine all", "loop 1") == 4
    assert outcome.share("engine all", 2) == 0.5
    assert outcome.spread == 0.25


def test_the_page_has_a_line_for_each_workload_and_says_where_it_was_measured(outcome):
    lines = run.notes("python -m benchmarks", [outcome], {"flower": None, "gossipy": 0.8})
    page = run.markdown([outcome], 2, lines)
    column = [line.split("|")[2].strip() for line in page.splitlines() if line.startswith("|")]
    numbers = ["10", "2.00", "1.60", "–", "2.00", "4.00", "2.00", "2.50", "–", "2.00", "50 %", "25 %"]
    assert column == ["W1", "---:", *numbers]
    assert "| Gossamer, 2 workers: of limit | 50 % |" in page
    assert f"flower ({PACKAGES['flower']}) on the work of W1: not installed" in page
    assert "`python -m benchmarks.environments jax` makes an environment for it" in page
    assert "0.80 times the loop" in page
    assert "torch" in page
    assert "W1 4 (oneDNN)" in page  # GFLOP/s, of which the shares are
    assert run.table([outcome], 2).row_count == len(numbers)


def test_the_table_of_all_workloads_fits_a_terminal_of_80_columns(outcome):
    outcomes = [replace(outcome, workload=workload) for workload in WORKLOADS.values()]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(run.table(outcomes, 2))
    shown = console.export_text()
    assert "…" not in shown
    assert "W1-ADMM" in shown


def test_the_page_says_how_the_loop_in_jax_ran(outcome):
    outcome = replace(outcome, rates=outcome.rates | {"JAX": [16.0] * 3}, jax="map, 2 devices")
    page = run.markdown([outcome], 2, run.notes("python -m benchmarks", [outcome], {}))
    assert "| JAX: × loop | 1.60 |" in page
    assert "| Gossamer, 2 workers: × JAX | 2.50 |" in page
    assert "W1 by map, 2 devices" in page


def test_an_unknown_workload_is_refused(capsys):
    with pytest.raises(SystemExit):
        run.main(["--only", "W9"])
    assert "there is no W9" in capsys.readouterr().err


def test_slope_and_growth_of_a_straight_line(tmp_path):
    alone, by_default = (
        [Point(n, alone, 1, n * 1e-3, 5_000 + 20 * n, 10 * n) for n in (10, 100, 1000)] for alone in (True, False)
    )
    points = [*alone, *by_default]
    assert scaling.slope(alone) == pytest.approx(1)
    assert scaling.growth(alone) == pytest.approx(2)
    assert "n^1.00" in scaling.notes(points, "command")[0]
    assert scaling.cells(points[-1])[-1] == "2.50"
    scaling.plot(points, tmp_path / "curve.svg")
    assert (tmp_path / "curve.svg").stat().st_size > 0


def test_the_table_of_edges():
    rows, lines = scaling.edge_page([2, 4, 8], 1000, [0.12, 0.14, 0.18], "command")
    assert rows[1] == ["4", "4,000", "0.1400", "0.0400", "10000"]
    assert "takes 0.100 s and 10000 ns for each edge" in lines[0]
    assert "by more than 0 %" in lines[0]
    assert find("N300E4").experiment().graph.k == 4


def test_a_contender_works_when_it_is_its_turn():
    contender = Contender("N12", "loop").ready()
    try:
        # A step is one batch of six samples through one layer of 784 to 10.
        assert contender.facts == {"steps": 60, "flops": 6 * 4 * 784 * 10}
        for _ in range(2):
            rounds = contender.turn(0.0)
            assert len(rounds) == 1
            assert rounds[0] > 0
    finally:
        contender.close()


def test_a_run_of_the_engine_tells_of_its_rounds_and_its_memory():
    class Counted:
        warming, facts, rounds = True, {}, 0

        def over(self):
            self.rounds += 1
            self.warming = False

    turns = Counted()
    simulate(find("N12").experiment(rounds=3), workers=1, observers=[Watched(turns)])
    assert turns.rounds == 3
    assert turns.facts["needed"] == 12 * 7850 * 4 + 72 * (784 + 8)
    assert turns.facts["alone"] > 0
    assert turns.facts["how"]


def test_a_contender_that_fails_says_why():
    with pytest.raises(RuntimeError, match="KeyError: 'W9'"):
        Contender("W9", "loop").ready()


def test_workloads_of_any_size():
    assert find("W1") is WORKLOADS["W1"]
    assert find("N300").experiment().clients == 300
