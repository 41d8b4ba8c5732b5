# SPDX-License-Identifier: Apache-2.0
"""torchao's quantize_() with TilewrightConfig, and the layers that it has quantized: their values are its own."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from torch_support import torch, values

pytest.importorskip("torchao")

from torch import nn
from torchao.quantization import (
    Float8WeightOnlyConfig,
    FqnToConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8DynamicActivationIntxWeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    PerAxis,
    PerGroup,
    PerTensor,
    quantize_,
)
from torchao.prototype.mx_formats import MXDynamicActivationMXWeightConfig, NVFP4WeightOnlyConfig
from torchao.quantization.quant_primitives import MappingType
from torchao.quantization.quantize_.common import KernelPreference
from torchao.quantization.quantize_.workflows import Float8Tensor, Int4Tensor, Int8Tensor

import tilewright as tw
import tilewright.torch as twt
from tilewright.torchao import TilewrightConfig, convert


def model(dtype=torch.float32):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 32, bias=False)).to(dtype).eval()


# ---- quantize_


def test_quantize():
    one, two = model(), model()
    quantize_(one, TilewrightConfig("q8_0", "q8_1"), filter_fn=lambda module, name: name == "0")
    assert type(one[0]) is twt.QuantizedLinear and type(one[2]) is nn.Linear
    twt.replace_linears(two, [("0", {"weight": "q8_0", "activation": "q8_1"}), ("*", None)])
    x = torch.randn(3, 64)
    assert torch.equal(one(x), two(x))
    quantize_(one, TilewrightConfig("int8_row"))  # what is quantized stays
    assert one[0].weight.format == "q8_0" and one[2].weight.format == "int8_row"
    assert not one[0].training and one[0].bias is not None


def test_quantize_by_name():
    one = model()
    configs = {"0": TilewrightConfig("int4_row"), "2": Int8WeightOnlyConfig()}
    quantize_(one, FqnToConfig(configs), filter_fn=None)
    assert one[0].weight.format == "int4_row" and isinstance(one[2].weight, Int8Tensor)


def test_quantize_refuses():
    for fields, named in (
        ({"weight": "q4_O"}, "q4_O"),
        ({"activation": "q9"}, "q9"),
        ({"encoder": "best"}, "encoder must .*got best"),
    ):
        with pytest.raises(tw.InvalidArgument, match=named):
            TilewrightConfig(**fields)
    with pytest.raises(tw.InvalidArgument, match="must have a multiple of 32 columns.*got 48 columns"):
        quantize_(model(), TilewrightConfig("q4_0"))
    one = model()
    quantize_(one, Int8WeightOnlyConfig())
    with pytest.raises(tw.Unsupported, match="module must .*got Linear with a weight of .*convert"):
        quantize_(one, TilewrightConfig("int8_row"))


# ---- convert


CONFIGS = {
    "int8": (Int8WeightOnlyConfig(), "int8_row", None),
    "int8_tensor": (Int8WeightOnlyConfig(granularity=PerTensor()), "int8_row", None),
    "int8_int8": (Int8DynamicActivationInt8WeightConfig(), "int8_row", "int8_row"),
    "float8": (Float8WeightOnlyConfig(), "e4m3_row", None),
    "float8_tensor": (Float8WeightOnlyConfig(granularity=PerTensor()), "e4m3_row", None),
    "int4": (IntxWeightOnlyConfig(torch.int4, PerGroup(32)), "int4_g32", None),
    "uint4": (IntxWeightOnlyConfig(torch.int4, PerGroup(64), MappingType.ASYMMETRIC), "uint4_g64", None),
    "int2": (IntxWeightOnlyConfig(torch.int2, PerGroup(32)), "int4_g32", None),
    "int8_rows": (IntxWeightOnlyConfig(torch.int8, PerAxis(0)), "int8_row", None),
    "int8_groups": (IntxWeightOnlyConfig(torch.int8, PerGroup(32)), "q8_0", None),
    "mxfp8": (MXDynamicActivationMXWeightConfig(kernel_preference=KernelPreference.EMULATED), "mxfp8", "mxfp8"),
    "mxfp4": (
        MXDynamicActivationMXWeightConfig(
            activation_dtype=torch.float4_e2m1fn_x2,
            weight_dtype=torch.float4_e2m1fn_x2,
            kernel_preference=KernelPreference.EMULATED,
        ),
        "mxfp4",
        None,
    ),
    "nvfp4": (NVFP4WeightOnlyConfig(), "nvfp4", None),
    "int8_int4": (Int8DynamicActivationIntxWeightConfig(torch.int4, PerGroup(32)), "int4_g32", "int8_asym_row"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_convert(name):
    config, format, activation = CONFIGS[name]
    one = nn.ModuleDict({"a": nn.Sequential(nn.Linear(64, 48), nn.ReLU())}).bfloat16().eval()
    quantize_(one, config)
    theirs = copy.deepcopy(one)
    want = one["a"][0].weight.dequantize()
    report = convert(one)
    assert set(report.replaced) == {"a.0"} and not report.left and report.bytes_before == 2 * 64 * 48
    layer = one["a"][0]
    assert (layer.weight.format, layer.activation) == (format, activation)
    assert torch.equal(layer.dequantize(want.dtype), want)
    assert layer.dtype == torch.bfloat16
    x = torch.randn(5, 64).bfloat16()
    y, reference = values(layer(x)), values(theirs["a"][0](x))
    part = 0.25 if name == "mxfp4" else 0.02  # torchao's x has four bits there, too
    assert np.abs(y - reference).max() <= part * np.abs(reference).max()


def test_convert_options_and_shared_layers():
    shared = nn.Linear(64, 64)
    tied = nn.Linear(64, 64)
    one = nn.ModuleList([shared, nn.Sequential(shared), tied, nn.Linear(64, 32), nn.Linear(64, 32)])
    quantize_(one, Int8DynamicActivationInt8WeightConfig(), lambda module, name: name in ("0", "2", "3"))
    tied.weight = shared.weight
    report = convert(one, activation="f16", accum=None)
    assert list(report.replaced) == ["0", "1.0", "2", "3"] and type(one[4]) is nn.Linear
    assert one[0] is one[1][0] and one[0].weight is one[2].weight and one[0].activation == "f16"
    assert report.bytes_before == 4 * (64 * 64 + 64 * 32)


def test_convert_leaves_alone():
    one = model()
    asymmetric = Int8WeightOnlyConfig(granularity=PerGroup(16))
    quantize_(one, asymmetric)
    report = convert(one)
    assert not report.replaced and "groups of a multiple of 32" in report.left["0"]
    assert isinstance(one[0].weight, Int8Tensor)
    coarse = model()
    quantize_(coarse, Float8WeightOnlyConfig(granularity=PerGroup(16)))
    assert "block_size" in convert(coarse).left["2"]
    scaled = model().bfloat16()
    quantize_(scaled, Int8WeightOnlyConfig())
    weight = scaled[0].weight.data
    weight.act_pre_scale = torch.ones(64)
    scaled[0].weight = nn.Parameter(weight, requires_grad=False)
    report = convert(scaled)
    assert "act_pre_scale" in report.left["0"] and list(report.replaced) == ["2"]
    with pytest.raises(tw.InvalidArgument, match="model must .*got Linear"):
        alone = model()
        quantize_(alone, Int8WeightOnlyConfig())
        convert(alone[0])
    assert convert(model()).replaced == {}


def test_scales_that_no_format_has():
    """Of Int8Tensor in groups, scales are floats."""
    one = model()
    quantize_(one, Int8WeightOnlyConfig(granularity=PerGroup(32)), lambda module, name: name == "0")
    assert "scale must be numbers that float16 has" in convert(one).left["0"]
    want = values(one[0].weight.dequantize())
    with pytest.raises(tw.InvalidArgument, match="scales must .*got 'up'"):
        convert(one, scales="up")
    assert list(convert(one, scales="nearest").replaced) == ["0"] and one[0].weight.format == "q8_0"
    np.testing.assert_allclose(values(one[0].dequantize()), want, rtol=2**-11, atol=0)
    e5m2 = model()
    weight = Float8Tensor(torch.zeros(48, 64, dtype=torch.float8_e5m2), torch.ones(48, 1), [1, 64], dtype=torch.float32)
    e5m2[0].weight = nn.Parameter(weight, requires_grad=False)
    assert "float8_e5m2" in convert(e5m2).left["0"]


@pytest.mark.parametrize("symmetric", [True, False])
def test_int4_tensor(symmetric):
    """Made by hand: torchao needs mslk and a GPU for it. Two codes of -8 to 7 to a byte, the first lowest."""
    r = np.random.default_rng(0)
    codes = r.integers(-8, 8, (48, 64))
    packed = torch.from_numpy(((codes[:, 0::2] & 15) | ((codes[:, 1::2] & 15) << 4)).astype(np.uint8)).view(torch.int8)
    scale = torch.from_numpy(r.random((2, 48)).astype(np.float32)).bfloat16()
    zero = torch.zeros_like(scale) if symmetric else scale
    one = model(torch.bfloat16)
    weight = Int4Tensor(packed, scale, zero, [1, 32], torch.Size((48, 64)))
    one[0].weight = nn.Parameter(weight, requires_grad=False)
    report = convert(one)
    if not symmetric:
        assert "zero_point" in report.left["0"]
        return
    want = codes * np.repeat(values(scale.float()).T, 32, 1)
    assert one[0].weight.format == "int4_g32" and np.array_equal(values(one[0].dequantize()), want)
