# SPDX-License-Identifier: Apache-2.0
"""Casts and fused casts of Tilewright beside torch.compile of the same function, on one device, in one process.

    python3 bench/quantize_torch.py [--out FILE] [--only TEXT] [--seconds S]

Needs PyTorch with Triton, python/ on PYTHONPATH and TILEWRIGHT_LIBRARY. Both are timed alike: launches captured in a CUDA
graph over buffers that rotate through more than 400 MB, on random data, the median of replays in turns, each on a chip
that has rested. torch.compile gets mode="max-autotune-no-cudagraphs" and static shapes.

A function returns codes and scales as separate tensors, as a PyTorch program would have them: what Tilewright writes as
one block of ggml's is two tensors there, of the same bytes. Before timing, what both give is decoded and compared; the
share of equal values is in the result. (torch.compile contracts and reorders, so a few values round the other way.)
"""

import argparse
import json
import os
import statistics
import sys
import time

import torch

import tilewright

COLD_BYTES = 4e8
GRAPH_US = 2000
ROUNDS, WARM = 7, 2
TARGET = 1.6


# ---- the functions, in plain torch


def row_codes(largest, dtype, round_first):
    def encode(x):
        x = x.float()
        amax = x.abs().amax(-1, keepdim=True)
        scale = torch.where(amax == 0, 1.0, amax / largest)
        q = x / scale
        if round_first:
            q = q.round().clamp(-largest, largest)
        return q.to(dtype), scale

    return encode


def row_values(codes, scale):
    return (codes.float() * scale).to(torch.bfloat16)


def pack_nibbles(codes):
    low, high = codes[..., 0::2], codes[..., 1::2]
    return low | (high << 4)


def unpack_nibbles(data):
    return torch.stack((data & 15, data >> 4), -1).flatten(-2)


def int4_group(x, group=128):
    g = x.float().unflatten(-1, (-1, group))
    amax = g.abs().amax(-1, keepdim=True)
    scale = torch.where(amax == 0, 1.0, amax / 7).half()
    codes = (g / scale.float()).round().clamp(-8, 7) + 8
    return pack_nibbles(codes.to(torch.uint8).flatten(-2)), scale.squeeze(-1)


def int4_group_values(data, scale, group=128):
    codes = unpack_nibbles(data).unflatten(-1, (-1, group)).float() - 8
    return (codes * scale.float().unsqueeze(-1)).flatten(-2).to(torch.bfloat16)


def e2m1_codes(v):
    a = v.abs()
    code = (
        (a > 0.25).to(torch.uint8)
        + (a >= 0.75).to(torch.uint8)
        + (a > 1.25).to(torch.uint8)
        + (a >= 1.75).to(torch.uint8)
        + (a > 2.5).to(torch.uint8)
        + (a >= 3.5).to(torch.uint8)
        + (a > 5.0).to(torch.uint8)
    )
    return code | (torch.signbit(v).to(torch.uint8) << 3)


def nvfp4(x):
    g = x.float().unflatten(-1, (-1, 16))
    scale = (g.abs().amax(-1, keepdim=True) / 6).clamp(max=448).to(torch.float8_e4m3fn)
    s = scale.float()
    codes = e2m1_codes(torch.where(s == 0, 0.0, g / s))
    return pack_nibbles(codes.flatten(-2)), scale.squeeze(-1)


def e2m1_values(codes):
    e, m = (codes >> 1) & 3, (codes & 1).float()
    magnitude = torch.where(e == 0, 0.5 * m, (1 + 0.5 * m) * torch.exp2(e.float() - 1))
    return torch.where(codes > 7, -magnitude, magnitude)


def nvfp4_values(data, scale):
    values = e2m1_values(unpack_nibbles(data)).unflatten(-1, (-1, 16))
    return (values * scale.float().unsqueeze(-1)).flatten(-2).to(torch.bfloat16)


