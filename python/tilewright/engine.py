# SPDX-License-Identifier: Apache-2.0
"""Engine: ask for a kernel by problem. Kernel: launch it. Nothing here prints; an engine's `log` says what happens."""

from __future__ import annotations

import ctypes
import os
import sys
from _thread import allocate_lock  # threading itself takes milliseconds to import
from typing import Any, Callable, Iterable, Sequence, Union

from . import _c, _errors, _operands, codec, reports
from ._c import lib
from ._handles import Calls, Handle
from .device import Device, device_count, stream_handle
from .own import Task
from .problem import Problem, as_problem, read_workload

Progress = Union[None, bool, Callable[[str, int, int], Any]]

_LEVELS = ("error", "warning", "info", "debug")

class Kernel(Handle):
    """A prepared problem: for any number of rows, launched from any thread, safe under stream capture. It must outlive
    the CUDA graphs that captured its launches. Engine.prepare() makes it."""

    def __init__(self, handle: ctypes.c_void_p, subject: Problem | Task, device: Device) -> None:
        self._own("kernel", handle)
        self._raw_gemm = _c.raw_launch("tw_launch_gemm")
        self.subject = subject
        """The problem or task that it computes."""
        self.device = device

    def launch(self, stream: Any = None, *, rows: int | None = None, **arguments: Any) -> None:
        """Enqueues a launch on `stream` (an integer, a Stream, or an object of PyTorch's or CuPy's; None: the legacy
        default stream). Compiles, allocates and waits for nothing.

        arguments: the problem's buffers and values (Problem.buffers, Problem.values), by name. Name a buffer by
        operand, x, or by stream, **{"x.scales": array}. It is an array in the GPU's memory, a tuple (data, scales,
        global_scale), a Streams, or an address. Arrays have the format's type or uint8. A gemm's are x [m, k], w [n,
        k], y and c [m, n], bias [n]; rows may have gaps (ldx, ldy and ldc follow from the array, or are given in
        elements). A conv's are contiguous in its layouts (for channels_last tensors pass x.permute(0, 2, 3, 1)). A
        workspace must be zero when first used. Values are numbers: alpha and beta, of this call; a cast's seed, of 64
        bits. A Task takes its arrays by name.

        rows: of this call, also by the problem's name for them (m of a gemm, pieces of an unscale); with contiguous
        groups, of all groups. None: the first array's, which all others must match; a number: arrays may have room for
        more.

        Everything but an address is checked before anything is launched: InvalidArgument names the argument. The arrays
        must stay allocated until the launch has ended."""
        on = stream_handle(stream)
        if not isinstance(self.subject, Problem):
            given = {name: value for name, value in arguments.items() if value is not None}
            self._launch_task(self.subject, given, on, rows)
            return
        wanted = self.subject.slots(True)
        bound, values = _operands.bind_launch(wanted, self.subject, arguments, rows, self.device.ordinal, on)
        try:
            pointers = (ctypes.c_void_p * len(bound.pointers))(*bound.pointers)
            taken = bound.rows if wanted.rows_name else self.subject.rows
            lib.tw_launch_buffers(self, on, pointers, len(pointers), taken, values, len(values))
        finally:
            bound.close()

    def launch_raw(self, stream: int | None, x: int, w: int, w_scales: int | None, y: int, m: int) -> None:
        """The common gemm as a bare C call, with addresses and a stream's handle: dense x and y, no bias, residual or
        workspace. Only the library itself checks. Takes about a microsecond."""
        if self._raw_gemm(self._handle, stream, x, w, w_scales, y, m):
            _c.raise_last()

    def _launch_task(self, task: Task, values: dict[str, Any], on: int, rows: int | None) -> None:
        count = task.rows if rows is None else rows
        bound = _operands.bind(task.slots, values, rows, count, {}, self.device.ordinal, on)
        try:
            params = task.parameters(bound.pointers, bound.rows)
            lib.tw_launch(self, on, params, len(params), bound.rows, task.cols)
        finally:
            bound.close()

    def describe(self, rows: int | None = None) -> reports.KernelInfo:
        """The binary that serves a number of rows (None: the problem's)."""
        info, candidate = _c.KernelInfo(), ctypes.c_void_p()
        count = self.subject.rows if rows is None else rows
        lib.tw_kernel_describe(self, count, ctypes.byref(info), ctypes.byref(candidate))
        return reports.kernel_info(info, _c.take(candidate))

    def candidate(self, rows: int | None = None) -> str:
        """The candidate that serves a number of rows: "mma block_m=128 block_n=128 stages=3"."""
        return self.describe(rows).candidate

    def check_pointers(self, on: bool = True) -> None:
        """Sets whether each launch asks the driver about its pointers. Off by default, since it costs microseconds."""
        lib.tw_kernel_check_pointers(self, int(on))

    def __repr__(self) -> str:
        return f"Kernel({str(self.subject)!r} on {self.device.name})"


