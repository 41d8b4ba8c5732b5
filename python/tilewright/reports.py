# SPDX-License-Identifier: Apache-2.0
"""What tuning, prewarming and planning found: values, read from the C library once."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from . import _c
from ._c import lib


class Outcome(NamedTuple):
    """One candidate's result. kind: "measured", "pruned" (beyond a limit of the device), "rejected" (spills, or wgmma
    is serialized), "not_compiled", "wrong", "failed"; detail says why. rows: at which it was measured; 0: the
    problem's. Microseconds: the median over rounds, low and high the 20th and 80th percentile. error: the largest,
    relative to the allowed error. stored: from the cache; imported: measured elsewhere, never trusted."""

    candidate: str
    kind: str
    detail: str
    rows: int
    microseconds: float
    low: float
    high: float
    rounds: int
    error: float
    mhz: float
    stored: bool
    imported: bool


class RowRange(NamedTuple):
    """What serves rows first to last; last=0: no upper end."""

    first: int
    last: int
    candidate: str
    microseconds: float
    measured: bool


class TuneReport(NamedTuple):
    """What tune() saw and decided. candidate: the choice; first: the candidate ranked first; grade: how well the choice
    fits ("exact"); stopped: "all", "budget", "patience" or "cancelled". noisy: the choice is used, but not stored.
    ranges: for all_rows, the candidate of each range."""

    candidate: str
    first: str
    grade: str
    stopped: str
    key: str
    microseconds: float
    seconds: float
    compiled: int
    measured: int
    noisy: bool
    outcomes: tuple[Outcome, ...]
    ranges: tuple[RowRange, ...]


class PrewarmReport(NamedTuple):
    """What prewarm() did. skipped: already stored, or the same binary as another; evicted: entries that the cache's cap
    has removed since; failures: one sentence for each that failed; cancelled: whether it was ended early."""

    compiled: int
    skipped: int
    failed: int
    evicted: int
    seconds: float
    failures: tuple[str, ...]
    cancelled: bool = False


class Planned(NamedTuple):
    """A candidate and the cost model's prediction."""

    candidate: str
    predicted_microseconds: float


class MergeReport(NamedTuple):
    """What became of the entries of another cache file."""

    added: int
    kept: int
    replaced: int
    refused: int


class Stats(NamedTuple):
    """Counters of an engine. memory_hits: prepare() calls answered from memory; cache_hits: binaries from a store;
    built_in: CPU kernels that were built into the library, used for lack of libLLVM."""

    prepared: int
    memory_hits: int
    compiled: int
    cache_hits: int
    measured: int
    warnings: int
    compile_seconds: float
    built_in: int = 0


class KernelInfo(NamedTuple):
    """The binary that serves a number of rows. candidate: "" for a caller's own binary. shared_bytes: static and
    dynamic, per block; registers and spill_bytes: per thread."""

    candidate: str
    threads: int
    registers: int
    shared_bytes: int
    spill_bytes: int


class Compiled(NamedTuple):
    """A cubin, what it uses, and the compiler's warnings."""

    image: bytes
    info: KernelInfo
    log: str


def tune_report(handle: ctypes.c_void_p) -> TuneReport:
    """Reads and releases."""
    try:
        s = _c.TuneSummary()
        lib.tw_tune_report_summary(handle, ctypes.byref(s))
        outcomes = []
        for i in range(s.outcomes):
            o = _c.Outcome()
            lib.tw_tune_report_outcome(handle, i, ctypes.byref(o))
            words = (_c.string(o.candidate), _c.string(o.kind), _c.string(o.detail))
            numbers = (o.rows, o.microseconds, o.low, o.high, o.rounds, o.error, o.mhz)
            outcomes.append(Outcome(*words, *numbers, bool(o.stored), bool(o.imported)))
        ranges = []
        for i in range(s.ranges):
            r = _c.RowRange()
            lib.tw_tune_report_range(handle, i, ctypes.byref(r))
            ranges.append(RowRange(r.first, r.last, _c.string(r.candidate), r.microseconds, bool(r.measured)))
        return TuneReport(
            candidate=_c.string(s.candidate),
            first=_c.string(s.first),
            grade=_c.string(s.grade),
            stopped=_c.string(s.stopped),
            key=_c.string(s.key),
            microseconds=s.microseconds,
            seconds=s.seconds,
            compiled=s.compiled,
            measured=s.measured,
            noisy=bool(s.noisy),
            outcomes=tuple(outcomes),
            ranges=tuple(ranges),
        )
    finally:
        lib.tw_tune_report_release(handle)


def prewarm_report(handle: ctypes.c_void_p) -> PrewarmReport:
    """Reads and releases."""
    try:
        s = _c.PrewarmSummary()
        lib.tw_prewarm_report_summary(handle, ctypes.byref(s))
        failures: list[str] = []
        while (text := lib.tw_prewarm_report_failure(handle, len(failures))) is not None:
            failures.append(_c.string(text))
        return PrewarmReport(s.compiled, s.skipped, s.failed, s.evicted, s.seconds, tuple(failures), bool(s.cancelled))
    finally:
        lib.tw_prewarm_report_release(handle)


def kernel_info(info: _c.KernelInfo, candidate: str) -> KernelInfo:
    return KernelInfo(candidate, info.threads, info.registers, info.shared_bytes, info.spill_bytes)
