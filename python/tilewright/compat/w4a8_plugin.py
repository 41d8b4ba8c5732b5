# SPDX-License-Identifier: Apache-2.0
"""The Python side of TurboPi's W4A8 GEMM plugin (openpi.w4a8_plugin.python, which its README imports and which was never
written).

    from tilewright.compat.w4a8_plugin import W4A8Linear, replace_mlp_with_w4a8

The layers compute what the README promises: NVFP4 weights, activations in FP8 E4M3 with one scale for each row, sums in
single precision. What differs from the repository's code, on purpose:

* Weights have a factor for the tensor beside the scales of blocks of 16, which are rounded to the nearest E4M3, and codes
  are formed with the scale as it is stored. The plugin's weights have no such factor, so that blocks below 0.006 vanish.
* The activation's scale is a float. The plugin stores scales of blocks of 16 in E4M3, most of them in its subnormal range,
  and fills the first 512 columns alone.
* models_pytorch's W4A8Linear (blocks of 32, float scales) leaves activations as they are; this one quantizes them.
* replace_mlp_with_w4a8() takes any model: `which` says which layers belong to an MLP."""

from __future__ import annotations

from ..torch.modules import W4A8Linear
from ..torch.replace import replace_mlp_with_w4a8

__all__ = ["W4A8Linear", "replace_mlp_with_w4a8"]
