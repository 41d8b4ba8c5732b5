# SPDX-License-Identifier: Apache-2.0
"""From a model to tuned, shipped and prepared kernels.

    problems = record(model, x)                      # what the model asks for; needs no GPU
    prewarm(model, x, archs=["sm_90a"])              # compiles it; needs no GPU
    print(tune(model, x, budget_seconds=600))        # measures it on this GPU, and stores what is fastest
    warm(model, x)                                   # prepares every kernel: before a CUDA graph or torch.compile

A sample input is what the model's forward() takes: tensors on any device, numbers, or tuples, lists and dicts of them.
If the model computes the same layers for all values, the values do not matter and are not used."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from .._errors import Unsupported, must_be
from ..device import Device
from ..engine import Progress
from ..layer import layer_problems
from ..problem import Problem
from ..reports import PrewarmReport, TuneReport
from . import _cpu, _cuda
from ._spec import channels_last, conv_spec, spec
from .convolution import _QuantizedConv
from .modules import QuantizedLinear


# Operations whose launches have no rows of their own.
_FIXED = ("pack", "conv")
# A target whose layers are launched as they are stated: without tiles and workspace.
_PLAIN = "sm_75"


class _Asked(NamedTuple):
    """One call of linear or conv: the problem (a gemm's with w as stored), x's dtype, and rows or pixels. For conv also
    x's shape, whether its channels are innermost, and its device."""

    text: str
    dtype: torch.dtype
    rows: int
    shape: tuple[int, ...] = ()
    last: bool = False
    device: torch.device | None = None


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every call of linear and conv, however it is made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.asked: dict[_Asked, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.tilewright.linear.default:
            x, _, _, problem = args
            as_stored = spec(problem).text.replace(" pack=tiles", "").replace(" pack=panels", "")
            self.asked[_Asked(as_stored, x.dtype, math.prod(x.shape[:-1]))] = None
        elif func is torch.ops.tilewright.conv.default:
            x, problem = args[0], args[-1]
            shape, text = tuple(x.shape), conv_spec(problem).text
            pixels = shape[0] * math.prod(shape[2:])
            self.asked[_Asked(text, x.dtype, pixels, shape, channels_last(x), x.device)] = None
        return func(*args, **(kwargs or {}))


def _asked(model: nn.Module, inputs: Sequence[Any]) -> list[_Asked]:
    recorder = _Recorder()
    model = getattr(model, "_orig_mod", model)  # of torch.compile, which would compile for fake tensors
    with torch.no_grad():
        try:
            with FakeTensorMode(allow_non_fake_inputs=True) as fake:
                given = tree_map_only(Tensor, fake.from_tensor, tuple(inputs))
                with recorder:
                    model(*given)
        except (DataDependentOutputException, DynamicOutputShapeException):  # it has to see values
            recorder.asked.clear()
            with recorder:
                model(*inputs)
    return [asked for asked in recorder.asked if asked.rows]


def record(model: nn.Module, *sample_inputs: Any, arch: str | None = None) -> list[Problem]:
    """The problems of the model for these inputs, each once, in order: its gemms and convolutions, and the casts of
    their activations. arch: a target ("sm_90a"), for exactly what it launches, tiles and workspace included; None: as
    the layers state them. Runs the model on fake tensors, or on the given ones if its control flow depends on
    values."""
    out: dict[Problem, None] = {}
    for asked in _asked(model, sample_inputs):
        for problem in _problems(asked, arch):
            out[problem] = None
    return list(out)


def _problems(asked: _Asked, arch: str | None) -> list[Problem]:
    if asked.shape:
        one, x_from = _cuda.wanted_of_conv(asked.text, asked.dtype, asked.shape, asked.last)
    else:
        one, x_from = _cuda.wanted(asked.text, asked.dtype)
    pack = arch is not None and not asked.shape
    found = layer_problems(one, _PLAIN if arch is None else arch, x_from=x_from, pack=pack)
    main = found.main if asked.shape else found.main.with_rows(asked.rows)
    cast = None if found.cast is None else found.cast.with_rows(asked.rows)
    fused = None if arch is None else found.fused  # of few rows, whatever was recorded
    return [problem for problem in (found.repack, main, cast, fused) if problem is not None]


class Tuned(NamedTuple):
    """One problem's result. error: what was raised instead."""

    problem: Problem
    report: TuneReport | None
    error: str


class TuneSummary(NamedTuple):
    """What tune() did: one entry for each problem; `left`: those not reached within the budget."""

    device: str
    entries: tuple[Tuned, ...]
    left: tuple[Problem, ...]
    seconds: float

    def __str__(self) -> str:
        tuned = sum(entry.report is not None for entry in self.entries)
        lines = [f"{self.device}: {tuned} problems tuned in {self.seconds:.0f} s"]
        if not self.entries and not self.left:
            lines.append("  the model asked for none: it has no quantized layer, or these inputs reach none")
        for entry in self.entries:
            lines.append(f"  {entry.problem}")
            r = entry.report
            if r is None:
                lines.append(f"    not tuned: {entry.error}")
                continue
            kept = ", too noisy to be stored" if r.noisy else ""
            lines.append(
                f"    {r.microseconds:.1f} us, {r.measured} measured, stopped by {r.stopped}{kept}: {r.candidate}"
            )
        lines += [f"  not reached within the budget: {problem}" for problem in self.left]
        return "\n".join(lines)


def tune(
    model: nn.Module,
    sample_inputs: Any,
    *,
    device: int | str | torch.device | None = None,
    budget_seconds: float = 300,
    progress: Progress = None,
    **policy: Any,
) -> TuneSummary:
    """Measures candidates for every problem of the model, for all numbers of rows, and stores the fastest in the
    engine's cache, where operators find them at their next preparation. sample_inputs: a tensor, or a tuple of
    forward()'s arguments. device: of CUDA, or "cpu"; None: CUDA's current one, else the CPU. On a CPU only linear
    layers that have kernels are tuned, at these inputs' numbers of rows. budget_seconds: for all problems; what one
    does not use goes to the others. progress: a function of (stage, done, total), or True for a bar. policy: further
    arguments of Engine.tune(). Raises InvalidArgument for another device, Unsupported if CUDA is missing; the summary
    lists what failed."""
    on_cpu = not torch.cuda.is_available() if device is None else not isinstance(device, int) and _is_cpu(device)
    entries: list[Tuned] = []
    if on_cpu:
        gpu = _cpu.device()
        distinct, without = _on_cpu(_asked(model, _arguments(sample_inputs)), gpu)
        entries += (Tuned(problem, None, why) for problem, why in without.items())
    else:
        gpu = _cuda.device(_cuda_index(device))
        problems = record(model, *_arguments(sample_inputs), arch=gpu.arch)
        # One choice for all numbers of rows serves all that were recorded.
        distinct = list(
            {problem if problem.op in _FIXED else problem.with_rows(1): problem for problem in problems}.values()
        )
    begin = time.monotonic()
    for i, problem in enumerate(distinct):
        rest = budget_seconds - (time.monotonic() - begin)
        if rest <= 0:
            return TuneSummary(gpu.name, tuple(entries), tuple(distinct[i:]), time.monotonic() - begin)
        share = rest / (len(distinct) - i)
        given: dict[str, Any] = {"all_rows": not on_cpu and problem.op not in _FIXED, **policy}
        try:
            report = _cuda.engine().tune(problem, gpu, budget_seconds=share, progress=progress, **given)
            entries.append(Tuned(problem, report, ""))
        except Unsupported as error:
            entries.append(Tuned(problem, None, str(error)))
    _cuda.forget_plans()  # prepared before these choices
    return TuneSummary(gpu.name, tuple(entries), (), time.monotonic() - begin)


def _on_cpu(asked: Sequence[_Asked], target: Device | str) -> tuple[list[Problem], dict[Problem, str]]:
    """What linear layers launch on a CPU, and why others launch nothing."""
    found: dict[Problem, None] = {}
    without: dict[Problem, str] = {}
    for one in asked:
        if one.shape:
            without[Problem(conv_spec(one.text).problem(one.shape[0], one.shape[2:], one.last))] = (
                "operation=conv has no kernels for layers on CPUs; PyTorch computes it"
            )
            continue
        try:
            found[_cpu.wanted(one.text, one.dtype, target).with_rows(one.rows)] = None
        except Unsupported as error:
            without[Problem(f"{one.text} m={one.rows}")] = str(error)
    return list(found), without


def prewarm(
    model: nn.Module,
    sample_inputs: Any,
    archs: Sequence[str] = ("sm_90a",),
    *,
    progress: Progress = None,
    **policy: Any,
) -> PrewarmReport:
    """Compiles what the model will need on those targets into the engine's cache, for all numbers of rows, without a
    GPU. For a CPU ("x86-64-v3") these are linear layers' only; layers without kernels are among the failures. policy:
    further arguments of Engine.prewarm(). Raises LibraryMissing without a compiler."""
    if isinstance(archs, str):
        archs = [archs]
    arguments = _arguments(sample_inputs)
    asked = _asked(model, arguments)
    reports = []
    without: list[str] = []
    for arch in archs:
        if not arch.startswith("sm_"):
            problems, refused = _on_cpu(asked, arch)
            without += (f"{arch}: {problem}: {why}" for problem, why in refused.items())
            reports.append(_cuda.engine().prewarm(problems, [arch], progress=progress, **policy))
            continue
        problems = list({problem: None for one in asked for problem in _problems(one, arch)})
        reports.append(_cuda.engine().prewarm(problems, [arch], progress=progress, **policy))
    return PrewarmReport(
        compiled=sum(r.compiled for r in reports),
        skipped=sum(r.skipped for r in reports),
        failed=sum(r.failed for r in reports) + len(without),
        evicted=sum(r.evicted for r in reports),
        seconds=sum(r.seconds for r in reports),
        failures=(*without, *(line for r in reports for line in r.failures)),
    )


def warm(model: nn.Module, *sample_inputs: Any, dtype: torch.dtype | None = None) -> int:
    """Prepares every kernel of the model's layers on a GPU. Call it before torch.compile or CUDA graph capture, during
    which nothing may be compiled. Linear layers are prepared for any number of rows, and their weights arranged;
    convolutions for the shapes that these inputs (as for record()) lead to: call it for each shape. dtype: of linear
    layers' x, None: each layer's own. Returns how many layers were on a GPU. Under torch.compile layers take their
    weights as warm() has left them. Linear layers on the CPU are prepared, too.

    All captures on a GPU share one workspace: replay two graphs one after the other, not at the same time."""
    kinds = (QuantizedLinear, _QuantizedConv)
    layers = [m for m in model.modules() if isinstance(m, kinds) and m.weight.device.type == "cuda"]
    for layer in layers:
        if isinstance(layer, QuantizedLinear):
            layer.warm(dtype)
    for module in model.modules():
        if isinstance(module, QuantizedLinear) and module.weight.device.type == "cpu":
            module.cpu_kernel(dtype=dtype)
    for asked in _asked(model, sample_inputs) if sample_inputs else ():
        if asked.shape and asked.device is not None and asked.device.type == "cuda":
            index = torch.cuda.current_device() if asked.device.index is None else asked.device.index
            _cuda.conv_plan(asked.text, index, asked.dtype, asked.shape, asked.last)
    return len(layers)


def _arguments(sample_inputs: Any) -> tuple[Any, ...]:
    return tuple(sample_inputs) if isinstance(sample_inputs, (tuple, list)) else (sample_inputs,)


def _is_cpu(device: torch.device | str) -> bool:
    return torch.device(device).type == "cpu"


def _cuda_index(device: int | str | torch.device | None) -> int:
    if not torch.cuda.is_available():
        raise Unsupported("device", str(device), "must be cpu: PyTorch sees no GPU (prewarm() needs none)")
    if device is None:
        return torch.cuda.current_device()
    if isinstance(device, int):
        return device
    given = torch.device(device)
    if given.type != "cuda":
        raise must_be("device", given, "a CUDA device, or cpu")
    return torch.cuda.current_device() if given.index is None else given.index
