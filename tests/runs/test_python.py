"""Runs and comparisons from Python, as a notebook has them."""

import signal
import threading
import traceback
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from torch import nn

from gossamer import Experiment, GossamerError, resume, simulate
from gossamer.errors import RunFolderError
from gossamer.graphs import Matrix
from gossamer.methods import DFedAvg, DFedSAM
from gossamer.pages.figures import Curve
from gossamer.runs.folder import RunFolder
from gossamer.runs.record import read_run, read_runs
from gossamer.simulation import Diverged, Interrupted, Observer
from gossamer.studies import Study, StudyRun, compare
from observers import Listening, PressesCtrlC, Signalling

SMALL: dict[str, Any] = {
    "clients": 4,
    "rounds": 4,
    "local_steps": 2,
    "model": "softmax",
    "dataset": {"name": "digits", "train_samples": 200},
}


def small(**changed: Any) -> Experiment:
    return Experiment(**{**SMALL, **changed})


def test_a_run_needs_no_folder() -> None:
    run = simulate(small())
    assert run.folder is None
    assert list(run.metrics["round"]) == [1, 2, 3, 4]
    assert run.vectors.shape == (4, 650)
    assert run.best["test_accuracy"] == run.metrics["test_accuracy"].max()
    assert run.last["round"] == 4
    weights = torch.cat([p.flatten() for p in run.model.parameters()])
    assert torch.equal(weights, run.vectors.double().mean(0).float())
    with pytest.raises(Interrupted) as stop:
        simulate(small(), observers=[PressesCtrlC(2)])
    assert stop.value.folder is None


def test_an_interrupt_keeps_the_last_whole_round(tmp_path: Path) -> None:
    straight = simulate(small())
    with pytest.raises(KeyboardInterrupt) as stop:  # what a notebook knows it by
        simulate(small(), out=tmp_path / "r", observers=[PressesCtrlC(2)])
    assert (stop.value.round, stop.value.folder) == (1, tmp_path / "r")
    again = resume(tmp_path / "r")
    assert again.vectors.equal(straight.vectors)
    assert again.metrics.equals(straight.metrics)


@pytest.mark.parametrize("where", ["gossamer.simulation.launch.choose_plan", "gossamer.engines.Stacked.round"])
def test_ctrl_c_in_a_script_is_a_few_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str) -> None:
    def press(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(where, press)
    with pytest.raises(Interrupted) as stop:
        simulate(small(), out=tmp_path / "r")
    shown = traceback.format_exception(stop.value)
    assert len("".join(shown).splitlines()) < 15
    assert "stopped before the first checkpoint" in shown[-1]
    begun = (tmp_path / "r").exists()
    assert ("gossamer resume" in shown[-1]) == begun


def test_steps_that_are_not_run_as_asked_are_told() -> None:
    def drops(shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, classes))

    listener = Listening()
    simulate(small(model=drops), step="traced", observers=[listener])
    assert [said for said in listener.notes if said.startswith("steps are eager, not traced as asked: the model draws")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_last_round_is_not_lost(number: int, tmp_path: Path) -> None:
    """The run is whole, and whoever has more to do hears of the signal."""
    straight = simulate(small())
    with pytest.raises(Interrupted) as stop:
        simulate(small(), out=tmp_path / "r", observers=[Signalling(number, after=4)])
    assert stop.value.run is not None
    assert stop.value.run.vectors.equal(straight.vectors)
    assert (tmp_path / "r" / "final.safetensors").exists()


def test_a_signal_is_not_lost_with_an_observer_who_ends_the_run() -> None:
    with pytest.raises(KeyboardInterrupt):
        simulate(small(), observers=[Signalling(signal.SIGINT, after=2, fails=True)])
    with pytest.raises(LookupError):
        simulate(small(), observers=[Signalling(signal.SIGCHLD, after=2, fails=True)])  # not one that asks to stop


def test_a_run_in_a_thread_of_its_own(tmp_path: Path) -> None:
    found = []
    thread = threading.Thread(target=lambda: found.append(simulate(small(), out=tmp_path / "r")))
    thread.start()
    thread.join()
    assert found[0].vectors.equal(simulate(small()).vectors)


def test_a_diverged_run_holds_what_was_before() -> None:
    with pytest.raises(Diverged, match=r"diverged in round \d+ at ") as error:
        simulate(small(lr=1e6, rounds=30))
    run = error.value.run
    assert (run.ending.kind, run.ending.reason) == ("diverged", str(error.value))
    assert len(run.metrics) < 30
    assert torch.isfinite(run.vectors).all()
    assert len(simulate(small(lr=1e6), on_divergence="continue").metrics) == 4


def test_a_finished_run_whose_checkpoints_are_gone_is_computed_again(tmp_path: Path) -> None:
    run = simulate(small(), out=tmp_path / "r")
    before = (tmp_path / "r" / "metrics.jsonl").read_bytes()
    for path in (tmp_path / "r" / "checkpoints").iterdir():
        path.unlink()
    stopper = PressesCtrlC(2)
    with pytest.raises(Interrupted):
        resume(tmp_path / "r", observers=[stopper])
    assert "starting again" in stopper.notes[0]
    assert "unfinished" in (read_run(tmp_path / "r").stopped or "")  # it is not passed off as whole
    assert resume(tmp_path / "r").vectors.equal(run.vectors)
    assert (tmp_path / "r" / "metrics.jsonl").read_bytes() == before


def test_a_run_that_has_ended_and_lost_rounds_is_not_passed_off_as_whole(tmp_path: Path) -> None:
    simulate(small(), out=tmp_path / "r")
    metrics = tmp_path / "r" / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-20])
    assert "has 3 of 4 rounds" in (read_run(tmp_path / "r").remark or "")
    metrics.unlink()
    assert "has 0 of 4 rounds" in (read_run(tmp_path / "r").remark or "")


