# SPDX-License-Identifier: Apache-2.0
"""Writes fake_quant.bin, the golden vectors of fp4_fake_quant, by numpy and ml_dtypes alone.

usage: make_fake_quant.py OUT_DIR      (see README.md beside this file)
"""
import struct
import sys
from pathlib import Path

import ml_dtypes
import numpy as np

F = np.float32
E4M3, E2M1 = ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn


def block(x: np.ndarray, amax: F) -> np.ndarray:
    """One block: its scale in E4M3 times the tensor's, its elements in E2M1 times that."""
    with np.errstate(all="ignore"):
        g = F(amax / F(6 * 448))
        largest = np.fmax.reduce(np.abs(x), initial=F(0))  # NaNs are passed over
        wanted = np.fmin(F(largest / F(F(6) * g)), F(448))
        scale = F(F(wanted.astype(E4M3)) * g)
        if not scale >= F(1e-5) or not 0 < amax < np.inf:
            scale = F(1)
        magnitude = np.fmin((np.abs(x) * F(F(1) / scale)).astype(F), F(6))  # a NaN and an infinity are 6
        values = magnitude.astype(E2M1).astype(F)
        return (np.where(x >= 0, values, -values) * scale).astype(F)


def quantized(x: np.ndarray, size: int, amax: F) -> np.ndarray:
    return np.stack([np.concatenate([block(row[i:i + size], amax) for i in range(0, len(row), size)]) for row in x])


def values(rng: np.random.Generator, rows: int, cols: int, amax: F) -> np.ndarray:
    """One kind of trouble per row."""
    halves = F([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])
    g = F(amax / F(2688)) if 0 < amax < 1e30 else F(1)
    i = np.arange(cols)
    gauss = rng.standard_normal((rows, cols)).astype(F)
    x = gauss * F(0.3) * (amax if g != 1 or amax == 2688 else F(1))
    signs = np.where(i // 8 % 2, F(-1), F(1)).astype(F)
    x[0] = signs * halves[i % 8] * g * np.repeat(F(2.0) ** rng.integers(-4, 8, cols // 8 + 1), 8)[:cols].astype(F)
    x[1] = np.nextafter(x[0], np.where(rng.integers(0, 2, cols), F(np.inf), F(-np.inf)).astype(F))
    x[2] = gauss[2] * g  # scales near 1 and beneath
    x[3] = gauss[3] * g * np.repeat(F(2.0) ** rng.integers(-12, -4, cols // 8 + 1), 8)[:cols].astype(F)  # subnormal ones
    x[4] = F(6) * g * np.repeat(rng.integers(16, 33, cols // 8 + 1), 8)[:cols].astype(F)  # their ties
    x[5] = F(6) * g * np.repeat(rng.integers(1, 17, cols // 8 + 1) / 1024, 8)[:cols].astype(F)
    x[6] = 0
    x[7] = gauss[7] * F(6e-5)
    x[8] = gauss[8]
    x[8, ::37] = np.nan
    x[8, 5::41] = np.inf
    x[8, 7::43] = -np.inf
    x[9] = gauss[9] * F(1e-40)
    return x.astype(F)


def main() -> None:
    rng = np.random.default_rng(25)
    cases = [(size, 256, amax) for size in (8, 16, 32, 64, 128, 256) for amax in (2688, 3 if size % 32 else 1e6)]
    cases += [(size, cols, 2688) for size, cols in ((16, 27), (32, 81), (64, 100), (128, 243), (256, 700))]
    cases += [(16, 64, amax) for amax in (0, -5, np.nan, np.inf, 1e-10, 1e-42, 3.4e38)]
    with open(Path(sys.argv[1]) / "fake_quant.bin", "wb") as f:
        f.write(struct.pack("<I", len(cases)))
        for size, cols, amax in cases:
            x = values(rng, 10, cols, F(amax))
            f.write(struct.pack("<IIIf", *x.shape, size, amax) + x.astype("<f4").tobytes())
            f.write(quantized(x, size, F(amax)).astype("<f4").tobytes())


main()
