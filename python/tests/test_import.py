# SPDX-License-Identifier: Apache-2.0
"""The package in processes of its own: what importing costs and loads, how processes fork and end, and the tool."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from conftest import CLI, FAKE_CUDA, LIBRARY, NVRTC, PACKAGE, needs_nvrtc

needs_double = pytest.mark.skipif(FAKE_CUDA is None, reason="needs TILEWRIGHT_FAKE_CUDA")


def run(code, *arguments, flags=("-S",), **environment):
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PACKAGE), "TILEWRIGHT_LIBRARY": LIBRARY or "", **environment}
    command = [sys.executable, *flags, "-c", code, *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


def test_import_loads_the_standard_library_alone():
    code = """
import sys
before = set(sys.modules)
import tilewright, tilewright.engine, tilewright.codec, tilewright.checkpoints, tilewright.models, tilewright.own
new = {name.partition(".")[0] for name in set(sys.modules) - before} - {"tilewright"}
print(sorted(new - set(sys.stdlib_module_names)))
"""
    done = run(code)
    assert done.stdout == "[]\n", done.stderr


def test_import_needs_no_library():
    done = run("import tilewright; tilewright.Engine", TILEWRIGHT_LIBRARY="/nowhere")
    assert done.returncode == 0, done.stderr


def test_missing_library_is_said():
    code = """
import tilewright
try: tilewright.formats()
except tilewright.LibraryMissing as e: print(isinstance(e, OSError), e.code, e)
"""
    done = run(code, TILEWRIGHT_LIBRARY="/nowhere/libtilewright_c.so")
    assert done.stdout.startswith("True library_missing libtilewright_c /nowhere/libtilewright_c.so cannot be loaded: "), done.stderr
    assert "TILEWRIGHT_LIBRARY" in done.stdout


def test_another_abi_is_refused(tmp_path):
    source = tmp_path / "other.c"
    source.write_text("unsigned tw_abi_version(void) { return 99; }")
    library = tmp_path / "libother.so"
    if subprocess.run(["cc", "-shared", "-fPIC", source, "-o", library]).returncode:
        pytest.skip("needs a C compiler")
    done = run("import tilewright; tilewright.formats()", TILEWRIGHT_LIBRARY=str(library))
    assert "has ABI version 99, and this package needs version 1" in done.stderr


@pytest.mark.parametrize(
    "before, code",
    [("pass", "import tilewright"), ("import ctypes, typing", "from tilewright import Engine, Problem, encode")],
)
def test_import_time(before, code):
    """Of the processor, the least of several, since other processes only add. Of the names, what the package itself takes."""
    timed = f"import time; {before}; t = time.process_time(); {code}; print(time.process_time() - t)"
    assert min(float(run(timed).stdout) for _ in range(7)) < 0.040


def test_names_are_all_there():
    code = """
import tilewright
for name in tilewright.__all__: getattr(tilewright, name)
assert set(tilewright.__all__) <= set(dir(tilewright))
try: tilewright.nonsense
except AttributeError as e: print(e)
"""
    done = run(code, flags=())
    assert done.stdout == "module 'tilewright' has no attribute 'nonsense'\n", done.stderr


EXIT = """
import sys
import tilewright as tw
driver = sys.argv[1]
gpu = tw.Device(0, driver=driver)
everything = [gpu, gpu.memory(64), tw.Stream(gpu), tw.Engine(cache=":memory:", driver=driver, log=print),
              tw.Problem("cast x=f32 y=f16 rows=2 cols=64")]
class Late:
    def __del__(self): everything[1].close()
everything.append(Late())
cycle = [everything]; cycle.append(cycle)
print("end")
"""


@needs_double
def test_exit_with_live_handles():
    done = run(EXIT, FAKE_CUDA, TILEWRIGHT_CACHE=":memory:")
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


FORK = """
import os, sys
import tilewright as tw
gpu = tw.Device(0, driver=sys.argv[1])
memory, stream = gpu.memory(64), tw.Stream(gpu)
child = os.fork()
if child == 0:
    got = []
    for use in (gpu.synchronize, lambda: memory.fill(0), stream.synchronize, lambda: gpu.memory(16)):
        try: use(); got.append("worked")
        except tw.Forked as e: got.append(e.code)
    memory.close(); stream.close(); gpu.close()
    print(got, flush=True)
    sys.exit(0)
