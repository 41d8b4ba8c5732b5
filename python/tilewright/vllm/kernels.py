# SPDX-License-Identifier: Apache-2.0
"""Linear kernels for vLLM's lists. vLLM asks each kernel of a list in turn whether it can implement a layer, so a
checkpoint of GPTQ, AWQ, compressed-tensors, Model Optimizer or FP8 uses ours without a flag.

A kernel takes the layer's parameters as the checkpoint has them. Where it cannot use them after all (a scale that no
format holds), the layer goes to vLLM's next kernel, and a warning says why."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from vllm import envs
from vllm.model_executor.kernels import linear as kernels
from vllm.platforms import current_platform

from .._errors import InvalidArgument, TilewrightError, Unsupported, must_be
from ..torch import QuantizedWeight
from ..torch.checkpoints import import_groups, row_weight
from .prepared import Prepared, default_activation, say_once, why_not

CAPABILITY = 75  # Turing

Answer = tuple[bool, "str | None"]

_FP8_PARTS = ("weight", "weight_scale", "input_scale", "input_scale_ub")


def _device() -> torch.device:
    return torch.device("cpu" if current_platform.is_cpu() else "cuda")


def _answer(reason: str | None) -> Answer:
    return reason is None, reason


def _base(name: str) -> Any:
    """vLLM's base class of a kind of kernels, if this version has the kind."""
    return getattr(kernels, name, object)


class _Kernel:
    """What all kernels share. _given, _options: the arguments that vLLM made it with, for _instead, which is the kernel
    in its place."""

    lists: tuple[str, ...] = ()
    """The lists of vLLM that it is in, by the name of the attribute."""

    config: Any
    _given: tuple[Any, ...] = ()
    _options: Mapping[str, Any] = types.MappingProxyType({})
    _instead: Any = None

    @classmethod
    def get_min_capability(cls) -> int:
        return CAPABILITY

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> Answer:
        if current_platform.is_cpu():
            return True, None
        if not current_platform.is_cuda():
            return False, "needs a CPU or an NVIDIA GPU"
        if compute_capability is not None and compute_capability < CAPABILITY:
            return False, f"needs compute capability {CAPABILITY / 10}, and this GPU has {compute_capability / 10}"
        return True, None

    @classmethod
    def can_implement(cls, c: Any) -> Answer:
        raise NotImplementedError

    def read(self, layer: nn.Module) -> tuple[QuantizedWeight, str | None, Tensor | None, torch.dtype]:
        """The weight, what x is quantized to, the order of x's columns, and x's dtype."""
        raise NotImplementedError

    def names(self) -> tuple[str, ...]:
        """The layer's parameters that read() has used up."""
        raise NotImplementedError

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        self._instead = None
        try:
            self._take(layer)
        except (TilewrightError, OSError) as error:
            self._instead = self._next()
            name = "PyTorch" if self._instead is None else type(self._instead).__name__
            say_once(
                f"{type(self).__name__} {getattr(error, 'field', '')}",
                f"{name} computes layers that {type(self).__name__} was chosen for: {error}",
            )
            if self._instead is None:
                self._take(layer, anyway=True)
            else:
                self._instead.process_weights_after_loading(layer)

    def _take(self, layer: nn.Module, anyway: bool = False) -> None:
        with torch.device("cpu"):  # whatever vLLM has set
            weight, activation, order, dtype = self.read(layer)
        weight = weight.to(_place(layer, self.names()))
        made = Prepared(weight, getattr(layer, "bias", None), dtype, activation=activation, order=order, anyway=anyway)
        for name in self.names():
            if getattr(layer, name, None) is not None:
                setattr(layer, name, None)
        layer.tilewright = made

    def apply_weights(self, layer: Any, x: Tensor, bias: Tensor | None = None, **more: Any) -> Tensor:
        if self._instead is not None:
            return self._instead.apply_weights(layer, x, bias, **more)  # type: ignore[no-any-return]
        return layer.tilewright(x, bias)  # type: ignore[no-any-return]

    def _next(self) -> Any:
        """vLLM's kernel that would have had the layer; None if it has none."""
        capability = current_platform.get_device_capability()
        number = None if capability is None else capability[0] * 10 + capability[1]
        for name in self.lists:
            for kernel in getattr(kernels, name, {}).get(current_platform._enum, []):
                if issubclass(kernel, _Kernel) or kernel.__name__ in envs.VLLM_DISABLED_KERNELS:
                    continue
                if number is not None and getattr(kernel, "get_min_capability", lambda: 0)() > number:
                    continue
                if not getattr(kernel, "is_supported", lambda given: (True, None))(number)[0]:
                    continue
                if kernel.can_implement(self.config)[0]:
                    return kernel(*self._given, **self._options)
        return None


