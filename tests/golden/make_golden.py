# SPDX-License-Identifier: Apache-2.0
"""Writes the golden vectors of the encoders. Independent of Tilewright: ggml's C code, the gguf package, numpy, ml_dtypes.

usage: make_golden.py MODEL.safetensors GGML_GIT_DIR OUT_DIR      (see README.md beside this file)
       make_golden.py searched MODEL.safetensors GGML_GIT_DIR OUT_DIR   ggml's encoders of q2_k, q3_k, q5_k, q6_k alone
       make_golden.py levels MODEL.safetensors GGML_GIT_DIR OUT_DIR     iq4_nl to iq1_m, tq1_0, tq2_0, q1_0, q2_0 alone
       make_golden.py plain OUT_DIR            the files that need neither, of numpy and ml_dtypes alone
"""
import struct
import sys
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np

F = np.float32
GGML_FUNCTIONS = {
    "q4_1": ("quantize_row_q4_1_ref", "dequantize_row_q4_1", 32, 20),
    "q5_0": ("quantize_row_q5_0_ref", "dequantize_row_q5_0", 32, 22),
    "q5_1": ("quantize_row_q5_1_ref", "dequantize_row_q5_1", 32, 24),
    "q2_k": ("quantize_row_q2_K_ref", "dequantize_row_q2_K", 256, 84),
    "q3_k": ("quantize_row_q3_K_ref", "dequantize_row_q3_K", 256, 110),
    "q5_k": ("quantize_row_q5_K_ref", "dequantize_row_q5_K", 256, 176),
    "q6_k": ("quantize_row_q6_K_ref", "dequantize_row_q6_K", 256, 210),
    "iq4_nl": ("quantize_row_iq4_nl_ref", "dequantize_row_iq4_nl", 32, 18),
    "iq4_xs": ("quantize_row_iq4_xs_ref", "dequantize_row_iq4_xs", 256, 136),
    "tq1_0": ("quantize_row_tq1_0_ref", "dequantize_row_tq1_0", 256, 54),
    "tq2_0": ("quantize_row_tq2_0_ref", "dequantize_row_tq2_0", 256, 66),
    "q1_0": ("quantize_row_q1_0_ref", "dequantize_row_q1_0", 128, 18),
    "q2_0": ("quantize_row_q2_0_ref", "dequantize_row_q2_0", 64, 18),
    "iq3_s": ("quantize_row_iq3_s_ref", "dequantize_row_iq3_s", 256, 110),
    "iq3_xxs": ("quantize_row_iq3_xxs_ref", "dequantize_row_iq3_xxs", 256, 98),
    "iq2_s": ("quantize_row_iq2_s_ref", "dequantize_row_iq2_s", 256, 82),
    "iq2_xs": (None, "dequantize_row_iq2_xs", 256, 74),
    "iq2_xxs": (None, "dequantize_row_iq2_xxs", 256, 66),
    "iq1_s": (None, "dequantize_row_iq1_s", 256, 50),
    "iq1_m": (None, "dequantize_row_iq1_m", 256, 56),
}
COLS = 512


def edge() -> np.ndarray:
    """One kind of trouble per row. Every stored scale stays finite in fp16 except where the row says so."""
    rng = np.random.default_rng(20261121)
    gauss = lambda scale: (rng.standard_normal(COLS) * scale).astype(F)
    rows = []
    zero = gauss(1.0).reshape(-1, 32)
    zero[::2] = 0  # zero blocks between others, for blocks of 32 and (the first half of the row) of 256
    zero[:8] = 0
    rows.append(zero.reshape(-1))
    rows.append(np.repeat(F([1, -1, 0.5, -3, 7, -8, 1e-3, -1e-3, 127, -127, 0, 448, -448, 6, 0.1, -0.1]), 32))  # constant
    ties8 = (rng.integers(-127, 127, COLS) + F(0.5)).astype(F).reshape(-1, 32)
    ties8[:, 7] = 127  # scale exactly 1 for the 8-bit formats: every other value is a tie
    rows.append(ties8.reshape(-1))
    ties4 = (rng.integers(-8, 7, COLS) + F(0.5)).astype(F).reshape(-1, 32)
    ties4[:, 0] = -8  # Q4_0: scale exactly 1, largest magnitude negative
    rows.append(ties4.reshape(-1))
    both = gauss(0.3).reshape(-1, 32)
    both[::2, 5], both[::2, 19] = 2, -2    # the largest magnitude twice with both signs: the first wins
    both[1::2, 5], both[1::2, 19] = -2, 2
    rows.append(both.reshape(-1))
    negative = -np.abs(gauss(0.5))
    rows.append(negative)
    rows.append(gauss(1e-7))                # scales denormal or zero in fp16
    rows.append(gauss(1e-36))               # 1 / scale is still a float; smaller inputs are undefined in ggml
    rows.append(gauss(6e4))                 # large; q8_1's sum is infinite in some blocks
    spike = gauss(1e-2)
    spike[::32] = 300                       # one outlier per block
    rows.append(spike)
    ramp = (np.arange(COLS) / 16 - 16).astype(F)
    rows.append(ramp)
    positive = np.abs(gauss(0.02)) + F(1)   # far from zero: K-quants' minimum is clamped
    rows.append(positive)
    return np.stack(rows)


def edge_fp4() -> np.ndarray:
    """For NVFP4: the largest magnitude is 2688, so the global scale is exactly 1 and ties can be written down."""
    rng = np.random.default_rng(4)
    half = F([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])
    ties = np.concatenate([half, -half])
    scales = F([1, 2, 0.5, 448, 0.0625, 3.5, 26, 0.015625] * 4)
    rows = [np.concatenate([ties * s for s in scales])]
    zero = rng.standard_normal((32, 16)).astype(F)
    zero[::3] = 0
    rows.append(zero.reshape(-1))
    rows.append((rng.standard_normal(COLS) * np.repeat(F(2.0) ** np.arange(-20, 12), 16)).astype(F))  # floor of the scale
    scale_ties = np.repeat(6 * F([1.0625, 1.1875, 1.3125, 17, 19, 30, 31, 33] * 4), 16).astype(F)  # e4m3 ties
    scale_ties *= np.tile(F([1, -1, 0.5, -0.5]), 128)
    rows.append(scale_ties)
    return np.clip(np.stack(rows), -2688, 2688)


