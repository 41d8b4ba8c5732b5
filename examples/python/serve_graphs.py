# SPDX-License-Identifier: Apache-2.0
"""Serves 1 to 64 sequences at a time with CUDA graphs: a stack of quantized MLP blocks that computes one token for each
active sequence per step, as many as there are. Each number of tokens has a graph of its own, because each may have
other kernels; a step copies its tokens in front of the graphs' common input and replays one of them.

    pip install "./python[nvrtc13]" torch
    python examples/python/serve_graphs.py
    python examples/python/serve_graphs.py --eager      # the same without graphs; on the CPU where there is no GPU

Ends with 4 if it needs a GPU and there is none, and with 1 if a graph's result is not what the layers themselves give.
"""

import argparse
import random
import sys
import time

import torch
from torch import nn

import tilewright.torch as twt

NO_GPU = 4


class Block(nn.Module):
    """x + down(silu(gate(norm(x))) * up(norm(x)))."""

    def __init__(self, hidden, inner):
        super().__init__()
        self.norm = nn.RMSNorm(hidden)
        self.gate = nn.Linear(hidden, inner, bias=False)
        self.up = nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x):
        h = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


def make_model(layers, hidden, device, weight, activation):
    torch.manual_seed(0)
    with torch.device(device):
        model = nn.Sequential(*(Block(hidden, 4 * hidden) for _ in range(layers)), nn.RMSNorm(hidden))
    model = model.to(torch.bfloat16).eval().requires_grad_(False)
    report = twt.replace_linears(model, [("*", {"weight": weight, "activation": activation})])
    print(str(report).splitlines()[-1])
    return model


class CudaGraph:
    """run() as a graph. Graphs of one pool share memory, so that one must have ended before another is replayed; so
    do their kernels' workspaces."""

    pool = None

    def __init__(self, run):
        self.graph = torch.cuda.CUDAGraph()
        if CudaGraph.pool is None:
            CudaGraph.pool = torch.cuda.graph_pool_handle()
        with torch.cuda.graph(self.graph, pool=CudaGraph.pool):
            self.y = run()

    def replay(self):
        self.graph.replay()
        return self.y


class Eager:
    """run() itself, each time."""

    def __init__(self, run):
        self.replay = run


class Server:
    """model for 1 to `most` rows of `hidden` numbers. capture: CudaGraph, or something like it."""

    def __init__(self, model, most, hidden, device, capture):
        self.x = torch.zeros(most, hidden, dtype=torch.bfloat16, device=device)
        model(self.x)  # loads PyTorch's own kernels, which is no part of a graph
        # The largest first: the memory that it takes from the pool is enough for the others.
        self.graphs = {m: capture(lambda m=m: model(self.x[:m])) for m in range(most, 0, -1)}

    def step(self, tokens):
        """model(tokens). The result is overwritten by the next step."""
        m = len(tokens)
        if m not in self.graphs:
            raise ValueError(f"tokens: {m} rows; 1 to {len(self.graphs)}")
        self.x[:m].copy_(tokens)
        return self.graphs[m].replay()


def schedule(sequences, most, seed=0):
    """The active sequences of each step: of random lengths, beginning at random steps, at most so many at a time."""
    rng = random.Random(seed)
    waiting = [(rng.randrange(sequences), rng.randint(1, 40), s) for s in range(sequences)]  # arrival, tokens, sequence
    waiting.sort(reverse=True)
    active, step = {}, 0
    while waiting or active:
        while waiting and waiting[-1][0] <= step and len(active) < most:
            _, tokens, sequence = waiting.pop()
            active[sequence] = tokens
        if active:
            yield list(active)
        active = {sequence: left - 1 for sequence, left in active.items() if left > 1}
        step += 1


def serve(server, states, sequences, most):
    """Replaces each sequence's state by what the model makes of it, once for each of its tokens. Returns the number of
    steps by the number of tokens."""
    steps = {}
    for active in schedule(sequences, most):
        rows = torch.tensor(active, device=states.device)
        states[rows] = server.step(states[rows])
        steps[len(active)] = steps.get(len(active), 0) + 1
    return steps


def microseconds(run, device, repeats):
    """The median of a call's time; on a GPU that of the device with its launches."""
    times = []
    for _ in range(repeats + 3):
        if device == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return sorted(times[3:])[repeats // 2] * 1e6


@torch.inference_mode()
def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--eager", action="store_true", help="no graphs; on the CPU where there is no GPU")
    parser.add_argument("--most", type=int, default=64, help="sequences at a time (64)")
    parser.add_argument("--sequences", type=int, default=300, help="to serve (300)")
    parser.add_argument("--layers", type=int, default=4, help="MLP blocks (4)")
    parser.add_argument("--hidden", type=int, default=2048, help="width, a multiple of the format's block (2048)")
    parser.add_argument("--weight", default="int4_g128", help="format of the weights (int4_g128)")
    parser.add_argument("--activation", help="format of the activations (as they are)")
    parser.add_argument("--repeats", type=int, default=50, help="of each time (50)")
    a = parser.parse_args(arguments)
    for name in ("most", "sequences", "layers", "hidden", "repeats"):
        if getattr(a, name) < 1:
            parser.error(f"--{name} must be at least 1 (got {getattr(a, name)})")

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not a.eager:
        print("serve_graphs: PyTorch finds no GPU to capture graphs on; --eager runs without them", file=sys.stderr)
        return NO_GPU
    model = make_model(a.layers, a.hidden, device, a.weight, a.activation)

    started = time.perf_counter()
    twt.warm(model)  # kernels for all numbers of rows; nothing may be compiled under a capture
    warmed = time.perf_counter()
    server = Server(model, a.most, a.hidden, device, Eager if a.eager else CudaGraph)
    captured = time.perf_counter()
    print(f"kernels in {warmed - started:.1f} s, {len(server.graphs)} graphs in {captured - warmed:.1f} s")

    # A graph's launches are those of the layers themselves.
    worst = 0.0
    for m in range(1, a.most + 1):
        tokens = torch.randn(m, a.hidden, dtype=torch.bfloat16, device=device)
        want, got = model(tokens).float(), server.step(tokens).float()
        worst = max(worst, ((got - want).abs().max() / want.abs().max()).item())
    print(f"largest difference to the layers themselves, 1 to {a.most} tokens: {worst:.2g} of the largest value")
    if not worst <= 2.0**-7:
        print("serve_graphs: a graph's result is not the layers'", file=sys.stderr)
        return 1

    states = torch.randn(a.sequences, a.hidden, dtype=torch.bfloat16, device=device)
    started = time.perf_counter()
    steps = serve(server, states, a.sequences, a.most)
    if device == "cuda":
        torch.cuda.synchronize()
    seconds, tokens = time.perf_counter() - started, sum(m * count for m, count in steps.items())
    print(f"{a.sequences} sequences: {tokens} tokens in {sum(steps.values())} steps, {tokens / seconds:.0f} tokens/s")

    print(f"{'tokens':>6} {'layers':>10} {'server':>10}")
    for m in [1 << i for i in range(a.most.bit_length())]:
        tokens = torch.randn(m, a.hidden, dtype=torch.bfloat16, device=device)
        plain = microseconds(lambda tokens=tokens: model(tokens), device, a.repeats)
        graph = microseconds(lambda tokens=tokens: server.step(tokens), device, a.repeats)
        print(f"{m:6} {plain:7.0f} us {graph:7.0f} us")
    return 0


if __name__ == "__main__":
    sys.exit(main())
