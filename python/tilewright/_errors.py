# SPDX-License-Identifier: Apache-2.0
"""What the library raises. Every error names the field, the value it had, and what would have been accepted."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class TilewrightError(RuntimeError):
    """Base of all errors. `code` is the stable name of the kind ("invalid_argument"); `field`, `value` and `allowed`
    are the parts of the message "FIELD = VALUE: ALLOWED"."""

    code = "internal"

    def __init__(self, field: str, value: str, allowed: str, message: str | None = None) -> None:
        super().__init__(message or field + (f" = {value}" if value else "") + f": {allowed}")
        self.field = field
        self.value = value
        self.allowed = allowed

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.field, self.value, self.allowed, str(self)), self.__dict__


class InvalidArgument(TilewrightError, ValueError):
    """A value outside its range, an unknown name, or memory that cannot be used."""

    code = "invalid_argument"


class Unsupported(TilewrightError, NotImplementedError):
    """Well-formed, but nothing in the library can do it."""

    code = "unsupported"


class TooLarge(TilewrightError, ValueError):
    """Beyond a stated limit."""

    code = "too_large"


class WouldTune(TilewrightError):
    """Needs compiling or measuring now, which was forbidden: by a stream capture, or by the engine's options."""

    code = "would_tune"


class CompileFailed(TilewrightError):
    """NVRTC rejected a source. `log` is what it said, `source` the text that it refused."""

    code = "compile_failed"
    log = ""
    source = ""


class DriverFailed(TilewrightError):
    """A call of the CUDA driver failed."""

    code = "driver_failed"


class LibraryMissing(TilewrightError, OSError):
    """libtilewright_c, libcuda or libnvrtc was not found, is too old, or does not fit."""

    code = "library_missing"


class Forked(TilewrightError):
    """A CUDA object was used in a child process after fork()."""

    code = "forked"


class IoError(TilewrightError, OSError):
    """A file could not be read or written."""

    code = "io"


class OutOfMemory(TilewrightError, MemoryError):
    """The host has no memory left."""

    code = "out_of_memory"


class Internal(TilewrightError):
    """A defect of the library."""


# By tw_status.
BY_STATUS: dict[int, type[TilewrightError]] = dict(
    enumerate(
        (InvalidArgument, Unsupported, TooLarge, WouldTune, CompileFailed, DriverFailed, LibraryMissing, Forked)
        + (IoError, OutOfMemory, Internal),
        start=1,
    )
)
