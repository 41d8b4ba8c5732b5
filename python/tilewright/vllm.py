# SPDX-License-Identifier: Apache-2.0
"""Quantized linear layers in vLLM. An installed package is a plugin of it, whose register() vLLM calls by itself.

    from vllm import LLM

    llm = LLM(path, quantization="tilewright", additional_config={"tilewright": {"activation": "q8_1"}})

path: a checkpoint that GPTQ, AWQ, compressed-tensors or Model Optimizer (NVFP4, FP8) quantized, whose values are kept,
or one of floats, which is quantized when it has been loaded. The options: `activation` and `accum` as of
tilewright.torch.QuantizedLinear, and of floats also `weight` and `encoder`. Without an activation x is taken as it is,
but where the checkpoint is 8-bit and quantizes x, too: then each row of x gets a scale of its own, in each call.

Layers may be cut for tensor parallelism, also within a group. Experts and quantized output embeddings are refused.
LoRA and MLA, which read a layer's weight directly, do not work with these layers. Written against vLLM's signatures (quantization's
base_config.py, linear.py and parameter.py, main of 2026), and not run in it yet."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.linear import (
    LinearBase,
    LinearMethodBase,
    UnquantizedLinearMethod,
    register_weight_loader_v2_supported_method,
)
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.parameter import (
    BasevLLMParameter,
    ChannelQuantScaleParameter,
    GroupQuantScaleParameter,
    ModelWeightParameter,
    PackedColumnParameter,
    PackedvLLMParameter,
    PerTensorScaleParameter,
    RowvLLMParameter,
)

from . import checkpoints
from ._errors import InvalidArgument, Unsupported
from .torch import QuantizedLinear, QuantizedWeight
from .torch.checkpoints import half_scales, host_weight, row_weight, scheme_of
from .torch.replace import first_match

__all__ = ["TilewrightConfig", "TilewrightLinearMethod", "register"]

METHOD = "tilewright"
_OPTIONS = ("weight", "activation", "encoder", "accum")


def register() -> None:
    """Makes vLLM know the method "tilewright". vLLM calls it in each of its processes, as often as it likes."""
    register_quantization_config(METHOD)(TilewrightConfig)
    register_weight_loader_v2_supported_method(TilewrightLinearMethod)


class Scheme(NamedTuple):
    """How a layer is stored. kind: "gptq", "gptq_v2", "awq", "compressed_tensors", "nvfp4", "rows" (8 bits) or
    "float". bits: of a code. group: columns under a scale; -1: all, and of rows 0: one scale for the matrix. zeros:
    whether there are zero points. ordered: columns belong to groups by g_idx. names: of NVFP4's codes and factors, of
    rows the dtype of codes. activation: what x is quantized to unless an option says otherwise. inputs: the name of a
    scale of x, which is not used, since each call computes its own."""

    kind: str
    bits: int = 4
    group: int = -1
    zeros: bool = False
    ordered: bool = False
    names: tuple[str, str] = ("", "")
    dtype: torch.dtype = torch.uint8
    activation: str | None = None
    inputs: str = ""


class TilewrightConfig(QuantizationConfig):  # type: ignore[misc]
    """Reads the quantization_config of a checkpoint; None: a checkpoint of floats. Raises InvalidArgument or
    Unsupported naming the field."""

    def __init__(self, source: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.source = dict(source or {"quant_method": METHOD})
        self.method = str(self.source.get("quant_method", "")).lower().replace("_", "-")
        if self.method.startswith("modelopt"):  # vLLM says modelopt_fp4 where hf_quant_config.json has the config
            self.method = "modelopt"
        if self.method not in _PARSERS:
            raise Unsupported("quant_method", repr(self.source.get("quant_method")), f"one of {', '.join(_PARSERS)}")
        if self.source.get("lm_head"):
            raise Unsupported("lm_head", "quantized", "an output embedding of floats")
        parse, self._ignores = _PARSERS[self.method]
        self._scheme: Callable[[str], Scheme | None] = parse(self.source)
        self._left = _names(self.source, *_IGNORED[self.method])

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
            raise Unsupported(prefix, f"a quantized {type(layer).__name__}", "quantized linear layers alone")
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
            raise Unsupported(prefix, str(what), "layers that vLLM fuses and that are quantized alike")
        options = _given_options()
        if scheme is not None and scheme.kind == "float":
            own = {name: self.source[name] for name in _OPTIONS if self.source.get(name) is not None}
            rules = self.source.get("rules")
            if rules is not None:
                matched = [first_match(name, rules) for name in names]
                if any(each != matched[0] for each in matched):
                    raise Unsupported("rules", str(dict(zip(names, matched))), "the same for layers that vLLM fuses")
                if matched[0] is None:
                    return None, {}
                own = dict(matched[0])
            return scheme, {"weight": "q4_0", **own, **options}
        for name in ("weight", "encoder"):
            if name in options:
                raise InvalidArgument(
                    f"additional_config['{METHOD}']", name, "activation and accum alone: the weights are quantized"
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
        raise InvalidArgument(f"additional_config['{METHOD}']", repr(given), f"a dict of {', '.join(_OPTIONS)}")
    return dict(given)


# ---- configs


def _integer(config: Mapping[str, Any], *names: str) -> int:
    found = next((config[name] for name in names if name in config), None)
    if isinstance(found, bool) or not isinstance(found, int):
        raise InvalidArgument(names[0], repr(found), "an integer")
    return found


def _grouped(kind: str, bits: int, group: int, widths: Sequence[int], **more: Any) -> Scheme:
    if bits not in widths:
        raise Unsupported("bits", str(bits), f"one of {', '.join(map(str, widths))}, of {kind}")
    if group != -1 and (group <= 0 or group % 32):
        raise Unsupported("group_size", str(group), "-1, or a multiple of 32")
    return Scheme(kind, bits, group, **more)


def _gptq(config: Mapping[str, Any]) -> Callable[[str], Scheme | None]:
    blocks = config.get("modules_in_block_to_quantize") or []
    inside = [name for block in blocks for name in (block if isinstance(block, list) else [block])]
    dynamic = config.get("dynamic") or {}

    def scheme(name: str) -> Scheme | None:
        own = dict(config)
        if inside and not any(part in name for part in inside):
            return None
        for rule, changes in dynamic.items():
            kind, _, pattern = rule.partition(":") if rule[:2] in ("+:", "-:") else ("+", "", rule)
            if _search(re.match, pattern, name, "dynamic"):
                if kind == "-":
                    return None
                own.update(changes)
                break
        group = _integer(own, "group_size")
        ordered = bool(own.get("desc_act")) and group != -1
        bits = _integer(own, "bits")
        return _grouped(scheme_of(own) or "gptq", bits, group, (2, 3, 4, 8), zeros=True, ordered=ordered)

    scheme("")
    return scheme


def _awq(config: Mapping[str, Any]) -> Callable[[str], Scheme | None]:
    scheme_of(dict(config))  # refuses versions that pack differently
    group = _integer(config, "group_size", "q_group_size")
    found = _grouped("awq", _integer(config, "bits", "w_bit"), group, (4,), zeros=True)
    return lambda name: found


def _compressed(config: Mapping[str, Any]) -> Callable[[str], Scheme | None]:
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise InvalidArgument("config_groups", repr(groups), "groups with targets and weights")
    schemes = [
        (each.get("targets") or [], _compressed_group(each, str(each.get("format") or config.get("format"))))
        for each in groups.values()
    ]

    def scheme(name: str) -> Scheme | None:
        by_name = (found for targets, found in schemes if _listed(name, targets))
        return next(by_name, next((found for targets, found in schemes if "Linear" in targets), None))

    return scheme


def _compressed_group(group: Mapping[str, Any], format: str) -> Scheme:
    weights, inputs = group.get("weights") or {}, group.get("input_activations")
    strategy, bits, kind = weights.get("strategy"), weights.get("num_bits"), weights.get("type", "int")
    if format == "pack-quantized" and kind == "int" and strategy in ("group", "channel"):
        size = _integer(weights, "group_size") if strategy == "group" else -1
        order = str(weights.get("actorder") or "").lower()
        zeros, ordered = not weights.get("symmetric", True), order in ("group", "true") and size != -1
        return _grouped("compressed_tensors", _integer(weights, "num_bits"), size, (4,), zeros=zeros, ordered=ordered)
    if format == "nvfp4-pack-quantized":
        return Scheme(
            "nvfp4", names=("weight_packed", "weight_global_scale"), inputs=_inputs(inputs, "input_global_scale")
        )
    wide = {"float": ("e4m3_row", torch.float8_e4m3fn), "int": ("int8_row", torch.int8)}.get(kind)
    formats = ("float-quantized", "int-quantized", "naive-quantized")
    if format in formats and bits == 8 and wide is not None and strategy in ("channel", "tensor"):
        if not weights.get("symmetric", True):
            raise Unsupported("symmetric", "false", "symmetric weights of 8 bits")
        size = -1 if strategy == "channel" else 0
        return Scheme(
            "rows",
            8,
            size,
            dtype=wide[1],
            activation=wide[0] if inputs else None,
            inputs=_inputs(inputs, "input_scale"),
        )
    raise Unsupported(
        "config_groups",
        f"format {format}, weights of {bits} bits, type {kind}, strategy {strategy}",
        "pack-quantized int of 4 bits by group or channel, nvfp4-pack-quantized, or 8 bits by channel or tensor",
    )


def _inputs(inputs: Any, name: str) -> str:
    """The scale of x that the checkpoint has: one that is dynamic has none, but NVFP4's global one."""
    return name if inputs and inputs.get("dynamic") is not True else ""


