#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a layer of tilewright.torch costs, on one device and in one run.

    python3 bench/torch_modules.py [--out FILE] [--bench TOOL] [--wheel FILE] [--shape N,K] [--host-shape N,K]
    python3 bench/torch_modules.py --cpu        # without a GPU: only what needs none, and tiny layers

Needs PyTorch, python/ on PYTHONPATH and TILEWRIGHT_LIBRARY with libtilewright_torch.so beside it. Rows:

  host     of one call of a module with one token: the time in which the CPU returns from it, while the device has
           less to do. By libtilewright_torch, and by Python's operator in a second process, each beside nn.Linear of
           the same shape in float16, in the same process and in turns; beside gemlite's and Humming's layers of the
           same codes, if they can be imported (their folders on PYTHONPATH) and agree with ours.
  device   of the same call: a graph of launches over weights of more than 400 MB, against the time that
           `tilewright_bench gemm` gives the same problem, whose cache the layer's engine uses.
  graph    of the same calls: the graph's replay against launches of the same kernels from a loop of C calls.
  package  bytes of the wheel, and CPU time of `import tilewright`, the least of several processes.

A row fails if it is over its limit; one that could not be measured says why. Ends with 1 if a row fails and with 4 if
there is no GPU."""

import argparse
import contextlib
import glob
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch
from torch import nn

import tilewright as tw
import tilewright.torch as twt

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
NO_GPU = 4
COLD_BYTES = 4e8
ROUNDS, WARM = 15, 3
WEIGHT, GROUP = "int4_g128", 128
LIMITS = {
    "host stable": 1.1,
    "host python": 1.5,
    "host gemlite": 0.5,
    "host humming": 0.5,
    "device": 1.03,
    "graph": 1.02,
    "wheel": 12_000_000,
    "import": 40_000,
}


# ---- layers


class Layers:
    """One nn.Linear in half precision and the quantized layers of the same weight."""

    def __init__(self, n, k, device, dtype):
        self.n, self.k, self.device, self.dtype = n, k, device, dtype
        torch.manual_seed(0)
        self.linear = nn.Linear(k, n, bias=False, device=device, dtype=dtype)
        self.x = torch.randn(1, k, device=device, dtype=dtype)

    def ours(self, weight=WEIGHT, activation=None):
        return twt.QuantizedLinear.from_linear(self.linear, weight, activation)

    def codes(self):
        """int4_g128's codes as 0 to 15 [n, k], and its scales [n, k / 128], of our layer."""
        data, scales = self.ours().weight.stored()
        nibbles = torch.stack((data & 15, data >> 4), -1).reshape(self.n, self.k)
        return nibbles, scales.view(torch.float16).reshape(self.n, self.k // GROUP)

    def gemlite(self):
        import gemlite

        codes, scales = self.codes()
        zeros = torch.full_like(scales, 8)
        made = gemlite.helper.A16W4_HQQ_INT(device=self.device, dtype=self.dtype)
        return made.from_weights(codes, scales.reshape(-1, 1), zeros.reshape(-1, 1)), gemlite.__version__

    def humming(self):
        import humming
        from humming.layer import HummingLayer

        config = {"dtype": "uint4", "group_size": GROUP}
        layer = HummingLayer(shape_n=self.n, shape_k=self.k, weight_config=config, torch_dtype=self.dtype)
        layer = layer.to(self.device)
        layer.load_from_unquantized(self.linear.weight.detach())
        layer.transform()
        return layer, humming.__version__


def agreement(y, want):
    """Largest difference, as a share of the largest value."""
    return ((y.float() - want.float()).abs().max() / want.float().abs().max()).item()


# ---- timing


def synchronize(device):
    if device != "cpu":
        torch.cuda.synchronize()


def host_times(calls, device, batch):
    """Microseconds of a call on the host: medians of batches in turns."""
    samples = {name: [] for name in calls}
    for round_ in range(-WARM, ROUNDS):
        for name, call in calls.items():
            synchronize(device)
            began = time.perf_counter()
            for _ in range(batch):
                call()
            took = time.perf_counter() - began
            synchronize(device)
            if round_ >= 0:
                samples[name].append(took / batch * 1e6)
    return {name: statistics.median(values) for name, values in samples.items()}


class Graph:
    """launch(i) for i = 0 ... copies - 1, again and again for some 2 ms, captured once."""

    def __init__(self, launch, copies, us):
        self.count = copies * max(1, round(2000 / (us * copies)))
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for i in range(self.count):
                launch(i % copies)

    def run(self):
        self.graph.replay()


class Loop:
    """The same without a graph."""

    def __init__(self, launch, copies, us):
        self.count = copies * max(1, round(2000 / (us * copies)))
        self.launch, self.copies = launch, copies

    def run(self):
        for i in range(self.count):
            self.launch(i % self.copies)


def device_times(runs):
    """Microseconds of a launch: medians of runs in turns. Of two runs in a row the second is timed, so that the host's
    time to enqueue it does not show; then the chip rests for twice as long."""
    samples = [[] for _ in runs]
    for round_ in range(-WARM, ROUNDS):
        for run, values in zip(runs, samples):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            run.run()
            begin.record()
            run.run()
            end.record()
            end.synchronize()
            us = begin.elapsed_time(end) * 1e3
            time.sleep(4e-6 * us)
            if round_ >= 0:
                values.append(us / run.count)
    return [statistics.median(values) for values in samples]


# ---- rows


class Report:
    def __init__(self, out):
        self.out, self.rows, self.environment = out, [], {}

    def add(self, name, **values):
        """value: what is limited. error: why there is none."""
        limit = LIMITS[name]
        value = values.get("value")
        mark = "missing" if value is None else "pass" if value <= limit else "OVER"
        self.rows.append({"row": name, "limit": limit, "mark": mark, **values})
        said = values.get("error") or ", ".join(
            f"{key} {number:.4g}" if isinstance(number, float) else f"{key} {number}"
            for key, number in values.items()
            if not isinstance(number, (dict, list))
        )
        print(f"{name:14} {mark:8} (at most {limit}) {said}", flush=True)
        self.save()

    def save(self):
        """After each row, so that a run that is cut is not lost."""
        if self.out:
            with open(self.out, "w", encoding="utf-8") as file:
                json.dump({"environment": self.environment, "rows": self.rows}, file, indent=1)
                file.write("\n")


def host(layers, device, batch, rivals):
    """Times of one process, by what was called; errors of what could not be."""
    calls, errors, versions = {"nn.Linear": lambda: layers.linear(layers.x)}, {}, {}
    for weight, activation in ((WEIGHT, None), ("q4_0", "q8_1")):
        layer = layers.ours(weight, activation)
        layer(layers.x)
        calls[f"{weight} x {activation or 'as it is'}"] = lambda layer=layer: layer(layers.x)
    want = layers.ours()(layers.x)
    for name in rivals:
        try:
            made, versions[name] = getattr(layers, name)()
            off = agreement(made(layers.x), want)
            if not off < 0.3:  # Humming chooses codes of its own
                raise ValueError(f"its result differs by {off:.3g} of the largest value")
            calls[name] = lambda made=made: made(layers.x)
        except Exception as error:  # whatever another package's import or compiler raises
            errors[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    return {"ops": twt.info().ops, "us": host_times(calls, device, batch), "errors": errors, "versions": versions}


def host_rows(report, layers, device, batch, arguments):
    """On the CPU times are those of the reference, not judged."""
    rivals = [] if device == "cpu" else ["gemlite", "humming"]
    times = {"stable": host(layers, device, batch, rivals)}
    environment = {**os.environ, "TILEWRIGHT_TORCH_OPS": "python"}
    command = [sys.executable, os.path.abspath(__file__), "--child-host", "--host-shape", arguments.host_shape]
    command += ["--cpu"] if device == "cpu" else []
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        times["python"] = json.loads(done.stdout.splitlines()[-1])
    problem = f"m=1 n={layers.n} k={layers.k}"
    for ops in ("stable", "python"):
        taken, name = times.get(ops), f"host {ops}"
        if taken is None:
            report.add(name, error=f"the second process failed: {(done.stderr.splitlines() or ['?'])[-1]}")
        elif taken["ops"] != ops:
            report.add(name, error=f"the operators are {taken['ops']}: {twt.info().why}")
        elif device == "cpu":
            report.add(name, error="needs a GPU", all_us=taken["us"])
        else:
            us = taken["us"]
            layer, linear = us[f"{WEIGHT} x as it is"], us["nn.Linear"]
            report.add(name, value=layer / linear, us=layer, nn_linear_us=linear, problem=problem, all_us=us)
    us, errors = times["stable"]["us"], times["stable"]["errors"]
    for name in ("gemlite", "humming"):
        if name in us:
            layer = us[f"{WEIGHT} x as it is"]
            version = times["stable"]["versions"][name]
            report.add(f"host {name}", value=layer / us[name], us=layer, rival_us=us[name], version=version)
        else:
            report.add(f"host {name}", error=errors.get(name, "needs a GPU"))


def cpp_bench(tool, n, k, cache, report):
    """What `tilewright_bench gemm` says of the row for one token, and its environment."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "gemm.json")
        command = [tool, "gemm", "--rows", "decode int4-g128 x f16", "--shapes", f"{n},{k}", "--m", "1"]
        command += ["--cache", cache, "--out", out]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not os.path.exists(out):
            raise RuntimeError(f"{tool} failed: {(done.stderr.splitlines() or done.stdout.splitlines() or ['?'])[-1]}")
        with open(out, encoding="utf-8") as file:
            result = json.load(file)
    report.environment.update(result["environment"])
    rows = [row for what in result["results"].values() for row in what.get("rows", []) if row.get("us")]
    if not rows:
        raise RuntimeError(f"{tool} has no time for int4-g128 x f16 at {n} x {k}")
    return rows[0]


def device_rows(report, layers, tool, cache):
    from tilewright.torch import _cuda

    try:
        bench = cpp_bench(tool, layers.n, layers.k, cache, report)
    except (OSError, RuntimeError) as error:
        bench = {"error": str(error).replace(ROOT + os.sep, "")}  # results name no folder of a machine
    first = layers.ours()
    first(layers.x)
    copies = max(2, int(COLD_BYTES / first.weight.nbytes) + 1)
    modules = [first, *(layers.ours() for _ in range(copies - 1))]
    for module in modules:  # arranged and prepared before the capture
        module(layers.x)
    torch.cuda.synchronize()
    plan = _cuda.plan(first._texts[layers.dtype, first.weight.tiles is not None], layers.x.device.index, layers.dtype)
    launch_module = lambda i: modules[i](layers.x)  # noqa: E731

    # The same launches, with arguments made before.
    y = torch.empty(1, layers.n, device=layers.device, dtype=layers.dtype)
    stream = torch.cuda.current_stream()
    launches = []
    for module in modules:
        args = _cuda._GEMM.from_buffer_copy(_cuda._BLANK_GEMM)
        args.m = 1
        _cuda._fill(args, layers.x, y, module.weight.streams, None, plan.spec)
        launches.append(args)
    launch_raw = lambda i: _cuda.launch_layer("tw_layer_launch_gemm", plan.layer, stream.cuda_stream, launches[i])  # noqa: E731
    launch_raw(0)
    if not torch.equal(y, launch_module(0)):
        raise RuntimeError("the raw launch computes something else than the layer")

    us = device_times([Loop(launch_raw, copies, 10)])[0]
    graph, raw = device_times([Graph(launch_module, copies, us), Loop(launch_raw, copies, us)])
    main = plan.layer.kernel()
    kernel = {"problem": str(main.subject), "choice": main.candidate(1), "copies": copies}
    if "error" in bench:
        report.add("device", error=bench["error"], us=graph, **kernel)
    elif str(tw.Problem(bench["problem"])) != kernel["problem"]:
        report.add("device", error=f"the bench ran {bench['problem']}", us=graph, **kernel)
    else:  # The layer's kernel serves every number of rows: one that loses at most a hundredth may save a binary.
        times = {"us": graph, "bench_us": bench["us"], "bench_choice": bench["choice"]}
        report.add("device", value=graph / bench["us"], **times, **kernel)
    report.add("graph", value=graph / raw, us=graph, raw_us=raw)


def package_rows(report, wheel):
    wheels = [wheel] if wheel else sorted(glob.glob(os.path.join(ROOT, "build", "wheel", "*.whl")))
    try:
        report.add("wheel", value=os.path.getsize(wheels[-1]), file=os.path.basename(wheels[-1]))
    except (IndexError, OSError):
        report.add("wheel", error="no wheel: ./dev wheel makes one, --wheel names it")
    code = "import time; t = time.process_time(); import tilewright; print(time.process_time() - t)"
    times = [float(subprocess.check_output([sys.executable, "-c", code])) * 1e6 for _ in range(7)]
    report.add("import", value=min(times), us=min(times))


def pair(text):
    n, _, k = text.partition(",")
    if not (n.isdigit() and k.isdigit() and int(n) > 0 and int(k) > 0 and int(k) % GROUP == 0):
        raise argparse.ArgumentTypeError(f"{text!r}: N,K with K a multiple of {GROUP}, {WEIGHT}'s block")
    return text


def main(given=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="result file (JSON)")
    parser.add_argument(
        "--bench", default=os.path.join(ROOT, "build", "bin", "tilewright_bench"), help="tilewright_bench"
    )
    parser.add_argument("--wheel", help="the package's wheel (the one in build/wheel)")
    parser.add_argument("--cache", help="of kernels and choices; what is compiled is kept there (a temporary file)")
    parser.add_argument("--shape", type=pair, default="8192,8192", help="of device and graph (8192,8192)")
    parser.add_argument("--host-shape", type=pair, default="2048,2048", help="of host (2048,2048)")
    parser.add_argument("--cpu", action="store_true", help="only what needs no GPU")
    parser.add_argument("--child-host", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args(given)
    if not a.cpu and not torch.cuda.is_available():
        print("torch_modules: PyTorch finds no GPU; --cpu measures what needs none", file=sys.stderr)
        return NO_GPU
    device, dtype, batch = ("cpu", torch.float32, 5) if a.cpu else ("cuda:0", torch.float16, 200)
    with torch.inference_mode(), contextlib.ExitStack() as stack:
        host_layers = Layers(*map(int, a.host_shape.split(",")), device, dtype)
        if a.child_host:
            print(json.dumps(host(host_layers, device, batch, [])))
            return 0
        # The bench's, the second process's and that of this process's engine.
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        os.environ["TILEWRIGHT_CACHE"] = a.cache or os.path.join(folder, "cache.db")
        report = Report(a.out)
        report.environment = {
            "device": "cpu" if a.cpu else torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "commit": os.environ.get("TILEWRIGHT_COMMIT", ""),
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        host_rows(report, host_layers, device, batch, a)
        if a.cpu:
            for name in ("device", "graph"):
                report.add(name, error="needs a GPU")
        else:
            shape = Layers(*map(int, a.shape.split(",")), device, dtype)
            device_rows(report, shape, a.bench, os.environ["TILEWRIGHT_CACHE"])
        package_rows(report, a.wheel)
    return 1 if any(row["mark"] == "OVER" for row in report.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
