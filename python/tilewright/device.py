# SPDX-License-Identifier: Apache-2.0
"""GPUs, this machine's CPU, memory and streams, for programs without a CUDA library of their own. Programs with PyTorch
or CuPy pass their arrays and streams instead."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from . import _arrays, _c, _errors, codec
from ._c import lib
from ._handles import Handle


def device_count(driver: str | os.PathLike[str] | None = None) -> int:
    """The number of GPUs; without a driver 0, not an error. driver: the path of libcuda."""
    return int(lib.tw_device_count(None if driver is None else _c.path(driver, "driver")))


class Device(Handle):
    """A GPU through its primary context, which the CUDA runtime and PyTorch share. driver: the path of libcuda, None:
    libcuda.so.1. Raises LibraryMissing without a driver, InvalidArgument listing the valid ordinals, DriverFailed.
    Usable from any thread; a fork()ed child that uses it gets Forked. Device.cpu() is the CPU."""

    def __init__(self, ordinal: int = 0, driver: str | os.PathLike[str] | None = None) -> None:
        handle = ctypes.c_void_p()
        lib.tw_device_open(ordinal, None if driver is None else _c.path(driver, "driver"), ctypes.byref(handle))
        self._describe(handle)

    @classmethod
    def cpu(cls, threads: int | None = None, target: str | None = None) -> Device:
        """This machine's CPU. Launches take arrays of the host (NumPy's, PyTorch's CPU tensors) and no stream, and are
        complete when they return. threads: including the calling one; None: one for each CPU that the process may use.
        target: of the kernels, "x86-64-v3"; None: the best that this CPU runs. Raises InvalidArgument for more than
        1024 threads, or for another target, listing those available. Usable from any thread, and in a child of
        fork()."""
        if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
            raise _errors.must_be("threads", repr(threads), "None, or 1 to 1024")
        return cls._open_cpu(threads, target, None)

    @classmethod
    def _open_cpu(cls, threads: int | None, target: str | None, parallel_for: Any) -> Device:
        """parallel_for: a C function, tw_parallel_for, whose threads compute. None: threads of the device's own."""
        handle = ctypes.c_void_p()
        name = None if target is None else _c.text(target, "target")
        run = None if parallel_for is None else ctypes.cast(parallel_for, ctypes.c_void_p)
        lib.tw_device_open_cpu_target(name, min(threads or 0, (1 << 31) - 1), run, None, ctypes.byref(handle))
        device = cls.__new__(cls)
        device._describe(handle)
        return device

    def _describe(self, handle: ctypes.c_void_p) -> None:
        self._own("device", handle)
        info = _c.DeviceInfo()
        lib.tw_device_describe(self, ctypes.byref(info))
        self.ordinal: int = info.ordinal
        self.name = _c.string(info.name)
        self.arch = _c.string(info.arch)
        """The target that its kernels are compiled for: "sm_90a", "x86-64-v3"."""
        self.sms: int = info.sms
        """Multiprocessors; of a CPU, threads."""
        self.l2_bytes: int = info.l2_bytes
        self.memory_bytes: int = info.memory_bytes
        self.driver_version = _c.string(info.driver_version)

    @property
    def is_cpu(self) -> bool:
        return self.ordinal < 0

    def synchronize(self) -> None:
        """Waits for all work on the GPU."""
        lib.tw_device_synchronize(self)

    def memory(self, size: int) -> Memory:
        """Memory of `size` bytes, not initialized."""
        return Memory(self, size)

    def upload(self, value: Any) -> Any:
        """Copies host memory to the device. Returns a Memory; for an Encoded or a tuple, Streams of Memory."""
        if isinstance(value, (codec.Encoded, tuple)):
            streams = codec.streams_of(value, None, "value")
            return codec.Streams(*(None if s is None else self.upload(s) for s in streams))
        view = codec.on_host(value, "value")
        memory = Memory(self, max(view.nbytes, 1))
        memory.upload(value)
        return memory

    def __repr__(self) -> str:
        return f"Device.cpu({self.sms}), {self.name!r}" if self.is_cpu else f"Device({self.ordinal}, {self.name!r})"


