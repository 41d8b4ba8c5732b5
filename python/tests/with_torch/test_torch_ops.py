# SPDX-License-Identifier: Apache-2.0
"""The operators on the CPU and on fake tensors."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest
from conftest import PACKAGE
from torch_support import assert_close, decoded, expected, values

# isort: split
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.library import opcheck

import tilewright as tw
import tilewright.torch as twt
from tilewright.torch import _cpu
from tilewright.torch._spec import gemm_text

OPS = torch.ops.tilewright
WEIGHTS = [f.name for f in tw.formats() if f.name != "int32"]
ACTIVATIONS = [f.name for f in tw.formats() if f.name not in ("int32", "e4m3_b128")]
N, K = 128, 256


def gemm(w="q4_0", x="f32", y="f32", n=N, k=K, **fields):
    """A problem's text, and weights for it."""
    text = gemm_text(x, w, y, n, k, **fields)
    return text, twt.quantize(torch.randn(n, k), w)


def matrix(weight, format, rows=N, cols=K):
    """The values of streams, by the library's codecs."""
    streams = dict(zip([s for s in ("data", "scales", "global") if s in tw.codec.find(format).streams], weight))
    parts = [streams.get(s) for s in ("data", "scales", "global")]
    return np.asarray(tw.decode(tuple(parts), format, rows, cols), np.float64)


def test_importing_the_package_leaves_torch_alone():
    code = "import sys, tilewright; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(PACKAGE)}, timeout=60)


@pytest.mark.parametrize("w", WEIGHTS)
@pytest.mark.parametrize("x", [None, "q8_1", "e4m3_row"])
def test_linear_of_every_weight(w, x):
    text, weight = gemm(w, x or "f32", bias="f32")
    given, bias = torch.randn(3, K), torch.randn(N)
    y = OPS.linear(given, weight, bias, text)
    assert_close(y, expected(given, matrix(weight, w), bias, x))


