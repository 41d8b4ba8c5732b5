# SPDX-License-Identifier: Apache-2.0
"""The plugin for vLLM against vllm_signatures: layers are created, loaded with the tensors of a checkpoint as vLLM does
in each process of a tensor-parallel group, and compute as the checkpoint's definition says."""

from __future__ import annotations

import pathlib
import re
import sys

import numpy as np
import pytest
from conftest import SOURCE
from torch_support import torch, values

pytest.importorskip("safetensors")
from test_torch_checkpoints import E2M1, GROUP, Layer, awq, compressed, gptq

sys.path.insert(0, str(pathlib.Path(__file__).parent / "vllm_signatures"))
vllm = pytest.importorskip("vllm")
sys.path.pop(0)
if not hasattr(vllm, "process"):
    pytest.skip("the real vLLM is installed", allow_module_level=True)

from vllm import process
from vllm.model_executor.layers import linear as layers
from vllm.model_executor.layers import quantization
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

import tilewright as tw
import tilewright.torch as twt
import tilewright.vllm
from tilewright.vllm import TilewrightConfig

tilewright.vllm.register()
tilewright.vllm.register()  # vLLM may call it again

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}


def compressed_config(**weights):
    given = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP, "symmetric": True, **weights}
    groups = {"group_0": {"targets": ["Linear"], "weights": given, "input_activations": None}}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups, "ignore": []}


def config_of(source):
    return quantization.get_quantization_config("tilewright").from_config(source)


def load(layer, tensors, *shard):
    """As a model's load_weights() does, of the names that the layer has; the bias' loader is not the plugin's."""
    for name, tensor in tensors.items():
        if name == "bias":
            continue
        parameter = dict(layer.named_parameters())[name]
        parameter.weight_loader(parameter, tensor, *shard)


def finished(layer, bias=None):
    if bias is not None:
        layer.bias.data.copy_(bias)
    layer.quant_method.process_weights_after_loading(layer)
    layer.quant_method.process_weights_after_loading(layer)  # vLLM may, after it has loaded weights again
    return layer


def check(layer, weight, x=None, bias=None, tolerance=1e-5):
    """weight [n, k] of float64."""
    x = torch.randn(3, weight.shape[1]) if x is None else x
    want = values(x) @ weight.T + (0 if bias is None else values(bias))
    y, none = layer(x)
    assert none is None and y.dtype == x.dtype and tuple(y.shape) == want.shape
    assert np.abs(values(y) - want).max() <= tolerance * np.abs(want).max()


CHECKPOINTS = {
    "gptq": (GPTQ, lambda layer: gptq(layer, 1)),
    "gptq_v2": ({**GPTQ, "checkpoint_format": "gptq_v2"}, lambda layer: gptq(layer, 2)),
    "awq": (AWQ, awq),
    "compressed": (compressed_config(), lambda layer: compressed(layer, True)),
    "compressed_zeros": (compressed_config(symmetric=False), lambda layer: compressed(layer, False)),
}


def make(kind, seed=0, n=48, k=4 * GROUP, **more):
    config, tensors = CHECKPOINTS[kind]
    one = Layer(seed, symmetric=kind == "compressed", n=n, k=k, **more)
    return config_of(config), one, tensors(one)


@pytest.mark.parametrize("kind", CHECKPOINTS)
@pytest.mark.parametrize("bias", [False, True])
def test_replicated(kind, bias):
    config, one, tensors = make(kind)
    with process():
        layer = layers.ReplicatedLinear(one.codes.shape[0], 48, bias=bias, quant_config=config, prefix="model.a")
    load(layer, tensors)
    finished(layer, one.bias if bias else None)
    assert not [name for name, _ in layer.named_parameters() if not name.endswith("bias")]
    (quantized,) = layer.tilewright
    assert isinstance(quantized, twt.QuantizedLinear)
    assert np.array_equal(values(quantized.dequantize()), one.weight)  # scales of float16 in a layer of float32
    check(layer, one.weight, bias=one.bias if bias else None)
    x = torch.ones(2, 4 * GROUP)
    if bias:  # one that the layer does not hand on, and one that it does not have
        assert torch.allclose(layer.quant_method.apply(layer, x) + one.bias, layer(x)[0], rtol=1e-5)
    else:
        assert torch.equal(layer.quant_method.apply(layer, x, one.bias.float()), layer(x)[0] + one.bias)


