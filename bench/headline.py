# SPDX-License-Identifier: Apache-2.0
"""headline.py: README.md's table, one line for each rival, from the committed files of bench/results."""
import json
import re
import statistics
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"


def read(*names):
    """The environment of the first file, and the results of all of them."""
    files = [json.loads((RESULTS / f"{name}.json").read_text()) for name in names]
    return files[0]["environment"], [file.get("results", file) for file in files]


def spread(values, of="shapes"):
    return f"{statistics.median(values):.2f}× ({min(values):.2f}–{max(values):.2f}, {len(values)} {of})"


def cublaslt():
    where, results = read("h200_gemm_1024", "h200_gemm_4096")
    rows = [row for result in results for row in result["gemm"]["rows"] if row["group"] == "bf16, fp16"]
    version = results[0]["gemm"]["cublaslt"]["version"]
    return "bf16 and f16 GEMM, m = 1024 and 4096", f"cuBLASLt {version}", spread([row["value"] for row in rows]), where


def humming():
    where, results = read("h100_torch_modules")
    times = next(row for row in results[0]["rows"] if row["row"] == "host stable")["all_us"]
    ours, rival = times["int4_g128 x as it is"], times["humming"]
    # The file has no version of the rival; the table of docs/reference/results.md names the one that was installed.
    return "INT4 PyTorch layer, host time per call", "Humming 0.1.19", f"{rival / ours:.2f}× ({ours:.1f} µs against {rival:.1f})", where


def cudnn():
    where, results = read("h100_conv_decode")
    conv = results[0]["conv"]
    rows = [row["ratio"] for row in conv["rows"] if row["group"].startswith("bf16,") and "%" not in row["target_text"]]
    return "bf16 convolution, Wan2.1 VAE", f"cuDNN {conv['cudnn']['version']}", spread(rows), where


def ggml():
    where, results = read("xeon_amx_cpu")
    rows = [row["ratio"] for row in results[0]["cpu"]["rows"] if row["w"] == "q4_0" and row["m"] == 512]
    version = results[0]["cpu"]["ggml"].split()[0]
    return f"Q4_0 GEMM, m = 512, {where['threads']} threads", f"ggml {version}", spread(rows), where


def torch_compile():
    where, results = read("h100_quantize_torch")
    rows = [row["speedup"] for row in results[0]["rows"] if row["problem"].startswith("cast x=bf16")]
    return "quantization of bf16", f"torch.compile {where['torch'].split('+')[0]}", spread(rows, "formats"), where


def device(where):
    name = re.sub(r"^NVIDIA | 80GB HBM3$|\(R\)| Processor.*", "", where["device"])
    driver = where.get("driver", "none").split(" ")[0]
    return name + (" with AMX" if where.get("arch", "").endswith("+amx") else "") + ("" if driver == "none" else f", driver {driver}")


def main():
    print("| what | rival | speed relative to the rival | measured on | commit |")
    print("|---|---|---|---|---|")
    for measured in (cublaslt, humming, cudnn, ggml, torch_compile):
        what, rival, value, where = measured()
        print(f"| {what} | {rival} | {value} | {device(where)} | {where['commit'][:7]} |")


if __name__ == "__main__":
    main()
