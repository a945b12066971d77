"""The published files of each data set: addresses, sizes and digests."""

from dataclasses import dataclass


@dataclass(frozen=True)
class File:
    """A published file."""

    #: Its path below the folder of its data set.
    name: str
    #: Its exact number of bytes, if known.
    size: int | None = None
    #: "sha256:…" or "md5:…", if known.
    digest: str | None = None


@dataclass(frozen=True)
class Source:
    """The files of a data set, and where they are published."""

    #: The folder below the data directory.
    folder: str
    #: The page that a user can download the files from.
    page: str
    #: Base addresses to download from, tried in this order.
    mirrors: tuple[str, ...]
    #: For each file to read, the places where it may lie; it is downloaded to the first.
    files: tuple[tuple[File, ...], ...]
    #: The archive that the files are extracted from, if they are published in one, and their folder in it.
    archive: File | None = None
    archive_folder: str = ""


def _idx(name: str, zipped: int, zipped_sha256: str, size: int, sha256: str) -> tuple[File, ...]:
    """An IDX file, gzipped as published or unpacked."""
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
    """A CIFAR file, beside its archive or in the folder that the archive extracts to."""
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
