"""The data sets that come by name, and what else may stand in their place."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NoReturn

import numpy as np
import torch
from pydantic import Field

from gossamer.data.augment import Augmentation
from gossamer.data.download import File
from gossamer.data.files import Source, obtain
from gossamer.data.formats import read_cifar, read_images
from gossamer.data.samples import Dataset, Samples, Scaling
from gossamer.errors import DataError
from gossamer.parts import Catalog, part
from gossamer.randomness import Purpose, generator

Count = Annotated[int, Field(ge=1, description="use only so many training samples")]
Size = Annotated[int, Field(ge=1)]


def _idx(name: str, zipped: int, zipped_sha256: str, size: int, sha256: str) -> tuple[File, ...]:
    """An IDX file as published, gzipped, or as it is once unpacked."""
    return File(f"{name}.gz", zipped, f"sha256:{zipped_sha256}"), File(name, size, f"sha256:{sha256}")


MNIST = Source(
    folder="mnist",
    page="http://yann.lecun.com/exdb/mnist/",
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    files=(
        _idx(
            "train-images-idx3-ubyte",
            9_912_422,
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            47_040_016,
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        ),
        _idx(
            "train-labels-idx1-ubyte",
            28_881,
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            60_008,
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
        _idx(
            "t10k-images-idx3-ubyte",
            1_648_877,
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            7_840_016,
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        ),
        _idx(
            "t10k-labels-idx1-ubyte",
            4_542,
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            10_008,
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
)

FASHION_MNIST = Source(
    folder="fashion-mnist",
    page="https://github.com/zalandoresearch/fashion-mnist",
    mirrors=(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
    files=(
        _idx(
            "train-images-idx3-ubyte",
            26_421_880,
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            47_040_016,
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        ),
        _idx(
            "train-labels-idx1-ubyte",
            29_515,
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            60_008,
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        ),
        _idx(
            "t10k-images-idx3-ubyte",
            4_422_102,
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            7_840_016,
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        ),
        _idx(
            "t10k-labels-idx1-ubyte",
            5_148,
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            10_008,
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    ),
)


def _binary(folder: str, name: str, size: int, sha256: str | None = None) -> tuple[File, ...]:
    """A CIFAR file, beside its archive or in the folder that the archive unpacks to."""
    digest = None if sha256 is None else f"sha256:{sha256}"
    return File(name, size, digest), File(f"{folder}/{name}", size, digest)


CIFAR10 = Source(
    folder="cifar10",
    page="https://www.cs.toronto.edu/~kriz/cifar.html",
    mirrors=("https://www.cs.toronto.edu/~kriz/",),
    archive=File("cifar-10-binary.tar.gz", None, "md5:c32a1d4ab5d03f1284b67883e8d87530"),
    archive_folder="cifar-10-batches-bin",
    files=tuple(
        _binary("cifar-10-batches-bin", name, 30_730_000, sha256)
        for name, sha256 in {
            "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        }.items()
    ),
)

CIFAR100 = Source(
    folder="cifar100",
    page="https://www.cs.toronto.edu/~kriz/cifar.html",
    mirrors=("https://www.cs.toronto.edu/~kriz/",),
    archive=File("cifar-100-binary.tar.gz", None, "md5:03b5dce01913d631647c71ecec9e9cb8"),
    archive_folder="cifar-100-binary",
    files=(
        _binary("cifar-100-binary", "train.bin", 153_700_000),
        _binary("cifar-100-binary", "test.bin", 30_740_000),
    ),
)


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

    train_samples: Count | None = None

    shape: ClassVar[tuple[int, ...]] = (1, 28, 28)
    classes: ClassVar[int] = 10
    scaling: ClassVar[Scaling] = Scaling(mean=(0.1307,), std=(0.3081,))

    def load(self, directory: Path, progress: bool | None = None) -> Dataset:
        return _shortened(_load_idx(MNIST, directory, self.scaling, progress), self.train_samples)


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

    shape: Annotated[tuple[Size, ...], Field(min_length=1, description="of one sample")]
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


DATASETS = Catalog(
    "data set",
    {
        "digits": Digits,
        "mnist": Mnist,
        "fashion-mnist": FashionMnist,
        "cifar10": Cifar10,
        "cifar100": Cifar100,
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
            f"function that does; {what}."
        )
    return found


def _load_idx(source: Source, directory: Path, scaling: Scaling, progress: bool | None) -> Dataset:
    images, labels, test_images, test_labels = obtain(source, directory, progress)
    train = read_images(images, labels, classes=10)
    test = read_images(test_images, test_labels, classes=10)
    return Dataset(source.folder, train, test, classes=10, shape=tuple(train.inputs.shape[1:]), scaling=scaling)


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
    return replace(dataset, train=Samples(dataset.train.inputs[kept], dataset.train.targets[kept]))
