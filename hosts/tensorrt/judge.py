#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds engines with libtilewright_tensorrt in TensorRT-RTX, which needs no GPU for this, and reports the results.

    ./dev hosts tensorrt [--quick]

`engines` are ONNX models with Tilewright's nodes, dynamic and static: the parser must take them, the result must have the
right shape and type, and the engine must contain the weights once. `refusals` are models with wrong fields, types, ranks and
sizes: the parser must refuse each, our library must give the reason in one sentence, and the process must go on. --quick
builds one engine of each plugin.

Ends with 1 if a case fails or none passes."""

import argparse
import collections
import os
import sys

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


def build(case: Case, log: Log):
    """The engine's bytes, or why there is none."""
    builder = trt.Builder(log)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, log)
    if not parser.parse(model_of(case)):
        return None, "the parser refuses: " + "; ".join(parser.get_error(i).desc() for i in range(parser.num_errors))
    got = tuple(network.get_output(0).shape), network.get_output(0).dtype
    if got != (case.shape, getattr(trt.DataType, case.type)):
        return None, f"the result is {got[1]} of shape {got[0]}, not {case.type} of {case.shape}"
    config = builder.create_builder_config()
    if case.profile:
        profile = builder.create_optimization_profile()
        for name, shapes in case.profile.items():
            profile.set_shape(name, *shapes)
        config.add_optimization_profile(profile)
    engine = builder.build_serialized_network(network, config)
    return (bytes(engine), "") if engine else (None, "TensorRT-RTX builds no engine: " + "; ".join(log.lines[-2:]))


def judge_engine(case: Case) -> str:
    engine, why = build(case, Log())
    if engine is None:
        return why + (f" ({plugins.last_error()})" if plugins.last_error() else "")
    if not case.weights <= len(engine) <= case.weights + OVERHEAD:
        return f"the engine has {len(engine)} bytes, and weights of {case.weights} bytes should be in it once"
    return ""


def judge_refusal(case: Case) -> str:
    engine, _ = build(case, Log())
    said = plugins.last_error()
    if engine is not None:
        return "was accepted"
    return "" if case.says in said else f"says {said!r}, without {case.says!r}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plugin", required=True, help="libtilewright_tensorrt.so")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    plugins.register(trt, os.path.abspath(args.plugin))
    np.random.seed(1)
    failed = passed = 0
    print(f"TensorRT-RTX {trt.__version__}, without a GPU", flush=True)
    for group, judge, all_cases in (("engines", judge_engine, cases(args.quick)), ("refusals", judge_refusal, refusals(args.quick))):
        counts = collections.Counter()
        for case in all_cases:
            why = judge(case)
            counts["failed" if why else "passed"] += 1
            if why:
                print(f"  failed: {case.name}: {why}")
        print(f"{group:<12} {counts['passed']:>4} passed {counts['failed']:>4} failed", flush=True)
        passed, failed = passed + counts["passed"], failed + counts["failed"]
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
