# SPDX-License-Identifier: Apache-2.0
"""Models that Model Optimizer has quantized. Itself it needs 200 MB of packages, and takes 20 s to be imported, so that
most of this runs on modules with the attributes of its layers (modelopt 0.47); where it is installed, it is tried."""

from __future__ import annotations

import importlib.util
import json
import re
import types

import numpy as np
import pytest
from torch_support import torch, values
from torch import nn

safetensors = pytest.importorskip("safetensors.torch")

import tilewright.torch as twt
from tilewright.modelopt import convert

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


class Wrapper(nn.Parameter):
    """The weight of a compressed layer: a parameter of bytes that says what they are."""

    def __new__(cls, data, kind, shape, dtype=torch.bfloat16):
        self = super().__new__(cls, data, requires_grad=False)
        self.metadata = {"shape": shape, "dtype": dtype, "qtensor_class": type(kind, (), {})}
        return self


def quantizer(enabled=True, num_bits=8, **more):
    return types.SimpleNamespace(**{"is_enabled": enabled, "num_bits": num_bits, "pre_quant_scale": None, **more})


def layer(data, kind, scale, inputs=None, **more):
    n, k = data.shape[0], 64
    out = nn.Linear(k, n).bfloat16()
    out.weight = Wrapper(data, kind, torch.Size((n, k)))
    out.weight_quantizer = quantizer(_scale=scale, **more)
    out.input_quantizer = inputs or quantizer(enabled=False)
    out.output_quantizer = quantizer(enabled=False)
    return out


def nvfp4(**more):
    r = np.random.default_rng(0)
    codes = r.integers(0, 16, (48, 64))
    scale = torch.from_numpy((r.random((48, 4)) * 400 + 1).astype(np.float32)).to(torch.float8_e4m3fn)
    packed = torch.from_numpy((codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8))
    want = E2M1[codes] * values(scale.float()).repeat(16, 1) * 0.125
    return want, layer(packed, "NVFP4QTensor", scale, **{"_double_scale": torch.tensor(0.125), **more})


def rows(kind, **more):
    r = np.random.default_rng(1)
    dtype = torch.int8 if kind == "INT8QTensor" else torch.float8_e4m3fn
    codes = torch.from_numpy(r.integers(-127, 128, (48, 64))).to(dtype)
    scale = torch.from_numpy(r.random((48, 1)).astype(np.float32))
    return values(codes.float()) * values(scale), layer(codes, kind, scale, **more)


def test_convert():
    wanted = {}
    model = nn.ModuleDict()
    wanted["fp4"], model["fp4"] = nvfp4(inputs=quantizer(num_bits=(2, 1)))
    wanted["w4a8"], model["w4a8"] = nvfp4(inputs=quantizer(num_bits=(4, 3)))
    wanted["int8"], model["int8"] = rows("INT8QTensor", inputs=quantizer(num_bits=8))
    wanted["fp8"], model["fp8"] = rows("FP8QTensor")
    model["plain"] = nn.Linear(64, 8)
    model["off"] = layer(torch.zeros(8, 64), "None", None, enabled=False)
    report = convert(model.eval())
    assert list(report.replaced) == list(wanted) and not report.left
    found = {name: (model[name].weight.format, model[name].activation) for name in wanted}
    assert found == {
        "fp4": ("nvfp4", None),
        "w4a8": ("nvfp4", "e4m3_row"),
        "int8": ("int8_row", "int8_row"),
        "fp8": ("e4m3_row", None),
    }
    for name, weight in wanted.items():
        assert np.array_equal(values(model[name].dequantize()), weight.astype(np.float32))
        assert model[name].dtype == torch.bfloat16 and not model[name].training
    assert type(model["plain"]) is type(model["off"]) is nn.Linear


def test_int4_in_groups():
    """Its codes plus 8 lie with the first of two highest, and are divided by their group's scale."""
    r = np.random.default_rng(2)
    codes, amax = r.integers(0, 16, (48, 64)), (r.random((48, 2)) + 0.1).astype(np.float32)
    packed = torch.from_numpy((codes[:, 0::2] << 4 | codes[:, 1::2]).astype(np.uint8))
    scale = torch.from_numpy(np.float32(7) / amax).reshape(-1, 1)
    model = nn.Sequential(layer(packed, "INT4QTensor", scale))
    assert "scale must be numbers that float16 has" in convert(model).left["0"]
    assert list(convert(model, scales="nearest").replaced) == ["0"]
    want = ((codes - 8) / values(scale).reshape(48, 2).repeat(32, 1)).astype(np.float32)
    assert model[0].weight.format == "int4_g32"
    np.testing.assert_allclose(values(model[0].dequantize()), want, rtol=2**-11, atol=0)
    powers = torch.from_numpy(np.exp2(r.integers(0, 8, (96, 1))).astype(np.float32))
    model = nn.Sequential(layer(packed, "INT4QTensor", powers))
    assert list(convert(model).replaced) == ["0"]
    want = (codes - 8) / values(powers).reshape(48, 2).repeat(32, 1)
    assert np.array_equal(values(model[0].dequantize()), want)
    model = nn.Sequential(layer(packed, "INT4QTensor", torch.ones(47)))
    assert "equal groups of the rows of 48 x 64" in convert(model).left["0"]


