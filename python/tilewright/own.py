# SPDX-License-Identifier: Apache-2.0
"""Your own kernel, with your own knobs, through the same compiler, tuner and cache. Needs NumPy.

task = tilewright.Task(
    "saxpy cols=4096", SOURCE, "saxpy", rows=4096, cols=4096,
    knobs={"threads": [256, 128, 512], "items": [4, 1, 2, 8]},
    launch=lambda k: Launch(threads=k["threads"], x=Grid(per_cols=k["threads"] * k["items"]), y=Grid(per_rows=1)),
    arrays=[Array("x", "float32", ("rows", 4096)), Array("out", "float32", ("rows", 4096), output=True)],
    arguments=lambda at, rows: Args(at["x"], at["out"], 2.0, rows, 4096),     # a ctypes.Structure
    compare=lambda out, given, rows: abs(out["out"] - 2 * given["x"]).max() < 1e-5,
)
engine.tune(task)
engine.prepare(task).launch(x=x, out=out)
"""

from __future__ import annotations

import ctypes
import itertools
import math
import struct
from typing import Any, Callable, Mapping, NamedTuple, Sequence, Union

from . import _c, _errors, _operands
from ._c import lib
from ._handles import Calls, Handle

Knobs = Mapping[str, int]


class Grid(NamedTuple):
    """Blocks along an axis: fixed * ceil(rows / per_rows) * ceil(cols / per_cols); 0 leaves a factor out."""

    fixed: int = 1
    per_rows: int = 0
    per_cols: int = 0


class Launch(NamedTuple):
    """How a candidate is launched. threads: per block; cluster: blocks along x; shared_bytes: dynamic."""

    threads: int
    x: Grid = Grid()
    y: Grid = Grid()
    z: Grid = Grid()
    cluster: int = 1
    shared_bytes: int = 0


class Array(NamedTuple):
    """Memory that the kernel reads or writes. shape: its first dimension may be "rows", those of the launch. output:
    written, and compared; scratch: zero before the first launch, then left to the kernels. fill: for an input, a
    function of (numpy.random.Generator, shape) that returns an array; None: floats from -1 to 1, integers from -8 to
    7."""

    name: str
    dtype: str
    shape: tuple[Union[int, str], ...]
    output: bool = False
    scratch: bool = False
    fill: Union[Callable[[Any, tuple[int, ...]], Any], None] = None


