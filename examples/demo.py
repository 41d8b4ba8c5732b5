# SPDX-License-Identifier: Apache-2.0
"""./dev demo: one quantized GEMM on a real model's weights, from plain loops to a stored kernel.

demo.py TOOL: the built tilewright. Every number is one that the tool printed (--json) or a process's whole time.
"""

import json
import os
import subprocess
import sys
import time

MODEL, TENSOR = "examples/models/minilm-l6-v2-tiny.gguf", "blk.0.ffn_down.weight.q4_0"
PROBLEM = "gemm x=q8_1 w=q4_0 y=f32 m=4 n=384 k=1536"
CACHE = "build/demo/cache.db"
TOOL = sys.argv[1]
STRONG, PLAIN = ("\033[1m", "\033[0m") if sys.stdout.isatty() and "NO_COLOR" not in os.environ else ("", "")


def tool(*arguments: str) -> tuple[dict, float]:
    """What a command says, and the seconds that its process took."""
    start = time.monotonic()
    done = subprocess.run([TOOL, *arguments, "--json", "--cache", CACHE], stdout=subprocess.PIPE)
    if done.returncode:
        sys.exit(done.returncode)
    return json.loads(done.stdout), time.monotonic() - start


def run(*arguments: str) -> tuple[dict, float]:
    return tool("run", PROBLEM, "--model", MODEL, "--tensor", TENSOR, *arguments)


def step(title: str, text: str) -> None:
    print(f"{STRONG}{title:<16}{PLAIN}{text}", flush=True)


def rate(result: dict) -> str:
    us = result["microseconds"]
    return f"{us:.1f} us, {result['bytes'] / us / 1e3:.2f} GB/s"


step("problem", f"{PROBLEM}: 4 rows of activations times blk.0.ffn_down of MiniLM, in Q4_0")
baseline, _ = run("--cpu")
step("baseline", f"{rate(baseline)}: the plain reference, on one thread of this CPU")
tuned, seconds = tool("tune", PROBLEM)
[report] = tuned["reports"]
step("tuned", f"{report['choice']} for {tuned['device']}: the fastest of {report['measured']} measured, in {seconds:.1f} s")
first, seconds = run()
step("first process", f"{first['compiled']} compiled for every number of rows, {seconds * 1e3:.0f} ms in all")
result, seconds = run()
if not result["verified"]:
    sys.exit(f"wrong: {result['wrong']}")
step(
    "second process",
    f"{rate(result)}: {STRONG}{baseline['microseconds'] / result['microseconds']:.0f} times the baseline{PLAIN}; "
    f"{result['compiled']} compiled, {result['cache_hits']} from the cache, {seconds * 1e3:.0f} ms in all",
)
step(
    "checked",
    f"{result['checked']} of {result['outputs']} outputs against sums in fp64: "
    f"at most {result['error_of_bound']:.2g} of what rounding allows",
)
step("stored", f"{os.path.getsize(CACHE) / 1024:.0f} KiB in {CACHE}; look inside: {TOOL} cache ls --cache {CACHE}")
