# SPDX-License-Identifier: Apache-2.0
"""The method of a linear layer: the parameters that vLLM loads a checkpoint's tensors into, whole or in shards, and
what becomes of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.linear import LinearMethodBase
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

from .._errors import InvalidArgument, Unsupported, must_be
from ..torch import QuantizedLinear, QuantizedWeight
from ..torch.checkpoints import import_groups, row_weight
from .schemes import Scheme


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
                f"must be a multiple of {of}, as columns are packed",
            )

    def rows(self, of: int) -> None:
        assert self.shard is not None
        if any(part % of for part in self.shard.parts):
            raise Unsupported(
                f"{self.prefix}: output_partition_sizes",
                str(self.shard.parts),
                f"must be multiples of {of}, as rows are packed",
            )

    def refuse(self, name: str, value: str, allowed: str) -> InvalidArgument:
        return must_be(f"{self.prefix}.{name}", value, allowed)


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
        raise must_be(f"{method.prefix}: group_size", group, f"a divisor of input_size={shard.full}")
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
                "must have pieces of a multiple of 32 columns" + (", or desc_act=false" if scheme.ordered else ""),
            )
        group, axis = piece, 1 if scheme.kind == "compressed_tensors" else 0
        grouped = {name: tensor.index_select(axis, which).contiguous() for name, tensor in grouped.items()}
    weight, order = import_groups(
        scheme.kind,
        grouped["scales"],
        f"{method.prefix}.{scales}",
        None,
        codes=given[codes],
        zeros=grouped.get("zeros"),
        g_idx=table,
        n=shard.n,
        k=shard.k,
        group=group,
        bits=scheme.bits,
    )
    return [weight], order


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
