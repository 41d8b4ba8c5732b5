# SPDX-License-Identifier: Apache-2.0
"""libtilewright_torch: C++ operators over PyTorch's stable ABI (python/torch_ops), loaded from libtilewright_c's
folder. It launches plans that _cuda.py and _cpu.py have prepared and registered, and calls them for all else: without
it results are the same, but calls take longer."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from .. import _c
from ._spec import DTYPES, FORMATS

_NAME = "libtilewright_torch.so"


class Info(NamedTuple):
    """What computes torch.ops.tilewright.linear, and conv on a GPU. ops: "stable" is libtilewright_torch, "python" its
    fall-back. library: its file, opened or not. why: the reason for the fall-back, else None."""

    ops: str
    library: str
    why: str | None


class _Functions(ctypes.Structure):
    """Functions of ops.cpp."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("gemm", "conv", "scratch", "current_stream")]


class _Plan(ctypes.Structure):
    """Plan of ops.cpp."""

    _fields_ = [
        ("layer", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("n", "k")),
        ("weight_bytes", ctypes.c_int64 * 3),
        ("x", ctypes.c_int64 * 5),
        ("out", ctypes.c_int64 * 5),
        *((name, ctypes.c_int32) for name in ("y", "bias", "dims", "last", "amax")),
    ]


_DTYPES = {dtype: i for i, dtype in enumerate((torch.float32, torch.float16, torch.bfloat16))}  # Dtype of ops.cpp


def _load() -> tuple[Any, Info]:
    """The library (None: not open), and what info() says."""
    path = os.path.join(os.path.dirname(os.path.abspath(_c.library_path())), _NAME)

    def without(why: str) -> tuple[Any, Info]:
        return None, Info("python", path, why)

    if os.environ.get("TILEWRIGHT_TORCH_OPS") == "python":
        return without("TILEWRIGHT_TORCH_OPS is python")
    if torch.torch_version.TorchVersion(torch.__version__) < "2.11":
        return without(f"PyTorch is {torch.__version__}, and 2.11 or newer is needed")
    if not os.path.exists(path):
        return without("there is no such file")
    try:
        opened = ctypes.CDLL(path)  # registers its operators
    except OSError as error:
        return without(str(error))
    opened.tilewright_torch_sizes.restype = ctypes.c_uint32
    if opened.tilewright_torch_sizes() != ctypes.sizeof(_Functions) << 16 | ctypes.sizeof(_Plan):
        # Its operators call Python's for unknown plans.
        return opened, Info("python", path, "it belongs to another version of the package")
    for name, arguments in _EXPORTS.items():
        function = getattr(opened, name)
        function.argtypes, function.restype = arguments, None
    return opened, Info("stable", path, None)


_EXPORTS: dict[str, tuple[Any, ...]] = {
    "tilewright_torch_bind": (ctypes.POINTER(_Functions),),
    "tilewright_torch_add": (ctypes.c_char_p, *[ctypes.c_int32] * 3, ctypes.POINTER(_Plan)),
    "tilewright_torch_forget": (ctypes.c_int32,),
    "tilewright_torch_parallel_for": (),
}
_GPU, _CPU = 0, 1  # Where of ops.cpp

_library, _info = _load()
_bound = False

registered: bool = _library is not None
"""Whether the operators are the library's."""


def info() -> Info:
    """Which implementation of the operators is in use, and why."""
    return _info


def _bind() -> bool:
    """Gives the library the functions that it calls, once. False where it cannot be used."""
    if _bound or _info.ops != "stable":
        return _bound
    current = None
    if torch.version.cuda:
        folder = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "lib")
        try:  # from the library that PyTorch itself has open
            current = ctypes.CDLL(os.path.join(folder, "libtorch_cuda.so")).aoti_torch_get_current_cuda_stream
        except (OSError, AttributeError):
            return False
    c = _c.lib.cdll
    bind(c.tw_layer_launch_gemm, c.tw_layer_launch_conv, c.tw_layer_scratch_bytes, current)
    return True


def parallel_for() -> Any:
    """A tw_parallel_for on the threads of PyTorch's operators; None: not available."""
    return _library.tilewright_torch_parallel_for if _info.ops == "stable" else None


def bind(*functions: Any) -> None:
    """Sets the members of _Functions, functions of ctypes that must live as long as the process."""
    global _bound
    if len(functions) != len(_Functions._fields_):
        raise TypeError(f"bind() takes {len(_Functions._fields_)} functions (got {len(functions)})")
    addresses = (None if function is None else ctypes.cast(function, ctypes.c_void_p) for function in functions)
    _library.tilewright_torch_bind(_Functions(*addresses))
    _bound = True


def add(problem: str, index: int, dtype: torch.dtype, plan: Any) -> None:
    """Registers a _Plan of _cuda.py, if the library can run it: x must not need PyTorch's arithmetic."""
    if _serves(plan, dtype):
        s = plan.spec
        _add(problem, _GPU, index, dtype, plan, n=s.n, k=s.k)


def add_cpu(problem: str, dtype: torch.dtype, plan: Any) -> None:
    """The same for a Plan of _cpu.py, whose weight has to be in panels. PyTorch computes an activation."""
    s = plan.spec
    if s.packed and s.act is None and _bind():
        _add(problem, _CPU, -1, dtype, plan, n=s.n, k=s.k)


def add_conv(problem: str, index: int, dtype: torch.dtype, shape: Sequence[int], last: bool, plan: Any) -> None:
    """The same for a _ConvPlan, and x of a shape and layout."""
    if _serves(plan, dtype):
        s = plan.spec
        more: dict[str, Any] = {"dims": len(shape), "last": int(last), "amax": int(s.block > 0)}
        for name, extents in (("x", shape), ("out", (shape[0], s.k, *s.out(shape[2:])))):
            more[name] = (ctypes.c_int64 * 5)(*extents)
        _add(problem, _GPU, index, dtype, plan, n=s.k, k=s.c, **more)


def _serves(plan: Any, dtype: torch.dtype) -> bool:
    x = plan.spec.x
    return "global" not in x.streams and (x.name not in DTYPES or FORMATS[dtype] == x.name) and _bind()


def _add(problem: str, where: int, index: int, dtype: torch.dtype, plan: Any, **more: Any) -> None:
    s = plan.spec
    given = _Plan(layer=plan.layer._open().value, y=_DTYPES[s.dtype], **more)
    given.bias = -1 if s.bias is None else _DTYPES[s.bias]
    given.weight_bytes[:] = [s.streams.get(name, 0) for name in ("data", "scales", "global")]
    _library.tilewright_torch_add(problem.encode(), where, index, _DTYPES[dtype], given)


def forget(cpu: bool = False) -> None:
    """Forgets all plans of GPUs, or all of the CPU."""
    if _bound:
        _library.tilewright_torch_forget(_CPU if cpu else _GPU)
