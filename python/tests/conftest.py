# SPDX-License-Identifier: Apache-2.0
"""What the tests share: the driver double, whose memory is the host's and whose launches run a function of Python's,
and an engine with one cache for all tests. $TILEWRIGHT_LIBRARY names the library, $TILEWRIGHT_FAKE_CUDA the double,
$TILEWRIGHT_NVRTC libnvrtc; tests that compile are skipped without the last."""

from __future__ import annotations

import ctypes
import os
import pathlib

import hypothesis
import numpy as np
import pytest

# Other processes may hold a machine up, and nothing is left in the checkout.
hypothesis.settings.register_profile("tilewright", deadline=None, database=None)
hypothesis.settings.load_profile("tilewright")

SOURCE = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = SOURCE / "tests" / "golden"
PACKAGE = SOURCE / "python"


def _first(name, *places):
    given = os.environ.get(name)
    if given:
        return given
    return next((str(p) for p in places if os.path.exists(p)), None)


LIBRARY = _first("TILEWRIGHT_LIBRARY", SOURCE / "build" / "libtilewright_c.so")
FAKE_CUDA = _first("TILEWRIGHT_FAKE_CUDA", SOURCE / "build" / "tests" / "fake_libcuda.so")
NVRTC = _first("TILEWRIGHT_NVRTC", *(SOURCE / "build" / "nvrtc").glob("**/libnvrtc.so.1[2-9]"))
CLI = _first("TILEWRIGHT_CLI", SOURCE / "build" / "bin" / "tilewright")

for _name in [name for name in os.environ if name.startswith("TILEWRIGHT_")]:
    del os.environ[_name]  # a user's settings are not the tests'
if LIBRARY:
    os.environ["TILEWRIGHT_LIBRARY"] = LIBRARY

needs_nvrtc = pytest.mark.skipif(NVRTC is None, reason="compiles: needs TILEWRIGHT_NVRTC")


class FakeLaunch(ctypes.Structure):
    _fields_ = [
        ("image", ctypes.c_void_p),
        ("image_bytes", ctypes.c_size_t),
        ("entry", ctypes.c_char_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("cluster", ctypes.c_uint),
        ("shared_bytes", ctypes.c_uint),
        ("overlap", ctypes.c_bool),
        ("params", ctypes.POINTER(ctypes.c_void_p)),
        ("param_count", ctypes.c_size_t),
        ("param_bytes", ctypes.POINTER(ctypes.c_size_t)),
        ("device", ctypes.c_int),
        ("stream", ctypes.c_void_p),
    ]


class GemmArgs(ctypes.Structure):
    """tilewright::GemmArgs, as a kernel gets it."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "xs", "xg", "w", "ws", "wg", "y", "bias")),
        *((name, ctypes.c_int64) for name in ("m", "ldx", "ldy")),
        ("c", ctypes.c_void_p),
        ("ldc", ctypes.c_int64),
        ("workspace", ctypes.c_void_p),
        ("alpha", ctypes.c_float),
        ("beta", ctypes.c_float),
        ("group_rows", ctypes.c_void_p),
    ]


class ConvArgs(ctypes.Structure):
    """tilewright::ConvArgs, as a kernel gets it."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "xs", "xg", "w", "ws", "wg", "y", "bias", "residual", "cache")),
        ("workspace", ctypes.c_void_p),
        ("alpha", ctypes.c_float),
        ("beta", ctypes.c_float),
        ("amax", ctypes.c_void_p),
    ]


class Double:
    """The driver double."""

    def __init__(self):
        self.library = ctypes.CDLL(FAKE_CUDA)
        self.library.fake_cuda_calls.restype = ctypes.c_long
        self.library.fake_cuda_live.restype = ctypes.c_long
        self.library.fake_cuda_violation_count.restype = ctypes.c_size_t
        self.library.fake_cuda_violation.restype = ctypes.c_char_p
        self.failed = None

    def on_launch(self, function):
        """Runs function(launch) at every launch; what it raises is raised at the test's end."""

        def handle(launch, user):
            try:
                function(launch.contents)
            except BaseException as error:
                self.failed = self.failed or error

        self._handler = ctypes.CFUNCTYPE(None, ctypes.POINTER(FakeLaunch), ctypes.c_void_p)(handle)
        self.library.fake_cuda_set_launch_handler(self._handler, None)

    def launches(self):
        return self.library.fake_cuda_calls(b"cuLaunchKernelEx")

    def live(self, kind):
        return self.library.fake_cuda_live(kind.encode())

    def violations(self):
        return [self.library.fake_cuda_violation(i) for i in range(self.library.fake_cuda_violation_count())]


@pytest.fixture
def double():
    if FAKE_CUDA is None:
        pytest.skip("needs TILEWRIGHT_FAKE_CUDA")
    d = Double()
    yield d
    d.library.fake_cuda_set_launch_handler(None, None)
    if d.failed is not None:
        raise d.failed
    assert d.violations() == []


@pytest.fixture
def gpu(double):
    import tilewright as tw

    with tw.Device(0, driver=FAKE_CUDA) as device:
        yield device


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    folder.chmod(0o700)
    return str(folder / "cache.db")


@pytest.fixture
def engine(cache):
    import tilewright as tw

    if FAKE_CUDA is None:
        pytest.skip("needs TILEWRIGHT_FAKE_CUDA")
    options = {"cache": cache, "driver": FAKE_CUDA, "jobs": 2}
    if NVRTC:
        options["nvrtc"] = NVRTC
    with tw.Engine(**options) as e:
        yield e


def read_golden(path):
    data = path.read_bytes()
    rows, cols = np.frombuffer(data, "<u4", 2)
    at = 8
    values = np.frombuffer(data, "<f4", rows * cols, at).reshape(rows, cols)
    at += values.nbytes
    (count,) = np.frombuffer(data, "<u4", 1, at)
    at += 4
    streams = []
    for _ in range(count):
        (size,) = np.frombuffer(data, "<u4", 1, at)
        streams.append(np.frombuffer(data, "u1", size, at + 4))
        at += 4 + int(size)
    decoded = np.frombuffer(data, "<f4", rows * cols, at).reshape(rows, cols)
    return values, streams, decoded
