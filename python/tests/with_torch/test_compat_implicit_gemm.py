# SPDX-License-Identifier: Apache-2.0
"""The README of Model Optimizer's convolution by implicit GEMM, its formulas restated, and the cases of its own tests."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from tilewright import InvalidArgument, TilewrightError, Unsupported  # noqa: E402
from tilewright.compat.implicit_gemm_cuda import (  # noqa: E402
    conv3d_implicit_gemm_cuda,
    dynamic_block_quantize_op,
    fp4_fake_quant,
)

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
BLOCKS = [16, 32, 64, 128, 256]
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def restated(rows, amax, block):
    """rows [m, k] in blocks along k, by the formulas of the original: single precision, E4M3 by PyTorch, E2M1 by the
    nearest of a table, the even code at ties."""
    m, k = rows.shape
    a = F.pad(rows.float(), (0, -k % block)).reshape(m, -1, block)
    g = torch.as_tensor(amax, dtype=torch.float32) / (6 * 448)
    r = (a.abs().amax(-1, keepdim=True) / (6 * g)).clamp(max=448)
    s = r.to(torch.float8_e4m3fn).float() * g
    s = torch.where(s < 1e-5, torch.ones_like(s), s)
    v = (a.abs() * (1 / s)).clamp(max=6)
    distance = (v.unsqueeze(-1).double() - E2M1.double()).abs()
    distance += torch.tensor([0, 1, 0, 1, 0, 1, 0, 1]) * 1e-12  # odd codes lose ties
    out = torch.copysign(E2M1[distance.argmin(-1)], a) * s
    return out.reshape(m, -1)[:, :k]


def im2col(x, w, stride=1, padding=0):
    """[output pixels, Cin kD kH kW], by PyTorch's own unfolding of one axis after the other."""
    padded = F.pad(x, [padding] * 6)
    for axis, extent in enumerate(w.shape[2:]):
        padded = padded.unfold(2 + axis, extent, stride)
    extents = padded.shape[2:5]
    return padded.permute(0, 2, 3, 4, 1, 5, 6, 7).reshape(-1, w[0].numel()), extents


@pytest.mark.parametrize("device", DEVICES)
def test_the_readme(device):
    """The README's usage; on the CPU with fewer pixels and channels."""
    extents, channels = ((21, 60, 106), (128, 512)) if device == "cuda" else ((4, 9, 10), (16, 24))
    torch.manual_seed(0)
    x = torch.randn(1, channels[0], *extents, device=device)
    w = torch.randn(channels[1], channels[0], 3, 3, 3, device=device)
    block_size = 128
    out = conv3d_implicit_gemm_cuda(x, w, stride=(1, 1, 1), padding=(1, 1, 1))
    Cout, Cin = w.shape[:2]
    K = Cin * w.shape[2] * w.shape[3] * w.shape[4]
    w_flat = w.reshape(Cout, K)
    w_q_flat = dynamic_block_quantize_op(w_flat, block_size, w_flat.abs().max().unsqueeze(0), 4, 2, 8, 4)
    w_q = w_q_flat.reshape_as(w)
    out_q = conv3d_implicit_gemm_cuda(
        x,
        w_q,
        stride=(1, 1, 1),
        padding=(1, 1, 1),
        act_amax=x.abs().max().unsqueeze(0),
        quant_act=True,
        fp4_block_size=block_size,
    )
    want = F.conv3d(x, w, padding=1)
    assert out.shape == out_q.shape == want.shape and out.dtype == x.dtype
    # Operands of 8 bits of precision: their own tests allow sqrt(K / 1000).
    assert (out - want).abs().max() < (K / 1000) ** 0.5
    nmse = ((out_q - want) ** 2).mean() / (want**2).mean()
    assert 0.005 < nmse < 0.06  # two operands in FP4