@pytest.mark.parametrize("x", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_linear_of_every_activation(x, dtype):
    text, weight = gemm("q8_0", x, {torch.float32: "f32", torch.bfloat16: "bf16"}[dtype])
    given = torch.randn(5, K).to(dtype)
    assert_close(OPS.linear(given, weight, None, text), expected(given, matrix(weight, "q8_0"), None, x))


@pytest.mark.parametrize("act", ["relu", "gelu", "gelu_tanh", "silu"])
def test_epilogue(act):
    text, weight = gemm("q4_k", bias="f16", act=act, alpha=0.5)
    given, bias = torch.randn(4, K), torch.randn(N).half()
    y = OPS.linear(given, weight, bias, text)
    z = 0.5 * torch.from_numpy(values(given) @ matrix(weight, "q4_k").T) + bias.double()
    functions = {"relu": nn.functional.relu, "gelu": nn.functional.gelu, "silu": nn.functional.silu}
    want = nn.functional.gelu(z, approximate="tanh") if act == "gelu_tanh" else functions[act](z)
    assert (y - want).abs().max() < 1e-4


def test_a_factor_that_divides():
    text, weight = gemm("nvfp4", global_="div")
    given = torch.randn(2, K)
    inverse = [*weight[:2], 1 / weight[2]]
    want = OPS.linear(given, weight, None, gemm_text("f32", "nvfp4", "f32", N, K))
    assert torch.allclose(OPS.linear(given, inverse, None, text), want, rtol=1e-5, atol=1e-5)
    host = tw.Problem(text + " m=2").compute({"x": given.numpy(), "w": tuple(t.numpy() for t in inverse)})["y"]
    assert np.abs(host - want.numpy()).max() < 1e-3


@settings(max_examples=40, deadline=None)
@given(
    shape=st.lists(st.integers(0, 4), max_size=3),
    n=st.integers(1, 70),
    blocks=st.integers(1, 5),
    x=st.sampled_from([None, "q8_1", "int8_row", "f16"]),
    w=st.sampled_from(["q4_0", "q5_1", "int8_row", "e4m3", "nvfp4"]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
def test_shapes(shape, n, blocks, x, w, dtype):
    k = 32 * blocks
    y = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}[dtype]
    text, weight = gemm(w, x or y, y, n, k)
    given = torch.randn(*shape, k).to(dtype)
    out = OPS.linear(given, weight, None, text)
    assert out.shape == (*shape, n) and out.dtype == dtype
    if out.numel():
        assert_close(out, expected(given, matrix(weight, w, n, k), None, x))


def test_strides():
    text, weight = gemm(x="q8_1")
    base = torch.randn(6, 2 * K + 1)
    for x in (
        base[:, 1 : K + 1],
        base[::2, :K],
        torch.randn(K, 5).t(),
        torch.randn(K).expand(3, K),
        torch.randn(1, 1).expand(4, K),
        base[:, :K].flip(0),
    ):
        assert torch.equal(OPS.linear(x, weight, None, text), OPS.linear(x.clone().contiguous(), weight, None, text))


@pytest.mark.parametrize("w", WEIGHTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quantize_and_dequantize(w, dtype):
    x = torch.randn(N, K).to(dtype)
    streams = twt.quantize(x, w)
    f = tw.codec.find(w)
    assert [s.numel() * s.element_size() for s in streams] == [f.stream_bytes(s, N, K) for s in f.streams]
    out = twt.dequantize(streams, w, N, K)
    assert np.array_equal(values(out), decoded(x, w))
    assert torch.equal(twt.dequantize(streams, w, N, K, torch.float16), out.half())


def test_encoders():
    x = torch.randn(4, 64)
    default, other = (twt.quantize(x, "q4_0", e)[0] for e in ("ggml", "amax7"))
    assert torch.equal(twt.quantize(x, "q4_0")[0], default) and not torch.equal(default, other)
    with pytest.raises(tw.InvalidArgument, match="encoder must be .*amax7.*got nearest"):
        twt.quantize(x, "q4_0", "nearest")


@pytest.mark.parametrize("w", ["q4_0", "q6_k", "nvfp4", "e4m3_row", "e4m3_tensor", "uint4_g64"])
def test_tiles(w, monkeypatch):
    monkeypatch.setattr(_cpu, "enabled", False)  # whose kernels, which take no tiles, add in another order
    text, weight = gemm(w, "f16", "f32", pack="tiles")
    tiles = twt.pack(weight, text)
    assert all(torch.equal(a, b) for a, b in zip(twt.unpack(tiles, text), weight))
    given = torch.randn(3, K).half()
    assert torch.equal(
        OPS.linear(given, tiles, None, text), OPS.linear(given, weight, None, text.replace(" pack=tiles", ""))
    )


@pytest.mark.parametrize("w", ["q4_0", "nvfp4", "e4m3_b128", "int8_row"])
def test_opcheck(w):
    text, weight = gemm(w, "q8_1", "f16", bias="f16")
    opcheck(OPS.linear.default, (torch.randn(2, 3, K), weight, torch.randn(N).half(), text))
    opcheck(OPS.linear_grad.default, (torch.randn(2, 3, N).half(), weight, text, torch.float32))
    opcheck(OPS.quantize.default, (torch.randn(N, K), w, ""))
    opcheck(OPS.dequantize.default, (weight, w, N, K, torch.bfloat16))


def test_opcheck_of_tiles():
    text, weight = gemm("nvfp4", "f16", "f16", pack="tiles")
    opcheck(OPS.pack.default, (weight, text))
    opcheck(OPS.unpack.default, (twt.pack(weight, text), text))


def test_fake_tensors():
    text, weight = gemm(x="q8_1", y="f16")
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) for t in weight]
        y = twt.linear(torch.empty(7, 3, K), fakes, None, text)
        assert y.shape == (7, 3, N) and y.dtype == torch.float16
        with pytest.raises(tw.InvalidArgument, match="x must .*got shape"):
            twt.linear(torch.empty(7, K + 1), fakes, None, text)
    assert (
        OPS.linear(torch.empty(2, K, device="meta"), [t.to("meta") for t in weight], None, text).device.type == "meta"
    )


class Wrapped(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError("never asked")


BAD = {
    "k": (lambda x, w: (x[:, :-1], w, None), "x must .*got shape"),
    "integers": (lambda x, w: (x.long(), w, None), "x must be float32, float16 or bfloat16.*got dtype torch.int64"),
    "doubles": (lambda x, w: (x.double(), w, None), "x must .*got dtype torch.float64"),
    "a number": (lambda x, w: (3.0, w, None), "x must be a tensor.*got float"),
    "nothing": (lambda x, w: (torch.tensor(1.0), w, None), "x must .*got shape"),
    "sparse": (lambda x, w: (x.to_sparse(), w, None), "x must .*got layout torch.sparse_coo"),
    "a subclass": (lambda x, w: (x.as_subclass(Wrapped), w, None), "x must be a plain tensor.*got Wrapped"),
    "devices": (lambda x, w: (x, [t.to("meta") for t in w], None), "weight .data. must be on cpu.*got on meta"),
    "streams": (lambda x, w: (x, w[:2], None), "weight must have 3 .got 2 tensors.: data, scales, global"),
    "bytes": (lambda x, w: (x, [w[0][1:], *w[1:]], None), "weight .data. must be 16384 bytes.*got 16383 bytes"),
    "types": (lambda x, w: (x, [w[0].view(torch.int8), *w[1:]], None), "weight .data. must .*got dtype torch.int8"),
    "strides": (lambda x, w: (x, [w[0].repeat_interleave(2)[::2], *w[1:]], None), "weight .data. must .*got strides"),
    "gradients": (lambda x, w: (x, [*w[:2], w[2].clone().requires_grad_()], None), "weight .2. must .*got requires_grad"),
    "a bias": (lambda x, w: (x, w, torch.zeros(N)), "bias must .*got a tensor"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit(case):
    text, weight = gemm("nvfp4")
    arguments, message = BAD[case]
    with pytest.raises(tw.InvalidArgument, match=message):
        twt.linear(*arguments(torch.randn(2, K), weight), text)


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        (None, "bias must .*got None"),
        (torch.zeros(N - 1), "bias must .*got shape .127,."),
        (torch.zeros(N).half(), "dtype torch.float16"),
        (torch.zeros(N, device="meta"), "bias must .*got on meta"),
    ],
)
def test_a_bias_that_does_not_fit(bias, message):
    text, weight = gemm(bias="f32")
    with pytest.raises(tw.InvalidArgument, match=message):
        twt.linear(torch.randn(2, K), weight, bias, text)


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ("cast x=f32 y=q8_1 rows=1 cols=32", "gemm"),
        ("gemm x=f32 w=q4_0 y=f32 m=1 n=8 k=32", "without m"),
        ("gemm x=f32 w=q4_0 y=f32 n=8 k=32 c=f32", "without c"),
        ("gemm x=f32 w=q4_0 y=int8 n=8 k=32 y_scale=2", "without y_scale"),
        ("gemm x=f32 w=q4_0 y=e4m3 n=8 k=32", "y must be f32, f16 or bf16.*got e4m3"),
        ("gemm x=f32 w=q4_0 y=f32 n=8 k=33", "k must .*got 33"),
        ("gemm x=f32 w=q9 y=f32 n=8 k=32", "w must .*got q9"),
    ],
)
def test_problems_that_are_none(problem, message):
    with pytest.raises(tw.TilewrightError, match=message):
        twt.linear(torch.randn(1, 32), [torch.zeros(8 * 18, dtype=torch.uint8)], None, problem)


