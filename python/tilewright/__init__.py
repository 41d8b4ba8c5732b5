# SPDX-License-Identifier: Apache-2.0
"""Tilewright: quantized matrix products on NVIDIA GPUs, compiled at run time, tuned and cached.

    import tilewright as tw

    engine = tw.Engine()
    gpu = tw.Device(0)
    problem = engine.packed("gemm x=q8_1 w=q4_0 y=f32 m=1 n=4096 k=14336 weights=constant", gpu)
    kernel = engine.prepare(problem, gpu)
    kernel.launch(stream, x=x, w=w, y=y)

Importing loads neither the C library nor NumPy nor PyTorch. Objects may be used from any thread unless they say
otherwise. Errors are subclasses of TilewrightError: each names a field, its value and what is allowed."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from . import checkpoints as checkpoints
    from . import post_training as post_training
    from ._errors import CompileFailed as CompileFailed
    from ._errors import DriverFailed as DriverFailed
    from ._errors import Forked as Forked
    from ._errors import Internal as Internal
    from ._errors import InvalidArgument as InvalidArgument
    from ._errors import IoError as IoError
    from ._errors import LibraryMissing as LibraryMissing
    from ._errors import OutOfMemory as OutOfMemory
    from ._errors import TilewrightError as TilewrightError
    from ._errors import TooLarge as TooLarge
    from ._errors import Unsupported as Unsupported
    from ._errors import WouldTune as WouldTune
    from .calibration import ClipRange as ClipRange
    from .calibration import DeviceObserver as DeviceObserver
    from .calibration import Observer as Observer
    from .calibration import scale_for as scale_for
    from .codec import Encoded as Encoded
    from .codec import Format as Format
    from .codec import Streams as Streams
    from .codec import decode as decode
    from .codec import encode as encode
    from .codec import formats as formats
    from .device import Device as Device
    from .device import Memory as Memory
    from .device import Stream as Stream
    from .device import device_count as device_count
    from .engine import Engine as Engine
    from .engine import Kernel as Kernel
    from .engine import prewarm as prewarm
    from .info import Arch as Arch
    from .info import archs as archs
    from .info import operations as operations
    from .layer import Layer as Layer
    from .layer import LayerProblems as LayerProblems
    from .layer import layer_problems as layer_problems
    from .loss_scale import unscale_pieces as unscale_pieces
    from .models import Model as Model
    from .models import open_model as open_model
    from .own import Array as Array
    from .own import Grid as Grid
    from .own import Launch as Launch
    from .own import Task as Task
    from .problem import Problem as Problem
    from .problem import read_workload as read_workload
    from .reports import PrewarmReport as PrewarmReport
    from .reports import TuneReport as TuneReport

    __version__: str

# The module of each name; a module is imported when one of its names is first used.
_PLACES = {
    "_errors": (
        "CompileFailed DriverFailed Forked Internal InvalidArgument IoError LibraryMissing OutOfMemory TilewrightError "
        "TooLarge Unsupported WouldTune"
    ),
    "calibration": "ClipRange DeviceObserver Observer scale_for",
    "device": "Device Memory Stream device_count",
    "engine": "Engine Kernel prewarm",
    "codec": "Encoded Format Streams decode encode formats",
    "info": "Arch archs operations",
    "layer": "Layer LayerProblems layer_problems",
    "loss_scale": "unscale_pieces",
    "models": "Model open_model",
    "own": "Array Grid Launch Task",
    "problem": "Problem read_workload",
    "reports": "PrewarmReport TuneReport",
}
_MODULE_OF = {name: module for module, names in _PLACES.items() for name in names.split()}

_MODULES = ("checkpoints", "post_training")

__all__ = [*_MODULE_OF, *_MODULES]


def __getattr__(name: str) -> Any:
    import importlib

    if name == "__version__":
        from ._c import lib

        value: Any = lib.tw_version().decode()
    elif name in _MODULE_OF:
        module = importlib.import_module("." + _MODULE_OF[name], __name__)
        value = getattr(module, name)
    elif name in _MODULES:
        return importlib.import_module("." + name, __name__)
    else:
        raise AttributeError(f"module 'tilewright' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])
