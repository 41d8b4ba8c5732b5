# SPDX-License-Identifier: Apache-2.0
"""Post-training quantization of one linear layer, y = x w^T, to 4-bit formats from its inputs: GPTQ, AWQ and rounding
to nearest, with the error of its outputs. docs/use/post-training.md has the algorithms.

    hessian = Hessian(k)
    for x in inputs:
        hessian.add(x)                                      # [rows, k]
    q = gptq(w, hessian, "int4_g128", engine=engine, device=gpu)
    q.weight, q.relative_error

Runs on the host; GPTQ also on a GPU, with the same bits. Functions may be called from any thread."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from . import _arrays, _c, _errors, codec
from ._c import lib
from ._handles import Handle
from .calibration import _dense, _format
from .device import Device
from .engine import Engine


class Hessian(Handle):
    """Statistics of a layer's inputs: the sums of x x^T and of |x|. Takes 4 k^2 bytes. While one thread changes it, no
    other may use it."""

    def __init__(self, k: int) -> None:
        handle = ctypes.c_void_p()
        lib.tw_hessian_create(k, ctypes.byref(handle))
        self._own("hessian", handle)

    def add(self, x: Any, threads: int = 0) -> None:
        """Adds rows [..., k] of float32, float16 or bfloat16 in the host's memory. Hundreds of rows at a time take less
        time than many calls with a few. Raises InvalidArgument, and leaves the sums as they were, for elements that are
        not finite or above 2^60."""
        view = _dense(x, "x", _arrays.HOST, None)
        try:
            cols = view.shape[-1] if view.shape else 1
            rows = view.nbytes // view.itemsize // cols if cols else 0
            lib.tw_hessian_add(self, _format(view, "x"), view.pointer, rows, cols, threads)
        finally:
            view.close()

    def merge(self, other: Hessian) -> None:
        """Adds the sums of other calibration rows."""
        lib.tw_hessian_merge(self, other)

    @property
    def k(self) -> int:
        return self._counts()[0]

    @property
    def rows(self) -> int:
        """Rows that were added."""
        return self._counts()[1]

    def _counts(self) -> tuple[int, int]:
        k, rows = ctypes.c_int64(), ctypes.c_int64()
        lib.tw_hessian_read(self, ctypes.byref(k), ctypes.byref(rows), None, None)
        return k.value, rows.value

    def values(self) -> tuple[Any, Any]:
        """The sums [k, k] of x x^T and [k] of |x|: NumPy arrays of float64, or array.array without NumPy. from_values()
        takes them."""
        k = self.k
        sums, magnitudes = (ctypes.c_double * (k * k))(), (ctypes.c_double * k)()
        lib.tw_hessian_read(self, None, None, sums, magnitudes)
        numpy = _arrays.numpy_or_none()
        if numpy is None:
            import array

            return array.array("d", sums), array.array("d", magnitudes)
        return numpy.frombuffer(sums).reshape(k, k), numpy.frombuffer(magnitudes)

    @classmethod
    def from_values(cls, rows: int, values: Any, magnitudes: Any) -> Hessian:
        """From rows and what values() returned. Only values' lower triangle is read."""
        views = [_dense(v, name, _arrays.HOST, None) for v, name in ((values, "values"), (magnitudes, "magnitudes"))]
        k = views[1].nbytes // 8
        for view, name, count in zip(views, ("values", "magnitudes"), (k * k, k)):
            if view.dtype != "float64" or view.nbytes != 8 * count:
                what = f"{view.nbytes // view.itemsize} of {view.dtype}"
                raise _errors.must_be(name, what, f"{count} of float64, for {k} magnitudes")
        handle = ctypes.c_void_p()
        lib.tw_hessian_from(k, rows, views[0].pointer, views[1].pointer, ctypes.byref(handle))
        hessian = cls.__new__(cls)
        hessian._own("hessian", handle)
        return hessian


class Quantized(NamedTuple):
    """weight: the codes and scales. group: elements under one scale. values: the decoded weight, [n, k] of float32, its
    columns in w's order. order: not None after act-order; column i of the weight is column order[i] of w. input_scales:
    AWQ's, [k]; the preceding layer must return x / input_scales. error: tr((w - q) H (w - q)^T); energy: tr(w H w^T).
    damping: what GPTQ used. dead_columns: GPTQ's inputs that were always 0. exponent: AWQ's."""

    weight: codec.Encoded
    group: int
    values: Any
    order: Any
    input_scales: Any
    error: float
    energy: float
    damping: float
    exponent: float
    dead_columns: int

    @property
    def relative_error(self) -> float:
        """error / energy; 0 if both are 0."""
        return 0.0 if self.error == 0 else self.error / self.energy


def round_to_nearest(
    w: Any,
    hessian: Hessian,
    format: str,
    *,
    group: int = 0,
    encoder: str | None = None,
    threads: int = 0,
    name: str = "layer",
) -> Quantized:
    """Rounds each weight to the nearest of its group's values. w: [n, k] of floats on the host. format: "int4_row",
    "int4_g128", "uint4_g64" ... group: elements of a row under one scale: 0 for the format's own, -1 for the row, or a
    multiple of the format's. encoder: one of the format's. threads: 0 is all cores. name: the layer's, in errors.
    Raises InvalidArgument; Unsupported for weights too large for their scale."""
    return _quantized(lib.tw_round_to_nearest, w, hessian, format, group, encoder, threads, name)


