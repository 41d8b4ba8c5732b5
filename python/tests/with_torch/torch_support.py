# SPDX-License-Identifier: Apache-2.0
"""What the tests of tilewright.torch share; importing it skips a module where there is no PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

# isort: split
import tilewright as tw

torch.set_num_threads(2)
torch.manual_seed(0)


def values(tensor):
    return tensor.detach().double().numpy()


def decoded(x, format):
    """x [rows, cols] as a format holds it, by the library's codecs: [rows, cols] of float64."""
    return np.asarray(tw.decode(tw.encode(x.detach().float().contiguous(), format)), np.float64)


def expected(x, w, bias=None, activation=None, dtype=None):
    """Double precision of the decoded operands, and the bound of docs/reference/numerics.md for sums of single precision. w: [n,
    k] of float64; x: a tensor of any leading dimensions."""
    rows = x.detach().reshape(-1, x.shape[-1])
    a = values(rows) if activation is None else decoded(rows, activation)
    b = np.zeros(w.shape[0]) if bias is None else values(bias)
    k = w.shape[1]
    out = a @ w.T + b
    bound = 2.0**-24 * (k / 4 + 64) * (np.abs(a) @ np.abs(w).T) + 2.0**-20 * (np.abs(out) + np.abs(b))
    unit = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[dtype or x.dtype]
    bound = bound + unit * (np.abs(out) + bound) + 2.0**-24
    shape = (*x.shape[:-1], w.shape[0])
    return out.reshape(shape), bound.reshape(shape)


def assert_close(y, reference):
    out, bound = reference
    assert tuple(y.shape) == out.shape
    error = np.abs(values(y) - out)
    assert (error <= bound).all(), f"{(error / bound).max()} of the bound"
