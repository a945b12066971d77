"""A peer's own samples: the simulated client's to the last bit, or files of its own; never a pickle."""

import gzip
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gossamer.data import UNSCALED, Dataset, Scaling
from gossamer.data import catalog as catalog_module
from gossamer.data.catalog import DATASETS, Described
from gossamer.errors import DataError, GossamerError
from gossamer.experiment import Experiment, prepare
from gossamer.peers.data import _known, peer_training, rehearse
from gossamer.peers.identity.kit import Kit
from gossamer.peers.identity.roster import Member, Roster
from gossamer.training import Client, Training

RNG = np.random.default_rng(0)
X = RNG.integers(0, 17, (30, 1, 8, 8), dtype=np.uint8)
Y = np.arange(30) % 10


def kit_of(folder: Path, number: int = 0, data: str = "experiment", holdout: float = 0.0, **experiment: Any) -> Kit:
    """A kit without certificates: samples have nothing to do with them."""
    values = {"clients": 3, "rounds": 2, "dataset": {"name": "digits", "train_samples": 200}, "model": "softmax"}
    members = tuple(Member(name=f"p{i}", port=1 + i, data=data, holdout=holdout) for i in range(3))
    roster = Roster(Experiment(**{**values, **experiment}), members)
    return Kit(folder, f"p{number}", number, roster, b"", b"", b"", b"")


