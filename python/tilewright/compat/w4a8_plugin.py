# SPDX-License-Identifier: Apache-2.0
"""The Python side of TurboPi's W4A8 GEMM plugin: openpi.w4a8_plugin.python, which its README imports and which was never
written, and by the same names the layers of openpi.models_pytorch (w4a8_mlp.py, w4a8_triton.py).

    from tilewright.compat.w4a8_plugin import W4A8Linear, replace_mlp_with_w4a8

The layers compute what the README promises: NVFP4 weights, activations in FP8 E4M3 with one scale for each row, sums in
single precision. What differs from the repository's code, on purpose:

* Weights have a factor for the tensor beside the scales of blocks of 16, which are rounded to the nearest E4M3, and codes
  are formed with the scale as it is stored. The plugin's weights have no such factor, so that blocks below 0.006 vanish.
* The activation's scale is a float. The plugin stores scales of blocks of 16 in E4M3, most of them in its subnormal range,
  and fills the first 512 columns alone.
* models_pytorch's W4A8Linear leaves activations as they are; this one quantizes them. Its blocks of 32 with float scales
  are NVFP4's finer ones here: block_size may be 16 or 32, and nothing depends on it. Weights stay in four bits, so there
  is nothing to cache (cache_dequantized), and no Triton to use (use_triton).
* libtilewright_tensorrt has the TensorRT plugin W4A8GemmPlugin, whose inputs and fields are TurboPi's. plugin_weights()
  makes its weights, and plugin_node() a node of an ONNX model (docs/use/tensorrt.md).
* The functions that replace layers print nothing. replace_mlp_with_w4a8() takes any model: `which` says which layers
  belong to an MLP."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from .. import codec, tensorrt
from .._errors import InvalidArgument, Unsupported
from ..torch import modules, replace

__all__ = [
    "W4A8MLP",
    "PluginWeights",
    "W4A8Linear",
    "W4A8LinearTriton",
    "W4A8MLPTriton",
    "plugin_node",
    "plugin_weights",
    "replace_mlp_with_w4a8",
    "replace_paligemma_mlp_with_w4a8",
    "replace_paligemma_mlp_with_w4a8_triton",
]


class W4A8Linear(modules.W4A8Linear):
    """tilewright.torch.W4A8Linear with the arguments of models_pytorch's."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        block_size: int = 16,
        cache_dequantized: bool = True,
        use_triton: bool = True,
        **options: Any,
    ) -> None:
        """options: those of tilewright.torch.W4A8Linear."""
        _check_block(block_size)
        super().__init__(in_features, out_features, bias, **options)

    @classmethod
    def from_linear(  # type: ignore[override]
        cls, linear: nn.Linear, block_size: int = 16, cache_dequantized: bool = True, use_triton: bool = True
    ) -> modules.QuantizedLinear:
        """The layer of an nn.Linear."""
        _check_block(block_size)
        return super().from_linear(linear)


class W4A8MLP(nn.Module):
    """y = down(gelu_tanh(gate(x)) * up(x)), as of Gemma."""

    def __init__(
        self,
        hidden_size: int = 2048,
        intermediate_size: int = 16384,
        block_size: int = 16,
        cache_dequantized: bool = True,
        use_triton: bool = True,
    ) -> None:
        super().__init__()
        self.hidden_size, self.intermediate_size = hidden_size, intermediate_size
        self.gate_proj, self.up_proj = (W4A8Linear(hidden_size, intermediate_size, False, block_size) for _ in range(2))
        self.down_proj = W4A8Linear(intermediate_size, hidden_size, False, block_size)

    @classmethod
    def from_gemma_mlp(
        cls, mlp: Any, block_size: int = 16, cache_dequantized: bool = True, use_triton: bool = True
    ) -> W4A8MLP:
        """Of a module with gate_proj, up_proj and down_proj, on its device."""
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer.hidden_size, layer.intermediate_size = mlp.gate_proj.in_features, mlp.gate_proj.out_features
        for name in ("gate_proj", "up_proj", "down_proj"):
            setattr(layer, name, W4A8Linear.from_linear(getattr(mlp, name), block_size))
        return layer

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.nn.functional.gelu(self.gate_proj(x), approximate="tanh")
        y: Tensor = self.down_proj(gate * self.up_proj(x))
        return y


