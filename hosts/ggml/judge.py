#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs ggml's own programs with libggml-tilewright, and says what they say.

    ./dev hosts ggml [suite] [--quick] [--gpu]
    ./dev hosts ggml bench MODEL [--threads N] [--rounds N] [--out FILE]

`suite` runs llama.cpp's test-backend-ops, unmodified, and counts its cases by operation: passed, failed, refused by
this backend, and those that ggml's CPU backend, which has to confirm the results, refuses. --quick: matrix products of
one type. --gpu: on the first GPU instead. Then it loads the backend into a ggml of another version, without libLLVM, with a wrong option and with a
cache that cannot be written: the host must go on, and one line must say why. `bench` runs llama-bench with the backend and without, in turns, and prints medians of tokens per second; then
llama-perplexity over a text, once with each. Ends with 1 if a case fails, or none passes."""

import argparse
import collections
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OPERATIONS = ("MUL_MAT", "MUL_MAT_ID", "CONV_2D", "CONV_2D_DW", "CONV_3D", "IM2COL")
TESTS = (("-p", "512", "-n", "0"), ("-p", "0", "-n", "128"))


def environment(plugin):
    env = {k: v for k, v in os.environ.items() if k != "GGML_BACKEND_PATH"}
    if plugin:
        env["GGML_BACKEND_PATH"] = os.path.abspath(plugin)
    return env


def alone(plugin):
    """Nothing is left to ggml's kernels, which would be compared with themselves."""
    return environment(plugin) | {"GGML_TILEWRIGHT_ALONE": "1", "GGML_TILEWRIGHT_GPU": "1"}


def outcome_of(text):
    if "not supported" in text:
        return "refused" if "Tilewright" in text.rpartition("not supported")[2] else "unjudged"
    return "passed" if text.endswith("OK") else "failed"


def suite(args):
    print(f"{'operation':<12} {'passed':>7} {'failed':>7} {'refused':>8} {'unjudged':>9}", flush=True)
    passed = failed = 0
    for op in OPERATIONS[:1] if args.quick else OPERATIONS:
        command = [os.path.join(args.bin, "test-backend-ops"), "test", "-b", "TilewrightGPU0" if args.gpu else "Tilewright", "-o", op, *(("-p", "type_a=q4_0") if args.quick else ())]
        done = subprocess.run(command, env=alone(args.plugin), capture_output=True, text=True)
        counts = collections.Counter()
        for line in done.stdout.splitlines():
            case = re.fullmatch(rf"\s*({op}\(.*\)): (.*)", re.sub("\x1b\\[[0-9;]*m", "", line))
            if not case:
                continue
            outcome = outcome_of(case[2])
            counts[outcome] += 1
            if outcome == "failed":
                print(f"  failed: {case[1]}: {case[2]}")
        if not counts:
            sys.exit(f"judge: error: {' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        print(f"{op:<12} {counts['passed']:>7} {counts['failed']:>7} {counts['refused']:>8} {counts['unjudged']:>9}", flush=True)
        passed, failed = passed + counts["passed"], failed + counts["failed"]
    for name, good in troubles(args):
        print(f"{name:<45} {'passed' if good else 'failed'}", flush=True)
        failed += not good
    return 1 if failed or not passed else 0


def troubles(args):
    """Names of what can be wrong where a host runs, and whether it says so in one line and ends well."""
    with tempfile.TemporaryDirectory() as folder:
        other = os.path.join(folder, "libother.so")
        source = 'extern "C" const char* ggml_version() { return "0.0.1"; }'
        subprocess.run(["c++", "-shared", "-fPIC", "-x", "c++", "-", "-o", other], input=source, text=True, check=True)
        none, cache = os.path.join(folder, "none"), os.path.join(folder, "cache.db")
        for name, variables, line, serves in (
            ("another version of ggml", {"LD_PRELOAD": other}, r"built for ggml \S+ and cannot be loaded into ggml 0\.0\.1", False),
            ("no libLLVM", {"TILEWRIGHT_LLVM": none, "TILEWRIGHT_CACHE": cache}, r"libLLVM .*none was not found", True),
            ("a cache that cannot be written", {"TILEWRIGHT_CACHE": "/proc/cache.db"}, r"/proc/cache\.db cannot be created", True),
            ("an option with a value that it cannot have", {"TILEWRIGHT_JOBS": "many"}, r"TILEWRIGHT_JOBS", True),
        ):
            command = [os.path.join(args.bin, "test-backend-ops"), "test", "-o", "MUL_MAT", "-p", "type_a=q4_0,type_b=f32,m=16,n=1,k=256"]
            done = subprocess.run(command, env=alone(args.plugin) | variables, capture_output=True, text=True)
            said = [text for text in done.stderr.splitlines() if text.startswith("tilewright") and re.search(line, text)]
            yield name, done.returncode == 0 and len(said) == 1 and ("Backend Tilewright: " in done.stdout) == serves


def tokens_per_second(args, plugin, test):
    command = [os.path.join(args.bin, "llama-bench"), "-m", args.model, "-t", str(args.threads), "-r", "1", "-o", "json", *test]
    done = subprocess.run(command, env=environment(plugin), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"judge: error: {' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout)[0]["avg_ts"]


def perplexity(args, plugin):
    command = [os.path.join(args.bin, "llama-perplexity"), "-m", args.model, "-f", args.text, "-t", str(args.threads), "-c", "512"]
    done = subprocess.run(command, env=environment(plugin), capture_output=True, text=True)
    found = re.search(r"Final estimate: PPL = ([0-9.]+)", done.stdout + done.stderr)
    if done.returncode or not found:
        sys.exit(f"judge: error: {' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return float(found[1])


def bench(args):
    result = {"model": os.path.basename(args.model), "threads": args.threads, "rounds": args.rounds, "tests": {}}
    for test in TESTS:
        name = "pp" + test[1] if test[1] != "0" else "tg" + test[3]
        times = {"ggml": [], "tilewright": []}
        for _ in range(args.rounds):
            times["ggml"].append(tokens_per_second(args, None, test))
            times["tilewright"].append(tokens_per_second(args, args.plugin, test))
        medians = {who: statistics.median(t) for who, t in times.items()}
        ratio = medians["tilewright"] / medians["ggml"]
        print(f"{name:<7} ggml {medians['ggml']:8.1f}  tilewright {medians['tilewright']:8.1f} tokens/s  {ratio:.2f}")
        result["tests"][name] = {"ratio": ratio, **times}
    result["perplexity"] = {"ggml": perplexity(args, None), "tilewright": perplexity(args, args.plugin)}
    print("perplexity of {}: ggml {:.4f}, tilewright {:.4f}".format(os.path.basename(args.text), *result["perplexity"].values()))
    if args.out:
        with open(args.out, "w") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (("suite", suite), ("bench", bench)):
        command = commands.add_parser(name)
        command.set_defaults(what=what)
        command.add_argument("--bin", required=True, help="folder of llama.cpp's programs")
        command.add_argument("--plugin", required=True, help="libggml-tilewright.so")
        if what is suite:
            command.add_argument("--quick", action="store_true")
            command.add_argument("--gpu", action="store_true")
        else:
            command.add_argument("model")
            command.add_argument("--threads", type=int, default=os.cpu_count())
            command.add_argument("--rounds", type=int, default=5)
            command.add_argument("--text", default=os.path.join(ROOT, "LICENSE"))
            command.add_argument("--out")
    args = parser.parse_args()
    return args.what(args)


if __name__ == "__main__":
    sys.exit(main())