def samples_of(kit: Kit, data: str | None = None) -> Dataset:
    return peer_training(kit, data).dataset


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No data sets, no network."""
    monkeypatch.setenv("GOSSAMER_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("GOSSAMER_MIRROR", "http://127.0.0.1:9")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("own_samples_module", None)


def trained(training: Training, number: int) -> torch.Tensor:
    client = Client(number, training)
    for index in range(2):
        client.train(index)
        client.state = client.method.receive(client.state, client.message, client.round(index))
    vector: torch.Tensor = client.method.model(client.state)
    return vector


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_experiments_part_is_the_simulated_clients(tmp_path: Path, number: int) -> None:
    kit = kit_of(tmp_path, number)
    whole = prepare(kit.roster.experiment).training
    mine = peer_training(kit)
    rows = torch.as_tensor(whole.batches.client_rows[number])
    assert torch.equal(mine.dataset.train.inputs, whole.dataset.train.inputs[rows])
    assert torch.equal(mine.dataset.train.targets, whole.dataset.train.targets[rows])
    assert [len(part) for part in mine.batches.client_rows] == [len(rows) if i == number else 0 for i in range(3)]
    assert torch.equal(mine.dataset.test.inputs, whole.dataset.test.inputs)
    assert torch.equal(mine.model.initial, whole.model.initial)
    assert torch.equal(trained(mine, number), trained(whole, number))
    assert len(samples_of(kit).train) == len(rows)


def test_own_files_give_what_the_same_samples_give_in_a_simulation(tmp_path: Path) -> None:
    kit = kit_of(tmp_path, 1)
    part = samples_of(kit)
    np.savez(
        tmp_path / "own.npz", x=part.train.inputs.numpy(), y=part.train.targets.numpy(),
        x_test=part.test.inputs.numpy(), y_test=part.test.targets.numpy().astype(np.uint8),
    )  # fmt: skip
    own = peer_training(kit, "own.npz")
    assert own.dataset.scaling == Scaling(scale=16.0)
    assert len(own.dataset.test) == 360
    assert torch.equal(trained(own, 1), trained(peer_training(kit), 1))


def test_every_kind_of_source(tmp_path: Path) -> None:
    kit = kit_of(tmp_path, 2, data="own.npz")
    np.savez(tmp_path / "own.npz", x=X, y=Y)
    (tmp_path / "folder").mkdir()
    np.savez(tmp_path / "folder" / "train.npz", x=X, y=Y)
    (tmp_path / "idx").mkdir()
    for name, magic, array in (("images-idx3", [8, 3], X[:, 0]), ("labels-idx1", [8, 1], Y.astype(np.uint8))):
        header = bytes([0, 0, *magic]) + np.array(array.shape, ">u4").tobytes()
        (tmp_path / "idx" / f"train-{name}-ubyte").write_bytes(header + array.tobytes())
        with gzip.open(tmp_path / "idx" / f"t10k-{name}-ubyte.gz", "wb") as file:
            file.write(header + array.tobytes())
    (tmp_path / "own_samples_module.py").write_text(
        "import numpy as np\n"
        "def give():\n    file = np.load('own.npz')\n    return file['x'], file['y']\n"
        "def both():\n    return give(), give()\n"
    )
    sources = {None: 0, "own.npz": 0, str(tmp_path / "own.npz"): 0, "folder": 0, "idx": 30}
    for source, tested in {**sources, "own_samples_module:give": 0, "own_samples_module:both": 30}.items():
        found = samples_of(kit, source)
        assert torch.equal(found.train.inputs, torch.from_numpy(X)), source
        assert found.train.targets.tolist() == Y.tolist()
        assert len(found.test) == tested, source
    np.savez(tmp_path / "folder" / "test.npz", x=X[:5], y=Y[:5])
    assert len(samples_of(kit, "folder").test) == 5


def test_relative_paths(tmp_path: Path) -> None:
    (tmp_path / "kit").mkdir()
    np.savez(tmp_path / "kit" / "own.npz", x=X, y=Y)
    kit = kit_of(tmp_path / "kit", data="own.npz")
    assert len(samples_of(kit).train) == 30  # from the kit's folder
    with pytest.raises(DataError, match=r"own\.npz: there are no samples here; give"):
        samples_of(kit, "own.npz")  # from the current one


def test_a_description_is_enough(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=RNG.integers(0, 256, (6, 3, 32, 32), dtype=np.uint8), y=np.arange(6))
    training = peer_training(kit_of(tmp_path, data="own.npz", dataset="cifar10"))  # no file of which is there
    assert training.dataset.scaling.mean == (0.4914, 0.4822, 0.4465)
    assert training.dataset.augmentation is not None
    assert training.dataset.classes == 10  # though only six were seen
    plain = kit_of(tmp_path, data="own.npz", dataset={"name": "cifar10", "augment": False})
    assert peer_training(plain).dataset.augmentation is None


def test_samples_unlike_any_data_set(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=RNG.normal(size=(7, 5)), y=np.arange(7) % 2)
    described = {"name": "described", "shape": [5], "classes": 2}
    kit = kit_of(tmp_path, data="own.npz", dataset=described)
    training = peer_training(kit)
    assert (training.dataset.shape, training.dataset.classes) == ((5,), 2)
    assert training.dataset.scaling == UNSCALED
    assert training.model.size == 12
    again = Experiment(**{**kit.roster.experiment.describe()})
    assert again.digest == kit.roster.experiment.digest
    assert isinstance(again.dataset, Described)
    with pytest.raises(DataError, match="only a description, so every peer needs samples of its own"):
        peer_training(kit, "experiment")
    np.savez(tmp_path / "own.npz", x=RNG.normal(size=(7, 5)), y=RNG.normal(size=(7, 2)))
    regression = peer_training(kit_of(tmp_path, data="own.npz", dataset=described, loss="squared-error"))
    assert regression.dataset.train.targets.shape == (7, 2)


def test_a_data_set_that_says_what_it_is_only_when_loaded(tmp_path: Path) -> None:
    (tmp_path / "own_samples_module.py").write_text(
        "from gossamer.data import per_client\n"
        "def data():\n    return per_client([([[0.0, 1.0]], [1])] * 3, classes=4)\n"
    )
    np.savez(tmp_path / "own.npz", x=RNG.normal(size=(7, 2)), y=np.arange(7) % 2)
    training = peer_training(kit_of(tmp_path, data="own.npz", dataset="own_samples_module:data"))
    assert (len(training.dataset.train), training.dataset.classes) == (7, 4)


@pytest.mark.parametrize(("samples", "share", "held"), [(30, 0.2, 6), (30, 0.01, 1), (2, 0.9, 1), (1, 0.5, 0)])
def test_holding_out(tmp_path: Path, samples: int, share: float, held: int) -> None:
    np.savez(tmp_path / "own.npz", x=X[:samples], y=Y[:samples])
    kit = kit_of(tmp_path, 1, data="own.npz", holdout=share)
    training = peer_training(kit)
    train, test = training.dataset.train, training.dataset.test
    assert (len(train), len(test)) == (samples - held, held)
    assert [len(part) for part in training.batches.client_rows] == [0, samples - held, 0]
    rows = {tuple(row.flatten().tolist()) for row in torch.cat([train.inputs, test.inputs])}
    assert rows == {tuple(row.flatten().tolist()) for row in X[:samples]}
    assert torch.equal(samples_of(kit).test.inputs, test.inputs)  # the same ones after a restart
    np.savez(tmp_path / "own.npz", x=X, y=Y, x_test=X[:3], y_test=Y[:3])
    assert len(samples_of(kit).test) == 3  # there are test samples: none are held out
    assert len(samples_of(kit).train) == 30


class Harmful:
    """A pickle that would leave a trace."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return Path.touch, (Path("harmed"),)


