# SPDX-License-Identifier: Apache-2.0
"""From a model to its problems, and what is done with them."""

from __future__ import annotations

import types

import pytest
import torch_support  # noqa: F401
from conftest import NVRTC, needs_nvrtc

# isort: split
import torch
from torch import nn

import tilewright as tw
import tilewright.torch as twt
from tilewright.reports import TuneReport
from tilewright.torch import _cuda, tuning


@pytest.fixture
def engine_in_memory():
    twt.set_engine(tw.Engine(cache=":memory:", **({"nvrtc": NVRTC} if NVRTC else {})))
    yield _cuda.engine()
    twt.set_engine(None)


def model():
    net = nn.Sequential(nn.Linear(256, 128), nn.GELU(), nn.Linear(128, 64), nn.Linear(64, 64))
    rules = [("0", {"weight": "q4_0", "activation": "q8_1"}), ("2", {"weight": "q4_1"}), ("3", None)]
    twt.replace_linears(net, rules)
    return net


def texts(problems):
    return [str(problem) for problem in problems]


def test_record():
    net = model()
    x = torch.randn(3, 5, 256)
    want = [
        "gemm x=q8_1 w=q4_0 y=f32 m=15 n=128 k=256 bias=f32 weights=constant",
        "cast x=f32 y=q8_1 rows=15 cols=256",
        "gemm x=f32 w=q4_1 y=f32 m=15 n=64 k=128 bias=f32 weights=constant",
    ]
    assert texts(twt.record(net, x)) == want
    assert texts(twt.record(torch.compile(net, backend="eager"), x)) == want
    assert twt.record(net, x[:0]) == []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert "x=bf16 w=q4_1 y=bf16" in texts(twt.record(net, x))[2]
    assert twt.record(nn.Linear(4, 4), torch.randn(2, 4)) == []
    net(x)  # nothing fake stays in it


def test_record_for_a_target(engine_in_memory):
    net = model().half()
    assert texts(twt.record(net, torch.randn(3, 256).half(), arch="sm_90a")) == [
        "pack w=q4_0 x=q8_1 n=128 k=256",
        "gemm x=q8_1 w=q4_0 y=f16 m=3 n=128 k=256 pack=tiles bias=f16 workspace=34603008 weights=constant",
        "cast x=f16 y=q8_1 rows=3 cols=256",
        "gemm x=q8_1 w=q4_0 y=f16 m=1 n=128 k=256 pack=tiles x_from=f16 bias=f16 workspace=34603008 weights=constant",
        "pack w=q4_1 x=f16 n=64 k=128",
        "gemm x=f16 w=q4_1 y=f16 m=3 n=64 k=128 pack=tiles bias=f16 workspace=34603008 weights=constant",
    ]
    on_ampere = texts(twt.record(net, torch.randn(3, 256).half(), arch="sm_80"))
    assert on_ampere[0] == "gemm x=q8_1 w=q4_0 y=f16 m=3 n=128 k=256 bias=f16 weights=constant"
    assert not any("tiles" in text or "workspace" in text for text in on_ampere)


class Branches(nn.Module):
    """Its course depends on values, which fake tensors do not have."""

    def __init__(self):
        super().__init__()
        self.layer = twt.QuantizedLinear.from_linear(nn.Linear(64, 32), "q4_0")

    def forward(self, x, scale=None):
        return self.layer(x[: int(x.sum() > 0) + 1] * (scale["by"] if scale else 1))


def test_record_of_a_model_that_looks_at_values():
    got = twt.record(Branches(), torch.ones(4, 64), {"by": torch.ones(1)})
    assert texts(got) == ["gemm x=f32 w=q4_0 y=f32 m=2 n=32 k=64 bias=f32 weights=constant"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_tune_without_a_gpu():
    with pytest.raises(tw.Unsupported, match="device must be cpu .got 0.: PyTorch sees no GPU"):
        twt.tune(model(), torch.randn(3, 256), device=0)
    assert twt.warm(model()) == 0


@pytest.mark.skipif(tw.Device.cpu(1).arch == "x86-64", reason="this CPU has no kernels")
def test_tune_on_the_cpu(engine_in_memory):
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16), nn.Linear(16, 8))
    without_kernels = {"weight": "nf4", "activation": None}
    twt.replace_linears(net, [("0", {"weight": "q4_0", "activation": "q8_1"}), ("2", without_kernels)])
    summary = twt.tune(net, torch.randn(3, 64), device="cpu", budget_seconds=20, max_candidates=2)
    without, tuned = summary.entries
    assert str(without.problem).startswith("gemm x=f32 w=nf4") and "no panels" in without.error
    wanted = "gemm x=q8_1 w=q4_0 y=f32 m=3 n=64 k=64 pack=panels x_from=f32 bias=f32 weights=constant"
    assert str(tuned.problem) == wanted and tuned.report.measured >= 1 and not summary.left
    assert net[0].cpu_kernel(3).startswith("cpu_") and net[2].cpu_kernel() is None


def test_tune(engine_in_memory, monkeypatch):
    """What is asked of the engine."""
    asked = []

    def tune(problem, device, **policy):
        asked.append((str(problem), policy))
        if problem.op == "cast":
            raise tw.Unsupported("problem", str(problem), "no candidate is right")
        return TuneReport("gemv rows=1", "", "exact", "all", "", 4.25, 1.0, 3, 2, problem.op == "pack", (), ())

    clock = iter(range(1000))
    monkeypatch.setattr(_cuda, "device", lambda index: types.SimpleNamespace(name="H200", arch="sm_90a"))
    monkeypatch.setattr(tuning, "_cuda_index", lambda device: 0)
    monkeypatch.setattr(engine_in_memory, "tune", tune)
    monkeypatch.setattr(tuning.time, "monotonic", lambda: next(clock))
    summary = twt.tune(model().half(), (torch.randn(3, 256).half(),), device=0, budget_seconds=4, patience=5)
    assert [policy["all_rows"] for _, policy in asked] == [False, True, True]
    assert all(policy["patience"] == 5 and 0 < policy["budget_seconds"] <= 1 for _, policy in asked)
    assert asked[1][0].startswith("gemm x=q8_1 w=q4_0 y=f16 m=3 ")
    assert len(summary.entries) == 3 and len(summary.left) == 3
    text = str(summary)
    assert "4.2 us, 2 measured, stopped by all: gemv rows=1" in text and "too noisy to be stored" in text
    assert "not tuned: problem cast" in text and "not reached within the budget: gemm" in text


@needs_nvrtc
def test_prewarm(engine_in_memory):
    net = nn.Sequential(nn.Linear(96, 40))
    twt.replace_linears(net, [("*", {"weight": "int8_row", "activation": "int8_row"})])
    report = twt.prewarm(net, torch.randn(2, 96), ["sm_80"], top=1, every_bucket=False, worker="")
    assert report.failed == 0 and report.compiled >= 2, report
    again = twt.prewarm(net, torch.randn(2, 96), ["sm_80"], top=1, every_bucket=False, worker="")
    assert again.compiled == 0 and again.skipped >= 2
