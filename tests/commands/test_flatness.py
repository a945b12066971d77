"""`gossamer sharpness` and `gossamer landscape` on saved runs, and the bounds beside a run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from command_line import Command
from gossamer.measure.objective import training_objective
from gossamer.runs.saved import SavedRun

MEASURED = {"evaluate": "{gradient=1, sharpness=3, start=true}", "lr": "0.001"}


@pytest.fixture
def run(gossamer: Command, settings: Callable[..., list[str]], place: Path) -> Callable[..., Path]:
    """A run that takes a moment."""

    def make(name: str = "one", **changed: object) -> Path:
        answer = gossamer("run", *settings(**changed), "--out", name, "-q")
        assert answer.code == 0, answer.text
        return place / name

    return make


def test_sharpness_of_runs_is_printed_kept_and_not_measured_again(gossamer: Command, run: Any, place: Path) -> None:
    run("variant-seed0", **MEASURED)
    run("variant-seed1", **MEASURED, seed=1)
    answer = gossamer("sharpness", ".", "--clients", 2, "--probes", 10, "-w", 1, "--out", "all.csv")
    assert answer.code == 0, answer.text
    for word in ("variant", "average", "client 2", "over 2 seeds", "200 train samples", "Weight decay adds 0.0005"):
        assert word in answer.out
    table = pd.read_csv(place / "all.csv")
    assert table.model.tolist() == ["average", "client 0", "client 2"] * 2
    line = json.loads((place / "variant-seed0" / "sharpness.jsonl").read_text().splitlines()[0])
    metrics = pd.read_json(place / "variant-seed0" / "metrics.jsonl", lines=True).iloc[-1]
    assert line["top"][0] == pytest.approx(metrics.top_eigenvalue, rel=2e-3)
    assert line["trace"] == pytest.approx(metrics.hessian_trace, rel=1e-5)
    assert line["sam_sharpness"] == pytest.approx(metrics.sam_sharpness, rel=1e-5)
    assert line["top_with_weight_decay"][0] == line["top"][0] + line["weight_decay"]
    again = gossamer("sharpness", ".", "--clients", 2, "--probes", 10, "-w", 1)
    assert again.out.split("written to")[0].strip() == answer.out.split("written to")[0].strip()
    assert len((place / "variant-seed0" / "sharpness.jsonl").read_text().splitlines()) == 3


@pytest.mark.slow
def test_two_workers_measure_the_same_sharpness_and_landscape(gossamer: Command, run: Any) -> None:
    one, two = run("one"), run("two")
    for folder, workers in ((one, 1), (two, 2)):
        assert gossamer("sharpness", folder, "--probes", 3, "-w", workers).code == 0
        assert gossamer("landscape", folder, "--points", 5, "-w", workers).code == 0
    for name in ("sharpness.jsonl", "landscape-train-2d.csv"):
        assert (one / name).read_text() == (two / name).read_text()


@pytest.mark.parametrize("on", ["train", "test"])
def test_the_centre_of_a_landscape_is_the_loss_of_the_model(gossamer: Command, run: Any, on: str) -> None:
    folder = run()
    answer = gossamer("landscape", folder, "--points", 5, "-d", 1, "--on", on, "-w", 1)
    assert answer.code == 0, answer.text
    table = pd.read_csv(folder / f"landscape-{on}-1d.csv")
    saved = SavedRun.open(folder)
    assert table.loss[2] == training_objective(saved.training, test=on == "test").value(saved.average().x)
    assert table.x.tolist() == [-1, -0.5, 0, 0.5, 1]
    assert (folder / f"landscape-{on}-1d.png").stat().st_size > 5000


def test_an_interrupted_landscape_goes_on_where_it_was(
    gossamer: Command, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run()
    ask = ("landscape", folder, "--points", 5, "-w", 1)
    assert gossamer(*ask).code == 0
    table = folder / "landscape-train-2d.csv"
    whole = table.read_text()
    table.write_text("\n".join(whole.splitlines()[:10]) + "\n-0.5,0.")  # killed in the middle of a row
    came: list[int] = []
    real = training_objective

    def counting(*arguments: Any, **named: Any) -> Any:
        objective = real(*arguments, **named)
        value = objective.value
        object.__setattr__(objective, "value", lambda x: (came.append(1), value(x))[1])
        return objective

    monkeypatch.setattr("gossamer.studies.landscape.training_objective", counting)
    assert gossamer(*ask).code == 0
    assert table.read_text() == whole
    assert len(came) == 25 - 9
    assert gossamer(*ask, "--seed", 1).code == 0  # another landscape begins anew
    assert table.read_text() != whole


def test_two_runs_share_axes_and_scale(gossamer: Command, run: Any, place: Path) -> None:
    one, two = run("one"), run("two", method="dfedsam")
    answer = gossamer("landscape", one, two, "--points", 5, "-w", 1, "-o", "both.svg")
    assert answer.code == 0, answer.text
    assert "one" in answer.out
    assert (place / "both.svg").read_text().count("at the model") >= 0
    assert (two / "landscape-train-2d.csv").exists()


def test_bad_landscapes_are_refused(refused: Callable[..., str], run: Any) -> None:
    one, other = run("one"), run("other", model="mnist-2nn")
    refused("landscape", one, other, says=("models of one shape", "tensor 1 is"))
    refused("landscape", one, one, one, says=("one run or two",))
    refused("landscape", one, "--points", 4, says=("odd",))
    refused("landscape", one, "-o", "x.gif", says=(".png",))
    fewer = run("fewer", dataset='{name="digits", train_samples=100}')
    refused("landscape", one, fewer, says=("need one data set",))


def test_bad_runs_are_refused(refused: Callable[..., str], run: Any, place: Path) -> None:
    refused("sharpness", place / "nothing", says=("does not exist",))
    (place / "empty").mkdir()
    refused("sharpness", place / "empty", says=("is not a run folder",))
    folder = run()
    (folder / "final.safetensors").unlink()
    refused("sharpness", folder, says=("has no final model", "resume", "--model best"))
    (folder / "best.safetensors").write_bytes(b"half")
    refused("sharpness", folder, "--model", "best", says=("damaged",))
    refused("sharpness", folder, "--out", "x.txt", says=(".csv",))
    refused("sharpness", folder, "--probes", 1, says=("probes must be 2",))


def test_an_own_loss_without_a_second_derivative_is_named(
    gossamer: Command, run: Any, refused: Callable[..., str], own_module: Callable[[str], str]
) -> None:
    name = own_module(
        "import torch\n"
        "class Once(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, x):\n"
        "        ctx.save_for_backward(x)\n"
        "        return x.square().sum(1)\n"
        "    @staticmethod\n"
        "    @torch.autograd.function.once_differentiable\n"
        "    def backward(ctx, slope):\n"
        "        return 2 * slope[:, None] * ctx.saved_tensors[0]\n"
        "def broken(outputs, targets):\n"
        "    return Once.apply(outputs) + 0 * targets\n"
    )
    folder = run(loss=f"{name}:broken")
    refused("sharpness", folder, "-q", "-w", 1, says=("broken", "second derivative"))


def test_the_bounds_stand_beside_a_run(gossamer: Command, run: Any, refused: Callable[..., str]) -> None:
    folder = run(**MEASURED)
    answer = gossamer("theory", folder, "--epsilon", 0.01)
    assert answer.code == 0, answer.text
    for word in ("beside the run of 3 rounds", "least ‖∇f(x̄)‖²", "Lemmas D.5, D.6", "measured in 4 rounds", "Table I"):
        assert word in answer.out
    said = json.loads(gossamer("theory", folder, "--epsilon", 0.01, "--json").out)
    norms = pd.read_json(folder / "metrics.jsonl", lines=True).gradient_norm_squared
    assert said["run"]["least"] == pytest.approx(norms.min())
    assert said["run"]["mean"] == pytest.approx(norms.mean())
    assert said["run"]["consensus"] <= said["bounds"][0]["consensus_bound"]
    assert said["rounds_to_epsilon"]["SCAFFOLD"] > 0
    unmeasured = gossamer("theory", run("plain"))
    assert "set evaluate.gradient=1" in unmeasured.out
    refused("theory", folder, "--set", "lr=1", says=("has its settings already",))
    refused("theory", folder, "--epsilon", 0, says=("epsilon",))
