/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library for C, and for every language that calls C. What a function does is said where its C++ namesake is
 * declared (tilewright/engine.h and its neighbours); this header says how it is called.
 *
 * Handles are opaque and counted: create, open and prepare give one reference, _retain another, _release takes one
 * back (null is allowed). All functions may be called from any thread at once, on one handle too, but for the release
 * of the last reference and for those that say otherwise. After fork() a child may release handles and nothing else.
 *
 * Functions that can fail return a tw_status. `error`, where it is not null, then gets an object that says what was
 * wrong, for tw_error_release(); on success it gets null. tw_last_error() has the same for the calling thread. No
 * function prints, throws or ends the process. Outputs are written on success only.
 *
 * Structs begin with struct_size, which the macros named *_INIT set: a library that is newer than its caller takes
 * what the caller does not know of for absent, an older one refuses what it does not know unless it is zero.
 *
 * Strings are UTF-8 and end with a zero byte. A const char* that a function returns belongs to the handle it was asked
 * of. A char** or void** output belongs to the caller: tw_free().
 */
#ifndef TILEWRIGHT_C_H
#define TILEWRIGHT_C_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TW_API __attribute__((visibility("default")))

/* Rises when something that existed changes. A new function or a new field at a struct's end changes nothing. */
#define TW_ABI_VERSION 1
TW_API uint32_t tw_abi_version(void);
TW_API const char* tw_version(void); /* "0.1.0" */
TW_API void tw_free(void* text_or_bytes);

/* ---- errors */

typedef enum tw_status {
  TW_OK = 0,
  TW_INVALID_ARGUMENT = 1,
  TW_UNSUPPORTED = 2,
  TW_TOO_LARGE = 3,
  TW_WOULD_TUNE = 4,
  TW_COMPILE_FAILED = 5,
  TW_DRIVER_FAILED = 6,
  TW_LIBRARY_MISSING = 7,
  TW_FORKED = 8,
  TW_IO = 9,
  TW_OUT_OF_MEMORY = 10, /* of the host */
  TW_INTERNAL = 11       /* a defect of the library, or an exception out of a C++ callback */
} tw_status;
TW_API const char* tw_status_name(tw_status status); /* "invalid_argument" */

typedef struct tw_error tw_error;
TW_API tw_status tw_error_status(const tw_error* error);
TW_API const char* tw_error_message(const tw_error* error); /* "k must be a multiple of 32 (got 100)" */
TW_API const char* tw_error_field(const tw_error* error);
TW_API const char* tw_error_value(const tw_error* error);
TW_API const char* tw_error_allowed(const tw_error* error); /* "must be a multiple of 32" */
TW_API const char* tw_error_log(const tw_error* error);     /* of the compiler; "" if it was not that */
TW_API const char* tw_error_source(const tw_error* error);  /* the text it refused; "" likewise */
TW_API void tw_error_release(tw_error* error);
/* What the calling thread's latest failure said; null if none failed. Valid until the thread's next failure. */
TW_API const tw_error* tw_last_error(void);

/* ---- options: Options::from_env(), then what is set by name */

typedef struct tw_options tw_options;
typedef enum tw_log_level { TW_LOG_ERROR = 0, TW_LOG_WARNING = 1, TW_LOG_INFO = 2, TW_LOG_DEBUG = 3 } tw_log_level;

TW_API tw_status tw_options_create(tw_options** options, tw_error** error);
/* The fields of Options by name: cache, cache_cap, prepared_cap, cache_read_only, allow_shared, nvrtc, same_nvrtc,
 * llvm, driver, templates, record, tune, compile, jobs, check_pointers, log_launches, nvtx: text, integers, 0 or 1.
 * shipped may be set several times, and an empty value removes what the environment had; log_level: error, warn, info,
 * debug. One thread. */
TW_API tw_status tw_options_set(tw_options* options, const char* name, const char* value, tw_error** error);
/* Called from any thread, never concurrently for one engine. */
TW_API tw_status tw_options_set_log(tw_options* options, void (*log)(void* user, tw_log_level level, const char* text),
                                    void* user, tw_error** error);
TW_API void tw_options_release(tw_options* options);

/* ---- what there is */

typedef struct tw_format_info {
  uint32_t struct_size;
  int32_t block;           /* elements of a row that share an item of the block-scoped streams */
  int32_t bits;            /* of one code */
  int32_t encoders;        /* how many; the first is the default */
  int32_t stream_scope[3]; /* of data, scales, global: -1 there is none, 0 an item per block, 1 per row, 2 one */
  int32_t stream_bytes[3]; /* of one item */
  int32_t stream_rows[3];  /* that share an item */
  int32_t layout_version;
  const char* name;
  const char* title;
  const char* source; /* where layout and rounding come from */
} tw_format_info;
#define TW_FORMAT_INFO_INIT \
  { sizeof(tw_format_info), 0, 0, 0, {0}, {0}, {0}, 0, 0, 0, 0 }

TW_API int32_t tw_format_count(void);
TW_API tw_status tw_format_at(int32_t index, tw_format_info* info, tw_error** error);
TW_API tw_status tw_format_find(const char* name, tw_format_info* info, tw_error** error);
TW_API tw_status tw_format_encoder(const char* format, int32_t index, const char** name, tw_error** error);

typedef struct tw_arch_info {
  uint32_t struct_size;
  int32_t major, minor;
  int32_t shared_per_block; /* bytes */
  const char* name;         /* "sm_90a" */
  const char* run_on;       /* a device that kernels for it have run on, or null */
} tw_arch_info;
#define TW_ARCH_INFO_INIT \
  { sizeof(tw_arch_info), 0, 0, 0, 0, 0 }
TW_API int32_t tw_arch_count(void);
TW_API tw_status tw_arch_at(int32_t index, tw_arch_info* info, tw_error** error);

/* Operations and the fields of their text, by index; TW_INVALID_ARGUMENT beyond the last. */
TW_API int32_t tw_operation_count(void);
TW_API tw_status tw_operation_at(int32_t index, const char** name, const char** title, tw_error** error);
typedef struct tw_field_info {
  uint32_t struct_size;
  int32_t required;
  const char* name;  /* "w"; of this and the next two: valid until the thread's next call of tw_operation_field() */
  const char* value; /* "FORMAT", "INTEGER", "NUMBER", "relu|gelu|gelu_tanh|silu" */
  const char* help;
} tw_field_info;
#define TW_FIELD_INFO_INIT \
  { sizeof(tw_field_info), 0, 0, 0, 0 }