@pytest.mark.parametrize("kind", CHECKPOINTS)
@pytest.mark.parametrize("size", [2, 3])
def test_column_parallel(kind, size):
    config, one, tensors = make(kind)
    for rank in range(size):
        with process(rank, size):
            layer = layers.ColumnParallelLinear(4 * GROUP, 48, quant_config=config)
        load(layer, tensors)
        rows = 48 // size
        check(finished(layer), one.weight[rank * rows : (rank + 1) * rows])


@pytest.mark.parametrize("kind", CHECKPOINTS)
@pytest.mark.parametrize("groups, size", [(4, 2), (4, 4), (3, 2)])
def test_row_parallel(kind, groups, size):
    """Of three groups of 64 columns two processes have one and a half each."""
    config, one, tensors = make(kind, k=groups * GROUP)
    x, bias = torch.randn(3, groups * GROUP), torch.randn(48)
    cols = groups * GROUP // size
    total = 0
    for rank in range(size):
        with process(rank, size):
            layer = layers.RowParallelLinear(groups * GROUP, 48, bias=True, quant_config=config)
        load(layer, tensors)
        here = slice(rank * cols, (rank + 1) * cols)
        y = finished(layer, bias)(x[:, here])[0]
        want = values(x[:, here]) @ one.weight[:, here].T + (values(bias) if rank == 0 else 0)
        assert np.abs(values(y) - want).max() <= 1e-5 * np.abs(want).max()
        total = total + values(y)
    want = values(x) @ one.weight.T + values(bias)
    assert np.abs(total - want).max() <= 1e-5 * np.abs(want).max()
    expected = {(4, 2): "_g64", (4, 4): "_row" if kind == "compressed" else "_g64", (3, 2): "_g32"}[groups, size]
    assert layer.tilewright[0].weight.format.endswith(expected)


def test_one_group_a_row_is_cut():
    one = Layer(2, symmetric=True, n=16, k=GROUP)
    config = config_of({**GPTQ, "group_size": -1, "desc_act": True})  # of one group no order matters
    for rank in range(2):
        with process(rank, 2):
            layer = layers.RowParallelLinear(GROUP, 16, quant_config=config)
        load(layer, gptq(one, 1))
        check(finished(layer), one.weight[:, rank * 32 : (rank + 1) * 32])
        assert layer.tilewright[0].weight.format == "int4_row"


def test_pieces_of_groups_that_no_format_has():
    config = config_of(GPTQ)
    with process(1, 4):  # columns 48 to 95: pieces of 16
        layer = layers.RowParallelLinear(3 * GROUP, 16, quant_config=config, prefix="m.down")
    load(layer, gptq(Layer(0, symmetric=True, n=16, k=3 * GROUP), 1))
    with pytest.raises(tw.Unsupported, match=r"m.down: group_size must have pieces of a multiple.*got 64, which .* pieces of 16"):
        layer.quant_method.process_weights_after_loading(layer)


# ---- act-order


