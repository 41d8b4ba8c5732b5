# SPDX-License-Identifier: Apache-2.0
"""Convolutions with quantized weights.

    layer = QuantizedConv2d.from_conv(conv, weight="int4_g128", activation="bf16")

Like PyTorch's own, a module may be used from several threads; moving and loading change it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Callable, ClassVar, Union

import torch
from torch import Tensor, nn
from typing_extensions import Self

from .._errors import InvalidArgument, Unsupported, must_be
from . import _cuda, ops
from ._spec import FLOATS, FORMATS, conv_text
from .modules import QuantizedWeight, autocasted, float_dtype

_PAD_MODES = {"zeros": None, "replicate": "replicate", "reflect": "reflect"}
_Ints = Union[int, Sequence[int]]


class _QuantizedConv(nn.Module):
    """What QuantizedConv1d, 2d and 3d have in common.

    y = x * w + bias with w in a format, for x [images, channels, axes] or [channels, axes] of float32, float16 or
    bfloat16. y has x's dtype; under autocast x is first cast, as nn.Conv2d's is. If x has channels innermost in memory
    (torch.channels_last), so has y, and kernels read x in place.

    weight: a format of tilewright.formats() whose rows share no scale; blocks run along an output channel's [kernel
    axes, in_channels / groups]. activation: the format to which each call converts x: "f16", "bf16", FP8
    ("e4m3_tensor", "e5m2" ...) or INT8 ("int8_tensor"), with one scale for the tensor or none; None: x is not
    converted. accum: "fast" is explained in docs/reference/numerics.md.

    quant_act: x is fake quantized to FP4 in blocks of 16, 32, 64, 128 or 256 elements; order: blocks run along "ctrs"
    (an output pixel's inputs, as NVIDIA Model Optimizer does) or "trsc" (a pixel's channels, as deployed kernels do).
    amax: the largest magnitude expected of x; None: each call's own. See docs/use/conv.md.

    Gradients reach x, straight through its quantization, and the bias; w is a constant. On a GPU the first call for a
    dtype and shape of x prepares kernels, which may compile for seconds. CUDA graph capture refuses that: call
    tilewright.torch.warm(model, x) first. Raises InvalidArgument or Unsupported for what does not fit."""

    rank: ClassVar[int]
    plain: ClassVar[type[nn.Module]]
    """PyTorch's own layer."""
    defaults: ClassVar[dict[str, Any]] = {"weight": "int8_row", "activation": None}
    """Of from_conv() and the rules of replace_convs()."""
    options: ClassVar[tuple[str, ...]] = ("weight", "activation", "encoder", "accum", "quant_act", "order", "amax")

    bias: nn.Parameter | None
    amax: Tensor | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: _Ints,
        stride: _Ints = 1,
        padding: str | _Ints = 0,
        dilation: _Ints = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        weight: str = "int8_row",
        activation: str | None = None,
        accum: str | None = None,
        quant_act: int | None = None,
        order: str = "ctrs",
        amax: float | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Weights and bias are zero: load_state_dict(), or use from_conv(). The first arguments are PyTorch's. dtype:
        the bias's, and x's for warm()."""
        super().__init__()
        dtype = torch.get_default_dtype() if dtype is None else dtype
        kernel = self._axes("kernel_size", kernel_size, 1)
        shape = (in_channels, out_channels, kernel, stride, padding, dilation, groups, padding_mode)
        self._shape(*shape)
        taps = math.prod(kernel) * (in_channels // groups)
        values = nn.Parameter(torch.zeros(out_channels, device=device, dtype=dtype)) if bias else None
        quantized = QuantizedWeight(weight, out_channels, taps, device)
        self._set(quantized, values, dtype, activation, accum, quant_act, order, amax)

    def _shape(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: _Ints,
        stride: _Ints,
        padding: str | _Ints,
        dilation: _Ints,
        groups: int,
        padding_mode: str,
    ) -> None:
        for name, value in (("in_channels", in_channels), ("out_channels", out_channels), ("groups", groups)):
            _at_least(name, value, 1)
        for name, value in (("in_channels", in_channels), ("out_channels", out_channels)):
            if value % groups:
                raise must_be(name, value, f"a multiple of groups={groups}")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = self._axes("kernel_size", kernel_size, 1)
        self.stride = self._axes("stride", stride, 1)
        self.dilation = self._axes("dilation", dilation, 1)
        if padding_mode not in _PAD_MODES:
            raise Unsupported("padding_mode", repr(padding_mode), f"must be one of {', '.join(_PAD_MODES)}")
        self.padding_mode = padding_mode
        self.padding: str | tuple[int, ...]
        if isinstance(padding, str):
            if padding not in ("valid", "same"):
                raise must_be("padding", repr(padding), "numbers, 'valid' or 'same'")
            if padding == "same" and any(step != 1 for step in self.stride):
                raise InvalidArgument("padding", "'same'", f"needs a stride of 1, and it is {self.stride}")
            self.padding = padding
        else:
            self.padding = self._axes("padding", padding, 0)

    def _axes(self, name: str, value: Any, least: int) -> tuple[int, ...]:
        values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
        values *= self.rank if len(values) == 1 else 1
        if len(values) != self.rank:
            raise must_be(name, value, f"a number, or {self.rank}: one for each axis")
        for one in values:
            _at_least(name, one, least)
        return values

    def _pads(self) -> str:
        """A problem's padding, before and after each axis."""
        if self.padding == "valid":
            return "0"
        if isinstance(self.padding, str):
            totals = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size)]
            return "x".join(f"{total // 2}:{total - total // 2}" for total in totals)
        return "x".join(map(str, self.padding))

    def _set(
        self,
        weight: QuantizedWeight,
        bias: nn.Parameter | None,
        dtype: torch.dtype,
        activation: str | None,
        accum: str | None,
        quant_act: int | None,
        order: str,
        amax: float | None,
    ) -> None:
        if dtype not in FORMATS:
            raise must_be("dtype", f"{dtype}", FLOATS)
        if order not in ("ctrs", "trsc"):
            raise must_be("order", repr(order), "'ctrs' or 'trsc'")
        if amax is not None and (quant_act is None or not 0 < amax < math.inf):
            raise must_be("amax", amax, "a positive number with quant_act, and None without")
        self.activation, self.accum, self.dtype = activation, accum, dtype
        self.quant_act, self.order = quant_act, order
        self.weight = weight
        self.register_parameter("bias", bias)
        largest = None if amax is None else torch.full((1,), amax, dtype=torch.float32, device=weight.device)
        self.register_buffer("amax", largest)
        # Formed here, since torch.compile follows forward().
        self._texts = {kind: self._text(kind) for kind in FORMATS}

    def _text(self, dtype: torch.dtype) -> str:
        y = FORMATS[dtype]
        mode = _PAD_MODES[self.padding_mode]
        fields = {
            "stride": "x".join(map(str, self.stride)),
            "pad": self._pads(),
            "pad_mode": mode,
            "dilation": "x".join(map(str, self.dilation)),
            "groups": self.groups,
            "bias": None if self.bias is None else y,
            "accum": self.accum,
            "quant_act": None if self.quant_act is None else f"e2m1/{self.quant_act}",
            "order": "trsc" if self.quant_act is not None and self.order == "trsc" else None,
        }
        x = self.activation or y
        return conv_text(x, self.weight.format, y, self.in_channels, self.out_channels, self.kernel_size, **fields)

    @classmethod
    def from_conv(
        cls,
        conv: nn.Module,
        weight: str = "int8_row",
        activation: str | None = None,
        encoder: str | None = None,
        accum: str | None = None,
        quant_act: int | None = None,
        order: str = "ctrs",
        amax: float | None = None,
    ) -> Self:
        """The layer of an nn.Conv with as many axes: encodes its weight, on its device, by one of the format's
        encoders. Keeps the same bias Parameter."""
        cls._check(conv)
        quantized = cls._encode(conv, weight, encoder)
        return cls._of(conv, quantized, activation, accum, quant_act, order, amax)

    @classmethod
    def _check(cls, conv: nn.Module) -> None:
        if not isinstance(conv, cls.plain):
            raise must_be("conv", type(conv).__name__, f"an nn.{cls.plain.__name__}")

    @staticmethod
    def _encode(conv: Any, weight: str, encoder: str | None) -> QuantizedWeight:
        rows = conv.weight.detach().movedim(1, -1).flatten(1)
        return QuantizedWeight.from_float(rows, weight, encoder)

    @classmethod
    def _of(
        cls,
        conv: Any,
        weight: QuantizedWeight,
        activation: str | None = None,
        accum: str | None = None,
        quant_act: int | None = None,
        order: str = "ctrs",
        amax: float | None = None,
    ) -> Self:
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        shape = (conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups, conv.padding_mode)
        layer._shape(conv.in_channels, conv.out_channels, *shape)
        dtype = conv.weight.dtype if conv.weight.dtype in FORMATS else torch.float32
        layer._set(weight, conv.bias, dtype, activation, accum, quant_act, order, amax)
        return layer.train(conv.training)

    # ---- what it is

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weight's values as PyTorch has them: [out_channels, in_channels / groups, kernel axes]."""
        rows = self.weight.dequantize(dtype)
        channels = self.in_channels // self.groups
        return rows.reshape(self.out_channels, *self.kernel_size, channels).movedim(-1, 1).contiguous()

    def to_conv(self, dtype: torch.dtype | None = None) -> nn.Module:
        """PyTorch's own layer with the weight's values. dtype: None is the layer's own."""
        dtype = self.dtype if dtype is None else dtype
        shape = (self.stride, self.padding, self.dilation, self.groups, self.bias is not None, self.padding_mode)
        given = {"device": self.weight.device, "dtype": dtype}
        out: Any = self.plain(self.in_channels, self.out_channels, self.kernel_size, *shape, **given)
        with torch.no_grad():
            out.weight.copy_(self.dequantize(dtype))
            if self.bias is not None:
                out.bias.copy_(self.bias)
        return out.train(self.training)  # type: ignore[no-any-return]

    def problem(self, dtype: torch.dtype | None = None) -> str:
        """The text of its convolution for x of a dtype (None: the layer's), without n, in and layouts."""
        return self._texts[self.dtype if dtype is None else dtype]

    def forward(self, x: Tensor) -> Tensor:
        x = autocasted(x)
        dtype = x.dtype
        if dtype not in FORMATS:
            raise must_be("x", f"dtype {dtype}", FLOATS)
        several = x.dim() != self.rank + 1
        if not several:
            x = x.unsqueeze(0)
        bias: Tensor | None = self.bias
        if bias is not None and bias.dtype != dtype:
            bias = bias.to(dtype)
        amax = self.amax
        if self.quant_act is not None and amax is None:
            amax = _largest(x)
        y = ops.conv(x, self.weight.streams, bias, self._texts[dtype], amax)
        return y if several else y.squeeze(0)

    def warm(self, shape: Sequence[int], dtype: torch.dtype | None = None, channels_last: bool = False) -> None:
        """On a GPU: prepares the kernels for x of a shape [images, channels, axes] and a dtype (None: the layer's)."""
        dtype = self.dtype if dtype is None else dtype
        _cuda.conv_plan(self._texts[dtype], _cuda.index_of(self.weight.data), dtype, shape, channels_last)

    # ---- what happens to modules

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = self.amax
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if before is not None and self.amax is not None and self.amax.dtype != before.dtype:
            self.amax = before.to(self.amax.device)
        self.dtype = float_dtype(fn, self.dtype)
        return self

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        amax = state_dict.get(prefix + "amax")
        if amax is not None and self.quant_act is not None and self.amax is None:  # a calibrated layer's
            if amax.shape != (1,) or amax.dtype != torch.float32:
                error_msgs.append(f"{prefix}amax: shape {tuple(amax.shape)}, dtype {amax.dtype}: one float32")
                return
            self.amax = torch.empty_like(amax, device=self.weight.device)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def extra_repr(self) -> str:
        what = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        shape = {"padding": (0,) * self.rank, "dilation": (1,) * self.rank, "groups": 1, "padding_mode": "zeros"}
        names = {**shape, "activation": None, "accum": None, "quant_act": None}
        for name, default in names.items():
            if getattr(self, name) != default:
                what += f", {name}={getattr(self, name)}"
        if self.quant_act is not None:
            what += f", order={self.order}"
        return f"{what}, bias={self.bias is not None}, weight={self.weight.format}"


def _at_least(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise must_be(name, repr(value), f"an integer of at least {least}")


def _largest(x: Tensor) -> Tensor:
    """The largest magnitude, ignoring NaNs, as one float on x's device."""
    if x.numel() == 0:
        return x.new_zeros((1,), dtype=torch.float32)
    magnitudes = x.detach().abs().float().nan_to_num(nan=0.0, posinf=float("inf"))
    return magnitudes.amax().reshape(1)


class QuantizedConv1d(_QuantizedConv):
    __doc__ = _QuantizedConv.__doc__
    rank = 1
    plain = nn.Conv1d


class QuantizedConv2d(_QuantizedConv):
    __doc__ = _QuantizedConv.__doc__
    rank = 2
    plain = nn.Conv2d


class QuantizedConv3d(_QuantizedConv):
    __doc__ = _QuantizedConv.__doc__
    rank = 3
    plain = nn.Conv3d
