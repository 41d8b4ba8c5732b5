# SPDX-License-Identifier: Apache-2.0
"""Converts models quantized by NVIDIA Model Optimizer, where it is installed.

    import modelopt.torch.quantization as mtq
    from tilewright.modelopt import convert

    mtq.quantize(model, mtq.NVFP4_DEFAULT_CFG, forward_loop)
    mtq.compress(model)                                         # weights as bytes
    print(convert(model))                                       # its linear layers become QuantizedLinear

tilewright.torch.load_quantized() and tilewright.transformers read its exported checkpoints. This module imports only
PyTorch: it reads attributes of Model Optimizer's layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ._errors import Unsupported
from .torch import QuantizedWeight
from .torch._spec import FORMATS
from .torch.checkpoints import check_rule, group_weight, row_weight
from .torch.replace import ReplaceReport, replace_quantized

__all__ = ["convert"]


def convert(
    model: nn.Module, *, activation: Any = ..., accum: str | None = None, scales: str = "exact"
) -> ReplaceReport:
    """Replaces a model's compressed linear layers by QuantizedLinear, in place, with the same values: NVFP4 in blocks
    of 16, MXFP4, INT4 in groups, and FP8 and INT8 by tensor or output. activation, accum: as of QuantizedLinear.
    activation=...: if x's quantizer has 8 bits, a scale for each row, computed in each call instead of by calibration;
    else None. scales: "nearest" rounds group scales that float16 lacks (INT4's are reciprocals in single precision).

    Scales of x before it is quantized (AWQ, SmoothQuant) become the layer's `factors`. The report says why other layers
    were left alone: output quantizers, low-rank parts (SVDQuant), and layers that mtq.compress() has not compressed."""

    check_rule(scales)

    def make(module: Any) -> tuple[QuantizedWeight, dict[str, Any]] | None:
        quantizer = getattr(module, "weight_quantizer", None)
        if not isinstance(module, nn.Linear) or quantizer is None or not getattr(quantizer, "is_enabled", True):
            return None
        x = _activation(module)
        options = {"activation": x if activation is ... else activation, "accum": accum}
        stored: Any = module.weight
        weight = _weight(stored, quantizer, scales)
        dtype = stored.metadata.get("dtype")
        factors = getattr(module.input_quantizer, "pre_quant_scale", None)
        return weight, {**options, "factors": factors, "dtype": dtype if dtype in FORMATS else None}

    return replace_quantized(model, make)


def _activation(module: Any) -> str | None:
    inputs, outputs = module.input_quantizer, getattr(module, "output_quantizer", None)
    if outputs is not None and outputs.is_enabled:
        raise Unsupported("output_quantizer", "enabled", "must be off: outputs are not quantized")
    if not inputs.is_enabled:
        return None
    return {(4, 3): "e4m3_row", 8: "int8_row"}.get(inputs.num_bits)


def _weight(weight: Any, quantizer: Any, rule: str) -> QuantizedWeight:
    if getattr(quantizer, "svdquant_lora_a", None) is not None:
        raise Unsupported(
            "weight_quantizer.svdquant_lora_a", "a low-rank part", "is not supported; quantize without SVDQuant"
        )
    metadata = getattr(weight, "metadata", None)
    if metadata is None:
        raise Unsupported(
            "weight", f"{weight.dtype}, quantized in each call", "must be one that mtq.compress() has compressed"
        )
    kind = metadata["qtensor_class"].__name__
    data, scale = weight.data.as_subclass(torch.Tensor), getattr(quantizer, "_scale", None)
    if scale is None:
        raise Unsupported("weight_quantizer._scale", "None", "must be the scales of a compressed weight")
    if kind in ("FP8QTensor", "INT8QTensor"):
        return row_weight(data, scale)
    if kind not in ("NVFP4QTensor", "MXFP4QTensor", "INT4QTensor"):
        raise Unsupported("weight", kind, "must be NVFP4QTensor, MXFP4QTensor, INT4QTensor, FP8QTensor or INT8QTensor")
    n, k = metadata["shape"]
    if kind == "INT4QTensor":
        return _int4(data, scale, n, k, rule)
    if kind == "MXFP4QTensor":
        if scale.dtype != torch.uint8 or scale.numel() * 32 != n * k:
            what = f"{scale.dtype} {tuple(scale.shape)}"
            raise Unsupported("weight_quantizer._scale", what, f"must be exponents for each block of 32 of {n} x {k}")
        return QuantizedWeight.from_streams([data, scale], "mxfp4", n, k)
    if scale.dtype != torch.float8_e4m3fn or scale.numel() * 16 != n * k:
        what = f"{scale.dtype} {tuple(scale.shape)}"
        raise Unsupported("weight_quantizer._scale", what, f"must be E4M3 for each block of 16 of {n} x {k}")
    factor = quantizer._double_scale.float().reshape(-1)
    if factor.numel() != 1:
        raise Unsupported("weight_quantizer._double_scale", f"{factor.numel()} factors", "must have one for the tensor")
    return QuantizedWeight.from_streams([data, scale.view(torch.uint8), factor], "nvfp4", n, k)


def _int4(data: torch.Tensor, scale: torch.Tensor, n: int, k: int, rule: str) -> QuantizedWeight:
    """data: codes plus 8, a byte's first in its high half. scale: divides codes, one for each of equal groups of a
    row."""
    groups = scale.numel() // n
    if groups == 0 or scale.numel() % n or k % groups or data.numel() * 2 != n * k:
        what = f"{scale.dtype} {tuple(scale.shape)}"
        raise Unsupported("weight_quantizer._scale", what, f"must have one for each of equal groups of the rows of {n} x {k}")
    codes = torch.stack([data >> 4, data & 15], -1).reshape(n, k)
    inverse = (1 / scale.float()).reshape(n, groups)
    return group_weight(codes, torch.full((n, groups), 8), inverse, "weight_quantizer._scale", rule)
