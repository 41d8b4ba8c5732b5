# SPDX-License-Identifier: Apache-2.0
"""Converts 4-bit weights of GPTQ, AWQ and compressed-tensors checkpoints to formats and back, exactly, on the host.

    layer = import_weights("gptq", codes=qweight, zeros=qzeros, scales=scales, g_idx=g_idx, group=128)
    layer.weight                       # an Encoded: w[n, k] of a gemm
    layer.order                        # act-order: column i of w was column order[i]; None if columns kept their places

Tensors are NumPy or PyTorch arrays of the host: codes, zeros and g_idx of int32, scales of float16 or bfloat16 (or its
bits as uint16). Pure functions: any thread may call them."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from . import _arrays, _c, _errors, codec
from ._c import lib

# Shapes of codes, zero points and scales by packing, for w[n, k] with g groups in a row; include/tilewright/import.h
# says what is in them.
_SHAPES: dict[str, Any] = {
    "gptq": lambda n, k, g, bits: ((k * bits // 32, n), (g, n * bits // 32), (g, n)),
    "gptq_v2": lambda n, k, g, bits: ((k * bits // 32, n), (g, n * bits // 32), (g, n)),
    "awq": lambda n, k, g, bits: ((k, n // 8), (g, n // 8), (g, n)),
    "compressed_tensors": lambda n, k, g, bits: ((n, k // 8), (-(-n // 8), g), (n, g)),
}
# n and k from the shape of the codes.
_EXTENTS: dict[str, Any] = {
    "gptq": lambda rows, cols, bits: (cols, 32 * rows // bits),
    "gptq_v2": lambda rows, cols, bits: (cols, 32 * rows // bits),
    "awq": lambda rows, cols, bits: (8 * cols, rows),
    "compressed_tensors": lambda rows, cols, bits: (rows, 8 * cols),
}
_TYPES = {"int32": "i32", "float16": "f16", "bfloat16": "bf16", "uint16": "bf16"}


class Imported(NamedTuple):
    """A linear layer's weight, and the order of its columns: the gemm takes x[:, order]. None: unchanged."""

    weight: codec.Encoded
    order: Any


class CheckpointTensors(NamedTuple):
    """As a checkpoint stores them: qweight or weight_packed; qzeros or weight_zero_point; scales or weight_scale;
    g_idx. None where the packing has no such tensor. Scales of bf16 are their bits, uint16."""

    codes: Any
    zeros: Any
    scales: Any
    g_idx: Any


class _Weight:
    """The struct, and what it points at."""

    def __init__(
        self, packing: str, tensors: dict[str, Any], n: int | None, k: int | None, group: int, bits: int
    ) -> None:
        if packing not in _EXTENTS:
            raise _errors.must_be("packing", repr(packing), f"one of {', '.join(_EXTENTS)}")
        self.views: list[_arrays.View] = []
        self.struct = _c.CheckpointWeight(bits=bits, packing=_c.text(packing, "packing"), group=group)
        for name, value in tensors.items():
            if value is not None:
                setattr(self.struct, name, self._tensor(name, value))
        codes = self.struct.codes
        inferred = _EXTENTS[packing](codes.rows, codes.cols, max(bits, 1))
        self.n = self.struct.n = inferred[0] if n is None else n
        self.k = self.struct.k = inferred[1] if k is None else k

    def _tensor(self, name: str, value: Any) -> _c.CheckpointTensor:
        view = codec.on_host(value, name)
        kind = _TYPES.get(view.dtype)
        if kind is None or (kind == "i32") != (name != "scales"):
            raise _errors.must_be(name, f"dtype {view.dtype}", "float16 or bfloat16" if name == "scales" else "int32")
        if len(view.shape) not in (1, 2):
            raise _errors.InvalidArgument(name, f"shape {view.shape}", "must have one or two dimensions")
        self.views.append(view)
        rows, cols = (1, *view.shape)[-2:]
        return _c.CheckpointTensor(view.pointer, rows, cols, kind.encode())


def import_formats(
    packing: str,
    *,
    codes: Any,
    scales: Any,
    zeros: Any = None,
    g_idx: Any = None,
    n: int | None = None,
    k: int | None = None,
    group: int = 128,
    bits: int = 4,
) -> list[str]:
    """The formats that hold the weight, best first. Raises Unsupported if no format has the bits or group,
    InvalidArgument naming the tensor that is missing or does not fit."""
    tensors = {"codes": codes, "zeros": zeros, "scales": scales, "g_idx": g_idx}
    return _formats(_Weight(packing, tensors, n, k, group, bits))


def _formats(weight: _Weight) -> list[str]:
    names: list[str] = []
    count = ctypes.c_int32(1)
    while len(names) < count.value:
        name = ctypes.c_char_p()
        lib.tw_import_format(ctypes.byref(weight.struct), len(names), ctypes.byref(name), ctypes.byref(count))
        names.append(_c.string(name.value))
    return names


