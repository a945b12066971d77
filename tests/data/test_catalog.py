import gzip
import hashlib
import io
import json
import os
import tarfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gossamer.data import (
    DATASETS,
    Augmentation,
    Dataset,
    Scaling,
    as_dataset,
    catalog,
    data_directory,
    per_client,
    sources,
)
from gossamer.data.files import obtain
from gossamer.data.sources import File, Source
from gossamer.errors import DataError, ExperimentError
from gossamer.parts import summary_of

#: SHA-256 of the sorted images of `digits`, each with its label, as scikit-learn has published them.
DIGITS = "f67d6a29d0e1f70e7f0cd9dcf25816b694881f4b8f27f5cc1db59551f0499fb8"


@pytest.fixture
def mnist(make, monkeypatch, unreachable) -> dict[str, bytes]:
    """MNIST and Fashion-MNIST as if they were published with a few images, at an address that does not answer."""
    contents = make.idx_set()
    files = tuple(
        (make.published(name, content), make.published(name.removesuffix(".gz"), gzip.decompress(content)))
        for name, content in contents.items()
    )
    for name in ("MNIST", "FASHION_MNIST"):
        monkeypatch.setattr(catalog, name, replace(getattr(catalog, name), files=files, mirrors=(f"{unreachable}/",)))
    return contents


def put(folder: Path, contents: dict[str, bytes]) -> Path:
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def test_digits_are_the_same_for_everyone(tmp_path):
    data = as_dataset(DATASETS.build("digits"), tmp_path)
    assert (len(data.train), len(data.test), data.shape, data.classes) == (1437, 360, (1, 8, 8), 10)
    assert data.train.inputs.dtype == torch.uint8
    assert int(data.train.inputs.max()) == 16
    assert float(data.scaling.apply(data.train.inputs, torch.float32).max()) == 1
    # A fifth of every class, give or take one.
    shares = np.bincount(data.test.targets) / (np.bincount(data.train.targets) + np.bincount(data.test.targets))
    assert np.allclose(shares, 0.2, atol=0.006)
    # Golden: the split must never change, or results of different versions cannot be compared.
    assert data.test.targets[:12].tolist() == [0, 1, 2, 5, 6, 5, 8, 1, 2, 2, 4, 8]
    pixels = {image.numpy().tobytes() for image in data.train.inputs}
    assert sum(image.numpy().tobytes() in pixels for image in data.test.inputs) == 0
    assert os.listdir(tmp_path) == []


def test_digits_are_the_published_ones(tmp_path):
    data = DATASETS.build("digits").load(tmp_path)
    samples = zip(
        *(torch.cat([getattr(part, key) for part in (data.train, data.test)]) for key in ("inputs", "targets")),
        strict=True,
    )
    lines = sorted(image.numpy().astype(np.uint8).tobytes() + bytes([label]) for image, label in samples)
    assert hashlib.sha256(b"".join(lines)).hexdigest() == DIGITS


def test_fewer_training_samples_are_some_of_the_same(tmp_path):
    full, few, more = (DATASETS.build({"name": "digits", **p}).load(tmp_path) for p in SOME)
    assert (len(few.train), len(more.train), len(few.test)) == (100, 200, 360)
    images = [{image.numpy().tobytes() for image in data.train.inputs} for data in (few, more, full)]
    assert images[0] < images[1] < images[2]
    with pytest.raises(DataError, match="train_samples=1,438, but it has only 1,437"):
        DATASETS.build({"name": "digits", "train_samples": 1438}).load(tmp_path)
    with pytest.raises(ExperimentError, match="train_samples"):
        DATASETS.build({"name": "digits", "train_samples": 0})


SOME = [{}, {"train_samples": 100}, {"train_samples": 200}]


