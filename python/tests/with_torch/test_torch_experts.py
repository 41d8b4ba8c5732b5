# SPDX-License-Identifier: Apache-2.0
"""Grouped linear layers against one product for each expert, on the weights that the format holds."""

import pytest
import tilewright as tw
import tilewright.torch as twt
import torch
from tilewright.torch import QuantizedExperts, QuantizedWeight
from torch_support import decoded

pytestmark = pytest.mark.skipif(tw.Device.cpu(1).arch == "x86-64", reason="this CPU has no kernels")

E, N, K = 4, 48, 128
OFFSETS = torch.tensor([0, 3, 3, 10, 12], dtype=torch.int32)  # one expert has no row


def reference(x, weight, bias, activation):
    x = torch.from_numpy(decoded(x, activation)) if activation else x.double()
    w = weight.dequantize().double().reshape(E, N, K)
    out = torch.empty(len(x), N, dtype=torch.float64)
    for e in range(E):
        rows = slice(int(OFFSETS[e]), int(OFFSETS[e + 1]))
        out[rows] = x[rows] @ w[e].T + (0 if bias is None else bias[e].double())
    return out


@pytest.mark.parametrize(
    "format, activation",
    [("bf16", None), ("f32", None), ("e4m3_row", "e4m3_row"), ("e4m3_row", None), ("q4_0", "q8_1"), ("int4_g64", "q8_1"), ("mxfp4", "q8_1")],
)
@pytest.mark.parametrize("biased", [False, True])
def test_experts(format, activation, biased):
    torch.manual_seed(0)
    dtype = torch.float32 if format == "f32" else torch.bfloat16
    weight = QuantizedWeight.from_float(torch.randn(E * N, K), format)
    x, bias = torch.randn(12, K).to(dtype), torch.randn(E, N).to(dtype) if biased else None
    layer = QuantizedExperts(weight, E, bias, activation=activation, dtype=dtype)
    y = layer(x, OFFSETS)
    want = reference(x, weight, bias, activation)
    assert y.dtype == dtype and (y.double() - want).abs().max() <= 2.0**-7 * want.abs().max()
    assert torch.equal(layer(x, OFFSETS), y)
    assert layer(x[:0], torch.zeros_like(OFFSETS)).shape == (0, N)


def test_prepares_all_that_it_launches():
    weight = QuantizedWeight.from_float(torch.randn(E * N, K), "q4_0")
    layer = QuantizedExperts(weight, E, activation="q8_1", dtype=torch.bfloat16)
    before = twt.engine().stats.compiled
    for rows in (1, 7, 200):
        layer(torch.randn(rows, K).bfloat16(), torch.tensor([0, 0, rows, rows, rows], dtype=torch.int32))
    assert twt.engine().stats.compiled == before


def test_under_compile():
    weight = QuantizedWeight.from_float(torch.randn(E * N, K), "bf16")
    layer = QuantizedExperts(weight, E, dtype=torch.bfloat16)
    x = torch.randn(12, K).bfloat16()
    assert torch.equal(torch.compile(layer, fullgraph=True, backend="eager")(x, OFFSETS), layer(x, OFFSETS))


def test_what_is_refused():
    weight = QuantizedWeight.from_float(torch.randn(E * N, K), "q4_0")
    with pytest.raises(tw.InvalidArgument, match="experts must be a divisor of the weight's 192 rows .got 5"):
        QuantizedExperts(weight, 5, dtype=torch.float32)
    with pytest.raises(tw.InvalidArgument, match=r"bias .*must have shape \(4, 48\)"):
        QuantizedExperts(weight, E, torch.zeros(E * N), activation="q8_1", dtype=torch.float32)
    with pytest.raises(tw.Unsupported, match="experts would need a factor each"):
        QuantizedExperts(QuantizedWeight.from_float(torch.randn(E * N, K), "nvfp4"), E, dtype=torch.float32)
    layer = QuantizedExperts(weight, E, activation="q8_1", dtype=torch.float32)
    for x, offsets, message in (
        (torch.zeros(12, K + 1), OFFSETS, r"x must have shape \[rows, 128\] .*got shape \(12, 129\)"),
        (torch.zeros(12, K).half(), OFFSETS, r"x must have shape .*got shape .*dtype torch.float16"),
        (torch.zeros(12, K), OFFSETS.long(), "offsets .*must have 5 numbers of int32"),
        (torch.zeros(12, K), OFFSETS[1:], "offsets .*must have 5 numbers of int32"),
    ):
        with pytest.raises(tw.InvalidArgument, match=message):
            layer(x, offsets)