def gptq(
    w: Any,
    hessian: Hessian,
    format: str,
    *,
    group: int = 0,
    encoder: str | None = None,
    act_order: bool = False,
    static_groups: bool = False,
    damping: float = 0.01,
    engine: Engine | None = None,
    device: Device | None = None,
    threads: int = 0,
    name: str = "layer",
) -> Quantized:
    """GPTQ: rounds columns one after the other; later columns compensate for each error. act_order: columns with the
    largest inputs first. static_groups: chooses all scales beforehand, from w itself. damping: a share of the mean of
    the Hessian's diagonal, 0 to 1; more is tried if it is singular. device: computes there, with the engine's kernels
    (None: a new engine) and the same bits; gptq_device_bytes() says how much memory that takes. Other arguments and
    errors are round_to_nearest()'s; on a device, errors also Engine.prepare()'s."""
    options = _c.GptqOptions(act_order=int(act_order), static_groups=int(static_groups), damping=damping)
    own = Engine() if device is not None and engine is None else None
    try:
        return _quantized(
            lambda layer, sums, target, out: lib.tw_gptq(
                engine or own, device, layer, sums, target, ctypes.byref(options), out
            ),
            w,
            hessian,
            format,
            group,
            encoder,
            threads,
            name,
        )
    finally:
        if own is not None:
            own.close()


def gptq_device_bytes(n: int, k: int, group: int = 0) -> int:
    """Bytes of a GPU's memory that gptq() allocates there, or somewhat more."""
    return int(lib.tw_gptq_device_bytes(n, k, group))


def awq(
    w: Any,
    hessian: Hessian,
    format: str,
    *,
    group: int = 0,
    encoder: str | None = None,
    grid: int = 20,
    clip: bool = False,
    search_rows: int = 1024,
    threads: int = 0,
    name: str = "layer",
) -> Quantized:
    """AWQ: scales give large input channels finer steps; the best of `grid` exponents is taken. clip: then lowers group
    scales where that lowers the error. search_rows: rows of w that the search uses; 0: all. Other arguments and errors
    are round_to_nearest()'s."""
    options = _c.AwqOptions(grid=grid, clip=int(clip), search_rows=search_rows)
    call = lambda layer, sums, target, out: lib.tw_awq(layer, sums, target, ctypes.byref(options), out)  # noqa: E731
    return _quantized(call, w, hessian, format, group, encoder, threads, name)


def _quantized(
    call: Any, w: Any, hessian: Hessian, format: str, group: int, encoder: str | None, threads: int, name: str
) -> Quantized:
    f = codec.find(format)
    if encoder is not None and encoder not in f.encoders:
        raise _errors.must_be("encoder", encoder, f"one of {', '.join(f.encoders)}")
    view = _arrays.view(w, "w")
    shape = view.shape
    view.close()
    if len(shape) != 2:
        raise _errors.InvalidArgument("w", f"shape {shape}", "must have two dimensions, [n, k]")
    _, _, values, keep = codec._floats(w, "w")
    layer = _c.LinearWeight(w=values, n=shape[0], k=shape[1], name=_c.text(name, "name"))
    target = _c.QuantizeTarget(
        encoder=0 if encoder is None else f.encoders.index(encoder),
        format=_c.text(format, "format"),
        group=group,
        threads=threads,
    )
    handle = ctypes.c_void_p()
    call(ctypes.byref(layer), hessian, ctypes.byref(target), ctypes.byref(handle))
    del keep
    try:
        info = _c.QuantizedInfo()
        lib.tw_quantized_describe(handle, ctypes.byref(info))
        weight = codec.empty(f, info.n, info.k)
        for stream in ("data", "scales"):
            to = getattr(weight, stream)
            if to is not None:
                ctypes.memmove(
                    _arrays.view(to, stream).pointer, getattr(info, stream), getattr(info, f"{stream}_bytes")
                )
        return Quantized(
            weight,
            info.group,
            _copied(info.values, "f", (info.n, info.k)),
            _copied(info.order, "i", (info.k,)),
            _copied(info.input_scales, "f", (info.k,)),
            info.error,
            info.energy,
            info.damping,
            info.exponent,
            info.dead_columns,
        )
    finally:
        lib.tw_quantized_release(handle)


def _copied(at: int | None, code: str, shape: tuple[int, ...]) -> Any:
    """4-byte numbers as a NumPy array, or without NumPy an array.array; None for null."""
    if at is None:
        return None
    count = 1
    for extent in shape:
        count *= extent
    content = ctypes.string_at(at, 4 * count)
    numpy = _arrays.numpy_or_none()
    if numpy is None:
        import array

        return array.array(code, content)
    return numpy.frombuffer(bytearray(content), f"<{code}4").reshape(shape)
