# SPDX-License-Identifier: Apache-2.0
"""linear on this machine's CPU, where the library has kernels for it: x quantized to q8_1 within the launch, weights in
panels. Only schemes whose x is q8_1 come here, since a kernel may not quantize what the scheme leaves as it is.

Weights are packed when they are first used and kept as long as the tensor that holds them. A tensor that was written
since, as by load_state_dict(), is packed again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from .. import _c
from .._errors import InvalidArgument, Unsupported
from ..device import Device
from ..engine import Kernel
from ..problem import Problem
from . import _cuda
from ._spec import DTYPES, FORMATS, Spec, by_name, spec

_log = logging.getLogger("tilewright.torch")
_lock = threading.RLock()
_device: Device | None = None
_plans: dict[tuple[str, torch.dtype], Plan | None] = {}
_panels: Any = WeakTensorKeyDictionary()  # of a weight's data: (its version, its panels)
enabled = True


class Plan(NamedTuple):
    """How linear runs for one problem and dtype of x: kernel computes y in f32 where an activation follows."""

    spec: Spec
    packed: Problem
    kernel: Kernel
    y: torch.dtype
    bias: torch.dtype | None


def device() -> Device:
    """With as many threads as PyTorch's own operators when it is first needed."""
    global _device
    with _lock:
        if _device is None:
            _device = Device.cpu(torch.get_num_threads())
        return _device


def enable(on: bool) -> None:
    """Whether kernels compute on CPUs, or PyTorch on decoded operands alone."""
    global enabled
    enabled = on


def forget() -> None:
    """Prepares everything anew when it is next needed."""
    with _lock:
        _plans.clear()


_cuda.also_forgotten.append(forget)


def plan(problem: str, dtype: torch.dtype) -> Plan | None:
    """None: there are no kernels for it. Prepares them when it is first asked, which may compile for a second."""
    key = (problem, dtype)
    if not enabled:
        return None
    try:
        return _plans[key]
    except KeyError:
        pass
    with _lock:
        if key not in _plans:
            _plans[key] = _make(problem, dtype)
        return _plans[key]


def wanted(problem: str, dtype: torch.dtype) -> Problem | None:
    """The gemm of one row that is launched for x of a dtype; None where there are no kernels for it."""
    s = spec(problem)
    if s.x.name != "q8_1":
        return None
    words = [w for w in s.text.split(" ") if not w.startswith(("act=", "y=", "bias="))]
    y = "f32" if s.act else FORMATS[s.dtype]
    bias = "" if s.bias is None else f" bias={y}"
    engine = _cuda.engine()
    try:
        problem_of = Problem(f"{' '.join(words)} y={y}{bias} x_from={FORMATS[dtype]} m=1")
        packed = engine.packed(problem_of, device())
        if packed.fields.get("pack") != "panels" or "reference" in engine.plan(packed, device())[0].candidate:
            return None
    except (InvalidArgument, Unsupported):
        return None
    return packed


def _make(problem: str, dtype: torch.dtype) -> Plan | None:
    s, packed = spec(problem), wanted(problem, dtype)
    if packed is None:
        _log.info("%s on %s: no kernels for x of %s, so PyTorch computes it", problem, device().arch, dtype)
        return None
    y = DTYPES[packed.fields["y"]]
    return Plan(s, packed, _cuda.engine().prepare(packed, device()), y, None if s.bias is None else y)


def linear(p: Plan, x: Tensor, weight: Sequence[Tensor], bias: Tensor | None) -> Tensor:
    """x [rows, k]; arguments that were checked. What comes before the activation, if the problem has one."""
    y = torch.empty((x.shape[0], p.spec.n), dtype=p.y)
    x, panels = _aligned(x), _panels_of(p, weight)
    args = _c.GemmArgs(alpha=1.0, beta=1.0, m=x.shape[0], y=y.data_ptr())
    args.x.data, args.w.data = x.data_ptr(), panels.pointer
    if "global" in p.spec.streams:  # is no part of panels
        scale = weight[list(p.spec.streams).index("global")].detach().contiguous()
        args.w.global_scale = scale.data_ptr()
    if bias is not None:
        bias = _aligned(bias.to(p.bias))
        args.bias = bias.data_ptr()
    _cuda._launch("tw_launch_gemm_args", p.kernel, 0, args)
    return y


class _Given(NamedTuple):
    """Panels that the caller has."""

    tensor: Tensor

    @property
    def pointer(self) -> int:
        return self.tensor.data_ptr()


def _panels_of(p: Plan, weight: Sequence[Tensor]) -> Any:
    data = weight[0]
    if p.spec.packed:
        return _Given(_aligned(data))
    version = None if data.is_inference() else data._version
    with _lock:
        found = _panels.get(data)
        if found is None or found[0] != (version, data.data_ptr(), p.spec.w.name, p.spec.n):
            streams = [_aligned(stream.detach()) for stream in weight]
            packed = _cuda.engine().pack(p.packed, by_name(p.spec.streams, streams), device=device())
            found = ((version, data.data_ptr(), p.spec.w.name, p.spec.n), packed.data)
            _panels[data] = found
        return found[1]


def _aligned(x: Tensor) -> Tensor:
    """Dense and on 16 bytes, as kernels read. A copy only where x is not."""
    x = x.contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()
