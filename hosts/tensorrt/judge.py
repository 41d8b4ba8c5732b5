#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds engines with libtilewright_tensorrt in TensorRT-RTX, which needs no GPU for this, drives the plugins by a host of our
own, and reports the results.

    ./dev hosts tensorrt [--quick] [--launches N]
    ./dev hosts tensorrt headers DIR [...]   the same, built with the headers of another TensorRT
    ./dev hosts tensorrt asan    our own host alone, with AddressSanitizer and UBSan

`engines` are ONNX models with Tilewright's nodes, dynamic and static: the parser must take them, the result must have the
right shape and type, and the engine must contain the weights. `refusals` are models with wrong fields, types, ranks and
sizes: the parser must refuse each, our library must give the reason in one sentence, and the process must go on.

Then our own host, tensorrt-host, creates, configures, stores, clones and restores each plugin, with bad input too. It launches
on the GPU if there is one, and compares with sums in double precision; else on the driver double of the tests, which computes
nothing. `binaries` runs an engine that contains its kernels without libnvrtc, and `versions` loads the plugins beside another
version of TensorRT. `exported` are PyTorch's layers as exported.py writes them.

--quick: one engine of each plugin, and few launches. Ends with 1 if a case fails or none passes."""

import argparse
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), *[os.pardir] * 2, "python"))

import numpy as np
import tensorrt_rtx_bindings as trt
import tensorrt_rtx_libs  # noqa: F401  loads the libraries
from models import Case, cases, refusals
from onnx import helper
from tilewright import tensorrt as plugins

OVERHEAD = 64 << 10  # bytes of an engine besides the weights


class Log(trt.ILogger):
    def __init__(self):
        trt.ILogger.__init__(self)
        self.lines = []

    def log(self, severity, text):
        if severity <= trt.ILogger.Severity.WARNING:
            self.lines.append(text)


def model_of(case: Case) -> bytes:
    graph = helper.make_graph([case.node], "graph", case.inputs, [case.output], initializer=case.constants)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(plugins.DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets).SerializeToString()


def build(model: bytes, shape, type, shapes, log: Log):
    """The engine's bytes, or why there is none. shape, type: of the result. shapes: the least, usual and largest of inputs."""
    builder = trt.Builder(log)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, log)
    if not parser.parse(model):
        return None, "the parser refuses: " + "; ".join(parser.get_error(i).desc() for i in range(parser.num_errors))
    got = tuple(network.get_output(0).shape), network.get_output(0).dtype
    if got != (shape, getattr(trt.DataType, type)):
        return None, f"the result is {got[1]} of shape {got[0]}, not {type} of {shape}"
    config = builder.create_builder_config()
    if shapes:
        profile = builder.create_optimization_profile()
        for name, of_input in shapes.items():
            profile.set_shape(name, *of_input)
        config.add_optimization_profile(profile)
    engine = builder.build_serialized_network(network, config)
    return (bytes(engine), "") if engine else (None, "TensorRT-RTX builds no engine: " + "; ".join(log.lines[-2:]))


def judge_engine(case: Case) -> str:
    engine, why = build(model_of(case), case.shape, case.type, case.profile, Log())
    if engine is None:
        return why + (f" ({plugins.last_error()})" if plugins.last_error() else "")
    # Inputs are stored once. TensorRT-RTX 1.7 asks for a plugin's fields three times, and stores two of them.
    copies = 1 if case.constants else 2
    if not case.weights <= len(engine) <= copies * case.weights + OVERHEAD:
        return f"the engine has {len(engine)} bytes, which is too much for weights of {case.weights} bytes"
    return ""


def judge_refusal(case: Case) -> str:
    engine, _ = build(model_of(case), case.shape, "BF16", case.profile, Log())
    said = plugins.last_error()
    if engine is not None:
        return "was accepted"
    return "" if case.says in said else f"says {said!r}, without {case.says!r}"


def rtx(args):
    for group, judge, all_cases in (("engines", judge_engine, cases), ("refusals", judge_refusal, refusals)):
        reasons = ((case.name, judge(case)) for case in all_cases(args.quick))
        yield counted(group, (why and f"{name}: {why}" for name, why in reasons))


EXPORTED = {  # the result's shape, and the least, usual and largest input
    "linear": ((-1, 128), [(m, 256) for m in (1, 16, 4096)]),
    "conv": ((-1, 32, 7, 7), [(n, 32, 16, 16) for n in (1, 4, 64)]),
    "w4a8": ((-1, 128), [(m, 256) for m in (1, 16, 4096)]),
}


