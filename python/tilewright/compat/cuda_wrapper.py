# SPDX-License-Identifier: Apache-2.0
"""CUDA Quantization Kernels (cuda_wrapper.py, and by the same names the functions of cuda_kernels.h): INT8 and packed
INT4 products of PyTorch tensors or NumPy arrays, and conversions.

    from tilewright.compat.cuda_wrapper import int8_matmul, quantize_tensor, dequantize_tensor

What differs from the original, on purpose:

* Arrays on the CPU are taken too. Work of a GPU is enqueued on `stream`, or on PyTorch's current one where that is None,
  and not on the default stream.
* Functions of cuda_kernels.h take arrays in place of addresses and check them: an InvalidArgument (a ValueError) names
  the argument where the original returned nothing whatever happened.
* dequantize_tensor takes int32 as well, which the original's own README passes and its library asserts against. That
  README scales products twice; int8_matmul(A, B) without scales and then
  dequantize_tensor(C, scale_a * scale_b) is right (docs/use/compatibility.md).
* int4_matmul computes what its documentation says: elements beyond K are left out. The original's kernel drops half of
  the bytes and counts others twice.
* A tensor of zeros gets the scale 1; the original divides by 0.
* pack_int4 packs each row of any tensor: [..., n] to [..., (n + 1) / 2]. The original flattens, which only vectors
  survive. The pad of an odd n is the code of zero, 8."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
from torch import Tensor

from .._errors import InvalidArgument, must_be
from ..problem import Problem
from ..torch import _cuda

__all__ = [
    "dequantize_cuda",
    "dequantize_fp32_cuda",
    "dequantize_tensor",
    "fused_int8_matmul_bias_relu_cuda",
    "int4_matmul",
    "int4_matmul_cuda",
    "int8_matmul",
    "int8_matmul_cuda",
    "pack_int4",
    "pack_int4_rows",
    "quantize_cuda",
    "quantize_tensor",
    "unpack_int4",
]

# ---- cuda_wrapper.py


def int8_matmul(
    A: Any, B: Any, scale_a: float = 1.0, scale_b: float = 1.0, scale_c: float = 1.0, stream: Any = None
) -> Any:
    """C [M, N] of int32 = trunc((A [M, K] B [K, N]) scale_a scale_b scale_c) of int8, the sums exact, the scaled values
    of single precision, limited to int32. With scales of 1 C is the sums."""
    a, b = _tensor("A", A, torch.int8, 2), _tensor("B", B, torch.int8, 2)
    if a.shape[1] != b.shape[0]:
        raise InvalidArgument("B", f"shape {tuple(b.shape)}", f"must have {a.shape[1]} rows, the columns of A")
    with _on(stream, a):  # whose memory it is then
        c = a.new_empty((a.shape[0], b.shape[1]), dtype=torch.int32)
    int8_matmul_cuda(a, b, c, a.shape[0], b.shape[1], a.shape[1], scale_a, scale_b, scale_c, stream)
    return _as(A, c)


def int4_matmul(
    A_packed: Any,
    B_packed: Any,
    K: int,
    scale_a: float = 1.0,
    scale_b: float = 1.0,
    scale_c: float = 1.0,
    stream: Any = None,
) -> Any:
    """As int8_matmul() of packed codes less 8: A_packed [M, (K + 1) / 2] by pack_int4(), B_packed [(K + 1) / 2, N] by
    pack_int4_rows(), uint8."""
    a, b = _tensor("A_packed", A_packed, torch.uint8, 2), _tensor("B_packed", B_packed, torch.uint8, 2)
    with _on(stream, a):  # whose memory it is then
        c = a.new_empty((a.shape[0], b.shape[1]), dtype=torch.int32)
    int4_matmul_cuda(a, b, c, a.shape[0], b.shape[1], K, scale_a, scale_b, scale_c, stream)
    return _as(A_packed, c)


def quantize_tensor(tensor: Any, scale: float | None = None, zero_point: float = 0.0) -> tuple[Any, float]:
    """(int8 codes, scale): x / scale + zero_point, limited to -128 to 127 and then rounded half away from zero. tensor:
    float32. scale: None is max|x| / 127."""
    x = _tensor("tensor", tensor, torch.float32)
    if scale is None:
        scale = x.abs().max().item() / 127.0 if x.numel() else 0.0
        if not math.isfinite(scale):
            raise InvalidArgument("tensor", "an infinity or a NaN", "must have finite numbers, or come with a scale")
        scale = scale or 1.0
    q = torch.empty_like(x, dtype=torch.int8, memory_format=torch.contiguous_format)
    quantize_cuda(x, q, x.numel(), scale, zero_point)
    return _as(tensor, q), scale


def dequantize_tensor(quantized: Any, scale: float, zero_point: float = 0.0) -> Any:
    """(q - zero_point) scale, float32. quantized: int8, or the int32 of a product."""
    q = _tensor("quantized", quantized, (torch.int8, torch.int32))
    out = torch.empty_like(q, dtype=torch.float32, memory_format=torch.contiguous_format)
    _dequantize(q, out, scale, zero_point, None)
    return _as(quantized, out)


def pack_int4(tensor: Any) -> Any:
    """[..., n] of integers, limited to -8 to 7, to uint8 [..., (n + 1) / 2]: codes v + 8, even elements in the low
    bits."""
    v = _tensor("tensor", tensor, None)
    if v.dim() == 0 or v.is_floating_point():
        raise must_be("tensor", f"{v.dtype}, shape {tuple(v.shape)}", "integers of one dimension or more")
    codes = (v.clamp(-8, 7) + 8).to(torch.uint8)
    if codes.shape[-1] % 2:
        codes = torch.nn.functional.pad(codes, (0, 1), value=8)
    return _as(tensor, codes[..., ::2] | (codes[..., 1::2] << 4))


def pack_int4_rows(tensor: Any) -> Any:
    """[K, N] to [(K + 1) / 2, N]: the second operand of int4_matmul(), rows 2 p and 2 p + 1 in byte row p."""
    v = _tensor("tensor", tensor, None, 2)
    return _as(tensor, pack_int4(v.T).T.contiguous())


def unpack_int4(packed: Any) -> Any:
    """The inverse, int8 [..., 2 n]: with the pad of an odd number of elements."""
    p = _tensor("packed", packed, torch.uint8)
    return _as(packed, _unpacked(p))


# ---- cuda_kernels.h: results are written to C or output, arrays in place of addresses


def int8_matmul_cuda(
    A: Any,
    B: Any,
    C: Any,
    M: int,
    N: int,
    K: int,
    scale_a: float = 1.0,
    scale_b: float = 1.0,
    scale_c: float = 1.0,
    stream: Any = None,
) -> None:
    """int8_matmul() into C, int32 [M, N]."""
    a = _sized("A", A, torch.int8, M, K)
    b = _sized("B", B, torch.int8, K, N, a)
    _scaled_sums(a, b, _output("C", C, torch.int32, a, (M, N)), (scale_a, scale_b, scale_c), stream)


def int4_matmul_cuda(
    A_packed: Any,
    B_packed: Any,
    C: Any,
    M: int,
    N: int,
    K: int,
    scale_a: float = 1.0,
    scale_b: float = 1.0,
    scale_c: float = 1.0,
    stream: Any = None,
) -> None:
    """int4_matmul() into C, int32 [M, N]."""
    half = (K + 1) // 2
    a = _sized("A_packed", A_packed, torch.uint8, M, half)
    b = _sized("B_packed", B_packed, torch.uint8, half, N, a)
    c = _output("C", C, torch.int32, a, (M, N))
    with _on(stream, a):
        codes_a, codes_b = _unpacked(a)[:, :K], _unpacked(b.T.contiguous())[:, :K].T
    _scaled_sums(codes_a, codes_b, c, (scale_a, scale_b, scale_c), stream)


def fused_int8_matmul_bias_relu_cuda(
    A: Any,
    B: Any,
    bias: Any,
    C: Any,
    M: int,
    N: int,
    K: int,
    scale_a: float = 1.0,
    scale_b: float = 1.0,
    scale_c: float = 1.0,
    stream: Any = None,
) -> None:
    """C, float32 [M, N] = max(0, (A B) scale_a scale_b scale_c + bias [N]). bias: float32 or None."""
    a = _sized("A", A, torch.int8, M, K)
    b = _sized("B", B, torch.int8, K, N, a)
    c = _output("C", C, torch.float32, a, (M, N))
    add = None if bias is None else _tensor("bias", bias, torch.float32)
    if add is not None and (add.numel() != N or add.device != a.device):
        raise InvalidArgument(
            "bias", f"shape {tuple(add.shape)} on {add.device}", f"must have {N} numbers on {a.device}"
        )
    with _on(stream, a):
        y = _scaled(_sums(a, b), (scale_a, scale_b, scale_c))
        c.copy_(torch.relu_(y if add is None else y.add_(add.reshape(-1))))


def quantize_cuda(
    input: Any, output: Any, size: int, scale: float, zero_point: float = 0.0, stream: Any = None
) -> None:
    """quantize_tensor() of `size` float32 into output, int8. A NaN becomes 127, as there."""
    x = _tensor("input", input, torch.float32)
    out = _output("output", output, torch.int8, x, x.shape)
    _check_size(size, x)
    scale = _scale("scale", scale)
    if scale == 0:
        raise InvalidArgument("scale", "0", "must not be 0: it divides")
    with _on(stream, x):
        # By a tensor: PyTorch's CUDA multiplies by the inverse of a number.
        v = (
            (x / x.new_full((), scale) + zero_point).clamp_(-128, 127).nan_to_num_(nan=127.0).double()
        )  # in which v + 0.5 is exact
        out.copy_(v.abs().add_(0.5).floor_().copysign_(v))


def dequantize_fp32_cuda(
    quantized: Any, output: Any, size: int, scale: float, zero_point: float = 0.0, stream: Any = None
) -> None:
    """dequantize_tensor() of `size` int8 into output, float32."""
    _check_size(size, q := _tensor("quantized", quantized, torch.int8))
    _dequantize(q, _output("output", output, torch.float32, q, q.shape), scale, zero_point, stream)


def dequantize_cuda(
    quantized: Any, output: Any, size: int, scale: float, zero_point: float = 0.0, stream: Any = None
) -> None:
    """The same into float16."""
    _check_size(size, q := _tensor("quantized", quantized, torch.int8))
    _dequantize(q, _output("output", output, torch.float16, q, q.shape), scale, zero_point, stream)


# ---- what they share


def _sums(a: Tensor, b: Tensor) -> Tensor:
    """The exact int32 of a [M, K] b [K, N]."""
    (m, k), n = a.shape, b.shape[1]
    if min(m, n, k) == 0:
        return a.new_zeros((m, n), dtype=torch.int32)
    problem = Problem.gemm(x="int8", w="int8", y="int32", m=1, n=n, k=k)
    if not a.is_cuda:
        return (a.double() @ b.double()).to(torch.int32)  # int8 times int8, which double precision adds exactly
    return _cuda.run(problem, m, a.new_empty((m, n), dtype=torch.int32), x=a, w=b.T)


def _scaled(sums: Tensor, scales: tuple[float, float, float]) -> Tensor:
    """In single precision, from left to right."""
    y = sums.float()
    for name, scale in zip(("scale_a", "scale_b", "scale_c"), scales):
        y *= _scale(name, scale)
    return y


def _scaled_sums(a: Tensor, b: Tensor, c: Tensor, scales: tuple[float, float, float], stream: Any) -> None:
    with _on(stream, a):
        sums = _sums(a, b)
        if scales != (1.0, 1.0, 1.0):
            sums = _scaled(sums, scales).double().nan_to_num_(nan=0.0).clamp_(-(2**31), 2**31 - 1).to(torch.int32)
        c.copy_(sums)


def _dequantize(q: Tensor, out: Tensor, scale: float, zero_point: float, stream: Any) -> None:
    with _on(stream, q):
        wide = q.float() if q.dtype == torch.int8 else q.double()  # neither rounds
        out.copy_((wide - zero_point) * _scale("scale", scale))


def _unpacked(p: Tensor) -> Tensor:
    return (torch.stack([p & 15, p >> 4], -1).to(torch.int8) - 8).reshape(*p.shape[:-1], -1)


def _scale(name: str, value: float) -> float:
    if not math.isfinite(value):
        raise must_be(name, f"{value}", "a finite number")
    return float(value)


def _tensor(name: str, value: Any, dtype: Any, dim: int | None = None) -> Tensor:
    """An array as a tensor of the same memory. dtype: None: any, or several that are allowed."""
    if not isinstance(value, Tensor):
        try:
            value = torch.from_numpy(value if _shared(value) else value.copy())
        except (TypeError, AttributeError):
            raise must_be(name, type(value).__name__, "a PyTorch tensor or a NumPy array") from None
    allowed = () if dtype is None else dtype if isinstance(dtype, tuple) else (dtype,)
    if (allowed and value.dtype not in allowed) or (dim is not None and value.dim() != dim):
        kinds = " or ".join(str(one).partition(".")[2] for one in allowed) or "integers"
        shape = "" if dim is None else f" of {dim} dimensions"
        raise must_be(name, f"{value.dtype}, shape {tuple(value.shape)}", f"{kinds}{shape}")
    tensor: Tensor = value.detach()
    return tensor


def _sized(name: str, value: Any, dtype: torch.dtype, rows: int, cols: int, beside: Tensor | None = None) -> Tensor:
    tensor = _tensor(name, value, dtype)
    if beside is not None and tensor.device != beside.device:
        raise must_be(name, f"on {tensor.device}", f"on {beside.device}, as the first operand is")
    if min(rows, cols) < 0 or tensor.numel() != rows * cols or (tensor.dim() == 2 and tensor.shape[0] != rows):
        raise InvalidArgument(name, f"shape {tuple(tensor.shape)}", f"must have {rows} x {cols} elements")
    return tensor.reshape(rows, cols)


def _shared(array: Any) -> bool:
    """Whether PyTorch can write to a NumPy array."""
    return bool(array.flags.writeable and array.flags.c_contiguous)


def _output(name: str, value: Any, dtype: torch.dtype, like: Tensor, shape: Any) -> Tensor:
    if hasattr(value, "flags") and not _shared(value):
        raise must_be(name, "a read-only or strided array", "an array that can be written")
    tensor = _tensor(name, value, dtype)
    if tensor.numel() != math.prod(shape) or not tensor.is_contiguous() or tensor.device != like.device:
        given = f"shape {tuple(tensor.shape)}, strides {tensor.stride()}, on {tensor.device}"
        raise InvalidArgument(name, given, f"must have {math.prod(shape)} contiguous elements on {like.device}")
    return tensor.view(shape)


def _check_size(size: int, x: Tensor) -> None:
    if size != x.numel():
        raise must_be("size", f"{size}", f"{x.numel()}, the number of elements")


def _as(given: Any, result: Tensor) -> Any:
    return result if isinstance(given, Tensor) else result.numpy()


def _on(stream: Any, x: Tensor) -> Any:
    """Makes a stream, of PyTorch or a handle, the current one."""
    if stream is None:
        return contextlib.nullcontext()
    if not x.is_cuda:
        raise must_be("stream", f"{stream}", "None: the arrays are in host memory")
    if isinstance(stream, int):
        stream = torch.cuda.ExternalStream(stream, x.device)  # type: ignore[no-untyped-call]
    return torch.cuda.stream(stream)
