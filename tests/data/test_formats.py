import gzip

import numpy as np
import pytest
import torch

from gossamer.data.formats import read_cifar, read_idx, read_images
from gossamer.errors import DataError

PIXELS = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)


@pytest.mark.parametrize("name", ["images", "images.gz"])
def test_idx_plain_and_gzipped(tmp_path, make, name):
    content = make.idx(PIXELS)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert np.array_equal(read_idx(tmp_path / name, 3), PIXELS)


def test_images_and_labels(tmp_path, make):
    (tmp_path / "images").write_bytes(make.idx(PIXELS))
    (tmp_path / "labels").write_bytes(make.idx(np.array([3, 9])))
    samples = read_images(tmp_path / "images", tmp_path / "labels", 10)
    assert samples.inputs.shape == (2, 1, 3, 4)
    assert samples.inputs.dtype == torch.uint8
    assert samples.targets.tolist() == [3, 9]


def test_images_and_labels_of_different_number(tmp_path, make):
    (tmp_path / "images").write_bytes(make.idx(PIXELS))
    (tmp_path / "labels").write_bytes(make.idx(np.array([3, 9, 1])))
    with pytest.raises(DataError, match=r"images holds 2 images, but .*labels 3 labels"):
        read_images(tmp_path / "images", tmp_path / "labels", 10)


def test_labels_out_of_range(tmp_path, make):
    (tmp_path / "images").write_bytes(make.idx(PIXELS))
    (tmp_path / "labels").write_bytes(make.idx(np.array([3, 10])))
    with pytest.raises(DataError, match="labels: label 10 of sample 1 is out of range, expected 0 to 9"):
        read_images(tmp_path / "images", tmp_path / "labels", 10)


IDX = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4]) + PIXELS.tobytes()
ZIPPED = gzip.compress(IDX, mtime=0)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("images", b"", "truncated: expected a header of 16 bytes, found 0"),
        ("images", IDX[:9], "truncated: expected a header of 16 bytes, found 9"),
        ("images", IDX[:-1], "truncated: expected 16 header bytes and 24 bytes, found 23"),
        ("images", IDX + b"x", "bytes after the end: its header promises 24"),
        ("images", b"\x00\x00\x08\x01" + IDX[4:], "starts with 00 00 08 01, expected 00 00 08 03"),
        ("images", b"<html><body>404 ", "not an IDX file of bytes with 3 dimensions"),
        ("images", IDX[:4] + b"\xff" * 12, "truncated: expected 16 header bytes and 79,228,162,4"),
        ("images.gz", ZIPPED[:-12], "truncated: expected"),
        ("images.gz", ZIPPED[:5], "truncated: expected a header"),
        ("images.gz", IDX, "damaged gzip file"),
        ("images.gz", ZIPPED[:-8] + bytes(4) + ZIPPED[-4:], "damaged gzip file"),
        ("images.gz", ZIPPED[:12] + b"\xff\xff\xff\xff" + ZIPPED[16:], "damaged gzip file"),
        ("images.gz", ZIPPED + b"garbage", "damaged gzip file"),
        ("images.gz", gzip.compress(IDX + b"x", mtime=0), "bytes after the end"),
    ],
    ids=range(14),
)
def test_damaged_idx_files(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_idx(path, 3)
    assert str(path) in str(caught.value)
    assert "Delete it to download it again" in str(caught.value)


def test_cifar_records_in_order(tmp_path, make):
    (tmp_path / "a.bin").write_bytes(make.cifar([[1], [9]], seed=1))
    (tmp_path / "b.bin").write_bytes(make.cifar([[0]], seed=2))
    samples = read_cifar([tmp_path / "a.bin", tmp_path / "b.bin"], classes=10)
    assert samples.inputs.shape == (3, 3, 32, 32)
    assert samples.targets.tolist() == [1, 9, 0]
    red_first = np.frombuffer(make.cifar([[1], [9]], seed=1), np.uint8)[1 : 1 + 32]
    assert samples.inputs[0, 0, 0].tolist() == red_first.tolist()


def test_fine_labels_of_cifar100(tmp_path, make):
    (tmp_path / "a.bin").write_bytes(make.cifar([[3, 99], [19, 0]]))
    assert read_cifar([tmp_path / "a.bin"], classes=100, label_bytes=2).targets.tolist() == [99, 0]


def test_damaged_cifar_files(tmp_path, make):
    path = tmp_path / "a.bin"
    for content, message in [
        (b"", "0 bytes are not a whole number of records"),
        (
            make.cifar([[1]])[:-1],
            r"3,072 bytes are not a whole number of records of 3,073 bytes \(1 label, 3,072 pixels",
        ),
        (make.cifar([[3, 4]]), "3,074 bytes are not a whole number"),
        (make.cifar([[1], [10]]), "label 10 of sample 1 is out of range, expected 0 to 9"),
    ]:
        path.write_bytes(content)
        with pytest.raises(DataError, match=message):
            read_cifar([path], classes=10)
    with pytest.raises(DataError, match="absent: cannot be read"):
        read_cifar([tmp_path / "absent"], classes=10)