def write(path: Path, x: np.ndarray, streams: list, decoded: np.ndarray) -> None:
    with open(path, "wb") as f:
        f.write(struct.pack("<II", *x.shape) + x.astype("<f4").tobytes() + struct.pack("<I", len(streams)))
        for stream in streams:
            data = np.ascontiguousarray(stream).tobytes()
            f.write(struct.pack("<I", len(data)) + data)
        f.write(decoded.astype("<f4").tobytes())


def ggml_format(ggml, name: str, x: np.ndarray):
    data = ggml.encode(name, x)
    decoded = ggml.decode(name, data, x.shape[1])
    from gguf import GGMLQuantizationType as T
    from gguf import quants
    # A second opinion where the gguf package has one: its encoders of the legacy formats, its decoders of all.
    kind = getattr(T, name.upper())
    if name in ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0"):
        assert (quants.quantize(x, kind) == data).all(), name
    if name != "q8_1":
        assert np.array_equal(quants.dequantize(data, kind), decoded, equal_nan=True), name
    return [data], decoded


def q4_0_amax7(x: np.ndarray):
    """d = amax / 7, codes clamp(round half away(x / unrounded d), -8, 7) + 8; the bytes are Q4_0's."""
    b = x.reshape(-1, 32)
    d = (np.abs(b).max(1) / F(7)).astype(F)
    inverse = np.divide(F(1), d, out=np.zeros_like(d), where=d > 0)
    v = (b * inverse[:, None]).astype(F)
    q = np.clip(np.sign(v) * np.floor(np.abs(v).astype(np.float64) + 0.5), -8, 7).astype(np.int32) + 8
    half = d.astype(np.float16)
    data = np.concatenate([half.view(np.uint8).reshape(-1, 2), (q[:, :16] | q[:, 16:] << 4).astype(np.uint8)], 1)
    decoded = ((q - 8).astype(F) * half.astype(F)[:, None]).astype(F)
    return [data], decoded.reshape(x.shape)


def nvfp4(x: np.ndarray):
    g = F(np.abs(x).max() / F(6 * 448))
    b = x.reshape(-1, 16)
    wanted = (np.abs(b).max(1) / (F(6) * g)).astype(F)
    wanted[wanted == 0] = 1
    scale = np.clip(wanted, F(2.0 ** -9), F(448)).astype(ml_dtypes.float8_e4m3fn)
    v = (b / (scale.astype(F) * g)[:, None]).astype(F)
    q = np.clip(v, -6, 6).astype(ml_dtypes.float4_e2m1fn)
    codes = q.view(np.uint8) & 15
    data = codes[:, 0::2] | codes[:, 1::2] << 4
    decoded = (q.astype(F) * (scale.astype(F) * g)[:, None]).astype(F)
    return [data, scale.view(np.uint8), np.array([g], F)], decoded.reshape(x.shape)


def e4m3(x: np.ndarray):
    s = (np.abs(x).max(1) / F(448)).astype(F)
    s[s == 0] = 1
    q = np.clip((x / s[:, None]).astype(F), -448, 448).astype(ml_dtypes.float8_e4m3fn)
    return [q.view(np.uint8), s], (q.astype(F) * s[:, None]).astype(F)


def e4m3_blocks(x: np.ndarray, rows: int):
    """One scale per `rows` rows and 128 columns; the last rows may be fewer."""
    s = np.stack([np.abs(x[r:r + rows]).max(0).reshape(-1, 128).max(1) for r in range(0, x.shape[0], rows)]) / F(448)
    s = s.astype(F)
    s[s == 0] = 1
    each = np.repeat(np.repeat(s, rows, 0)[:x.shape[0]], 128, 1)
    q = np.clip((x / each).astype(F), -448, 448).astype(ml_dtypes.float8_e4m3fn)
    return [q.view(np.uint8), s], (q.astype(F) * each).astype(F)


def edge_weights() -> np.ndarray:
    """edge(), and what the integer formats of weights stumble over. One case per row again."""
    rng = np.random.default_rng(20261122)
    pick = lambda low, high: (rng.integers(low, high, COLS) + F(0.5)).astype(F)
    ties7, ties15, shifted = pick(-7, 7), pick(0, 15), pick(-5, 10)
    ties7[::32], ties15[::32], shifted[::32], shifted[1::32] = 7, 15, -5, 10  # scale exactly 1, zero point 0 and 5
    ties_fp4 = np.tile(F([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5.0, -6.0]), 32)
    rows = [ties7, ties15, shifted, ties_fp4]
    rows.append((rng.standard_normal(COLS) * 1e6).astype(F))    # scales are infinite in fp16
    rows.append((rng.standard_normal(COLS) * 1e-41).astype(F))  # denormal floats
    rows.append(np.zeros(COLS, F))
    rows.append(-np.abs(ties7) - F(1))                          # 0 is not between the extremes
    return np.concatenate([edge(), np.stack(rows)])


