#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs models in ONNX Runtime with libtilewright_ort, and reports whether the results are right.

    ./dev hosts onnxruntime [suite] [--quick]
    ./dev hosts onnxruntime backend [--quick]
    ./dev hosts onnxruntime speed [--rounds N] [--threads N] [--only TEXT] [--out FILE]
    ./dev hosts onnxruntime own TESTS

`suite`: random models. A model passes if each result lies within what rounding allows of its value in double precision.
ONNX Runtime's CPU provider computes the same models; the table has the largest share of the bound that each used.
Models that Tilewright refuses must run on ONNX Runtime's kernels; `neither`: ONNX Runtime refuses them, too. Then nodes
in branches, and nodes that share weights. Then what can be wrong: another version of ONNX Runtime, models with wrong
sizes, external data that is cut short, sessions from many threads, no libLLVM, a cache that cannot be written; and
EPContext models, whose second session must compile nothing, also damaged ones. --quick: a tenth of the models.
`backend`: the tests of `onnx.backend.test`, with Tilewright before the CPU provider and with that alone. No test may
fail only with Tilewright.
`speed`: products of large shapes beside ONNX Runtime's kernels (MLAS), in turns, with 2 threads.
`own`: ONNX Runtime's tests in Python that need operations of ours, from the folder of its sources that has them
(onnxruntime/test/python/quantization).

