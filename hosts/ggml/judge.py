#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs ggml's own programs with libggml-tilewright, and reports their results.

    ./dev hosts ggml [suite] [--quick] [--gpu]
    ./dev hosts ggml bench MODEL [--threads N] [--rounds N] [--out FILE]
    ./dev hosts ggml types MODEL [--threads N] [--out FILE]
    ./dev hosts ggml perf [--rounds N] [--out FILE]

`suite` runs llama.cpp's test-backend-ops, unmodified, and counts its cases by operation: passed, failed, refused by
this backend, and those that ggml's CPU backend, which has to confirm the results, refuses. --quick: matrix products of
one type. --gpu: on the first GPU instead. Then it loads the backend into a ggml of another version, without libLLVM,
with a wrong option and with a cache that cannot be written: the host must go on, and one line must say why. `bench`
runs llama-bench with the backend and without, in turns, and prints medians of tokens per second; then llama-perplexity
over a text, once with each. It counts the kernels that two starts compile, the second of which must compile none.
`types` has llama-quantize write the model in each type of weights, and compares the perplexities of both. `perf` times
products on the first GPU with `test-backend-ops perf`, ours and ggml's CUDA backend in turns; it needs nvcc.

`suite` ends with 1 if a case fails or none passes, `bench` if the first start compiles no kernel or
the second one does."""

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
TYPES = (
    "F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K "
    "IQ4_NL IQ4_XS IQ3_S IQ3_XXS IQ2_S IQ2_XS IQ2_XXS IQ1_M IQ1_S TQ2_0 TQ1_0"
).split()
TESTS = (("-p", "512", "-n", "0"), ("-p", "0", "-n", "128"))


def environment(plugin):
    env = {k: v for k, v in os.environ.items() if k != "GGML_BACKEND_PATH"}
    if plugin:
        env["GGML_BACKEND_PATH"] = os.path.abspath(plugin)
    return env


def alone(plugin, gpu=False):
    """Nothing is left to ggml's kernels, which would be compared with themselves."""
    return environment(plugin) | {"GGML_TILEWRIGHT_ALONE": "1", "GGML_TILEWRIGHT_GPU": str(int(gpu))}


def outcome_of(text):
    if "not supported" in text:
        return "refused" if "Tilewright" in text.rpartition("not supported")[2] else "unjudged"
    return "passed" if text.endswith("OK") else "failed"


def suite(args):
    print(f"{'operation':<12} {'passed':>7} {'failed':>7} {'refused':>8} {'unjudged':>9}", flush=True)
    passed = failed = 0
    for op in OPERATIONS[:1] if args.quick else OPERATIONS:
        command = [os.path.join(args.bin, "test-backend-ops"), "test", "-b", "TilewrightGPU0" if args.gpu else "Tilewright", "-o", op]
        if args.quick:
            command += ["-p", "type_a=q4_0"]
        if args.gpu:
            command += ["-j", str(os.cpu_count())]  # compiling takes most of the time
        done = subprocess.run(command, env=alone(args.plugin, args.gpu), capture_output=True, text=True)
        counts = collections.Counter()
        for line in done.stdout.splitlines():
            case = re.fullmatch(rf"\s*({op}\(.*\)): (.*)", re.sub("\x1b\\[[0-9;]*m", "", line))
            if not case:
                continue
            outcome = outcome_of(case[2])
            counts[outcome] += 1
            if outcome == "failed":
                print(f"  failed: {case[1]}: {case[2]}")
        if not counts or done.returncode < 0:
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


