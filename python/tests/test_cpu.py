# SPDX-License-Identifier: Apache-2.0
"""Launches on this machine's CPU, over arrays of the host."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import tilewright as tw
from conftest import PACKAGE
from tilewright import _handles

GEMM = "gemm x=q8_1 x_from=f32 w={} y=f32 m=1 n=64 k=256"


@pytest.fixture(scope="module")
def cpu():
    device = tw.Device.cpu(2)
    if device.arch == "x86-64":
        pytest.skip("this CPU has no kernels")
    return device


@pytest.fixture(scope="module")
def cpu_engine():
    # The compiler may be missing: what is built in gives the same bits.
    return tw.Engine(cache=":memory:")


def floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def test_describes_itself(cpu):
    assert cpu.is_cpu and cpu.ordinal == -1 and cpu.sms == 2
    assert cpu.arch.startswith("x86-64-v") and cpu.name and cpu.memory_bytes > 0
    assert repr(cpu).startswith("Device.cpu(2)")
    cpu.synchronize()
    assert tw.Device.cpu().sms >= 1


@pytest.mark.parametrize("threads", (0, -1, True, 1.5, 1025, 1 << 40))
def test_threads_are_checked(threads):
    with pytest.raises(tw.InvalidArgument, match="threads"):
        tw.Device.cpu(threads)


def test_every_target_of_this_cpu_gives_the_same_bits(cpu, cpu_engine):
    with pytest.raises(tw.InvalidArgument) as refused:
        tw.Device.cpu(target="x86-64-v9")
    targets = refused.value.allowed.removeprefix("must be one of those that this machine's CPU runs: ").split(", ")
    assert "x86-64-v3" in targets and targets[-1] == cpu.arch
    assert tw.Device.cpu(2, cpu.arch).arch == cpu.arch
    x, weights = floats(3, 256), tw.encode(floats(64, 256), "q4_0")
    results = []
    for target in targets[1:]:  # the first has the reference alone
        device = tw.Device.cpu(target=target)
        assert device.arch == target
        problem = cpu_engine.packed(GEMM.format("q4_0"), device)
        y = np.empty((3, 64), np.float32)
        cpu_engine.prepare(problem, device).launch(x=x, w=problem.pack_weights(weights), y=y)
        results.append(y)
    assert all(np.array_equal(y, results[0]) for y in results)


@pytest.mark.parametrize("target", ("x86-64-v9", "sm_90a", "x86-64\0", 3))
def test_targets_are_checked(target):
    with pytest.raises(tw.InvalidArgument, match="target"):
        tw.Device.cpu(target=target)


def test_targets_that_there_are_are_listed(cpu):
    with pytest.raises(tw.InvalidArgument, match=f"x86-64-v9.: .*x86-64, .*{cpu.arch.split('+')[0]}"):
        tw.Device.cpu(target="x86-64-v9")


@pytest.mark.parametrize("format", ("q4_0", "q8_0", "q4_k", "q6_k"))
@pytest.mark.parametrize("m", (1, 5, 40))
def test_gemm_over_numpy(cpu, cpu_engine, format, m):
    problem = cpu_engine.packed(GEMM.format(format), cpu)
    assert problem.fields["pack"] == "panels"
    values, x = floats(64, 256), floats(m, 256, seed=1)
    w = tw.encode(values, format)
    panels = cpu_engine.pack(problem, w, device=cpu)
    kernel = cpu_engine.prepare(problem, cpu)
    y = np.full((m, 64), np.nan, np.float32)
    kernel.launch(x=x, w=panels, y=y)
    # NumPy alone, but for the codecs: x goes through q8_1.
    expected = (
        tw.decode(tw.encode(x, "q8_1")).reshape(m, 256).astype(np.float64)
        @ tw.decode(w).reshape(64, 256).astype(np.float64).T
    )
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    # The same panels, made on the host.
    host = problem.pack_weights(w)
    np.testing.assert_array_equal(np.asarray(host.data).view(np.uint8).ravel(), panels.data.download())
    again = np.empty_like(y)
    kernel.launch(x=x, w=host.data, y=again)
    np.testing.assert_array_equal(y, again)
    np.testing.assert_array_equal(tw.decode(problem.unpack_weights(host)), tw.decode(w))


@pytest.mark.parametrize("format", ("f32", "f16", "bf16"))
def test_weights_of_a_convolution_are_packed(cpu, cpu_engine, format):
    plain = tw.Problem(f"conv x=f32 w={format} y=f32 n=2 c=5 in=7x6 k=32 kernel=3 pad=1")
    problem = cpu_engine.packed(plain, cpu)
    assert problem.fields["pack"] == "panels"
    x, w = floats(2 * 7 * 6, 5), tw.encode(floats(32, 45, seed=1), format)
    panels = cpu_engine.pack(problem, w, device=cpu)
    host = problem.pack_weights(w)
    np.testing.assert_array_equal(np.asarray(host.data).view(np.uint8).ravel(), panels.data.download())
    np.testing.assert_array_equal(tw.decode(problem.unpack_weights(host)), tw.decode(w))
    expected = np.empty((2 * 7 * 6, 32), np.float32)
    cpu_engine.prepare(plain, cpu).launch(x=x, w=w, y=expected)
    for given in (panels, host):
        y = np.full_like(expected, np.nan)
        cpu_engine.prepare(problem, cpu).launch(x=x, w=given, y=y)
        np.testing.assert_array_equal(y, expected)


def test_bits_do_not_depend_on_threads(cpu_engine, cpu):
    problem = cpu_engine.packed(GEMM.format("q4_0"), cpu)
    x, panels = floats(9, 256), problem.pack_weights(tw.encode(floats(64, 256), "q4_0"))
    results = []
    for threads in (1, 2, 3):
        device = tw.Device.cpu(threads)
        y = np.empty((9, 64), np.float32)
        cpu_engine.prepare(problem, device).launch(x=x, w=panels, y=y)
        results.append(y)
    assert all(np.array_equal(results[0], y) for y in results)


def test_launches_of_several_threads(cpu, cpu_engine):
    problem = cpu_engine.packed(GEMM.format("q8_0"), cpu)
    kernel = cpu_engine.prepare(problem, cpu)
    panels = problem.pack_weights(tw.encode(floats(64, 256), "q8_0"))
    xs = [floats(3, 256, seed=i) for i in range(4)]
    ys = [np.empty((3, 64), np.float32) for _ in xs]

    def work(i):
        for _ in range(20):
            kernel.launch(x=xs[i], w=panels, y=ys[i])

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for x, y in zip(xs, ys):
        alone = np.empty_like(y)
        kernel.launch(x=x, w=panels, y=alone)
        np.testing.assert_array_equal(y, alone)


def test_arguments_are_checked(cpu, cpu_engine):
    problem = cpu_engine.packed(GEMM.format("q4_0"), cpu)
    kernel = cpu_engine.prepare(problem, cpu)
    panels = problem.pack_weights(tw.encode(floats(64, 256), "q4_0"))
    x, y = floats(2, 256), np.empty((2, 64), np.float32)
    for wrong in (
        {"x": x[:, :128]},
        {"x": x.astype(np.float64)},
        {"y": np.empty((3, 64), np.float32)},
        {"w": tw.encode(floats(64, 256), "q4_0")},
        {"w": np.zeros(8, np.uint8)},
    ):
        with pytest.raises(tw.InvalidArgument):
            kernel.launch(**{"x": x, "w": panels, "y": y, **wrong})
    y.flags.writeable = False
    with pytest.raises(tw.InvalidArgument, match="read-only"):
        kernel.launch(x=x, w=panels, y=y)
    with pytest.raises(tw.InvalidArgument, match="stream"):
        kernel.launch(1, x=x, w=panels, y=np.empty((2, 64), np.float32))
    with pytest.raises(tw.InvalidArgument, match="pack"):
        cpu_engine.pack(GEMM.format("q4_0"), np.zeros(8, np.uint8), device=cpu)
    with pytest.raises(tw.Unsupported, match="CPU"):
        cpu_engine.prepare("amax x=f32 rows=4 cols=64", cpu)


def test_memory_is_an_array_of_the_host(cpu):
    memory = cpu.upload(np.arange(8, dtype=np.uint8))
    np.testing.assert_array_equal(np.asarray(memory), np.arange(8))
    assert not hasattr(memory, "__cuda_array_interface__")
    np.asarray(memory)[3] = 9
    assert memory.download()[3] == 9


def test_tuned_once_and_remembered(cpu, tmp_path):
    problem = GEMM.format("q4_0")
    first = tw.Engine(cache=tmp_path / "cache.db")
    packed = first.packed(problem, cpu)
    report = first.tune(packed, cpu, max_candidates=2)
    assert report.measured >= 1
    first.prepare(packed, cpu)
    second = tw.Engine(cache=tmp_path / "cache.db")
    second.prepare(packed, cpu)
    assert second.stats.compiled == 0


def test_without_a_compiler_built_in_kernels_give_the_same_bits(cpu, cpu_engine):
    engine = tw.Engine(cache=":memory:", llvm="/nonexistent")
    problem = engine.packed(GEMM.format("q6_k"), cpu)
    x, panels = floats(4, 256), problem.pack_weights(tw.encode(floats(64, 256), "q6_k"))
    ys = [np.empty((4, 64), np.float32) for _ in range(2)]
    for e, y in zip((engine, cpu_engine), ys):
        e.prepare(problem, cpu).launch(x=x, w=panels, y=y)
    np.testing.assert_array_equal(*ys)
    assert engine.stats.built_in > 0 and engine.stats.compiled == 0


def test_without_a_gpu_engines_take_the_cpu(monkeypatch, cpu):
    engine = tw.Engine(cache=":memory:")
    monkeypatch.setattr("tilewright.engine.device_count", lambda *_: 0)
    assert engine.device().is_cpu
    named = tw.Engine(cache=":memory:", driver="/nonexistent/libcuda.so")
    with pytest.raises(tw.LibraryMissing):
        named.device()


# ---- what is closed while it is in use

CLOSING = """
import threading, time
import numpy as np, tilewright as tw
engine, cpu = tw.Engine(cache=":memory:"), tw.Device.cpu(1)
problem = tw.Problem("gemm x=f32 w=f32 y=f32 m=1 n=16 k=64")
x, w, y = (np.zeros(shape, np.float32) for shape in ((1, 64), (16, 64), (1, 16)))
for _ in range(60):
    kernel, running = engine.prepare(problem, cpu), threading.Event()
    def launch():
        try:
            while True:
                kernel.launch(x=x, w=w, y=y)
                running.set()
        except tw.InvalidArgument:
            pass
    threads = [threading.Thread(target=launch) for _ in range(3)]
    for thread in threads: thread.start()
    running.wait()
    kernel.close()
    for thread in threads: thread.join()