def packed_nibbles(codes: np.ndarray) -> np.ndarray:
    """codes [rows, K] -> bytes, as int32 words of eight codes, the first in the lowest bits (compressed-tensors)."""
    words = np.zeros((codes.shape[0], codes.shape[1] // 8), np.uint32)
    for i in range(8):
        words |= codes[:, i::8].astype(np.uint32) << np.uint32(4 * i)
    return words.astype("<u4").view(np.uint8)


def int4_groups(x: np.ndarray, group: int, top: float = 7, least: int = -7):
    b = x.reshape(-1, group)
    stored = (np.abs(b).max(1) / F(top)).astype(np.float16)
    s = stored.astype(F)[:, None]
    good = (s > 0) & np.isfinite(s)
    q = np.where(good, np.clip(np.rint(b / np.where(good, s, F(1))), least, 7), 0).astype(np.int32)
    return [packed_nibbles((q + 8).reshape(x.shape)), stored], (q.astype(F) * s).reshape(x.shape)


def int3_groups(x: np.ndarray, group: int):
    """Codes of a row in the bits that GPTQ gives those of a column: code i is bits 3 i to 3 i + 2, lowest first."""
    b = x.reshape(-1, group)
    stored = (np.abs(b).max(1) / F(3)).astype(np.float16)
    s = stored.astype(F)[:, None]
    good = (s > 0) & np.isfinite(s)
    q = np.where(good, np.clip(np.rint(b / np.where(good, s, F(1))), -3, 3), 0).astype(np.int32)
    bits = ((q + 4).reshape(x.shape[0], -1, 1) >> np.arange(3) & 1).astype(np.uint8)
    return [np.packbits(bits.reshape(x.shape[0], -1), axis=1, bitorder="little"), stored], (q.astype(F) * s).reshape(x.shape)


def uint4_groups(x: np.ndarray, group: int):
    b = x.reshape(-1, group)
    low, high = np.minimum(b.min(1), F(0)), np.maximum(b.max(1), F(0))
    stored = np.maximum((high - low) / F(15), F(2.0 ** -24)).astype(np.float16)
    s = stored.astype(F)
    good = np.isfinite(s)
    zero = np.where(good, np.clip(np.rint(-low / s), 0, 15), 0).astype(np.int32).astype(F)  # no -0
    shift = np.where(good, zero * s, 0).astype(F)
    c = np.where(good[:, None], np.clip(np.rint((b + shift[:, None]) / s[:, None]), 0, 15), 0).astype(np.int32)
    items = np.stack([stored, zero.astype(np.float16)], 1)
    return [packed_nibbles(c.reshape(x.shape)), items], ((c.astype(F) - zero[:, None]) * s[:, None]).reshape(x.shape)


def row_scale(x: np.ndarray, top: float) -> np.ndarray:
    s = (np.abs(x).max(1) / F(top)).astype(F)
    s[s == 0] = 1
    return s


def int_row(x: np.ndarray, top: int):
    s = row_scale(x, top)
    q = np.clip(np.rint(x / s[:, None]), -top, top).astype(np.int32)
    data = q.astype(np.int8).view(np.uint8) if top == 127 else packed_nibbles(q + 8)
    return [data, s], (q.astype(F) * s[:, None]).astype(F)


def int8_asym_row(x: np.ndarray):
    low, high = np.minimum(x.min(1), F(0)), np.maximum(x.max(1), F(0))
    s = ((high - low) / F(255)).astype(F)
    s[s == 0] = 1
    zero = np.clip(np.rint(-low / s), 0, 255).astype(np.int32)
    unsigned = np.clip(np.rint(x / s[:, None]) + zero[:, None], 0, 255).astype(np.int32)
    codes = (unsigned - 128).astype(np.int8)
    items = np.zeros(len(x), [("scale", F), ("zero", np.int32), ("sum", np.int32), ("unused", np.int32)])
    items["scale"], items["zero"], items["sum"] = s, zero - 128, codes.sum(1, dtype=np.int32)
    return [codes.view(np.uint8), items], ((unsigned - zero[:, None]).astype(F) * s[:, None]).astype(F)


def e2m1_row(x: np.ndarray):
    s = row_scale(x, 6)
    q = np.clip((x / s[:, None]).astype(F), -6, 6).astype(ml_dtypes.float4_e2m1fn)
    return [packed_nibbles(q.view(np.uint8) & 15), s], (q.astype(F) * s[:, None]).astype(F)


NF4 = F([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
         -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
         0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0])


def single(decimal: str) -> np.float32:
    """As C reads a literal: the nearest float. (Some of the pivots are means of two floats, and no float in double precision.)"""
    near = F(decimal)
    return min((near, np.nextafter(near, F(2)), np.nextafter(near, F(-2))), key=lambda v: abs(Fraction(float(v)) - Fraction(decimal)))


NF4_PIVOTS = F([single(v) for v in (
    "-0.8480964004993439 -0.6106329262256622 -0.4599952697753906 -0.33967943489551544 -0.23460740596055984 -0.13791173323988914 "
    "-0.045525018125772476 0.03979014977812767 0.1202552504837513 0.2035212516784668 0.2920137718319893 0.3893125355243683 "
    "0.5016634166240692 0.6427869200706482 0.8614784181118011").split()])


def nf4(x: np.ndarray):
    """bitsandbytes' CUDA kernel: x times the reciprocal of absmax, the code is what a tree of `>` finds; the even element
    is the upper nibble."""
    b = x.reshape(-1, 64)
    absmax = np.abs(b).max(1)
    v = (b * (F(1) / absmax)[:, None]).astype(F)
    codes = np.zeros(b.shape, np.int32)
    for bit in (3, 2, 1, 0):  # the pivot of a subtree is before its upper half
        codes |= np.where(v > NF4_PIVOTS[codes + (1 << bit) - 1], 1 << bit, 0)
    data = (codes[:, 0::2] << 4 | codes[:, 1::2]).astype(np.uint8)
    return [data, absmax], (NF4[codes] * absmax[:, None]).astype(F).reshape(x.shape)


def edge_nf4() -> np.ndarray:
    """Blocks of 64 whose largest magnitude is a power of two: every pivot, its neighbours, and every value."""
    special = np.concatenate([NF4_PIVOTS, np.nextafter(NF4_PIVOTS, F(2)), np.nextafter(NF4_PIVOTS, F(-2)), NF4])
    rows = np.stack([np.concatenate([special, F([1, -1, 0.9999999])]) * F(2.0) ** e for e in (0, 3, -7, 40, -40, 126, -120, 1)])
    rows[-1] *= F(0.3)  # quotients that are rounded
    return rows.reshape(1, -1).astype(F)


def row_mean(x: np.ndarray) -> np.ndarray:
    return (np.add.accumulate(np.abs(x).astype(np.float64), axis=1)[:, -1] / x.shape[1]).astype(F)


def ternary_row(x: np.ndarray):
    s = row_mean(x)
    s[s == 0] = 1
    q = np.clip(np.rint((x / s[:, None]).astype(F)), -1, 1).astype(np.int32)
    codes = (q + 1).astype(np.uint8).reshape(x.shape[0], -1, 4)
    data = codes[..., 0] | codes[..., 1] << 2 | codes[..., 2] << 4 | codes[..., 3] << 6
    return [data, s], (q.astype(F) * s[:, None]).astype(F)


def sign_rows(x: np.ndarray, negative: bool):
    s = row_mean(x)
    bits = x < 0 if negative else x >= 0
    items = np.zeros((x.shape[0], 4), np.int32)  # scale, ones, and two zeros
    items[:, 0], items[:, 1] = s.view(np.int32), bits.sum(1)
    return [np.packbits(bits, axis=1, bitorder="little"), items], np.where(x < 0, -s[:, None], s[:, None]).astype(F)


def e8m0(b: np.ndarray, emax: int, rule: str, largest: float, rounds_up: float) -> np.ndarray:
    """Exponents of the blocks' scales. largest, rounds_up: significands of the largest element, and of the least that is
    two once it is rounded half up to an element's bits."""
    half, exponent = np.frexp(np.abs(b).max(1))  # amax = half * 2^exponent
    up = {"floor": False, "ceil": 2 * half > largest, "even": 2 * half >= rounds_up}[rule]
    return np.where(half == 0, -127, np.clip(exponent - 1 - emax + up, -127, 127))[:, None]


def mxfp4(x: np.ndarray, rule: str = "floor"):
    b = x.reshape(-1, 32)
    e = e8m0(b, 2, rule, 1.5, 1.75)
    q = np.clip(np.ldexp(b.astype(np.float64), -e), -6, 6).astype(F).astype(ml_dtypes.float4_e2m1fn)
    decoded = np.ldexp(q.astype(np.float64), e).astype(F)
    return [packed_nibbles((q.view(np.uint8) & 15).reshape(x.shape)), (e + 127).astype(np.uint8)], decoded.reshape(x.shape)


def mxfp8(x: np.ndarray, rule: str = "floor"):
    b = x.reshape(-1, 32)
    e = e8m0(b, 8, rule, 1.75, 1.9375)
    q = np.clip(np.ldexp(b.astype(np.float64), -e), -448, 448).astype(F).astype(ml_dtypes.float8_e4m3fn)
    decoded = np.ldexp(q.astype(np.float64), e).astype(F)
    return [q.view(np.uint8).reshape(x.shape), (e + 127).astype(np.uint8)], decoded.reshape(x.shape)


def nearest_e2m1(b: np.ndarray, scale: np.ndarray):
    """The index of the nearest of ggml's sixteen values in single precision, the first of equals (best_index_mxfp4)."""
    values = F([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = np.concatenate([values, -values])
    return np.abs((values * scale[..., None]).astype(F) - b[..., None]).astype(F).argmin(-1).astype(np.uint8), values


def ggml_mxfp4(x: np.ndarray):
    b = x.reshape(-1, 32)
    e = e8m0(b, 2, "floor", 1.5, 1.75)
    scale = np.broadcast_to(np.ldexp(1.0, e).astype(F), b.shape)
    codes, values = nearest_e2m1(b, scale)
    data = np.concatenate([(e + 127).astype(np.uint8), codes[:, :16] | codes[:, 16:] << 4], 1)
    return [data], (values[codes] * scale).astype(F).reshape(x.shape)


def ggml_nvfp4(x: np.ndarray):
    b = x.reshape(-1, 16)
    wanted = (np.abs(b).max(1) / F(6)).astype(F)
    # Half up: of what lies between two codes, and in seven steps of 2^-9 at most below 2^-6; from 256 on 448.
    all_scales = np.arange(0, 0x78, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(F)
    between = (all_scales[1:] + all_scales[:-1]) / 2
    scale = all_scales[np.searchsorted(between, np.minimum(wanted, 256), side="right")]
    scale[wanted < 2.0 ** -6] = np.minimum(scale[wanted < 2.0 ** -6], 7 * 2.0 ** -9)
    scale[(wanted >= 248) | (scale >= 256)] = 448
    scales = scale.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    codes, values = nearest_e2m1(b, np.broadcast_to(scale[:, None], b.shape))
    data = np.concatenate([scales.reshape(-1, 4), (codes[:, :8] | codes[:, 8:] << 4).reshape(-1, 32)], 1)
    return [data], (values[codes] * scale[:, None]).astype(F).reshape(x.shape)


def to_int(v: np.ndarray, low: int, high: int) -> np.ndarray:
    return np.clip(np.rint(np.where(np.isnan(v), F(0), v)), low, high).astype(np.int32)


def plain_minima(x: np.ndarray, size: int, top: int, top_scale: int):
    """Of each 256: half d and dmin, integer scales and minima per `size`, codes. The library's own rule, see k_quants.cuh."""
    b = x.reshape(-1, 256 // size, size)
    low = np.minimum(b.min(2), F(0))
    scale, minimum = ((b.max(2) - low) / F(top)).astype(F), F(0) - low
    halves, integers = [], []
    for v in (scale, minimum):
        most = v.max(1, keepdims=True)
        halves.append((most[:, 0] / F(top_scale)).astype(np.float16))
        integers.append(to_int(F(top_scale) * (v / most), 0, top_scale))  # 0 / 0 is taken as 0
    step, shift = (h.astype(F)[:, None] * i.astype(F) for h, i in zip(halves, integers))
    codes = np.where(step[..., None] > 0, to_int((b + shift[..., None]) / step[..., None], 0, top), 0)
    return *halves, *integers, codes.reshape(-1, 256)


def plain_signed(x: np.ndarray, half: int, top_scale: int):
    b = x.reshape(-1, 16, 16)
    extreme = np.take_along_axis(b, np.abs(b).argmax(2)[..., None], 2)[..., 0]
    scale = (extreme / F(-half)).astype(F)
    most = np.take_along_axis(scale, np.abs(scale).argmax(1)[:, None], 1)
    d = (most[:, 0] / F(-top_scale)).astype(np.float16)
    scales = to_int(F(-top_scale) * (scale / most), -top_scale, top_scale - 1)
    step = d.astype(F)[:, None] * scales.astype(F)
    codes = half + np.where(step[..., None] != 0, to_int(b / step[..., None], -half, half - 1), 0)
    return d, scales, codes.reshape(-1, 256)


def as_bytes(half: np.ndarray) -> np.ndarray:
    return half.view(np.uint8).reshape(-1, 2)


def k_quant(ggml, name: str, x: np.ndarray):
    """Plain encoders, the bytes put together here, decoded by ggml."""
    from gguf import GGMLQuantizationType as T
    from gguf import quants
    if name in ("q2_k", "q5_k"):
        d, dmin, sc, m, codes = plain_minima(x, *{"q2_k": (16, 3, 15), "q5_k": (32, 31, 63)}[name])
    else:
        d, sc, codes = plain_signed(x, *{"q3_k": (4, 32), "q6_k": (32, 128)}[name])
    part = codes.reshape(-1, 2, 4, 32)  # half, quarter, element
    two_bits = lambda v: (v[:, :, 0] | v[:, :, 1] << 2 | v[:, :, 2] << 4 | v[:, :, 3] << 6).reshape(-1, 64)
    one_bit = lambda v: np.bitwise_or.reduce(v.reshape(-1, 8, 32) << np.arange(8)[:, None], axis=1)
    if name == "q2_k":
        fields = [sc | m << 4, two_bits(part), as_bytes(d), as_bytes(dmin)]
    elif name == "q3_k":
        s = sc + 32
        lower = s[:, :8] & 15 | (s[:, 8:] & 15) << 4
        upper = s[:, 0:4] >> 4 | s[:, 4:8] >> 4 << 2 | s[:, 8:12] >> 4 << 4 | s[:, 12:16] >> 4 << 6
        fields = [one_bit(part >> 2), two_bits(part & 3), lower, upper, as_bytes(d)]
    elif name == "q5_k":
        pairs = codes.reshape(-1, 4, 2, 32) & 15
        packed = [sc[:, :4] | sc[:, 4:] >> 4 << 6, m[:, :4] | m[:, 4:] >> 4 << 6, sc[:, 4:] & 15 | (m[:, 4:] & 15) << 4]
        fields = [as_bytes(d), as_bytes(dmin), *packed, one_bit(part >> 4), (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)]
    else:
        low = part & 15
        nibbles = np.concatenate([low[:, :, 0] | low[:, :, 2] << 4, low[:, :, 1] | low[:, :, 3] << 4], 2).reshape(-1, 128)
        fields = [nibbles, two_bits(part >> 4), sc & 255, as_bytes(d)]
    data = np.concatenate([f.astype(np.uint8) for f in fields], 1).reshape(x.shape[0], -1)
    decoded = ggml.decode(name, data, x.shape[1])
    assert np.array_equal(quants.dequantize(data, getattr(T, name.upper())), decoded, equal_nan=True), name
    return [data], decoded


def weights(out: str, real: np.ndarray, ggml) -> None:
    """One file per format: edge cases, then real weights."""
    x = np.concatenate([edge(), real[:2]])
    for name in ("q4_1", "q5_0", "q5_1"):
        write(Path(out) / f"{name}.bin", x, *ggml_format(ggml, name, x))
    x = np.concatenate([edge_weights(), real[:2]])
    for group in (32, 64, 128):
        write(Path(out) / f"int4_g{group}.bin", x, *int4_groups(x, group))
        write(Path(out) / f"uint4_g{group}.bin", x, *uint4_groups(x, group))
    write(Path(out) / "int4_row.bin", x, *int_row(x, 7))
    write(Path(out) / "int8_row.bin", x, *int_row(x, 127))
    write(Path(out) / "int8_asym_row.bin", x, *int8_asym_row(x))
    write(Path(out) / "e2m1_row.bin", x, *e2m1_row(x))
    write(Path(out) / "mxfp4.bin", x, *mxfp4(x))
    write(Path(out) / "mxfp8.bin", x, *mxfp8(x))
    write(Path(out) / "e4m3_g128.bin", x, *e4m3_blocks(x, 1))
    tall = np.concatenate([np.tile(real, (16, 1)), edge()[:6]])[:, :256]  # two blocks of rows, the last of six
    tall[:128] *= (F(2.0) ** -(np.arange(128, dtype=F) % 9))[:, None]
    tall[128:, 128:] = 0
    write(Path(out) / "e4m3_b128.bin", tall, *e4m3_blocks(tall, 128))
    for name in ("q2_k", "q3_k", "q5_k", "q6_k"):
        write(Path(out) / f"{name}.bin", x, *k_quant(ggml, name, x))


def edge_elements() -> np.ndarray:
    """For elements without a scale: every binade of single precision with ties of every format, and what saturates."""
    rng = np.random.default_rng(20261123)
    rows = [np.array([0.0, -0.0, np.inf, -np.inf, np.nan] + [v * s for v in (
        448, 463.9, 464, 465, 480, 57344, 61439, 61440, 65504, 65519, 65520, 3.38e38, 3.4e38, 127.49, 127.5, 128.5, 2147483520,
        2147483648, 4e9, 2.0 ** -9, 2.0 ** -10, 2.0 ** -16, 2.0 ** -17, 2.0 ** -24, 2.0 ** -25, 2.0 ** -126, 1e-45, 0.5, 1.5,
        2.5) for s in (1, -1)], F)]
    rows[0] = np.pad(rows[0], (0, COLS - rows[0].size))
    for spare in (1, 2, 3, 8, 11, 24):  # bits of mantissa: ties of E5M2, E4M3, bf16 and f16, their neighbours, and any
        mantissa = rng.integers(0, 2 ** spare, COLS) * 2.0 ** -spare + rng.choice([0, 2.0 ** -23, -2.0 ** -24], COLS)
        rows.append(((1 + mantissa) * 2.0 ** rng.integers(-149, 127, COLS) * rng.choice([-1, 1], COLS)).astype(F))
        rows.append(((1 + mantissa) * 2.0 ** rng.integers(-20, 18, COLS) * rng.choice([-1, 1], COLS)).astype(F))
    rows.append((rng.integers(-300, 300, COLS) / F(2)).astype(F))
    return np.stack(rows)


def elements(name: str, x: np.ndarray, top: float = None):
    """Elements by themselves; with `top` under one float for the tensor, amax / top."""
    g = None if top is None else (np.abs(x).max() / F(top)).astype(F)
    v = x if g is None else (x / g).astype(F)
    nan = np.isnan(v)
    kinds = {"f32": F, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "e4m3": ml_dtypes.float8_e4m3fn,
             "e5m2": ml_dtypes.float8_e5m2}
    if name in kinds:
        most = {"e4m3": 448.0, "e5m2": 57344.0}.get(name, np.inf)
        q = np.clip(v, -most, most).astype(kinds[name])
        data = q.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[q.itemsize]).copy()
        data[nan] = {1: 0x7f, 2: 0x7fff, 4: 0x7fc00000}[q.itemsize]  # one NaN of many
        if name == "f32":
            data[nan] = v.view(np.uint32)[nan]
        decoded = q.astype(F)
    else:
        low, high, kind = {"int8": (-128, 127, np.int8), "int32": (-2 ** 31, 2 ** 31 - 1, np.int32)}[name]
        data = np.clip(np.rint(np.where(nan, 0, v).astype(np.float64)), low, high).astype(np.int64).astype(kind)
        decoded = data.astype(F)
    if g is None:
        return [data], decoded
    return [data, np.array([g], F)], (decoded * g).astype(F)


def q8_1_sum_x(x: np.ndarray):
    """Q8_0's codes; s is the half of the inputs' sum in single precision, one after the other (ggml's CUDA quantizer)."""
    b = x.reshape(-1, 32)
    d = (np.abs(b).max(1) / F(127)).astype(F)
    inverse = np.divide(F(1), d, out=np.zeros_like(d), where=d > 0)
    v = (b * inverse[:, None]).astype(F)
    q = (np.sign(v) * np.floor(np.abs(v).astype(np.float64) + 0.5)).astype(np.int8)
    total = np.zeros(len(b), F)
    for i in range(32):
        total = (total + b[:, i]).astype(F)
    data = np.concatenate([as_bytes(d.astype(np.float16)), as_bytes(total.astype(np.float16)), q.view(np.uint8)], 1)
    return [data], (q.astype(F) * d.astype(np.float16).astype(F)[:, None]).astype(F).reshape(x.shape)


def plain(out: str) -> None:
    np.seterr(all="ignore")
    x = edge_elements()
    for name in ("f32", "f16", "bf16", "e4m3", "e5m2", "int8", "int32"):
        write(Path(out) / f"{name}.bin", x, *elements(name, x))
    scaled = np.concatenate([edge(), np.tile(F([448, 232, -232, 3.5, 1.0625, 1.1875, 0.4375, 2 ** -9]), 64)[None]])
    for name, top in (("e4m3", 448), ("e5m2", 57344), ("int8", 127)):
        for case, v in (("wide", scaled), ("narrow", scaled[-1:])):  # the last row's scale is 1 for E4M3
            write(Path(out) / f"{name}_tensor_{case}.bin", v, *elements(name, v, top))
    write(Path(out) / "q8_1_sum_x.bin", edge(), *q8_1_sum_x(edge()))
    steps = np.repeat(6 * F(2.0 ** -9) * F([0.25, 0.5, 0.75, 1.5, 2.5, 6.5, 7.49, 7.5, 7.75, 8, 8.5, 9.5, 120000, 127000, 131072, 229376]
                                           * 2), 16)  # scales below 2^-6 and above 240
    steps *= np.tile(F([1, -0.7, 0.5, -0.25]), 128)
    fp4 = np.concatenate([edge(), edge_fp4(), steps[None]])
    write(Path(out) / "ggml_mxfp4.bin", fp4, *ggml_mxfp4(fp4))
    write(Path(out) / "ggml_nvfp4.bin", fp4, *ggml_nvfp4(fp4))
    v = edge_weights()
    nf4_rows = np.concatenate([v, edge_nf4()])
    write(Path(out) / "nf4.bin", nf4_rows, *nf4(nf4_rows))
    half = np.tile(F([3, 1, 5, -3, 0, -1, 2.5, -0.5]), COLS // 8)  # mean 2: quotients of a half and one and a half
    signs = np.concatenate([v, half[None], np.where(np.arange(COLS) % 3, F(-0.0), F(0.0))[None]])
    write(Path(out) / "ternary_row.bin", signs, *ternary_row(signs))
    write(Path(out) / "sign_row.bin", signs, *sign_rows(signs, False))
    write(Path(out) / "signbit_row.bin", signs, *sign_rows(signs, True))
    for group in (32, 64, 128):
        v = edge_weights()
        write(Path(out) / f"int4_g{group}_compressed_tensors.bin", v, *int4_groups(v, group, 7.5, -8))
    ties3 = np.tile(F([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 3, -3]), COLS // 8)  # at a scale of exactly 1
    v = np.concatenate([edge_weights(), ties3[None]])
    write(Path(out) / "int3_g64.bin", v, *int3_groups(v, 64))
    powers = np.repeat(F([1.5, 1.5000001, 1.4999999, 1.75, 1.7499999, 1.9375, 1.9374999, 1.7500001] * 2) * F(2.0) ** np.arange(-8, 8), 32)
    powers *= np.tile(F([-1, 0.6, 0.41, -0.2]), 128).astype(F)
    for rule in ("ceil", "even"):
        v = np.concatenate([edge(), powers[None].astype(F)])
        write(Path(out) / f"mxfp4_{rule}.bin", v, *mxfp4(v, rule))
        write(Path(out) / f"mxfp8_{rule}.bin", v, *mxfp8(v, rule))


def searched(out: str, real: np.ndarray, ggml) -> None:
    """ggml's searched encoders of K-quants: without importance, and with one matrix of it."""
    x = np.concatenate([edge(), real[:2]])
    x[7] *= F(1e8)  # ggml asserts when top / (max - min) is not a float
    for name in ("q2_k", "q3_k", "q5_k", "q6_k"):
        write(Path(out) / f"{name}_ggml.bin", x, *ggml_format(ggml, name, x))
    write_weighted(Path(out) / "importance.bin", x, ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k"), ggml)


def write_weighted(path: Path, x: np.ndarray, names: tuple, ggml) -> None:
    rng = np.random.default_rng(26)
    half = np.concatenate([np.zeros(COLS // 2, F), np.ones(COLS // 2, F)])
    sparse = np.where(rng.random(COLS) < 0.2, 0, rng.lognormal(0, 2, COLS)).astype(F)
    kinds = [np.ones(COLS, F), rng.lognormal(0, 1, COLS).astype(F), (sparse * F(1e-3)).astype(F), half]
    with open(path, "wb") as f:
        f.write(struct.pack("<IIII", *x.shape, len(kinds), len(names)) + x.astype("<f4").tobytes())
        for importance in kinds:
            f.write(importance.tobytes())
        for name in names:
            f.write(name.encode().ljust(8, b"\0"))
            for importance in kinds:
                f.write(ggml.encode_weighted(name, x, importance).tobytes())


# Formats whose codes are indices into a list of vectors: elements under one step, how many steps there are, what a level
# is times (2 s + 1) and the half, the largest level.
GRIDS = {
    "iq3_s": (32, 16, 1, 15),
    "iq3_xxs": (32, 16, 1 / 4, 62),
    "iq2_s": (16, 16, 1 / 8, 43),
    "iq2_xs": (16, 16, 1 / 8, 43),
    "iq2_xxs": (32, 16, 1 / 8, 43),
    "iq1_s": (32, 8, 1 / 8, 9),
    "iq1_m": (16, 8, 1 / 8, 9),
}


def nearest_vectors(v: np.ndarray, grid: np.ndarray):
    """Of each row of v the vector of least squared distance, the first of equals, and that distance. Squares are added up
    by fours in the order of the elements, in single precision, and then the two fours."""
    index, least = np.zeros(len(v), np.int64), np.zeros(len(v), F)
    for first in range(0, len(v), 512):
        d = v[first:first + 512, None, :] - grid[None].astype(F)
        d = d * d
        fours = [((F(0) + d[..., i] + d[..., i + 1]) + d[..., i + 2]) + d[..., i + 3] for i in range(0, v.shape[1], 4)]
        error = fours[0] if len(fours) == 1 else fours[0] + fours[1]
        index[first:first + 512] = error.argmin(1)
        least[first:first + 512] = error.min(1)
    return index, least


def grid_codes(name: str, x: np.ndarray):
    """The encoder "plain" of templates/formats/shared/grids.cuh. The lists are the gguf package's."""
    from gguf import quants

    kind = getattr(quants, "IQ1_S" if name == "iq1_m" else name.upper())
    kind.init_grid()
    grid = kind.grid.reshape(-1, kind.grid.shape[-1])
    size, steps, unit, top = GRIDS[name]
    most = F(2 * steps - 1)
    blocks = x.reshape(-1, 256)
    amax = np.abs(blocks.reshape(len(blocks), -1, size)).max(2)
    largest = amax.max(1)
    half = (largest / (F(top * unit) * most)).astype(np.float16)
    share = np.where(largest[:, None] > 0, amax / np.where(largest > 0, largest, F(1))[:, None], F(0)).astype(F)
    s = np.clip(np.rint((most * share - F(1)) * F(0.5)), 0, steps - 1).astype(np.int64)
    step = half.astype(F)[:, None] * (2 * s + 1).astype(F) * F(unit)
    step = np.repeat(step, size, 1)
    v = np.where(step > 0, blocks / np.where(step > 0, step, F(1)), F(0)).astype(F).reshape(-1, 8)
    if name.startswith("iq1"):
        together = 4 if name == "iq1_s" else 1
        found = [nearest_vectors(v, 8 * grid + 1), nearest_vectors(v, 8 * grid - 1)]
        totals = []
        for _, error in found:
            total = np.zeros(len(v) // together, F)
            for i in range(together):
                total = total + error.reshape(-1, together)[:, i]
            totals.append(total)
        signs = np.repeat(totals[1] < totals[0], together).astype(np.int64)
        index = np.where(signs == 1, found[1][0], found[0][0])
        return half, s, index.reshape(-1, 32), signs.reshape(-1, 32)
    signs, v = v < 0, np.abs(v)
    if name in ("iq3_xxs", "iq2_xs", "iq2_xxs"):
        odd = np.nonzero(signs.sum(1) % 2)[0]
        least = v[odd].argmin(1)
        signs[odd, least] ^= True
        v[odd, least] *= -1
    index = nearest_vectors(v.reshape(-1, grid.shape[1]), grid)[0].reshape(len(blocks), -1)
    return half, s, index, (signs << np.arange(8)).sum(1).reshape(-1, 32)


def grid_format(ggml, name: str, x: np.ndarray):
    half, s, index, signs = grid_codes(name, x)
    n = len(half)
    d = half.view(np.uint8).reshape(n, 2)
    low = (index & 255).astype(np.uint8)
    nibbles = lambda v: (v[:, ::2] | (v[:, 1::2] << 4)).astype(np.uint8)
    fields = lambda v, bits, count: (v.reshape(n, -1, count) << (bits * np.arange(count))).sum(2)
    bytes_of = lambda v, kind: np.ascontiguousarray(v.astype(kind)).view(np.uint8).reshape(n, -1)
    if name == "iq3_s":
        parts = [d, low, fields(index >> 8, 1, 8).astype(np.uint8), signs.astype(np.uint8), nibbles(s)]
    elif name == "iq3_xxs":
        parts = [d, low, bytes_of(fields(signs & 127, 7, 4) | s << 28, "<u4")]
    elif name == "iq2_s":
        parts = [d, low, signs.astype(np.uint8), fields(index >> 8, 2, 4).astype(np.uint8), nibbles(s)]
    elif name == "iq2_xs":
        parts = [d, bytes_of(index | (signs & 127) << 9, "<u2"), nibbles(s)]
    elif name == "iq2_xxs":
        words = bytes_of(fields(signs & 127, 7, 4) | s << 28, "<u4").reshape(n, 8, 4)
        parts = [d, np.concatenate([low.reshape(n, 8, 4), words], 2).reshape(n, 64)]
    elif name == "iq1_s":
        parts = [d, low, bytes_of(fields(index >> 8, 3, 4) | s << 12 | signs[:, ::4] << 15, "<u2")]
    else:
        halves = half.view(np.uint16).astype(np.int64)[:, None] >> (4 * np.arange(4)) & 15
        parts = [low, nibbles(index >> 8 | signs << 3), bytes_of(fields(s, 3, 4) | halves << 12, "<u2")]
    data = np.concatenate(parts, 1).reshape(len(x), -1)
    decoded = ggml.decode(name, data, x.shape[1])
    check_decoded(name, data, decoded)
    return [data], decoded


def check_decoded(name: str, data: np.ndarray, decoded: np.ndarray) -> None:
    from gguf import GGMLQuantizationType as T
    from gguf import quants

    if name in ("q1_0", "q2_0"):
        return  # gguf 0.19.0 decodes neither

    assert np.array_equal(quants.dequantize(data, getattr(T, name.upper())), decoded, equal_nan=True), name


def levels(out: str, real: np.ndarray, ggml) -> None:
    """ggml's encoders where they need no importance, and this library's for formats of lists of vectors."""
    x = np.concatenate([edge(), real[:2]])
    for name in ("iq4_nl", "iq4_xs", "tq1_0", "tq2_0", "q1_0", "q2_0"):
        data = ggml.encode(name, x)
        if name == "iq4_nl":  # codes of a block of zeros are what ggml's stack held
            zero = (np.abs(x.reshape(-1, 32)) < 1e-15).all(1)
            data.reshape(-1, 18)[zero] = 0
        decoded = ggml.decode(name, data, x.shape[1])
        check_decoded(name, data, decoded)
        write(Path(out) / f"{name}.bin", x, [data], decoded)
    for name in GRIDS:
        write(Path(out) / f"{name}.bin", x, *grid_format(ggml, name, x))
    x = x[2:]  # those before have blocks of zeros
    names = ("iq3_s", "iq3_xxs", "iq2_s")
    for name in names:
        data = ggml.encode(name, x)
        decoded = ggml.decode(name, data, x.shape[1])
        check_decoded(name, data, decoded)
        write(Path(out) / f"{name}_ggml.bin", x, [data], decoded)
    write_weighted(Path(out) / "importance_lists.bin", x, (*names, "iq2_xs", "iq2_xxs", "iq1_s", "iq1_m"), ggml)


def reference(model: str, git_dir: str):
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "models"))
    from ggml_reference import FUNCTIONS, Ggml
    from safetensors.numpy import load_file

    FUNCTIONS.update(GGML_FUNCTIONS)
    return Ggml(git_dir), load_file(model)["encoder.layer.0.output.dense.weight"][:8, :COLS].astype(F)


def main(model: str, git_dir: str, out: str) -> None:
    plain(out)
    np.seterr(all="ignore")
    ggml, real = reference(model, git_dir)
    with_zero_row = np.concatenate([edge(), np.zeros((1, COLS), F)])
    for case, x in (("edge", edge()), ("minilm", real)):
        for name in ("q4_0", "q8_0", "q8_1", "q4_k"):
            input = x
            if name == "q4_k" and case == "edge":  # ggml asserts when 15 / (max - min) is not a float
                input = x.copy()
                input[7] *= F(1e8)
            write(Path(out) / f"{name}_{case}.bin", input, *ggml_format(ggml, name, input))
        write(Path(out) / f"q4_0_amax7_{case}.bin", x, *q4_0_amax7(x))
        fp4 = edge_fp4() if case == "edge" else x
        write(Path(out) / f"nvfp4_{case}.bin", fp4, *nvfp4(fp4))
        fp8 = with_zero_row if case == "edge" else x
        write(Path(out) / f"e4m3_row_{case}.bin", fp8, *e4m3(fp8))
    weights(out, real, ggml)
    searched(out, real, ggml)
    levels(out, real, ggml)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "plain":
        plain(sys.argv[2])
    elif len(sys.argv) == 5 and sys.argv[1] == "searched":
        ggml, real = reference(*sys.argv[2:4])
        searched(sys.argv[4], real, ggml)
    elif len(sys.argv) == 5 and sys.argv[1] == "levels":
        ggml, real = reference(*sys.argv[2:4])
        levels(sys.argv[4], real, ggml)
    elif len(sys.argv) == 4:
        main(*sys.argv[1:])
    else:
        sys.exit(__doc__)
