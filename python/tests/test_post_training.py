# SPDX-License-Identifier: Apache-2.0
"""Layers to 4 bits: sums, errors and results against NumPy's. The algorithms themselves have golden vectors in
tests/quantize."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import tilewright as tw
from conftest import needs_nvrtc
from hypothesis import given, settings
from hypothesis import strategies as st
from tilewright import InvalidArgument, post_training
from tilewright.post_training import Hessian, awq, gptq, round_to_nearest

N, K = 12, 256


def layer(seed=0, n=N, k=K, rows=400):
    rng = np.random.default_rng(seed)
    mixed = rng.standard_normal((k, k)) / np.sqrt(k) + np.eye(k)
    x = (rng.standard_normal((rows, k)) @ mixed * np.exp(rng.standard_normal(k))).astype(np.float32)
    w = rng.standard_normal((n, k)).astype(np.float32)
    hessian = Hessian(k)
    hessian.add(x)
    return w, x, hessian


def error_of(w, values, x):
    d = (w.astype(np.float64) - values) @ x.astype(np.float64).T
    return (d * d).sum()


def check(q, w, x):
    assert q.values.shape == w.shape and q.values.dtype == np.float32
    want = error_of(w, q.values if q.input_scales is None else q.values / q.input_scales.astype(np.float64), x)
    assert abs(q.error - want) <= 1e-4 * want
    assert abs(q.energy - error_of(w, 0, x)) <= 1e-4 * q.energy
    assert q.relative_error == q.error / q.energy
    decoded = np.asarray(tw.decode(q.weight))
    assert np.array_equal(decoded, q.values if q.order is None else q.values[:, q.order])


def test_sums():
    w, x, hessian = layer()
    assert (hessian.k, hessian.rows) == (K, 400)
    sums, magnitudes = hessian.values()
    exact = x.astype(np.float64).T @ x
    bound = 2.0**-17 * np.abs(x.astype(np.float64)).T @ np.abs(x) + 1e-30
    assert (np.abs(sums - exact) <= bound).all()
    assert np.allclose(magnitudes, np.abs(x).sum(0), rtol=1e-5)
    again = Hessian.from_values(hessian.rows, sums, magnitudes)
    assert np.array_equal(again.values()[0], sums) and again.rows == 400
    halves = [Hessian(K), Hessian(K)]
    halves[0].add(x[:256])
    halves[1].add(x[256:])
    halves[0].merge(halves[1])
    assert np.allclose(halves[0].values()[0], sums, rtol=1e-4, atol=1e-3) and halves[0].rows == 400
    wide = Hessian(K)
    wide.add(x.reshape(4, 100, K))
    assert np.array_equal(wide.values()[0], sums)


@settings(max_examples=20)
@given(st.integers(0, 1000), st.sampled_from(["int4_g128", "int4_g32", "uint4_g64", "int4_row"]))
def test_rounding_to_nearest_is_the_codecs(seed, format):
    w, x, hessian = layer(seed, rows=64)
    q = round_to_nearest(w, hessian, format)
    want = tw.encode(w, format)
    assert bytes(q.weight.data) == bytes(want.data) and bytes(q.weight.scales) == bytes(want.scales)
    assert q.order is None and q.input_scales is None
    check(q, w, x)


@pytest.mark.parametrize("format", ["int4_g128", "uint4_g32", "int4_row"])
@pytest.mark.parametrize("options", [{}, {"act_order": True}, {"static_groups": True, "act_order": True}])
def test_gptq(format, options):
    w, x, hessian = layer(1)
    q = gptq(w, hessian, format, **options)
    check(q, w, x)
    assert q.error < round_to_nearest(w, hessian, format).error
    assert q.damping == 0.01 and q.dead_columns == 0
    if options == {"act_order": True} and format != "int4_row":
        groups = np.diag(hessian.values()[0])[q.order].reshape(-1, q.group)
        assert sorted(q.order) == list(range(K)) and (groups.min(1)[:-1] >= groups.max(1)[1:]).all()
    else:
        assert q.order is None or format == "int4_row"
    same = gptq(w.astype(np.float64), hessian, format, threads=1, **options)
    assert bytes(same.weight.data) == bytes(q.weight.data) and np.array_equal(same.values, q.values)


def test_what_else_gptq_says():
    w, x, hessian = layer(2)
    x[:, 7] = 0
    dead = Hessian(K)
    dead.add(x)
    q = gptq(w, dead, "int4_g128", damping=0.1, group=-1, encoder="compressed_tensors")
    assert q.dead_columns == 1 and (q.values[:, 7] == 0).all() and q.damping == 0.1 and q.group == K
    assert post_training.gptq_device_bytes(4096, 14336) > 14336 * 14336 * 8


def test_awq():
    w, x, hessian = layer(3)
    q = awq(w, hessian, "int4_g128", search_rows=0)
    check(q, w, x)
    nearest = round_to_nearest(w, hessian, "int4_g128")
    assert 0 < q.exponent < 1 and q.input_scales.shape == (K,) and q.error < nearest.error
    assert awq(w, hessian, "int4_g128", grid=1).error == nearest.error
    assert awq(w, hessian, "int4_g128", search_rows=0, clip=True).error <= q.error


W = np.zeros((2, 128), np.float32)
BAD = {
    "w's dimensions": (lambda h: gptq(W[0], h, "int4_g128"), "w must have two dimensions.*got shape .128,."),
    "w's type": (lambda h: gptq(W.astype(np.int32), h, "int4_g128"), "w must .*got int32"),
    "k": (lambda h: gptq(np.zeros((2, 256), np.float32), h, "int4_g128"), "k"),
    "nan": (lambda h: gptq(np.full((2, 128), np.nan, np.float32), h, "int4_g128", name="mlp.up"), "mlp.up"),
    "format": (lambda h: gptq(W, h, "q4_0"), "format must be .*int4_g128.*got q4_0"),
    "no format": (lambda h: gptq(W, h, "int5"), "int5"),
    "encoder": (lambda h: gptq(W, h, "int4_g128", encoder="ggml"), "encoder must be one of.*got ggml"),
    "group": (lambda h: gptq(W, h, "int4_g128", group=100), "group must .*got 100"),
    "damping": (lambda h: gptq(W, h, "int4_g128", damping=-1), "damping must .*got -1"),
    "threads": (lambda h: gptq(W, h, "int4_g128", threads=999), "threads must .*got 999"),
    "grid": (lambda h: awq(W, h, "int4_g128", grid=0), "grid must .*got 0"),
    "no rows": (lambda h: round_to_nearest(W, Hessian(128), "int4_g128"), "Hessian"),
    "x's columns": (lambda h: h.add(np.zeros((2, 64), np.float32)), "64"),
    "x's values": (lambda h: h.add(np.full((2, 128), np.inf, np.float32)), "inf"),
    "x's type": (lambda h: h.add(np.zeros((2, 128))), "x must .*got dtype float64"),
    "another k": (lambda h: h.merge(Hessian(64)), "64"),
    "no k": (lambda h: Hessian(0), "k must be 1 to 131072.*got 0"),
    "a huge k": (lambda h: Hessian(1 << 40), "k must .*got 1099511627776"),
    "sums": (lambda h: Hessian.from_values(1, np.zeros((3, 3)), np.zeros(4)), "values must be 16 of float64.*got 9 of float64"),
    "their type": (
        lambda h: Hessian.from_values(1, np.zeros((2, 2), np.float32), np.zeros(2)),
        "values must .*got 4 of float32",
    ),
    "no magnitudes": (lambda h: Hessian.from_values(1, np.zeros(0), np.zeros(0)), "k must .*got 0|null"),
    "negative rows": (lambda h: Hessian.from_values(-1, np.eye(2), np.ones(2)), "rows must .*got -1"),
    "a negative diagonal": (lambda h: Hessian.from_values(1, -np.eye(2), np.ones(2)), "-1"),
}


@pytest.mark.parametrize("case", BAD)
def test_refusals(case):
    call, message = BAD[case]
    hessian = Hessian(128)
    hessian.add(np.ones((3, 128), np.float32))
    with pytest.raises(InvalidArgument, match=message):
        call(hessian)
    assert hessian.rows == 3


def test_an_engine_needs_a_device(engine):
    hessian = Hessian(128)
    hessian.add(np.ones((3, 128), np.float32))
    with pytest.raises(InvalidArgument, match="device must .*got null"):
        gptq(W, hessian, "int4_g128", engine=engine)


@needs_nvrtc
def test_gptq_on_a_device(double, gpu, engine):
    """By the double, which computes nothing: the kernels are launched with the layer's sizes, and all memory is given
    back."""
    w, _, hessian = layer(4, k=192)
    sizes = set()

    def note(launch):
        n, k, group = (ctypes.c_int64 * 3).from_address(launch.params[1])
        sizes.add((n, k, group))

    double.on_launch(note)
    before, live = double.launches(), double.live("memory")
    q = gptq(w, hessian, "int4_g64", engine=engine, device=gpu)
    assert double.launches() - before > 10 and sizes == {(N, 192, 64)}
    assert q.weight.format.name == "int4_g64" and q.values.shape == (N, 192) and q.group == 64
    assert double.live("memory") == live
