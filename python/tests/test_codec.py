# SPDX-License-Identifier: Apache-2.0
"""Formats and codecs, against the golden vectors."""

from __future__ import annotations

import array
import sys

import numpy as np
import pytest
import tilewright as tw
from conftest import GOLDEN, read_golden
from tilewright import _arrays, codec

# Others are of checkpoints, of an operation and of encoding by importance.
VECTORS = sorted(p for p in GOLDEN.glob("*.bin") if not p.name.startswith(("checkpoint_", "fake_quant", "importance")))


def named(stem):
    """FORMAT[_ENCODER][_CASE]"""
    format = max(
        (f for f in tw.formats() if stem == f.name or stem.startswith(f.name + "_")), key=lambda f: len(f.name)
    )
    rest = stem[len(format.name) + 1 :]
    encoder = next((e for e in format.encoders if rest == e or rest.startswith(e + "_")), None)
    return format, encoder


def same(a, b):
    return np.array_equal(np.asarray(a).view("u1").ravel(), np.asarray(b).view("u1").ravel())


@pytest.mark.parametrize("path", VECTORS, ids=lambda p: p.stem)
def test_golden(path):
    values, streams, decoded = read_golden(path)
    format, encoder = named(path.stem)
    out = tw.encode(values, format, encoder)
    given = [s for s in out.streams if s is not None]
    assert len(given) == len(streams) == len(format.streams)
    for name, ours, theirs in zip(format.streams, given, streams):
        assert same(ours, theirs), name
    both_zero = lambda a, b: np.array_equal(a, b, equal_nan=True)  # noqa: E731  the sign of zero is not covered
    assert both_zero(tw.decode(out), decoded)
    assert both_zero(tw.decode(tuple(streams), format.name, *values.shape), decoded)


def test_every_format_has_vectors():
    assert {f.name for f in tw.formats()} == {named(p.stem)[0].name for p in VECTORS}


@pytest.mark.parametrize("name", ["q4_0", "e4m3_b128", "int8_row", "nvfp4"])
def test_threads_give_the_same_bytes(name, monkeypatch):
    values = np.random.default_rng(0).standard_normal((771, 512), "f4")
    whole = tw.encode(values, name, threads=1)
    monkeypatch.setattr(codec, "_WORTH_A_THREAD", 1000)
    parts = tw.encode(values, name, threads=5)
    for a, b in zip(whole.streams, parts.streams):
        assert (a is None and b is None) or same(a, b)
    assert same(tw.decode(whole, threads=1), tw.decode(parts, threads=7))


def test_blocks_of_rows_cover_all_once():
    format = codec.find("e4m3_b128")
    for rows in (1, 127, 128, 129, 1000, 4097):
        seen = []
        codec._in_blocks(lambda first, count, seen=seen: seen.append((first, count)), format, rows, 1 << 20, 7)
        seen.sort()
        assert [f for f, _ in seen] == [sum(c for _, c in seen[:i]) for i in range(len(seen))]
        assert sum(c for _, c in seen) == rows and all(f % 128 == 0 for f, _ in seen)


def test_inputs():
    values = np.random.default_rng(0).standard_normal((4, 64)).astype("f4")
    want = tw.encode(values, "q8_0").data
    assert same(tw.encode(values.astype("f8"), "q8_0").data, want)
    assert same(tw.encode(values[:, None], "q8_0").data, want)
    wide = np.zeros((4, 80), "f4")
    wide[:, :64] = values
    assert same(tw.encode(wide[:, :64], "q8_0").data, want)
    half = values.astype("f2")
    assert same(tw.encode(half, "q8_0").data, tw.encode(half.astype("f4"), "q8_0").data)
    ml_dtypes = pytest.importorskip("ml_dtypes")
    brain = values.astype(ml_dtypes.bfloat16)
    assert same(tw.encode(brain, "q8_0").data, tw.encode(brain.astype("f4"), "q8_0").data)


