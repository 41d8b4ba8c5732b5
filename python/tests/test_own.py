# SPDX-License-Identifier: Apache-2.0
"""A kernel of one's own: the double runs it by its parameters, as NumPy would."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time

import numpy as np
import pytest
import tilewright as tw
from conftest import needs_nvrtc

COLS = 256
SOURCE = """
struct Args { const float* x; const float* y; float* out; float a; int pad; long long rows, cols; };
extern "C" __global__ void __launch_bounds__(THREADS) saxpy(const Args args) {
  const long long row = blockIdx.y;
  for (int i = 0; i < ITEMS; ++i) {
    const long long col = (blockIdx.x * (long long)ITEMS + i) * THREADS + threadIdx.x;
    const long long at = row * args.cols + col;
    if (col < args.cols) args.out[at] = args.a * args.x[at] + args.y[at];
  }
}
"""


class Args(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "y", "out")),
        ("a", ctypes.c_float),
        ("pad", ctypes.c_int),
        ("rows", ctypes.c_longlong),
        ("cols", ctypes.c_longlong),
    ]


def compare(out, given, rows):
    assert set(out) == {"out"} and set(given) == {"x", "y"} and out["out"].shape == (rows, COLS)
    return bool(np.abs(out["out"] - (2 * given["x"] + given["y"])).max() < 1e-5)


def saxpy(**changes):
    given = {
        "rows": 64,
        "cols": COLS,
        "knobs": {"threads": [128, 64], "items": [1, 2]},
        "launch": lambda k: tw.Launch(
            k["threads"], x=tw.Grid(per_cols=k["threads"] * k["items"]), y=tw.Grid(per_rows=1)
        ),
        "arrays": [
            tw.Array("x", "float32", ("rows", COLS)),
            tw.Array("y", "float32", ("rows", COLS), fill=lambda random, shape: random.standard_normal(shape)),
            tw.Array("out", "float32", ("rows", COLS), output=True),
        ],
        "arguments": lambda at, rows: Args(at["x"], at["y"], at["out"], 2.0, 0, rows, COLS),
        "compare": compare,
        "verify_rows": 5,
        **changes,
    }
    return tw.Task(given.pop("key", "test saxpy"), given.pop("source", SOURCE), "saxpy", **given)


@pytest.fixture
def runs(double):
    """The double computes; what is in `wrong` comes out wrong."""
    state = {"wrong": set(), "launches": []}

    def run(launch):
        if launch.entry != b"saxpy":  # the tuner has kernels of its own, which measure
            return
        args = Args.from_address(launch.params[0])
        count = args.rows * args.cols
        array = lambda at: np.frombuffer((ctypes.c_float * count).from_address(at), "f4")  # noqa: E731
        out = array(args.out)
        out[:] = args.a * array(args.x) + array(args.y)
        shape = (launch.block[0], launch.grid[0])
        state["launches"].append((shape, args.rows))
        if launch.block[0] in state["wrong"]:
            out[3] += 1

    double.on_launch(run)
    return state


QUICK = {"budget_seconds": 20, "cold_bytes": 1.0}


@needs_nvrtc
def test_tune_and_launch(engine, gpu, runs):
    with saxpy() as task:
        assert task.candidates == [f"saxpy threads={t} items={i}" for t in (128, 64) for i in (1, 2)]
        seen = []
        report = engine.tune(task, gpu, progress=lambda *step: seen.append(step), **QUICK)
        assert {o.kind for o in report.outcomes} == {"measured"} and len(report.outcomes) == 4
        assert report.candidate in task.candidates and report.first == task.candidates[0] and report.measured == 4
        assert seen and report.stopped == "all"
        kernel = engine.prepare(task, gpu)
        rng = np.random.default_rng(0)
        x, y = rng.standard_normal((7, COLS), "f4"), rng.standard_normal((7, COLS), "f4")
        out = gpu.memory(x.nbytes)
        kernel.launch(x=gpu.upload(x), y=gpu.upload(y), out=out)
        assert np.array_equal(out.download(dtype="f4", shape=x.shape), 2 * x + y) and runs["launches"][-1][1] == 7
        with pytest.raises(tw.InvalidArgument) as caught:
            kernel.launch(x=gpu.upload(x[:3]), y=gpu.upload(y), out=out)
        assert caught.value.field == "y"
        with pytest.raises(tw.InvalidArgument, match="z"):
            kernel.launch(x=x, z=x)
        again = engine.tune(task, gpu, **QUICK)
        assert again.measured == 0 or again.candidate == report.candidate


@needs_nvrtc
def test_wrong_candidates_are_found(engine, gpu, runs):
    runs["wrong"] = {128}
    report = engine.tune(saxpy(key="wrong saxpy"), gpu, **QUICK)
    kinds = {o.candidate: o.kind for o in report.outcomes}
    assert kinds["saxpy threads=128 items=1"] == "wrong" and "threads=64" in report.candidate
    assert any("compare() says" in o.detail for o in report.outcomes)
    said = saxpy(key="said saxpy", compare=lambda out, given, rows: f"nothing fits in {rows} rows")
    with pytest.raises(tw.Unsupported, match="nothing fits in 5 rows"):
        engine.tune(said, gpu, **QUICK)


@needs_nvrtc
def test_sources(engine, gpu, runs):
    macros = "".join(f"#define {n} {v}\n" for n, v in (("THREADS", 64), ("ITEMS", 1)))
    written = saxpy(key="written saxpy", source=lambda knobs: macros + SOURCE, knobs=[{"threads": 64, "items": 1}])
    assert engine.tune(written, gpu, **QUICK).candidate == "saxpy threads=64 items=1"
    packed = saxpy(
        key="packed saxpy",
        layout="PPPfiqq",
        arguments=lambda at, rows: (at["x"], at["y"], at["out"], 2.0, 0, rows, COLS),
        knobs={"threads": [64], "items": [1]},
    )
    assert engine.tune(packed, gpu, **QUICK).measured == 1
    assert engine.compile(packed.source(packed.candidates[0]), "saxpy", "sm_80").info.registers > 0


@needs_nvrtc
def test_compile_errors_name_the_callers_lines(engine, gpu):
    broken = saxpy(key="broken", source="\nthis is line 2;\n")
    with pytest.raises(tw.CompileFailed, match=r"\(2\)"):
        engine.compile(broken.source(broken.candidates[0]), "saxpy", "sm_90a")


class Odd(Exception):
    pass


def raises(*arguments):
    raise Odd("as it is")


@needs_nvrtc
@pytest.mark.parametrize("which", ["source", "launch", "arguments", "compare", "fill", "progress", "cancelled"])
def test_exceptions_come_out_unchanged(engine, gpu, runs, which):
    odd = Odd("as it is")

    def fail(*arguments):
        raise odd

    policy = {which: fail} if which in ("progress", "cancelled") else {}
    changes = {which: fail} if which in ("source", "launch", "arguments", "compare") else {}
    if which == "fill":
        arrays = [tw.Array(n, "float32", ("rows", COLS), output=n == "out", fill=fail) for n in ("x", "y", "out")]
        changes = {"arrays": arrays}
    task = saxpy(key=f"raises {which}", **changes)
    with pytest.raises(Odd) as caught:
        engine.tune(task, gpu, **QUICK, **policy)
    assert caught.value is odd
    if which in ("progress", "cancelled"):
        assert engine.tune(task, gpu, **QUICK).candidate  # nothing is left behind


@needs_nvrtc
def test_interrupt_cancels_the_search(engine, gpu, runs):
    """Ctrl-C in the middle, which a callback's first instruction would otherwise meet."""
    task = saxpy(key="interrupted", knobs={"threads": list(range(32, 1024, 32)), "items": [1]})
    done = []

    def progress(stage, *counts):
        done.append(stage)
        if len(done) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        engine.tune(task, gpu, progress=progress, max_candidates=31, budget_seconds=60, cold_bytes=1.0)
    assert len(done) < 20 and signal.getsignal(signal.SIGINT) is signal.default_int_handler


