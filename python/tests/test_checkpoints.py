# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
import tilewright as tw
from conftest import GOLDEN
from tilewright import checkpoints

PACKINGS = ("gptq", "gptq_v2", "awq", "compressed_tensors")
# (bitsandbytes' and BitNet's are read by the C++ library alone.)
VECTORS = sorted(p for p in GOLDEN.glob("checkpoint_*.bin") if p.stem.split("_")[1] not in ("bitsandbytes", "bitnet"))


def read(path):
    data = path.read_bytes()
    packing, n, k, group, kind = (int(v) for v in np.frombuffer(data, "<u4", 5))
    at, tensors = 20, {}
    for name in ("codes", "zeros", "scales", "g_idx"):
        rows, cols, size = (int(v) for v in np.frombuffer(data, "<u4", 3, at))
        dtype = "<i4" if name != "scales" else "<f2" if kind == 1 else "<u2"
        if size:
            tensors[name] = np.frombuffer(data, dtype, size // np.dtype(dtype).itemsize, at + 12).reshape(rows, cols)
        at += 12 + size
    decoded = np.frombuffer(data, "<f4", n * k, at).reshape(n, k)
    group = group - (1 << 32) if group >> 31 else group
    return PACKINGS[packing], n, k, group, "f16" if kind == 1 else "bf16", tensors, decoded


@pytest.mark.parametrize("path", VECTORS, ids=lambda p: p.stem)
def test_golden(path):
    packing, n, k, group, kind, tensors, decoded = read(path)
    bits = int(path.stem[-4]) if path.stem.endswith("bit") else 4
    layer = checkpoints.import_weights(packing, **tensors, group=group, bits=bits)
    assert (layer.weight.rows, layer.weight.cols) == (n, k)
    moved = "g_idx" in tensors and bool((np.diff(tensors["g_idx"].ravel()) < 0).any())  # groups that do not ascend
    want = decoded if layer.order is None else decoded[:, layer.order]
    assert np.array_equal(tw.decode(layer.weight), want) and moved == (layer.order is not None)
    if bits != 4:
        return
    out = checkpoints.export_weights(layer.weight, packing, group=group, scale_type=kind, order=layer.order)
    for name, tensor in tensors.items():
        given = getattr(out, name)
        assert given.dtype == tensor.dtype and given.size == tensor.size
        if name != "g_idx" or layer.order is not None:
            assert np.array_equal(given.ravel(), tensor.ravel()), name
    assert checkpoints.import_formats(packing, **tensors, group=group)[0] == layer.weight.format.name
    again = checkpoints.import_weights(
        packing, **{n: t for n, t in zip(out._fields, out) if t is not None}, group=group
    )
    assert np.array_equal(again.weight.data, layer.weight.data)


@pytest.mark.parametrize("packing", ["gptq", "gptq_v2"])
def test_codes_of_three_bits_come_back(packing):
    weight = tw.encode(np.random.default_rng(3).standard_normal((64, 256), np.float32), "int3_g64")
    out = checkpoints.export_weights(weight, packing, group=64)
    assert out.codes.shape == (24, 64) and out.zeros.shape == (4, 6) and out.scales.shape == (4, 64)
    tensors = {name: tensor for name, tensor in zip(out._fields, out) if tensor is not None}
    layer = checkpoints.import_weights(packing, **tensors, group=64, bits=3)
    assert layer.weight.format.name == "int3_g64" and layer.order is None
    assert np.array_equal(layer.weight.data, weight.data) and np.array_equal(layer.weight.scales, weight.scales)


def test_gather_rows():
    w = tw.encode(np.random.default_rng(0).standard_normal((8, 64)).astype("f4"), "int8_row")
    order = [7, 0, 3, 1, 2, 4, 6, 5]
    out = checkpoints.gather_rows(w, order)
    assert np.array_equal(tw.decode(out), tw.decode(w)[order])
    for bad in ([0, 1], [8, *range(7)], [-1, *range(7)], [0] * 8):
        with pytest.raises(tw.InvalidArgument, match="order"):
            checkpoints.gather_rows(w, bad)


def good():
    return read(GOLDEN / "checkpoint_gptq.bin")


@pytest.mark.parametrize(
    "changes, kind, field",
    [
        ({"packing": "exl2"}, tw.InvalidArgument, "packing"),
        ({"bits": 5}, tw.Unsupported, None),
        ({"group": 48}, tw.TilewrightError, None),
        ({"codes": np.zeros((8, 8), "f4")}, tw.InvalidArgument, "codes"),
        ({"codes": np.zeros((2, 2, 2), "i4")}, tw.InvalidArgument, "codes"),
        ({"codes": None}, tw.InvalidArgument, None),
        ({"scales": np.zeros((8, 8), "i4")}, tw.InvalidArgument, "scales"),
        ({"scales": np.zeros((1, 1), "f2")}, tw.InvalidArgument, None),
        ({"g_idx": np.full(10000, 1 << 30, "i4")}, tw.InvalidArgument, None),
        ({"format": "q4_0"}, tw.TilewrightError, None),
    ],
)
def test_refusals(changes, kind, field):
    packing, n, k, group, _, tensors, _ = good()
    given = {"packing": packing, **tensors, "group": group, **changes}
    with pytest.raises(kind) as caught:
        checkpoints.import_weights(given.pop("packing"), **given)
    assert field is None or caught.value.field == field, caught.value


def test_group_index_out_of_range():
    packing, n, k, group, _, tensors, _ = read(GOLDEN / "checkpoint_gptq_act_order.bin")
    wrong = tensors["g_idx"].copy()
    wrong.ravel()[3] = 1000
    with pytest.raises(tw.InvalidArgument, match="g_idx"):
        checkpoints.import_weights(packing, **{**tensors, "g_idx": wrong}, group=group)


def test_export_refusals():
    packing, n, k, group, kind, tensors, _ = read(GOLDEN / "checkpoint_gptq_act_order.bin")
    layer = checkpoints.import_weights(packing, **tensors, group=group)
    with pytest.raises(tw.Unsupported):
        checkpoints.export_weights(layer.weight, "awq", group=group, order=layer.order)
    with pytest.raises(tw.InvalidArgument, match="order"):
        checkpoints.export_weights(layer.weight, packing, group=group, order=layer.order[:-1])
    with pytest.raises(tw.InvalidArgument, match="packing"):
        checkpoints.export_weights(layer.weight, "exl2")
