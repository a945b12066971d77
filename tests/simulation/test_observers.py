"""Observers: what they are told, that they stop a run at the same round everywhere, and that the stop is respected."""

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gossamer import Experiment, Observer, Study, compare, resume, simulate
from gossamer.errors import ExperimentError, RunFolderError
from gossamer.runs.folder import RunFolder, read_lines
from gossamer.runs.record import read_run
from gossamer.simulation import Diverged, Interrupted, Outcome, RoundRecord, Run
from gossamer.workers import can_fork
from observers import Listening, PressesCtrlC, Signalling, Stopping
from problems import samples, tiny_net

TWO = pytest.param(2, marks=pytest.mark.skipif(not can_fork(), reason="workers are forked on Linux only"))


def experiment(**changed: Any) -> Experiment:
    settings: dict[str, Any] = {
        "method": "dfedavg", "dataset": samples([5, 3, 8, 4], seed=1), "model": tiny_net, "batch_size": 4,
        "local_epochs": 1, "rounds": 6, "dtype": "float64", "evaluate": {"clients": 2, "training": 2}, **changed,
    }  # fmt: skip
    return Experiment(clients=len(settings["dataset"].clients), **settings)


class AtAccuracy(Observer):
    """Stops at an accuracy, as the page of documentation does."""

    def __init__(self, accuracy: float) -> None:
        self.accuracy = accuracy

    def round(self, record: RoundRecord) -> bool:
        return record.metrics["test_accuracy"] >= self.accuracy


DIGITS: dict[str, Any] = {
    "clients": 4, "rounds": 40, "local_steps": 4, "model": "softmax", "partition": "iid",
    "dataset": {"name": "digits", "train_samples": 400},
}  # fmt: skip


def test_a_stop_gives_the_same_run_on_any_number_of_workers_and_resumes_to_its_end(tmp_path: Path) -> None:
    whole = simulate(Experiment(**DIGITS))
    accuracies = whole.metrics["test_accuracy"].tolist()
    expected = next(number for number, accuracy in enumerate(accuracies, start=1) if accuracy >= 0.75)
    assert 1 < expected < 40
    for workers in (1, 2) if can_fork() else (1,):
        folder = tmp_path / str(workers)
        run = simulate(Experiment(**DIGITS), workers=workers, observers=[AtAccuracy(0.75)], out=folder)
        assert (run.ending.kind, run.ending.round, run.ending.reason) == ("stopped", expected, "AtAccuracy")
        assert run.metrics["test_accuracy"].tolist() == pytest.approx(accuracies[:expected], abs=1e-6)
        assert (folder / "final.safetensors").exists()
        before = sorted(path.relative_to(folder) for path in folder.rglob("*"))
        for again_on in (1, 2) if can_fork() else (1,):
            listener = Listening()
            again = resume(folder, workers=again_on, observers=[listener])
            assert again.ending == run.ending
            assert torch.equal(again.vectors, run.vectors)
            assert again.metrics.equals(run.metrics)
            assert any("ended on purpose" in note and f"round {expected}" in note for note in listener.notes)
            assert listener.records == []
            assert [outcome.ending for outcome in listener.outcomes] == [run.ending]
        assert before == sorted(path.relative_to(folder) for path in folder.rglob("*"))
        assert "ended on purpose" in (read_run(folder).stopped or "")
    assert len({path.read_bytes() for path in tmp_path.glob("*/metrics.jsonl")}) == 1


@pytest.mark.parametrize("workers", [1, TWO])
def test_all_workers_stop_after_the_round_in_which_an_observer_asks(workers: int) -> None:
    stopper, other = Stopping(after=3), Listening()
    run = simulate(experiment(), workers=workers, observers=[other, stopper])
    assert list(run.metrics["round"]) == [1, 2, 3]
    assert run.ending == ("stopped", 3, "Stopping")
    assert [record.round for record in other.records] == [1, 2, 3]
    straight = simulate(experiment(rounds=3, evaluate={"clients": 2, "training": 2}), workers=workers)
    assert torch.equal(run.vectors, straight.vectors)


@pytest.mark.parametrize("workers", [1, TWO])
def test_a_stop_after_the_last_round_is_the_end_of_the_run(workers: int) -> None:
    assert simulate(experiment(), workers=workers, observers=[Stopping(after=6)]).ending.kind == "finished"


