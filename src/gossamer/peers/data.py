"""The samples of a peer, and the training on them.

`data` of a peer, or its `--data`, is one of

    experiment         the samples that the experiment's partition gives to this peer's number: the same samples, in the
                       same order, as those of the client with this number in a simulation
    samples.npz        arrays x and y, and x_test and y_test if there are test samples; inputs with names are arrays
                       x.ids, x.mask, ... and x_test.ids, ...
    folder/            train.npz and test.npz with x and y each, or the four IDX files of MNIST
    module:function    a function without parameters that returns (x, y), or ((x, y), (x_test, y_test))

A relative path in a network file starts from the kit's folder, a path given by `--data` from the current one.

For peers with samples of their own, the experiment's data set is only a description: the shape of a sample, the number
of classes, the scaling of pixels, the augmentation. The built-in data sets are described without their files. For other
samples, `dataset` is `described` with a shape and classes. Bytes are pixels, and are scaled as the description says;
other numbers are not scaled. Nothing is ever unpickled.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gossamer.data import (
    DATASETS,
    UNSCALED,
    Augmentation,
    Batches,
    ClientRows,
    Dataset,
    Samples,
    Scaling,
    Shape,
    as_dataset,
    data_directory,
    has_bytes,
    per_client,
)
from gossamer.data.formats import read_images
from gossamer.errors import DataError, GossamerError, did_you_mean
from gossamer.experiment import Experiment, prepare
from gossamer.models import CrossEntropy
from gossamer.parts import import_dotted, user_code
from gossamer.peers.identity.kit import Kit
from gossamer.peers.identity.roster import EXPERIMENT_DATA
from gossamer.randomness import Purpose, generator
from gossamer.training import Training, check_first_step, own_samples_only

ARRAYS = ("x", "y", "x_test", "y_test")
IDX_TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
IDX_TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")

Pair = tuple[Any, Any]


class Description(NamedTuple):
    """The properties of a data set's samples."""

    name: str
    shape: Shape
    classes: int
    scaling: Scaling
    augmentation: Augmentation | None


def peer_training(kit: Kit, data: str | None = None, data_dir: Path | None = None) -> Training:
    """The training of a peer: that of the client with its number, on its own samples. `data` replaces the kit's.

    If there are no test samples, a share of the samples, `holdout` in the network file, is used for testing instead.
    """
    if data == "":
        raise DataError("--data names nothing; say where the samples are, or leave it out")
    experiment, spec = kit.roster.experiment, data or kit.member.data
    if spec != EXPERIMENT_DATA:
        own = _own_dataset(kit, spec, given=data is not None, data_dir=data_dir)
        experiment = _on_own_samples(experiment, own, kit.number)
    training = own_samples_only(kit.number, prepare(experiment, data_dir).training)
    if kit.member.holdout and not len(training.dataset.test):
        training = _holding_out(training, kit.number, kit.member.holdout)
    check_first_step(training)
    return training


def rehearse(experiment: Experiment) -> None:
    """Raise, when a network is created, the errors that every peer would raise at its start; needs no samples."""
    about = _known(experiment.dataset)
    if about is None:  # made by a function that perhaps only the peers can call
        return
    shapes = about.shape if isinstance(about.shape, dict) else {"": about.shape}
    zeros = {name: torch.zeros(1, *shape, dtype=torch.uint8) for name, shape in shapes.items()}
    nothing = Samples(zeros.get("", zeros), torch.zeros(1, dtype=torch.int64))
    stand_in = Dataset(about.name, nothing, nothing, about.classes, about.shape, about.scaling, about.augmentation)
    prepare(_on_own_samples(experiment, stand_in).but(device="cpu"))


def _on_own_samples(experiment: Experiment, own: Dataset, number: int = 0) -> Experiment:
    """The experiment with the samples of peer `number`; the other peers count as if they had one sample each."""
    if experiment.traits.needs_equal_steps and experiment.local_work.steps is None:
        raise DataError(
            "method: with these parameters every peer must take the same number of local steps, and nobody knows how "
            "many samples the others have. Set local_steps in the experiment."
        )
    everything = np.arange(len(own.train))
    rows = [everything if client == number else everything[:1] for client in range(experiment.clients)]
    return experiment.but(dataset=replace(own, clients=rows))


