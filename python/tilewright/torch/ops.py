# SPDX-License-Identifier: Apache-2.0
"""The operators torch.ops.tilewright.*, and functions around them. Each is registered for the CPU, for CUDA and for
fake tensors; they are opaque to torch.compile, functional, and safe to call from any thread.

    linear(x, weight, bias, problem) -> y          y = act(alpha x w^T + bias): a gemm of any number of rows
    linear_grad(dy, weight, problem, dtype) -> dx  the gradient of linear's x
    conv(x, weight, bias, amax, problem) -> y      y = act(alpha x * w + bias): a convolution of any extents
    conv_grad(dy, weight, problem, extents, dtype) -> dx
    quantize(x, format, encoder) -> streams        floats to a format
    dequantize(weight, format, rows, cols, dtype)  and back
    pack(weight, problem) -> streams               weights as stored to tiles or panels, for a problem with pack=
    unpack(weight, problem) -> streams             and back

`weight` lists the streams that a matrix's format has, in the order data, scales, global: contiguous tensors of uint8,
but global is one float32. `problem` is a gemm's text without m, or a conv's without n and in
(docs/reference/problems.md).

On the CPU the library's kernels compute a linear whose x is quantized, if they take its weights (docs/use/cpu.md). Else
x is encoded in the problem's format of x, and the library's codecs decode every operand exactly; sums are in single
precision. Decoded weights are kept, within set_decoded_limit(). This defines the result; docs/reference/numerics.md
says how far kernels may differ."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.flop_counter import register_flop_formula

from .. import codec
from .._errors import InvalidArgument, Unsupported, must_be
from ..problem import Problem
from . import _cpu, _cuda, _stable
from ._spec import (
    DTYPES,
    FLOATS,
    FORMATS,
    ConvSpec,
    Spec,
    by_name,
    channels_last,
    check_streams,
    conv_spec,
    spec,
    stream_sizes,
)

_library = torch.library.Library("tilewright", "DEF")  # type: ignore[no-untyped-call]


def _define(schema: str, cpu: Any, cuda: Any, fake: Any) -> None:
    """cuda: None where libtilewright_torch has the operator."""
    name = schema.partition("(")[0]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
    if cpu is not None:
        _library.impl(name, cpu, "CPU")  # type: ignore[no-untyped-call]
    if cuda is not None:
        _library.impl(name, cuda, "CUDA")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"tilewright::{name}", fake, lib=_library)


def _define_by_python(name: str, schema: str, function: Any) -> None:
    """What libtilewright_torch calls, on any device."""
    name = f"{name}_by_python"
    _library.define(f"{name}{schema}Tensor[]")  # type: ignore[no-untyped-call]
    caught = functools.partial(_cuda.caught, function)
    _library.impl(name, caught, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]


# ---- linear


def _linear_cpu(x: Tensor, weight: Sequence[Tensor], bias: Tensor | None, problem: str) -> Tensor:
    s = spec(problem)
    s.check(x, weight, bias)
    shape = (*x.shape[:-1], s.n)
    rows = x.numel() // s.k
    if rows == 0:
        return x.new_empty(shape, dtype=s.dtype)
    if torch.is_autocast_enabled("cpu"):  # tested: the context costs as much as a small product
        with torch.autocast("cpu", enabled=False):
            return _linear_cpu(x, weight, bias, problem)
    plan = _cpu.plan(problem, x.dtype)
    if plan is not None:
        z = _cpu.linear(plan, x.reshape(rows, s.k), weight, bias)
    else:
        z = F.linear(_rounded(x.reshape(rows, s.k), s.x), _decoded(s, weight))
        if s.alpha != 1:
            z = s.alpha * z
        if bias is not None:
            z += bias.float()
    return _activated(z, s.act).to(s.dtype).reshape(shape)


def _linear_fake(x: Tensor, weight: Sequence[Tensor], bias: Tensor | None, problem: str) -> Tensor:
    s = spec(problem)
    s.check(x, weight, bias)
    return x.new_empty((*x.shape[:-1], s.n), dtype=s.dtype)


_LINEAR = "(Tensor x, Tensor[] weight, Tensor? bias, str problem) -> "
_linears = (None, None) if _stable.registered else (_linear_cpu, _cuda.linear)
_define(f"linear{_LINEAR}Tensor", *_linears, _linear_fake)
_define_by_python("linear", _LINEAR, lambda *given: _cuda.linear(*given))  # tests replace the function
_define_by_python("cpu_linear", _LINEAR, _linear_cpu)
_LINEAR_OP = torch.ops.tilewright.linear.default  # looked up once
_BY_PYTHON = not _stable.registered


def _linear_grad_cpu(dy: Tensor, weight: Sequence[Tensor], problem: str, dtype: torch.dtype) -> Tensor:
    s = spec(problem)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        return (s.alpha * (dy.float() @ _decoded(s, weight))).to(dtype)


def _linear_grad_fake(dy: Tensor, weight: Sequence[Tensor], problem: str, dtype: torch.dtype) -> Tensor:
    return dy.new_empty((*dy.shape[:-1], spec(problem).k), dtype=dtype)


_define(
    "linear_grad(Tensor dy, Tensor[] weight, str problem, ScalarType dtype) -> Tensor",
    _linear_grad_cpu,
    _cuda.linear_grad,
    _linear_grad_fake,
)


class _Linear(torch.autograd.Function):
    """dx = alpha dy w with w decoded, straight through the quantization of x; dbias the sum of dy; weights are
    constants."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, bias: Tensor | None, problem: str, *weight: Tensor) -> Tensor:
        return _below_autograd(_LINEAR_OP, x, weight, bias, problem)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, bias, ctx.problem, *weight = inputs
        ctx.save_for_backward(*weight)
        ctx.dtype = x.dtype
        ctx.bias = None if bias is None else bias.dtype

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        weight = list(ctx.saved_tensors)
        dx = dbias = None
        if ctx.needs_input_grad[0]:
            dx = torch.ops.tilewright.linear_grad(dy, weight, ctx.problem, ctx.dtype)
        if ctx.needs_input_grad[1]:
            dbias = dy.reshape(-1, dy.shape[-1]).sum(0, dtype=torch.float32).to(ctx.bias)
        return dx, dbias, None, *(None for _ in weight)


