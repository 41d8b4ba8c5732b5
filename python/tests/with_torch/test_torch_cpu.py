# SPDX-License-Identifier: Apache-2.0
"""Linear layers on this machine's CPU: kernels where x is q8_1, PyTorch on decoded operands elsewhere."""

import copy
import logging

import pytest
import tilewright as tw
import torch
from tilewright.torch import QuantizedLinear, _cpu, linear, pack, unpack

pytestmark = pytest.mark.skipif(tw.Device.cpu(1).arch == "x86-64", reason="this CPU has no kernels")


@pytest.fixture(autouse=True)
def kernels(monkeypatch):
    """Counts what kernels compute."""
    calls = []
    run = _cpu.linear
    monkeypatch.setattr(_cpu, "linear", lambda *a: calls.append(a[0].packed) or run(*a))
    yield calls


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
    "activation, weight, n", ((None, "q4_0", 48), ("int8_row", "int8_row", 48), ("q8_1", "q4_0", 40))
)
def test_what_stays_with_pytorch(kernels, caplog, activation, weight, n):
    """Floats are not quantized unless the scheme says so, and formats without kernels are decoded."""
    _cpu.forget()
    layer = layer_of(weight, activation, n=n)
    x = torch.randn(3, 256)
    with caplog.at_level(logging.INFO, "tilewright.torch"):
        y = layer(x)
        layer(x)
    assert kernels == [] and torch.equal(y, plain(layer, x))
    assert len([r for r in caplog.records if "no kernels" in r.message]) == 1


def test_exact_activations_are_not_rounded(kernels):
    layer = layer_of("q8_0", None)
    x = torch.randn(2, 256)
    torch.testing.assert_close(layer(x), x @ layer.dequantize().T + layer.bias, rtol=0, atol=1e-5)
    assert kernels == []


def test_weights_are_packed_once_and_again_when_written(kernels, monkeypatch):
    packs = []
    engine = type(_cpu._cuda.engine())
    run = engine.pack
    monkeypatch.setattr(engine, "pack", lambda *a, **k: packs.append(1) or run(*a, **k))
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
        panels = pack(layer.weight.streams, text)
        assert torch.equal(linear(x, panels, None, text), y)
        assert all(torch.equal(a.flatten(), b.flatten()) for a, b in zip(unpack(panels, text), layer.weight.streams))
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
