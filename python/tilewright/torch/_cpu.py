# SPDX-License-Identifier: Apache-2.0
"""linear on this machine's CPU. The library's kernels read weights in panels, and quantize x within the launch or take
it as it is; PyTorch computes the rest, on weights decoded once.

Panels and decoded weights are made on first use and kept as long as the weight's tensor. If the tensor has been
written, as by load_state_dict(), they are remade."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from .. import _c
from .._errors import InvalidArgument, Unsupported, must_be
from ..device import Device
from ..layer import Layer, layer_problems
from ..problem import Problem
from . import _cuda, _stable
from ._spec import DTYPES, FORMATS, Spec, by_name, spec

# The limit of decoded weights by default.
DECODED_BYTES = 2 << 30

_lock = threading.RLock()
_device: Device | None = None
_plans: dict[tuple[str, torch.dtype], Plan | None] = {}
_panels: Any = WeakTensorKeyDictionary()  # by a weight's data: (the state it had, its panels)
_decoded: Any = WeakTensorKeyDictionary()  # the same with its floats
_decoded_limit = DECODED_BYTES
_warned: set[tuple[str, ...]] = set()
enabled = True


class Plan(NamedTuple):
    """How linear runs for one problem and dtype of x: the layer computes y in f32 where an activation follows."""

    spec: Spec
    layer: Layer
    y: torch.dtype
    bias: torch.dtype | None


def device() -> Device:
    """The CPU. Kernels run on the threads of PyTorch's operators; without libtilewright_torch, on as many threads of the
    device's own as PyTorch had at first use."""
    global _device
    with _lock:
        if _device is None:
            _device = Device._open_cpu(torch.get_num_threads(), None, _stable.parallel_for())
        return _device


def has(tensor: Tensor) -> bool:
    """Whether it is the CPU's. A test on the driver double replaces it."""
    return tensor.device.type == "cpu"


def enable(on: bool) -> None:
    """Sets whether kernels compute on CPUs, or PyTorch alone."""
    global enabled
    enabled = on
    forget()


def forget() -> None:
    """Prepares everything anew when it is next needed. Old layers are kept: another thread may be using one."""
    with _lock:
        _stable.forget(cpu=True)
        _cuda.retired.extend(plan.layer for plan in _plans.values() if plan is not None)
        _plans.clear()
        _warned.clear()


_cuda.also_forgotten.append(forget)


def plan(problem: str, dtype: torch.dtype) -> Plan | None:
    """None: there are no kernels for it. The first call prepares them, which may compile for a second."""
    key = (problem, dtype)
    if not enabled:
        return None
    try:
        return _plans[key]
    except KeyError:
        pass
    with _lock:
        if key not in _plans:
            _plans[key] = made = _make(problem, dtype)
            if made is not None:
                _stable.add_cpu(problem, dtype, made)
        return _plans[key]


def wanted(problem: str, dtype: torch.dtype, target: Device | str | None = None) -> Problem:
    """The one-row gemm that a CPU (None: this one) launches for x of a dtype. Raises Unsupported if the CPU has no
    kernel for it."""
    s = spec(problem)
    if s.x.name in DTYPES and s.w.name in DTYPES:
        raise Unsupported("w", s.w.name, "must be quantized: PyTorch multiplies floats by floats")
    if s.one_row.fields.get("pack") == "tiles":
        raise Unsupported("pack", "tiles", "must be panels or none: tiles are for GPUs")
    words = [w for w in s.text.split(" ") if not w.startswith(("act=", "y=", "bias=", "pack="))]
    y = "f32" if s.act else FORMATS[s.dtype]
    bias = "" if s.bias is None else f" bias={y}"
    x_from = "" if s.x.name == FORMATS[dtype] else f" x_from={FORMATS[dtype]}"
    one_row = f"{' '.join(words)} y={y}{bias}{x_from} m=1"
    target = device() if target is None else target
    arch = getattr(target, "arch", target)
    try:
        packed = layer_problems(one_row, arch).main
        if "pack" not in packed.fields:
            packed = Problem(f"{one_row} pack=panels")
    except InvalidArgument as error:  # no panels of the shape
        raise Unsupported(error.field, error.value, error.allowed) from None
    _cuda.check_fast(packed, target)
    return packed


