# SPDX-License-Identifier: Apache-2.0
"""ONNX models that the tests write, against ONNX Runtime's own kernels on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

# isort: split
onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import tilewright as tw
import tilewright.onnx as tonnx
import tilewright.torch as twt

N, K = 24, 256


def random(seed=0):
    return np.random.default_rng(seed)


def model(nodes, constants, n=N, k=K):
    values = [helper.make_tensor_value_info(v, TensorProto.FLOAT, ["rows", e]) for v, e in (("x", k), ("y", n))]
    stored = [c if isinstance(c, TensorProto) else numpy_helper.from_array(c, name) for name, c in constants.items()]
    graph = helper.make_graph(nodes, "graph", values[:1], values[1:], stored)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def run(proto, x):
    options = runtime.SessionOptions()  # as the graph says: fused kernels would quantize x
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {"x": x.numpy()})[0])


def close(y, want):
    """MatMulNBits' kernels may quantize x, or not; accuracy_level=1 asks for single precision."""
    return (y - want).abs().max() <= 1e-4 * want.abs().max()


def nbits(bits, group, zeros, bias, n=N, k=K, **attributes):
    r = random(bits)
    blocks = k // group
    scales = (r.random(n * blocks) * 0.1 + 0.01).astype(np.float16).astype(np.float32)
    constants = {"B": r.integers(0, 256, (n, blocks, group * bits // 8)).astype(np.uint8), "scales": scales}
    inputs = ["x", "B", "scales", "", "", ""]
    if zeros:
        constants["zeros"] = r.integers(0, 256, (n, -(-blocks * bits // 8))).astype(np.uint8)
        inputs[3] = "zeros"
    if bias:
        constants["bias"] = r.standard_normal(n).astype(np.float32)
        inputs[5] = "bias"
    while not inputs[-1]:
        inputs.pop()
    given = {"K": k, "N": n, "bits": bits, "block_size": group, "accuracy_level": 1, **attributes}
    node = helper.make_node("MatMulNBits", inputs, ["y"], name="layer", domain="com.microsoft", **given)
    return model([node], constants, n, k)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("bits", "group"), [(4, 32), (4, 64), (4, 128), (4, 256), (2, 64), (8, 32)])
def test_matmul_nbits(bits, group, zeros):
    proto = nbits(bits, group, zeros, bias=not zeros)
    if bits == 8 and zeros:
        with pytest.raises(tw.Unsupported, match="layer = 8 bits in blocks of 32"):
            list(tonnx.load_quantized(proto))
        return
    ((name, layer),) = tonnx.load_quantized(proto)
    assert name == "layer" and (layer.bias is not None) == (not zeros)
    x = torch.randn(5, K)
    assert close(layer(x), run(proto, x))
    ((_, quantized),) = tonnx.load_quantized(proto, activation="q8_1")
    assert quantized.activation == "q8_1"


@pytest.mark.parametrize("kind", ["MatMul", "Gemm", "Gemm with transB"])
@pytest.mark.parametrize("scheme", ["row", "tensor", "int4", "uint4", "symmetric"])
def test_dequantize_linear(kind, scheme):
    r = random(3)
    turned = kind != "Gemm with transB"  # the matrix is [K, N]
    shape = (K, N) if turned else (N, K)
    attributes = {"axis": 1 if turned else 0}
    constants = {}
    if scheme in ("row", "tensor"):
        constants["w"] = r.integers(-128, 128, shape).astype(np.int8)
        constants["s"] = (r.random(N if scheme == "row" else ()) * 0.1).astype(np.float32)
        inputs = ["w", "s"]
    else:
        low = 0 if scheme == "uint4" else -8
        dtype = TensorProto.UINT4 if scheme == "uint4" else TensorProto.INT4
        scales = (K // 64, N) if turned else (N, K // 64)
        for name, extents in (("w", shape), ("z", scales)):
            codes = r.integers(low, low + 16, extents)
            constants[name] = helper.make_tensor(name, dtype, extents, codes.ravel().tolist())
        constants["s"] = (r.random(scales) * 0.1 + 0.01).astype(np.float16).astype(np.float32)
        inputs = ["w", "s", *(["z"] if scheme != "symmetric" else [])]
        attributes = {"axis": 0 if turned else 1, "block_size": 64}
    nodes = [helper.make_node("DequantizeLinear", inputs, ["dq"], **attributes)]
    given = ["x", "dq"]
    if kind != "MatMul":
        constants["bias"] = r.standard_normal(N).astype(np.float32)
        given.append("bias")
    more = {} if turned else {"transB": 1}
    nodes.append(helper.make_node(kind.partition(" ")[0], given, ["y"], name="layer", **more))
    proto = model(nodes, constants)
    ((name, layer),) = tonnx.load_quantized(proto)
    assert layer.weight.format == {"row": "int8_row", "tensor": "int8_row", "symmetric": "int4_g64"}.get(
        scheme, "uint4_g64"
    )
    x = torch.randn(3, K)
    assert name == "layer" and close(layer(x), run(proto, x))


@pytest.mark.parametrize(
    "weight", ["int4_g32", "int4_g64", "int4_g128", "uint4_g64", "uint4_g128", "q4_0", "q8_0", "int8_row"]
)
@pytest.mark.parametrize("bias", [False, True])
def test_export(weight, bias, tmp_path):
    layer = twt.QuantizedLinear.from_linear(nn.Linear(K, N, bias), weight)
    proto = tonnx.export(layer, "up")
    onnx.checker.check_model(proto)
    x = torch.randn(4, K)
    # ONNX Runtime chooses whether to quantize x here: a hundredth of the largest output covers that.
    with torch.no_grad():
        assert (run(proto, x) - layer(x)).abs().max() <= 0.01 * layer(x).abs().max()
    onnx.save(proto, tmp_path / "layer.onnx")
    ((name, again),) = tonnx.load_quantized(tmp_path / "layer.onnx")
    assert name == "up" and torch.equal(again.dequantize(), layer.dequantize())


def test_what_does_not_fit(tmp_path):
    for attributes, message in (
        ({"bits": 3}, "layer.bits = 3: 2, 4 or 8"),
        ({"block_size": 100}, "layer.K = 256: whole blocks"),
        ({"N": 25}, "layer .input 1. = 3072 elements: 3200"),
        ({"N": 0}, "layer.N = 0: at least 1"),
        ({"K": 1 << 40}, "layer.K = 1099511627776: less than"),
    ):
        proto = nbits(4, 64, False, False)
        for attribute in proto.graph.node[0].attribute:
            if attribute.name in attributes:
                attribute.i = attributes[attribute.name]
        with pytest.raises(tw.TilewrightError, match=message):
            list(tonnx.load_quantized(proto))
    with pytest.raises(tw.TilewrightError, match="16"):
        list(tonnx.load_quantized(nbits(4, 16, False, False)))  # no format has such blocks
    proto = nbits(4, 64, False, False)
    scales = proto.graph.initializer[1]
    scales.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scales) + np.float32(1e-6), "scales"))
    with pytest.raises(tw.Unsupported, match="numbers that float16 has"):
        list(tonnx.load_quantized(proto))
    proto = nbits(4, 64, False, False)
    del proto.graph.initializer[1]
    with pytest.raises(tw.Unsupported, match="layer.scales = computed: an initializer"):
        list(tonnx.load_quantized(proto))
    proto = nbits(4, 64, False, False)
    proto.graph.initializer[0].raw_data = b"few"
    with pytest.raises(tw.InvalidArgument, match="layer.B = unreadable"):
        list(tonnx.load_quantized(proto))
    (tmp_path / "bad.onnx").write_bytes(b"\xff\xff\xff")
    for path in (tmp_path / "bad.onnx", tmp_path / "none.onnx"):
        with pytest.raises(tw.IoError, match="model = .*a readable ONNX model"):
            list(tonnx.load_quantized(path))
    layer = twt.QuantizedLinear.from_linear(nn.Linear(K, N), "q6_k")
    with pytest.raises(tw.Unsupported, match="weight = q6_k"):
        tonnx.export(layer)
    ordered = twt.QuantizedLinear.from_weight(
        twt.QuantizedWeight.from_float(torch.randn(N, K), "q4_0"), order=torch.randperm(K)
    )
    with pytest.raises(tw.Unsupported, match="order = act-order"):
        tonnx.export(ordered)


def test_other_nodes_are_left_alone():
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    assert not list(tonnx.load_quantized(model([node], {"w": random().random((K, N)).astype(np.float32)})))
