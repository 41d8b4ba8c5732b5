# SPDX-License-Identifier: Apache-2.0
# Written by python/generate_c.py from tilewright_c.h. Do not edit.
"""Structs and functions of tilewright_c.h. A struct's pointer to characters is bytes, one to a struct with its size or
to 64-bit integers can be indexed, and any other is an address."""

from __future__ import annotations

import ctypes
from ctypes import (
    CFUNCTYPE,
    POINTER,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any


class Sized(ctypes.Structure):
    """A struct that begins with its own size. Fields that are not given are those of its _INIT macro."""

    _defaults_: dict[str, Any] = {}

    def __init__(self, **values: Any) -> None:
        super().__init__(struct_size=ctypes.sizeof(self), **{**self._defaults_, **values})


ABI_VERSION = 1


class FormatInfo(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("block", c_int32),
        ("bits", c_int32),
        ("encoders", c_int32),
        ("stream_scope", c_int32 * 3),
        ("stream_bytes", c_int32 * 3),
        ("stream_rows", c_int32 * 3),
        ("layout_version", c_int32),
        ("name", c_char_p),
        ("title", c_char_p),
        ("source", c_char_p),
    ]


class ArchInfo(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("major", c_int32),
        ("minor", c_int32),
        ("shared_per_block", c_int32),
        ("name", c_char_p),
        ("run_on", c_char_p),
    ]


class FieldInfo(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("required", c_int32),
        ("name", c_char_p),
        ("value", c_char_p),
        ("help", c_char_p),
    ]


class Operand(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("scales", c_void_p),
        ("global_scale", c_void_p),
    ]


MutableOperand = Operand  # which are laid out alike


class Gemm(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("constant_weights", c_int32),
        ("x", c_char_p),
        ("w", c_char_p),
        ("y", c_char_p),
        ("m", c_int64),
        ("n", c_int64),
        ("k", c_int64),
        ("global_scale", c_char_p),
        ("pack", c_char_p),
        ("x_from", c_char_p),
        ("bias", c_char_p),
        ("accum", c_char_p),
        ("act", c_char_p),
        ("c", c_char_p),
        ("alpha", c_double),
        ("beta", c_double),
        ("y_scale", c_double),
        ("workspace", c_int64),
        ("groups", c_int64),
        ("group_layout", c_char_p),
    ]
    _defaults_ = {"alpha": 1, "beta": 1, "y_scale": 1}


class BufferInfo(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("output", c_int32),
        ("scratch", c_int32),
        ("optional", c_int32),
        ("align", c_int64),
        ("bytes", c_int64),
        ("row_bytes", c_int64),
        ("launch_bytes", c_int64),
        ("line_bytes", c_int64),
        ("cols", c_int64),
        ("name", c_char_p),
        ("format", c_char_p),
        ("stride", c_char_p),
    ]


class RowsInfo(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("fixed", c_int32),
        ("rows_per", c_int64),
        ("name", c_char_p),
    ]


class Value(ctypes.Union):
    _fields_ = [
        ("integer", c_int64),
        ("number", c_double),
    ]


class ValueInfo(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("is_integer", c_int32),
        ("by_default", Value),
        ("name", c_char_p),
    ]


class HostCheck(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("checked", c_int64),
        ("outputs", c_int64),
        ("largest_error", c_double),
        ("of_bound", c_double),
        ("infinite", c_int64),
    ]


class DeviceInfo(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("ordinal", c_int32),
        ("sms", c_int32),
        ("l2_bytes", c_int64),
        ("memory_bytes", c_int64),
        ("name", c_char_p),
        ("driver_version", c_char_p),
        ("arch", c_char_p),
    ]


class Stats(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("prepared", c_int64),
        ("memory_hits", c_int64),
        ("compiled", c_int64),
        ("cache_hits", c_int64),
        ("measured", c_int64),
        ("warnings", c_int64),
        ("compile_seconds", c_double),
        ("built_in", c_int64),
    ]


class Planned(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("predicted_microseconds", c_double),
        ("candidate", c_char_p),
    ]


class GemmArgs(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("x", Operand),
        ("w", Operand),
        ("y", c_void_p),
        ("bias", c_void_p),
        ("m", c_int64),
        ("ldx", c_int64),
        ("ldy", c_int64),
        ("c", c_void_p),
        ("ldc", c_int64),
        ("workspace", c_void_p),
        ("alpha", c_float),
        ("beta", c_float),
        ("group_rows", c_void_p),
    ]
    _defaults_ = {"alpha": 1, "beta": 1}


class UnscalePiece(ctypes.Structure):
    _fields_ = [
        ("at", c_int64),
        ("elements", c_int64),
    ]


class UnscaleTensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("elements", c_int64),
    ]