def _modelopt(config: Mapping[str, Any]) -> Callable[[str], Scheme | None]:
    algorithm = str(config.get("quant_algo") or (config.get("quantization") or {}).get("quant_algo")).upper()
    if algorithm in ("NVFP4", "W4A16_NVFP4"):
        inputs = "input_scale" if algorithm == "NVFP4" else ""
        found = Scheme("nvfp4", names=("weight", "weight_scale_2"), inputs=inputs)
    elif algorithm == "FP8":
        found = Scheme("rows", 8, 0, dtype=torch.float8_e4m3fn, activation="e4m3_row", inputs="input_scale")
    else:
        raise Unsupported("quant_algo", algorithm, "NVFP4, W4A16_NVFP4 or FP8")
    return lambda name: found


def _floats(config: Mapping[str, Any]) -> Callable[[str], Scheme | None]:
    if config.get("source"):
        raise Unsupported(
            "source",
            str(config["source"]),
            "a checkpoint of floats or of another quantizer: those of tilewright.transformers have its own layout",
        )
    return lambda name: Scheme("float")


# What leaves layers alone: their names, by method, and how they are meant.
_IGNORED = {
    "gptq": (),
    "awq": ("modules_to_not_convert",),
    "compressed-tensors": ("ignore",),
    "modelopt": ("ignore", "exclude_modules"),
    METHOD: ("modules_to_not_convert",),
}


