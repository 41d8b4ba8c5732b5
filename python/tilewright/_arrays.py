# SPDX-License-Identifier: Apache-2.0
"""The memory behind an argument: NumPy arrays, PyTorch tensors, DLPack, the CUDA and NumPy array interfaces, buffers,
and addresses. Imports neither NumPy nor PyTorch: a caller with their arrays has imported them."""

from __future__ import annotations

import ctypes
import math
import sys

from . import _errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

HOST = "host"
CUDA = "cuda"

_KINDS = {"f": "float", "i": "int", "u": "uint", "b": "bool", "V": "raw"}


class View:
    """Memory of an argument: `rows` pieces of `row_bytes` bytes, `stride` bytes apart. If the elements are dense there
    is one piece. `device`: HOST or CUDA; `ordinal`: the GPU's; None if the object does not say. An address given as an
    integer has dtype "", and nothing else about it is known."""

    # Defaults, on the class: setting attributes is most of the cost of describing an array.
    dtype = ""
    itemsize = 1
    shape: tuple[int, ...] = ()
    rows, row_bytes, stride = 1, 0, 0
    readonly = False
    keep: Any = None  # what has to live as long as the view

    def __init__(self, pointer: int, device: str, ordinal: int | None = None) -> None:
        self.pointer = pointer
        self.device = device
        self.ordinal = ordinal

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.rows * self.row_bytes

    @property
    def extent(self) -> int:
        """Bytes from its first element to the end of its last."""
        return (self.rows - 1) * self.stride + self.row_bytes if self.rows else 0

    @property
    def strided(self) -> bool:
        """Whether there are gaps between its rows."""
        return self.rows > 1 and self.stride != self.row_bytes

    def close(self) -> None:
        if self.keep is not None:
            if hasattr(self.keep, "close"):
                self.keep.close()
            self.keep = None


def view(value: Any, name: str, stream: int | None = None) -> View:
    """Describes the memory of an argument. stream: the CUDA stream that will use it, for producers that order their
    work before it. Raises InvalidArgument naming the argument if the object is not memory, or if no kernel takes its
    layout: negative, zero or overlapping strides, elements that are not contiguous."""
    if isinstance(value, int) and not isinstance(value, bool):
        return _address(value, name)
    own = getattr(type(value), "_view", None)  # Memory
    if own is not None:
        described: View = own(value)
        return described
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_torch(value, name, torch)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return _of_numpy(value, name)
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        return _of_dlpack(value, name, stream)
    if hasattr(value, "__cuda_array_interface__"):
        return _of_interface(value.__cuda_array_interface__, name, CUDA, stream, value)
    if hasattr(value, "__array_interface__"):
        return _of_interface(value.__array_interface__, name, HOST, None, value)
    try:
        return _of_buffer(value, name)
    except TypeError:
        pass
    raise _errors.must_be(
        name,
        type(value).__name__,
        "an array (NumPy, PyTorch, DLPack, a CUDA array interface, a buffer), a Memory, or an address",
    )


def _address(value: int, name: str) -> View:
    if not 0 < value < 1 << 64:
        raise _errors.must_be(name, value, "a positive integer of 64 bits, as an address")
    return View(value, "")


def _of_torch(tensor: Any, name: str, torch: Any) -> View:
    kind = tensor.device.type
    own = type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    if kind == "meta" or not own:  # FakeTensor, DTensor, quantized wrappers: data_ptr() is not the bytes' address
        raise _errors.must_be(name, f"{type(tensor).__name__} on {kind}", "a tensor with memory of its own")
    if kind not in ("cpu", "cuda"):
        raise _errors.must_be(name, f"a tensor on {kind}", "a tensor on a CUDA device or the CPU")
    if tensor.layout is not torch.strided or tensor.is_neg():
        raise _errors.must_be(name, f"a tensor of layout {tensor.layout}", "a plain strided tensor")
    out = View(tensor.data_ptr(), HOST if kind == "cpu" else CUDA, tensor.device.index)
    out.dtype = str(tensor.dtype).rpartition(".")[2]
    _lay_out(out, name, tuple(tensor.shape), None if tensor.is_contiguous() else tensor.stride(), tensor.element_size())
    return out


def _of_numpy(array: Any, name: str) -> View:
    if not array.dtype.isnative:
        raise _errors.InvalidArgument(name, f"dtype {array.dtype.str}", "must have the machine's byte order")
    pointer, readonly = array.__array_interface__["data"]
    out = View(pointer, HOST)
    out.readonly = readonly
    out.dtype = array.dtype.name
    size = array.dtype.itemsize
    strides = None if array.flags.c_contiguous else _in_elements(array.strides, size, name)
    _lay_out(out, name, array.shape, strides, size)
    return out


def _of_dlpack(value: Any, name: str, stream: int | None) -> View:
    from . import _dlpack

    device = value.__dlpack_device__()
    kind, ordinal = int(device[0]), int(device[1])
    if kind in (_dlpack.CUDA, _dlpack.CUDA_MANAGED):
        where = CUDA
    elif kind in (_dlpack.CPU, _dlpack.CUDA_HOST):
        where = HOST
    else:
        raise _errors.must_be(name, f"memory of DLPack device type {kind}", "memory of a CUDA device or the host")
    borrowed = _dlpack.borrow(value, name, stream, (kind, ordinal))
    try:
        out = View(borrowed.pointer, where, ordinal if kind == _dlpack.CUDA else None)
        out.readonly = borrowed.readonly
        out.dtype = borrowed.dtype
        _lay_out(out, name, borrowed.shape, borrowed.strides, borrowed.itemsize)
    except BaseException:
        borrowed.close()
        raise
    out.keep = borrowed
    return out


