# SPDX-License-Identifier: Apache-2.0
"""ONNX models that the tests write, against ONNX Runtime's own kernels on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

# isort: split
onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

import torch
from onnx import TensorProto, helper, numpy_helper, reference
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
        with pytest.raises(tw.Unsupported, match="layer 8 bits in blocks of 32 is not supported"):
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
    "weight", ["int4_g32", "int4_g64", "int4_g128", "uint4_g64", "uint4_g128", "q4_0", "q8_0", "int8_row", "e4m3_row"]
)
@pytest.mark.parametrize("bias", [False, True])
def test_export(weight, bias, tmp_path):
    layer = twt.QuantizedLinear.from_linear(nn.Linear(K, N, bias), weight)
    x = torch.randn(4, K)
    proto = tonnx.export(layer, (x,), tmp_path / "layer.onnx", input_names=["x"]).model_proto
    onnx.checker.check_model(proto)
    # ONNX Runtime chooses whether to quantize x of int8_row: a hundredth of the largest output covers that.
    with torch.no_grad():
        part = 0.01 if weight == "int8_row" else 1e-5
        assert (run(proto, x) - layer(x)).abs().max() <= part * layer(x).abs().max()
    ((name, again),) = tonnx.load_quantized(tmp_path / "layer.onnx")
    assert name == "linear" and torch.equal(again.dequantize(), layer.dequantize())


class Block(nn.Module):
    """Layers of several formats, shared and behind others, one by act-order and one with factors of x."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.up, self.gate = nn.Linear(K, 2 * N), nn.Linear(K, 2 * N, bias=False)
        self.mlp = nn.ModuleDict({"mid": nn.Linear(2 * N, K), "again": nn.Linear(K, K), "down": nn.Linear(K, N)})
        self.norm = nn.LayerNorm(K)
        self.to(dtype)
        rules = {"up": "q4_0", "gate": "uint4_g64", "mlp.again": "q8_0", "mlp.down": "e4m3_row"}
        twt.replace_linears(self, [(name, {"weight": weight}) for name, weight in rules.items()] + [("*", None)])
        weight, bias = self.mlp.again.weight, self.mlp.again.bias
        parts = {"order": torch.randperm(K), "factors": torch.rand(K) + 0.5}
        self.mlp["again"] = twt.QuantizedLinear.from_weight(weight, bias, dtype=dtype, **parts)

    def forward(self, x):
        y = self.norm(self.mlp["mid"](nn.functional.silu(self.gate(x)) * self.up(x)) + x)
        return self.mlp["down"](self.mlp["again"](self.mlp["again"](y)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_export_of_a_model(dtype, tmp_path):
    torch.manual_seed(4)
    model = Block(dtype).eval()
    before = dict(model.named_modules())
    x = torch.randn(2, 5, K, dtype=dtype)
    rows = {0: torch.export.Dim("images"), 1: torch.export.Dim("rows")}
    program = tonnx.export(model, (x,), tmp_path / "model.onnx", input_names=["x"], dynamic_shapes=(rows,))
    assert dict(model.named_modules()) == before
    names = {node.name: node.op_type for node in program.model_proto.graph.node}
    assert names["up"] == names["gate"] == names["mlp.again"] == "MatMulNBits" and names["mlp.down"] == "MatMul"
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    for extents in ((2, 5), (3, 1)):
        x = torch.randn(*extents, K, dtype=dtype)
        (y,) = session.run(None, {"x": x.numpy()})
        with torch.no_grad():
            want = model(x)
        part = 1e-5 if dtype == torch.float32 else 5e-3
        assert (torch.from_numpy(y) - want).abs().max() <= part * want.abs().max()
    found = dict(tonnx.load_quantized(tmp_path / "model.onnx"))
    for name in ("up", "gate", "mlp.down"):
        layer = model.get_submodule(name)
        assert found[name].weight.format == layer.weight.format.replace("q4_0", "int4_g32")
        assert torch.equal(found[name].dequantize(), layer.dequantize())


def test_layers_that_onnx_has_no_operator_for():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 64, 32), nn.Linear(32, 8))
    twt.replace_convs(model, [("*", {"weight": "int8_row"})])
    twt.replace_linears(model, {"2": {"weight": "q6_k"}, "3": {"weight": "q4_0", "activation": "q8_1"}})
    x = torch.randn(1, 3, 10, 10)
    with pytest.raises(tw.Unsupported, match="0=QuantizedConv2d is not supported"):
        tonnx.export(model, (x,))
    left = {}
    proto = tonnx.export(model, (x,), left=left, input_names=["x"]).model_proto
    assert list(left) == ["0", "2"] and "2.weight must be one of int4_g*" in left["2"]
    (node,) = [node for node in proto.graph.node if node.op_type == "MatMulNBits"]
    assert node.name == "3" and {a.name: a.i for a in node.attribute}["accuracy_level"] == 4
    with torch.no_grad():
        want = model(x)
    assert (run(proto, x) - want).abs().max() <= 0.02 * want.abs().max()