def _names(config: Mapping[str, Any], *fields: str) -> list[str]:
    for field in fields:
        found = config.get(field) or (config.get("quantization") or {}).get(field)
        if found:
            if not all(isinstance(name, str) for name in found):
                raise InvalidArgument(field, repr(found), "names of modules")
            return list(found)
    return []


def _listed(name: str, names: Sequence[str]) -> bool:
    return any(_search(re.match, each[3:], name, "re:") if each.startswith("re:") else each == name for each in names)


def _search(how: Any, pattern: str, name: str, field: str) -> bool:
    try:
        return how(pattern, name) is not None
    except re.error as error:
        raise InvalidArgument(field, pattern, f"a regular expression: {error}") from None


def _globbed(name: str, names: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, each) or name.startswith(f"{each}.") for each in names)


def _within(name: str, names: Sequence[str]) -> bool:
    return any(f".{each}." in f".{name}." for each in names)


_PARSERS: dict[str, tuple[Callable[[Mapping[str, Any]], Callable[[str], Scheme | None]], Callable[..., bool]]] = {
    "gptq": (_gptq, _listed),
    "awq": (_awq, lambda name, names: any(each in name for each in names)),
    "compressed-tensors": (_compressed, _listed),
    "modelopt": (_modelopt, _globbed),
    METHOD: (_floats, _within),
}