def test_a_run_that_was_killed_while_it_stopped_stops_again(tmp_path: Path) -> None:
    described, stopper = experiment(checkpoint_every=2), Stopping(after=3)
    run = simulate(described, observers=[stopper], out=tmp_path / "r")
    (tmp_path / "r" / "final.safetensors").unlink()  # after the checkpoint, before the final model
    again = resume(tmp_path / "r", experiment=described)
    assert again.ending == run.ending
    assert (tmp_path / "r" / "final.safetensors").exists()
    (tmp_path / "r" / "final.safetensors").unlink()  # after the ending was written, before the checkpoint
    (tmp_path / "r" / "checkpoints" / "round-000003.safetensors").unlink()
    again = resume(tmp_path / "r", experiment=described, observers=[Stopping(after=3)])
    assert again.ending == run.ending
    assert torch.equal(again.vectors, run.vectors)


# What observers are told.


def outcome_of(observer: Listening, run: Any) -> Outcome:
    (outcome,) = observer.outcomes
    assert outcome.run is run
    return outcome


def test_an_observer_is_told_of_the_run_and_its_rounds(tmp_path: Path) -> None:
    listener = Listening()
    run = simulate(experiment(), observers=[listener], out=tmp_path / "r")
    (start,) = listener.starts
    assert start.experiment is run.experiment
    assert (start.rounds_done, start.folder) == (0, tmp_path / "r")
    assert start.partition.sizes.tolist() == [5, 3, 8, 4]
    assert "1 worker" in start.how
    assert [record.metrics for record in listener.records] == read_lines(tmp_path / "r" / "metrics.jsonl")
    assert [record.timings for record in listener.records] == read_lines(tmp_path / "r" / "timings.jsonl")
    assert all(record.clients == {} for record in listener.records)
    outcome = outcome_of(listener, run)
    assert (outcome.ending.kind, outcome.ending.round, outcome.error) == ("finished", 6, None)


@pytest.mark.parametrize("workers", [1, TWO])
def test_the_end_is_told_however_a_run_ends(workers: int, tmp_path: Path) -> None:
    diverges = Listening()
    with pytest.raises(Diverged) as divergence:
        simulate(experiment(lr=1e30), workers=workers, observers=[diverges])
    assert outcome_of(diverges, divergence.value.run).ending.kind == "diverged"

    interrupts = Signalling(signal.SIGINT, after=2)
    with pytest.raises(Interrupted):
        simulate(experiment(), workers=workers, observers=[interrupts], out=tmp_path / "r")
    assert outcome_of(interrupts, None).ending[:2] == ("interrupted", 2)

    fails, other = Signalling(signal.SIGCHLD, after=2, fails=True), Listening()
    with pytest.raises(LookupError) as error:
        simulate(experiment(), workers=workers, observers=[other, fails])
    assert error.value.__notes__ == ["raised by the observer Signalling, after round 2"]
    for observer in (fails, other):
        assert outcome_of(observer, None).error is error.value
        assert observer.outcomes[0].ending.kind == "failed"

    early = Listening()
    with pytest.raises(ExperimentError):
        simulate(experiment(graph={"name": "exponential"}, method="fedavg"), workers=workers, observers=[early])
    assert early.starts == []
    assert outcome_of(early, None).ending.kind == "failed"


def test_the_end_is_told_to_all_observers_if_one_fails_at_it() -> None:
    class Fails(Observer):
        def end(self, outcome: Outcome) -> None:
            raise LookupError("at the end")

    before, after = Listening(), Listening()
    with pytest.raises(LookupError) as error:
        simulate(experiment(), observers=[before, Fails(), after])
    assert error.value.__notes__ == ["raised by the observer Fails, at the end"]
    assert len(before.outcomes) == len(after.outcomes) == 1


class Wanting(Listening):
    wants = ("client_accuracy", "client_loss", "client_local_loss", "client_bytes")


