# SPDX-License-Identifier: Apache-2.0
"""An operation that the Python package has never heard of, launched from Python: the library says what it takes."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import tilewright as tw
from conftest import needs_nvrtc

TEXT = "row_scale x=f32 y=f16 rows=3 cols=96 factor=0.5"


class RowScaleArgs(ctypes.Structure):
    _fields_ = [("x", ctypes.c_void_p), ("scales", ctypes.c_void_p), ("y", ctypes.c_void_p), ("rows", ctypes.c_int64)]


def arrays(rows):
    random = np.random.default_rng(rows)
    x, scales = random.standard_normal((rows, 96)).astype("f4"), np.float32([3, -1, 0.25, 7][:rows])
    return x, scales, (x * (np.float32(0.5) * scales)[:, None]).astype("f2")


@needs_nvrtc
def test_launch(engine, gpu, double):
    """The host computes what the kernel was told to, in its place."""
    problem = tw.Problem(TEXT)
    kernel, launches = engine.prepare(problem, gpu), []

    def run(launch):
        args = RowScaleArgs.from_address(launch.params[0])
        launches.append(args.rows)
        problem.with_rows(args.rows).compute({"x": args.x, "scales": args.scales, "y": args.y})

    double.on_launch(run)
    x, scales, want = arrays(4)
    on_x, on_scales, y = gpu.upload(x), gpu.upload(scales), gpu.memory(want.nbytes)
    kernel.launch(x=on_x, scales=on_scales, y=y)
    assert np.array_equal(y.download(dtype="f2", shape=want.shape), want)
    y.fill(0)
    kernel.launch(x=on_x, scales=on_scales, y=y, rows=2)
    assert np.array_equal(y.download(dtype="f2", shape=want.shape)[:2], want[:2]) and launches == [4, 2]
    for bad, field in (
        ({"scales": None}, "scales.data"),
        ({"scales": gpu.memory(12)}, "scales.data"),
        ({"x": gpu.memory(100)}, "x.data"),
        ({"y": gpu.memory(384)}, "y.data"),
        ({"weights": on_scales}, "weights"),
        ({"seed": 1}, "seed"),
        ({"rows": -1}, "rows"),
    ):
        with pytest.raises(tw.InvalidArgument) as caught:
            kernel.launch(**{"x": on_x, "scales": on_scales, "y": y, **bad})
        assert caught.value.field == field, caught.value
    assert launches == [4, 2]


def test_what_it_takes():
    problem = tw.Problem(TEXT)
    assert [(b.name, b.row_bytes, b.output, b.optional) for b in problem.buffers] == [
        ("x.data", 384, False, False),
        ("scales.data", 4, False, False),
        ("y.data", 192, True, False),
    ]
    assert problem.values == {}
    x, scales, want = arrays(3)
    out = problem.compute({"x": x, "scales": scales})["y"]
    assert np.array_equal(out, want) and problem.check({"x": x, "scales": scales, "y": out}).wrong is None
