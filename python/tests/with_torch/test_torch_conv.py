# SPDX-License-Identifier: Apache-2.0
"""Convolutions: the operators, on the CPU and with kernels that compute on the host, and the layers. What they compute
is compared with PyTorch's own layers, which pad, stride, dilate and group by themselves, on operands that the library's
codecs have decoded."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pytest
from test_torch_cuda import bound, launches  # noqa: F401  (fixtures)
from torch_support import decoded

# isort: split
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.library import opcheck

import tilewright as tw
import tilewright.torch as twt
from tilewright.torch import _cuda
from tilewright.torch._spec import channels_last, conv_spec, conv_text

OPS = torch.ops.tilewright
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
LAYERS = {1: twt.QuantizedConv1d, 2: twt.QuantizedConv2d, 3: twt.QuantizedConv3d}
# Of the others rows share a scale, have zero points, or are sums.
WEIGHTS = [f.name for f in tw.formats() if f.name not in ("e4m3_b128", "int8_asym_row", "int32")]
ACTIVATIONS = [None, "f16", "bf16", "e4m3", "e4m3_tensor", "e5m2", "e5m2_tensor", "int8", "int8_tensor"]
UNIT = {F32: 2.0**-24, F16: 2.0**-11, BF16: 2.0**-8}


def random_conv(rank=2, c=32, k=8, kernel=3, **more):
    plain = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1]
    return plain(c, k, kernel, **more)


def make(rank=2, c=32, k=8, kernel=3, weight="int8_row", activation=None, **more):
    options = {name: more.pop(name) for name in ("encoder", "accum", "quant_act", "order", "amax") if name in more}
    conv = random_conv(rank, c, k, kernel, **more)
    return LAYERS[rank].from_conv(conv, weight, activation, **options)


def innermost(x):
    """The same with channels innermost in memory."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def held(x, format):
    """x as an elementwise format holds it, in float64, by the library's codecs."""
    return torch.from_numpy(decoded(x.reshape(1, -1), format)).reshape(x.shape)


def assert_convolves(layer, x, y, activation=None):
    """Against PyTorch's layer in double precision, and the bound of docs/reference/numerics.md for single-precision sums."""
    a = x.double() if activation is None else held(x, activation)
    reference = layer.to_conv(F32).double()
    with torch.no_grad():
        want = reference(a)
        reference.weight.abs_()
        if reference.bias is not None:
            reference.bias.abs_()
        size = reference(a.abs())
    terms = layer.weight.cols
    bound = 2.0**-24 * (terms / 4 + 64) * size + 2.0**-20 * want.abs()
    bound = bound + UNIT[y.dtype] * (want.abs() + bound) + 2.0**-24
    assert y.shape == want.shape
    error = (y.detach().double() - want).abs()
    assert (error <= bound).all(), (error / bound).max().item()


# ---- what they compute


@pytest.mark.parametrize("weight", WEIGHTS)
def test_every_weight(weight):
    """With schemes of activations in turn, so that each meets a third of the formats."""
    c = 256 if tw.codec.find(weight).block > 128 else 128
    conv = random_conv(1, c, 8, 3, padding=1)
    for activation in {None, *ACTIVATIONS[WEIGHTS.index(weight) % 3 :: 3]}:
        layer = twt.QuantizedConv1d.from_conv(conv, weight, activation)
        x = torch.randn(2, c, 9) * (20 if activation == "int8" else 1)
        assert_convolves(layer, x, layer(x), activation)
        assert layer.weight.format == weight and layer.bias is conv.bias
        rows = conv.weight.detach().movedim(1, -1).reshape(8, -1)  # kernel elements, then channels
        wanted = torch.from_numpy(tw.decode(tw.encode(rows.contiguous(), weight))).reshape(8, 3, c).movedim(-1, 1)
        assert torch.equal(layer.dequantize(), wanted)


def some(draw, low, high, rank):
    return tuple(draw(st.integers(low, high)) for _ in range(rank))