def shown(*progress):
    engine.close()
report = engine.tune("gemm x=q8_1 x_from=f32 w=q4_0 y=f32 m=1 n=64 k=256 pack=panels", cpu, budget_seconds=2, progress=shown)
assert engine.closed and report.candidate
print("alive")
"""


def test_closing_what_is_in_use_waits_for_its_calls():
    """A kernel that other threads launch, and an engine that its own progress callback closes."""
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE), "PYTHONMALLOC": "debug"}
    done = subprocess.run([sys.executable, "-c", CLOSING], env=environment, capture_output=True, text=True, timeout=240)
    assert done.stdout == "alive\n", (done.returncode, done.stderr)


def test_a_reference_is_given_back_when_its_last_call_returns():
    released = []
    reference = _handles._Reference(8)
    reference.release = released.append
    handle = _handles.Handle()
    handle._handle = reference
    del reference
    during = handle._as_parameter_  # what ctypes holds
    handle.close()
    assert handle.closed and released == []
    del during
    assert released == [8]


def test_what_a_cpu_does_not_run_is_said():
    from test_own import saxpy

    cpu = tw.Device.cpu(1)
    with tw.Engine(cache=":memory:") as engine:
        for ask in (engine.tune, engine.prepare):
            with pytest.raises(tw.Unsupported, match="device must be a GPU .*: the task's text is CUDA"):
                ask(saxpy(), cpu)
        for given in ([saxpy()], [3]):
            with pytest.raises(TypeError, match="a problem is a Problem or its text, not a (Task|int)"):
                engine.prewarm(given, ["sm_80"])
