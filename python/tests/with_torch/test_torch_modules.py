# SPDX-License-Identifier: Apache-2.0
"""Layers: that they compute what they say, keep their bytes through everything that happens to modules, and replace a
model's own."""

from __future__ import annotations

import copy
import io
import pickle
import re

import numpy as np
import pytest
from torch_support import assert_close, expected, values

# isort: split
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tilewright as tw
import tilewright.torch as twt

WEIGHTS = [f.name for f in tw.formats() if f.name != "int32"]
ACTIVATIONS = [
    None,
    "f16",
    "bf16",
    "q8_1",
    "q8_0",
    "int8",
    "int8_row",
    "int8_asym_row",
    "int8_tensor",
    "e4m3",
    "e4m3_row",
]
ACTIVATIONS += ["e4m3_tensor", "e4m3_g128", "e5m2", "int4_row", "nvfp4", "mxfp8"]
N, K = 128, 256


def make(weight="q4_0", activation="q8_1", bias=True, n=N, k=K, **more):
    return twt.QuantizedLinear.from_linear(nn.Linear(k, n, bias), weight, activation, **more)


def same(a, b):
    return all(torch.equal(s, t) for s, t in zip(a.weight.stored(), b.weight.stored()))


# ---- what they compute


@pytest.mark.parametrize("weight", WEIGHTS)
def test_the_product_of_what_is_encoded(weight):
    """For every format of weights and schemes of activations in turn, so that each meets a third of the others."""
    linear = nn.Linear(K, N)
    encoded = twt.QuantizedWeight.from_float(linear.weight, weight)
    for activation in {None, *ACTIVATIONS[WEIGHTS.index(weight) % 3 :: 3]}:
        layer = twt.QuantizedLinear.from_weight(encoded, linear.bias, activation=activation)
        x = torch.randn(2, 3, K)
        y = layer(x)
        assert_close(y, expected(x, values(layer.dequantize()), layer.bias, activation))
        # The layer is also what F.linear makes of the two, to single precision's rounding.
        q = x if activation is None else activations(x, activation)
        want = nn.functional.linear(q, layer.dequantize(), layer.bias)
        assert (y - want).abs().max() <= 1e-5 * want.abs().max() + 1e-6