TW_API int32_t tw_operation_field_count(const char* operation); /* 0 if there is no such operation */
TW_API tw_status tw_operation_field(const char* operation, int32_t index, tw_field_info* info, tw_error** error);

/* ---- matrices on the host: the reference codec of a format */

typedef struct tw_operand {
  const void* data;
  const void* scales;
  const float* global;
} tw_operand;
typedef struct tw_mutable_operand {
  void* data;
  void* scales;
  float* global;
} tw_mutable_operand;
typedef enum tw_stream_name { TW_DATA = 0, TW_SCALES = 1, TW_GLOBAL = 2 } tw_stream_name;

/* Bytes of a stream of a rows x cols matrix; 0: the format has none. cols is a multiple of the block. */
TW_API tw_status tw_stream_bytes(const char* format, tw_stream_name stream, int64_t rows, int64_t cols, int64_t* bytes,
                                 tw_error** error);
/* values: rows x cols floats. Of a format with a tensor-wide factor *to.global is read. encoder: null is the default.
 * All streams that the format has are required. Large matrices are worth several threads: rows are independent where no
 * stream's item is shared by rows. */
TW_API tw_status tw_encode(const char* format, const char* encoder, const float* values, int64_t rows, int64_t cols,
                           tw_mutable_operand to, tw_error** error);
TW_API tw_status tw_decode(const char* format, tw_operand from, int64_t rows, int64_t cols, float* values,
                           tw_error** error);
/* The tensor-wide factor for values whose largest magnitude is amax; 1 for formats without one. */
TW_API tw_status tw_global_for(const char* format, float amax, float* factor, tw_error** error);

/* ---- problems */

typedef struct tw_problem tw_problem;

TW_API tw_status tw_problem_parse(const char* text, tw_problem** problem, tw_error** error);
/* The same from names and values: tw_problem_create("gemm", {"x", "w", ...}, {"q8_1", "q4_0", ...}, count, ...). */
TW_API tw_status tw_problem_create(const char* operation, const char* const* names, const char* const* values,
                                   size_t count, tw_problem** problem, tw_error** error);

/* A gemm as a struct: tilewright/gemm.h. Enumerations are the words of the text; null or 0: the default. */
typedef struct tw_gemm {
  uint32_t struct_size;
  int32_t constant_weights; /* 0 or 1 */
  const char *x, *w, *y;    /* formats */
  int64_t m, n, k;
  const char* global; /* "mul", "div" */
  const char* pack;   /* "tiles", "panels" */
  const char* x_from; /* format */
  const char* bias;   /* format */
  const char* accum;  /* "fast" */
  const char* act;    /* "relu", "gelu", "gelu_tanh", "silu" */
  const char* c;      /* format */
  double alpha, beta, y_scale;
  int64_t workspace; /* bytes */
  int64_t groups;
  const char* group_layout; /* "contiguous", "masked" */
} tw_gemm;
#define TW_GEMM_INIT \
  { sizeof(tw_gemm), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1.0, 1.0, 1.0, 0, 0, 0 }
TW_API tw_status tw_problem_from_gemm(const tw_gemm* gemm, tw_problem** problem, tw_error** error);

TW_API tw_status tw_problem_with_rows(const tw_problem* problem, int64_t rows, tw_problem** other, tw_error** error);
TW_API const char* tw_problem_text(const tw_problem* problem); /* canonical; null of null, as all that return text */
TW_API const char* tw_problem_operation(const tw_problem* problem);
TW_API int64_t tw_problem_rows(const tw_problem* problem); /* -1 of null, as all that return a count */
TW_API int64_t tw_problem_cols(const tw_problem* problem);
TW_API double tw_problem_min_bytes(const tw_problem* problem);
TW_API double tw_problem_ops(const tw_problem* problem);
TW_API void tw_problem_retain(tw_problem* problem);
TW_API void tw_problem_release(tw_problem* problem);

/* What a launch reads and writes, in the order of tw_launch_buffers(): "x.data", "w.data", "w.scales", "y.data". Packed
 * weights are listed as packed. */
