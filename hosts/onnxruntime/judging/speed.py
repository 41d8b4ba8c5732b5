# SPDX-License-Identifier: Apache-2.0
"""Times of Tilewright's kernels beside ONNX Runtime's (MLAS), in turns, in one process."""

import json
import statistics
import time

import numpy as np

import models
import session

SHAPES = ((4096, 4096), (14336, 4096), (4096, 14336))  # n, k


def nbits_model(rng, n, k, level, block):
    node = models.onnx.helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=k, N=n, bits=4, block_size=block, accuracy_level=level
    )
    codes = rng.integers(0, 256, (n, k // block, block // 2), dtype=np.uint8)
    scales = rng.random(n * k // block, dtype=np.float32) * 0.01 + 0.001
    kind = models.onnx.TensorProto.FLOAT
    return models.model_of([node], [("x", kind, ["m", k])], [("y", kind, ["m", n])], [("w", codes), ("s", scales)])


def integer_model(rng, n, k):
    node = models.onnx.helper.make_node("MatMulInteger", ["x", "w", "z"], ["y"])
    constants = [("w", models.integers(rng, np.int8, (k, n))), ("z", np.uint8(128))]
    kinds = models.onnx.TensorProto.UINT8, models.onnx.TensorProto.INT32
    return models.model_of([node], [("x", kinds[0], ["m", k])], [("y", kinds[1], ["m", n])], constants)


def products(rng):
    for n, k in SHAPES:
        for level in (4, 0):
            for block in (32, 128):
                yield f"MatMulNBits level {level}, block {block}", n, k, nbits_model(rng, n, k, level, block), np.float32
        yield "MatMulInteger", n, k, integer_model(rng, n, k), np.uint8


def turns(sessions, feeds, rounds):
    """Seconds of one run of each session, by rounds; the faster half of the runs of a turn counts."""
    for each in sessions:
        start = time.perf_counter()
        each.run(None, feeds)
        each.run(None, feeds)
    runs = max(4, min(40, int(0.2 / ((time.perf_counter() - start) / 2))))
    times = [[] for _ in sessions]
    for _ in range(rounds):
        for each, to in zip(sessions, times):
            samples = []
            for _ in range(runs):
                start = time.perf_counter()
                each.run(None, feeds)
                samples.append(time.perf_counter() - start)
            to.append(statistics.mean(sorted(samples)[: max(1, runs // 2)]))
    return times


def run(args):
    rng, results = np.random.default_rng(5), []
    print(f"{'operation':<34} {'n':>6} {'k':>6} {'m':>4} {'ONNX Runtime':>13} {'Tilewright':>11}     ratio (by rounds)")
    for name, n, k, model, kind in products(rng):
        if args.only and args.only not in name:
            continue
        ours, theirs = (session.open_model(model, tilewright, threads=args.threads) for tilewright in (True, False))
        if not session.taken(ours):
            raise SystemExit(f"judge: error: {name} n={n} k={k} is not taken")
        for m in (1, 256):
            x = rng.standard_normal((m, k)).astype(kind) if kind == np.float32 else models.integers(rng, kind, (m, k))
            times = turns((theirs, ours), {"x": x}, args.rounds)
            ratios = sorted(a / b for a, b in zip(*times))
            medians = [statistics.median(each) * 1e3 for each in times]
            ratio = statistics.median(ratios)
            print(
                f"{name:<34} {n:>6} {k:>6} {m:>4} {medians[0]:>10.3f} ms {medians[1]:>8.3f} ms  {ratio:>8.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})",
                flush=True,
            )
            results.append({"operation": name, "n": n, "k": k, "m": m, "seconds": {"onnxruntime": times[0], "tilewright": times[1]}})
    if args.out:
        with open(args.out, "w") as file:
            json.dump({"threads": args.threads, "rounds": args.rounds, "results": results}, file, indent=1)
            file.write("\n")
    return 0
