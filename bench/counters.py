#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Joins what `bench gemm --profile` or `bench quantize --profile` launched with what ncu counted (its raw page as CSV):
bench/counters.sh calls it.

  counters.py PROFILED.json COUNTERS.csv OUT.json
"""
import csv
import json
import sys

OURS = "tw_"  # how the entry of every generated source begins; cuBLASLt's kernels have other names

# What is kept of ncu's metrics: name here, its name there, factor. Shares are in percent of what the unit could do: of the clocks in which
# a multiprocessor had work (active), or of all (elapsed).
METRICS = [
    ("us", "gpu__time_duration.sum", 1e-3),
    ("ghz", "gpc__cycles_elapsed.avg.per_second", 1e-9),
    ("kcycles", "sm__cycles_active.max", 1e-3),               # of the multiprocessor that worked longest
    ("kcycles_mean", "sm__cycles_active.avg", 1e-3),
    ("matrix_units", "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active", 1),
    ("issue_slots", "smsp__issue_active.avg.pct_of_peak_sustained_active", 1),
    ("million_instructions", "smsp__inst_executed.sum", 1e-6),
    ("dram", "dram__cycles_active.avg.pct_of_peak_sustained_elapsed", 1),
    ("l2", "lts__t_sectors.avg.pct_of_peak_sustained_elapsed", 1),
    ("shared_memory", "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed", 1),
    ("integer_pipe", "sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_active", 1),
    ("float_pipe", "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active", 1),
]
STALL = "smsp__average_warps_issue_stalled_"  # NAME_per_issue_active.ratio


def number(text):
    return float(text.replace(",", ""))


def read(path):
    """One dictionary for each kernel, of its metrics by name, in the order of launches."""
    with open(path, newline="") as file:
        lines = [line for line in file if not line.startswith("==")]  # ncu's own remarks
    table = list(csv.reader(lines))
    if len(table) < 3:
        sys.exit(f"counters: {path} has no kernels: {' '.join(lines)[:300]}")
    return [dict(zip(table[0], row)) for row in table[2:]]  # the second line has units


def counted(kernel):
    values = {}
    for name, metric, factor in METRICS:
        if metric not in kernel:
            sys.exit(f"counters: this ncu has no {metric}")
        values[name] = round(number(kernel[metric]) * factor, 4)
    stalls = {name[len(STALL):].split("_per_")[0]: number(value) for name, value in kernel.items()
              if name.startswith(STALL) and value not in ("", "no data")}
    total = sum(stalls.values())
    # Of the time of all warps, in percent: "selected" is issuing.
    values["warps"] = {name: round(100 * value / total, 1) for name, value in sorted(stalls.items(), key=lambda s: -s[1]) if value > 0.02 * total}
    return values


def main():
    profiled_path, counters_path, out = sys.argv[1:]
    with open(profiled_path) as file:
        profiled = json.load(file)
    kernels = read(counters_path)
    rows = []
    [launches] = [result["profiled"] for result in profiled["results"].values()]
    for launch in launches:
        # A rival's product may be several kernels.
        mine = [kernels.pop(0)] if kernels else []
        while launch["rival"] and kernels and not kernels[0]["Kernel Name"].startswith(OURS):
            mine.append(kernels.pop(0))
        if not mine or mine[0]["Kernel Name"].startswith(OURS) == bool(launch["rival"]):
            sys.exit(f"counters: {counters_path} has other kernels than {profiled_path}, at {launch}")
        for kernel in mine:
            name = {} if not launch["rival"] else {"kernel": kernel["Kernel Name"]}
            rows.append({**launch, **name, **counted(kernel)})
    if kernels:
        sys.exit(f"counters: {len(kernels)} kernels of {counters_path} are not in {profiled_path}")
    with open(out, "w") as file:
        json.dump({"environment": profiled["environment"], "results": {"counters": rows}}, file, indent=1)
        file.write("\n")
    print(f"{'':70} {'us':>7} {'GHz':>5} {'kcycles':>8} {'matrix':>6} {'issue':>6} {'DRAM':>5} {'L2':>4} {'shared':>6}  warps")
    for r in rows:
        who = f"{r['label']} m={r['m']} {r['n']}x{r['k']}" if "label" in r else r["problem"]
        warps = ", ".join(f"{name} {share:.0f}" for name, share in list(r["warps"].items())[:4])
        print(f"{who[:70] if not r['rival'] else '  ' + r['rival']:70} {r['us']:7.1f} {r['ghz']:5.2f} {r['kcycles']:8.0f} {r['matrix_units']:6.0f} "
              f"{r['issue_slots']:6.0f} {r['dram']:5.0f} {r['l2']:4.0f} {r['shared_memory']:6.0f}  {warps}")


if __name__ == "__main__":
    main()
