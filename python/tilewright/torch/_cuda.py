# SPDX-License-Identifier: Apache-2.0
"""The operators on a GPU. Kernels are prepared once for a problem and a GPU, for every number of rows, and kept; a
launch is one C call between PyTorch's allocations. Everything happens on the current stream of x's device.

CUDA graph capture prepares nothing: what a graph needs must have run, or been warmed, before."""

from __future__ import annotations

import ctypes
import functools
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _c, _operands, codec
from .._errors import Unsupported, WouldTune
from ..device import Device
from ..engine import Engine, Kernel
from ..layer import Layer, layer_problems
from ..loss_scale import unscale_pieces
from ..problem import Problem
from . import _stable
from ._spec import DTYPES, FORMATS, ConvSpec, Spec, by_name, channels_last, conv_spec, spec

_lock = threading.RLock()
_engine: Engine | None = None
_devices: dict[int, Device] = {}
_plans: dict[tuple[str, int, torch.dtype], _Plan] = {}
_conv_plans: dict[tuple[str, int, torch.dtype, tuple[int, ...], bool], _ConvPlan] = {}
_kernels: dict[tuple[str, int], Kernel] = {}
retired: list[Kernel | Layer] = []
also_forgotten: list[Callable[[], None]] = []


def engine() -> Engine:
    """The engine of all operators: set_engine()'s, or one made on first use."""
    global _engine
    with _lock:
        if _engine is None:
            _engine = Engine()
        return _engine


def set_engine(engine: Engine | None) -> None:
    """Makes the operators use this engine; None: a new one when it is next needed."""
    global _engine
    with _lock:
        forget_plans()
        _engine = engine


def forget_plans() -> None:
    """Prepares everything anew when it is next needed. CUDA graphs may launch the old kernels, so they are kept."""
    with _lock:
        retired.extend(_kernels.values())
        retired.extend(plan.layer for plan in (*_plans.values(), *_conv_plans.values()))
        _plans.clear()
        _conv_plans.clear()
        _kernels.clear()
        _stable.forget()
        for forget in also_forgotten:
            forget()


def device(index: int) -> Device:
    with _lock:
        if index not in _devices:
            _devices[index] = Device(index)
        return _devices[index]


# ---- what a test on the driver double replaces


def index_of(x: Tensor) -> int:
    return x.device.index


def _stream(index: int) -> int:
    return torch._C._cuda_getCurrentRawStream(index)


def _capturing(index: int) -> bool:
    with torch.cuda.device(index):
        return torch.cuda.is_current_stream_capturing()


def _empty(shape: Sequence[int], dtype: torch.dtype, index: int) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=_device_of(index))


@functools.lru_cache(None)
def _device_of(index: int) -> torch.device:
    return torch.device("cuda", index)


# ---- preparing


class _Plan(NamedTuple):
    """How linear runs for one problem, GPU and dtype of x."""

    spec: Spec
    layer: Layer


def plan(problem: str, index: int, dtype: torch.dtype) -> _Plan:
    """Prepares everything that linear may launch. Takes seconds where no cache has the kernels."""
    with _lock:
        key = (problem, index, dtype)
        if key not in _plans:
            _plans[key] = _make_plan(problem, index, dtype)
            _stable.add(problem, index, dtype, _plans[key])
        return _plans[key]


def wanted(problem: str, dtype: torch.dtype) -> tuple[Problem, str | None]:
    """A layer's one-row gemm, and the float format of the x it gets."""
    s = spec(problem)
    return _wanted(s, str(s.one_row), dtype)


def _wanted(s: Spec | ConvSpec, text: str, dtype: torch.dtype) -> tuple[Problem, str | None]:
    if s.x.name in DTYPES:
        return Problem(text), None
    if "global" in s.x.streams:  # a cast's factor multiplies x, so both are passed as multipliers
        text = text.replace(" global=div", " global=mul")
    return Problem(text), FORMATS[dtype]


