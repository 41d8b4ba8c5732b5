# SPDX-License-Identifier: Apache-2.0
"""Formats, which say how a matrix is stored, and the reference codecs of all of them, on the host.

    w = tilewright.encode(array, "q4_0")      # array: [rows, cols] floats
    w.data, w.scales, w.global_scale          # bytes, as kernels read them
    tilewright.decode(w)                      # [rows, cols] float32

Objects are values. Functions may be called from any thread and need no GPU."""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any, NamedTuple

from . import _arrays, _c, _errors
from ._c import lib

STREAMS = ("data", "scales", "global")
_SCOPES = {0: "block", 1: "row", 2: "tensor"}
# Fewer elements are not worth another thread: these take the slowest encoder about a millisecond.
_WORTH_A_THREAD = 1 << 18


class StreamSpec(NamedTuple):
    """One byte stream of a format, with an item of `bytes` for each `scope`: "block", "row" or "tensor". Each `rows`
    rows, from the first one on, share an item."""

    scope: str
    bytes: int
    rows: int


class Format(NamedTuple):
    """What the library knows of a format. `block`: elements of a row that share an item; rows are whole blocks. `bits`:
    of one code. `encoders`: rules of rounding, the first is the default. `streams`: those that it has of "data",
    "scales" and "global"."""

    name: str
    title: str
    block: int
    bits: int
    encoders: tuple[str, ...]
    streams: dict[str, StreamSpec]
    layout_version: int
    source: str

    def stream_bytes(self, stream: str, rows: int, cols: int) -> int:
        """Bytes of a stream of a rows x cols matrix; 0 if the format has no such stream."""
        if stream not in STREAMS:
            raise _errors.must_be("stream", repr(stream), f"one of {', '.join(STREAMS)}")
        out = ctypes.c_int64()
        name = _c.text(self.name, "format")
        lib.tw_stream_bytes(name, STREAMS.index(stream), rows, cols, ctypes.byref(out))
        return out.value

    @property
    def is_elements(self) -> bool:
        """Whether its data are the elements and nothing else (f32, bf16, int8 ...)."""
        return self.block == 1 and len(self.streams) == 1


class Streams(NamedTuple):
    """The streams of one matrix, in any memory, as launches take an operand. A stream that the format lacks is None."""

    data: Any
    scales: Any = None
    global_scale: Any = None


class Encoded:
    """A rows x cols matrix in a format, on the host. data, scales, global_scale: NumPy arrays of uint8 (global_scale:
    of one float32), or bytearrays where there is no NumPy; None where the format has no such stream."""

    __slots__ = ("cols", "data", "format", "global_scale", "rows", "scales")

    def __init__(
        self, format: str | Format, rows: int, cols: int, data: Any, scales: Any = None, global_scale: Any = None
    ) -> None:
        self.format = format if isinstance(format, Format) else find(format)
        self.rows = rows
        self.cols = cols
        self.data = data
        self.scales = scales
        self.global_scale = global_scale

    @property
    def streams(self) -> Streams:
        return Streams(self.data, self.scales, self.global_scale)

    @property
    def nbytes(self) -> int:
        return sum(self.format.stream_bytes(s, self.rows, self.cols) for s in STREAMS)

    def __repr__(self) -> str:
        return f"Encoded({self.format.name}, {self.rows} x {self.cols}, {self.nbytes} bytes)"


def formats() -> tuple[Format, ...]:
    """All formats, in alphabetical order."""
    return _all()


@functools.lru_cache(None)
def _all() -> tuple[Format, ...]:
    out = []
    for i in range(lib.tw_format_count()):
        info = _c.FormatInfo()
        lib.tw_format_at(i, ctypes.byref(info))
        encoders = []
        for e in range(info.encoders):
            name = ctypes.c_char_p()
            lib.tw_format_encoder(info.name, e, ctypes.byref(name))
            encoders.append(_c.string(name.value))
        streams = {
            STREAMS[s]: StreamSpec(_SCOPES[info.stream_scope[s]], info.stream_bytes[s], info.stream_rows[s])
            for s in range(3)
            if info.stream_scope[s] >= 0
        }
        out.append(
            Format(
                name=_c.string(info.name),
                title=_c.string(info.title),
                block=info.block,
                bits=info.bits,
                encoders=tuple(encoders),
                streams=streams,
                layout_version=info.layout_version,
                source=_c.string(info.source),
            )
        )
    return tuple(out)


