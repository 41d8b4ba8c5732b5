# SPDX-License-Identifier: Apache-2.0
"""Calibration: the range of a tensor's values to keep when it is quantized, with its scale and zero point.
docs/use/calibration.md has the methods and their formulas.

    seen = Observer()
    for batch in batches:
        seen.observe(batch)
        seen.end_batch()
    (range,) = seen.clip_ranges("percentile", percentile=99.9)
    scale, zero_point = scale_for(range, "int8")

DeviceObserver accumulates values in a GPU's memory, with the same bits. Both are used by one thread at a time."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from . import _arrays, _c, _errors
from ._c import lib
from ._handles import Handle
from .device import Device, stream_handle
from .engine import Engine

_FORMATS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


class ClipRange(NamedTuple):
    """Values outside are clipped to it."""

    min: float
    max: float


class Observation(NamedTuple):
    """What was seen of one channel. numbers: values that were not NaN; if 0, min and max are None. negative, positive:
    histograms of magnitudes; bin i counts those in [i w, (i + 1) w) with w = 2^exponent; empty without bins. batches:
    how many ended."""

    numbers: int
    nans: int
    min: float | None
    max: float | None
    exponent: int
    negative: tuple[int, ...]
    positive: tuple[int, ...]
    batches: int


class Observer(Handle):
    """Accumulates values in host memory, for the tensor or for each channel. bins: of each sign's histogram, a power of
    two from 256 to 65536; 0: no histogram, only "min-max" and "moving-average". momentum: of the moving average over
    batches."""

    def __init__(self, channels: int = 1, bins: int = 2048, momentum: float = 0.9) -> None:
        handle = ctypes.c_void_p()
        lib.tw_observer_create(_options(channels, bins, momentum), ctypes.byref(handle))
        self._own("observer", handle)

    def observe(self, values: Any, *, axis: int | None = None, first: int = 0) -> None:
        """values: a dense array of float32, float16 or bfloat16. axis: the channels'; None: the array is one channel,
        or a piece of a matrix with one column for each channel. first: the index of its first element in the whole
        tensor. Raises InvalidArgument; for an infinity it names the place, and the observer is unchanged."""
        view = _dense(values, "values", _arrays.HOST, None)
        try:
            arguments = (_format(view, "values"), view.pointer, view.nbytes, first, _inner(view, axis, self.channels))
            lib.tw_observer_observe(self, *arguments)
        finally:
            view.close()

    def end_batch(self) -> None:
        """Ends a batch; the moving average is over batches."""
        lib.tw_observer_end_batch(self)

    def merge(self, other: Observer) -> None:
        """Adds what the other has seen, as if after this one's own."""
        lib.tw_observer_merge(self, other)

    def json(self) -> str:
        """The state; from_json() restores it bit for bit."""
        text = ctypes.c_void_p()
        lib.tw_observer_json(self, ctypes.byref(text))
        return _c.take(text)

    @classmethod
    def from_json(cls, text: str) -> Observer:
        """Raises InvalidArgument or TooLarge naming what is wrong with the text."""
        handle = ctypes.c_void_p()
        lib.tw_observer_from_json(_c.text(text, "text"), ctypes.byref(handle))
        return cls._of(handle)

    @classmethod
    def _of(cls, handle: ctypes.c_void_p) -> Observer:
        observer = cls.__new__(cls)
        observer._own("observer", handle)
        return observer

    @property
    def channels(self) -> int:
        return int(self._described().channels)

    @property
    def bins(self) -> int:
        return int(self._described().bins)

    def _described(self) -> _c.ObserverOptions:
        options = _c.ObserverOptions()
        lib.tw_observer_describe(self, ctypes.byref(options))
        return options

    def channel(self, index: int = 0) -> Observation:
        """What was seen of one channel."""
        o, bins = _c.Observation(), self.bins
        lib.tw_observer_channel(self, index, ctypes.byref(o))
        signs = (tuple(at[:bins]) if at else (0,) * bins for at in (o.negative, o.positive))
        low, high = (o.min, o.max) if o.count else (None, None)
        negative, positive = signs
        return Observation(o.count, o.nans, low, high, o.exponent, negative, positive, o.batches)

    def clip_ranges(
        self, method: str = "min-max", *, target: str = "int8", percentile: float = 99.9, asymmetric: bool = False
    ) -> list[ClipRange]:
        """The range of each channel. method: "min-max", "moving-average", "percentile", "entropy" or "mse". target:
        what values will be quantized to: "int8", "uint4" ... or "e4m3", "e5m2", "e2m1". Raises InvalidArgument without
        data, Unsupported for an asymmetric range of floats."""
        how = _c.Calibration(
            asymmetric=int(asymmetric),
            method=_c.text(method, "method"),
            target=_c.text(target, "target"),
            percentile=percentile,
        )
        count = self.channels
        ranges = (_c.ClipRange * count)()
        lib.tw_clip_ranges(self, ctypes.byref(how), ranges, count)
        return [ClipRange(r.min, r.max) for r in ranges]