def _own_dataset(kit: Kit, spec: str, given: bool, data_dir: Path | None) -> Dataset:
    """A peer's own samples, checked against the experiment's description."""
    experiment = kit.roster.experiment
    about = _known(experiment.dataset) or _loaded(experiment, data_dir)
    if FUNCTION.fullmatch(spec):
        where, (train, test) = f"data '{spec}'", _called(spec)
    else:
        place = Path(spec).expanduser() if given else kit.folder / Path(spec).expanduser()
        where, (train, test) = str(place), _read(place, about.classes)
    return _fitting(where, train, test, about, experiment)


def _known(dataset: Any) -> Description | None:
    """The description of a data set without its files; None if it has none."""
    shape, classes = getattr(dataset, "shape", None), getattr(dataset, "classes", None)
    if not isinstance(shape, tuple | dict) or not isinstance(classes, int):
        return None
    kind = type(dataset)
    ours = next((name for name, maker in DATASETS.items() if maker is kind), None)
    name = ours or getattr(dataset, "name", kind.__name__)
    scaling, augmentation = getattr(dataset, "scaling", Scaling()), getattr(dataset, "augmentation", None)
    return Description(str(name), shape, classes, scaling, augmentation)


def _loaded(experiment: Experiment, data_dir: Path | None) -> Description:
    """The description of a data set that must be loaded to know it."""
    with user_code("dataset"):
        found = as_dataset(experiment.dataset, data_directory(data_dir))
    return Description(found.name, found.shape, found.classes, found.scaling, found.augmentation)


def _fitting(where: str, train: Pair, test: Pair | None, about: Description, experiment: Experiment) -> Dataset:
    """The samples as a data set, if they match the description."""
    try:
        if train[0] == [] if isinstance(train[0], list) else getattr(train[0], "shape", ())[:1] == (0,):
            raise DataError("there is no sample in it")
        values = _floats(train[1])  # to regress; classes are integers
        if values and isinstance(experiment.loss, CrossEntropy):
            raise DataError(f"y: should be classes, integers from 0 to {about.classes - 1}, not floats")
        own = per_client([train], test, None if values else about.classes, name=about.name)
    except DataError as error:
        # The message speaks of clients, of which there is one here.
        words = str(error).removeprefix("client 0: ").replace("client 0", "the training part")
        raise DataError(f"{where}: {words}") from None
    if own.shape != about.shape:
        hint = ""
        if isinstance(own.shape, tuple) and isinstance(about.shape, tuple) and prod(own.shape) == prod(about.shape):
            hint = f"; x.reshape(-1, {', '.join(map(str, about.shape))}) would fit"
        raise DataError(
            f"{where}: samples of shape {own.shape}, but those of the experiment's data set '{about.name}' are of "
            f"shape {about.shape}{hint}"
        )
    if own.classes != about.classes:
        raise DataError(f"{where}: y: {own.classes} values for each sample, the experiment expects {about.classes}")
    scaling = about.scaling if has_bytes(own.train) else UNSCALED
    return replace(own, scaling=scaling, augmentation=about.augmentation, clients=None)


def _floats(targets: Any) -> bool:
    """Whether targets are floats, of whatever kind of array."""
    try:
        return targets.is_floating_point() if isinstance(targets, Tensor) else np.asarray(targets).dtype.kind == "f"
    except ValueError:  # rows of different lengths, which are refused later
        return False


def _holding_out(training: Training, number: int, share: float) -> Training:
    """The same training, with a share of its samples used for testing instead."""
    train, batches = training.dataset.train, training.batches
    held = min(max(1, round(share * len(train))), len(train) - 1)
    if held < 1:  # the only sample is for training
        return training
    order = generator(training.seed, Purpose.SPLIT, client=number, round=1).permutation(len(train))
    kept, tested = (torch.from_numpy(np.sort(part)) for part in (order[:-held], order[-held:]))
    kept, tested = kept.to(train.device), tested.to(train.device)
    client_rows = ClientRows.of_one(number, len(kept), len(batches.client_rows))
    return replace(
        training,
        dataset=replace(
            training.dataset,
            train=train[kept],
            test=train[tested],
        ),
        batches=Batches(client_rows, batches.batch_size, batches.epochs, batches.asked_steps, batches.seed),
    )