def _make_plan(problem: str, index: int, dtype: torch.dtype) -> _Plan:
    s, gpu = spec(problem), device(index)
    one_row, x_from = wanted(problem, dtype)
    if not s.packed and layer_problems(one_row, gpu.arch, x_from=x_from).main.fields.get("pack") == "tiles":
        warnings.warn(
            f"weights are passed as stored to {problem!r}, whose kernels on {gpu.arch} are faster on tiles; modules "
            "pack theirs in eager mode, and tilewright.torch.warm() does it before torch.compile",
            stacklevel=2,
        )
    return _Plan(s, layer(one_row, index, x_from))


def layer(problem: Problem, index: int, x_from: str | None) -> Layer:
    """A layer of the engine, on w as the problem has it."""
    refuse_capture(index, str(problem))
    return Layer(engine(), problem, device(index), x_from=x_from, pack=False)


def kernel(problem: Problem, index: int) -> Kernel:
    """The engine's kernel, kept for good: CUDA graphs may hold its launches."""
    key = (str(problem), index)
    with _lock:
        if key not in _kernels:
            refuse_capture(index, str(problem))
            _kernels[key] = engine().prepare(problem, device(index))
        return _kernels[key]


def run(problem: Problem, rows: int, y: Tensor, **operands: Tensor) -> Tensor:
    """Computes y by a problem's kernel on PyTorch's current stream."""
    index = index_of(y)
    given = {name: aligned(operand) for name, operand in operands.items()}
    kernel(problem, index).launch(torch.cuda.current_stream(index), rows=rows, y=y, **given)
    return y


def check_fast(problem: Problem, target: Device | str) -> None:
    """Raises Unsupported where a GPU or a CPU has only the reference."""
    if "reference" in engine().plan(problem, target)[0].candidate:
        arch = getattr(target, "arch", target)
        raise Unsupported("problem", str(problem), f"must be one that {arch} has fast kernels for")


def refuse_capture(index: int, problem: str) -> None:
    """Raises WouldTune during capture."""
    if _capturing(index):
        allowed = "must be prepared before the capture; call tilewright.torch.warm(model) first, or run once"
        raise WouldTune("problem", problem, allowed)


# ---- linear


def linear(x: Tensor, weight: Sequence[Tensor], bias: Tensor | None, problem: str) -> Tensor:
    index = index_of(x)
    p = _plans.get((problem, index, x.dtype))
    s = spec(problem) if p is None else p.spec
    s.check(x, weight, bias)
    y = _empty((*x.shape[:-1], s.n), s.dtype, index)
    rows = x.numel() // s.k
    if rows == 0:
        return y
    if p is None:
        p = plan(problem, index, x.dtype)
    args = _GEMM.from_buffer_copy(_BLANK_GEMM)
    args.m = rows
    keep = _fill(args, x, y, weight, bias, s)
    launch_layer("tw_layer_launch_gemm", p.layer, _stream(index), args, _scratch(p.layer, rows, index))
    del keep
    return y


def _flat(kind: Any) -> tuple[Any, bytes]:
    """A C argument struct with its operands flattened (w.data as w_data), since ctypes makes an object for a nested
    member; and its bytes with both factors 1."""
    fields: list[tuple[str, Any]] = []
    for name, of in kind._fields_:
        members = [(f"{name}_{stream}", ctypes.c_void_p) for stream in codec.STREAMS]
        fields += members if of is _c.Operand else [(name, of)]
    made = type(kind.__name__, (ctypes.Structure,), {"_fields_": fields})
    return made, bytes(kind(alpha=1.0, beta=1.0))


_GEMM, _BLANK_GEMM = _flat(_c.GemmArgs)
_CONV, _BLANK_CONV = _flat(_c.ConvArgs)


def _fill(
    args: Any, x: Tensor, y: Tensor, weight: Sequence[Tensor], bias: Tensor | None, s: Spec | ConvSpec
) -> list[Tensor]:
    """Sets everything but the rows. x is dense in memory order. Returns what the launch reads: it must outlive the call
    that enqueues it."""
    for field, tensor in zip(s.w_fields, weight):
        setattr(args, field, tensor.data_ptr())
    args.y = y.data_ptr()
    dtype = DTYPES.get(s.x.name)
    keep = [aligned(x if dtype is None or dtype is x.dtype else x.to(dtype))]
    args.x_data = keep[0].data_ptr()
    if "global" in s.x.streams:
        keep.append(_factor(x, s.x))
        args.x_global = keep[-1].data_ptr()
        if s.divides:
            keep.append(1 / weight[-1])
            args.w_global = keep[-1].data_ptr()
    if bias is not None:
        keep.append(aligned(bias))
        args.bias = keep[-1].data_ptr()
    return keep