def _of_interface(interface: dict[str, Any], name: str, device: str, stream: int | None, owner: Any) -> View:
    typestr = str(interface["typestr"])
    if typestr[0] == ">" or typestr[1] not in _KINDS:
        raise _errors.must_be(name, f"dtype {typestr}", "a type of numbers in the machine's byte order")
    if interface.get("mask") is not None:
        raise _errors.must_be(name, "an array with a mask", "an array without a mask")
    theirs = interface.get("stream")
    if theirs is not None and theirs != (stream or 1):
        raise _errors.must_be(
            name,
            f"memory in use by stream {theirs:#x}",
            f"on the launch's own, {stream or 1:#x}; launch on the array's, or synchronize and pass its address",
        )
    data = interface.get("data")
    if data is None:  # then the object itself is a buffer
        return _of_buffer(owner, name)
    out = View(data[0] or 0, device)
    out.readonly = bool(data[1])
    size = int(typestr[2:])
    out.dtype = "bool" if typestr[1] == "b" else f"{_KINDS[typestr[1]]}{8 * size}"
    strides = interface.get("strides")
    strides = None if strides is None else _in_elements(strides, size, name)
    _lay_out(out, name, tuple(interface["shape"]), strides, size)
    out.keep = interface
    return out


class _PyBuffer(ctypes.Structure):
    """Py_buffer."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


_FORMATS = {"f": "float32", "d": "float64", "e": "float16", "b": "int8", "B": "uint8", "c": "uint8", "?": "bool"}
_INTEGERS = {"h": "int", "i": "int", "l": "int", "q": "int", "n": "int"}


def _of_buffer(value: Any, name: str) -> View:
    memory = memoryview(value)
    code = memory.format.lstrip("@=<")
    size = memory.itemsize
    if code.lower() in _INTEGERS:
        dtype = f"{'u' if code.isupper() else ''}int{8 * size}"
    else:
        dtype = _FORMATS.get(code, f"buffer format {memory.format}")
    # memoryview hides the address of read-only memory, so ask Python's own function.
    raw = _PyBuffer()
    without_format = 0x118  # else PyBUF_FULL_RO
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(memory), ctypes.byref(raw), without_format)
    pointer = raw.buf or 0
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(raw))
    out = View(pointer, HOST)
    out.readonly = memory.readonly
    out.dtype = dtype
    strides = None if memory.c_contiguous else _in_elements(memory.strides or (), size, name)
    _lay_out(out, name, memory.shape or (), strides, size)
    out.keep = memory  # holds the export, so that a bytearray cannot move
    return out


def _in_elements(strides: Sequence[int], size: int, name: str) -> tuple[int, ...]:
    if any(s % size for s in strides):
        raise _errors.must_be(name, f"strides of {tuple(strides)} bytes", f"multiples of the item's {size} bytes")
    return tuple(s // size for s in strides)


def _lay_out(out: View, name: str, shape: Sequence[int], strides: Sequence[int] | None, itemsize: int) -> None:
    """Fills in rows, row_bytes and stride. strides are in elements; None: dense."""
    out.shape = tuple(shape)
    out.itemsize = itemsize
    count = math.prod(out.shape)
    out.row_bytes = out.stride = count * itemsize
    if strides is None or count == 0:
        return
    dims = [(n, s) for n, s in zip(out.shape, strides) if n != 1]  # the stride of an extent of 1 means nothing

    def refuse(what: str, allowed: str) -> None:
        raise _errors.InvalidArgument(
            name, f"shape {out.shape}, strides {tuple(strides)} elements: {what}", f"must have {allowed}"
        )

    if any(s < 0 for _, s in dims):
        refuse("a negative stride", "elements in ascending order; copy the array")
    if any(s == 0 for _, s in dims):
        refuse("an expanded dimension", "every element in a place of its own; copy the array")
    run = 1  # contiguous elements, from the innermost dimension outwards
    while dims and dims[-1][1] == run:
        run *= dims.pop()[0]
    if not dims:
        return
    if run == 1 and out.shape[-1] != 1:
        refuse("the innermost dimension is not contiguous", "a last dimension of stride 1; copy the array")
    rows, stride = 1, dims[-1][1]
    for n, s in reversed(dims):
        if s != rows * stride:
            refuse("the rows are not evenly spaced", "one distance between all rows; copy the array")
        rows *= n
    if stride < run:
        refuse("rows overlap", "every element in a place of its own; copy the array")
    out.rows, out.row_bytes, out.stride = rows, run * itemsize, stride * itemsize


def numpy_or_none() -> Any:
    """NumPy, if it can be imported: for results."""
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def allocate(count: int) -> Any:
    """Zeroed bytes for a result: a NumPy array of uint8, or a bytearray where there is no NumPy."""
    numpy = numpy_or_none()
    return bytearray(count) if numpy is None else numpy.zeros(count, numpy.uint8)


# NumPy types of the formats that are plain elements; integers hold the bits of bf16, e4m3 and e5m2.
_NUMPY_TYPES = {"f32": "<f4", "f16": "<f2", "bf16": "<u2", "int8": "i1", "int32": "<i4", "e4m3": "u1", "e5m2": "u1"}


def typed(data: Any, format: str, shape: Sequence[int]) -> Any:
    """A result with its type: elements of `shape` for formats that are plain elements, else bytes, with `shape`'s
    dimensions except the last. Without NumPy, the bytes."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(data, numpy.ndarray):
        return data
    dtype = _NUMPY_TYPES.get(format)
    if dtype is None:
        return data.reshape(*shape[:-1], -1) if data.size else data
    return data.view(dtype).reshape(tuple(shape))