def ran(args, program, *options, env=None):
    """What a program of llama.cpp printed; ends with its last words if it fails."""
    command = [os.path.join(args.bin, program), *(str(option) for option in options)]
    done = subprocess.run(command, env=env or environment(None), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"judge: error: {' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
    return done


def save(args, result):
    if args.out:
        with open(args.out, "w") as file:
            json.dump(result, file, indent=1)
            file.write("\n")


def tokens_per_second(args, plugin, test):
    done = ran(args, "llama-bench", "-m", args.model, "-t", args.threads, "-r", 1, "-o", "json", *test, env=environment(plugin))
    return json.loads(done.stdout)[0]["avg_ts"]


def perplexity(args, plugin, model):
    done = ran(args, "llama-perplexity", "-m", model, "-f", args.text, "-t", args.threads, "-c", 512, env=environment(plugin))
    found = re.search(r"Final estimate: PPL = ([0-9.]+)", done.stdout + done.stderr)
    if not found:
        sys.exit(f"judge: error: llama-perplexity of {model} printed no estimate:\n{done.stderr[-3000:]}")
    return float(found[1])


def compiled_at_starts(args):
    """How many kernels the first start of llama-bench with an empty cache compiles, and the second one."""
    with tempfile.TemporaryDirectory() as folder:
        env = environment(args.plugin) | {"TILEWRIGHT_CACHE": os.path.join(folder, "cache.db"), "TILEWRIGHT_LOG": "info"}
        options = ("-m", args.model, "-t", args.threads, "-r", 1, "-p", 64, "-n", 8)
        return [ran(args, "llama-bench", *options, env=env).stderr.count(": compiled in ") for _ in range(2)]


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
    result["perplexity"] = {who: perplexity(args, plugin, args.model) for who, plugin in (("ggml", None), ("tilewright", args.plugin))}
    print("perplexity of {}: ggml {:.4f}, tilewright {:.4f}".format(os.path.basename(args.text), *result["perplexity"].values()))
    first, second = result["compiled"] = compiled_at_starts(args)
    print(f"kernels that a start compiles: the first {first}, the second {second}")
    save(args, result)
    if first == 0:
        print("the first start compiled nothing (is there no libLLVM?), so that the second one proves nothing")
    return 1 if second or not first else 0


def types(args):
    """The model in each type. llama-quantize falls back to another type if k is not a multiple of the block."""
    result = {}
    with tempfile.TemporaryDirectory() as folder:
        importance, file = os.path.join(folder, "importance.gguf"), os.path.join(folder, "model.gguf")
        ran(args, "llama-imatrix", "-m", args.model, "-f", args.text, "-o", importance, "-t", args.threads, "-c", 512)
        print(f"{'type':<9} {'ggml':>14} {'tilewright':>14} {'difference':>11}  tensors converted", flush=True)
        for name in TYPES:
            done = ran(args, "llama-quantize", "--allow-requantize", "--pure", "--imatrix", importance, args.model, file, name, args.threads)
            counts = collections.Counter(re.findall(r"converting to ([a-z0-9_]+)", done.stderr + done.stdout, re.IGNORECASE))
            theirs, ours = perplexity(args, None, file), perplexity(args, args.plugin, file)
            result[name] = {"ggml": theirs, "tilewright": ours, "tensors": counts}
            print(f"{name:<9} {theirs:14.4f} {ours:14.4f} {ours / theirs - 1:+10.2%}  {dict(counts)}", flush=True)
    print(f"largest difference {max(abs(each['tilewright'] / each['ggml'] - 1) for each in result.values()):.2%}")
    save(args, {"model": os.path.basename(args.model), "text": os.path.basename(args.text), "types": result})
    return 0


# Types by ggml's number: columns and bytes of a block.
PERF_TYPES = {"q4_0": (2, 32, 18), "q4_K": (12, 256, 144), "q6_K": (14, 256, 210), "mxfp4": (39, 32, 17)}
MUL_MAT, F32 = 29, 0  # ggml 0.25's numbers


def perf_cases():
    """Lines of --test-file: an operation, the type and shape of its result, no parameters, and two sources."""
    for name, (number, columns, size) in PERF_TYPES.items():
        for rows, k in ((4096, 14336), (14336, 4096)):
            for m in (1, 8, 64, 512):
                row = k // columns * size
                w = f"{number} {k} {rows} 1 1 {size} {row} {row * rows} {row * rows}"
                x = f"{F32} {k} {m} 1 1 4 {4 * k} {4 * k * m} {4 * k * m}"
                yield f"{MUL_MAT} {F32} {rows} {m} 1 1 0 2 {w} {x} {name}-{rows}x{k}-m{m}"


def perf(args):
    times = collections.defaultdict(lambda: {"ggml": [], "tilewright": []})
    env = alone(args.plugin, gpu=True)
    env["LD_PRELOAD"] = "libcuda.so.1"  # libggml-cuda has its symbols, and may not name it
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as cases:
        cases.write("\n".join(perf_cases()) + "\n")
        cases.flush()
        for number in range(args.rounds):
            for who, device in (("ggml", "CUDA0"), ("tilewright", "TilewrightGPU0")):
                done = ran(args, "test-backend-ops", "perf", "-b", device, "--test-file", cases.name, env=env)
                found = re.findall(r"name=([\w-]+),.*?\s([\d.]+) us/run", re.sub("\x1b\\[[0-9;]*m", "", done.stdout))
                if not found:
                    sys.exit(f"judge: error: test-backend-ops has no device {device}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
                for name, time in found:
                    times[name][who].append(float(time))
            save(args, times)  # a run that is cut short keeps its rounds
            print(f"round {number + 1} of {args.rounds}", flush=True)
    ratios = []
    for name, both in times.items():
        theirs, ours = (statistics.median(both[who]) for who in ("ggml", "tilewright"))
        ratios.append(theirs / ours)
        print(f"{name:<24} ggml {theirs:9.2f} us  tilewright {ours:9.2f} us  {ratios[-1]:.2f}")
    print(f"geometric mean {statistics.geometric_mean(ratios):.2f}, least {min(ratios):.2f}")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (("suite", suite), ("bench", bench), ("types", types), ("perf", perf)):
        command = commands.add_parser(name)
        command.set_defaults(what=what)
        command.add_argument("--bin", required=True, help="folder of llama.cpp's programs")
        command.add_argument("--plugin", required=True, help="libggml-tilewright.so")
        if what is suite:
            command.add_argument("--quick", action="store_true")
            command.add_argument("--gpu", action="store_true")
            continue
        command.add_argument("--out")
        if what in (bench, perf):
            command.add_argument("--rounds", type=int, default=5 if what is bench else 3)
        if what in (bench, types):
            command.add_argument("model")
            command.add_argument("--threads", type=int, default=os.cpu_count())
            command.add_argument("--text", default=os.path.join(ROOT, "LICENSE"))
    args = parser.parse_args()
    return args.what(args)


if __name__ == "__main__":
    sys.exit(main())
