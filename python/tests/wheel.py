# SPDX-License-Identifier: Apache-2.0
"""Tries an installed wheel where there is nothing else: no NumPy, no HOME, no CUDA. ./dev wheel runs it."""

import array
import subprocess
import sys

import tilewright as tw


def tool(*arguments):
    command = [sys.executable, "-m", "tilewright", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


assert tw.formats() and tw.__version__
values = array.array("f", [0.5] * 64)
encoded = tw.encode(values, "q4_0")
assert list(memoryview(tw.decode(encoded)).cast("B").cast("f")) == [0.5] * 64
problem = tw.Problem("gemm x=f16 w=q4_0 y=f16 m=1 n=64 k=64")
with tw.Engine(cache=":memory:") as engine:
    assert len(engine.plan(problem, "sm_90a")) > 1
try:
    tw.Problem("gemm x=f16 w=q4_O y=f16 m=1 n=64 k=64")
except tw.InvalidArgument as error:
    assert error.field == "w" and "q4_0" in error.allowed
else:
    raise AssertionError("an unknown format was taken")

# The tool is a program of its own that catches what the library throws.
assert tool("--version").stdout.strip() == tw.__version__
assert tool("plan", str(problem), "--arch", "sm_90a").returncode == 0
refused = tool("plan", "gemm x=f16 w=q4_O y=f16 m=1 n=64 k=64")
assert refused.returncode == 1 and "did you mean q4_0" in refused.stderr, refused
assert not {"numpy", "torch", "tqdm"} & set(sys.modules)

# ONNX Runtime's part is in the wheel, though ONNX Runtime is not here.
import ctypes  # noqa: E402
import os  # noqa: E402

assert ctypes.CDLL(os.path.join(os.path.dirname(tw.__file__), "_lib", "libtilewright_ort.so")).CreateEpFactories
