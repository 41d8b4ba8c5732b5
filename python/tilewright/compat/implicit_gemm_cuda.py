# SPDX-License-Identifier: Apache-2.0
"""Model Optimizer's experimental convolution by implicit GEMM with FP4 fake quantization of activations, and the
operator that its README quantizes weights with.

    from tilewright.compat.implicit_gemm_cuda import conv3d_implicit_gemm_cuda, dynamic_block_quantize_op

What differs from the original, on purpose:

* Tensors on the CPU are taken too, and work of a GPU is enqueued on PyTorch's current stream and not on the default one.
* Scales are rounded to the nearest E4M3, subnormals included; the original's CUDA rounds half up and decodes small ones
  wrongly (docs/use/fake-quant.md).
* dynamic_block_quantize_op uses its block_size; the original's Triton path drops it and uses 16. The least scale 1e-5 of
  fp4_fake_quant holds there too. Only E2M1 elements with E4M3 scales are there.
* Bad arguments are an InvalidArgument that names them, in every case: a ValueError as the original's "5D" and "Grouped
  convolution" are, and an AssertionError, too, where the original asserts that elements are "divisible".

Operands are rounded to BF16, sums are single precision, as in the original. On the CPU what fake quantization leaves of
a float32 x is multiplied as it is, not rounded to BF16."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import torch
from torch import Tensor

from .._errors import InvalidArgument, Unsupported, must_be
from ..problem import Problem
from ..torch import _cuda, ops
from ..torch._spec import FLOATS, FORMATS, conv_text

__all__ = ["conv3d_implicit_gemm_cuda", "dynamic_block_quantize_op", "fp4_fake_quant"]

_Ints = Union[int, Sequence[int]]
_BLOCKS = (16, 32, 64, 128, 256)  # of a convolution; the other two functions take 8 as well


class _Indivisible(InvalidArgument, AssertionError):
    """Programs written for the original catch either."""


@torch.no_grad()
def conv3d_implicit_gemm_cuda(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    stride: _Ints = (1, 1, 1),
    padding: _Ints = (0, 0, 0),
    dilation: _Ints = (1, 1, 1),
    act_amax: Tensor | None = None,
    quant_act: bool = False,
    fp4_block_size: int = 256,
) -> Tensor:
    """y [N, Cout, OD, OH, OW] = x [N, Cin, D, H, W] * w [Cout, Cin, kD, kH, kW] + bias [Cout], of x's dtype.

    stride, dilation: one number or (D, H, W). padding: besides these, six numbers in the order of F.pad: in front and
    behind of W, of H, of D. quant_act: what each output sees of x, [Cin, kD, kH, kW] in this order, is rounded to what
    FP4 leaves of it, in blocks of fp4_block_size: 16, 32, 64, 128 or 256. act_amax: then needed, the first element is
    the largest magnitude."""
    for name, tensor in (("x", x), ("w", w)):
        if tensor.dtype not in FORMATS or tensor.dim() != 5:
            raise must_be(name, f"{tensor.dtype} {tuple(tensor.shape)}", f"a 5D tensor of {FLOATS}")
    if w.shape[1] != x.shape[1]:
        what = f"must have {x.shape[1]} input channels, as x has; Grouped convolution is not supported"
        raise InvalidArgument("w", f"shape {tuple(w.shape)}", what)
    if w.device != x.device:
        raise must_be("w", f"on {w.device}", f"on {x.device}, as x is")
    _check_block("fp4_block_size", fp4_block_size, _BLOCKS)
    pads = _numbers("padding", padding, (3, 6))
    both = zip(pads[-2::-2], pads[::-2]) if len(pads) == 6 else zip(pads, pads)
    fields: dict[str, Any] = {
        "stride": "x".join(map(str, _numbers("stride", stride, (3,)))),
        "pad": "x".join(f"{front}:{behind}" for front, behind in both),
        "dilation": "x".join(map(str, _numbers("dilation", dilation, (3,)))),
        "bias": None if bias is None else "f32",
    }
    amax, kind = None, torch.bfloat16
    if quant_act:
        amax = _amax("act_amax", act_amax, x)[:1]
        fields["quant_act"] = f"e2m1/{fp4_block_size}"
        if x.dtype != kind:  # rounded to BF16 behind fake quantization, not in front of it
            kind, fields["accum"] = torch.float32, "fast"
    rows = w.bfloat16().to(kind).movedim(1, -1).reshape(-1)
    name = FORMATS[kind]
    problem = conv_text(name, name, "f32", x.shape[1], w.shape[0], w.shape[2:], **fields)
    if bias is not None:
        bias = bias.float()
    return ops.conv(x.to(kind), [rows.view(torch.uint8)], bias, problem, amax).to(x.dtype)


@torch.no_grad()
def fp4_fake_quant(x: Tensor, global_amax: Tensor, block_size: int = 16) -> Tensor:
    """What FP4 leaves of x, in blocks of block_size consecutive elements of the dense tensor; x's shape and dtype.
    global_amax: the first element is the largest magnitude."""
    _check_block("block_size", block_size, (8, *_BLOCKS))
    if x.numel() % block_size:
        raise _Indivisible("x", f"{x.numel()} elements", f"must have a number divisible by block_size={block_size}")
    return _fake_quantized(x, block_size, block_size, _amax("global_amax", global_amax, x)[:1])


@torch.no_grad()
def dynamic_block_quantize_op(
    inputs: Tensor,
    block_size: int,
    amax: Tensor,
    num_bits: int,
    exponent_bits: int,
    scale_num_bits: int,
    scale_exponent_bits: int,
) -> Tensor:
    """What FP4 leaves of inputs [..., K], in blocks along K, the last of which may be short. amax: the largest
    magnitude; of several elements the largest counts. The bits: 4, 2, 8, 4."""
    bits = (num_bits, exponent_bits, scale_num_bits, scale_exponent_bits)
    if bits != (4, 2, 8, 4):
        raise Unsupported("num_bits", f"{bits}", "must be (4, 2, 8, 4): elements in E2M1, scales in E4M3")
    _check_block("block_size", block_size, (8, *_BLOCKS))
    largest = _amax("amax", amax, inputs).amax().reshape(1)
    cols = inputs.shape[-1] if inputs.dim() else 1
    return _fake_quantized(inputs, cols, block_size, largest)


def _fake_quantized(x: Tensor, cols: int, block: int, amax: Tensor) -> Tensor:
    if x.dtype not in FORMATS:
        raise must_be("x", f"dtype {x.dtype}", FLOATS)
    name = FORMATS[x.dtype]
    problem = Problem.of("fp4_fake_quant", x=name, y=name, rows=1, cols=max(cols, 1), block=block)
    if x.numel() == 0:
        return torch.empty_like(x)
    dense = x.contiguous().reshape(-1, cols)
    y = torch.empty_like(dense)
    if x.is_cuda:
        _cuda.run(problem, len(dense), y, x=dense, amax=amax)
    else:
        problem.with_rows(len(dense)).compute({"x": dense, "y": y, "amax": amax})
    return y.reshape(x.shape)


def _check_block(name: str, value: int, allowed: tuple[int, ...]) -> None:
    if value not in allowed:
        raise must_be(name, f"{value}", f"one of {', '.join(map(str, allowed))}")


def _numbers(name: str, value: _Ints, counts: tuple[int, ...]) -> tuple[int, ...]:
    values = (value,) * 3 if isinstance(value, int) else tuple(value)
    if len(values) not in counts:
        raise must_be(name, f"{value}", f"a number, or {' or '.join(map(str, counts))} of them")
    return tuple(int(one) for one in values)


def _amax(name: str, value: Any, x: Tensor) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() == 0:
        given = "None" if value is None else f"{type(value).__name__}"
        raise must_be(name, given, "a tensor with the largest magnitude")
    return value.detach().to(x.device, torch.float32).reshape(-1).contiguous()