class Memory(Handle):
    """Memory of a device. Copies and fill() are synchronous. It must outlive the launches that use it: close() or drop
    it only when they have ended. Other libraries see an array of uint8 (__cuda_array_interface__; on a CPU,
    __array_interface__). One thread at a time."""

    def __init__(self, device: Device, size: int) -> None:
        handle = ctypes.c_void_p()
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 1 << 63:
            raise _errors.must_be("size", repr(size), "a number of bytes, 0 or more")
        lib.tw_memory_create(device, size, ctypes.byref(handle))
        self._own("memory", handle)
        self._address: int = lib.tw_memory_data(handle) or 0
        self.device = device
        self.size = size
        """Bytes."""

    @property
    def pointer(self) -> int:
        """Its address."""
        self._open()
        return self._address

    def upload(self, value: Any, offset: int = 0) -> None:
        """Copies an array of the host to `offset` bytes from the start. Raises InvalidArgument if it does not fit."""
        view = codec.on_host(value, "value")
        self._check_range(offset, view.nbytes)
        lib.tw_memory_upload(self, offset, view.pointer, view.nbytes)
        view.close()

    def download(self, size: int | None = None, offset: int = 0, *, dtype: Any = None, shape: Any = None) -> Any:
        """A copy of `size` bytes (None: all from offset on) on the host: a NumPy array of uint8, or of the given dtype
        and shape; a bytearray where there is no NumPy."""
        count = self.size - offset if size is None else size
        self._check_range(offset, count)
        out = _arrays.allocate(count)
        if count:
            lib.tw_memory_download(self, offset, _arrays.view(out, "result").pointer, count)
        if dtype is not None:
            out = out.view(dtype)
        return out if shape is None else out.reshape(shape)

    def fill(self, byte: int = 0) -> None:
        """Sets every byte."""
        if not 0 <= byte < 256:
            raise _errors.must_be("byte", byte, "0 to 255")
        lib.tw_memory_fill(self, byte)

    def _check_range(self, offset: int, count: int) -> None:
        if not 0 <= offset <= self.size or not 0 <= count <= self.size - offset:
            raise _errors.InvalidArgument(
                "offset", str(offset), f"must leave {count} bytes from there within {self.size}"
            )

    def _view(self) -> _arrays.View:
        cpu = self.device.is_cpu
        view = _arrays.View(self.pointer, _arrays.HOST if cpu else _arrays.CUDA, None if cpu else self.device.ordinal)
        view.dtype, view.shape, view.row_bytes, view.stride = "uint8", (self.size,), self.size, self.size
        return view

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.device.is_cpu:
            raise AttributeError("memory of a CPU has __array_interface__")
        return {"shape": (self.size,), "typestr": "|u1", "data": (self.pointer, False), "version": 3, "stream": None}

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if not self.device.is_cpu:
            raise AttributeError("memory of a GPU has __cuda_array_interface__")
        return {"shape": (self.size,), "typestr": "|u1", "data": (self.pointer, False), "version": 3}

    def __repr__(self) -> str:
        return f"Memory({self.device!r}, {self.size} bytes)"


class Stream(Handle):
    """A GPU stream that does not wait for the legacy default stream. For any thread."""

    def __init__(self, device: Device) -> None:
        handle = ctypes.c_void_p()
        lib.tw_stream_create(device, ctypes.byref(handle))
        self._own("stream", handle)
        self.device = device

    @property
    def handle(self) -> int:
        """The CUstream."""
        return lib.tw_stream_handle(self._open()) or 0

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle

    def synchronize(self) -> None:
        lib.tw_stream_synchronize(self)


def stream_handle(stream: Any) -> int:
    """The CUstream of a Stream, of PyTorch's, CuPy's and cuda.core's stream objects, or of an integer. None, 0: the
    legacy default stream."""
    if stream is None:
        return 0
    if isinstance(stream, int) and not isinstance(stream, bool) and 0 <= stream < 1 << 64:
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        version, handle = protocol() if callable(protocol) else protocol
        if version != 0:
            raise _errors.must_be("stream", f"__cuda_stream__ version {version}", "version 0")
        return int(handle)
    for attribute in ("cuda_stream", "ptr"):
        handle = getattr(stream, attribute, None)
        if isinstance(handle, int):
            return handle
    raise _errors.must_be(
        "stream", repr(stream), "None, an integer, a Stream, or an object with __cuda_stream__, cuda_stream or ptr"
    )
