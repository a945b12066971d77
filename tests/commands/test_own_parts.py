"""Own models, losses, methods, graphs, partitions and data: a dotted path in TOML, the object in Python."""

import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from gossamer import Experiment, GossamerError, per_client, resume, simulate

Command = Callable[..., Any]
Settings = Callable[..., list[str]]

LAB = '''
import networkx as nx
import numpy as np
import torch
from torch import nn
from gossamer import per_client


class SGP:
    """Stochastic gradient push, as a user would write it: a plain class."""

    sends = {"x": "push", "weight": "push"}

    def __init__(self, scale=1.0):
        self.scale = scale

    def init(self, x0):
        return {"x": x0, "weight": torch.ones((), dtype=x0.dtype)}

    def begin(self, state, round):
        return {"x": state["x"]}

    def step(self, state, local, gradient, round):
        return {"x": local["x"] - self.scale * round.lr * gradient(local["x"] / state["weight"])}

    def finish(self, state, local, round):
        return state, {"x": local["x"], "weight": state["weight"]}

    def receive(self, state, mixed, round):
        return mixed

    def model(self, state):
        return state["x"] / state["weight"]


class Net(nn.Module):
    def __init__(self, shape, classes, width=8):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Tanh(), nn.Linear(width, classes))

    def forward(self, inputs):
        return self.layers(inputs)


def smooth_loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)


class Margin:
    def __init__(self, margin=1.0):
        self.margin = margin

    def __call__(self, outputs, targets):
        right = outputs.gather(1, targets[:, None])
        return (self.margin + outputs - right).clamp(min=0).mean(1)


def every_nth(targets, clients, seed):
    return [np.arange(client, len(targets), clients) for client in range(clients)]


petersen = nx.petersen_graph()


def path_graph(length=4):
    return nx.path_graph(length)


def two_blobs():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (4, 30))
    return per_client([(rng.normal(size=(30, 64)) + 3 * y[:, None], y) for y in labels], test=None)
'''


@pytest.fixture
def lab(own_module: Callable[[str], str]) -> str:
    return own_module(LAB)


@pytest.mark.parametrize(
    "changed",
    [
        {"method": "{lab}:SGP", "graph": '{{name="directed-random", neighbours=2}}'},
        {"method": '{{name="{lab}:SGP", scale=0.5}}', "graph": '{{name="directed-random", neighbours=2}}'},
        {"model": "{lab}:Net"},
        {"model": '{{name="{lab}:Net", width=5}}'},
        {"loss": "{lab}:smooth_loss"},
        {"loss": '{{name="{lab}:Margin", margin=0.5}}'},
        {"loss": "torch.nn:CrossEntropyLoss"},
        {"partition": "{lab}:every_nth"},
        {"graph": "{lab}:petersen", "clients": "10"},
        {"graph": "{lab}:path_graph"},
        {"graph": '{{name="{lab}:path_graph", length=5}}', "clients": "5"},
        {"dataset": "{lab}:two_blobs"},
    ],
)
def test_by_dotted_path(gossamer: Command, settings: Settings, place: Path, lab: str, changed: dict[str, str]) -> None:
    """It runs, its file says it again, and an interruption changes nothing."""
    own = {key: value.format(lab=lab) for key, value in changed.items()}
    answer = gossamer("run", *settings(**own, checkpoint_every=2), "--out", "r", "-q")
    assert answer.code == 0, answer.err
    text = (place / "r" / "experiment.toml").read_text()
    assert "python:" not in text
    assert Experiment(**tomllib.loads(text)).to_toml() == text
    straight = (place / "r" / "metrics.jsonl").read_bytes()
    (place / "r" / "checkpoints" / "round-000003.safetensors").unlink()
    (place / "r" / "final.safetensors").unlink()
    sys.modules.pop(lab, None)  # as in another process
    onward = gossamer("resume", "r")
    assert onward.code == 0, onward.err
    assert "going on after round 2" in onward.err
    assert (place / "r" / "metrics.jsonl").read_bytes() == straight


def test_push_sum_conserves_mass(gossamer: Command, settings: Settings, place: Path, lab: str) -> None:
    graph = '{name="directed-random", neighbours=2}'
    common = settings(method=f"{lab}:SGP", graph=graph, clients=6, rounds=4, dtype="float64")
    answer = gossamer("run", *common, "--out", "r", "-q")
    assert answer.code == 0, answer.err
    state = load_file(place / "r" / "checkpoints" / "round-000004.safetensors")
    assert state["weight"].shape == (6,)
    assert state["weight"].sum().item() == pytest.approx(6, abs=1e-12)
    assert state["weight"].std().item() > 0.01
    gossamer("run", *common, "--set=local_steps=0", "--out", "still", "-q")
    moved = load_file(place / "still" / "checkpoints" / "round-000004.safetensors")
    first = simulate(Experiment(**{**tomllib.loads((place / "still" / "experiment.toml").read_text()), "rounds": 1}))
    assert torch.allclose(moved["x"].sum(0), 6 * first.vectors[0], atol=1e-12)  # no steps: only mixed, nothing lost
    assert torch.allclose(moved["x"] / moved["weight"][:, None], first.vectors, atol=1e-12)


