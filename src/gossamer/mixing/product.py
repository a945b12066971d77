"""A sparse matrix times the rows of many clients, in blocks of columns that stay in the cache."""

import ctypes
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from gossamer.system.cpp import REAL, CannotCompile, cpp_library

CODE = Path(__file__).with_suffix(".cpp")
#: Multiplications of one run from which C++ pays, which takes a second to be compiled: scipy does about as many in ten.
WORTH_COMPILING = 1e10
#: Bytes of a block of columns that scipy multiplies at once: they fit a core's cache, so that a row is read once.
CACHE_BLOCK = 2 << 20

#: Stacks rows from several tensors and multiplies them into another one, which may be one of them.
Multiply = Callable[[Sequence[Tensor], Tensor], None]


def product(
    matrix: sparse.csr_array, like: Tensor, columns: float = 0, note: Callable[[str], None] = lambda trouble: None
) -> Multiply:
    """The product with a matrix, of rows like these; in C++, if so many columns will be multiplied that this pays.

    `note` is called where that is not possible.
    """
    if like.device.type != "cpu":
        return _by_torch(matrix, like)
    if matrix.nnz * columns >= WORTH_COMPILING and like.dtype in REAL:
        try:
            return _CppProduct(matrix, like.dtype)
        except CannotCompile as error:  # the numbers are the same
            note(f"messages are mixed by scipy, which is slower than the C++ that cannot be compiled here: {error}")
    return _by_scipy(matrix, like.dtype)


class _CppProduct:
    def __init__(self, matrix: sparse.csr_array, dtype: torch.dtype) -> None:
        self._library = _library(dtype)
        self._ends = matrix.indptr[1:].astype(np.int64)
        self._columns = matrix.indices.astype(np.int32)
        self._weights = matrix.data.astype(str(dtype).removeprefix("torch."))
        self._block = torch.empty(matrix.shape[1] * self._library.bytes_of_row() + 64, dtype=torch.uint8)

    def __call__(self, sources: Sequence[Tensor], into: Tensor) -> None:
        given = [rows for rows in sources if len(rows)]
        assert all(rows.stride(1) == 1 for rows in (*given, into) if rows.shape[1] > 1), (
            "the numbers of a row are neighbours"
        )
        matrix = (array.ctypes.data for array in (self._ends, self._columns, self._weights))
        rows, strides = _integers([len(rows) for rows in given]), _integers([rows.stride(0) for rows in given])
        first = (ctypes.c_void_p * len(given))(*[rows.data_ptr() for rows in given])
        block = self._block.data_ptr() + -self._block.data_ptr() % 64  # vectors are aligned
        self._library.multiply(
            *matrix, len(self._ends), first, rows, strides, len(given),
            into.data_ptr(), into.stride(0), into.shape[1], block,
        )  # fmt: skip


@cache
def _library(dtype: torch.dtype) -> Any:
    loaded = ctypes.CDLL(str(cpp_library(CODE.read_text("utf-8"), dtype)))
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    loaded.multiply.argtypes = [*[pointer] * 3, integer, *[pointer] * 3, integer, pointer, integer, integer, pointer]
    loaded.multiply.restype = None
    return loaded


def _integers(values: Sequence[int]) -> Any:
    return (ctypes.c_int64 * len(values))(*values)


def _by_scipy(matrix: sparse.csr_array, dtype: torch.dtype) -> Multiply:
    """By scipy, which is several times as fast as torch's own product on a CPU."""
    typed = sparse.csr_array(matrix, dtype=str(dtype).removeprefix("torch."))

    def multiply(sources: Sequence[Tensor], into: Tensor) -> None:
        rows, columns = matrix.shape[1], into.shape[1]
        width = max(1, min(columns, max(64, CACHE_BLOCK // max(1, rows * into.element_size()))))
        memory = into.new_empty(rows * width)
        for left in range(0, columns, width):
            right = min(left + width, columns)
            block = memory[: rows * (right - left)].view(rows, right - left)
            torch.cat([source[:, left:right] for source in sources], out=block)
            into[:, left:right] = torch.from_numpy(typed @ block.numpy())

    return multiply


def _by_torch(matrix: sparse.csr_array, like: Tensor) -> Multiply:
    tensor = as_torch(matrix, like.dtype, like.device)

    def multiply(sources: Sequence[Tensor], into: Tensor) -> None:
        into.copy_(tensor @ torch.cat(list(sources)))

    return multiply


def as_torch(matrix: sparse.csr_array, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The same sparse matrix for torch."""
    with warnings.catch_warnings():
        # torch calls its CSR layout "in beta state" once per process.
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr.astype(np.int64)),
            torch.from_numpy(matrix.indices.astype(np.int64)),
            torch.from_numpy(matrix.data),
            size=matrix.shape,
            dtype=dtype,
            check_invariants=False,
            device=device,
        )
