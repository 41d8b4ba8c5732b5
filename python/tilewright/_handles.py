# SPDX-License-Identifier: Apache-2.0
"""Handles of the C library as Python objects, and Python functions that C calls."""

from __future__ import annotations

import ctypes
from typing import Any, Callable, TypeVar

from . import _errors
from ._c import lib

Self = TypeVar("Self", bound="Handle")


class _Reference(ctypes.c_void_p):
    """One reference to a C object. Holding it, as ctypes does during a call, keeps the object alive."""

    release: Callable[[int], None]  # looked up early: at interpreter exit the module may be gone

    def __del__(self) -> None:
        if self.value is not None:
            self.release(self.value)


class Handle:
    """Owns one reference. close() releases it, as does leaving the context manager or deleting the object; its GPU work
    must have ended by then. Calls in progress, in other threads or around a callback that closes it, keep the object
    until they return. Closing twice does nothing; use after close() raises InvalidArgument."""

    _handle: _Reference | None = None  # on the class: for an object that was closed or never finished

    def _own(self, kind: str, handle: ctypes.c_void_p) -> None:
        reference = _Reference()
        reference.release = getattr(lib, f"tw_{kind}_release")
        reference.value = handle.value
        self._handle = reference

    def _open(self) -> _Reference:
        handle = self._handle
        if handle is None:
            raise _errors.must_be(type(self).__name__, "closed", "open")
        return handle

    @property
    def _as_parameter_(self) -> _Reference | None:
        """What ctypes passes for the object, and holds until the call returns. A closed object passes null, which
        functions that can fail refuse; calls to others use _open()."""
        return self._handle

    @property
    def closed(self) -> bool:
        return self._handle is None

    def close(self) -> None:
        self.__dict__.pop("_handle", None)

    def __del__(self) -> None:
        self.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce_ex__(self, protocol: Any) -> Any:  # asked by pickle, copy and deepcopy
        kind = type(self).__name__
        raise TypeError(f"a {kind} belongs to this process and can be neither copied nor pickled; make another {kind}")


class Calls:
    """Python callbacks of one call into C, as a context manager around it. Their exceptions leave it unchanged: C sees
    a failure, and the first exception is raised again when C has returned. An interrupt (Ctrl-C) of the main thread is
    held back, too, while C runs: raised where a callback begins, it could not be caught."""

    def __init__(self) -> None:
        self.raised: BaseException | None = None
        self._interrupted = False
        self._handler: Any = None

    def guard(self, function: Callable[..., Any], failed: Any) -> Callable[..., Any]:
        """The function, made to return `failed` instead of raising."""

        def guarded(*arguments: Any) -> Any:
            try:
                return function(*arguments)
            except BaseException as error:
                if self.raised is None:
                    self.raised = error
                return failed

        return guarded

    @property
    def stopped(self) -> bool:
        return self.raised is not None or self._interrupted

    def __enter__(self) -> Calls:
        import signal
        import threading

        self.raised, self._interrupted, self._handler = None, False, None
        handler = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(handler):
            self._handler = handler
            signal.signal(signal.SIGINT, self._note)
        return self

    def _note(self, signum: int, frame: object) -> None:
        self._interrupted = True

    def __exit__(self, *exception: object) -> None:
        import signal

        handler, self._handler = self._handler, None
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
            if self._interrupted:
                handler(signal.SIGINT, None)
        raised, self.raised = self.raised, None
        if raised is not None:
            raise raised