def test_empty():
    assert tw.encode(np.zeros((0, 32), "f4"), "q4_0").nbytes == 0
    assert tw.decode(tw.encode(np.zeros((0, 32), "f4"), "q4_0")).shape == (0, 32)


def test_global_scale():
    values = np.array([[1, -6, np.nan, 3] * 4], "f4")
    assert tw.encode(values, "nvfp4").global_scale[0] == np.float32(6 / (6 * 448))
    assert tw.encode(values, "nvfp4", global_scale=0.5).global_scale[0] == 0.5


WRONG = [
    (lambda: tw.encode(np.zeros((2, 32), "f4"), "q4_9"), "format"),
    (lambda: tw.encode(np.zeros((2, 32), "f4"), "q4_0", "best"), "encoder"),
    (lambda: tw.encode(np.zeros((2, 33), "f4"), "q4_0"), "array"),
    (lambda: tw.encode(np.zeros((2, 32), "i4"), "q4_0"), "array"),
    (lambda: tw.encode(np.zeros((2, 32), "f4").T, "f32"), "array"),
    (lambda: tw.encode(4096, "q4_0"), "array"),
    (lambda: tw.encode([[1.0]], "f32"), "array"),
    (lambda: tw.encode(np.zeros((2, 32), "f4"), "q4_0", global_scale=1), "global_scale"),
    (lambda: tw.encode(np.zeros((2, 32), "f4"), "q4_0", threads=0), "threads"),
    (lambda: tw.decode(np.zeros(35, "u1"), "q4_0", 2, 32), "matrix.data"),
    (lambda: tw.decode(np.zeros(36, "u1")), "matrix"),
    (lambda: tw.decode((np.zeros(64, "u1"),), "int8_row", 2, 32), "matrix.scales"),
    (lambda: tw.decode(tw.Streams(np.zeros(36, "u1"), np.zeros(4, "u1")), "q4_0", 2, 32), "matrix.scales"),
    (lambda: tw.decode((1, 2, 3, 4), "q4_0", 2, 32), "matrix"),
    (lambda: tw.formats()[0].stream_bytes("codes", 2, 32), "stream"),
    (lambda: codec.find("q4_0").stream_bytes("data", 2, 33), "cols"),
    (lambda: codec.find("q4_0").stream_bytes("data", -2, 32), "rows"),
]


@pytest.mark.parametrize("call, field", WRONG)
def test_refusals(call, field):
    with pytest.raises(tw.InvalidArgument) as caught:
        call()
    assert caught.value.field == field, caught.value


def test_unknown_format_names_those_there_are():
    with pytest.raises(tw.InvalidArgument, match="q4_0"):
        codec.find("nonsense")


def test_info():
    q4_0 = codec.find("q4_0")
    assert (q4_0.block, q4_0.encoders, list(q4_0.streams)) == (32, ("ggml", "amax7"), ["data"])
    assert q4_0.streams["data"] == ("block", 18, 1)
    assert list(codec.find("nvfp4").streams) == ["data", "scales", "global"]
    assert codec.find("e4m3_b128").streams["scales"].rows == 128
    assert [f.name for f in tw.formats()] == sorted(f.name for f in tw.formats())
    assert {f.name for f in tw.formats() if f.is_elements} == set(_arrays._NUMPY_TYPES)


def test_without_numpy(monkeypatch):
    values = array.array("f", range(64))
    want = tw.encode(np.arange(64, dtype="f4"), "nvfp4")
    monkeypatch.setitem(sys.modules, "numpy", None)
    monkeypatch.setattr(_arrays, "numpy_or_none", lambda: None)
    got = tw.encode(values, "nvfp4")
    assert type(got.data) is bytearray and type(got.global_scale) is bytearray
    for ours, theirs in zip(got.streams, want.streams):
        assert bytes(ours) == theirs.tobytes()
    unclear = array.array("f", [float("nan"), 6.0] * 8)
    assert bytes(tw.encode(unclear, "nvfp4").global_scale) == np.float32(6 / (6 * 448)).tobytes()
    assert type(tw.decode(got)) is array.array and len(tw.decode(got)) == 64
