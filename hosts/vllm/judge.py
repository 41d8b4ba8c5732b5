#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs vLLM with Tilewright's kernels and with its own, and says whether they agree.

    ./dev hosts vllm [suite] [--quick] [--only NAME,NAME]
    ./dev hosts vllm gguf [MODEL]
    ./dev hosts vllm own

`suite`: tiny random models, one for each method of quantization, by LLM.generate with continuous batching and chunked
prefill. A method agrees if every greedy token is the same, or if the log-probabilities of the prompts' tokens differ by at
most 1e-2 on average; or from those of the checkpoint's values, as floats, if vLLM's differ by more. vLLM has no CPU kernel
for some methods; then those values alone are compared. After the model is loaded nothing may be compiled. Also in two
tensor-parallel processes, under torch.compile, and with what may be broken: without libLLVM, the library or a cache that
can be written, and with one thread. --quick: four methods.
`gguf`: a real GGUF file (Gemma 3 270M) through vllm-gguf-plugin, against its floats by vLLM's kernels: the perplexity of
text may differ by 3 %.
`own`: vLLM's tests of quantization that run on a CPU, without our kernels and with them.
Skipped where vLLM itself runs nothing. Ends with 1 if a method disagrees, a layer is not ours or a test fails only with our kernels."""

import argparse
import gc
import json
import math
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)

TOLERANCE = 1e-2
QUICK = ("gptq", "awq", "w8a8-int8", "nvfp4")
TWO_PROCESSES = ("gptq", "w8a8-fp8", "moe-int4")
PROMPTS = [[(i * 37 + j * 11) % 500 + 1 for j in range(length)] for i, length in enumerate((100, 7, 33, 1))]
SPOKEN = re.compile(r"WARNING.*vllm\.tilewright|\[prepared\.py")


def environment(args, **more):
    """Of a process that runs vLLM with the plugin of this source tree, as if it were installed."""
    site = os.path.join(args.build, "site")
    info = os.path.join(site, "tilewright-0.dist-info")
    os.makedirs(info, exist_ok=True)
    with open(os.path.join(ROOT, "python", "pyproject.toml")) as file:
        entry = re.search(r'\[project.entry-points."(vllm.general_plugins)"\]\n(\w+) = "(.*)"', file.read())
    with open(os.path.join(info, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\nName: tilewright\nVersion: 0\n")
    with open(os.path.join(info, "entry_points.txt"), "w") as file:
        file.write(f"[{entry[1]}]\n{entry[2]} = {entry[3]}\n")
    return os.environ | {
        "PYTHONPATH": os.pathsep.join((site, os.path.join(ROOT, "python"), HERE)),
        "TILEWRIGHT_LIBRARY": os.path.abspath(args.library),
        "TILEWRIGHT_CACHE": os.path.join(args.build, "kernels.db"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_CONFIGURE_LOGGING": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **more,
    }


# ---- in a process of its own


def generate(model, processes=1, compiled=False, prompts=PROMPTS, tokens=8, **options):
    """Tokens and log-probabilities of the prompts, and the counts after loading and after the requests."""
    from vllm import LLM, SamplingParams

    start = time.monotonic()
    llm = LLM(
        model,
        skip_tokenizer_init=True,
        enforce_eager=not compiled,
        max_model_len=256,
        max_num_seqs=2,
        max_num_batched_tokens=64,
        enable_prefix_caching=False,
        dtype="bfloat16",
        tensor_parallel_size=processes,
        worker_extension_cls="counts.Counts",
        **options,
    )
    loaded = llm.collective_rpc("tilewright_counts")
    sampling = SamplingParams(max_tokens=tokens, temperature=0, detokenize=False, prompt_logprobs=1, ignore_eos=True)
    middle = time.monotonic()
    done = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)
    end = time.monotonic()
    out = {"seconds": [middle - start, end - middle], "counts": [loaded, llm.collective_rpc("tilewright_counts")]}
    out["tokens"] = [list(each.outputs[0].token_ids) for each in done]
    out["logprobs"] = [
        [position[token].logprob for position, token in zip(each.prompt_logprobs[1:], each.prompt_token_ids[1:])] for each in done
    ]
    return out


def child(args):
    from vllm.distributed import cleanup_dist_env_and_memory

    for job in json.loads(args.jobs):
        try:
            result = generate(**job)
        except Exception as error:  # reported, with the next job still to come
            result = {"error": f"{type(error).__name__}: {error}"[:2000]}
        with open(args.out, "a") as file:
            file.write(json.dumps(result) + "\n")
        gc.collect()
        cleanup_dist_env_and_memory()
    return 0


def run(args, jobs, **more):
    """The results of jobs, and what their process wrote. A job that ends the process is an error of its own."""
    out = os.path.join(args.build, "results.jsonl")
    results, said = [], ""
    while len(results) < len(jobs):
        if os.path.exists(out):
            os.remove(out)
        command = [sys.executable, os.path.abspath(__file__), "child", "--jobs", json.dumps(jobs[len(results) :]), "--out", out]
        env = environment(args, **{"VLLM_ENABLE_V1_MULTIPROCESSING": "0", **more})
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1800)
        said += done.stdout + done.stderr
        if os.path.exists(out):
            with open(out) as file:
                results += [json.loads(line) for line in file]
        if len(results) < len(jobs):
            results.append({"error": f"vLLM ended with {done.returncode}: {done.stderr[-1500:]}"})
    return results, said


# ---- suite


def compare(ours, theirs):
    """Tokens that are the same, all tokens, and the mean and largest difference of the prompts' log-probabilities."""
    pairs = [(a, b) for x, y in zip(ours["tokens"], theirs["tokens"]) for a, b in zip(x, y)]
    differences = [abs(a - b) for x, y in zip(ours["logprobs"], theirs["logprobs"]) for a, b in zip(x, y)]
    return sum(a == b for a, b in pairs), len(pairs), sum(differences) / len(differences), max(differences)


