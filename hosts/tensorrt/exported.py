# SPDX-License-Identifier: Apache-2.0
"""PATH: exports a PyTorch model of quantized layers with tilewright.onnx.export(plugin=True), for judge.py."""

import sys

import tilewright.onnx
import tilewright.torch as twt
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.Linear(512, 128)).to(torch.bfloat16).eval()
for place, options in ((0, {"weight": "nvfp4", "activation": "e4m3_row"}), (2, {"weight": "q4_0"}), (3, {"weight": "int8_row", "activation": "int8_row"})):
    model[place] = twt.QuantizedLinear.from_linear(model[place], **options)
rows = torch.export.Dim("m", min=1, max=4096)
x = torch.randn(4, 256, dtype=torch.bfloat16)
tilewright.onnx.export(model, (x,), sys.argv[1], plugin=True, target="sm_90a", dynamic_shapes=({0: rows},))
