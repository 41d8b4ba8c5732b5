# SPDX-License-Identifier: Apache-2.0
"""Observers on the host and, by the driver double, on a GPU; ranges and scales."""

from __future__ import annotations

import array
import ctypes
import json

import numpy as np
import pytest
from conftest import needs_nvrtc
from hypothesis import given
from hypothesis import strategies as st
from tilewright import ClipRange, DeviceObserver, InvalidArgument, Observer, TooLarge, Unsupported, scale_for


def seen(values, **options):
    observer = Observer(**options)
    observer.observe(values)
    return observer


@given(st.integers(0, 2**32 - 1), st.integers(1, 600), st.floats(1e-6, 1e6))
def test_the_histogram_is_numpys(seed, count, spread):
    values = (np.random.default_rng(seed).standard_normal(count) * spread).astype(np.float32)
    values[values == 0] = 1
    o = seen(values, bins=256).channel()
    assert (o.numbers, o.nans, o.min, o.max) == (count, 0, values.min(), values.max())
    width = 2.0**o.exponent
    edges = np.arange(257) * width
    assert np.abs(values).max() < 256 * width
    positive, _ = np.histogram(values[values > 0].astype(np.float64), edges)
    negative, _ = np.histogram(-values[values < 0].astype(np.float64), edges)
    assert np.array_equal(o.positive, positive) and np.array_equal(o.negative, negative)


def test_channels_axes_and_pieces():
    values = np.random.default_rng(0).standard_normal((4, 3, 5)).astype(np.float16)
    observer = Observer(channels=3)
    observer.observe(values, axis=1)
    same = Observer(channels=3)
    same.observe(values, axis=-2)
    assert same.json() == observer.json()
    for c in range(3):
        o = observer.channel(c)
        assert o.numbers == 20 and o.min == values[:, c].min() and o.max == values[:, c].max()
    rows = Observer(channels=15)
    rows.observe(values.reshape(-1)[:7])
    rows.observe(values.reshape(-1)[7:], first=7)
    assert rows.channel(8).max == values.reshape(4, 15)[:, 8].max()
    assert observer.channels == 3 and observer.bins == 2048