@pytest.mark.parametrize("format", ["q4_0", "e4m3_row"])
def test_bad_arguments_of_the_codecs(format):
    with pytest.raises(tw.InvalidArgument, match="x must .*got dtype"):
        twt.quantize(torch.zeros(2, 64, dtype=torch.int32), format)
    streams = twt.quantize(torch.zeros(2, 64), format)
    with pytest.raises(tw.InvalidArgument, match="dtype must .*got torch.float64"):
        twt.dequantize(streams, format, 2, 64, torch.float64)
    with pytest.raises(tw.InvalidArgument, match="bytes"):
        twt.dequantize(streams, format, 3, 64)
    with pytest.raises(tw.InvalidArgument, match="a gemm with pack=tiles"):
        twt.pack(streams, gemm_text("f16", "q4_0", "f32", 64, 64))


def test_gradients():
    text, weight = gemm("q4_0", bias="f32")
    w = torch.from_numpy(matrix(weight, "q4_0")).float()
    x, bias = torch.randn(3, 2, K, requires_grad=True), torch.randn(N, requires_grad=True)
    dy = torch.randn(3, 2, N)
    got = torch.autograd.grad(twt.linear(x, weight, bias, text), (x, bias), dy)
    want = torch.autograd.grad(nn.functional.linear(x, w, bias), (x, bias), dy)
    for a, b in zip(got, want):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-4)