def test_nothing_is_ever_unpickled(tmp_path: Path) -> None:
    kit = kit_of(tmp_path)
    np.savez(tmp_path / "object.npz", x=np.array([Harmful()], dtype=object), y=np.zeros(1, dtype=int))
    (tmp_path / "pickle.npz").write_bytes(pickle.dumps(Harmful()))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "train.npz").write_bytes(pickle.dumps(Harmful()))
    for name in ("object.npz", "pickle.npz", "folder"):
        with pytest.raises(DataError, match="never unpickled"):
            samples_of(kit, name)
    torch.save({"x": 1}, tmp_path / "model.pt")
    with pytest.raises(DataError, match=r"model\.pt: not a kind of file that is read"):
        samples_of(kit, "model.pt")
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": X}, "has no array y; it needs x and y"),
        ({"X": X, "y": Y}, "unknown array 'X'"),
        ({"x": X, "y": Y, "xtest": X}, "unknown array 'xtest': did you mean 'x_test'"),
        ({"x": X, "y": Y, "x_test": X}, "has x_test alone"),
        ({"x": X[:0], "y": Y[:0]}, "there is no sample in it"),
        ({"x": X, "y": Y[:3]}, "30 inputs but 3 targets"),
        ({"x": X, "y": Y + 1}, "label 10 in row 9, expected 0 to 9"),
        ({"x": X, "y": -Y}, "label -1 in row 1"),
        ({"x": X, "y": Y.astype(float)}, "y: should be classes, integers from 0 to 9, not floats"),
        ({"x": X[:, 0], "y": Y}, r"samples of shape \(8, 8\).*'digits'.*\(1, 8, 8\); x.reshape\(-1, 1, 8, 8\)"),
        ({"x": X[:, :, 1:], "y": Y}, r"samples of shape \(1, 7, 8\), but those of .* of shape \(1, 8, 8\)$"),
        ({"x": X.astype(float) * np.nan, "y": Y}, "inputs: row 0 is not finite"),
        ({"x": X, "y": Y, "x_test": X[:, 0], "y_test": Y}, r"the test set: .*but the training part has"),
        ({"x": X.astype(complex), "y": Y}, "not an array of numbers"),
        ({"x": np.array("a"), "y": Y}, "single|not an array|no row"),
        ({"x": np.float64(3), "y": Y}, "a single number, expected one row for each sample"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit(tmp_path: Path, arrays: dict[str, Any], says: str) -> None:
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(DataError, match=says) as error:
        samples_of(kit_of(tmp_path), "own.npz")
    assert "own.npz" in str(error.value)
    assert "client 0" not in str(error.value)


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    kit = kit_of(tmp_path)
    np.savez(tmp_path / "own.npz", x=X, y=Y)
    whole = (tmp_path / "own.npz").read_bytes()
    for damaged in (b"", b"nonsense", whole[:500], whole[:-30], whole[:100] + b"??" + whole[102:]):
        (tmp_path / "own.npz").write_bytes(damaged)
        with pytest.raises(DataError, match=r"own\.npz: "):
            samples_of(kit, "own.npz")
    with (tmp_path / "own.npz").open("wb") as file:
        np.save(file, X)
    with pytest.raises(DataError, match="one array alone"):
        samples_of(kit, "own.npz")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty: has neither train\.npz nor train-images-idx3-ubyte"):
        samples_of(kit, "empty")
    (tmp_path / "empty" / "train-images-idx3-ubyte").write_bytes(b"")
    with pytest.raises(DataError, match="train-labels-idx1-ubyte is missing"):
        samples_of(kit, "empty")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def give():\n    return 3", r"should return \(x, y\).*got int"),
        ("def give():\n    return 1, 2, 3", "got 3 things"),
        ("def give():\n    return (1, 2, 3), (1, 2)", "two pairs of two arrays"),
        ("def give():\n    raise RuntimeError('no disk')", "module:give': it fails with RuntimeError: no disk"),
        ("def give(path):\n    pass", "it fails with TypeError"),
        ("def give():\n    return [[1.0]], [0]", r"samples of shape \(1,\)"),
        ("def give():\n    return [[1.0], [1.0, 2.0]], [0, [1]]", "not an array of numbers"),
        ("def give():\n    return [], []", "there is no sample in it"),
        ("give = 3", "should be a function without parameters"),
        ("", "cannot be imported"),
        ("import nowhere_to_be_found", "cannot be imported"),
    ],
)  # fmt: skip
def test_functions_that_do_not_give_samples(tmp_path: Path, source: str, says: str) -> None:
    (tmp_path / "own_samples_module.py").write_text(source + "\n")
    with pytest.raises(DataError, match=says):
        samples_of(kit_of(tmp_path), "own_samples_module:give")


