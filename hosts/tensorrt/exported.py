# SPDX-License-Identifier: Apache-2.0
"""linear|conv|w4a8 PATH: writes a model of quantized PyTorch layers with nodes of the plugins, for judge.py: two of
tilewright.onnx.export(plugin=True), and one of tilewright.compat.w4a8_plugin."""

import sys

import onnx
import tilewright.onnx
import tilewright.torch as twt
import torch
from onnx import TensorProto, helper
from tilewright.compat import w4a8_plugin
from torch import nn

TARGET = "sm_90a"


def export(model, x, most, path):
    shapes = ({0: torch.export.Dim("rows", min=1, max=most)},)
    tilewright.onnx.export(model, (x.bfloat16(),), path, plugin=True, target=TARGET, dynamic_shapes=shapes)


def linear(path):
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.Linear(512, 128)).bfloat16().eval()
    for place, options in (
        (0, {"weight": "nvfp4", "activation": "e4m3_row"}),
        (2, {"weight": "q4_0"}),
        (3, {"weight": "int8_row", "activation": "int8_row"}),
    ):
        model[place] = twt.QuantizedLinear.from_linear(model[place], **options)
    export(model, torch.randn(4, 256), 4096, path)


def conv(path):
    model = nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 32, 3, stride=2)).bfloat16().eval()
    for place, weight in ((0, "int8_row"), (2, "bf16")):
        model[place] = twt.QuantizedConv2d.from_conv(model[place], weight)
    export(model, torch.randn(2, 32, 16, 16), 64, path)


def w4a8(path):
    layer = w4a8_plugin.W4A8Linear.from_linear(nn.Linear(256, 128, bias=False))
    node, constants = w4a8_plugin.plugin_node(layer, "input", "output", target=TARGET)
    values = [helper.make_tensor_value_info(name, TensorProto.BFLOAT16, ["m", width]) for name, width in (("input", 256), ("output", 128))]
    graph = helper.make_graph([node], "graph", values[:1], values[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("tilewright", 1)]), path)


torch.manual_seed(0)
{"linear": linear, "conv": conv, "w4a8": w4a8}[sys.argv[1]](sys.argv[2])
