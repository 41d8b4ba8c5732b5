# SPDX-License-Identifier: Apache-2.0
"""What the library raises. Every error is a sentence about a field and the value it had."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class TilewrightError(RuntimeError):
    """Base of all errors. `code` is the stable name of the kind ("invalid_argument"). `field` is the subject of the
    message, `allowed` its predicate: what the field must be, or what is wrong with `value` and what to do."""

    code = "internal"

    def __init__(self, field: str, value: str, allowed: str, message: str | None = None) -> None:
        super().__init__(message or _sentence(field, value, allowed))
        self.field = field
        self.value = value
        self.allowed = allowed

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.field, self.value, self.allowed, str(self)), self.__dict__


def _sentence(field: str, value: str, allowed: str) -> str:
    """As tilewright/error.h makes it: "k must be a multiple of 32 (got 100): ...", "x_from=f16 is not supported"."""
    if not value:
        return f"{field} {allowed}"
    if allowed.startswith(("must ", "failed")):
        end = min((at for at in (allowed.find("; "), allowed.find(": ")) if at >= 0), default=len(allowed))
        got = "got " if allowed.startswith("must ") else ""
        return f"{field} {allowed[:end]} ({got}{value}){allowed[end:]}"
    words = " " not in field and not set(value) & set(" /=")
    return f"{field}{'=' if words else ' '}{value} {allowed}"


class InvalidArgument(TilewrightError, ValueError):
    """A value outside its range, an unknown name, or memory that cannot be used."""

    code = "invalid_argument"


def must_be(field: str, value: object, what: str) -> InvalidArgument:
    return InvalidArgument(field, str(value), f"must be {what}")


class Unsupported(TilewrightError, NotImplementedError):
    """Well-formed, but nothing in the library can do it."""

    code = "unsupported"


class TooLarge(TilewrightError, ValueError):
    """Beyond a stated limit."""

    code = "too_large"


class WouldTune(TilewrightError):
    """Must compile or measure now, but a stream capture or the engine's options forbid it."""

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