HEAD = f"{'method':<22} {'layers':>6} {'compiled':>8} {'against':<7} {'tokens':>7} {'mean':>8} {'largest':>8}"


def report(name, ours, theirs, needed, floats=None):
    """Prints a row; whether the method agrees with vLLM's kernels, or where it has none with the checkpoint's values.
    floats: those values by vLLM, against which both are printed."""
    against = "floats" if "error" in theirs else "vLLM"
    other = floats if "error" in theirs else theirs
    if "error" in ours or other is None or "error" in other:
        print(f"{name:<22} failed: {ours.get('error') or (other or theirs)['error']}", flush=True)
        return False
    before, after = ours["counts"]  # of every process
    layers = min(each.get("layers", 0) + each.get("experts", 0) for each in before)
    compiled = sum(b.get("compiled", 0) - a.get("compiled", 0) for a, b in zip(before, after))
    same, tokens, mean, largest = compare(ours, other)
    near, more = same == tokens or mean <= TOLERANCE, ""
    if floats is not None and against == "vLLM" and "error" not in floats:
        exact = compare(ours, floats)[2], compare(theirs, floats)[2]
        near |= exact[0] <= min(TOLERANCE, exact[1])
        more = f"  (from its values: ours {exact[0]:.1e}, vLLM's {exact[1]:.1e})"
    good = near and compiled == 0 and layers >= needed
    numbers = f"{same:>3}/{tokens:<3} {mean:>8.1e} {largest:>8.1e}"
    print(f"{name:<22} {layers:>6} {compiled:>8} {against:<7} {numbers}  {'agrees' if good else 'DISAGREES'}{more}", flush=True)
    return good


def spoken(said):
    """What our plugin has said, each once."""
    for line in sorted({line[line.find("] ") + 2 :] for line in said.splitlines() if SPOKEN.search(line)}):
        print("  said: " + line)


def suite(args):
    import models

    names = args.only.split(",") if args.only else list(QUICK if args.quick else models.METHODS)
    folder = os.path.join(args.build, "models")
    for name in names:
        models.write(os.path.join(folder, name), name)
        models.write(os.path.join(folder, name + "-floats"), name, floats=True)
    jobs = [{"model": os.path.join(folder, name)} for name in names]
    theirs, _ = run(args, jobs, TILEWRIGHT_VLLM="off")
    if not args.only and all("error" in result for result in theirs):
        print(f"skipped: vLLM's own kernels do not run here: {theirs[0]['error']}")
        return 0
    ours, said = run(args, jobs)
    wanted = [name for name, result in zip(names, theirs) if "error" in result or not args.quick]
    values = [{"model": os.path.join(folder, name + "-floats")} for name in wanted]
    floats = dict(zip(wanted, run(args, values, TILEWRIGHT_VLLM="off")[0])) if wanted else {}
    print(HEAD, flush=True)
    good = True
    for i, name in enumerate(names):
        needed = models.LAYERS * (1 if name.startswith("moe") else 4)
        good &= report(name, ours[i], theirs[i], needed, floats.get(name))
    spoken(said)
    if not args.quick and not args.only:
        good &= more_of_the_suite(args, folder, dict(zip(names, theirs)), floats)
    return 0 if good else 1