replace_mlp_with_w4a8 = functools.partial(replace.replace_mlp_with_w4a8, layer=W4A8Linear)


def replace_paligemma_mlp_with_w4a8(
    model: Any, block_size: int = 16, cache_dequantized: bool = True, use_triton: bool = True
) -> int:
    """Replaces the MLP of each layer of model.paligemma_with_expert.paligemma.language_model by a W4A8MLP, in place, and
    returns how many."""
    layers = model.paligemma_with_expert.paligemma.language_model.layers
    found = [layer for layer in layers if getattr(layer, "mlp", None) is not None]
    for layer in found:
        layer.mlp = W4A8MLP.from_gemma_mlp(layer.mlp, block_size)
    return len(found)


W4A8LinearTriton = W4A8Linear
W4A8MLPTriton = W4A8MLP
replace_paligemma_mlp_with_w4a8_triton = replace_paligemma_mlp_with_w4a8


class PluginWeights(NamedTuple):
    """Weights as W4A8GemmPlugin takes them: NumPy arrays of bytes, and the factor for the tensor, which the plugin's alpha is
    to be multiplied by."""

    packed: Any  # [in_features / 2, out_features]: the codes of two columns in a byte, the first one in the lower half
    scale: Any  # [in_features / 16, out_features]: E4M3
    alpha: float


def plugin_weights(weight: modules.QuantizedLinear | Tensor) -> PluginWeights:
    """weight: a W4A8Linear, whose codes these are; or floats [out_features, in_features], which become codes without a factor
    for the tensor, as the plugin's helpers make them: a block of 16 below 0.006 vanishes. Raises InvalidArgument or
    Unsupported naming what does not fit."""
    if isinstance(weight, modules.QuantizedLinear):
        if weight.weight.format != "nvfp4":
            raise Unsupported("weight", weight.weight.format, "must be nvfp4")
        n = weight.out_features
        data, scales, factor = [stream.cpu().numpy() for stream in weight.weight.stored()]
        alpha = float(factor.reshape(-1)[0])
    else:
        if weight.dim() != 2:
            raise InvalidArgument("weight", f"shape {tuple(weight.shape)}", "must have two dimensions")
        n = weight.shape[0]
        encoded = codec.encode(weight.detach().float().cpu().numpy(), "nvfp4", global_scale=1.0)
        data, scales, alpha = encoded.data, encoded.scales, 1.0
    turned = [np.ascontiguousarray(part.reshape(n, -1).view(np.int8).T) for part in (data, scales)]
    return PluginWeights(*turned, alpha)


def plugin_node(
    weight: modules.QuantizedLinear | Tensor,
    input: str,
    output: str,
    *,
    alpha: float = 1.0,
    name: str = "",
    **options: Any,
) -> tuple[Any, list[Any]]:
    """A node W4A8GemmPlugin without a bias, and its weights as constants of the ONNX model. options: target and binaries, as
    of tilewright.tensorrt.w4a8(). Raises Unsupported if the layer has a bias, which the plugin lacks."""
    from onnx import numpy_helper

    if getattr(weight, "bias", None) is not None:
        raise Unsupported(
            "bias", "a bias", "is not supported by W4A8GemmPlugin; add it by a node Add, or use TilewrightGemm"
        )
    packed, scale, factor = plugin_weights(weight)
    name = name or output
    constants = [
        numpy_helper.from_array(packed, f"{name}.weight_packed"),
        numpy_helper.from_array(scale, f"{name}.weight_scale"),
    ]
    k, n = packed.shape[0] * 2, packed.shape[1]
    inputs = [input, *(constant.name for constant in constants)]
    more = {"alpha": alpha * factor, "constant_weights": True, "name": name}
    return tensorrt.w4a8(k, n, inputs, output, **more, **options), constants


def _check_block(block_size: int) -> None:
    if block_size not in (16, 32):
        raise Unsupported("block_size", f"{block_size}", "must be 16, which NVFP4 has, or 32, for which it stands")
