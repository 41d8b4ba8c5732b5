# SPDX-License-Identifier: Apache-2.0
"""The quantization config that vLLM asks for each layer's method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

from .._errors import Unsupported, must_be
from ..torch.replace import first_match
from .linear import TilewrightLinearMethod
from .schemes import IGNORED, METHOD, PARSERS, Scheme, names_of

_OPTIONS = ("weight", "activation", "encoder", "accum")


class TilewrightConfig(QuantizationConfig):  # type: ignore[misc]
    """Reads the quantization_config of a checkpoint; None: a checkpoint of floats. Raises InvalidArgument or
    Unsupported naming the field."""

    def __init__(self, source: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.source = dict(source or {"quant_method": METHOD})
        self.method = str(self.source.get("quant_method", "")).lower().replace("_", "-")
        if self.method.startswith("modelopt"):  # vLLM says modelopt_fp4 where hf_quant_config.json has the config
            self.method = "modelopt"
        if self.method not in PARSERS:
            raise Unsupported(
                "quant_method", repr(self.source.get("quant_method")), f"must be one of {', '.join(PARSERS)}"
            )
        if self.source.get("lm_head"):
            raise Unsupported("lm_head", "quantized", "is not supported: the output embedding must have floats")
        parse, self._ignores = PARSERS[self.method]
        self._scheme: Callable[[str], Scheme | None] = parse(self.source)
        self._left = names_of(self.source, *IGNORED[self.method])

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

    @classmethod
    def override_quantization_method(
        cls, hf_quant_cfg: dict[str, Any], user_quant: str | None, hf_config: Any = None
    ) -> str | None:
        """Only who asks for it gets it: vLLM asks all methods for any checkpoint."""
        return METHOD if user_quant == METHOD else None

    def apply_vllm_mapper(self, hf_to_vllm_mapper: Any) -> None:
        plain = [name for name in self._left if not name.startswith("re:")]
        self._left = [name for name in self._left if name.startswith("re:")] + hf_to_vllm_mapper.apply_list(plain)

    def get_quant_method(self, layer: nn.Module, prefix: str) -> Any:
        experts = {"FusedMoE", "RoutedExperts"} & {each.__name__ for each in type(layer).__mro__}
        head = isinstance(layer, ParallelLMHead)
        if not (isinstance(layer, LinearBase) or experts or head):
            return None
        scheme, options = self._of(prefix)
        if scheme is None:
            return UnquantizedLinearMethod() if isinstance(layer, LinearBase) else None
        if experts or head:
            if scheme.kind == "float" or (head and self.method in ("gptq", "awq")):  # these have lm_head
                return None
            raise Unsupported(prefix, f"a quantized {type(layer).__name__}", "must be a linear layer")
        return TilewrightLinearMethod(prefix, scheme, options)

    def _of(self, prefix: str) -> tuple[Scheme | None, dict[str, Any]]:
        """The scheme of a layer, None where it is of floats and stays so, and the options. What vLLM fuses (qkv_proj)
        has several names in the checkpoint, which have to agree."""
        head, dot, last = prefix.rpartition(".")
        names = [head + dot + part for part in self.packed_modules_mapping.get(last, [last])]
        found = {name: None if self._ignores(name, self._left) else self._scheme(name) for name in names}
        scheme = found[names[0]]
        if any(other != scheme for other in found.values()):
            what = {name: "floats" if each is None else str(each) for name, each in found.items()}
            raise Unsupported(prefix, str(what), "is not supported: layers that vLLM fuses must be quantized alike")
        options = _given_options()
        if scheme is not None and scheme.kind == "float":
            own = {name: self.source[name] for name in _OPTIONS if self.source.get(name) is not None}
            rules = self.source.get("rules")
            if rules is not None:
                matched = [first_match(name, rules) for name in names]
                if any(each != matched[0] for each in matched):
                    raise Unsupported(
                        "rules", str(dict(zip(names, matched))), "must be the same for layers that vLLM fuses"
                    )
                if matched[0] is None:
                    return None, {}
                own = dict(matched[0])
            return scheme, {"weight": "q4_0", **own, **options}
        for name in ("weight", "encoder"):
            if name in options:
                raise must_be(
                    f"additional_config['{METHOD}']", name, "activation or accum: the weights are already quantized"
                )
        if scheme is not None and scheme.activation is not None:
            options.setdefault("activation", scheme.activation)
        return scheme, options


def _given_options() -> dict[str, Any]:
    config = get_current_vllm_config().additional_config
    given = config.get(METHOD) if isinstance(config, Mapping) else None
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not set(given) <= set(_OPTIONS):
        raise must_be(f"additional_config['{METHOD}']", repr(given), f"a dict of {', '.join(_OPTIONS)}")
    return dict(given)