@st.composite
def shapes(draw):
    rank = draw(st.integers(1, 3))
    groups = draw(st.integers(1, 3))
    dilation, kernel = some(draw, 1, 2, rank), some(draw, 1, 3, rank)
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel)]
    mode = draw(st.sampled_from(["zeros", "replicate", "reflect"]))
    padding = some(draw, 0, 2, rank)
    extents = tuple(max(s, p + 1) + draw(st.integers(0, 3)) for s, p in zip(spans, padding))
    stride = some(draw, 1, 3, rank)
    if draw(st.booleans()):
        padding, stride = "same", (1,) * rank
        extents = tuple(max(e, s + 1) for e, s in zip(extents, spans))
    conv = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "padding_mode": mode}
    channels = groups * draw(st.integers(1, 5)), groups * draw(st.integers(1, 4))
    return rank, channels, kernel, extents, {**conv, "bias": draw(st.booleans())}


@settings(max_examples=80)
@given(
    shape=shapes(),
    images=st.integers(0, 2),
    last=st.booleans(),
    dtype=st.sampled_from([F32, F16, BF16]),
    activation=st.sampled_from([None, "bf16", "e4m3_tensor"]),
)
def test_every_shape(shape, images, last, dtype, activation):
    rank, (c, k), kernel, extents, given_ = shape
    layer = make(rank, c, k, kernel, "int8_row", activation, **given_).to(dtype)
    x = torch.randn(images, c, *extents).to(dtype)
    x = innermost(x) if last else x
    y = layer(x)
    assert y.dtype == dtype
    assert channels_last(y) == (channels_last(x) and not y.is_contiguous())
    if images:
        assert_convolves(layer, x, y, activation or {F32: "f32", F16: "f16", BF16: "bf16"}[dtype])
        one = layer(x[0])
        assert one.shape == y.shape[1:]
        if activation != "e4m3_tensor":  # whose scale is the whole tensor's
            assert torch.allclose(one.float(), y[0].float(), rtol=2.0**-7, atol=1e-5)


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def fp4(block, amax):
    """docs/use/fake-quant.md's formulas for one block of float32, by NumPy and PyTorch's E4M3."""
    if block.size == 0:
        return block
    one = np.float32(1)
    g = np.float32(np.float32(amax) / np.float32(6 * 448))
    scale = np.float32(np.abs(block).max() / np.float32(np.float32(6) * g))
    scale = torch.tensor(min(scale, np.float32(448))).to(torch.float8_e4m3fn).float().numpy() * g
    s = scale if scale >= 1e-5 else one
    codes = np.abs(block) * np.float32(one / s)
    at = np.abs(codes[:, None] - E2M1[None]).argsort(1, kind="stable")[:, :2]
    # Ties go to the even code.
    first, second = np.abs(codes - E2M1[at[:, 0]]), np.abs(codes - E2M1[at[:, 1]])
    best = np.where((first == second) & (at[:, 0] % 2 == 1), at[:, 1], at[:, 0])
    return np.sign(block) * E2M1[best] * s


def blocks_of(row, size, amax):
    return np.concatenate([fp4(row[i : i + size], amax) for i in range(0, len(row), size)])