def _place(layer: nn.Module, names: tuple[str, ...]) -> torch.device:
    tensors = (getattr(layer, name, None) for name in names)
    place: torch.device = next(tensor.device for tensor in tensors if tensor is not None)
    return place


def _host(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu()


# ---- integers with 16-bit x


class TilewrightMPLinearKernel(_Kernel, kernels.MPLinearKernel):  # type: ignore[misc]
    """GPTQ, AWQ and compressed-tensors' pack-quantized: codes of 2, 4 or 8 bits in groups of columns or rows."""

    lists = ("_POSSIBLE_KERNELS",)

    def __init__(self, c: Any, *names: Any, **more: Any) -> None:
        """As MPLinearKernel takes them: the parameters of codes, scales, zero points and, in versions of vLLM whose
        configuration has has_g_idx, of each column's group."""
        self._given, self._options = (c, *names), more
        self.config = c
        given = dict(zip(("w_q_param_name", "w_s_param_name", "w_zp_param_name", "w_gidx_param_name"), names)) | more
        self.w_q_name, self.w_s_name = given["w_q_param_name"], given["w_s_param_name"]
        self.w_zp_name = given.get("w_zp_param_name")
        self.w_gidx_name = given.get("w_gidx_param_name")

    @classmethod
    def can_implement(cls, c: Any) -> Answer:
        return _answer(cls._why_not(c))

    @classmethod
    def _why_not(cls, c: Any) -> str | None:
        bits, bias = c.weight_type.size_bits, c.weight_type.bias
        unsigned = c.zero_points and bias == 0 and bits == 4
        if not unsigned and (c.zero_points or bits not in (2, 4, 8) or bias != 1 << (bits - 1)):
            what = "use codes of 2, 4 or 8 bits around their middle, or uint4"
            return f"weight_type {c.weight_type} is not supported; {what}"
        k, n = c.partition_weight_shape
        group = k if c.group_size == -1 else c.group_size
        if group % 32 or group <= 0:
            return f"group_size {c.group_size} is not supported; use -1 or a multiple of 32"
        piece = math.gcd(group, k)
        if piece % 32:
            what = "they must be a multiple of 32"
            return f"group_size {group} is cut by tensor parallelism into pieces of {piece} columns; {what}"
        small = max((size for size in (128, 64, 32) if piece % size == 0), default=32)
        if bits == 8:
            format = "int8_row" if c.group_size == -1 and k == c.full_weight_shape[0] else "q8_0"
        elif bits == 2:
            format = "uint4_g32"
        else:
            row = c.group_size == -1 and not c.zero_points
            format = "int4_row" if row else f"{'uint4' if c.zero_points else 'int4'}_g{small}"
        return why_not(format, n, k, default_activation(format, _device()), c.act_type, _device())

    def names(self) -> tuple[str, ...]:
        return tuple(name for name in (self.w_q_name, self.w_s_name, self.w_zp_name, self.w_gidx_name) if name)

    def read(self, layer: nn.Module) -> tuple[QuantizedWeight, str | None, Tensor | None, torch.dtype]:
        c = self.config
        k, n = c.partition_weight_shape
        bits = c.weight_type.size_bits
        codes, scales = (getattr(layer, name) for name in (self.w_q_name, self.w_s_name))
        zeros = getattr(layer, self.w_zp_name or "", None) if c.zero_points else None
        # [n, words] and [n, groups], as compressed-tensors has them; GPTQ's are transposed.
        words = _rows_first(codes, "input_dim", 1)
        scales = _rows_first(scales, "output_dim", 0)
        groups = scales.shape[1]
        zeros = None if zeros is None else _rows_first(zeros, "output_dim", 0)
        table = getattr(layer, self.w_gidx_name or "", None) if getattr(c, "has_g_idx", False) else None
        table = None if table is None or table.numel() == 0 else _host(table)
        group = k // groups if c.group_size == -1 or c.group_size * groups == k else c.group_size
        if table is not None and c.group_size != -1:
            if not ((table >= 0) & (table < groups)).all():
                found = f"{int(table.min())} to {int(table.max())}"
                raise must_be(self.w_gidx_name or "", found, f"groups below {groups}")
            group, which, table = pieces_of_groups(table.long())
            scales = scales.index_select(1, which)
            zeros = None if zeros is None else zeros.index_select(1, which)
        else:
            table = None
        if group * scales.shape[1] != k:
            raise InvalidArgument(
                self.w_s_name, f"{groups} groups", f"must have {k // group}: {k} columns in groups of {group}"
            )
        shape = {"n": n, "k": k, "group": group, "bits": bits, "g_idx": table}
        weight, order = _imported(words, scales.contiguous(), zeros, self.w_s_name, **shape)
        return weight, default_activation(weight.format, _device()), order, c.act_type


def _rows_first(parameter: Any, attribute: str, wanted: int) -> Tensor:
    """A parameter of [n, ...] on the host, as its attributes say, whichever way it lies."""
    tensor = _host(parameter.data)
    return tensor if getattr(parameter, attribute) == wanted else tensor.t().contiguous()


def _imported(
    words: Tensor, scales: Tensor, zeros: Tensor | None, name: str, **shape: Any
) -> tuple[QuantizedWeight, Tensor | None]:
    n, k, group, bits = (shape[part] for part in ("n", "k", "group", "bits"))
    if group == k and bits == 8:
        values = (words.contiguous().view(torch.uint8).reshape(n, -1)[:, :k] ^ 0x80).view(torch.int8)
        return row_weight(values.contiguous(), scales, name), None
    if group == k and zeros is None:
        scales = scales.float()  # which int4_row stores
    if bits == 4:
        words = words.contiguous()
        return import_groups("compressed_tensors", scales, name, "nearest", codes=words, zeros=zeros, **shape)
    middle = sum(1 << (bits - 1) << shift for shift in range(0, 32, bits))
    zeros = torch.full((k // group, n * bits // 32), middle - (1 << 32) if middle >> 31 else middle, dtype=torch.int32)
    codes, scales = words.t().contiguous(), scales.t().contiguous()
    return import_groups("gptq_v2", scales, name, "nearest", codes=codes, zeros=zeros, **shape)


def pieces_of_groups(group: Tensor) -> tuple[int, Tensor, Tensor | None]:
    """By each column's group: equal groups of as many columns as possible, each within one of the old, the old one
    of each, and each column's new one, None where they are in order. Raises Unsupported for pieces that no format
    has."""
    counts = torch.bincount(group)
    piece = math.gcd(*counts[counts > 0].tolist())
    if piece % 32:
        raise Unsupported(
            "g_idx", f"groups in pieces of {piece} columns", "must be pieces of a multiple of 32: use desc_act=false"
        )
    order = torch.argsort(group, stable=True)
    table = torch.empty(len(group), dtype=torch.int32)
    table[order] = torch.arange(len(group), dtype=torch.int32) // piece
    in_order = torch.equal(order, torch.arange(len(group)))
    return piece, group[order][::piece], None if in_order else table


# ---- 8 bits


class TilewrightInt8LinearKernel(_Kernel, _base("Int8ScaledMMLinearKernel")):  # type: ignore[misc]
    """INT8 by row or tensor; each row of x gets a scale, whether the checkpoint has one for x or not."""

    lists = ("_POSSIBLE_INT8_KERNELS",)

    def __init__(self, c: Any, layer_param_names: Any) -> None:
        self._given = (c, layer_param_names)
        self.config, self.layer_param_names = c, layer_param_names

    @classmethod
    def can_implement(cls, c: Any) -> Answer:
        if not c.input_symmetric:
            return False, "input_symmetric=False is not supported: kernels quantize x around 0"
        return _answer(why_not("int8_row", 64, 64, "int8_row", torch.bfloat16, _device()))

    def names(self) -> tuple[str, ...]:
        return tuple(self.layer_param_names)

    def read(self, layer: Any) -> tuple[QuantizedWeight, str | None, Tensor | None, torch.dtype]:
        codes = _host(getattr(layer, self.layer_param_names[0]))
        scales = _by_row(_host(getattr(layer, self.layer_param_names[1])), codes.shape[0], layer)
        return row_weight(codes, scales), "int8_row", None, _dtype_of(layer)


def _by_row(scales: Tensor, n: int, layer: Any) -> Tensor:
    """One scale for each row: of tensors that vLLM has fused, their own."""
    scales = scales.float().reshape(-1)
    if scales.numel() in (1, n):
        return scales.expand(n)
    return scales.repeat_interleave(torch.tensor(layer.logical_widths))


def _dtype_of(layer: Any) -> torch.dtype:
    """The dtype of x; layers of some methods do not say."""
    for name in ("orig_dtype", "params_dtype"):
        if isinstance(found := getattr(layer, name, None), torch.dtype):
            return found
    return torch.get_default_dtype()


class TilewrightFp8LinearKernel(_Kernel, _base("FP8ScaledMMLinearKernel")):  # type: ignore[misc]
    """FP8 by tensor, row or blocks of 128 x 128. On a GPU x is quantized by row, or by 128 columns of one where the
    weight has blocks, whatever scale the checkpoint has for it, unless the checkpoint leaves it at 16 bits. On a CPU,
    whose kernels decode FP8, x is never quantized."""

    lists: tuple[str, ...] = ("_POSSIBLE_FP8_KERNELS", "_POSSIBLE_FP8_BLOCK_KERNELS", "_POSSIBLE_WFP8A16_KERNELS")

    def __init__(self, c: Any, layer_param_names: Any = _FP8_PARTS) -> None:
        self._given = (c, layer_param_names)
        self.config, self.layer_param_names = c, layer_param_names
        if _blocks_of(c):
            self.lists, self._given = ("_POSSIBLE_FP8_BLOCK_KERNELS",), (c,)

    @classmethod
    def can_implement(cls, c: Any) -> Answer:
        n, k = c.weight_shape
        shape = c.weight_quant_key.scale.group_shape
        blocks = _blocks_of(c)
        if blocks and (tuple(shape) != (128, 128) or k % 128):
            what = "use 128 x 128, and k a multiple of 128"
            return False, f"weight blocks of {tuple(shape)} in {k} columns are not supported; {what}"
        format, activation = _fp8(c)
        return _answer(why_not(format, n, k, activation, c.input_dtype, _device()))

    def names(self) -> tuple[str, ...]:
        return (*self.layer_param_names, "weight_scale_inv")

    def read(self, layer: Any) -> tuple[QuantizedWeight, str | None, Tensor | None, torch.dtype]:
        c = self.config
        codes = _host(layer.weight)
        format, activation = _fp8(c)
        if format == "e4m3_b128":
            inverse = getattr(layer, "weight_scale_inv", None)  # its name in DeepSeek's checkpoints
            scales = _host(layer.weight_scale if inverse is None else inverse).float().contiguous()
            streams = [codes.view(torch.uint8), scales]
            return QuantizedWeight.from_streams(streams, format, *codes.shape), activation, None, c.input_dtype
        codes = codes.t().contiguous()  # vLLM hands it on as [k, n]
        scales = _by_row(_host(layer.weight_scale), codes.shape[0], layer)
        return row_weight(codes, scales), activation, None, c.input_dtype

    def apply_scaled_mm(self, **arguments: Any) -> Any:
        raise NotImplementedError("apply_weights() quantizes x itself")


def _blocks_of(c: Any) -> bool:
    shape = c.weight_quant_key.scale.group_shape
    return bool(shape.row > 1 and shape.col > 1)


def _fp8(c: Any) -> tuple[str, str | None]:
    """The formats of w and x."""
    key = c.activation_quant_key
    wide = current_platform.is_cpu() or key is None or key.dtype != torch.float8_e4m3fn
    if _blocks_of(c):
        return "e4m3_b128", None if wide else "e4m3_g128"
    return "e4m3_row", None if wide else "e4m3_row"


# ---- blocks of 4 or 8 bits


class TilewrightMxfp8LinearKernel(_Kernel, _base("Mxfp8LinearKernel")):  # type: ignore[misc]
    """MXFP8: E4M3 with a power of two for 32 columns. x is not quantized."""

    lists = ("_POSSIBLE_MXFP8_KERNELS",)

    def __init__(self, c: Any) -> None:
        self._given, self.config = (c,), c

    @classmethod
    def can_implement(cls, c: Any) -> Answer:
        if getattr(c, "bmm_batch_size", None) is not None:
            return False, "bmm_batch_size is not supported: the weight must be one matrix"
        n, k = c.weight_shape
        return _answer(why_not("mxfp8", n, k, default_activation("mxfp8", _device()), torch.bfloat16, _device()))

    def names(self) -> tuple[str, ...]:
        return ("weight", "weight_scale")

    def read(self, layer: Any) -> tuple[QuantizedWeight, str | None, Tensor | None, torch.dtype]:
        codes, scales = _host(layer.weight), _host(layer.weight_scale)
        streams = [codes.view(torch.uint8), scales.view(torch.uint8)]
        weight = QuantizedWeight.from_streams(streams, "mxfp8", *codes.shape)
        return weight, default_activation("mxfp8", _device()), None, _dtype_of(layer)


class _Fp4(_Kernel):
    """E2M1 in blocks. x has 16 bits on a GPU and q8_1 on a CPU, whatever the checkpoint quantizes it to."""

    format: ClassVar[str]

    def __init__(self, c: Any) -> None:
        self._given, self.config = (c,), c

    @classmethod
    def can_implement(cls, c: Any) -> Answer:
        activation = default_activation(cls.format, _device())
        return _answer(why_not(cls.format, 64, 64, activation, torch.bfloat16, _device()))

    def names(self) -> tuple[str, ...]:
        return ("weight", "weight_scale")

    def streams(self, layer: Any) -> list[Tensor]:
        return [_host(layer.weight).view(torch.uint8), _host(layer.weight_scale).view(torch.uint8)]

    def read(self, layer: Any) -> tuple[QuantizedWeight, str | None, Tensor | None, torch.dtype]:
        streams = self.streams(layer)
        n, k = streams[0].shape[0], 2 * streams[0].shape[1]
        weight = QuantizedWeight.from_streams(streams, self.format, n, k)
        return weight, default_activation(self.format, _device()), None, _dtype_of(layer)


class TilewrightMxfp4LinearKernel(_Fp4, _base("MxFp4LinearKernel")):  # type: ignore[misc]
    """MXFP4: a power of two for 32 columns."""

    lists = ("_POSSIBLE_MXFP4_KERNELS",)
    format = "mxfp4"


class TilewrightNvFp4LinearKernel(_Fp4, _base("NvFp4LinearKernel")):  # type: ignore[misc]
    """NVFP4: an E4M3 scale for 16 columns, and a factor for the tensor."""

    lists = ("_POSSIBLE_NVFP4_KERNELS",)
    format = "nvfp4"

    def names(self) -> tuple[str, ...]:
        inputs = ("input_global_scale", "input_global_scale_inv", "alpha")
        return ("weight", "weight_scale", "weight_global_scale", *inputs)

    def streams(self, layer: Any) -> list[Tensor]:
        factor = _host(layer.weight_global_scale).float().reshape(-1)
        if factor.numel() != 1 or not factor.isfinite().all() or not (factor > 0).all():
            raise must_be("weight_global_scale", str(factor.tolist()), "one positive number")
        return [*super().streams(layer), factor]


# By the name that register_linear_kernel() has for the list.
KERNELS: dict[str, type[_Kernel]] = {
    "mp": TilewrightMPLinearKernel,
    "int8": TilewrightInt8LinearKernel,
    "fp8": TilewrightFp8LinearKernel,
    "mxfp8": TilewrightMxfp8LinearKernel,
    "nvfp4": TilewrightNvFp4LinearKernel,
    "mxfp4": TilewrightMxfp4LinearKernel,
}


def register_kernels(front: bool) -> None:
    """Puts every kernel into vLLM's lists for CPUs and NVIDIA GPUs, once: in front of vLLM's own, or behind them."""
    from vllm.platforms.interface import PlatformEnum

    for platform in (PlatformEnum.CPU, PlatformEnum.CUDA):
        for kind, kernel in KERNELS.items():
            lists = [getattr(kernels, name, None) for name in kernel.lists]
            if kernel in (lists[0] or {}).get(platform, []):
                continue
            try:
                kernels.register_linear_kernel(kernel, platform, kind)
            except ValueError:  # an older vLLM, without this list
                continue
            for each in lists[1:]:
                if each is not None:
                    each.setdefault(platform, []).append(kernel)
            for each in lists:
                if front and each is not None:
                    each[platform].remove(kernel)
                    each[platform].insert(0, kernel)
