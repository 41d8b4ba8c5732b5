# SPDX-License-Identifier: Apache-2.0
"""Linear layers on this machine's CPU: kernels where w has panels, PyTorch on decoded operands elsewhere."""

import copy
import ctypes
import gc
import os
import subprocess
import sys
import warnings

import pytest
import tilewright as tw
import tilewright.torch as twt
import torch
import torch.utils.flop_counter
from tilewright.torch import QuantizedLinear, _cpu, _stable, linear, ops, pack, unpack
from torch_support import assert_close, expected, values

_PATHS = {"PYTHONPATH": os.pathsep.join(sys.path)}

pytestmark = pytest.mark.skipif(tw.Device.cpu(1).arch == "x86-64", reason="this CPU has no kernels")


@pytest.fixture(autouse=True, params=["python", "stable"])
def kernels(request, monkeypatch):
    """Counts what kernels compute, launched by Python alone or by libtilewright_torch where it can."""
    calls = []
    run = _cpu.linear
    monkeypatch.setattr(_cpu, "linear", lambda *a: calls.append("python") or run(*a))
    if request.param == "python":
        monkeypatch.setattr(_stable, "add_cpu", lambda *a: None)
    elif _stable.info().ops != "stable":
        pytest.skip(f"needs libtilewright_torch: {_stable.info().why}")
    else:
        at, c = ctypes.c_void_p, tw._c.lib.cdll
        prototype = ctypes.CFUNCTYPE(ctypes.c_int32, at, at, at, at)
        launch = prototype(ctypes.cast(c.tw_layer_launch_gemm, at).value)
        counted = prototype(lambda *a: calls.append("stable") or launch(*a))
        _stable.bind(counted, None, None, None)
    _cpu.forget()
    yield calls
    _cpu.forget()
    if request.param == "stable":
        _stable._library.tilewright_torch_bind(_stable._Functions())  # as it was
        _stable._bound = False


def plain(layer, x):
    """By PyTorch, on decoded operands."""
    _cpu.enable(False)
    try:
        return layer(x)
    finally:
        _cpu.enable(True)


def layer_of(weight="q4_0", activation="q8_1", n=48, k=256, bias=True, dtype=torch.float32):
    torch.manual_seed(0)
    layer = torch.nn.Linear(k, n, bias=bias, dtype=dtype)
    return QuantizedLinear.from_linear(layer, weight=weight, activation=activation)


def close(a, b, tolerance=1e-5):
    torch.testing.assert_close(a.float(), b.float(), rtol=0, atol=tolerance * b.abs().max().item())


@pytest.mark.parametrize("weight", ("q4_0", "q8_0", "q4_k", "q5_k", "q6_k"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16))
def test_formats(kernels, weight, dtype):
    layer = layer_of(weight, dtype=dtype)
    for rows in (1, 3, 33):
        x = torch.randn(rows, 256).to(dtype)
        y = layer(x)
        assert y.dtype == dtype and y.shape == (rows, 48)
        close(y, plain(layer, x), 1e-5 if dtype == torch.float32 else 1e-2)
    assert len(kernels) == 3


def test_shapes_and_strides(kernels):
    layer = layer_of(bias=False)
    x = torch.randn(256, 2, 5).movedim(0, -1)
    close(layer(x), plain(layer, x))
    assert layer(torch.empty(0, 256)).shape == (0, 48)
    odd = torch.randn(257)[1:].reshape(1, 256)  # not on 16 bytes
    close(layer(odd), plain(layer, odd))
    assert len(kernels) == 2


@pytest.mark.parametrize("act", ("relu", "gelu", "gelu_tanh", "silu"))
def test_activations(kernels, act):
    layer = layer_of(bias=False)
    text = layer.problem() + f" act={act}"
    x = torch.randn(4, 256)
    y = linear(x, layer.weight.streams, None, text)
    assert len(kernels) == 1
    _cpu.enable(False)
    try:
        close(y, linear(x, layer.weight.streams, None, text))
    finally:
        _cpu.enable(True)


