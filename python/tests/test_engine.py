# SPDX-License-Identifier: Apache-2.0
"""Engines: options, logs, plans, caches, prewarming, tuning of problems, threads."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import threading
import types

import pytest
import tilewright as tw
from conftest import CLI, FAKE_CUDA, LIBRARY, NVRTC, needs_nvrtc

TEXT = "gemm x=f16 w=q4_0 y=f32 m=2 n=64 k=256"
CAST = "cast x=f32 y=f16 rows=2 cols=64"


@pytest.mark.parametrize(
    "options, field",
    [
        ({"nonsense": 1}, "name"),
        ({"jobs": "many"}, "jobs"),
        ({"jobs": -1}, "jobs"),
        ({"tune": 2}, "tune"),
        ({"log_level": "loud"}, "log_level"),
        ({"cache": "a\0b"}, "cache"),
        ({"cache": object()}, "cache"),
        ({"shipped": ["/a", 1.5]}, "shipped"),
    ],
)
def test_bad_options(options, field):
    with pytest.raises(tw.InvalidArgument) as caught:
        tw.Engine(**options)
    assert caught.value.field == field


def test_options(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with tw.Engine() as e:
        assert e.cache_path == str(tmp_path / ".cache/tilewright/v1/cache.db")
    with tw.Engine(cache=":memory:", compile=False, tune=True, jobs=1, cache_cap=1 << 20, log_level="info") as e:
        assert e.cache_unwritable is None or ":memory:" in e.cache_unwritable or e.cache_unwritable
        assert e.stats == (0, 0, 0, 0, 0, 0, 0, 0)
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "other.db"))
    with tw.Engine() as e:
        assert e.cache_path == str(tmp_path / "other.db")


def test_closed():
    e = tw.Engine(cache=":memory:")
    e.close()
    for call in (lambda: e.stats, lambda: e.plan(TEXT, "sm_90a"), lambda: e.cache_path):
        with pytest.raises(tw.InvalidArgument, match="ngine must .*got (null|closed)"):
            call()


def test_plan_emit_explain(engine):
    plan = engine.plan(TEXT, "sm_90a")
    assert plan[0].candidate.split()[0] in ("gemv", "mma") and plan[0].predicted_microseconds > 0
    assert "tw::fmt::q4_0" in engine.emit(TEXT, "sm_90a")
    assert TEXT in engine.explain(tw.Problem(TEXT), "sm_90a")
    assert engine.packed(TEXT, "sm_90a").fields["pack"] == "tiles" and engine.packed(TEXT, "sm_80") == tw.Problem(TEXT)
    for call in (engine.plan, engine.emit, engine.explain, engine.packed):
        with pytest.raises(tw.InvalidArgument, match="sm_90a"):
            call(TEXT, "sm_12")


def test_default_device(double):
    with tw.Engine(cache=":memory:", driver=FAKE_CUDA) as e:
        assert e.device() is e.device() and e.plan(TEXT) == e.plan(TEXT, e.device()) == e.plan(TEXT, "sm_90a")
    with tw.Engine(cache=":memory:", driver="/nowhere/libcuda.so") as e, pytest.raises(tw.LibraryMissing):
        e.plan(TEXT)


def test_must_not_compile(gpu):
    with tw.Engine(cache=":memory:", compile=False) as e, pytest.raises(tw.WouldTune):
        e.prepare(TEXT, gpu)


def test_without_a_compiler(gpu, tmp_path):
    with tw.Engine(cache=":memory:", nvrtc=str(tmp_path)) as e:
        for call in (lambda: e.prepare(CAST, gpu), lambda: e.compiler, lambda: e.prewarm(CAST)):
            with pytest.raises(tw.LibraryMissing):
                call()


@needs_nvrtc
def test_compile(engine):
    assert engine.compiler[1] == NVRTC and engine.compiler[0].startswith(("12.", "13."))
    text = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }'
    done = engine.compile(text, "twice", "sm_90a")
    assert done.image[:4] == b"\x7fELF" and done.info.registers > 0
    with pytest.raises(tw.CompileFailed, match="twice") as caught:
        engine.compile(text.replace("*=", "*/"), "twice", "sm_90a", "twice.cu")
    assert "error" in caught.value.log and "twice" in caught.value.source
    with pytest.raises(tw.CompileFailed):
        engine.compile(text, "thrice", "sm_90a")


@needs_nvrtc
def test_prepare_remembers(engine, gpu):
    first = engine.prepare(CAST, gpu)
    before = engine.stats
    second = engine.prepare("cast x=f32 y=f16 rows=7 cols=64", gpu, stream=types.SimpleNamespace(cuda_stream=0))
    assert engine.stats.memory_hits == before.memory_hits + 1 and engine.stats.compiled == before.compiled
    assert first.candidate() == second.candidate(2)


def test_log(monkeypatch):
    said = []
    monkeypatch.setenv("TILEWRIGHT_JOBS", "many")
    with tw.Engine(cache=":memory:", log=lambda *message: said.append(message)) as e:
        assert e.stats.warnings == 1
    assert [level for level, _ in said] == ["warning"] and "TILEWRIGHT_JOBS" in said[0][1]


def test_nothing_is_printed(gpu, cache, capfd):
    with tw.Engine(cache=":memory:") as e:
        e.plan(TEXT, gpu)
        with pytest.raises(tw.InvalidArgument):
            e.plan("nonsense", gpu)
    assert capfd.readouterr() == ("", "")


# ---- prewarming and the cache


@needs_nvrtc
@pytest.mark.parametrize("worker", ["", None])
def test_prewarm(engine, gpu, tmp_path, worker, monkeypatch):
    if CLI and worker is None:
        monkeypatch.setenv("TILEWRIGHT_CLI", CLI)  # more than two jobs: processes of the tool compile
    tmp_path.chmod(0o700)
    path = tmp_path / "workload.txt"
    path.write_text("cast x=f32 y=f16 rows=1 cols=128\n")
    seen = []
    with tw.Engine(cache=str(tmp_path / "a.db"), nvrtc=NVRTC, jobs=2) as e:
        report = tw.prewarm(path, engine=e, top=1, jobs=3, worker=worker, progress=lambda *step: seen.append(step))
        assert report.compiled > 0 and report.failed == 0 and report.failures == () and report.seconds > 0
        assert seen and seen[-1][1] == seen[-1][2] and {stage for stage, *_ in seen} == {"plan", "compile"}
        again = e.prewarm([tw.Problem("cast x=f32 y=f16 rows=1 cols=128")], ["sm_90a"], top=1, worker=worker)
        assert again.compiled == 0 and again.skipped > 0
        e.export(tmp_path / "shipped.db")
        with pytest.raises(tw.IoError):
            e.export(tmp_path / "shipped.db")
        e.export(tmp_path / "shipped.db", replace=True)
    with tw.Engine(cache=":memory:", shipped=tmp_path / "shipped.db", compile=False, nvrtc=str(tmp_path)) as e:
        assert e.prepare("cast x=f32 y=f16 rows=3 cols=128", gpu).candidate() and e.stats.cache_hits > 0
    with tw.Engine(cache=str(tmp_path / "b.db"), nvrtc=NVRTC) as e:
        assert e.merge(tmp_path / "shipped.db").added > 0 and e.merge(tmp_path / "shipped.db").added == 0
        assert sum(e.import_(tmp_path / "shipped.db")) >= 0
        with pytest.raises(tw.TilewrightError):
            e.merge(tmp_path / "nothing.db")


@needs_nvrtc
def test_prewarm_refusals(engine):
    with pytest.raises(tw.InvalidArgument, match="sm_90a"):
        engine.prewarm(CAST, ["sm_12"])
    with pytest.raises(tw.InvalidArgument):
        engine.prewarm(["nonsense"])
    with pytest.raises(ZeroDivisionError):  # out of a callback, as it was raised
        engine.prewarm("cast x=f32 y=f16 rows=1 cols=256", top=1, progress=lambda *step: 1 // 0)
    alone = "gemm x=q8_1 w=nf4 y=f32 m=2 n=64 k=256"
    report = engine.prewarm(alone, ["sm_80"], top=1, every_bucket=False)
    assert report.failed == 1 and "only the reference kernel" in report.failures[0]
    assert engine.prewarm(alone, ["sm_80"], top=1, every_bucket=False, reference=True).failed == 0


@needs_nvrtc
@pytest.mark.parametrize("by", ["signal", "cancelled"])
def test_prewarm_ends_early(tmp_path, by):
    """Between two compiles; what was compiled is stored."""
    tmp_path.chmod(0o700)
    problems = [f"cast x=f32 y={y} rows=1 cols=256" for y in ("f16", "bf16", "q8_0", "q8_1", "int8_row", "mxfp8")]
    compiles = []

    def progress(stage, *counts):
        compiles.extend([stage] if stage == "compile" else [])
        if by == "signal" and len(compiles) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with tw.Engine(cache=str(tmp_path / "a.db"), nvrtc=NVRTC) as e:
        given = {"jobs": 1, "worker": "", "progress": progress}
        if by == "signal":
            with pytest.raises(KeyboardInterrupt):
                e.prewarm(problems, **given)
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        else:
            report = e.prewarm(problems, cancelled=lambda: len(compiles) >= 2, **given)
            assert report.cancelled and 2 <= report.compiled <= 3
        assert len(compiles) <= 3
        again = e.prewarm(problems[:1], top=1, jobs=1, worker="", every_bucket=False)
        assert again.skipped > 0 and not again.cancelled


def test_progress_without_a_terminal(monkeypatch):
    from tilewright.engine import _bar

    with _bar(True) as shown:
        assert shown is None
    with _bar(None) as shown:
        assert shown is None
    pytest.importorskip("tqdm")
    import io
    import sys

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    with _bar(True) as shown:
        shown("compile", 1, 4)
    assert "compile" in sys.stderr.getvalue()


@needs_nvrtc
def test_many_threads(engine, gpu):
    """One engine, one kernel, many threads."""
    kernels, failed = [], []
    x, y = gpu.memory(2 * 256), gpu.memory(2 * 128)

    def work():
        try:
            k = engine.prepare(CAST, gpu)
            for _ in range(50):
                k.launch(x=x, y=y)
                assert engine.plan(CAST, "sm_90a")
            kernels.append(k)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed and len(kernels) == 6


def test_closing_at_once_releases_once(gpu):
    for _ in range(50):
        m = gpu.memory(16)
        threads = [threading.Thread(target=m.close) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()


def test_unwritable_cache(tmp_path):
    folder = pathlib.Path(tmp_path / "file")
    folder.write_text("")
    with tw.Engine(cache=os.fspath(folder / "cache.db")) as e:
        assert e.cache_unwritable


@needs_nvrtc
def test_tune_cancelled(engine, gpu):
    calls = []

    def cancelled():
        calls.append(1)
        return True

    try:
        assert engine.tune(CAST, gpu, cancelled=cancelled, retune=True).stopped == "cancelled"
    except tw.WouldTune as error:
        assert "cancelled" in str(error)
    assert calls


@needs_nvrtc
def test_the_process_exits_while_a_thread_compiles():
    """exit() waits: libnvrtc's destructors would take away what the compile uses."""
    code = (
        "import sys, threading, time, tilewright as tw\n"
        "engine = tw.Engine(cache=':memory:', nvrtc=sys.argv[1])\n"
        "done = []\n"
        "def compile(i):\n"
        "    while True:\n"
        "        i += 1\n"
        "        try: engine.compile('__global__ void f%d(float* y) { y[0] = %d; }' % (i, i), 'f%d' % i, 'sm_90a')\n"
        "        except tw.TilewrightError: pass\n"
        "        done.append(i)\n"
        "for i in range(3): threading.Thread(target=compile, args=(i * 1000,), daemon=True).start()\n"
        "while len(done) < 9: time.sleep(0.01)\n"  # the compiler has what it makes late
        "time.sleep(float(sys.argv[2]))\n"
    )
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "TILEWRIGHT_LIBRARY": LIBRARY or ""}
    for i in range(6):
        done = subprocess.run([sys.executable, "-c", code, NVRTC, str(0.03 * i)], env=variables, timeout=120)
        assert done.returncode == 0
