# SPDX-License-Identifier: Apache-2.0
"""What memory an argument is. Whatever is accepted must be described so that reading by the description gives the
array's elements; everything else is an InvalidArgument that names the argument."""

from __future__ import annotations

import array
import ctypes
import gc
import sys
import types

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tilewright import InvalidArgument, _arrays, _dlpack
from tilewright._arrays import CUDA, HOST, view


def read(v):
    """The bytes that a description says."""
    return b"".join(ctypes.string_at(v.pointer + row * v.stride, v.row_bytes) for row in range(v.rows))


def refused(value, match, name="x.data", **keywords):
    with pytest.raises(InvalidArgument, match=match) as caught:
        view(value, name, **keywords)
    assert caught.value.field == name
    return caught.value


# ---- properties


@st.composite
def sliced(draw):
    """An array of up to three dimensions, cut, turned and stretched."""
    dtype = draw(st.sampled_from(["f4", "f2", "i1", "u1", "i4"]))
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=6))
    base = np.arange(int(np.prod(shape)), dtype="i4").astype(dtype).reshape(shape)
    cut = base[draw(hnp.basic_indices(shape, allow_newaxis=True))] if draw(st.booleans()) else base
    if draw(st.booleans()):
        cut = np.asarray(cut).T
    if draw(st.integers(0, 4)) == 0:
        cut = np.broadcast_to(cut, (draw(st.integers(1, 3)), *np.shape(cut)))
    return np.asarray(cut)


class Interface:
    def __init__(self, a):
        self.__array_interface__ = a.__array_interface__
        self.keep = a


class Exchange:
    def __init__(self, a):
        self.a = a

    def __dlpack__(self, **keywords):
        return self.a.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.a.__dlpack_device__()


@given(sliced(), st.sampled_from([lambda a: a, Interface, memoryview, Exchange]))
def test_a_description_is_true_or_there_is_none(a, wrap):
    try:
        v = view(wrap(a), "x.data")
    except InvalidArgument as error:
        assert error.field == "x.data"
        assert a.size > 1 and not a.flags.c_contiguous  # nothing dense is refused
        return
    assert read(v) == a.tobytes()
    assert v.device == HOST and v.shape == a.shape and v.itemsize == a.itemsize and v.dtype == a.dtype.name
    assert v.nbytes == a.nbytes
    if a.size:
        low, high = np.lib.array_utils.byte_bounds(a)
        assert v.pointer == low and v.extent == high - low
    v.close()


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 9), st.integers(0, 9))
def test_rows_that_lie_apart(rows, cols, before, behind):
    wide = np.arange(rows * (before + cols + behind), dtype="f4").reshape(rows, -1)
    v = view(wide[:, before : before + cols], "x.data")
    assert v.nbytes == rows * cols * 4 and v.pointer == wide.ctypes.data + 4 * before
    if rows > 1 and before + behind:
        assert (v.rows, v.row_bytes, v.stride) == (rows, cols * 4, wide.shape[1] * 4)


# ---- layouts that no kernel takes

BASE = np.arange(64, dtype="f4").reshape(8, 8)


@pytest.mark.parametrize(
    "value, match",
    [
        (BASE[::-1], "a negative stride"),
        (BASE[:, ::-1], "a negative stride"),
        (np.broadcast_to(BASE[0], (4, 8)), "an expanded dimension"),
        (np.broadcast_to(BASE[:, :1], (8, 8)), "an expanded dimension"),
        (BASE.T, "innermost dimension is not contiguous"),
        (BASE[:, ::2], "innermost dimension is not contiguous"),
        (BASE[:, 0], "innermost dimension is not contiguous"),
        (BASE.reshape(2, 4, 8)[:, :3], None),
        (BASE.reshape(4, 2, 8)[:, 0], None),
        (BASE.reshape(2, 2, 2, 8)[:, :, 0, :4], None),
        (np.arange(120, dtype="f4").reshape(4, 3, 10)[:, :2, :4], "rows are not evenly spaced"),
        (np.lib.stride_tricks.as_strided(BASE, (4, 8), (16, 4)), "rows overlap"),
        (BASE.astype(">f4"), "byte order"),
    ],
)
def test_layouts(value, match):
    if match is None:
        assert read(view(value, "x.data")) == value.tobytes()
    else:
        refused(value, match)


@pytest.mark.parametrize("value", [None, "text", 1.5, True, object(), [1, 2], {"x": 1}])
def test_what_is_no_memory(value):
    refused(value, "must be an array")