def mxfp8(x):
    g = x.float().unflatten(-1, (-1, 32))
    amax = g.abs().amax(-1, keepdim=True)
    exponent = (((amax.view(torch.int32) >> 23) & 255) - 8).clamp(min=0)  # OCP: floor(log2 amax) - emax
    codes = (g * torch.exp2((127 - exponent).float())).clamp(-448, 448).to(torch.float8_e4m3fn)
    return codes.flatten(-2), exponent.to(torch.uint8).squeeze(-1)


def mxfp8_values(codes, exponent):
    values = codes.float().unflatten(-1, (-1, 32)) * torch.exp2(exponent.float() - 127).unsqueeze(-1)
    return values.flatten(-2).to(torch.bfloat16)


def q8_1(x):
    g = x.float().unflatten(-1, (-1, 32))
    d = g.abs().amax(-1, keepdim=True) / 127
    codes = torch.where(d == 0, 0.0, g / d).round()
    sums = d * codes.sum(-1, keepdim=True)
    return codes.to(torch.int8).flatten(-2), torch.cat((d, sums), -1).half()


def q8_1_values(codes, scales):
    g = codes.float().unflatten(-1, (-1, 32)) * scales[..., :1].float()
    return g.flatten(-2).to(torch.bfloat16)


def q4_0(x):
    g = x.float().unflatten(-1, (-1, 32))
    index = g.abs().argmax(-1, keepdim=True)
    d = g.gather(-1, index) / -8
    codes = torch.where(d == 0, 8.5, g / d + 8.5).clamp(0, 15).to(torch.uint8)
    return codes[..., :16] | (codes[..., 16:] << 4), d.half().squeeze(-1)


def q4_0_values(data, d):
    codes = torch.cat((data & 15, data >> 4), -1).float() - 8
    return (codes * d.float().unsqueeze(-1)).flatten(-2).to(torch.bfloat16)


def rms(encode, residual):
    def function(x, weight, r=None):
        h = x.float()
        if residual:
            h = h + r.float()
            stored = h.to(torch.bfloat16)
            h = stored.float()
        y = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * weight.float()
        return (*encode(y), stored) if residual else encode(y)

    return function


def swiglu(encode):
    def function(x):
        gate, up = x.float().chunk(2, -1)
        return encode(torch.nn.functional.silu(gate) * up)

    return function


ENCODERS = {
    "e4m3_row": row_codes(448.0, torch.float8_e4m3fn, False),
    "int8_row": row_codes(127.0, torch.int8, True),
    "int4_g128": int4_group,
    "nvfp4": nvfp4,
    "mxfp8": mxfp8,
    "q8_1": q8_1,
    "q4_0": q4_0,
}
DECODERS = {
    "e4m3_row": row_values,
    "int8_row": row_values,
    "int4_g128": int4_group_values,
    "nvfp4": nvfp4_values,
    "mxfp8": mxfp8_values,
    "q8_1": q8_1_values,
    "q4_0": q4_0_values,
}


# ---- timing


