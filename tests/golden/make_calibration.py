# SPDX-License-Identifier: Apache-2.0
"""Writes calibration/, inputs as .npy files and expected.json, by numpy alone; each formula is stated here on its own.

usage: make_calibration.py OUT_DIR      (see README.md beside this file)

Where torch is installed, its observers of minimum and maximum, and of their moving average, are compared while
generating.
"""
import json
import sys
from pathlib import Path

import numpy as np

BINS = 256
MOMENTUM = 0.9
INTEGERS = {"int8": (-128, 127), "int4": (-8, 7), "int3": (-4, 3), "uint8": (0, 255), "uint4": (0, 15)}
PERCENTILES = (50.0, 99.0, 99.9, 100.0)


def float_magnitudes(exponent_bits: int, mantissa_bits: int, largest: float) -> np.ndarray:
    bias = 2 ** (exponent_bits - 1) - 1
    found = {0.0}
    for exponent in range(1 - bias, bias + 2):
        for fraction in range(2 ** mantissa_bits):
            found.add((1 + fraction / 2 ** mantissa_bits) * 2.0 ** exponent)
            found.add(fraction / 2 ** mantissa_bits * 2.0 ** (1 - bias))
    return np.array(sorted(v for v in found if v <= largest))


FLOATS = {"e4m3": float_magnitudes(4, 3, 448), "e5m2": float_magnitudes(5, 2, 57344), "e2m1": float_magnitudes(2, 1, 6)}


def bits_of(target: str) -> int:
    return {"e4m3": 8, "e5m2": 8, "e2m1": 4}.get(target) or int(target[-1])


def magnitudes(target: str) -> np.ndarray:
    return FLOATS[target] if target in FLOATS else np.arange(2.0 ** (bits_of(target) - 1))


def scale_for(low: float, high: float, target: str, symmetric: bool) -> tuple:
    """s = amax / (2^(b-1) - 1); or s = (max - min) / (2^b - 1), zp = round(qmin - min / s), 0 in [min, max]."""
    if symmetric:
        extent, steps = max(abs(low), abs(high)), magnitudes(target)[-1]
    else:
        low, high = min(low, 0.0), max(high, 0.0)
        extent, steps = high - low, 2 ** bits_of(target) - 1
    s = np.float32(1) if extent == 0 else max(np.float32(extent / steps), np.finfo(np.float32).tiny)
    if symmetric:
        return s, 2 ** (bits_of(target) - 1) if target.startswith("u") else 0
    first, last = INTEGERS[target]
    return s, int(np.clip(np.rint(first - low / float(s)), first, last))


def bin_width(x: np.ndarray) -> float:
    width = 2.0 ** -200
    while not np.abs(x).max() < BINS * width:
        width *= 2
    return width


def percentile(x: np.ndarray, p: float, symmetric: bool) -> tuple:
    """The order statistic first, by sorting; then the end of its bin."""
    w = bin_width(x)

    def upper(values: np.ndarray, share: float) -> float:
        ordered = np.sort(values)
        rank = int(min(max(np.ceil(share * len(values) / 100), 1), len(values)))
        if rank == len(values):
            return float(ordered[-1])
        value = float(ordered[rank - 1])
        end = (np.floor(value / w) + 1) * w if value >= 0 else -np.floor(-value / w) * w
        return min(end, float(ordered[-1])) + 0.0

    if symmetric:
        t = upper(np.abs(x), p)
        return -t, t
    # A zero is the least of the values from 0 up: negated it is among those below, whose bins end at 0.
    negated = -x
    negated[x == 0] = -1e-300
    low = upper(negated, (100 + p) / 2)
    return 0.0 if low == -1e-300 else -low + 0.0, upper(x, (100 + p) / 2)


def entropy(x: np.ndarray, levels: int) -> float:
    """Migacz, 8-bit inference with TensorRT (GTC 2017)."""
    w, amax = bin_width(x), float(np.abs(x).max())
    if amax == 0:
        return 0.0
    h = np.bincount(np.floor(np.abs(x) / w).astype(int)).astype(float)
    best, clip = np.inf, amax
    for i in range(len(h), levels - 1, -1):
        p = h[:i].copy()
        p[-1] += h[i:].sum()
        q = np.zeros(i)
        part = np.arange(i) * levels // i
        for level in range(levels):
            inside = part == level
            filled = inside & (h[:i] > 0)
            if filled.any():
                q[filled] = h[:i][inside].sum() / filled.sum()
        if q.sum() == 0 or (p[q == 0] > 0).any():
            continue
        p, q = p / p.sum(), q / q.sum()
        used = p > 0
        divergence = (p[used] * np.log(p[used] / q[used])).sum()
        if divergence < best - 1e-12:
            best, clip = divergence, min(i * w, amax)
    return clip


def histogram(x: np.ndarray) -> tuple:
    """Middles and counts, with zero among the positive."""
    w = bin_width(x)
    place = np.where(x < 0, -1 - np.floor(np.abs(x) / w), np.floor(np.abs(x) / w))
    at, counts = np.unique(place, return_counts=True)
    return (at + 0.5) * w, counts.astype(float)


def squared_error(middles: np.ndarray, counts: np.ndarray, levels: np.ndarray) -> float:
    return float((counts * np.abs(middles[:, None] - levels[None, :]).min(axis=1) ** 2).sum())


