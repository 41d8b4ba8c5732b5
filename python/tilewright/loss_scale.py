# SPDX-License-Identifier: Apache-2.0
"""The table of an `unscale`: the tensors to multiply, in pieces that a kernel's blocks take in turn."""

from __future__ import annotations

import ctypes
from typing import Any, Sequence

from . import _arrays, _c, _errors
from ._c import lib

ELEMENTS = 8192


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("elements", ctypes.c_int64)]


def unscale_pieces(format: str, tensors: Sequence[Any], elements: int = ELEMENTS) -> Any:
    """Splits dense arrays in a GPU's memory, or pairs (address, elements), into pieces of at most `elements`. Returns
    an array [pieces, 2] of int64 on the host: upload it and pass it as `table`. It is valid while the arrays stay where
    they are; an empty array has no pieces. format: f32, f16 or bf16. Raises InvalidArgument naming the tensor,
    Unsupported, TooLarge."""
    items = []
    for i, tensor in enumerate(tensors):
        if isinstance(tensor, tuple):
            items.append(_pair(tensor, f"tensors[{i}]"))
            continue
        view = _arrays.view(tensor, f"tensors[{i}]")
        if view.device == _arrays.HOST or not view.dtype:
            raise _errors.must_be(
                f"tensors[{i}]", "no array of a GPU", "an array of a GPU, or a pair (address, elements)"
            )
        if view.strided:
            raise _errors.must_be(f"tensors[{i}]", "rows with gaps between them", "a contiguous array")
        items.append((view.pointer, view.nbytes // _bytes(format)))
        view.close()
    given = (_Tensor * max(len(items), 1))(*items)
    count = ctypes.c_size_t()
    size = _integer(elements, "elements")
    lib.tw_unscale_pieces(format.encode(), given, len(items), size, None, ctypes.byref(count))
    out = _arrays.allocate(16 * count.value)
    if count.value:
        view = _arrays.view(out, "pieces")
        lib.tw_unscale_pieces(format.encode(), given, len(items), size, view.pointer, ctypes.byref(count))
        view.close()
    return out.view("<i8").reshape(-1, 2) if hasattr(out, "reshape") else out


def _bytes(format: str) -> int:
    return 4 if format == "f32" else 2


def _pair(pair: tuple[Any, ...], name: str) -> tuple[int, int]:
    if len(pair) != 2:
        raise _errors.must_be(name, f"a tuple of {len(pair)}", "a pair (address, elements)")
    return _integer(pair[0], f"{name}.data"), _integer(pair[1], f"{name}.elements")


def _integer(value: Any, name: str) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or not -(1 << 63) <= value.__index__() < 1 << 63:
        raise _errors.must_be(name, repr(value), "an integer of 64 bits")
    return int(value.__index__())