_functions: dict[str, Any] = {}


def launch_layer(function: str, use: Layer, stream: int, args: Any, scratch: Tensor | None = None) -> None:
    call = _functions.get(function)
    if call is None:
        call = _functions[function] = _c.raw_launch(function)
    if call(use, stream, ctypes.byref(args), None if scratch is None else scratch.data_ptr()):
        _c.raise_last()


def _scratch(use: Layer, rows: int, index: int) -> Tensor | None:
    """Memory for x in its format."""
    if use.problems.cast is None:
        return None
    size = use.scratch_bytes(rows)
    return _empty((size,), torch.uint8, index) if size else None


_raised = threading.local()


def caught(function: Any, *arguments: Any) -> list[Tensor]:
    """Calls a function for libtilewright_torch. Returns y, or nothing and the message: no exception can cross PyTorch's
    stable ABI."""
    try:
        return [function(*arguments)]
    except BaseException as error:
        _raised.error = error
        message = str(error) or type(error).__name__
        return [torch.empty(0), torch.frombuffer(bytearray(message, "utf-8"), dtype=torch.uint8)]


def cause(error: RuntimeError) -> BaseException:
    """The exception that caught() kept, if `error` reports it."""
    raised: BaseException | None = _raised.__dict__.pop("error", None)
    return raised if raised is not None and str(raised) in str(error) else error


def aligned(x: Tensor) -> Tensor:
    """x dense and aligned to 16 bytes, as kernels need; copied only if it is not."""
    x = x.contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()


def _cast(
    use: Kernel | None, stream: int, x: Sequence[Tensor], x_names: Any, y: Sequence[Tensor], y_names: Any, rows: int
) -> None:
    _launch(use, stream, rows, {**_streams("x", x_names, x), **_streams("y", y_names, y)})


def _streams(operand: str, names: Any, tensors: Sequence[Tensor]) -> dict[str, int]:
    """Addresses by stream: {"x.data": 4096}."""
    return {f"{operand}.{name}": tensor.data_ptr() for name, tensor in zip(names, tensors)}


def _launch(use: Kernel | None, stream: int, rows: int, addresses: dict[str, int], **values: float) -> None:
    """Addresses by buffer, values by name; skips Kernel.launch()'s checks, which take longer than some kernels."""
    assert use is not None and isinstance(use.subject, Problem)
    takes = use.subject.slots(True)
    pointers = (ctypes.c_void_p * len(takes.all))(*(addresses.get(slot.name) for slot in takes.all))
    numbers = _operands.numbers(takes, values) if values else ()
    _c.lib.tw_launch_buffers(use, stream, pointers, len(pointers), rows, numbers or None, len(numbers))


def _factor(x: Tensor, format: codec.Format) -> Tensor:
    """The factor of the tensor that codec.encode() chooses, without waiting for the GPU."""
    largest = x.abs().float().nan_to_num(nan=0.0, posinf=float("inf")).amax().reshape(1)
    return torch.where(largest > 0, largest / _most(format.name), 1.0)


@functools.lru_cache(None)
def _most(format: str) -> int:
    """To what the factor scales the largest magnitude: 448 in E4M3."""
    f = codec.find(format)
    return round(1 / float(codec.encode(torch.ones(1, f.block), f).global_scale[0]))


def linear_grad(dy: Tensor, weight: Sequence[Tensor], problem: str, dtype: torch.dtype) -> Tensor:
    s = spec(problem)
    if dy.numel() == 0:
        return dy.new_zeros((*dy.shape[:-1], s.k), dtype=dtype)
    streams = weight
    if s.packed:
        streams = unpack(s, by_name(s.streams, weight), stored_sizes(s))
    if s.divides:
        streams = [*streams[:-1], 1 / streams[-1]]
    w = cast_to(streams, s.w, s.n, s.k, s.dtype)
    with torch.autocast("cuda", enabled=False):
        return (s.alpha * (dy.to(s.dtype) @ w)).to(dtype)