def mse_symmetric(x: np.ndarray, target: str) -> float:
    w, amax = bin_width(x), float(np.abs(x).max())
    middles, counts = histogram(np.abs(x))
    best, clip = np.inf, amax
    for i in range(int(np.floor(amax / w)) + 1, 0, -1):
        t = min(i * w, amax)
        error = squared_error(middles, counts, magnitudes(target) * float(scale_for(-t, t, target, True)[0]))
        if error < best:
            best, clip = error, t
    return clip


def mse_asymmetric(x: np.ndarray, target: str) -> float:
    """The least error of any two ends of bins: all pairs."""
    w = bin_width(x)
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    middles, counts = histogram(x)
    first, last = INTEGERS[target]
    best = np.inf
    for a in [low, *(-np.arange(np.ceil(-low / w)) * w)]:
        for b in [high, *(np.arange(np.ceil(high / w)) * w)]:
            s, zero = scale_for(a, b, target, False)
            best = min(best, squared_error(middles, counts, (np.arange(first, last + 1) - zero) * float(s)))
    return best


def moving_average(batches: np.ndarray) -> tuple:
    state = None
    for batch in batches:
        now = np.array([batch.min(), batch.max()], dtype=np.float64)
        state = now if state is None else MOMENTUM * state + (1 - MOMENTUM) * now
    return float(state[0]), float(state[1])


def compare_with_torch(batches: np.ndarray) -> None:
    try:
        import torch
        from torch.ao.quantization.observer import MinMaxObserver, MovingAverageMinMaxObserver
    except ImportError:
        return
    average, extremes = MovingAverageMinMaxObserver(averaging_constant=1 - MOMENTUM), MinMaxObserver()
    for batch in batches:
        average(torch.from_numpy(batch.copy()))
        extremes(torch.from_numpy(batch.copy()))
    assert np.allclose([float(average.min_val), float(average.max_val)], moving_average(batches), rtol=1e-5, atol=1e-7)
    assert (float(extremes.min_val), float(extremes.max_val)) == (batches.min(), batches.max())
    scale, zero = extremes.calculate_qparams()
    ours = scale_for(float(batches.min()), float(batches.max()), "uint8", False)
    assert np.isclose(float(scale), float(ours[0]), rtol=1e-6) and abs(int(zero) - ours[1]) <= 1


def results(batches: np.ndarray, pairs: bool) -> list:
    x = batches.astype(np.float64).ravel()
    found = []

    def add(method: str, target: str, symmetric: bool, low: float, high: float, **more):
        s, zero = scale_for(low, high, target, symmetric)
        found.append({"method": method, "target": target, "symmetric": symmetric, "min": low, "max": high,
                      "scale": float(s), "zero_point": zero, **more})

    low, high = float(x.min()) + 0.0, float(x.max()) + 0.0
    amax = max(abs(low), abs(high))
    average = moving_average(batches)
    largest_average = max(map(abs, average))
    for target in [*INTEGERS, *FLOATS]:
        add("min-max", target, True, -amax, amax)
        add("moving-average", target, True, -largest_average, largest_average)
        t = entropy(x, 2 ** (bits_of(target) - 1))
        add("entropy", target, True, -t, t)
        t = mse_symmetric(x, target)
        add("mse", target, True, -t, t)
        if target in INTEGERS:
            add("min-max", target, False, low, high)
            add("moving-average", target, False, *average)
            if pairs and bits_of(target) <= 4:
                found.append({"method": "mse", "target": target, "symmetric": False,
                              "least_error": mse_asymmetric(x, target)})
    for p in PERCENTILES:
        add("percentile", "int8", True, *percentile(x, p, True), percentile=p)
        add("percentile", "int8", False, *percentile(x, p, False), percentile=p)
    return found


def main() -> None:
    out = Path(sys.argv[1]) / "calibration"
    out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(26)
    gauss = rng.standard_normal((4, 600)).astype(np.float32)
    cases = {
        "gauss": (gauss * np.float32([[1], [0.5], [2], [0.7]]), True),
        "relu": (np.maximum(rng.standard_normal((3, 500)), 0).astype(np.float16), True),
        "outliers": (np.concatenate([rng.laplace(size=(2, 800)), 60 * rng.standard_normal((2, 4))], 1)
                     .astype(np.float32), False),
        "skewed": ((rng.gamma(2.0, size=(5, 200)) - 0.4).astype(np.float64), True),
        "one_value": (np.full((2, 7), -2.75, np.float32), False),
        "zeros": (np.float32([[0.0, -0.0, 0.0]]), False),
        "least": (np.float32([[1e-45, -3e-45, 0, 1e-40]]), False),
        "largest": (np.float32([[3.4028235e38, -1e38, 5]]), False),
    }
    expected = {"bins": BINS, "momentum": MOMENTUM, "cases": {}}
    for name, (array, pairs) in cases.items():
        np.save(out / f"{name}.npy", array)
        single = array.astype(np.float32)
        compare_with_torch(single) if name not in ("least", "largest", "zeros", "one_value") else None
        expected["cases"][name] = results(single, pairs)
    (out / "expected.json").write_text(json.dumps(expected, indent=0) + "\n")


if __name__ == "__main__":
    main()
