# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that the tests write themselves, against dequantization that shares no code with the library: loops over
the layouts' definitions, and gguf-py's."""

from __future__ import annotations

import json

import numpy as np
import pytest
from torch_support import values

# isort: split
import torch
from torch import nn

import tilewright as tw
import tilewright.torch as twt

safetensors = pytest.importorskip("safetensors.torch")

N, K, GROUP = 48, 256, 64
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def random(seed=0):
    return np.random.default_rng(seed)


def words(nibbles, axis, order=range(8)):
    """Packs codes along an axis, eight to an int32: nibble i is code order[i] of the eight."""
    codes = np.moveaxis(np.asarray(nibbles, np.uint32), axis, -1)
    codes = codes.reshape(*codes.shape[:-1], -1, 8)
    out = np.zeros(codes.shape[:-1], np.uint32)
    for i, j in enumerate(order):
        out |= codes[..., j] << np.uint32(4 * i)
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(out, -1, axis)).view(np.int32))


class Layer:
    """Codes [K, N], zero points and scales [groups, N], and the group of each column of w; act-order permutes it."""

    def __init__(self, seed=0, symmetric=False, act_order=False, n=N, k=K):
        r = random(seed)
        self.codes = r.integers(0, 16, (k, n))
        self.zeros = np.full((k // GROUP, n), 8) if symmetric else r.integers(1, 17, (k // GROUP, n)) % 16
        if not symmetric:
            self.zeros[self.zeros == 0] = 3  # v1 has no zero point 0
        self.scales = (r.random((k // GROUP, n)) * 0.1 + 0.01).astype(np.float16)
        self.g_idx = np.repeat(np.arange(k // GROUP), GROUP)
        if act_order:
            self.g_idx = r.permutation(self.g_idx)
        self.bias = torch.from_numpy(r.standard_normal(n).astype(np.float16))

    @property
    def weight(self):
        """[N, K], in float64."""
        scale, zero = self.scales.astype(np.float64)[self.g_idx], self.zeros[self.g_idx]
        return ((self.codes - zero) * scale).T


def gptq(layer, version):
    return {
        "qweight": words(layer.codes, 0),
        "qzeros": words((layer.zeros - (version == 1)) & 15, 1),
        "scales": torch.from_numpy(layer.scales),
        "g_idx": torch.from_numpy(layer.g_idx.astype(np.int32)),
        "bias": layer.bias,
    }


def awq(layer):
    return {
        "qweight": words(layer.codes, 1, AWQ_ORDER),
        "qzeros": words(layer.zeros, 1, AWQ_ORDER),
        "scales": torch.from_numpy(layer.scales),
    }


def compressed(layer, symmetric):
    out = {
        "weight_packed": words(layer.codes.T, 1),
        "weight_scale": torch.from_numpy(np.ascontiguousarray(layer.scales.T)),
        "weight_shape": torch.tensor([layer.codes.shape[1], layer.codes.shape[0]]),
        "bias": layer.bias,
    }
    if not symmetric:
        out["weight_zero_point"] = words(layer.zeros.T, 0)
    return out


def save(folder, layers, config=None, name="model.safetensors"):
    folder.mkdir(exist_ok=True)
    tensors = {f"{layer}.{part}": t.contiguous() for layer, parts in layers.items() for part, t in parts.items()}
    safetensors.save_file(tensors, folder / name)
    if config is not None:
        (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    return folder


def check(layer, weight, bias=None):
    assert np.array_equal(values(layer.dequantize()), weight)
    x = torch.randn(3, layer.in_features)
    y = values(x) @ weight.T + (0 if bias is None else values(bias))
    assert np.abs(values(layer(x)) - y).max() <= 1e-5 * np.abs(y).max()
    assert (layer.bias is None) == (bias is None)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
def test_gptq(tmp_path, version, act_order, symmetric):
    one = Layer(1, symmetric, act_order)
    config = {"quant_method": "gptq", "bits": 4, "group_size": GROUP}
    if version == 2:
        config["checkpoint_format"] = "gptq_v2"
    path = save(tmp_path / "m", {"model.a": gptq(one, version)}, config)
    ((name, layer),) = twt.load_quantized(path, activation=None)
    assert name == "model.a" and layer.weight.format == ("int4_g64" if symmetric else "uint4_g64")
    assert (layer.order is not None) == act_order and layer.dtype == torch.float16
    check(layer, one.weight, one.bias)
    # Nothing but the tensors, and the scheme by argument.
    alone = save(tmp_path / "alone", {"model.a": gptq(one, version)})
    ((_, again),) = twt.load_quantized(alone / "model.safetensors", scheme="gptq" if version == 1 else "gptq_v2")
    check(again, one.weight, one.bias)


@pytest.mark.parametrize("config", [None, {"quant_method": "awq", "version": "gemm"}])
def test_awq(tmp_path, config):
    one = Layer(2)
    ((_, layer),) = twt.load_quantized(save(tmp_path / "m", {"a": awq(one)}, config), activation="q8_1")
    assert layer.activation == "q8_1"
    assert np.array_equal(values(layer.dequantize()), one.weight)


@pytest.mark.parametrize("symmetric", [False, True])
def test_compressed_tensors(tmp_path, symmetric):
    one = Layer(3, symmetric)
    ((_, layer),) = twt.load_quantized(save(tmp_path / "m", {"a": compressed(one, symmetric)}))
    check(layer, one.weight, one.bias)


@pytest.mark.parametrize("producer", ["modelopt", "compressed_tensors"])
def test_nvfp4(tmp_path, producer):
    r = random(4)
    codes = r.integers(0, 16, (N, K))
    scales = torch.from_numpy(r.random((N, K // 16)).astype(np.float32) * 400 + 1).to(torch.float8_e4m3fn)
    factor = torch.tensor([0.00390625])  # a power of two, whose reciprocal is exact
    parts = {"weight_scale": scales}
    packed = torch.from_numpy((codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8))
    if producer == "modelopt":
        parts |= {"weight": packed, "weight_scale_2": factor.reshape(())}
    else:
        parts |= {"weight_packed": packed, "weight_global_scale": 1 / factor}
    want = E2M1[codes] * values(scales.float()).repeat(16, 1) * factor.item()
    ((name, layer),) = twt.load_quantized(save(tmp_path / "m", {"mlp.up": parts}))
    assert name == "mlp.up" and layer.weight.format == "nvfp4"
    check(layer, want)


@pytest.mark.parametrize("dtype, format", [(torch.float8_e4m3fn, "e4m3_row"), (torch.int8, "int8_row")])
@pytest.mark.parametrize("shape", [(), (1,), (N,), (N, 1)])
def test_8_bits(tmp_path, dtype, format, shape):
    """compressed-tensors' float-quantized and int-quantized; Model Optimizer's FP8 has a scale of no dimension."""
    r = random(9)
    codes = torch.from_numpy(r.integers(-127, 128, (N, K))).to(dtype)
    scale = torch.from_numpy(np.asarray(r.random(shape), np.float32))
    parts = {"weight": codes, "weight_scale": scale, "input_scale": torch.tensor(1.0), "bias": torch.randn(N)}
    parts["weight_zero_point"] = torch.zeros(shape, dtype=torch.int8)
    ((_, layer),) = twt.load_quantized(save(tmp_path / "m", {"a": parts}))
    assert layer.weight.format == format
    check(layer, (values(codes.float()) * values(scale).reshape(-1, 1)).astype(np.float32), parts["bias"])
    for name, changed, why in (
        ("weight_zero_point", torch.ones(shape, dtype=torch.int8), "a.weight_zero_point must .*got not all zero"),
        ("weight_scale", torch.ones(N // 8, K // 8), "a.weight_scale must .*(one float, or one for each of|128 x 128)"),
        ("weight_scale", torch.ones(1, dtype=torch.int32), "a.weight_scale"),
        ("svdquant_lora_a", torch.ones(K), "a.svdquant_lora_a a low-rank part is not supported"),
    ):
        with pytest.raises(tw.Unsupported, match=why):
            list(twt.load_quantized(save(tmp_path / "bad", {"a": {**parts, name: changed}})))


@pytest.mark.parametrize("type_", ["Q4_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K", "Q2_K"])
def test_gguf(tmp_path, type_):
    gguf = pytest.importorskip("gguf")
    kind = gguf.GGMLQuantizationType[type_]
    w = random(5).standard_normal((N, K)).astype(np.float32)
    data = np.asarray(tw.encode(w, type_.lower()).data).reshape(N, -1)
    bias = random(6).standard_normal(N).astype(np.float32)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("blk.0.ffn_down.weight", data, raw_dtype=kind)
    writer.add_tensor("blk.0.ffn_down.bias", bias)
    writer.add_tensor("blk.0.norm.weight", np.ones(K, np.float32))
    writer.add_tensor("blk.0.router.weight", np.ones((4, K), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ((name, layer),) = twt.load_quantized(tmp_path / "m.gguf")
    assert name == "blk.0.ffn_down" and layer.weight.format == type_.lower()
    want = gguf.quants.dequantize(data, kind)
    assert np.abs(values(layer.dequantize()) - want).max() <= 2.0**-22 * np.abs(want).max()
    assert torch.equal(layer.bias, torch.from_numpy(bias))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(K, N)
        self.down = nn.Linear(N, K, bias=False)

    def forward(self, x):
        return self.down(self.up(x).relu())


def test_load_into(tmp_path):
    up = Layer(7, act_order=True)
    path = save(tmp_path / "m", {"net.up": gptq(up, 1), "net.other": awq(Layer(8))})
    model = nn.ModuleDict({"net": Mlp()}).eval()

    def rename(name):
        return None if name == "net.other" else name

    assert twt.load_into(model, path, rename=rename, activation="f16") == ["net.up"]
    layer = model["net"].up
    assert isinstance(layer, twt.QuantizedLinear) and not layer.training and layer.activation == "f16"
    assert type(model["net"].down) is nn.Linear
    check_only = values(layer.dequantize())
    assert np.array_equal(check_only, up.weight)
    # It is a module as others are: its state goes into one that is made by hand.
    fresh = twt.QuantizedLinear(K, N, weight="uint4_g64", activation="f16")
    fresh.load_state_dict(layer.state_dict())
    x = torch.randn(2, K)
    assert torch.equal(fresh(x), layer(x))
    with pytest.raises(tw.InvalidArgument, match="net.other"):
        twt.load_into(nn.ModuleDict({"net": Mlp()}), path)
    small = save(tmp_path / "small", {"net.down": gptq(Layer(9), 1)})
    with pytest.raises(tw.InvalidArgument, match=r"net.down must be a linear layer 256 -> 48.*got Linear \(48, 256\)"):
        twt.load_into(nn.ModuleDict({"net": Mlp()}), small)


def test_several_files(tmp_path):
    one, two = Layer(10), Layer(11)
    save(tmp_path / "m", {"a": gptq(one, 1)}, name="model-00001-of-00002.safetensors")
    save(tmp_path / "m", {"b": gptq(two, 1)}, name="model-00002-of-00002.safetensors")
    layers = dict(twt.load_quantized(tmp_path / "m"))
    assert set(layers) == {"a", "b"}
    check(layers["b"], two.weight, two.bias)


def test_what_is_refused(tmp_path):
    good = gptq(Layer(12), 1)
    nvfp4 = {"weight": torch.zeros(4, 32, dtype=torch.uint8), "weight_scale": torch.zeros(4, 4).to(torch.float8_e4m3fn)}

    def without(parts, *names):
        return {name: value for name, value in parts.items() if name not in names}

    cases = [
        (without(good, "scales"), "a.scales must .*got missing"),
        (without(good, "qzeros"), "qzeros"),
        (good | {"scales": good["scales"].float() * 1.01}, "a.scales must be numbers that float16 has"),
        (good | {"scales": good["scales"][:3]}, "a.scales must .*got shape"),
        (good | {"g_idx": good["g_idx"] + 100}, "g_idx"),
        (good | {"qweight": good["qweight"].float()}, "codes|qweight"),
        (nvfp4, "a must have either weight_scale_2 or weight_global_scale.*got neither"),
        (nvfp4 | {"weight_scale_2": torch.ones(4)}, "4 factors"),
        (nvfp4 | {"weight_scale": nvfp4["weight_scale"][:, :2].contiguous()}, "a.weight_scale"),
    ]
    for i, (parts, message) in enumerate(cases):
        path = save(tmp_path / f"m{i}", {"a": parts})
        with pytest.raises(tw.TilewrightError, match=message):
            list(twt.load_quantized(path))
    with pytest.raises(tw.InvalidArgument, match="scheme must .*got 'gptq3'"):
        list(twt.load_quantized(tmp_path, scheme="gptq3"))
    with pytest.raises(tw.IoError):
        list(twt.load_quantized(tmp_path / "nowhere.gguf"))
    with pytest.raises(tw.IoError, match="safetensors"):
        list(twt.load_quantized(tmp_path))
    other = save(tmp_path / "gemv", {"a": awq(Layer(13))}, {"quant_method": "awq", "version": "gemv"})
    with pytest.raises(tw.Unsupported, match="version must .*got gemv"):
        list(twt.load_quantized(other))
    (other / "config.json").write_text("{")
    with pytest.raises(tw.IoError, match="readable JSON"):
        list(twt.load_quantized(other))


# ---- other methods


def test_fp8_in_blocks(tmp_path):
    """DeepSeek-V3's and transformers' fp8; compressed-tensors calls the scales weight_scale."""
    r = random(20)
    codes = torch.from_numpy(r.normal(size=(200, 256)).astype(np.float32) * 100).to(torch.float8_e4m3fn)
    scales = torch.from_numpy(r.random((2, 2), np.float32))
    weight = values(codes.float()) * np.kron(values(scales), np.ones((128, 128)))[:200, :256]
    config = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    for i, part in enumerate(("weight_scale_inv", "weight_scale")):
        path = save(tmp_path / f"m{i}", {"a": {"weight": codes, part: scales}}, config)
        ((_, layer),) = twt.load_quantized(path)
        assert layer.weight.format == "e4m3_b128"
        check(layer, weight.astype(np.float32))
    path = save(tmp_path / "n", {"a": {"weight": codes[:, :200].contiguous(), "weight_scale_inv": scales}}, config)
    with pytest.raises(tw.Unsupported, match=r"a.weight_scale_inv must .*k a multiple of 128"):
        list(twt.load_quantized(path))
    config["weight_block_size"] = [64, 64]
    with pytest.raises(tw.Unsupported, match=r"weight_block_size must .*got \[64, 64\]"):
        list(twt.load_quantized(save(tmp_path / "m0", {"a": {"weight": codes, "weight_scale_inv": scales}}, config)))


def test_what_is_not_read_is_refused_by_name(tmp_path):
    """Nothing read is an error, too."""
    floats = {"weight": torch.randn(8, 8)}
    experts = {f"up_proj_{part}": torch.zeros(2, 8, 16, dtype=torch.uint8) for part in ("blocks", "scales")}
    rotated = {"quant_method": "compressed-tensors", "transform_config": {"config_groups": {"u": {}}}}
    cases = [
        ({"a": floats}, None, "path must be .*quantized linear layers .*: it has 1 tensors of F32"),
        ({"a": {"weight": torch.zeros(8, 8, dtype=torch.int8), "SCB": torch.ones(8)}}, None, r"a.weight must .*got I8 \(8, 8\)"),
        ({"a": {"weight": torch.zeros(8, 8).to(torch.float8_e5m2)}}, None, "a.weight must .*got F8_E5M2"),
        ({"e": experts}, None, "e.up_proj_blocks MXFP4 of experts is not supported"),
        ({"a": floats}, {"quant_method": "hqq"}, "quant_method must be one of gptq.*got hqq"),
        ({"a": compressed(Layer(1), True)}, rotated, "transform_config must .*rotations"),
    ]
    for i, (layers, config, message) in enumerate(cases):
        path = save(tmp_path / f"m{i}", layers, config)
        with pytest.raises(tw.Unsupported, match=message):
            list(twt.load_quantized(path))
        with pytest.raises(tw.Unsupported, match=message):
            twt.load_into(nn.Module(), path)


def bits_of(codes, bits, axis):
    """Codes packed along an axis into int32, the first lowest."""
    codes = np.moveaxis(codes, axis, -1).astype(np.uint64)
    stream = (codes[..., None] >> np.arange(bits, dtype=np.uint64)) & np.uint64(1)
    words = np.packbits(stream.astype(np.uint8).reshape(*codes.shape[:-1], -1), axis=-1, bitorder="little")
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(np.ascontiguousarray(words).view(np.int32), -1, axis)))


@pytest.mark.parametrize("bits", (2, 3, 8))
@pytest.mark.parametrize("config", (True, False))
def test_gptq_of_other_bits(tmp_path, bits, config):
    r, N = random(30 + bits), 64
    codes = r.integers(0, 1 << bits, (K, N))
    zeros = np.full((K // 32, N), 1 << (bits - 1)) if bits == 8 else r.integers(1, 1 << bits, (K // 32, N))
    scales = r.random((K // 32, N)).astype(np.float16)
    parts = {
        "qweight": bits_of(codes, bits, 0),
        "qzeros": bits_of(zeros - 1, bits, 1),
        "scales": torch.from_numpy(scales),
    }
    told = {"quant_method": "gptq", "bits": bits, "group_size": 32} if config else None
    path = save(tmp_path / "m", {"a": parts}, told)
    weight = ((codes - zeros.repeat(32, 0)) * scales.astype(np.float32).repeat(32, 0)).T
    try:
        ((_, layer),) = twt.load_quantized(path)
    except tw.TilewrightError as error:  # by name, where no format holds it
        assert str(error).startswith("a: ") and str(bits) in str(error)
        assert bits == 3
        return
    check(layer, weight.astype(np.float32))
    with pytest.raises(tw.TilewrightError, match=f"a: bits must be 4, as qzeros.*got {bits}"):
        list(twt.load_quantized(save(tmp_path / "m", {"a": parts}, {"quant_method": "gptq", "bits": 4})))


@pytest.mark.parametrize("groups", (1, K // 64))
@pytest.mark.parametrize("shape", (True, False))
def test_compressed_tensors_of_8_bits(tmp_path, groups, shape):
    r = random(40)
    codes, scales = r.integers(-128, 128, (N, K)), r.random((N, groups)).astype(np.float16)
    parts = {"weight_packed": bits_of(codes + 128, 8, 1), "weight_scale": torch.from_numpy(scales)}
    if shape:
        parts["weight_shape"] = torch.tensor([N, K])
    config = {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8}}}}
    ((_, layer),) = twt.load_quantized(save(tmp_path / "m", {"a": parts}, config))
    assert layer.weight.format == ("int8_row" if groups == 1 else "q8_0")
    check(layer, (codes * scales.astype(np.float32).repeat(K // groups, 1)).astype(np.float32))
    parts["weight_zero_point"] = torch.zeros(N, 1, dtype=torch.int32)
    with pytest.raises(tw.Unsupported, match="a.weight_zero_point must .*got 8 bits"):
        list(twt.load_quantized(save(tmp_path / "m", {"a": parts}, config)))


@pytest.mark.parametrize("format", ("mxfp4", "mxfp8"))
def test_powers_of_two(tmp_path, format):
    data, scales = twt.quantize(torch.randn(N, K), format)
    codes = data.reshape(N, -1) if format == "mxfp4" else data.view(torch.float8_e4m3fn).reshape(N, K)
    names = ("weight_packed",) if format == "mxfp4" else ()
    for i, name in enumerate((*names, "weight")):
        path = save(tmp_path / f"m{i}", {"a": {name: codes, "weight_scale": scales.reshape(N, K // 32)}})
        ((_, layer),) = twt.load_quantized(path)
        assert layer.weight.format == format
        check(layer, values(twt.dequantize([data, scales], format, N, K)))


@pytest.mark.parametrize("nested", (False, True))
def test_bitsandbytes_nf4(tmp_path, nested):
    w = torch.randn(N, K)
    data, scales = twt.quantize(w, "nf4")
    positive = [0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224, 0.44070982933044434]
    negative = [-0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635]
    negative += [-0.18477343022823334, -0.09105003625154495]
    table = torch.tensor([-1, *negative, 0, *positive, 0.5626170039176941, 0.7229568362236023, 1])
    absmax = scales.view(torch.float32).reshape(-1)
    state = {"quant_type": "nf4", "blocksize": 64, "shape": [N, K], "dtype": "float32"}
    parts = {"weight": data.reshape(-1, 1), "weight.quant_map": table, "weight.absmax": absmax}
    if nested:
        codes = torch.from_numpy(random(50).integers(0, 256, absmax.numel()).astype(np.uint8))
        inner, outer = torch.rand(256), torch.rand(-(-absmax.numel() // 64))
        parts |= {"weight.absmax": codes, "weight.nested_absmax": outer, "weight.nested_quant_map": inner}
        state |= {"nested_blocksize": 64, "nested_offset": 0.25}
        absmax = inner[codes.long()] * outer.repeat_interleave(64)[: absmax.numel()] + 0.25
    parts["weight.quant_state.bitsandbytes__nf4"] = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    nibbles = torch.stack([data >> 4, data & 15], -1).reshape(-1, 64)
    config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    ((_, layer),) = twt.load_quantized(save(tmp_path / "m", {"a": parts}, config))
    assert layer.weight.format == "nf4"
    check(layer, values(table[nibbles.long()] * absmax[:, None]).reshape(N, K))
    parts["weight.quant_map"] = table.flip(0).contiguous()
    with pytest.raises(tw.Unsupported, match="a.weight.quant_map must .*got another table"):
        list(twt.load_quantized(save(tmp_path / "m", {"a": parts}, config)))


@pytest.mark.parametrize("kind", ("bitlinear", "autobitlinear"))
def test_bitnet(tmp_path, kind):
    codes = torch.from_numpy(random(60).integers(0, 3, (N, K)).astype(np.uint8))
    packed = sum(codes[i * N // 4 : (i + 1) * N // 4] << (2 * i) for i in range(4))
    scale = torch.tensor([0.75])
    path = save(
        tmp_path / "m",
        {"a": {"weight": packed, "weight_scale": scale}},
        {"quant_method": "bitnet", "linear_class": kind},
    )
    ((_, layer),) = twt.load_quantized(path)
    factor = 1 / scale if kind == "bitlinear" else scale
    check(layer, values((codes.float() - 1) * factor))


def test_load_into_keeps_a_bias_that_the_checkpoint_has_not(tmp_path):
    one = Layer(70)
    path = save(tmp_path / "m", {"a": {name: value for name, value in gptq(one, 1).items() if name != "bias"}})
    model = nn.Module()
    model.a = nn.Linear(*reversed(one.weight.shape))
    bias = model.a.bias.detach().clone()
    assert twt.load_into(model, path) == ["a"]
    check(model.a, one.weight, bias)


def test_scales_of_x_before_it_is_quantized(tmp_path):
    """pre_quant_scale of Model Optimizer's AWQ and SmoothQuant."""
    codes = torch.from_numpy(random(80).integers(-127, 128, (N, K))).to(torch.int8)
    scale, factors, x = torch.rand(N), torch.rand(K) + 0.5, torch.randn(3, K)
    parts = {"weight": codes, "weight_scale": scale, "pre_quant_scale": factors.to(torch.bfloat16)}
    ((_, layer),) = twt.load_quantized(save(tmp_path / "m", {"a": parts}))
    weight, factors = codes.float() * scale[:, None], factors.to(torch.bfloat16).float()
    want = (x * factors) @ weight.T
    torch.testing.assert_close(layer(x), want, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(layer.to_linear()(x), want, rtol=1e-4, atol=1e-3)
    assert torch.equal(layer.dequantize(), weight) and "factors" in repr(layer)
    again = twt.QuantizedLinear(K, N, False, weight="int8_row")
    again.load_state_dict(layer.state_dict())
    assert torch.equal(again(x), layer(x))
    ((_, own),) = twt.load_quantized(save(tmp_path / "own", {"a": dict(layer.state_dict())}))
    assert torch.equal(own(x), layer(x))
    given = x.clone().requires_grad_()
    layer(given).sum().backward()
    torch.testing.assert_close(given.grad, weight.sum(0).expand(3, K) * factors, rtol=1e-4, atol=1e-3)
    with pytest.raises(tw.InvalidArgument, match="a: factors must .*got shape .3,."):
        list(twt.load_quantized(save(tmp_path / "bad", {"a": parts | {"pre_quant_scale": torch.ones(3)}})))


def modelopt_int4(codes, scales):
    """Model Optimizer's pack_int4_in_uint8: rows 2 i and 2 i + 1 in one byte, the first lowest."""
    packed = ((codes[0::2] & 15) | (codes[1::2] & 15) << 4).astype(np.uint8)
    return {"weight": torch.from_numpy(packed), "weight_scale": torch.from_numpy(scales)}


@pytest.mark.parametrize("group", (64, 128, K))
def test_modelopt_int4(tmp_path, group):
    r = random(81)
    codes, scales = r.integers(-8, 8, (N, K)), (r.random((N, K // group)) + 0.01).astype(np.float32)
    config = {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}
    half = scales.astype(np.float16).astype(np.float32)
    path = save(tmp_path / "half", {"a": modelopt_int4(codes, half)}, config)
    ((_, layer),) = twt.load_quantized(path)
    assert layer.weight.format == ("int4_row" if group == K else f"int4_g{group}")
    check(layer, (codes * half.repeat(group, 1)).astype(np.float32))

    parts = modelopt_int4(codes, scales) | {"pre_quant_scale": torch.rand(K).bfloat16() + 0.5}
    path = save(tmp_path / "m", {"a": parts}, config)
    want = (codes * scales.repeat(group, 1)).astype(np.float32)
    if group == K:  # scales of rows are floats
        ((_, layer),) = twt.load_quantized(path)
        assert np.array_equal(values(layer.dequantize()), want) and layer.factors is not None
    else:
        with pytest.raises(tw.Unsupported, match='a.weight_scale must .*scales="nearest" rounds them'):
            list(twt.load_quantized(path))
        ((_, layer),) = twt.load_quantized(path, scales="nearest")
        np.testing.assert_allclose(values(layer.dequantize()), want, rtol=2**-11, atol=0)
        assert torch.equal(layer.factors, parts["pre_quant_scale"].float())
    for more, named in (
        ({"weight_scale_2": torch.tensor(1.0)}, "a.weight_scale_2 INT4 that is rounded to FP8 .*is not supported"),
        ({"weight_scale": torch.from_numpy(scales[1:])}, "a.weight_scale must .*got shape"),
    ):
        with pytest.raises(tw.TilewrightError, match=named):
            list(twt.load_quantized(save(tmp_path / "bad", {"a": parts | more}, config)))


def test_groups_with_scales_in_single_precision(tmp_path):
    """Of compressed-tensors and GPTQ: refused by name, rounded if asked for, and kept where a row has one."""
    one = Layer(82, True)
    one.scales = (one.scales.astype(np.float32) * 1.01).astype(np.float32)
    for i, parts in enumerate((compressed(one, True), gptq(one, 2))):
        config = {"quant_method": "gptq", "checkpoint_format": "gptq_v2", "bits": 4}
        path = save(tmp_path / f"m{i}", {"a": parts}, config)
        with pytest.raises(tw.Unsupported, match="a.(weight_scale|scales) must be numbers that float16 has"):
            list(twt.load_quantized(path))
        ((_, layer),) = twt.load_quantized(path, scales="nearest")
        np.testing.assert_allclose(values(layer.dequantize()), one.weight, rtol=2**-11, atol=0)
    one.scales, one.zeros, one.g_idx = one.scales[:1], one.zeros[:1], np.zeros_like(one.g_idx)
    ((_, layer),) = twt.load_quantized(save(tmp_path / "rows", {"a": compressed(one, True)}))
    assert layer.weight.format == "int4_row"
    assert np.array_equal(values(layer.dequantize()), one.weight.astype(np.float32))
    tiny = compressed(Layer(83, True), True)
    tiny["weight_scale"] = tiny["weight_scale"].float() * 2.0**-20 * 1.01
    path = save(tmp_path / "tiny", {"a": tiny})
    with pytest.raises(tw.Unsupported, match="a.weight_scale must .*float16's range"):
        list(twt.load_quantized(path, scales="nearest"))
    with pytest.raises(tw.InvalidArgument, match="scales must .*got 'up'"):
        list(twt.load_quantized(path, scales="up"))