@pytest.mark.parametrize("order", ["ctrs", "trsc"])
@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("amax", [None, 1.5])
def test_fake_quantization(order, block, groups, amax):
    """Against loops over pixels."""
    c, k, side = 24 * groups, 4 * groups, 4
    shape = {"padding": 1, "groups": groups, "padding_mode": "replicate"}
    layer = make(2, c, k, (3, 2), "f32", **shape, quant_act=block, order=order, amax=amax)
    x = torch.randn(2, c, side, side)
    y = layer(x)
    largest = amax or x.abs().max().item()
    given_, w = x.numpy(), layer.dequantize().numpy().astype(np.float64)
    if order == "trsc":
        pixels = given_.transpose(0, 2, 3, 1).reshape(-1, groups, 24)
        rounded = [[blocks_of(row, block, largest) for row in pixel] for pixel in pixels]
        given_ = np.array(rounded).reshape(2, side, side, c).transpose(0, 3, 1, 2)
    padded = np.pad(given_, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge")
    for image, row, col, g in np.ndindex(2, side, side + 1, groups):
        seen = padded[image, 24 * g : 24 * g + 24, row : row + 3, col : col + 2].ravel()
        if order == "ctrs":
            seen = blocks_of(seen, block, largest)
        for out in range(4 * g, 4 * g + 4):
            want = w[out].ravel() @ seen + layer.bias[out].item()
            size = np.abs(w[out].ravel()) @ np.abs(seen) + 1
            assert abs(y[image, out, row, col].item() - want) < 2.0**-17 * size


def test_the_library_computes_the_same():
    """The text that an engine is asked for, computed by the library's own reference."""
    for text in (
        conv_text(
            "bf16", "q4_0", "f32", 32, 8, (3, 2), stride="2x1", pad="1:2x0", dilation="1x2", act="silu", alpha=0.5
        ),
        conv_text("f16", "int4_row", "f32", 32, 8, (3,), pad="2", pad_mode="reflect", groups=2, bias="f32"),
        conv_text("f32", "nvfp4", "f32", 32, 8, (1, 3, 3), pad="0x1x1", pad_mode="replicate", quant_act="e2m1/16"),
        conv_text("e4m3_tensor", "e4m3_tensor", "f32", 32, 8, (2, 2), global_="div"),
        conv_text("bf16", "f16", "f32", 32, 8, (2, 2), quant_act="e2m1/32", order="trsc", groups=4),
    ):
        s = conv_spec(text)
        weight = twt.quantize(torch.randn(8, s.cols), s.w.name)
        bias = torch.randn(8) if s.bias else None
        x = torch.randn(2, 32, *(5, 6, 7)[: s.rank])
        amax = x.abs().max().reshape(1) if s.block else None
        y = twt.conv(x, weight, bias, text, amax)
        dtypes = {"bf16": BF16, "f16": F16}
        pixels = x.movedim(1, -1).contiguous()
        operand = pixels.to(dtypes.get(s.x.name, F32))
        if s.x.name == "e4m3_tensor":
            operand = tuple(tw.encode(pixels, s.x).streams[::2])
            operand = (operand[0], 1 / operand[1])  # this problem divides by it
        given_ = {"x": operand, "w": tuple(weight), "bias": bias, "amax": amax}
        host = tw.Problem(s.problem(2, x.shape[2:], True)).compute({n: v for n, v in given_.items() if v is not None})
        want = torch.from_numpy(host["y"]).reshape(innermost(y).movedim(1, -1).shape).movedim(-1, 1)
        assert (y - want).abs().max() < 2e-5 * want.abs().max() + 1e-5, text


def test_autocast():
    layer = make(activation="bf16")
    x = torch.randn(1, 32, 5, 5)
    with torch.autocast("cpu", dtype=BF16):
        y = layer(x)
    assert y.dtype == BF16 and torch.equal(y, layer(x.bfloat16()))


# ---- operators


CASES = {
    "plain": (conv_text("f32", "int8_row", "f32", 32, 8, (3, 3), pad="1x1", bias="f32"), 2),
    "fp4": (conv_text("bf16", "nvfp4", "bf16", 32, 8, (3,), quant_act="e2m1/16", stride="2"), 1),
    "reflect": (conv_text("f16", "q4_0", "f16", 32, 8, (1, 2, 2), pad="0:1x1x1", pad_mode="reflect"), 3),
}


def arguments(case, rank, last=False):
    s = conv_spec(case)
    x = torch.randn(2, s.c, *(5, 6, 7)[:rank])
    x = innermost(x) if last else x
    weight = twt.quantize(torch.randn(s.k, s.cols), s.w.name)
    bias = torch.randn(s.k) if s.bias else None
    return x, weight, bias, torch.tensor([3.0]) if s.block else None, case


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("last", [False, True])
def test_opcheck(case, last):
    given_ = arguments(*CASES[case], last)
    opcheck(OPS.conv.default, given_)
    x, weight, _, _, text = given_
    y = OPS.conv(*given_)
    opcheck(OPS.conv_grad.default, (torch.randn_like(y), weight, text, x.shape[2:], F32))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("last", [False, True])
def test_compile(backend, last):
    model = nn.Sequential(
        make(padding=1), nn.SiLU(), make(c=8, k=16, activation="bf16", quant_act=16), make(c=16, k=4, padding="same")
    )
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=True)
    for images, side in ((2, 7), (3, 9), (1, 8)):
        x = torch.randn(images, 32, side, side)
        x = (innermost(x) if last else x).requires_grad_()
        y, want = compiled(x), model(x)
        assert torch.allclose(y, want, atol=1e-5) and y.stride() == want.stride()
        grads = [torch.autograd.grad(out.square().sum(), x)[0] for out in (y, want)]
        assert torch.allclose(*grads, atol=1e-5)
    torch._dynamo.reset()


