# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts' linear layers in one launch (docs/use/groups.md)."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from .. import _c
from .._errors import InvalidArgument, Unsupported, must_be
from ..layer import Layer, layer_problems
from ..problem import Problem
from . import _cpu, _cuda, ops
from ._spec import FORMATS, by_name
from .modules import QuantizedWeight


class QuantizedExperts(nn.Module):
    """y[i] = x[i] w[e]^T + bias[e] for the rows i of expert e, without gradients. weight: [experts * n, k], the
    experts' matrices one after the other, of a format without a factor for the tensor. bias: [experts, n] or None.
    activation: to what x is quantized, or None. dtype: of x, y and bias: float32, float16 or bfloat16.

    Prepares its kernels for any number of rows, and keeps a copy of the weight in its device's order. May be called
    from any thread and captured in CUDA graphs. Raises InvalidArgument for shapes, and Unsupported where the device has
    no fast kernel."""

    def __init__(
        self,
        weight: QuantizedWeight,
        experts: int,
        bias: Tensor | None = None,
        *,
        activation: str | None = None,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        if experts < 1 or weight.rows % experts:
            raise must_be("experts", experts, f"a divisor of the weight's {weight.rows} rows")
        if weight.global_scale is not None:
            raise Unsupported("weight", weight.format, "is not supported: experts would need a factor each")
        self.experts, self.out_features, self.in_features = experts, weight.rows // experts, weight.cols
        self.dtype = dtype
        if bias is not None and (tuple(bias.shape) != (experts, self.out_features) or bias.dtype != dtype):
            what = f"shape {tuple(bias.shape)}, dtype {bias.dtype}"
            raise InvalidArgument("bias", what, f"must have shape {(experts, self.out_features)} and dtype {dtype}")
        self.register_buffer("bias", None if bias is None else bias.detach().contiguous(), persistent=False)
        on_cpu = _cpu.has(weight.data)
        self._device = _cpu.device() if on_cpu else _cuda.device(_cuda.index_of(weight.data))
        problem, x_from = expert_problem(
            activation, weight.format, dtype, self.out_features, weight.cols, experts, bias is not None
        )
        _cuda.check_fast(layer_problems(problem, self._device.arch, x_from=x_from).main, self._device)
        self._layer = Layer(_cuda.engine(), problem, self._device, x_from=x_from)
        self._streams = [_cuda.aligned(stream) for stream in weight.stored()]
        named = by_name([name for name in ("data", "scales") if name in _names(weight)], self._streams)
        self._layer.load(tuple(named), None if on_cpu else torch.cuda.current_stream(weight.device))
        if self._layer.packed:  # it has a copy
            self._streams = []
        self._handle = id(self)
        _made[self._handle] = self

    def forward(self, x: Tensor, offsets: Tensor) -> Tensor:
        """x [rows, k]: the experts' rows one after the other. offsets: experts + 1 of int32 on x's device: the first
        row of each, and the end of the last. Returns [rows, n]."""
        return torch.ops.tilewright.experts(x, offsets, self.bias, self._handle)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"{self.experts} experts, in_features={self.in_features}, out_features={self.out_features}"


def _names(weight: QuantizedWeight) -> list[str]:
    return ["data"] if weight.scales is None else ["data", "scales"]


def expert_problem(
    activation: str | None, weight: str, dtype: torch.dtype, n: int, k: int, experts: int, bias: bool
) -> tuple[Problem, str | None]:
    """A stack's grouped gemm, and the float format of its x, if that is quantized."""
    y = FORMATS[dtype]
    more = {"bias": y} if bias else {}
    problem = Problem.gemm(x=activation or y, w=weight, y=y, m=1, n=n, k=k, groups=experts, weights="constant", **more)
    return problem, None if activation is None else y


_made: Any = weakref.WeakValueDictionary()  # by handle: operators take no modules


def _experts(x: Tensor, offsets: Tensor, bias: Tensor | None, handle: int) -> Tensor:
    made: QuantizedExperts = _made[handle]
    if x.dim() != 2 or x.shape[1] != made.in_features or x.dtype != made.dtype:
        what = f"shape {tuple(x.shape)}, dtype {x.dtype}"
        raise InvalidArgument("x", what, f"must have shape [rows, {made.in_features}] and dtype {made.dtype}")
    if offsets.dtype != torch.int32 or tuple(offsets.shape) != (made.experts + 1,) or offsets.device != x.device:
        what = f"shape {tuple(offsets.shape)}, dtype {offsets.dtype}, on {offsets.device}"
        raise InvalidArgument("offsets", what, f"must have {made.experts + 1} numbers of int32 on {x.device}")
    rows = x.shape[0]
    y = x.new_empty((rows, made.out_features))
    if rows == 0:
        return y
    x, offsets = _cuda.aligned(x), offsets.contiguous()
    args = _c.GemmArgs(alpha=1.0, beta=1.0, m=rows, y=y.data_ptr(), group_rows=offsets.data_ptr())
    args.x.data = x.data_ptr()
    if bias is not None:
        args.bias = bias.data_ptr()
    if _cpu.has(x):
        _cuda.launch_layer("tw_layer_launch_gemm", made._layer, 0, args)
    else:
        index = _cuda.index_of(x)
        scratch = _cuda._scratch(made._layer, rows, index)
        _cuda.launch_layer("tw_layer_launch_gemm", made._layer, _cuda._stream(index), args, scratch)
    return y


def _experts_fake(x: Tensor, offsets: Tensor, bias: Tensor | None, handle: int) -> Tensor:
    return x.new_empty((x.shape[0], _made[handle].out_features))


ops._define("experts(Tensor x, Tensor offsets, Tensor? bias, int handle) -> Tensor", _experts, _experts, _experts_fake)
