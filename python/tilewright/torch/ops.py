# SPDX-License-Identifier: Apache-2.0
"""The operators torch.ops.tilewright.*, and functions around them. Each is registered for the CPU, for CUDA and for
fake tensors; they are opaque to torch.compile, functional, and safe to call from any thread.

    linear(x, weight, bias, problem) -> y          y = act(alpha x w^T + bias): a gemm of any number of rows
    linear_grad(dy, weight, problem, dtype) -> dx  the gradient of linear's x
    quantize(x, format, encoder) -> streams        floats to a format
    dequantize(weight, format, rows, cols, dtype)  and back
    pack(weight, problem) -> streams               weights as stored to tiles, for a problem with pack=tiles
    unpack(weight, problem) -> streams             and back

`weight` are the streams of a matrix in the order data, scales, global, those that the format has: contiguous tensors of
uint8, but global one float32. `problem` is a gemm's text without m (docs/problems.md).

On the CPU every operand is decoded exactly by the library's codecs, x having been encoded in the problem's format of x
first; sums are single precision's. This is the meaning; what a kernel's result may differ by is in docs/numerics.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import codec
from .._errors import InvalidArgument
from . import _cuda
from ._spec import DTYPES, FLOATS, FORMATS, Spec, by_name, check_streams, spec, stream_sizes

_library = torch.library.Library("tilewright", "DEF")  # type: ignore[no-untyped-call]


def _define(schema: str, cpu: Any, cuda: Any, fake: Any) -> None:
    name = schema.partition("(")[0]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
    _library.impl(name, cpu, "CPU")  # type: ignore[no-untyped-call]
    _library.impl(name, cuda, "CUDA")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"tilewright::{name}", fake, lib=_library)


# ---- linear


def _linear_cpu(x: Tensor, weight: Sequence[Tensor], bias: Tensor | None, problem: str) -> Tensor:
    s = spec(problem)
    s.check(x, weight, bias)
    shape = (*x.shape[:-1], s.n)
    rows = x.numel() // s.k
    if rows == 0:
        return x.new_empty(shape, dtype=s.dtype)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        z = s.alpha * F.linear(_rounded(x.reshape(rows, s.k), s.x), _decoded(s, weight))
        if bias is not None:
            z = z + bias.float()
        return _activated(z, s.act).to(s.dtype).reshape(shape)


def _linear_fake(x: Tensor, weight: Sequence[Tensor], bias: Tensor | None, problem: str) -> Tensor:
    s = spec(problem)
    s.check(x, weight, bias)
    return x.new_empty((*x.shape[:-1], s.n), dtype=s.dtype)


_define(
    "linear(Tensor x, Tensor[] weight, Tensor? bias, str problem) -> Tensor", _linear_cpu, _cuda.linear, _linear_fake
)


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

    @staticmethod
    def forward(x: Tensor, bias: Tensor | None, problem: str, *weight: Tensor) -> Tensor:
        return torch.ops.tilewright.linear(x, list(weight), bias, problem)  # type: ignore[no-any-return]

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

    Gradients are once differentiable. With act and a gradient the activation is PyTorch's, on y as it is stored. Raises
    InvalidArgument, which names the argument."""
    if not torch.compiler.is_compiling():
        usual = type(x) is Tensor and x.layout is torch.strided
        if not (usual and all(type(w) is Tensor and not w.requires_grad for w in weight)):
            _check_kinds(x, weight, bias)
    if not (torch.is_grad_enabled() and (x.requires_grad or (bias is not None and bias.requires_grad))):
        return torch.ops.tilewright.linear(x, list(weight), bias, problem)  # type: ignore[no-any-return]
    fields = problem.split(" ")
    acts = [field[4:] for field in fields if field.startswith("act=")]
    plain = " ".join([field for field in fields if not field.startswith("act=")])
    y: Tensor = _Linear.apply(x, bias, plain, *weight)  # type: ignore[no-untyped-call]
    return _activated(y, acts[0] if acts else None)


def _check_kinds(x: Any, weight: Sequence[Any], bias: Any) -> None:
    """What the dispatcher would pass to somebody else, or refuse in words that do not name the argument."""
    named = [("x", x), *((f"weight ({i})", t) for i, t in enumerate(weight)), ("bias", bias)]
    for name, value in named:
        if value is None and name == "bias":
            continue
        if not isinstance(value, Tensor):
            raise InvalidArgument(name, type(value).__name__, "a tensor")
        kind = type(value)
        own = kind.__torch_dispatch__ is Tensor.__torch_dispatch__ or kind.__module__.startswith("torch._subclasses")
        if not own:
            raise InvalidArgument(
                name, kind.__name__, "a plain tensor, without a dispatch of its own; pass its content"
            )
        if value.layout is not torch.strided:
            raise InvalidArgument(name, f"layout {value.layout}", "a strided tensor")
        if value.requires_grad and name.startswith("weight"):
            raise InvalidArgument(name, "requires_grad", "a constant: streams have no gradient")


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
    streams = by_name(s.streams, weight)
    factor = None
    if s.divides:
        factor, one = streams.global_scale, torch.ones(1)
        streams = streams._replace(global_scale=None if factor is None else one)
    w = s.one_row.unpack_weights(streams).streams if s.packed else streams
    out = _floats(codec.decode(w, s.w, s.n, s.k), (s.n, s.k))
    return out if factor is None else out / factor


def _floats(values: Any, shape: Any) -> Tensor:
    return torch.frombuffer(values, dtype=torch.float32).reshape(shape)


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
        raise InvalidArgument("x", f"dtype {x.dtype}", FLOATS)
    if x.dim() == 0:
        raise InvalidArgument("x", "shape ()", "at least one dimension")
    if f.block > 1 and x.shape[-1] % f.block:
        raise InvalidArgument("x", f"{x.shape[-1]} columns", f"a multiple of {f.block}, {f.name}'s block")
    if encoder and encoder not in f.encoders:
        raise InvalidArgument("encoder", encoder, f'"", or one of {", ".join(f.encoders)}')
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
        raise InvalidArgument("dtype", f"{dtype}", FLOATS)
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
        raise InvalidArgument("problem", problem, "a gemm with pack=tiles")
    return s, stream_sizes(s.w, s.n, s.k)


def _new_streams(like: Tensor, sizes: dict[str, int]) -> list[Tensor]:
    """Uninitialized streams of so many bytes."""
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
    first. A factor of the tensor is the one for the largest magnitude. On x's device."""
    return list(torch.ops.tilewright.quantize(x, format, encoder or ""))


def dequantize(
    weight: Sequence[Tensor], format: str, rows: int, cols: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The values of an encoded matrix [rows, cols]: exact in float32, rounded to dtype."""
    return torch.ops.tilewright.dequantize(list(weight), format, rows, cols, dtype)  # type: ignore[no-any-return]


def pack(weight: Sequence[Tensor], problem: str) -> list[Tensor]:
    """Weights as stored in the order that kernels of a problem with pack=tiles read, without loss, on their device."""
    return list(torch.ops.tilewright.pack(list(weight), problem))


def unpack(weight: Sequence[Tensor], problem: str) -> list[Tensor]:
    """The inverse of pack()."""
    return list(torch.ops.tilewright.unpack(list(weight), problem))
