# SPDX-License-Identifier: Apache-2.0
"""What stands for a layer while a model is exported for TensorRT: a node of Tilewright's plugin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from . import tensorrt
from ._errors import Unsupported, must_be
from .codec import STREAMS, Streams, find
from .engine import Engine
from .problem import Problem
from .torch import QuantizedLinear
from .torch._spec import FORMATS

_NAMES = ("w", "w_scales", "w_global")
_AXIS = 64  # an extent for a convolution's problem, whose extents are those of x when it is launched


def plugin_standin(layer: Any, target: str) -> nn.Module:
    """Of a QuantizedLinear or a quantized convolution."""
    return LinearStandin(layer, target) if isinstance(layer, QuantizedLinear) else ConvStandin(layer, target)


class _PluginStandin(nn.Module):
    """A layer whose forward() is a node of a plugin, for the exporter to follow. Weights are the node's inputs, so that an
    engine stores them once."""

    plugin: str

    def __init__(self, layer: Any, target: str, problem: Problem) -> None:
        super().__init__()
        self.dtype, self.target, self.problem = layer.dtype, target, str(problem)
        self.x_from = FORMATS[layer.dtype] if layer.activation else None
        stored = [stream.cpu().numpy().reshape(-1) for stream in layer.weight.stored()]
        names = [name for name in STREAMS if name in find(layer.weight.format).streams]
        streams: Any = Streams(*(dict(zip(names, stored)).get(name) for name in STREAMS))
        if "pack" in problem.fields:
            streams = problem.pack_weights(streams)
        for name, stream in zip(_NAMES, streams):
            if stream is not None:
                array = np.asarray(stream).reshape(-1)
                bytes_ = array if name == "w_global" else array.view(np.int8)
                self.register_buffer(name, torch.from_numpy(np.array(bytes_)))
        self.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach().to(layer.dtype).cpu())

    def node(self, x: Tensor, shape: Sequence[Any]) -> Tensor:
        if x.dtype != self.dtype:
            raise must_be("x", f"dtype {x.dtype}", f"{self.dtype}, the layer's dtype")
        parts = (getattr(self, name, None) for name in (*_NAMES, "bias"))
        inputs = [x, *(part for part in parts if part is not None)]
        fields: dict[str, Any] = {"problem": self.problem, "target": self.target, "plugin_version": "1"}
        if self.x_from is not None:
            fields["x_from"] = self.x_from
        operator = torch.onnx.ops.symbolic
        name = f"{tensorrt.DOMAIN}::{self.plugin}"
        y: Tensor = operator(name, inputs, fields, dtype=self.dtype, shape=tuple(shape), version=1)
        return y


class LinearStandin(_PluginStandin):
    plugin = "TilewrightGemm"

    def __init__(self, layer: QuantizedLinear, target: str) -> None:
        stated = Problem(layer.problem() + " m=1")
        super().__init__(layer, target, Engine(cache=":memory:").packed(stated, target))
        self.n = layer.out_features
        self.order = None if layer.order is None else nn.Buffer(layer.order.long().cpu())
        self.factors = None if layer.factors is None else nn.Buffer(layer.factors.cpu())

    def forward(self, x: Tensor) -> Tensor:
        if self.factors is not None:
            x = (x * self.factors).to(self.dtype)
        if self.order is not None:
            x = x.index_select(-1, self.order)
        return self.node(x, (*x.shape[:-1], self.n))


class ConvStandin(_PluginStandin):
    """Weights are not packed: which kernels take tiles depends on the extents."""

    plugin = "TilewrightConv"

    def __init__(self, layer: Any, target: str) -> None:
        if layer.quant_act is not None:
            raise Unsupported("quant_act", f"{layer.quant_act}", "is not supported by the export to TensorRT")
        spans = [d * (k - 1) + 1 for d, k in zip(layer.dilation, layer.kernel_size)]
        extents = "x".join(str(max(_AXIS, span)) for span in spans)
        text = f"{layer.problem()} n=1 in={extents} x_layout=ncdhw y_layout=ncdhw"
        super().__init__(layer, target, Problem(text))
        self.channels, self.spans, self.stride, self.rank = layer.out_channels, spans, layer.stride, layer.rank
        pads = [[int(side) for side in pad.split(":")] for pad in layer._pads().split("x")]
        pads = pads * layer.rank if len(pads) == 1 else pads
        self.pads = [pad[0] + pad[-1] for pad in pads]

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != self.rank + 2:
            raise must_be("x", f"{x.dim()} dimensions", f"{self.rank + 2} dimensions: images, channels and axes")
        given = zip(x.shape[2:], self.pads, self.spans, self.stride)
        axes = [(extent + pad - span) // stride + 1 for extent, pad, span, stride in given]
        return self.node(x, (x.shape[0], self.channels, *axes))