def test_chunks_change_nothing_after_a_resume(tmp_path: Path) -> None:
    straight = simulate(small(dtype="float64"), chunk=4)
    with pytest.raises(Interrupted):
        simulate(small(dtype="float64"), out=tmp_path / "r", chunk=1, observers=[PressesCtrlC(3)])
    again = resume(tmp_path / "r", chunk=3)
    assert torch.allclose(again.vectors, straight.vectors, rtol=0, atol=1e-10)


# What an experiment says of itself.


def test_experiments_of_different_objects_are_told_apart() -> None:
    one, other = (small(graph=Matrix(matrix=nx.to_numpy_array(g) / 4 + torch.eye(4).numpy() / c))
                  for g, c in ((nx.cycle_graph(4), 2), (nx.complete_graph(4), 4)))  # fmt: skip
    assert one.digest != other.digest


def test_a_class_stands_for_its_default() -> None:
    assert small(method=DFedSAM) == small(method="dfedsam")
    assert small(method=DFedSAM(rho=0.3)).digest == small(method={"name": "dfedsam", "rho": 0.3}).digest


def test_what_cannot_be_imported_is_not_given_a_path() -> None:
    assert 'loss = "python:CrossEntropyLoss"' in small(loss=nn.CrossEntropyLoss()).to_toml()
    assert 'loss = "python:function"' in small(loss=lambda outputs, targets: outputs.sum()).to_toml()
    assert 'loss = "torch.nn.functional:mse_loss"' in small(loss=nn.functional.mse_loss).to_toml()


def test_the_digest_is_that_of_the_file(tmp_path: Path) -> None:
    import tomllib

    for changed in ({}, {"local_steps": None}, {"method": "fedavg"}, {"method": "d-psgd"}, {"clip": 3.0}):
        experiment = small(**changed)
        again = Experiment(**tomllib.loads(experiment.to_toml()))
        assert again.digest == experiment.digest
        assert again.to_toml() == experiment.to_toml()


def test_last_word_counts() -> None:
    experiment = small(local_steps=3).but(local_epochs=2)
    assert (experiment.local_epochs, experiment.local_steps) == (2, None)
    with pytest.raises(GossamerError, match=r"'rounds\.x' cannot be set: rounds is 4"):
        small().but({"rounds.x": 1})


# Comparisons.


