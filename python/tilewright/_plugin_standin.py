# SPDX-License-Identifier: Apache-2.0
"""What stands for a layer while a model is exported for TensorRT: a node of Tilewright's plugin."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from . import tensorrt
from ._errors import must_be
from .codec import STREAMS, Streams, find
from .engine import Engine
from .problem import Problem
from .torch import QuantizedLinear
from .torch._spec import FORMATS

_FIELDS = {"global": "global_scale"}


class PluginStandin(nn.Module):
    """A QuantizedLinear whose forward() is TilewrightGemm, for the exporter to follow. Its weights are packed for the target,
    so that an engine stores them once."""

    def __init__(self, layer: QuantizedLinear, target: str) -> None:
        super().__init__()
        self.dtype, self.n, self.target = layer.dtype, layer.out_features, target
        self.x_from = FORMATS[layer.dtype] if layer.activation else None
        stated = Problem(layer.problem() + " m=1")
        problem = Engine(cache=":memory:").packed(stated, target)
        stored = [stream.cpu().numpy().reshape(-1) for stream in layer.weight.stored()]
        names = [name for name in STREAMS if name in find(layer.weight.format).streams]
        streams: Any = Streams(**{_FIELDS.get(name, name): part for name, part in zip(names, stored)})
        if "pack" in problem.fields:
            streams = problem.pack_weights(streams)
        self.problem = str(problem)
        for name, stream in zip(("w", "w_scales", "w_global"), streams):
            if stream is not None:
                array = np.asarray(stream).reshape(-1)
                self.register_buffer(
                    name, torch.from_numpy(np.array(array if name == "w_global" else array.view(np.int8)))
                )
        self.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach().to(layer.dtype).cpu())
        self.order = None if layer.order is None else nn.Buffer(layer.order.long().cpu())
        self.factors = None if layer.factors is None else nn.Buffer(layer.factors.cpu())

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != self.dtype:
            raise must_be("x", f"dtype {x.dtype}", f"{self.dtype}, the layer's dtype")
        if self.factors is not None:
            x = (x * self.factors).to(self.dtype)
        if self.order is not None:
            x = x.index_select(-1, self.order)
        inputs = [x] + [
            part for name in ("w", "w_scales", "w_global", "bias") if (part := getattr(self, name, None)) is not None
        ]
        fields: dict[str, Any] = {"problem": self.problem, "target": self.target, "plugin_version": "1"}
        if self.x_from is not None:
            fields["x_from"] = self.x_from
        operator = torch.onnx.ops.symbolic
        shape = (*x.shape[:-1], self.n)
        y: Tensor = operator(
            f"{tensorrt.DOMAIN}::TilewrightGemm", inputs, fields, dtype=self.dtype, shape=shape, version=1
        )
        return y
