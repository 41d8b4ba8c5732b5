# SPDX-License-Identifier: Apache-2.0
"""Loads quantized linear layers from ONNX models, and exports models with such layers, exactly.

    for name, layer in tilewright.onnx.load_quantized("model.onnx"):    # a QuantizedLinear of tilewright.torch
        ...
    tilewright.onnx.export(model, (x,), "model.onnx")

Reads ONNX Runtime's MatMulNBits (2, 4 and 8 bits), and DequantizeLinear before the second operand of a MatMul or Gemm
(INT8 and E4M3 by row or tensor, INT4 and UINT4 in blocks, and NVFP4 as Model Optimizer exports it for TensorRT:
FLOAT4E2M1 in blocks of 16, with FLOAT8E4M3FN scales that one number dequantizes). Needs the package onnx, 1.18 for
FP4."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, Union

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from . import checkpoints, codec
from ._errors import InvalidArgument, IoError, TilewrightError, TooLarge, Unsupported, must_be
from .device import Device, device_count
from .torch import QuantizedConv1d, QuantizedConv2d, QuantizedConv3d, QuantizedLinear, QuantizedWeight
from .torch.checkpoints import check_rule, group_weight, q8_0_weight, row_weight

__all__ = ["export", "load_quantized"]

_MS = "com.microsoft"
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
_FLOAT4 = 23  # TensorProto.FLOAT4E2M1, which packages before 1.18 do not name
_MOST = 1 << 31  # elements of a weight's extent


def load_quantized(
    model: Union[str, os.PathLike[str], onnx.ModelProto],
    *,
    activation: str | None = None,
    accum: str | None = None,
    scales: str = "exact",
    left: dict[str, str] | None = None,
) -> Iterator[tuple[str, QuantizedLinear]]:
    """The quantized linear layers of a model's graph, each with its node's name (or its weight's). activation, accum:
    as of QuantizedLinear. The bias is MatMulNBits's or Gemm's, floats or dequantized; an Add after the node is ignored,
    as is what is done to the other operand. A Transpose, and a Cast to the model's compute precision, may follow
    DequantizeLinear.

    Weights have exactly the model's values. 4 bits become int4_g32 to int4_g128, or uint4_* with zero points other than
    the middle; 2-bit codes use the same formats. 8 bits in blocks of 32 become q8_0. DequantizeLinear's INT8 becomes
    int8_row and its FLOAT4E2M1 nvfp4, byte for byte. These formats have float16 block scales: other scales are refused,
    or rounded with scales="nearest", which moves a weight by at most 2^-11 of itself.

    Raises InvalidArgument or Unsupported naming the node and the tensor or attribute that does not fit, or if there is
    no such layer; IoError. left: a dict that gets the error of each layer that does not fit, by name, instead."""
    check_rule(scales)
    if not isinstance(model, onnx.ModelProto):
        try:
            model = onnx.load(os.fspath(model))
        except Exception as error:  # from protobuf, the file system or external data
            raise IoError("model", str(model), f"must be a readable ONNX model: {error}") from None
    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    makers = {output: node for node in graph.node for output in node.output}
    found = 0
    for node in graph.node:
        reader = _Node(node, tensors, scales)
        try:
            layer = _layer(reader, makers)
            if layer is None:
                continue
            weight, bias = layer
            parameter = None if bias is None else torch.from_numpy(bias.astype(np.float32).reshape(-1))
            made = QuantizedLinear.from_weight(weight, parameter, activation=activation, accum=accum)
        except TilewrightError as error:
            if not error.field.startswith(reader.name):  # from code that does not know the layer
                error = type(error)(f"{reader.name}: {error.field}", error.value, error.allowed)
            if left is None:
                raise error from None
            left[reader.name] = str(error)
            continue
        found += 1
        yield reader.name, made
    if not found and not left:
        seen = sorted({node.op_type for node in graph.node if node.op_type in _NOT_READ})
        more = f"; {', '.join(seen)} are not read: quantize with QuantFormat.QDQ" if seen else ""
        what = f"{len(graph.node)} nodes without one"
        raise Unsupported("model", what, f"must have MatMulNBits, or MatMul and Gemm behind DequantizeLinear{more}")


# Of ONNX Runtime's QOperator format and dynamic quantization.
_NOT_READ = ("QLinearMatMul", "QGemm", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QLinearConv")


def _layer(reader: _Node, makers: Mapping[str, Any]) -> tuple[QuantizedWeight, Any] | None:
    """A node's weight and bias; None: it is no quantized layer."""
    node, tensors = reader.node, reader.tensors
    if node.op_type == "MatMulNBits" and node.domain == _MS:
        return _nbits(reader), reader.array(5)
    if node.op_type not in ("MatMul", "Gemm") or len(node.input) < 2:
        return None
    maker, transposed = _stored(makers, tensors, node.input[1])
    if maker is None:
        return None
    turned = (node.op_type == "MatMul" or not reader.attribute("transB", 0)) != transposed
    if node.op_type == "Gemm" and any(reader.attribute(a, v) != v for a, v in _GEMM.items()):
        raise Unsupported(reader.name, "Gemm", "must have alpha = beta = 1, and no transA")
    weight = _dequantized(_Node(maker, tensors, reader.scales), makers, turned)
    return weight, _bias(reader, makers) if node.op_type == "Gemm" else None


def _bias(reader: _Node, makers: Mapping[str, Any]) -> Any:
    """Floats, or integers behind a DequantizeLinear, as quantize_static has them."""
    name = reader.node.input[2] if len(reader.node.input) > 2 else ""
    maker = makers.get(name)
    if maker is None or maker.op_type != "DequantizeLinear":
        return reader.array(2)
    stored = _Node(maker, reader.tensors)
    codes, scale, zeros = stored.needed(0), stored.needed(1), stored.array(2)
    if scale.size not in (1, codes.size) or (zeros is not None and zeros.any()):
        raise Unsupported(
            f"{reader.name} (input 2)",
            f"scales of shape {scale.shape}",
            "must have one scale, or one for each output, and no zero point",
        )
    return codes.reshape(-1).astype(np.float32) * scale.reshape(-1).astype(np.float32)


_GEMM = {"alpha": 1.0, "beta": 1.0, "transA": 0}


def _stored(makers: Mapping[str, Any], tensors: Mapping[str, Any], name: str) -> tuple[Any, bool]:
    """The node that dequantizes a value from an initializer, or None, and whether a Transpose follows it."""
    transposed = False
    for _ in range(8):  # a graph of a file may have cycles
        maker = makers.get(name)
        if maker is None or not maker.input:
            break
        name = maker.input[0]
        if maker.op_type == "DequantizeLinear":
            return (maker if name in tensors else None), transposed
        if maker.op_type == "Transpose":  # of a matrix: swaps both axes by default
            transposed ^= list(_Node(maker, tensors).attribute("perm", [1, 0])) == [1, 0]
        elif maker.op_type != "Cast":
            break
    return None, False


class _Node:
    """A node's attributes and constant inputs."""

    def __init__(self, node: onnx.NodeProto, tensors: Mapping[str, onnx.TensorProto], scales: str = "exact") -> None:
        self.node, self.tensors, self.scales = node, tensors, scales
        self.name = node.name or (node.input[1] if len(node.input) > 1 else node.op_type)

    def attribute(self, name: str, default: Any = None) -> Any:
        for attribute in self.node.attribute:
            if attribute.name == name:
                return helper.get_attribute_value(attribute)
        if default is None:
            raise must_be(f"{self.name}.{name}", "missing", "an attribute of the node")
        return default

    def extent(self, name: str) -> int:
        value = self.attribute(name)
        if not isinstance(value, int) or value < 1:
            raise must_be(f"{self.name}.{name}", value, "at least 1")
        if value >= _MOST:
            raise TooLarge(f"{self.name}.{name}", str(value), f"must be less than {_MOST}")
        return value

    def array(self, index: int) -> Any:
        """A constant input as NumPy has it; None where the node has none."""
        if len(self.node.input) <= index or not self.node.input[index]:
            return None
        name = self.node.input[index]
        if name not in self.tensors:
            raise Unsupported(f"{self.name}.{name}", "computed", "must be an initializer of the graph")
        try:
            return numpy_helper.to_array(self.tensors[name])
        except (ValueError, TypeError, KeyError) as error:
            raise must_be(f"{self.name}.{name}", "unreadable", f"a tensor as ONNX has it: {error}") from None

    def needed(self, index: int, count: int | None = None) -> Any:
        array = self.array(index)
        part = f"{self.name} (input {index})"
        if array is None:
            raise must_be(part, "missing", "an initializer")
        if count is not None and array.size != count:
            raise InvalidArgument(part, f"{array.size} elements", f"must have {count}")
        return array


def _nbits(node: _Node) -> QuantizedWeight:
    n, k, bits, group = (node.extent(name) for name in ("N", "K", "bits", "block_size"))
    if bits not in (2, 4, 8):
        raise Unsupported(f"{node.name}.bits", str(bits), "must be 2, 4 or 8")
    if k % group:
        raise Unsupported(f"{node.name}.K", str(k), f"must be a multiple of block_size={group}")
    if node.array(4) is not None:
        raise Unsupported(f"{node.name} (input 4)", "g_idx", "is not supported: columns must be in order")
    blocks = k // group
    codes = _unpacked(node.needed(1, n * blocks * (group * bits // 8)), n * blocks, group, bits).reshape(n, k)
    scales = node.needed(2, n * blocks).reshape(n, blocks)
    middle = 1 << (bits - 1)
    zeros = node.array(3)
    if zeros is None:
        zeros = np.full((n, blocks), middle, np.uint8)
    elif zeros.dtype != np.uint8:
        raise Unsupported(f"{node.name} (input 3)", f"{zeros.dtype} zero points", "must be integers, packed in uint8")
    else:
        row = -(-blocks * bits // 8)
        zeros = _unpacked(node.needed(3, n * row), n, 8 * row // bits, bits)[:, :blocks]
    if bits < 8:
        return _blocks(node, codes, zeros, scales)
    if group != 32 or (zeros != middle).any():
        raise Unsupported(
            node.name,
            f"8 bits in blocks of {group}",
            "is not supported: weights of 8 bits must have blocks of 32 without zero points, as q8_0 has",
        )
    values = torch.from_numpy((codes ^ 0x80).view(np.int8))  # minus 128
    return q8_0_weight(values, _floats(scales), f"{node.name} (scales)", node.scales)


def _unpacked(packed: Any, rows: int, cols: int, bits: int) -> Any:
    """Codes [rows, cols] out of bytes, the lowest bits first."""
    if packed.dtype != np.uint8:
        raise must_be("B", f"{packed.dtype}", "uint8")
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (packed.reshape(rows, -1, 1) >> shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(rows, cols)


def _blocks(node: _Node, codes: Any, zeros: Any, scales: Any) -> QuantizedWeight:
    """Codes [n, k] below 16, zero points and scales [n, blocks]."""
    if codes.shape[1] % 8:
        raise Unsupported(f"{node.name}.K", str(codes.shape[1]), "must be a multiple of 8")
    parts = (torch.from_numpy(np.ascontiguousarray(part)) for part in (codes, zeros))
    return group_weight(*parts, _floats(scales), f"{node.name} (scales)", node.scales)


_EIGHT = {TensorProto.INT8: torch.int8, TensorProto.FLOAT8E4M3FN: torch.float8_e4m3fn}


def _floats(scales: Any) -> Tensor:
    """As float32: NumPy itself has no bfloat16."""
    return torch.from_numpy(np.ascontiguousarray(scales, np.float32))


def _dequantized(node: _Node, makers: Mapping[str, Any], turned: bool) -> QuantizedWeight:
    """turned: the matrix is [k, n]."""
    kind = node.tensors[node.node.input[0]].data_type
    if kind == _FLOAT4:
        return _nvfp4(node, makers, turned)
    codes, scales, zeros = node.needed(0), node.needed(1), node.array(2)
    if codes.ndim != 2 or codes.size == 0:
        raise Unsupported(node.name, f"a weight of shape {codes.shape}", "must be a matrix")
    axis, group = node.attribute("axis", 1) % 2, node.attribute("block_size", 0)
    if zeros is not None and zeros.shape != scales.shape:
        raise must_be(f"{node.name} (input 2)", f"shape {zeros.shape}", f"{scales.shape}, as scales have")
    wide, offsets = codes.astype(np.int16), None if zeros is None else zeros.astype(np.int16)
    if kind in _EIGHT and not group:
        n = wide.shape[1 if turned else 0]
        if scales.size not in (1, n) or (scales.size != 1 and axis != (1 if turned else 0)):
            raise Unsupported(
                f"{node.name} (input 1)",
                f"shape {scales.shape}, axis {axis}",
                "must have one scale, or one for each output",
            )
        if offsets is not None and offsets.any():
            raise Unsupported(f"{node.name} (input 2)", "zero points", "must be zeros: formats of 8 bits have none")
        data = np.array(codes.T if turned else codes, order="C").view(np.uint8)
        return row_weight(torch.from_numpy(data).view(_EIGHT[kind]), _floats(scales).reshape(-1), node.name)
    if kind not in (TensorProto.INT4, TensorProto.UINT4) or group < 1 or axis != (0 if turned else 1):
        what = f"{TensorProto.DataType.Name(kind)}, axis {axis}, block_size {group}"
        allowed = "must be INT8 or FLOAT8E4M3FN by output or tensor, INT4, UINT4 or FLOAT4E2M1 in blocks along the reduction"
        raise Unsupported(node.name, what, allowed)
    if turned:
        wide, scales, offsets = wide.T, scales.T, None if offsets is None else offsets.T
    n, k = wide.shape
    if k % group or scales.shape != (n, k // group):
        raise InvalidArgument(
            f"{node.name} (input 1)", f"shape {scales.shape}", f"must have blocks of {group} of {k} elements"
        )
    offsets = np.zeros(scales.shape, np.int16) if offsets is None else offsets
    shift = 8 if kind == TensorProto.INT4 else 0
    return _blocks(node, (wide + shift).astype(np.uint8), (offsets + shift).astype(np.uint8), scales)


def _nvfp4(node: _Node, makers: Mapping[str, Any], turned: bool) -> QuantizedWeight:
    """FLOAT4E2M1 in blocks of 16, whose scales are dequantized from FLOAT8E4M3FN by one number."""
    codes, part = node.needed(0), f"{node.name} (input 1)"
    scale = makers.get(node.node.input[1]) if len(node.node.input) > 1 else None
    stored = node.tensors.get(scale.input[0]) if scale is not None and scale.op_type == "DequantizeLinear" else None
    if stored is None or stored.data_type != TensorProto.FLOAT8E4M3FN:
        raise Unsupported(part, "other scales", "must be DequantizeLinear of an initializer of FLOAT8E4M3FN")
    inner = _Node(scale, node.tensors)
    scales, factor = inner.needed(0), inner.needed(1, 1)
    if node.array(2) is not None or inner.array(2) is not None:
        raise Unsupported(node.name, "zero points", "must not have zero points other than 0: its codes are floats")
    axis, group = node.attribute("axis", 1), node.attribute("block_size", 0)
    if codes.ndim != 2 or codes.size == 0 or group != 16 or axis not in ((0, -2) if turned else (1, -1)):
        what = f"FLOAT4E2M1 of shape {codes.shape}, axis {axis}, block_size {group}"
        raise Unsupported(node.name, what, "must be a matrix in blocks of 16 along the reduction")
    nibbles, bytes_ = codes.view(np.uint8), scales.view(np.uint8)
    if turned:
        nibbles, bytes_ = nibbles.T, bytes_.T
    n, k = nibbles.shape
    if k % 16 or bytes_.shape != (n, k // 16):
        raise InvalidArgument(part, f"shape {scales.shape}", f"must have blocks of 16 of {k} elements")
    if (bytes_ >= 0x7F).any():
        raise Unsupported(part, "negative numbers or NaNs", "must be from 0 to 448")
    factor = np.ascontiguousarray(factor, np.float32).reshape(1)
    if not 0 < factor[0] < np.inf:
        raise Unsupported(f"{inner.name} (input 1)", f"{factor[0]}", "must be a positive finite number")
    data = nibbles[:, ::2] | (nibbles[:, 1::2] << 4)
    streams = [torch.from_numpy(np.array(part, order="C").reshape(-1)) for part in (data, bytes_, factor)]
    return QuantizedWeight.from_streams(streams, "nvfp4", n, k)


# ---- export


def export(
    model: nn.Module,
    args: tuple[Any, ...],
    path: Union[str, os.PathLike[str], None] = None,
    *,
    left: dict[str, str] | None = None,
    plugin: bool = False,
    target: str | None = None,
    **options: Any,
) -> Any:
    """torch.onnx.export() of a model whose QuantizedLinear layers keep their weights: int4_*, uint4_*, q4_0 and q8_0
    become MatMulNBits; int8 and e4m3 by row or tensor become DequantizeLinear and MatMul; nvfp4 becomes two
    DequantizeLinear, Transpose and MatMul, as Model Optimizer exports it. Nodes have their modules' names. Returns the
    ONNXProgram, and saves it if there is a path.

    Weights keep their values; products are in single precision, whatever x's dtype. If the layer quantizes x to 8-bit
    integers, ONNX Runtime does so in its own way (accuracy_level 4); else x is not quantized. options: of
    torch.onnx.export(). Needs the package onnxscript.

    plugin: the layers, of any format and convolutions too, become nodes of Tilewright's plugins for TensorRT instead
    (docs/use/tensorrt.md), which compute as the layers do. `target` is the GPU that engines are for ("sm_90a"; None: this
    machine's).

    Raises Unsupported naming a convolution, or a layer whose format ONNX lacks. left: a dict that gets each such error
    by name, instead; those layers are exported in floats."""
    model = model if not isinstance(model, _LAYERS) else nn.Sequential(OrderedDict(linear=model))
    own = {name: m for name, m in model.named_modules(remove_duplicate=False) if isinstance(m, _LAYERS)}
    standins: dict[int, nn.Module] = {}
    for name, layer in own.items():
        if id(layer) not in standins:
            standins[id(layer)] = _standin(layer, name, left, _target(target) if plugin else None)
    try:
        for name, layer in own.items():
            model.set_submodule(name, standins[id(layer)])
        program = torch.onnx.export(model, args, opset_version=23, dynamo=True, verbose=False, **options)
    finally:
        for name, layer in own.items():
            model.set_submodule(name, layer)
    assert program is not None
    for node in program.model.graph:  # names are unique: the first call of a layer gets it
        if node.op_type in _PRODUCTS and own.pop(name := _layer_of(node), None) is not None:
            node.name = name
    if path is not None:
        program.save(path)
    return program


_PRODUCTS = ("MatMulNBits", "MatMul", "TilewrightGemm", "TilewrightConv")


def _target(name: str | None) -> str:
    if name is None:
        if device_count() == 0:
            raise InvalidArgument("target", "None", "must be named where no GPU is, such as sm_90a")
        return Device(0).arch
    return name


_LAYERS = (QuantizedLinear, QuantizedConv1d, QuantizedConv2d, QuantizedConv3d)


def _layer_of(node: Any) -> str:
    """The module of a product's weight, through DequantizeLinear and Transpose."""
    value = node.inputs[1]
    while value is not None and (maker := value.producer()) is not None:
        value = maker.inputs[0] if maker.op_type in ("DequantizeLinear", "Transpose") else None
    return "" if value is None else value.name.rpartition(".")[0]


def _standin(layer: Any, name: str, left: dict[str, str] | None, target: str | None) -> nn.Module:
    try:
        if target is not None:
            from ._plugin_standin import plugin_standin

            return plugin_standin(layer, target)
        if not isinstance(layer, QuantizedLinear):
            raise Unsupported(name, type(layer).__name__, "is not supported: no ONNX operator has its weight")
        return _Standin(layer)
    except TilewrightError as error:
        if not error.field.startswith(name):
            error = type(error)(f"{name}.{error.field}", error.value, error.allowed)
        if left is None:
            raise error from None
        left[name] = str(error)
        return layer.to_linear() if isinstance(layer, QuantizedLinear) else layer.to_conv()  # type: ignore[no-any-return]


class _Standin(nn.Module):
    """A QuantizedLinear whose forward() is ONNX's operators, for the exporter to follow."""

    def __init__(self, layer: QuantizedLinear) -> None:
        super().__init__()
        n, k, format = layer.out_features, layer.in_features, layer.weight.format
        self.k, self.n = k, n
        data, *scales = [stream.cpu() for stream in layer.weight.stored()]
        if format == "nvfp4":
            self.forms = [("DequantizeLinear", ("scales", "scale"), {}), ("DequantizeLinear", ("codes", ""), _BLOCKS)]
            parts = {"codes": data.reshape(n, -1).view(torch.float4_e2m1fn_x2), "scale": scales[1].reshape(())}
            parts["scales"] = scales[0].reshape(n, -1).view(torch.float8_e4m3fn)
        elif format in _BYTES:
            self.forms = [("DequantizeLinear", ("codes", "scales"), {"axis": 1})]
            parts = {"codes": data.view(_BYTES[format]).reshape(n, k).T.contiguous()}
            parts["scales"] = scales[0].reshape(-1).view(torch.float32).expand(n).contiguous()
        else:
            bits, group, codes, halves, zeros = _packed(format, [data, *scales], n, k)
            parts = {"codes": torch.from_numpy(np.ascontiguousarray(codes.reshape(n, k // group, -1)))}
            parts["scales"] = torch.from_numpy(halves.astype(np.float32).reshape(-1))
            if zeros is not None:
                parts["zeros"] = torch.from_numpy(zeros)
            level = 4 if layer.activation in ("q8_1", "q8_0", "int8_row") else 1
            self.sizes = {"K": k, "N": n, "bits": bits, "block_size": group, "accuracy_level": level}
            self.forms = []
        for part, tensor in parts.items():
            self.register_buffer(part, tensor)
        self.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach().float().cpu())
        self.order = None if layer.order is None else nn.Buffer(layer.order.long().cpu())
        self.factors = None if layer.factors is None else nn.Buffer(layer.factors.cpu())

    def forward(self, x: Tensor) -> Tensor:
        dtype, x = x.dtype, x.float()
        if self.factors is not None:
            x = x * self.factors
        if self.order is not None:
            x = x.index_select(-1, self.order)
        operator = torch.onnx.ops.symbolic
        if not self.forms:
            inputs = (x, self.codes, self.scales, getattr(self, "zeros", None), None, self.bias)
            shape = (*x.shape[:-1], self.n)
            y = operator(f"{_MS}::MatMulNBits", inputs, self.sizes, dtype=torch.float32, shape=shape, version=1)
            return y.to(dtype)
        w = None
        for op, names, attributes in self.forms:
            inputs = tuple(getattr(self, part) if part else w for part in names)
            shape = (self.n, self.k) if attributes is _BLOCKS else tuple(inputs[0].shape)
            w = operator(op, inputs, attributes, dtype=torch.float32, shape=shape)
        assert w is not None
        y = x @ (w.T if len(self.forms) > 1 else w)
        return (y if self.bias is None else y + self.bias).to(dtype)


_BLOCKS = {"axis": 1, "block_size": 16}
_BYTES = {
    "int8_row": torch.int8,
    "int8_tensor": torch.int8,
    "e4m3_row": torch.float8_e4m3fn,
    "e4m3_tensor": torch.float8_e4m3fn,
}


def _packed(format: str, streams: list[Tensor], n: int, k: int) -> tuple[int, int, Any, Any, Any]:
    """Bits, block size, packed codes, scales and packed zero points (None: the middle) of MatMulNBits."""
    if format in ("q8_0", "q4_0"):
        width = 34 if format == "q8_0" else 18
        blocks = streams[0].numpy().reshape(n, k // 32, width)
        scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16)
        codes = blocks[..., 2:]
        if format == "q8_0":
            return 8, 32, codes ^ np.uint8(0x80), scales, None
        # A byte has elements i and i + 16 of a block in ggml, neighbours in ONNX Runtime.
        nibbles = np.concatenate([codes & 15, codes >> 4], -1)
        return 4, 32, nibbles[..., ::2] | (nibbles[..., 1::2] << 4), scales, None
    kind, _, group = format.partition("_g")
    if kind not in ("int4", "uint4") or not group:
        allowed = ", ".join(("int4_g*", "uint4_g*", "q4_0", "q8_0", *_BYTES, "nvfp4"))
        raise Unsupported("weight", format, f"must be one of {allowed}, which ONNX has operators for")
    size = int(group)
    encoded = codec.Encoded(format, n, k, *streams)
    out = checkpoints.export_weights(encoded, "compressed_tensors", group=size)
    zeros = None
    if out.zeros is not None:
        words = np.asarray(out.zeros).view(np.uint32)
        nibbles = (words[:, None, :] >> np.arange(0, 32, 4, dtype=np.uint32)[:, None]) & 15
        rows = nibbles.reshape(-1, k // size)[:n].astype(np.uint8)
        rows = np.pad(rows, ((0, 0), (0, rows.shape[1] % 2)))
        zeros = rows[:, ::2] | (rows[:, 1::2] << 4)
    return 4, size, np.ascontiguousarray(out.codes).view(np.uint8), np.asarray(out.scales), zeros
