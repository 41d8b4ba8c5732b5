# SPDX-License-Identifier: Apache-2.0
"""Tilewright in vLLM. An installed package is a plugin of vLLM, which calls register() in each of its processes.

    from vllm import LLM

    llm = LLM(path)     # GPTQ, AWQ, compressed-tensors, Model Optimizer, FP8 (docs/use/vllm.md): no flag
    llm = LLM("model.gguf", tokenizer=..., hf_config_path=...)      # with the package vllm-gguf-plugin
    llm = LLM(path, quantization="tilewright", additional_config={"tilewright": {"weight": "q4_0"}})   # floats

$TILEWRIGHT_VLLM says who comes first: unset, our kernels; "fallback", vLLM's; "off", vLLM's alone."""

from __future__ import annotations

import os

from .. import codec
from .._errors import must_be

__all__ = ["register"]


def register() -> None:
    """Makes vLLM know the kernels, and the method "tilewright" for models of floats. vLLM calls it in each of its
    processes, as often as it likes. Without libtilewright_c a warning says so, and vLLM uses its own kernels. Raises
    InvalidArgument for another value of $TILEWRIGHT_VLLM."""
    mode = os.environ.get("TILEWRIGHT_VLLM", "")
    if mode not in ("", "off", "fallback"):
        raise must_be("TILEWRIGHT_VLLM", repr(mode), "unset, 'fallback' or 'off'")
    if mode == "off":
        return
    try:
        _register(front=mode == "")
    except OSError as error:  # LibraryMissing is one
        from vllm.logger import init_logger

        init_logger("vllm.tilewright").warning("Tilewright is off, and vLLM uses its own kernels: %s", error)


def _register(front: bool) -> None:
    """Loads the library, and imports what needs PyTorch and vLLM, which takes seconds."""
    codec.find("f32")
    from vllm.model_executor.layers.linear import register_weight_loader_v2_supported_method
    from vllm.model_executor.layers.quantization import register_quantization_config

    from .config import METHOD, TilewrightConfig, TilewrightLinearMethod
    from .experts import register_experts
    from .gguf import register_gguf
    from .kernels import register_kernels

    register_quantization_config(METHOD)(TilewrightConfig)
    register_weight_loader_v2_supported_method(TilewrightLinearMethod)
    register_kernels(front)
    register_gguf(front)
    if front:
        register_experts()
