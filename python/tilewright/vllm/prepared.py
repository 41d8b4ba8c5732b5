# SPDX-License-Identifier: Apache-2.0
"""Layers that vLLM has loaded, on the library's kernels: their weights in the device's order, every kernel prepared."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from vllm.logger import init_logger
from vllm.platforms import current_platform

from .. import codec
from .._errors import TilewrightError, Unsupported
from ..engine import Engine
from ..layer import layer_problems
from ..torch import QuantizedLinear, QuantizedWeight, _cpu, _cuda, set_engine
from ..torch._spec import FORMATS, gemm_text

logger = init_logger("vllm.tilewright")  # under vLLM's name, so that its handlers print it

_said: set[str] = set()
_ready = False


def say_once(key: str, message: str) -> None:
    """Logs a warning, once in a process for each key."""
    if key not in _said:
        _said.add(key)
        logger.warning("%s", message)


# ---- the process


def ready() -> None:
    """Makes the engine of this process, on first use: vLLM starts its workers after it has loaded the plugin. What the
    engine warns of, such as a cache that it cannot write, is in vLLM's log, once."""
    global _ready
    if _ready:
        return
    _ready = True
    if current_platform.is_cpu():
        torch.cpu._init_amx()  # vLLM's attention uses AMX, and leaves it to oneDNN's linear layers to ask Linux for it
    if _cuda._engine is None:
        set_engine(Engine(log=lambda level, text: say_once(text, text) if level in ("error", "warning") else None))


def _cpus() -> set[int]:
    """The CPUs that vLLM has given to this worker's OpenMP threads; empty: it has not said."""
    for name in ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES"):
        text = os.environ.get(name, "")
        listed = re.search(r"proclist=\[([\d,]+)\]", text) or re.fullmatch(r"\{?([\d, ]+)\}?", text)
        if listed:
            return {int(number) for number in re.findall(r"\d+", listed[1])}
    return set()


@contextlib.contextmanager
def all_cpus() -> Iterator[None]:
    """While the device's threads start: vLLM binds the main thread to one CPU, which threads inherit."""
    given, before = _cpus(), os.sched_getaffinity(0)
    if not given:
        yield
        return
    try:
        os.sched_setaffinity(0, given)
    except OSError:  # outside what the system allows
        yield
        return
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


# ---- one layer


def default_activation(weight: str, device: torch.device) -> str | None:
    """What x is quantized to, for weights that the checkpoint pairs with 16-bit x: on a CPU q8_1 for coded weights, since
    products of integers take less time."""
    if device.type != "cpu" or codec.find(weight).is_elements or weight.startswith("e4m3"):
        return None
    return "q8_1"


def why_not(
    weight: str, n: int, k: int, activation: str | None, dtype: torch.dtype, device: torch.device
) -> str | None:
    """Why no fast kernel of the device computes y[m, n] = x[m, k] w[n, k]^T; None if one does."""
    try:
        ready()
        _check(weight, n, k, activation, dtype, device)
    except (TilewrightError, OSError) as error:
        return str(error)
    return None


def _check(weight: str, n: int, k: int, activation: str | None, dtype: torch.dtype, device: torch.device) -> None:
    if dtype not in FORMATS:
        raise Unsupported("dtype", f"{dtype}", "must be float32, float16 or bfloat16")
    text = gemm_text(activation or FORMATS[dtype], weight, FORMATS[dtype], n, k)
    if device.type == "cpu":
        _cpu.wanted(text, dtype)
        return
    gpu = _cuda.device(torch.cuda.current_device() if device.index is None else device.index)
    problem, x_from = _cuda.wanted(text, dtype)
    _cuda.check_fast(layer_problems(problem, gpu.arch, x_from=x_from).main, gpu)


class Prepared(nn.Module):
    """y = x w^T (+ bias) for x [..., k] of one dtype. weight: [n, k] in any format, on the layer's device. bias: what
    the vLLM layer will pass, or None; forward() takes another one, too. order: as of QuantizedLinear.

    Raises Unsupported where the device has no kernel, unless `anyway`: then PyTorch multiplies by the decoded weight.
    After this no launch compiles."""

    def __init__(
        self,
        weight: QuantizedWeight,
        bias: Tensor | None,
        dtype: torch.dtype,
        *,
        activation: str | None,
        accum: str | None = None,
        order: Tensor | None = None,
        anyway: bool = False,
    ) -> None:
        super().__init__()
        ready()
        if not anyway:
            _check(weight.format, weight.rows, weight.cols, activation, dtype, weight.device)
        layers = [
            QuantizedLinear.from_weight(weight, each, activation=activation, accum=accum, order=order, dtype=dtype)
            for each in ([None] if bias is None else [None, bias])
        ]
        self.layers = nn.ModuleList(layers).eval()
        with all_cpus(), torch.no_grad():
            for layer in layers:
                layer.warm(dtype)
                layer(torch.zeros(2, weight.cols, dtype=dtype, device=weight.device))

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        if bias is None:
            return self.layers[0](x)  # type: ignore[no-any-return]
        if len(self.layers) > 1:
            return self.layers[1](x)  # type: ignore[no-any-return]
        return self.layers[0](x) + bias  # type: ignore[no-any-return]

    @property
    def weight(self) -> QuantizedWeight:
        layer: Any = self.layers[0]
        return layer.weight  # type: ignore[no-any-return]