CASES = [  # of its own tests: x, w, stride, padding, dilation
    ((1, 1, 1, 1, 1), (1, 1, 1, 1, 1), 1, 0, 1),
    ((1, 1, 5, 5, 5), (1, 1, 3, 3, 3), 1, 1, 1),
    ((2, 16, 8, 8, 8), (32, 16, 3, 3, 3), (2, 2, 2), (1, 1, 1), 1),
    ((1, 16, 8, 8, 8), (32, 16, 3, 3, 3), (1, 2, 2), (0, 1, 2), 1),
    ((1, 16, 8, 8, 8), (32, 16, 3, 3, 3), 1, 2, (1, 2, 2)),
    ((1, 64, 4, 4, 4), (128, 64, 1, 1, 1), 1, 0, 1),
    ((1, 8, 6, 6, 6), (16, 8, 1, 3, 3), 1, (0, 1, 1), 1),
    ((1, 8, 8, 8, 8), (16, 8, 5, 5, 5), 1, 2, 1),
    ((1, 7, 5, 7, 9), (17, 7, 3, 3, 3), 1, 1, 1),
    ((1, 7, 5, 7, 9), (17, 7, 3, 3, 3), 1, (2, 0, 1, 1, 0, 3), 1),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("shape", "kernel", "stride", "padding", "dilation"), CASES)