@settings(max_examples=40)
@given(shape=shapes(), activation=st.sampled_from([None, "e4m3_tensor"]))
def test_gradients(shape, activation):
    """Those of PyTorch's layer with the decoded weight; straight through what is done to x."""
    rank, (c, k), kernel, extents, given_ = shape
    layer = make(rank, c, k, kernel, "int8_row", activation, **given_)
    plain = layer.to_conv(F32)
    x = torch.randn(2, c, *extents, requires_grad=True)
    y, want = layer(x), plain(x)
    dy = torch.randn_like(y)
    wanted = torch.autograd.grad(want, [x, *([plain.bias] if plain.bias is not None else [])], dy)
    got = torch.autograd.grad(y, [x, *([layer.bias] if layer.bias is not None else [])], dy)
    for a, b in zip(got, wanted):
        assert a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-4)


def test_the_gradient_of_an_activation():
    text = conv_text("f32", "f32", "f32", 4, 3, (2, 2), act="gelu", alpha=0.5)
    w = torch.randn(3, 4, 2, 2)
    weight = twt.quantize(w.movedim(1, -1).reshape(3, -1), "f32")
    x = torch.randn(2, 4, 5, 5, requires_grad=True)
    y, want = twt.conv(x, weight, None, text), nn.functional.gelu(0.5 * nn.functional.conv2d(x, w))
    assert torch.allclose(y, want, atol=1e-5)
    assert torch.allclose(*(torch.autograd.grad(out.sum(), x)[0] for out in (y, want)), atol=1e-5)
    fake = make(quant_act=16)
    x = torch.randn(1, 32, 5, 5, requires_grad=True)
    got, wanted = (torch.autograd.grad(f(x).sum(), x)[0] for f in (fake, fake.to_conv(F32)))
    assert torch.allclose(got, wanted, rtol=1e-4, atol=1e-5)