typedef struct tw_buffer_info {
  uint32_t struct_size;
  int32_t output;   /* 0 or 1 */
  int32_t scratch;  /* 0 or 1: zero before the first launch, then the kernels' */
  int32_t optional; /* 0 or 1: a launch may go without */
  int64_t align;    /* bytes, of the pointer of a launch */
  int64_t bytes;
  int64_t row_bytes;    /* bytes = row_bytes * rows; 0: independent of the rows */
  int64_t launch_bytes; /* that a launch reads or writes where they do not follow its rows; else 0 */
  int64_t line_bytes; /* of a matrix: of one row in memory. With groups, one of each makes the problem's row. 0: none */
  int64_t cols;       /* of a matrix: elements of such a row; 0: arrays have any axes, or their order is the kernels' */
  const char* name;
  const char* format; /* of a matrix as stored, "q4_0"; of others "f32", "int32", "int64" or "": bytes. Of packed "" */
  const char* stride; /* the value of a launch that is the distance of such rows, "ldx"; "": they are dense */
} tw_buffer_info;
#define TW_BUFFER_INFO_INIT \
  { sizeof(tw_buffer_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
TW_API int32_t tw_problem_buffer_count(const tw_problem* problem);
TW_API tw_status tw_problem_buffer(const tw_problem* problem, int32_t index, tw_buffer_info* info, tw_error** error);

/* The rows of a launch. */
typedef struct tw_rows_info {
  uint32_t struct_size;
  int32_t fixed;    /* 0 or 1: each launch takes the problem's */
  int64_t rows_per; /* rows of a launch that make one of the problem's: with contiguous groups the groups, else 1 */
  const char* name; /* "m", "rows", "pieces" */
} tw_rows_info;
#define TW_ROWS_INFO_INIT \
  { sizeof(tw_rows_info), 0, 0, 0 }
TW_API tw_status tw_problem_rows_info(const tw_problem* problem, tw_rows_info* info, tw_error** error);

/* A number that a launch takes beside its buffers, in the order of tw_launch_buffers(): "ldx", "alpha", "seed". */
typedef union tw_value {
  int64_t integer;
  double number;
} tw_value;
typedef struct tw_value_info {
  uint32_t struct_size;
  int32_t is_integer; /* 0 or 1: which member of tw_value it is */
  tw_value by_default;
  const char* name;
} tw_value_info;
#define TW_VALUE_INFO_INIT \
  { sizeof(tw_value_info), 0, {0}, 0 }
TW_API int32_t tw_problem_value_count(const tw_problem* problem);
TW_API tw_status tw_problem_value(const tw_problem* problem, int32_t index, tw_value_info* info, tw_error** error);

/* Computes the outputs on the host, plainly and slowly: one 16-byte aligned pointer for each buffer, in order and
 * without exception, with its bytes. Of a product with more than 2e9 multiplications only the sample that
 * tw_check_on_host() looks at is computed. A buffer group_rows holds the offsets or counts at its end; what is before
 * them is for other numbers of rows. */
TW_API tw_status tw_compute_on_host(const tw_problem* problem, void* const* buffers, const size_t* bytes, size_t count,
                                    tw_error** error);
typedef struct tw_host_check {
  uint32_t struct_size;
  int64_t checked, outputs; /* how many outputs were judged, of how many */
  double largest_error;     /* absolute */
  double of_bound;          /* largest error relative to its bound; negative: every byte is given */
  int64_t infinite;
} tw_host_check;
#define TW_HOST_CHECK_INIT \
  { sizeof(tw_host_check), 0, 0, 0, 0, 0 }
/* Judges outputs by sums in double precision. *wrong: null, or a sentence on the first output beyond its bound. */
TW_API tw_status tw_check_on_host(const tw_problem* problem, void* const* buffers, const size_t* bytes, size_t count,
                                  tw_host_check* check, char** wrong, tw_error** error);

/* ---- packed weights on the host: tilewright/pack.h */

TW_API tw_status tw_packed_bytes(const tw_problem* gemm, tw_stream_name stream, int64_t* bytes, tw_error** error);
TW_API tw_status tw_pack_weights(const tw_problem* gemm, tw_operand from, tw_mutable_operand to, tw_error** error);
TW_API tw_status tw_unpack_weights(const tw_problem* gemm, tw_operand from, tw_mutable_operand to, tw_error** error);

/* ---- devices, memory, streams */

typedef void* tw_stream; /* CUstream or cudaStream_t; null: the legacy default stream */
typedef struct tw_device tw_device;

/* driver: path of libcuda; null: libcuda.so.1. 0 devices when there is no driver; never fails. */
TW_API int32_t tw_device_count(const char* driver);
TW_API tw_status tw_device_open(int32_t ordinal, const char* driver, tw_device** device, tw_error** error);
/* This machine's CPU: tilewright/kernel.h, Device::open_cpu(). Pointers of launches are the host's, their stream is
 * null, and they are complete when they return. threads: the calling one included; 0: as many as the process may use
 * CPUs. parallel_for, or null for threads of the device's own: runs block(context, i) for each i from 0 to count - 1,
 * on the caller's threads, and returns when all are done. It must not return before, nor leave one out. */
typedef void (*tw_block)(void* context, int64_t i);
typedef void (*tw_parallel_for)(void* user, int64_t count, tw_block block, void* context);
TW_API tw_status tw_device_open_cpu(int32_t threads, tw_parallel_for parallel_for, void* user, tw_device** device,
                                    tw_error** error);
/* The same for a target that this CPU runs, such as "x86-64-v3"; null or "": the best. */
TW_API tw_status tw_device_open_cpu_target(const char* target, int32_t threads, tw_parallel_for parallel_for,
                                           void* user, tw_device** device, tw_error** error);
typedef struct tw_device_info {
  uint32_t struct_size;
  int32_t ordinal, sms;
  int64_t l2_bytes, memory_bytes;
  const char* name;
  const char* driver_version;
  const char* arch; /* "sm_90a" */
} tw_device_info;
#define TW_DEVICE_INFO_INIT \
  { sizeof(tw_device_info), 0, 0, 0, 0, 0, 0, 0 }
TW_API tw_status tw_device_describe(const tw_device* device, tw_device_info* info, tw_error** error);
TW_API tw_status tw_device_synchronize(const tw_device* device, tw_error** error);
TW_API void tw_device_retain(tw_device* device);
TW_API void tw_device_release(tw_device* device);

/* For programs without a CUDA runtime of their own. Copies and fill wait for completion. */
typedef struct tw_memory tw_memory;
TW_API tw_status tw_memory_create(const tw_device* device, size_t bytes, tw_memory** memory, tw_error** error);
TW_API void* tw_memory_data(const tw_memory* memory);
TW_API size_t tw_memory_size(const tw_memory* memory); /* 0 of null */
TW_API tw_status tw_memory_upload(tw_memory* memory, size_t offset, const void* from, size_t bytes, tw_error** error);
TW_API tw_status tw_memory_download(const tw_memory* memory, size_t offset, void* to, size_t bytes, tw_error** error);
TW_API tw_status tw_memory_fill(tw_memory* memory, uint8_t byte, tw_error** error);
TW_API void tw_memory_release(tw_memory* memory);

typedef struct tw_owned_stream tw_owned_stream;
TW_API tw_status tw_stream_create(const tw_device* device, tw_owned_stream** stream, tw_error** error);
TW_API tw_stream tw_stream_handle(const tw_owned_stream* stream);
TW_API tw_status tw_stream_synchronize(const tw_owned_stream* stream, tw_error** error);
TW_API void tw_stream_release(tw_owned_stream* stream);

/* ---- engine */

typedef struct tw_engine tw_engine;
typedef struct tw_kernel tw_kernel;

/* options: null is what the environment says. */
TW_API tw_status tw_engine_create(const tw_options* options, tw_engine** engine, tw_error** error);
TW_API void tw_engine_retain(tw_engine* engine);
TW_API void tw_engine_release(tw_engine* engine);

TW_API tw_status tw_prepare(tw_engine* engine, const tw_problem* problem, const tw_device* device, tw_stream stream,
                            tw_kernel** kernel, tw_error** error);
/* The problem with pack=tiles, or on a CPU pack=panels, where kernels of this target want that, else the problem again.
 * arch: "sm_90a". */
TW_API tw_status tw_packed(tw_engine* engine, const tw_problem* problem, const char* arch, tw_problem** packed,
                           tw_error** error);
TW_API tw_status tw_pack(tw_engine* engine, const tw_problem* packed, const tw_device* device, tw_stream stream,
                         tw_operand from, tw_mutable_operand to, tw_error** error);

typedef struct tw_stats {
  uint32_t struct_size;
  int64_t prepared, memory_hits, compiled, cache_hits, measured, warnings;
  double compile_seconds;
  int64_t built_in; /* kernels of a CPU that were taken as this library was built with them, for want of libLLVM */
} tw_stats;
#define TW_STATS_INIT \
  { sizeof(tw_stats), 0, 0, 0, 0, 0, 0, 0, 0 }
TW_API tw_status tw_engine_stats(const tw_engine* engine, tw_stats* stats, tw_error** error);
TW_API tw_status tw_explain(const tw_engine* engine, const tw_problem* problem, const char* arch,
                            const tw_device* device_or_null, char** text, tw_error** error);
/* The text of the kernel that would be compiled first. */
TW_API tw_status tw_emit(const tw_engine* engine, const tw_problem* problem, const char* arch, char** source,
                         tw_error** error);
/* "13.0 build 88" of the libnvrtc that the engine compiles with, and its path. */
TW_API tw_status tw_compiler(const tw_engine* engine, char** version, char** path, tw_error** error);

/* Ranked candidates, best first. */
typedef struct tw_plan tw_plan;
typedef struct tw_planned {
  uint32_t struct_size;
  double predicted_microseconds;
  const char* candidate; /* "mma block_m=128 block_n=128 stages=3" */
} tw_planned;
#define TW_PLANNED_INIT \
  { sizeof(tw_planned), 0, 0 }
TW_API tw_status tw_plan_create(const tw_engine* engine, const tw_problem* problem, const char* arch, tw_plan** plan,
                                tw_error** error);
TW_API int32_t tw_plan_count(const tw_plan* plan);
TW_API tw_status tw_plan_at(const tw_plan* plan, int32_t index, tw_planned* planned, tw_error** error);
TW_API void tw_plan_release(tw_plan* plan);

/* ---- launches
 *
 * Nothing is compiled, allocated or waited for: safe under stream capture and from any thread. A kernel must outlive
 * the graphs that captured its launches. These have no `error`, for speed: tw_last_error(). */

typedef struct tw_gemm_args {
  uint32_t struct_size;
  tw_operand x, w;
  void* y;
  const void* bias;
  int64_t m, ldx, ldy;
  const void* c;
  int64_t ldc;
  void* workspace;
  float alpha, beta;
  const int32_t* group_rows;
} tw_gemm_args;
#define TW_GEMM_ARGS_INIT \
  { sizeof(tw_gemm_args), {0, 0, 0}, {0, 0, 0}, 0, 0, 0, 0, 0, 0, 0, 0, 1.0f, 1.0f, 0 }
TW_API tw_status tw_launch_gemm_args(const tw_kernel* kernel, tw_stream stream, const tw_gemm_args* args);
/* The common case in one call: dense x and y, no bias, no residual, no workspace. */
TW_API tw_status tw_launch_gemm(const tw_kernel* kernel, tw_stream stream, const void* x, const void* w,
                                const void* w_scales, void* y, int64_t m);

/* Every operation: a pointer for each of tw_problem_buffer(), in order, null where the launch goes without; the rows,
 * where the problem fixes them tw_problem_rows(); a value for each of tw_problem_value(), or none, which takes all
 * defaults. */
TW_API tw_status tw_launch_buffers(const tw_kernel* kernel, tw_stream stream, void* const* buffers, size_t buffer_count,
                                   int64_t rows, const tw_value* values, size_t value_count);

/* A part of a tensor, in device memory: bytes from x and y of the launch, an address where those are null; and
 * elements. A plain value without a size of its own: arrays of it are what kernels read. */
typedef struct tw_unscale_piece {
  int64_t at, elements;
} tw_unscale_piece;
/* A dense tensor in device memory, aligned to an element. */
typedef struct tw_unscale_tensor {
  const void* data;
  int64_t elements;
} tw_unscale_tensor;
/* `count` tensors of a format (f32, f16, bf16) in pieces of at most `elements` each, for launches in place. pieces:
 * room for `*piece_count`, which becomes the number that there are; null: only that is told. */
TW_API tw_status tw_unscale_pieces(const char* format, const tw_unscale_tensor* tensors, size_t count, int64_t elements,
                                   tw_unscale_piece* pieces, size_t* piece_count, tw_error** error);
/* The kernel of a caller's own task: params is what its entry function declares as its first parameter. */
TW_API tw_status tw_launch(const tw_kernel* kernel, tw_stream stream, const void* params, size_t bytes, int64_t rows,
                           int64_t cols);

typedef struct tw_kernel_info {
  uint32_t struct_size;
  int32_t threads; /* per block */
  int32_t registers;
  int32_t shared_bytes; /* static and dynamic, per block */
  int32_t spill_bytes;
} tw_kernel_info;
#define TW_KERNEL_INFO_INIT \
  { sizeof(tw_kernel_info), 0, 0, 0, 0 }
/* Of the binary that serves `rows`. candidate: "" if the binary is the caller's own; tw_free(). Null: not wanted. */
TW_API tw_status tw_kernel_describe(const tw_kernel* kernel, int64_t rows, tw_kernel_info* info, char** candidate,
                                    tw_error** error);
TW_API tw_status tw_kernel_check_pointers(tw_kernel* kernel, int32_t on, tw_error** error);
TW_API void tw_kernel_retain(tw_kernel* kernel);
TW_API void tw_kernel_release(tw_kernel* kernel);

/* ---- layers: tilewright/layer.h
 *
 * A gemm or a conv whose weights stay. The layer decides whether w is reordered, which launches quantize x and how, and
 * which workspace they share. It retains its engine, and must outlive the graphs that captured its launches. */

typedef struct tw_layer tw_layer;

/* What a layer launches, each with one row where rows vary: itself; a cast of x before it; what replaces both for at
 * most `few` rows; what reorders w. Null: there is none. Release each. */
typedef struct tw_layer_problems {
  uint32_t struct_size;
  tw_problem *main, *cast, *fused, *repack;
  int64_t few;
} tw_layer_problems;
#define TW_LAYER_PROBLEMS_INIT \
  { sizeof(tw_layer_problems), 0, 0, 0, 0, 0 }
/* For a target, without a GPU. x_from: the floats that x arrives as ("f16"); null: x arrives in its format. pack: 0 if
 * w must stay as the problem's text says, else 1. */
TW_API tw_status tw_layer_describe(const tw_problem* problem, const char* arch, const char* x_from, int32_t pack,
                                   tw_layer_problems* problems, tw_error** error);

/* Prepares every kernel of the layer, for every number of rows. */
TW_API tw_status tw_layer_create(tw_engine* engine, const tw_problem* problem, const tw_device* device,
                                 const char* x_from, int32_t pack, tw_layer** layer, tw_error** error);
TW_API void tw_layer_retain(tw_layer* layer);
TW_API void tw_layer_release(tw_layer* layer);
/* What it launches, as tw_layer_describe() says it. */
TW_API tw_status tw_layer_get_problems(const tw_layer* layer, tw_layer_problems* problems, tw_error** error);
/* The kernel of `main`. Release it. */
TW_API tw_status tw_layer_kernel(const tw_layer* layer, tw_kernel** kernel, tw_error** error);
/* 1 if launches take w reordered, else 0, also for what is no layer. */
TW_API int32_t tw_layer_packed(const tw_layer* layer);
/* Bytes of a stream of w as launches take it. */
TW_API tw_status tw_layer_weight_bytes(const tw_layer* layer, tw_stream_name stream, size_t* bytes, tw_error** error);
/* Reorders w on the device into memory of the caller's; a null to.global_scale leaves that stream where it is. */
TW_API tw_status tw_layer_pack(const tw_layer* layer, tw_stream stream, tw_operand from, tw_mutable_operand to,
                               tw_error** error);
/* Makes w the layer's, for launches that pass none: reordered, or else where it lies, its factor in any case. */
TW_API tw_status tw_layer_load(tw_layer* layer, tw_stream stream, tw_operand w, tw_error** error);
/* Device memory that a launch of so many rows (pixels of a conv) needs besides; 0 also for what is no layer. */
TW_API size_t tw_layer_scratch_bytes(const tw_layer* layer, int64_t rows);
/* Of a conv: residual, cache and amax (one float in device memory) where the problem has them. */
typedef struct tw_conv_args {
  uint32_t struct_size;
  tw_operand x, w;
  void* y;
  const void* bias;
  const void* residual;
  const void* cache;
  void* workspace;
  float alpha, beta;
  const float* amax;
} tw_conv_args;
#define TW_CONV_ARGS_INIT \
  { sizeof(tw_conv_args), {0, 0, 0}, {0, 0, 0}, 0, 0, 0, 0, 0, 1.0f, 1.0f, 0 }
/* One launch, or a cast and one: as tw_launch_gemm_args(). A null w.data takes what was loaded, a null workspace the
 * engine's: one for each stream, and one for all captures. The first launch on a stream allocates it. */
TW_API tw_status tw_layer_launch_gemm(const tw_layer* layer, tw_stream stream, const tw_gemm_args* args, void* scratch);
TW_API tw_status tw_layer_launch_conv(const tw_layer* layer, tw_stream stream, const tw_conv_args* args, void* scratch);

/* ---- tuning */

typedef struct tw_tune_policy {
  uint32_t struct_size;
  int32_t max_candidates;
  double budget_seconds;
  int32_t patience;
  int32_t exhaustive, retune, all_rows; /* 0 or 1 */
  int32_t max_binaries;
  int32_t jobs;
  double cold_bytes;
  void (*progress)(void* user, const char* stage, int32_t done, int32_t total); /* may be null */
  int32_t (*cancelled)(void* user);                                             /* polled; may be null */
  void* user;
} tw_tune_policy;
#define TW_TUNE_POLICY_INIT \
  { sizeof(tw_tune_policy), 16, 30.0, 0, 0, 0, 0, 40, 0, 4e8, 0, 0, 0 }

typedef struct tw_tune_report tw_tune_report;
/* policy: null is TW_TUNE_POLICY_INIT. */
TW_API tw_status tw_tune(tw_engine* engine, const tw_problem* problem, const tw_device* device,
                         const tw_tune_policy* policy, tw_tune_report** report, tw_error** error);

typedef struct tw_tune_summary {
  uint32_t struct_size;
  int32_t outcomes, ranges; /* how many there are to ask for */
  int32_t compiled, measured;
  int32_t noisy; /* 0 or 1 */
  double seconds, microseconds;
  const char* candidate; /* what was chosen */
  const char* first;     /* what was ranked first */
  const char* grade;     /* "exact" */
  const char* stopped;   /* "all", "budget", "patience", "cancelled" */
  const char* key;
} tw_tune_summary;
#define TW_TUNE_SUMMARY_INIT \
  { sizeof(tw_tune_summary), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
typedef struct tw_outcome {
  uint32_t struct_size;
  int32_t rounds;
  int32_t stored, imported; /* 0 or 1 */
  int64_t rows;             /* that were measured; 0: the problem's */
  double microseconds, low, high, error, mhz;
  const char* candidate;
  const char* kind; /* "measured", "pruned", "rejected", "not_compiled", "wrong", "failed" */
  const char* detail;
} tw_outcome;
#define TW_OUTCOME_INIT \
  { sizeof(tw_outcome), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
typedef struct tw_row_range {
  uint32_t struct_size;
  int32_t measured; /* 0 or 1 */
  int64_t first, last;
  double microseconds;
  const char* candidate;
} tw_row_range;
#define TW_ROW_RANGE_INIT \
  { sizeof(tw_row_range), 0, 0, 0, 0, 0 }
TW_API tw_status tw_tune_report_summary(const tw_tune_report* report, tw_tune_summary* summary, tw_error** error);
TW_API tw_status tw_tune_report_outcome(const tw_tune_report* report, int32_t index, tw_outcome* outcome,
                                        tw_error** error);
TW_API tw_status tw_tune_report_range(const tw_tune_report* report, int32_t index, tw_row_range* range,
                                      tw_error** error);
TW_API void tw_tune_report_release(tw_tune_report* report);

/* ---- prewarming: needs no GPU */

typedef struct tw_prewarm_policy {
  uint32_t struct_size;
  int32_t top, jobs;
  int32_t every_bucket; /* 0 or 1 */
  const char* worker;   /* may be null: threads of this process compile */
  void (*progress)(void* user, const char* stage, int32_t done, int32_t total); /* may be null */
  void* user;
  int32_t (*cancelled)(void* user); /* polled between compiles; may be null */
  int32_t reference;                /* 0 or 1: compile the reference too where no other kernel takes a problem */
} tw_prewarm_policy;
#define TW_PREWARM_POLICY_INIT \
  { sizeof(tw_prewarm_policy), 4, 0, 1, 0, 0, 0, 0, 0 }
typedef struct tw_prewarm_report tw_prewarm_report;
typedef struct tw_prewarm_summary {
  uint32_t struct_size;
  int32_t compiled, skipped, failed, evicted;
  double seconds;
  int32_t cancelled; /* 0 or 1 */
} tw_prewarm_summary;
#define TW_PREWARM_SUMMARY_INIT \
  { sizeof(tw_prewarm_summary), 0, 0, 0, 0, 0, 0 }
TW_API tw_status tw_prewarm(tw_engine* engine, const tw_problem* const* problems, size_t problem_count,
                            const char* const* archs, size_t arch_count, const tw_prewarm_policy* policy,
                            tw_prewarm_report** report, tw_error** error);
TW_API tw_status tw_prewarm_report_summary(const tw_prewarm_report* report, tw_prewarm_summary* summary,
                                           tw_error** error);
TW_API const char* tw_prewarm_report_failure(const tw_prewarm_report* report, int32_t index); /* null beyond the last */
TW_API void tw_prewarm_report_release(tw_prewarm_report* report);
/* A workload file, one problem per line: *problems is an array for tw_free(), its elements for tw_problem_release(). */
TW_API tw_status tw_read_workload(const char* path, tw_problem*** problems, size_t* count, tw_error** error);
/* What tw_prewarm_policy::worker has to run when its only argument is "compile-worker"; returns the exit status. */
TW_API int32_t tw_compile_worker_main(int32_t in_fd, int32_t out_fd);

/* ---- the cache file */

typedef struct tw_merge_report {
  uint32_t struct_size;
  int64_t added, kept, replaced, refused;
} tw_merge_report;
#define TW_MERGE_REPORT_INIT \
  { sizeof(tw_merge_report), 0, 0, 0, 0 }
TW_API const char* tw_cache_path(const tw_engine* engine);
/* *why: null if what is learned reaches the file, else a sentence on why it does not. */
TW_API tw_status tw_cache_unwritable(const tw_engine* engine, char** why, tw_error** error);
TW_API tw_status tw_cache_export(tw_engine* engine, const char* path, int32_t with_binaries, int32_t replace,
                                 tw_error** error);
/* merge: everything of another trusted cache; import: choices and measurements alone, checked here before use. */
TW_API tw_status tw_cache_merge(tw_engine* engine, const char* path, tw_merge_report* report, tw_error** error);
TW_API tw_status tw_cache_import(tw_engine* engine, const char* path, tw_merge_report* report, tw_error** error);

/* ---- a kernel of one's own, with knobs of one's own: tilewright/task.h */

typedef struct tw_grid_axis { /* blocks = fixed * ceil(rows / per_rows) * ceil(cols / per_cols); 0 leaves out */
  uint32_t fixed, per_rows, per_cols;
} tw_grid_axis;
typedef struct tw_launch_plan { /* of a CPU's kernel x alone counts: its blocks */
  uint32_t struct_size;
  tw_grid_axis x, y, z;
  uint32_t threads;      /* per block */
  uint32_t cluster;      /* blocks along x */
  uint32_t shared_bytes; /* dynamic */
} tw_launch_plan;
#define TW_LAUNCH_PLAN_INIT \
  { sizeof(tw_launch_plan), {1, 0, 0}, {1, 0, 0}, {1, 0, 0}, 0, 1, 0 }

typedef struct tw_task_buffer {
  uint32_t struct_size;
  int32_t output, scratch; /* 0 or 1 */
  const char* name;
  size_t bytes;
  size_t row_bytes; /* bytes = row_bytes * rows, or 0 */
} tw_task_buffer;
#define TW_TASK_BUFFER_INIT \
  { sizeof(tw_task_buffer), 0, 0, 0, 0, 0 }

/* Callbacks get `user`. They may be called from several threads at once (source), or from the one that tunes; they
 * return 0, or anything else to fail, and what they point at must live until the next call from the same thread. */
typedef struct tw_task_spec {
  uint32_t struct_size;
  const char* key; /* what is computed: the stored choice's key */
  int64_t rows, cols;
  const char* const* candidates; /* "FAMILY knob=1 knob=2", best guess first; the last is legal everywhere */
  size_t candidate_count;
  const tw_task_buffer* buffers;
  size_t buffer_count;
  int64_t verify_rows;
  double min_bytes, ops; /* of a launch, for reports */
  /* Required. CUDA text and entry function of a candidate, and how it is launched. */
  int32_t (*source)(void* user, const char* candidate, const char** text, const char** entry, tw_launch_plan* plan);
  /* Required. Content of an input: deterministic in the seed. */
  int32_t (*fill)(void* user, int32_t buffer, void* bytes, size_t size, uint64_t seed);
  /* Required. The kernel's first parameter over the device pointers, one per buffer; written to params, at most
   * `capacity` bytes. Returns how many, or a negative number to fail. */
  int32_t (*arguments)(void* user, void* const* pointers, int64_t rows, void* params, size_t capacity);
  /* Required. Judges outputs, given the inputs: null for right ones, else a sentence. Host memory: a pointer for each
   * output, and one for each other buffer, scratch too, in order. */
  const char* (*compare)(void* user, const void* const* outputs, const void* const* inputs, int64_t rows);
  void* user;
} tw_task_spec;
#define TW_TASK_SPEC_INIT \
  { sizeof(tw_task_spec), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

typedef struct tw_task tw_task; /* used by one thread at a time */
TW_API tw_status tw_task_create(const tw_task_spec* spec, tw_task** task, tw_error** error);
TW_API void tw_task_release(tw_task* task);
TW_API tw_status tw_tune_task(tw_engine* engine, const tw_task* task, const tw_device* device,
                              const tw_tune_policy* policy, tw_tune_report** report, tw_error** error);
TW_API tw_status tw_prepare_task(tw_engine* engine, const tw_task* task, const tw_device* device, tw_kernel** kernel,
                                 tw_error** error);
TW_API tw_status tw_prewarm_task(tw_engine* engine, const tw_task* task, const char* const* archs, size_t arch_count,
                                 const tw_prewarm_policy* policy, tw_prewarm_report** report, tw_error** error);
/* Compiles one source for one target, outside any cache. Null outputs are not wanted. */
TW_API tw_status tw_compile(const tw_engine* engine, const char* name, const char* text, const char* entry,
                            const char* arch, void** image, size_t* bytes, tw_kernel_info* info, char** log,
                            tw_error** error);

/* ---- model files: GGUF and safetensors, told apart by their first bytes */

typedef struct tw_model tw_model;
typedef struct tw_tensor_info {
  uint32_t struct_size;
  int32_t dim_count;
  const int64_t* dims; /* outermost first: a weight w[n, k] has {n, k} */
  uint64_t bytes;
  const char* name;
  const char* type;   /* as the file names it: "q4_K", "BF16" */
  const char* format; /* the library's name of the same bytes; "" if it has none */
} tw_tensor_info;
#define TW_TENSOR_INFO_INIT \
  { sizeof(tw_tensor_info), 0, 0, 0, 0, 0, 0 }
TW_API tw_status tw_model_open(const char* path, tw_model** model, tw_error** error);
TW_API int32_t tw_model_tensor_count(const tw_model* model);
TW_API tw_status tw_model_tensor(const tw_model* model, int32_t index, tw_tensor_info* info, tw_error** error);
TW_API tw_status tw_model_find(const tw_model* model, const char* name, tw_tensor_info* info, tw_error** error);
TW_API tw_status tw_model_read(const tw_model* model, const char* name, uint64_t first, void* to, size_t bytes,
                               tw_error** error);
/* Metadata as text, numbers in decimal; of an array its type and length. Null beyond the last and for unknown keys. */
TW_API int32_t tw_model_metadata_count(const tw_model* model);
TW_API const char* tw_model_metadata_key(const tw_model* model, int32_t index);
TW_API const char* tw_model_metadata(const tw_model* model, const char* key);
TW_API void tw_model_release(tw_model* model);

/* ---- 4-bit weights of checkpoints: tilewright/import.h */

typedef struct tw_checkpoint_tensor {
  const void* bytes; /* null: the checkpoint does not have it */
  int64_t rows, cols;
  const char* type; /* "i32", "f16", "bf16" */
} tw_checkpoint_tensor;
typedef struct tw_checkpoint_weight {
  uint32_t struct_size;
  int32_t bits;
  const char* packing; /* "gptq", "gptq_v2", "awq", "compressed_tensors" */
  int64_t n, k, group;
  tw_checkpoint_tensor codes, zeros, scales, g_idx;
} tw_checkpoint_weight;
#define TW_CHECKPOINT_WEIGHT_INIT                                                                           \
  {                                                                                                         \
    sizeof(tw_checkpoint_weight), 4, 0, 0, 0, 128, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, { 0, 0, 0, 0 } \
  }
/* Names of the formats that hold the weight, best first, by index; TW_INVALID_ARGUMENT beyond the last. */
TW_API tw_status tw_import_format(const tw_checkpoint_weight* weight, int32_t index, const char** format,
                                  int32_t* count, tw_error** error);
/* order: room for k indices. *permuted: 0 if columns keep their places, and nothing was written. */
TW_API tw_status tw_import_order(const tw_checkpoint_weight* weight, int32_t* order, int32_t* permuted,
                                 tw_error** error);
TW_API tw_status tw_import_weights(const tw_checkpoint_weight* weight, const char* format, void* data,
                                   size_t data_bytes, void* scales, size_t scales_bytes, tw_error** error);
/* Outputs (tw_free()) may be null where the checkpoint has no such tensor. `like`: its tensors are ignored but for
 * scales.type. order: null, or k indices. */
typedef struct tw_exported {
  uint32_t struct_size;
  void *codes, *zeros, *scales, *g_idx;
  size_t codes_bytes, zeros_bytes, scales_bytes, g_idx_bytes;
} tw_exported;
#define TW_EXPORTED_INIT \
  { sizeof(tw_exported), 0, 0, 0, 0, 0, 0, 0, 0 }
TW_API tw_status tw_export_weights(const char* format, const void* data, size_t data_bytes, const void* scales,
                                   size_t scales_bytes, const tw_checkpoint_weight* like, const int32_t* order,
                                   tw_exported* exported, tw_error** error);
/* Row i of `to` is row order[i] of `from`; order has each of 0 to count - 1 once. */
TW_API tw_status tw_gather_rows(const char* format, int64_t cols, const int32_t* order, size_t count, tw_operand from,
                                tw_mutable_operand to, tw_error** error);

/* ---- calibration: tilewright/calibration.h, tilewright/device_observer.h */

typedef struct tw_observer_options {
  uint32_t struct_size;
  int32_t bins;
  int64_t channels;
  double momentum;
} tw_observer_options;
#define TW_OBSERVER_OPTIONS_INIT \
  { sizeof(tw_observer_options), 2048, 1, 0.9 }
/* Histograms belong to the observer, until it sees more; null: all counts are 0. */
typedef struct tw_observation {
  uint32_t struct_size;
  int32_t exponent;
  uint64_t count, nans;
  double min, max;
  uint64_t batches;
  const uint64_t *negative, *positive;
} tw_observation;
#define TW_OBSERVATION_INIT \
  { sizeof(tw_observation), 0, 0, 0, 0, 0, 0, 0, 0 }

/* Observers, device observers too, are used by one thread at a time. options: null is the INIT. */
typedef struct tw_observer tw_observer;
TW_API tw_status tw_observer_create(const tw_observer_options* options, tw_observer** observer, tw_error** error);
/* values: whole elements of "f32", "f16" or "bf16" on the host; first 0 and inner 1 but for pieces and channels. */
TW_API tw_status tw_observer_observe(tw_observer* observer, const char* format, const void* values, size_t bytes,
                                     int64_t first, int64_t inner, tw_error** error);
TW_API tw_status tw_observer_end_batch(tw_observer* observer, tw_error** error);
TW_API tw_status tw_observer_merge(tw_observer* observer, const tw_observer* other, tw_error** error);
TW_API tw_status tw_observer_json(const tw_observer* observer, char** json, tw_error** error);
TW_API tw_status tw_observer_from_json(const char* json, tw_observer** observer, tw_error** error);
TW_API tw_status tw_observer_describe(const tw_observer* observer, tw_observer_options* options, tw_error** error);
TW_API tw_status tw_observer_channel(const tw_observer* observer, int64_t channel, tw_observation* observation,
                                     tw_error** error);
TW_API void tw_observer_release(tw_observer* observer);

typedef struct tw_calibration {
  uint32_t struct_size;
  int32_t asymmetric; /* 0 or 1 */
  const char* method; /* "min-max", "moving-average", "percentile", "entropy", "mse"; null: the first */
  const char* target; /* "int8"; null: that */
  double percentile;
} tw_calibration;
#define TW_CALIBRATION_INIT \
  { sizeof(tw_calibration), 0, 0, 0, 99.9 }
typedef struct tw_clip_range {
  double min, max;
} tw_clip_range;
/* count: the observer's channels, each of which gets a range. calibration: null is the INIT. */
TW_API tw_status tw_clip_ranges(const tw_observer* observer, const tw_calibration* calibration, tw_clip_range* ranges,
                                size_t count, tw_error** error);
TW_API tw_status tw_scale_for(tw_clip_range range, const char* target, int32_t asymmetric, float* scale,
                              int32_t* zero_point, tw_error** error);

/* The same of values in device memory, whose calls enqueue; observed() and clear() wait. */
typedef struct tw_device_observer tw_device_observer;
TW_API tw_status tw_device_observer_create(tw_engine* engine, const tw_device* device, const char* format,
                                           const tw_observer_options* options, tw_device_observer** observer,
                                           tw_error** error);
TW_API tw_status tw_device_observer_observe(tw_device_observer* observer, tw_stream stream, const void* x,
                                            int64_t elements, int64_t first, int64_t inner, tw_error** error);
TW_API tw_status tw_device_observer_end_batch(tw_device_observer* observer, tw_stream stream, tw_error** error);
TW_API tw_status tw_device_observer_observed(const tw_device_observer* observer, tw_observer** seen, tw_error** error);
TW_API tw_status tw_device_observer_clear(tw_device_observer* observer, tw_error** error);
TW_API void tw_device_observer_release(tw_device_observer* observer);

/* ---- post-training quantization of a linear layer: tilewright/post_training.h, tilewright/gptq.h */

/* What calibration leaves of a layer's inputs. One that a thread changes must not be used by another. */
typedef struct tw_hessian tw_hessian;
TW_API tw_status tw_hessian_create(int64_t k, tw_hessian** hessian, tw_error** error);
/* values [k, k], magnitudes [k], as tw_hessian_read() gives them. */
TW_API tw_status tw_hessian_from(int64_t k, int64_t rows, const double* values, const double* magnitudes,
                                 tw_hessian** hessian, tw_error** error);
/* x [rows, cols] of "f32", "f16" or "bf16" on the host. threads: 0 is all cores. */
TW_API tw_status tw_hessian_add(tw_hessian* hessian, const char* format, const void* x, int64_t rows, int64_t cols,
                                int32_t threads, tw_error** error);
TW_API tw_status tw_hessian_merge(tw_hessian* hessian, const tw_hessian* other, tw_error** error);
/* Any output may be null: it is not wanted. */
TW_API tw_status tw_hessian_read(const tw_hessian* hessian, int64_t* k, int64_t* rows, double* values,
                                 double* magnitudes, tw_error** error);
TW_API void tw_hessian_release(tw_hessian* hessian);

typedef struct tw_linear_weight {
  uint32_t struct_size;
  const float* w; /* [n, k] */
  int64_t n, k;
  const char* name; /* as errors call it; null: "layer" */
} tw_linear_weight;
#define TW_LINEAR_WEIGHT_INIT \
  { sizeof(tw_linear_weight), 0, 0, 0, 0 }
typedef struct tw_quantize_target {
  uint32_t struct_size;
  int32_t encoder;    /* index into the format's */
  const char* format; /* "int4_g128" */
  int64_t group;
  int32_t threads;
} tw_quantize_target;
#define TW_QUANTIZE_TARGET_INIT \
  { sizeof(tw_quantize_target), 0, 0, 0, 0 }
typedef struct tw_gptq_options {
  uint32_t struct_size;
  int32_t act_order, static_groups; /* 0 or 1 */
  double damping;
} tw_gptq_options;
#define TW_GPTQ_OPTIONS_INIT \
  { sizeof(tw_gptq_options), 0, 0, 0.01 }
typedef struct tw_awq_options {
  uint32_t struct_size;
  int32_t grid;
  int32_t clip; /* 0 or 1 */
  int64_t search_rows;
} tw_awq_options;
#define TW_AWQ_OPTIONS_INIT \
  { sizeof(tw_awq_options), 20, 0, 1024 }

typedef struct tw_quantized tw_quantized;
/* What is pointed at belongs to the tw_quantized; null where there is none. */
typedef struct tw_quantized_info {
  uint32_t struct_size;
  const char* format;
  int64_t n, k, group;
  const void *data, *scales;
  size_t data_bytes, scales_bytes;
  const int32_t* order;      /* [k] */
  const float* values;       /* [n, k] */
  const float* input_scales; /* [k] */
  double error, energy, damping, exponent;
  int64_t dead_columns;
} tw_quantized_info;
#define TW_QUANTIZED_INFO_INIT \
  { sizeof(tw_quantized_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
TW_API tw_status tw_round_to_nearest(const tw_linear_weight* layer, const tw_hessian* hessian,
                                     const tw_quantize_target* target, tw_quantized** quantized, tw_error** error);
/* On the device; on the host, with the same bits, where engine and device are null. options: null is the INIT. */
TW_API tw_status tw_gptq(tw_engine* engine, const tw_device* device, const tw_linear_weight* layer,
                         const tw_hessian* hessian, const tw_quantize_target* target, const tw_gptq_options* options,
                         tw_quantized** quantized, tw_error** error);
TW_API int64_t tw_gptq_device_bytes(int64_t n, int64_t k, int64_t group);
TW_API tw_status tw_awq(const tw_linear_weight* layer, const tw_hessian* hessian, const tw_quantize_target* target,
                        const tw_awq_options* options, tw_quantized** quantized, tw_error** error);
TW_API tw_status tw_quantized_describe(const tw_quantized* quantized, tw_quantized_info* info, tw_error** error);
TW_API void tw_quantized_release(tw_quantized* quantized);

#ifdef __cplusplus
}
#endif
#endif
