# SPDX-License-Identifier: Apache-2.0
"""The README of CUDA Quantization Kernels, corrected where it is wrong (docs/use/compatibility.md), and its functions against
their formulas, restated with NumPy."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tilewright import TilewrightError, TooLarge  # noqa: E402
from tilewright.compat import cuda_wrapper  # noqa: E402
from tilewright.compat.cuda_wrapper import dequantize_tensor, int8_matmul, quantize_tensor  # noqa: E402

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
on_each = pytest.mark.parametrize("device", DEVICES)


def nmse(got, want):
    return (((got - want).double() ** 2).mean() / (want.double() ** 2).mean()).item()


# ---- the README


@on_each
def test_the_readme(device):
    """The Python interface. Its product has the scales already and is truncated, and is then scaled again: here it is
    not scaled."""
    torch.manual_seed(0)
    M, K, N = 1024, 2048, 512
    A = torch.randn(M, K, device=device)
    B = torch.randn(K, N, device=device)
    A_int8, scale_a = quantize_tensor(A)
    B_int8, scale_b = quantize_tensor(B)
    C_int32 = int8_matmul(A_int8, B_int8)
    C_fp32 = dequantize_tensor(C_int32, scale_a * scale_b)
    assert nmse(C_fp32, A @ B) < 3e-4
    # As it is written it runs, and loses nearly everything.
    C_int32 = int8_matmul(A_int8, B_int8, scale_a=scale_a, scale_b=scale_b, scale_c=1.0)
    assert nmse(C_int32.float(), A @ B) < 5e-4  # truncated
    assert nmse(dequantize_tensor(C_int32, scale_a * scale_b), A @ B) > 0.99


@on_each
def test_the_readmes_benchmark(device):
    A_int8, scale_a = quantize_tensor(torch.randn(64, 256, device=device))
    B_int8, scale_b = quantize_tensor(torch.randn(256, 32, device=device))
    first = int8_matmul(A_int8, B_int8, scale_a, scale_b)
    assert all(torch.equal(first, int8_matmul(A_int8, B_int8, scale_a, scale_b)) for _ in range(3))


class QuantizedLinear(nn.Module):
    """The README's layer with three lines changed: a float is no buffer, w is transposed for the product, and the
    product is scaled once."""

    def __init__(self, in_features, out_features):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(out_features))
        self.register_buffer("weight_int8", None)
        self.weight_scale = None

    def quantize_weights(self):
        self.weight_int8, self.weight_scale = quantize_tensor(self.weight.data)

    def forward(self, x):
        if self.weight_int8 is None:
            return nn.functional.linear(x, self.weight, self.bias)
        x_int8, x_scale = quantize_tensor(x)
        output_int32 = int8_matmul(x_int8, self.weight_int8.T)
        output = dequantize_tensor(output_int32, x_scale * self.weight_scale)
        return output + self.bias


@on_each
def test_the_readmes_layer(device):
    torch.manual_seed(1)
    layer = QuantizedLinear(96, 40).to(device)
    x = torch.randn(8, 96, device=device)
    before = layer(x)
    layer.quantize_weights()
    assert layer(x).shape == (8, 40) and nmse(layer(x), before) < 1e-3


# ---- products


def random(seed, *shape):
    return np.random.default_rng(seed).integers(-128, 128, shape).astype(np.int8)


def scaled(sums, scales):
    """float(S) scale_a scale_b scale_c in single precision, towards zero, limited to int32, a NaN to 0."""
    r = sums.astype(np.float32)
    for scale in scales:
        r = r * np.float32(scale)
    return np.clip(np.trunc(r.astype(np.float64)), -(2**31), 2**31 - 1).astype(np.int64)


@on_each
@pytest.mark.parametrize(("M", "K", "N"), [(1, 1, 1), (3, 5, 7), (17, 33, 19), (16, 4096, 8), (0, 4, 4), (4, 0, 4)])
@pytest.mark.parametrize("scales", [(1, 1, 1), (1 / 127, 1 / 127, 1), (0.3, -7, 2.5), (1e9, 1e9, 1)])
def test_int8(M, K, N, scales, device):
    a, b = random(1, M, K), random(2, K, N)
    sums = a.astype(np.int64) @ b.astype(np.int64)
    want = sums if scales == (1, 1, 1) else scaled(sums, scales)
    got = int8_matmul(torch.from_numpy(a).to(device), torch.from_numpy(b).to(device), *scales)
    assert got.dtype == torch.int32 and got.shape == (M, N)
    assert np.array_equal(got.cpu().numpy(), want)
    of_arrays = int8_matmul(a, b, *scales)  # on the CPU
    assert of_arrays.dtype == np.int32 and np.array_equal(of_arrays, want)


def test_int8_strides_do_not_matter():
    a, b = random(3, 10, 6), random(4, 8, 12)
    want = a[:, ::2].T.astype(np.int64) @ b[:5, ::-2].astype(np.int64).repeat(2, 0)
    assert np.array_equal(int8_matmul(a[:, ::2].T, b[:5, ::-2].repeat(2, 0)), want)
    a.flags.writeable = False
    assert int8_matmul(a, b[:6]).shape == (10, 12)


@on_each
@pytest.mark.parametrize(("M", "K", "N"), [(1, 1, 1), (5, 7, 3), (16, 64, 8), (33, 129, 17)])
def test_int4(M, K, N, device):
    """As documented; the pad of an odd K may be anything."""
    r = np.random.default_rng(K)
    a, b = r.integers(-8, 8, (M, K)).astype(np.int8), r.integers(-8, 8, (K, N)).astype(np.int8)
    packed_a = cuda_wrapper.pack_int4(torch.from_numpy(a).to(device))
    packed_b = cuda_wrapper.pack_int4_rows(torch.from_numpy(b).to(device))
    assert packed_a.shape == (M, (K + 1) // 2) and packed_b.shape == ((K + 1) // 2, N)
    want = a.astype(np.int64) @ b.astype(np.int64)
    if K % 2:
        packed_a[:, -1] ^= 0x50
        packed_b[-1] |= 0xF0
    assert np.array_equal(cuda_wrapper.int4_matmul(packed_a, packed_b, K).cpu().numpy(), want)
    c = torch.full((M, N), 77, dtype=torch.int32, device=device)
    cuda_wrapper.int4_matmul_cuda(packed_a, packed_b, c, M, N, K, 0.25, 0.5, 3.0)
    assert np.array_equal(c.cpu().numpy(), scaled(want, (0.25, 0.5, 3.0)))


def test_int4_bytes_by_hand():
    packed = cuda_wrapper.pack_int4(np.array([[-8, 7, 0], [100, -100, 1]]))
    assert packed.tolist() == [[0xF0, 0x88], [0x0F, 0x89]]
    assert cuda_wrapper.unpack_int4(packed).tolist() == [[-8, 7, 0, 0], [7, -8, 1, 0]]
    assert cuda_wrapper.pack_int4_rows(np.array([[1], [2], [3]])).tolist() == [[0xA9], [0x8B]]


@on_each
@pytest.mark.parametrize("bias", [False, True])
def test_fused(bias, device):
    a, b, add = random(5, 9, 20), random(6, 20, 13), np.linspace(-3, 3, 13, dtype=np.float32)
    add[0] = np.nan  # the original's max(0, NaN) is 0; PyTorch's relu keeps it, which says more
    sums = (a.astype(np.int64) @ b.astype(np.int64)).astype(np.float32)
    want = np.maximum(sums * np.float32(0.01) * np.float32(0.02) + (add if bias else 0), 0)
    c = torch.full((9, 13), -1.0, device=device)
    parts = [torch.from_numpy(t).to(device) for t in (a, b, add)]
    cuda_wrapper.fused_int8_matmul_bias_relu_cuda(*parts[:2], parts[2] if bias else None, c, 9, 13, 20, 0.01, 0.02, 1)
    np.testing.assert_allclose(c.cpu().numpy(), want, rtol=1e-6, atol=1e-6)
    assert not bias or c[:, 0].isnan().all()


# ---- conversions


@on_each
@pytest.mark.parametrize("zero_point", [0.0, 3.5, -120.25])
def test_quantize_and_back(zero_point, device):
    """roundf(clamp(x / scale + zp)), half away from zero; every code and every tie is among the values."""
    codes = np.arange(-600, 600) / 4
    x = np.concatenate([codes - zero_point, [0.49999997, -0.49999997, np.inf, -np.inf]]).astype(np.float32)
    v = np.clip(x + np.float32(zero_point), -128, 127).astype(np.float64)
    want = np.copysign(np.floor(np.abs(v) + 0.5), v).astype(np.int8)
    q, scale = quantize_tensor(torch.from_numpy(x).to(device), 1.0, zero_point)
    assert scale == 1.0 and np.array_equal(q.cpu().numpy(), want)
    back = dequantize_tensor(q, 0.1, zero_point)
    assert np.array_equal(back.cpu().numpy(), (want.astype(np.float32) - np.float32(zero_point)) * np.float32(0.1))
    half = torch.empty(len(x), dtype=torch.float16, device=device)
    cuda_wrapper.dequantize_cuda(q, half, len(x), 0.1, zero_point)
    assert torch.equal(half, back.half())
    q2, back2 = torch.empty_like(q), torch.empty_like(back)
    cuda_wrapper.quantize_cuda(torch.from_numpy(x).to(device), q2, len(x), 1.0, zero_point)
    cuda_wrapper.dequantize_fp32_cuda(q, back2, len(x), 0.1, zero_point)
    assert torch.equal(q, q2) and torch.equal(back, back2)


def test_scales():
    x = np.array([[-2.0, 1.0]], np.float32)
    q, scale = quantize_tensor(x)
    assert scale == 2 / 127 and q.tolist() == [[-127, 64]] and q.dtype == np.int8  # 63.5 is half away
    q, scale = quantize_tensor(np.zeros((2, 2), np.float32))
    assert scale == 1 and not q.any()
    assert quantize_tensor(np.array([np.nan, 1], np.float32), 1.0)[0].tolist() == [127, 1]
    # Beyond 2^24 single precision alone would round twice.
    assert dequantize_tensor(np.array([2**24 + 1], np.int32), 3.0).tolist() == [float(np.float32((2**24 + 1) * 3))]


def test_results_are_written_where_they_belong():
    a, b, c = random(7, 4, 6), random(8, 6, 5), np.full((4, 5), 9, np.int32)
    cuda_wrapper.int8_matmul_cuda(a.ravel(), b.ravel(), c, 4, 5, 6)
    assert np.array_equal(c, a.astype(np.int32) @ b.astype(np.int32))


I8, F32 = np.int8, np.float32
BAD = [
    ("A", lambda w: w.int8_matmul(np.zeros((2, 3)), np.zeros((3, 2), I8))),
    ("A", lambda w: w.int8_matmul([[1]], np.zeros((1, 2), I8))),
    ("A", lambda w: w.int8_matmul(np.zeros(3, I8), np.zeros((3, 2), I8))),
    ("B", lambda w: w.int8_matmul(np.zeros((2, 3), I8), np.zeros((2, 3), I8))),
    ("scale_b", lambda w: w.int8_matmul(np.zeros((2, 3), I8), np.zeros((3, 2), I8), 1.0, float("nan"))),
    ("stream", lambda w: w.int8_matmul(np.zeros((2, 3), I8), np.zeros((3, 2), I8), stream=7)),
    ("A", lambda w: w.int8_matmul_cuda(np.zeros(5, I8), np.zeros(6, I8), np.zeros(4, np.int32), 2, 2, 3)),
    ("C", lambda w: w.int8_matmul_cuda(np.zeros(6, I8), np.zeros(6, I8), np.zeros(5, np.int32), 2, 2, 3)),
    ("C", lambda w: w.int8_matmul_cuda(np.zeros(6, I8), np.zeros(6, I8), np.zeros(4, np.int64), 2, 2, 3)),
    ("C", lambda w: w.int8_matmul_cuda(np.zeros(6, I8), np.zeros(6, I8), np.zeros(8, np.int32)[::2], 2, 2, 3)),
    ("B_packed", lambda w: w.int4_matmul(np.zeros((2, 2), np.uint8), np.zeros((1, 2), np.uint8), 3)),
    ("A_packed", lambda w: w.int4_matmul(np.zeros((2, 2), np.uint8), np.zeros((3, 2), np.uint8), 5)),
    (
        "bias",
        lambda w: w.fused_int8_matmul_bias_relu_cuda(
            *[np.zeros(4, I8)] * 2, np.zeros(3, F32), np.zeros(4, F32), 2, 2, 2
        ),
    ),
    ("tensor", lambda w: w.quantize_tensor(np.zeros(3))),
    ("tensor", lambda w: w.quantize_tensor(np.array([np.inf], F32))),
    ("scale", lambda w: w.quantize_tensor(np.zeros(3, F32), 0.0)),
    ("scale", lambda w: w.quantize_tensor(np.zeros(3, F32), float("inf"))),
    ("size", lambda w: w.quantize_cuda(np.zeros(3, F32), np.zeros(3, I8), 4, 1.0)),
    ("output", lambda w: w.quantize_cuda(np.zeros(3, F32), np.zeros(4, I8), 3, 1.0)),
    ("output", lambda w: w.dequantize_cuda(np.zeros(3, I8), np.zeros(3, F32), 3, 1.0)),
    ("quantized", lambda w: w.dequantize_tensor(np.zeros(3, F32), 1.0)),
    ("tensor", lambda w: w.pack_int4(np.zeros(4, F32))),
    ("packed", lambda w: w.unpack_int4(np.zeros(4, I8))),
]


@pytest.mark.parametrize(("argument", "call"), BAD)
def test_what_does_not_fit_is_named(argument, call):
    with pytest.raises(TilewrightError) as caught:
        call(cuda_wrapper)
    assert caught.value.field == argument and isinstance(caught.value, ValueError)


def test_nothing_overflows_or_is_written_to_what_is_constant():
    with pytest.raises(TooLarge, match="k must .*got 131072"):
        int8_matmul(np.zeros((1, 131072), I8), np.zeros((131072, 1), I8))
    c = np.zeros(4, np.int32)
    c.flags.writeable = False
    with pytest.raises(TilewrightError, match="C must .*got a read-only"):
        cuda_wrapper.int8_matmul_cuda(np.ones(4, I8), np.ones(4, I8), c, 2, 2, 2)
    assert not c.any()