def test_methods_that_need_equal_steps(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=X, y=Y)
    about = {"data": "own.npz", "method": {"name": "local-g-ecl", "alpha": 0.5}, "lr": 0.01}
    with pytest.raises(DataError, match="Set local_steps"):
        peer_training(kit_of(tmp_path, **about))
    assert peer_training(kit_of(tmp_path, **about, local_steps=2)).batches.steps.tolist() == [2, 0, 0]


def test_our_data_sets_are_known_without_their_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from gossamer.data import Samples

    def images(*_: object, classes: int, **__: object) -> Samples:
        shape = (3, 32, 32) if "cifar" in str(_) else (1, 28, 28)
        return Samples(torch.zeros(1, *shape, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64))

    def files(source: Any, *_: object) -> list[str]:
        return [source.folder] * (6 if source.folder == "cifar10" else 4 if "mnist" in source.folder else 2)

    monkeypatch.setattr(catalog_module, "obtain", files)
    monkeypatch.setattr(catalog_module, "read_images", images)
    monkeypatch.setattr(catalog_module, "read_cifar", images)
    built_in = [kind() for name, kind in DATASETS.items() if name not in ("described", "characters")]
    for dataset in [*built_in, DATASETS.build({"name": "cifar10", "augment": False})]:
        loaded = dataset.load(tmp_path)
        assert _known(dataset) == (
            loaded.name, loaded.shape, loaded.classes, loaded.scaling, loaded.augmentation
        )  # fmt: skip


def test_a_rehearsal_finds_what_every_peer_would(tmp_path: Path) -> None:
    rehearse(Experiment(clients=3))
    rehearse(Experiment(clients=3, dataset="cifar10", model="lenet", device="cuda:7"))  # not here, perhaps there
    with pytest.raises(GossamerError, match="lenet"):
        rehearse(Experiment(clients=3, dataset="digits", model="lenet"))
    (tmp_path / "own_samples_module.py").write_text("def data():\n    raise RuntimeError\n")
    rehearse(Experiment(clients=3, dataset="own_samples_module:data"))
