# SPDX-License-Identifier: Apache-2.0
"""Matches a caller's arguments to a problem's buffers, and checks their memory. Everything is checked before a launch,
so that nothing is read or written out of bounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from . import _arrays, _c, _errors, codec
from ._arrays import View

# Array dtypes of the formats that are plain elements. Bytes are accepted for all, uint16 also for floats of 16 bits.
_DTYPES = {
    "f32": ("float32",),
    "f16": ("float16", "uint16"),
    "bf16": ("bfloat16", "uint16"),
    "int8": ("int8",),
    "int32": ("int32",),
    "int64": ("int64",),
    "e4m3": ("float8_e4m3fn",),
    "e5m2": ("float8_e5m2",),
}
_BYTES = ("uint8", "raw8")

# Orders of packed weights.
PACKED = ("tiles", "panels")

class Slot(NamedTuple):
    """One buffer of a launch."""

    name: str  # "x.data"
    operand: str  # "x"
    stream: str  # "data", "scales", "global"
    bytes: int  # if the size is independent of the rows
    row_bytes: int  # of one row in memory; 0: the size is independent of the rows
    output: bool
    scratch: bool
    optional: bool  # may be left out; zeros replace it on the host
    dtypes: tuple[str, ...]  # of elements; empty: any whose size divides `item`
    item: int
    cols: int  # elements of a row; 0: unknown
    align: int  # bytes
    stride: str  # "ldx", or ""
    line_bytes: int = 0  # of one matrix row in memory, even if the size is independent of the rows


class Value(NamedTuple):
    """A number of a launch."""

    name: str  # "alpha"
    is_integer: bool
    default: float


class Slots(NamedTuple):
    all: tuple[Slot, ...]
    places: dict[str, dict[str, int]]  # index in `all`, by operand and stream
    formats: dict[str, codec.Format] = {}  # of operands that have one
    packed: str = ""  # the operand that is stored in tiles or panels
    rows_per: int = 1  # rows in memory for one row of a launch
    default_per: int = 1  # rows of a launch for one row of the problem
    rows_name: str = "rows"  # name of the launch's rows; "": the problem fixes them
    values: tuple[Value, ...] = ()  # of a launch


def slots(problem: Any, launch: bool) -> Slots:
    """What a launch of the problem takes, or its computation on the host, where sizes are exactly the buffers'."""
    rows = problem.rows_info()
    packed, memory_rows = "", 1
    found: dict[str, codec.Format] = {}
    out = []
    for info in problem.buffer_infos():
        name, kind = _c.string(info.name), _c.string(info.format)
        operand, dot, stream = name.partition(".")
        if dot and not kind:
            packed = operand
        format = codec.find(kind) if kind not in ("", "int64") else None
        if format is not None:
            found[operand] = format
        dtypes: tuple[str, ...] = ()
        if format is None or format.is_elements:
            dtypes = _DTYPES.get(kind, ())
        follows = info.row_bytes and not (launch and rows.fixed)
        line = info.line_bytes if follows else 0
        if follows:
            memory_rows = info.row_bytes // line
        item = format.streams[stream].bytes if format is not None and dot and not dtypes and stream != "data" else 1
        out.append(
            Slot(
                name,
                operand,
                stream or "data",
                info.launch_bytes if launch and not follows else info.bytes,
                line,
                bool(info.output),
                bool(info.scratch),
                bool(info.optional) and (launch or not dot),
                dtypes,
                item,
                info.cols,
                info.align,
                _c.string(info.stride) if launch else "",
                info.line_bytes,
            )
        )
    per = rows.rows_per if launch else 1
    rows_name = "" if rows.fixed else _c.string(rows.name)
    values = tuple(_values_of(problem)) if launch else ()
    return Slots(tuple(out), places(out), found, packed, memory_rows // per, per, rows_name, values)


def _values_of(problem: Any) -> Iterator[Value]:
    for info in problem.value_infos():
        default = info.by_default.integer if info.is_integer else info.by_default.number
        yield Value(_c.string(info.name), bool(info.is_integer), default)


def numbers(wanted: Slots, given: dict[str, Any]) -> Any:
    """The values of a launch, as C takes them. Raises InvalidArgument naming a value that is not such a number."""
    out = (_c.Value * len(wanted.values))()
    for to, value in zip(out, wanted.values):
        number = given.get(value.name, value.default)
        if value.is_integer:
            to.integer = _count(number, value.name, 64)
        elif isinstance(number, bool) or not hasattr(number, "__float__"):
            raise _errors.must_be(value.name, repr(number), "a number")
        else:
            to.number = float(number)
    return out


def places(slots: list[Slot]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for i, slot in enumerate(slots):
        found.setdefault(slot.operand, {})[slot.stream] = i
    return found


class Bound:
    """Arguments that fit: an address for each buffer (0: none was given), the rows, and the strides in elements."""

    __slots__ = ("pointers", "rows", "strides", "views")

    def __init__(self) -> None:
        self.pointers: list[int] = []
        self.views: list[View] = []
        self.strides: dict[str, int] = {}
        self.rows = 0

    def close(self) -> None:
        for view in self.views:
            view.close()


def bind(
    wanted: Slots,
    values: dict[str, Any],
    rows: int | None,
    default_rows: int,
    strides: dict[str, int],
    ordinal: int | None,
    stream: int | None,
) -> Bound:
    """Finds and checks the array of every buffer. ordinal: the launch's GPU; None or -1: the host. rows: None takes
    them from the first array whose size depends on them, else default_rows. Raises InvalidArgument naming the
    argument."""
    given = _values(wanted, values)
    bound = Bound()
    bound.strides = {name: _count(value, name) for name, value in strides.items()}
    exact = rows is None
    try:
        for slot, value in zip(wanted.all, given):
            if value is None:
                if not slot.optional:
                    raise _errors.must_be(slot.name, "None", "an array")
                bound.pointers.append(0)
                bound.views.append(View(0, ""))
                continue
            view = _arrays.view(value, slot.name, stream)
            bound.views.append(view)
            bound.pointers.append(view.pointer)
            if view.dtype:
                _check_kind(slot, view, ordinal)
        bound.rows = _count(rows, "rows") if rows is not None else _rows_of(wanted, bound, default_rows)
        for slot, view in zip(wanted.all, bound.views):
            if view.pointer % slot.align and (bound.rows or not slot.row_bytes):
                raise _errors.must_be(
                    slot.name,
                    f"an address of remainder {view.pointer % slot.align}",
                    f"aligned to {slot.align} bytes",
                )
            if view.dtype:
                _check_size(slot, view, bound, bound.rows * wanted.rows_per, exact)
    except BaseException:
        bound.close()
        raise
    return bound


def bind_launch(
    wanted: Slots, problem: Any, arguments: dict[str, Any], rows: int | None, ordinal: int, stream: int
) -> tuple[Bound, Any]:
    """bind() and numbers() for a launch's arguments, which include rows and numbers."""
    given = {name: value for name, value in arguments.items() if value is not None}
    count = given.pop(wanted.rows_name, rows) if wanted.rows_name else rows
    if rows is not None and count != rows:
        raise _errors.must_be("rows", rows, f"None, or {count}, which {wanted.rows_name} is")
    if count is not None and not wanted.rows_name:
        raise _errors.must_be("rows", count, f"None: a launch of {problem.op} has no rows")
    own = {value.name: given.pop(value.name) for value in wanted.values if value.name in given}
    strides = {slot.stride: own[slot.stride] for slot in wanted.all if own.get(slot.stride)}
    bound = bind(wanted, given, count, problem.rows * wanted.default_per, strides, ordinal, stream)
    try:
        return bound, numbers(wanted, {**own, **bound.strides})
    except BaseException:
        bound.close()
        raise


def _values(wanted: Slots, values: dict[str, Any]) -> list[Any]:
    """The argument of every buffer; None where there is none."""
    out: list[Any] = [None] * len(wanted.all)
    for name, value in values.items():
        operand, _, stream = name.partition(".")
        places = wanted.places.get(operand)
        if places is None or (stream and stream not in places):
            raise _errors.must_be(
                name,
                type(value).__name__,
                f"None: this problem has {', '.join(s.name for s in (*wanted.all, *wanted.values))}",
            )
        if stream:
            out[places[stream]] = value
        elif not isinstance(value, (tuple, list, codec.Encoded)):
            out[places["data"]] = value
        else:
            for part, given in zip(codec.STREAMS, _streams(wanted, name, value)):
                if part in places:
                    out[places[part]] = given
                elif given is not None:
                    raise _errors.must_be(f"{name}.{part}", type(given).__name__, "None: there is no such stream")
    return out


def _streams(wanted: Slots, operand: str, value: Any) -> codec.Streams:
    if operand != wanted.packed:
        return codec.streams_of(value, wanted.formats.get(operand), operand)
    if isinstance(value, codec.Encoded):
        raise _errors.must_be(operand, repr(value), "packed weights, from Engine.pack() or Problem.pack_weights()")
    return codec.streams_of(value, None, operand)


def _check_kind(slot: Slot, view: View, ordinal: int | None) -> None:
    """Checks the memory's device and dtype."""
    if ordinal is not None and ordinal < 0:  # a CPU's launch
        ordinal = None
    if ordinal is None and view.device != _arrays.HOST:
        raise _errors.must_be(slot.name, "memory of a GPU", "memory of the host")
    if ordinal is not None and view.device == _arrays.HOST:
        raise _errors.must_be(slot.name, "memory of the host", f"memory of GPU {ordinal}; copy it there")
    if ordinal is not None and view.ordinal is not None and view.ordinal != ordinal:
        raise _errors.must_be(slot.name, f"memory of GPU {view.ordinal}", f"memory of GPU {ordinal}")
    if view.readonly and (slot.output or slot.scratch):
        raise _errors.must_be(slot.name, "memory that is read-only", "writable memory")
    if view.dtype in _BYTES:
        return
    if view.dtype not in slot.dtypes if slot.dtypes else slot.item % max(view.itemsize, 1):
        allowed = (
            " or ".join((*slot.dtypes, "uint8")) if slot.dtypes else f"uint8, or items that divide {slot.item} bytes"
        )
        raise _errors.must_be(slot.name, f"dtype {view.dtype}", allowed)
    if slot.dtypes and slot.cols and len(view.shape) > 1 and view.shape[-1] != slot.cols:
        raise _errors.InvalidArgument(slot.name, f"shape {view.shape}", f"must have a last dimension of {slot.cols}")


def _rows_of(wanted: Slots, bound: Bound, default: int) -> int:
    """The rows of the first array whose size depends on them."""
    for slot, view in zip(wanted.all, bound.views):
        if not slot.row_bytes or not view.dtype:
            continue
        if bound.strides.get(slot.stride) and not view.strided:
            raise _errors.must_be("m", "None", f"the number of rows, since {slot.stride} is given")
        rows = view.rows if view.strided else view.nbytes // slot.row_bytes
        per = wanted.rows_per
        if rows % per or not (view.strided or view.nbytes == rows * slot.row_bytes):
            raise _errors.InvalidArgument(
                slot.name, f"{view.nbytes} bytes", f"must have whole rows, of {per * slot.row_bytes} bytes"
            )
        return rows // per
    return default


def _check_size(slot: Slot, view: View, bound: Bound, rows: int, exact: bool) -> None:
    """rows: in memory. exact: rows were counted, not given, so other arrays must have as many; else an array may have
    room for more."""
    strided = view.strided
    if strided and not (slot.stride and slot.row_bytes):
        raise _errors.must_be(slot.name, "rows with gaps between them", "a contiguous array; copy it")
    if not slot.row_bytes:
        if view.nbytes != slot.bytes and not (slot.scratch and view.nbytes > slot.bytes):
            raise _errors.InvalidArgument(slot.name, f"{view.nbytes} bytes", f"must have {slot.bytes} bytes")
        return
    if strided:
        _take_stride(slot, view, bound)
    step = bound.strides.get(slot.stride, 0) * slot.row_bytes // max(slot.cols, 1) or slot.row_bytes
    least = (rows - 1) * step + slot.row_bytes if rows else 0
    if view.extent < least or (exact and view.extent != least):
        raise _errors.InvalidArgument(
            slot.name,
            f"{view.extent} bytes",
            f"must have {least} bytes: {rows} rows of {slot.row_bytes}, {step} bytes apart",
        )


def _take_stride(slot: Slot, view: View, bound: Bound) -> None:
    """Makes an array's row stride the launch's argument."""
    if view.row_bytes != slot.row_bytes:
        raise _errors.InvalidArgument(
            slot.name, f"rows of {view.row_bytes} bytes", f"must have rows of {slot.row_bytes} bytes"
        )
    elements, rest = divmod(view.stride * slot.cols, slot.row_bytes)
    if rest:
        raise _errors.InvalidArgument(
            slot.name, f"rows {view.stride} bytes apart", "must have rows whole elements apart"
        )
    given = bound.strides.get(slot.stride, 0)
    if given not in (0, elements):
        raise _errors.must_be(slot.stride, given, f"0, or {elements} as {slot.name} is laid out")
    bound.strides[slot.stride] = elements


def _count(value: int, name: str, bits: int = 63) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise _errors.must_be(name, repr(value), "an integer")
    value = value.__index__()
    if not 0 <= value < 1 << bits:
        raise _errors.must_be(name, value, "0 or more" if bits == 63 else f"0 to 2^{bits} - 1")
    return value
