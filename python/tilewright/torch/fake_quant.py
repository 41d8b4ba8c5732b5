# SPDX-License-Identifier: Apache-2.0
"""Quantization-aware training: fake quantization with straight-through gradients, and those of a learned scale.
docs/use/fake-quant.md has the formulas; they are PyTorch's own."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .._errors import must_be
from . import _cuda
from ._spec import FLOATS, FORMATS
from .ops import _define, dequantize, quantize


def fake_quantize(
    x: Tensor,
    scale: Tensor | float | None = None,
    zero_point: Tensor | int | None = None,
    *,
    qmin: int = -128,
    qmax: int = 127,
    axis: int | None = None,
    format: str | None = None,
) -> Tensor:
    """Quantizes x (float32, float16 or bfloat16) and dequantizes it; keeps dtype and shape.

    With scale: (clamp(round(x / scale) + zero_point, qmin, qmax) - zero_point) * scale, as
    torch.fake_quantize_per_tensor_affine or, with axis, per_channel_affine: scale and zero_point then have one number
    for each index of the axis. The gradient passes where x is not clamped. With format: encodes x in any format, by
    rows of the last dimension, and decodes it; the gradient passes everywhere, since scales follow x. Raises
    InvalidArgument naming the argument; values of a scale on a GPU are not checked."""
    if (scale is None) == (format is None):
        raise must_be("scale", "None" if scale is None else "one, and a format", "a scale, or a format")
    if format is not None:
        if zero_point is not None or axis is not None:
            raise must_be("format", format, "None: it has scales and zero points of its own")
        out: Tensor = _ThroughFormat.apply(x, format)  # type: ignore[no-untyped-call]
        return out
    return _run(x, scale, zero_point, qmin, qmax, axis, None)


def learned_step_quantize(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | int | None = None,
    *,
    qmin: int = -128,
    qmax: int = 127,
    axis: int | None = None,
    factor: float | None = None,
) -> Tensor:
    """fake_quantize() whose scale has a gradient too (Esser et al., Learned step size quantization), as in
    torch._fake_quantize_learnable_per_tensor_affine. factor: of that gradient; None: the paper's 1 / sqrt(qmax * the
    elements that share a scale). The caller's optimizer must keep scales positive."""
    if not isinstance(scale, Tensor):
        raise must_be("scale", type(scale).__name__, "a tensor, which can have a gradient")
    if factor is None:
        each = x.numel() // max(scale.numel(), 1)
        factor = 1 / math.sqrt(max(each, 1) * max(qmax, 1))
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not math.isfinite(factor):
        raise must_be("factor", f"{factor}", "a finite number")
    return _run(x, scale, zero_point, qmin, qmax, axis, float(factor))


def _run(
    x: Tensor, scale: Any, zero_point: Any, qmin: int, qmax: int, axis: int | None, factor: float | None
) -> Tensor:
    if not isinstance(x, Tensor) or x.dtype not in FORMATS:
        raise must_be("x", f"{getattr(x, 'dtype', type(x).__name__)}", FLOATS)
    for name, value, least, most in (("qmin", qmin, -128, 254), ("qmax", qmax, qmin + 1, min(255, qmin + 255))):
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise must_be(name, f"{value}", f"{least} to {most}")
    if axis is not None and (isinstance(axis, bool) or not isinstance(axis, int) or not -x.dim() <= axis < x.dim()):
        raise must_be("axis", f"{axis}", f"None, or a dimension of x, which has {x.dim()}")
    count = 1 if axis is None else x.shape[axis]
    scale = _numbers("scale", scale, torch.float32, count, x.device)
    if zero_point is not None:
        zero_point = _numbers("zero_point", zero_point, torch.int32, count, x.device)
    if x.device.type == "cpu" and not torch.compiler.is_compiling():  # on a GPU this would synchronize
        _check_values(scale, zero_point, qmin, qmax)
    rows = x.reshape(1, -1) if axis is None else x.movedim(axis, 0).reshape(count, -1)
    y: Tensor = _FakeQuantize.apply(rows, scale, zero_point, qmin, qmax, factor)  # type: ignore[no-untyped-call]
    if axis is None:
        return y.reshape(x.shape)
    moved = x.movedim(axis, 0).shape
    return y.reshape(moved).movedim(0, axis)


def _numbers(name: str, value: Any, dtype: torch.dtype, count: int, device: torch.device) -> Tensor:
    if not isinstance(value, Tensor):
        kinds = (int,) if dtype == torch.int32 else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise must_be(name, f"{value!r}", f"a number, or a tensor of {dtype}")
        if dtype == torch.int32 and not -(1 << 31) <= value < 1 << 31:
            raise must_be(name, f"{value}", "from qmin to qmax")
        if dtype == torch.float32:
            _check_scale(name, value)
        return torch.full((count,), value, dtype=dtype, device=device)
    if value.dtype != dtype or value.numel() != count or value.device != device:
        given = f"{value.numel()} elements of {value.dtype} on {value.device}"
        raise must_be(name, given, f"{count} of {dtype} on {device}")
    return value.reshape(count)


