"""The papers' tables: files that load, runs that go on, verdicts, and a page rebuilt from the stored results."""

import time
from pathlib import Path

import pandas as pd
import pytest

from gossamer import simulation
from gossamer.errors import ExperimentError
from gossamer.experiment import experiment_from, prepare, read_toml
from gossamer.pages.reproduction import TABLE, rebuild, side_by_side
from gossamer.runs.record import RunRecord, read_run
from gossamer.studies import VariantResult
from gossamer.studies.reproduction import (
    Conclusion,
    PaperStudy,
    folder_of,
    load_paper,
    names,
    read_folders,
    read_results,
    read_stored,
    reproduce,
    store,
    stored_by_experiment,
)

ROOT = Path(__file__).parents[2]
RESULTS, PAGES = ROOT / "results", [ROOT / "docs" / name for name in ("reproduction.md", "which-method.md")]


def stored() -> list[Path]:
    return sorted(path.parent for path in RESULTS.glob("*/*/experiment.toml"))


def paper_of(**runs: list[list[float]]) -> tuple[PaperStudy, dict[str, VariantResult]]:
    """Runs of cells with these accuracies by round, one list for each seed."""
    found = {}
    for label, seeds in runs.items():
        records = {
            seed: RunRecord(
                label, {}, pd.DataFrame({"round": range(1, len(v) + 1), "test_accuracy": v}), pd.DataFrame()
            )
            for seed, v in enumerate(seeds)
        }
        found[label] = VariantResult(label, {}, records)
    return load_paper("check-digits"), found


@pytest.mark.parametrize("name", names())
def test_every_cell_of_every_file_is_a_valid_experiment(name: str) -> None:
    paper = load_paper(name)
    for cell in paper.study.cells:
        cell.of(paper.study.experiment)
    assert paper.source
    assert paper.shows
    assert all(text.startswith("#") for text in (ROOT / f"src/gossamer/studies/papers/{name}.toml").read_text()[:1])


@pytest.mark.parametrize("name", names())
def test_a_quick_run_of_every_file(name: str, tmp_path: Path) -> None:
    """Every variant with the first value of each sweep is prepared; the first and the last are run."""
    paper = load_paper(name)
    study = paper.chosen([], None, quick=True)
    firsts = {cell.values.get("variant"): cell for cell in reversed(paper.study.cells)}
    for cell in firsts.values():
        quick = next(c for c in study.cells if c.label == cell.label)
        prepare(quick.of(study.experiment))
    few = paper.chosen([paper.labels[0]], None, quick=True)
    assert not reproduce(few, tmp_path, workers=1, step="eager")
    found = read_folders(paper, tmp_path)
    assert paper.labels[0] in found
    assert found[paper.labels[0]].runs[0].rounds == 2
    if paper.tuning is None:  # of a tuned study, one candidate alone is no row
        assert len(side_by_side(paper, found).rows[0]) == len(side_by_side(paper, found).headings)


def test_verdicts_need_a_difference_beyond_its_standard_error() -> None:
    says = Conclusion("a is better than b", "a", ("b",))
    paper, runs = paper_of(a=[[0.9], [0.92], [0.91]], b=[[0.8], [0.81], [0.82]])
    assert paper.judge(says, runs).verdict == "holds"
    assert paper.judge(Conclusion("", "b", ("a",)), runs).verdict == "does not hold"
    paper, runs = paper_of(a=[[0.9], [0.7]], b=[[0.7], [0.9]])
    assert paper.judge(says, runs).verdict == "cannot be told"
    paper, runs = paper_of(a=[[0.9]], b=[[0.7]])
    verdict, why = paper.judge(says, runs)
    assert (verdict, why) == ("cannot be told", "one seed, which speaks for it: +20.00 points")
    paper, runs = paper_of(a=[[0.9, 0.9]], b=[[0.7]])
    assert "to round 2" in paper.judge(says, runs).why
    assert paper.judge(Conclusion("", "a", ("c",)), runs).why == "not run: c"


def test_rounds_to_a_target_count_a_run_that_never_reached_it() -> None:
    faster = Conclusion("", "a", ("b",), "90")
    paper, runs = paper_of(a=[[0.5, 0.9, 0.9], [0.9, 0.9, 0.9]], b=[[0.5, 0.5, 0.5], [0.5, 0.5, 0.9]])
    assert paper.judge(faster, runs).verdict == "holds"
    paper, runs = paper_of(a=[[0.5]], b=[[0.5]])
    assert paper.judge(faster, runs).why == "90 % was not reached"


def test_unknown_names_and_cells_say_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="dfedadmm-table-1"):
        load_paper("dfedadm-table-1")
    with pytest.raises(ExperimentError, match="'Nobody' is in no label"):
        load_paper("check-digits").chosen(["Nobody"], None, quick=True)


@pytest.mark.parametrize("path", stored(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_stored_run_is_of_the_experiment_of_its_cell(path: Path) -> None:
    paper = load_paper(path.parent.name)
    label, cell = next(
        (c.label, c) for c in paper.study.cells if path.name.startswith(folder_of(c.label, "")) and "seed" in path.name
    )
    seed = int(path.name.rpartition("seed")[2])
    assert path.name == folder_of(label, seed)
    had = experiment_from(read_toml(path / "experiment.toml"), {}, path)
    assert had.resolved() == cell.of(paper.study.experiment).but(seed=seed).resolved()
    assert len(read_stored(path, label).metrics)


def test_a_run_that_two_tables_have_is_stored_once() -> None:
    theirs, stored = load_paper("dfedsgpsm-table-1"), stored_by_experiment(RESULTS)
    label = "FedAvg, dirichlet(alpha=0.3)"
    assert not (RESULTS / theirs.name / folder_of(label, 0)).exists()
    found = read_results(theirs, RESULTS, stored)[label].runs[0]
    kept = read_stored(RESULTS / "dfedadmm-table-1" / folder_of(label, 0), "")
    assert found.metrics.equals(kept.metrics)
    assert label not in read_results(theirs, RESULTS, {})


def test_the_pages_are_what_the_stored_results_give() -> None:
    pages = [page.read_text(encoding="utf-8") for page in PAGES]
    assert sorted(found[2] for page in pages for found in TABLE.finditer(page)) == sorted(names())
    for page in pages:
        assert rebuild(page, RESULTS) == page, "run `make reproduction`"


def test_a_cell_that_a_budget_ends_goes_on_in_the_next_sitting_and_has_the_stored_numbers(tmp_path: Path) -> None:
    paper = load_paper("check-digits")
    study = paper.chosen(["FedSAM"], 1, quick=False)
    name = folder_of("FedSAM", 0)

    class Slow(simulation.Observer):
        def round(self, record: object) -> bool:
            time.sleep(0.15)
            return False

    assert reproduce(study, tmp_path, budget=0.01, observe=lambda run: [Slow()], workers=1, step="eager")
    assert read_run(tmp_path / name).rounds < 20
    assert not reproduce(study, tmp_path, workers=1, step="eager")
    new, old = read_run(tmp_path / name).metrics, read_stored(RESULTS / paper.name / name, "").metrics
    assert len(new) == len(old) == 20
    pd.testing.assert_frame_equal(new[list(old)].astype(float), old, rtol=1e-5, atol=1e-5, check_dtype=False)
    store(tmp_path / name, tmp_path / "kept")
    kept = read_stored(tmp_path / "kept", "").best("test_accuracy")
    assert kept == pytest.approx(read_run(tmp_path / name).best("test_accuracy"), abs=1e-9)
