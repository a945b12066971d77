"""Gossamer's own product of matrices, in C++ that is compiled for the processor at hand (`product.h`).

oneDNN finds its kernel anew in every call, and reads and writes only tensors of its own: this one has neither cost.
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gossamer.system.cpp import REAL, CannotCompile, cpp_library

HEADER = Path(__file__).with_name("product.h")
#: In C++, the name of the product of numbers of a type.
FUNCTIONS = {dtype: f"gossamer_product_{name}" for dtype, name in REAL.items()}
#: Its parameters: three sizes, a matrix and its two strides, another, a vector or null, whether ReLU, the result.
PARAMETERS = (
    "int64_t, int64_t, int64_t, const {0}*, int64_t, int64_t, const {0}*, int64_t, int64_t, const {0}*, bool, {0}*"
)

_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int64
_TYPES = [*[_NUMBER] * 3, *[_POINTER, _NUMBER, _NUMBER] * 2, _POINTER, ctypes.c_bool, _POINTER]


def no_own_product(dtype: torch.dtype, device: torch.device) -> str | None:
    """Why tensors of this type are not multiplied here; None if they are."""
    if device.type != "cpu":
        return "Gossamer's kernel multiplies on a CPU only"
    if dtype not in FUNCTIONS:
        return f"Gossamer's kernel multiplies no {str(dtype).removeprefix('torch.')}"
    return _library()[1]


@cache
def _library() -> tuple[Any, str | None]:
    """The compiled product, or why there is none."""
    try:
        return ctypes.CDLL(str(cpp_library(HEADER.read_text("utf-8")))), None
    except (CannotCompile, OSError) as error:
        return None, f"Gossamer's kernel cannot be compiled: {error}"


@cache
def _function(dtype: torch.dtype) -> Any:
    function = _library()[0][FUNCTIONS[dtype]]
    function.argtypes, function.restype = _TYPES, None
    return function


def multiply(left: Tensor, right: Tensor, bias: Tensor | None, relu: bool, flat: bool = False) -> Tensor:
    """The product of two matrices, plus a vector in each row, and ReLU; where `no_own_product` says None.

    `flat`: as one vector, row after row.
    """
    (rows, inner), columns = left.shape, right.shape[1]
    into = left.new_empty(_shape(left, right, flat))
    bias = None if bias is None else bias.contiguous()
    _function(left.dtype)(
        rows, inner, columns, left.data_ptr(), *left.stride(), right.data_ptr(), *right.stride(),
        None if bias is None else bias.data_ptr(), relu, into.data_ptr(),
    )  # fmt: skip
    return into


def _shape(left: Tensor, right: Tensor, flat: bool) -> tuple[int, ...]:
    rows, columns = left.shape[0], right.shape[1]
    return (rows * columns,) if flat else (rows, columns)


@cache
def own_product() -> Any:
    """`multiply` as an operation of torch, which can stand in a graph."""
    parameters = "(Tensor left, Tensor right, Tensor? bias, bool relu, bool flat) -> Tensor"
    torch.library.define("gossamer::own_product", parameters)
    torch.library.impl("gossamer::own_product", "CPU", multiply)
    like = torch.library.register_fake("gossamer::own_product")
    like(lambda left, right, bias, relu, flat: left.new_empty(_shape(left, right, flat)))
    return torch.ops.gossamer.own_product.default