def test_act_order():
    config = config_of({**GPTQ, "desc_act": True})
    one = Layer(5, act_order=True, n=16, k=4 * GROUP)
    for size in (1, 2):
        with process(size - 1, size):
            layer = layers.ColumnParallelLinear(4 * GROUP, 16, quant_config=config)
        load(layer, gptq(one, 1))
        finished(layer)
        assert layer.tilewright[0].order is not None
        check(layer, one.weight[(size - 1) * 16 // size :])


def test_act_order_cut_by_columns():
    """A shard has all of some groups, or pieces: what matters is that they are as large as a format's."""
    one = Layer(6, act_order=True, n=16, k=4 * GROUP)
    r = np.random.default_rng(1)
    halves = np.split(np.repeat([3, 1, 2, 0, 1, 3, 0, 2], GROUP // 2), 2)
    one.g_idx = np.concatenate([r.permutation(half) for half in halves])
    config = config_of({**GPTQ, "desc_act": True})
    for rank in range(2):
        with process(rank, 2):
            layer = layers.RowParallelLinear(4 * GROUP, 16, quant_config=config)
        load(layer, gptq(one, 1))
        check(finished(layer), one.weight[:, rank * 128 : (rank + 1) * 128])
        assert layer.tilewright[0].order is not None and layer.tilewright[0].weight.format == "uint4_g32"
    scattered = Layer(7, act_order=True, n=16, k=4 * GROUP)
    with process(0, 2):
        layer = layers.RowParallelLinear(4 * GROUP, 16, quant_config=config, prefix="down")
    load(layer, gptq(scattered, 1))
    with pytest.raises(tw.Unsupported, match="down: group_size must .*desc_act=false.*got 64"):
        layer.quant_method.process_weights_after_loading(layer)


@pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1])
def test_g_idx_is_checked(bad):
    config = config_of({**GPTQ, "desc_act": True})
    one = Layer(6, act_order=True, n=16, k=4 * GROUP)
    tensors = gptq(one, 1)
    tensors["g_idx"][7] = bad
    for size in (1, 2):
        with process(0, size):
            layer = layers.RowParallelLinear(4 * GROUP, 16, quant_config=config, prefix="down")
        load(layer, tensors)
        with pytest.raises(tw.InvalidArgument, match="down.g_idx must be groups below 4"):
            layer.quant_method.process_weights_after_loading(layer)


# ---- fused layers


@pytest.mark.parametrize("kind", CHECKPOINTS)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_qkv(kind, size):
    """Four heads, and two of k and v, which four processes have twice."""
    config = config_of(CHECKPOINTS[kind][0])
    config.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    heads = {"q": 4, "k": 2, "v": 2}
    parts = {
        shard: Layer(seed, symmetric=kind == "compressed", n=16 * count, k=2 * GROUP)
        for seed, (shard, count) in enumerate(heads.items())
    }
    for rank in range(size):
        with process(rank, size):
            layer = layers.QKVParallelLinear(2 * GROUP, 16, 4, 2, bias=True, quant_config=config, prefix="a.qkv_proj")
        want = []
        for shard, one in parts.items():
            load(layer, CHECKPOINTS[kind][1](one), shard)
            kv = max(heads[shard] // size, 1) * 16
            first = (rank if shard == "q" else rank // max(size // 2, 1)) * kv
            want.append(one.weight[first : first + kv])
        bias = torch.randn(sum(len(w) for w in want))
        check(finished(layer, bias), np.concatenate(want), bias=bias)
        assert len(layer.tilewright) == 1


def test_fused_layers_have_one_order():
    config = config_of({**GPTQ, "desc_act": True})
    first, second = (Layer(seed, act_order=True, n=16, k=4 * GROUP) for seed in (1, 2))
    with process():
        layer = layers.MergedColumnParallelLinear(4 * GROUP, [16, 16], quant_config=config, prefix="m.gate_up_proj")
    load(layer, gptq(first, 1), 0)
    with pytest.raises(tw.InvalidArgument, match="m.gate_up_proj.g_idx must .*got different"):
        load(layer, gptq(second, 1), 1)
    second.g_idx = first.g_idx
    with process():
        layer = layers.MergedColumnParallelLinear(4 * GROUP, [16, 16], quant_config=config)
    for shard, one in enumerate((first, second)):
        load(layer, gptq(one, 1), shard)
    check(finished(layer), np.concatenate([first.weight, second.weight]))


def test_fused_layers_are_quantized_alike():
    config = config_of({**AWQ, "modules_to_not_convert": ["k_proj"]})
    config.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    with process(), pytest.raises(tw.Unsupported, match="a.qkv_proj .*k_proj.*floats"):
        layers.QKVParallelLinear(2 * GROUP, 16, 4, 2, quant_config=config, prefix="a.qkv_proj")


def test_rows_that_words_cut():
    for kind in ("awq", "gptq", "compressed_zeros"):
        config, _, _ = make(kind)
        with process(), pytest.raises(tw.Unsupported, match=r"up: output_partition_sizes must be multiples of 8.*got \[20, 16\]"):
            layers.MergedColumnParallelLinear(2 * GROUP, [20, 16], quant_config=config, prefix="up")
    config, one, tensors = make("compressed", n=20)
    with process():
        layer = layers.ColumnParallelLinear(4 * GROUP, 20, quant_config=config)
    load(layer, tensors)
    check(finished(layer), one.weight)
    with process(0, 3), pytest.raises(tw.Unsupported, match="input_size_per_partition must be a multiple of 8.*got 20"):
        layers.RowParallelLinear(60, 16, quant_config=config_of({**GPTQ, "group_size": -1}))


# ---- other bits, NVFP4, 8 bits


@pytest.mark.parametrize("bits", [2, 3, 8])
def test_gptq_bits(bits):
    """Codes lie one after the other in the words of a column."""
    r = np.random.default_rng(bits)
    n, k, middle = 32, 2 * GROUP, 1 << (bits - 1)
    codes = r.integers(0, 1 << bits, (k, n))
    zeros = np.full((2, n), middle)

    def packed(values_, axis):
        one = np.moveaxis(values_, axis, -1)
        flat = ((one[..., None] >> np.arange(bits)) & 1).reshape(*one.shape[:-1], -1, 32).astype(np.uint64)
        out = (flat << np.arange(32, dtype=np.uint64)).sum(-1).astype(np.uint32).view(np.int32)
        return torch.from_numpy(np.ascontiguousarray(np.moveaxis(out, -1, axis)))

    scales = (r.random((2, n)) + 0.5).astype(np.float16)
    tensors = {"qweight": packed(codes, 0), "qzeros": packed(zeros - 1, 1), "scales": torch.from_numpy(scales)}
    tensors["g_idx"] = torch.arange(k, dtype=torch.int32) // GROUP
    weight = ((codes - middle) * np.repeat(scales.astype(np.float64), GROUP, 0)).T
    config = config_of({**GPTQ, "bits": bits})
    with process():
        whole = layers.ColumnParallelLinear(k, n, quant_config=config)
    with process(1, 2):
        half = layers.RowParallelLinear(k, n, quant_config=config)
    for layer, want in ((whole, weight), (half, weight[:, 64:])):
        load(layer, tensors)
        check(finished(layer), want)


def nvfp4(seed, n, k, factor, producer):
    r = np.random.default_rng(seed)
    codes = r.integers(0, 16, (n, k))
    scales = torch.from_numpy((r.random((n, k // 16)) * 400 + 1).astype(np.float32)).to(torch.float8_e4m3fn)
    packed = torch.from_numpy((codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8))
    weight = E2M1[codes] * values(scales.float()).repeat(16, 1) * factor
    if producer == "modelopt":
        more = {"weight": packed, "weight_scale_2": torch.tensor(factor), "input_scale": torch.tensor(0.5)}
    else:
        more = {"weight_packed": packed, "weight_global_scale": torch.tensor([1 / factor])}
        more["input_global_scale"] = torch.tensor([2.0])
    return weight, {"weight_scale": scales, **more}


NVFP4 = {
    "modelopt": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "*.router*"]},
    "compressed": {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
                "input_activations": {"num_bits": 4, "type": "float", "dynamic": "local"},
            }
        },
    },
}


@pytest.mark.parametrize("producer", NVFP4)
@pytest.mark.parametrize("alike", [False, True])
def test_nvfp4(producer, alike):
    """Factors of layers that are fused are their own where they differ."""
    config = config_of(NVFP4[producer])
    parts = [nvfp4(seed, 32, 64, 2.0 ** -(8 + (0 if alike else seed)), producer) for seed in range(2)]
    bias = torch.randn(32)
    for rank in range(2):
        with process(rank, 2):
            layer = layers.MergedColumnParallelLinear(64, [32, 32], bias=True, quant_config=config, prefix="m.up")
        for shard, (_, tensors) in enumerate(parts):
            load(layer, tensors, shard)
        finished(layer, bias)
        assert len(layer.tilewright) == (1 if alike else 2)
        assert all(each.weight.format == "nvfp4" for each in layer.tilewright)
        check(layer, np.concatenate([w[rank * 16 : (rank + 1) * 16] for w, _ in parts]), bias=bias)
        layer.bias.data.add_(1)  # what is loaded later counts
        check(layer, np.concatenate([w[rank * 16 : (rank + 1) * 16] for w, _ in parts]), bias=bias + 1)
    with process(1, 2):
        layer = layers.RowParallelLinear(64, 32, quant_config=config)
    weight, tensors = parts[0]
    load(layer, tensors)
    check(finished(layer), weight[:, 32:])


@pytest.mark.parametrize("missing", [False, True])
def test_nvfp4_factors_are_checked(missing):
    _, tensors = nvfp4(0, 32, 64, 0.5, "modelopt")
    with process():
        layer = layers.ColumnParallelLinear(64, 32, quant_config=config_of(NVFP4["modelopt"]), prefix="m.up")
    tensors["weight_scale_2"] = torch.tensor(0.0)
    if missing:
        del tensors["weight_scale_2"]
    load(layer, tensors)
    with pytest.raises(tw.InvalidArgument, match=r"m.up.weight_scale_2 must be positive.*got \[(nan|0.0)\]"):
        layer.quant_method.process_weights_after_loading(layer)


def rows_config(kind, strategy, dynamic=True):
    weights = {"num_bits": 8, "type": kind, "strategy": strategy, "symmetric": True}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": {"num_bits": 8, "dynamic": dynamic}}
    format = "float-quantized" if kind == "float" else "int-quantized"
    return {"quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": group}}


@pytest.mark.parametrize("kind", ["float", "int"])
@pytest.mark.parametrize("strategy", ["channel", "tensor"])
def test_8_bits(kind, strategy):
    r = np.random.default_rng(1)
    dtype, activation = {"float": (torch.float8_e4m3fn, "e4m3_row"), "int": (torch.int8, "int8_row")}[kind]
    config = config_of(rows_config(kind, strategy, dynamic=strategy == "channel"))
    given, weights = [], []
    for n in (32, 16):
        codes = torch.from_numpy(r.integers(-127, 128, (n, 64))).to(dtype)
        scale = torch.from_numpy(r.random((n, 1) if strategy == "channel" else 1).astype(np.float32) + 0.1)
        weights.append(values(codes.float()) * values(scale))
        tensors = {"weight": codes, "weight_scale": scale}
        if strategy == "tensor":
            tensors["input_scale"] = torch.tensor(0.25)
        given.append(tensors)
    for options, wanted in (({}, activation), ({"activation": "f16"}, "f16")):
        with process(1, 2, tilewright=options):
            layer = layers.MergedColumnParallelLinear(64, [32, 16], quant_config=config)
        for shard, tensors in enumerate(given):
            load(layer, tensors, shard)
        finished(layer)
        (quantized,) = layer.tilewright
        assert quantized.activation == wanted and quantized.weight.format == activation
        want = np.concatenate([w[len(w) // 2 :] for w in weights])
        assert np.array_equal(values(quantized.dequantize()), want.astype(np.float32))
        check(layer, want, tolerance=0.1 if wanted == activation else 2e-3)


def test_modelopt_fp8():
    config = config_of({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_*"]}})
    codes = torch.arange(-32, 32).repeat(16, 1).to(torch.float8_e4m3fn)
    with process():
        layer = layers.ReplicatedLinear(64, 16, quant_config=config, prefix="a")
        assert type(config.get_quant_method(layer, "lm_x")) is layers.UnquantizedLinearMethod
    load(layer, {"weight": codes, "weight_scale": torch.tensor(0.5), "input_scale": torch.tensor(1.0)})
    assert finished(layer).tilewright[0].activation == "e4m3_row"
    check(layer, values(codes.float()) * 0.5, tolerance=0.1)


# ---- floats


def test_floats():
    weight, x = torch.randn(48, 64).half(), torch.randn(3, 64).half()
    options = {"weight": "q8_0", "activation": "q8_1"}
    for rank in range(2):
        with process(rank, 2, tilewright=options):
            layer = layers.ColumnParallelLinear(64, 48, params_dtype=torch.float16, quant_config=TilewrightConfig())
        load(layer, {"weight": weight})
        half = twt.QuantizedLinear.from_float(weight[24 * rank : 24 * rank + 24], format="q8_0", activation="q8_1")
        assert torch.equal(finished(layer)(x)[0], half(x))
    with process():
        layer = layers.ColumnParallelLinear(64, 48, quant_config=TilewrightConfig(), params_dtype=torch.float16)
    load(layer, {"weight": weight})
    assert finished(layer).tilewright[0].weight.format == "q4_0"


def test_rules_and_modules_to_not_convert():
    rules = [["*.down_proj", {"weight": "q8_0"}], ["*.k_proj", {"weight": "q4_k"}], ["*.gate", None]]
    rules.append(["*", {"weight": "q5_0"}])
    config = config_of({"quant_method": "tilewright", "rules": rules, "modules_to_not_convert": ["router"]})
    config.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj"]}
    with process():
        for name, wanted in (("m.down_proj", "q8_0"), ("m.up", "q5_0"), ("m.gate", None), ("m.router", None)):
            layer = layers.LinearBase.__new__(layers.LinearBase)
            method = config.get_quant_method(layer, name)
            assert getattr(method, "options", {}).get("weight") == wanted
        with pytest.raises(tw.Unsupported, match="rules must"):
            config.get_quant_method(layer, "m.qkv_proj")


def test_under_compile():
    config, _, tensors = make("gptq", n=16, k=2 * GROUP)
    with process():
        layer = layers.ReplicatedLinear(2 * GROUP, 16, bias=True, quant_config=config)
    load(layer, tensors)
    finished(layer, torch.randn(16))
    x = torch.randn(3, 2 * GROUP)
    assert torch.equal(torch.compile(layer, fullgraph=True, backend="eager")(x)[0], layer(x)[0])


@pytest.mark.parametrize("bias, hands_on", [(False, False), (True, False), (True, True)])
def test_kernels_are_prepared(monkeypatch, bias, hands_on):
    """On a GPU, once the weights are there."""
    done = []
    for name in ("arrange", "warm"):
        monkeypatch.setattr(
            twt.QuantizedLinear, name, lambda self, dtype, name=name: done.append((name, self.bias is not None, dtype))
        )
    monkeypatch.setattr(tilewright.vllm.linear, "_on_gpu", lambda place: True)
    config, _, tensors = make("gptq")
    with process():
        layer = layers.ReplicatedLinear(4 * GROUP, 48, bias=bias, quant_config=config, params_dtype=torch.float16)
    layer.skip_bias_add = hands_on
    load(layer, tensors)
    assert not done
    finished(layer)
    f16 = torch.float16
    assert done == [("arrange", False, f16), ("arrange", bias, f16), ("warm", bias and not hands_on, f16)]


# ---- what the config decides


def test_what_is_asked_for():
    cls = quantization.get_quantization_config("tilewright")
    assert cls.override_quantization_method(GPTQ, "tilewright", hf_config=None) == "tilewright"
    assert cls.override_quantization_method(GPTQ, None) is cls.override_quantization_method(GPTQ, "gptq") is None
    assert cls.get_name() == "tilewright" and cls.get_config_filenames() == [] and cls.get_min_capability() == 75
    assert torch.bfloat16 in cls.get_supported_act_dtypes()
    assert config_of({**NVFP4["modelopt"], "quant_method": "modelopt_fp4"}).method == "modelopt"


@pytest.mark.parametrize(
    "config, left, quantized",
    [
        ({**AWQ, "modules_to_not_convert": ["visual"]}, "visual.fc", "model.fc"),
        ({**GPTQ, "dynamic": {"-:.*\\.moe\\..*": {}}}, "model.moe.fc", "model.fc"),
        ({**GPTQ, "modules_in_block_to_quantize": [["self_attn.q"]]}, "model.0.mlp.up", "model.0.self_attn.q"),
        ({**compressed_config(), "ignore": ["re:.*vision.*", "model.a"]}, "model.a", "model.b"),
        (NVFP4["modelopt"], "model.router.fc", "model.fc"),
    ],
)
def test_layers_that_are_left_alone(config, left, quantized):
    config = config_of(config)
    layer = layers.LinearBase.__new__(layers.LinearBase)
    with process():
        assert type(config.get_quant_method(layer, left)) is layers.UnquantizedLinearMethod
        assert type(config.get_quant_method(layer, quantized)) is tilewright.vllm.TilewrightLinearMethod
        assert config.get_quant_method(torch.nn.Embedding(1, 1), quantized) is None


def test_dynamic_and_targets():
    layer = layers.LinearBase.__new__(layers.LinearBase)
    config = config_of({**GPTQ, "dynamic": {"+:.*\\.down": {"bits": 8, "group_size": 32}, "a.*": {"group_size": -1}}})
    with process():
        found = [config.get_quant_method(layer, name).scheme for name in ("m.down", "a.up", "m.up")]
    assert [(each.bits, each.group) for each in found] == [(8, 32), (4, -1), (4, GROUP)]
    source = compressed_config()
    eight = rows_config("int", "channel")["config_groups"]["group_0"]
    source["config_groups"]["group_1"] = {**eight, "targets": ["re:.*down.*"], "format": "int-quantized"}
    with process():
        found = [config_of(source).get_quant_method(layer, name).scheme.kind for name in ("m.down", "m.up")]
    assert found == ["rows", "compressed_tensors"]


def test_names_are_mapped():
    class Mapper:
        def apply_list(self, names):
            return ["language_model." + name for name in names]

    config = config_of({**compressed_config(), "ignore": ["a", "re:.*b"]})
    config.apply_vllm_mapper(Mapper())
    layer = layers.LinearBase.__new__(layers.LinearBase)
    with process():
        kinds = [type(config.get_quant_method(layer, name)) for name in ("language_model.a", "x.b", "a")]
    assert [kind is layers.UnquantizedLinearMethod for kind in kinds] == [True, True, False]


@pytest.mark.parametrize(
    "config, field",
    [
        ({"quant_method": "bitsandbytes"}, "quant_method must .*got 'bitsandbytes'"),
        ({"quant_method": "tilewright", "source": {"quant_method": "gptq"}}, "source"),
        ({**GPTQ, "bits": 5}, "bits must .*got 5"),
        ({**GPTQ, "bits": "four"}, "bits must .*got 'four'"),
        ({**GPTQ, "group_size": 48}, "group_size must .*got 48"),
        ({**GPTQ, "group_size": None}, "group_size must .*got None"),
        ({**GPTQ, "lm_head": True}, "lm_head"),
        ({**GPTQ, "dynamic": {"+:(": {}}}, r"dynamic must .*got \("),
        ({**AWQ, "bits": 8}, "bits must .*got 8"),
        ({**AWQ, "version": "gemv"}, "version must .*got gemv"),
        ({**AWQ, "modules_to_not_convert": [3]}, "modules_to_not_convert"),
        ({**compressed_config(), "config_groups": {}}, "config_groups"),
        (compressed_config(num_bits=8), "config_groups must .*8 bits|bits must .*got 8"),
        (compressed_config(strategy="block"), "config_groups must .*block"),
        (rows_config("float", "block"), "config_groups must .*block"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo must .*got W4A8_AWQ"),
    ],
)
def test_refused_configs(config, field):
    with pytest.raises(tw.TilewrightError, match=field):
        config_of(config)


def test_refused_options_and_modules():
    layer = layers.LinearBase.__new__(layers.LinearBase)
    with process(tilewright={"weights": "q4_0"}), pytest.raises(tw.InvalidArgument, match="a dict of weight.*got .*weights"):
        TilewrightConfig().get_quant_method(layer, "a")
    with (
        process(tilewright={"weight": "q4_0"}),
        pytest.raises(tw.InvalidArgument, match="must be activation or accum .got weight"),
    ):
        config_of(GPTQ).get_quant_method(layer, "a")
    with process(tilewright={"activation": "q9"}), pytest.raises(tw.InvalidArgument, match="q9"):
        one = layers.ReplicatedLinear(64, 8, quant_config=TilewrightConfig())
        finished(one)

    class FusedMoE(torch.nn.Module):
        pass

    with process():
        with pytest.raises(tw.Unsupported, match="a.experts must .*got a quantized FusedMoE"):
            config_of(GPTQ).get_quant_method(FusedMoE(), "a.experts")
        with pytest.raises(tw.Unsupported, match="lm_head must .*got a quantized ParallelLMHead"):
            config_of(compressed_config()).get_quant_method(ParallelLMHead(), "lm_head")
        for config in (GPTQ, NVFP4["modelopt"], {"quant_method": "tilewright"}):
            assert config_of(config).get_quant_method(ParallelLMHead(), "lm_head") is None
        assert TilewrightConfig().get_quant_method(FusedMoE(), "a.experts") is None


def test_entry_point():
    text = (SOURCE / "python" / "pyproject.toml").read_text()
    assert re.search(
        r'\[project.entry-points."vllm.general_plugins"\]\ntilewright = "tilewright.vllm:register"\n', text
    )
