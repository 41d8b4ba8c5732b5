# SPDX-License-Identifier: Apache-2.0
"""A whole model of a GGUF file in transformers: loading and generated tokens per second, with torch's floats and with
Tilewright's layers, in turns in one process.

    python bench/transformers_model.py FILE.gguf [--ways WAY,...] [--threads 2] [--rounds 5] [--tokens 64]
                                       [--device cpu] [--out FILE.json]

Needs PyTorch, transformers and gguf, python/ on PYTHONPATH and TILEWRIGHT_LIBRARY. Prints one line per way: loading (s),
median tokens/s, its ratio to f32 and to bf16, and how many greedy tokens equal the first way's."""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

import torch
import transformers

PROMPT = (
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness, "
    "it was the epoch of belief, it was the epoch of incredulity"
)


def load(way: str, file: pathlib.Path, device: str):
    """The model the way named: torch's floats, or Tilewright's layers with that activation."""
    of = transformers.AutoModelForCausalLM
    place = {"gguf_file": file.name, "dtype": torch.bfloat16 if "bf16" in way.split() else torch.float32}
    if way.startswith("torch"):
        return of.from_pretrained(file.parent, **place).to(device).eval()
    from tilewright.transformers import from_pretrained

    options = {"exact": {}, "q8_1": {"activation": "q8_1"}, "layers": {"activation": "q8_1", "output_embedding": False}}
    return from_pretrained(of, file.parent, **place, **options[way.split()[1]]).to(device).eval()


def generate(model, prompt, tokens: int):
    """The tokens, and those per second of decode: the prompt's time is measured alone and taken off."""
    config = {"do_sample": False, "use_cache": True}
    start = time.perf_counter()
    model.generate(**prompt, max_new_tokens=1, min_new_tokens=1, **config)
    first = time.perf_counter() - start
    start = time.perf_counter()
    out = model.generate(**prompt, max_new_tokens=tokens + 1, min_new_tokens=tokens + 1, **config)
    return out[0].tolist(), tokens / (time.perf_counter() - start - first), first


def commit() -> str:
    return subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()


def processor(device: str) -> str:
    if device != "cpu":
        return torch.cuda.get_device_name(device)
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return next(line.partition(": ")[2] for line in lines if line.startswith("model name"))


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("file", type=pathlib.Path)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--tokens", type=int, default=64)
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--ways", default="torch f32,torch bf16,tilewright exact,tilewright layers,tilewright q8_1")
    arguments.add_argument("--out", type=pathlib.Path)
    given = arguments.parse_args()
    torch.set_num_threads(given.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    models, loading = {}, {}
    for way in given.ways.split(","):
        start = time.perf_counter()
        models[way] = load(way, given.file, given.device)
        loading[way] = time.perf_counter() - start
        print(f"{way}: loaded in {loading[way]:.1f} s", file=sys.stderr, flush=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(given.file.parent, gguf_file=given.file.name)
    prompt = tokenizer(PROMPT, return_tensors="pt").to(given.device)

    rates: dict[str, list[float]] = {way: [] for way in models}
    firsts: dict[str, list[float]] = {way: [] for way in models}
    said: dict[str, list[int]] = {}
    with torch.inference_mode():
        for round_ in range(-1, given.rounds):
            for way, model in models.items():
                said[way], rate, first = generate(model, prompt, given.tokens if round_ >= 0 else 4)
                if round_ >= 0:
                    rates[way].append(rate)
                    firsts[way].append(first)
                    print(f"{way}: {rate:.1f} tokens/s", file=sys.stderr, flush=True)
    base = said[given.ways.split(",")[0]]
    report = []
    for way in models:
        rate = statistics.median(rates[way])
        report.append(
            {
                "way": way,
                "load_s": round(loading[way], 2),
                "prompt_s": round(statistics.median(firsts[way]), 4),
                "tokens_per_s": round(rate, 2),
                "rates": [round(each, 2) for each in rates[way]],
                "equal_tokens": sum(a == b for a, b in zip(said[way], base)) - prompt["input_ids"].shape[1],
                **{
                    f"ratio_{other[6:]}": round(rate / statistics.median(rates[other]), 3)
                    for other in ("torch f32", "torch bf16")
                    if other in models
                },
            }
        )
        print(json.dumps(report[-1]), flush=True)
    if given.out:
        about = {"commit": commit(), "file": given.file.name, "device": processor(given.device), "threads": given.threads}
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        given.out.write_text(json.dumps({**about, **versions, "ways": report}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
