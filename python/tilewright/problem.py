# SPDX-License-Identifier: Apache-2.0
"""Problem: what to compute, as a value with one canonical text. It can also be computed on the host."""

from __future__ import annotations

import ctypes
import math
import os
from typing import Any, NamedTuple

from . import _arrays, _c, _errors, _operands, codec
from ._c import lib
from ._handles import Handle


class Buffer(NamedTuple):
    """Memory that a launch reads or writes: bytes = row_bytes * rows, or row_bytes is 0 and the size is independent of
    rows. scratch: zero before the first launch, then left to the kernels."""

    name: str
    bytes: int
    row_bytes: int
    output: bool
    scratch: bool
    optional: bool = False
    """Whether a launch may go without it."""


class HostCheck(NamedTuple):
    """How outputs were judged. wrong: None, or a sentence on the first output beyond its bound. largest_error is
    absolute; of_bound relative to the bound, negative where bytes must be exact."""

    checked: int
    outputs: int
    largest_error: float
    of_bound: float
    infinite: int
    wrong: str | None


class Problem(Handle):
    """What to compute: Problem("gemm x=q8_1 w=q4_0 y=f32 m=2 n=4096 k=14336"), or the same by Problem.gemm(...). Equal
    if their texts are; immutable; usable from any thread; copied and pickled by text. Raises InvalidArgument,
    Unsupported or TooLarge, which name the field."""

    def __init__(self, text: str | Problem) -> None:
        handle = ctypes.c_void_p()
        lib.tw_problem_parse(_c.text(str(text), "problem"), ctypes.byref(handle))
        self._take(handle)

    def _take(self, handle: ctypes.c_void_p) -> None:
        self._own("problem", handle)
        self._text = _c.string(lib.tw_problem_text(self))
        self.op = self._text.partition(" ")[0]
        """The operation: "gemm"."""
        self.rows: int = lib.tw_problem_rows(self)
        """The extent that a launch may change: m of a gemm."""
        self.cols: int = lib.tw_problem_cols(self)
        self._slots: dict[bool, _operands.Slots] = {}

    @classmethod
    def _of_handle(cls, handle: ctypes.c_void_p) -> Problem:
        problem = cls.__new__(cls)
        problem._take(handle)
        return problem

    @classmethod
    def of(cls, operation: str, **fields: object) -> Problem:
        """Any operation from its fields: Problem.of("cast", x="f32", y="q8_1", rows=2, cols=4096). None leaves a field
        out; numbers and bools become text; a trailing underscore is dropped (global_="mul")."""
        given = {name.rstrip("_"): value for name, value in fields.items() if value is not None}
        names = [_c.text(name, "field") for name in given]
        values = [_c.text(_word(name, value), name) for name, value in given.items()]
        handle = ctypes.c_void_p()
        op = _c.text(operation, "operation")
        lib.tw_problem_create(op, _c.texts(names), _c.texts(values), len(names), ctypes.byref(handle))
        return cls._of_handle(handle)

    @classmethod
    def gemm(cls, *, x: str, w: str, y: str, m: int, n: int, k: int, **fields: object) -> Problem:
        """y[m, n] = (act(alpha x[m, k] w[n, k]^T + bias[n]) + beta c[m, n]) / y_scale: M tokens, N output features, K
        reduction. x, w, y: formats. Further fields: global_, pack ("tiles", "panels"), x_from, bias, accum ("fast"),
        act, alpha, c, beta, y_scale, workspace (bytes), weights ("constant"), groups, group_layout ("masked")."""
        return cls.of("gemm", x=x, w=w, y=y, m=m, n=n, k=k, **fields)

    def with_rows(self, rows: int) -> Problem:
        """The same with another number of rows (m of a gemm)."""
        handle = ctypes.c_void_p()
        lib.tw_problem_with_rows(self, rows, ctypes.byref(handle))
        return self._of_handle(handle)

    @property
    def fields(self) -> dict[str, str]:
        """The fields of the canonical text, which omits those with their default."""
        return dict(field.split("=", 1) for field in self._text.split()[1:])

    @property
    def min_bytes(self) -> float:
        """Bytes of all operands, each moved once."""
        return float(lib.tw_problem_min_bytes(self._open()))

    @property
    def ops(self) -> float:
        """Multiplications and additions; 0 if they do not matter."""
        return float(lib.tw_problem_ops(self._open()))

    @property
    def buffers(self) -> list[Buffer]:
        """What a launch reads and writes. Packed weights are listed as packed."""
        return [
            Buffer(_c.string(i.name), i.bytes, i.row_bytes, bool(i.output), bool(i.scratch), bool(i.optional))
            for i in self.buffer_infos()
        ]

    @property
    def values(self) -> dict[str, float]:
        """The numbers that a launch takes besides its buffers, with their defaults."""
        return {value.name: value.default for value in self.slots(True).values}

    # ---- what a launch takes, as C says it (for the package itself)

    def buffer_infos(self) -> list[_c.BufferInfo]:
        return self._infos(lib.tw_problem_buffer_count, lib.tw_problem_buffer, _c.BufferInfo)

    def value_infos(self) -> list[_c.ValueInfo]:
        return self._infos(lib.tw_problem_value_count, lib.tw_problem_value, _c.ValueInfo)

    def rows_info(self) -> _c.RowsInfo:
        info = _c.RowsInfo()
        lib.tw_problem_rows_info(self, ctypes.byref(info))
        return info

    def _infos(self, count: Any, of: Any, kind: Any) -> list[Any]:
        infos = [kind() for _ in range(count(self._open()))]
        for i, info in enumerate(infos):
            of(self, i, ctypes.byref(info))
        return infos

    def slots(self, launch: bool) -> _operands.Slots:
        """What its launches take, or its computation on the host."""
        if launch not in self._slots:
            self._slots[launch] = _operands.slots(self, launch)
        return self._slots[launch]

    # ---- the host

    def compute(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Computes the outputs on the host, plainly and slowly. inputs: by operand, {"x": array, "w": Encoded}, or by
        buffer, {"w.scales": array}; host memory, 16-byte aligned. Returns a NumPy array or an Encoded for each operand
        that is written; a convolution's y has one axis, in memory order. Raises InvalidArgument naming the argument."""
        wanted = self.slots(False)
        values = dict(inputs)
        made: dict[str, Any] = {}
        for slot, buffer in zip(wanted.all, self.buffers):
            if (slot.output or slot.scratch) and slot.operand not in values and slot.name not in values:
                made[slot.name] = _arrays.allocate(buffer.bytes)
        values.update(made)
        with self._on_host(values) as (pointers, sizes, count):
            lib.tw_compute_on_host(self, pointers, sizes, count)
        out: dict[str, Any] = {}
        for slot in wanted.all:
            if slot.output and slot.operand not in out:
                out[slot.operand] = self._result(wanted, slot.operand, values)
        return out

    def check(self, values: dict[str, Any]) -> HostCheck:
        """Checks outputs against sums in double precision. values: inputs and outputs, as for compute()."""
        scratch = {s.name: _arrays.allocate(s.bytes) for s in self.slots(False).all if s.scratch}
        check, wrong = _c.HostCheck(), ctypes.c_void_p()
        with self._on_host({**scratch, **values}) as (pointers, sizes, count):
            lib.tw_check_on_host(self, pointers, sizes, count, ctypes.byref(check), ctypes.byref(wrong))
        sentence = _c.take(wrong) if wrong else None
        numbers = (check.checked, check.outputs, check.largest_error, check.of_bound, check.infinite)
        return HostCheck(*numbers, sentence)

    def _on_host(self, values: dict[str, Any]) -> _HostBuffers:
        return _HostBuffers(self, values)

    def _result(self, wanted: _operands.Slots, operand: str, values: dict[str, Any]) -> Any:
        slots = [slot for slot in wanted.all if slot.operand == operand]
        parts = [values.get(slot.name) for slot in slots]
        if operand in values:
            return values[operand]
        format, cols = wanted.formats.get(operand), slots[0].cols
        rows = slots[0].bytes // slots[0].line_bytes if slots[0].line_bytes else 1
        if operand == wanted.packed or format is None:
            return codec.Streams(**{_member(slot.stream): part for slot, part in zip(slots, parts)})
        if format.is_elements:
            return _arrays.typed(parts[0], format.name, (rows, cols) if cols > 1 else (-1,))
        streams = {_member(slot.stream): part for slot, part in zip(slots, parts)}
        return codec.Encoded(format, rows, cols, **streams)

    # ---- packed weights on the host

    def pack_weights(self, w: Any) -> codec.Streams:
        """Reorders weights for the kernels of this problem, which has pack=tiles or panels: on the host, lossless, once
        at load. w: an Encoded, or the streams as the format stores them; for a grouped gemm the whole stack."""
        return self._reorder("tw_pack_weights", w, False)

    def unpack_weights(self, w: Any) -> codec.Encoded:
        """The inverse of pack_weights()."""
        streams = self._reorder("tw_unpack_weights", w, True)
        fields = self._as_gemm().fields
        rows = int(fields["n"]) * max(int(fields.get("groups", 0)), 1)
        return codec.Encoded(fields["w"], rows, int(fields["k"]), *streams)

    def _reorder(self, function: str, w: Any, inverse: bool) -> codec.Streams:
        if self.fields.get("pack") not in _operands.PACKED:
            raise _errors.must_be(
                "pack", self.fields.get("pack", "none"), "tiles or panels: other weights are not packed"
            )
        gemm = self._as_gemm()
        fields = gemm.fields
        format = codec.find(fields["w"])
        groups = max(int(fields.get("groups", 0)), 1)
        rows, cols = int(fields["n"]) * groups, int(fields["k"])
        tiles = [gemm._packed_bytes(i) for i in range(3)]
        plain = [format.stream_bytes(s, rows, cols) for s in codec.STREAMS]
        plain[2] *= groups  # a factor for each matrix of a stack
        sizes = (tiles, plain) if inverse else (plain, tiles)
        given = codec.streams_of(w, None if inverse else format, "w")
        views: list[_arrays.View] = []
        out: list[Any] = []
        source, target = _c.Operand(), _c.Operand()
        try:
            for stream, value, have, want in zip(codec.STREAMS, given, *sizes):
                member = _member(stream)
                if have and value is None and stream != "global":
                    raise _errors.InvalidArgument(f"w.{stream}", "None", f"must have {have} bytes")
                if have and value is not None:
                    views.append(codec.on_host(value, f"w.{stream}", have))
                    setattr(source, member, views[-1].pointer)
                out.append(_arrays.allocate(want) if want and (stream != "global" or source.global_scale) else None)
                if out[-1] is not None:
                    setattr(target, member, _arrays.view(out[-1], "result").pointer)
            getattr(lib, function)(gemm, source, target)
        finally:
            for view in views:
                view.close()
        if out[2] is not None:
            out[2] = _arrays.typed(out[2], "f32", (-1,))
        return codec.Streams(*out)

    def _as_gemm(self) -> Problem:
        """The gemm with the same packed weights. For a convolution n is its output channels, k its kernel elements
        times input channels."""
        if self.op != "conv":
            return self
        f = self.fields
        columns = math.prod(int(extent) for extent in f["kernel"].split("x")) * int(f["c"])
        return Problem.gemm(
            x=f["x"], w=f["w"], y=f["y"], m=1, n=int(f["k"]), k=columns, pack=f["pack"], global_=f.get("global")
        )

    def _packed_bytes(self, stream: int) -> int:
        count = ctypes.c_int64()
        lib.tw_packed_bytes(self, stream, ctypes.byref(count))
        return count.value

    # ---- a value

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Problem({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, Problem) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Problem, (self._text,)


class _HostBuffers:
    """Addresses and sizes of all buffers, as the functions of the host take them."""

    def __init__(self, problem: Problem, values: dict[str, Any]) -> None:
        wanted = problem.slots(False)
        buffers = problem.buffers
        values = dict(values)
        for slot, buffer in zip(wanted.all, buffers):
            if slot.optional and values.get(slot.operand) is None:
                values[slot.operand] = _arrays.allocate(buffer.bytes)
            if slot.operand == "group_rows" and values.get("group_rows") is not None:
                values["group_rows"] = _last_table(values["group_rows"], buffer.bytes)
        self._bound = _operands.bind(wanted, values, problem.rows, problem.rows, {}, None, None)
        for slot, view, buffer in zip(wanted.all, self._bound.views, buffers):
            if view.dtype and view.nbytes != buffer.bytes:
                self._bound.close()
                raise _errors.InvalidArgument(slot.name, f"{view.nbytes} bytes", f"must have {buffer.bytes} bytes")
        self._values = values
        count = len(buffers)
        addresses = (ctypes.c_void_p * count)(*(p or None for p in self._bound.pointers))
        self._buffers = addresses, (ctypes.c_size_t * count)(*(b.bytes for b in buffers)), count

    def __enter__(self) -> tuple[Any, Any, int]:
        return self._buffers

    def __exit__(self, *exception: object) -> None:
        self._bound.close()


def _last_table(group_rows: Any, size: int) -> Any:
    """The problem's buffer has a table of rows for each number of rows that the tuner tries; the host reads the
    last."""
    view = _arrays.view(group_rows, "group_rows")
    if view.dtype not in ("int32", "uint8") or view.device != _arrays.HOST or view.nbytes > size:
        return group_rows  # refused with the other buffers
    tables = _arrays.allocate(size)
    ctypes.memmove(_arrays.view(tables, "group_rows").pointer + size - view.nbytes, view.pointer, view.nbytes)
    return tables


def _member(stream: str) -> str:
    return "global_scale" if stream == "global" else stream


def _word(name: str, value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, (str, int, float)):
        return str(value)
    if hasattr(value, "__index__"):
        return str(value.__index__())
    if isinstance(value, codec.Format):
        return value.name
    raise _errors.must_be(name, repr(value), "text, a number or a bool")


def as_problem(value: Problem | str) -> Problem:
    if isinstance(value, Problem):
        return value
    if not isinstance(value, str):
        raise TypeError(f"a problem is a Problem or its text, not a {type(value).__name__}; a Task is passed by itself")
    return Problem(value)


def read_workload(path: str | os.PathLike[str]) -> list[Problem]:
    """The problems of a workload file, one per line, '#' starts a comment. Raises IoError if it cannot be read, and
    InvalidArgument or TooLarge with the line's number."""
    array, count = ctypes.c_void_p(), ctypes.c_size_t()
    lib.tw_read_workload(_c.path(path, "path"), ctypes.byref(array), ctypes.byref(count))
    handles = (ctypes.c_void_p * count.value).from_address(array.value) if array.value else ()
    problems = [Problem._of_handle(ctypes.c_void_p(handle)) for handle in handles]
    lib.tw_free(array)
    return problems