def test_gradcheck():
    """Of a function that is linear in x, finite differences are exact but for rounding."""
    text, weight = gemm("q8_0", bias="f32", n=3, k=32)
    x, bias = torch.randn(2, 32, requires_grad=True), torch.randn(3, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that float32 is not precise enough, which eps makes up for
        assert torch.autograd.gradcheck(
            lambda x, b: twt.linear(x, weight, b, text), (x, bias), eps=0.5, atol=1e-4, rtol=1e-4, fast_mode=True
        )


def test_the_gradient_goes_straight_through_the_quantization():
    text, weight = gemm("q4_0", "q8_1", "bf16")
    x = torch.randn(4, K, dtype=torch.bfloat16, requires_grad=True)
    dy = torch.randn(4, N, dtype=torch.bfloat16)
    twt.linear(x, weight, None, text).backward(dy)
    assert x.grad.dtype == torch.bfloat16
    want = values(dy) @ matrix(weight, "q4_0")
    assert np.abs(values(x.grad) - want).max() < 2.0**-7 * np.abs(want).max()


def test_the_gradient_of_an_activation():
    text, weight = gemm("q4_0", act="gelu", alpha=0.5)
    x = torch.randn(4, K, requires_grad=True)
    w = torch.from_numpy(matrix(weight, "q4_0")).float()
    y = twt.linear(x, weight, None, text)
    want = nn.functional.gelu(0.5 * nn.functional.linear(x, w))
    assert torch.allclose(y, want, atol=1e-4)
    (got,) = torch.autograd.grad(y.sum(), x)
    (wanted,) = torch.autograd.grad(want.sum(), x)
    assert torch.allclose(got, wanted, atol=1e-4)


def test_gradients_are_once_differentiable():
    text, weight = gemm("q4_0")
    x, dy = torch.randn(2, K, requires_grad=True), torch.randn(2, N, requires_grad=True)
    (g,) = torch.autograd.grad(twt.linear(x, weight, None, text), x, dy, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        g.sum().backward()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile(backend):
    text, weight = gemm("nvfp4", "e4m3_row", bias="f32", act="silu")
    bias = torch.randn(N)

    def f(x):
        return twt.linear(x * 2, weight, bias, text) + 1

    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, backend=backend, dynamic=True)
    for rows in (1, 3, 8):
        x = torch.randn(rows, K, requires_grad=True)
        y, want = compiled(x), f(x)
        assert torch.allclose(y, want, atol=1e-6)
        grads = [torch.autograd.grad(out.sum(), x)[0] for out in (y, want)]
        assert torch.allclose(*grads, atol=1e-6)
    # Formats are opaque, so whole round trips compile too.
    trip = torch.compile(
        lambda x: twt.dequantize(twt.quantize(x, "q4_0"), "q4_0", 2, 64), fullgraph=True, backend=backend
    )
    x = torch.randn(2, 64)
    assert np.array_equal(values(trip(x)), decoded(x, "q4_0"))
    torch._dynamo.reset()


def test_autocast_inside_does_not_round():
    """The operator's arithmetic is its problem's, whatever autocast says around it."""
    text, weight = gemm("q8_0")
    x = torch.randn(3, K)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = OPS.linear(x, weight, None, text)
    assert torch.equal(y, OPS.linear(x, weight, None, text))


def test_any_sequence_of_streams():
    import collections

    text, weight = gemm("nvfp4")
    x = torch.randn(2, K)
    want = twt.linear(x, weight, None, text)
    for given_ in (tuple(weight), collections.deque(weight)):
        assert torch.equal(twt.linear(x, given_, None, text), want)


def test_threads():
    from concurrent.futures import ThreadPoolExecutor

    text, weight = gemm("q4_k", "q8_1")
    inputs = [torch.randn(3, K) for _ in range(16)]
    want = [OPS.linear(x, weight, None, text) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda x: OPS.linear(x, weight, None, text), inputs))
    assert all(torch.equal(a, b) for a, b in zip(got, want))