def test_mxfp4():
    r = np.random.default_rng(3)
    codes, exponents = r.integers(0, 16, (48, 64)), r.integers(120, 134, (48, 2))
    packed = torch.from_numpy((codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8))
    scale = torch.from_numpy(exponents.astype(np.uint8))
    model = nn.Sequential(layer(packed, "MXFP4QTensor", scale.reshape(-1, 1)))
    assert list(convert(model).replaced) == ["0"] and model[0].weight.format == "mxfp4"
    want = E2M1[codes] * np.exp2(exponents - 127.0).repeat(32, 1)
    assert np.array_equal(values(model[0].dequantize()), want)
    model = nn.Sequential(layer(packed, "MXFP4QTensor", scale[:, :1]))
    assert "exponents for each block of 32 of 48 x 64" in convert(model).left["0"]


def test_scales_of_x_become_factors():
    weight, one = nvfp4(inputs=quantizer(enabled=False, pre_quant_scale=torch.rand(64) + 0.5))
    model, factors = nn.Sequential(one), one.input_quantizer.pre_quant_scale
    assert list(convert(model).replaced) == ["0"]
    x = torch.randn(3, 64)
    want = (values(x * factors) @ weight.T) + values(one.bias)
    assert np.abs(values(model[0](x)) - want).max() <= 1e-4 * np.abs(want).max()


@pytest.mark.parametrize(
    "change, why",
    [
        (lambda m: setattr(m.output_quantizer, "is_enabled", True), "output_quantizer"),
        (lambda m: setattr(m.weight_quantizer, "svdquant_lora_a", torch.ones(1)), "svdquant_lora_a"),
        (lambda m: setattr(m, "weight", nn.Parameter(torch.ones(48, 64))), r"mtq.compress\(\)"),
        (lambda m: setattr(m.weight_quantizer, "_scale", None), "weight_quantizer._scale must .*got None"),
        (lambda m: setattr(m.weight_quantizer, "_scale", torch.ones(48, 2).to(torch.float8_e4m3fn)), "block of 16"),
        (lambda m: setattr(m.weight_quantizer, "_double_scale", torch.ones(2)), "2 factors"),
        (lambda m: setattr(m, "weight", Wrapper(m.weight.data, "NF4QTensor", (48, 64))), "weight must .*got NF4QTensor"),
    ],
)
def test_left_alone(change, why):
    _, one = nvfp4()
    model = nn.Sequential(one)
    change(one)
    report = convert(model)
    assert report.replaced == {} and model[0] is one
    (text,) = report.left.values()
    assert re.search(why, text), text


def test_exported_fp8(tmp_path):
    """Model Optimizer's checkpoints of FP8: one scale for a layer, and one for x, which each call computes itself."""
    codes = torch.arange(-64, 64).repeat(16, 1)[:, :64].to(torch.float8_e4m3fn)
    tensors = {"a.weight": codes, "a.weight_scale": torch.tensor(0.25), "a.input_scale": torch.tensor(2.0)}
    safetensors.save_file(tensors, tmp_path / "model.safetensors")
    config = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(config))
    ((name, layer),) = twt.load_quantized(tmp_path, activation="e4m3_row")
    assert name == "a" and layer.weight.format == "e4m3_row"
    assert np.array_equal(values(layer.dequantize()), values(codes.float()) * 0.25)


@pytest.mark.skipif(importlib.util.find_spec("modelopt") is None, reason="needs nvidia-modelopt")
@pytest.mark.parametrize("config", ["NVFP4_DEFAULT_CFG", "FP8_DEFAULT_CFG", "INT8_DEFAULT_CFG"])
@pytest.mark.filterwarnings("ignore")
def test_itself(config):
    mtq = pytest.importorskip("modelopt.torch.quantization")
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 32)).eval()
    mtq.quantize(model, getattr(mtq, config), lambda m: m(torch.randn(16, 64)))
    fake = [model[i].weight_quantizer(model[i].weight) for i in (0, 2)] if config != "NVFP4_DEFAULT_CFG" else None
    mtq.compress(model)
    theirs = [model[i].weight_quantizer(model[i].weight) for i in (0, 2)]
    report = convert(model)
    assert list(report.replaced) == ["0", "2"] and not report.left
    for i, want in zip((0, 2), theirs):
        assert torch.allclose(model[i].dequantize(), want, rtol=2e-7, atol=0)
    for i, want in zip((0, 2), fake or []):
        assert torch.allclose(model[i].dequantize(), want, rtol=1e-5, atol=0)
