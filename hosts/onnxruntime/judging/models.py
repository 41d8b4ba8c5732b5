# SPDX-License-Identifier: Apache-2.0
"""Random models of one node, with their results in double precision and how far rounding may take a result from them."""

import dataclasses
import math

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

TYPES = {"f32": (np.float32, onnx.TensorProto.FLOAT, 2.0**-24), "f16": (np.float16, onnx.TensorProto.FLOAT16, 2.0**-11)}
HALF = 2.0**-11  # relative error of a number rounded to half precision


@dataclasses.dataclass
class Case:
    operation: str
    name: str
    model: bytes
    feeds: list  # of the graph's inputs
    wanted: list  # the results in double precision
    bounds: list  # the errors that are allowed; 0: none
    ours: bool  # whether Tilewright takes it; else it is left to ONNX Runtime
    entries: dict = dataclasses.field(default_factory=dict)  # of the session


def model_of(nodes, inputs, outputs, constants, opset=21, extra=()):
    """Bytes of a model. inputs, outputs: (name, type, shape)."""
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [onnx.helper.make_tensor_value_info(*each) for each in inputs],
        [onnx.helper.make_tensor_value_info(*each) for each in outputs],
        [c if isinstance(c, onnx.TensorProto) else onnx.numpy_helper.from_array(c[1], c[0]) for c in constants],
    )
    domains = [onnx.helper.make_opsetid("", opset), onnx.helper.make_opsetid("com.microsoft", 1), *extra]
    model = onnx.helper.make_model(graph, opset_imports=domains)
    model.ir_version = 10
    return model.SerializeToString()


def packed_codes(codes, bits):
    """[..., count] of codes as bytes, lowest bit first."""
    per = 8 // bits
    padded = np.zeros((*codes.shape[:-1], math.ceil(codes.shape[-1] / per) * per), np.uint8)
    padded[..., : codes.shape[-1]] = codes
    parts = padded.reshape(*padded.shape[:-1], -1, per)
    return np.bitwise_or.reduce(parts << (np.arange(per, dtype=np.uint8) * bits), axis=-1).astype(np.uint8)


def error_of_x(x, w, k):
    """What quantizing x to 8 bits in blocks of 32 may add: half a step of a block, over the weights, and the scale's rounding."""
    pad = -k % 32
    blocks = np.pad(np.abs(x), ((0, 0), (0, pad))).reshape(len(x), -1, 32).max(-1)
    weights = np.pad(np.abs(w), ((0, 0), (0, pad))).reshape(len(w), -1, 32).sum(-1)
    return (blocks / 254 * (1 + 2 * HALF)) @ weights.T + np.abs(x) @ np.abs(w).T * HALF


def magnitudes(w, codes, zeros, scales, bits):
    """Those of the parts that a weight is computed as: of 8 bits, of which no format has zero points, two."""
    if bits < 8:
        return np.abs(w)
    return (np.abs(codes.astype("f8") - 128) + np.abs(zeros.astype("f8") - 128)) * np.abs(scales.astype("f8"))


