# SPDX-License-Identifier: Apache-2.0
"""fused_cast on the host against NumPy in double precision, and stochastic rounding by its definition."""

import math

import numpy as np
import pytest

import tilewright as tw

ROWS, COLS = 5, 96


def random(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype("f4")


def act(name, v):
    erf = np.vectorize(math.erf)
    return {
        "none": lambda: v,
        "relu": lambda: np.maximum(v, 0),
        "gelu": lambda: v * (1 + erf(v / math.sqrt(2))) / 2,
        "gelu_tanh": lambda: v * (1 + np.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) / 2,
        "silu": lambda: v / (1 + np.exp(-v)),
    }[name]()


@pytest.mark.parametrize("name", ["none", "relu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("dtype", ["f2", "f4"])
def test_norm(name, dtype):
    kind = {"f2": "f16", "f4": "f32"}[dtype]
    text = f"fused_cast x={kind} y=f32 rows={ROWS} cols={COLS} bias=f32 residual=add norm=rms weight=f16 eps=1e-3"
    problem = tw.Problem(text + ("" if name == "none" else f" act={name}"))
    x, residual = random(1, ROWS, COLS).astype(dtype), random(2, ROWS, COLS).astype(dtype)
    bias, weight = random(3, COLS), random(4, COLS).astype("f2")
    y, residual_out = np.zeros((ROWS, COLS), "f4"), np.zeros((ROWS, COLS), dtype)
    problem.compute(
        {"x": x, "y": y, "bias": bias, "weight": weight, "residual": residual, "residual_out": residual_out}
    )
    h = (x.astype("f4") + bias + residual.astype("f4")).astype(dtype)
    assert np.array_equal(residual_out, h)
    h = h.astype("f8")
    h = act(name, h / np.sqrt((h**2).mean(1, keepdims=True) + np.float32(1e-3)) * weight)
    assert np.allclose(y, h, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["none", "relu", "gelu", "gelu_tanh", "silu"])
def test_gate(name):
    act_field = "" if name == "none" else f"act={name} "
    problem = tw.Problem(f"fused_cast x=f32 y=f32 rows={ROWS} cols={COLS} {act_field}gate=first")
    x, y = random(5, ROWS, 2 * COLS), np.zeros((ROWS, COLS), "f4")
    problem.compute({"x": x, "y": y})
    assert np.allclose(y, act(name, x[:, :COLS].astype("f8")) * x[:, COLS:], rtol=1e-6, atol=1e-7)


def test_quantized():
    problem = tw.Problem(f"fused_cast x=f32 y=int8_row rows={ROWS} cols={COLS} act=silu gate=first")
    x = random(6, ROWS, 2 * COLS)
    codes, scales = np.zeros((ROWS, COLS), "i1"), np.zeros(ROWS, "f4")
    problem.compute({"x": x, "y": (codes, scales)})
    h = (act("silu", x[:, :COLS].astype("f8")) * x[:, COLS:]).astype("f4")
    assert np.array_equal(scales, np.abs(h).max(1) / np.float32(127))
    assert np.array_equal(codes, np.rint(h / scales[:, None]))


def philox(counter, key):
    """Philox4x32-10 (Salmon et al., SC 2011)."""
    words, mask = [counter & 0xFFFFFFFF, counter >> 32, 0, 0], 0xFFFFFFFF
    keys = [key & mask, key >> 32]
    for _ in range(10):
        a, b = words[0] * 0xD2511F53, words[2] * 0xCD9E8D57
        words = [(b >> 32) ^ words[1] ^ keys[0], b & mask, (a >> 32) ^ words[3] ^ keys[1], a & mask]
        keys = [(keys[0] + 0x9E3779B9) & mask, (keys[1] + 0xBB67AE85) & mask]
    return words


def test_stochastic():
    problem = tw.Problem(f"cast x=f32 y=int8_row rows={ROWS} cols={COLS} rounding=stochastic")
    x = random(7, ROWS, COLS)
    codes, scales = np.zeros((ROWS, COLS), "i1"), np.zeros(ROWS, "f4")
    problem.compute({"x": x, "y": (codes, scales)})
    nearest = np.rint(x / scales[:, None])
    value = (nearest * scales[:, None]).astype("f4")
    other = np.clip(nearest + np.where(x > value, 1, -1), -127, 127)
    far = (other * scales[:, None]).astype("f4")
    seed = 0x243F6A8885A308D3  # of computations on the host
    u = np.array([philox(i // 4, seed)[i % 4] >> 8 for i in range(x.size)]).reshape(x.shape).astype("f4") / 2**24
    with np.errstate(all="ignore"):
        share = (x - value) / (far - value)
    taken = (far != value) & (u < share)
    assert 0.1 < taken.mean() < 0.4
    assert np.array_equal(codes, np.where(taken, other, nearest))
