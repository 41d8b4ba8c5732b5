#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPTQ of one layer in plain PyTorch on a GPU, to hold `tilewright_bench gptq --layer DIR` against.

usage: gptq_torch.py DIR [N K]        (torch with CUDA, NumPy)

Makes DIR/w.npy (f32 [N, K]; 4096 x 14336 unless given) and DIR/h.npy (f64 [K, K], the sums of x x^T of 2048 x 128
tokens) if they are not there, quantizes w to symmetric 4-bit codes in groups of 128 and writes DIR/torch.json: seconds,
and the relative error of the outputs, tr(d H d^T) / tr(w H w^T) with d = w - q, summed in double precision.

The procedure is the usual one (arXiv:2210.17323): in single precision, the inverse of the damped H by its Cholesky
factor, the upper Cholesky factor of that, blocks of 128 columns that are rounded one after the other, and an update of
all columns behind a block. Scales are largest magnitude / 7.5, rounded to half precision, chosen when a group begins.
"""
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

GROUP = BLOCK = 128
TOKENS = 2048 * 128


def make(folder, n, k):
    torch.manual_seed(1)
    w = torch.randn(n, k, device="cuda") * 0.02
    np.save(folder / "w.npy", w.cpu().numpy())
    del w
    # Inputs have sizes of their own, each a share of the one before it, and eight things in common.
    size = torch.exp(torch.randn(k, device="cuda", dtype=torch.float64))
    place = torch.arange(k, device="cuda", dtype=torch.float64)
    h = 0.9 ** (place[:, None] - place[None, :]).abs()
    common = torch.randn(k, 8, device="cuda", dtype=torch.float64)
    h += 0.1 * common @ common.T
    h *= TOKENS * size[:, None] * size[None, :]
    np.save(folder / "h.npy", torch.tril(h).add_(torch.tril(h, -1).T).cpu().numpy())


def gptq(w, h, damping=0.01):
    w, k = w.clone(), w.shape[1]
    h = h.to(torch.float32)
    dead = torch.diag(h) == 0
    h[dead, dead] = 1
    w[:, dead] = 0
    h.diagonal().add_(damping * torch.diag(h).mean())
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(h))
    upper = torch.linalg.cholesky(inverse, upper=True)
    q = torch.empty_like(w)
    for first in range(0, k, BLOCK):
        end = min(first + BLOCK, k)
        block, errors = w[:, first:end].clone(), torch.empty_like(w[:, first:end])
        factor = upper[first:end, first:end]
        for i in range(end - first):
            if (first + i) % GROUP == 0:  # a group is a block
                scale = (block.abs().amax(1) / 7.5).to(torch.float16).to(torch.float32)
                inverse_scale = torch.where(scale > 0, 1 / scale, 0)
            column = block[:, i]
            q[:, first + i] = torch.clamp(torch.round(column * inverse_scale), -8, 7) * scale
            errors[:, i] = (column - q[:, first + i]) / factor[i, i]
            block[:, i:] -= errors[:, i : i + 1] * factor[i : i + 1, i:]
        w[:, end:] -= errors @ upper[first:end, end:]
    return q


def energy(d, h):
    total = 0.0
    for first in range(0, d.shape[0], 512):
        part = d[first : first + 512].to(torch.float64)
        total += ((part @ h) * part).sum().item()
    return total


def main():
    if len(sys.argv) not in (2, 4):
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    n, k = (int(v) for v in sys.argv[2:]) if len(sys.argv) == 4 else (4096, 14336)
    if not (folder / "w.npy").exists() or not (folder / "h.npy").exists():
        make(folder, n, k)
    w = torch.from_numpy(np.load(folder / "w.npy"))
    h = torch.from_numpy(np.load(folder / "h.npy"))
    times = []
    for _ in range(3):
        torch.cuda.synchronize()
        began = time.perf_counter()
        q = gptq(w.cuda(), h.cuda())
        values = q.cpu()
        times.append(time.perf_counter() - began)
    del values
    on_device, w_on_device = h.cuda(), w.cuda()
    error = energy(w_on_device.to(torch.float64) - q.to(torch.float64), on_device)
    whole = energy(w_on_device, on_device)
    result = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "first_seconds": times[0],
        "seconds": min(times[1:]),
        "error": error,
        "relative_error": error / whole,
    }
    (folder / "torch.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
