# SPDX-License-Identifier: Apache-2.0
"""Every Python snippet of this folder's README.md and the checkout's, in a process and a folder of its own, as a reader
without a GPU would run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from conftest import LIBRARY, NVRTC, PACKAGE, SOURCE

TEXT = (PACKAGE / "README.md").read_text() + (SOURCE / "README.md").read_text()
SNIPPETS = re.findall(r"(<!-- compiles -->\n)?```python\n(.*?)```", TEXT, flags=re.S)


def test_there_are_snippets():
    assert len(SNIPPETS) == TEXT.count("```python") >= 5


@pytest.mark.parametrize("compiles, code", SNIPPETS, ids=range(len(SNIPPETS)))
def test_snippet(compiles, code, tmp_path):
    if compiles and NVRTC is None:
        pytest.skip("compiles: needs TILEWRIGHT_NVRTC")
    tmp_path.chmod(0o700)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(PACKAGE)}
    environment |= {"TILEWRIGHT_LIBRARY": LIBRARY or "", **({"TILEWRIGHT_NVRTC": NVRTC} if NVRTC else {})}
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


@pytest.mark.parametrize("module", ["engine", "codec", "problem", "device", "own", "models", "checkpoints"])
def test_everything_public_is_documented(module):
    import importlib
    import inspect

    loaded = importlib.import_module(f"tilewright.{module}")
    assert loaded.__doc__
    for name, value in vars(loaded).items():
        if name.startswith("_") or getattr(value, "__module__", None) != loaded.__name__ or not callable(value):
            continue
        if inspect.isclass(value):
            assert value.__doc__, name
