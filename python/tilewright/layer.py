# SPDX-License-Identifier: Apache-2.0
"""Layer: a gemm or a convolution whose weights stay. It decides what a caller of Kernel decides by hand: whether w is
reordered, which launches quantize x, which memory they share. tilewright.torch's layers launch through it."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from . import _c, codec
from ._c import lib
from ._handles import Handle
from .device import Device, stream_handle
from .engine import Engine, Kernel
from .problem import Problem, as_problem


class LayerProblems(NamedTuple):
    """What a layer launches, each with one row where rows vary. main: the layer itself, with pack= and workspace= as the
    target's kernels want them; cast: x to its format before it; fused: instead of both for at most `few` rows, quantizes x
    itself; repack: reorders w at load. None: there is none."""

    main: Problem
    cast: Problem | None
    fused: Problem | None
    repack: Problem | None
    few: int


def layer_problems(problem: Problem | str, arch: str, *, x_from: str | None = None, pack: bool = True) -> LayerProblems:
    """The decisions of a Layer for a target ("sm_90a"), without a GPU: what to prewarm and to tune. x_from: the floats
    that x arrives as, None: it arrives in its format. pack: whether w may be reordered; else it stays as the problem
    says. Raises InvalidArgument, Unsupported."""
    found = _c.LayerProblems()
    lib.tw_layer_describe(as_problem(problem), _c.text(arch, "arch"), _x_from(x_from), int(pack), ctypes.byref(found))
    handles = (found.main, found.cast, found.fused, found.repack)
    problems = [Problem._of_handle(ctypes.c_void_p(h)) if h else None for h in handles]
    assert problems[0] is not None
    return LayerProblems(problems[0], *problems[1:], found.few)


class Layer(Handle):
    """Prepared for any number of rows; launched from any thread, safe under stream capture. It must outlive the CUDA
    graphs that captured its launches."""

    def __init__(
        self, engine: Engine, problem: Problem | str, device: Device, *, x_from: str | None = None, pack: bool = True
    ) -> None:
        """Prepares every kernel of layer_problems(). Raises what Engine.prepare() and that raise."""
        handle = ctypes.c_void_p()
        subject = as_problem(problem)
        lib.tw_layer_create(engine, subject, device, _x_from(x_from), int(pack), ctypes.byref(handle))
        self._own("layer", handle)
        self.device = device
        self.problems = layer_problems(subject, device.arch, x_from=x_from, pack=pack)

    @property
    def packed(self) -> bool:
        """Whether launches take w reordered."""
        return bool(lib.tw_layer_packed(self._open()))

    def kernel(self) -> Kernel:
        """Of problems.main."""
        handle = ctypes.c_void_p()
        lib.tw_layer_kernel(self, ctypes.byref(handle))
        return Kernel(handle, self.problems.main, self.device)

    def weight_bytes(self, stream: str) -> int:
        """Bytes of a stream of w ("data", "scales", "global") as launches take it; 0: it has none."""
        count = ctypes.c_size_t()
        lib.tw_layer_weight_bytes(self, codec.STREAMS.index(stream), ctypes.byref(count))
        return count.value

    def scratch_bytes(self, rows: int) -> int:
        """Device memory that a launch of so many rows (pixels of a conv) needs besides."""
        return int(lib.tw_layer_scratch_bytes(self._open(), rows))

    def pack(self, w: tuple[int, ...], to: tuple[int, ...], stream: Any = None) -> None:
        """Reorders w on the device. Addresses of data, scales and the factor, 0 where there is none; a factor of `to` that
        is 0 leaves that stream where it is."""
        lib.tw_layer_pack(self, stream_handle(stream), _operand(w), _operand(to))


def _operand(addresses: tuple[int, ...]) -> _c.Operand:
    return _c.Operand(*(address or None for address in addresses))


def _x_from(name: str | None) -> bytes | None:
    return None if name is None else _c.text(name, "x_from")