# ---- layers


class _Shard(NamedTuple):
    """What of a layer a process has. k: columns, of `full`, from `first`. parts: rows of each layer that is fused."""

    k: int
    full: int
    first: int
    parts: list[int]
    dtype: torch.dtype

    @property
    def n(self) -> int:
        return sum(self.parts)


class TilewrightLinearMethod(LinearMethodBase):  # type: ignore[misc]
    """One linear layer. vLLM loads the checkpoint's tensors, or a shard of them, into parameters of the layer, which
    process_weights_after_loading() replaces by QuantizedLinear. On a GPU kernels are prepared there, too."""

    def __init__(self, prefix: str, scheme: Scheme, options: Mapping[str, Any]) -> None:
        self.prefix, self.scheme, self.options = prefix, scheme, dict(options)
        self.shard: _Shard | None = None
        self.loaded: list[str] = []
        """Names of the parameters that vLLM loads into."""

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
        k = input_size_per_partition
        first = 0 if k == input_size else k * int(layer.tp_rank)  # type: ignore[arg-type]
        self.shard = _Shard(k, input_size, first, list(output_partition_sizes), params_dtype)
        loader = extra_weight_attrs.pop("weight_loader")
        made = _CREATE.get(self.scheme.kind, _create_grouped)(self, self.scheme, self.shard, loader)
        for name, parameter in made.items():
            for attribute, value in extra_weight_attrs.items():
                setattr(parameter, attribute, value)
            layer.register_parameter(name, parameter)
        self.loaded = list(made)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        shard = self.shard
        if shard is None or not self.loaded:  # done before
            return
        given = {name: getattr(layer, name).data for name in self.loaded}
        place = next(iter(given.values())).device
        order = None
        if self.scheme.kind == "float":
            weights = [QuantizedWeight.from_float(given["weight"], self.options["weight"], self.options.get("encoder"))]
        else:
            with torch.device("cpu"):  # whatever vLLM has set
                on_host = {name: tensor.cpu() for name, tensor in given.items()}
                weights, order = _READ.get(self.scheme.kind, _read_grouped)(self, on_host)
        for name in self.loaded:
            delattr(layer, name)
        self.loaded, given = [], {}
        fields = {"activation": self.options.get("activation"), "accum": self.options.get("accum")}
        weights = [weight.to(place) for weight in weights]
        bias = getattr(layer, "bias", None)
        biases = [None] * len(weights) if bias is None else _pieces(bias, weights)
        for name, each in (("tilewright", [None] * len(weights)), ("tilewright_biased", biases)):
            layers = [
                QuantizedLinear.from_weight(weight, piece, order=order, dtype=shard.dtype, **fields).eval()
                for weight, piece in zip(weights, each)
            ]
            setattr(layer, name, nn.ModuleList(layers))
        if _on_gpu(place):  # before vLLM compiles and captures
            _prepare(layer, shard.dtype)

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        parts: Any = layer.tilewright if bias is None else layer.tilewright_biased
        if len(parts) == 1:
            y: Tensor = parts[0](x)
        else:
            y = torch.cat([part(x) for part in parts], -1)
        if bias is not None and parts[0].bias is None:  # one that the layer does not have
            y = y + bias
        return y

    # ---- shared by the layouts

    def multiple(self, of: int) -> None:
        """Raises where a shard's columns are not whole words or blocks."""
        assert self.shard is not None
        if self.shard.k % of:
            raise Unsupported(
                f"{self.prefix}: input_size_per_partition",
                str(self.shard.k),
                f"a multiple of {of}, as columns are packed",
            )

    def rows(self, of: int) -> None:
        assert self.shard is not None
        if any(part % of for part in self.shard.parts):
            raise Unsupported(
                f"{self.prefix}: output_partition_sizes",
                str(self.shard.parts),
                f"multiples of {of}, as rows are packed",
            )

    def refuse(self, name: str, value: str, allowed: str) -> InvalidArgument:
        return InvalidArgument(f"{self.prefix}.{name}", value, allowed)