def test_nans_infinities_and_what_is_none():
    observer = seen(array.array("f", [1.0, float("nan"), -2.0]), bins=0)
    o = observer.channel()
    assert (o.numbers, o.nans, o.min, o.max, o.positive) == (2, 1, -2.0, 1.0, ())
    before = observer.json()
    with pytest.raises(InvalidArgument, match="inf"):
        observer.observe(np.array([0, np.inf], np.float32))
    assert observer.json() == before
    nothing = Observer(bins=256).channel()
    assert nothing._replace(exponent=0) == (0, 0, None, None, 0, (0,) * 256, (0,) * 256, 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda o: o.observe(np.zeros(3)), "values must be one of float32, float16, bfloat16.*got dtype float64"),
        (lambda o: o.observe(np.zeros((4, 4), np.float32)[:, :2]), "values must .*got rows with gaps"),
        (lambda o: o.observe(np.zeros((4, 4), np.float32)[::-1]), "a negative stride"),
        (lambda o: o.observe(4096), "values must be an array.*got 0x1000"),
        (lambda o: o.observe(np.zeros((4, 3), np.float32), axis=1), "axis must be .*2 channels.*got 1 of shape .4, 3."),
        (lambda o: o.observe(np.zeros((4, 2), np.float32), axis=2), "axis must .*got 2"),
        (lambda o: o.observe(np.zeros(2, np.float32), first=-1), "first must .*got -1"),
        (lambda o: o.channel(2), "channel must be 0 to 1.*got 2"),
        (lambda o: o.channel(-1), "channel must .*got -1"),
        (lambda o: o.merge(Observer()), "channels"),
        (lambda o: o.clip_ranges(), "channel"),
        (lambda o: o.clip_ranges("min"), "min-max"),
        (lambda o: o.clip_ranges(target="int9"), "int9"),
        (lambda o: o.clip_ranges("percentile", percentile=0), "percentile must .*got 0"),
        (lambda o: scale_for((1, 0)), "1"),
        (lambda o: Observer.from_json("{}"), "tilewright_observer"),
        (lambda o: Observer.from_json(o.json()[:-2]), "must be JSON"),
        (lambda o: Observer.from_json(o.json().replace('"momentum":0.9', '"momentum":9')), "momentum"),
        (lambda o: Observer(channels=0), "channels must .*got 0"),
        (lambda o: Observer(bins=100), "bins must .*got 100"),
        (lambda o: Observer(momentum=1.0), "momentum must .*got 1"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(InvalidArgument, match=message):
        call(Observer(channels=2))


def test_limits():
    with pytest.raises(TooLarge, match="channels"):
        Observer(channels=1 << 18, bins=65536)


def test_ranges_and_scales():
    values = np.linspace(-1, 3, 1001, dtype=np.float32)
    observer = seen(values)
    assert observer.clip_ranges() == [ClipRange(-3, 3)]
    assert observer.clip_ranges(asymmetric=True) == [ClipRange(-1, 3)]
    ((low, high),) = observer.clip_ranges("percentile", percentile=90)
    assert low == -high and abs(high - np.quantile(np.abs(values), 0.9)) < 0.01
    for method in ("entropy", "mse"):
        (range_,) = observer.clip_ranges(method, target="int4")
        assert 0 < range_.max <= 3 and range_.min == -range_.max
    with pytest.raises(InvalidArgument, match="batch"):
        observer.clip_ranges("moving-average")
    with pytest.raises(Unsupported, match="asymmetric"):
        observer.clip_ranges(target="e4m3", asymmetric=True)
    assert scale_for(ClipRange(-3, 3)) == (np.float32(3 / 127), 0)
    assert scale_for(ClipRange(-1, 3), "uint8", asymmetric=True) == (np.float32(4 / 255), 64)
    averaged = Observer(momentum=0.5)
    for top in (1.0, 3.0):
        averaged.observe(np.array([-1, top], np.float32))
        averaged.end_batch()
    assert averaged.clip_ranges("moving-average", asymmetric=True) == [ClipRange(-1, 2)]


def test_merge_and_json():
    values = np.random.default_rng(1).standard_normal(999).astype(np.float32)
    whole, a, b = seen(values), seen(values[:500]), seen(values[500:])
    a.merge(b)
    assert a.channel()._replace(batches=0) == whole.channel() and a.channel().batches == 2
    back = Observer.from_json(whole.json())
    assert back.json() == whole.json() and back.channel() == whole.channel()
    assert json.loads(whole.json())
    with whole as closing:
        pass
    with pytest.raises(InvalidArgument, match="null"):
        closing.end_batch()


# ---- on a GPU: what the kernel computes is tested in C++; here, that it gets what was asked for


class ObserveArgs(ctypes.Structure):
    _fields_ = [
        ("step", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("x", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("elements", "first", "inner")),
    ]


class Interface:
    """An array in the double's memory, as CuPy shows its own."""

    def __init__(self, memory, shape, typestr="<f4"):
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": typestr,
            "data": (memory.pointer, False),
            "version": 3,
        }


@pytest.fixture
def launched(double):
    steps = []

    def note(launch):
        a = ctypes.cast(launch.params[0], ctypes.POINTER(ObserveArgs)).contents
        steps.append((a.step, a.x, a.elements, a.first, a.inner, launch.stream))

    double.on_launch(note)
    return steps


@needs_nvrtc
def test_a_device_observer(gpu, engine, launched):
    memory = gpu.memory(4 * 24)
    observer = DeviceObserver(engine, gpu, "float32", channels=3, bins=256)
    values = Interface(memory, (4, 3, 2))
    observer.observe(values, axis=1)
    assert launched == [(step, memory.pointer, 24, 0, 2, None) for step in range(3)]
    launched.clear()
    observer.observe(values, first=6, stream=0)
    assert [step[2:5] for step in launched] == [(24, 6, 1)] * 3
    launched.clear()
    observer.end_batch()
    assert [step[0] for step in launched] == [3]
    result = observer.observed()  # the double has computed nothing: there are elements, but none in a bin
    assert result.channels == 3 and result.bins == 256 and result.channel(2).numbers == 16
    observer.clear()
    for call, message in (
        (lambda: observer.observe(Interface(memory, (4,), "<f2")), "values must be float32.*got dtype float16"),
        (lambda: observer.observe(Interface(memory, (4, 2)), axis=1), "axis must .*got 1"),
        (lambda: observer.observe(np.zeros(3, np.float32)), "values must be memory of a GPU.*got memory of the host"),
        (lambda: observer.observe(memory), "values"),
        (lambda: DeviceObserver(engine, gpu, "float64"), "dtype must .*got float64"),
        (lambda: DeviceObserver(engine, gpu, bins=3), "bins must .*got 3"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            call()
    observer.close()
    with pytest.raises(InvalidArgument, match="null"):
        observer.end_batch()