def matmul_nbits(rng, bits, block, zeros, level, floats, n, k, bias=False, groups=False, rows=(1, 5, 33), batch=False):
    """zeros: "none", "codes" (packed), "middle" (codes that are all in the middle) or "floats"."""
    dtype, kind, step = TYPES[floats]
    blocks = -(-k // block)
    codes = rng.integers(0, 2**bits, (n, blocks * block), dtype=np.uint8)
    scales = (rng.random((n, blocks)) * 0.02 + 0.001).astype(dtype)
    middle = 2 ** (bits - 1)
    zero = np.full((n, blocks), middle, np.uint8) if zeros in ("none", "middle") else rng.integers(0, min(2**bits, 16), (n, blocks), dtype=np.uint8)
    group = np.arange(k) // block
    constants = [("w", packed_codes(codes.reshape(n, blocks, block), bits)), ("s", scales.reshape(-1))]
    inputs = ["x", "w", "s", "", "", ""]
    if zeros != "none":
        inputs[3] = "z"
        constants.append(("z", zero.astype(dtype) if zeros == "floats" else packed_codes(zero, bits).reshape(-1)))
    if groups:
        group = rng.permutation(group)
        inputs[4] = "g"
        constants.append(("g", group.astype(np.int32)))
    shift = rng.standard_normal(n).astype(dtype) if bias else np.zeros(n, dtype)
    if bias:
        inputs[5] = "b"
        constants.append(("b", shift))
    while not inputs[-1]:
        inputs.pop()
    attributes = dict(K=k, N=n, bits=bits, block_size=block, accuracy_level=level)
    node = onnx.helper.make_node("MatMulNBits", inputs, ["y"], domain="com.microsoft", **attributes)
    shape = ["a", "b", k] if batch else ["m", k]
    model = model_of([node], [("x", kind, shape)], [("y", kind, shape[:-1] + [n])], constants)

    w = (codes[:, :k].astype("f8") - zero.astype("f8")[:, group]) * scales.astype("f8")[:, group]
    parts = magnitudes(w, codes[:, :k], zero[:, group], scales[:, group], bits)
    feeds, wanted, bounds = [], [], []
    for m in rows:
        x = rng.standard_normal((m, k)).astype(dtype)
        exact, size = x.astype("f8") @ w.T + shift, np.abs(x.astype("f8")) @ parts.T
        bound = size * (k * 2.0**-23 + (HALF if floats == "f32" else 0)) + np.abs(exact) * step + 1e-6
        if level == 4:
            bound += error_of_x(x.astype("f8"), parts, k)
        to = (1, m, n) if batch else (m, n)
        feeds.append({"x": x.reshape(*to[:-1], k)})
        wanted.append(exact.reshape(to))
        bounds.append(bound.reshape(to))
    name = f"bits={bits} block={block} zeros={zeros} level={level} {floats} n={n} k={k}" + " bias" * bias + " g_idx" * groups + " batch" * batch
    ours = block >= 32
    return Case("MatMulNBits", name, model, feeds, wanted, bounds, ours)


def nbits_cases(quick):
    rng = np.random.default_rng(1)
    everything = [
        (bits, block, zeros, level, floats)
        for bits in (4, 8, 2)
        for block in (32, 128, 16, 64, 256)
        for zeros in ("none", "codes", "middle", "floats")
        for level in (4, 0)
        for floats in ("f32", "f16")
    ]
    shapes = [(64, 256), (48, 512), (70, 200), (16, 96), (33, 1030), (100, 32)]
    for i, (bits, block, zeros, level, floats) in enumerate(everything[:: 11 if quick else 1]):
        n, k = shapes[i % len(shapes)]
        yield matmul_nbits(rng, bits, block, zeros, level, floats, n, k, bias=i % 3 == 0, batch=i % 5 == 0)
    for block, bits in ((32, 4), (64, 8)):
        yield matmul_nbits(rng, bits, block, "none", 0, "f32", 64, 320, groups=True)


def integers(rng, kind, shape):
    low, high = (0, 256) if kind is np.uint8 else (-128, 128)
    return rng.integers(low, high, shape).astype(kind)


def element_type(kind):
    return onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))


def matmul_integer(rng, a, b, zeros, n, k, rows=(1, 7, 40), k_name=None):
    """zeros: "none", "tensor" or "columns" (of B)."""
    w = integers(rng, b, (k, n))
    constants, inputs = [("w", w)], ["x", "w"]
    za = zb = 0
    if zeros != "none":
        za, zb = integers(rng, a, ()), integers(rng, b, () if zeros == "tensor" else (n,))
        constants += [("za", za), ("zb", zb)]
        inputs += ["za", "zb"]
    node = onnx.helper.make_node("MatMulInteger", inputs, ["y"])
    model = model_of([node], [("x", element_type(a), ["m", k])], [("y", onnx.TensorProto.INT32, ["m", n])], constants)
    xs = [integers(rng, a, (m, k)) for m in rows]
    wanted = [(x.astype("f8") - float(za)) @ (w.astype("f8") - np.asarray(zb, "f8")) for x in xs]
    name = f"{np.dtype(a)} by {np.dtype(b)} zeros={zeros} n={n} k={k}"
    return Case("MatMulInteger", name, model, [{"x": x} for x in xs], wanted, [np.zeros_like(y) for y in wanted], True)


