# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts in vLLM, which has no list of kernels for them. Its methods are asked when they have loaded a
layer: where our grouped kernels can compute it, they take its weights; else the method goes on."""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._errors import TilewrightError, Unsupported
from ..torch import QuantizedExperts, QuantizedWeight
from ..torch._spec import FORMATS
from ..torch.checkpoints import import_groups, row_weight
from .prepared import all_cpus, default_activation, ready, say_once

# Gates by the value of vLLM's MoEActivation: w13 has all gates, then all that they multiply.
_GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}

Read = Callable[[Any, Any, str], "tuple[QuantizedWeight, str | None]"]


class Experts(nn.Module):
    """The experts of a layer. w13: [experts * 2 * width, hidden], gates first; w2: [experts * hidden, width]. Nothing
    that it launches waits for the device or compiles."""

    def __init__(self, w13: QuantizedExperts, w2: QuantizedExperts, activation: str) -> None:
        super().__init__()
        self.w13, self.w2, self.activation = w13, w2, activation

    def forward(self, x: Tensor, topk_weights: Tensor, topk_ids: Tensor, weigh_x: bool = False) -> Tensor:
        """x [tokens, hidden]; topk_weights, topk_ids [tokens, chosen]: what the router has chosen. The sum over i of
        topk_weights[t, i] w2[e] (gate(w1[e] x[t]) w3[e] x[t]), e = topk_ids[t, i]. weigh_x: x is multiplied instead."""
        tokens, chosen = topk_ids.shape
        flat = topk_ids.reshape(-1)
        experts, order = torch.sort(flat, stable=True)
        bounds = torch.arange(self.w13.experts + 1, device=flat.device, dtype=experts.dtype)
        offsets = torch.searchsorted(experts, bounds).to(torch.int32)
        rows = x.index_select(0, order // chosen)
        weights = topk_weights.reshape(-1, 1).float()
        if weigh_x:
            rows = (rows * weights.index_select(0, order)).to(x.dtype)
        gate, up = self.w13(rows, offsets).chunk(2, -1)
        y = self.w2((_GATES[self.activation](gate.float()) * up).to(x.dtype), offsets)
        back = torch.empty_like(y).index_copy(0, order, y).float()
        if not weigh_x:
            back = back * weights
        return back.reshape(tokens, chosen, -1).sum(1).to(x.dtype)


class Kernel:
    """Takes the place of a method's moe_kernel, and has its names."""

    is_monolithic = False
    can_overlap_shared_experts = False

    def __init__(self, experts: Experts) -> None:
        self.experts = experts
        self.prepare_finalize = types.SimpleNamespace(topk_indices_dtype=lambda: None)
        self.fused_experts = types.SimpleNamespace(consumes_expert_mask=False)

    def output_is_reduced(self) -> bool:
        return False

    def supports_lora(self) -> bool:
        return False

    def apply(
        self,
        hidden_states: Tensor,
        w1: Any,
        w2: Any,
        topk_weights: Tensor,
        topk_ids: Tensor,
        *,
        apply_router_weight_on_input: bool = False,
        **others: Any,
    ) -> Tensor:
        """The loaded weights are the experts' own, so w1 and w2 are not used; the other arguments say what was fixed
        when the layer was loaded."""
        y: Tensor = self.experts(hidden_states, topk_weights, topk_ids, apply_router_weight_on_input)
        return y


def take(method: Any, layer: Any, read: Read) -> Experts:
    """A loaded layer's experts. Raises Unsupported, naming what does not fit."""
    moe = layer.moe_config
    parallel = moe.moe_parallel_config
    if parallel.ep_size > 1 or parallel.dp_size > 1 or getattr(parallel, "enable_eplb", False):
        what = "is not supported: use tensor parallelism"
        raise Unsupported("moe_parallel_config", "experts in several processes", what)
    activation = str(getattr(layer.activation, "value", layer.activation))
    if activation not in _GATES or not moe.is_act_and_mul:
        raise Unsupported("activation", activation, f"is not supported: use {', '.join(_GATES)}")
    if getattr(layer, "swiglu_limit", None) is not None:
        raise Unsupported("swiglu_limit", str(layer.swiglu_limit), "is not supported: use none")
    ready()
    experts, dtype = layer.local_num_experts, moe.in_dtype
    made = []
    for part in ("w13", "w2"):
        weight, x = read(method, layer, part)
        place = next(p.device for name, p in layer.named_parameters() if name.startswith(part))
        bias = getattr(layer, f"{part}_bias", None)
        bias = None if bias is None else bias.detach().to(dtype)
        with all_cpus():
            one = QuantizedExperts(weight.to(place), experts, bias, activation=x, dtype=dtype)
            empty = torch.zeros(experts + 1, dtype=torch.int32, device=place)
            empty[1:] = 2
            one(torch.zeros(2, one.in_features, dtype=dtype, device=place), empty)
        made.append(one)
    return Experts(made[0], made[1], activation)


