"""Tuned studies: one seed chooses, others are reported."""

from pathlib import Path

import pandas as pd
import pytest

from gossamer.pages.reproduction import markdown
from gossamer.runs.record import RunRecord
from gossamer.studies import VariantResult
from gossamer.studies.reproduction import load_paper, names, read_folders, reproduce
from gossamer.studies.tuning import Tuning, read_tuning

TUNED = [name for name in names() if load_paper(name).tuning is not None]


def run_of(*accuracies: float, rounds: int = 2) -> RunRecord:
    """A run of a method of 2 clients that sends 10 MB and takes 6 gradients in each round."""
    count = range(1, len(accuracies) + 1)
    metrics = {
        "round": list(count), "test_accuracy": accuracies, "client_accuracy_worst": accuracies,
        "bytes_total": [1e7 * n for n in count], "gradients_total": [6 * n for n in count],
    }  # fmt: skip
    return RunRecord("", {"rounds": rounds, "clients": 2}, pd.DataFrame(metrics), pd.DataFrame())


def result_of(label: str, **seeds: RunRecord) -> VariantResult:
    return VariantResult(label, {}, {int(seed.removeprefix("seed")): run for seed, run in seeds.items()})


def test_every_method_gets_the_same_learning_rates_and_its_own_parameter() -> None:
    table = {"seed": 0, "seeds": [1, 2], "lr": [0.1, 1.0], "targets": ["90"], "own": {"B": {"method.rho": [0.1, 0.2]}}}
    tuning, variants = read_tuning(table, [{"label": "A", "method": "dfedavg"}, {"label": "B", "method": "dfedsam"}])
    assert tuning.candidates["A"] == ("A, lr 0.1", "A, lr 1")
    assert tuning.candidates["B"] == (
        "B, rho 0.1, lr 0.1",
        "B, rho 0.2, lr 0.1",
        "B, rho 0.1, lr 1",
        "B, rho 0.2, lr 1",
    )
    assert variants[3] == {"label": "B, rho 0.2, lr 0.1", "method": "dfedsam", "method.rho": 0.2, "lr": 0.1}


def test_what_is_reported_never_chooses() -> None:
    tuning = Tuning(0, (1, 2), ("90",), {"A": ("A, lr 0.1", "A, lr 1")})
    runs = {
        "A, lr 0.1": result_of("A, lr 0.1", seed0=run_of(0.5, 0.8), seed1=run_of(0.5, 0.6)),
        "A, lr 1": result_of("A, lr 1", seed0=run_of(0.99, 0.7), seed1=run_of(0.9, 0.99)),
    }
    assert tuning.winners(runs, "test_accuracy") == {"A": "A, lr 0.1"}  # the last value, not the best
    assert list(tuning.reported(runs, "test_accuracy")["A"].runs) == [1]


def test_a_candidate_that_diverged_is_not_chosen() -> None:
    tuning = Tuning(0, (1,), ("90",), {"A": ("A, lr 0.1", "A, lr 1")})
    runs = {
        "A, lr 0.1": result_of("", seed0=run_of(0.5, 0.6)),
        "A, lr 1": result_of("", seed0=run_of(0.9)),  # ended before its last round
    }
    assert tuning.winners(runs, "test_accuracy") == {"A": "A, lr 0.1"}
    assert not tuning.reported(runs, "test_accuracy")  # no seed but the one that chose


@pytest.mark.parametrize("name", TUNED)
def test_all_methods_have_the_same_budget(name: str) -> None:
    paper = load_paper(name)
    assert paper.tuning is not None
    assert paper.tuning.seed not in paper.tuning.seeds
    assert {len(labels) for labels in paper.tuning.candidates.values()} == {4, 8}  # without, with an own parameter


def test_the_winners_are_run_after_all_candidates(tmp_path: Path) -> None:
    paper = load_paper("tuned-mnist")
    study = paper.chosen(["D-PSGD"], None, quick=True)

    def finals() -> object:
        return paper.finals(study, read_folders(paper, tmp_path), seeds=2, quick=True)

    assert not reproduce(study, tmp_path, then=finals, workers=1, step="eager")  # type: ignore[arg-type]
    folders = sorted(path.name for path in tmp_path.iterdir())
    assert len([name for name in folders if name.endswith("seed0")]) == 4
    (winner,) = {name.rpartition("-seed")[0] for name in folders if not name.endswith("seed0")}
    assert {f"{winner}-seed1", f"{winner}-seed2"} <= set(folders)


def test_the_table_counts_for_one_client_and_names_who_is_ahead() -> None:
    paper = load_paper("tuned-mnist")
    rounds = paper.study.experiment.rounds
    early, late = [0.93] * rounds, [0.5] * (rounds // 2) + [0.94] * (rounds - rounds // 2)

    def runs(label: str, *curves: list[float]) -> VariantResult:
        return VariantResult(label, {}, {seed: run_of(*c, rounds=rounds) for seed, c in enumerate(curves)})

    found = {
        "DFedAvg, lr 0.1": runs("", early, early, early),
        "D-PSGD, lr 0.1": runs("", late, late, [0.5, *late[1:]]),
    }
    text = markdown(paper, found)
    assert "| DFedAvg | lr 0.1 | 2 | 93.00 ± 0.00 | 93.00 ± 0.00 | 1 ± 0 | 5 ± 0 | 3 ± 0 | – | – | – |" in text
    assert "After 40 rounds: D-PSGD 94, DFedAvg 93 points; D-PSGD before DFedAvg by 1" in text
    assert "To 92 %: DFedAvg 5, D-PSGD 105 MB sent by a client" in text
