# SPDX-License-Identifier: Apache-2.0
"""Checkpoint tensors as other libraries pack them, and the weights that they say: make_checkpoints.py OUT_DIR

Needs the standard library only. Bytes are put together from the definitions in the libraries' sources, see README.md.
"""
import random
import struct
import sys
from pathlib import Path

GPTQ, GPTQ_V2, AWQ, COMPRESSED_TENSORS = range(4)
F16, BF16 = 1, 2


def half(v: float) -> bytes:
    return struct.pack("<e", v)


def bfloat(v: float) -> bytes:
    return struct.pack("<f", v)[2:]


def rounded(v: float, kind: int) -> float:
    if kind == F16:
        return struct.unpack("<e", half(v))[0]
    return struct.unpack("<f", b"\0\0" + bfloat(v))[0]  # cut off: any bf16 will do


def words(values: list) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def word(nibbles: list) -> int:
    return sum(v << 4 * i for i, v in enumerate(nibbles))


class Weight:
    """q[n][k] of 0..2^bits - 1 and zeros[n][groups], scales[n][groups], group_of[k]."""

    def __init__(self, seed: int, n: int, k: int, group: int, kind: int, zeros=None, act_order=False, bits=4):
        rng = random.Random(seed)
        self.n, self.k, self.group, self.kind = n, k, group, kind
        groups = k // group
        self.q = [[rng.randrange(2 ** bits) for _ in range(k)] for _ in range(n)]
        self.zeros = [[rng.choice(zeros) if zeros else 2 ** (bits - 1) for _ in range(groups)] for _ in range(n)]
        self.scales = [[rounded(rng.uniform(1e-4, 0.05) * rng.choice([1, 1, -1, 100]), kind) for _ in range(groups)]
                       for _ in range(n)]
        self.group_of = [i // group for i in range(k)]
        if act_order:
            rng.shuffle(self.group_of)

    def decoded(self) -> bytes:
        values = [(self.q[r][c] - self.zeros[r][g]) * self.scales[r][g]
                  for r in range(self.n) for c, g in enumerate(self.group_of)]
        return struct.pack(f"<{len(values)}f", *values)

    def scale_bytes(self, by_group: bool) -> tuple:
        groups = self.k // self.group
        at = [(r, g) for g in range(groups) for r in range(self.n)] if by_group else \
             [(r, g) for r in range(self.n) for g in range(groups)]
        data = b"".join((half if self.kind == F16 else bfloat)(self.scales[r][g]) for r, g in at)
        return ((groups, self.n) if by_group else (self.n, groups)) + (data,)

    def g_idx(self) -> tuple:
        return 1, self.k, struct.pack(f"<{self.k}i", *self.group_of)


NONE = (0, 0, b"")


def gptq(w: Weight, version: int, g_idx: bool) -> list:
    groups = w.k // w.group
    codes = [word([w.q[c][8 * r + i] for i in range(8)]) for r in range(w.k // 8) for c in range(w.n)]
    zeros = [word([w.zeros[8 * c + i][g] for i in range(8)]) for g in range(groups) for c in range(w.n // 8)]
    if version == 1:  # GPTQModel's arithmetic; AutoGPTQ's where both are defined
        zeros = [(z - 0x11111111) % 2**32 for z in zeros]
        for at, z in enumerate(zeros):
            row = [w.zeros[8 * (at % (w.n // 8)) + i][at // (w.n // 8)] for i in range(8)]
            assert 0 in row or z == word([v - 1 for v in row])
    return [(w.k // 8, w.n, words(codes)), (groups, w.n // 8, words(zeros)), w.scale_bytes(True),
            w.g_idx() if g_idx else NONE]


def pack(values: list, bits: int) -> list:
    """AutoGPTQ's pack() (qlinear_cuda_old.py): 16, 4 or, by its three cases, 32 / 3 values a word."""
    packed = []
    if bits != 3:
        per = 32 // bits
        return [sum(v << bits * i for i, v in enumerate(values[at:at + per])) for at in range(0, len(values), per)]
    for at in range(0, len(values), 32):
        v = values[at:at + 32]
        packed.append(sum(v[i] << 3 * i for i in range(10)) | v[10] << 30 & 0xffffffff)
        packed.append(v[10] >> 2 & 1 | sum(v[11 + i] << 3 * i + 1 for i in range(10)) | v[21] << 31 & 0xffffffff)
        packed.append(v[21] >> 1 & 3 | sum(v[22 + i] << 3 * i + 2 for i in range(10)))
    return packed


def gptq_wide(w: Weight, version: int, bits: int) -> list:
    groups = w.k // w.group
    columns = [pack(row, bits) for row in w.q]  # of each output feature, along k
    zeros = [pack([w.zeros[r][g] - (version == 1) for r in range(w.n)], bits) for g in range(groups)]
    height = w.k * bits // 32
    return [(height, w.n, words([columns[c][r] for r in range(height) for c in range(w.n)])),
            (groups, w.n * bits // 32, words([z for row in zeros for z in row])), w.scale_bytes(True), w.g_idx()]


def awq(w: Weight) -> list:
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    groups = w.k // w.group
    codes = [word([w.q[8 * c + o][r] for o in order]) for r in range(w.k) for c in range(w.n // 8)]
    zeros = [word([w.zeros[8 * c + o][g] for o in order]) for g in range(groups) for c in range(w.n // 8)]
    return [(w.k, w.n // 8, words(codes)), (groups, w.n // 8, words(zeros)), w.scale_bytes(True), NONE]


def compressed_tensors(w: Weight, symmetric: bool, g_idx: bool) -> list:
    groups = w.k // w.group
    signed = [[v - 8 for v in row] for row in w.q]  # -8..7, stored plus 8
    codes = [word([signed[r][8 * c + i] + 8 for i in range(8)]) for r in range(w.n) for c in range(w.k // 8)]
    tall = (w.n + 7) // 8
    zeros = [word([w.zeros[8 * r + i][g] if 8 * r + i < w.n else 0 for i in range(8)])
             for r in range(tall) for g in range(groups)]
    return [(w.n, w.k // 8, words(codes)), NONE if symmetric else (tall, groups, words(zeros)), w.scale_bytes(False),
            w.g_idx() if g_idx else NONE]


# bitsandbytes' NF4 table (bitsandbytes/functional.py, get_4bit_type()).
NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
       -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
       0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]


def f32(v: float) -> float:
    return struct.unpack("<f", struct.pack("<f", v))[0]


def floats(values: list) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def dynamic_map() -> list:
    """bitsandbytes' create_dynamic_map(signed=True): seven decades, of 2^i means of neighbours each, both signs."""
    values = [0.0, 1.0]
    for i in range(7):
        edges = [0.1 + 0.9 * j / 2 ** i for j in range(2 ** i + 1)]
        for low, high in zip(edges, edges[1:]):
            values += [sign * 10 ** (i - 6) * (low + high) / 2 for sign in (1, -1)]
    return [f32(v) for v in sorted(values)]


def bitsandbytes(path: Path, seed: int, n: int, k: int, blocksize: int, nested: bool) -> None:
    """u32 n, k, blocksize, nested_blocksize; f32 nested_offset; five times u32 bytes, data: weight, absmax, quant_map,
    nested_absmax, nested_quant_map; f32 decoded[n * k]."""
    rng = random.Random(seed)
    codes = [rng.randrange(16) for _ in range(n * k)]
    weight = bytes(codes[i] << 4 | codes[i + 1] for i in range(0, n * k, 2))
    blocks = (n * k + blocksize - 1) // blocksize
    offset, outer, map_ = 0.0, [], []
    if nested:
        offset, map_ = f32(rng.uniform(0.02, 0.2)), dynamic_map()
        stored = [rng.randrange(256) for _ in range(blocks)]
        outer = [f32(rng.uniform(1e-3, 0.3)) for _ in range((blocks + 255) // 256)]
        absmax = [f32(f32(map_[c] * outer[i // 256]) + offset) for i, c in enumerate(stored)]
    else:
        stored = absmax = [f32(rng.uniform(1e-6, 3) ** 3) for _ in range(blocks)]
    tensors = [weight, bytes(stored) if nested else floats(stored), floats(NF4), floats(outer), floats(map_)]
    data = struct.pack("<4If", n, k, blocksize, 256, offset)
    for t in tensors:
        data += struct.pack("<I", len(t)) + t
    path.write_bytes(data + floats([f32(f32(NF4[c]) * absmax[i // blocksize]) for i, c in enumerate(codes)]))


def bitnet(path: Path, seed: int, n: int, k: int, divides: bool) -> None:
    """u32 n, k, divides; f32 weight_scale; u32 bytes, data; f32 decoded[n * k]. transformers' pack_weights(): rows are
    cut into four parts, of which the last may be shorter, and part i has bits 2i of all bytes."""
    rng = random.Random(seed)
    codes = [[rng.randrange(3) for _ in range(k)] for _ in range(n)]
    part = (n + 3) // 4
    packed = [[0] * k for _ in range(part)]
    for i in range(4):
        for r, row in enumerate(codes[i * part:(i + 1) * part]):
            packed[r] = [b | c << 2 * i for b, c in zip(packed[r], row)]
    stored = f32(rounded(rng.uniform(0.5, 3), BF16))
    scale = f32(1 / stored) if divides else stored
    data = struct.pack("<3IfI", n, k, divides, stored, part * k) + bytes(b for row in packed for b in row)
    path.write_bytes(data + floats([(c - 1) * scale for row in codes for c in row]))


def write(path: Path, packing: int, w: Weight, tensors: list) -> None:
    data = struct.pack("<5I", packing, w.n, w.k, w.group, w.kind)
    for rows, cols, stored in tensors:
        data += struct.pack("<3I", rows, cols, len(stored)) + stored
    path.write_bytes(data + w.decoded())


def main(out: Path) -> None:
    any_zero = list(range(16))
    w = Weight(1, 16, 128, 32, F16, zeros=any_zero)
    write(out / "checkpoint_gptq.bin", GPTQ, w, gptq(w, 1, True))
    w = Weight(2, 16, 128, 32, F16, zeros=any_zero[1:], act_order=True)
    write(out / "checkpoint_gptq_act_order.bin", GPTQ, w, gptq(w, 1, True))
    w = Weight(3, 8, 256, 128, BF16)
    write(out / "checkpoint_gptq_v2.bin", GPTQ_V2, w, gptq(w, 2, False))
    w = Weight(4, 24, 128, 64, F16, zeros=any_zero)
    write(out / "checkpoint_awq.bin", AWQ, w, awq(w))
    w = Weight(5, 12, 96, 32, BF16)
    write(out / "checkpoint_compressed_tensors.bin", COMPRESSED_TENSORS, w, compressed_tensors(w, True, False))
    w = Weight(6, 12, 128, 64, F16, zeros=any_zero, act_order=True)
    write(out / "checkpoint_compressed_tensors_act_order.bin", COMPRESSED_TENSORS, w,
          compressed_tensors(w, False, True))
    w = Weight(7, 5, 72, 72, BF16)
    write(out / "checkpoint_compressed_tensors_channel.bin", COMPRESSED_TENSORS, w, compressed_tensors(w, True, False))
    w = Weight(11, 16, 128, 32, F16, zeros=[1, 2, 3], act_order=True, bits=2)
    write(out / "checkpoint_gptq_2bit.bin", GPTQ, w, gptq_wide(w, 1, 2))
    w = Weight(12, 32, 128, 64, F16, zeros=[1, 2, 3, 4, 5, 6, 7, 8], bits=3)
    write(out / "checkpoint_gptq_3bit.bin", GPTQ, w, gptq_wide(w, 1, 3))
    w = Weight(13, 32, 64, 32, BF16, bits=3)
    write(out / "checkpoint_gptq_v2_3bit.bin", GPTQ_V2, w, gptq_wide(w, 2, 3))
    w = Weight(14, 8, 128, 64, F16, act_order=True, bits=8)
    write(out / "checkpoint_gptq_8bit.bin", GPTQ, w, gptq_wide(w, 1, 8))
    bitnet(out / "checkpoint_bitnet.bin", 15, 16, 64, False)
    bitnet(out / "checkpoint_bitnet_ragged.bin", 16, 10, 36, True)
    bitsandbytes(out / "checkpoint_bitsandbytes.bin", 8, 6, 192, 64, False)
    bitsandbytes(out / "checkpoint_bitsandbytes_double.bin", 9, 9, 2048, 64, True)
    bitsandbytes(out / "checkpoint_bitsandbytes_long.bin", 10, 3, 192, 128, True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