def _make(problem: str, dtype: torch.dtype) -> Plan | None:
    s = spec(problem)
    try:
        packed = wanted(problem, dtype)
    except Unsupported as error:
        if s.w.name not in DTYPES:
            _warn_once(
                ("kernel", s.x.name, s.w.name, error.field),
                f"no kernel of {device().arch} multiplies x={s.x.name} by w={s.w.name} [{s.n}, {s.k}]: {error}. PyTorch "
                f"computes such layers on weights decoded to float32, of which {_decoded_limit >> 20} MiB are kept "
                "(tilewright.torch.set_decoded_limit)",
            )
        return None
    y = DTYPES[packed.fields["y"]]
    return Plan(s, Layer(_cuda.engine(), packed, device(), pack=False), y, None if s.bias is None else y)


def _warn_once(what: tuple[str, ...], message: str) -> None:
    if what not in _warned:
        _warned.add(what)
        warnings.warn(message, stacklevel=2)


def linear(p: Plan, x: Tensor, weight: Sequence[Tensor], bias: Tensor | None) -> Tensor:
    """x [rows, k]; arguments are checked. Returns the value before the problem's activation, if any."""
    y = torch.empty((x.shape[0], p.spec.n), dtype=p.y)
    x, panels = _cuda.aligned(x), _panels_of(p, weight)
    args = _c.GemmArgs(alpha=1.0, beta=1.0, m=x.shape[0], y=y.data_ptr())
    args.x.data, args.w.data = x.data_ptr(), panels.data_ptr()
    if "global" in p.spec.streams:  # not part of panels
        scale = weight[list(p.spec.streams).index("global")].detach().contiguous()
        args.w.global_scale = scale.data_ptr()
    if bias is not None:
        bias = _cuda.aligned(bias.to(p.bias))
        args.bias = bias.data_ptr()
    _cuda.launch_layer("tw_layer_launch_gemm", p.layer, 0, args)
    return y


def _panels_of(p: Plan, weight: Sequence[Tensor]) -> Tensor:
    data = weight[0]
    if p.spec.packed:
        return _cuda.aligned(data)

    def pack() -> Tensor:
        streams = [_cuda.aligned(stream.detach()) for stream in weight]
        addresses = (0 if stream is None else stream.data_ptr() for stream in by_name(p.spec.streams, streams))
        panels = torch.empty(p.layer.weight_bytes("data"), dtype=torch.uint8)  # PyTorch aligns it to 64 bytes
        p.layer.pack(tuple(addresses), (panels.data_ptr(), 0, 0))
        return panels

    state = _state(p.spec, data)
    found = _panels.get(data)
    return found[1] if found is not None and found[0] == state else _remade(_panels, data, state, pack)


def _state(s: Spec, data: Tensor) -> tuple[Any, ...]:
    """What panels and decoded weights depend on."""
    return (None if data.is_inference() else data._version, data.data_ptr(), s.w.name, s.n, s.packed)


def _remade(kept: Any, data: Tensor, state: tuple[Any, ...], make: Callable[[], Any]) -> Any:
    with _lock:
        found = kept.get(data)
        if found is None or found[0] != state:
            found = kept[data] = (state, make())
        return found[1]


def set_decoded_limit(bytes: int) -> None:
    """Limits the memory for weights kept decoded to float32 on the CPU, of layers without kernels: 2 GiB by default.
    The first ones that fit are kept, as long as their layers; others are decoded at every call. 0 keeps none."""
    global _decoded_limit
    if bytes < 0:
        raise must_be("bytes", bytes, "0 or more")
    with _lock:
        _decoded_limit = bytes
        _decoded.clear()
        _warned.discard(("memory",))


def decoded(s: Spec, data: Tensor, decode: Callable[[], Tensor]) -> Tensor:
    """A weight in float32, decoded once if there is room for it. data: its first stream."""
    state = _state(s, data)
    found = _decoded.get(data)
    if found is not None and found[0] == state:
        return found[1]  # type: ignore[no-any-return]
    size = 4 * s.n * s.k
    with _lock:
        _decoded.pop(data, None)
        if sum(values.nbytes for _, values in _decoded.values()) + size <= _decoded_limit:
            return _remade(_decoded, data, state, decode)  # type: ignore[no-any-return]
        _warn_once(
            ("memory",),
            f"the weight w={s.w.name} [{s.n}, {s.k}] is decoded at every call, since {size >> 20} MiB more of decoded "
            f"weights are beyond {_decoded_limit >> 20} MiB; tilewright.torch.set_decoded_limit() allows more",
        )
    return decode()