@pytest.mark.parametrize(
    ("name", "scaling"), [("mnist", Scaling(mean=(0.1307,), std=(0.3081,))), ("fashion-mnist", Scaling())]
)
def test_idx_sets_gzipped_or_plain(tmp_path, mnist, name, scaling):
    put(tmp_path / "zipped" / name, mnist)
    put(tmp_path / "plain" / name, {file[:-3]: gzip.decompress(content) for file, content in mnist.items()})
    for kind in ("zipped", "plain"):
        data = as_dataset(DATASETS.build(name), tmp_path / kind)
        assert (data.name, len(data.train), len(data.test), data.shape) == (name, 12, 5, (1, 28, 28))
        assert data.train.targets.tolist() == [i % 10 for i in range(12)]
        assert data.scaling == scaling
        assert data.augmentation is None


def test_missing_files_are_downloaded_from_the_users_mirror(tmp_path, mnist, server, monkeypatch, capsys):
    monkeypatch.setenv("GOSSAMER_MIRROR", f"{server.address}/mirror/")
    server.files = {f"/mirror/mnist/{name}": content for name, content in mnist.items()}
    put(tmp_path / "mnist", dict(list(mnist.items())[:1]))
    assert len(DATASETS.build("mnist").load(tmp_path).train) == 12
    assert [path for path, _ in server.requests] == [f"/mirror/mnist/{name}" for name in list(mnist)[1:]]
    assert capsys.readouterr() == ("", "")
    DATASETS.build("mnist").load(tmp_path)
    assert len(server.requests) == 3


def test_several_workers_download_once(tmp_path, mnist, server, monkeypatch):
    monkeypatch.setenv("GOSSAMER_MIRROR", server.address)
    server.files = {f"/mnist/{name}": content for name, content in mnist.items()}
    with ThreadPoolExecutor(4) as workers:
        loaded = list(workers.map(lambda _: DATASETS.build("mnist").load(tmp_path), range(4)))
    assert [len(data.train) for data in loaded] == [12] * 4
    assert len(server.requests) == 4


def test_progress_is_shown_when_asked_for(tmp_path, mnist, server, monkeypatch, capsys):
    monkeypatch.setenv("GOSSAMER_MIRROR", server.address)
    server.files = {f"/mnist/{name}": content for name, content in mnist.items()}
    as_dataset(DATASETS.build("mnist"), tmp_path, progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "mnist/t10k-labels" in shown.err


def test_without_a_network_the_user_learns_what_to_put_where(tmp_path, mnist):
    put(tmp_path / "mnist", dict(list(mnist.items())[:2]))
    with pytest.raises(DataError) as caught:
        DATASETS.build("mnist").load(tmp_path)
    message = str(caught.value)
    assert f"Put into {tmp_path / 'mnist'}: t10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz." in message
    assert "They come from http://yann.lecun.com/exdb/mnist/" in message
    assert "The download failed: http://127.0.0.1" in message


def test_damaged_files_are_named(tmp_path, mnist):
    name = "train-images-idx3-ubyte.gz"
    folder = put(tmp_path / "mnist", mnist)
    (folder / name).write_bytes(mnist[name][:1000])
    with pytest.raises(DataError, match=rf"{name}: truncated: 1,000 of [0-9,]+ bytes\. Delete it to download it again"):
        DATASETS.build("mnist").load(tmp_path)
    (folder / name).write_bytes(mnist[name][:-1] + b"?")
    with pytest.raises(DataError, match=rf"{name}: other content than the published file: sha256 \w+, expected \w+"):
        DATASETS.build("mnist").load(tmp_path)
    (folder / name).unlink()
    (folder / name[:-3]).write_bytes(b"short")
    with pytest.raises(DataError, match=rf"{name[:-3]}: truncated: 5 of 9,424 bytes"):
        DATASETS.build("mnist").load(tmp_path)


def test_verified_once_until_it_changes(tmp_path, mnist):
    folder = put(tmp_path / "mnist", mnist)
    DATASETS.build("mnist").load(tmp_path)
    assert set(json.loads((folder / ".verified").read_text())) == set(mnist)
    name = "train-labels-idx1-ubyte.gz"
    status = (folder / name).stat()
    (folder / name).write_bytes(gzip.compress(gzip.decompress(mnist[name]), mtime=1))  # same size, other bytes
    os.utime(folder / name, ns=(status.st_atime_ns, status.st_mtime_ns))
    DATASETS.build("mnist").load(tmp_path)  # remembered by size and time
    os.utime(folder / name, ns=(0, 0))
    with pytest.raises(DataError, match="other content"):
        DATASETS.build("mnist").load(tmp_path)


@pytest.mark.parametrize("content", ["", "[1]", "{broken"])
def test_a_damaged_memory_is_forgotten(tmp_path, mnist, content):
    folder = put(tmp_path / "mnist", mnist)
    (folder / ".verified").write_text(content)
    DATASETS.build("mnist").load(tmp_path)
    assert set(json.loads((folder / ".verified").read_text())) == set(mnist)


def test_a_read_only_folder_is_read_and_left_alone(tmp_path, mnist):
    folder = put(tmp_path / "mnist", mnist)
    folder.chmod(0o555)
    tmp_path.chmod(0o555)
    try:
        assert len(DATASETS.build("mnist").load(tmp_path).train) == 12
        assert sorted(os.listdir(folder)) == sorted(mnist)
        with pytest.raises(DataError, match=r"Put into .*fashion-mnist: train-images.*the folder is read-only"):
            DATASETS.build("fashion-mnist").load(tmp_path)
        assert os.listdir(tmp_path) == ["mnist"]
    finally:
        tmp_path.chmod(0o755)
        folder.chmod(0o755)


def test_a_data_directory_that_is_a_file(tmp_path, mnist):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"Put into .*The folder cannot be written"):
        DATASETS.build("mnist").load(tmp_path / "file")