def qlinear_matmul(rng, a, b, y, columns, n, k, rows=(1, 7, 40)):
    """columns: whether B has a scale and a zero point for each column. y may be off by a rounding to the other side."""
    w, za, zb, zy = integers(rng, b, (k, n)), integers(rng, a, ()), integers(rng, b, (n,) if columns else ()), integers(rng, y, ())
    sa, sy = np.float32(0.02), np.float32(0.02 * 0.01 * 60 * np.sqrt(k))
    sb = (rng.random(n if columns else ()) * 0.01 + 0.005).astype("f4")
    constants = [("sa", sa), ("za", za), ("w", w), ("sb", sb), ("zb", zb), ("sy", sy), ("zy", zy)]
    node = onnx.helper.make_node("QLinearMatMul", ["x"] + [name for name, _ in constants], ["y"])
    model = model_of([node], [("x", element_type(a), ["m", k])], [("y", element_type(y), ["m", n])], constants)
    xs = [integers(rng, a, (m, k)) for m in rows]
    info = np.iinfo(y)
    scale = float(sa) * sb.astype("f8") / float(sy)
    wanted = [np.clip(((x.astype("f8") - float(za)) @ (w.astype("f8") - zb.astype("f8"))) * scale + float(zy), info.min, info.max) for x in xs]
    name = f"{np.dtype(a)} by {np.dtype(b)} to {np.dtype(y)} columns={columns} n={n} k={k}"
    return Case("QLinearMatMul", name, model, [{"x": x} for x in xs], wanted, [np.full_like(v, 0.5001) for v in wanted], True)


def integer_cases(quick):
    rng = np.random.default_rng(2)
    shapes = [(64, 256), (70, 100), (16, 32), (33, 1030), (1, 40), (300, 64)]
    every = [(a, b, zeros) for a in (np.uint8, np.int8) for b in (np.int8, np.uint8) for zeros in ("none", "tensor", "columns")]
    for i, (a, b, zeros) in enumerate(every[:: 5 if quick else 1]):
        for n, k in shapes[: 1 + i % 2 if quick else None]:
            yield matmul_integer(rng, a, b, zeros, n, k)
    # ONNX Runtime's CPU provider has no other types of y than that of x.
    for i, (a, b, columns) in enumerate((a, b, c) for a in (np.uint8, np.int8) for b in (np.int8, np.uint8) for c in (False, True)):
        for n, k in shapes[i % 6 : i % 6 + 1] if quick else shapes:
            yield qlinear_matmul(rng, a, b, a, columns, n, k)


# Types of dequantized weights: the type in ONNX, bits, the least value, the values' number.
QUANTIZED = {
    "int2": (onnx.TensorProto.INT2, 2, -2, 4),
    "uint2": (onnx.TensorProto.UINT2, 2, 0, 4),
    "int4": (onnx.TensorProto.INT4, 4, -8, 16),
    "uint4": (onnx.TensorProto.UINT4, 4, 0, 16),
    "int8": (onnx.TensorProto.INT8, 8, -128, 256),
    "uint8": (onnx.TensorProto.UINT8, 8, 0, 256),
    "e4m3": (onnx.TensorProto.FLOAT8E4M3FN, 8, 0, 256),
}


def quantized_tensor(name, kind, values):
    """A constant of such a type; `values`: integers, or of e4m3 their bytes."""
    proto, bits, low, _ = QUANTIZED[kind]
    raw = (values & (2**bits - 1)).astype(np.uint8)
    return onnx.helper.make_tensor(name, proto, values.shape, packed_codes(raw.reshape(-1), bits).tobytes(), raw=True)


def decoded_e4m3(codes):
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    size = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    return np.where(codes & 128, -size, size)


