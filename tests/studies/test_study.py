"""The file of a study: variants with keys of their own, crossed with a sweep and seeds; what is wrong is named."""

import tomllib
from pathlib import Path

import pytest

from gossamer import Experiment, GossamerError, Study, compare
from gossamer.runs.folder import RunFolder
from gossamer.studies import load_study

DIGITS = {"name": "digits", "train_samples": 80}
SMALL = {"clients": 4, "rounds": 2, "local_steps": 1, "model": "softmax", "dataset": DIGITS}

FILE = """
clients = 4
seed = 5
seeds = 2
targets = {test_accuracy = [0.5], test_loss = [2]}
baseline = "plain"

[[variant]]
label = "with a server"
method = "fedavg"
graph = "server"

[[variant]]
label = "plain"
lr = 0.05
[variant.method]
name = "dfedavgm"
momentum = 0.5

[sweep]
weight_decay = [0.0, 1e-4]
"""


def test_every_variant_is_crossed_with_the_sweep_and_the_seeds(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(FILE)
    study = load_study(tmp_path / "s.toml", {"rounds": 3})
    assert [cell.label for cell in study.cells] == [
        "with a server, 0.0", "with a server, 0.0001", "plain, 0.0", "plain, 0.0001",
    ]  # fmt: skip
    assert study.cells[1].values == {"variant": "with a server", "weight_decay": 1e-4}
    assert study.cells[1].folder == "with-a-server-weight_decay=0.0001"
    made = study.cells[3].of(study.experiment)
    assert (made.method.momentum, made.lr, made.weight_decay, made.rounds) == (0.5, 0.05, 1e-4, 3)
    assert study.seeds_of(made) == [5, 6]
    # A value of one key as the baseline: each is compared with the one that differs in this key alone.
    assert study.baselines == {"with a server, 0.0": "plain, 0.0", "with a server, 0.0001": "plain, 0.0001"}
    (tmp_path / "again.toml").write_text(study.to_toml())
    assert load_study(tmp_path / "again.toml").to_toml() == study.to_toml()
    assert tomllib.loads(study.to_toml())["variant"][0]["label"] == "with a server"


def test_labels_that_differ_in_signs_alone_have_folders_of_their_own() -> None:
    study = Study(Experiment(), variants=[{"label": "a (1)"}, {"label": "a [1]"}, {"label": "A [1]"}, {"label": "ρ"}])
    folders = [cell.folder for cell in study.cells]
    assert len({folder.casefold() for folder in folders}) == 4
    assert all(folder.strip("-.") for folder in folders)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"variants": [{"method": "dfedavg"}]}, r"variant 1 \(method = 'dfedavg'\): needs a label"),
        ({"variants": [{"label": " "}]}, "needs a label"),
        ({"variants": [{"label": "a"}, {"label": "a", "lr": 0.2}]}, "two have the label 'a'"),
        ({"variants": [{"label": "a", "lr": 0.1}], "sweep": {"lr": [0.1]}}, r"variant 'a': sets 'lr', which \[sweep\]"),
        ({"variants": [{"label": "a", "seed": 1}]}, "variant 'a': seed: all variants have the same seeds"),
        ({"variants": {"label": "a"}}, r"should be \[\[variant\]\] tables"),
        ({"variants": ["dfedavg"]}, "variant 1: should be a table with a label"),
        ({"sweep": {"lr": [0.1]}, "targets": {"test_acuracy": [0.9]}}, "test_acuracy.*'test_accuracy'"),
        ({"sweep": {"lr": [0.1]}, "targets": {"lr": [0.9]}}, "targets: unknown metric 'lr'"),
        ({"sweep": {"lr": [0.1]}, "targets": ["high"]}, "targets: should be numbers .got 'high'"),
        ({"sweep": {"lr": [0.1]}, "targets": [True]}, "targets: should be numbers .got True"),
        ({"sweep": {"lr": [0.1]}, "targets": [{"metric": "test_loss"}]}, r"as targets = \{test_loss = \[0.5\]\}"),
        ({"sweep": {"lr": [0.1]}, "targets": 0.9}, "needs a list of values"),
        ({"sweep": {"lr": [0.1]}, "seeds": [1, 1]}, "seeds: has one of them twice"),
        ({"sweep": {"lr": [0.1]}, "seeds": []}, "seeds: should be at least 1"),
        ({"sweep": {"lr": [0.1]}, "seeds": 2.5}, "seeds: should be a whole number"),
        ({"sweep": {"lr": [0.1]}, "seeds": [-1]}, "seeds: should be a whole number"),
        ({"sweep": {"lr": [0.1, 0.2]}, "baseline": "0.3"}, "baseline: '0.3': no variant has it"),
        ({"sweep": {"lr": [0.1], "weight_decay": [0.1]}, "baseline": "0.1"}, "is a value of lr and of weight_decay"),
    ],
)  # fmt: skip
def test_what_a_study_cannot_be(keys: dict, says: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(GossamerError, match=says):
        Study(Experiment(), **keys)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"variants": [{"label": "good"}, {"label": "bad", "lrr": 1}]}, "variant 'bad': unknown key 'lrr'"),
        ({"variants": [{"label": "good"}, {"label": "bad", "graph": "server"}]}, "variant 'bad': .*cannot run on"),
        ({"variants": [{"label": "good"}], "targets": [90]}, "90 is no accuracy: it is between 0 and 1"),
        ({"variants": [{"label": "good"}], "targets": {"test_error": [0.1]}}, "has no 'metric'"),
        ({"variants": [{"label": "a"}, {"label": "b", "metric": "top-k"}], "targets": [0.9]},
         "some variants are judged by test_accuracy, others by test_score: name the metric"),
        ({"variants": [{"label": "a", "evaluate": {"clients": 0}}], "targets": {"client_accuracy_worst": [0.5]}},
         "client_accuracy_worst is not measured round by round: set evaluate.clients"),
    ],
)  # fmt: skip
def test_variants_that_do_not_fit_are_named_before_the_first_run(keys: dict, says: str, tmp_path: Path) -> None:  # type: ignore[type-arg]
    with pytest.raises(GossamerError, match=says):
        compare(Study(Experiment(**SMALL), **keys), out=tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_what_a_killed_process_left_beside_its_files_is_removed(tmp_path: Path) -> None:
    study = Study(Experiment(rounds=2, clients=3, local_steps=1, model="softmax"), sweep={"lr": [0.1]})
    compare(study, out=tmp_path / "c", workers=1)
    whole = sorted(tmp_path.rglob("*"))
    for left in (tmp_path / "c" / ".table.csv.1.part", tmp_path / "c" / "0.1-seed0" / ".best.safetensors.1.part"):
        left.write_text("half")
    compare(study, out=tmp_path / "c", workers=1)
    assert sorted(tmp_path.rglob("*")) == whole

    (left := tmp_path / "c" / "0.1-seed0" / "checkpoints" / ".round.1.part").write_text("half")
    RunFolder(tmp_path / "c" / "0.1-seed0").rewind(1)
    assert not left.exists()
