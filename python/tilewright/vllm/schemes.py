# SPDX-License-Identifier: Apache-2.0
"""How a checkpoint's layers are stored, as the quantization_config of each method says."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from .._errors import InvalidArgument, Unsupported, must_be
from ..torch.checkpoints import scheme_of

METHOD = "tilewright"


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


def _integer(config: Mapping[str, Any], *names: str) -> int:
    found = next((config[name] for name in names if name in config), None)
    if isinstance(found, bool) or not isinstance(found, int):
        raise must_be(names[0], repr(found), "an integer")
    return found


def _grouped(kind: str, bits: int, group: int, widths: Sequence[int], **more: Any) -> Scheme:
    if bits not in widths:
        raise Unsupported("bits", str(bits), f"must be one of {', '.join(map(str, widths))}, of {kind}")
    if group != -1 and (group <= 0 or group % 32):
        raise Unsupported("group_size", str(group), "must be -1, or a multiple of 32")
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
        raise InvalidArgument("config_groups", repr(groups), "must have groups with targets and weights")
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
            raise Unsupported("symmetric", "false", "must have symmetric weights of 8 bits")
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
        "must be pack-quantized int of 4 bits by group or channel, nvfp4-pack-quantized, or 8 bits by channel or "
        "tensor",
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
        raise Unsupported("quant_algo", algorithm, "must be NVFP4, W4A16_NVFP4 or FP8")
    return lambda name: found


def _floats(config: Mapping[str, Any]) -> Callable[[str], Scheme | None]:
    if config.get("source"):
        raise Unsupported(
            "source",
            str(config["source"]),
            "must be a checkpoint of floats or another quantizer: those of tilewright.transformers have its own layout",
        )
    return lambda name: Scheme("float")


# What leaves layers alone: their names, by method, and how they are meant.
IGNORED = {
    "gptq": (),
    "awq": ("modules_to_not_convert",),
    "compressed-tensors": ("ignore",),
    "modelopt": ("ignore", "exclude_modules"),
    METHOD: ("modules_to_not_convert",),
}


def names_of(config: Mapping[str, Any], *fields: str) -> list[str]:
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
        raise must_be(field, pattern, f"a regular expression: {error}") from None


def _globbed(name: str, names: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, each) or name.startswith(f"{each}.") for each in names)


def _within(name: str, names: Sequence[str]) -> bool:
    return any(f".{each}." in f".{name}." for each in names)


PARSERS: dict[str, tuple[Callable[[Mapping[str, Any]], Callable[[str], Scheme | None]], Callable[..., bool]]] = {
    "gptq": (_gptq, _listed),
    "awq": (_awq, lambda name, names: any(each in name for each in names)),
    "compressed-tensors": (_compressed, _listed),
    "modelopt": (_modelopt, _globbed),
    METHOD: (_floats, _within),
}
