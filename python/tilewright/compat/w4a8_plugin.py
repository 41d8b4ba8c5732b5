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
* The functions that replace layers print nothing. replace_mlp_with_w4a8() takes any model: `which` says which layers
  belong to an MLP."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from .._errors import Unsupported
from ..torch import modules, replace

__all__ = [
    "W4A8MLP",
    "W4A8Linear",
    "W4A8LinearTriton",
    "W4A8MLPTriton",
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


def _check_block(block_size: int) -> None:
    if block_size not in (16, 32):
        raise Unsupported("block_size", f"{block_size}", "must be 16, which NVFP4 has, or 32, for which it stands")