def find(name: str, field: str = "format") -> Format:
    """A format by name. Raises InvalidArgument for the field, suggesting the nearest names and listing all."""
    _c.text(name, field)
    for format in _all():
        if format.name == name:
            return format
    import difflib

    names = sorted(format.name for format in _all())
    others = {"fp8": ["e4m3_row"], "int8": ["int8_row"], "fp16": ["f16"], "float16": ["f16"], "bfloat16": ["bf16"]}
    near = others.get(name) or difflib.get_close_matches(name, names, 3) or [n for n in names if n.startswith(name)][:3]
    meant = f"{' or '.join(near)} (did you mean that?), or another of " if near else "one of "
    raise _errors.must_be(field, name, f"{meant}{', '.join(names)}")


def encode(
    array: Any,
    format: str | Format,
    encoder: str | None = None,
    *,
    global_scale: float | None = None,
    threads: int | None = None,
) -> Encoded:
    """Encodes floats. array: [..., cols] of float32, float16, bfloat16 or (with NumPy) float64 in host memory; all but
    the last dimension are rows. cols is a multiple of the format's block. encoder: one of Format.encoders.
    global_scale: the tensor's factor, for formats that have one; None: derived from the largest magnitude. threads: at
    most this many; None: one per core. Raises InvalidArgument naming the argument."""
    format = format if isinstance(format, Format) else find(format)
    rows, cols, values, keep = _floats(array, "array")
    if format.block > 1 and cols % format.block:
        raise _errors.InvalidArgument(
            "array", f"{cols} columns", f"must have a multiple of {format.block} columns, {format.name}'s block"
        )
    out = empty(format, rows, cols)
    if out.global_scale is not None:
        factor = ctypes.c_float(global_scale if global_scale is not None else 0.0)
        if global_scale is None:
            name = _c.text(format.name, "format")
            lib.tw_global_for(name, _largest(values, rows * cols), ctypes.byref(factor))
        _write(out.global_scale, factor)
    elif global_scale is not None:
        raise _errors.must_be("global_scale", global_scale, f"None: {format.name} has no such factor")
    rule = None if encoder is None else _c.text(encoder, "encoder")
    to = _addresses(out)

    def block(first: int, count: int) -> None:
        lib.tw_encode(
            _c.text(format.name, "format"), rule, values + 4 * first * cols, count, cols, _from_row(out, to, first)
        )

    _in_blocks(block, format, rows, cols, threads)
    del keep
    return out


def decode(
    matrix: Encoded | Any,
    format: str | Format | None = None,
    rows: int | None = None,
    cols: int | None = None,
    *,
    threads: int | None = None,
) -> Any:
    """The exact values of an encoded matrix, [rows, cols] float32: a NumPy array, or an array.array where there is no
    NumPy. matrix: an Encoded; or an array or tuple (data, scales, global_scale), with format, rows and cols. Raises
    InvalidArgument naming the stream whose bytes are too few or too many."""
    if isinstance(matrix, Encoded):
        format, rows, cols = matrix.format, matrix.rows, matrix.cols
    elif format is None or rows is None or cols is None:
        raise _errors.must_be("matrix", type(matrix).__name__, "an Encoded, or come with format, rows and cols")
    format = format if isinstance(format, Format) else find(format)
    given = Encoded(format, rows, cols, *streams_of(matrix, format, "matrix"))
    views = _views(given, "matrix")
    try:
        operand = _c.Operand(*(v.pointer if v else None for v in views))
        out = _arrays.allocate(4 * rows * cols)
        at = _arrays.view(out, "result").pointer

        def block(first: int, count: int) -> None:
            name = _c.text(format.name, "format")
            lib.tw_decode(name, _from_row(given, operand, first), count, cols, at + 4 * first * cols)

        _in_blocks(block, format, rows, cols, threads)
    finally:
        for v in views:
            if v:
                v.close()
    if isinstance(out, bytearray):
        import array

        return array.array("f", bytes(out))
    return _arrays.typed(out, "f32", (rows, cols))


def streams_of(value: Any, format: Format | None, name: str) -> Streams:
    """The streams of an operand: an Encoded, a Streams, a tuple with one item for each of the format's streams, or one
    array for the data."""
    if isinstance(value, Encoded):
        if format is not None and value.format != format:
            raise _errors.must_be(name, value.format.name, f"a matrix of format {format.name}")
        return value.streams
    if not isinstance(value, (tuple, list)):
        return Streams(value)
    if format is not None and len(value) == len(format.streams) != 3:
        given = dict(zip(format.streams, value))
        return Streams(*(given.get(s) for s in STREAMS))
    if 1 <= len(value) <= 3:
        return Streams(*value)
    raise _errors.must_be(name, f"{len(value)} items", "an array, or a tuple (data, scales, global_scale)")


def empty(format: Format, rows: int, cols: int) -> Encoded:
    sizes = (format.stream_bytes(s, rows, cols) for s in STREAMS)
    streams = [_arrays.allocate(n) if s in format.streams else None for s, n in zip(STREAMS, sizes)]
    if streams[2] is not None:
        streams[2] = _arrays.typed(streams[2], "f32", (1,))
    return Encoded(format, rows, cols, *streams)