class Task(Handle):
    """What the tuner needs to choose among your kernels. Use from one thread at a time.

    key: names the computation; choices are stored under it. source: CUDA text, in which every knob is a macro, named in
    capitals; or a function of the knobs that returns the text. entry: an extern "C" __global__ function. knobs: lists,
    whose combinations are all tried, first values first; or a list of dicts. Put the best guess first; the last
    candidate must be legal everywhere. launch: a function of the knobs. rows, cols: extents to measure at.

    arguments: a function of (addresses by name, rows) that returns the kernel's only parameter: a ctypes.Structure,
    bytes, or with `layout` (a format of the module struct) the tuple to pack.

    compare: a function of (outputs, inputs, rows), dicts of NumPy arrays by name. Returns True or None if results are
    right, else False or a sentence. Called with verify_rows rows.

    Exceptions that these functions raise come out of the engine's call unchanged."""

    def __init__(
        self,
        key: str,
        source: str | Callable[[Knobs], str],
        entry: str,
        *,
        rows: int,
        cols: int,
        knobs: Mapping[str, Sequence[int]] | Sequence[Knobs],
        launch: Callable[[Knobs], Launch],
        arrays: Sequence[Array],
        arguments: Callable[[dict[str, int], int], Any],
        compare: Callable[[dict[str, Any], dict[str, Any], int], Any],
        layout: str | None = None,
        verify_rows: int | None = None,
        min_bytes: float | None = None,
        ops: float = 0,
    ) -> None:
        import numpy

        self._numpy = numpy
        self.key, self.entry, self.rows, self.cols = key, entry, rows, cols
        self.arrays = tuple(arrays)
        self.calls = Calls()
        """Catches what the functions raise. (For the package itself.)"""
        self._text, self._launch, self._arguments, self._compare, self._layout = (
            source,
            launch,
            arguments,
            compare,
            layout,
        )
        self.candidates = _candidates(entry, knobs)
        """ "saxpy threads=256 items=4" and so on, in the order of the knobs."""
        self.slots = _slots(self.arrays, numpy)
        """Its buffers. (For the package itself.)"""
        self._sources: dict[bytes, tuple[bytes, bytes]] = {}  # C reads them until the thread's next call
        self._wrong = ctypes.create_string_buffer(1)
        guard = self.calls.guard
        self._callbacks = (
            _c.TaskSpecSource(guard(self._on_source, 1)),
            _c.TaskSpecFill(guard(self._on_fill, 1)),
            _c.TaskSpecArguments(guard(self._on_arguments, -1)),
            _c.TaskSpecCompare(guard(self._on_compare, ctypes.addressof(self._failed))),
        )
        names = [_c.text(array.name, "arrays") for array in self.arrays]
        buffers = (_c.TaskBuffer * len(names))(
            *(
                _c.TaskBuffer(
                    name=name,
                    output=int(a.output),
                    scratch=int(a.scratch),
                    bytes=slot.bytes or slot.row_bytes * rows,
                    row_bytes=slot.row_bytes,
                )
                for name, a, slot in zip(names, self.arrays, self.slots.all)
            )
        )
        texts = [_c.text(candidate, "knobs") for candidate in self.candidates]
        moved = sum(b.bytes for b in buffers if not b.scratch)
        spec = _c.TaskSpec(
            key=_c.text(key, "key"),
            rows=rows,
            cols=cols,
            candidates=_c.texts(texts),
            candidate_count=len(texts),
            buffers=buffers,
            buffer_count=len(names),
            verify_rows=min(rows, 17) if verify_rows is None else verify_rows,
            min_bytes=moved if min_bytes is None else min_bytes,
            ops=ops,
        )
        spec.source, spec.fill, spec.arguments, spec.compare = self._callbacks
        handle = ctypes.c_void_p()
        lib.tw_task_create(ctypes.byref(spec), ctypes.byref(handle))
        self._own("task", handle)

    _failed = ctypes.create_string_buffer(b"compare() raised")

    def source(self, candidate: str) -> str:
        """The CUDA text of a candidate."""
        knobs = _knobs(candidate)
        if callable(self._text):
            return self._text(knobs)
        return "".join(f"#define {name.upper()} {value}\n" for name, value in knobs.items()) + "#line 1\n" + self._text

    def parameters(self, pointers: Sequence[int], rows: int) -> bytes:
        """The kernel's parameter for the arrays' addresses, in their order."""
        given = self._arguments({array.name: at for array, at in zip(self.arrays, pointers)}, rows)
        return struct.pack(self._layout, *given) if self._layout is not None else bytes(given)

    def __str__(self) -> str:
        return self.key

    # ---- what C calls

    def _on_source(self, user: int, candidate: bytes, text: Any, entry: Any, plan: Any) -> int:
        name = candidate.decode()
        if candidate not in self._sources:
            written = (_c.text(self.source(name), "source"), _c.text(self.entry, "entry"))
            self._sources.setdefault(candidate, written)
        for out, value in zip((text, entry), self._sources[candidate]):
            out[0] = ctypes.cast(ctypes.c_char_p(value), ctypes.c_void_p)
        launch = self._launch(_knobs(name))
        to = plan.contents
        to.threads, to.cluster, to.shared_bytes = launch.threads, launch.cluster, launch.shared_bytes
        to.x, to.y, to.z = (_c.GridAxis(*axis) for axis in (launch.x, launch.y, launch.z))
        return 0

    def _on_fill(self, user: int, buffer: int, at: int, size: int, seed: int) -> int:
        array, slot = self.arrays[buffer], self.slots.all[buffer]
        shape = _shape(array, size // slot.row_bytes if slot.row_bytes else 0)
        content = self._content(array, shape, seed)
        if content.nbytes != size:
            raise _errors.must_be(f"fill of {array.name}", f"shape {content.shape}", f"an array of shape {shape}")
        ctypes.memmove(at, content.ctypes.data, size)
        return 0

    def _content(self, array: Array, shape: tuple[int, ...], seed: int) -> Any:
        numpy = self._numpy
        random, dtype = numpy.random.default_rng(seed), numpy.dtype(array.dtype)
        if array.fill is not None:
            content = array.fill(random, shape)
        elif dtype.kind in "iu":
            content = random.integers(0 if dtype.kind == "u" else -8, 8, shape)
        else:
            content = random.uniform(-1, 1, shape)
        return numpy.ascontiguousarray(content, dtype)

    def _on_arguments(self, user: int, pointers: Any, rows: int, params: int, capacity: int) -> int:
        packed = self.parameters([pointers[i] or 0 for i in range(len(self.arrays))], rows)
        if len(packed) > capacity:
            raise _errors.TooLarge("arguments", f"{len(packed)} bytes", f"must be at most {capacity}")
        ctypes.memmove(params, packed, len(packed))
        return len(packed)

    def _on_compare(self, user: int, outputs: Any, inputs: Any, rows: int) -> int | None:
        got = self._arrays_at(outputs, [a for a in self.arrays if a.output], rows)
        given = self._arrays_at(inputs, [a for a in self.arrays if not a.output], rows)
        verdict = self._compare(got, given, rows)
        if verdict is None or verdict == "" or (not isinstance(verdict, str) and verdict):
            return None
        sentence = verdict if isinstance(verdict, str) else "compare() says that it is wrong"
        self._wrong = ctypes.create_string_buffer(sentence.encode("utf-8", "replace"))
        return ctypes.addressof(self._wrong)

    def _arrays_at(self, pointers: Any, arrays: Sequence[Array], rows: int) -> dict[str, Any]:
        """Copies, since a caller may keep them."""
        out = {}
        for i, array in enumerate(arrays):
            shape, dtype = _shape(array, rows), self._numpy.dtype(array.dtype)
            size = math.prod(shape) * dtype.itemsize
            out[array.name] = self._numpy.frombuffer(ctypes.string_at(pointers[i], size), dtype).reshape(shape)
        return out


def _candidates(family: str, knobs: Mapping[str, Sequence[int]] | Sequence[Knobs]) -> list[str]:
    if isinstance(knobs, Mapping):
        combinations: list[Knobs] = [dict(zip(knobs, values)) for values in itertools.product(*knobs.values())]
    else:
        combinations = list(knobs)
    return [" ".join([family, *(f"{name}={int(value)}" for name, value in of.items())]) for of in combinations]


def _knobs(candidate: str) -> dict[str, int]:
    return {name: int(value) for name, _, value in (word.partition("=") for word in candidate.split()[1:])}


def _shape(array: Array, rows: int) -> tuple[int, ...]:
    return tuple(rows if extent == "rows" else int(extent) for extent in array.shape)


def _slots(arrays: Sequence[Array], numpy: Any) -> _operands.Slots:
    out = []
    for array in arrays:
        if "rows" in array.shape[1:]:
            raise _errors.must_be(array.name, f"shape {array.shape}", '"rows" as its first dimension alone')
        dtype = numpy.dtype(array.dtype)
        follows = array.shape[:1] == ("rows",)
        row = math.prod(int(extent) for extent in array.shape[1 if follows else 0 :])
        out.append(
            _operands.Slot(
                name=array.name,
                operand=array.name,
                stream="data",
                bytes=0 if follows else row * dtype.itemsize,
                row_bytes=row * dtype.itemsize if follows else 0,
                output=array.output,
                scratch=array.scratch,
                optional=False,
                dtypes=(dtype.name,),
                item=dtype.itemsize,
                cols=0,
                align=dtype.itemsize,
                stride="",
            )
        )
    return _operands.Slots(tuple(out), _operands.places(out))
