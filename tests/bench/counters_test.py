#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/counters.py: whose counters a row gets, and what it says when launches and kernels do not go together."""
import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
sys.dont_write_bytecode = True
import counters  # noqa: E402


def run(folder, launches, kernels):
    """`launches`: (m, rival); `kernels`: (name, nanoseconds). What counters.py leaves, or what it complains of."""
    rows = [{"label": "row", "m": m, "n": 64, "k": 128, "problem": "p", "rival": rival, "choice": "" if rival else "c"} for m, rival in launches]
    (folder / "profiled.json").write_text(json.dumps({"environment": {"commit": "abc"}, "results": {"gemm": {"profiled": rows}}}))
    stalls = {counters.STALL + "selected_per_issue_active.ratio": "1.00", counters.STALL + "wait_per_issue_active.ratio": "3.00",
              counters.STALL + "sleeping_per_issue_active.ratio": "no data"}
    heads = ["ID", "Kernel Name", *[metric for _, metric, _ in counters.METRICS], *stalls]
    with open(folder / "counters.csv", "w", newline="") as file:
        file.write("==PROF== Connected to process 1\n")
        table = csv.writer(file, quoting=csv.QUOTE_ALL)
        table.writerow(heads)
        table.writerow([""] * len(heads))
        for i, (name, ns) in enumerate(kernels):
            table.writerow([i, name, *[f"{ns:,}" if metric.startswith("gpu__time") else "50.5" for _, metric, _ in counters.METRICS], *stalls.values()])
    out = folder / "out.json"
    out.unlink(missing_ok=True)
    done = subprocess.run([sys.executable, ROOT / "bench/counters.py", folder / "profiled.json", folder / "counters.csv", out], capture_output=True, text=True)
    return (json.loads(out.read_text()), done.stdout) if done.returncode == 0 else (None, done.stderr)


def main():
    ours = counters.OURS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result, text = run(folder, [(1, ""), (1, "fp8"), (16, "")], [(ours, 1500), ("nvjet", 2000), ("splitK", 1_000_000), (ours, 3000)])
        rows = result["results"]["counters"]
        assert result["environment"]["commit"] == "abc"
        assert [(r["m"], r["rival"], r["us"]) for r in rows] == [(1, "", 1.5), (1, "fp8", 2.0), (1, "fp8", 1000.0), (16, "", 3.0)], rows
        assert [r.get("kernel") for r in rows] == [None, "nvjet", "splitK", None]
        assert rows[0]["warps"] == {"wait": 75.0, "selected": 25.0} and rows[0]["dram"] == 50.5, rows[0]
        assert "row m=16 64x128" in text and "nvjet" not in text
        for launches, kernels, complaint in [([(1, "")], [], "has no kernels"), ([(1, "")], [("nvjet", 1)], "has other kernels"),
                                             ([(1, "fp8")], [(ours, 1)], "has other kernels"), ([(1, "")], [(ours, 1), (ours, 1)], "1 kernels"),
                                             ([(1, ""), (16, "")], [(ours, 1)], "has other kernels")]:
            result, text = run(folder, launches, kernels)
            assert result is None and complaint in text, (launches, kernels, text)


if __name__ == "__main__":
    main()
