# SPDX-License-Identifier: Apache-2.0
"""torchao: quantize_() with our formats, and conversion of models that it quantized. Importing this module registers
TilewrightConfig.

    from torchao.quantization import quantize_
    from tilewright.torchao import TilewrightConfig, convert

    quantize_(model, TilewrightConfig("q4_0", "q8_1"))          # nn.Linear becomes QuantizedLinear
    print(convert(other))                                       # after quantize_(other, Int8WeightOnlyConfig())

Written for torchao 0.18."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn
from torchao.core.config import AOBaseConfig
from torchao.quantization.transform_module import register_quantize_module_handler

from . import codec
from ._errors import Unsupported, must_be
from .torch import QuantizedLinear, QuantizedWeight
from .torch._spec import FORMATS
from .torch.checkpoints import check_rule, group_weight, q8_0_weight, row_weight
from .torch.replace import ReplaceReport, replace_quantized

__all__ = ["TilewrightConfig", "convert"]


@dataclasses.dataclass
class TilewrightConfig(AOBaseConfig):  # type: ignore[misc]
    """Fields as of QuantizedLinear.from_linear(). quantize_() raises InvalidArgument for a layer whose shape the format
    does not take, and Unsupported for one whose weight is not a float tensor: filter_fn excludes them."""

    weight: str = "q4_0"
    activation: str | None = None
    encoder: str | None = None
    accum: str | None = None

    def __post_init__(self) -> None:
        format = codec.find(self.weight)
        if self.activation is not None:
            codec.find(self.activation)
        if self.encoder is not None and self.encoder not in format.encoders:
            raise must_be("encoder", self.encoder, f"one of {', '.join(format.encoders)}, {format.name}'s")


@register_quantize_module_handler(TilewrightConfig)  # type: ignore[untyped-decorator]
def _quantize(module: nn.Module, config: TilewrightConfig) -> nn.Module:
    if isinstance(module, QuantizedLinear):
        return module
    weight: Any = getattr(module, "weight", None)
    if not isinstance(module, nn.Linear) or type(weight) not in (Tensor, nn.Parameter) or weight.dtype not in FORMATS:
        what = f"{type(module).__name__} with a weight of {type(weight).__name__}"
        raise Unsupported("module", what, "must be an nn.Linear of floats; convert() takes what torchao has quantized")
    options = {field.name: getattr(config, field.name) for field in dataclasses.fields(TilewrightConfig)}
    return QuantizedLinear.from_linear(module, **{name: options[name] for name in QuantizedLinear.options})


def convert(
    model: nn.Module, *, activation: Any = ..., accum: str | None = None, scales: str = "exact"
) -> ReplaceReport:
    """Replaces linear layers that torchao has quantized by QuantizedLinear, in place, with the same values. activation,
    accum: as of QuantizedLinear. activation=...: if torchao quantizes x to 8 bits, too, a scale for each row, or MXFP8
    where it does that; else None. scales: "nearest" rounds group scales that float16 lacks.

    Converts Int8Tensor and Float8Tensor by row or tensor, Int8Tensor in groups, IntxUnpackedToInt8Tensor, Int4Tensor
    without zero points, MXTensor (MXFP8 in E4M3, MXFP4) and NVFP4Tensor. The report says why other layers were left
    alone."""
    check_rule(scales)

    def make(module: Any) -> tuple[QuantizedWeight, dict[str, Any]] | None:
        weight: Any = getattr(module, "weight", None)
        if not isinstance(module, nn.Linear) or not type(weight).__module__.startswith("torchao."):
            return None
        read = _READ.get(type(weight).__name__)
        if read is None:
            raise Unsupported("weight", type(weight).__name__, f"must be one of {', '.join(_READ)}")
        if getattr(weight, "act_pre_scale", None) is not None:
            raise Unsupported("act_pre_scale", "a scale of x", "is not supported")
        own, x = read(weight, scales)
        x = x if activation is ... else activation
        return own, {"activation": x, "accum": accum, "dtype": weight.dtype if weight.dtype in FORMATS else None}

    return replace_quantized(model, make)


def _rows(weight: Any, rule: str, x: str) -> tuple[QuantizedWeight, str | None]:
    n, k = weight.shape
    zeros = getattr(weight, "zero_point", None)
    if zeros is not None and zeros.any():
        raise Unsupported("zero_point", "not all zero", "must be 0: only symmetric weights are supported")
    inputs = x if weight.act_quant_kwargs is not None or getattr(weight, "act_quant_scale", None) is not None else None
    block = list(weight.block_size or (n, k))
    if block in ([1, k], [n, k]):
        return row_weight(weight.qdata, weight.scale), inputs
    if weight.qdata.dtype == torch.int8:
        return _q8_0(weight, rule), inputs
    raise Unsupported("block_size", str(block), f"must be [1, {k}] or [{n}, {k}]: PerRow or PerTensor")


def _q8_0(weight: Any, rule: str) -> QuantizedWeight:
    n, k = weight.shape
    lines, group = weight.block_size
    if lines != 1 or group % 32:
        raise Unsupported("block_size", str(list(weight.block_size)), "must be rows, or groups of a multiple of 32 of a row")
    return q8_0_weight(weight.qdata, weight.scale.reshape(n, k // group), "scale", rule)


def _intx(weight: Any, rule: str) -> tuple[QuantizedWeight, str | None]:
    k = weight.shape[1]
    inputs = None if weight.activation_quantization is None else "int8_asym_row"
    if list(weight.block_size) == [1, k] and not weight.zero_point.any():
        return row_weight(weight.qdata, weight.scale), inputs
    if weight.block_size[0] != 1:
        raise Unsupported("block_size", str(list(weight.block_size)), "must be groups of one row")
    codes, zeros = weight.qdata.long() + 8, weight.zero_point.float() + 8
    if ((codes >= 0) & (codes < 16)).all() and ((zeros >= 0) & (zeros < 16) & (zeros == zeros.round())).all():
        return group_weight(codes, zeros, weight.scale, "scale", rule), inputs
    if weight.zero_point.any():
        allowed = "is not supported: codes and zero points must be -8 to 7, or zero points of 8 bits all zero"
        raise Unsupported("zero_point", "not all zero", allowed)
    return _q8_0(weight, rule), inputs


def _int4(weight: Any, rule: str) -> tuple[QuantizedWeight, str | None]:
    n, k = weight.shape
    if weight.zero_point.any() or weight.qdata.dim() != 2:
        raise Unsupported(
            "zero_point", "numbers added to the codes' products", "are not supported: matrices must be symmetric"
        )
    nibbles = torch.stack([weight.qdata & 15, (weight.qdata >> 4) & 15], -1).reshape(n, k).long()
    scales = weight.scale.T
    inputs = None if weight.activation_dtype != torch.float8_e4m3fn else "e4m3_row"
    # Two's complement, plus 8.
    return group_weight(nibbles ^ 8, torch.full(scales.shape, 8), scales, "scale", rule), inputs


def _blocks(weight: Any, size: int) -> Tensor:
    """The block scales [n, k / size], which torchao may store in the order of Blackwell's matrix units."""
    n, k = weight.shape
    if weight.block_size != size or weight.qdata.dim() != 2 or not weight.qdata.is_contiguous():
        what = f"{weight.block_size}, of {tuple(weight.qdata.shape)} with strides {weight.qdata.stride()}"
        raise Unsupported("block_size", what, f"must be {size}, of a matrix in order")
    if not weight.is_swizzled_scales:
        return weight.scale  # type: ignore[no-any-return]
    from torchao.prototype.mx_formats.utils import from_blocked

    return from_blocked(weight.scale, n, k // size)  # type: ignore[no-any-return]


def _mx(weight: Any, rule: str) -> tuple[QuantizedWeight, str | None]:
    formats = {torch.float8_e4m3fn: "mxfp8", torch.float4_e2m1fn_x2: "mxfp4"}
    format = formats.get(weight.elem_dtype)
    if format is None:
        raise Unsupported("elem_dtype", str(weight.elem_dtype), f"must be one of {', '.join(map(str, formats))}")
    streams = [weight.qdata.view(torch.uint8), _blocks(weight, 32).contiguous().view(torch.uint8)]
    inputs = "mxfp8" if weight.act_quant_kwargs is not None and format == "mxfp8" else None
    return QuantizedWeight.from_streams(streams, format, *weight.shape), inputs


def _nvfp4(weight: Any, rule: str) -> tuple[QuantizedWeight, str | None]:
    factor = torch.ones(1) if weight.per_tensor_scale is None else weight.per_tensor_scale.float().reshape(-1)
    if factor.numel() != 1:
        raise Unsupported("per_tensor_scale", f"{factor.numel()} factors", "must have one for the tensor")
    scales = _blocks(weight, 16).contiguous().view(torch.uint8)
    streams = [weight.qdata.view(torch.uint8), scales, factor.to(scales.device)]
    return QuantizedWeight.from_streams(streams, "nvfp4", *weight.shape), None


_READ: dict[str, Any] = {
    "Int8Tensor": lambda weight, rule: _rows(weight, rule, "int8_row"),
    "Float8Tensor": lambda weight, rule: _rows(weight, rule, "e4m3_row"),
    "IntxUnpackedToInt8Tensor": _intx,
    "Int4Tensor": _int4,
    "MXTensor": _mx,
    "NVFP4Tensor": _nvfp4,
}