def more_of_the_suite(args, folder, theirs, floats):
    good = True
    for name in TWO_PROCESSES:
        job = {"model": os.path.join(folder, name), "processes": 2, "distributed_executor_backend": "mp"}
        results, _ = run(args, [job], VLLM_CPU_OMP_THREADS_BIND="0|1")
        good &= report(name + ", 2 processes", results[0], theirs[name], 2, floats[name])
    results, _ = run(args, [{"model": os.path.join(folder, "gptq"), "compiled": True}])
    good &= report("gptq, torch.compile", results[0], theirs["gptq"], 8)
    good &= broken(args, folder, theirs)
    return good


def broken(args, folder, theirs):
    """vLLM runs on, and says why once."""
    nowhere = os.path.join(args.build, "nowhere")
    with open(nowhere, "w"):
        pass
    cases = {
        "no libLLVM": ({"TILEWRIGHT_LLVM": nowhere, "TILEWRIGHT_CACHE": ":memory:"}, None),
        "no cache": ({"TILEWRIGHT_CACHE": os.path.join(nowhere, "kernels.db")}, "keeps its cache in memory"),
        "one thread": ({"OMP_NUM_THREADS": "1"}, None),
        "no library": ({"TILEWRIGHT_LIBRARY": nowhere}, "Tilewright is off"),
    }
    good = True
    for name, (more, wanted) in cases.items():
        results, said = run(args, [{"model": os.path.join(folder, "gptq")}], **more)
        good &= report(name, results[0], theirs["gptq"], 0)
        spoken(said)
        if wanted is not None:
            print(f'  said {said.count(wanted)} times: "{wanted}"')
            good &= said.count(wanted) == 1
    return good


# ---- gguf


