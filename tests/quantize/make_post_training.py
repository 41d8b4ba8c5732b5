#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes OUT_DIR/post_training.bin: small layers quantized by rounding to nearest, GPTQ and AWQ, in torch.

    make_post_training.py OUT_DIR        (torch 2.13, NumPy)

Written from the papers (arXiv:2210.17323, arXiv:2306.00978) and the formats' texts. GPTQ is the paper's: the inverse of
the damped H, its upper Cholesky factor U, and after each column an update of all columns that follow, in double
precision. Little-endian, nothing aligned:

    u32 cases
    cases times:
      u32 length, char format[length], u32 encoder
      u32 method (0 nearest, 1 gptq, 2 awq), u32 n, k, rows, group, act_order, static_groups, clip; f64 damping
      f32 w[n * k], i8 x[rows * k]   eighths
      u32 order[k]           column of w at each place of the streams
      u8  codes[n * k]       in the streams' order
      f32 values[n * k]      decoded, in w's order
      f32 input_scales[k]    1 unless AWQ
      f64 exponent, f64 error, f64 energy
"""
import struct
import sys
from pathlib import Path

import numpy as np
import torch

F64 = torch.float64


def half(t):
    return t.to(torch.float16).to(torch.float32)


class Rule:
    """The scales of one group [n, g] of single-precision weights."""

    def __init__(self, fmt, encoder, low, high):
        self.fmt = fmt
        self.amax7 = encoder == 0
        if fmt.startswith("uint4"):
            self.scale = half(torch.clamp((high - low) / 15, min=2.0**-24))
            self.zero = torch.clamp(torch.round(-low / self.scale), 0, 15)
        else:
            amax = torch.maximum(high, -low)
            if fmt == "int4_row":
                self.scale = torch.where(amax == 0, torch.ones_like(amax), amax / 7)
            else:
                self.scale = half(amax / (7 if self.amax7 else 7.5))
            self.zero = torch.full_like(self.scale, 8)

    @classmethod
    def of(cls, fmt, encoder, w):
        zero = torch.zeros(w.shape[0])
        return cls(fmt, encoder, torch.minimum(w.min(1).values, zero), torch.maximum(w.max(1).values, zero))

    def codes(self, column):  # [n]
        if self.fmt.startswith("uint4"):
            return torch.clamp(torch.round((column + self.zero * self.scale) / self.scale), 0, 15)
        steps = torch.where(self.scale > 0, column / self.scale, torch.zeros_like(column))
        return torch.clamp(torch.round(steps), -7 if self.amax7 else -8, 7) + 8

    def values(self, codes):
        return (codes - self.zero) * self.scale


def nearest(fmt, encoder, w, group):
    codes, values = torch.empty_like(w), torch.empty_like(w)
    for first in range(0, w.shape[1], group):
        rule = Rule.of(fmt, encoder, w[:, first : first + group])
        for j in range(first, min(first + group, w.shape[1])):
            codes[:, j] = rule.codes(w[:, j])
            values[:, j] = rule.values(codes[:, j])
    return codes, values


def gptq(fmt, encoder, w, h, group, act_order, static_groups, damping):
    n, k = w.shape
    h, w = h.clone(), w.clone()
    dead = torch.diag(h) == 0
    mean = torch.diag(h)[~dead].mean()
    h[dead, dead] = mean
    w[:, dead] = 0
    perm = torch.arange(k)
    if act_order:
        diagonal = torch.diag(h).clone()
        diagonal[dead] = 0
        perm = torch.argsort(-diagonal, stable=True)
    fixed = [Rule.of(fmt, encoder, w[:, g : g + group]) for g in range(0, k, group)]
    current = w[:, perm].to(F64)
    hp = h[perm][:, perm] + damping * mean * torch.eye(k, dtype=F64)
    upper = torch.linalg.cholesky(torch.linalg.inv(hp), upper=True)
    codes, values = torch.empty_like(w), torch.empty_like(w)  # in the order of processing
    for i in range(k):
        if static_groups:
            rule = fixed[perm[i] // group]
        elif i % group == 0:
            rule = Rule.of(fmt, encoder, current[:, i : i + group].to(torch.float32))
        codes[:, i] = rule.codes(current[:, i].to(torch.float32))
        values[:, i] = rule.values(codes[:, i])
        error = (current[:, i] - values[:, i].to(F64)) / upper[i, i]
        current[:, i + 1 :] -= error[:, None] * upper[i, i + 1 :][None, :]
    back = torch.empty_like(perm)
    back[perm] = torch.arange(k)
    if static_groups:
        order = torch.arange(k)
    else:
        order = torch.cat([torch.sort(perm[g : g + group]).values for g in range(0, k, group)])
    return order, codes[:, back[order]], values[:, back]


def output_error(d, h):
    return torch.einsum("ij,jk,ik->", d, h, d).item()


def awq(fmt, encoder, w, x, h, group, clip):
    magnitude = x.to(F64).abs().mean(0)
    best = None
    for step in range(20):
        exponent = step / 20
        s = torch.clamp(magnitude**exponent, min=1e-4)
        s = (s / torch.sqrt(s.max() * s.min())).to(torch.float32)
        codes, values = nearest(fmt, encoder, w * s, group)
        error = output_error(w.to(F64) - values.to(F64) / s.to(F64), h)
        if best is None or error < best[0]:
            best = (error, exponent, s, codes, values)
    _, exponent, s, codes, values = best
    if clip:
        scaled = w * s
        for first in range(0, w.shape[1], group):
            part = slice(first, first + group)
            hg = h[part, part]
            v = scaled[:, part]
            zero = torch.zeros(v.shape[0])
            low, high = torch.minimum(v.min(1).values, zero), torch.maximum(v.max(1).values, zero)
            least = torch.full((v.shape[0],), float("inf"), dtype=F64)
            for step in range(11):
                most = torch.maximum(-low, high) * np.float32(1 - np.float32(0.05) * np.float32(step))
                rule = Rule(fmt, encoder, torch.maximum(low, -most), torch.minimum(high, most))
                c = torch.stack([rule.codes(v[:, j]) for j in range(v.shape[1])], 1)
                q = torch.stack([rule.values(c[:, j]) for j in range(v.shape[1])], 1)
                d = w[:, part].to(F64) - q.to(F64) / s[part].to(F64)
                error = torch.einsum("ij,jk,ik->i", d, hg, d)
                better = error < least
                least = torch.where(better, error, least)
                codes[:, part] = torch.where(better[:, None], c, codes[:, part])
                values[:, part] = torch.where(better[:, None], q, values[:, part])
    return exponent, s, codes, values


METHODS = {"nearest": 0, "gptq": 1, "awq": 2}


def case(method, fmt, n, k, rows, group, seed, encoder=0, act_order=False, static_groups=False, clip=False,
         damping=0.01, dead=()):
    torch.manual_seed(seed)
    w = torch.randn(n, k) * 0.05
    spread = torch.exp(torch.randn(k))  # channels of different size, and correlated
    x = (torch.randn(rows, k) @ (torch.eye(k) + 0.4 * torch.randn(k, k) / k**0.5)) * spread
    for j in dead:
        x[:, j] = 0
    # Few bits, so that single-precision sums are exact and H is the same to the last bit.
    x = torch.round(x * 8).clamp(-127, 127) / 8
    h = x.to(F64).T @ x.to(F64)
    order, scales, exponent = torch.arange(k), torch.ones(k), 0.0
    if method == "nearest":
        codes, values = nearest(fmt, encoder, w, group)
    elif method == "gptq":
        order, codes, values = gptq(fmt, encoder, w, h, group, act_order, static_groups, damping)
    else:
        exponent, scales, codes, values = awq(fmt, encoder, w, x, h, group, clip)
    d = w.to(F64) - values.to(F64) / scales.to(F64)
    return b"".join((
        struct.pack("<I", len(fmt)), fmt.encode(), struct.pack("<I", encoder),
        struct.pack("<8Id", METHODS[method], n, k, rows, group, act_order, static_groups, clip, damping),
        w.numpy().astype("<f4").tobytes(), (x * 8).numpy().astype(np.int8).tobytes(),
        order.numpy().astype("<u4").tobytes(), codes.numpy().astype(np.uint8).tobytes(),
        values.numpy().astype("<f4").tobytes(), scales.numpy().astype("<f4").tobytes(),
        struct.pack("<3d", exponent, output_error(d, h), output_error(w.to(F64), h))))


def main():
    torch.set_num_threads(1)
    cases = [
        case("nearest", "int4_g32", 5, 96, 40, 32, 1),
        case("nearest", "uint4_g32", 5, 160, 40, 96, 2),  # a ragged last group
        case("nearest", "int4_row", 3, 70, 40, 70, 3),
        case("nearest", "int4_g64", 3, 128, 40, 64, 4, encoder=1),
        case("gptq", "int4_g32", 9, 96, 120, 32, 5),
        case("gptq", "uint4_g32", 9, 160, 120, 32, 6),  # groups that begin within a tile
        case("gptq", "uint4_g32", 9, 224, 120, 96, 7),  # and that span tiles, the last one ragged
        case("gptq", "int4_g128", 7, 256, 120, 128, 8, encoder=1),
        case("gptq", "uint4_g64", 7, 192, 120, 64, 9, act_order=True),
        case("gptq", "uint4_g32", 7, 160, 120, 96, 10, act_order=True),
        case("gptq", "int4_g32", 7, 128, 120, 64, 11, act_order=True, static_groups=True),
        case("gptq", "uint4_g32", 7, 128, 120, 32, 12, static_groups=True, damping=0.1),
        case("gptq", "int4_row", 6, 130, 120, 130, 13, act_order=True),
        case("gptq", "uint4_g32", 6, 128, 120, 32, 14, act_order=True, dead=(0, 33, 34, 127)),
        case("gptq", "int4_g32", 70, 64, 48, 32, 15),  # fewer rows than columns, more than a strip
        case("awq", "int4_g32", 8, 96, 100, 32, 16),
        case("awq", "uint4_g64", 8, 192, 100, 64, 17),
        case("awq", "uint4_g32", 70, 128, 100, 64, 18, clip=True),
        case("awq", "int4_g128", 6, 128, 100, 128, 19, clip=True, dead=(5,)),
    ]
    (Path(sys.argv[1]) / "post_training.bin").write_bytes(struct.pack("<I", len(cases)) + b"".join(cases))


if __name__ == "__main__":
    main()
