# SPDX-License-Identifier: Apache-2.0
"""GGUF files in vLLM. The package vllm-gguf-plugin loads them; its layers then run on our kernels and keep the file's
bytes. Without that package vLLM reads no GGUF file, and nothing here is used."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from vllm.model_executor.layers.linear import register_weight_loader_v2_supported_method
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.platforms import current_platform

from .. import codec
from .. import torch as twt
from .._errors import TilewrightError, Unsupported
from ..torch import QuantizedWeight
from .prepared import Prepared, default_activation, say_once, why_not


def register_gguf(front: bool) -> None:
    """Gives vllm-gguf-plugin's layers our methods, if the package is installed. front: also where its own kernels
    could run, which need a GPU."""
    if importlib.util.find_spec("vllm_gguf_plugin") is None or not (front or current_platform.is_cpu()):
        return
    from vllm_gguf_plugin.quantization import GGUFConfig, GGUFEmbeddingMethod, GGUFLinearMethod

    theirs = GGUFConfig.get_quant_method
    if hasattr(theirs, "tilewright"):
        return
    linear = _linear_method(GGUFLinearMethod)
    ours = {GGUFLinearMethod: linear, GGUFEmbeddingMethod: _embedding_method(GGUFEmbeddingMethod)}

    def get_quant_method(self: Any, layer: nn.Module, prefix: str) -> Any:
        method = theirs(self, layer, prefix)
        return ours[type(method)](self) if type(method) in ours else method

    get_quant_method.tilewright = True  # type: ignore[attr-defined]
    GGUFConfig.get_quant_method = get_quant_method


class _Floats(nn.Module):
    """A part of a layer that the file has in floats."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


def format_of(ggml_type: int) -> str | None:
    """The library's format of a GGML type; None: floats. Raises Unsupported for a type that it does not have."""
    from gguf import GGMLQuantizationType

    name = GGMLQuantizationType(ggml_type).name.lower()
    if name in ("f32", "f16", "bf16"):
        return None
    try:
        return codec.find({"mxfp4": "ggml_mxfp4", "nvfp4": "ggml_nvfp4"}.get(name, name)).name
    except TilewrightError:
        raise Unsupported("type", name, "is not supported: no format of the library has this GGML type") from None


def weight_of(data: Tensor, ggml_type: int, k: int) -> QuantizedWeight | Tensor:
    """A matrix of k columns as the file stores it: bytes [n, bytes of a row], or floats [n, k]."""
    format = format_of(ggml_type)
    if format is None:
        return data
    n = data.shape[0]
    needed = codec.find(format).stream_bytes("data", n, k)
    if data.numel() != needed:
        what = f"{data.numel()} bytes of {format} [{n}, {k}]"
        raise Unsupported("qweight", what, f"must be {needed} bytes: tensor parallelism must not cut a block")
    return QuantizedWeight.from_streams([data], format, n, k)


def _parts_of(layer: Any) -> list[tuple[Tensor, int]]:
    """Rows and GGML type of each matrix of a layer, in order; neighbours of one type are one matrix."""
    qweight, types = layer.qweight, layer.qweight_type
    if not qweight.data_container:
        return [(qweight.data, types.weight_type)]
    order = sorted(qweight.shard_id, key=lambda shard: "qkv".index(shard) if isinstance(shard, str) else shard)
    parts: list[tuple[Tensor, int]] = []
    for shard in order:
        data = qweight.data_container[qweight.shard_id_map[shard]]
        kind = types.shard_weight_type.get(shard, types.weight_type)
        if parts and parts[-1][1] == kind:
            parts[-1] = (torch.cat([parts[-1][0], data]), kind)
        else:
            parts.append((data, kind))
    return parts


def _linear_method(base: Any) -> Any:
    class TilewrightGGUFLinearMethod(base):  # type: ignore[misc]
        """A linear layer, or several that vLLM has fused, each with a type of its own."""

        def process_weights_after_loading(self, layer: Any) -> None:
            self._theirs = False
            if hasattr(layer, "tilewright"):
                return
            self._materialize_gguf_parameters(layer)
            k = layer.qweight.tensor_shape[1]
            try:
                layer.tilewright = nn.ModuleList(self._part(part, kind, k, layer) for part, kind in _parts_of(layer))
            except (TilewrightError, OSError) as error:
                if current_platform.is_cpu():  # where the plugin has no kernels
                    raise
                say_once(f"gguf {getattr(error, 'field', '')}", f"vllm-gguf-plugin computes a layer: {error}")
                self._theirs = True
                base.process_weights_after_loading(self, layer)
                return
            self._free(layer)

        def _part(self, data: Tensor, kind: int, k: int, layer: Any) -> nn.Module:
            weight = weight_of(data, kind, k)
            if isinstance(weight, Tensor):
                return _Floats(weight.to(self.params_dtype))
            activation = default_activation(weight.format, weight.device)
            why = why_not(weight.format, weight.rows, k, activation, self.params_dtype, weight.device)
            if why is not None:
                say_once(f"gguf {weight.format}", f"PyTorch computes GGUF layers of {weight.format}, decoded: {why}")
            bias = getattr(layer, "bias", None) if weight.rows == layer.qweight.tensor_shape[0] else None
            anyway = why is not None
            return Prepared(weight, bias, self.params_dtype, activation=activation, anyway=anyway)

        def _free(self, layer: Any) -> None:
            layer.qweight = layer.qweight_type = None

        def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
            if self._theirs:
                return base.apply(self, layer, x, bias)  # type: ignore[no-any-return]
            parts = layer.tilewright
            if len(parts) == 1 and isinstance(parts[0], Prepared):
                return parts[0](x, bias)  # type: ignore[no-any-return]
            y = parts[0](x) if len(parts) == 1 else torch.cat([part(x) for part in parts], -1)
            return y if bias is None else y + bias

    register_weight_loader_v2_supported_method(TilewrightGGUFLinearMethod)
    return TilewrightGGUFLinearMethod


def _embedding_method(base: Any) -> Any:
    class TilewrightGGUFEmbeddingMethod(_linear_method(base)):  # type: ignore[misc]
        """A token embedding, and the output embedding, which may be the same matrix."""

        def process_weights_after_loading(self, layer: Any) -> None:
            """The rows stay for lookups; kernels are prepared only for an output embedding."""
            self._theirs = False
            self._materialize_gguf_parameters(layer)
            layer.tilewright_type = layer.qweight_type.weight_type
            format_of(layer.tilewright_type)  # refuses unknown types while the model loads
            if isinstance(layer, ParallelLMHead) or getattr(layer, "tilewright_output", False):
                super().process_weights_after_loading(layer)

        def tie_weights(self, layer: Any, embed_tokens: Any) -> Any:
            embed_tokens.tilewright_output = True
            return super().tie_weights(layer, embed_tokens)

        def _free(self, layer: Any) -> None:
            pass  # rows are looked up

        def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
            if not hasattr(layer, "tilewright"):  # tied without tie_weights()
                super().process_weights_after_loading(layer)
            return super().apply(layer, x, bias)  # type: ignore[no-any-return]

        def embedding(self, layer: Any, x: Tensor) -> Tensor:
            rows = layer.qweight.data.index_select(0, x.flatten())
            format, k = format_of(layer.tilewright_type), layer.qweight.tensor_shape[1]
            if format is not None:
                rows = twt.dequantize([rows], format, rows.shape[0], k, self.params_dtype)
            found: Tensor = rows.to(self.params_dtype).view(*x.shape, k)
            return found

    return TilewrightGGUFEmbeddingMethod
