"""Means, spreads, targets and paired differences, on numbers that can be checked by hand."""

import math
from dataclasses import replace

import pandas as pd
import pytest

from gossamer.runs.record import RunRecord
from gossamer.studies import Target, VariantResult
from records import NINETY, comparison, record


def test_a_target_costs_what_was_done_until_the_round_that_met_it() -> None:
    variant = VariantResult("a", {}, {0: record(0.5, None, 0.9, 0.8), 1: record(0.95, 0.5)})
    reached = variant.until(NINETY)
    assert reached.met == 2
    assert reached.by_seed[0].cost == (3, 30, 9, 21, 6.0)
    rounds = reached.estimate("rounds")
    assert rounds is not None
    assert rounds.mean == 2
    assert rounds.spread == pytest.approx(math.sqrt(2))
    assert reached.estimate("seconds").mean == 4.0  # type: ignore[union-attr]


def test_a_target_that_some_seed_did_not_reach_has_no_mean() -> None:
    variant = VariantResult("a", {}, {0: record(0.9), 1: record(0.5, 0.8, 0.85)})
    reached = variant.until(NINETY)
    assert (reached.met, reached.estimate("rounds"), reached.more_than("rounds")) == (1, None, 3)
    table = comparison({"a": variant.runs}, (NINETY,)).table
    assert math.isnan(table.loc["a", f"rounds until {NINETY}"])
    assert math.isnan(table.loc["a", f"rounds until {NINETY} spread"])


def test_a_loss_falls_to_its_target() -> None:
    assert Target("test_loss", 0.5).met_by(0.4)
    assert not Target("test_loss", 0.5).met_by(math.nan)
    assert str(Target("test_loss", 0.5)) == "test loss ≤ 0.5"
    assert str(NINETY) == "test accuracy ≥ 90 %"


def test_a_run_without_rounds_has_reached_nothing() -> None:
    empty = RunRecord("run", {"rounds": 3, "dataset": "digits"}, pd.DataFrame(), pd.DataFrame())
    assert VariantResult("a", {}, {0: empty}).until(NINETY).by_seed[0].cost.rounds == 0
    assert math.isnan(comparison({"a": {0: empty}}).table.loc["a", "seconds"])


def test_differences_are_paired_by_seed() -> None:
    """Seeds that are far apart do not hide a difference that each of them shows."""
    base = {0: record(0.2), 1: record(0.5), 2: record(0.8)}
    better = {0: record(0.21), 1: record(0.53), 2: record(0.82)}
    found = comparison({"base": base, "better": better}, baseline="base").difference("better")
    assert found is not None
    assert found.mean == pytest.approx(0.02)
    assert found.error == pytest.approx(0.01 / math.sqrt(3))
    assert found.exceeds
    assert found.words == "yes, higher"
    noisy = {0: record(0.1), 1: record(0.6), 2: record(0.83)}
    unsure = comparison({"base": base, "noisy": noisy}, baseline="base").difference("noisy")
    assert unsure is not None
    assert unsure.words == "no"
    same = comparison({"base": base, "same": base}, baseline="base").difference("same")
    assert same is not None
    assert (same.mean, same.words) == (0, "no")


def test_only_common_seeds_and_common_test_samples_are_paired() -> None:
    base = {0: record(0.2), 1: record(0.5)}
    one = comparison({"base": base, "one": {1: record(0.6), 2: record(0.9)}}, baseline="base").difference("one")
    assert one is not None
    assert (one.seeds, one.error, one.words) == ((1,), None, "one seed: not known")
    assert one.mean == pytest.approx(0.1)
    other = {0: record(0.9, dataset="mnist")}
    apart = comparison({"base": base, "other": other}, baseline="base").difference("other")
    assert apart is not None
    assert math.isnan(apart.mean)
    assert apart.words == "not comparable: other test samples"
    none = comparison({"base": base, "none": {7: record(0.9)}}, baseline="base").difference("none")
    assert none is not None
    assert none.words == "no seed in common"


def test_runs_that_are_not_whole_are_named_with_their_seed() -> None:
    lost, cut = record(0.5, 0.1), replace(record(0.5), stopped="unfinished: go on")
    lost.metrics["local_loss"] = [1.0, math.nan]
    found = comparison({"a": {0: record(0.5), 1: lost}, "b": {0: cut}})
    assert found.remarks == ["a (seed 1): diverged, and went on without finite numbers", "b: unfinished: go on"]
    assert list(found.run_table["remark"].notna()) == [False, True, True]


def test_a_seed_without_a_number_leaves_no_mean() -> None:
    table = comparison({"a": {0: record(0.5), 1: record(None)}}).table
    assert math.isnan(table.loc["a", "best accuracy"])
    assert table.loc["a", "seeds"] == 2


def test_one_seed_has_no_spread_in_any_table() -> None:
    single = comparison({"a": {0: record(0.5)}, "b": {0: record(0.6)}}, (NINETY,), "a")
    for table in (single.table, single.run_table, single.difference_table):
        assert not [name for name in table.columns if "spread" in name or name == "standard error"]
