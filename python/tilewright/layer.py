# SPDX-License-Identifier: Apache-2.0
"""Layer: a gemm or a convolution with constant weights. It decides what a caller of Kernel must decide: whether w is
reordered, which launches quantize x, which memory they share. tilewright.torch's layers launch through it.

    layer = Layer(engine, "gemm x=q8_1 w=q4_0 y=f32 m=1 n=1024 k=4096", Device.cpu(), x_from="f32")
    layer.load(tw.encode(weight, "q4_0"))
    y = layer(x)                                # NumPy arrays, of any number of rows
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from . import _arrays, _c, _errors, _operands, codec
from ._c import lib
from ._handles import Handle
from .device import Device, stream_handle
from .engine import Engine, Kernel
from .problem import Problem, as_problem


class LayerProblems(NamedTuple):
    """What a layer launches, each with one row where rows vary. main: the layer itself, with the target's pack= and
    workspace=; cast: converts x to its format first; fused: replaces both for at most `few` rows, and quantizes x
    itself; repack: reorders w at load. None: not launched."""

    main: Problem
    cast: Problem | None
    fused: Problem | None
    repack: Problem | None
    few: int


def layer_problems(problem: Problem | str, arch: str, *, x_from: str | None = None, pack: bool = True) -> LayerProblems:
    """The problems of a Layer on a target ("sm_90a"), without a GPU: what to prewarm and to tune. x_from: the float
    format of the caller's x; None: x is in its own format. pack: whether w may be reordered; else it stays as the
    problem says. Raises InvalidArgument, Unsupported."""
    found = _c.LayerProblems()
    lib.tw_layer_describe(as_problem(problem), _c.text(arch, "arch"), _x_from(x_from), int(pack), ctypes.byref(found))
    return _problems(found)


def _problems(found: Any) -> LayerProblems:
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
        """Prepares every kernel of layer_problems(). Raises what that and Engine.prepare() raise."""
        handle = ctypes.c_void_p()
        self._given = as_problem(problem)
        lib.tw_layer_create(engine, self._given, device, _x_from(x_from), int(pack), ctypes.byref(handle))
        self._own("layer", handle)
        self.device = device
        found = _c.LayerProblems()
        lib.tw_layer_get_problems(self, ctypes.byref(found))
        self.problems = _problems(found)
        self._weights: Any = None
        self._slots: _operands.Slots | None = None

    @property
    def packed(self) -> bool:
        """Whether launches take w reordered."""
        return bool(lib.tw_layer_packed(self._open()))

    # ---- with arrays

    def load(self, w: Any, stream: Any = None) -> None:
        """Sets the weights: an Encoded, or the streams as the problem's format stores them, as Kernel.launch() takes
        them. Host arrays are copied to a GPU. Must not run while another thread launches."""
        on = stream_handle(stream)
        slots = self._given.slots(True)
        wanted = _only(slots, [slot for slot in slots.all if slot.operand == "w"])
        streams = codec.streams_of(w, slots.formats.get("w"), "w")
        streams = codec.Streams(*(None if part is None else self._on_device(part, "w") for part in streams))
        bound = _operands.bind(wanted, {"w": streams}, None, 0, {}, self.device.ordinal, on)
        try:
            parts = dict(zip((slot.stream for slot in wanted.all), bound.pointers))
            lib.tw_layer_load(self, on, _operand(tuple(parts.get(name, 0) for name in codec.STREAMS)))
        finally:
            bound.close()
        if self.packed:  # copied; a factor of the tensor stays where it is
            self.device.synchronize()
            streams = streams._replace(data=None, scales=None)
        self._weights = streams

    def launch(self, stream: Any = None, *, rows: int | None = None, scratch: Any = None, **arguments: Any) -> None:
        """Kernel.launch() with x in `x_from` and the loaded weights; launches problems.cast first, where needed.
        scratch: device memory of scratch_bytes(rows), if that is not 0."""
        on = stream_handle(stream)
        if self._weights is None:
            raise _errors.InvalidArgument("w", "", "has not been loaded; call load() first")
        wanted, main = self._launched(), self.problems.main
        bound, values = _operands.bind_launch(wanted, main, arguments, rows, self.device.ordinal, on)
        try:
            gemm = main.op == "gemm"
            args: Any = _c.GemmArgs(m=bound.rows) if gemm else _c.ConvArgs()
            for slot, pointer in zip(wanted.all, bound.pointers):
                if slot.operand == "x":
                    setattr(args.x, "global_scale" if slot.stream == "global" else slot.stream, pointer or None)
                else:
                    setattr(args, slot.operand, pointer or None)
            for value, number in zip(wanted.values, values):
                setattr(args, value.name, number.integer if value.is_integer else number.number)
            room = 0 if scratch is None else _scratch(scratch, self.scratch_bytes(self._pixels(bound.rows)))
            launch = lib.tw_layer_launch_gemm if gemm else lib.tw_layer_launch_conv
            launch(self, on, ctypes.byref(args), room or None)
        finally:
            bound.close()

    def __call__(self, x: Any, **arguments: Any) -> Any:
        """Computes y from host arrays: launch() on the default stream, and waits. x [..., k] gives y [..., n] of the
        problem's type (bf16 as uint16); a convolution's y has one axis, in memory order. For a GPU, arrays are copied
        there and back."""
        wanted = self._launched()
        y = next(slot for slot in wanted.all if slot.operand == "y")
        slot = next(slot for slot in wanted.all if slot.name == "x.data")
        view = codec.on_host(x, "x")
        rows = view.nbytes // slot.row_bytes if slot.row_bytes else 1
        out = _arrays.allocate((y.row_bytes or y.bytes) * rows)
        given = {"x": x, **{name: value for name, value in arguments.items() if value is not None}}
        names = {value.name for value in wanted.values} | {wanted.rows_name}
        given = {name: value if name in names else self._on_device(value, name) for name, value in given.items()}
        need = self.scratch_bytes(self._pixels(rows))
        to = out if self.device.is_cpu else self.device.memory(max(len(out), 1))
        self.launch(scratch=self.device.memory(need) if need else None, y=to, **given)
        self.device.synchronize()
        if to is not out:
            out = to.download(len(out))
        shape = (*view.shape[:-1], y.cols) if slot.row_bytes and view.shape else (-1,)
        return _arrays.typed(out, wanted.formats["y"].name, shape)

    def _on_device(self, value: Any, name: str) -> Any:
        """Copies an array on the host to the GPU."""
        if self.device.is_cpu or isinstance(value, int):
            return value
        view = _arrays.view(value, name)
        view.close()
        return self.device.upload(value) if view.device == _arrays.HOST else value

    def _pixels(self, rows: int) -> int:
        """The rows or pixels that scratch_bytes() takes."""
        cast = self.problems.cast
        if self.problems.main.op == "gemm" or cast is None:
            return rows
        x = next(slot for slot in self._launched().all if slot.name == "x.data")
        return x.bytes // cast.slots(True).all[0].line_bytes

    def _launched(self) -> _operands.Slots:
        """What launch() takes: problems.main's buffers, but not the layer's own, and x before its cast."""
        if self._slots is None:
            slots = self.problems.main.slots(True)
            taken = [slot for slot in slots.all if slot.operand not in ("w", "workspace")]
            formats = dict(slots.formats)
            if self.problems.cast is not None:
                cast = self.problems.cast.slots(True)
                floats, coded = cast.all[0], next(slot for slot in cast.all if slot.name == "y.data")

                def of(bytes: int) -> int:
                    return bytes * floats.line_bytes // coded.line_bytes

                taken = [slot for slot in taken if slot.name != "x.scales"]
                for i, slot in enumerate(taken):
                    if slot.name == "x.data":
                        sizes = {name: of(getattr(slot, name)) for name in ("bytes", "row_bytes", "line_bytes")}
                        taken[i] = slot._replace(dtypes=floats.dtypes, item=floats.item, stride="", **sizes)
                formats["x"] = cast.formats["x"]
            self._slots = _only(slots, taken)._replace(formats=formats)
        return self._slots

    # ---- with addresses

    def kernel(self) -> Kernel:
        """The kernel of problems.main."""
        handle = ctypes.c_void_p()
        lib.tw_layer_kernel(self, ctypes.byref(handle))
        return Kernel(handle, self.problems.main, self.device)

    def weight_bytes(self, stream: str) -> int:
        """Bytes of a stream of w ("data", "scales", "global") as launches take it; 0: it has none."""
        count = ctypes.c_size_t()
        lib.tw_layer_weight_bytes(self, codec.STREAMS.index(stream), ctypes.byref(count))
        return count.value

    def scratch_bytes(self, rows: int) -> int:
        """Bytes of scratch that a launch of this many rows (pixels of a conv) needs."""
        return int(lib.tw_layer_scratch_bytes(self._open(), rows))

    def pack(self, w: tuple[int, ...], to: tuple[int, ...], stream: Any = None) -> None:
        """Reorders w on the device. w, to: addresses of data, scales and the factor, 0 where there is none; if the
        factor of `to` is 0, that stream stays where it is."""
        lib.tw_layer_pack(self, stream_handle(stream), _operand(w), _operand(to))


def _only(slots: _operands.Slots, taken: list[_operands.Slot]) -> _operands.Slots:
    return slots._replace(all=tuple(taken), places=_operands.places(taken), packed="")


def _scratch(value: Any, least: int) -> int:
    view = _arrays.view(value, "scratch")
    view.close()
    if view.dtype and view.nbytes < least:
        raise _errors.InvalidArgument("scratch", f"{view.nbytes} bytes", f"must have {least} bytes or more")
    return view.pointer


def _operand(addresses: tuple[int, ...]) -> _c.Operand:
    return _c.Operand(*(address or None for address in addresses))


def _x_from(name: str | None) -> bytes | None:
    return None if name is None else _c.text(name, "x_from")