class Engine(Handle):
    """Makes, chooses, stores and finds kernels. Usable from any thread; after fork() make a new one in the child.

    Options, on top of those of the environment: cache (a path, ":memory:"), shipped (paths), cache_cap (bytes),
    prepared_cap, cache_read_only, allow_shared, nvrtc (a path), llvm (a path), same_nvrtc, driver (a path), templates,
    record, tune, compile, jobs, check_pointers, log_level ("error", "warn", "info", "debug"), log_launches, nvtx
    ("1" or a path), and log: a function of (level, text) that is called from any thread, one call at a time, and must
    not call the engine. Raises InvalidArgument for an unknown one."""

    def __init__(self, *, log: Callable[[str, str], Any] | None = None, **options: Any) -> None:
        self._log: Any = None
        self._driver: str | os.PathLike[str] | None = (
            options.get("driver") or os.environ.get("TILEWRIGHT_DRIVER") or None
        )
        self._default: Device | None = None
        self._lock = allocate_lock()
        handle, made = ctypes.c_void_p(), ctypes.c_void_p()
        lib.tw_options_create(ctypes.byref(handle))
        try:
            nvrtc = nvrtc_of_environment()
            if nvrtc is not None and "nvrtc" not in options:
                options = {"nvrtc": nvrtc, **options}
            for name, value in options.items():
                _set_option(handle, name, value)
            if log is not None:
                # It lives as long as the engine.
                self._log = _c.Log(lambda user, level, text: log(_LEVELS[level], _c.string(text)))
                lib.tw_options_set_log(handle, self._log, None)
            lib.tw_engine_create(handle, ctypes.byref(made))
        finally:
            lib.tw_options_release(handle)
        self._own("engine", made)

    # ---- kernels

    def device(self) -> Device:
        """The device of calls that name none: GPU 0, or this machine's CPU if there is no GPU and no driver was named.
        Opened on first use."""
        with self._lock:
            if self._default is None:
                cpu = self._driver is None and device_count() == 0
                self._default = Device.cpu() if cpu else Device(0, self._driver)
            return self._default

    def prepare(self, problem: Problem | str | Task, device: Device | None = None, stream: Any = None) -> Kernel:
        """A kernel for every number of rows of the problem: what tuning stored, else what the cost model ranks first.
        Compiles what no cache has, which takes seconds; repeated problems are answered from memory. stream: the stream
        of the launch, if it may be capturing. Raises Unsupported with every family's reason, CompileFailed,
        LibraryMissing, DriverFailed; WouldTune if it must not compile."""
        gpu = device or self.device()
        subject = _subject(problem, gpu)
        handle = ctypes.c_void_p()
        if isinstance(subject, Problem):
            lib.tw_prepare(self, subject, gpu, stream_handle(stream), ctypes.byref(handle))
        else:
            with subject.calls:
                lib.tw_prepare_task(self, subject, gpu, ctypes.byref(handle))
        return Kernel(handle, subject, gpu)

    def packed(self, problem: Problem | str, arch: str | Device | None = None) -> Problem:
        """The problem with pack=tiles (on a CPU pack=panels) if this target's kernels take packed weights at every
        number of rows, else the problem itself."""
        handle = ctypes.c_void_p()
        lib.tw_packed(self, as_problem(problem), self._arch(arch), ctypes.byref(handle))
        return Problem._of_handle(handle)

    def pack(
        self, packed: Problem | str, w: Any, tiles: Any = None, device: Device | None = None, stream: Any = None
    ) -> Any:
        """Reorders weights for a problem with pack=tiles or panels: on the device, once, at load. w: the streams as the
        format stores them, in the device's memory. tiles: (data, scales) to write, or None: new Memory. Returns the
        tiles, with w's factor for the tensor if it has one. Enqueued on `stream`; w must stay allocated until that has
        run. On the host use Problem.pack_weights()."""
        gpu = device or self.device()
        problem = as_problem(packed)
        fields = problem.fields
        order = fields.get("pack", "none")
        if order not in _operands.PACKED:
            raise _errors.must_be("pack", order, "tiles or panels: other weights are not packed")
        fields = problem._as_gemm().fields
        rows = int(fields["n"]) * max(int(fields.get("groups", 0)), 1)
        own = Problem.of("pack", w=fields["w"], x=fields["x"], n=rows, k=fields["k"], order=order)
        wanted = own.slots(True)
        streams = codec.streams_of(w, codec.find(fields["w"]), "w")
        if tiles is None:
            sizes = {slot.stream: slot.bytes for slot in wanted.all if slot.operand == "tiles"}
            scales = gpu.memory(sizes["scales"]) if sizes.get("scales") else None
            tiles = codec.Streams(gpu.memory(sizes["data"]), scales, streams.global_scale)
        # A factor for the tensor is the same, packed or not.
        given = {"w": streams._replace(global_scale=None), "tiles": codec.streams_of(tiles, None, "tiles")[:2]}
        on = stream_handle(stream)
        bound = _operands.bind(wanted, given, None, 0, {}, gpu.ordinal, on)
        try:
            source, target = _c.Operand(), _c.Operand()
            for slot, pointer in zip(wanted.all, bound.pointers):
                operand = source if slot.operand == "w" else target
                setattr(operand, "global_scale" if slot.stream == "global" else slot.stream, pointer or None)
            lib.tw_pack(self, problem, gpu, on, source, target)
        finally:
            bound.close()
        return tiles

    # ---- tuning and prewarming

    def tune(
        self,
        problem: Problem | str | Task,
        device: Device | None = None,
        *,
        all_rows: bool = False,
        budget_seconds: float = 30,
        progress: Progress = None,
        cancelled: Callable[[], bool] | None = None,
        max_candidates: int | None = None,
        patience: int | None = None,
        exhaustive: bool = False,
        retune: bool = False,
        max_binaries: int | None = None,
        jobs: int | None = None,
        cold_bytes: float | None = None,
    ) -> reports.TuneReport:
        """Measures candidates, checks each against a reference, and stores the fastest: for the bucket of the problem's
        rows (of a conv: its output pixels), or for every number of rows (all_rows). budget_seconds: wall clock;
        patience: stop after this many without improvement; exhaustive: try all, whatever the budget; retune: forget
        what is stored.

        progress: a function of (stage, done, total), or True for a tqdm bar on a terminal. Ctrl-C or an exception in a
        callback cancels the search and is raised; measurements so far are stored. Raises LibraryMissing, DriverFailed;
        Unsupported if no candidate is correct."""
        gpu = device or self.device()
        subject = _subject(problem, gpu)
        calls = Calls() if isinstance(subject, Problem) else subject.calls
        given = {"max_candidates": max_candidates, "patience": patience, "max_binaries": max_binaries, "jobs": jobs}
        numbers = {name: value for name, value in {**given, "cold_bytes": cold_bytes}.items() if value is not None}
        flags = {"all_rows": int(all_rows), "exhaustive": int(exhaustive), "retune": int(retune)}
        stop = _c.TunePolicyCancelled(_stop(cancelled, calls))
        report = ctypes.c_void_p()
        with _bar(progress) as shown, calls:
            policy = _c.TunePolicy(
                budget_seconds=budget_seconds, cancelled=stop, progress=_progress(shown, calls), **flags, **numbers
            )
            function = lib.tw_tune if isinstance(subject, Problem) else lib.tw_tune_task
            function(self, subject, gpu, ctypes.byref(policy), ctypes.byref(report))
        return reports.tune_report(report)

    def prewarm(
        self,
        problems: Iterable[Problem | str] | Problem | str | Task,
        archs: Sequence[str] = ("sm_90a",),
        *,
        top: int = 4,
        jobs: int = 0,
        every_bucket: bool = True,
        reference: bool = False,
        worker: str | os.PathLike[str] | None = None,
        progress: Progress = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> reports.PrewarmReport:
        """Compiles what prepare() and tune() will need on those targets; needs no GPU. top: candidates of each problem;
        jobs: 0 is one per core; every_bucket: also for all other numbers of rows; reference: for a problem that no
        other kernel takes, compile the reference instead of failing. worker: a program that compiles in separate
        processes ("": threads of this process; None: the packaged tool, if it is there).

        The report lists what failed; raises LibraryMissing without a compiler. cancelled is polled between compiles.
        Ctrl-C or an exception in a callback also ends it there and is raised; kernels compiled so far are stored."""
        from .__main__ import packaged_tool

        calls = problems.calls if isinstance(problems, Task) else Calls()
        program = (packaged_tool() or "") if worker is None else worker
        targets = [_c.text(arch, "archs") for arch in ([archs] if isinstance(archs, str) else archs)]
        stop = _c.PrewarmPolicyCancelled(_stop(cancelled, calls))
        report = ctypes.c_void_p()
        with _bar(progress) as shown, calls:
            policy = _c.PrewarmPolicy(
                top=top,
                jobs=jobs,
                every_bucket=int(every_bucket),
                reference=int(reference),
                cancelled=stop,
                worker=_c.path(program, "worker") or None,
                progress=_progress(shown, calls),
            )
            rest = (_c.texts(targets), len(targets), ctypes.byref(policy), ctypes.byref(report))
            if isinstance(problems, Task):
                lib.tw_prewarm_task(self, problems, *rest)
            else:
                several = [problems] if isinstance(problems, (str, Problem)) else problems
                given = [as_problem(problem) for problem in several]
                handles = (ctypes.c_void_p * len(given))(*(problem._open().value for problem in given))
                lib.tw_prewarm(self, handles, len(given), *rest)
        return reports.prewarm_report(report)

    # ---- what it knows; no GPU is needed

    def plan(self, problem: Problem | str, arch: str | Device | None = None) -> list[reports.Planned]:
        """The candidates for a target, best first. arch: "sm_90a", or a Device; None: GPU 0's."""
        handle = ctypes.c_void_p()
        lib.tw_plan_create(self, as_problem(problem), self._arch(arch), ctypes.byref(handle))
        try:
            out = []
            for i in range(lib.tw_plan_count(handle)):
                planned = _c.Planned()
                lib.tw_plan_at(handle, i, ctypes.byref(planned))
                out.append(reports.Planned(_c.string(planned.candidate), planned.predicted_microseconds))
            return out
        finally:
            lib.tw_plan_release(handle)

    def emit(self, problem: Problem | str, arch: str | Device | None = None) -> str:
        """The CUDA text of the kernel that would be compiled first."""
        source = ctypes.c_void_p()
        lib.tw_emit(self, as_problem(problem), self._arch(arch), ctypes.byref(source))
        return _c.take(source)

    def explain(self, problem: Problem | str, arch: str | Device | None = None) -> str:
        """Why this kernel: stored or ranked, the keys, and what every family says. With a Device, for that GPU's stored
        choices."""
        gpu = arch if isinstance(arch, Device) else None
        text = ctypes.c_void_p()
        lib.tw_explain(self, as_problem(problem), self._arch(arch), gpu, ctypes.byref(text))
        return _c.take(text)

    def compile(self, text: str, entry: str, arch: str, name: str = "source") -> reports.Compiled:
        """Compiles one CUDA source for one target, outside any cache. Raises CompileFailed with the log."""
        image, count, info, log = ctypes.c_void_p(), ctypes.c_size_t(), _c.KernelInfo(), ctypes.c_void_p()
        words = (_c.text(name, "name"), _c.text(text, "text"), _c.text(entry, "entry"), _c.text(arch, "arch"))
        outputs = (ctypes.byref(o) for o in (image, count, info, log))
        lib.tw_compile(self, *words, *outputs)
        return reports.Compiled(_c.take_bytes(image.value, count.value), reports.kernel_info(info, ""), _c.take(log))

    @property
    def compiler(self) -> tuple[str, str]:
        """Version ("13.0 build 88") and path of the libnvrtc that it compiles with. Raises LibraryMissing."""
        version, path = ctypes.c_void_p(), ctypes.c_void_p()
        lib.tw_compiler(self, ctypes.byref(version), ctypes.byref(path))
        return _c.take(version), _c.take(path)

    @property
    def stats(self) -> reports.Stats:
        s = _c.Stats()
        lib.tw_engine_stats(self, ctypes.byref(s))
        return reports.Stats(
            s.prepared, s.memory_hits, s.compiled, s.cache_hits, s.measured, s.warnings, s.compile_seconds, s.built_in
        )

    # ---- the cache file

    @property
    def cache_path(self) -> str:
        return _c.string(lib.tw_cache_path(self._open()))

    @property
    def cache_unwritable(self) -> str | None:
        """Why results are not written to the file; None if they are."""
        why = ctypes.c_void_p()
        lib.tw_cache_unwritable(self, ctypes.byref(why))
        return _c.take(why) if why else None

    def export(self, path: str | os.PathLike[str], *, binaries: bool = True, replace: bool = False) -> None:
        """Writes choices, measurements and (binaries) kernels to a file to ship. Raises IoError."""
        lib.tw_cache_export(self, _c.path(path, "path"), int(binaries), int(replace))

    def merge(self, path: str | os.PathLike[str]) -> reports.MergeReport:
        """Takes everything, binaries too, from another cache, which you trust."""
        return self._take("tw_cache_merge", path)

    def import_(self, path: str | os.PathLike[str]) -> reports.MergeReport:
        """Takes choices and measurements of another cache; they are checked here before use."""
        return self._take("tw_cache_import", path)

    def _take(self, function: str, path: str | os.PathLike[str]) -> reports.MergeReport:
        r = _c.MergeReport()
        getattr(lib, function)(self, _c.path(path, "path"), ctypes.byref(r))
        return reports.MergeReport(r.added, r.kept, r.replaced, r.refused)

    def _arch(self, arch: str | Device | None) -> bytes:
        gpu = self.device() if arch is None else arch
        return _c.text(gpu.arch if isinstance(gpu, Device) else gpu, "arch")


def prewarm(
    problems: str | os.PathLike[str] | Iterable[Problem | str],
    archs: Sequence[str] = ("sm_90a",),
    *,
    engine: Engine | None = None,
    progress: Progress = True,
    **policy: Any,
) -> reports.PrewarmReport:
    """Compiles what a workload will need on those targets into the cache, without a GPU. problems: a workload file,
    problems, or a Task. engine: None is a new one. Further arguments are Engine.prewarm()'s."""
    given = read_workload(problems) if isinstance(problems, (str, os.PathLike)) else problems
    if engine is not None:
        return engine.prewarm(given, archs, progress=progress, **policy)
    with Engine() as own:
        return own.prewarm(given, archs, progress=progress, **policy)


def nvrtc_of_environment() -> str | None:
    """The libnvrtc of NVIDIA's wheel beside this package; the library finds it itself only in an activated environment.
    None if $TILEWRIGHT_NVRTC names another, or there is none."""
    if os.environ.get("TILEWRIGHT_NVRTC"):
        return None
    for folder in sys.path:
        for place in ("nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"):
            path = os.path.join(folder, place)
            if os.path.exists(path):
                return path
    return None


def _set_option(options: ctypes.c_void_p, name: str, value: Any) -> None:
    key = _c.text(name, "option")
    if name == "shipped":  # a list, which replaces the environment's
        several = [value] if isinstance(value, (str, os.PathLike)) else list(value)
        for path in ["", *several]:
            lib.tw_options_set(options, key, _c.path(path, name))
    elif isinstance(value, (bool, int)):
        lib.tw_options_set(options, key, b"%d" % value)
    else:
        lib.tw_options_set(options, key, _c.path(value, name))


def _subject(problem: Problem | str | Task, device: Device) -> Problem | Task:
    if not isinstance(problem, Task):
        return as_problem(problem)
    if device.is_cpu and "__global__" in problem.source(problem.candidates[0]):
        raise _errors.Unsupported("device", device.arch, "must be a GPU: the task's text is CUDA; a CPU takes LLVM IR")
    return problem


def _stop(cancelled: Callable[[], bool] | None, calls: Calls) -> Callable[[Any], int]:
    """What C polls: an interrupt, a callback's exception or the caller's function stops it."""
    asked = calls.guard(cancelled, True) if cancelled is not None else lambda: False
    return lambda user: int(calls.stopped or bool(asked()))


def _progress(shown: Callable[[str, int, int], Any] | None, calls: Calls) -> Any:
    if shown is None:
        return _c.Progress()
    return _c.Progress(calls.guard(lambda user, stage, done, total: shown(_c.string(stage), done, total), None))


class _bar:
    """Resolves `progress`: a function, or for True a tqdm bar, if tqdm is installed and stderr is a terminal."""

    def __init__(self, progress: Progress) -> None:
        self._shown = None if isinstance(progress, bool) else progress
        self._bar: Any = None
        if progress is True and sys.stderr is not None and sys.stderr.isatty():
            try:
                from tqdm import tqdm
            except ImportError:
                return
            self._bar = tqdm(total=0, leave=False)
            self._shown = self._update

    def _update(self, stage: str, done: int, total: int) -> None:
        self._bar.total = total
        self._bar.n = done
        self._bar.set_description(stage, refresh=False)
        self._bar.refresh()

    def __enter__(self) -> Callable[[str, int, int], Any] | None:
        return self._shown

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.close()
