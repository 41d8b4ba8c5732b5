# SPDX-License-Identifier: Apache-2.0
"""What tilewright.compat does with a GPU's tensors, without one: kernels are replaced by the library's computation on the
host, which takes the operands that a launch would, and refuses others."""

from __future__ import annotations

import types

import numpy as np
import pytest
from torch_support import torch

# isort: split
from tilewright.compat import cuda_wrapper, implicit_gemm_cuda, quant_gemm
from tilewright.torch import _cuda


@pytest.fixture
def launches(monkeypatch):
    """Every tensor counts as a GPU's. The problems that were launched, with their rows."""
    seen = []

    def kernel(problem, index):
        def launch(stream, *, m=None, rows=None, **operands):
            assert stream == 7 and (m is None) != (rows is None)
            assert all(t.data_ptr() % 16 == 0 for t in operands.values() if t.numel() > 1)
            seen.append((problem, rows or m))
            problem.with_rows(rows or m).compute(operands)

        return types.SimpleNamespace(launch=launch)

    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda self: True), raising=False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: 7)
    monkeypatch.setattr(_cuda, "index_of", lambda x: 0)
    monkeypatch.setattr(_cuda, "kernel", kernel)
    return seen


def random(*shape):
    return torch.from_numpy(np.random.default_rng(len(shape)).integers(-128, 128, shape).astype(np.int8))


@pytest.mark.parametrize(("M", "K", "N"), [(1, 1, 1), (9, 33, 5), (4, 256, 12)])
def test_int8(launches, M, K, N):
    a, b = random(M, K + 1)[:, 1:], random(K, N)  # one whose memory begins at any byte
    want = a.long() @ b.long()
    assert torch.equal(cuda_wrapper.int8_matmul(a, b).long(), want)
    assert torch.equal(cuda_wrapper.int8_matmul(a, b, 0.5).long(), (want * 0.5).trunc().long())
    c = torch.empty(M, N)
    cuda_wrapper.fused_int8_matmul_bias_relu_cuda(a, b, None, c, M, N, K)
    assert torch.equal(c, want.float().relu())
    assert [(str(p), m) for p, m in launches] == [(f"gemm x=int8 w=int8 y=int32 m=1 n={N} k={K}", M)] * 3
    assert cuda_wrapper.int8_matmul(a[:0], b).shape == (0, N) and len(launches) == 3


def test_int4(launches):
    a, b = random(5, 7).clamp(-8, 7), random(7, 3).clamp(-8, 7)
    packed = cuda_wrapper.pack_int4(a), cuda_wrapper.pack_int4_rows(b)
    assert torch.equal(cuda_wrapper.int4_matmul(*packed, 7).long(), a.long() @ b.long())
    assert len(launches) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_fake_quantization(launches, dtype, monkeypatch):
    x, amax = torch.randn(6, 48).to(dtype), torch.tensor([2.5])
    flat, rows = (
        implicit_gemm_cuda.fp4_fake_quant(x, amax, 32),
        implicit_gemm_cuda.dynamic_block_quantize_op(x[:, 1:], 32, amax, 4, 2, 8, 4),
    )
    assert [(p.op, p.cols, n) for p, n in launches] == [("fp4_fake_quant", 32, 9), ("fp4_fake_quant", 47, 6)]
    monkeypatch.undo()
    assert torch.equal(flat, implicit_gemm_cuda.fp4_fake_quant(x, amax, 32))
    assert torch.equal(rows, implicit_gemm_cuda.dynamic_block_quantize_op(x[:, 1:], 32, amax, 4, 2, 8, 4))


def test_quant_gemm(launches):
    torch.manual_seed(0)
    w, a = quant_gemm.quantize_q4_0(torch.randn(8, 64)), quant_gemm.quantize_q8_1(torch.randn(3, 64))
    y = quant_gemm.gemm_q4_0_q8_1(w, a, 8, 3, 64)
    decode = torch.ops.tilewright.dequantize
    want = (
        decode([w.reshape(-1)], "q4_0", 8, 64, torch.float32) @ decode([a.reshape(-1)], "q8_1", 3, 64, torch.float32).T
    )
    assert y.shape == (8, 3) and (y - want).abs().max() < 1e-4 * want.abs().max() and launches[0][1] == 3
