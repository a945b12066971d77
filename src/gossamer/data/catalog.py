"""The data sets by name, and what else a user may give as a data set."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NoReturn

import numpy as np
import torch
from pydantic import Field

from gossamer.data.augment import Augmentation
from gossamer.data.files import obtain
from gossamer.data.formats import read_cifar, read_images
from gossamer.data.samples import UNSCALED, Dataset, Samples, Scaling, check_labels
from gossamer.data.sources import CIFAR10, CIFAR100, FASHION_MNIST, MNIST, Source
from gossamer.errors import DataError
from gossamer.parts import Catalog, part
from gossamer.randomness import Purpose, generator

Count = Annotated[int, Field(ge=1, description="use only so many training samples")]
Size = Annotated[int, Field(ge=1)]


@part
class Digits:
    """Handwritten digits, 8 × 8 grey: 1,437 training and 360 test images that need no download."""

    train_samples: Count | None = None

    shape: ClassVar[tuple[int, ...]] = (1, 8, 8)
    classes: ClassVar[int] = 10
    scaling: ClassVar[Scaling] = Scaling(scale=16.0)

    def load(self, directory: Path, progress: bool | None = None) -> Dataset:  # nothing to read there
        # Of each image 64 pixels from 0 to 16, then its label; digits.txt says where they are from.
        table = np.loadtxt(Path(__file__).with_name("digits.csv.gz"), delimiter=",", dtype=np.uint8)
        pixels = torch.from_numpy(table[:, :-1].reshape(-1, *self.shape))
        labels = torch.from_numpy(table[:, -1].astype(np.int64))
        tested = torch.from_numpy(_stratified(table[:, -1], 360))
        kept = torch.ones(len(labels), dtype=torch.bool)
        kept[tested] = False
        return _shortened(
            Dataset(
                name="digits",
                train=Samples(pixels[kept], labels[kept]),
                test=Samples(pixels[tested], labels[tested]),
                classes=self.classes,
                shape=self.shape,
                scaling=self.scaling,
            ),
            self.train_samples,
        )


@part
class Mnist:
    """MNIST, handwritten digits, 28 × 28 grey: 60,000 training and 10,000 test images."""

    normalise: Annotated[bool, Field(description="by mean and deviation; else pixels from 0 to 1")] = True
    train_samples: Count | None = None

    shape: ClassVar[tuple[int, ...]] = (1, 28, 28)
    classes: ClassVar[int] = 10
    scaling: ClassVar[Scaling] = Scaling(mean=(0.1307,), std=(0.3081,))

    def load(self, directory: Path, progress: bool | None = None) -> Dataset:
        scaling = self.scaling if self.normalise else Scaling()
        return _shortened(_load_idx(MNIST, directory, scaling, progress), self.train_samples)


@part
class FashionMnist:
    """Fashion-MNIST, pieces of clothing, 28 × 28 grey: 60,000 training and 10,000 test images."""

    train_samples: Count | None = None

    shape: ClassVar[tuple[int, ...]] = (1, 28, 28)
    classes: ClassVar[int] = 10
    scaling: ClassVar[Scaling] = Scaling()

    def load(self, directory: Path, progress: bool | None = None) -> Dataset:
        return _shortened(_load_idx(FASHION_MNIST, directory, self.scaling, progress), self.train_samples)


@part
class Photographs:
    """What the two sets of photographs share."""

    augment: Annotated[bool, Field(description="flip and shift training images at random")] = True
    rule: Annotated[Literal["always", "half"], Field(description="shift every image, or half of them")] = "always"
    train_samples: Count | None = None

    shape: ClassVar[tuple[int, ...]] = (3, 32, 32)

    @property
    def augmentation(self) -> Augmentation | None:
        """What happens to training images."""
        return Augmentation(rule=self.rule) if self.augment else None


@part
class Cifar10(Photographs):
    """CIFAR-10, photographs of ten kinds of things, 32 × 32 colour: 50,000 training and 10,000 test images."""

    classes: ClassVar[int] = 10
    scaling: ClassVar[Scaling] = Scaling(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))

    def load(self, directory: Path, progress: bool | None = None) -> Dataset:
        *train, test = obtain(CIFAR10, directory, progress)
        return _shortened(
            Dataset(
                name="cifar10",
                train=read_cifar(train, classes=10),
                test=read_cifar([test], classes=10),
                classes=self.classes,
                shape=self.shape,
                scaling=self.scaling,
                augmentation=self.augmentation,
            ),
            self.train_samples,
        )


@part
class Cifar100(Photographs):
    """CIFAR-100, photographs of a hundred kinds of things, 32 × 32 colour: 50,000 training and 10,000 test images."""

    classes: ClassVar[int] = 100
    scaling: ClassVar[Scaling] = Scaling(mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762))

    def load(self, directory: Path, progress: bool | None = None) -> Dataset:
        train, test = obtain(CIFAR100, directory, progress)
        return _shortened(
            Dataset(
                name="cifar100",
                train=read_cifar([train], classes=100, label_bytes=2),
                test=read_cifar([test], classes=100, label_bytes=2),
                classes=self.classes,
                shape=self.shape,
                scaling=self.scaling,
                augmentation=self.augmentation,
            ),
            self.train_samples,
        )


@part
class Described:
    """The shape and the classes of samples that every peer has for itself; there is nothing to load."""

    shape: Annotated[
        tuple[Size, ...] | dict[str, tuple[Size, ...]],
        Field(min_length=1, description="of one sample; of inputs with names, a table of them"),
    ]
    classes: Annotated[int, Field(ge=1, description="classes, or outputs where targets are floats")]
    scale: Annotated[float, Field(gt=0, description="pixels are divided by it")] = 255.0
    mean: Annotated[float, Field(description="subtracted from pixels after that")] = 0.0
    std: Annotated[float, Field(gt=0, description="pixels are divided by it last")] = 1.0

    @property
    def scaling(self) -> Scaling:
        """The scaling of pixels."""
        return Scaling(self.scale, (self.mean,), (self.std,))

    def load(self, directory: Path, progress: bool | None = None) -> NoReturn:  # as the others
        raise DataError(
            "the data set is only a description, so every peer needs samples of its own: give them with --data, or as "
            "'data' in the network file"
        )


@part
class Characters:
    """The characters of a text file, in windows; each character is to be followed by the right next one.

    Inputs are numbers of characters, [length], and targets those of the next ones. The last tenth is for testing.
    """

    file: Annotated[str, Field(min_length=1, description="path of the text, UTF-8; also looked for in the data folder")]
    length: Annotated[int, Field(ge=1, description="characters in a window")] = 32

    def load(self, directory: Path, progress: bool | None = None) -> Dataset:  # there is nothing to download
        path = Path(self.file).expanduser()
        path = path if path.exists() else directory / path
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"data set 'characters': {self.file}: cannot be read as UTF-8 text ({error}).") from None
        alphabet = {character: number for number, character in enumerate(sorted(set(text)))}
        codes = torch.tensor([alphabet[character] for character in text])
        windows = (len(codes) - 1) // self.length
        tested = max(1, windows // 10)
        if windows <= tested:
            raise DataError(
                f"data set 'characters': {self.file}: {len(codes):,} characters, too few for windows of {self.length}."
            )
        shape = (windows, self.length)
        used = windows * self.length
        samples = Samples(codes[:used].view(shape), codes[1 : used + 1].view(shape))
        train, test = samples[: windows - tested], samples[windows - tested :]
        return Dataset("characters", train, test, len(alphabet), (self.length,), UNSCALED)


DATASETS = Catalog(
    "data set",
    {
        "digits": Digits,
        "mnist": Mnist,
        "fashion-mnist": FashionMnist,
        "cifar10": Cifar10,
        "cifar100": Cifar100,
        "characters": Characters,
        "described": Described,
    },
    role="load",
)


def as_dataset(thing: Any, directory: Path, progress: bool | None = None) -> Dataset:
    """The data set that `thing` stands for: a part with `load`, a finished `Dataset`, or a function that makes one."""
    found: Any
    if type(thing) in DATASETS.values():
        found = thing.load(directory, progress)
    elif not isinstance(thing, type) and hasattr(thing, "load"):
        found = thing.load(directory)
    else:
        found = thing() if callable(thing) else thing
    if not isinstance(found, Dataset):
        what = f"{thing!r} gave {type(found).__name__}" if found is not thing else f"got {thing!r}"
        raise DataError(
            f"a data set is one of {', '.join(DATASETS)}, a Dataset, an object whose load(directory) gives one, or a "
            f"function that does; {what}. gossamer.per_client makes one of arrays."
        )
    for where, samples in (("training samples", found.train), ("test samples", found.test)):
        if not samples.targets.is_floating_point():
            check_labels(f"data set '{found.name}', {where}", samples.targets, found.classes)
    return found


def _load_idx(source: Source, directory: Path, scaling: Scaling, progress: bool | None) -> Dataset:
    images, labels, test_images, test_labels = obtain(source, directory, progress)
    train = read_images(images, labels, classes=10)
    test = read_images(test_images, test_labels, classes=10)
    return Dataset(source.folder, train, test, classes=10, shape=train.shape, scaling=scaling)


def _stratified(labels: np.ndarray[Any, Any], size: int) -> np.ndarray[Any, Any]:
    """Indices of a test set of `size` samples that has of every class its share.

    The key is fixed: a test set that changed with the seed of an experiment would make seeds incomparable.
    """
    order = generator(0, Purpose.SPLIT).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    # Equally spaced places in an order sorted by class hit every class in proportion.
    return np.sort(order[(np.arange(size) * len(labels)) // size])


def _shortened(dataset: Dataset, train_samples: int | None) -> Dataset:
    """The data set with only some of its training samples, the same ones in every experiment."""
    available = len(dataset.train)
    if train_samples is None:
        return dataset
    if train_samples > available:
        raise DataError(f"data set '{dataset.name}': train_samples={train_samples:,}, but it has only {available:,}.")
    kept = torch.from_numpy(np.sort(generator(1, Purpose.SPLIT).permutation(available)[:train_samples]))
    return replace(dataset, train=dataset.train[kept])