@pytest.mark.parametrize(
    "activation, weight, n, why",
    (
        (None, "nf4", 48, "no panels"),
        ("q8_1", "nf4", 48, "no panels"),
        ("q8_1", "q4_0", 40, "a multiple of 16"),
        ("mxfp8", "q4_0", 48, "not supported for x=mxfp8"),
    ),
)
def test_a_layer_without_kernels_is_decoded_once_and_says_why(kernels, monkeypatch, activation, weight, n, why):
    _cpu.forget()
    layer, x = layer_of(weight, activation, n=n), torch.randn(3, 256)
    decodes, decode = [], ops.codec.decode
    monkeypatch.setattr(ops.codec, "decode", lambda *a: len(a) > 1 and decodes.append(1) or decode(*a))
    with pytest.warns(UserWarning, match=f"w={weight} .*{why}") as found:
        y = layer(x)
    assert len(found) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(layer(x), y) and torch.equal(layer_of(weight, activation, n=n)(x), y)
    assert kernels == [] and len(decodes) == 2  # one for each layer
    layer.load_state_dict({name: value.clone() for name, value in layer.state_dict().items()})
    assert torch.equal(layer(x), y) and len(decodes) == 3  # written since


def test_decoded_weights_stay_within_their_limit(kernels):
    _cpu.forget()
    twt.set_decoded_limit(48 * 256 * 4)
    try:
        first, second, x = layer_of("nf4", None), layer_of("nf4", None), torch.randn(3, 256)
        with pytest.warns(UserWarning, match="no panels"):
            y = first(x)
        with pytest.warns(UserWarning, match=r"decoded at every call.*set_decoded_limit\(\)"):
            assert torch.equal(second(x), y)
        assert torch.equal(second(x), y)
        assert [data is first.weight.data for data in _cpu._decoded] == [True]
    finally:
        twt.set_decoded_limit(_cpu.DECODED_BYTES)
    with pytest.raises(tw.InvalidArgument, match="bytes must .*got -1"):
        twt.set_decoded_limit(-1)


def test_decoded_weights_go_with_their_layers():
    twt.set_decoded_limit(48 * 256 * 4)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            first, second, x = layer_of("nf4", None), layer_of("nf4", None), torch.randn(3, 256)
            first(x), second(x)
            del first
            gc.collect()
            second(x)
        assert [data is second.weight.data for data in _cpu._decoded] == [True]
    finally:
        twt.set_decoded_limit(_cpu.DECODED_BYTES)


@pytest.mark.parametrize(
    "activation, weight",
    (
        ("int8_row", "int8_row"),
        ("q8_1", "int4_g64"),
        ("q8_1", "uint4_g128"),
        ("q8_1", "q3_k"),
        ("int8_row", "ternary_row"),
        ("e4m3_row", "e4m3_row"),
        ("e4m3_row", "e4m3_b128"),
    ),
)
def test_byte_and_group_formats_have_kernels(kernels, activation, weight):
    layer, x = layer_of(weight, activation), torch.randn(5, 256)
    close(layer(x), plain(layer, x), 1e-3)  # a code of x that rounds the other way
    assert len(kernels) == 1 and "reference" not in layer.cpu_kernel(5)