def activations(x, format):
    rows = x.reshape(-1, x.shape[-1])
    return twt.dequantize(twt.quantize(rows, format), format, *rows.shape).reshape(x.shape)


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 40),
    blocks=st.integers(1, 4),
    rows=st.lists(st.integers(0, 3), max_size=2),
    weight=st.sampled_from(["q4_0", "q5_1", "e4m3_row", "int4_g64"]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
def test_shapes(n, blocks, rows, weight, dtype):
    layer = make(weight, "q8_1", n=n, k=64 * blocks).to(dtype)
    x = torch.randn(*rows, 64 * blocks).to(dtype)
    y = layer(x)
    assert y.dtype == dtype and y.shape == (*rows, n)
    if y.numel():
        assert_close(y, expected(x, values(layer.dequantize()), layer.bias, "q8_1"))


def test_weights_are_the_encoders():
    linear = nn.Linear(K, N)
    for encoder in ("ggml", "amax7"):
        layer = twt.QuantizedLinear.from_linear(linear, "q4_0", encoder=encoder)
        wanted = tw.decode(tw.encode(linear.weight.detach(), "q4_0", encoder))
        assert np.array_equal(layer.dequantize().numpy(), wanted)
    half = twt.QuantizedLinear.from_float(linear.weight.half(), format="q8_0")
    assert half.dtype == torch.float16 and half.bias is None
    double = twt.QuantizedLinear.from_float(linear.weight.double(), linear.bias, format="q8_0")
    assert double.bias is linear.bias and double.dtype == torch.float32


def test_another_dtype_of_x():
    layer = make(activation=None)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = torch.randn(2, K).to(dtype)
        assert_close(layer(x), expected(x, values(layer.dequantize()), layer.bias.to(dtype), None))


def test_autocast():
    layer = make()
    x = torch.randn(2, K)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
        assert y.dtype == nn.functional.linear(x, layer.dequantize()).dtype == torch.bfloat16
    assert torch.equal(y, layer(x.bfloat16()))


def test_training_a_bias():
    layer = make()
    x = torch.randn(4, K, requires_grad=True)
    layer(x).square().sum().backward()
    assert layer.bias.grad is not None and x.grad is not None
    assert [name for name, _ in layer.named_parameters()] == ["bias"]
    assert not any(t.requires_grad for t in layer.weight.streams)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile(backend):
    model = nn.Sequential(make(), nn.GELU(), make("nvfp4", "e4m3_row", n=8, k=N))
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(3, K, requires_grad=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            y, want = compiled(x), model(x)
        assert y.dtype == dtype and torch.equal(y, want)
        assert torch.equal(*(torch.autograd.grad(out.float().sum(), x)[0] for out in (y, want)))
    torch._dynamo.reset()


def test_order():
    linear = nn.Linear(K, N)
    order = torch.randperm(K)
    weight = twt.QuantizedWeight.from_float(linear.weight[:, order], "q4_0")
    layer = twt.QuantizedLinear.from_weight(weight, linear.bias, order=order)
    x = torch.randn(3, K)
    want = nn.functional.linear(x, layer.dequantize(), linear.bias)
    assert torch.allclose(layer(x), want, atol=1e-5)
    assert (layer.dequantize() - linear.weight).abs().max() < 0.02
    fresh = twt.QuantizedLinear(K, N)
    fresh.load_state_dict(layer.state_dict())
    assert torch.equal(fresh(x), layer(x))
    for bad in (order[:-1], torch.zeros(K, dtype=torch.long), order.float() + 0.5, order + 1):
        with pytest.raises(tw.InvalidArgument, match="order"):
            twt.QuantizedLinear.from_weight(weight, order=bad)
        with pytest.raises(RuntimeError, match="order: not each of 0 to 255 once"):
            twt.QuantizedLinear(K, N).load_state_dict({**layer.state_dict(), "order": bad})
    with pytest.raises(tw.InvalidArgument, match="x must .*got shape"):
        layer(torch.randn(3, K + 1))


def test_to_linear():
    layer = make()
    linear = layer.eval().to_linear()
    assert torch.equal(linear.weight, layer.dequantize()) and torch.equal(linear.bias, layer.bias)
    assert not linear.training and layer.to_linear(torch.float16).weight.dtype == torch.float16


# ---- what happens to modules


@pytest.mark.parametrize("weight", ["q4_0", "nvfp4", "e4m3_b128", "int8_row"])
@pytest.mark.parametrize("strict", [True, False])
def test_state_dict(weight, strict):
    layer = make(weight)
    state = layer.state_dict()
    assert all(value.dtype in (torch.uint8, torch.float32) for value in state.values())
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    fresh = twt.QuantizedLinear(K, N, weight=weight, activation="q8_1")
    fresh.load_state_dict(torch.load(file, weights_only=True), strict=strict)
    x = torch.randn(2, K)
    assert torch.equal(fresh(x), layer(x))
    on_meta = twt.QuantizedLinear(K, N, weight=weight, activation="q8_1", device="meta")
    on_meta.load_state_dict(state, assign=True)
    assert torch.equal(on_meta(x), layer(x))


def test_a_state_dict_of_another_format():
    model = nn.Sequential(make("q4_k"))
    for other in (make("q5_k"), make("q4_k", n=2 * N), make("q4_k", k=2 * K)):
        with pytest.raises(RuntimeError, match=r"0.weight: the state dict has 'q4_k rows=128 cols=256 layout=\d'"):
            nn.Sequential(other).load_state_dict(model.state_dict())
    with pytest.raises(RuntimeError, match=r"Missing key.*weight.format"):
        make().load_state_dict(nn.Linear(K, N).state_dict())
    with pytest.raises(RuntimeError, match="Unexpected key.*weight.other"):
        make().load_state_dict({**make().state_dict(), "weight.other": torch.zeros(1)})


def test_conversions_leave_the_streams():
    for convert in (
        lambda m: m.half(),
        lambda m: m.to(torch.bfloat16),
        lambda m: m.double(),
        lambda m: m.type(torch.float16),
        lambda m: m.to("cpu", torch.float16),
        lambda m: m.eval().float(),
    ):
        layer = make("nvfp4")
        converted = convert(copy.deepcopy(layer))
        assert same(layer, converted)
        assert converted.weight.global_scale.dtype == torch.float32
    half = make().half()
    assert half.bias.dtype == half.dtype == torch.float16
    assert half(torch.randn(2, K).half()).dtype == torch.float16


def test_meta():
    layer = make("nvfp4").to("meta")
    assert layer.weight.device.type == "meta"
    assert layer(torch.empty(5, K, device="meta")).shape == (5, N)
    with pytest.raises(tw.InvalidArgument, match="weight .data. must be on cpu.*got on meta"):
        layer(torch.randn(5, K))
    assert layer.to_empty(device="cpu").weight.data.shape == make("nvfp4").weight.data.shape


@pytest.mark.parametrize("duplicate", [copy.deepcopy, copy.copy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies(duplicate):
    layer = make("nvfp4", "e4m3_row")
    other = duplicate(layer)
    x = torch.randn(2, K)
    assert torch.equal(other(x), layer(x)) and other.problem() == layer.problem()


def test_repr():
    text = str(make(accum=None))
    assert "in_features=256, out_features=128, bias=True, weight=q4_0, activation=q8_1" in text
    assert "q4_0, 128 x 256, 18432 bytes" in text
    assert make().problem() == "gemm x=q8_1 w=q4_0 y=f32 n=128 k=256 bias=f32 weights=constant"
    fast = make("e4m3_row", "e4m3_row", accum="fast")
    assert "accum=fast" in str(fast) and "accum=fast" in fast.problem(torch.float16)


def test_a_weight_is_no_tensor():
    layer = make()
    with pytest.raises(tw.InvalidArgument, match="weight must .*got a QuantizedWeight, passed to linear"):
        nn.functional.linear(torch.randn(2, K), layer.weight)
    assert layer.weight.shape == (N, K) and layer.weight.device.type == "cpu" and not layer.weight.requires_grad


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weight": "q4"}, "q4"),
        ({"activation": "q9"}, "q9"),
        ({"activation": "e4m3_b128"}, "e4m3_b128"),
        ({"in_features": 257}, "cols must be a multiple of 32.*got 257"),
        ({"in_features": 32, "weight": "f16", "activation": "e4m3_g128"}, "k must .*got 32"),
        ({"accum": "fast"}, "accum"),
        ({"dtype": torch.float64}, "dtype"),
    ],
)
def test_layers_that_cannot_be(arguments, message):
    given = {"in_features": K, "out_features": N, "weight": "q4_0", **arguments}
    with pytest.raises(tw.TilewrightError, match=message):
        twt.QuantizedLinear(**given)


def test_values_that_cannot_be_encoded():
    for weight in (torch.zeros(3, K, dtype=torch.int8), torch.zeros(K), torch.zeros(2, 3, K)):
        with pytest.raises(tw.InvalidArgument, match="weight"):
            twt.QuantizedLinear.from_float(weight)
    with pytest.raises(tw.InvalidArgument, match="encoder"):
        make(encoder="best")
    with pytest.raises(tw.InvalidArgument, match="bias"):
        twt.QuantizedLinear.from_float(torch.zeros(3, K), torch.zeros(4))


# ---- W4A8


def test_w4a8():
    """compatibility.md's contract: cosine above 0.99 on uniform data, K = 2048."""
    linear = nn.Linear(2048, 64, bias=False)
    nn.init.uniform_(linear.weight, -1, 1)
    layer = twt.W4A8Linear.from_linear(linear)
    assert (layer.weight.format, layer.activation) == ("nvfp4", "e4m3_row")
    x = torch.rand(16, 2048) * 2 - 1
    assert_close(layer(x), expected(x, values(layer.dequantize()), None, "e4m3_row"))
    assert torch.cosine_similarity(layer(x).flatten(), linear(x).flatten(), dim=0) > 0.99
    fresh = twt.W4A8Linear(2048, 64)
    fresh.load_state_dict(layer.state_dict())
    assert torch.equal(fresh(x), layer(x))


# ---- replacing


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate_proj = nn.Linear(width, 2 * width, bias=False)
        self.up_proj = nn.Linear(width, 2 * width, bias=False)
        self.down_proj = nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        return self.down_proj(nn.functional.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width) for _ in range(4))
        self.mlp = Mlp(width)

    def forward(self, x):
        h = self.norm(x)
        heads = [p(h).unflatten(-1, (4, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)]
        x = x + self.o_proj(nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class Transformer(nn.Module):
    def __init__(self, width=64, tied=False):
        super().__init__()
        self.embed = nn.Embedding(50, width)
        self.layers = nn.Sequential(Block(width), Block(width))
        self.lm_head = nn.Linear(width, 50, bias=False)
        if tied:
            self.lm_head.weight = self.embed.weight

    def forward(self, tokens):
        return self.lm_head(self.layers(self.embed(tokens)))


def test_rules():
    model = Transformer().eval()
    tokens = torch.randint(50, (2, 7))
    want = model(tokens)
    report = twt.replace_linears(
        model,
        [
            ("lm_head", None),
            (re.compile(r"\.[qk]_proj$"), {"weight": "q8_0", "activation": "q8_1"}),
            (lambda name: name.endswith("v_proj"), {"weight": "f16"}),
            ("layers.0.*", {"weight": "q5_1"}),
            ("*.down_proj", {"weight": "q6_k"}),
        ],
    )
    kinds = {name: m.weight.format for name, m in model.named_modules() if isinstance(m, twt.QuantizedLinear)}
    assert kinds["layers.0.q_proj"] == kinds["layers.1.k_proj"] == "q8_0"
    assert kinds["layers.1.v_proj"] == "f16" and kinds["layers.0.mlp.down_proj"] == "q5_1"
    assert set(report.replaced) == set(kinds) and "layers.1.mlp.up_proj" not in kinds
    assert report.left["lm_head"] == "by the rules"
    assert "256" in report.left["layers.1.mlp.down_proj"]  # its k is 128, no multiple of q6_k's block
    assert "left alone: by the rules" in str(report) and f"{len(kinds)} replaced" in str(report)
    assert report.bytes_after < report.bytes_before
    assert torch.cosine_similarity(model(tokens).flatten(), want.flatten(), dim=0) > 0.999
    again = Transformer()
    twt.replace_linears(again, [("*", {})])
    with pytest.raises(RuntimeError, match="state dict has"):
        again.load_state_dict(model.state_dict())


def test_tied_weights():
    model = Transformer(tied=True)
    report = twt.replace_linears(model, [("*", {"weight": "q8_0"})])
    assert "shares its weight with embed" in report.left["lm_head"]
    assert model.lm_head.weight is model.embed.weight

    model = nn.ModuleDict({"a": nn.Linear(64, 64), "b": nn.Linear(64, 64), "c": nn.Linear(64, 64)})
    model["b"].weight = model["a"].weight
    model["d"] = model["c"]
    report = twt.replace_linears(model, [("*", {"weight": "q8_0"})])
    assert model["a"].weight is model["b"].weight and model["a"].bias is not model["b"].bias
    assert model["c"] is model["d"] and len(report.replaced) == 3
    assert report.bytes_before == 2 * 64 * 64 * 4
    assert copy.deepcopy(model).half()["a"].weight.data.dtype == torch.uint8

    model = nn.ModuleDict({"a": nn.Linear(64, 64), "b": nn.Linear(64, 64)})
    model["b"].weight = model["a"].weight
    report = twt.replace_linears(model, [("a", {"weight": "q8_0"}), ("b", {"weight": "q4_0"})])
    assert not report.replaced and "not replaced alike" in report.left["a"]


def test_what_is_left_alone():
    model = nn.ModuleDict({"attention": nn.MultiheadAttention(64, 4), "odd": nn.Linear(33, 5)})
    model["wide"] = nn.Linear(64, 5).double()
    report = twt.replace_linears(model, [("*", {})])
    assert not report.replaced
    assert "NonDynamicallyQuantizableLinear" in report.left["attention.out_proj"]
    assert "33" in report.left["odd"] and "float64" in report.left["wide"]
    for rules in (
        [("*", {"weight": "q4"})],
        [("*", {"encoder": "x"})],
        [("*", {"activation": "x"})],
        [("*", {"wait": "q4_0"})],
    ):
        with pytest.raises(tw.InvalidArgument):
            twt.replace_linears(model, rules)
    with pytest.raises(tw.InvalidArgument, match="model"):
        twt.replace_linears(nn.Linear(4, 4), [])


def test_torchs_own_transformer():
    """Its fast path takes weights for tensors; a quantized one makes it take the other."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval()
    x = torch.randn(2, 5, 64)
    with torch.no_grad():
        want = layer(x)
        report = twt.replace_linears(layer, [("*", {"weight": "q8_0"})])
        assert set(report.replaced) == {"linear1", "linear2"}
        assert (layer(x) - want).abs().max() < 0.05


def test_mlp_with_w4a8():
    model = Transformer()
    assert twt.replace_mlp_with_w4a8(model) == 6
    assert all(isinstance(block.mlp.up_proj, twt.W4A8Linear) for block in model.layers)
    assert type(model.layers[0].q_proj) is nn.Linear
    assert twt.replace_mlp_with_w4a8(model) == 0
    assert model(torch.randint(50, (1, 3))).isfinite().all()


def test_names_that_are_wrong_and_everything_in_one_line():
    linear = torch.nn.Linear(64, 32)
    for options, message in (
        ({"activation": "fp8"}, r"activation must be e4m3_row \(did you mean that\?\).*got fp8"),
        ({"weight": "q4_o"}, "weight must be q4_.* or .*did you mean.*got q4_o"),
    ):
        with pytest.raises(tw.InvalidArgument, match=message):
            twt.replace_linears(torch.nn.Sequential(linear), [("*", options)])
    with pytest.raises(tw.InvalidArgument, match="activation must .*got fp8"):
        twt.QuantizedLinear.from_linear(linear, "q4_0", "fp8")
    for rules in ([("*", "q4_0")], [("*",)], ["*"]):
        with pytest.raises(tw.InvalidArgument, match=r"rules must .*\(which, options or None\)"):
            twt.replace_linears(torch.nn.Sequential(linear), rules)
    kinds = []
    for rules in ("q8_0", {"1": None, "*": {"weight": "q8_0"}}):
        model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Linear(32, 32))
        twt.replace_linears(model, rules)
        kinds.append([type(layer) for layer in model])
    assert kinds == [[twt.QuantizedLinear] * 2, [twt.QuantizedLinear, torch.nn.Linear]]
    assert type(twt.W4A8Linear.from_linear(linear)) is twt.W4A8Linear
    weight = twt.QuantizedLinear.from_linear(linear).weight
    assert (weight.dtype, weight.numel(), weight.size(), weight.size(0)) == (torch.uint8, 2048, (32, 64), 32)
