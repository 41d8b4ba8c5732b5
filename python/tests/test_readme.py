# SPDX-License-Identifier: Apache-2.0
"""Every Python snippet of the documentation, in a process and a folder of its own, as a reader without a GPU would run
it."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from conftest import LIBRARY, NVRTC, PACKAGE, SOURCE

PAGES = [PACKAGE / "README.md", SOURCE / "README.md", *sorted((SOURCE / "docs").rglob("*.md"))]
SNIPPETS = [
    pytest.param(*found, id=f"{page.relative_to(SOURCE)}-{number}")
    for page in PAGES
    for number, found in enumerate(re.findall(r"(<!-- compiles -->\n)?```python\n(.*?)```", page.read_text(), re.S))
]


def test_there_are_snippets():
    assert len(SNIPPETS) == sum(page.read_text().count("```python") for page in PAGES) >= 9


@pytest.mark.parametrize("compiles, code", SNIPPETS)
def test_snippet(compiles, code, tmp_path):
    if compiles and NVRTC is None:
        pytest.skip("compiles: needs TILEWRIGHT_NVRTC")
    for package in ("torch", "safetensors", "transformers", "onnx", "torchao"):
        if package in code:
            pytest.importorskip(package)
    tmp_path.chmod(0o700)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(PACKAGE)}
    environment |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    environment |= {"TILEWRIGHT_LIBRARY": LIBRARY or "", **({"TILEWRIGHT_NVRTC": NVRTC} if NVRTC else {})}
    # torchao, which transformers imports, says what it cannot load without a GPU, and warns of PyTorch's changes;
    # PyTorch's exporter to ONNX warns of its own use of PyTorch, and says that torchvision is not there.
    noisy = "torchao" in code or "transformers" in code or "onnx.export" in code
    command = [sys.executable, *([] if noisy else ["-W", "error"]), "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and (noisy or done.stderr == ""), done.stderr


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