def scale_for(range: ClipRange, target: str = "int8", *, asymmetric: bool = False) -> tuple[float, int]:
    """The scale and the zero point of a range: value = (code - zero_point) * scale."""
    scale, zero_point = ctypes.c_float(), ctypes.c_int32()
    given = _c.ClipRange(*range)
    outputs = (ctypes.byref(scale), ctypes.byref(zero_point))
    lib.tw_scale_for(given, _c.text(target, "target"), int(asymmetric), *outputs)
    return scale.value, zero_point.value


class DeviceObserver(Handle):
    """An Observer of values in a GPU's memory. dtype: the values', "float32", "float16" or "bfloat16". Raises what
    Engine.prepare() raises. The caller must order the streams of its calls."""

    def __init__(
        self,
        engine: Engine,
        device: Device,
        dtype: str = "bfloat16",
        *,
        channels: int = 1,
        bins: int = 2048,
        momentum: float = 0.9,
    ) -> None:
        if dtype not in _FORMATS:
            raise _errors.must_be("dtype", dtype, f"one of {', '.join(_FORMATS)}")
        handle = ctypes.c_void_p()
        options = _options(channels, bins, momentum)
        lib.tw_device_observer_create(engine, device, _FORMATS[dtype].encode(), options, ctypes.byref(handle))
        self._own("device_observer", handle)
        self.device, self.dtype, self.channels = device, dtype, channels

    def observe(self, values: Any, *, axis: int | None = None, first: int = 0, stream: Any = None) -> None:
        """Observer.observe() of a dense array in the GPU's memory. Enqueued; the array must stay until that has run.
        Allowed under stream capture, but elements count once, not with each replay. observed() raises for an
        infinity."""
        on = stream_handle(stream)
        view = _dense(values, "values", _arrays.CUDA, on)
        try:
            if view.dtype != self.dtype:
                raise _errors.must_be("values", f"dtype {view.dtype}", f"{self.dtype}, as the observer's")
            if view.ordinal is not None and view.ordinal != self.device.ordinal:
                what = f"memory of GPU {view.ordinal}"
                raise _errors.must_be("values", what, f"memory of GPU {self.device.ordinal}")
            elements = view.nbytes // view.itemsize
            inner = _inner(view, axis, self.channels)
            lib.tw_device_observer_observe(self, on, view.pointer, elements, first, inner)
        finally:
            view.close()

    def end_batch(self, stream: Any = None) -> None:
        """As Observer.end_batch(); enqueued."""
        lib.tw_device_observer_end_batch(self, stream_handle(stream))

    def observed(self) -> Observer:
        """Waits for the GPU; returns what was seen so far. Raises InvalidArgument naming the first infinite element."""
        handle = ctypes.c_void_p()
        lib.tw_device_observer_observed(self, ctypes.byref(handle))
        return Observer._of(handle)

    def clear(self) -> None:
        """Waits for the GPU and forgets all."""
        lib.tw_device_observer_clear(self)


def _options(channels: int, bins: int, momentum: float) -> Any:
    return ctypes.byref(_c.ObserverOptions(bins=bins, channels=channels, momentum=momentum))


def _dense(values: Any, name: str, device: str, stream: int | None) -> _arrays.View:
    view = _arrays.view(values, name, stream)
    if view.dtype == "":
        raise _errors.must_be(name, hex(values), "an array, which has a type and a size")
    if view.device != device:
        places = {_arrays.HOST: "the host", _arrays.CUDA: "a GPU"}
        raise _errors.must_be(name, f"memory of {places[view.device]}", f"memory of {places[device]}")
    if view.strided:
        raise _errors.must_be(name, "rows with gaps between them", "a contiguous array; copy it")
    return view


def _format(view: _arrays.View, name: str) -> bytes:
    if view.dtype not in _FORMATS:
        raise _errors.must_be(name, f"dtype {view.dtype}", f"one of {', '.join(_FORMATS)}")
    return _FORMATS[view.dtype].encode()


def _inner(view: _arrays.View, axis: int | None, channels: int) -> int:
    """Elements after the channel axis, whose extent is `channels`."""
    if axis is None:
        return 1
    if not -len(view.shape) <= axis < len(view.shape) or view.shape[axis] != channels:
        allowed = f"must be an axis with the observer's {channels} channels"
        raise _errors.InvalidArgument("axis", f"{axis} of shape {view.shape}", allowed)
    inner = 1
    for extent in view.shape[axis % len(view.shape) + 1 :]:
        inner *= extent
    return max(inner, 1)
