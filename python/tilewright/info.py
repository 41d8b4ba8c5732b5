# SPDX-License-Identifier: Apache-2.0
"""What the library knows: targets and operations."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from . import _c
from ._c import lib


class Arch(NamedTuple):
    """A target: "sm_90a". shared_per_block: bytes. run_on: a device that its kernels have run on, or None."""

    name: str
    major: int
    minor: int
    shared_per_block: int
    run_on: str | None


class Field(NamedTuple):
    """A field of an operation's text. value: "FORMAT", "INTEGER", "NUMBER", or the words that are allowed."""

    name: str
    required: bool
    value: str
    help: str


class Operation(NamedTuple):
    name: str
    title: str
    fields: tuple[Field, ...]


def archs() -> tuple[Arch, ...]:
    """All targets."""
    out = []
    for i in range(lib.tw_arch_count()):
        a = _c.ArchInfo()
        lib.tw_arch_at(i, ctypes.byref(a))
        run_on = _c.string(a.run_on) if a.run_on else None
        out.append(Arch(_c.string(a.name), a.major, a.minor, a.shared_per_block, run_on))
    return tuple(out)


def operations() -> tuple[Operation, ...]:
    """All operations and the fields of their problems."""
    out = []
    for i in range(lib.tw_operation_count()):
        name, title = ctypes.c_char_p(), ctypes.c_char_p()
        lib.tw_operation_at(i, ctypes.byref(name), ctypes.byref(title))
        fields = []
        for f in range(lib.tw_operation_field_count(name)):
            info = _c.FieldInfo()
            lib.tw_operation_field(name, f, ctypes.byref(info))
            words = (_c.string(info.value), _c.string(info.help))
            fields.append(Field(_c.string(info.name), bool(info.required), *words))
        out.append(Operation(_c.string(name.value), _c.string(title.value), tuple(fields)))
    return tuple(out)
