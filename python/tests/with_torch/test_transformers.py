# SPDX-License-Identifier: Apache-2.0
"""Tiny random models through transformers, whose checkpoints the tests write: what comes out computes as the float
model with the weights that the layouts' definitions give (test_torch_checkpoints.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import PACKAGE

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when it is imported

# isort: split
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

import torch
from test_torch_checkpoints import Layer, awq, compressed, gptq, modelopt_int4, random
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import tilewright as tw
import tilewright.torch as twt
from tilewright.transformers import TilewrightConfig, TilewrightQuantizer, from_pretrained

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
TOKENS = torch.arange(12).reshape(2, 6) * 7 % 96
HEAD = "lm_head"


def tiny(**more):
    torch.manual_seed(0)
    sizes = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    config = LlamaConfig(**{**sizes, **heads, "tie_word_embeddings": False, "attention_bias": True, **more})
    return LlamaForCausalLM(config).eval()


def logits(model):
    with torch.no_grad():
        return model(TOKENS.to(model.device)).logits.float()


def linears(model, kind=nn.Linear):
    return {name: module for name, module in model.named_modules() if isinstance(module, kind)}


def same(a, b, tolerance=1e-5):
    return (a - b).abs().max() <= tolerance * b.abs().max()


@pytest.fixture
def float_checkpoint(tmp_path):
    tiny().save_pretrained(tmp_path / "float")
    return tmp_path / "float"


# ---- floats


def test_quantized_on_load(float_checkpoint):
    config = TilewrightConfig("q8_0", "q8_1")
    model = AutoModelForCausalLM.from_pretrained(float_checkpoint, quantization_config=config)
    plain = tiny()
    quantized = linears(model, twt.QuantizedLinear)
    assert set(quantized) == set(linears(plain)) - {HEAD} and type(model.lm_head) is nn.Linear
    assert model.hf_quantizer.report.left == {HEAD: "by the rules"}
    twt.replace_linears(plain, [(HEAD, None), ("*", {"weight": "q8_0", "activation": "q8_1"})])
    assert torch.equal(logits(model), logits(plain))
    assert not model.training and model.is_quantized and model.quantization_method == "tilewright"
    assert model.generate(TOKENS, max_new_tokens=3, do_sample=False).shape == (2, 9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_saved_and_loaded(float_checkpoint, tmp_path, dtype):
    rules = [["*.down_proj", {"weight": "nvfp4", "activation": "e4m3_row"}], ["*.mlp.*", {"weight": "q4_0"}]]
    config = TilewrightConfig(rules=rules)
    model = AutoModelForCausalLM.from_pretrained(float_checkpoint, quantization_config=config, dtype=dtype)
    model.save_pretrained(tmp_path / "saved")
    stored = json.loads((tmp_path / "saved" / "config.json").read_text())["quantization_config"]
    assert stored["quant_method"] == "tilewright" and stored["rules"] == rules
    for again in (
        AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=dtype),
        from_pretrained(LlamaForCausalLM, tmp_path / "saved", dtype=dtype),
    ):
        kinds = {name: (m.weight.format, m.activation) for name, m in linears(again, twt.QuantizedLinear).items()}
        assert kinds["model.layers.1.mlp.down_proj"] == ("nvfp4", "e4m3_row") and len(kinds) == 6
        assert kinds["model.layers.0.mlp.up_proj"] == ("q4_0", None)
        assert torch.equal(logits(again), logits(model))
    # The same files, by the package alone.
    layers = dict(twt.load_quantized(tmp_path / "saved"))
    assert set(layers) == set(kinds)
    assert all(
        torch.equal(layers[n].dequantize(), m.dequantize()) for n, m in linears(again, twt.QuantizedLinear).items()
    )
    other = from_pretrained(AutoModelForCausalLM, tmp_path / "saved", activation="q8_1", dtype=dtype)
    assert {m.activation for m in linears(other, twt.QuantizedLinear).values()} == {"q8_1"}


def test_sharded(float_checkpoint, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(float_checkpoint, quantization_config=TilewrightConfig("int4_g32"))
    model.save_pretrained(tmp_path / "saved", max_shard_size="20KB")
    assert len(list((tmp_path / "saved").glob("*.safetensors"))) > 2
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "saved")), logits(model))


def test_what_is_not_converted(float_checkpoint, tmp_path):
    config = TilewrightConfig("q8_0", modules_to_not_convert=["v_proj", "layers.1"])
    model = AutoModelForCausalLM.from_pretrained(float_checkpoint, quantization_config=config)
    names = set(linears(model, twt.QuantizedLinear))
    assert names == {n for n in linears(tiny()) if n.startswith("model.layers.0") and "v_proj" not in n} | {HEAD}
    tiny(tie_word_embeddings=True).save_pretrained(tmp_path / "tied")
    tied = AutoModelForCausalLM.from_pretrained(tmp_path / "tied", quantization_config=TilewrightConfig("q8_0"))
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    tied.save_pretrained(tmp_path / "again")
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "again")), logits(tied))


def test_a_model_without_its_head(float_checkpoint, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(float_checkpoint, quantization_config=TilewrightConfig("q8_0"))
    model.save_pretrained(tmp_path / "saved")
    body = AutoModel.from_pretrained(tmp_path / "saved")
    with torch.no_grad():
        got, want = body(TOKENS).last_hidden_state, model.model(TOKENS).last_hidden_state
    assert torch.equal(got, want)


def test_dequantized(float_checkpoint):
    model = AutoModelForCausalLM.from_pretrained(float_checkpoint, quantization_config=TilewrightConfig("q8_0"))
    want = logits(model)
    plain = model.dequantize()
    assert not linears(plain, twt.QuantizedLinear) and same(logits(plain), want)


def test_gradients_reach_the_embedding(float_checkpoint):
    model = AutoModelForCausalLM.from_pretrained(float_checkpoint, quantization_config=TilewrightConfig("q8_0", "q8_1"))
    model(TOKENS, labels=TOKENS).loss.backward()
    assert model.model.embed_tokens.weight.grad.abs().sum() > 0


# ---- checkpoints


def nvfp4(linear):
    n, k = linear.weight.shape
    data, scales, factor = twt.quantize(linear.weight, "nvfp4")
    weight = twt.dequantize([data, scales, factor], "nvfp4", n, k)
    parts = {
        "weight": data.reshape(n, k // 2),
        "weight_scale": scales.reshape(n, k // 16).view(torch.float8_e4m3fn),
        "weight_scale_2": factor.reshape(()),
    }
    return weight, parts


def fp8_blocks(linear):
    data, scales = twt.quantize(linear.weight, "e4m3_b128")
    n, k = linear.weight.shape
    scales = scales.view(torch.float32).reshape(-(-n // 128), k // 128)
    parts = {"weight": data.view(torch.float8_e4m3fn).reshape(n, k), "weight_scale_inv": scales}
    return twt.dequantize([data, scales.reshape(-1).view(torch.uint8)], "e4m3_b128", n, k), parts


def fp8(linear):
    data, _ = twt.quantize(linear.weight, "e4m3_row")
    codes, factor = data.view(torch.float8_e4m3fn).reshape(linear.weight.shape), torch.tensor(2.0**-10)
    return codes.float() * factor, {"weight": codes, "weight_scale": factor, "input_scale": torch.tensor(1.0)}


SCHEMES = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False}, lambda one: gptq(one, 1)),
    "gptq with act-order": (
        {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": True},
        lambda one: gptq(one, 1),
    ),
    "gptq v2": ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"}, lambda one: gptq(one, 2)),
    "awq": ({"quant_method": "awq", "bits": 4, "version": "gemm"}, awq),
    "compressed-tensors": (
        {"quant_method": "compressed-tensors", "format": "pack-quantized"},
        lambda one: compressed(one, False),
    ),
    "modelopt": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, None),
    "fp8": ({"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}, None),
    "modelopt fp8": ({"quant_method": "modelopt", "quant_algo": "FP8"}, None),
    "modelopt int4": ({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}, None),
}


def int4(linear):
    """Its scales are float32; the weight has them as float16."""
    n, k = linear.weight.shape
    r = random(n + k)
    codes, scales = r.integers(-8, 8, (n, k)), (r.random((n, k // 32)) * 0.01 + 0.01).astype(np.float32)
    half = scales.astype(np.float16).astype(np.float32)
    return torch.from_numpy((codes * half.repeat(32, 1)).astype(np.float32)), modelopt_int4(codes, scales)


def write(folder, scheme):
    """A checkpoint of the tiny model with its layers in a scheme, and the float model with their values."""
    model = tiny(**({"hidden_size": 128, "intermediate_size": 256} if scheme == "fp8" else {}))
    config, parts_of = SCHEMES[scheme]
    tensors = {name: value.clone() for name, value in model.state_dict().items()}
    for seed, (name, linear) in enumerate(linears(model).items()):
        if name == HEAD:
            continue
        if parts_of is None:
            weight, parts = {
                "fp8": fp8_blocks,
                "modelopt": nvfp4,
                "modelopt fp8": fp8,
                "modelopt int4": int4,
            }[scheme](linear)
        else:
            one = Layer(seed, act_order="act-order" in scheme, n=linear.out_features, k=linear.in_features)
            one.scales = (one.scales.astype(np.float32) * 0.02).astype(np.float16)
            parts = {part: value for part, value in parts_of(one).items() if part != "bias"}
            weight = torch.from_numpy(one.weight).float()
        linear.weight.data.copy_(weight)
        del tensors[f"{name}.weight"]
        tensors |= {f"{name}.{part}": value.contiguous() for part, value in parts.items()}
    folder.mkdir()
    safetensors.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({**model.config.to_dict(), "quantization_config": config}))
    return model


@pytest.mark.parametrize("scheme", SCHEMES)
def test_checkpoints(tmp_path, scheme):
    want = write(tmp_path / "quantized", scheme)
    rule = {"scales": "nearest"} if scheme == "modelopt int4" else {}
    model, info = from_pretrained(AutoModelForCausalLM, tmp_path / "quantized", output_loading_info=True, **rule)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    quantized = linears(model, twt.QuantizedLinear)
    assert set(quantized) == set(linears(want)) - {HEAD}
    for name, layer in quantized.items():
        assert torch.equal(layer.dequantize(), want.get_submodule(name).weight)
    assert same(logits(model), logits(want))
    assert any(m.order is not None for m in quantized.values()) == ("act-order" in scheme)
    model.save_pretrained(tmp_path / "saved")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(logits(again), logits(model))
    with_activation = from_pretrained(AutoModelForCausalLM, tmp_path / "quantized", activation="q8_1", **rule)
    assert {m.activation for m in linears(with_activation, twt.QuantizedLinear).values()} == {"q8_1"}
    assert same(logits(with_activation), logits(want), 0.1)


GGUF_TYPES = ["Q4_0", "Q8_0", "Q5_1"]


def write_gguf(file, kind, tied=False):
    """tied: without an output embedding of its own; the one that there is, is quantized."""
    gguf = pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    model = tiny(attention_bias=False, tie_word_embeddings=tied)
    config = model.config
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(64)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(16)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(96)
    tokens = [f"t{i}" for i in range(96)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 96)
    writer.add_token_types([1] * 96)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    type_ = gguf.GGMLQuantizationType[kind]
    for name, value in model.state_dict().items():
        data = value.numpy()
        if tied and name == "lm_head.weight":
            continue
        heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])
        if data.ndim == 2 and ("proj" in name or tied):
            codes = gguf.quants.quantize(data, type_)
            value.copy_(torch.from_numpy(gguf.quants.dequantize(codes, type_)))
            if heads:  # as llama.cpp's converter reorders the rows of these
                rows = np.arange(len(data)).reshape(heads, 2, -1).swapaxes(1, 2).ravel()
                codes = np.ascontiguousarray(codes[rows])
            writer.add_tensor(names.get_name(name, (".weight",)), codes, raw_dtype=type_)
        else:
            writer.add_tensor(names.get_name(name, (".weight",)), data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


@pytest.mark.parametrize("kind", GGUF_TYPES)
def test_gguf(tmp_path, kind):
    want = write_gguf(tmp_path / "model.gguf", kind)
    model = from_pretrained(AutoModelForCausalLM, tmp_path, gguf_file="model.gguf", dtype=torch.float32)
    quantized = linears(model, twt.QuantizedLinear)
    assert set(quantized) == set(linears(want)) - {HEAD}
    assert model.hf_quantizer.report.left == {HEAD: "the file has no quantized matrix of these values"}
    for name, layer in quantized.items():
        assert layer.weight.format == kind.lower() and torch.equal(layer.dequantize(), want.get_submodule(name).weight)
    assert same(logits(model), logits(want), 1e-4)
    model.save_pretrained(tmp_path / "saved")
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "saved")), logits(model))


@pytest.mark.parametrize("activation", (None, "q8_1"))
def test_tied_output_embedding_of_gguf(tmp_path, activation):
    want = write_gguf(tmp_path / "model.gguf", "Q8_0", tied=True)
    options = {"gguf_file": "model.gguf", "dtype": torch.float32, "activation": activation}
    model = from_pretrained(AutoModelForCausalLM, tmp_path, **options)
    left = from_pretrained(AutoModelForCausalLM, tmp_path, **options, output_embedding=False)
    assert type(left.lm_head) is nn.Linear and "shares its weight" in left.hf_quantizer.report.left[HEAD]
    assert left.lm_head.weight is left.model.embed_tokens.weight
    if activation is None:
        assert same(logits(model), logits(want), 1e-4)
    assert isinstance(model.lm_head, twt.QuantizedLinear) and model.hf_quantizer.report.left == {}
    assert torch.equal(model.lm_head.dequantize(), model.model.embed_tokens.weight)
    model.save_pretrained(tmp_path / "saved")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(logits(again), logits(model)) and isinstance(again.lm_head, twt.QuantizedLinear)


# ---- what does not fit


def test_bad_configurations(float_checkpoint, tmp_path):
    for given, message in (
        ({"activation": "q9"}, "q9"),
        ({"encoder": "best"}, "encoder must .*got best"),
        ({"rules": [["*", {"wait": 1}]]}, "rules must .*got 'wait'"),
    ):
        with pytest.raises(tw.InvalidArgument, match=message):
            AutoModelForCausalLM.from_pretrained(float_checkpoint, quantization_config=TilewrightConfig(**given))
    for given, message in (
        ({"rules": [["*"]]}, "rules must"),
        ({"rules": [[lambda name: True, None]]}, "rules must"),
        ({"quant_method": "gptq"}, "quant_method must .*got 'gptq'"),
        ({"weight": "q4"}, "weight must be q4_.*did you mean.*got q4"),
        ({"activation": "fp8"}, r"activation must be e4m3_row .did you mean.*got fp8"),
    ):
        with pytest.raises(tw.InvalidArgument, match=message):
            TilewrightConfig(**given)
    with pytest.raises(tw.Unsupported, match="path must be a quantized checkpoint"):
        from_pretrained(AutoModelForCausalLM, float_checkpoint)
    with pytest.raises(tw.InvalidArgument, match="source must .*got None"):
        TilewrightQuantizer(TilewrightConfig())
    with pytest.raises(tw.Unsupported, match="device_map"):
        TilewrightQuantizer(TilewrightConfig(), pre_quantized=False).validate_environment(
            device_map={"a": 0, "b": "disk"}
        )


def test_checkpoints_that_do_not_fit(tmp_path):
    write(tmp_path / "quantized", "gptq")
    config = AutoConfig.from_pretrained(tmp_path / "quantized")
    config.intermediate_size = 256
    with pytest.raises(
        tw.InvalidArgument, match=r"mlp.\w+_proj must be a linear layer (64 -> 128|128 -> 64).*got Linear .(64, 256|256, 64)."
    ):
        from_pretrained(AutoModelForCausalLM, tmp_path / "quantized", config=config)
    config = AutoConfig.from_pretrained(tmp_path / "quantized")
    config.num_hidden_layers = 1
    with pytest.raises(tw.InvalidArgument, match="model must be one that has a module model.layers.1.*got LlamaForCausalLM"):
        from_pretrained(AutoModelForCausalLM, tmp_path / "quantized", config=config)
    config = AutoConfig.from_pretrained(tmp_path / "quantized")
    config.quantization_config = {"quant_method": "awq", "version": "gemv"}
    with pytest.raises(tw.Unsupported, match="version must .*got gemv"):
        from_pretrained(AutoModelForCausalLM, tmp_path / "quantized", config=config)
    config.quantization_config = {"quant_method": "hqq"}
    with pytest.raises(tw.Unsupported, match="quant_method must be one of gptq, awq, .*fp8.*got hqq"):
        from_pretrained(AutoModelForCausalLM, tmp_path / "quantized", config=config)
    path = tmp_path / "quantized" / "model.safetensors"
    tensors = safetensors.load_file(path)
    del tensors["model.layers.0.mlp.up_proj.scales"]
    safetensors.save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(tw.InvalidArgument, match="model.layers.0.mlp.up_proj.scales must .*got missing"):
        from_pretrained(AutoModelForCausalLM, tmp_path / "quantized")


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        ("q8_0", "weight.format must be 'FORMAT rows=N cols=K layout=VERSION'.*got 'q8_0'"),
        ("q9 rows=64 cols=64 layout=1", "q9"),
        ("q8_0 rows=64 cols=64 layout=99", "must be layout=.*layout=99"),
        ("q8_0 rows=9999999999 cols=9999999999 layout=1", "."),
        ("q8_0 rows=63 cols=64 layout=1", "bytes"),
    ],
)
def test_hostile_tags(tmp_path, tag, message):
    layer = twt.QuantizedLinear.from_linear(nn.Linear(64, 64), "q8_0")
    state = {f"a.{name}": value.contiguous() for name, value in layer.state_dict().items()}
    safetensors.save_file(state, tmp_path / "model.safetensors")
    ((name, again),) = twt.load_quantized(tmp_path)
    x = torch.randn(2, 64)
    assert name == "a" and torch.equal(again(x), layer(x))
    state["a.weight.format"] = torch.tensor(list(tag.encode()), dtype=torch.uint8)
    safetensors.save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(tw.TilewrightError, match=message):
        list(twt.load_quantized(tmp_path))


def test_nothing_is_imported_unasked():
    code = "import sys, tilewright.torch; assert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(PACKAGE)}, timeout=120)