def test_a_memory_that_cannot_be_written_is_no_harm(tmp_path, mnist):
    folder = put(tmp_path / "mnist", mnist)
    (folder / ".verified").mkdir()
    assert len(DATASETS.build("mnist").load(tmp_path).train) == 12
    assert sorted(os.listdir(folder)) == sorted([*mnist, ".verified"])


def cifar(make, name: str) -> tuple[dict[str, bytes], bytes]:
    """A few records by file name, and the archive they are published in."""
    labels = [[[1], [2]], [[9]]] if name == "cifar10" else [[[1, 99], [2, 3]], [[0, 5]]]
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] if name == "cifar10" else ["train.bin"]
    contents = {file: make.cifar(labels[0], seed=i) for i, file in enumerate(names)}
    contents["test_batch.bin" if name == "cifar10" else "test.bin"] = make.cifar(labels[1])
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for file, content in {**contents, "readme.html": b"hello"}.items():
            entry = tarfile.TarInfo(f"{FOLDERS[name]}/{file}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return contents, packed.getvalue()


FOLDERS = {"cifar10": "cifar-10-batches-bin", "cifar100": "cifar-100-binary"}


@pytest.fixture(params=["cifar10", "cifar100"])
def cifar_set(request, make, monkeypatch, unreachable):
    name = request.param
    contents, packed = cifar(make, name)
    source: Source = getattr(catalog, name.upper())
    files = tuple(
        (make.published(file, content), make.published(f"{FOLDERS[name]}/{file}", content))
        for file, content in contents.items()
    )
    archive = replace(make.published(source.archive.name, packed, "md5"), size=None)
    monkeypatch.setattr(
        catalog, name.upper(), replace(source, files=files, archive=archive, mirrors=(f"{unreachable}/",))
    )
    return name, contents, packed, archive.name


def check_cifar(data: Dataset, name: str) -> None:
    assert (data.name, data.shape) == (name, (3, 32, 32))
    if name == "cifar10":
        assert (data.train.targets.tolist(), data.test.targets.tolist(), data.classes) == ([1, 2] * 5, [9], 10)
    else:
        assert (data.train.targets.tolist(), data.test.targets.tolist(), data.classes) == ([99, 3], [5], 100)


def test_cifar_files_beside_or_in_their_official_folder(tmp_path, cifar_set):
    name, contents, _, _ = cifar_set
    put(tmp_path / "here" / name, contents)
    put(tmp_path / "there" / name / FOLDERS[name], contents)
    for place in ("here", "there"):
        data = DATASETS.build(name).load(tmp_path / place)
        check_cifar(data, name)
        assert data.augmentation == Augmentation(flip=True, pad=4, rule="always")
    assert DATASETS.build({"name": name, "rule": "half"}).load(tmp_path / "here").augmentation.rule == "half"
    assert DATASETS.build({"name": name, "augment": False}).load(tmp_path / "here").augmentation is None


def test_cifar_is_downloaded_and_unpacked(tmp_path, cifar_set, server, monkeypatch):
    name, contents, packed, archive = cifar_set
    monkeypatch.setenv("GOSSAMER_MIRROR", server.address)
    server.files[f"/{name}/{archive}"] = packed
    check_cifar(DATASETS.build(name).load(tmp_path), name)
    assert {*contents, ".verified"} <= set(os.listdir(tmp_path / name)) <= {*contents, ".verified", ".lock"}


def test_an_archive_put_there_by_hand_is_used_and_kept(tmp_path, cifar_set):
    name, _, packed, archive = cifar_set
    put(tmp_path / name, {archive: packed})
    check_cifar(DATASETS.build(name).load(tmp_path), name)
    assert (tmp_path / name / archive).read_bytes() == packed


def test_a_wrong_archive_put_there_by_hand_is_refused(tmp_path, cifar_set):
    name, _, packed, archive = cifar_set
    put(tmp_path / name, {archive: packed + b"x"})
    with pytest.raises(DataError, match=rf"{archive}: other content than the published file: md5"):
        DATASETS.build(name).load(tmp_path)


def test_cifar_without_a_network(tmp_path, cifar_set):
    name, contents, _, archive = cifar_set
    with pytest.raises(
        DataError, match=rf"{', '.join(contents)} \(or {archive}, which has them all\)\. They come from"
    ):
        DATASETS.build(name).load(tmp_path)


def test_a_slice_does_not_stand_for_the_data_set(tmp_path, make):
    put(tmp_path / "cifar100", {"train.bin": make.cifar([[0, 1]] * 20), "test.bin": make.cifar([[0, 1]] * 5)})
    with pytest.raises(DataError, match=r"train\.bin: truncated: 61,480 of 153,700,000 bytes"):
        DATASETS.build("cifar100").load(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that nobody can read from its start")
def test_a_file_that_cannot_be_read(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a").symlink_to("/proc/self/mem")
    source = Source("own", "https://example.org", (), ((File("a", None, "sha256:0"),),))
    with pytest.raises(DataError, match=r"own/a: cannot be read \(Input/output error\)"):
        obtain(source, tmp_path)


def test_the_published_tables_are_whole():
    for source in (sources.MNIST, sources.FASHION_MNIST, sources.CIFAR10, sources.CIFAR100):
        assert all(mirror.endswith("/") for mirror in source.mirrors)
        for file in [file for places in source.files for file in places]:
            assert file.size > 0
            assert source is sources.CIFAR100 or len(file.digest.removeprefix("sha256:")) == 64


def test_every_data_set_has_a_line_about_it():
    assert all(summary_of(DATASETS[name]).endswith(".") for name in DATASETS)


def test_data_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_directory().name == "gossamer"
    monkeypatch.setenv("GOSSAMER_DATA", "~/samples")
    assert data_directory() == Path.home() / "samples"
    assert data_directory(tmp_path) == tmp_path
    assert data_directory("there") == Path("there")


def test_other_things_that_are_data_sets(tmp_path):
    data = per_client([(np.zeros((2, 3)), [0, 1])])

    class Own:
        def load(self, directory):
            assert directory == tmp_path
            return data

    assert as_dataset(data, tmp_path) is data
    assert as_dataset(lambda: data, tmp_path) is data
    assert as_dataset(Own(), tmp_path) is data


@pytest.mark.parametrize(
    ("thing", "message"),
    [(3, "got 3"), ("mnist", "got 'mnist'"), (lambda: 4, "gave int"), (None, "got None"), (dict, "gave dict")],
)
def test_things_that_are_not(tmp_path, thing, message):
    with pytest.raises(DataError, match=f"a data set is one of digits, mnist.*{message}"):
        as_dataset(thing, tmp_path)
