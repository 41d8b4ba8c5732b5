# SPDX-License-Identifier: Apache-2.0
"""libtilewright_c: where it is, its structs, and one table of its functions. include/tilewright/tilewright_c.h says
what they do; nothing here is public."""

from __future__ import annotations

import ctypes
import os
from ctypes import CFUNCTYPE, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

from . import _errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ABI_VERSION = 1


# ---- structs, in the header's order


class Sized(ctypes.Structure):
    """A struct that begins with its own size. Fields that are not given are zero."""

    def __init__(self, **values: Any) -> None:
        super().__init__(struct_size=ctypes.sizeof(self), **values)


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
    """tw_operand and tw_mutable_operand, which are laid out alike."""

    _fields_ = [("data", c_void_p), ("scales", c_void_p), ("global_scale", c_void_p)]


class BufferInfo(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("output", c_int32),
        ("scratch", c_int32),
        ("bytes", c_int64),
        ("row_bytes", c_int64),
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
    _fields_ = [("struct_size", c_uint32), ("predicted_microseconds", c_double), ("candidate", c_char_p)]


class LayerProblems(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("main", c_void_p),
        ("cast", c_void_p),
        ("fused", c_void_p),
        ("repack", c_void_p),
        ("few", c_int64),
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


class CastArgs(Sized):
    _fields_ = [("struct_size", c_uint32), ("x", Operand), ("y", Operand), ("rows", c_int64), ("seed", c_uint64)]


class FusedCastArgs(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("x", c_void_p),
        ("y", Operand),
        ("bias", c_void_p),
        ("weight", c_void_p),
        ("residual", c_void_p),
        ("residual_out", c_void_p),
        ("rows", c_int64),
    ]


class AmaxArgs(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("x", c_void_p),
        ("amax", c_void_p),
        ("workspace", c_void_p),
        ("rows", c_int64),
    ]


class AffineFakeQuantArgs(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("x", c_void_p),
        ("dy", c_void_p),
        ("y", c_void_p),
        ("scale", c_void_p),
        ("zero_point", c_void_p),
        ("dscale", c_void_p),
        ("workspace", c_void_p),
        ("rows", c_int64),
        ("factor", c_float),
    ]


class FakeQuantArgs(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("x", c_void_p),
        ("y", c_void_p),
        ("amax", c_void_p),
        ("rows", c_int64),
    ]


class UnscaleArgs(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("x", c_void_p),
        ("y", c_void_p),
        ("table", c_void_p),
        ("scale", c_void_p),
        ("found_inf", c_void_p),
        ("found_before", c_void_p),
        ("workspace", c_void_p),
        ("pieces", c_int64),
    ]


class UpdateScaleArgs(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("scale", c_void_p),
        ("good_steps", c_void_p),
        ("found_inf", c_void_p),
        ("new_scale", c_void_p),
        ("new_good_steps", c_void_p),
    ]


class PackArgs(Sized):
    _fields_ = [("struct_size", c_uint32), ("w", Operand), ("tiles", Operand)]


class TransposeArgs(Sized):
    _fields_ = [("struct_size", c_uint32), ("x", c_void_p), ("y", c_void_p)]


class KernelInfo(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("threads", c_int32),
        ("registers", c_int32),
        ("shared_bytes", c_int32),
        ("spill_bytes", c_int32),
    ]


Progress = CFUNCTYPE(None, c_void_p, c_char_p, c_int32, c_int32)
Cancelled = CFUNCTYPE(c_int32, c_void_p)
Log = CFUNCTYPE(None, c_void_p, c_int32, c_char_p)


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
        ("progress", Progress),
        ("cancelled", Cancelled),
        ("user", c_void_p),
    ]

    def __init__(self, **values: Any) -> None:  # over TW_TUNE_POLICY_INIT
        super().__init__(
            **{"max_candidates": 16, "budget_seconds": 30, "max_binaries": 40, "cold_bytes": 4e8, **values}
        )


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


class PrewarmPolicy(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("top", c_int32),
        ("jobs", c_int32),
        ("every_bucket", c_int32),
        ("worker", c_char_p),
        ("progress", Progress),
        ("user", c_void_p),
    ]

    def __init__(self, **values: Any) -> None:  # over TW_PREWARM_POLICY_INIT
        super().__init__(**{"top": 4, "every_bucket": 1, **values})


class PrewarmSummary(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("compiled", c_int32),
        ("skipped", c_int32),
        ("failed", c_int32),
        ("evicted", c_int32),
        ("seconds", c_double),
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
    _fields_ = [("fixed", c_uint32), ("per_rows", c_uint32), ("per_cols", c_uint32)]


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


class TaskBuffer(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("output", c_int32),
        ("scratch", c_int32),
        ("name", c_char_p),
        ("bytes", c_size_t),
        ("row_bytes", c_size_t),
    ]


# Pointers that callbacks get or write are plain addresses, so that ctypes makes no object that owns what it does not.
TaskSource = CFUNCTYPE(
    c_int32, c_void_p, c_char_p, ctypes.POINTER(c_void_p), ctypes.POINTER(c_void_p), ctypes.POINTER(LaunchPlan)
)
TaskFill = CFUNCTYPE(c_int32, c_void_p, c_int32, c_void_p, c_size_t, c_uint64)
TaskArguments = CFUNCTYPE(c_int32, c_void_p, ctypes.POINTER(c_void_p), c_int64, c_void_p, c_size_t)
TaskCompare = CFUNCTYPE(c_void_p, c_void_p, ctypes.POINTER(c_void_p), ctypes.POINTER(c_void_p), c_int64)


class TaskSpec(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("key", c_char_p),
        ("rows", c_int64),
        ("cols", c_int64),
        ("candidates", ctypes.POINTER(c_char_p)),
        ("candidate_count", c_size_t),
        ("buffers", ctypes.POINTER(TaskBuffer)),
        ("buffer_count", c_size_t),
        ("verify_rows", c_int64),
        ("min_bytes", c_double),
        ("ops", c_double),
        ("source", TaskSource),
        ("fill", TaskFill),
        ("arguments", TaskArguments),
        ("compare", TaskCompare),
        ("user", c_void_p),
    ]


class TensorInfo(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("dim_count", c_int32),
        ("dims", ctypes.POINTER(c_int64)),
        ("bytes", c_uint64),
        ("name", c_char_p),
        ("type", c_char_p),
        ("format", c_char_p),
    ]


class CheckpointTensor(ctypes.Structure):
    _fields_ = [("bytes", c_void_p), ("rows", c_int64), ("cols", c_int64), ("type", c_char_p)]


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
    _fields_ = [("struct_size", c_uint32), ("bins", c_int32), ("channels", c_int64), ("momentum", c_double)]


class Observation(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("exponent", c_int32),
        ("count", c_uint64),
        ("nans", c_uint64),
        ("min", c_double),
        ("max", c_double),
        ("batches", c_uint64),
        ("negative", ctypes.POINTER(c_uint64)),
        ("positive", ctypes.POINTER(c_uint64)),
    ]


class Calibration(Sized):
    _fields_ = [
        ("struct_size", c_uint32),
        ("asymmetric", c_int32),
        ("method", c_char_p),
        ("target", c_char_p),
        ("percentile", c_double),
    ]


class ClipRange(ctypes.Structure):
    _fields_ = [("min", c_double), ("max", c_double)]


class LinearWeight(Sized):
    _fields_ = [("struct_size", c_uint32), ("w", c_void_p), ("n", c_int64), ("k", c_int64), ("name", c_char_p)]


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


class AwqOptions(Sized):
    _fields_ = [("struct_size", c_uint32), ("grid", c_int32), ("clip", c_int32), ("search_rows", c_int64)]


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


# ---- functions. Outputs and structs are passed by address: c_void_p takes byref(), arrays and integers.

_TEXT, _AT, _INT, _LONG, _SIZE = c_char_p, c_void_p, c_int32, c_int64, c_size_t

# Those that return a tw_status and end with a tw_error**, which is always null here: tw_last_error() says the same.
_FALLIBLE: dict[str, tuple[Any, ...]] = {
    "tw_options_create": (_AT,),
    "tw_options_set": (_AT, _TEXT, _TEXT),
    "tw_options_set_log": (_AT, Log, _AT),
    "tw_format_at": (_INT, _AT),
    "tw_format_find": (_TEXT, _AT),
    "tw_format_encoder": (_TEXT, _INT, _AT),
    "tw_arch_at": (_INT, _AT),
    "tw_operation_at": (_INT, _AT, _AT),
    "tw_operation_field": (_TEXT, _INT, _AT),
    "tw_stream_bytes": (_TEXT, _INT, _LONG, _LONG, _AT),
    "tw_encode": (_TEXT, _TEXT, _AT, _LONG, _LONG, Operand),
    "tw_decode": (_TEXT, Operand, _LONG, _LONG, _AT),
    "tw_global_for": (_TEXT, c_float, _AT),
    "tw_problem_parse": (_TEXT, _AT),
    "tw_problem_create": (_TEXT, _AT, _AT, _SIZE, _AT),
    "tw_problem_with_rows": (_AT, _LONG, _AT),
    "tw_problem_buffer": (_AT, _INT, _AT),
    "tw_compute_on_host": (_AT, _AT, _AT, _SIZE),
    "tw_check_on_host": (_AT, _AT, _AT, _SIZE, _AT, _AT),
    "tw_packed_bytes": (_AT, _INT, _AT),
    "tw_pack_weights": (_AT, Operand, Operand),
    "tw_unpack_weights": (_AT, Operand, Operand),
    "tw_device_open": (_INT, _TEXT, _AT),
    "tw_device_open_cpu": (_INT, _AT, _AT, _AT),
    "tw_device_open_cpu_target": (_TEXT, _INT, _AT, _AT, _AT),
    "tw_device_describe": (_AT, _AT),
    "tw_device_synchronize": (_AT,),
    "tw_memory_create": (_AT, _SIZE, _AT),
    "tw_memory_upload": (_AT, _SIZE, _AT, _SIZE),
    "tw_memory_download": (_AT, _SIZE, _AT, _SIZE),
    "tw_memory_fill": (_AT, ctypes.c_uint8),
    "tw_stream_create": (_AT, _AT),
    "tw_stream_synchronize": (_AT,),
    "tw_engine_create": (_AT, _AT),
    "tw_prepare": (_AT, _AT, _AT, _AT, _AT),
    "tw_packed": (_AT, _AT, _TEXT, _AT),
    "tw_pack": (_AT, _AT, _AT, _AT, Operand, Operand),
    "tw_engine_stats": (_AT, _AT),
    "tw_explain": (_AT, _AT, _TEXT, _AT, _AT),
    "tw_emit": (_AT, _AT, _TEXT, _AT),
    "tw_compiler": (_AT, _AT, _AT),
    "tw_plan_create": (_AT, _AT, _TEXT, _AT),
    "tw_plan_at": (_AT, _INT, _AT),
    "tw_layer_describe": (_AT, _TEXT, _TEXT, _INT, _AT),
    "tw_layer_create": (_AT, _AT, _AT, _TEXT, _INT, _AT),
    "tw_layer_kernel": (_AT, _AT),
    "tw_layer_weight_bytes": (_AT, _INT, _AT),
    "tw_layer_pack": (_AT, _AT, Operand, Operand),
    "tw_kernel_describe": (_AT, _LONG, _AT, _AT),
    "tw_kernel_check_pointers": (_AT, _INT),
    "tw_tune": (_AT, _AT, _AT, _AT, _AT),
    "tw_tune_report_summary": (_AT, _AT),
    "tw_tune_report_outcome": (_AT, _INT, _AT),
    "tw_tune_report_range": (_AT, _INT, _AT),
    "tw_prewarm": (_AT, _AT, _SIZE, _AT, _SIZE, _AT, _AT),
    "tw_prewarm_report_summary": (_AT, _AT),
    "tw_read_workload": (_TEXT, _AT, _AT),
    "tw_cache_unwritable": (_AT, _AT),
    "tw_cache_export": (_AT, _TEXT, _INT, _INT),
    "tw_cache_merge": (_AT, _TEXT, _AT),
    "tw_cache_import": (_AT, _TEXT, _AT),
    "tw_task_create": (_AT, _AT),
    "tw_tune_task": (_AT, _AT, _AT, _AT, _AT),
    "tw_prepare_task": (_AT, _AT, _AT, _AT),
    "tw_prewarm_task": (_AT, _AT, _AT, _SIZE, _AT, _AT),
    "tw_compile": (_AT, _TEXT, _TEXT, _TEXT, _TEXT, _AT, _AT, _AT, _AT),
    "tw_model_open": (_TEXT, _AT),
    "tw_model_tensor": (_AT, _INT, _AT),
    "tw_model_find": (_AT, _TEXT, _AT),
    "tw_model_read": (_AT, _TEXT, c_uint64, _AT, _SIZE),
    "tw_import_format": (_AT, _INT, _AT, _AT),
    "tw_import_order": (_AT, _AT, _AT),
    "tw_import_weights": (_AT, _TEXT, _AT, _SIZE, _AT, _SIZE),
    "tw_export_weights": (_TEXT, _AT, _SIZE, _AT, _SIZE, _AT, _AT, _AT),
    "tw_unscale_pieces": (_TEXT, _AT, _SIZE, _LONG, _AT, _AT),
    "tw_gather_rows": (_TEXT, _LONG, _AT, _SIZE, Operand, Operand),
    "tw_observer_create": (_AT, _AT),
    "tw_observer_observe": (_AT, _TEXT, _AT, _SIZE, _LONG, _LONG),
    "tw_observer_end_batch": (_AT,),
    "tw_observer_merge": (_AT, _AT),
    "tw_observer_json": (_AT, _AT),
    "tw_observer_from_json": (_TEXT, _AT),
    "tw_observer_describe": (_AT, _AT),
    "tw_observer_channel": (_AT, _LONG, _AT),
    "tw_clip_ranges": (_AT, _AT, _AT, _SIZE),
    "tw_scale_for": (ClipRange, _TEXT, _INT, _AT, _AT),
    "tw_device_observer_create": (_AT, _AT, _TEXT, _AT, _AT),
    "tw_device_observer_observe": (_AT, _AT, _AT, _LONG, _LONG, _LONG),
    "tw_device_observer_end_batch": (_AT, _AT),
    "tw_device_observer_observed": (_AT, _AT),
    "tw_device_observer_clear": (_AT,),
    "tw_hessian_create": (_LONG, _AT),
    "tw_hessian_from": (_LONG, _LONG, _AT, _AT, _AT),
    "tw_hessian_add": (_AT, _TEXT, _AT, _LONG, _LONG, _INT),
    "tw_hessian_merge": (_AT, _AT),
    "tw_hessian_read": (_AT, _AT, _AT, _AT, _AT),
    "tw_round_to_nearest": (_AT, _AT, _AT, _AT),
    "tw_gptq": (_AT, _AT, _AT, _AT, _AT, _AT, _AT),
    "tw_awq": (_AT, _AT, _AT, _AT, _AT),
    "tw_quantized_describe": (_AT, _AT),
}
# Launches return a tw_status without a tw_error**.
_LAUNCHES: dict[str, tuple[Any, ...]] = {
    "tw_launch_gemm_args": (_AT, _AT, _AT),
    "tw_launch_gemm": (_AT, _AT, _AT, _AT, _AT, _AT, _LONG),
    "tw_launch_conv": (_AT, _AT, _AT),
    "tw_launch_cast": (_AT, _AT, _AT),
    "tw_launch_amax": (_AT, _AT, _AT),
    "tw_launch_fused_cast": (_AT, _AT, _AT),
    "tw_launch_fake_quant": (_AT, _AT, _AT),
    "tw_launch_fp4_fake_quant": (_AT, _AT, _AT),
    "tw_launch_dynamic_block_quantize": (_AT, _AT, _AT),
    "tw_launch_unscale": (_AT, _AT, _AT),
    "tw_launch_update_scale": (_AT, _AT, _AT),
    "tw_launch_pack": (_AT, _AT, _AT),
    "tw_launch_transpose": (_AT, _AT, _AT),
    "tw_launch": (_AT, _AT, _AT, _SIZE, _LONG, _LONG),
    "tw_layer_launch_gemm": (_AT, _AT, _AT, _AT),
    "tw_layer_launch_conv": (_AT, _AT, _AT, _AT),
}
# What cannot fail, by its result.
_OTHERS: dict[Any, dict[str, tuple[Any, ...]]] = {
    c_uint32: {"tw_abi_version": ()},
    c_int32: {
        "tw_format_count": (),
        "tw_arch_count": (),
        "tw_operation_count": (),
        "tw_operation_field_count": (_TEXT,),
        "tw_problem_buffer_count": (_AT,),
        "tw_device_count": (_TEXT,),
        "tw_plan_count": (_AT,),
        "tw_model_tensor_count": (_AT,),
        "tw_model_metadata_count": (_AT,),
        "tw_error_status": (_AT,),
        "tw_layer_packed": (_AT,),
    },
    c_int64: {
        "tw_problem_rows": (_AT,),
        "tw_problem_cols": (_AT,),
        "tw_gptq_device_bytes": (_LONG, _LONG, _LONG),
    },
    c_double: {"tw_problem_min_bytes": (_AT,), "tw_problem_ops": (_AT,)},
    c_size_t: {"tw_memory_size": (_AT,), "tw_layer_scratch_bytes": (_AT, _LONG)},
    c_char_p: {
        "tw_version": (),
        "tw_error_message": (_AT,),
        "tw_error_field": (_AT,),
        "tw_error_value": (_AT,),
        "tw_error_allowed": (_AT,),
        "tw_error_log": (_AT,),
        "tw_error_source": (_AT,),
        "tw_problem_text": (_AT,),
        "tw_problem_operation": (_AT,),
        "tw_prewarm_report_failure": (_AT, _INT),
        "tw_cache_path": (_AT,),
        "tw_model_metadata_key": (_AT, _INT),
        "tw_model_metadata": (_AT, _TEXT),
    },
    c_void_p: {"tw_last_error": (), "tw_memory_data": (_AT,), "tw_stream_handle": (_AT,)},
    None: {
        "tw_free": (_AT,),
        "tw_options_release": (_AT,),
        "tw_problem_release": (_AT,),
        "tw_device_release": (_AT,),
        "tw_memory_release": (_AT,),
        "tw_stream_release": (_AT,),
        "tw_engine_release": (_AT,),
        "tw_plan_release": (_AT,),
        "tw_kernel_release": (_AT,),
        "tw_layer_release": (_AT,),
        "tw_tune_report_release": (_AT,),
        "tw_prewarm_report_release": (_AT,),
        "tw_task_release": (_AT,),
        "tw_model_release": (_AT,),
        "tw_observer_release": (_AT,),
        "tw_device_observer_release": (_AT,),
        "tw_hessian_release": (_AT,),
        "tw_quantized_release": (_AT,),
    },
}


def library_path() -> str:
    """What is loaded: $TILEWRIGHT_LIBRARY, else the package's own copy."""
    here = os.path.dirname(os.path.abspath(__file__))
    return os.environ.get("TILEWRIGHT_LIBRARY") or os.path.join(here, "_lib", "libtilewright_c.so")


def _load() -> ctypes.CDLL:
    path = library_path()
    try:
        library = ctypes.CDLL(path)
        version: int = library.tw_abi_version()
    except (OSError, AttributeError) as error:
        raise _errors.LibraryMissing(
            "libtilewright_c", path, f"{error}; install the wheel, or name the library in TILEWRIGHT_LIBRARY"
        ) from None
    if version != ABI_VERSION:
        raise _errors.LibraryMissing(
            "libtilewright_c", path, f"its ABI version is {version}, and this package is for version {ABI_VERSION}"
        )
    return library


def raise_last() -> None:
    """Raises what the calling thread's latest failure said."""
    at = lib.tw_last_error()

    def part(name: str) -> str:
        return str(getattr(lib, "tw_error_" + name)(at).decode("utf-8", "replace"))

    kind = _errors.BY_STATUS.get(lib.tw_error_status(at), _errors.Internal)
    error = kind(part("field"), part("value"), part("allowed"), part("message"))
    if isinstance(error, _errors.CompileFailed):
        error.log, error.source = part("log"), part("source")
    raise error


def _check(status: int, function: Any, arguments: Any) -> None:
    if status:
        raise_last()


class _Library:
    """The functions, bound when they are first asked for: importing the package opens nothing."""

    def __getattr__(self, name: str) -> Any:
        if name == "cdll":
            value: Any = _load()
        elif name in _FALLIBLE:
            value = self.cdll[name]
            value.argtypes = _FALLIBLE[name]
            value.restype = c_int32
            value.errcheck = _check
            value = _without_error(value)
        elif name in _LAUNCHES:
            value = raw_launch(name)
            value.errcheck = _check
        else:
            value = self.cdll[name]
            value.restype, value.argtypes = next((r, of[name]) for r, of in _OTHERS.items() if name in of)
        setattr(self, name, value)
        return value


def _without_error(function: Any) -> Any:
    function.argtypes = (*function.argtypes, c_void_p)
    return lambda *arguments: function(*arguments, None)


def raw_launch(name: str) -> Any:
    """A launch function of one's own that returns its status: nothing but ctypes is between the caller and C."""
    function = lib.cdll[name]
    function.argtypes = _LAUNCHES[name]
    function.restype = c_int32
    return function


lib = _Library()


# ---- text


def text(value: str, name: str) -> bytes:
    """For a const char*. C would take a zero byte for the end."""
    if not isinstance(value, str):
        raise _errors.InvalidArgument(name, repr(value), "a string is required")
    if "\0" in value:
        raise _errors.InvalidArgument(name, repr(value), "text without zero bytes")
    return value.encode("utf-8", "surrogateescape")


def path(value: str | os.PathLike[str], name: str) -> bytes:
    try:
        return text(os.fspath(value), name)
    except TypeError:
        raise _errors.InvalidArgument(name, repr(value), "a path is required") from None


def string(value: bytes | None) -> str:
    return value.decode("utf-8", "replace") if value else ""


def take(at: c_void_p) -> str:
    """The text behind a char** output, which is freed."""
    try:
        return string(ctypes.string_at(at)) if at else ""
    finally:
        lib.tw_free(at)


def take_bytes(at: int | None, size: int) -> bytes:
    try:
        return ctypes.string_at(at, size) if at else b""
    finally:
        lib.tw_free(at)


def texts(values: list[bytes]) -> Any:
    return (c_char_p * len(values))(*values)