def dequantized(rng, kind, block, zeros, floats, level, gemm, n, k, rows=(1, 5, 33)):
    """block: of the weights; 0: a scale for each output feature; -1: one for all. gemm: w is [n, k], and there is a bias."""
    dtype, float_kind, step = TYPES[floats]
    _, bits, low, count = QUANTIZED[kind]
    values = rng.integers(low, low + count, (k, n))
    if kind == "e4m3":
        values[(values & 127) == 127] = 0  # no NaN
    blocks = -(-k // block) if block > 0 else 1
    scales = (rng.random((blocks, n)) * 0.02 + 0.001).astype(dtype)
    if block < 0:
        scales[:] = scales[0, 0]
    middle = low + count // 2
    zero = np.zeros((blocks, n), int)
    if zeros == "middle":
        zero[:] = middle
    elif zeros == "codes":
        zero = rng.integers(low, low + count, (blocks, n))
    if block < 0:
        zero[:] = zero[0, 0]
    number = decoded_e4m3(values) if kind == "e4m3" else values.astype("f8")
    repeat = np.minimum(np.arange(k) // (block if block > 0 else k), blocks - 1)
    w = ((number - zero[repeat]) * scales.astype("f8")[repeat]).T

    def stored(parameter):
        return parameter[0, 0] if block < 0 else parameter[0] if block == 0 else parameter.T if gemm else parameter

    constants = [quantized_tensor("w", kind, values.T if gemm else values), ("s", np.ascontiguousarray(stored(scales)))]
    inputs = ["w", "s"]
    if zeros != "none":
        constants.append(quantized_tensor("z", kind, np.ascontiguousarray(stored(zero))))
        inputs.append("z")
    attributes = dict(axis=1 if gemm else 0, block_size=block) if block > 0 else dict(axis=0 if gemm else 1)
    nodes = [onnx.helper.make_node("DequantizeLinear", inputs, ["f"], **attributes)]
    shift = np.zeros(n, dtype)
    if gemm:
        shift = rng.standard_normal(n).astype(dtype)
        constants.append(("b", shift))
        nodes.append(onnx.helper.make_node("Gemm", ["x", "f", "b"], ["y"], transB=1))
    else:
        nodes.append(onnx.helper.make_node("MatMul", ["x", "f"], ["y"]))
    excess = 128 if kind == "int8" else 0  # of a code over its value
    parts = np.abs(w) if kind == "e4m3" else magnitudes(w, values.T + excess, zero[repeat].T + excess, scales[repeat].T, bits)
    model = model_of(nodes, [("x", float_kind, ["m", k])], [("y", float_kind, ["m", n])], constants, opset=25 if bits == 2 else 21)
    feeds, wanted, bounds = [], [], []
    for m in rows:
        x = rng.standard_normal((m, k)).astype(dtype)
        exact, size = x.astype("f8") @ w.T + shift, np.abs(x.astype("f8")) @ parts.T
        # ONNX Runtime rounds the dequantized weights of float16, and so is allowed to.
        bound = size * (k * 2.0**-23 + HALF) + np.abs(exact) * step + 1e-6
        if level == 4:
            bound += error_of_x(x.astype("f8"), parts, k)
        feeds.append({"x": x})
        wanted.append(exact)
        bounds.append(bound)
    ours = (block <= 0 or k <= block) if kind == "e4m3" else True
    if 0 < block < 32:
        ours = False
    name = f"{kind} block={block} zeros={zeros} {floats} level={level} {'Gemm' if gemm else 'MatMul'} n={n} k={k}"
    entries = {"session__qdq_matmulnbits_accuracy_level": str(level)}
    return Case("DequantizeLinear and its product", name, model, feeds, wanted, bounds, ours, entries)


def dequantized_cases(quick):
    rng = np.random.default_rng(4)
    every = [
        (kind, block, zeros, floats, level, gemm)
        for kind in QUANTIZED
        for block in (32, 0, -1, 16, 128)
        for zeros in (("none",) if kind == "e4m3" else ("none", "codes", "middle"))
        for floats in ("f32", "f16")
        for level in (0, 4)
        for gemm in (False, True)
    ]
    shapes = [(64, 256), (48, 512), (70, 200), (16, 96), (33, 1030), (100, 32)]
    for i, each in enumerate(every[:: 13 if quick else 1]):
        yield dequantized(rng, *each, *shapes[i % len(shapes)])


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def nvfp4(rng, level, gemm, n, k, rows=(1, 5, 33)):
    """FLOAT4E2M1 in blocks of 16, as Model Optimizer exports it. ONNX Runtime has no CPU kernels for it."""
    types, kind = onnx.TensorProto, onnx.TensorProto.FLOAT
    codes, scales = rng.integers(0, 16, (k, n)), rng.integers(1, 120, (k // 16, n))
    factor = np.float32(0.003)
    w = (E2M1[codes] * (decoded_e4m3(scales) * float(factor))[np.arange(k) // 16]).T
    stored = [each.T if gemm else each for each in (codes, scales)]
    constants = [
        onnx.helper.make_tensor("w", types.FLOAT4E2M1, stored[0].shape, packed_codes(stored[0].reshape(-1).astype(np.uint8), 4).tobytes(), raw=True),
        onnx.helper.make_tensor("s", types.FLOAT8E4M3FN, stored[1].shape, stored[1].astype(np.uint8).tobytes(), raw=True),
        ("factor", factor),
    ]
    nodes = [
        onnx.helper.make_node("DequantizeLinear", ["s", "factor"], ["scales"]),
        onnx.helper.make_node("DequantizeLinear", ["w", "scales"], ["f"], axis=1 if gemm else 0, block_size=16),
    ]
    shift = np.zeros(n, "f4")
    if gemm:
        shift = rng.standard_normal(n).astype("f4")
        constants.append(("b", shift))
        nodes.append(onnx.helper.make_node("Gemm", ["x", "f", "b"], ["y"], transB=1))
    else:
        nodes.append(onnx.helper.make_node("MatMul", ["x", "f"], ["y"]))
    model = model_of(nodes, [("x", kind, ["m", k])], [("y", kind, ["m", n])], constants, opset=23)
    xs = [rng.standard_normal((m, k)).astype("f4") for m in rows]
    wanted = [x.astype("f8") @ w.T + shift for x in xs]
    bounds = [np.abs(x.astype("f8")) @ np.abs(w).T * (k * 2.0**-23) + np.abs(y) * 2.0**-23 + 1e-6 for x, y in zip(xs, wanted)]
    if level == 4:
        bounds = [bound + error_of_x(x.astype("f8"), w, k) for x, bound in zip(xs, bounds)]
    entries = {"session__qdq_matmulnbits_accuracy_level": str(level)}
    name = f"level={level} {'Gemm' if gemm else 'MatMul'} n={n} k={k}"
    return Case("NVFP4 and its product", name, model, [{"x": x} for x in xs], wanted, bounds, True, entries)


def nvfp4_cases():
    rng = np.random.default_rng(7)
    for i, (n, k) in enumerate(((64, 256), (70, 208), (16, 96), (33, 16))):
        for level in (0, 4):
            yield nvfp4(rng, level, (i + level // 4) % 2 == 1, n, k)


# ggml's types: columns and bytes of a block, and where it has halves, which random bytes would make infinite.
GGML = {
    "q4_0": (32, 18, (0,)),
    "q4_1": (32, 20, (0, 2)),
    "q5_0": (32, 22, (0,)),
    "q5_1": (32, 24, (0, 2)),
    "q8_0": (32, 34, (0,)),
    "q2_k": (256, 84, (80, 82)),
    "q3_k": (256, 110, (108,)),
    "q4_k": (256, 144, (0, 2)),
    "q5_k": (256, 176, (0, 2)),
    "q6_k": (256, 210, (208,)),
    "iq4_nl": (32, 18, (0,)),
    "iq4_xs": (256, 136, (0,)),
}


def ggml_matmul(rng, name, level, bias, n, k, rows=(1, 5, 33)):
    import gguf

    columns, size, halves = GGML[name]
    blocks = rng.integers(0, 256, (n, k // columns, size), dtype=np.uint8)
    for at in halves:
        blocks[:, :, at : at + 2] = (rng.random((n, k // columns, 1)) * 0.02 + 0.001).astype(np.float16).view(np.uint8)
    stored = blocks.reshape(n, -1)
    w = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[name.upper()]).astype("f8")
    constants, inputs = [("w", stored)], ["x", "w"]
    shift = rng.standard_normal(n).astype("f4") * bias
    if bias:
        constants.append(("b", shift))
        inputs.append("b")
    node = onnx.helper.make_node("MatMul", inputs, ["y"], domain="tilewright", format=name, N=n, K=k, accuracy_level=level)
    kind = onnx.TensorProto.FLOAT
    domains = [onnx.helper.make_opsetid("tilewright", 1)]
    model = model_of([node], [("x", kind, ["m", k])], [("y", kind, ["m", n])], constants, extra=domains)
    feeds, wanted, bounds = [], [], []
    for m in rows:
        x = rng.standard_normal((m, k)).astype("f4")
        bound = np.abs(x.astype("f8")) @ np.abs(w).T * (k * 2.0**-23) + 1e-5
        if level == 4:
            bound += error_of_x(x.astype("f8"), w, k)
        feeds.append({"x": x})
        wanted.append(x.astype("f8") @ w.T + shift)
        bounds.append(bound)
    return Case("tilewright.MatMul", f"{name} level={level} n={n} k={k}", model, feeds, wanted, bounds, True)


def ggml_cases(quick):
    rng = np.random.default_rng(6)
    for i, name in enumerate(GGML):
        for level in (4, 0) if not quick else (4 * (i % 2),):
            yield ggml_matmul(rng, name, level, i % 2, (64, 70)[i % 2], (256, 512)[i // 2 % 2])


def all_cases(quick=False):
    yield from nbits_cases(quick)
    yield from integer_cases(quick)
    yield from dequantized_cases(quick)
    yield from nvfp4_cases()
    yield from ggml_cases(quick)