class KernelInfo(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("threads", c_int32),
        ("registers", c_int32),
        ("shared_bytes", c_int32),
        ("spill_bytes", c_int32),
    ]


class LayerProblems(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("main", c_void_p),
        ("cast", c_void_p),
        ("fused", c_void_p),
        ("repack", c_void_p),
        ("few", c_int64),
    ]


class ConvArgs(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("x", Operand),
        ("w", Operand),
        ("y", c_void_p),
        ("bias", c_void_p),
        ("residual", c_void_p),
        ("cache", c_void_p),
        ("workspace", c_void_p),
        ("alpha", c_float),
        ("beta", c_float),
        ("amax", c_void_p),
    ]
    _defaults_ = {"alpha": 1, "beta": 1}

TunePolicyProgress = CFUNCTYPE(None, c_void_p, c_char_p, c_int32, c_int32)
TunePolicyCancelled = CFUNCTYPE(c_int32, c_void_p)


class TunePolicy(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("max_candidates", c_int32),
        ("budget_seconds", c_double),
        ("patience", c_int32),
        ("exhaustive", c_int32),
        ("retune", c_int32),
        ("all_rows", c_int32),
        ("max_binaries", c_int32),
        ("jobs", c_int32),
        ("cold_bytes", c_double),
        ("progress", TunePolicyProgress),
        ("cancelled", TunePolicyCancelled),
        ("user", c_void_p),
    ]
    _defaults_ = {"max_candidates": 16, "budget_seconds": 30, "max_binaries": 40, "cold_bytes": 400000000.0}


class TuneSummary(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("outcomes", c_int32),
        ("ranges", c_int32),
        ("compiled", c_int32),
        ("measured", c_int32),
        ("noisy", c_int32),
        ("seconds", c_double),
        ("microseconds", c_double),
        ("candidate", c_char_p),
        ("first", c_char_p),
        ("grade", c_char_p),
        ("stopped", c_char_p),
        ("key", c_char_p),
    ]


class Outcome(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("rounds", c_int32),
        ("stored", c_int32),
        ("imported", c_int32),
        ("rows", c_int64),
        ("microseconds", c_double),
        ("low", c_double),
        ("high", c_double),
        ("error", c_double),
        ("mhz", c_double),
        ("candidate", c_char_p),
        ("kind", c_char_p),
        ("detail", c_char_p),
    ]


class RowRange(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("measured", c_int32),
        ("first", c_int64),
        ("last", c_int64),
        ("microseconds", c_double),
        ("candidate", c_char_p),
    ]


PrewarmPolicyProgress = CFUNCTYPE(None, c_void_p, c_char_p, c_int32, c_int32)
PrewarmPolicyCancelled = CFUNCTYPE(c_int32, c_void_p)


class PrewarmPolicy(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("top", c_int32),
        ("jobs", c_int32),
        ("every_bucket", c_int32),
        ("worker", c_char_p),
        ("progress", PrewarmPolicyProgress),
        ("user", c_void_p),
        ("cancelled", PrewarmPolicyCancelled),
        ("reference", c_int32),
    ]
    _defaults_ = {"top": 4, "every_bucket": 1}


class PrewarmSummary(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("compiled", c_int32),
        ("skipped", c_int32),
        ("failed", c_int32),
        ("evicted", c_int32),
        ("seconds", c_double),
        ("cancelled", c_int32),
    ]


class MergeReport(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("added", c_int64),
        ("kept", c_int64),
        ("replaced", c_int64),
        ("refused", c_int64),
    ]