@pytest.mark.parametrize("weight", ("q4_0", "q4_k", "q6_k", "iq4_nl", "int4_g128", "uint4_g128", "int8_row", "nvfp4"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16))
def test_exact_x_by_codes_has_kernels(kernels, weight, dtype):
    layer = layer_of(weight, None).to(dtype)
    for rows in (1, 5, 40):
        x = torch.randn(rows, 256, dtype=dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            y = layer(x)
        assert_close(y, expected(x, values(layer.dequantize()), layer.bias, None, dtype))
    assert len(kernels) == 3 and layer.weight.data not in _cpu._decoded


@pytest.mark.parametrize("weight", ("e4m3_row", "e4m3_tensor", "e4m3_b128", "e4m3"))
@pytest.mark.parametrize("activation, dtype", ((None, torch.float32), (None, torch.bfloat16), ("bf16", torch.float32)))
def test_exact_x_by_fp8_weights_has_kernels(kernels, weight, activation, dtype):
    """Nothing is decoded and nothing warns; sums are within the bound of docs/reference/numerics.md."""
    _cpu.forget()
    layer = layer_of(weight, activation).to(dtype)
    x = torch.randn(5, 256, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = layer(x)
    assert len(kernels) == 1 and "cpu_floats" in layer.cpu_kernel(5, dtype) and layer.weight.data not in _cpu._decoded
    assert_close(y, expected(x, values(layer.dequantize()), layer.bias, activation, dtype))


def test_no_dispatcher_where_nothing_would_see_the_call(kernels, monkeypatch):
    """If the operator is Python's, since the dispatcher's call of Python takes longer than a small layer."""
    layer, x = layer_of(), torch.randn(2, 256)
    seen = []
    op = ops._LINEAR_OP
    monkeypatch.setattr(ops, "_BY_PYTHON", True)
    monkeypatch.setattr(ops, "_LINEAR_OP", lambda *a: seen.append(1) or op(*a))
    with torch.no_grad():
        y = layer(x)
        assert seen == []
        with torch.utils.flop_counter.FlopCounterMode(display=False):
            assert torch.equal(layer(x), y)
        assert seen == [1]
        traced = torch.jit.trace(layer, x, check_trace=False)
        assert seen == [1, 1] and torch.equal(traced(2 * x), layer(2 * x))


def test_tune_and_prewarm_say_why_nothing_is_done():
    model = torch.nn.Sequential(layer_of("nf4", "q8_1"), torch.nn.ReLU())
    text = str(twt.tune(model, torch.randn(1, 256), device="cpu", budget_seconds=5))
    assert " 0 problems tuned" in text and "w=nf4 has no panels" in text
    assert "no quantized layer" in str(twt.tune(torch.nn.ReLU(), torch.randn(1, 256), device="cpu"))
    report = twt.prewarm(model, torch.randn(1, 256), "x86-64-v3")
    assert report.failed == 1 and "w=nf4 has no panels" in report.failures[0]


def test_prewarm_for_a_cpu_compiles_its_kernels(tmp_path):
    try:
        tw.Engine(cache=":memory:").prewarm([_cpu.wanted(layer_of().problem(), torch.float32)], ["x86-64-v3"], top=1)
    except tw.LibraryMissing:
        pytest.skip("there is no libLLVM")
    engine = tw.Engine(cache=str(tmp_path / "cache.db"))
    twt.set_engine(engine)
    try:
        report = twt.prewarm(layer_of(), torch.randn(1, 256), ["x86-64-v3"], top=1)
        assert report.compiled > 0 and report.failures == ()
    finally:
        twt.set_engine(None)


def test_weights_are_packed_once_and_again_when_written(kernels, monkeypatch):
    packs = []
    run = ops.pack
    monkeypatch.setattr(ops, "pack", lambda *a, **k: packs.append(1) or run(*a, **k))
    layer, other = layer_of(), layer_of()
    x = torch.randn(2, 256)
    first = layer(x)
    layer(x)
    assert len(packs) == 1
    with torch.no_grad():
        state = copy.deepcopy(other.state_dict())
        state["weight.data"] = torch.roll(state["weight.data"], 1, 0)
    layer.load_state_dict(state)
    assert len(packs) == 1
    second = layer(x)
    assert len(packs) == 2 and not torch.equal(first, second)
    close(second, plain(layer, x))
    copied = copy.deepcopy(layer)
    assert torch.equal(copied(x), second) and len(packs) == 3
    del copied, layer, other
    assert layer_of().state_dict()["weight.data"].numel() == 48 * 256 // 32 * 18  # as the format stores it


def test_streams_of_the_callers_are_packed_once_and_again_when_written(kernels, monkeypatch):
    packs = []
    run = tw.Layer.pack
    monkeypatch.setattr(tw.Layer, "pack", lambda *a, **k: packs.append(1) or run(*a, **k))
    layer, x = layer_of(bias=False), torch.randn(2, 256)
    streams, text = layer.weight.streams, layer.problem()
    first = linear(x, streams, None, text)
    assert torch.equal(linear(x, streams, None, text), first) and len(packs) == 1
    streams[0].copy_(torch.roll(streams[0], 1, 0))
    assert not torch.equal(linear(x, streams, None, text), first) and len(packs) == 2


def test_gradients_are_straight_through(kernels):
    layer = layer_of()
    x = torch.randn(3, 256, requires_grad=True)
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.ones(3, 48) @ layer.dequantize(), rtol=1e-5, atol=1e-5)
    assert layer.bias.grad.tolist() == [3.0] * 48
    assert len(kernels) == 1


def test_inference_mode_and_panels_of_the_callers(kernels):
    with torch.inference_mode():
        layer = layer_of(bias=False)
        x = torch.randn(5, 256)
        y = layer(x)
        text = layer.problem() + " pack=panels"
        panels = pack(layer.weight.stored(), text)
        assert torch.equal(linear(x, panels, None, text), y)
        assert all(torch.equal(a.flatten(), b.flatten()) for a, b in zip(unpack(panels, text), layer.weight.stored()))
        _cpu.enable(False)
        try:
            close(linear(x, panels, None, text), y)
        finally:
            _cpu.enable(True)
    assert len(kernels) == 2


def test_compiled_and_scripted_by_export():
    layer = layer_of()
    x = torch.randn(3, 256)
    assert torch.equal(torch.compile(layer, backend="eager", fullgraph=True)(x), layer(x))
    assert torch.equal(torch.export.export(layer, (x,)).module()(x), layer(x))


_FORK = """
import os, torch, tilewright.torch as twt
torch.set_num_threads(2)
layer = twt.QuantizedLinear.from_linear(torch.nn.Linear(256, 4096), weight="q8_0", activation="q8_1")
x = torch.randn(1, 256)
with torch.no_grad():
    y = layer(x)
    if (child := os.fork()) == 0:
        os._exit(0 if layer(x).equal(y) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 and layer(x).equal(y)
"""


def test_a_child_of_fork_computes():
    """Where OpenMP's threads are its parent's."""
    subprocess.run([sys.executable, "-c", _FORK], check=True, timeout=120, env={**os.environ, **_PATHS})


# ---- w in panels alone


@pytest.mark.parametrize(
    "weight, activation, dtype", [("q4_k", "q8_1", torch.bfloat16), ("e4m3_row", None, torch.float32), ("nvfp4", "q8_1", torch.float16)]
)
def test_warm_keeps_panels_alone(kernels, weight, activation, dtype):
    layer = layer_of(weight, activation, dtype=dtype).to(dtype)
    x, stored = torch.randn(5, 256).to(dtype), [s.clone() for s in layer.weight.stored()]
    with torch.no_grad():
        before = layer(x)
        layer.warm(dtype)
        assert layer.weight.tiles == (activation or {torch.float32: "f32"}[dtype])
        assert not torch.equal(layer.weight.data.flatten()[: stored[0].numel()], stored[0].flatten()[: layer.weight.data.numel()])
        assert torch.equal(layer(x), before)
    assert len(kernels) == 2
    for a, b in zip(layer.weight.stored(), stored):
        assert torch.equal(a.flatten(), b.flatten())
    again = layer_of(weight, activation, dtype=dtype).to(dtype)
    again.load_state_dict(layer.state_dict())
    assert again.weight.tiles is None and torch.equal(again(x), before)
    assert copy.deepcopy(layer)(x).equal(before)
    moved = layer.to(torch.float32)  # as stored again
    assert moved.weight.tiles is None and [s.numel() for s in moved.weight.streams] == [s.numel() for s in stored]


def test_warm_without_kernels_leaves_w_as_stored():
    layer = layer_of("nf4", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer.warm()
    assert layer.weight.tiles is None


def test_panels_follow_the_dtype_of_x(kernels):
    layer = layer_of("e4m3_row", None, bias=False)
    x = torch.randn(3, 256)
    want = layer(x.bfloat16())
    layer.warm(torch.float32)
    assert layer.weight.tiles == "f32"
    assert torch.equal(layer(x.bfloat16()), want) and layer.weight.tiles == "bf16"