def _views(matrix: Encoded, name: str) -> list[_arrays.View | None]:
    views: list[_arrays.View | None] = []
    for stream, value in zip(STREAMS, matrix.streams):
        part = f"{name}.{stream}"
        if stream not in matrix.format.streams:
            if value is not None:
                raise _errors.must_be(part, type(value).__name__, f"None: {matrix.format.name} has no {stream}")
            views.append(None)
            continue
        if value is None:
            raise _errors.must_be(part, "None", f"given: {matrix.format.name} has a stream of {stream}")
        views.append(on_host(value, part, matrix.format.stream_bytes(stream, matrix.rows, matrix.cols)))
    return views


def on_host(value: Any, name: str, count: int | None = None) -> _arrays.View:
    """Dense memory of the host, of `count` bytes."""
    view = _arrays.view(value, name)
    if view.dtype == "":
        view.row_bytes = count or 0
        return view
    if view.device != _arrays.HOST:
        raise _errors.must_be(name, "memory of a GPU", "memory of the host; copy it there")
    if view.strided:
        raise _errors.must_be(name, "rows with gaps between them", "a contiguous array; copy it")
    if count is not None and view.nbytes != count:
        raise _errors.InvalidArgument(name, f"{view.nbytes} bytes", f"must have {count} bytes")
    return view


def _addresses(matrix: Encoded) -> _c.Operand:
    return _c.Operand(*(None if s is None else _arrays.view(s, "result").pointer for s in matrix.streams))


def _write(array: Any, value: ctypes.c_float) -> None:
    ctypes.memmove(_arrays.view(array, "result").pointer, ctypes.byref(value), 4)


def _from_row(matrix: Encoded, operand: _c.Operand, first: int) -> _c.Operand:
    """The streams from row `first` on, which must begin an item."""
    out = _c.Operand(operand.data, operand.scales, operand.global_scale)
    if first:
        out.data += matrix.format.stream_bytes("data", first, matrix.cols)
        if out.scales:
            out.scales += matrix.format.stream_bytes("scales", first, matrix.cols)
    return out


def _in_blocks(work: Any, format: Format, rows: int, cols: int, threads: int | None) -> None:
    """Calls work(first, count) over blocks of rows, in several threads where that is worth it. No block begins inside
    the rows that share an item."""
    share = max(s.rows for s in format.streams.values())
    most = threads if threads is not None else len(os.sched_getaffinity(0))
    if most < 1:
        raise _errors.must_be("threads", threads, "at least 1")
    count = min(most, rows // share, rows * cols // _WORTH_A_THREAD)
    if count <= 1:
        work(0, rows)
        return
    from concurrent.futures import ThreadPoolExecutor

    step = -(-rows // count // share) * share
    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(work, first, min(step, rows - first)) for first in range(0, rows, step)]:
            done.result()


def _largest(values: int, count: int) -> float:
    """The largest magnitude of `count` floats; NaNs are ignored."""
    numpy = _arrays.numpy_or_none()
    floats = (ctypes.c_float * count).from_address(values) if count else ()
    if numpy is None:
        return max((abs(v) for v in floats if v == v), default=0.0)
    return float(numpy.fmax.reduce(numpy.abs(numpy.frombuffer(floats, numpy.float32)), initial=0.0)) if count else 0.0


def _floats(array: Any, name: str) -> tuple[int, int, int, Any]:
    """Rows, columns, the address of float32 values, and their owner."""
    view = _arrays.view(array, name)
    if view.dtype == "":
        raise _errors.must_be(name, hex(array), "an array, which has a shape")
    if view.device != _arrays.HOST:
        raise _errors.must_be(name, "memory of a GPU", "memory of the host; or launch a cast")
    cols = view.shape[-1] if view.shape else 1
    rows = view.nbytes // view.itemsize // cols if cols else 0
    dense = not view.strided
    if dense and view.dtype == "float32":
        return rows, cols, view.pointer, (view, array)
    if dense and view.dtype in ("float16", "bfloat16"):
        wide = _arrays.allocate(4 * rows * cols)
        at = _arrays.view(wide, name).pointer
        lib.tw_decode(b"f16" if view.dtype == "float16" else b"bf16", _c.Operand(view.pointer), rows, cols, at)
        return rows, cols, at, wide
    numpy = _arrays.numpy_or_none()
    if view.dtype in ("float16", "float32", "float64") and numpy is not None:
        wide = numpy.ascontiguousarray(array, numpy.float32)
        return rows, cols, wide.ctypes.data, wide
    raise _errors.must_be(name, view.dtype, "float32, float16, bfloat16, or with NumPy float64, in dense rows")