TEXT = CASES["plain"][0]
BAD = {
    "axes": (lambda x, w, b: (x[0], w, b, TEXT), "x must be .images, 32 channels, 2 axes..*got shape .32, 5, 6."),
    "channels": (lambda x, w, b: (x[:, 1:], w, b, TEXT), "x must .*got shape .2, 31"),
    "integers": (lambda x, w, b: (x.long(), w, b, TEXT), "x must .*got dtype torch.int64"),
    "a number": (lambda x, w, b: (1.0, w, b, TEXT), "x must be a tensor.*got float"),
    "sparse": (lambda x, w, b: (x.to_sparse(), w, b, TEXT), "x must .*got layout torch.sparse_coo"),
    "no pixels": (lambda x, w, b: (x[:, :, :0], w, b, TEXT), "x must .*got shape .2, 32, 0, 6."),
    "few pixels": (lambda x, w, b: (x[:, :, :1], w, b, TEXT.replace(" pad=1x1", "")), "with padding 3 elements"),
    "reflection": (
        lambda x, w, b: (x[:, :, :1], w, b, TEXT.replace("pad=1x1", "pad=1x1 pad_mode=reflectxreflect")),
        "longer than what is reflected, 1 elements",
    ),
    "streams": (lambda x, w, b: (x, w[:1], b, TEXT), "weight must have 2 .got 1 tensors.: data, scales"),
    "bytes": (lambda x, w, b: (x, [w[0][1:], w[1]], b, TEXT), "weight .data. must be 2304 bytes.*got 2303 bytes"),
    "devices": (lambda x, w, b: (x, [t.to("meta") for t in w], b, TEXT), "weight .data. must .*got on meta"),
    "gradients": (lambda x, w, b: (x, [w[0], w[1].float().requires_grad_()], b, TEXT), "weight .1. must .*got requires_grad"),
    "no bias": (lambda x, w, b: (x, w, None, TEXT), "bias must be given if .*got None"),
    "a bias": (lambda x, w, b: (x, w, b[1:], TEXT), "bias must .*got shape .7,."),
    "amax": (lambda x, w, b: (x, w, b, TEXT, torch.ones(1)), "amax must be given if.*got a tensor"),
    "no amax": (lambda x, w, b: (x, w, b, TEXT + " quant_act=e2m1/16"), "amax must be given if.*got None"),
    "amaxes": (lambda x, w, b: (x, w, b, TEXT + " quant_act=e2m1/16", torch.ones(2)), "amax must .*got shape .2,."),
    "a gemm": (lambda x, w, b: (x, w, b, "gemm x=f32 w=f32 y=f32 n=8 k=8"), "problem must be a conv.*got gemm .*"),
    "extents": (lambda x, w, b: (x, w, b, TEXT + " in=5x6"), "without in, which"),
    "a cache": (lambda x, w, b: (x, w, b, TEXT + " cache=1"), "without cache, which"),
    "kernel": (lambda x, w, b: (x, w, b, "conv x=f32 w=f32 y=f32 c=8 k=8 kernel=3xx"), "kernel"),
    "no kernel": (lambda x, w, b: (x, w, b, "conv x=f32 w=f32 y=f32 c=8 k=8"), "kernel"),
    "y": (lambda x, w, b: (x, w, b, "conv x=f32 w=f32 y=int8 c=8 k=8 kernel=3"), "y must be f32, f16 or bf16.*got int8"),
    "modes": (
        lambda x, w, b: (x, w, b, TEXT.replace("pad=1x1", "pad=1x1 pad_mode=reflectxzero")),
        "pad_mode must be the same for all axes.*got reflectxzero",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit(case):
    x, weight, bias, _, _ = arguments(*CASES["plain"])
    bad, message = BAD[case]
    with pytest.raises(tw.TilewrightError, match=message):
        twt.conv(*bad(x, weight, bias))


# ---- layers


@pytest.mark.parametrize("duplicate", [copy.deepcopy, copy.copy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies(duplicate):
    layer = make(weight="nvfp4", activation="bf16", quant_act=16, amax=2.5, padding_mode="reflect", padding=1)
    other = duplicate(layer)
    x = torch.randn(1, 32, 5, 5)
    assert torch.equal(other(x), layer(x)) and other.problem() == layer.problem() and str(other) == str(layer)


@pytest.mark.parametrize("amax", [None, 2.5])
def test_state_dict(amax):
    layer = make(weight="nvfp4", quant_act=32, amax=amax)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    x = torch.randn(1, 32, 5, 5)
    for device in ("cpu", "meta"):
        fresh = twt.QuantizedConv2d(32, 8, 3, weight="nvfp4", quant_act=32, device=device)
        fresh.load_state_dict(state, assign=device == "meta")
        assert torch.equal(fresh(x), layer(x))
    with pytest.raises(RuntimeError, match="the state dict has 'nvfp4 rows=8 cols=288"):
        twt.QuantizedConv2d(32, 8, 3, weight="q4_0", quant_act=32).load_state_dict(state)
    if amax:
        with pytest.raises(RuntimeError, match="amax: shape .2,., dtype torch.float32: one float32"):
            twt.QuantizedConv2d(32, 8, 3, weight="nvfp4", quant_act=32).load_state_dict(
                {**state, "amax": torch.ones(2)}
            )


def test_conversions_leave_bytes():
    layer = make(weight="nvfp4", quant_act=16, amax=0.1)
    half = copy.deepcopy(layer).half()
    assert half.dtype == F16 and half.bias.dtype == F16 and torch.equal(half.amax, layer.amax)
    assert all(torch.equal(a, b) for a, b in zip(half.weight.stored(), layer.weight.stored()))
    assert half(torch.randn(1, 32, 4, 4).half()).dtype == F16


def test_to_conv():
    layer = make(3, kernel=(1, 2, 3), stride=2, padding=(0, 1, 1), groups=4, padding_mode="reflect").eval()
    conv = layer.to_conv(BF16)
    assert type(conv) is nn.Conv3d and not conv.training and conv.weight.dtype == BF16
    again = twt.QuantizedConv3d.from_conv(layer.to_conv())
    assert again.problem() == layer.problem() and torch.equal(again.dequantize(), layer.dequantize())
    assert "padding=(0, 1, 1), groups=4, padding_mode=reflect" in str(layer) and "weight=int8_row" in str(layer)


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"weight": "q4"}, "q4"),
        ({"weight": "e4m3_b128", "in_channels": 128}, "w must .*got e4m3_b128"),
        ({"weight": "int8_asym_row"}, "w must .*got int8_asym_row"),
        ({"weight": "q4_0", "in_channels": 5}, "cols must be a multiple of 32.*got 45"),
        ({"activation": "q8_1"}, "x must .*got q8_1"),
        ({"accum": "fast"}, "accum"),
        ({"quant_act": 17}, "quant_act"),
        ({"quant_act": 16, "activation": "e4m3"}, "quant_act"),
        ({"quant_act": 16, "order": "cr"}, "order must be 'ctrs' or 'trsc'.*got 'cr'"),
        ({"amax": 1.0}, "amax must be a positive number with quant_act.*got 1.0"),
        ({"amax": -1.0, "quant_act": 16}, "amax must .*got -1.0"),
        ({"groups": 3}, "in_channels must be a multiple of groups=3.*got 32"),
        ({"groups": 16}, "out_channels must be a multiple of groups=16.*got 8"),
        ({"groups": 0}, "groups must .*got 0"),
        ({"out_channels": 0}, "out_channels must .*got 0"),
        ({"kernel_size": (3, 3, 3)}, "kernel_size must be a number, or 2.*got .3, 3, 3."),
        ({"kernel_size": 0}, "kernel_size must be an integer of at least 1.*got 0"),
        ({"stride": 1.5}, "stride"),
        ({"padding": -1}, "padding must .*got -1"),
        ({"padding": "full"}, "padding must .*got 'full'"),
        ({"padding": "same", "stride": 2}, "padding='same' needs a stride of 1"),
        ({"padding_mode": "circular"}, "padding_mode must be one of zeros, replicate, reflect.*got 'circular'"),
        ({"dtype": torch.float64}, "dtype"),
    ],
)
def test_layers_that_cannot_be(given_, message):
    with pytest.raises(tw.TilewrightError, match=message):
        twt.QuantizedConv2d(**{"in_channels": 32, "out_channels": 8, "kernel_size": 3, **given_})


