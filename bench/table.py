#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""table.py RESULT.json...: one line for each row of targets of `bench gemm` or `bench conv`: worst, median and best of
the values, and how many reach the target. A row is taken from the first file that has a result for it."""
import argparse
import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
from tilewright.plot import read_results  # noqa: E402


def table(rows):
    lines = ["| rows | worst | median | best | target | rows that reach it |", "|---|---|---|---|---|---|"]
    groups = {}
    for row in rows:
        if row["target"] > 0:
            groups.setdefault(row["group"], []).append(row)
    for group, members in groups.items():
        target, passed = members[0]["target_text"], sum(r["mark"] == "pass" for r in members)
        values = sorted((r["value"] for r in members if r["value"] > 0), reverse=members[0]["at_most"])
        if "%" in target:
            show = lambda v: f"{100 * v:.0f} %"
        else:
            show = (lambda v: f"{v:.0f} TF") if "TF" in target else (lambda v: f"{v:.2f}x")
        shown = [show(v) for v in (values[0], statistics.median(values), values[-1])] if values else ["–"] * 3
        without = [r for r in members if r["value"] == 0]
        late = sum("out of time" in r["note"] for r in without)
        lines.append(f'| {group} | {" | ".join(shown)} | {target} | {passed} of {len(members)}'
                     f'{f", {late} not run" if late else ""}'
                     f'{f", {len(without) - late} without a kernel" if len(without) > late else ""} |')
    return "\n".join(lines)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("results", nargs="+", type=Path)
print(table(read_results(json.loads(path.read_text()) for path in parser.parse_args().results)[0]))
