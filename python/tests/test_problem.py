# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
import pickle

import hypothesis.strategies as st
import numpy as np
import pytest
import tilewright as tw
from hypothesis import given

TEXT = "gemm x=q8_1 w=q4_0 y=f32 m=2 n=4096 k=14336"


def random(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("f4")


def test_value():
    p = tw.Problem("gemm k=14336 n=4096 m=2 y=f32 w=q4_0 x=q8_1 alpha=1")
    q = tw.Problem.gemm(x="q8_1", w="q4_0", y="f32", m=2, n=4096, k=14336)
    assert str(p) == str(q) == TEXT and p == q and hash(p) == hash(q) and p != p.with_rows(3)
    assert p != TEXT and len({p, q, tw.Problem(p)}) == 1
    assert (p.op, p.rows, p.cols) == ("gemm", 2, 4096)
    assert p.fields == {"x": "q8_1", "w": "q4_0", "y": "f32", "m": "2", "n": "4096", "k": "14336"}
    assert p.ops == 2 * 2 * 4096 * 14336 and p.min_bytes > 4096 * 14336 / 2
    assert repr(p) == f"Problem('{TEXT}')"
    for other in (copy.copy(p), copy.deepcopy([p])[0], pickle.loads(pickle.dumps(p))):
        assert other == p and other.buffers == p.buffers


def test_fields_of_every_kind():
    p = tw.Problem.gemm(
        x="bf16", w="nvfp4", y="f16", m=np.int64(3), n=64, k=256, global_="mul", pack="tiles", weights="constant",
        alpha=0.5, beta=None, workspace=34603008,
    )  # fmt: skip
    assert p.fields["global"] == "mul" and p.fields["alpha"] == "0.5" and "beta" not in p.fields
    assert str(tw.Problem.of("pack", w="q4_0", x="f16", n=64, k=256, inverse=True)).endswith("inverse=1")
    assert str(tw.Problem.of("pack", w="q4_0", x="f16", n=64, k=256, inverse=False)).endswith("k=256")
    assert tw.Problem.of(
        "cast", x=tw.formats()[0].__class__("f32", "", 1, 32, (), {}, 1, ""), y="q8_1", rows=2, cols=64
    )


@given(st.floats(2**-100, 2**100))
def test_numbers_keep_their_value(alpha):
    alpha = float(np.float32(alpha))
    p = tw.Problem.gemm(x="f16", w="f16", y="f16", m=1, n=8, k=8, alpha=alpha)
    assert float(p.fields.get("alpha", 1)) == alpha


@pytest.mark.parametrize(
    "call, kind, field",
    [
        (lambda: tw.Problem(""), tw.InvalidArgument, None),
        (lambda: tw.Problem("gemm x=q8_1\0 w=q4_0"), tw.InvalidArgument, "problem"),
        (lambda: tw.Problem.of("convolve", x="f16"), tw.InvalidArgument, None),
        (lambda: tw.Problem.of("cast", x="f32 y=f16", rows=1, cols=8), tw.InvalidArgument, "x"),
        (lambda: tw.Problem.of("cast", x="f32", y=object(), rows=1, cols=8), tw.InvalidArgument, "y"),
        (lambda: tw.Problem.of("cast", x="f32", y="f16", rows=-1, cols=8), tw.InvalidArgument, "rows"),
        (lambda: tw.Problem.gemm(x="f16", w="f16", y="f16", m=1, n=8, k=8, nonsense=1), tw.InvalidArgument, None),
        (lambda: tw.Problem.gemm(x="q8_1", w="q4_0", y="q4_0", m=1, n=32, k=32), tw.Unsupported, "y"),
        (lambda: tw.Problem(TEXT).with_rows(-1), tw.InvalidArgument, "m"),
    ],
)
def test_refusals(call, kind, field):
    with pytest.raises(kind) as caught:
        call()
    assert field is None or caught.value.field == field


def test_closed():
    p = tw.Problem(TEXT)
    with p:
        assert not p.closed
    p.close()
    assert p.closed
    with pytest.raises(tw.InvalidArgument, match="Problem must .*got closed"):
        _ = p.ops


def test_buffers():
    p = tw.Problem("gemm x=e4m3_row w=nvfp4 y=bf16 m=3 n=64 k=128 global=mul bias=f32 c=f16 workspace=4096")
    names = {b.name: b for b in p.buffers}
    assert list(names) == [
        *("x.data", "x.scales", "w.data", "w.scales", "w.global", "bias.data", "c.data", "y.data", "workspace")
    ]
    assert names["x.scales"] == ("x.scales", 12, 4, False, False, False)
    assert names["y.data"].output and names["workspace"].scratch and names["w.data"].row_bytes == 0


# ---- the host


@pytest.mark.parametrize("y", ["f32", "f16", "bf16"])
def test_compute(y):
    p = tw.Problem(f"gemm x=q8_1 w=q4_0 y={y} m=3 n=64 k=96 bias=f32 act=relu c=f16 beta=0.5")
    x, w = tw.encode(random(3, 96), "q8_1"), tw.encode(random(64, 96), "q4_0")
    bias, c = random(64), random(3, 64).astype("f2")
    out = p.compute({"x": x, "w": w, "bias": bias, "c": c})["y"]
    want = np.maximum(tw.decode(x) @ tw.decode(w).T + bias, 0) + 0.5 * c.astype("f4")
    got = out.astype("f4") if y != "bf16" else tw.decode(out, "bf16", 3, 64)
    assert out.dtype == {"f32": "f4", "f16": "f2", "bf16": "u2"}[y] and out.shape == (3, 64)
    assert np.abs(got - want).max() < 0.1
    check = p.check({"x": x, "w": w, "bias": bias, "c": c, "y": out})
    assert check.wrong is None and check.checked == 192 and 0 <= check.of_bound <= 1
    out[1, 3] = 0x4000 if y == "bf16" else 99
    assert "y[1,3]" in p.check({"x": x, "w": w, "bias": bias, "c": c, "y": out}).wrong


def test_compute_a_cast():
    x = random(2, 64)
    out = tw.Problem("cast x=f32 y=int8_row rows=2 cols=64").compute({"x": x})["y"]
    want = tw.encode(x, "int8_row")
    assert (
        isinstance(out, tw.Encoded) and np.array_equal(out.data, want.data) and np.array_equal(out.scales, want.scales)
    )


def test_compute_fake_quantization():
    p = tw.Problem("fp4_fake_quant x=f32 y=f32 rows=2 cols=32 block=32")
    x = np.tile(np.float32([6, 5, 3.5, 2.5, 1.75, 1.25, 0.75, 0.25]), (2, 4)) * np.float32([[1], [-2]])
    out = p.compute({"x": x, "amax": np.float32([2688])})["y"]
    assert np.array_equal(out, np.tile(np.float32([6, 4, 4, 2, 2, 1, 1, 0]), (2, 4)) * np.float32([[1], [-2]]))
    with pytest.raises(tw.InvalidArgument, match="amax"):
        p.compute({"x": x, "amax": np.float32([1, 2])})
    with pytest.raises(tw.InvalidArgument, match="amax"):
        p.compute({"x": x})


def test_compute_into_given_arrays():
    p = tw.Problem("cast x=f32 y=f16 rows=2 cols=64")
    y = np.zeros((2, 64), "f2")
    assert p.compute({"x": random(2, 64), "y": y})["y"] is y
    assert np.array_equal(y, random(2, 64).astype("f2"))


@pytest.mark.parametrize("layout", ["contiguous", "masked"])
def test_compute_groups(layout):
    p = tw.Problem.gemm(
        x="f32", w="f32", y="f32", m=4, n=8, k=16, groups=3, group_layout="masked" if layout == "masked" else None
    )
    x, w = random(12, 16), random(24, 16).reshape(3, 8, 16)
    rows = np.array([4, 0, 2] if layout == "masked" else [0, 5, 5, 12], "i4")
    out = p.compute({"x": x, "w": w, "group_rows": rows})["y"]
    assert out.shape == (12, 8)
    if layout == "masked":
        assert np.allclose(out[:4], x[:4] @ w[0].T, atol=1e-4) and np.allclose(out[8:10], x[8:10] @ w[2].T, atol=1e-4)
    else:
        assert np.allclose(out[:5], x[:5] @ w[0].T, atol=1e-4) and np.allclose(out[5:], x[5:] @ w[2].T, atol=1e-4)


def test_packed_weights():
    p = tw.Problem("gemm x=f16 w=q4_0 y=f32 m=2 n=64 k=128 pack=tiles")
    w = tw.encode(random(64, 128), "q4_0")
    tiles = p.pack_weights(w)
    assert tiles.data.nbytes + tiles.scales.nbytes == w.nbytes and tiles.global_scale is None
    assert np.array_equal(p.unpack_weights(tiles).data, w.data)
    x = random(2, 128).astype("f2")
    packed = p.compute({"x": x, "w": tiles})["y"]
    assert np.array_equal(packed, tw.Problem("gemm x=f16 w=q4_0 y=f32 m=2 n=64 k=128").compute({"x": x, "w": w})["y"])
    with pytest.raises(tw.InvalidArgument, match="pack_weights"):
        p.compute({"x": x, "w": w})
    with pytest.raises(tw.InvalidArgument, match="tiles"):
        tw.Problem("gemm x=f16 w=q4_0 y=f32 m=2 n=64 k=128").pack_weights(w)
    with pytest.raises(tw.InvalidArgument, match="w.data"):
        p.pack_weights(w.data[:-1])


def test_packed_weights_with_a_factor():
    p = tw.Problem("gemm x=f16 w=nvfp4 y=f32 m=2 n=64 k=128 pack=tiles global=mul")
    w = tw.encode(random(64, 128), "nvfp4")
    back = p.unpack_weights(p.pack_weights(w))
    assert all(np.array_equal(a, b) for a, b in zip(back.streams, w.streams))


X, W = tw.encode(random(2, 64), "q8_1"), tw.encode(random(32, 64), "q4_0")
SMALL = "gemm x=q8_1 w=q4_0 y=f32 m=2 n=32 k=64"


@pytest.mark.parametrize(
    "values, field",
    [
        ({"x": X}, "w.data"),
        ({"x": X, "w": W, "v": W}, "v"),
        ({"x": X, "w": W, "w.codes": W}, "w.codes"),
        ({"x": W, "w": W}, "x"),
        ({"x": X, "w": W.data[:-18]}, "w.data"),
        ({"x": X.data[:72], "w": W}, "x.data"),
        ({"x": X, "w": W.data.view("f4")}, "w.data"),
        ({"x": X, "w": W.data.reshape(16, -1)[::-1]}, "w.data"),
        ({"x": X, "w": (W.data, np.zeros(4, "f4"))}, "w.scales"),
        ({"x": X, "w": W, "y": np.zeros((2, 32), "f2")}, "y.data"),
        ({"x": X, "w": W, "y": np.zeros((2, 31), "f4")}, "y.data"),
        ({"x": X, "w": W, "y": np.zeros((32, 2), "f4")}, "y.data"),
        ({"x": X, "w": W, "y": np.zeros((2, 40), "f4")[:, :32]}, "y.data"),
        ({"x": X, "w": W, "y": bytes(256)}, "y.data"),
        ({"x": X, "w": W, "y": np.zeros(257, "u1")[1:]}, "y.data"),
        ({"x": X, "w": W, "w.scales": np.zeros(4, "u1")}, "w.scales"),
    ],
)
def test_bad_arrays(values, field):
    with pytest.raises(tw.InvalidArgument) as caught:
        tw.Problem(SMALL).compute(values)
    assert caught.value.field == field, caught.value


def test_workload(tmp_path):
    path = tmp_path / "workload.txt"
    path.write_text(f"# layers\n{TEXT}\n\n{SMALL} # small\n")
    assert [str(p) for p in tw.read_workload(path)] == [TEXT, SMALL]
    (tmp_path / "empty").write_text("")
    assert tw.read_workload(tmp_path / "empty") == []
    with pytest.raises(tw.IoError):
        tw.read_workload(tmp_path / "nothing")
    path.write_text(f"{TEXT}\nnonsense\n")
    with pytest.raises(tw.InvalidArgument, match="2"):
        tw.read_workload(str(path))


def test_operations():
    gemm = {o.name: o for o in tw.operations()}["gemm"]
    assert {"x", "w", "y", "m", "n", "k"} == {f.name for f in gemm.fields if f.required}
    assert any(a.name == "sm_90a" and a.run_on for a in tw.archs())