class Graph:
    """Launches over rotating buffers, captured once."""

    def __init__(self, launch, copies, us):
        count = max(1, -(-int(GRAPH_US) // max(1, int(us * copies)))) * copies
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for i in range(copies):
                launch(i, stream.cuda_stream)
        torch.cuda.synchronize()
        self.graph, self.count = torch.cuda.CUDAGraph(), count
        self.kept = []
        with torch.cuda.graph(self.graph, stream=stream):
            for i in range(count):
                launch(i % copies, stream.cuda_stream)

    def time(self):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.graph.replay()  # the host's time to launch the second does not show
        begin.record()
        self.graph.replay()
        end.record()
        end.synchronize()
        us = begin.elapsed_time(end) * 1e3
        time.sleep(4e-6 * us)
        return us / self.count


def once(launch):
    stream = torch.cuda.current_stream()
    launch(0, stream.cuda_stream)
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    launch(1, stream.cuda_stream)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3


def side_by_side(ours, theirs, copies):
    """Medians of replays in turns, in microseconds."""
    graphs = [Graph(f, copies, once(f)) for f in (ours, theirs)]
    samples = [[], []]
    for round_ in range(-WARM, ROUNDS):
        for graph, list_ in zip(graphs, samples):
            us = graph.time()
            if round_ >= 0:
                list_.append(us)
    return [statistics.median(s) for s in samples]


def compiled(function):
    return torch.compile(function, mode="max-autotune-no-cudagraphs", dynamic=False, fullgraph=True)


def copy_ceiling():
    a = [torch.empty(1 << 28, dtype=torch.uint8, device="cuda") for _ in range(4)]
    graph = Graph(lambda i, _: a[2 * i + 1].copy_(a[2 * i]), 2, 200)
    us = statistics.median([graph.time() for _ in range(ROUNDS + WARM)][WARM:])
    return 2 * (1 << 28) / us * 1e-6


# ---- the cases


class Bench:
    def __init__(self, seconds, out):
        self.out, self.ceiling = out, copy_ceiling()
        self.engine, self.device = tilewright.Engine(cache=":memory:"), tilewright.Device(0)
        self.until = time.monotonic() + seconds
        self.rows = []

    def save(self):
        """After each case, so that a run that is cut is not lost."""
        if not self.out:
            return
        environment = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "commit": os.environ.get("TILEWRIGHT_COMMIT", ""),
        }
        result = {"environment": environment, "copy_ceiling_tbps": self.ceiling, "rows": self.rows}
        with open(self.out, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
            file.write("\n")

    def kernel(self, text):
        problem = tilewright.Problem(text)
        self.engine.tune(problem, self.device)
        return self.engine.prepare(problem, self.device)

    def streams(self, name, rows, cols):
        """Uninitialized memory of a matrix's streams; a factor of the tensor is 1."""
        f = tilewright.codec.find(name)
        made = [
            torch.empty(f.stream_bytes(stream, rows, cols), dtype=torch.uint8, device="cuda")
            for stream in ("data", "scales")
            if stream in f.streams
        ]
        if "global" in f.streams:
            made.append(torch.ones(1, device="cuda"))
        return tuple(made) if len(made) > 1 else made[0]

    def compare(self, text, kernel, ours, theirs, copies, equal):
        ours_us, theirs_us = side_by_side(ours, theirs, copies)
        row = {
            "problem": text,
            "us": ours_us,
            "torch_compile_us": theirs_us,
            "speedup": theirs_us / ours_us,
            "equal_values": equal,
            "choice": kernel.candidate(),
            "target": TARGET,
            "mark": "pass" if theirs_us / ours_us >= TARGET else "SHORT",
        }
        self.rows.append(row)
        self.save()
        print(
            f"{text}: {ours_us:.1f} us, torch.compile {theirs_us:.1f}: {row['speedup']:.2f}x {row['mark']};"
            f" {100 * equal:.3f} % equal; {row['choice']}",
            flush=True,
        )

    def decoded(self, name, rows, cols, streams):
        y = torch.empty(rows, cols, dtype=torch.bfloat16, device="cuda")
        self.kernel(f"cast x={name} y=bf16 rows={rows} cols={cols}").launch(0, x=streams, y=y)
        torch.cuda.synchronize()
        return y

    def encode(self, text, name, function, cols, in_cols, more):
        """`more`: what a launch takes besides x and y, and the function behind x, by copy."""
        rows = 4096
        x = [torch.randn(rows, in_cols, dtype=torch.bfloat16, device="cuda")]
        weight = torch.rand(cols, dtype=torch.bfloat16, device="cuda") + 0.5
        residual = torch.randn(rows, cols, dtype=torch.bfloat16, device="cuda")
        copies = max(2, int(COLD_BYTES / (x[0].nbytes * 1.5)) + 1)
        x += [x[0].clone() for _ in range(copies - 1)]
        weights = {"weight": weight} if "weight" in more else {}
        residuals = [residual.clone() for _ in range(copies)] if "residual" in more else []
        outs = [self.streams(name, rows, cols) for _ in range(copies)]
        sums = [torch.empty_like(r) for r in residuals]
        kernel = self.kernel(text)
        theirs_compiled = compiled(function)
        kept = [None] * copies

        def ours(i, stream):
            buffers = {"residual": residuals[i], "residual_out": sums[i]} if residuals else {}
            kernel.launch(stream, x=x[i], y=outs[i], **weights, **buffers)

        def theirs(i, _):
            arguments = (*weights.values(), *residuals[i : i + 1])
            kept[i] = theirs_compiled(x[i], *arguments)

        ours(0, torch.cuda.current_stream().cuda_stream)
        theirs(0, None)
        torch.cuda.synchronize()
        got = self.decoded(name, rows, cols, outs[0])
        equal = (got == DECODERS[name](*kept[0][:2])).float().mean().item()
        self.compare(text, kernel, ours, theirs, copies, equal)

    def decode(self, name):
        rows, cols = 4096, 32768
        x = torch.randn(rows, cols, dtype=torch.bfloat16, device="cuda")
        streams = self.streams(name, rows, cols)
        self.kernel(f"cast x=bf16 y={name} rows={rows} cols={cols}").launch(0, x=x, y=streams)
        theirs_in = [t.contiguous() for t in compiled(ENCODERS[name])(x)]
        torch.cuda.synchronize()
        copies = max(2, int(COLD_BYTES / (x.nbytes * 1.5)) + 1)
        clone = lambda v: tuple(t.clone() for t in v) if isinstance(v, tuple) else v.clone()  # noqa: E731
        ins = [clone(streams) for _ in range(copies)]
        theirs_ins = [[t.clone() for t in theirs_in] for _ in range(copies)]
        outs = [torch.empty_like(x) for _ in range(copies)]
        text = f"cast x={name} y=bf16 rows={rows} cols={cols}"
        kernel, function = self.kernel(text), compiled(DECODERS[name])
        kept = [None] * copies

        def ours(i, stream):
            kernel.launch(stream, x=ins[i], y=outs[i])

        def theirs(i, _):
            kept[i] = function(*theirs_ins[i])

        ours(0, torch.cuda.current_stream().cuda_stream)
        theirs(0, None)
        torch.cuda.synchronize()
        self.compare(text, kernel, ours, theirs, copies, (outs[0] == kept[0]).float().mean().item())

    def run(self, only):
        jobs = []
        for name, encode in ENCODERS.items():
            text = f"cast x=bf16 y={name} rows=4096 cols=32768"
            jobs.append((text, lambda t=text, n=name, e=encode: self.encode(t, n, e, 32768, 32768, ())))
            jobs.append((f"cast x={name} y=bf16", lambda n=name: self.decode(n)))
        for name in ("e4m3_row", "int8_row", "nvfp4", "mxfp8", "q8_1"):
            encode = ENCODERS[name]
            for more, fields in ((("weight",), ""), (("weight", "residual"), "residual=add ")):
                text = f"fused_cast x=bf16 y={name} rows=4096 cols=8192 {fields}norm=rms weight=bf16"
                jobs.append(
                    (
                        text,
                        lambda t=text, n=name, e=encode, m=more: self.encode(
                            t, n, rms(e, "residual" in m), 8192, 8192, m
                        ),
                    )
                )
            text = f"fused_cast x=bf16 y={name} rows=4096 cols=14336 act=silu gate=first"
            jobs.append((text, lambda t=text, n=name, e=encode: self.encode(t, n, swiglu(e), 14336, 28672, ())))
        for text, job in jobs:
            if only not in text:
                continue
            if time.monotonic() > self.until:
                print(f"{text}: SHORT: out of time")
                self.rows.append({"problem": text, "note": "not run: out of time"})
                continue
            try:
                job()
            except RuntimeError as error:
                print(f"{text}: SHORT: {error}")
                self.rows.append({"problem": text, "error": str(error)})
            torch.cuda.empty_cache()
            torch._dynamo.reset()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", help="result file (JSON)")
    parser.add_argument("--only", default="", help="cases with this in their problem")
    parser.add_argument("--seconds", type=float, default=400, help="start nothing new after that")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    bench = Bench(arguments.seconds, arguments.out)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {bench.ceiling:.2f} TB/s (read + write)")
    bench.run(arguments.only)
    bench.save()


if __name__ == "__main__":
    sys.exit(main())
