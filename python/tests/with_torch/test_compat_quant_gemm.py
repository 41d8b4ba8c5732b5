# SPDX-License-Identifier: Apache-2.0
"""quant_gemm's README and its own rules, through tilewright.compat.quant_gemm."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tilewright import InvalidArgument  # noqa: E402
from tilewright.compat import quant_gemm  # noqa: E402

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def nmse(got, want):
    return (((got - want).double() ** 2).mean() / (want.double() ** 2).mean()).item()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("M, N, K", [(4096, 2, 14336), (1, 1, 32), (4, 2, 1024), (128, 8, 4096)])
def test_the_readme(M, N, K, device):
    """The README's quick start; its device is the test's."""
    torch.manual_seed(0)
    weight = torch.randn(M, K, device=device, dtype=torch.float32)
    activation = torch.randn(N, K, device=device, dtype=torch.float32)
    weight_q = quant_gemm.quantize_q4_0(weight)
    activation_q = quant_gemm.quantize_q8_1(activation)
    assert weight_q.shape == (M, K // 32, 18) and activation_q.shape == (N, K // 32, 36)
    output = quant_gemm.gemm_q4_0_q8_1(weight_q, activation_q, M, N, K)
    output_ref = weight @ activation.T
    assert output.shape == (M, N) and output.dtype == torch.float32
    if K > 32:  # of one product nothing follows; 0.1 is the original's own gate, which few outputs need
        assert nmse(output, output_ref) < (2e-2 if M * N >= 1000 else 0.1)
    # Against the decoded operands the product is single precision's own.
    exact = quant_gemm.dequantize_q4_0(weight_q, K).double() @ decoded_q8_1(activation_q).double().T
    bound = (quant_gemm.dequantize_q4_0(weight_q, K).double().abs() @ decoded_q8_1(activation_q).double().abs().T) * 2**-20
    assert ((output.double() - exact).abs() <= bound + 1e-6).all()


def decoded_q8_1(blocks):
    """By the layout's definition: half d, half s, 32 signed codes."""
    d = blocks[..., :2].contiguous().view(torch.float16).float()
    codes = blocks[..., 4:].contiguous().view(torch.int8).float()
    return (d * codes).reshape(blocks.shape[0], -1)


def original_blocks(x, largest):
    """Scale and codes of the original's two quantizers, restated: d = max|x| / largest, codes x (1 / d) rounded half away
    from zero, all in float32. x: [blocks, 32]."""
    amax = np.abs(x).max(1, keepdims=True)
    d = (amax / np.float32(largest)).astype(np.float32)
    inverse = np.where(d > 0, np.float32(1) / np.where(d > 0, d, 1), 0).astype(np.float32)
    scaled = (x * inverse).astype(np.float64)
    codes = np.sign(scaled) * np.floor(np.abs(scaled) + 0.5)
    return d.astype(np.float16).view(np.uint8), codes.astype(np.int8)


def some_blocks():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 32)).astype(np.float32) * np.exp2(rng.integers(-8, 8, (64, 1))).astype(np.float32)
    x[3] = 0
    return x


def test_q4_0_is_the_originals_byte_for_byte():
    x = some_blocks()
    d, codes = original_blocks(x, 7)
    unsigned = (np.clip(codes, -8, 7) + 8).astype(np.uint8)
    wanted = np.concatenate([d, unsigned[:, :16] | unsigned[:, 16:] << 4], 1)
    blocks = quant_gemm.quantize_q4_0(torch.from_numpy(x))
    assert np.array_equal(blocks.numpy().reshape(64, 18), wanted)
    values = (codes * d.view(np.float16).astype(np.float32)).astype(np.float32)
    assert np.array_equal(quant_gemm.dequantize_q4_0(blocks, 32).numpy(), values)


def test_q8_1_is_the_originals_byte_for_byte():
    x = some_blocks()
    d, codes = original_blocks(x, 127)
    total = np.zeros((64, 1), np.float32)
    for column in range(32):  # in element order, as the original adds
        total[:, 0] += x[:, column]
    wanted = np.concatenate([d, total.astype(np.float16).view(np.uint8), codes.view(np.uint8)], 1)
    assert np.array_equal(quant_gemm.quantize_q8_1(torch.from_numpy(x)).numpy().reshape(64, 36), wanted)


def test_leading_dimensions_stay_and_strides_do_not_matter():
    x = torch.randn(2, 3, 64)
    assert quant_gemm.quantize_q4_0(x).shape == (2, 3, 2, 18)
    wide = torch.randn(3, 128)
    assert torch.equal(quant_gemm.quantize_q8_1(wide[:, ::2]), quant_gemm.quantize_q8_1(wide[:, ::2].contiguous()))
    assert quant_gemm.dequantize_q4_0(quant_gemm.quantize_q4_0(x), 64).shape == (2, 3, 64)


@pytest.mark.parametrize(
    "argument, call",
    [
        ("x", lambda w, a: quant_gemm.quantize_q4_0(torch.randn(2, 33))),
        ("x", lambda w, a: quant_gemm.quantize_q8_1(torch.randn(2, 64).half())),
        ("x", lambda w, a: quant_gemm.quantize_q8_1(torch.tensor(1.0))),
        ("x_q", lambda w, a: quant_gemm.dequantize_q4_0(a, 64)),
        ("K", lambda w, a: quant_gemm.dequantize_q4_0(w, 32)),
        ("K", lambda w, a: quant_gemm.gemm_q4_0_q8_1(w, a, 4, 2, 63)),
        ("weight_q", lambda w, a: quant_gemm.gemm_q4_0_q8_1(w, a, 5, 2, 64)),
        ("weight_q", lambda w, a: quant_gemm.gemm_q4_0_q8_1(w.float(), a, 4, 2, 64)),
        ("activation_q", lambda w, a: quant_gemm.gemm_q4_0_q8_1(w, a, 4, 3, 64)),
        ("activation_q", lambda w, a: quant_gemm.gemm_q4_0_q8_1(w, w, 4, 4, 64)),
    ],
)
def test_what_does_not_fit_is_named(argument, call):
    w, a = quant_gemm.quantize_q4_0(torch.randn(4, 64)), quant_gemm.quantize_q8_1(torch.randn(2, 64))
    with pytest.raises(InvalidArgument) as caught:
        call(w, a)
    assert caught.value.field == argument


def test_the_constants():
    assert (quant_gemm.QK4_0, quant_gemm.QK8_1, quant_gemm.BLOCK_Q4_0_BYTES, quant_gemm.BLOCK_Q8_1_BYTES) == (32, 32, 18, 36)
