# SPDX-License-Identifier: Apache-2.0
"""Launches on the driver double: what reaches the kernel, and that nothing is launched which does not fit."""

from __future__ import annotations

import copy
import ctypes
import gc
import pickle
import types

import numpy as np
import pytest
import tilewright as tw
from conftest import FAKE_CUDA, ConvArgs, GemmArgs, needs_nvrtc
from test_arrays import Gpu, Producer
from tilewright.device import stream_handle

TEXT = "gemm x=bf16 w=int8_row y=f32 m=2 n=32 k=64 bias=f32 c=f32"


def random(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("f4")


@pytest.fixture
def kernel(engine, gpu):
    return engine.prepare(TEXT, gpu)


@pytest.fixture
def seen(double):
    """The arguments of every launch."""
    copies = []

    def keep(launch):
        copies.append(
            (GemmArgs.from_buffer_copy(ctypes.string_at(launch.params[0], ctypes.sizeof(GemmArgs))), launch.stream)
        )

    double.on_launch(keep)
    return copies


class Operands:
    """Arrays on the double for TEXT, with room for `rows`."""

    def __init__(self, gpu, rows=2):
        self.x = gpu.memory(rows * 128)
        self.w = gpu.upload(tw.encode(random(32, 64), "int8_row"))
        self.y, self.bias, self.c = gpu.memory(rows * 128), gpu.memory(128), gpu.memory(rows * 128)

    def __call__(self, **changes):
        given = {"x": self.x, "w": self.w, "y": self.y, "bias": self.bias, "c": self.c, **changes}
        return {name: value for name, value in given.items() if value is not None}


@needs_nvrtc
def test_what_reaches_the_kernel(kernel, gpu, seen):
    o = Operands(gpu)
    with tw.Stream(gpu) as stream:
        kernel.launch(stream, **o(), alpha=2, beta=0.5)
        args, on = seen.pop()
        assert on == stream.handle
    assert (args.x, args.w, args.ws, args.y) == (o.x.pointer, o.w.data.pointer, o.w.scales.pointer, o.y.pointer)
    assert (args.bias, args.c, args.m, args.alpha, args.beta) == (o.bias.pointer, o.c.pointer, 2, 2, 0.5)
    assert (args.xs, args.xg, args.wg, args.workspace, args.group_rows) == (None,) * 5
    assert args.ldx in (0, 64) and args.ldy in (0, 32)
    kernel.launch(**o(x=o.x.pointer, w=(o.w.data.pointer, o.w.scales)))
    assert seen.pop()[0].ws == o.w.scales.pointer


@needs_nvrtc
def test_results(double, gpu, engine):
    """The host computes what the kernel was told to, in its place."""
    problem = tw.Problem("gemm x=q8_1 w=q4_0 y=f32 m=2 n=64 k=256")
    kernel = engine.prepare(problem, gpu)

    def run(launch):
        args = GemmArgs.from_address(launch.params[0])
        problem.with_rows(args.m).compute({"x": args.x, "w": args.w, "y": args.y})

    double.on_launch(run)
    x, w = tw.encode(random(3, 256), "q8_1"), tw.encode(random(64, 256), "q4_0")
    on_x, on_w, y = gpu.upload(x), gpu.upload(w), gpu.memory(3 * 256)
    kernel.launch(x=on_x, w=on_w, y=y)
    got = y.download(dtype="f4", shape=(3, 64))
    assert np.abs(got - tw.decode(x) @ tw.decode(w).T).max() < 1e-3
    y.fill(0)
    kernel.launch_raw(0, on_x.data.pointer, on_w.data.pointer, None, y.pointer, 3)
    assert np.array_equal(y.download(dtype="f4", shape=(3, 64)), got)


CONV = "conv x=f32 w=f32 y=f32 n=2 c=8 in=4x5x6 k=16 kernel=3x3x3 pad=0x1x1 cache=2 bias=f32 residual=f32"


@needs_nvrtc
def test_a_convolution(double, gpu, engine):
    """The host computes what the kernel was told to, in its place; the same sums by NumPy."""
    problem = tw.Problem(CONV)
    kernel = engine.prepare(problem, gpu)
    launches = []

    def run(launch):
        args = ConvArgs.from_address(launch.params[0])
        launches.append((args.alpha, args.beta, args.amax, args.workspace))
        names = ("x", "w", "y", "bias", "residual", "cache")
        problem.compute({name: getattr(args, name) for name in names})

    double.on_launch(run)
    frames = random(2, 4, 5, 6, 8)  # two kept ones and two new ones
    w, bias, residual = random(16, 3, 3, 3, 8), random(16), random(2, 2, 5, 6, 16)
    given = {"x": frames[:, 2:].copy(), "cache": frames[:, :2].copy(), "w": w, "bias": bias, "residual": residual}
    on = {name: gpu.upload(value) for name, value in given.items()}
    y = gpu.memory(residual.nbytes)
    kernel.launch(**on, y=y)
    assert launches == [(1.0, 1.0, None, None)]
    padded = np.pad(frames, ((0, 0), (0, 0), (1, 1), (1, 1), (0, 0)))
    want = bias + residual
    for d, h, s in np.ndindex(3, 3, 3):
        want += np.einsum("ndhwc,kc->ndhwk", padded[:, d : d + 2, h : h + 5, s : s + 6], w[:, d, h, s])
    assert np.abs(y.download(dtype="f4", shape=want.shape) - want).max() < 1e-4
    assert problem.compute(given)["y"].shape == (want.size,)


@needs_nvrtc
def test_what_a_convolution_refuses(double, gpu, engine, seen):
    kernel = engine.prepare("conv x=bf16 w=bf16 y=bf16 n=1 c=8 in=6x6 k=8 kernel=3", gpu)
    x, w, y = gpu.memory(6 * 6 * 8 * 2), gpu.memory(8 * 9 * 8 * 2), gpu.memory(4 * 4 * 8 * 2)
    for bad, field in (
        ({"x": gpu.memory(64)}, "x.data"),
        ({"y": gpu.memory(4 * 4 * 8 * 4)}, "y.data"),
        ({"x": Array2d(x, (6, 48), "<f4")}, "x.data"),
        ({"x": Array2d(x, (1, 6, 6, 8), "<u2", (576, 16, 96, 2))}, "x.data"),  # permuted
        ({"w": None}, "w.data"),
        ({"residual": y}, "residual"),
        ({"m": 16}, "m"),
        ({"rows": 16}, "rows"),
        ({"ldx": 8}, "ldx"),
    ):
        given = {"x": x, "w": w, "y": y, **bad}
        with pytest.raises(tw.InvalidArgument) as caught:
            kernel.launch(**{name: value for name, value in given.items() if value is not None})
        assert caught.value.field == field, caught.value
    assert not seen
    kernel.launch(x=x, w=w, y=y, alpha=0.5)
    assert len(seen) == 1


@needs_nvrtc
def test_rows(kernel, gpu, seen):
    o = Operands(gpu, 8)
    kernel.launch(**o())
    assert seen.pop()[0].m == 8  # as many as x has
    kernel.launch(**o(), m=5)
    assert seen.pop()[0].m == 5  # room for more is no error
    kernel.launch(**o(), rows=5)
    assert seen.pop()[0].m == 5
    kernel.launch(**o(), m=0)
    assert not seen
    addresses = {"x": o.x.pointer, "y": o.y.pointer, "c": o.c.pointer}
    kernel.launch(**o(**addresses))
    assert seen.pop()[0].m == 2  # the problem's


class Array2d(Gpu):
    """Part of a Memory as a CUDA array."""

    def __init__(self, memory, shape, typestr, strides=None, offset=0, **more):
        super().__init__(shape=shape, typestr=typestr, strides=strides, data=(memory.pointer + offset, False), **more)


@needs_nvrtc
def test_rows_that_lie_apart(kernel, gpu, seen):
    o = Operands(gpu)
    x, y = gpu.memory(2 * 256), gpu.memory(2 * 160)
    wide_x = Array2d(x, (2, 64), "<u2", (256, 2))
    wide_y = Array2d(y, (2, 32), "<f4", (160, 4))
    kernel.launch(**o(x=wide_x, y=wide_y))
    args = seen.pop()[0]
    assert (args.m, args.ldx, args.ldy) == (2, 128, 40)
    kernel.launch(**o(x=x, y=wide_y), m=2, ldx=128)
    assert seen.pop()[0].ldx == 128
    for bad, field in (
        (o(x=wide_x) | {"ldx": 72}, "ldx"),
        (o(x=Array2d(x, (2, 48), "<u2", (256, 2))), "x.data"),
        (o(y=Array2d(y, (2, 32), "<f4", (160, 4))) | {"m": 3}, "x.data"),
        (o(x=x) | {"ldx": 128}, "m"),
        (o(x=x) | {"ldx": 264, "m": 2}, "x.data"),
        (o(x=x) | {"ldx": -1, "m": 2}, "ldx"),
    ):
        with pytest.raises(tw.InvalidArgument) as caught:
            kernel.launch(**bad)
        assert caught.value.field == field, caught.value
    assert not seen


@needs_nvrtc
def test_rows_of_coded_operands_that_lie_apart(engine, gpu, seen):
    kernel = engine.prepare("gemm x=q8_1 w=q4_0 y=f32 m=2 n=64 k=256", gpu)
    x, w, y = gpu.memory(1024), gpu.memory(64 * 144), gpu.memory(512)
    kernel.launch(x=Array2d(x, (2, 288), "|u1", (288 + 36, 1)), w=w, y=y)
    assert seen.pop()[0].ldx == 256 + 32
    for strided, match in (
        (Array2d(x, (2, 288), "|u1", (300, 1)), "whole elements"),
        (Array2d(x, (2, 252), "|u1", (288, 1)), "must have rows of 288 bytes .got rows of 252 bytes"),
    ):
        with pytest.raises(tw.InvalidArgument, match=match):
            kernel.launch(x=strided, w=w, y=y)
    assert not seen


@needs_nvrtc
def test_misaligned_memory_is_found_before_the_library(kernel, gpu):
    o = Operands(gpu)
    for changes in ({"x": o.x.pointer + 2}, {"y": o.y.pointer + 8}, {"w": (o.w.data.pointer + 1, o.w.scales)}):
        with pytest.raises(tw.InvalidArgument, match="aligned to 16 bytes .got an address of remainder [128]"):
            kernel.launch(**o(**changes))


@needs_nvrtc
def test_bad_operands_launch_nothing(kernel, gpu, double):
    o = Operands(gpu)
    other = tw.Device(1, driver=FAKE_CUDA)
    before = double.launches()
    for changes, field in [
        ({"x": None}, "x.data"),
        ({"w": None}, "w.data"),
        ({"w": o.w.data}, "w.scales"),
        ({"bias": None}, "bias.data"),
        ({"tiles": o.x}, "tiles"),
        ({"nonsense": o.x}, "nonsense"),
        ({"x": np.zeros((2, 64), "u2")}, "x.data"),  # memory of the host
        ({"w": tw.encode(random(32, 64), "int8_row")}, "w.data"),
        ({"x": other.memory(256)}, "x.data"),  # of another GPU
        ({"x": Producer(device=(2, 1), data=o.x.pointer, code=4, bits=16)}, "x.data"),
        ({"y": gpu.memory(255)}, "y.data"),
        ({"y": gpu.memory(128)}, "y.data"),
        ({"x": gpu.memory(255)}, "x.data"),
        ({"x": Array2d(o.x, (2, 64), "<f2", None)}, "x.data"),  # another type
        ({"x": Array2d(o.x, (64, 2), "<u2", None)}, "x.data"),  # transposed
        ({"x": Array2d(gpu.memory(512), (2, 63), "<u2", (128, 2), 2)}, "x.data"),  # x[:, 1:]
        ({"x": Array2d(gpu.memory(512), (2, 64), "<u2", (128, 2), 2)}, "x.data"),  # misaligned
        ({"x": o.x.pointer + 2}, "x.data"),
        ({"w": (o.w.data.pointer + 1, o.w.scales)}, "w.data"),
        ({"x": Array2d(o.x, (2, 64), "<u2", (-128, 2))}, "x.data"),
        ({"x": Array2d(o.x, (2, 64), "<u2", (0, 2))}, "x.data"),
        ({"x": Array2d(o.x, (2, 64), "<u2", stream=99)}, "x.data"),  # a foreign stream
        ({"y": Gpu(shape=(2, 32), data=(o.y.pointer, True))}, "y.data"),  # read-only
        ({"y": Producer(data=o.y.pointer, shape=(ctypes.c_int64 * 2)(2, 32), version=(2, 0))}, "y.data"),
        ({"x": None, "x.data": None}, "x.data"),
        ({"m": True}, "rows"),
        ({"m": -1}, "rows"),
        ({"m": 2, "rows": 3}, "rows"),
        ({"alpha": float("nan")}, "alpha"),
        ({"stream": "0"}, "stream"),
    ]:
        with pytest.raises(tw.InvalidArgument) as caught:
            kernel.launch(**o(**changes))
        assert caught.value.field == field, (changes, caught.value)
    assert double.launches() == before


@needs_nvrtc
def test_raw_launch_says_what_the_library_says(kernel, gpu):
    with pytest.raises(tw.InvalidArgument, match="bias"):
        kernel.launch_raw(0, 4096, 4096, 4096, 4096, 2)
    kernel.close()
    with pytest.raises(tw.InvalidArgument, match="kernel"):
        kernel.launch_raw(0, 4096, 4096, 4096, 4096, 2)


@needs_nvrtc
def test_dlpack_is_returned(kernel, gpu, seen):
    o = Operands(gpu)
    x = Producer(
        data=o.x.pointer, code=4, bits=16, shape=(ctypes.c_int64 * 2)(2, 64), strides=(ctypes.c_int64 * 2)(64, 1)
    )
    with tw.Stream(gpu) as stream:
        kernel.launch(stream, **o(x=x))
        assert x.asked[0][0] == stream.handle and x.deleted == 1
        with pytest.raises(tw.InvalidArgument) as caught:
            kernel.launch(stream, **o(x=x, y=gpu.memory(16)))
    assert x.deleted == 2 and len(seen) == 1 and caught.value.__traceback__  # although the frames still live


@needs_nvrtc
@pytest.mark.parametrize("layout", ["contiguous", "masked"])
def test_groups(engine, gpu, seen, layout):
    masked = {"group_layout": "masked"} if layout == "masked" else {}
    p = tw.Problem.gemm(x="bf16", w="bf16", y="f32", m=4, n=64, k=64, groups=3, **masked)
    kernel = engine.prepare(p, gpu)
    x, y, w = gpu.memory(12 * 128), gpu.memory(12 * 256), gpu.memory(3 * 64 * 128)
    table = gpu.memory(12 if masked else 16)
    kernel.launch(x=x, w=w, y=y, group_rows=table)
    args = seen.pop()[0]
    assert args.m == (4 if masked else 12) and args.group_rows == table.pointer
    for changes, field in [
        ({"group_rows": gpu.memory(20)}, "group_rows"),
        ({"w": gpu.memory(64 * 128)}, "w.data"),
        ({"x": gpu.memory(11 * 128 + 2)}, "x.data"),
        ({"y": gpu.memory(12 * 128)}, "y.data"),
    ]:
        with pytest.raises(tw.InvalidArgument) as caught:
            kernel.launch(**{"x": x, "w": w, "y": y, "group_rows": table, **changes})
        assert caught.value.field == field


@needs_nvrtc
def test_cast_and_pack(engine, gpu, double):
    cast = engine.prepare("cast x=f32 y=int8_row rows=2 cols=64", gpu)
    x, y = gpu.upload(random(3, 64)), (gpu.memory(3 * 64), gpu.memory(3 * 4))
    got = []
    double.on_launch(
        lambda launch: got.append((ctypes.c_uint64 * 8).from_buffer_copy(ctypes.string_at(launch.params[0], 64))[:])
    )
    cast.launch(x=x, y=y)
    assert got.pop() == [x.pointer, 0, 0, y[0].pointer, y[1].pointer, 0, 3, 0]
    cast.launch(x=x, y=y, seed=(1 << 64) - 1)
    assert got.pop()[6:] == [3, (1 << 64) - 1]
    for seed in (-1, 1 << 64):
        with pytest.raises(tw.InvalidArgument, match="seed"):
            cast.launch(x=x, y=y, seed=seed)
    with pytest.raises(tw.InvalidArgument, match="alpha"):
        cast.launch(x=x, y=y, alpha=2)
    with pytest.raises(tw.InvalidArgument, match="ldx"):
        cast.launch(x=x, y=y, rows=2, ldx=128)

    packed = tw.Problem("gemm x=f16 w=nvfp4 y=f32 m=2 n=64 k=128 pack=tiles global=mul")
    w = gpu.upload(tw.encode(random(64, 128), "nvfp4"))
    tiles = engine.pack(packed, w, device=gpu)
    assert got[-1][:2] == [w.data.pointer, w.scales.pointer] and got[-1][3:5] == [
        tiles.data.pointer,
        tiles.scales.pointer,
    ]
    assert tiles.global_scale is w.global_scale
    assert tiles.data.size + tiles.scales.size == 64 * 128 * 9 // 16
    engine.prepare(packed, gpu).launch(x=gpu.memory(512), w=tiles, y=gpu.memory(512))
    stack = tw.Problem("gemm x=f16 w=nvfp4 y=f32 m=2 n=64 k=128 pack=tiles global=mul groups=3")
    several = tw.Streams(gpu.memory(3 * 4096), gpu.memory(3 * 512), gpu.memory(3 * 4))
    tiles = engine.pack(stack, several, device=gpu)
    assert tiles.data.size == 3 * 4096 and tiles.global_scale is several.global_scale
    with pytest.raises(tw.InvalidArgument, match="w.data"):
        engine.pack(packed, (w.scales, w.scales), device=gpu)
    with pytest.raises(tw.InvalidArgument, match="tiles"):
        engine.pack("gemm x=f16 w=q4_0 y=f32 m=2 n=64 k=128", w, device=gpu)


@needs_nvrtc
def test_fake_quantization(engine, gpu, double):
    kernel = engine.prepare("fp4_fake_quant x=f32 y=f32 rows=2 cols=64", gpu)
    x, amax = gpu.upload(random(3, 64)), gpu.upload(np.float32([3]))
    got = []
    double.on_launch(
        lambda launch: got.append((ctypes.c_int64 * 4).from_buffer_copy(ctypes.string_at(launch.params[0], 32))[:])
    )
    kernel.launch(x=x, y=x, amax=amax)
    assert got.pop() == [x.pointer, x.pointer, amax.pointer, 3]
    kernel.launch(x=x, y=x, amax=amax, rows=1)
    assert got.pop() == [x.pointer, x.pointer, amax.pointer, 1]
    with pytest.raises(tw.InvalidArgument, match="amax"):
        kernel.launch(x=x, y=x)
    with pytest.raises(tw.InvalidArgument, match="amax"):
        kernel.launch(x=x, y=x, amax=x)


@needs_nvrtc
def test_fused_cast(engine, gpu, double):
    kernel = engine.prepare("fused_cast x=f16 y=f16 rows=2 cols=64 residual=add norm=rms weight=f16", gpu)
    arrays = {name: gpu.upload(random(3, 64).astype(np.float16)) for name in ("x", "y", "residual")}
    arrays["weight"] = gpu.upload(random(64).astype(np.float16))
    arrays["residual_out"] = arrays["residual"]
    got = []
    double.on_launch(
        lambda launch: got.append((ctypes.c_int64 * 9).from_buffer_copy(ctypes.string_at(launch.params[0], 72))[:])
    )
    kernel.launch(**arrays)
    x, y, weight, residual = (arrays[name].pointer for name in ("x", "y", "weight", "residual"))
    assert got.pop() == [x, y, 0, 0, 0, weight, residual, residual, 3]
    for missing in ("weight", "residual_out"):
        with pytest.raises(tw.InvalidArgument, match=missing):
            kernel.launch(**{name: array for name, array in arrays.items() if name != missing})
    with pytest.raises(tw.InvalidArgument, match="bias"):
        kernel.launch(**arrays, bias=arrays["weight"])
    with pytest.raises(tw.InvalidArgument, match="seed"):
        kernel.launch(**arrays, seed=1)


@needs_nvrtc
def test_fused_cast_of_a_gate(engine, gpu, double):
    kernel = engine.prepare("fused_cast x=f16 y=f16 rows=2 cols=64 act=silu gate=first", gpu)
    y, launches = gpu.upload(np.zeros((3, 64), np.float16)), []
    double.on_launch(lambda launch: launches.append(1))
    kernel.launch(x=gpu.upload(random(3, 128).astype(np.float16)), y=y)
    assert launches == [1]
    with pytest.raises(tw.InvalidArgument) as caught:  # half a row
        kernel.launch(x=gpu.upload(random(1, 64).astype(np.float16)), y=y)
    assert caught.value.field == "x.data" and launches == [1]


@needs_nvrtc
def test_amax(engine, gpu, double):
    kernel = engine.prepare("amax x=f32 rows=2 cols=64", gpu)
    x, amax, workspace = gpu.upload(random(3, 64)), gpu.upload(np.float32([0])), gpu.upload(np.zeros(8, np.uint8))
    got = []
    double.on_launch(
        lambda launch: got.append((ctypes.c_int64 * 4).from_buffer_copy(ctypes.string_at(launch.params[0], 32))[:])
    )
    kernel.launch(x=x, amax=amax, workspace=workspace)
    assert got.pop() == [x.pointer, amax.pointer, workspace.pointer, 3]
    for missing in ("amax", "workspace"):
        with pytest.raises(tw.InvalidArgument, match=missing):
            kernel.launch(x=x, **{k: v for k, v in {"amax": amax, "workspace": workspace}.items() if k != missing})


@needs_nvrtc
def test_transpose(engine, gpu, double):
    """The host computes what the kernel was told to, in its place."""
    kernel = engine.prepare("transpose x=int8 rows=6 cols=64", gpu)
    values = np.random.default_rng(1).integers(-128, 128, (6, 64), np.int8)
    x, y = gpu.upload(values), gpu.upload(np.zeros((64, 6), np.int8))

    def run(launch):
        source, target = (ctypes.c_int64 * 2).from_address(launch.params[0])
        assert (source, target) == (x.pointer, y.pointer)
        rows = np.frombuffer(ctypes.string_at(source, 6 * 64), np.int8).reshape(6, 64)
        ctypes.memmove(target, np.ascontiguousarray(rows.T).ctypes.data, 6 * 64)

    double.on_launch(run)
    kernel.launch(x=x, y=y)
    assert np.array_equal(y.download(dtype=np.int8, shape=(64, 6)), values.T)
    with pytest.raises(tw.InvalidArgument, match="y"):
        kernel.launch(x=x, y=gpu.upload(np.zeros((6, 63), np.int8)))
    with pytest.raises(tw.InvalidArgument, match="rows"):
        kernel.launch(x=x, y=y, rows=6)


@needs_nvrtc
def test_fake_quant(engine, gpu, double):
    """The host computes what the kernel was told to, in its place."""
    problem = tw.Problem("fake_quant x=f32 rows=2 cols=64 qmin=-8 qmax=7 scope=row")
    kernel = engine.prepare(problem, gpu)
    none, launches = np.zeros(3, np.int32), []

    def run(launch):
        x, dy, y, scale, zero, dscale, workspace, rows = (ctypes.c_int64 * 8).from_address(launch.params[0])
        launches.append((dy, dscale, workspace, rows))
        problem.with_rows(rows).compute({"x": x, "y": y, "scale": scale, "zero_point": zero or none.ctypes.data})

    double.on_launch(run)
    x, scale, zero = random(3, 64), np.float32([0.1, 0.2, 0.3]), np.int32([0, -8, 7])
    on, y = gpu.upload(x), gpu.memory(x.nbytes)
    for zeros in (zero, None):
        given = {} if zeros is None else {"zero_point": gpu.upload(zeros)}
        kernel.launch(x=on, y=y, scale=gpu.upload(scale), **given)
        z = (none if zeros is None else zeros)[:, None]
        codes = np.clip(np.rint(x * (np.float32(1) / scale)[:, None]) + z, -8, 7)
        assert np.array_equal(y.download(dtype="f4", shape=x.shape), (codes - z).astype("f4") * scale[:, None])
    assert launches == [(0, 0, 0, 3)] * 2
    for bad, field in (({"scale": None}, "scale"), ({"scale": gpu.upload(scale[:2])}, "scale"), ({"dy": on}, "dy")):
        given = {"x": on, "y": y, "scale": gpu.upload(scale), **bad}
        with pytest.raises(tw.InvalidArgument, match=field):
            kernel.launch(**{k: v for k, v in given.items() if v is not None})
    with pytest.raises(tw.InvalidArgument, match="factor"):
        engine.prepare("cast x=f32 y=q8_1 rows=1 cols=64", gpu).launch(x=on, y=gpu.memory(216), factor=2.0)


@needs_nvrtc
def test_unscale(engine, gpu, double):
    kernel = engine.prepare("unscale x=f16 pieces=4", gpu)
    update = engine.prepare("update_scale", gpu)
    tensors = [gpu.upload(random(n).astype("f2")) for n in (7, 20000)]
    pairs = [(t.pointer, t.size // 2) for t in tensors]
    pieces = tw.unscale_pieces("f16", pairs)
    assert pieces.tolist()[1:] == [[pairs[1][0] + 2 * at, n] for at, n in ((0, 8192), (8192, 8192), (16384, 3616))]
    table, scale, found = gpu.upload(pieces), gpu.upload(np.float32([8])), gpu.upload(np.float32([1]))
    workspace, good = gpu.upload(np.zeros(8, np.uint8)), gpu.upload(np.int32([0]))
    got = []
    double.on_launch(
        lambda launch: got.append((ctypes.c_int64 * 8).from_buffer_copy(ctypes.string_at(launch.params[0], 64))[:])
    )
    given = {"table": table, "scale": scale, "found_inf": found, "workspace": workspace}
    kernel.launch(**given)
    assert got.pop() == [0, 0, table.pointer, scale.pointer, found.pointer, 0, workspace.pointer, 4]
    kernel.launch(**given, rows=3)
    assert got.pop()[-1] == 3
    for missing in given:
        with pytest.raises(tw.InvalidArgument, match=missing):
            kernel.launch(**{k: v for k, v in given.items() if k != missing})
    with pytest.raises(tw.InvalidArgument, match="table"):
        kernel.launch(**given, rows=5)
    double.on_launch(
        lambda launch: got.append((ctypes.c_int64 * 5).from_buffer_copy(ctypes.string_at(launch.params[0], 40))[:])
    )
    update.launch(scale=scale, good_steps=good, found_inf=found, new_scale=scale, new_good_steps=good)
    assert got.pop() == [scale.pointer, good.pointer, found.pointer, scale.pointer, good.pointer]


@needs_nvrtc
def test_describe(kernel):
    info = kernel.describe()
    assert info.threads > 0 and info.registers > 0 and kernel.candidate(2) == info.candidate != ""
    assert "gemm x=bf16" in repr(kernel)


@needs_nvrtc
def test_checked_pointers(kernel, gpu):
    o = Operands(gpu)
    kernel.check_pointers(True)
    host = np.zeros(512, "u1")
    with pytest.raises(tw.InvalidArgument, match=r"x\.data"):
        kernel.launch(**o(x=(host.ctypes.data + 15) & ~15), m=2)
    kernel.launch(**o())
    kernel.check_pointers(False)


# ---- devices, memory, streams


def test_device(gpu):
    assert tw.device_count(FAKE_CUDA) == 2 and tw.device_count("/nowhere") == 0
    assert (gpu.ordinal, gpu.arch, gpu.sms) == (0, "sm_90a", 132) and "H200" in gpu.name
    gpu.synchronize()
    with pytest.raises(tw.InvalidArgument):
        tw.Device(2, driver=FAKE_CUDA)
    with pytest.raises(tw.LibraryMissing):
        tw.Device(0, driver="/nowhere/libcuda.so.1")


def test_memory(gpu, double):
    gc.collect()
    before = double.live("memory")
    with gpu.memory(64) as m:
        assert double.live("memory") == before + 1
        m.fill(7)
        m.upload(np.arange(4, dtype="f4"), 16)
        assert m.download(8)[0] == 7 and np.array_equal(m.download(16, 16, dtype="f4"), [0, 1, 2, 3])
        assert m.download(shape=(4, 16)).shape == (4, 16)
        for call in (
            lambda: m.upload(np.zeros(65, "u1")),
            lambda: m.upload(np.zeros(8, "u1"), 60),
            lambda: m.download(8, -1),
            lambda: m.download(65),
            lambda: m.fill(256),
            lambda: m.upload(m),
            lambda: m.upload(BASE_T),
            lambda: gpu.memory(-1),
            lambda: gpu.memory(1.5),
        ):
            with pytest.raises(tw.InvalidArgument):
                call()
        interface = m.__cuda_array_interface__
        assert interface["data"] == (m.pointer, False) and interface["shape"] == (64,)
    assert double.live("memory") == before
    with pytest.raises(tw.InvalidArgument, match="Memory must .*got closed"):
        _ = m.pointer
    del m
    m = gpu.memory(16)
    del m
    assert double.live("memory") == before


BASE_T = np.zeros((4, 4), "f4").T[:, ::2]


def test_upload(gpu):
    w = tw.encode(random(4, 64), "int8_row")
    on = gpu.upload(w)
    assert isinstance(on, tw.Streams) and np.array_equal(on.scales.download(), w.scales) and on.global_scale is None


def test_streams(gpu):
    with tw.Stream(gpu) as s:
        assert stream_handle(s) == s.handle != 0
        s.synchronize()
        assert stream_handle(types.SimpleNamespace(cuda_stream=5)) == 5
        assert stream_handle(types.SimpleNamespace(ptr=6)) == 6
        assert stream_handle(types.SimpleNamespace(__cuda_stream__=lambda: (0, 7))) == 7
        assert (stream_handle(None), stream_handle(0), stream_handle(9)) == (0, 0, 9)
    for bad in (True, -1, "0", object(), types.SimpleNamespace(__cuda_stream__=lambda: (1, 7)), s):
        with pytest.raises(tw.InvalidArgument):
            stream_handle(bad)


@needs_nvrtc
def test_handles_are_not_copied(kernel, gpu, engine):
    for handle in (kernel, gpu, engine, gpu.memory(16), tw.Stream(gpu)):
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="neither copied nor pickled"):
                copied(handle)


@needs_nvrtc
def test_no_handle_leaks(gpu, double, engine):
    before = double.live("module")
    for _ in range(3):
        k = engine.prepare(TEXT, gpu)
        k.close()
        k.close()
    assert double.live("module") >= before
    with engine.prepare("cast x=f32 y=f16 rows=2 cols=64", gpu) as k:
        assert not k.closed
    assert k.closed