def linear(x: Tensor, weight: Sequence[Tensor], bias: Tensor | None, problem: str) -> Tensor:
    """y = act(alpha x w^T + bias), differentiable in x and bias. x: [..., k] of float32, float16 or bfloat16, any
    strides; it is encoded in the problem's format of x, whatever its dtype. bias: [n] of the problem's type. Returns
    [..., n] of the dtype of the problem's y.

    Gradients are once differentiable. If one is needed, PyTorch computes act, on y as it is stored. Raises
    InvalidArgument, which names the argument."""
    if torch.compiler.is_compiling():
        return _linear(x, weight, bias, problem)
    if not _usual(x, weight):
        _check_kinds(x, weight, bias)
    try:
        return _linear(x, weight, bias, problem)
    except RuntimeError as error:
        raise _cuda.cause(error) from None


def _linear(x: Tensor, weight: Sequence[Tensor], bias: Tensor | None, problem: str) -> Tensor:
    if not isinstance(weight, (list, tuple)):  # which the dispatcher takes
        weight = list(weight)
    if not (torch.is_grad_enabled() and (x.requires_grad or (bias is not None and bias.requires_grad))):
        if _BY_PYTHON and not torch.compiler.is_compiling() and _unseen():
            if x.is_cpu:
                return _linear_cpu(x, weight, bias, problem)
            if x.is_cuda:
                return _cuda.linear(x, weight, bias, problem)
        return _below_autograd(_LINEAR_OP, x, weight, bias, problem)
    plain, act = _without_act(problem)
    y: Tensor = _Linear.apply(x, bias, plain, *weight)  # type: ignore[no-untyped-call]
    return _activated(y, act)


