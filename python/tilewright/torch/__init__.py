# SPDX-License-Identifier: Apache-2.0
"""Quantized linear layers and convolutions for PyTorch.

    import tilewright.torch as twt

    twt.replace_linears(model, [("lm_head", None), ("*", {"weight": "q4_0", "activation": "q8_1"})])
    print(twt.tune(model, sample_input))      # once for each kind of GPU
    twt.warm(model)                           # before torch.compile, or a CUDA graph

Layers and operators compute on the CPU and on CUDA devices, under torch.compile and autograd. PyTorch 2.9 or newer."""

from __future__ import annotations

from ._cpu import set_decoded_limit
from ._cuda import engine, set_engine
from ._stable import Info, info
from .checkpoints import load_into, load_quantized
from .convolution import QuantizedConv1d, QuantizedConv2d, QuantizedConv3d
from .experts import QuantizedExperts
from .fake_quant import fake_quantize, learned_step_quantize
from .modules import QuantizedLinear, QuantizedWeight, W4A8Linear
from .ops import conv, dequantize, linear, pack, quantize, unpack
from .replace import ReplaceReport, replace_convs, replace_linears, replace_mlp_with_w4a8
from .scaling import GradScaler, unscale_, update_scale_
from .tuning import Tuned, TuneSummary, prewarm, record, tune, warm

__all__ = [
    "GradScaler",
    "Info",
    "QuantizedConv1d",
    "QuantizedConv2d",
    "QuantizedConv3d",
    "QuantizedExperts",
    "QuantizedLinear",
    "QuantizedWeight",
    "ReplaceReport",
    "TuneSummary",
    "Tuned",
    "W4A8Linear",
    "conv",
    "dequantize",
    "engine",
    "fake_quantize",
    "info",
    "learned_step_quantize",
    "linear",
    "load_into",
    "load_quantized",
    "pack",
    "prewarm",
    "quantize",
    "record",
    "replace_convs",
    "replace_linears",
    "replace_mlp_with_w4a8",
    "set_decoded_limit",
    "set_engine",
    "tune",
    "unpack",
    "unscale_",
    "update_scale_",
    "warm",
]