# ---- gradients, transforms and counters of the operators themselves


def layers_for_operators():
    linear = twt.QuantizedLinear.from_linear(torch.nn.Linear(64, 32), "q4_0", "q8_1")
    conv = twt.QuantizedConv2d.from_conv(torch.nn.Conv2d(16, 32, 3, padding=1), "int8_row")
    return [(linear, torch.randn(5, 64)), (conv, torch.randn(2, 16, 6, 6))]


@pytest.mark.parametrize("which", (0, 1))
@pytest.mark.parametrize("act", (None, "silu"))
def test_an_operator_called_directly_has_its_gradient(which, act):
    layer, x = layers_for_operators()[which]
    text = (layer.problem() if which == 0 else layer.problem(torch.float32)) + (f" act={act}" if act else "")
    grads = []
    for function in (twt.linear, torch.ops.tilewright.linear) if which == 0 else (twt.conv, torch.ops.tilewright.conv):
        more = (text,) if which == 0 else ((text,) if function is twt.conv else (None, text))
        given, bias = x.clone().requires_grad_(), layer.bias.detach().clone().requires_grad_()
        function(given, layer.weight.streams, bias, *more).square().sum().backward()
        grads.append((given.grad, bias.grad))
    assert all(torch.equal(a, b) and a.abs().sum() > 0 for a, b in zip(*grads))


@pytest.mark.parametrize("which", (0, 1))
def test_vmap(which):
    layer, x = layers_for_operators()[which]
    batch = torch.stack([x, 2 * x, -x], 1)
    together = torch.vmap(layer, in_dims=1)(batch)
    torch.testing.assert_close(together, torch.stack([layer(one) for one in batch.unbind(1)]), rtol=1e-5, atol=1e-5)
    loss = lambda one: layer(one).square().sum()
    grads = torch.vmap(torch.func.grad(loss))(x[:, None] if which else x)
    given = x.clone().requires_grad_()
    layer(given).square().sum().backward()
    torch.testing.assert_close(grads.reshape(x.shape), given.grad, rtol=1e-4, atol=1e-4)


def test_flops_are_counted_as_pytorchs():
    for plain, x in (
        (torch.nn.Linear(64, 32), torch.randn(5, 64)),
        (torch.nn.Conv2d(16, 32, 3), torch.randn(2, 16, 6, 6)),
    ):
        kind = twt.QuantizedLinear.from_linear if plain.weight.dim() == 2 else twt.QuantizedConv2d.from_conv
        counts = []
        for module in (plain, kind(plain, "int8_row")):
            with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
                module(x.clone().requires_grad_()).sum().backward()
            counts.append(counter.get_total_flops())
        # The gradient of the weight is PyTorch's alone.
        assert counts[0] * 2 == counts[1] * 3