def test_another_module():
    with pytest.raises(tw.InvalidArgument, match=r"conv must be an nn.Conv2d.*got Conv1d"):
        twt.QuantizedConv2d.from_conv(nn.Conv1d(4, 4, 1))
    with pytest.raises(tw.InvalidArgument, match="conv must .*got ConvTranspose2d"):
        twt.QuantizedConv2d.from_conv(nn.ConvTranspose2d(4, 4, 1))
    with pytest.raises(tw.InvalidArgument, match="x must .*got dtype torch.int64"):
        make()(torch.zeros(1, 32, 4, 4).long())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.blocks = nn.Sequential(*(nn.Conv2d(32, 32, 3, padding=1) for _ in range(3)))
        self.up = nn.ConvTranspose2d(32, 32, 2)
        self.ring = nn.Conv2d(32, 32, 3, padding=1, padding_mode="circular")
        self.blocks[2].weight = self.blocks[1].weight
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.ring(self.up(self.blocks(self.stem(x)))).mean((2, 3)))


def test_replacing():
    model = Net().eval()
    x = torch.randn(2, 3, 8, 8)
    want = model(x)
    rules = [("stem", None), ("blocks.0", {"weight": "int4_row"}), ("*", {"weight": "q8_0", "activation": "bf16"})]
    report = twt.replace_convs(model, rules)
    assert set(report.replaced) == {"blocks.0", "blocks.1", "blocks.2"}
    assert report.left["stem"] == "by the rules" and "padding_mode must be" in report.left["ring"]
    assert model.blocks[0].weight.format == "int4_row" and not model.blocks[0].training
    assert model.blocks[1].weight is model.blocks[2].weight and model.blocks[1].bias is not model.blocks[2].bias
    assert type(model.head) is nn.Linear and report.bytes_before == 2 * 32 * 288 * 4
    assert torch.cosine_similarity(model(x).flatten(), want.flatten(), dim=0) > 0.99
    again = twt.replace_convs(nn.ModuleDict({"odd": nn.Conv1d(5, 4, 3)}), [("*", {"weight": "q4_0"})])
    assert "a multiple of 32" in again.left["odd"]
    for rules in ([("*", {"wait": 1})], [("*", {"weight": "q"})], [("*", {"encoder": "x"})]):
        with pytest.raises(tw.InvalidArgument):
            twt.replace_convs(Net(), rules)
    with pytest.raises(tw.InvalidArgument, match="model must .*got Conv2d"):
        twt.replace_convs(nn.Conv2d(4, 4, 1), [])


