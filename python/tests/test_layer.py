# SPDX-License-Identifier: Apache-2.0
"""Layers with NumPy arrays: on this machine's CPU against sums of the decoded operands, on a GPU against the double."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright import layer as layers

N, K = 64, 128


def random(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module")
def own_engine():
    with tw.Engine(cache=":memory:") as engine:
        yield engine


@pytest.fixture(scope="module")
def cpu():
    with tw.Device.cpu(2) as device:
        yield device


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("weight", ["q4_0", "int8_row", "nvfp4"])
def test_gemm(own_engine, cpu, weight, pack):
    x_format = {"q4_0": "q8_1", "int8_row": "int8_row", "nvfp4": "f32"}[weight]
    more = " global=mul" if weight == "nvfp4" else ""
    text = f"gemm x={x_format} w={weight} y=f32 m=1 n={N} k={K} bias=f32{more}"
    made = layers.Layer(own_engine, text, cpu, x_from="f32", pack=pack)
    w, bias = tw.encode(random(0, N, K), weight), random(1, N)
    made.load(w)
    if made.packed:  # it has a copy
        w.data[:] = 0
        w = tw.encode(random(0, N, K), weight)
    values = np.asarray(tw.decode(w), np.float64)
    for shape in ((K,), (1, K), (5, K), (2, 3, K), (0, K)):
        x = random(2, *shape)
        exact = x.reshape(-1, K)
        if x_format != "f32" and exact.size:
            exact = np.asarray(tw.decode(tw.encode(exact, x_format)))
        y = made(x, bias=bias)
        want = (exact.astype(np.float64) @ values.T + bias).reshape(*shape[:-1], N)
        assert y.dtype == np.float32 and y.shape == want.shape
        assert np.abs(y - want).max(initial=0) <= 1e-4 * (1 + np.abs(want).max(initial=0))
    out = np.empty((3, N), np.float32)
    x = random(3, 3, K)
    made.launch(x=x, bias=bias, y=out, alpha=2.0)
    assert np.array_equal(out, made(x, bias=bias, alpha=2.0)) and not np.array_equal(out, made(x, bias=bias))
    made.launch(x=random(3, 4, K), bias=bias, y=out, m=3)  # arrays may have room for more
    assert np.array_equal(out[:2], made(random(3, 4, K)[:2], bias=bias))


def test_conv(own_engine, cpu):
    c, k = 32, 16
    problem = tw.Problem(f"conv x=f32 w=q8_0 y=f32 n=1 in=6x7 c={c} k={k} kernel=3x3 pad=1 bias=f32")
    made = layers.Layer(own_engine, problem, cpu)
    w, bias, x = tw.encode(random(4, k, 9 * c), "q8_0"), random(5, k), random(6, 1, 6, 7, c)
    made.load(w)
    y = made(x, bias=bias)
    want = problem.compute({"x": x, "w": w, "bias": bias})["y"]
    assert y.shape == want.shape == (6 * 7 * k,)
    assert np.abs(y - want).max() <= 1e-4 * np.abs(want).max()


def test_halves(own_engine, cpu):
    made = layers.Layer(own_engine, f"gemm x=q8_1 w=q4_0 y=f16 m=1 n={N} k={K}", cpu, x_from="f16")
    made.load((tw.encode(random(0, N, K), "q4_0").data,))
    x = random(1, 2, K).astype(np.float16)
    assert made(x).dtype == np.float16
    with pytest.raises(tw.InvalidArgument, match="x.data must be float16.*got dtype float32"):
        made(random(1, 2, K))


def test_what_is_refused(own_engine, cpu):
    text = f"gemm x=q8_1 w=q4_0 y=f32 m=1 n={N} k={K}"
    made = layers.Layer(own_engine, text, cpu, x_from="f32")
    x, w = random(0, 2, K), tw.encode(random(0, N, K), "q4_0")
    with pytest.raises(tw.InvalidArgument, match=r"w has not been loaded; call load\(\) first"):
        made(x)
    for wrong, message in (
        (tw.encode(random(0, N, K), "q8_0"), "w must be a matrix of format q4_0.*got q8_0"),
        (w.data[:-1], "w.data must have 4608 bytes .*got 4607 bytes"),
        (random(0, N, K), "w.data must "),
        ((w.data, w.data), "w.scales"),
    ):
        with pytest.raises(tw.InvalidArgument, match=message):
            made.load(wrong)
    made.load(w)
    for arguments, message in (
        ({"x": x[:, :96]}, "x"),
        ({"x": x, "bias": x}, "bias must be None .*got ndarray.*: this problem has"),
        ({"x": x, "w": w}, "w must be None .*got Encoded.*: this problem has x.data, y.data"),
        ({"x": x, "beta": "big"}, "beta must be a number .*got 'big'"),
        ({"x": x, "m": 7}, "x.data must have 3584 bytes .*got 1024 bytes"),
    ):
        with pytest.raises(tw.InvalidArgument, match=message):
            made(**arguments)
    with pytest.raises(tw.InvalidArgument, match="[Ll]ayer.*closed"):
        made.close()
        made(x)


def test_the_library_decides_once(own_engine, cpu, monkeypatch):
    monkeypatch.setattr(layers.lib, "tw_layer_describe", None, raising=False)
    text = f"gemm x=q8_1 w=q4_0 y=f32 m=1 n={N} k={K}"
    made = layers.Layer(own_engine, text, cpu, x_from="f32")
    monkeypatch.undo()
    assert made.problems == tw.layer_problems(text, cpu.arch, x_from="f32")


@pytest.mark.parametrize("text", [f"gemm x=int8_row w=int8_row y=f16 m=1 n={N} k={K}", None])
def test_on_a_gpu(double, gpu, engine, text):
    """x is cast before the layer; arrays of the host are copied there and back."""
    conv = text is None
    text = text or "conv x=e4m3 w=e4m3_row y=f16 n=1 in=6x7 c=64 k=64 kernel=3x3 pad=1"
    made = layers.Layer(engine, text, gpu, x_from="f16", pack=False)
    assert made.problems.cast is not None
    shape, cols = ((6, 7, 64), 9 * 64) if conv else ((5, K), K)
    made.load(tw.encode(random(0, N, cols), "e4m3_row" if conv else "int8_row"))
    before = double.launches()
    y = made(random(1, *shape).astype(np.float16))
    assert y.shape == ((6 * 7 * 64,) if conv else (5, N)) and double.launches() == before + 2
    x, out = gpu.upload(random(1, *shape).astype(np.float16)), gpu.memory(y.nbytes)
    rows = {} if conv else {"m": 5}
    with pytest.raises(tw.InvalidArgument, match=r"scratch must .*scratch_bytes\(.*got null"):
        made.launch(x=x, y=out, **rows)
    with pytest.raises(tw.InvalidArgument, match="scratch must .*got 8 bytes"):
        made.launch(x=x, y=out, scratch=gpu.memory(8), **rows)
    made.launch(x=x, y=out, scratch=gpu.memory(made.scratch_bytes(42 if conv else 5)), **rows)
    gpu.synchronize()
    assert double.launches() == before + 4
