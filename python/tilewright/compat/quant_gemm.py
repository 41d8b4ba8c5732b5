# SPDX-License-Identifier: Apache-2.0
"""quant_gemm (github.com/qhy991/llama.cpp-quant-gemm, python/): ggml's blocks by PyTorch tensors.

    from tilewright.compat import quant_gemm

What differs from the original, on purpose:

* Tensors on the CPU are taken too, and work of a GPU is enqueued on PyTorch's current stream and not on the default one.
* A product is formed from the decoded blocks, sum_k w[m, k] a[n, k]. The original multiplies w's zero point by the sum
  that a block of Q8_1 stores, which is that of the floats before they were rounded: an error of 5e-4 (normalized mean
  square) that this does not have.
* dequantize_q4_0 checks K against the tensor's shape, and tensors of the wrong type are an InvalidArgument (a ValueError)
  that names the argument.

Blocks are those of the original's rules in single precision: Q4_0 with the scale max|x| / 7, which is not llama.cpp's
(tilewright.encode(x, "q4_0") has that), and Q8_1 with the sum of the floats, as ggml's CUDA quantizer stores it."""

from __future__ import annotations

import torch
from torch import Tensor

from .._errors import InvalidArgument, must_be
from ..problem import Problem
from ..torch import _cuda

QK4_0 = QK8_1 = 32
BLOCK_Q4_0_BYTES = 18
BLOCK_Q8_1_BYTES = 36

__all__ = [
    "BLOCK_Q4_0_BYTES",
    "BLOCK_Q8_1_BYTES",
    "QK4_0",
    "QK8_1",
    "dequantize_q4_0",
    "gemm_q4_0_q8_1",
    "quantize_q4_0",
    "quantize_q8_1",
]


def quantize_q4_0(x: Tensor) -> Tensor:
    """Blocks of 32: codes round(x / d) + 8 with d = max|x| / 7. x: float32 [..., K], K a multiple of 32. Returns uint8
    [..., K/32, 18]."""
    return _quantize(x, "q4_0", "amax7", BLOCK_Q4_0_BYTES)


def quantize_q8_1(x: Tensor) -> Tensor:
    """Blocks of 32: d = max|x| / 127, the sum of x, and round(x / d). x as above. Returns uint8 [..., K/32, 36]."""
    return _quantize(x, "q8_1", "sum_x", BLOCK_Q8_1_BYTES)


def dequantize_q4_0(x_q: Tensor, K: int) -> Tensor:
    """The inverse: (code - 8) d. x_q: uint8 [..., K/32, 18]. Returns float32 [..., K]."""
    _check_blocks(x_q, "x_q", BLOCK_Q4_0_BYTES)
    if x_q.dim() < 2 or x_q.shape[-2] * QK4_0 != K:
        raise must_be("K", K, f"32 times the blocks of a row, of shape {tuple(x_q.shape)}")
    rows = x_q.numel() // (K // QK4_0 * BLOCK_Q4_0_BYTES) if K else 0
    values = torch.ops.tilewright.dequantize([x_q.contiguous().reshape(-1)], "q4_0", rows, K, torch.float32)
    return values.reshape(*x_q.shape[:-2], K)


def gemm_q4_0_q8_1(weight_q: Tensor, activation_q: Tensor, M: int, N: int, K: int) -> Tensor:
    """C[M, N] = W[M, K] A[N, K]^T. weight_q: uint8 [M, K/32, 18] of Q4_0; activation_q: uint8 [N, K/32, 36] of Q8_1, on
    the same device. Returns float32. Here M are the weight's rows and N the activations', as in the original."""
    if K % QK4_0 or min(M, N, K) < 1:
        raise must_be("K", f"{K}, M={M}, N={N}", "a multiple of 32, and K, M and N at least 1")
    for name, tensor, rows, block in (
        ("weight_q", weight_q, M, BLOCK_Q4_0_BYTES),
        ("activation_q", activation_q, N, BLOCK_Q8_1_BYTES),
    ):
        _check_blocks(tensor, name, block)
        if tensor.numel() != rows * (K // QK4_0) * block:
            raise InvalidArgument(
                name, f"shape {tuple(tensor.shape)}", f"must have {rows} x {K // QK4_0} blocks of {block} bytes"
            )
    if weight_q.device != activation_q.device:
        raise must_be("activation_q", f"on {activation_q.device}", f"on {weight_q.device}, as weight_q is")
    w, x = weight_q.contiguous().reshape(-1), activation_q.contiguous().reshape(-1)
    if not w.is_cuda:
        decode = torch.ops.tilewright.dequantize
        return decode([w], "q4_0", M, K, torch.float32) @ decode([x], "q8_1", N, K, torch.float32).T
    problem = Problem.gemm(x="q8_1", w="q4_0", y="f32", m=1, n=M, k=K)
    return _cuda.run(problem, N, w.new_empty((N, M), dtype=torch.float32), x=x, w=w).T.contiguous()


def _quantize(x: Tensor, format: str, encoder: str, block: int) -> Tensor:
    if x.dtype != torch.float32:
        raise must_be("x", f"dtype {x.dtype}", "float32")
    if x.dim() == 0 or x.shape[-1] % 32:
        raise InvalidArgument("x", f"shape {tuple(x.shape)}", "must have a last dimension that is a multiple of 32")
    (blocks,) = torch.ops.tilewright.quantize(x.contiguous(), format, encoder)
    return blocks.reshape(*x.shape[:-1], x.shape[-1] // 32, block)


def _check_blocks(tensor: Tensor, name: str, block: int) -> None:
    if tensor.dtype != torch.uint8 or tensor.dim() == 0 or tensor.shape[-1] != block:
        what = f"dtype {tensor.dtype}, shape {tuple(tensor.shape)}"
        raise must_be(name, what, f"uint8, with a last dimension of {block}, the bytes of a block")