def gguf(args):
    """The file by vLLM on our kernels, beside its floats by vLLM's own."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

    folder = os.path.join(args.build, "gguf")
    os.makedirs(folder, exist_ok=True)
    name = os.path.basename(args.model)
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        os.symlink(os.path.abspath(args.model), path)
    floats = os.path.join(folder, "floats")
    if not os.path.exists(os.path.join(floats, "config.json")):
        AutoConfig.from_pretrained(folder, gguf_file=name).save_pretrained(folder)
        floats_of = {"quantization_config": GgufConfig(dequantize=True)}
        AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype="bfloat16", **floats_of).save_pretrained(floats)
    with open(os.path.join(ROOT, "LICENSE")) as file:
        text = " ".join(file.read().split())
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    prompts = [tokenizer(text[start : start + length])["input_ids"] for start, length in ((0, 600), (2000, 100), (4000, 300))]
    job = {"prompts": prompts, "tokens": 32}
    ours, said = run(args, [job | {"model": path, "hf_config_path": folder}])
    theirs, _ = run(args, [job | {"model": floats}], TILEWRIGHT_VLLM="off")
    ours, theirs = ours[0], theirs[0]
    if "error" in ours or "error" in theirs:
        print(f"{name} failed: {ours.get('error') or theirs.get('error')}")
        return 1
    before, after = (counts[0] for counts in ours["counts"])
    same, tokens, mean, largest = compare(ours, theirs)
    compiled = after["compiled"] - before["compiled"]
    print(f"{name}: {before['layers']} layers keep the file's bytes; {compiled} kernels compiled by requests")
    ppl = [perplexity(result) for result in (ours, theirs)]
    print(f"  perplexity of the prompts (parts of LICENSE) {ppl[0]:.3f}, of the file's floats by vLLM {ppl[1]:.3f}")
    print(f"  {same} of {tokens} greedy tokens the same; log-probabilities differ by {mean:.3f}, {largest:.2f} at most")
    for who, result in (("GGUF, Tilewright", ours), ("floats, vLLM", theirs)):
        load, generating = result["seconds"]
        print(f"  {who:<17} loaded in {load:.1f} s, {len(prompts)} prompts and {tokens} tokens in {generating:.2f} s")
    spoken(said)
    return 0 if compiled == 0 and before["layers"] and abs(ppl[0] / ppl[1] - 1) <= 0.03 else 1


def perplexity(result):
    logprobs = [number for prompt in result["logprobs"] for number in prompt]
    return math.exp(-sum(logprobs) / len(logprobs))


# ---- own

# Tests of vLLM that are about quantization, and that need neither a GPU nor a download. Tests of its operators, which our
# kernels do not change, are left out.
OWN = (
    "kernels/quantization/test_mxfp4_kernel_selection.py",
    "kernels/quantization/test_mxfp8_kernel_selection.py",
    "kernels/quantization/test_nvfp4_kernel_selection.py",
    "kernels/quantization/test_scaled_mm_kernel_selection.py",
    "quantization/test_auto_awq.py",
    "quantization/test_auto_gptq.py",
    "quantization/test_compressed_tensors.py",
    "quantization/test_config_utils.py",
    "quantization/test_configs.py",
    "quantization/test_cpu_wna16.py",
    "quantization/test_modelopt.py",
    "quantization/test_register_quantization_config.py",
)


def outcomes(args, file, ours):
    """Of each test of a file: "passed", "failed" or "skipped". A test that needs a model from the network is skipped."""
    out = os.path.join(args.build, "own.xml")
    if os.path.exists(out):
        os.remove(out)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={out}", f"tests/{file}"]
    command[4:4] = ["-p", "registered"] if ours else []
    more = {} if ours else {"TILEWRIGHT_VLLM": "off"}
    try:
        own = {"cwd": os.path.join(args.build, "own"), "env": environment(args, **more), "timeout": args.limit}
        done = subprocess.run(command, capture_output=True, text=True, **own)
    except subprocess.TimeoutExpired:
        return {}, f"took longer than {args.limit} s"
    if not os.path.exists(out):
        return {}, done.stdout[-300:] + done.stderr[-300:]
    found = {}
    for case in xml.etree.ElementTree.parse(out).iter("testcase"):
        kinds = {child.tag: f"{child.get('message')} {child.text}" for child in case}
        text = kinds.get("failure", "") + kinds.get("error", "")
        offline = re.search("offline|LocalEntryNotFound|couldn't connect|Cannot find an appropriate cached|HF_HUB_OFFLINE", text)
        bad = "failure" in kinds or "error" in kinds
        found[f"{case.get('classname')}::{case.get('name')}"] = (
            "skipped" if "skipped" in kinds or (bad and offline) else "failed" if bad else "passed"
        )
    return found, ""


def own(args):
    kinds = "".join(f"{kind:>8}" for kind in ("passed", "failed", "skipped"))
    print(f"{'tests of vLLM':<55} {kinds}   with Tilewright:\n{'':<55} {'':<24}{kinds}", flush=True)
    good, ran = True, 0
    for file in OWN:
        (before, why), (after, why_after) = outcomes(args, file, False), outcomes(args, file, True)
        if not before or not after:
            print(f"{file:<55} not run: {why or why_after}", flush=True)
            continue
        counts = [[list(found.values()).count(kind) for kind in ("passed", "failed", "skipped")] for found in (before, after)]
        print(f"{file:<55} " + "".join(f"{n:>8}" for n in (*counts[0], *counts[1])), flush=True)
        for name, outcome in after.items():
            if outcome == "failed" and before.get(name) != "failed":
                print(f"  fails only with Tilewright: {name}")
                good = False
        ran += counts[1][0]
    return 0 if good and ran else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (("suite", suite), ("gguf", gguf), ("own", own), ("child", child)):
        command = commands.add_parser(name)
        command.set_defaults(what=what)
        if what is child:
            command.add_argument("--jobs", required=True)
            command.add_argument("--out", required=True)
            continue
        command.add_argument("--build", default=os.path.join(ROOT, "build", "hosts", "vllm"), help="for models and results")
        command.add_argument("--library", default=os.path.join(ROOT, "build", "libtilewright_c.so"), help="libtilewright_c.so")
        if what is suite:
            command.add_argument("--quick", action="store_true")
            command.add_argument("--only")
        elif what is gguf:
            command.add_argument("model", help="the GGUF file")
        elif what is own:
            command.add_argument("--limit", type=int, default=300, help="seconds for a file of tests")
    args = parser.parse_args()
    return args.what(args)


if __name__ == "__main__":
    sys.exit(main())
