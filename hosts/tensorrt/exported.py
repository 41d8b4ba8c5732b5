# SPDX-License-Identifier: Apache-2.0
"""linear|conv PATH: exports a PyTorch model of quantized layers with tilewright.onnx.export(plugin=True), for judge.py."""

import sys

import tilewright.onnx
import tilewright.torch as twt
import torch
from torch import nn

what, path = sys.argv[1:]
torch.manual_seed(0)
if what == "linear":
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.Linear(512, 128)).bfloat16().eval()
    for place, options in (
        (0, {"weight": "nvfp4", "activation": "e4m3_row"}),
        (2, {"weight": "q4_0"}),
        (3, {"weight": "int8_row", "activation": "int8_row"}),
    ):
        model[place] = twt.QuantizedLinear.from_linear(model[place], **options)
    x, shapes = torch.randn(4, 256, dtype=torch.bfloat16), {0: torch.export.Dim("m", min=1, max=4096)}
else:
    model = nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 32, 3, stride=2)).bfloat16().eval()
    for place, weight in ((0, "int8_row"), (2, "bf16")):
        model[place] = twt.QuantizedConv2d.from_conv(model[place], weight)
    x, shapes = torch.randn(2, 32, 16, 16, dtype=torch.bfloat16), {0: torch.export.Dim("n", min=1, max=64)}
tilewright.onnx.export(model, (x,), path, plugin=True, target="sm_90a", dynamic_shapes=(shapes,))