@pytest.mark.parametrize("workers", [1, TWO])
def test_values_of_every_client_are_in_every_record_if_they_are_wanted(workers: int) -> None:
    wanting = Wanting()
    run = simulate(experiment(), workers=workers, observers=[wanting])
    plain = simulate(experiment(), workers=workers)
    assert run.metrics.equals(plain.metrics)  # what is recorded does not depend on observers
    for record in wanting.records:
        assert {name: values.shape for name, values in record.clients.items()} == dict.fromkeys(Wanting.wants, (4,))
        assert record.clients["client_local_loss"].mean() == pytest.approx(record.metrics["local_loss"])
        assert record.clients["client_bytes"].mean() == record.metrics["client_bytes_round"]
        if "client_accuracy_mean" in record.metrics:
            assert record.clients["client_accuracy"].mean() == record.metrics["client_accuracy_mean"]
            assert record.clients["client_accuracy"].min() == record.metrics["client_accuracy_worst"]
    assert np.isfinite([record.clients["client_loss"] for record in wanting.records]).all()


def test_what_is_no_observer_and_what_nobody_can_want_is_refused() -> None:
    with pytest.raises(ExperimentError, match="observers"):
        simulate(experiment(), observers=Listening())  # type: ignore[arg-type]
    with pytest.raises(ExperimentError, match="observers"):
        simulate(experiment(), observers=[print])  # type: ignore[list-item]

    class Misspelt(Observer):
        wants = ("client_acuracy",)

    with pytest.raises(ExperimentError, match=r"client_acuracy.*'client_accuracy'"):
        simulate(experiment(), observers=[Misspelt()])


# stop_at.


@pytest.mark.parametrize("workers", [1, TWO])
def test_a_run_stops_at_a_metric_of_the_experiment(workers: int, tmp_path: Path) -> None:
    losses = simulate(experiment()).metrics["local_loss"].tolist()
    described = experiment(stop_at={"metric": "local_loss", "value": losses[2]})
    run = simulate(described, workers=workers, out=tmp_path / "r")
    assert run.ending.kind == "stopped"
    assert run.ending.round == next(i for i, loss in enumerate(losses, start=1) if loss <= losses[2])
    assert "stop_at" in run.ending.reason
    assert "local_loss" in run.ending.reason
    assert json.loads((tmp_path / "r" / "stopped.json").read_text())["kind"] == "stopped"
    budget = simulate(experiment(stop_at={"metric": "gradients_total", "value": 12}), workers=workers)
    assert budget.last["gradients_total"] >= 12 > budget.last["gradients_total"] - budget.last["gradients_round"]


def test_variants_that_stop_early_are_compared(tmp_path: Path) -> None:
    described = Experiment(**{**DIGITS, "stop_at": {"metric": "test_accuracy", "value": 0.5}})
    result = compare(Study(described, {"method": ["dfedavg", "dfedavgm"]}), out=tmp_path / "c")
    assert all("ended on purpose" in (record.stopped or "") for record in result.records)
    again = compare(Study(described, {"method": ["dfedavg", "dfedavgm"]}), out=tmp_path / "c")
    assert again.table.equals(result.table)
    free = compare(Study(described, {"method": ["dfedavg"]}))
    assert "ended on purpose" in (free.records[0].stopped or "")


@pytest.mark.parametrize(
    ("stop_at", "says"),
    [
        ({"metric": "test_acuracy", "value": 0.9}, "stop_at.*test_acuracy.*'test_accuracy'"),
        ({"metric": "lr", "value": 0.9}, "stop_at.*'lr'"),
        ({"metric": "test_accuracy"}, "stop_at.*value"),
        ({"metric": "test_accuracy", "valeu": 0.9}, r"stop_at\.valeu.*value"),
        ({"metric": "test_accuracy", "value": float("nan")}, "stop_at.*value"),
        ("test_accuracy", "stop_at"),
    ],
)
def test_a_target_that_cannot_be_met_is_refused(stop_at: Any, says: str) -> None:
    with pytest.raises(ExperimentError, match=says):
        experiment(stop_at=stop_at)
    with pytest.raises(ExperimentError, match=r"stop_at.*train_loss.*evaluate\.training"):
        experiment(stop_at={"metric": "train_loss", "value": 1.0}, evaluate={"training": 0})


def test_a_target_is_part_of_the_experiment() -> None:
    target = Experiment(**DIGITS, stop_at={"metric": "test_loss", "value": 0.5})
    assert "[stop_at]" in target.to_toml()
    assert target.digest != Experiment(**DIGITS).digest
    assert target.but(stop_at="off").digest == Experiment(**DIGITS).digest
    assert target.but({"stop_at.value": 0.25}).stop_at.value == 0.25