@pytest.mark.parametrize("value", [0, -16, 1 << 64])
def test_addresses(value):
    refused(value, "address")
    assert view(4096, "x.data").pointer == 4096


def test_buffers():
    for value in (b"12345678", bytearray(b"12345678"), array.array("f", [1, 2]), (ctypes.c_float * 2)(1, 2)):
        v = view(value, "x.data")
        assert read(v) == bytes(value) and v.readonly == isinstance(value, bytes)
    held = bytearray(64)
    v = view(held, "x.data")
    with pytest.raises(BufferError):
        held.extend(b"more")  # its memory would move
    v.close()
    held.extend(b"more")


def test_read_only_is_told():
    a = np.zeros(4, "f4")
    a.flags.writeable = False
    for value in (a, Interface(a), memoryview(a)):
        assert view(value, "y.data").readonly


# ---- the CUDA array interface


class Gpu:
    def __init__(self, **changes):
        self.__cuda_array_interface__ = {
            "shape": (4, 8),
            "typestr": "<f4",
            "data": (4096, False),
            "version": 3,
            "strides": None,
            "stream": None,
            **changes,
        }


def test_cuda_array_interface():
    v = view(Gpu(), "x.data")
    assert (v.device, v.ordinal, v.pointer, v.dtype, v.nbytes) == (CUDA, None, 4096, "float32", 128)
    assert view(Gpu(strides=(64, 4)), "x.data").stride == 64
    refused(Gpu(strides=(64, -4)), "negative stride")
    refused(Gpu(strides=(0, 4)), "expanded")
    refused(Gpu(strides=(30, 4)), "multiples")
    refused(Gpu(typestr=">f4"), "byte order")
    refused(Gpu(typestr="|O8"), "byte order")
    refused(Gpu(mask=Gpu()), "mask")


def test_a_foreign_stream_is_refused():
    assert view(Gpu(stream=1), "x.data").pointer  # the legacy default stream, as the launch's
    assert view(Gpu(stream=77), "x.data", stream=77).pointer
    refused(Gpu(stream=77), "in use by stream 0x4d")
    refused(Gpu(stream=2), "in use by stream 0x2", stream=5)


# ---- DLPack


class Producer:
    """A tensor of a GPU, or the host, by capsules of its own making; counts what consumers do."""

    new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
        ("PyCapsule_New", ctypes.pythonapi)
    )

    def __init__(self, device=(2, 0), version=None, flags=0, knows_versions=True, **tensor):
        self.device, self.version, self.flags, self.knows_versions = device, version, flags, knows_versions
        self.deleted, self.asked = 0, []
        self.shape, self.strides = (ctypes.c_int64 * 2)(4, 8), (ctypes.c_int64 * 2)(8, 1)
        fields = {"data": 4096, "device_type": device[0], "device_id": device[1], "ndim": 2, "code": 2, "bits": 32}
        fields |= {"lanes": 1, "shape": self.shape, "strides": self.strides, "byte_offset": 0}
        self.tensor = _dlpack._Tensor(**{**fields, **tensor})
        self.deleter = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(self._delete)
        at = ctypes.cast(self.deleter, ctypes.c_void_p).value
        if version is None:
            self.managed, self.name = _dlpack._Managed(self.tensor, None, at), b"dltensor"
        else:
            self.managed = _dlpack._Versioned(*version, None, at, flags, self.tensor)
            self.name = b"dltensor_versioned"

    def _delete(self, at):
        assert at == ctypes.addressof(self.managed)
        self.deleted += 1

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, **keywords):
        if not self.knows_versions and keywords:
            raise TypeError("unexpected keyword argument 'max_version'")
        self.asked.append((stream, keywords))
        self.capsule = self.new(ctypes.addressof(self.managed), self.name, None)
        return self.capsule


@pytest.mark.parametrize("version", [None, (1, 0), (1, 7)])
def test_a_tensor_is_deleted_once(version):
    p = Producer(version=version)
    v = view(p, "x.data", 77)
    assert (v.device, v.ordinal, v.pointer, v.dtype, v.shape) == (CUDA, 0, 4096, "float32", (4, 8))
    assert p.asked == [(77, {"max_version": (1, 0)})] and p.deleted == 0
    assert "used_dltensor" in repr(p.capsule)
    v.close()
    v.close()
    assert p.deleted == 1
    q = Producer(version=version)
    view(q, "x.data")
    gc.collect()
    assert q.deleted == 1 and q.asked[0][0] == 1  # the legacy default stream is 1 in DLPack