status = os.waitpid(child, 0)[1]
gpu.synchronize(); memory.fill(1)
print(status)
"""


@needs_double
def test_fork():
    done = run(FORK, FAKE_CUDA)
    assert (done.stdout, done.stderr) == (f"{['forked'] * 4}\n0\n", "")


@pytest.mark.skipif(CLI is None, reason="needs TILEWRIGHT_CLI")
def test_tool_through_a_pipe(tmp_path):
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PACKAGE), "HOME": "", "TILEWRIGHT_CLI": CLI}
    command = [sys.executable, "-m", "tilewright"]
    done = subprocess.run([*command, "--version"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip().endswith("0.1.0"), done
    bad = subprocess.run([*command, "nonsense"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    direct = subprocess.run([CLI, "nonsense"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert bad.returncode == direct.returncode != 0 and bad.stderr == direct.stderr
    head = f"{sys.executable} -m tilewright operations | head -1; echo ${{PIPESTATUS[0]}}"
    piped = subprocess.run(["bash", "-c", head], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert piped.stdout.count("\n") == 2 and piped.stderr == ""


def test_tool_that_is_missing(tmp_path):
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PACKAGE), "TILEWRIGHT_CLI": str(tmp_path)}
    done = subprocess.run([sys.executable, "-m", "tilewright"], env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and "TILEWRIGHT_CLI" in done.stderr and "Traceback" not in done.stderr


def test_nvrtc_of_the_environment(tmp_path, monkeypatch):
    from tilewright.engine import nvrtc_of_environment

    wheel = tmp_path / "nvidia" / "cu13" / "lib"
    wheel.mkdir(parents=True)
    (wheel / "libnvrtc.so.13").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert nvrtc_of_environment() == str(wheel / "libnvrtc.so.13")
    monkeypatch.setenv("TILEWRIGHT_NVRTC", "/elsewhere")
    assert nvrtc_of_environment() is None


@pytest.mark.skipif(CLI is None or LIBRARY is None, reason="needs TILEWRIGHT_LIBRARY and TILEWRIGHT_CLI")
def test_the_wheels_layout(tmp_path):
    """The library and the tool are found in the package, without any variable."""
    shutil.copytree(PACKAGE / "tilewright", tmp_path / "tilewright")
    for folder, file, name in (("_lib", LIBRARY, "libtilewright_c.so"), ("_bin", CLI, "tilewright")):
        (tmp_path / "tilewright" / folder).mkdir()
        (tmp_path / "tilewright" / folder / name).symlink_to(os.path.realpath(file))
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    code = "import tilewright as tw; print(tw.__version__, len(tw.formats()) > 9)"
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd="/", capture_output=True, text=True)
    assert done.stdout == "0.1.0 True\n", done.stderr
    command = [sys.executable, "-m", "tilewright", "--version"]
    assert "0.1.0" in subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True).stdout


FORK_KERNEL = """
import os, sys
import tilewright as tw
gpu = tw.Device(0, driver=sys.argv[1])
engine = tw.Engine(cache=":memory:", driver=sys.argv[1])
kernel = engine.prepare("cast x=f32 y=f16 rows=2 cols=64", gpu)
x, y = gpu.memory(512), gpu.memory(256)
kernel.launch(x=x, y=y)
if os.fork() == 0:
    try: kernel.launch(x=x, y=y)
    except tw.Forked as e: print(e.code, flush=True)
    sys.exit(0)
os.wait()
kernel.launch(x=x, y=y)
"""


@needs_double
@needs_nvrtc
def test_a_kernel_after_fork():
    # From 3.12 on Python warns of forking with threads, which is what is tested.
    flags = ("-S", "-W", "ignore::DeprecationWarning")
    done = run(FORK_KERNEL, FAKE_CUDA, flags=flags, TILEWRIGHT_NVRTC=NVRTC)
    assert (done.returncode, done.stdout, done.stderr) == (0, "forked\n", "")