Ends with 1 if a model or a test fails, or if none runs."""

import argparse
import collections
import os
import re
import subprocess
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "judging"))

import ahead  # noqa: E402
import graphs  # noqa: E402
import models  # noqa: E402
import onnx_tests  # noqa: E402
import session  # noqa: E402
import speed  # noqa: E402


def share(results, case, index):
    """The largest error, in parts of the bound."""
    error = np.abs(results.astype("f8") - case.wanted[index])
    if not np.all(np.isfinite(results.astype("f8"))):
        return np.inf
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.max(np.where(error == 0, 0, error / case.bounds[index])))


def computed(case, tilewright):
    """The results, and the nodes that Tilewright took; or the error."""
    try:
        opened = session.open_model(case.model, tilewright, **case.entries)
        return [opened.run(None, feeds)[0] for feeds in case.feeds], session.taken(opened)
    except Exception as error:
        return error, []


def judge_case(case):
    """'passed', 'refused', 'neither' or why it failed, and the shares of the bound of both providers."""
    (ours, taken), (theirs, _) = computed(case, True), computed(case, False)
    if isinstance(ours, Exception):
        if isinstance(theirs, Exception) and not case.ours:
            return "neither", 0, 0
        return f"failed: {ours}", 0, 0
    if bool(taken) != case.ours:
        return f"failed: Tilewright {'took' if taken else 'did not take'} it", 0, 0
    shares = [max(share(result, case, i) for i, result in enumerate(each)) if isinstance(each, list) else 0 for each in (ours, theirs)]
    if taken and shares[0] > 1:
        return f"failed: {shares[0]:.3f} of the bound (ONNX Runtime: {shares[1]:.3f})", *shares
    return ("passed" if taken else "refused"), *shares


def suite(args):
    counts, worst = collections.defaultdict(collections.Counter), collections.defaultdict(lambda: [0.0, 0.0])
    for case in models.all_cases(args.quick):
        outcome, *shares = judge_case(case)
        counts[case.operation][outcome.partition(":")[0]] += 1
        if outcome.startswith("failed"):
            print(f"  {outcome}: {case.operation} {case.name}", flush=True)
        elif outcome == "passed":
            worst[case.operation] = [max(a, b) for a, b in zip(worst[case.operation], shares)]
    print(f"{'operation':<34} {'passed':>7} {'failed':>7} {'refused':>8} {'neither':>8}  largest share of the bound: Tilewright, ONNX Runtime")
    for name, count in counts.items():
        print(f"{name:<34} {count['passed']:>7} {count['failed']:>7} {count['refused']:>8} {count['neither']:>8}  {worst[name][0]:.3f}, {worst[name][1]:.3f}")
    failed = sum(c["failed"] for c in counts.values())
    for name, good in (*graphs.checks(), *session.troubles(args), *ahead.checks(args)):
        print(f"{name:<46} {'passed' if good is True else good}", flush=True)
        failed += good is not True and not str(good).startswith("skipped")
    return 1 if failed or not sum(c["passed"] for c in counts.values()) else 0


def backend(args):
    counts, failed, taken_types = collections.Counter(), 0, collections.Counter()
    for case in onnx_tests.cases():
        model, sets = onnx_tests.values_of(case)
        if not sets or any(not isinstance(value, (np.ndarray, np.generic)) for pair in sets for side in pair for value in side):
            counts["other types than tensors"] += 1
            continue
        for variant in ((model, sets), onnx_tests.with_constants(model, sets)):
            if variant is None:
                continue
            ours, taken = onnx_tests.outcome(*variant, case, True)
            theirs, _ = onnx_tests.outcome(*variant, case, False) if ours or taken else ("", [])
            counts["run"] += 1
            counts["passed" if not ours else "failed with both" if theirs else "failed"] += 1
            counts["computed by Tilewright, at least in part"] += bool(taken)
            taken_types.update(taken)
            if ours and not theirs:
                failed += 1
                print(f"  failed: {case.name}: {ours[:300]}", flush=True)
    for name, count in counts.items():
        print(f"{name:<42} {count:>6}")
    print("nodes of ours:", ", ".join(f"{name} {count}" for name, count in sorted(taken_types.items())) or "none")
    return 1 if failed or not counts["passed"] else 0


def own(args):
    """Names of tests and their outcomes, of both providers."""
    results = []
    for plugin in ("", os.path.abspath(args.plugin)):
        command = [sys.executable, "-m", "pytest", "-q", "-rA", "--no-header", "-p", "own_tests", *sorted(name for name in os.listdir(args.tests) if re.fullmatch(r"test_(op_\w+|qdq|conv_dynamic)\.py", name))]
        env = os.environ | {"TILEWRIGHT_ORT": plugin, "PYTHONPATH": os.path.join(HERE, "judging")}
        done = subprocess.run(command, cwd=args.tests, env=env, capture_output=True, text=True)
        results.append({name: outcome for outcome, name in re.findall(r"^(PASSED|FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)})
        if not results[-1]:
            sys.exit(f"judge: error: {' '.join(command)} in {args.tests} ran no test:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    theirs, ours = results
    worse = [name for name, outcome in theirs.items() if outcome == "PASSED" and ours.get(name) != "PASSED"]
    for name in worse:
        print(f"  failed: {name}")
    print(re.search(r"nodes of ours: .*", done.stdout)[0])
    print(f"tests {len(theirs)}: passed by ONNX Runtime {list(theirs.values()).count('PASSED')}, with Tilewright {list(ours.values()).count('PASSED')}")
    return 1 if worse else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, run in (("suite", suite), ("backend", backend), ("speed", speed.run), ("own", own)):
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        command.add_argument("--plugin", required=True)
        command.add_argument("--folder", required=True, help="for the cache of kernels")
        if name in ("suite", "backend"):
            command.add_argument("--quick", action="store_true")
        if name == "own":
            command.add_argument("tests")
        if name == "speed":
            command.add_argument("--rounds", type=int, default=7)
            command.add_argument("--threads", type=int, default=2)
            command.add_argument("--only", help="operations whose name has this text")
            command.add_argument("--out")
    args = parser.parse_args()
    os.environ.setdefault("TILEWRIGHT_CACHE", os.path.join(os.path.abspath(args.folder), "cache.db"))
    session.register(args.plugin)
    sys.exit(args.run(args))


if __name__ == "__main__":
    main()