def stored_sizes(s: Spec) -> dict[str, int]:
    return {name: s.w.stream_bytes(name, s.n, s.k) for name in codec.STREAMS if name in s.w.streams}


# ---- conv


class _ConvPlan(NamedTuple):
    """How conv runs for one problem, GPU, dtype and shape of x."""

    spec: ConvSpec
    layer: Layer


def conv_plan(problem: str, index: int, dtype: torch.dtype, shape: Sequence[int], last: bool) -> _ConvPlan:
    """Prepares everything that conv launches for x of a shape [images, channels, axes]. last: channels innermost."""
    with _lock:
        key = (problem, index, dtype, tuple(shape), last)
        if key not in _conv_plans:
            one, x_from = wanted_of_conv(problem, dtype, shape, last)
            made = layer(one, index, x_from)
            _conv_plans[key] = _ConvPlan(conv_spec(problem), made)
            _stable.add_conv(problem, index, dtype, shape, last, _conv_plans[key])
        return _conv_plans[key]


def wanted_of_conv(problem: str, dtype: torch.dtype, shape: Sequence[int], last: bool) -> tuple[Problem, str | None]:
    """A layer's conv, and the float format of the x it gets."""
    s = conv_spec(problem)
    return _wanted(s, s.problem(shape[0], shape[2:], last), dtype)


