# SPDX-License-Identifier: Apache-2.0
"""Runs ONNX Runtime's products of quantized weights with Tilewright's kernels, on CPUs.

    options = tilewright.onnxruntime.session_options()
    session = onnxruntime.InferenceSession("model.onnx", options)

Operations that Tilewright does not compute stay with ONNX Runtime. Needs the package onnxruntime, 1.24 or later."""

from __future__ import annotations

import os
import threading
from typing import Any

import onnxruntime

from . import _c
from ._errors import LibraryMissing

__all__ = ["PROVIDER", "register", "session_options"]

PROVIDER = "TilewrightExecutionProvider"
_lock = threading.Lock()


def library_path() -> str:
    """The path of libtilewright_ort: beside libtilewright_c."""
    return os.path.join(os.path.dirname(os.path.abspath(_c.library_path())), "libtilewright_ort.so")


def register() -> list[Any]:
    """Registers the execution provider with this process's ONNX Runtime, once, and returns its devices: OrtEpDevice
    objects for SessionOptions.add_provider_for_devices(). Raises LibraryMissing."""
    with _lock:
        try:
            if not _devices():
                path = library_path()
                if not os.path.exists(path):
                    raise LibraryMissing(
                        "libtilewright_ort", path, "does not exist; install the wheel, or build the target tilewright_ort"
                    )
                onnxruntime.register_execution_provider_library("tilewright", path)
            return _devices()
        except AttributeError:  # before plugin execution providers
            version = onnxruntime.__version__
        except onnxruntime.capi.onnxruntime_pybind11_state.Fail as error:
            if "needs ONNX Runtime" not in str(error):
                raise
            version = onnxruntime.__version__
    raise LibraryMissing("onnxruntime", version, "is too old: version 1.24 or a later one is needed; upgrade it")


def session_options(options: Any = None, *, operations: str | None = None, trust_context: bool = False) -> Any:
    """`options`, an onnxruntime.SessionOptions, or new ones, with the provider added. operations: "all", or the names
    of the operations to compute, separated by commas: MatMulNBits, MatMulInteger, QLinearMatMul, DequantizeLinear (with
    the MatMul or Gemm behind it). None: all but those that ONNX Runtime computes faster on this CPU. trust_context: use
    the kernels in an EPContext model, which are code that runs in this process."""
    if options is None:
        options = onnxruntime.SessionOptions()
    provider = {"trust_context": "1"} if trust_context else {}
    if operations is not None:
        provider["operations"] = operations
    options.add_provider_for_devices(register(), provider)
    return options


def _devices() -> list[Any]:
    return [device for device in onnxruntime.get_ep_devices() if device.ep_name == PROVIDER]
