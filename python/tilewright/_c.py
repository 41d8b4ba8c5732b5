# SPDX-License-Identifier: Apache-2.0
"""libtilewright_c: its path, its functions, and the conversion of text. Structs and signatures are in _c_header.py;
include/tilewright/tilewright_c.h says what the functions do. Nothing here is public."""

from __future__ import annotations

import ctypes
import os
from ctypes import CFUNCTYPE, c_char_p, c_int32, c_void_p

from . import _errors
from ._c_header import *  # noqa: F403
from ._c_header import _FALLIBLE, _LAUNCH, ABI_VERSION, FUNCTIONS, TunePolicyProgress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

Log = CFUNCTYPE(None, c_void_p, c_int32, c_char_p)
Progress = TunePolicyProgress


def library_path() -> str:
    """The path to load: $TILEWRIGHT_LIBRARY, else the package's own copy."""
    here = os.path.dirname(os.path.abspath(__file__))
    return os.environ.get("TILEWRIGHT_LIBRARY") or os.path.join(here, "_lib", "libtilewright_c.so")


def _load() -> ctypes.CDLL:
    path = library_path()
    try:
        library = ctypes.CDLL(path)
        version: int = library.tw_abi_version()
    except (OSError, AttributeError) as error:
        raise _errors.LibraryMissing(
            "libtilewright_c",
            path,
            f"cannot be loaded: {error}; install the wheel, or name the library in TILEWRIGHT_LIBRARY",
        ) from None
    if version != ABI_VERSION:
        raise _errors.LibraryMissing(
            "libtilewright_c", path, f"has ABI version {version}, and this package needs version {ABI_VERSION}"
        )
    return library


def raise_last() -> None:
    """Raises the calling thread's latest failure."""
    at = lib.tw_last_error()

    def part(name: str) -> str:
        return str(getattr(lib, "tw_error_" + name)(at).decode("utf-8", "replace"))

    kind = _errors.BY_STATUS.get(lib.tw_error_status(at), _errors.Internal)
    error = kind(part("field"), part("value"), part("allowed"), part("message"))
    if isinstance(error, _errors.CompileFailed):
        error.log, error.source = part("log"), part("source")
    raise error


def _check(status: int, function: Any, arguments: Any) -> None:
    if status:
        raise_last()


class _Library:
    """The functions, bound on first use: importing the package opens nothing."""

    def __getattr__(self, name: str) -> Any:
        if name == "cdll":
            value: Any = _load()
        elif name not in FUNCTIONS:
            raise AttributeError(name)
        else:
            value = self.cdll[name]
            result, value.argtypes = FUNCTIONS[name]
            value.restype = c_int32 if result in (_FALLIBLE, _LAUNCH) else result
            if value.restype is not result:
                value.errcheck = _check
            if result == _FALLIBLE:
                value = _without_error(value)
        setattr(self, name, value)
        return value


def _without_error(function: Any) -> Any:
    """Omits the error output: tw_last_error() says the same."""
    function.argtypes = (*function.argtypes, c_void_p)
    return lambda *arguments: function(*arguments, None)


def raw_launch(name: str) -> Any:
    """A separate binding of a launch function, which returns its status: only ctypes is between caller and C."""
    function = lib.cdll[name]
    function.argtypes = FUNCTIONS[name][1]
    function.restype = c_int32
    return function


lib = _Library()


# ---- text


def text(value: str, name: str) -> bytes:
    """For a const char*. C would take a zero byte for the end."""
    if not isinstance(value, str):
        raise _errors.must_be(name, repr(value), "a string")
    if "\0" in value:
        raise _errors.must_be(name, repr(value), "text without zero bytes")
    return value.encode("utf-8", "surrogateescape")


def path(value: str | os.PathLike[str], name: str) -> bytes:
    try:
        return text(os.fspath(value), name)
    except TypeError:
        raise _errors.must_be(name, repr(value), "a path") from None


def string(value: bytes | None) -> str:
    return value.decode("utf-8", "replace") if value else ""


def take(at: c_void_p) -> str:
    """The text of a char** output; frees it."""
    try:
        return string(ctypes.string_at(at)) if at else ""
    finally:
        lib.tw_free(at)


def take_bytes(at: int | None, size: int) -> bytes:
    try:
        return ctypes.string_at(at, size) if at else b""
    finally:
        lib.tw_free(at)


def texts(values: list[bytes]) -> Any:
    return (c_char_p * len(values))(*values)
