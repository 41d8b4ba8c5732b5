# SPDX-License-Identifier: Apache-2.0
"""Quantized linear layers in vLLM. An installed package is a plugin of it, whose register() vLLM calls by itself.

    from vllm import LLM

    llm = LLM(path, quantization="tilewright", additional_config={"tilewright": {"activation": "q8_1"}})

path: a checkpoint that GPTQ, AWQ, compressed-tensors or Model Optimizer (NVFP4, FP8) quantized, whose values are kept,
or one of floats, which is quantized when it has been loaded. The options: `activation` and `accum` as of
tilewright.torch.QuantizedLinear, and of floats also `weight` and `encoder`. Without an activation x is taken as it is,
but where the checkpoint is 8-bit and quantizes x, too: then each row of x gets a scale of its own, in each call.

Layers may be cut for tensor parallelism, also within a group. Experts and quantized output embeddings are refused.
LoRA and MLA, which read a layer's weight directly, do not work with these layers. Written against vLLM's signatures
(quantization's base_config.py, linear.py and parameter.py, main of 2026), and not run in it yet."""

from __future__ import annotations

from vllm.model_executor.layers.linear import register_weight_loader_v2_supported_method
from vllm.model_executor.layers.quantization import register_quantization_config

from .config import TilewrightConfig
from .linear import TilewrightLinearMethod
from .schemes import METHOD

__all__ = ["TilewrightConfig", "TilewrightLinearMethod", "register"]


def register() -> None:
    """Makes vLLM know the method "tilewright". vLLM calls it in each of its processes, as often as it likes."""
    register_quantization_config(METHOD)(TilewrightConfig)
    register_weight_loader_v2_supported_method(TilewrightLinearMethod)