# For direct calls of the operator; functions and layers call it below autograd, which costs less.
_library.impl("linear", _linear, "Autograd")  # type: ignore[no-untyped-call]


def _below_autograd(op: Any, *given: Any) -> Tensor:
    if torch.compiler.is_dynamo_compiling():  # Dynamo cannot trace the guard below
        return op(*given)  # type: ignore[no-any-return]
    with torch._C._AutoDispatchBelowAutograd():
        return op(*given)  # type: ignore[no-any-return]


def _unseen() -> bool:
    """Whether no mode, transform or trace would see a call of an operator. The dispatcher is then skipped: its call of
    Python takes longer than a small layer."""
    return (
        torch._C._len_torch_dispatch_stack() == 0
        and torch._C._len_torch_function_stack() == 0
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._get_tracing_state() is None
    )


def _usual(x: Tensor, weight: Sequence[Tensor]) -> bool:
    """A fast test that nearly all calls pass."""
    if type(x) is not Tensor or x.layout is not torch.strided:
        return False
    for w in weight:
        if type(w) is not Tensor or w.requires_grad:
            return False
    return True


def _without_act(problem: str) -> tuple[str, str | None]:
    fields = problem.split(" ")
    acts = [field[4:] for field in fields if field.startswith("act=")]
    return " ".join([field for field in fields if not field.startswith("act=")]), acts[0] if acts else None


def _check_kinds(x: Any, weight: Sequence[Any], bias: Any, amax: Any = None) -> None:
    """Refuses what the dispatcher would route elsewhere, or refuse without naming the argument."""
    named = [("x", x), *((f"weight ({i})", t) for i, t in enumerate(weight)), ("bias", bias), ("amax", amax)]
    for name, value in named:
        if value is None and name in ("bias", "amax"):
            continue
        if not isinstance(value, Tensor):
            raise must_be(name, type(value).__name__, "a tensor")
        kind = type(value)
        own = kind.__torch_dispatch__ is Tensor.__torch_dispatch__ or kind.__module__.startswith("torch._subclasses")
        if not own:
            raise must_be(name, kind.__name__, "a plain tensor, without a dispatch of its own; pass its content")
        if value.layout is not torch.strided:
            raise must_be(name, f"layout {value.layout}", "a strided tensor")
        if value.requires_grad and name.startswith("weight"):
            raise must_be(name, "requires_grad", "a constant: streams have no gradient")


def _activated(z: Tensor, act: str | None) -> Tensor:
    if act is None:
        return z
    if act == "gelu_tanh":
        return F.gelu(z, approximate="tanh")
    functions: dict[str, Any] = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}
    out: Tensor = functions[act](z)
    return out


def _rounded(x: Tensor, format: codec.Format) -> Tensor:
    """x [rows, cols] as its format holds it, in float32."""
    if format.name in DTYPES:
        return x.to(DTYPES[format.name]).float()
    return _floats(codec.decode(codec.encode(x.detach().contiguous(), format)), x.shape)


def _decoded(s: Spec, weight: Sequence[Tensor]) -> Tensor:
    """w [n, k] in float32."""
    if s.w.name in DTYPES and not s.packed:
        return weight[0].view(DTYPES[s.w.name]).reshape(s.n, s.k).float()

    def decode() -> Tensor:
        stored: Sequence[Any] = weight
        if s.packed:
            streams = s.one_row.unpack_weights(by_name(s.streams, weight)).streams
            stored = [stream for stream in streams if stream is not None]
        return _values(stored, s.w, s.n, s.k, s.divides)

    return _cpu.decoded(s, weight[0], decode)


def _values(weight: Sequence[Any], format: codec.Format, rows: int, cols: int, divides: bool) -> Tensor:
    """A matrix as the format stores it, in float32. divides: the tensor's factor divides values."""
    streams = by_name(format.streams, weight)
    factor = streams.global_scale if divides else None
    if factor is not None:
        streams = streams._replace(global_scale=torch.ones(1))
    out = _floats(codec.decode(streams, format, rows, cols), (rows, cols))
    return out if factor is None else out / torch.as_tensor(factor)


