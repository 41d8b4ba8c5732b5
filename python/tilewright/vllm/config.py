# SPDX-License-Identifier: Apache-2.0
"""The method "tilewright": a model of floats whose linear layers are quantized when they have been loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.linear import LinearBase, LinearMethodBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.parameter import ModelWeightParameter

from .._errors import Unsupported, must_be
from ..torch import QuantizedWeight
from ..torch.replace import first_match
from .prepared import Prepared, default_activation, say_once, why_not

METHOD = "tilewright"
_OPTIONS = ("weight", "activation", "encoder", "accum")


class TilewrightConfig(QuantizationConfig):  # type: ignore[misc]
    """source: a quantization_config of the model, with the options weight, activation, encoder and accum of
    tilewright.torch.QuantizedLinear, or rules ([glob, options or None] in order), and modules_to_not_convert; None: no
    such entry. additional_config={"tilewright": {...}} has options, too, which come first. Raises InvalidArgument or
    Unsupported naming the field."""

    def __init__(self, source: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.source = dict(source or {})
        if self.source.get("source"):
            raise Unsupported(
                "source", str(self.source["source"]), "is not supported: use the checkpoint that the quantizer made"
            )
        names = self.source.get("modules_to_not_convert") or []
        if not all(isinstance(name, str) for name in names):
            raise must_be("modules_to_not_convert", repr(names), "names of modules")
        self._left = list(names)

    @classmethod
    def get_name(cls) -> str:
        return METHOD

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        return 75

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []  # so that vLLM takes a checkpoint without quantization_config for one of floats

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TilewrightConfig:
        return cls(config)

    def apply_vllm_mapper(self, hf_to_vllm_mapper: Any) -> None:
        self._left = hf_to_vllm_mapper.apply_list(self._left)

    def get_quant_method(self, layer: nn.Module, prefix: str) -> Any:
        if not isinstance(layer, LinearBase):
            return None
        options = self._options(prefix)
        return UnquantizedLinearMethod() if options is None else TilewrightLinearMethod(prefix, options)

    def _options(self, prefix: str) -> dict[str, Any] | None:
        """Of a layer; None: it stays of floats. What vLLM fuses (qkv_proj) has several names in the model, which must
        agree."""
        head, dot, last = prefix.rpartition(".")
        names = [head + dot + part for part in self.packed_modules_mapping.get(last, [last])]
        found = [self._of(name) for name in names]
        if any(each != found[0] for each in found):
            what = str(dict(zip(names, found)))
            raise Unsupported(prefix, what, "is not supported: layers that vLLM fuses must be quantized alike")
        return None if found[0] is None else {"weight": "q4_0", **found[0], **_given_options()}

    def _of(self, name: str) -> dict[str, Any] | None:
        if any(f".{each}." in f".{name}." for each in self._left):
            return None
        rules = self.source.get("rules")
        if rules is not None:
            matched = first_match(name, rules)
            return None if matched is None else dict(matched)
        return {option: self.source[option] for option in _OPTIONS if self.source.get(option) is not None}


def _given_options() -> dict[str, Any]:
    config = get_current_vllm_config().additional_config
    given = config.get(METHOD) if isinstance(config, Mapping) else None
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not set(given) <= set(_OPTIONS):
        raise must_be(f"additional_config['{METHOD}']", repr(given), f"a dict of {', '.join(_OPTIONS)}")
    return dict(given)


class TilewrightLinearMethod(LinearMethodBase):  # type: ignore[misc]
    """One linear layer, or a shard of it. vLLM loads its floats, which process_weights_after_loading() encodes."""

    def __init__(self, prefix: str, options: Mapping[str, Any]) -> None:
        self.prefix, self.options = prefix, dict(options)

    def create_weights(
        self,
        layer: nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        data = torch.empty(sum(output_partition_sizes), input_size_per_partition, dtype=params_dtype)
        loader = extra_weight_attrs.pop("weight_loader")
        weight = ModelWeightParameter(data=data, input_dim=1, output_dim=0, weight_loader=loader)
        for attribute, value in extra_weight_attrs.items():
            setattr(weight, attribute, value)
        layer.register_parameter("weight", weight)

    def process_weights_after_loading(self, layer: Any) -> None:
        if hasattr(layer, "tilewright"):  # done before
            return
        given = layer.weight.data
        weight = QuantizedWeight.from_float(given, self.options["weight"], self.options.get("encoder"))
        activation = self.options.get("activation") or default_activation(weight.format, given.device)
        fields: dict[str, Any] = {"activation": activation, "accum": self.options.get("accum")}
        why = why_not(weight.format, weight.rows, weight.cols, activation, given.dtype, given.device)
        if why is not None:
            say_once(f"floats {weight.format} {activation}", f"{self.prefix} has no fast kernel: {why}")
        layer.weight = None
        bias = getattr(layer, "bias", None)
        layer.tilewright = Prepared(weight, bias, given.dtype, anyway=why is not None, **fields)

    def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return layer.tilewright(x, bias)  # type: ignore[no-any-return]
