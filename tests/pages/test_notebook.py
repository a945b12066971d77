"""What a notebook shows of results."""

import pytest

import gossamer
from gossamer.data import PartitionSummary
from gossamer.runs.record import RunRecord
from gossamer.terminal import progress
from records import comparison, record


def test_a_comparison_shows_its_tables_and_curves() -> None:
    result = comparison({"<a>": {0: record(0.2, 0.5)}, "b": {0: record(0.3, 0.6)}})
    page = result._repr_html_()
    assert "&lt;a&gt;" in page
    assert '<td class="best">60.0 %</td>' in page
    assert page.count("data:image/png;base64,") == 1


def test_a_record_shows_how_it_ended_and_needs_no_round() -> None:
    run = record()
    page = RunRecord("r", run.experiment, run.metrics, run.timings, "unfinished: go on")._repr_html_()
    assert "r: unfinished: go on" in page
    assert "<img" not in page


def test_a_run_and_its_partition_are_plotted() -> None:
    run = gossamer.simulate(gossamer.Experiment(rounds=1, clients=3, local_steps=1, model="softmax"))
    assert "dfedavg" in run._repr_html_()
    assert len(run.plot().axes) == 6  # five panels, and a place for the legend
    assert run.plot("consensus", against="bytes", width="column").axes[0].get_ylabel() == "consensus distance"
    assert isinstance(run.partition, PartitionSummary)
    assert run.partition.plot().render("png").startswith(b"\x89PNG")
    assert "<img" in run.partition._repr_html_()


def test_progress_in_a_notebook_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, str]] = []

    class Handle:
        def update(self, data: dict[str, str], raw: bool) -> None:
            said.append(("update", data["text/plain"]))

    def display(data: dict[str, str], raw: bool, display_id: bool) -> Handle:
        said.append(("display", data["text/plain"]))
        return Handle()

    monkeypatch.setattr("IPython.display.display", display)
    monkeypatch.setattr(progress.err, "is_jupyter", True)
    experiment = gossamer.Experiment(rounds=200, clients=2, local_steps=1, model="softmax", evaluate={"every": 100})
    gossamer.simulate(experiment, observers=gossamer.show_progress("mine"))
    assert [kind for kind, _ in said].count("display") == 1
    assert len(said) <= 60
    assert said[-1][1].startswith("mine: round 200/200")

    said.clear()
    study = gossamer.Study(experiment.but(rounds=1), sweep={"lr": [0.1, 0.2]})
    gossamer.compare(study, observe=gossamer.show_progress)
    assert [kind for kind, _ in said].count("display") == 1
    assert said[-1][1].startswith("[2/2] 0.2")