# Round 0, counts, the format of the folder.


@pytest.mark.parametrize("workers", [1, TWO])
def test_round_0_is_the_state_before_the_first_round(workers: int, tmp_path: Path) -> None:
    evaluate = {"clients": 2, "training": 2}
    plain = simulate(experiment(evaluate=evaluate), workers=workers)
    described = experiment(evaluate={**evaluate, "start": True}, checkpoint_every=2)
    listener = Listening()
    run: Run = simulate(described, workers=workers, observers=[listener], out=tmp_path / "r")
    assert list(run.metrics["round"]) == list(range(7)) == [record.round for record in listener.records]
    assert torch.equal(run.vectors, plain.vectors)
    first, *rest = read_lines(tmp_path / "r" / "metrics.jsonl")
    assert rest == [{k: v for k, v in row.items() if v == v} for row in plain.metrics.to_dict("records")]
    assert (first["bytes_total"], first["messages_total"], first["gradients_total"]) == (0, 0, 0)
    assert first["consensus"] == 0
    assert {"test_accuracy", "train_loss", "client_accuracy_mean"} <= first.keys()
    assert not {"lr", "local_loss"} & first.keys()
    assert read_run(tmp_path / "r").rounds == 6


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_a_run_with_round_0_is_resumed_to_the_same_bytes(after: int, tmp_path: Path) -> None:
    described = experiment(evaluate={"start": True}, checkpoint_every=2)
    simulate(described, out=tmp_path / "straight")
    with pytest.raises(Interrupted):
        simulate(described, out=tmp_path / "r", observers=[PressesCtrlC(after)])
    resume(tmp_path / "r", experiment=described)
    one, other = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("straight", "r"))
    assert one == other
    lines = one.splitlines(keepends=True)
    (tmp_path / "r" / "final.safetensors").unlink()
    (tmp_path / "r" / "metrics.jsonl").write_bytes(b"".join(lines[1:]))  # round 0 is missing
    with pytest.raises(RunFolderError, match="cut or edited"):
        resume(tmp_path / "r", experiment=described)


def test_a_run_can_stop_before_its_first_round(tmp_path: Path) -> None:
    described = experiment(evaluate={"start": True})
    run = simulate(described, observers=[Stopping(after=0)], out=tmp_path / "r")
    assert run.ending[:2] == ("stopped", 0)
    assert resume(tmp_path / "r", experiment=described).ending == run.ending


@pytest.mark.parametrize(
    ("method", "per_step"), [("dfedavg", 1), ("d-psgd", 1), ("dfedsam", 2), ("dfedadmm-sam", 2), ("dfedadmm", 1)]
)
@pytest.mark.parametrize("workers", [1, TWO])
def test_gradients_and_messages_are_counted(method: str, per_step: int, workers: int) -> None:
    run = simulate(experiment(method=method, graph="ring"), workers=workers)
    steps = 4 if method == "d-psgd" else 2 + 1 + 2 + 1  # samples in batches of four; D-PSGD takes one step
    assert run.metrics["gradients_round"].tolist() == [per_step * steps] * 6
    assert run.metrics["gradients_total"].tolist() == [per_step * steps * number for number in range(1, 7)]
    assert run.metrics["messages_round"].tolist() == [4 * 2] * 6
    assert run.metrics["messages_total"].tolist() == [8 * number for number in range(1, 7)]


def test_clients_that_take_no_part_take_no_gradients() -> None:
    run = simulate(experiment(method="fedavg", graph={"name": "server", "participation": 0.5}, local_epochs=None,
                              local_steps=3))  # fmt: skip
    assert run.metrics["gradients_round"].tolist() == [2 * 3] * 6
    assert run.metrics["messages_round"].tolist() == [2 * 2] * 6  # to the server, and back


def test_a_run_folder_names_its_format_and_what_computed_it(tmp_path: Path) -> None:
    simulate(experiment(rounds=1), out=tmp_path / "r")
    about = json.loads((tmp_path / "r" / "environment.json").read_text())
    assert about["format"] == 1
    assert about["packages"]["gossamer"]
    (tmp_path / "r" / "environment.json").write_text(json.dumps({**about, "format": 2}))
    with pytest.raises(RunFolderError, match="format 2"):
        RunFolder.open(tmp_path / "r")
