# SPDX-License-Identifier: Apache-2.0
"""bench/torch_modules.py without a GPU: its rows, what it refuses, and what it makes of other programs' results."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest
from conftest import SOURCE
from torch_support import torch
from torch import nn

spec = importlib.util.spec_from_file_location("torch_modules", SOURCE / "bench" / "torch_modules.py")
bench = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bench)

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.fixture
def layers():
    with torch.inference_mode():
        yield bench.Layers(32, 256, "cpu", torch.float32)


@without_gpu
def test_it_needs_a_gpu(capsys):
    assert bench.main([]) == bench.NO_GPU
    assert "finds no GPU; --cpu" in capsys.readouterr().err


def test_rows_of_the_cpu(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE", "")  # which it sets
    out, wheel = tmp_path / "out.json", tmp_path / "tilewright.whl"
    wheel.write_bytes(b"1234567")
    assert bench.main(["--cpu", "--host-shape", "32,128", "--out", str(out), "--wheel", str(wheel)]) == 0
    result = json.loads(out.read_text())
    rows = {row["row"]: row for row in result["rows"]}
    assert set(rows) == set(bench.LIMITS)
    assert rows["wheel"]["value"] == 7 and rows["wheel"]["mark"] == "pass"
    assert 0 < rows["import"]["value"] < 40_000
    for ops in ("stable", "python"):
        row = rows[f"host {ops}"]
        assert row["mark"] == "missing"
        if row["error"] == "needs a GPU":  # else there is no libtilewright_torch
            assert {"nn.Linear", "int4_g128 x as it is", "q4_0 x q8_1"} == set(row["all_us"])
            assert all(us > 0 for us in row["all_us"].values())
    assert rows["host python"]["error"] == "needs a GPU"
    assert result["environment"]["torch"] == torch.__version__
    assert "host gemlite" in capsys.readouterr().out


@pytest.mark.parametrize("shape", ["0,128", "64", "64,100", "64,-128", "x,128"])
def test_shapes_that_are_none(shape, capsys):
    with pytest.raises(SystemExit):
        bench.main(["--cpu", "--host-shape", shape])
    assert "a multiple of 128" in capsys.readouterr().err


def test_codes(layers):
    """What the rivals' layers are made of are our layer's values."""
    codes, scales = layers.codes()
    values = (codes.float() - 8).unflatten(1, (-1, 128)) * scales.float()[..., None]
    assert torch.equal(values.flatten(1), layers.ours().dequantize())


def test_rivals(layers, monkeypatch):
    right, wrong = nn.Linear(256, 32, bias=False), nn.Linear(256, 32, bias=False)
    right.weight.copy_(layers.ours().dequantize())
    wrong.weight.copy_(-right.weight)
    monkeypatch.setattr(bench.Layers, "gemlite", lambda self: (right, "1.2"))
    monkeypatch.setattr(bench.Layers, "humming", lambda self: (wrong, "3.4"))
    taken = bench.host(layers, "cpu", 1, ["gemlite", "humming"])
    assert taken["us"]["gemlite"] > 0 and taken["versions"]["gemlite"] == "1.2"
    assert "humming" not in taken["us"] and "ValueError: its result differs by" in taken["errors"]["humming"]
    monkeypatch.undo()
    for name in ("gemlite", "humming"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    taken = bench.host(layers, "cpu", 1, ["gemlite", "humming"])
    assert all("ModuleNotFoundError" in taken["errors"][name] for name in ("gemlite", "humming"))


TOOL = """#!{python}
import json, sys
arguments = sys.argv[1:]
assert arguments[:3] == ["gemm", "--rows", "decode int4-g128 x f16"] and arguments[3:7] == ["--shapes", "8,256", "--m", "1"]
{body}
"""


def tool(tmp_path, body):
    path = tmp_path / "tilewright_bench"
    path.write_text(TOOL.format(python=sys.executable, body=body))
    path.chmod(0o755)
    return str(path)


def test_the_cpp_bench(tmp_path):
    rows = [{"problem": "gemm ...", "us": 0, "note": "missing"}, {"problem": "gemm x", "us": 12.5, "choice": "gemv"}]
    written = {"environment": {"driver": "580", "tree_hash": "ab"}, "results": {"gemm": {"rows": rows}}}
    path = tool(tmp_path, f"open(arguments[-1], 'w').write({json.dumps(written)!r})")
    report = bench.Report(None)
    assert bench.cpp_bench(path, 8, 256, "cache.db", report) == rows[1]
    assert report.environment == written["environment"]
    written["results"]["gemm"]["rows"].pop()
    path = tool(tmp_path, f"open(arguments[-1], 'w').write({json.dumps(written)!r})")
    with pytest.raises(RuntimeError, match="has no time for int4-g128"):
        bench.cpp_bench(path, 8, 256, "cache.db", report)
    with pytest.raises(RuntimeError, match="failed: no device"):
        bench.cpp_bench(tool(tmp_path, "sys.exit('no device')"), 8, 256, "cache.db", report)


def test_marks(tmp_path):
    report = bench.Report(tmp_path / "out.json")
    report.add("graph", value=1.02)
    report.add("device", value=1.04)
    report.add("wheel", error="no wheel")
    marks = [row["mark"] for row in json.loads((tmp_path / "out.json").read_text())["rows"]]
    assert marks == ["pass", "OVER", "missing"]
