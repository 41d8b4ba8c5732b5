# SPDX-License-Identifier: Apache-2.0
"""Nodes and models for TensorRT: their fields, and that weights keep their values. `./dev hosts tensorrt` builds engines."""

from __future__ import annotations

import types

import numpy as np
import pytest

# isort: split
onnx = pytest.importorskip("onnx")
torch = pytest.importorskip("torch")

import tilewright as tw
import tilewright.onnx as tonnx
import tilewright.torch as twt
from onnx import helper, numpy_helper
from tilewright import tensorrt as plugins
from tilewright.compat import w4a8_plugin
from torch import nn

TARGET = "sm_90a"


def fields(node):
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def test_a_node_has_the_weights_as_bytes():
    w = tw.encode(np.random.default_rng(0).standard_normal((64, 128)).astype("f4"), "nvfp4")
    node = plugins.gemm(
        "gemm x=e4m3_row w=nvfp4 y=bf16 n=64 k=128 global=mul", ["x"], "y", w=w, x_from="bf16", target=TARGET
    )
    assert (node.op_type, node.domain, list(node.input), list(node.output)) == (
        "TilewrightGemm",
        "tilewright",
        ["x"],
        ["y"],
    )
    given = fields(node)
    assert given["x_from"] == b"bf16" and given["target"] == b"sm_90a" and given["plugin_version"] == b"1"
    assert "binaries" not in given  # a default
    assert numpy_helper.to_array(given["w"]).tobytes() == w.data.tobytes()
    assert numpy_helper.to_array(given["w_scales"]).tobytes() == w.scales.tobytes()
    assert numpy_helper.to_array(given["w_global"]).tobytes() == w.global_scale.tobytes()


def test_the_weights_of_the_w4a8_plugin():
    """Codes [k / 2, n] and scales [k / 16, n] decode to the layer's weights, with its factor as alpha."""
    linear = nn.Linear(64, 32, bias=False)
    layer = w4a8_plugin.W4A8Linear.from_linear(linear)
    packed, scale, alpha = w4a8_plugin.plugin_weights(layer)
    assert packed.shape == (32, 32) and scale.shape == (4, 32)
    levels = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    levels = np.concatenate([levels, -levels])
    codes = packed.view(np.uint8)
    values = np.stack([levels[codes & 15], levels[codes >> 4]], 1).reshape(64, 32)
    scales = torch.from_numpy(scale).view(torch.float8_e4m3fn).float().numpy()
    assert np.allclose(values * scales.repeat(16, 0) * alpha, layer.weight.dequantize().numpy().T, rtol=1e-6, atol=0)
    without = w4a8_plugin.plugin_weights(linear.weight)
    assert without.alpha == 1.0 and without.packed.shape == packed.shape

    node, constants = w4a8_plugin.plugin_node(layer, "x", "y", alpha=2.0, target=TARGET)
    assert fields(node)["alpha"] == pytest.approx(2 * alpha) and fields(node)["constant_weights"] == 1
    assert list(node.input) == ["x", "y.weight_packed", "y.weight_scale"] == ["x", *(c.name for c in constants)]
    with pytest.raises(tw.Unsupported, match="bias is not supported by W4A8GemmPlugin|W4A8GemmPlugin"):
        w4a8_plugin.plugin_node(nn.Linear(64, 32), "x", "y")
    with pytest.raises(tw.Unsupported, match="must be nvfp4"):
        w4a8_plugin.plugin_weights(twt.QuantizedLinear.from_linear(linear, weight="q4_0"))


