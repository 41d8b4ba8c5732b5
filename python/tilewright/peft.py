# SPDX-License-Identifier: Apache-2.0
"""LoRA by PEFT on layers with quantized weights: the adapters are trained, the weights stay as they are.

    from peft import LoraConfig, get_peft_model
    from tilewright.peft import adaptable

    model = get_peft_model(model, adaptable(LoraConfig(target_modules=["q_proj", "v_proj"])))

Needs the package peft. Adapters are not merged into quantized weights: dequantize() a model for that."""

from __future__ import annotations

from typing import Any

from peft.tuners.lora import Linear, LoraConfig

from ._errors import Unsupported
from .torch import QuantizedLinear, W4A8Linear

__all__ = ["LoraLinear", "adaptable"]


class LoraLinear(Linear):  # type: ignore[misc]
    """What PEFT puts around a QuantizedLinear."""

    def merge(self, *arguments: Any, **options: Any) -> None:
        raise Unsupported(
            "merge",
            "into a QuantizedLinear",
            "is not supported: its weights are constants in a format; merge into a float layer",
        )

    def unmerge(self) -> None:
        """Nothing is merged."""


def adaptable(config: LoraConfig) -> LoraConfig:
    """Makes PEFT adapt QuantizedLinear layers, too, and returns the config; all else is PEFT's."""
    config._register_custom_module({QuantizedLinear: LoraLinear, W4A8Linear: LoraLinear})
    return config