def import_weights(
    packing: str,
    *,
    codes: Any,
    scales: Any,
    zeros: Any = None,
    g_idx: Any = None,
    n: int | None = None,
    k: int | None = None,
    group: int = 128,
    bits: int = 4,
    format: str | None = None,
) -> Imported:
    """Imports one linear layer. packing: "gptq", "gptq_v2", "awq" or "compressed_tensors". n, k: output features and
    reduction; None: from the shape of codes. group: elements of a row under one scale; -1: the row. format: one of
    import_formats(), None: the best. Raises what import_formats() raises; Unsupported for a scale that the format
    rounds."""
    tensors = {"codes": codes, "zeros": zeros, "scales": scales, "g_idx": g_idx}
    weight = _Weight(packing, tensors, n, k, group, bits)
    chosen = codec.find(_formats(weight)[0] if format is None else format)
    n, k = weight.n, weight.k
    order, permuted = (ctypes.c_int32 * k)(), ctypes.c_int32()
    lib.tw_import_order(ctypes.byref(weight.struct), order, ctypes.byref(permuted))
    data, scale = (
        _arrays.allocate(chosen.stream_bytes(s, n, k)) if s in chosen.streams else None for s in ("data", "scales")
    )
    addresses = [
        part
        for stream in (data, scale)
        for part in ((None, 0) if stream is None else (_arrays.view(stream, "stream").pointer, len(stream)))
    ]
    lib.tw_import_weights(ctypes.byref(weight.struct), _c.text(chosen.name, "format"), *addresses)
    return Imported(codec.Encoded(chosen, n, k, data, scale), _integers(order) if permuted.value else None)


def export_weights(
    weight: codec.Encoded, packing: str, *, group: int = 128, scale_type: str = "f16", order: Any = None
) -> CheckpointTensors:
    """The inverse of import_weights(). scale_type: "f16" or "bf16"; order: Imported.order. Raises Unsupported where the
    packing cannot hold the weight exactly."""
    if packing not in _SHAPES:
        raise _errors.must_be("packing", repr(packing), f"one of {', '.join(_SHAPES)}")
    n, k, bits = weight.rows, weight.cols, weight.format.bits
    like = _c.CheckpointWeight(bits=bits, packing=_c.text(packing, "packing"), n=n, k=k, group=group)
    like.scales.type = _c.text(scale_type, "scale_type")
    views = [
        codec.on_host(value, name, weight.format.stream_bytes(name, n, k))
        for name, value in (("data", weight.data), ("scales", weight.scales))
    ]
    out = _c.Exported()
    addresses = [part for view in views for part in (view.pointer, view.nbytes)]
    given = None if order is None else _order(order, k)
    name = _c.text(weight.format.name, "format")
    lib.tw_export_weights(name, *addresses, ctypes.byref(like), given, ctypes.byref(out))
    codes, zeros, scales, g_idx = (
        _c.take_bytes(getattr(out, part), getattr(out, part + "_bytes"))
        for part in ("codes", "zeros", "scales", "g_idx")
    )
    shapes = _SHAPES[packing](n, k, 1 if group in (-1, 0) else max(k // group, 1), bits)
    kinds = ("<i4", "<i4", "<f2" if scale_type == "f16" else "<u2", "<i4")
    parts = zip((codes, zeros, scales, g_idx), kinds, (*shapes, (k,)))
    return CheckpointTensors(*(_shaped(*part) if part[0] else None for part in parts))


def gather_rows(weight: codec.Encoded, order: Any) -> codec.Encoded:
    """Permutes rows: row i of the result is row order[i]. Gives a layer's outputs the order that the next one's x
    needs."""
    indices = _order(order, weight.rows)
    source = [None if s is None else codec.on_host(s, "weight").pointer for s in weight.streams]
    out = codec.empty(weight.format, len(indices), weight.cols)
    target = [None if s is None else _arrays.view(s, "result").pointer for s in out.streams]
    name = _c.text(weight.format.name, "format")
    lib.tw_gather_rows(name, weight.cols, indices, len(indices), _c.Operand(*source), _c.Operand(*target))
    return out


def _order(order: Any, count: int) -> Any:
    indices = [int(i) for i in order]
    if len(indices) != count:
        raise _errors.InvalidArgument("order", f"{len(indices)} indices", f"must have {count}, each once")
    return (ctypes.c_int32 * len(indices))(*indices)


def _integers(order: Any) -> Any:
    numpy = _arrays.numpy_or_none()
    return list(order) if numpy is None else numpy.array(order, numpy.int32)


def _shaped(data: bytes, kind: str, shape: tuple[int, ...]) -> Any:
    numpy = _arrays.numpy_or_none()
    return bytearray(data) if numpy is None else numpy.frombuffer(bytearray(data), kind).reshape(shape)