def exported(args, folder):
    """Models that Python writes become engines."""
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "exported.py")
    for what, (shape, sizes) in EXPORTED.items():
        if args.quick and what != "linear":
            continue
        path = os.path.join(folder, "model.onnx")
        command = [args.torch, script, what, path]
        done = subprocess.run(command, env=os.environ | {"PYTHONPATH": sys.path[0]}, capture_output=True, text=True)
        if done.returncode:
            yield f"{what} is not exported: {done.stderr[-2000:]}"
            continue
        with open(path, "rb") as file:
            engine, why = build(file.read(), shape, "BF16", {"input": sizes}, Log())
        yield "" if engine else f"{what}: {why} ({plugins.last_error()})"


def run_host(args, *options, **variables):
    command = [args.host, os.path.abspath(args.plugin), *options]
    return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)


def host(args):
    """The host's own lines: its counts begin with the name of what was counted."""
    launches = str(args.launches or (5 if args.quick else 100))
    gpu = subprocess.run([args.host, os.path.abspath(args.plugin), "--has-gpu"]).returncode == 0
    runs = [("the driver double", ("--driver", args.double, "--double"), {"TILEWRIGHT_DRIVER": args.double})]
    if gpu:
        runs = [("this GPU", (), {})]
    for place, options, variables in runs:
        print(f"our own host, on {place}", flush=True)
        done = run_host(args, *options, "--launches", launches, TILEWRIGHT_CACHE=args.cache, **variables)
        print(done.stdout + done.stderr, end="", flush=True)
        counts = re.findall(r"^(?:plugins|bad input) +(\d+) passed +(\d+) failed", done.stdout, re.MULTILINE)
        yield sum(int(p) for p, _ in counts), sum(int(f) for _, f in counts) + (done.returncode != 0 and not counts)


def counted(name, reasons):
    """Counts cases by why they failed; empty: they passed."""
    reasons = list(reasons)
    failed = [why for why in reasons if why]
    for why in failed:
        print(f"  failed: {why}")
    print(f"{name:<12} {len(reasons) - len(failed):>4} passed {len(failed):>4} failed", flush=True)
    return len(reasons) - len(failed), len(failed)


def binaries(args, folder):
    """An engine with its kernels, built with libnvrtc, runs without it; one without them does not."""
    only = ("--only", "constants of the node")
    device = ("--driver", args.double, "--double", "--launches", "20")
    without = {"TILEWRIGHT_NVRTC": os.path.join(folder, "none"), "TILEWRIGHT_CACHE": ":memory:", "TILEWRIGHT_DRIVER": args.double}
    for embedded in (True, False):
        done = run_host(args, *only, "--write", folder, *(("--binaries",) if embedded else ()), TILEWRIGHT_CACHE=args.cache)
        if done.returncode:
            return f"the engine is not built: {done.stdout}{done.stderr}"
        done = run_host(args, *only, "--read", folder, *device, **without)
        if embedded and done.returncode:
            return f"the engine does not run: {done.stdout}{done.stderr}"
        if not embedded and "libnvrtc" not in done.stdout:
            return f"without kernels it should need libnvrtc: {done.stdout}{done.stderr}"
    return ""


def versions(args, folder):
    """Beside a TensorRT of another version every plugin is refused, with the reason."""
    library = os.path.join(folder, "libnvinfer.so.9")
    source = 'extern "C" int getInferLibVersion() { return 90300; }'
    subprocess.run(["c++", "-shared", "-fPIC", "-x", "c++", "-", "-o", library], input=source, text=True, check=True)
    done = run_host(args, "--only", "constants of the node", LD_PRELOAD=library)
    return "" if done.stdout.count("TensorRT 9.3 is not supported") >= 1 and "plugins         0 passed" in done.stdout else done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plugin", required=True, help="libtilewright_tensorrt.so")
    parser.add_argument("--host", required=True, help="tensorrt-host")
    parser.add_argument("--double", required=True, help="fake_libcuda.so")
    parser.add_argument("--cache", required=True, help="a cache file for kernels that the host runs")
    parser.add_argument("--torch", help="a Python with PyTorch and onnxscript")
    parser.add_argument("--launches", type=int)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    plugins.register(trt, os.path.abspath(args.plugin))
    np.random.seed(1)
    print(f"TensorRT-RTX {trt.__version__}, without a GPU", flush=True)
    results = [*rtx(args), *host(args)]
    with tempfile.TemporaryDirectory() as folder:
        if args.torch:
            results.append(counted("exported", exported(args, folder)))
        else:
            print("skipped: exported: no Python with PyTorch (./dev test makes one)")
        results.append(counted("versions", [versions(args, folder)]))
        results.append(counted("binaries", [binaries(args, folder)]))
    passed, failed = sum(p for p, _ in results), sum(f for _, f in results)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