def _called(spec: str) -> tuple[Pair, Pair | None]:
    """The samples that a user's function returns."""
    kind = f"data '{spec}'"
    try:
        function = import_dotted("data", spec)
        if not callable(function):
            raise DataError(f"{kind}: should be a function without parameters (got {type(function).__name__})")
        with user_code(kind):
            given = function()
    except DataError:
        raise
    except GossamerError as error:
        raise DataError(str(error)) from error.__cause__
    if not isinstance(given, tuple) or len(given) != 2:
        got = f"{len(given)} things" if isinstance(given, tuple) else type(given).__name__
        raise DataError(f"{kind}: should return (x, y), or ((x, y), (x_test, y_test)) (got {got})")
    if not all(isinstance(pair, tuple) for pair in given):
        return given, None
    if any(len(pair) != 2 for pair in given):
        raise DataError(f"{kind}: ((x, y), (x_test, y_test)) has two pairs of two arrays")
    return given


def _read(path: Path, classes: int) -> tuple[Pair, Pair | None]:
    """The samples in a file or a folder: training and, if there are any, test samples."""
    hint = "; give an .npz file, a folder, or module:function with --data"
    try:
        if path.is_dir():
            return _read_folder(path, classes)
        if not path.exists():
            raise DataError(f"{path}: there are no samples here{hint}")
        if path.suffix != ".npz":
            raise DataError(f"{path}: not a kind of file that is read{hint}")
        arrays = _read_arrays(path, ARRAYS)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    tested = [name for name in ARRAYS[2:] if name in arrays]
    if len(tested) == 1:
        raise DataError(f"{path}: has {tested[0]} alone; test samples are x_test and y_test")
    return (arrays["x"], arrays["y"]), (arrays["x_test"], arrays["y_test"]) if tested else None


def _read_folder(folder: Path, classes: int) -> tuple[Pair, Pair | None]:
    if (folder / "train.npz").exists():
        train, test = (
            _read_arrays(folder / name, ARRAYS[:2]) if (folder / name).exists() else None
            for name in ("train.npz", "test.npz")
        )
        assert train is not None
        return (train["x"], train["y"]), (test["x"], test["y"]) if test else None
    images = _read_idx(folder, IDX_TRAIN, classes)
    if images is None:
        raise DataError(f"{folder}: has neither train.npz nor {IDX_TRAIN[0]} and {IDX_TRAIN[1]} (plain or .gz)")
    return images, _read_idx(folder, IDX_TEST, classes)


def _read_idx(folder: Path, names: tuple[str, str], classes: int) -> Pair | None:
    """Images and labels from two IDX files; None if there is none of them."""
    found = [next((p for p in (folder / name, folder / f"{name}.gz") if p.exists()), None) for name in names]
    if found[0] is None and found[1] is None:
        return None
    if found[0] is None or found[1] is None:
        raise DataError(f"{folder}: {names[found.index(None)]} is missing")
    samples = read_images(found[0], found[1], classes)
    return samples.inputs, samples.targets


def _read_arrays(path: Path, known: tuple[str, ...]) -> Mapping[str, Any]:
    """The arrays of an .npz file; one that holds Python objects is refused and never unpickled."""
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise DataError(f"{path}: one array alone; an .npz file has x and y (numpy.savez(path, x=..., y=...))")
        with file:
            arrays: dict[str, Any] = {}
            for name in file.files:
                part, _, inner = name.partition(".")
                if part not in known or ("." in name and not part.startswith("x")):
                    raise DataError(f"{path}: unknown array '{name}': {did_you_mean(name, known)}")
                if inner and isinstance(arrays.setdefault(part, {}), dict):
                    arrays[part][inner] = file[name]
                elif part in arrays:
                    raise DataError(f"{path}: has an array {part} and others named {part}.…; give one kind")
                else:
                    arrays[part] = file[name]
            if missing := [name for name in known[:2] if name not in arrays]:
                raise DataError(f"{path}: has no array {' and '.join(missing)}; it needs x and y")
            return arrays
    except DataError:
        raise
    except Exception as error:  # a file has many ways to be damaged
        pickled = "pickle" in str(error) or "Object arrays" in str(error)
        reason = "no arrays, or Python objects, which are never unpickled" if pickled else f"damaged ({error})"
        raise DataError(f"{path}: {reason}; write it with numpy.savez(path, x=..., y=...) from plain arrays") from None