@needs_nvrtc
def test_interrupt_from_outside(engine, gpu, runs):
    task = saxpy(key="interrupted later", knobs={"threads": list(range(32, 1024, 32)), "items": [1, 2, 3, 4]})
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    begin = time.monotonic()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        engine.tune(task, gpu, exhaustive=True, cold_bytes=1.0)
    assert time.monotonic() - begin < 10
    timer.join()


def test_interrupt_handlers_of_ones_own(engine, gpu, runs):
    """A handler that is a caller's is called when C has returned; in other threads nothing is touched."""
    from tilewright._handles import Calls

    seen = []
    before = signal.signal(signal.SIGINT, lambda *arguments: seen.append(arguments[0]))
    try:
        with Calls() as calls:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            assert calls.stopped and not seen
        assert seen == [signal.SIGINT]
        handlers = []

        def elsewhere():
            with Calls():
                handlers.append(signal.getsignal(signal.SIGINT))

        mine = signal.getsignal(signal.SIGINT)
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert handlers == [mine]
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    "changes, field",
    [
        ({"rows": 0}, "task.rows"),
        ({"cols": 0}, "task.cols"),
        ({"verify_rows": 0}, "task.verify_rows"),
        ({"knobs": []}, "task.candidates"),
        ({"arrays": []}, "task.buffers"),
        ({"key": "a\0b"}, "key"),
        ({"arrays": [tw.Array("x", "float32", (4, "rows"))]}, "x"),
    ],
)
def test_refusals(changes, field):
    with pytest.raises(tw.InvalidArgument) as caught:
        saxpy(**changes)
    assert caught.value.field == field


@needs_nvrtc
def test_prewarm(engine):
    report = engine.prewarm(saxpy(key="warm saxpy", knobs={"threads": [96], "items": [3]}), ["sm_80"], worker="")
    assert report.compiled >= 1 and report.failed == 0


@needs_nvrtc
def test_fixed_and_scratch_arrays(engine, gpu, double):
    source = """
    extern "C" __global__ void add(const float* const* p) {}
    """
    task = tw.Task(
        "add", source, "add", rows=4, cols=1, knobs=[{"v": 1}],
        launch=lambda k: tw.Launch(32),
        arrays=[
            tw.Array("table", "int32", (8,)),
            tw.Array("queue", "uint8", (64,), scratch=True),
            tw.Array("out", "int32", ("rows", 8), output=True),
        ],
        arguments=lambda at, rows: np.array(list(at.values()), "u8").tobytes(),
        compare=lambda out, given, rows: (out["out"] == given["table"]).all() and set(given) == {"table", "queue"},
    )  # fmt: skip

    def run(launch):
        if launch.entry != b"add":
            return
        table, _, out = (ctypes.c_uint64 * 3).from_address(launch.params[0])
        for row in range(4):
            ctypes.memmove(out + 32 * row, table, 32)

    double.on_launch(run)
    with pytest.raises(tw.TilewrightError):  # the kernel's parameter is a pointer, and the arguments are three
        engine.tune(task, gpu, **QUICK)