@pytest.mark.parametrize(("weight", "activation"), [("nvfp4", "e4m3_row"), ("q4_0", None), ("int8_row", "int8_row")])
def test_export_with_the_plugin(weight, activation, tmp_path):
    pytest.importorskip("onnxscript")
    layer = twt.QuantizedLinear.from_linear(nn.Linear(256, 128).bfloat16(), weight=weight, activation=activation)
    path = tmp_path / "model.onnx"
    tonnx.export(layer, (torch.zeros(3, 256, dtype=torch.bfloat16),), path, plugin=True, target=TARGET)
    model = onnx.load(path)
    (node,) = model.graph.node
    given = fields(node)
    problem = tw.Problem(given["problem"].decode())
    assert (node.op_type, node.domain, node.name) == ("TilewrightGemm", "tilewright", "linear")
    assert problem.fields["w"] == weight and given.get("x_from", b"") == (b"bf16" if activation else b"")
    streams = {
        i.name.rpartition(".")[2]: numpy_helper.to_array(i) for i in model.graph.initializer if i.data_type in (1, 3)
    }
    ordered = tw.Streams(*(streams.get(name) for name in ("w", "w_scales", "w_global")))
    stored = problem.unpack_weights(ordered) if "pack" in problem.fields else tw.Encoded(weight, 128, 256, *ordered)
    assert np.array_equal(tw.decode(stored), layer.weight.dequantize().numpy())


def test_export_of_a_convolution(tmp_path):
    pytest.importorskip("onnxscript")
    conv = nn.Conv2d(32, 64, 3, stride=2, padding=1).bfloat16()
    layer = twt.QuantizedConv2d.from_conv(conv, "int8_row")
    path = tmp_path / "model.onnx"
    x = torch.zeros(2, 32, 9, 12, dtype=torch.bfloat16)
    program = tonnx.export(layer, (x,), path, plugin=True, target=TARGET)
    assert [d for d in program.model.graph.outputs[0].shape] == list(conv(x).shape)
    (node,) = onnx.load(path).graph.node
    problem = tw.Problem(fields(node)["problem"].decode())
    assert node.op_type == "TilewrightConv"
    assert (problem.fields["w"], problem.fields["stride"], problem.fields["x_layout"]) == ("int8_row", "2x2", "ncdhw")
    rounded = twt.QuantizedConv2d.from_conv(conv, "bf16", quant_act=16)
    with pytest.raises(tw.Unsupported, match="quant_act"):
        tonnx.export(rounded, (x,), plugin=True, target=TARGET)


def test_export_needs_a_target_where_no_gpu_is(monkeypatch):
    monkeypatch.setattr(tonnx, "device_count", lambda: 0)
    layer = twt.QuantizedLinear.from_linear(nn.Linear(256, 128).bfloat16(), weight="q4_0")
    with pytest.raises(tw.InvalidArgument, match="target"):
        tonnx.export(layer, (torch.zeros(3, 256, dtype=torch.bfloat16),), plugin=True)


class Registry:
    """TensorRT's, as far as register() and add() use it."""

    def __init__(self, loads):
        self.all_creators, self.loads, self.loaded = [], loads, []

    def load_library(self, path):
        self.loaded.append(path)
        if self.loads:
            self.all_creators.append(types.SimpleNamespace(name="TilewrightGemm"))

    def get_creator(self, name, version, namespace):
        return None


def test_registering_twice_loads_once():
    registry = Registry(True)
    trt = types.SimpleNamespace(get_plugin_registry=lambda: registry)
    plugins.register(trt, "/somewhere/libtilewright_tensorrt.so")
    plugins.register(trt, "/somewhere/libtilewright_tensorrt.so")
    assert registry.loaded == ["/somewhere/libtilewright_tensorrt.so"]
    plugins._loaded.clear()
    other = types.SimpleNamespace(get_plugin_registry=lambda: Registry(False))
    with pytest.raises(tw.IoError, match="cannot be loaded by TensorRT"):
        plugins.register(other, "/somewhere/else.so")
    plugins._loaded.clear()


def test_a_network_without_plugins_of_version_3():
    trt = types.SimpleNamespace(get_plugin_registry=lambda: Registry(True))
    with pytest.raises(tw.Unsupported, match="has no add_plugin_v3"):
        plugins.add(trt, object(), "TilewrightGemm", [], {})
    network = types.SimpleNamespace(add_plugin_v3=None)
    with pytest.raises(tw.InvalidArgument, match="is not registered"):
        plugins.add(trt, network, "TilewrightGemm", [], {})