def test_without_quantization(shape, kernel, stride, padding, dilation, dtype, device):
    torch.manual_seed(1)
    x, w, bias = torch.randn(shape), torch.randn(kernel), torch.randn(kernel[0])
    x, w, bias = (t.to(dtype) for t in (x, w, bias))
    y = conv3d_implicit_gemm_cuda(*(t.to(device) for t in (x, w, bias)), stride, padding, dilation)
    given = (padding,) * 3 if isinstance(padding, int) else padding
    pads = given if len(given) == 6 else [p for p in reversed(given) for _ in range(2)]
    a, b = F.pad(x, pads).bfloat16().double(), w.bfloat16().double()
    want = F.conv3d(a, b, bias.double(), stride, 0, dilation)
    most = F.conv3d(a.abs(), b.abs(), bias.double().abs(), stride, 0, dilation)
    unit = {torch.float32: 2.0**-23, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[dtype]
    assert y.shape == want.shape and y.dtype == dtype and y.is_contiguous()
    assert ((y.cpu() - want).abs() <= 2.0**-18 * most + unit * want.abs()).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("amax", [None, 1.5])
def test_activations_are_quantized_as_each_output_sees_them(block, amax, device):
    """Against fake quantization of the im2col matrix; K = 189 is no multiple of any block."""
    torch.manual_seed(2)
    x, w, bias = torch.randn(1, 7, 4, 5, 6), torch.randn(9, 7, 3, 3, 3), torch.randn(9)
    largest = x.abs().max() if amax is None else torch.tensor(amax)
    given = torch.stack([largest, torch.tensor(1e9)]).to(device)  # of several the first
    args = [t.to(device) for t in (x, w, bias)]
    y = conv3d_implicit_gemm_cuda(*args, padding=1, act_amax=given, quant_act=True, fp4_block_size=block)
    rows, extents = im2col(x, w, padding=1)
    a, b = restated(rows, largest, block).double(), w.bfloat16().double().reshape(9, -1)
    want = (a @ b.T + bias.double()).T.reshape(1, 9, *extents)
    bound = ((a.abs() @ b.abs().T).T * 2.0**-8).reshape(want.shape)  # a GPU rounds what is quantized to BF16
    if device == "cpu":
        bound = bound * 2.0**-10
    assert ((y.cpu() - want).abs() <= bound + 1e-5).all()
    again = conv3d_implicit_gemm_cuda(*args, padding=1, act_amax=given, quant_act=True, fp4_block_size=block)
    assert torch.equal(y, again)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("block", [8, *BLOCKS])
@pytest.mark.parametrize("factor", [1, 10, 1e-3])
def test_fake_quantization_by_its_formulas(block, factor, device):
    torch.manual_seed(3)
    x = torch.randn(4, 3, 256) * factor
    x[0] *= 2.0**-10
    x[1, 1] = 0
    amax = x.abs().max()
    y = fp4_fake_quant(x.to(device), amax.to(device), block)
    assert torch.equal(y.cpu(), restated(x.reshape(-1, block), amax, block).reshape(x.shape))
    ragged = x[..., :250].contiguous()
    z = dynamic_block_quantize_op(ragged.to(device), block, torch.stack([amax, amax / 2]), 4, 2, 8, 4)
    assert torch.equal(z.cpu(), restated(ragged.reshape(-1, 250), amax, block).reshape(ragged.shape))
    assert fp4_fake_quant(x[:0].to(device), amax, block).shape == (0, 3, 256)


def test_known_values():
    """amax = 2688 makes g = 1: a block whose largest is 6 has the scale 1, and the values are those of E2M1."""
    x = torch.tensor([0, 0.25, 0.26, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 5.1, 6, -0.25, -0.75, -5, -6, 0.5])
    want = torch.tensor([0, 0, 0.5, 1, 1, 2, 2, 4, 4, 6, 6, -0.0, -1, -4, -6, 0.5])
    assert torch.equal(fp4_fake_quant(x, torch.tensor([2688.0])), want)


@pytest.mark.parametrize(
    ("argument", "changes"),
    [
        ("x", {"x": torch.randn(7, 4, 5, 6)}),
        ("x", {"x": torch.ones(1, 7, 4, 5, 6, dtype=torch.int8)}),
        ("w", {"w": torch.randn(9, 7, 3, 3)}),
        ("w", {"w": torch.randn(9, 1, 3, 3, 3)}),
        ("x", {"padding": 0, "dilation": 3}),
        ("bias", {"bias": torch.randn(8)}),
        ("stride", {"stride": (1, 1)}),
        ("stride", {"stride": 0}),
        ("padding", {"padding": (1, 1)}),
        ("dilation", {"dilation": (1, 1, 1, 1)}),
        ("fp4_block_size", {"fp4_block_size": 100}),
        ("act_amax", {"quant_act": True}),
        ("act_amax", {"quant_act": True, "act_amax": torch.empty(0)}),
    ],
)
def test_what_does_not_fit_is_named(argument, changes):
    given = {"x": torch.randn(1, 7, 4, 5, 6), "w": torch.randn(9, 7, 3, 3, 3), "padding": 1, **changes}
    with pytest.raises(TilewrightError) as caught:
        conv3d_implicit_gemm_cuda(**given)
    assert caught.value.field == argument and isinstance(caught.value, ValueError)


def test_what_does_not_fit_of_the_other_two():
    one = torch.ones(1)
    for call in (
        lambda: fp4_fake_quant(torch.ones(33), one),
        lambda: fp4_fake_quant(torch.ones(32, dtype=torch.int32), one),
        lambda: fp4_fake_quant(torch.ones(40), one, 10),
        lambda: fp4_fake_quant(torch.ones(32), None),
        lambda: dynamic_block_quantize_op(torch.ones(32), 0, one, 4, 2, 8, 4),
        lambda: dynamic_block_quantize_op(torch.ones(32), 16, None, 4, 2, 8, 4),
    ):
        with pytest.raises(InvalidArgument):
            call()
    with pytest.raises(Unsupported, match="num_bits"):
        dynamic_block_quantize_op(torch.ones(32), 16, one, 4, 2, 8, 0)


def test_errors_are_those_that_programs_for_the_original_match():
    x, w = torch.randn(1, 4, 3, 3, 3), torch.randn(2, 4, 1, 1, 1)
    with pytest.raises(ValueError, match="5D"):
        conv3d_implicit_gemm_cuda(x[0], w)
    with pytest.raises(ValueError, match="Grouped convolution"):
        conv3d_implicit_gemm_cuda(x, w[:, :2])
    for kind in (AssertionError, ValueError):
        with pytest.raises(kind, match="divisible"):
            fp4_fake_quant(torch.randn(17), torch.ones(1), 16)