def test_a_producer_from_before_versions():
    p = Producer(knows_versions=False)
    view(p, "x.data").close()
    assert p.asked == [(1, {})] and p.deleted == 1


def test_dlpack_2_is_refused_and_deleted():
    p = Producer(version=(2, 0))
    refused(p, r"DLPack 2\.0")
    assert p.deleted == 1


def test_a_consumed_capsule_is_refused():
    p = Producer()
    view(p, "x.data").close()
    p.__dlpack__ = None
    again = p.capsule

    class Same(Producer):
        def __dlpack__(self, **keywords):
            return again

    refused(Same(), "nobody has consumed")
    assert p.deleted == 1


def test_dlpack_layouts():
    refused(Producer(strides=(ctypes.c_int64 * 2)(-8, 1)), "negative stride")
    refused(Producer(strides=(ctypes.c_int64 * 2)(0, 1)), "expanded")
    for bad in (Producer(strides=(ctypes.c_int64 * 2)(1, 4)), Producer(device=(10, 0))):
        refused(bad, ".")
        assert bad.deleted == len(bad.asked)  # whatever was handed out went back
    assert view(Producer(byte_offset=64), "x.data").pointer == 4096 + 64
    assert view(Producer(code=4, bits=16), "x.data").dtype == "bfloat16"
    assert view(Producer(code=10, bits=8), "x.data").dtype == "float8_e4m3fn"
    assert view(Producer(version=(1, 0), flags=1), "x.data").readonly
    p = Producer(device=(1, 0), strides=None)
    assert view(p, "x.data").device == HOST and p.asked[0][0] is None
    assert view(Producer(device=(13, 0)), "x.data").ordinal is None


def test_a_producer_that_refuses():
    class Grad(Producer):
        def __dlpack__(self, **keywords):
            raise BufferError("tensors that require gradients are not exported")

    error = refused(Grad(), "require gradients")
    assert isinstance(error.__cause__, BufferError)


def test_no_leak_and_no_double_free():
    a = np.arange(1000, dtype="f4")
    before = sys.getrefcount(a)
    for _ in range(100):
        view(Exchange(a), "x.data").close()
        v = view(Exchange(a), "x.data")
        del v
    gc.collect()
    assert sys.getrefcount(a) == before and a.sum() == 499500


# ---- PyTorch, as far as it can be told without it


@pytest.fixture
def torch(monkeypatch):
    """A stand-in with what the fast path asks for."""
    module = types.ModuleType("torch")

    class Tensor:
        __torch_dispatch__ = staticmethod(lambda *a: None)

        def __init__(self, a, device="cuda", index=0, dtype="float32", layout="strided", negative=False):
            self.a, self.shape, self.layout, self.negative = a, a.shape, layout, negative
            self.device = types.SimpleNamespace(type=device, index=None if device == "cpu" else index)
            self.dtype = f"torch.{dtype}"

        data_ptr = lambda self: self.a.ctypes.data  # noqa: E731
        stride = lambda self: tuple(s // self.a.itemsize for s in self.a.strides)  # noqa: E731
        is_contiguous = lambda self: self.a.flags.c_contiguous  # noqa: E731
        element_size = lambda self: self.a.itemsize  # noqa: E731
        is_neg = lambda self: self.negative  # noqa: E731

    module.Tensor, module.strided = Tensor, "strided"
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


def test_torch_tensors(torch):
    a = np.arange(32, dtype="f4").reshape(4, 8)
    v = view(torch.Tensor(a), "x.data")
    assert (v.device, v.ordinal, v.dtype, read(v)) == (CUDA, 0, "float32", a.tobytes())
    assert view(torch.Tensor(a, "cpu"), "x.data").device == HOST
    assert view(torch.Tensor(a[:, :4]), "x.data").stride == 32
    refused(torch.Tensor(a.T), "innermost dimension")
    refused(torch.Tensor(a, "meta"), "memory of its own")
    refused(torch.Tensor(a, "xpu"), "on a CUDA device")
    refused(torch.Tensor(a, layout="sparse"), "strided")
    refused(torch.Tensor(a, negative=True), "strided")

    class FakeTensor(torch.Tensor):
        __torch_dispatch__ = staticmethod(lambda *a: 1)

    class Parameter(torch.Tensor):
        pass

    refused(FakeTensor(a), "FakeTensor on cuda")
    assert view(Parameter(a), "x.data").pointer == a.ctypes.data


def test_results_without_numpy(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert _arrays.allocate(4) == bytearray(4) and type(_arrays.allocate(4)) is bytearray
