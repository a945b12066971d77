"""Readers of two file formats: IDX (MNIST) and binary CIFAR.

Both are a short header and raw pixels, so numpy reads them directly; missing and surplus bytes are refused.
"""

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray

from gossamer.data.samples import Samples
from gossamer.errors import DataError

Bytes = NDArray[np.uint8]

REMEDY = "Delete it to download it again, or put a whole copy there."
#: The IDX code of unsigned bytes, the only element type that images use.
UNSIGNED_BYTE = 8
CHUNK = 1 << 24
PIXELS = 3 * 32 * 32


def read_idx(path: Path, dimensions: int) -> Bytes:
    """The array of bytes in an IDX file, plain or gzipped (by its name)."""
    with _reading(path) as file:
        header = _read(path, file, 4 + 4 * dimensions, "a header of")
        magic = bytes([0, 0, UNSIGNED_BYTE, dimensions])
        if header[:4] != magic:
            raise DataError(
                f"{path}: not an IDX file of bytes with {dimensions} dimension{'s' * (dimensions > 1)}: it starts with "
                f"{header[:4].hex(' ')}, expected {magic.hex(' ')}. {REMEDY}"
            )
        shape = tuple(int(size) for size in np.frombuffer(header, ">u4", offset=4))
        size = int(np.prod(shape, dtype=object))
        pixels = _read(path, file, size, f"{len(header):,} header bytes and")
        if _read(path, file, 1):
            raise DataError(f"{path}: bytes after the end: its header promises {size:,} after it. {REMEDY}")
    return np.frombuffer(pixels, np.uint8).reshape(shape)


def read_images(images: Path, labels: Path, classes: int) -> Samples:
    """Grey images [N, 1, H, W] and their labels from a pair of IDX files."""
    pixels, targets = read_idx(images, 3), read_idx(labels, 1)
    if len(pixels) != len(targets):
        raise DataError(f"{images} holds {len(pixels):,} images, but {labels} {len(targets):,} labels. {REMEDY}")
    return Samples(torch.from_numpy(pixels[:, None]), _labels(labels, targets, classes))


def read_cifar(paths: Sequence[Path], classes: int, label_bytes: int = 1) -> Samples:
    """Colour images [N, 3, 32, 32] and their labels from binary CIFAR files, in order.

    Each record is its label and 3,072 pixels. CIFAR-100 has two label bytes, coarse and fine; the last is taken.
    """
    record = label_bytes + PIXELS
    pixels, targets = [], []
    for path in paths:
        with _reading(path) as file:
            content = np.frombuffer(bytearray(file.read()), np.uint8)
        whole, rest = divmod(len(content), record)
        if rest or not whole:
            raise DataError(
                f"{path}: {len(content):,} bytes are not a whole number of records of {record:,} bytes "
                f"({label_bytes} label, {PIXELS:,} pixels): truncated, or another layout. {REMEDY}"
            )
        records = content.reshape(whole, record)
        pixels.append(records[:, label_bytes:].reshape(whole, 3, 32, 32))
        targets.append(_labels(path, records[:, label_bytes - 1], classes))
    return Samples(torch.from_numpy(np.concatenate(pixels)), torch.cat(targets))


def _labels(path: Path, labels: Bytes, classes: int) -> torch.Tensor:
    wrong = np.flatnonzero(labels >= classes)
    if len(wrong):
        raise DataError(
            f"{path}: label {labels[wrong[0]]} of sample {wrong[0]:,} is out of range, expected 0 to {classes - 1}. "
            f"{REMEDY}"
        )
    return torch.from_numpy(labels.astype(np.int64))


def _reading(path: Path) -> Any:
    try:
        return gzip.open(path) if path.suffix == ".gz" else path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None


def _read(path: Path, file: IO[bytes], size: int, after: str = "") -> bytearray:
    """The next `size` bytes, read in chunks: a damaged header may announce more than memory holds."""
    content = bytearray()
    try:
        while len(content) < size and (piece := file.read(min(CHUNK, size - len(content)))):
            content += piece
    except EOFError:
        pass  # a truncated gzip file: the bytes before the cut are counted below
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: damaged gzip file ({error}). {REMEDY}") from None
    if len(content) < size and after:
        raise DataError(f"{path}: truncated: expected {after} {size:,} bytes, found {len(content):,}. {REMEDY}")
    return content