def test_a_comparison_of_objects(tmp_path: Path) -> None:
    sweep = {"method": [DFedAvg(), DFedSAM(rho=0.0)], "graph": [nx.cycle_graph(4), "full"], "clip": [None]}
    result = compare(Study(small(rounds=2), sweep), out=tmp_path / "c")
    labels = list(result.table.index)
    assert labels[1] == "dfedavg, full, none"
    assert labels[0].startswith("dfedavg, python:Graph")
    assert len(result.records) == 4
    free = compare(Study(small(rounds=2), sweep))
    for label in labels:
        assert free.runs[label][0].metrics.equals(result.runs[label][0].metrics.dropna(axis=1, how="all"))
    again = compare(Study(small(rounds=2), sweep), out=tmp_path / "c")
    assert again.table.equals(result.table)


def test_an_interrupted_comparison_names_its_folder(tmp_path: Path) -> None:
    def observe(run: StudyRun) -> list[Observer]:
        return [PressesCtrlC(2)] if run.number == 2 else []

    with pytest.raises(Interrupted) as stop:
        compare(Study(small(), {"lr": [0.1, 0.2]}), out=tmp_path / "c", observe=observe)
    assert stop.value.folder == tmp_path / "c"
    assert compare(Study(small(), {"lr": [0.1, 0.2]}), out=tmp_path / "c").table["last accuracy"].notna().all()


def test_variants_need_folders_of_their_own() -> None:
    with pytest.raises(GossamerError, match=r"same variant twice: 0\.1"):
        Study(small(), {"lr": [0.1, 0.10]})
    with pytest.raises(GossamerError, match="list of values"):
        Study(small(), {"lr": "0.1"})
    with pytest.raises(GossamerError, match="sweep"):
        Study(small(), {})
    with pytest.raises(GossamerError, match="seeds: should be at least 1"):
        Study(small(), {"lr": [0.1]}, seeds=0)
    with pytest.raises(GossamerError, match="chunk: should be a whole number"):
        compare(Study(small(), {"lr": [0.1]}), chunk=0)


def test_one_diverges_without_a_folder() -> None:
    result = compare(Study(small(rounds=2, local_steps=30), {"lr": [1e6, 0.1]}, seeds=2))
    assert all(record.stopped and "diverged" in record.stopped for record in result.runs["1000000.0"])
    assert all(record.stopped is None for record in result.runs["0.1"])
    assert result.table["last accuracy"].isna().tolist() == [True, False]
    assert result.table.loc["0.1", "last accuracy spread"] > 0


def test_curves_are_means_with_standard_deviations(tmp_path: Path) -> None:
    result = compare(Study(small(rounds=3, evaluate={"every": 2}), {"lr": [0.1]}, seeds=2), out=tmp_path / "c")
    line = Curve.of(result.runs["0.1"], "test_accuracy")
    assert line.x == [2, 3]
    last = [100 * record.last("test_accuracy") for record in result.runs["0.1"]]
    assert len(line.low) == len(line.high) == 2
    assert line.high[-1] - line.mean[-1] == pytest.approx(abs(last[0] - last[1]) / 2**0.5)
    assert line.mean[-1] == pytest.approx((line.low[-1] + line.high[-1]) / 2)
    assert Curve.of(result.runs["0.1"], "nothing").x == []
    assert [r.label for r in read_runs([tmp_path / "c"])] == ["0.1-seed0", "0.1-seed1"]
    assert len(read_runs([tmp_path / "c" / "0.1-seed0"] * 2)) == 1


def test_a_run_that_is_being_written_is_left_to_its_process(tmp_path: Path) -> None:
    experiment = Experiment(clients=3, rounds=1, local_steps=1, model="softmax")
    simulate(experiment, out=tmp_path / "run")
    (tmp_path / "run" / "final.safetensors").unlink()
    with RunFolder.open(tmp_path / "run").locked(), pytest.raises(RunFolderError, match="another process"):
        resume(tmp_path / "run")
    assert resume(tmp_path / "run").last["round"] == 1
    assert not (tmp_path / "run" / ".lock").exists()
