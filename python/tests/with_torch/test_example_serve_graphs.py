# SPDX-License-Identifier: Apache-2.0
"""examples/python/serve_graphs.py: its logic with captures that behave as CUDA's do, and the program itself."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

PROGRAM = pathlib.Path(__file__).resolve().parents[3] / "examples" / "python" / "serve_graphs.py"
SMALL = ["--most", "6", "--sequences", "9", "--layers", "1", "--hidden", "128", "--repeats", "1"]


@pytest.fixture(scope="module")
def example():
    found = importlib.util.spec_from_file_location("serve_graphs", PROGRAM)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


class Recorded:
    """As a CUDA graph: what it computes is settled at the capture, from then on it reads and writes the same memory."""

    order: list[int] = []

    def __init__(self, run):
        self.run, self.y = run, run()
        self.replays = 0
        Recorded.order.append(len(self.y))

    def replay(self):
        self.replays += 1
        self.y.copy_(self.run())
        return self.y


def make_server(example, most=6):
    torch.manual_seed(0)
    Recorded.order = []
    w = torch.randn(8, 8, dtype=torch.bfloat16)
    model = torch.nn.Linear(8, 8, bias=False, dtype=torch.bfloat16).requires_grad_(False)
    model.weight.copy_(w)
    return model, example.Server(model, most, 8, "cpu", Recorded)


def test_each_number_of_tokens_has_its_graph(example):
    model, server = make_server(example)
    assert Recorded.order == [6, 5, 4, 3, 2, 1]
    for m in (3, 1, 6, 3):
        tokens = torch.randn(m, 8, dtype=torch.bfloat16)
        before = {n: graph.replays for n, graph in server.graphs.items()}
        assert torch.equal(server.step(tokens), model(tokens))
        assert {n for n, graph in server.graphs.items() if graph.replays != before[n]} == {m}
    for m in (0, 7):
        with pytest.raises(ValueError, match=f"tokens: {m} rows; 1 to 6"):
            server.step(torch.zeros(m, 8, dtype=torch.bfloat16))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("sequences", "most"), [(1, 1), (5, 2), (40, 6), (40, 64)])
def test_the_schedule(example, sequences, most, seed):
    """Every sequence in consecutive steps, 1 to 40 of them, never more than so many at a time, and all of them together
    where there is room."""
    steps = list(example.schedule(sequences, most, seed))
    assert all(1 <= len(active) <= most and len(set(active)) == len(active) for active in steps)
    for s in range(sequences):
        served = [i for i, active in enumerate(steps) if s in active]
        assert 1 <= len(served) <= 40 and served == list(range(served[0], served[-1] + 1))
    if most >= sequences > 1:
        assert max(map(len, steps)) > 1
    assert steps == list(example.schedule(sequences, most, seed))


def test_serving_is_a_product_for_each_token(example):
    model, server = make_server(example)
    states = torch.randn(9, 8, dtype=torch.bfloat16) * 2.0**-8
    want, counts = states.clone(), {}
    for active in example.schedule(9, 6):
        counts[len(active)] = counts.get(len(active), 0) + 1
        want[active] = model(want[active])
    assert example.serve(server, states, 9, 6) == counts
    assert torch.equal(states, want)


def run(*arguments, **environment):
    env = {"PATH": os.environ["PATH"], **environment}
    env |= {
        k: v for k, v in os.environ.items() if k in ("TILEWRIGHT_LIBRARY", "TILEWRIGHT_NVRTC", "PYTHONPATH", "HOME")
    }
    env.setdefault("PYTHONPATH", str(PROGRAM.parents[2] / "python"))
    command = [sys.executable, str(PROGRAM), *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("more", [[], ["--weight", "q4_0", "--activation", "q8_1"]])
def test_eager(more):
    done = run("--eager", *SMALL, *more)
    assert done.returncode == 0, done.stderr
    assert "3 replaced, 0 left alone" in done.stdout and "6 graphs in" in done.stdout
    assert "1 to 6 tokens: 0 of the largest value" in done.stdout
    assert re.search(r"^9 sequences: \d+ tokens in \d+ steps, \d+ tokens/s$", done.stdout, re.M)
    assert re.findall(r"^ +(\d+) +\d+ us +\d+ us$", done.stdout, re.M) == ["1", "2", "4"]


def test_without_a_gpu_it_says_so():
    done = run(*SMALL, CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == "serve_graphs: PyTorch finds no GPU to capture graphs on; --eager runs without them\n"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_with_graphs():
    done = run(*SMALL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 graphs in" in done.stdout


def test_a_wrong_result_is_said(example, monkeypatch, capsys):
    """A graph that reads other memory than the server writes to."""

    class Wrong(example.Eager):
        def __init__(self, run):
            super().__init__(lambda: run() + 1)

    monkeypatch.setattr(example, "Eager", Wrong)
    monkeypatch.setattr(example.torch.cuda, "is_available", lambda: False)
    assert example.main(["--eager", *SMALL]) == 1
    assert "a graph's result is not the layers'" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        example.main(["--eager", "--most", "0"])
    assert caught.value.code == 2 and "--most must be at least 1 (got 0)" in capsys.readouterr().err
