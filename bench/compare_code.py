#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds two results of `tilewright_bench code --out FILE` against each other.

usage: compare_code.py BEFORE AFTER

Candidates are matched by target, problem, family and ordinal. Prints those whose machine code, registers, shared memory
or spills differ, those that one list lacks, and what compiling the others costs. Exit status 1 if any differ.
"""
import json
import statistics
import sys

KEY = ("target", "problem", "family", "ordinal")
SAME = ("code", "registers", "shared_bytes", "spill_bytes")


def rows(path):
    with open(path) as file:
        return {tuple(row[k] for k in KEY): row for row in json.load(file)["results"]["code"]}


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    before, after = rows(sys.argv[1]), rows(sys.argv[2])
    different = 0
    for key, row in before.items():
        other = after.get(key)
        if other is None:
            continue
        changes = [f"{k} {row.get(k)} -> {other.get(k)}" for k in SAME if row.get(k) != other.get(k)]
        if changes:
            different += 1
            print("; ".join(str(k) for k in key), "|", other["candidate"], "|", ", ".join(changes))
    both = [k for k in before if k in after]
    for name, missing in (("after", before.keys() - after.keys()), ("before", after.keys() - before.keys())):
        for key in sorted(missing):
            print(f"only {'before' if name == 'after' else 'after'}:", "; ".join(str(k) for k in key))
    print(f"{len(both)} candidates in both lists, {different} differ")
    times = [[r[k]["cpu_s"] for k in both if "cpu_s" in before[k] and "cpu_s" in after[k] and k[2].startswith("wgmma")]
             for r in (before, after)]
    if times[0]:
        print("median CPU seconds of Hopper's kernels: %.3f -> %.3f" % tuple(statistics.median(t) for t in times))
    sys.exit(1 if different or len(both) != len(before) or len(both) != len(after) else 0)


if __name__ == "__main__":
    main()