class GridAxis(ctypes.Structure):
    _fields_ = [
        ("fixed", c_uint32),
        ("per_rows", c_uint32),
        ("per_cols", c_uint32),
    ]


class LaunchPlan(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("x", GridAxis),
        ("y", GridAxis),
        ("z", GridAxis),
        ("threads", c_uint32),
        ("cluster", c_uint32),
        ("shared_bytes", c_uint32),
    ]
    _defaults_ = {"x": (1, 0, 0), "y": (1, 0, 0), "z": (1, 0, 0), "cluster": 1}


class TaskBuffer(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("output", c_int32),
        ("scratch", c_int32),
        ("name", c_char_p),
        ("bytes", c_size_t),
        ("row_bytes", c_size_t),
    ]


TaskSpecSource = CFUNCTYPE(c_int32, c_void_p, c_char_p, POINTER(c_void_p), POINTER(c_void_p), POINTER(LaunchPlan))
TaskSpecFill = CFUNCTYPE(c_int32, c_void_p, c_int32, c_void_p, c_size_t, c_uint64)
TaskSpecArguments = CFUNCTYPE(c_int32, c_void_p, POINTER(c_void_p), c_int64, c_void_p, c_size_t)
TaskSpecCompare = CFUNCTYPE(c_void_p, c_void_p, POINTER(c_void_p), POINTER(c_void_p), c_int64)


class TaskSpec(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("key", c_char_p),
        ("rows", c_int64),
        ("cols", c_int64),
        ("candidates", POINTER(c_char_p)),
        ("candidate_count", c_size_t),
        ("buffers", POINTER(TaskBuffer)),
        ("buffer_count", c_size_t),
        ("verify_rows", c_int64),
        ("min_bytes", c_double),
        ("ops", c_double),
        ("source", TaskSpecSource),
        ("fill", TaskSpecFill),
        ("arguments", TaskSpecArguments),
        ("compare", TaskSpecCompare),
        ("user", c_void_p),
    ]


class TensorInfo(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("dim_count", c_int32),
        ("dims", POINTER(c_int64)),
        ("bytes", c_uint64),
        ("name", c_char_p),
        ("type", c_char_p),
        ("format", c_char_p),
    ]


class CheckpointTensor(ctypes.Structure):
    _fields_ = [
        ("bytes", c_void_p),
        ("rows", c_int64),
        ("cols", c_int64),
        ("type", c_char_p),
    ]


class CheckpointWeight(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("bits", c_int32),
        ("packing", c_char_p),
        ("n", c_int64),
        ("k", c_int64),
        ("group", c_int64),
        ("codes", CheckpointTensor),
        ("zeros", CheckpointTensor),
        ("scales", CheckpointTensor),
        ("g_idx", CheckpointTensor),
    ]
    _defaults_ = {"bits": 4, "group": 128}


class Exported(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("codes", c_void_p),
        ("zeros", c_void_p),
        ("scales", c_void_p),
        ("g_idx", c_void_p),
        ("codes_bytes", c_size_t),
        ("zeros_bytes", c_size_t),
        ("scales_bytes", c_size_t),
        ("g_idx_bytes", c_size_t),
    ]


class ObserverOptions(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("bins", c_int32),
        ("channels", c_int64),
        ("momentum", c_double),
    ]
    _defaults_ = {"bins": 2048, "channels": 1, "momentum": 0.9}


class Observation(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("exponent", c_int32),
        ("count", c_uint64),
        ("nans", c_uint64),
        ("min", c_double),
        ("max", c_double),
        ("batches", c_uint64),
        ("negative", POINTER(c_uint64)),
        ("positive", POINTER(c_uint64)),
    ]


class Calibration(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("asymmetric", c_int32),
        ("method", c_char_p),
        ("target", c_char_p),
        ("percentile", c_double),
    ]
    _defaults_ = {"percentile": 99.9}


class ClipRange(ctypes.Structure):
    _fields_ = [
        ("min", c_double),
        ("max", c_double),
    ]


class LinearWeight(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("w", c_void_p),
        ("n", c_int64),
        ("k", c_int64),
        ("name", c_char_p),
    ]


class QuantizeTarget(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("encoder", c_int32),
        ("format", c_char_p),
        ("group", c_int64),
        ("threads", c_int32),
    ]