def _check_scale(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise must_be(name, f"{value}", "a positive finite number")


def _check_values(scale: Tensor, zero_point: Tensor | None, qmin: int, qmax: int) -> None:
    bad = ~(torch.isfinite(scale.detach()) & (scale.detach() > 0))
    if bool(bad.any()):
        at = int(bad.nonzero()[0])
        _check_scale(f"scale[{at}]", float(scale[at]))
    if zero_point is not None:
        outside = (zero_point < qmin) | (zero_point > qmax)
        if bool(outside.any()):
            at = int(outside.nonzero()[0])
            raise must_be(f"zero_point[{at}]", f"{int(zero_point[at])}", f"{qmin} to {qmax}, qmin to qmax")


class _ThroughFormat(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, format: str) -> Tensor:
        cols = x.shape[-1] if x.dim() else 1
        y = dequantize(quantize(x, format), format, x.numel() // cols if cols else 0, cols, x.dtype)
        return y.reshape(x.shape)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return dy, None


class _FakeQuantize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor, zero_point: Tensor | None, qmin: int, qmax: int, factor: float | None
    ) -> Tensor:
        ctx.save_for_backward(x, scale, *([] if zero_point is None else [zero_point]))
        ctx.codes, ctx.factor = (qmin, qmax), factor
        return torch.ops.tilewright.fake_quantize(x, scale, zero_point, qmin, qmax)  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, scale, *rest = ctx.saved_tensors
        zero_point = rest[0] if rest else None
        learned = ctx.factor is not None and ctx.needs_input_grad[1]
        factor = ctx.factor if learned else 1.0
        dx, dscale = torch.ops.tilewright.fake_quantize_grad(dy, x, scale, zero_point, *ctx.codes, learned, factor)
        return dx, dscale if learned else None, None, None, None, None


# ---- operators: x and dy [rows, cols], scale and zero_point [1] or [rows]


def _codes(x: Tensor, scale: Tensor, zero_point: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    by = scale.reshape(-1, 1)
    zero = torch.zeros_like(by) if zero_point is None else zero_point.float().reshape(-1, 1)
    v = x.float() * (1 / by)
    return v, v.round() + zero, by, zero


def _limited(code: Tensor, qmin: int, qmax: int) -> Tensor:
    """A NaN gets the least code."""
    return torch.where(code >= qmin, code.clamp(max=qmax), float(qmin))


def _forward_cpu(x: Tensor, scale: Tensor, zero_point: Tensor | None, qmin: int, qmax: int) -> Tensor:
    with torch.no_grad():
        _, code, by, zero = _codes(x, scale, zero_point)
        return ((_limited(code, qmin, qmax) - zero) * by).to(x.dtype).contiguous()


def _grad_cpu(
    dy: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor | None, qmin: int, qmax: int, learned: bool, factor: float
) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        v, code, _, zero = _codes(x, scale, zero_point)
        inside = (code >= qmin) & (code <= qmax)
        dx = (dy.float() * inside).to(x.dtype).contiguous()
        if not learned:
            return dx, torch.empty_like(scale)
        slope = torch.where(inside, v.round() - v, _limited(code, qmin, qmax) - zero)
        terms = dy.double() * slope
        sums = terms.sum(1) if scale.numel() > 1 else terms.sum().reshape(1)
        return dx, (sums * factor).float().reshape(scale.shape)


def _forward_fake(x: Tensor, scale: Tensor, zero_point: Tensor | None, qmin: int, qmax: int) -> Tensor:
    return x.new_empty(x.shape)


def _grad_fake(
    dy: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor | None, qmin: int, qmax: int, learned: bool, factor: float
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), scale.new_empty(scale.shape)


def _forward_cuda(x: Tensor, scale: Tensor, zero_point: Tensor | None, qmin: int, qmax: int) -> Tensor:
    return _cuda.fake_quant(x, scale, zero_point, qmin, qmax)


_define(
    "fake_quantize(Tensor x, Tensor scale, Tensor? zero_point, int qmin, int qmax) -> Tensor",
    _forward_cpu,
    _forward_cuda,
    _forward_fake,
)
_define(
    "fake_quantize_grad(Tensor dy, Tensor x, Tensor scale, Tensor? zero_point, int qmin, int qmax, bool learned, "
    "float factor) -> (Tensor, Tensor)",
    _grad_cpu,
    _cuda.fake_quant_grad,
    _grad_fake,
)
