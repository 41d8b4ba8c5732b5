# SPDX-License-Identifier: Apache-2.0
"""A problem's buffers against a caller's arguments: which array is which buffer, and whether its memory will do. All of
it is checked before anything is launched, so that nothing is read or written out of bounds."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import _arrays, _errors, codec
from ._arrays import View

# The dtypes of formats that are elements, as arrays name them. Bytes are taken for any of them; 16-bit integers for
# floats that NumPy does not have.
_DTYPES = {
    "f32": ("float32",),
    "f16": ("float16", "uint16"),
    "bf16": ("bfloat16", "uint16"),
    "int8": ("int8",),
    "int32": ("int32",),
    "e4m3": ("float8_e4m3fn",),
    "e5m2": ("float8_e5m2",),
}
_BYTES = ("uint8", "raw8")

# The field that has the columns of an operand, by operation; empty where arrays have more axes, in one of two orders.
_COLS = {
    "gemm": {"x": "k", "w": "k", "y": "n", "c": "n", "bias": "n"},
    "conv": dict.fromkeys(("x", "w", "y", "bias", "residual", "cache"), ""),
    "cast": {"x": "cols", "y": "cols"},
    "fused_cast": dict.fromkeys(("x", "y", "bias", "weight", "residual", "residual_out"), "cols"),
    "amax": {"x": "cols"},
    "fake_quant": {"x": "cols", "dy": "cols", "y": "cols"},
    "fp4_fake_quant": {"x": "cols", "y": "cols"},
    "dynamic_block_quantize": {"x": "cols", "y": "cols"},
    "unscale": {"x": "", "y": ""},
    "pack": {"w": "k"},
    "transpose": {"x": "cols", "y": "rows"},
}
# Operands without a field of their own for their format, by operation: the field that has it.
_FORMATS = {
    "conv": {"cache": "x"},
    "fused_cast": {"residual": "x", "residual_out": "x"},
    "fake_quant": {"dy": "x", "y": "x"},
    "unscale": {"y": "x"},
    "transpose": {"y": "x"},
}
# Operands that are single numbers, or tables of them: their dtype, and its bytes.
_NUMBERS = {
    **dict.fromkeys(("amax", "scale", "dscale", "found_inf", "new_scale"), ("float32", 4)),
    **dict.fromkeys(("zero_point", "good_steps", "new_good_steps"), ("int32", 4)),
    "table": ("int64", 8),
}
# Operands that launches may do without.
_OPTIONAL = {"unscale": ("x", "y"), "fake_quant": ("zero_point",)}
# Orders of packed weights.
PACKED = ("tiles", "panels")
# Operands whose rows may lie apart, by the launch's argument that says how far.
STRIDES = {"gemm": {"x": "ldx", "y": "ldy", "c": "ldc"}}


class Slot(NamedTuple):
    """One buffer of a launch."""

    name: str  # "x.data"
    operand: str  # "x"
    stream: str  # "data", "scales", "global"
    bytes: int  # if the size does not follow the rows
    row_bytes: int  # of one row in memory; 0: the size does not follow them
    output: bool
    scratch: bool
    optional: bool
    dtypes: tuple[str, ...]  # of elements; empty: any whose size divides `item`
    item: int
    cols: int  # elements of a row; 0: unknown
    align: int  # bytes
    stride: str  # "ldx", or ""


class Slots(NamedTuple):
    all: tuple[Slot, ...]
    places: dict[str, dict[str, int]]  # of an operand's streams among them
    formats: dict[str, codec.Format]  # of operands that have one; of packed weights only the name is true
    packed: str  # the operand that is stored in tiles or panels, or ""
    rows_per: int  # rows in memory for one row that a launch counts
    default_per: int  # rows that a launch counts for one row of the problem


def slots(problem: Any, launch: bool) -> Slots:
    """What a launch of the problem takes, or its computation on the host: there, sizes are exactly the buffers'."""
    fields, op = problem.fields, problem.op
    groups = int(fields.get("groups", 0)) if op == "gemm" else 0
    masked = fields.get("group_layout") == "masked"
    # Of contiguous groups a launch counts the rows of all, elsewhere those of each.
    rows_per = groups if groups and (masked or not launch) else 1
    packed = "tiles" if op == "pack" else "w" if fields.get("pack") in PACKED else ""
    cols = _COLS.get(op, {})
    found: dict[str, codec.Format] = {}
    out = []
    for buffer in problem.buffers:
        operand, _, stream = buffer.name.partition(".")
        stream = stream or "data"
        same = _FORMATS.get(op, {}).get(operand, operand)
        name = fields.get(operand + "_from") or fields.get(same)
        format = None
        if operand in cols and name is not None:
            format = found[operand] = codec.find(name)
        dtypes: tuple[str, ...] = ()
        item, width, size = 1, 0, buffer.bytes
        align = 16 if stream == "data" and operand not in ("bias", "amax") else 1  # of the others the library knows
        if operand == "group_rows":
            dtypes, item, align = ("int32",), 4, 4
            if launch:  # the buffer is for the tuner, which keeps one table for every step of rows
                size = 4 * (groups if masked else groups + 1)
        elif operand in _NUMBERS:
            dtype, item = _NUMBERS[operand]
            dtypes, align = (dtype,), item
        elif format is not None and operand != packed:
            width = int(fields[cols[operand]]) if cols[operand] else 0
            if op == "fused_cast" and operand == "x" and fields.get("gate"):
                width *= 2
            if format.is_elements:
                dtypes = _DTYPES[format.name]
            elif stream != "data":
                item = format.streams[stream].bytes
        out.append(
            Slot(
                buffer.name,
                operand,
                stream,
                size,
                0 if op == "conv" and launch else buffer.row_bytes // max(groups, 1),
                buffer.output,
                buffer.scratch,
                (op == "pack" and stream == "global") or (launch and operand in _OPTIONAL.get(op, ())),
                dtypes,
                item,
                width,
                align,
                STRIDES.get(op, {}).get(operand, "") if launch and stream == "data" else "",
            )
        )
    return Slots(tuple(out), places(out), found, packed, rows_per, max(groups, 1) // rows_per)


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
    """Finds the array of every buffer and checks it. ordinal: the GPU of a launch, None or -1: on the host. rows None:
    those that the first array has which follows them, else default_rows. Raises InvalidArgument naming the argument."""
    given = _values(wanted, values)
    bound = Bound()
    bound.strides = {name: _count(value, name) for name, value in strides.items()}
    exact = rows is None
    try:
        for slot, value in zip(wanted.all, given):
            if value is None:
                if not slot.optional:
                    raise _errors.InvalidArgument(slot.name, "None", "an array is required")
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
                raise _errors.InvalidArgument(
                    slot.name,
                    f"an address of remainder {view.pointer % slot.align}",
                    f"{slot.align}-byte aligned memory",
                )
            if view.dtype:
                _check_size(slot, view, bound, bound.rows * wanted.rows_per, exact)
    except BaseException:
        bound.close()
        raise
    return bound


def _values(wanted: Slots, values: dict[str, Any]) -> list[Any]:
    """The argument of every buffer; None where there is none."""
    out: list[Any] = [None] * len(wanted.all)
    for name, value in values.items():
        operand, _, stream = name.partition(".")
        places = wanted.places.get(operand)
        if places is None or (stream and stream not in places):
            raise _errors.InvalidArgument(
                name, type(value).__name__, f"None: this problem has {', '.join(s.name for s in wanted.all)}"
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
                    raise _errors.InvalidArgument(
                        f"{name}.{part}", type(given).__name__, "None: there is no such stream"
                    )
    return out


def _streams(wanted: Slots, operand: str, value: Any) -> codec.Streams:
    if operand != wanted.packed:
        return codec.streams_of(value, wanted.formats.get(operand), operand)
    if isinstance(value, codec.Encoded):
        raise _errors.InvalidArgument(operand, repr(value), "packed weights: Engine.pack(), Problem.pack_weights()")
    return codec.streams_of(value, None, operand)


def _check_kind(slot: Slot, view: View, ordinal: int | None) -> None:
    """Whose memory it is, and of what type."""
    if ordinal is not None and ordinal < 0:  # a CPU's launch
        ordinal = None
    if ordinal is None and view.device != _arrays.HOST:
        raise _errors.InvalidArgument(slot.name, "memory of a GPU", "memory of the host")
    if ordinal is not None and view.device == _arrays.HOST:
        raise _errors.InvalidArgument(slot.name, "memory of the host", f"memory of GPU {ordinal}; copy it there")
    if ordinal is not None and view.ordinal is not None and view.ordinal != ordinal:
        raise _errors.InvalidArgument(slot.name, f"memory of GPU {view.ordinal}", f"memory of GPU {ordinal}")
    if view.readonly and (slot.output or slot.scratch):
        raise _errors.InvalidArgument(slot.name, "memory that is read-only", "memory that can be written")
    if view.dtype in _BYTES:
        return
    if view.dtype not in slot.dtypes if slot.dtypes else slot.item % max(view.itemsize, 1):
        allowed = (
            ", ".join(slot.dtypes) + " or uint8" if slot.dtypes else f"uint8, or items that divide {slot.item} bytes"
        )
        raise _errors.InvalidArgument(slot.name, f"dtype {view.dtype}", allowed)
    if slot.dtypes and slot.cols and len(view.shape) > 1 and view.shape[-1] != slot.cols:
        raise _errors.InvalidArgument(slot.name, f"shape {view.shape}", f"a last dimension of {slot.cols}")


def _rows_of(wanted: Slots, bound: Bound, default: int) -> int:
    """The rows that the first array has which follows them."""
    for slot, view in zip(wanted.all, bound.views):
        if not slot.row_bytes or not view.dtype:
            continue
        if bound.strides.get(slot.stride) and not view.strided:
            raise _errors.InvalidArgument("m", "None", f"the number of rows, since {slot.stride} is given")
        rows = view.rows if view.strided else view.nbytes // slot.row_bytes
        per = wanted.rows_per
        if rows % per or not (view.strided or view.nbytes == rows * slot.row_bytes):
            raise _errors.InvalidArgument(
                slot.name, f"{view.nbytes} bytes", f"whole rows, of {per * slot.row_bytes} bytes"
            )
        return rows // per
    return default


def _check_size(slot: Slot, view: View, bound: Bound, rows: int, exact: bool) -> None:
    """rows: in memory. exact: they were counted, not given, so that other arrays have to have as many; else an array
    may have room for more."""
    strided = view.strided
    if strided and not (slot.stride and slot.row_bytes):
        raise _errors.InvalidArgument(slot.name, "rows with gaps between them", "a contiguous array; copy it")
    if not slot.row_bytes:
        if view.nbytes != slot.bytes and not (slot.scratch and view.nbytes > slot.bytes):
            raise _errors.InvalidArgument(slot.name, f"{view.nbytes} bytes", f"{slot.bytes} bytes")
        return
    if strided:
        _take_stride(slot, view, bound)
    step = bound.strides.get(slot.stride, 0) * slot.row_bytes // max(slot.cols, 1) or slot.row_bytes
    least = (rows - 1) * step + slot.row_bytes if rows else 0
    if view.extent < least or (exact and view.extent != least):
        raise _errors.InvalidArgument(
            slot.name, f"{view.extent} bytes", f"{least} bytes: {rows} rows of {slot.row_bytes}, {step} bytes apart"
        )


def _take_stride(slot: Slot, view: View, bound: Bound) -> None:
    """The distance of an array's rows as the launch's argument."""
    if view.row_bytes != slot.row_bytes:
        raise _errors.InvalidArgument(slot.name, f"rows of {view.row_bytes} bytes", f"rows of {slot.row_bytes} bytes")
    elements, rest = divmod(view.stride * slot.cols, slot.row_bytes)
    if rest:
        raise _errors.InvalidArgument(slot.name, f"rows {view.stride} bytes apart", "a distance of whole elements")
    given = bound.strides.get(slot.stride, 0)
    if given not in (0, elements):
        raise _errors.InvalidArgument(slot.stride, str(given), f"0, or {elements} as {slot.name} is laid out")
    bound.strides[slot.stride] = elements


def _count(value: int, name: str) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise _errors.InvalidArgument(name, repr(value), "an integer is required")
    value = value.__index__()
    if not 0 <= value < 1 << 63:
        raise _errors.InvalidArgument(name, str(value), "0 or more")
    return value