class GptqOptions(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("act_order", c_int32),
        ("static_groups", c_int32),
        ("damping", c_double),
    ]
    _defaults_ = {"damping": 0.01}


class AwqOptions(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("grid", c_int32),
        ("clip", c_int32),
        ("search_rows", c_int64),
    ]
    _defaults_ = {"grid": 20, "search_rows": 1024}


class QuantizedInfo(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("format", c_char_p),
        ("n", c_int64),
        ("k", c_int64),
        ("group", c_int64),
        ("data", c_void_p),
        ("scales", c_void_p),
        ("data_bytes", c_size_t),
        ("scales_bytes", c_size_t),
        ("order", c_void_p),
        ("values", c_void_p),
        ("input_scales", c_void_p),
        ("error", c_double),
        ("energy", c_double),
        ("damping", c_double),
        ("exponent", c_double),
        ("dead_columns", c_int64),
    ]


# How a function fails: by its tw_status and a tw_error** behind its arguments, or by its tw_status alone. Of
# others, what it returns.
_FALLIBLE, _LAUNCH = "fallible", "launch"
FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "tw_abi_version": (c_uint32, ()),
    "tw_version": (c_char_p, ()),
    "tw_free": (None, (c_void_p,)),
    "tw_status_name": (c_char_p, (c_int32,)),
    "tw_error_status": (c_int32, (c_void_p,)),
    "tw_error_message": (c_char_p, (c_void_p,)),
    "tw_error_field": (c_char_p, (c_void_p,)),
    "tw_error_value": (c_char_p, (c_void_p,)),
    "tw_error_allowed": (c_char_p, (c_void_p,)),
    "tw_error_log": (c_char_p, (c_void_p,)),
    "tw_error_source": (c_char_p, (c_void_p,)),
    "tw_error_release": (None, (c_void_p,)),
    "tw_last_error": (c_void_p, ()),
    "tw_options_create": (_FALLIBLE, (c_void_p,)),
    "tw_options_set": (_FALLIBLE, (c_void_p, c_char_p, c_char_p)),
    "tw_options_set_log": (_FALLIBLE, (c_void_p, c_void_p, c_void_p)),
    "tw_options_release": (None, (c_void_p,)),
    "tw_format_count": (c_int32, ()),
    "tw_format_at": (_FALLIBLE, (c_int32, c_void_p)),
    "tw_format_find": (_FALLIBLE, (c_char_p, c_void_p)),
    "tw_format_encoder": (_FALLIBLE, (c_char_p, c_int32, c_void_p)),
    "tw_arch_count": (c_int32, ()),
    "tw_arch_at": (_FALLIBLE, (c_int32, c_void_p)),
    "tw_operation_count": (c_int32, ()),
    "tw_operation_at": (_FALLIBLE, (c_int32, c_void_p, c_void_p)),
    "tw_operation_field_count": (c_int32, (c_char_p,)),
    "tw_operation_field": (_FALLIBLE, (c_char_p, c_int32, c_void_p)),
    "tw_stream_bytes": (_FALLIBLE, (c_char_p, c_int32, c_int64, c_int64, c_void_p)),
    "tw_encode": (_FALLIBLE, (c_char_p, c_char_p, c_void_p, c_int64, c_int64, MutableOperand)),
    "tw_decode": (_FALLIBLE, (c_char_p, Operand, c_int64, c_int64, c_void_p)),
    "tw_global_for": (_FALLIBLE, (c_char_p, c_float, c_void_p)),
    "tw_problem_parse": (_FALLIBLE, (c_char_p, c_void_p)),
    "tw_problem_create": (_FALLIBLE, (c_char_p, c_void_p, c_void_p, c_size_t, c_void_p)),
    "tw_problem_from_gemm": (_FALLIBLE, (c_void_p, c_void_p)),
    "tw_problem_with_rows": (_FALLIBLE, (c_void_p, c_int64, c_void_p)),
    "tw_problem_text": (c_char_p, (c_void_p,)),
    "tw_problem_operation": (c_char_p, (c_void_p,)),
    "tw_problem_rows": (c_int64, (c_void_p,)),
    "tw_problem_cols": (c_int64, (c_void_p,)),
    "tw_problem_min_bytes": (c_double, (c_void_p,)),
    "tw_problem_ops": (c_double, (c_void_p,)),
    "tw_problem_retain": (None, (c_void_p,)),
    "tw_problem_release": (None, (c_void_p,)),
    "tw_problem_buffer_count": (c_int32, (c_void_p,)),
    "tw_problem_buffer": (_FALLIBLE, (c_void_p, c_int32, c_void_p)),
    "tw_problem_rows_info": (_FALLIBLE, (c_void_p, c_void_p)),
    "tw_problem_value_count": (c_int32, (c_void_p,)),
    "tw_problem_value": (_FALLIBLE, (c_void_p, c_int32, c_void_p)),
    "tw_compute_on_host": (_FALLIBLE, (c_void_p, c_void_p, c_void_p, c_size_t)),
    "tw_check_on_host": (_FALLIBLE, (c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p)),
    "tw_packed_bytes": (_FALLIBLE, (c_void_p, c_int32, c_void_p)),
    "tw_pack_weights": (_FALLIBLE, (c_void_p, Operand, MutableOperand)),
    "tw_unpack_weights": (_FALLIBLE, (c_void_p, Operand, MutableOperand)),
    "tw_device_count": (c_int32, (c_char_p,)),
    "tw_device_open": (_FALLIBLE, (c_int32, c_char_p, c_void_p)),
    "tw_device_open_cpu": (_FALLIBLE, (c_int32, c_void_p, c_void_p, c_void_p)),
    "tw_device_open_cpu_target": (_FALLIBLE, (c_char_p, c_int32, c_void_p, c_void_p, c_void_p)),
    "tw_device_describe": (_FALLIBLE, (c_void_p, c_void_p)),
    "tw_device_synchronize": (_FALLIBLE, (c_void_p,)),
    "tw_device_retain": (None, (c_void_p,)),
    "tw_device_release": (None, (c_void_p,)),
    "tw_memory_create": (_FALLIBLE, (c_void_p, c_size_t, c_void_p)),
    "tw_memory_data": (c_void_p, (c_void_p,)),
    "tw_memory_size": (c_size_t, (c_void_p,)),
    "tw_memory_upload": (_FALLIBLE, (c_void_p, c_size_t, c_void_p, c_size_t)),
    "tw_memory_download": (_FALLIBLE, (c_void_p, c_size_t, c_void_p, c_size_t)),
    "tw_memory_fill": (_FALLIBLE, (c_void_p, c_uint8)),
    "tw_memory_release": (None, (c_void_p,)),
    "tw_stream_create": (_FALLIBLE, (c_void_p, c_void_p)),
    "tw_stream_handle": (c_void_p, (c_void_p,)),
    "tw_stream_synchronize": (_FALLIBLE, (c_void_p,)),
    "tw_stream_release": (None, (c_void_p,)),
    "tw_engine_create": (_FALLIBLE, (c_void_p, c_void_p)),
    "tw_engine_retain": (None, (c_void_p,)),
    "tw_engine_release": (None, (c_void_p,)),
    "tw_prepare": (_FALLIBLE, (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)),
    "tw_packed": (_FALLIBLE, (c_void_p, c_void_p, c_char_p, c_void_p)),
    "tw_pack": (_FALLIBLE, (c_void_p, c_void_p, c_void_p, c_void_p, Operand, MutableOperand)),
    "tw_engine_stats": (_FALLIBLE, (c_void_p, c_void_p)),
    "tw_explain": (_FALLIBLE, (c_void_p, c_void_p, c_char_p, c_void_p, c_void_p)),
    "tw_emit": (_FALLIBLE, (c_void_p, c_void_p, c_char_p, c_void_p)),
    "tw_compiler": (_FALLIBLE, (c_void_p, c_void_p, c_void_p)),
    "tw_plan_create": (_FALLIBLE, (c_void_p, c_void_p, c_char_p, c_void_p)),
    "tw_plan_count": (c_int32, (c_void_p,)),
    "tw_plan_at": (_FALLIBLE, (c_void_p, c_int32, c_void_p)),
    "tw_plan_release": (None, (c_void_p,)),
    "tw_launch_gemm_args": (_LAUNCH, (c_void_p, c_void_p, c_void_p)),
    "tw_launch_gemm": (_LAUNCH, (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int64)),
    "tw_launch_buffers": (_LAUNCH, (c_void_p, c_void_p, c_void_p, c_size_t, c_int64, c_void_p, c_size_t)),
    "tw_unscale_pieces": (_FALLIBLE, (c_char_p, c_void_p, c_size_t, c_int64, c_void_p, c_void_p)),
    "tw_launch": (_LAUNCH, (c_void_p, c_void_p, c_void_p, c_size_t, c_int64, c_int64)),
    "tw_kernel_describe": (_FALLIBLE, (c_void_p, c_int64, c_void_p, c_void_p)),
    "tw_kernel_check_pointers": (_FALLIBLE, (c_void_p, c_int32)),
    "tw_kernel_retain": (None, (c_void_p,)),
    "tw_kernel_release": (None, (c_void_p,)),
    "tw_layer_describe": (_FALLIBLE, (c_void_p, c_char_p, c_char_p, c_int32, c_void_p)),
    "tw_layer_create": (_FALLIBLE, (c_void_p, c_void_p, c_void_p, c_char_p, c_int32, c_void_p)),
    "tw_layer_retain": (None, (c_void_p,)),
    "tw_layer_release": (None, (c_void_p,)),
    "tw_layer_get_problems": (_FALLIBLE, (c_void_p, c_void_p)),
    "tw_layer_kernel": (_FALLIBLE, (c_void_p, c_void_p)),
    "tw_layer_packed": (c_int32, (c_void_p,)),
    "tw_layer_weight_bytes": (_FALLIBLE, (c_void_p, c_int32, c_void_p)),
    "tw_layer_pack": (_FALLIBLE, (c_void_p, c_void_p, Operand, MutableOperand)),
    "tw_layer_load": (_FALLIBLE, (c_void_p, c_void_p, Operand)),
    "tw_layer_scratch_bytes": (c_size_t, (c_void_p, c_int64)),
    "tw_layer_launch_gemm": (_LAUNCH, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "tw_layer_launch_conv": (_LAUNCH, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "tw_tune": (_FALLIBLE, (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)),
    "tw_tune_report_summary": (_FALLIBLE, (c_void_p, c_void_p)),
    "tw_tune_report_outcome": (_FALLIBLE, (c_void_p, c_int32, c_void_p)),
    "tw_tune_report_range": (_FALLIBLE, (c_void_p, c_int32, c_void_p)),
    "tw_tune_report_release": (None, (c_void_p,)),
    "tw_prewarm": (_FALLIBLE, (c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_void_p)),
    "tw_prewarm_report_summary": (_FALLIBLE, (c_void_p, c_void_p)),
    "tw_prewarm_report_failure": (c_char_p, (c_void_p, c_int32)),
    "tw_prewarm_report_release": (None, (c_void_p,)),
    "tw_read_workload": (_FALLIBLE, (c_char_p, c_void_p, c_void_p)),
    "tw_compile_worker_main": (c_int32, (c_int32, c_int32)),
    "tw_cache_path": (c_char_p, (c_void_p,)),
    "tw_cache_unwritable": (_FALLIBLE, (c_void_p, c_void_p)),
    "tw_cache_export": (_FALLIBLE, (c_void_p, c_char_p, c_int32, c_int32)),
    "tw_cache_merge": (_FALLIBLE, (c_void_p, c_char_p, c_void_p)),
    "tw_cache_import": (_FALLIBLE, (c_void_p, c_char_p, c_void_p)),
    "tw_task_create": (_FALLIBLE, (c_void_p, c_void_p)),
    "tw_task_release": (None, (c_void_p,)),
    "tw_tune_task": (_FALLIBLE, (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)),
    "tw_prepare_task": (_FALLIBLE, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "tw_prewarm_task": (_FALLIBLE, (c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p)),
    "tw_compile": (
        _FALLIBLE,
        (c_void_p, c_char_p, c_char_p, c_char_p, c_char_p, c_void_p, c_void_p, c_void_p, c_void_p),
    ),
    "tw_model_open": (_FALLIBLE, (c_char_p, c_void_p)),
    "tw_model_tensor_count": (c_int32, (c_void_p,)),
    "tw_model_tensor": (_FALLIBLE, (c_void_p, c_int32, c_void_p)),
    "tw_model_find": (_FALLIBLE, (c_void_p, c_char_p, c_void_p)),
    "tw_model_read": (_FALLIBLE, (c_void_p, c_char_p, c_uint64, c_void_p, c_size_t)),
    "tw_model_metadata_count": (c_int32, (c_void_p,)),
    "tw_model_metadata_key": (c_char_p, (c_void_p, c_int32)),
    "tw_model_metadata": (c_char_p, (c_void_p, c_char_p)),
    "tw_model_release": (None, (c_void_p,)),
    "tw_import_format": (_FALLIBLE, (c_void_p, c_int32, c_void_p, c_void_p)),
    "tw_import_order": (_FALLIBLE, (c_void_p, c_void_p, c_void_p)),
    "tw_import_weights": (_FALLIBLE, (c_void_p, c_char_p, c_void_p, c_size_t, c_void_p, c_size_t)),
    "tw_export_weights": (_FALLIBLE, (c_char_p, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_void_p, c_void_p)),
    "tw_gather_rows": (_FALLIBLE, (c_char_p, c_int64, c_void_p, c_size_t, Operand, MutableOperand)),
    "tw_observer_create": (_FALLIBLE, (c_void_p, c_void_p)),
    "tw_observer_observe": (_FALLIBLE, (c_void_p, c_char_p, c_void_p, c_size_t, c_int64, c_int64)),
    "tw_observer_end_batch": (_FALLIBLE, (c_void_p,)),
    "tw_observer_merge": (_FALLIBLE, (c_void_p, c_void_p)),
    "tw_observer_json": (_FALLIBLE, (c_void_p, c_void_p)),
    "tw_observer_from_json": (_FALLIBLE, (c_char_p, c_void_p)),
    "tw_observer_describe": (_FALLIBLE, (c_void_p, c_void_p)),
    "tw_observer_channel": (_FALLIBLE, (c_void_p, c_int64, c_void_p)),
    "tw_observer_release": (None, (c_void_p,)),
    "tw_clip_ranges": (_FALLIBLE, (c_void_p, c_void_p, c_void_p, c_size_t)),
    "tw_scale_for": (_FALLIBLE, (ClipRange, c_char_p, c_int32, c_void_p, c_void_p)),
    "tw_device_observer_create": (_FALLIBLE, (c_void_p, c_void_p, c_char_p, c_void_p, c_void_p)),
    "tw_device_observer_observe": (_FALLIBLE, (c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_int64)),
    "tw_device_observer_end_batch": (_FALLIBLE, (c_void_p, c_void_p)),
    "tw_device_observer_observed": (_FALLIBLE, (c_void_p, c_void_p)),
    "tw_device_observer_clear": (_FALLIBLE, (c_void_p,)),
    "tw_device_observer_release": (None, (c_void_p,)),
    "tw_hessian_create": (_FALLIBLE, (c_int64, c_void_p)),
    "tw_hessian_from": (_FALLIBLE, (c_int64, c_int64, c_void_p, c_void_p, c_void_p)),
    "tw_hessian_add": (_FALLIBLE, (c_void_p, c_char_p, c_void_p, c_int64, c_int64, c_int32)),
    "tw_hessian_merge": (_FALLIBLE, (c_void_p, c_void_p)),
    "tw_hessian_read": (_FALLIBLE, (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)),
    "tw_hessian_release": (None, (c_void_p,)),
    "tw_round_to_nearest": (_FALLIBLE, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "tw_gptq": (_FALLIBLE, (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)),
    "tw_gptq_device_bytes": (c_int64, (c_int64, c_int64, c_int64)),
    "tw_awq": (_FALLIBLE, (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)),
    "tw_quantized_describe": (_FALLIBLE, (c_void_p, c_void_p)),
    "tw_quantized_release": (None, (c_void_p,)),
}