def test_the_default_graph_of_a_push_method(gossamer: Command, settings: Settings, place: Path, lab: str) -> None:
    assert gossamer("run", *settings(method=f"{lab}:SGP", clients=12), "--out", "r", "-q").code == 0
    assert tomllib.loads((place / "r" / "experiment.toml").read_text())["graph"]["name"] == "directed-random"


def test_a_push_method_on_an_undirected_graph_with_uniform_weights(
    refused: Callable[..., str], settings: Settings, lab: str
) -> None:
    graph = '{name="star", weights="uniform"}'
    says = ("method 'SGP' cannot run on graph 'star'", "columns sum to one", "dfedavg")
    refused("run", *settings(method=f"{lab}:SGP", graph=graph), says=says)


def test_as_objects(lab: str) -> None:
    import importlib

    own = importlib.import_module(lab) if lab in sys.modules else _load(lab)
    common = {"clients": 4, "rounds": 2, "local_steps": 2, "model": "softmax"}
    small = {**common, "dataset": {"name": "digits", "train_samples": 200}}
    assert len(simulate(Experiment(**small, graph=nx.cycle_graph(4))).metrics) == 2
    assert len(simulate(Experiment(**small, graph=np.full((4, 4), 0.25))).metrics) == 2
    assert len(simulate(Experiment(**small, partition=own.every_nth)).metrics) == 2
    assert len(simulate(Experiment(**small, loss=nn.CrossEntropyLoss())).metrics) == 2
    assert len(simulate(Experiment(**small, loss=own.Margin)).metrics) == 2
    push = {"name": "directed-random", "neighbours": 2}
    sgp = simulate(Experiment(**small, method=own.SGP(), graph=push))
    assert sgp.vectors.equal(simulate(Experiment(**small, method=f"{lab}:SGP", graph=push)).vectors)
    wide = simulate(Experiment(**{**small, "model": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10))}))
    assert isinstance(wide.model, nn.Sequential)
    assert wide.model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    data = per_client([(np.eye(4, dtype=np.float32), [0, 1, 2, 3])] * 4, test=(np.eye(4, dtype=np.float32), range(4)))
    assert simulate(Experiment(**common, dataset=data)).metrics["test_accuracy"].notna().all()
    with pytest.raises(GossamerError, match="comes with 4 clients, but the experiment says 5"):
        simulate(Experiment(**{**common, "clients": 5}, dataset=data))


def _load(name: str) -> Any:
    Experiment(loss=f"{name}:smooth_loss")  # puts the current directory on the path
    return sys.modules[name]


def test_objects_and_resume(gossamer: Command, refused: Callable[..., str], place: Path) -> None:
    """What only Python can say is named in the file, and gone on with from Python."""

    def experiment(width: int) -> Experiment:
        def net() -> nn.Module:
            return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Tanh(), nn.Linear(width, 10))

        return Experiment(
            clients=4, rounds=4, local_steps=2, dataset={"name": "digits", "train_samples": 200}, model=net,
            graph=nx.cycle_graph(4), checkpoint_every=2,
        )  # fmt: skip

    run = simulate(experiment(5), out=place / "r")
    text = (place / "r" / "experiment.toml").read_text()
    assert 'model = "python:function"' in text
    assert 'graph = "python:Graph"' in text
    (place / "r" / "checkpoints" / "round-000004.safetensors").unlink()
    (place / "r" / "final.safetensors").unlink()
    refused("resume", "r", says=("r/experiment.toml", "python:", "gossamer.resume(folder, experiment=...)"))
    assert gossamer("show", "r").code == 0
    with pytest.raises(GossamerError, match="checkpoint holds x 4x385, but the experiment has x 4x460"):
        resume(place / "r", experiment=experiment(6))
    with pytest.raises(GossamerError, match="another experiment"):
        resume(place / "r", experiment=experiment(5).but(lr=0.3))
    again = resume(place / "r", experiment=experiment(5))
    assert again.vectors.equal(run.vectors)
    assert again.metrics.equals(run.metrics)
    assert list(again.timings["round"]) == [1, 2, 3, 4]