# ---- NVFP4. ONNX Runtime's CPU has no FLOAT4E2M1 (1.32), so onnx's own reference and NumPy evaluate these models


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def fp4(seed=5, n=N, k=K):
    """Codes [n, k], bytes of scales [n, k / 16], a factor; and what they mean, in double precision."""
    r = random(seed)
    codes, scales = r.integers(0, 16, (n, k)).astype(np.uint8), r.integers(0, 0x7F, (n, k // 16)).astype(np.uint8)
    factor = np.float32(0.0123)
    numbers = torch.from_numpy(scales).view(torch.float8_e4m3fn).double().numpy()
    values = np.where(codes & 8, -1.0, 1.0) * E2M1[codes & 7]
    return codes, scales, factor, values * numbers.repeat(16, 1) * np.float64(factor)


def fp4_tensor(name, codes):
    flat = codes.reshape(-1)
    return helper.make_tensor(
        name, TensorProto.FLOAT4E2M1, codes.shape, (flat[::2] | flat[1::2] << 4).tobytes(), raw=True
    )


def fp8_tensor(name, scales):
    return helper.make_tensor(name, TensorProto.FLOAT8E4M3FN, scales.shape, scales.tobytes(), raw=True)


def fp4_model(kind="Transpose", axis=-1, casts=(), **changes):
    """As Model Optimizer's exporter writes a linear layer: the weight and its block scales dequantized by two nodes,
    transposed for MatMul. kind: how w comes to its place. changes: of the initializers."""
    codes, scales, factor, w = fp4()
    turned = kind == "[k, n]"
    given = [t.T.copy() if turned else t for t in (codes, scales)]
    constants = {"w": fp4_tensor("w", given[0]), "s": fp8_tensor("s", given[1]), "g": np.array(factor), **changes}
    nodes = [helper.make_node("DequantizeLinear", ["s", "g"], ["s32"])]
    nodes.append(helper.make_node("DequantizeLinear", ["w", "s32"], ["v0"], axis=axis, block_size=16))
    last = "v0"
    for i, op in enumerate([*casts, *(["Transpose"] if kind == "Transpose" else [])]):
        attributes = {"perm": [1, 0]} if op == "Transpose" else {"to": TensorProto.FLOAT}
        nodes.append(helper.make_node(op, [last], [f"v{i + 1}"], **attributes))
        last = f"v{i + 1}"
    if kind == "Gemm":
        constants["bias"] = random(6).standard_normal(N).astype(np.float32)
        nodes.append(helper.make_node("Gemm", ["x", last, "bias"], ["y"], name="layer", transB=1))
    else:
        nodes.append(helper.make_node("MatMul", ["x", last], ["y"], name="layer"))
    proto = model(nodes, constants)
    proto.opset_import[0].version, proto.ir_version = 23, 11
    return proto, w


def evaluate(proto, x):
    """By ONNX Runtime once its CPU has FLOAT4E2M1, and until then by onnx's own reference."""
    try:
        return run(proto, x)
    except Exception as error:
        assert "NOT_IMPLEMENTED" in str(error)
    (y,) = reference.ReferenceEvaluator(proto).run(None, {"x": x.numpy()})
    return torch.from_numpy(y)


@pytest.mark.parametrize(
    ("kind", "axis", "casts"),
    [
        ("Transpose", -1, ()),
        ("Transpose", 1, ("Cast",)),
        ("Gemm", -1, ()),
        ("Gemm", 1, ("Transpose", "Cast", "Transpose")),
        ("[k, n]", 0, ()),
        ("[k, n]", -2, ("Cast",)),
    ],
)
def test_nvfp4(kind, axis, casts):
    proto, w = fp4_model(kind, axis, casts)
    onnx.checker.check_model(proto, full_check=True)
    ((name, layer),) = tonnx.load_quantized(proto, activation="e4m3_row")
    assert (name, layer.weight.format, layer.activation) == ("layer", "nvfp4", "e4m3_row")
    np.testing.assert_allclose(layer.dequantize().double().numpy(), w, rtol=2.0**-22)
    ((_, layer),) = tonnx.load_quantized(proto)
    x = torch.randn(3, K)
    with torch.no_grad():
        assert close(layer(x), evaluate(proto, x))
    assert (layer.bias is not None) == (kind == "Gemm")


@pytest.mark.parametrize("bias", [False, True])
def test_export_of_nvfp4(bias, tmp_path):
    layer = twt.QuantizedLinear.from_linear(nn.Linear(K, N, bias), "nvfp4")
    x = torch.randn(4, K)
    proto = tonnx.export(layer, (x,), tmp_path / "layer.onnx", input_names=["x"]).model_proto
    onnx.checker.check_model(proto, full_check=True)
    assert [node.op_type for node in proto.graph.node[:4]] == ["DequantizeLinear"] * 2 + ["Transpose", "MatMul"]
    with torch.no_grad():
        assert close(layer(x), evaluate(proto, x))
    ((name, again),) = tonnx.load_quantized(tmp_path / "layer.onnx")
    assert name == "linear"
    for one, other in zip(again.weight.stored(), layer.weight.stored()):
        assert torch.equal(one, other)  # byte for byte


def test_nvfp4_that_does_not_fit():
    codes, scales, _, _ = fp4()
    nan, negative = scales.copy(), scales.copy()
    nan[3, 4], negative[3, 4] = 0x7F, 0xB8
    for changes, message in (
        ({"s": fp8_tensor("s", nan)}, "must be from 0 to 448 .got negative numbers or NaNs"),
        ({"s": fp8_tensor("s", negative)}, "negative numbers or NaNs"),
        ({"s": fp8_tensor("s", scales[:, :8].copy())}, "must have blocks of 16 of 256 elements .got shape .24, 8"),
        ({"s": scales.view(np.int8)}, "must be DequantizeLinear of an initializer of FLOAT8E4M3FN .*other scales"),
        ({"g": np.float32(-1)}, "must be a positive finite number .*-1.0"),
        ({"g": np.float32(np.nan)}, "must be a positive finite number .*nan"),
        ({"g": np.ones(24, np.float32)}, "must have 1 .got 24 elements"),
        ({"w": fp4_tensor("w", codes.reshape(-1))}, "FLOAT4E2M1 of shape .6144,."),
    ):
        with pytest.raises(tw.TilewrightError, match=message):
            list(tonnx.load_quantized(fp4_model(**changes)[0]))
    with pytest.raises(tw.Unsupported, match="must be a matrix in blocks of 16 along the reduction .*axis 0, block_size 16"):
        list(tonnx.load_quantized(fp4_model(axis=0)[0]))
    with pytest.raises(tw.Unsupported, match="axis -1"):  # in blocks along n
        list(tonnx.load_quantized(fp4_model(kind="[k, n]")[0]))
    proto, _ = fp4_model()
    proto.graph.node[1].attribute[1].i = 32
    with pytest.raises(tw.Unsupported, match="block_size 32"):
        list(tonnx.load_quantized(proto))
    proto, _ = fp4_model()
    proto.graph.node[1].input[1] = "s"  # block scales without their factor
    with pytest.raises(tw.Unsupported, match="other scales"):
        list(tonnx.load_quantized(proto))
    proto, _ = fp4_model()
    proto.graph.node[1].input.append("s")
    with pytest.raises(tw.Unsupported, match="zero points"):
        list(tonnx.load_quantized(proto))
    proto, _ = fp4_model()
    proto.graph.initializer[0].raw_data = b"few"
    with pytest.raises(tw.InvalidArgument, match="w must .*got unreadable"):
        list(tonnx.load_quantized(proto))
    proto, _ = fp4_model()
    proto.graph.node[2].input[0] = proto.graph.node[2].output[0]  # a cycle
    with pytest.raises(tw.Unsupported, match="model must .* nodes without one"):
        list(tonnx.load_quantized(proto))


def test_a_transposed_weight_of_integers():
    """DequantizeLinear, Transpose, MatMul: as column-major exporters write INT8 and INT4, too."""
    r = random(8)
    codes = r.integers(-8, 8, (N, K))
    constants = {"w": helper.make_tensor("w", TensorProto.INT4, (N, K), codes.ravel().tolist())}
    constants["s"] = (r.random((N, K // 32)) * 0.1 + 0.01).astype(np.float16).astype(np.float32)
    nodes = [helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=1, block_size=32)]
    nodes.append(helper.make_node("Transpose", ["d"], ["t"], perm=[1, 0]))
    nodes.append(helper.make_node("MatMul", ["x", "t"], ["y"], name="layer"))
    proto = model(nodes, constants)
    ((_, layer),) = tonnx.load_quantized(proto)
    x = torch.randn(3, K)
    assert layer.weight.format == "int4_g32" and close(layer(x), run(proto, x))


def test_what_does_not_fit(tmp_path):
    for attributes, message in (
        ({"bits": 3}, "layer.bits must be 2, 4 or 8.*got 3"),
        ({"block_size": 100}, "layer.K must be a multiple of block_size=100 .got 256"),
        ({"N": 25}, "layer .input 1. must have 3200.*got 3072 elements"),
        ({"N": 0}, "layer.N must be at least 1.*got 0"),
        ({"K": 1 << 40}, "layer.K must be less than.*got 1099511627776"),
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
    with pytest.raises(tw.Unsupported, match="layer.scales must be an initializer.*got computed"):
        list(tonnx.load_quantized(proto))
    proto = nbits(4, 64, False, False)
    proto.graph.initializer[0].raw_data = b"few"
    with pytest.raises(tw.InvalidArgument, match="layer.B must .*got unreadable"):
        list(tonnx.load_quantized(proto))
    (tmp_path / "bad.onnx").write_bytes(b"\xff\xff\xff")
    for path in (tmp_path / "bad.onnx", tmp_path / "none.onnx"):
        with pytest.raises(tw.IoError, match="model must .*a readable ONNX model"):
            list(tonnx.load_quantized(path))


def test_other_nodes_are_left_alone():
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    with pytest.raises(tw.Unsupported, match="model must .*got 1 nodes without one"):
        list(tonnx.load_quantized(model([node], {"w": random().random((K, N)).astype(np.float32)})))


# ---- as ONNX Runtime's own tools write them


@pytest.fixture
def float_model(tmp_path):
    r = random(8)
    constants = {"w": r.standard_normal((N, K)).astype(np.float32), "b": r.standard_normal(N).astype(np.float32)}
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="layer", transB=1)
    onnx.save(model([node], constants), tmp_path / "float.onnx")
    return tmp_path


def calibrate(folder, **options):
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):
        rows = iter([{"x": random(9).standard_normal((4, K)).astype(np.float32)}])

        def get_next(self):
            return next(self.rows, None)

    symmetric = {"ActivationSymmetric": True, "WeightSymmetric": True}
    to = folder / "out.onnx"
    quantization.quantize_static(folder / "float.onnx", to, Reader(), extra_options=symmetric, **options)
    return onnx.load(to)


def test_quantize_static_with_a_bias(float_model):
    from onnxruntime.quantization import QuantFormat

    proto = calibrate(float_model, quant_format=QuantFormat.QDQ, per_channel=True)
    ((_, layer),) = tonnx.load_quantized(proto)
    plain = {t.name: numpy_helper.to_array(t) for t in onnx.load(float_model / "float.onnx").graph.initializer}
    assert layer.weight.format == "int8_row"
    assert np.abs(layer.bias.detach().numpy() - plain["b"]).max() < 1e-2
    assert np.abs(layer.dequantize().numpy() - plain["w"]).max() < 0.05
    x = torch.randn(3, K)
    y, want = layer(x), run(proto, x)  # which rounds x and y to bytes
    assert (y - want).abs().max() < 0.05 * want.abs().max()


def test_qoperator_and_dynamic_models_are_named(float_model):
    from onnxruntime.quantization import QuantFormat, quantize_dynamic

    with pytest.raises(
        tw.Unsupported, match="model must have .*(QGemm|QLinearMatMul).* not read: quantize with QuantFormat.QDQ"
    ):
        list(tonnx.load_quantized(calibrate(float_model, quant_format=QuantFormat.QOperator)))
    quantize_dynamic(float_model / "float.onnx", float_model / "dynamic.onnx")
    with pytest.raises(tw.Unsupported, match="model must .*MatMulInteger are not read"):
        list(tonnx.load_quantized(float_model / "dynamic.onnx"))
    with pytest.raises(tw.Unsupported, match="model must have MatMulNBits, or.*got 1 nodes without one"):
        list(tonnx.load_quantized(float_model / "float.onnx"))


def test_scales_of_single_precision(float_model):
    proto = nbits(4, 32, False, True)
    scales = (random(3).random(N * K // 32) * 0.1 + 0.01).astype(np.float32)
    for tensor in proto.graph.initializer:
        if tensor.name == "scales":
            tensor.CopyFrom(numpy_helper.from_array(scales, "scales"))
    with pytest.raises(tw.Unsupported, match=r'layer \(scales\) must .*got float32.*scales="nearest" rounds them'):
        list(tonnx.load_quantized(proto))
    left = {}
    assert list(tonnx.load_quantized(proto, left=left)) == [] and list(left) == ["layer"] and "float16" in left["layer"]
    ((_, layer),) = tonnx.load_quantized(proto, scales="nearest")
    x = torch.randn(3, K)
    want = run(proto, x)
    assert (layer(x) - want).abs().max() < 1e-3 * want.abs().max()
    with pytest.raises(tw.InvalidArgument, match="scales must .*got 'up'"):
        list(tonnx.load_quantized(proto, scales="up"))