def _on_gpu(place: torch.device) -> bool:
    return place.type == "cuda"


def _prepare(layer: Any, dtype: torch.dtype) -> None:
    """Arranges weights for a GPU, and compiles what the layer will launch: with its bias unless it hands that on."""
    hands_on = layer.tilewright_biased[0].bias is None or getattr(layer, "skip_bias_add", False)
    for quantized in (*layer.tilewright, *layer.tilewright_biased):
        quantized.arrange(dtype)
    for quantized in layer.tilewright if hands_on else layer.tilewright_biased:
        quantized.warm(dtype)


def _pieces(bias: Tensor, weights: Sequence[QuantizedWeight]) -> list[Any]:
    """Views of the bias, so that what is loaded into it later counts."""
    return [bias] if len(weights) == 1 else list(torch.split(bias.detach(), [weight.rows for weight in weights]))


Parameters = dict[str, Any]
Read = tuple[list[QuantizedWeight], Any]


def _create_float(method: TilewrightLinearMethod, scheme: Scheme, shard: _Shard, loader: Any) -> Parameters:
    data = torch.empty(shard.n, shard.k, dtype=shard.dtype)
    return {"weight": ModelWeightParameter(data=data, input_dim=1, output_dim=0, weight_loader=loader)}


def _scalars(names: Sequence[str], shard: _Shard, loader: Any) -> Parameters:
    made = {}
    for name in names:
        if name:
            data = torch.full((len(shard.parts),), math.nan, dtype=torch.float32)
            made[name] = PerTensorScaleParameter(data=data, weight_loader=loader)
    return made