def _floats(values: Any, shape: Any) -> Tensor:
    return torch.frombuffer(values, dtype=torch.float32).reshape(shape)


# ---- conv


def _conv_cpu(x: Tensor, weight: Sequence[Tensor], bias: Tensor | None, amax: Tensor | None, problem: str) -> Tensor:
    s = conv_spec(problem)
    s.check(x, weight, bias, amax)
    y = _conv_fake(x, weight, bias, amax, problem)
    if y.numel() == 0:
        return y
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        values = _rounded(x, s.x)
        w = _decoded_filters(s, weight)
        if amax is not None and s.by_pixel:
            values = _fake_quantized_pixels(s, values, amax)
        if s.pad_mode == "zero":
            values = F.pad(values, s.torch_pads)
        else:
            values = F.pad(values, s.torch_pads, mode=s.pad_mode)
        if amax is None or s.by_pixel:
            z = _BY_RANK[s.rank](values, w, None, s.stride, 0, s.dilation, s.groups)
        else:
            z = _conv_of_patches(s, values, w, amax)
        z = s.alpha * z
        if bias is not None:
            z = z + bias.float().reshape(-1, *[1] * s.rank)
        return y.copy_(_activated(z, s.act))


_BY_RANK: dict[int, Any] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def _decoded_filters(s: ConvSpec, weight: Sequence[Tensor]) -> Tensor:
    """w [k, c / groups, kernel] in float32."""
    return s.filters(_values(weight, s.w, s.k, s.cols, s.divides))


