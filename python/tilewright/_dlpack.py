# SPDX-License-Identifier: Apache-2.0
"""DLPack, the consumer's side. The structs are those of dlpack.h, versions 0.8 and 1.x."""

from __future__ import annotations

import ctypes
from ctypes import (
    PYFUNCTYPE,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
    py_object,
)

from . import _errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAJOR = 1
READ_ONLY = 1  # bit of DLManagedTensorVersioned::flags
CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13  # DLDeviceType

# By DLDataTypeCode and number of bits; the names are NumPy's and PyTorch's.
_TYPES = {
    (0, 8): "int8",
    (0, 16): "int16",
    (0, 32): "int32",
    (0, 64): "int64",
    (1, 8): "uint8",
    (1, 16): "uint16",
    (1, 32): "uint32",
    (1, 64): "uint64",
    (2, 16): "float16",
    (2, 32): "float32",
    (2, 64): "float64",
    (4, 16): "bfloat16",
    (6, 8): "bool",
    (10, 8): "float8_e4m3fn",
    (12, 8): "float8_e5m2",
    (14, 8): "float8_e8m0fnu",
}

# Called with the GIL held: a deleter may take it again, or may rely on it.
_Deleter = PYFUNCTYPE(None, c_void_p)


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("manager", c_void_p), ("deleter", c_void_p)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("manager", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", _Tensor),
    ]


_is_valid = ctypes.PYFUNCTYPE(c_int, py_object, c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer = ctypes.PYFUNCTYPE(c_void_p, py_object, c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
_rename = ctypes.PYFUNCTYPE(c_int, py_object, c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))

# A capsule keeps the pointer to its name, so the names live as long as the module.
_KINDS = ((b"dltensor_versioned", b"used_dltensor_versioned", _Versioned), (b"dltensor", b"used_dltensor", _Managed))


class Borrowed:
    """A tensor taken from a capsule, held until close(). Strides are in elements, sizes in bytes."""

    __slots__ = ("_at", "_kind", "device", "dtype", "itemsize", "pointer", "readonly", "shape", "strides")

    def __init__(self, capsule: Any, name: str) -> None:
        self._at: int | None = None
        for label, used, kind in _KINDS:
            if _is_valid(capsule, label):
                break
        else:
            raise _errors.must_be(name, repr(capsule), "a capsule that nobody has consumed, as __dlpack__() gives")
        self._at = _pointer(capsule, label)
        self._kind: Any = kind
        _rename(capsule, used)  # from here on the tensor is ours to delete
        try:
            self._read(name)
        except BaseException:
            self.close()
            raise

    def _read(self, name: str) -> None:
        managed = self._kind.from_address(self._at)
        self.readonly = False
        if self._kind is _Versioned:
            if managed.major > MAJOR:  # then only the head of the struct may be read
                raise _errors.must_be(name, f"DLPack {managed.major}.{managed.minor}", f"DLPack up to {MAJOR}.x")
            self.readonly = bool(managed.flags & READ_ONLY)
        t = managed.tensor
        self.device: tuple[int, int] = (t.device_type, t.device_id)
        bits = t.bits * t.lanes
        self.dtype = _TYPES.get((t.code, bits), f"DLPack type {t.code} of {bits} bits")
        self.itemsize = bits // 8
        self.shape = tuple(t.shape[: t.ndim]) if t.ndim else ()
        self.strides = tuple(t.strides[: t.ndim]) if t.ndim and t.strides else None
        self.pointer = (t.data or 0) + t.byte_offset

    def close(self) -> None:
        at, self._at = self._at, None
        if at is not None:
            deleter = self._kind.from_address(at).deleter
            if deleter:
                _Deleter(deleter)(at)

    def __del__(self) -> None:
        self.close()


def borrow(value: Any, name: str, stream: int | None, device: tuple[int, int]) -> Borrowed:
    """Asks a producer for its memory. stream: the CUDA stream that will read it, for memory of a GPU."""
    keywords = {"stream": stream or 1} if device[0] in (CUDA, CUDA_MANAGED) else {"stream": None}
    try:
        try:
            capsule = value.__dlpack__(max_version=(MAJOR, 0), **keywords)
        except TypeError:  # a producer from before DLPack 1.0 does not know max_version
            capsule = value.__dlpack__(**keywords)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise _errors.InvalidArgument(
            name, type(value).__name__, f"cannot be taken: its __dlpack__() refused: {error}"
        ) from error
    return Borrowed(capsule, name)