def conv(x: Tensor, weight: Sequence[Tensor], bias: Tensor | None, amax: Tensor | None, problem: str) -> Tensor:
    index = index_of(x)
    s = conv_spec(problem)
    s.check(x, weight, bias, amax)
    last, shape = channels_last(x), tuple(x.shape)
    extents = s.out(shape[2:])
    if last:
        y = _empty((shape[0], *extents, s.k), s.dtype, index).movedim(-1, 1)
    else:
        y = _empty((shape[0], s.k, *extents), s.dtype, index)
    if shape[0] == 0:
        return y
    p = _conv_plans.get((problem, index, x.dtype, shape, last))
    if p is None:
        p = conv_plan(problem, index, x.dtype, shape, last)
    args = _CONV.from_buffer_copy(_BLANK_CONV)
    keep = _fill(args, x.movedim(1, -1) if last else x, y, weight, bias, s)
    if amax is not None:
        args.amax = amax.data_ptr()
    scratch = _scratch(p.layer, x.numel() // s.c, index)
    launch_layer("tw_layer_launch_conv", p.layer, _stream(index), args, scratch)
    del keep
    return y


def conv_grad(dy: Tensor, weight: Sequence[Tensor], problem: str, extents: Sequence[int], dtype: torch.dtype) -> Tensor:
    s = conv_spec(problem)
    streams = [*weight[:-1], 1 / weight[-1]] if s.divides else weight
    w = cast_to(streams, s.w, s.k, s.cols, s.dtype)
    with torch.autocast("cuda", enabled=False):
        return conv_input_grad(s, dy.to(s.dtype), s.filters(w), extents).to(dtype)


def conv_input_grad(s: ConvSpec, dy: Tensor, w: Tensor, extents: Sequence[int]) -> Tensor:
    """x's gradient by PyTorch, on any device: of the padded input, then of x. Dense, channels first."""
    padded = [extent + a + b for extent, a, b in zip(extents, s.before, s.behind)]
    x = dy.new_empty((dy.shape[0], s.c, *extents))
    if dy.shape[0] == 0:
        return x
    none, given = [0] * s.rank, dy.new_empty((1,)).expand(dy.shape[0], s.c, *padded)
    mask = [True, False, False]
    shape = (s.stride, none, s.dilation, False, none, s.groups)
    dx: Tensor = torch.ops.aten.convolution_backward(dy, given, w, None, *shape, mask)[0]
    if s.pad_mode == "zero":
        for axis, (a, extent) in enumerate(zip(s.before, extents)):
            dx = dx.narrow(2 + axis, a, extent)
    else:
        kind = {"reflect": "reflection", "replicate": "replication"}[s.pad_mode]
        dx = getattr(torch.ops.aten, f"{kind}_pad{s.rank}d_backward")(dx, x, s.torch_pads)
    return (s.alpha * dx).contiguous()


# ---- fake quantization


def fake_quant(x: Tensor, scale: Tensor, zero_point: Tensor | None, qmin: int, qmax: int) -> Tensor:
    return _fake_quant(x, None, scale, zero_point, {"qmin": qmin, "qmax": qmax}, 1.0)[0]


def fake_quant_grad(
    dy: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor | None, qmin: int, qmax: int, learned: bool, factor: float
) -> tuple[Tensor, Tensor]:
    grad = "learned" if learned else "straight"
    return _fake_quant(x, dy, scale, zero_point, {"qmin": qmin, "qmax": qmax, "grad": grad}, factor)


def _fake_quant(
    x: Tensor, dy: Tensor | None, scale: Tensor, zero_point: Tensor | None, fields: dict[str, Any], factor: float
) -> tuple[Tensor, Tensor]:
    """x [rows, cols], scale [1] or [rows]."""
    index = index_of(x)
    y, dscale = _empty(tuple(x.shape), x.dtype, index), _empty(tuple(scale.shape), torch.float32, index)
    rows, cols = x.shape
    if x.numel() == 0:
        return y, dscale.zero_()
    by_row = scale.numel() > 1
    if not by_row:
        rows, cols = _flat(x.numel())
    problem = Problem.of("fake_quant", x=FORMATS[x.dtype], rows=1, cols=cols, scope="row" if by_row else None, **fields)
    stream = _stream(index)
    keep = [aligned(x), scale.contiguous()]  # what the launch reads must outlive the call that enqueues it
    given = {"x.data": keep[0].data_ptr(), "scale": keep[1].data_ptr(), "y.data": y.data_ptr()}
    values = {}
    if dy is not None:
        keep.append(aligned(dy.to(x.dtype)))
        given["dy.data"] = keep[-1].data_ptr()
    if zero_point is not None:
        keep.append(zero_point.contiguous())
        given["zero_point"] = keep[-1].data_ptr()
    if fields.get("grad") == "learned":
        given["dscale"], values["factor"] = dscale.data_ptr(), factor
        if not by_row:
            keep.append(_empty((_FAKE_QUANT_WORKSPACE,), torch.uint8, index))
            keep[-1][:8].zero_()
            given["workspace"] = keep[-1].data_ptr()
    _launch(kernel(problem, index), stream, rows, given, **values)
    return y, dscale


_FAKE_QUANT_WORKSPACE = 32776  # FakeQuant::kWorkspace


def _flat(elements: int) -> tuple[int, int]:
    """Rows and columns for a tensor with one scale, such that tensors of many sizes share a kernel."""
    for cols in (4096, 64):
        if elements % cols == 0:
            return elements // cols, cols
    return 1, elements


# ---- loss scaling

# Tables of pieces, by GPU, stream and tensors: gradients mostly keep their addresses from step to step.
_TABLES_KEPT = 64
_tables: dict[tuple[Any, ...], Tensor] = {}


def unscale(tensors: Sequence[Tensor], scale: Tensor, found_inf: Tensor | None) -> Tensor:
    index = index_of(tensors[0])
    stream = _stream(index)
    found = _empty((1,), torch.float32, index)
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for t in tensors:
        if t.numel():
            by_dtype.setdefault(t.dtype, []).append(t)
    if not by_dtype:
        return found.zero_() if found_inf is None else found.copy_(found_inf != 0)
    before = found_inf
    for dtype, group in by_dtype.items():
        # A kernel takes dense memory, with dimensions in any order.
        dense = [t if _fills_its_memory(t) else t.contiguous() for t in group]
        table = _table(FORMATS[dtype], dense, index, stream)
        workspace = _empty((1,), torch.int64, index).zero_()
        given = {"table": table, "scale.data": scale, "found_inf.data": found, "workspace": workspace}
        if before is not None:
            given["found_before"] = before
        addresses = {name: tensor.data_ptr() for name, tensor in given.items()}
        use = kernel(Problem.of("unscale", x=FORMATS[dtype], pieces=1), index)
        _launch(use, stream, table.shape[0], addresses)
        before = found
        for t, copy in zip(group, dense):
            if copy is not t:
                t.copy_(copy)
    return found


def _fills_its_memory(t: Tensor) -> bool:
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(t.stride(), t.shape) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _table(format: str, tensors: Sequence[Tensor], index: int, stream: int) -> Tensor:
    key = (index, stream, format, *((t.data_ptr(), t.numel()) for t in tensors))
    with _lock:
        table = _tables.pop(key, None)
        if table is None:
            refuse_capture(index, f"unscale x={format}")
            pieces = unscale_pieces(format, [(t.data_ptr(), t.numel()) for t in tensors])
            on_host = torch.frombuffer(pieces, dtype=torch.int64).reshape(-1, 2)
            table = _empty(on_host.shape, torch.int64, index).copy_(on_host)
            while len(_tables) >= _TABLES_KEPT:
                del _tables[next(iter(_tables))]
        _tables[key] = table  # least recently used go first
    return table


def update_scale(
    scale: Tensor, good_steps: Tensor, found_inf: Tensor, growth: float, backoff: float, interval: int
) -> None:
    index = index_of(scale)
    fields = {"growth": growth, "backoff": backoff, "interval": interval}
    given = {"scale": scale, "good_steps": good_steps, "found_inf": found_inf}
    addresses = {name: tensor.data_ptr() for name, tensor in given.items()}
    addresses |= {"new_scale": scale.data_ptr(), "new_good_steps": good_steps.data_ptr()}
    _launch(kernel(Problem.of("update_scale", **fields), index), _stream(index), 1, addresses)


# ---- formats and tiles


def cast_from(x: Tensor, format: codec.Format, out: Sequence[Tensor], encoder: str) -> None:
    """Encodes x [..., cols] into a format's streams, including the tensor's factor."""
    index, cols = index_of(x), x.shape[-1]
    use = kernel(Problem.of("cast", x=FORMATS[x.dtype], y=format, rows=1, cols=cols, encoder=encoder or None), index)
    if "global" in format.streams:
        out[-1].copy_(_factor(x, format))
    _cast(use, _stream(index), [aligned(x)], ("data",), out, format.streams, x.numel() // cols)


def cast_to(weight: Sequence[Tensor], format: codec.Format, rows: int, cols: int, dtype: torch.dtype) -> Tensor:
    """The values of an encoded matrix, rounded to dtype."""
    if format.name in DTYPES:
        return weight[0].view(DTYPES[format.name]).reshape(rows, cols).to(dtype, copy=True)
    index = index_of(weight[0])
    out = _empty((rows, cols), dtype, index)
    if rows * cols:
        use = kernel(Problem.of("cast", x=format, y=FORMATS[dtype], rows=1, cols=cols), index)
        _cast(use, _stream(index), [aligned(t) for t in weight], format.streams, [out], ("data",), rows)
    return out


def pack(s: Spec, weight: codec.Streams, tiles: codec.Streams) -> None:
    """Reorders weights; the factor of the tensor is copied."""
    _reorder(s, weight, tiles, inverse=False)
    if tiles.global_scale is not None:
        tiles.global_scale.copy_(weight.global_scale)


def unpack(s: Spec, tiles: codec.Streams, sizes: dict[str, int]) -> list[Tensor]:
    """Weights as stored. sizes: bytes by stream."""
    index = index_of(tiles.data)
    out = [
        tiles.global_scale.clone() if name == "global" else _empty((size,), torch.uint8, index)
        for name, size in sizes.items()
    ]
    _reorder(s, by_name(sizes, out), tiles, inverse=True)
    return out


def _reorder(s: Spec, weight: codec.Streams, tiles: codec.Streams, inverse: bool) -> None:
    index = index_of(weight.data)
    problem = Problem.of("pack", w=s.w, x=s.x, n=s.n, k=s.k, inverse=1 if inverse else None)
    given = {}
    for operand, streams in (("w", weight), ("tiles", tiles)):
        present = [name for name in ("data", "scales") if getattr(streams, name) is not None]
        given |= _streams(operand, present, [getattr(streams, name) for name in present])
    _launch(kernel(problem, index), _stream(index), problem.rows, given)