def _fake_quantized_pixels(s: ConvSpec, x: Tensor, amax: Tensor) -> Tensor:
    """Blocks of a pixel's channels, from a group's first on."""
    pixels = x.movedim(1, -1)
    rows = _fake_quantized(s, pixels.reshape(-1, s.c // s.groups), amax)
    return rows.reshape(pixels.shape).movedim(-1, 1)


def _conv_of_patches(s: ConvSpec, padded: Tensor, w: Tensor, amax: Tensor) -> Tensor:
    """Blocks of an output pixel's inputs, the im2col matrix's rows, in each group."""
    patches = padded.reshape(padded.shape[0], s.groups, -1, *padded.shape[2:])
    for axis, (span, step) in enumerate(zip(s.spans, s.stride)):
        patches = patches.unfold(3 + axis, span, step)
    for axis, step in enumerate(s.dilation):
        patches = patches[(slice(None),) * (3 + s.rank + axis) + (slice(None, None, step),)]
    patches = patches.movedim(2, 2 + s.rank)  # images, groups, output axes, channels, kernel
    rows = _fake_quantized(s, patches.reshape(-1, s.cols), amax).reshape(*patches.shape[: 2 + s.rank], s.cols)
    z = rows.flatten(2, 1 + s.rank) @ w.reshape(s.groups, s.k // s.groups, s.cols).mT
    return z.mT.flatten(1, 2).reshape(padded.shape[0], s.k, *rows.shape[2:-1])


def _fake_quantized(s: ConvSpec, rows: Tensor, amax: Tensor) -> Tensor:
    """Rows fake quantized by the library, in x's format."""
    count, cols = rows.shape
    name, dtype = s.x.name, DTYPES[s.x.name]
    problem = Problem.of("fp4_fake_quant", x=name, y=name, rows=count, cols=cols, block=s.block)
    y = torch.empty((count, cols), dtype=dtype)
    problem.compute({"x": rows.to(dtype).contiguous(), "y": y, "amax": amax})
    return y.float()


def _conv_fake(x: Tensor, weight: Sequence[Tensor], bias: Tensor | None, amax: Tensor | None, problem: str) -> Tensor:
    s = conv_spec(problem)
    s.check(x, weight, bias, amax)
    images, extents = x.shape[0], s.out(x.shape[2:])
    if channels_last(x):
        return x.new_empty((images, *extents, s.k), dtype=s.dtype).movedim(-1, 1)
    return x.new_empty((images, s.k, *extents), dtype=s.dtype)


_CONV = "(Tensor x, Tensor[] weight, Tensor? bias, Tensor? amax, str problem) -> "
_define(
    f"conv{_CONV}Tensor",
    _conv_cpu,
    None if _stable.registered else _cuda.conv,
    _conv_fake,
)
_define_by_python("conv", _CONV, lambda *given: _cuda.conv(*given))
_CONV_OP = torch.ops.tilewright.conv.default


def _conv_grad_cpu(
    dy: Tensor, weight: Sequence[Tensor], problem: str, extents: Sequence[int], dtype: torch.dtype
) -> Tensor:
    s = conv_spec(problem)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        return _cuda.conv_input_grad(s, dy.float(), _decoded_filters(s, weight), extents).to(dtype)


def _conv_grad_fake(
    dy: Tensor, weight: Sequence[Tensor], problem: str, extents: Sequence[int], dtype: torch.dtype
) -> Tensor:
    return dy.new_empty((dy.shape[0], conv_spec(problem).c, *extents), dtype=dtype)


_define(
    "conv_grad(Tensor dy, Tensor[] weight, str problem, SymInt[] extents, ScalarType dtype) -> Tensor",
    _conv_grad_cpu,
    _cuda.conv_grad,
    _conv_grad_fake,
)


class _Conv(torch.autograd.Function):
    """As _Linear: straight through the quantization of x, fake quantization included."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, bias: Tensor | None, amax: Tensor | None, problem: str, *weight: Tensor) -> Tensor:
        return _below_autograd(_CONV_OP, x, weight, bias, amax, problem)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, bias, _, ctx.problem, *weight = inputs
        ctx.save_for_backward(*weight)
        ctx.extents, ctx.dtype = x.shape[2:], x.dtype
        ctx.bias = None if bias is None else bias.dtype

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        weight = list(ctx.saved_tensors)
        dx = dbias = None
        if ctx.needs_input_grad[0]:
            dx = torch.ops.tilewright.conv_grad(dy, weight, ctx.problem, ctx.extents, ctx.dtype)
        if ctx.needs_input_grad[1]:
            dbias = dy.transpose(0, 1).flatten(1).sum(1, dtype=torch.float32).to(ctx.bias)
        return dx, dbias, None, None, *(None for _ in weight)


def conv(x: Tensor, weight: Sequence[Tensor], bias: Tensor | None, problem: str, amax: Tensor | None = None) -> Tensor:
    """y = act(alpha x * w + bias), differentiable in x and bias. x: [images, c, axes] of float32, float16 or bfloat16;
    it is encoded in the problem's format of x, whatever its dtype. weight: [k, kernel axes, c / groups], a row for each
    output channel. bias: [k] of the problem's type. amax: one float32, if the problem has quant_act. Returns [images,
    k, axes] of the dtype of the problem's y, with channels innermost in memory if x has them there.

    On a GPU x is read in place where it is dense with channels first or innermost, else it is copied; kernels are
    prepared for each shape. Gradients are as of linear(). Raises InvalidArgument, which names the argument."""
    if torch.compiler.is_compiling():
        return _conv(x, weight, bias, amax, problem)
    if not _usual(x, weight):
        _check_kinds(x, weight, bias, amax)
    try:
        return _conv(x, weight, bias, amax, problem)
    except RuntimeError as error:
        raise _cuda.cause(error) from None


def _conv(x: Tensor, weight: Sequence[Tensor], bias: Tensor | None, amax: Tensor | None, problem: str) -> Tensor:
    if not isinstance(weight, (list, tuple)):  # which the dispatcher takes
        weight = list(weight)
    if not (torch.is_grad_enabled() and (x.requires_grad or (bias is not None and bias.requires_grad))):
        return _below_autograd(_CONV_OP, x, weight, bias, amax, problem)
    plain, act = _without_act(problem)
    y: Tensor = _Conv.apply(x, bias, amax, plain, *weight)  # type: ignore[no-untyped-call]
    return _activated(y, act)


_library.impl("conv", _conv, "Autograd")  # type: ignore[no-untyped-call]


# ---- what transforms and counters ask


def _in_front(t: Tensor, dim: int | None, count: int) -> Tensor:
    return t.expand(count, *t.shape) if dim is None else t.movedim(dim, 0)


def _one_batch(dims: Sequence[Any], name: str) -> None:
    if any(dim is not None for dim in dims):
        raise Unsupported(name, "batched by vmap", "must be the same for the whole batch")


def _linear_vmap(info: Any, dims: Any, x: Tensor, weight: Any, bias: Tensor | None, problem: str) -> tuple[Tensor, int]:
    _one_batch((*dims[1], dims[2]), "weight or bias")
    return torch.ops.tilewright.linear(_in_front(x, dims[0], info.batch_size), weight, bias, problem), 0


def _linear_grad_vmap(info: Any, dims: Any, dy: Tensor, weight: Any, problem: str, dtype: Any) -> tuple[Tensor, int]:
    _one_batch(dims[1], "weight")
    dy = _in_front(dy, dims[0], info.batch_size)
    return torch.ops.tilewright.linear_grad(dy, weight, problem, dtype), 0


def _conv_vmap(
    info: Any, dims: Any, x: Tensor, weight: Any, bias: Tensor | None, amax: Tensor | None, problem: str
) -> tuple[Tensor, int]:
    """The batch joins the images."""
    _one_batch((*dims[1], dims[2], dims[3]), "weight, bias or amax")
    x = _in_front(x, dims[0], info.batch_size)
    y = torch.ops.tilewright.conv(x.flatten(0, 1), weight, bias, amax, problem)
    return y.unflatten(0, x.shape[:2]), 0


def _conv_grad_vmap(
    info: Any, dims: Any, dy: Tensor, weight: Any, problem: str, extents: Any, dtype: Any
) -> tuple[Tensor, int]:
    _one_batch(dims[1], "weight")
    dy = _in_front(dy, dims[0], info.batch_size)
    dx = torch.ops.tilewright.conv_grad(dy.flatten(0, 1), weight, problem, extents, dtype)
    return dx.unflatten(0, dy.shape[:2]), 0


for _name, _rule in (
    ("linear", _linear_vmap),
    ("linear_grad", _linear_grad_vmap),
    ("conv", _conv_vmap),
    ("conv_grad", _conv_grad_vmap),
):
    torch.library.register_vmap(f"tilewright::{_name}", _rule, lib=_library)


@register_flop_formula([torch.ops.tilewright.linear, torch.ops.tilewright.linear_grad])
def _linear_flops(x: Any, weight: Any, *rest: Any, out_shape: Any = None, **more: Any) -> int:
    """Multiplications and additions, as PyTorch counts them. x: the shape of x, or of dy for a gradient."""
    return int(2 * math.prod(x) * out_shape[-1])


@register_flop_formula(torch.ops.tilewright.conv)
def _conv_flops(x: Any, weight: Any, bias: Any, amax: Any, problem: str, *, out_shape: Any = None, **more: Any) -> int:
    return int(2 * math.prod(out_shape) * conv_spec(problem).cols)


@register_flop_formula(torch.ops.tilewright.conv_grad)
def _conv_grad_flops(dy: Any, weight: Any, problem: str, *rest: Any, out_shape: Any = None, **more: Any) -> int:
    return int(2 * math.prod(dy) * conv_spec(problem).cols)


# ---- formats


def _quantize_cpu(x: Tensor, format: str, encoder: str) -> list[Tensor]:
    f, rows, cols = _matrix(x, format, encoder)
    if rows == 0:
        return _empty_streams(x, f, rows, cols)
    encoded = codec.encode(x.detach().contiguous(), f, encoder or None)
    return [
        torch.frombuffer(part, dtype=torch.float32 if name == "global" else torch.uint8)
        for name, part in zip(codec.STREAMS, encoded.streams)
        if part is not None
    ]


def _quantize_cuda(x: Tensor, format: str, encoder: str) -> list[Tensor]:
    f, rows, cols = _matrix(x, format, encoder)
    if rows == 0:
        return _empty_streams(x, f, rows, cols)
    if max(stream.rows for stream in f.streams.values()) > 1:  # rows that share a scale: the host alone encodes them
        return [stream.to(x.device) for stream in _quantize_cpu(x.cpu(), format, encoder)]
    out = _empty_streams(x, f, rows, cols)
    _cuda.cast_from(x.detach(), f, out, encoder)
    return out


def _quantize_fake(x: Tensor, format: str, encoder: str) -> list[Tensor]:
    f, rows, cols = _matrix(x, format, encoder)
    return _empty_streams(x, f, rows, cols)


def _matrix(x: Tensor, format: str, encoder: str) -> tuple[codec.Format, int, int]:
    f = codec.find(format)
    if x.dtype not in FORMATS:
        raise must_be("x", f"dtype {x.dtype}", FLOATS)
    if x.dim() == 0:
        raise InvalidArgument("x", "shape ()", "must have at least one dimension")
    if f.block > 1 and x.shape[-1] % f.block:
        raise InvalidArgument(
            "x", f"{x.shape[-1]} columns", f"must have a multiple of {f.block} columns, {f.name}'s block"
        )
    if encoder and encoder not in f.encoders:
        raise must_be("encoder", encoder, f'"", or one of {", ".join(f.encoders)}')
    cols = x.shape[-1]
    return f, x.numel() // cols if cols else 0, cols


def _empty_streams(x: Tensor, f: codec.Format, rows: int, cols: int) -> list[Tensor]:
    out = []
    for name in codec.STREAMS:
        if name not in f.streams:
            continue
        scope, size, share = f.streams[name]
        if name == "global":
            out.append(x.new_empty(1, dtype=torch.float32))
        else:  # by hand: rows may be symbolic
            items = cols // f.block if scope == "block" else 1
            out.append(x.new_empty((rows + share - 1) // share * items * size, dtype=torch.uint8))
    return out


_define("quantize(Tensor x, str format, str encoder) -> Tensor[]", _quantize_cpu, _quantize_cuda, _quantize_fake)


def _check_dequantize(weight: Sequence[Tensor], format: str, rows: int, cols: int, dtype: torch.dtype) -> codec.Format:
    f = codec.find(format)
    if dtype not in FORMATS:
        raise must_be("dtype", f"{dtype}", FLOATS)
    check_streams(weight, stream_sizes(f, rows, cols))
    return f


def _dequantize_cpu(weight: Sequence[Tensor], format: str, rows: int, cols: int, dtype: torch.dtype) -> Tensor:
    f = _check_dequantize(weight, format, rows, cols, dtype)
    if rows * cols == 0:
        return weight[0].new_empty((rows, cols), dtype=dtype)
    return _floats(codec.decode(by_name(f.streams, weight), f, rows, cols), (rows, cols)).to(dtype)


def _dequantize_cuda(weight: Sequence[Tensor], format: str, rows: int, cols: int, dtype: torch.dtype) -> Tensor:
    f = _check_dequantize(weight, format, rows, cols, dtype)
    return _cuda.cast_to(weight, f, rows, cols, dtype)


def _dequantize_fake(weight: Sequence[Tensor], format: str, rows: int, cols: int, dtype: torch.dtype) -> Tensor:
    _check_dequantize(weight, format, rows, cols, dtype)
    return weight[0].new_empty((rows, cols), dtype=dtype)


_define(
    "dequantize(Tensor[] weight, str format, int rows, int cols, ScalarType dtype) -> Tensor",
    _dequantize_cpu,
    _dequantize_cuda,
    _dequantize_fake,
)


# ---- tiles


def _tiles(problem: str) -> tuple[Spec, dict[str, int]]:
    """The problem, and the bytes of its weights as stored."""
    s = spec(problem)
    if not s.packed:
        raise must_be("problem", problem, "a gemm with pack=tiles or panels")
    return s, stream_sizes(s.w, s.n, s.k)


def _new_streams(like: Tensor, sizes: dict[str, int]) -> list[Tensor]:
    """Uninitialized streams of these sizes."""
    return [
        like.new_empty(size // 4, dtype=torch.float32) if name == "global" else like.new_empty(size, dtype=torch.uint8)
        for name, size in sizes.items()
    ]


def _pack_cpu(weight: Sequence[Tensor], problem: str) -> list[Tensor]:
    s, stored = _tiles(problem)
    check_streams(weight, stored)
    tiles = s.one_row.pack_weights(by_name(stored, weight))
    return _tensors(tiles)


def _unpack_cpu(weight: Sequence[Tensor], problem: str) -> list[Tensor]:
    s, _ = _tiles(problem)
    check_streams(weight, s.streams)
    return _tensors(s.one_row.unpack_weights(by_name(s.streams, weight)).streams)


def _tensors(streams: codec.Streams) -> list[Tensor]:
    dtypes = (torch.uint8, torch.uint8, torch.float32)
    return [torch.frombuffer(part, dtype=dtype) for part, dtype in zip(streams, dtypes) if part is not None]


def _pack_cuda(weight: Sequence[Tensor], problem: str) -> list[Tensor]:
    s, stored = _tiles(problem)
    check_streams(weight, stored)
    out = _new_streams(weight[0], s.streams)
    _cuda.pack(s, by_name(stored, weight), by_name(s.streams, out))
    return out


def _unpack_cuda(weight: Sequence[Tensor], problem: str) -> list[Tensor]:
    s, stored = _tiles(problem)
    check_streams(weight, s.streams)
    return _cuda.unpack(s, by_name(s.streams, weight), stored)


def _pack_fake(weight: Sequence[Tensor], problem: str) -> list[Tensor]:
    s, stored = _tiles(problem)
    check_streams(weight, stored)
    return _new_streams(weight[0], s.streams)


def _unpack_fake(weight: Sequence[Tensor], problem: str) -> list[Tensor]:
    s, stored = _tiles(problem)
    check_streams(weight, s.streams)
    return _new_streams(weight[0], stored)


_define("pack(Tensor[] weight, str problem) -> Tensor[]", _pack_cpu, _pack_cuda, _pack_fake)
_define("unpack(Tensor[] weight, str problem) -> Tensor[]", _unpack_cpu, _unpack_cuda, _unpack_fake)


# ---- functions


def quantize(x: Tensor, format: str, encoder: str | None = None) -> list[Tensor]:
    """The streams of x [..., cols] in a format; all but the last dimension are rows. encoder: None is the format's
    first. A tensor's factor follows from the largest magnitude. On x's device."""
    return list(torch.ops.tilewright.quantize(x, format, encoder or ""))


def dequantize(
    weight: Sequence[Tensor], format: str, rows: int, cols: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The values of an encoded matrix [rows, cols]: exact in float32, rounded to dtype."""
    return torch.ops.tilewright.dequantize(list(weight), format, rows, cols, dtype)  # type: ignore[no-any-return]


def pack(weight: Sequence[Tensor], problem: str) -> list[Tensor]:
    """Reorders stored weights for kernels of a problem with pack=tiles, without loss, on their device."""
    return list(torch.ops.tilewright.pack(list(weight), problem))


def unpack(weight: Sequence[Tensor], problem: str) -> list[Tensor]:
    """The inverse of pack()."""
    return list(torch.ops.tilewright.unpack(list(weight), problem))