# ---- kernels


def test_record():
    model = nn.Sequential(make(padding=1, activation="e4m3_tensor"), make(c=8, k=4)).half()
    problems = [str(p) for p in twt.record(model, innermost(torch.randn(2, 32, 6, 7).half()))]
    assert problems[0] == (
        "conv x=e4m3_tensor w=int8_row y=f16 n=2 c=32 in=6x7 k=8 kernel=3x3 pad=1x1 global=mul bias=f16 "
        "weights=constant"
    )
    assert problems[1] == "cast x=f16 y=e4m3_tensor rows=84 cols=32"
    assert problems[2].startswith("conv x=f16 w=int8_row y=f16 n=2 c=8 in=6x7 ") and "ncdhw" not in problems[2]
    there = twt.record(model, torch.randn(1, 32, 4, 4).half(), arch="sm_90a")
    assert "x_layout=ncdhw y_layout=ncdhw" in str(there[0]) and "workspace=" in str(there[0])


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        ({"x": "f16", "w": "q4_0", "pad": "1x1", "bias": "f32"}, F16),
        ({"x": "bf16", "w": "int4_row", "stride": "2x1", "groups": 2}, F32),
        ({"x": "e4m3_tensor", "w": "e4m3_row", "dilation": "1x2"}, BF16),
        ({"x": "e4m3_tensor", "w": "nvfp4", "global_": "div"}, F32),
        ({"x": "int8", "w": "int8_row"}, F16),
        ({"x": "bf16", "w": "nvfp4", "quant_act": "e2m1/16", "pad": "1x1", "pad_mode": "reflect"}, BF16),
        ({"x": "f16", "w": "f16", "quant_act": "e2m1/32", "order": "trsc"}, F32),
    ],
)
def test_launches(launches, case, dtype, last):  # noqa: F811
    """What is launched computes what the CPU does; x is read in place, or encoded once."""
    given_ = dict(case)
    x_format, w = given_.pop("x"), given_.pop("w")
    text = conv_text(x_format, w, "f32", 32, 8, (3, 2), **given_)
    x, weight, bias, amax, _ = arguments(text, 2, last)
    x = (8 * x).to(dtype) if x_format == "int8" else x.to(dtype)
    want = OPS.conv(x, weight, bias, amax, text)
    y = launches.conv(x, weight, bias, amax, text)
    assert y.stride() == want.stride() and y.dtype == want.dtype
    assert (y - want).abs().max() <= 1e-4 * want.abs().max() + 1e-5
    if launches.cpp:  # the first call prepares; conversions and a factor of the tensor are PyTorch's arithmetic
        launches.clear()
        again = launches.conv(x, weight, bias, amax, text)
        assert torch.equal(again, y) and again.stride() == y.stride()
        converted = x_format == "e4m3_tensor" or (x_format != "int8" and x_format != _cuda.FORMATS[dtype])
        assert launches.by_python == 1 + converted
    ops_ = [problem.op for problem, _ in launches]
    assert ops_ == (["cast"] if x_format in ("e4m3_tensor", "int8") else []) + ["conv"]
    assert ("x_layout" in str(launches[-1][0])) == (not last) and "workspace=34603008" in str(launches[-1][0])
    if x_format not in ("e4m3_tensor", "int8"):
        for other in (x[:, :, ::2], x.flip(-1), x[..., :1].expand_as(x), x.transpose(2, 3)):
            wanted = OPS.conv(other, weight, bias, amax, text)
            got = launches.conv(other, weight, bias, amax, text)
            assert (got - wanted).abs().max() <= 1e-4 * wanted.abs().max() + 1e-5
    launches.clear()
    assert launches.conv(x[:0], weight, bias, amax, text).shape == (0, *want.shape[1:]) and not launches
    dy = torch.randn_like(want)
    got = _cuda.conv_grad(dy, weight, text, x.shape[2:], F32)
    wanted = OPS.conv_grad(dy, weight, text, x.shape[2:], F32)
    assert (got - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    launches.clear()
    wrong = {
        "x must .*got shape": (x[:, 1:], weight, bias, amax, text),
        "weight must .*got 0 tensors": (x, [], bias, amax, text),
        "weight .data. must be .*bytes": (x, [weight[0][1:], *weight[1:]], bias, amax, text),
        "bias must ": (x, weight, None if bias is not None else torch.zeros(8), amax, text),
        "amax must ": (x, weight, bias, None if amax is not None else torch.zeros(1), text),
    }
    for message, arguments_ in wrong.items():
        with pytest.raises(tw.InvalidArgument, match=message):
            launches.conv(*arguments_)
    assert not launches


def test_captures(launches):  # noqa: F811
    layer = make(activation="e4m3_tensor").half()
    x = torch.randn(2, 32, 5, 6).half()
    arguments_ = (x, layer.weight.streams, layer.bias, None, layer.problem())
    launches.capturing = True
    with pytest.raises(tw.WouldTune, match=r"problem must .*got conv .*call tilewright.torch.warm\(model\) first"):
        launches.conv(*arguments_)
    launches.capturing = False
    layer.warm(x.shape)
    launches.capturing, launches.stream = True, 7
    y = launches.conv(*arguments_)
    assert (y.float() - layer(x).float()).abs().max() < 2.0**-9 * y.float().abs().max()
    launches.capturing = True
    with pytest.raises(tw.WouldTune):  # another shape is another problem
        launches.conv(x[:1], *arguments_[1:])
    launches.capturing = False
    _cuda.forget_plans()
    assert not _cuda._conv_plans


on_device = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@on_device
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("weight", "activation"), [("int8_row", None), ("int4_row", "e4m3_tensor"), ("q4_0", "bf16")])
def test_device_results(weight, activation, last):
    layer = make(c=64, k=64, weight=weight, activation=activation, padding=1).half()
    x = torch.randn(2, 64, 14, 15).half()
    x = innermost(x) if last else x
    want = layer(x).float()
    got = copy.deepcopy(layer).cuda()(x.cuda())
    assert got.stride() == layer(x).stride()
    assert (got.cpu().float() - want).abs().max() < 0.02 * want.abs().max()


@on_device
def test_device_graph_and_compile():
    layer = make(c=64, k=64, padding=1, quant_act=16).half().cuda()
    x = torch.randn(2, 64, 14, 15, device="cuda").half()
    assert twt.warm(layer, x) == 1
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = layer(x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    with torch.no_grad():
        assert torch.equal(y, layer(x))
        assert torch.equal(torch.compile(layer, fullgraph=True)(x), layer(x))