# ---- how methods store experts


def _x_of(weight: QuantizedWeight, layer: Any) -> str | None:
    return default_activation(weight.format, next(layer.parameters()).device)


def _rows(tensor: Tensor) -> Tensor:
    """The experts' matrices as one, on the host."""
    return tensor.detach().cpu().flatten(0, 1)


def _floats(method: Any, layer: Any, part: str) -> tuple[QuantizedWeight, str | None]:
    values = getattr(layer, f"{part}_weight").detach().flatten(0, 1).contiguous()
    return QuantizedWeight.from_streams([values.view(torch.uint8)], FORMATS[values.dtype], *values.shape), None


def _fp8(method: Any, layer: Any, part: str) -> tuple[QuantizedWeight, str | None]:
    stacked = getattr(layer, f"{part}_weight")
    experts, n, k = stacked.shape
    codes = _rows(stacked)
    if codes.dtype != torch.float8_e4m3fn:
        raise Unsupported(f"{part}_weight", str(codes.dtype), "must be float8_e4m3fn")
    scales = getattr(layer, f"{part}_weight_scale_inv", None)
    scales = (getattr(layer, f"{part}_weight_scale") if scales is None else scales).detach().cpu().float()
    if scales.dim() == 3 and scales.shape[-1] > 1:
        if tuple(scales.shape) != (experts, -(-n // 128), -(-k // 128)) or n % 128 or k % 128:
            what = f"{tuple(scales.shape)} of {tuple(stacked.shape)}"
            raise Unsupported(f"{part}_weight_scale", what, "must be blocks of 128 x 128 that divide the experts")
        streams = [codes.view(torch.uint8), scales.reshape(-1, scales.shape[-1]).contiguous()]
        return QuantizedWeight.from_streams(streams, "e4m3_b128", *codes.shape), None  # no kernel has x in groups
    scales = scales.reshape(experts, -1)  # one for the expert, for each of w1 and w3, or for each row
    if n % scales.shape[1]:
        raise Unsupported(f"{part}_weight_scale", f"{tuple(scales.shape)}", f"must divide {n} rows")
    weight = row_weight(codes, scales.repeat_interleave(n // scales.shape[1], 1).reshape(-1))
    return weight, None if stacked.device.type == "cpu" else "e4m3_row"  # as of linear layers


def _words(method: Any, layer: Any, part: str) -> tuple[QuantizedWeight, str | None]:
    """compressed-tensors' pack-quantized: [experts, n, k / 8]."""
    return _integers(method, layer, part, "weight_packed", "weight_scale", "weight_zero_point")


def _integers(
    method: Any, layer: Any, part: str, codes: str, scales: str, zeros: str
) -> tuple[QuantizedWeight, str | None]:
    bits = getattr(method, "num_bits", 4)
    if bits != 4:
        raise Unsupported("num_bits", str(bits), "is not supported for experts: use 4")
    words, factors = _rows(getattr(layer, f"{part}_{codes}")), _rows(getattr(layer, f"{part}_{scales}"))
    points = getattr(layer, f"{part}_{zeros}", None)
    points = None if points is None else _rows(points)
    return _imported(layer, part, words, factors, points)


def _imported(
    layer: Any, part: str, words: Tensor, scales: Tensor, zeros: Tensor | None
) -> tuple[QuantizedWeight, str | None]:
    n, k = words.shape[0], 8 * words.shape[1]
    group = k // scales.shape[1]
    if zeros is None and group == k:
        scales = scales.float()
    given: dict[str, Any] = {"codes": words, "zeros": zeros, "n": n, "k": k, "group": group}
    weight, _ = import_groups("compressed_tensors", scales.contiguous(), f"{part} scales", "nearest", **given)
    return weight, _x_of(weight, layer)


def _gptq(method: Any, layer: Any, part: str) -> tuple[QuantizedWeight, str | None]:
    """[experts, k / 8, n]: compressed-tensors' turned around."""
    config = method.quant_config
    if config.quant_type.size_bits != 4 or getattr(config, "desc_act", False):
        raise Unsupported("bits", f"{config.quant_type}, desc_act={config.desc_act}", "must be 4, with desc_act=false")
    turned = {name: _rows(getattr(layer, f"{part}_{name}").transpose(1, 2)) for name in ("qweight", "scales")}
    return _imported(layer, part, turned["qweight"].contiguous(), turned["scales"], None)


def _awq(method: Any, layer: Any, part: str) -> tuple[QuantizedWeight, str | None]:
    """[experts, k, n / 8]: side by side one matrix of all experts' rows."""
    side_by_side = {
        name: torch.cat(list(getattr(layer, f"{part}_{name}").detach().cpu()), 1).contiguous()
        for name in ("qweight", "qzeros", "scales")
    }
    k, n = side_by_side["qweight"].shape[0], side_by_side["scales"].shape[1]
    groups = side_by_side["scales"].shape[0]
    weight, _ = import_groups(
        "awq",
        side_by_side["scales"],
        f"{part}_scales",
        "nearest",
        codes=side_by_side["qweight"],
        zeros=side_by_side["qzeros"],
        n=n,
        k=k,
        group=k // groups,
    )
    return weight, _x_of(weight, layer)


def _mxfp4(method: Any, layer: Any, part: str) -> tuple[QuantizedWeight, str | None]:
    codes = getattr(layer, f"{part}_weight_packed", None)
    codes = _rows(getattr(layer, f"{part}_weight") if codes is None else codes).view(torch.uint8)
    scales = _rows(getattr(layer, f"{part}_weight_scale")).view(torch.uint8)
    weight = QuantizedWeight.from_streams([codes, scales], "mxfp4", codes.shape[0], 2 * codes.shape[1])
    return weight, _x_of(weight, layer)


_LAYERS = "vllm.model_executor.layers"
_COMPRESSED = f"{_LAYERS}.quantization.compressed_tensors.compressed_tensors_moe.compressed_tensors_moe"
# vLLM's methods: module, class, what reads their parameters. One that a version lacks is left out.
_METHODS: tuple[tuple[str, str, Read], ...] = (
    (f"{_LAYERS}.fused_moe.unquantized_fused_moe_method", "UnquantizedFusedMoEMethod", _floats),
    (f"{_LAYERS}.quantization.fp8", "Fp8MoEMethod", _fp8),
    (f"{_COMPRESSED}_w8a8_fp8", "CompressedTensorsW8A8Fp8MoEMethod", _fp8),
    (f"{_COMPRESSED}_wna16", "CompressedTensorsWNA16MoEMethod", _words),
    (f"{_LAYERS}.quantization.auto_gptq", "AutoGPTQMoEMethod", _gptq),
    (f"{_LAYERS}.quantization.auto_awq", "AutoAWQMoEMethod", _awq),
    (f"{_COMPRESSED}_w4a4_mxfp4", "CompressedTensorsW4A4Mxfp4MoEMethod", _mxfp4),
    (f"{_LAYERS}.quantization.mxfp4", "Mxfp4MoEMethod", _mxfp4),
)


def register_experts() -> None:
    """Lets our kernels take the experts of vLLM's methods once they are loaded."""
    for module, name, read in _METHODS:
        try:
            method = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
        if not hasattr(method.process_weights_after_loading, "tilewright"):
            method.process_weights_after_loading = _wrapped(method.process_weights_after_loading, read)


def _wrapped(theirs: Any, read: Read) -> Any:
    def process_weights_after_loading(self: Any, layer: Any) -> None:
        if getattr(layer, "tilewright", None) is not None:
            return
        try:
            with torch.device("cpu"):
                made = take(self, layer, read)
        except (TilewrightError, OSError) as error:
            say_once(
                f"experts {type(self).__name__} {getattr(error, 'field', '')}",
                f"vLLM computes the experts of {type(self).__name__}: {error}",
            )
            theirs(self, layer)
            return
        for name, parameter in list(layer.named_parameters(recurse=False)):
            parameter.data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)
        for name in ("w13_weight", "w2_weight"):  # which apply() reads, and some checkpoints call otherwise
            if not hasattr(layer, name):
                setattr(layer, name, None)
        layer.tilewright, self.moe_kernel = made, Kernel(made)

    process_weights_after_loading.tilewright = True  # type: ignore[attr-defined]
    return process_weights_after_loading
