# SPDX-License-Identifier: Apache-2.0
"""Models that judge.py builds: nodes of each plugin, and models with mistakes."""

import dataclasses
from typing import Any

import numpy as np
import tilewright as tw
from onnx import TensorProto, helper, numpy_helper
from tilewright import tensorrt as plugins

TARGET = "sm_90a"
TYPES = {"f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16, "int8": TensorProto.INT8}
TYPES |= {"e4m3_row": TensorProto.FLOAT8E4M3FN, "int8_row": TensorProto.INT8}
NAMES = {"f32": "FLOAT", "f16": "HALF", "bf16": "BF16", "int8": "INT8"}


@dataclasses.dataclass
class Case:
    name: str
    node: Any
    inputs: list[Any]
    output: Any
    shape: tuple[int, ...] = ()  # of the result
    type: str = ""
    constants: list[Any] = dataclasses.field(default_factory=list)
    profile: dict[str, Any] = dataclasses.field(default_factory=dict)
    weights: int = 0  # bytes
    says: str = ""  # of a model that must be refused


def value(name, type, shape):
    return helper.make_tensor_value_info(name, TYPES[type], shape)


def constant(name, array):
    if array.dtype == np.uint8:  # TensorRT has no constants of it
        array = array.view(np.int8)
    return numpy_helper.from_array(np.ascontiguousarray(array), name)


def floats(name, type, shape):
    """A constant of random numbers."""
    numbers = np.random.standard_normal(shape).astype("f4")
    if type != "bf16":
        return numpy_helper.from_array(numbers.astype({"f32": "f4", "f16": "f2"}[type]), name)
    return helper.make_tensor(name, TensorProto.BFLOAT16, shape, (numbers.view("u4") >> 16).astype("u2").tobytes(), raw=True)


def weights(format, n, k):
    return tw.encode(np.random.standard_normal((n, k)).astype("f4") / 16, format)


def extents(last):
    """The least, usual and largest shape of rows."""
    return ((1, last), (16, last), (1024, last))


def profile(last, name="x"):
    return {name: extents(last)}


def gemm_case(x, w, y, n=128, k=512, *, x_from=None, more="", shape=None, inputs=False):
    """A gemm of any number of rows; shape: leading axes of x, if these are fixed. inputs: weights are inputs."""
    problem = f"gemm x={x} w={w} y={y} n={n} k={k}{more}"
    encoded = weights(w, n, k)
    given = x_from or x
    leading = shape or ("m",)
    names, constants = ["x"], []
    values = [value("x", given, [*leading, k])]
    if given.endswith("_row"):  # quantized by the caller
        names.append("x_scales")
        values.append(value("x_scales", "f32", [*leading, 1]))
    if inputs:
        for part, array in (("w", encoded.data), ("w_scales", encoded.scales), ("w_global", encoded.global_scale)):
            if array is not None:
                names.append(part)
                constants.append(constant(part, np.asarray(array)))
    if " bias=" in more:
        names.append("bias")
        constants.append(floats("bias", more.split(" bias=")[1].split()[0], [n]))
    if " c=" in more:
        type = more.split(" c=")[1].split()[0]
        names.append("c")
        values.append(value("c", type, [*leading, n]))
    node = plugins.gemm(problem, names, "y", w=None if inputs else encoded, x_from=x_from, target=TARGET)
    widths = {"x": k, "x_scales": 1, "c": n}
    dynamic = {} if shape else {part: extents(widths[part]) for part in names if part in widths}
    result = tuple(-1 if axis == "m" else axis for axis in leading) + (n,)
    name = f"TilewrightGemm {problem}" + (f" x_from={x_from}" if x_from else "") + (" inputs" if inputs else "")
    return Case(name, node, values, value("y", y, [*leading, n]), result, NAMES[y], constants, dynamic, encoded.nbytes)


def w4a8_case(form, n=256, k=512):
    """form: how the weights are passed."""
    data = np.random.randint(0, 256, (k // 2, n), np.uint8)
    scales = np.random.randint(0x18, 0x48, (k // 16, n), np.uint8)  # E4M3, positive
    names, constants, fields = ["activation"], [], {}
    if form == "fields":
        fields = {"weight_packed": data, "weight_scale": scales}
    else:
        names += ["weight_packed", "weight_scale"]
        # Its contract says FP8 for the scales, but TensorRT-RTX refuses models with tensors of both INT8 and FP8.
        constants = [constant("weight_packed", data), constant("weight_scale", scales)]
        fields = {"constant_weights": form == "constant inputs"}
    node = plugins.w4a8(k, n, names, "y", alpha=0.5, target=TARGET, **fields)
    return Case(f"W4A8GemmPlugin {k} x {n}, weights as {form}", node, [value("activation", "bf16", ["m", k])],
                value("y", "bf16", ["m", n]), (-1, n), "BF16", constants, profile(k, name="activation"), data.nbytes + scales.nbytes)


def conv_case(layouts, x_shape, y_shape, more="", inputs=False):
    w = np.random.standard_normal((64, 32 * 9)).astype("f4")
    encoded = tw.encode(w, "bf16")
    problem = f"conv x=bf16 w=bf16 y=bf16 n=1 c=32 in=16x16 k=64 kernel=3x3 {layouts}{more}"
    names, constants = ["x"], []
    if inputs:
        names.append("w")
        constants.append(helper.make_tensor("w", TensorProto.BFLOAT16, [64, 32 * 9], encoded.data.tobytes(), raw=True))
    node = plugins.conv(problem, names, "y", w=None if inputs else encoded, target=TARGET)
    axes = [axis if isinstance(axis, int) else -1 for axis in x_shape]
    small, large = ([axis if axis > 0 else size for axis in axes] for size in (8, 32))
    return Case(f"TilewrightConv {problem}" + (" inputs" if inputs else ""), node, [value("x", "bf16", x_shape)],
                value("y", "bf16", y_shape), tuple(axis if isinstance(axis, int) else -1 for axis in y_shape), "BF16", constants,
                {"x": (small, small, large)}, encoded.nbytes)


def cases(quick):
    yield gemm_case("e4m3_row", "nvfp4", "bf16", 1024, 1024, x_from="bf16", more=" global=mul")
    yield w4a8_case("constant inputs")
    yield conv_case("pad=1 x_layout=ncdhw y_layout=ncdhw", ["n", 32, "h", "w"], ["n", 64, "ho", "wo"])
    if quick:
        return
    yield w4a8_case("fields")
    yield w4a8_case("inputs")
    yield conv_case("stride=2", ["n", "h", "w", 32], ["n", "ho", "wo", 64])
    yield conv_case("pad=1 w_layout=kctrs", [2, 16, 16, 32], [2, 16, 16, 64], inputs=True)
    yield gemm_case("e4m3_row", "nvfp4", "bf16", x_from="bf16", more=" global=mul", inputs=True)
    for w in ("int4_g128", "int8_row", "uint4_g64", "q4_0", "q4_k", "q6_k", "bf16", "e4m3_row", "mxfp4"):
        yield gemm_case("bf16", w, "bf16")
    for w in ("int4_g128", "q8_0", "f16"):
        yield gemm_case("f16", w, "f16", inputs=True)
    yield gemm_case("bf16", "int4_g128", "f32", more=" bias=f32 act=gelu_tanh")
    yield gemm_case("bf16", "int4_g128", "bf16", more=" bias=bf16 c=bf16")
    yield gemm_case("int8_row", "int8_row", "bf16", x_from="bf16")
    yield gemm_case("e4m3_row", "e4m3_row", "bf16", x_from="f16")
    yield gemm_case("e4m3_row", "nvfp4", "bf16", more=" global=mul")
    yield gemm_case("int8_row", "int8_row", "bf16")
    yield gemm_case("f16", "q4_0", "f16", shape=(2, 3))
    yield gemm_case("f16", "q4_0", "f16", shape=(1,))


def refusals(quick):
    del quick
    def wrong(name, says, problem, x=("bf16", ["m", 512]), **fields):
        node = plugins.gemm(problem, ["x"], "y", target=fields.pop("target", TARGET), **fields)
        return Case(name, node, [value("x", *x)], value("y", "bf16", ["m", 128]), says=says, profile=profile(512))

    good, w = "gemm x=bf16 w=int4_g128 y=bf16 n=128 k=512", weights("int4_g128", 128, 512)
    yield wrong("x of another type", "x must be of type BF16 (got FLOAT)", good, ("f32", ["m", 512]), w=w)
    yield wrong("x of another width", "x must have 512 elements along its last axis", good, ("bf16", ["m", 500]), w=w)
    yield wrong("x of one axis", "x must have at least two axes", good, ("bf16", [512]), w=w)
    yield wrong("no weights", "inputs must be the 3 tensors x, w, w_scales (got 1)", good)
    yield wrong("weights of another size", "w must be 32768 bytes", good, w=weights("int4_g128", 64, 512))
    yield wrong("an unknown format", "int4_g12", good.replace("int4_g128", "int4_g12"), w=w)
    yield wrong("k that is no multiple", "k must be a multiple of 128", good.replace("k=512", "k=500"), w=w)
    yield wrong("an unknown target", "sm_12", good, w=w, target="sm_12")
    yield wrong("a CPU's target", "target must be a GPU's", good, w=w, target="x86-64-v3")
    yield wrong("no target without a GPU", "target is required where no GPU is", good, w=w, target=None)
    yield wrong("another operation", "problem must be a gemm", "conv x=bf16 w=bf16 y=bf16 n=1 c=64 in=8x8 k=64 kernel=3", w=w)
    yield wrong("groups", "groups=4 is not supported by TilewrightGemm", good + " groups=4", w=w)
    for name, says, x, k, fields in (
        ("in_features that differ from x", "activation must have 512 elements", ("bf16", ["m", 256]), 512, {}),
        ("in_features that are no multiple", "in_features must be a positive multiple of 16 (got 100)", ("bf16", ["m", 100]), 100, {}),
        ("W4A8 of another type", "activation must be of type BF16 (got HALF)", ("f16", ["m", 512]), 512, {}),
        ("weights [n, k / 2]", "weight_packed must have the shape [256, 128] (got [128, 256])", ("bf16", ["m", 512]), 512, {"turned": True}),
    ):
        shapes = [(k // 2, 128), (k // 16, 128)]
        arrays = [np.zeros(shape[::-1] if fields else shape, np.int8) for shape in shapes]
        node = plugins.w4a8(k, 128, ["activation", "weight_packed", "weight_scale"], "y", target=TARGET)
        constants = [constant(part, array) for part, array in zip(("weight_packed", "weight_scale"), arrays)]
        yield Case(name, node, [value("activation", *x)], value("y", "bf16", ["m", 128]), says=says, constants=constants,
                   profile=profile(k, name="activation"))
    node = plugins.conv("conv x=bf16 w=bf16 y=bf16 n=1 c=32 in=16x16 k=64 kernel=3x3", ["x", "w"], "y", target=TARGET)
    yield Case("an image of other channels", node, [value("x", "bf16", [1, 16, 16, 48])], value("y", "bf16", [1, 14, 14, 64]),
               says="x must have the shape [-1, -1, -1, 32], in which -1 is any extent (got [1, 16, 16, 48])",
               constants=[helper.make_tensor("w", TensorProto.BFLOAT16, [64 * 288], bytes(64 * 288 * 2), raw=True)])
    yield wrong("an x_from that is no float", "x_from", good.replace("x=bf16", "x=int8_row"), w=w, x_from="int8")
