#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""plot.py RESULT.json... [--out docs/gemm.svg]: the rows of `bench gemm` or `bench conv` as bars, with a mark where the target is.
A row is taken from the first file that has a result for it. With --table, prints the table of docs/reference/results.md instead."""
import argparse
import html
import json
import statistics
from pathlib import Path

LEFT, WIDTH, RIGHT, BAR, GAP = 250, 520, 190, 9, 7
INK, FAINT, PASS, NO_TARGET, SHORT = "#24292f", "#d0d7de", "#2f81f7", "#9ecbff", "#a3acb9"

# What a panel shows: its title, which rows, how a value reads.
PANELS = [
    ("Speed relative to cuBLASLt (higher is better)", lambda r: r["rival_us"] > 0, lambda v: f"{v:.2f}x"),
    ("TFLOP/s (higher is better)", lambda r: r["target"] > 10, lambda v: f"{v:.0f}"),
    ("m = 1: share of the read bandwidth (higher is better)",
     lambda r: r["m"] == 1 and r["value"] > 0, lambda v: f"{100 * v:.0f} %"),
    ("m = 16, 64: time over that of m = 1 (lower is better)", lambda r: r["at_most"], lambda v: f"{v:.2f}x"),
]
CONV_PANELS = [
    ("Speed relative to cuDNN's fastest plan (higher is better)", lambda r: r["rival_us"] > 0 and not r["share"],
     lambda v: f"{v:.2f}x"),
    ("Share of a copy's rate, or of the single-precision units' (higher is better)", lambda r: r["share"],
     lambda v: f"{100 * v:.0f} %"),
    ("Time over that of a larger part of the layer (lower is better)", lambda r: r["at_most"], lambda v: f"{v:.2f}x"),
]


def read(paths):
    rows, device, commits = {}, "", []
    for path in paths:
        result = json.loads(Path(path).read_text())
        environment = result["environment"]
        device = f'{environment.get("device", "no device")}, driver {environment.get("driver", "?")}'
        commits.append(f'{environment.get("commit", "")[:7] or "not recorded"} ({environment.get("date", "?")[:10]})')
        for row in result["results"].get("gemm", {}).get("rows", []):
            row["detail"] = f'm={row["m"]} {row["n"]}x{row["k"]}'
            key = row["label"], row["m"], row["n"], row["k"], row["target_text"]
            if key not in rows or rows[key]["us"] == 0:
                rows[key] = row
        for row in result["results"].get("conv", {}).get("rows", []):
            row["share"] = "%" in row["target_text"]
            row.setdefault("at_most", False)
            if not row["share"] and not row["at_most"]:
                row["value"] = row["ratio"]
            row.update(detail=f'{row["layer"]}: {row["title"]}', m=0, n=0, k=0)
            key = row["label"], row["layer"]
            if key not in rows or rows[key]["us"] == 0:
                rows[key] = row
    return list(rows.values()), f'{device}, commit {" and ".join(dict.fromkeys(commits))}'


def text(x, y, words, anchor="start", color=INK, size=11, weight="normal"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}" font-size="{size}" '
            f'font-weight="{weight}">{html.escape(words)}</text>')


def ticks(most):
    """Four to eight round numbers from 0 on, up to `most`."""
    step = next(s for exponent in range(-3, 5) for s in (10.0 ** exponent, 2 * 10.0 ** exponent, 5 * 10.0 ** exponent)
                if most / s < 8)
    return [i * step for i in range(int(most / step) + 1)]


def panel(title, rows, show, top):
    """The panel's elements and the y below it."""
    out = [text(8, top + 14, title, size=13, weight="bold")]
    y = top + 40
    most = max(max(r["value"], r["target"]) for r in rows) * 1.02
    start = y
    labels = []
    for row in rows:
        if row["label"] not in labels:
            labels.append(row["label"])
    for label in labels:
        group = sorted((r for r in rows if r["label"] == label), key=lambda r: (r["m"], r["n"] * r["k"]))
        out.append(text(LEFT - 10, y + len(group) * BAR / 2 + 4, label, "end"))
        for r in group:
            length = WIDTH * r["value"] / most
            color = {"pass": PASS, "-": NO_TARGET}.get(r["mark"], SHORT)
            out.append(f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR - 2}" fill="{color}"/>')
            if r["target"] > 0:
                x = LEFT + WIDTH * r["target"] / most
                out.append(f'<path d="M{x:.1f} {y - 1}v{BAR}" stroke="{INK}" stroke-width="1.6"/>')
            reached = show(r["value"]) if r["value"] > 0 else "no result"
            out.append(text(LEFT + WIDTH + 8, y + BAR - 2, f'{reached}   {r["detail"]}', size=8.5))
            y += BAR
        y += GAP
    for value in ticks(most):
        x = LEFT + WIDTH * value / most
        out.insert(0, f'<path d="M{x:.1f} {start - 4}V{y - GAP + 4}" stroke="{FAINT}"/>')
        out.append(text(x, start - 7, show(value), "middle", size=8.5))
    return out, y + 12


def draw(rows, device):
    body, y = [], 34
    for title, belongs, show in CONV_PANELS if "share" in rows[0] else PANELS:
        chosen = [r for r in rows if r["us"] > 0 and belongs(r)]
        if chosen:
            elements, y = panel(title, chosen, show, y)
            body += elements
    missing = sorted({r["label"] for r in rows if r["target"] > 0 and r["us"] == 0})
    if missing:
        body.append(text(8, y + 10, "without a result: " + ", ".join(missing), size=10))
        y += 22
    width = LEFT + WIDTH + RIGHT
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y + 8}" '
            f'viewBox="0 0 {width} {y + 8}" font-family="system-ui, sans-serif">',
            f'<rect width="{width}" height="{y + 8}" fill="white"/>',
            text(8, 20, f"{device}. A mark shows the target; blue bars reach it, light blue ones have none.")]
    return "\n".join(head + body + ["</svg>"]) + "\n"


def table(rows):
    """One line for each row of targets: worst, median and best of the values, and how many reach it."""
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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="+")
    parser.add_argument("--out", default=str(Path(__file__).resolve().parent.parent / "docs" / "gemm.svg"))
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    rows, device = read(arguments.results)
    if arguments.table:
        print(table(rows))
        return
    Path(arguments.out).write_text(draw(rows, device))


main()