def _create_nvfp4(method: TilewrightLinearMethod, scheme: Scheme, shard: _Shard, loader: Any) -> Parameters:
    method.multiple(16)
    codes, factor = scheme.names
    made: Parameters = {}
    for name, cols, dtype in ((codes, 2, torch.uint8), ("weight_scale", 16, torch.float8_e4m3fn)):
        data = torch.empty(shard.n, shard.k // cols, dtype=dtype)
        made[name] = ModelWeightParameter(data=data, input_dim=1, output_dim=0, weight_loader=loader)
    return {**made, **_scalars((factor, scheme.inputs), shard, loader)}


def _read_nvfp4(method: TilewrightLinearMethod, given: dict[str, Tensor]) -> Read:
    codes, name = method.scheme.names
    shard = method.shard
    assert shard is not None
    factors = given[name]
    if not (factors > 0).all():
        raise method.refuse(name, str(factors.tolist()), "positive numbers")
    factors = factors if name == "weight_scale_2" else 1 / factors
    parts = [shard.n] if (factors == factors[0]).all() else shard.parts  # layers that are fused may differ
    pieces = zip(torch.split(given[codes], parts), torch.split(given["weight_scale"], parts), factors)
    weights = [
        QuantizedWeight.from_streams([code, scale.view(torch.uint8), factor.reshape(1)], "nvfp4", len(code), shard.k)
        for code, scale, factor in pieces
    ]
    return weights, None


def _create_rows(method: TilewrightLinearMethod, scheme: Scheme, shard: _Shard, loader: Any) -> Parameters:
    data = torch.empty(shard.n, shard.k, dtype=scheme.dtype)
    made: Parameters = {"weight": ModelWeightParameter(data=data, input_dim=1, output_dim=0, weight_loader=loader)}
    if scheme.group == 0:
        return {**made, **_scalars(("weight_scale", scheme.inputs), shard, loader)}
    scales = torch.empty(shard.n, 1, dtype=torch.float32)
    made["weight_scale"] = ChannelQuantScaleParameter(data=scales, output_dim=0, weight_loader=loader)
    return {**made, **_scalars((scheme.inputs,), shard, loader)}


def _read_rows(method: TilewrightLinearMethod, given: dict[str, Tensor]) -> Read:
    scales, shard = given["weight_scale"], method.shard
    assert shard is not None
    if method.scheme.group == 0:
        scales = scales.repeat_interleave(torch.tensor(shard.parts))
    if not torch.isfinite(scales).all():
        raise method.refuse("weight_scale", "missing, or not finite", "a number for each layer")
    return [row_weight(given["weight"], scales, f"{method.prefix}.weight")], None


# Of the layouts with groups: codes, zero points, scales, g_idx.
_PARTS = ("qweight", "qzeros", "scales", "g_idx")
_COMPRESSED = ("weight_packed", "weight_zero_point", "weight_scale", "weight_g_idx")


def _create_grouped(method: TilewrightLinearMethod, scheme: Scheme, shard: _Shard, loader: Any) -> Parameters:
    kind, k, n = scheme.kind, shard.k, shard.n
    group = shard.full if scheme.group == -1 else scheme.group
    if shard.full % group:
        raise InvalidArgument(f"{method.prefix}: group_size", str(group), f"a divisor of input_size = {shard.full}")
    whole = _scales_are_whole(scheme, shard)
    groups = (shard.full if whole else k) // group
    factor = Fraction(32, scheme.bits)  # codes to an int32
    per_word: Any = int(factor) if factor.denominator == 1 else factor
    if kind == "awq":
        method.rows(8)
    else:
        method.multiple(int(factor * factor.denominator))
        if scheme.zeros:
            method.rows(int(factor * factor.denominator))
    compressed = kind == "compressed_tensors"
    codes, zeros, scales, g_idx = _COMPRESSED if compressed else _PARTS
    row, col = (0, 1) if compressed else (1, 0)  # the dimensions of rows and columns of w

    def shape(rows: int, cols: int) -> tuple[int, int]:
        return (rows, cols) if compressed else (cols, rows)

    def packed(dimension: int, extents: tuple[int, int], shards: bool = True) -> Any:
        data = torch.zeros(extents, dtype=torch.int32)
        more = {"packed_dim": dimension, "packed_factor": per_word, "weight_loader": loader}
        if shards:
            return PackedvLLMParameter(data=data, input_dim=col, output_dim=row, **more)
        return PackedColumnParameter(data=data, output_dim=row, **more)

    made: Parameters = {}
    if kind == "awq":
        made[codes] = packed(row, shape(n // 8, k))
    else:
        made[codes] = packed(col, shape(n, int(k / factor)))
    if scheme.zeros:
        made[zeros] = packed(row, shape(int(n / factor), groups), not whole)
    # Floats hold the scales of any checkpoint: vLLM's params_dtype might round them.
    data = torch.zeros(shape(n, groups), dtype=torch.float32)
    if whole:
        made[scales] = ChannelQuantScaleParameter(data=data, output_dim=row, weight_loader=loader)
    else:
        made[scales] = GroupQuantScaleParameter(data=data, output_dim=row, input_dim=col, weight_loader=loader)
    if scheme.ordered or kind.startswith("gptq"):  # GPTQ always writes it
        once = _same_each_time(method, g_idx, loader) if scheme.ordered else loader
        data = torch.full((k,), -1, dtype=torch.int32)
        made[g_idx] = RowvLLMParameter(data=data, input_dim=0, weight_loader=once)
    if compressed:
        made["weight_shape"] = BasevLLMParameter(data=torch.zeros(2, dtype=torch.int64), weight_loader=loader)
    return made


def _scales_are_whole(scheme: Scheme, shard: _Shard) -> bool:
    """Whether a shard of columns needs scales of groups that are not all its own."""
    if shard.k == shard.full:
        return False
    return scheme.ordered or scheme.group == -1 or shard.k % scheme.group != 0


def _same_each_time(method: TilewrightLinearMethod, name: str, loader: Any) -> Any:
    """Layers that are fused have one x, and so one order of its columns: vLLM loads each's over the last one's."""

    def load(parameter: Any, loaded: Tensor, *shard: Any, **more: Any) -> Any:
        before = parameter.data.clone()
        done = loader(parameter, loaded, *shard, **more)
        if (before != -1).any() and not torch.equal(before, parameter.data):
            raise method.refuse(name, "different in layers that vLLM fuses", "the same order of columns in all of them")
        return done

    return load


def _read_grouped(method: TilewrightLinearMethod, given: dict[str, Tensor]) -> Read:
    scheme, shard = method.scheme, method.shard
    assert shard is not None
    codes, zeros, scales, g_idx = _COMPRESSED if scheme.kind == "compressed_tensors" else _PARTS
    group = shard.full if scheme.group == -1 else scheme.group
    grouped = {"scales": given[scales]}
    if zeros in given:
        grouped["zeros"] = given[zeros]
    table = given[g_idx] if scheme.ordered else None
    if table is not None and not ((table >= 0) & (table < shard.full // group)).all():
        raise method.refuse(g_idx, f"{int(table.min())} to {int(table.max())}", f"groups below {shard.full // group}")
    if _scales_are_whole(scheme, shard):
        by_column = torch.arange(shard.first, shard.first + shard.k) // group if table is None else table.long()
        piece, which, table = _pieces_of_groups(by_column)
        if piece != shard.k and piece % 32:
            raise Unsupported(
                f"{method.prefix}: group_size",
                f"{group}, which tensor parallelism cuts into pieces of {piece}",
                "pieces of a multiple of 32 columns" + (", or desc_act=false" if scheme.ordered else ""),
            )
        group, axis = piece, 1 if scheme.kind == "compressed_tensors" else 0
        grouped = {name: tensor.index_select(axis, which).contiguous() for name, tensor in grouped.items()}
    imported = checkpoints.import_weights(
        scheme.kind,
        codes=given[codes],
        scales=half_scales(grouped["scales"], f"{method.prefix}.{scales}"),
        zeros=grouped.get("zeros"),
        g_idx=table,
        n=shard.n,
        k=shard.k,
        group=group,
        bits=scheme.bits,
    )
    order = None if imported.order is None else torch.as_tensor(imported.order)
    return [host_weight(imported.weight)], order


def _pieces_of_groups(group: Tensor) -> tuple[int, Tensor, Tensor | None]:
    """By each column's group: equal groups of as many columns as possible, each within one of the old, the old one
    of each, and each column's new one, None where they are in order."""
    counts = torch.bincount(group)
    piece = math.gcd(*counts[counts > 0].tolist())
    order = torch.argsort(group, stable=True)
    table = torch.empty(len(group), dtype=torch.int32)
    table[order] = torch.arange(len(group), dtype=torch.int32) // piece
    in_order = torch.equal(order, torch.arange(len(group)))
    return piece, group[order][::piece], None if in_order else table


_CREATE = {"float": _create_float, "nvfp4": _create_nvfp4, "rows": _create_rows}
_READ: dict[str, Callable[[TilewrightLinearMethod, dict[str, Tensor]], Read]] = {
    "nvfp4": _read_nvfp4,
    "rows": _read_rows,
}
