/* SPDX-License-Identifier: Apache-2.0 */
/* A call prepares the kernels of its shape, which are kept, and enqueues them: B transposed into memory that is kept
 * for each stream, the product, and what the product does not do by itself. */
#include "cuda_kernels.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "elements.h"

TW_ELEMENTS(static)

static _Thread_local tw_engine* used_engine;
static _Thread_local tw_device* used_device;
static _Thread_local char message[512];

/* Everything below is made and found under the lock, which a call holds until all that it enqueues is enqueued: calls
 * on one stream share memory. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tw_engine* own_engine;
static tw_device* own_device;

/* Engines and devices are retained, so no address stands for two of them. */
typedef struct prepared {
  struct prepared* next;
  const tw_engine* engine;
  const tw_device* device;
  tw_kernel* kernel;
  char text[160]; /* of the problem; "" is the kernel of elements */
} prepared;
static prepared* kernels;

typedef struct scratch {
  struct scratch* next;
  const tw_device* device;
  tw_stream stream;
  tw_memory* memory[2];
} scratch;
static scratch* scratches;

typedef struct call {
  tw_engine* engine;
  tw_device* device;
  tw_stream stream;
} call;

void cuda_kernels_use(tw_engine* engine, tw_device* device) { used_engine = engine, used_device = device; }

const char* cuda_kernels_last_error(void) { return message; }

/* Keeps what a failed call of the library said. error: may be null, of launches. */
static tw_status failed(tw_status status, tw_error* error) {
  const tw_error* said = error ? error : tw_last_error();
  snprintf(message, sizeof message, "%s", said ? tw_error_message(said) : tw_status_name(status));
  tw_error_release(error);
  return status;
}

static tw_status refused(const char* field, const char* value, const char* allowed) {
  snprintf(message, sizeof message, "%s must be %s (got %s)", field, allowed, value);
  return TW_INVALID_ARGUMENT;
}

static tw_status pointer(const char* field, const void* given) {
  return given ? TW_OK : refused(field, "null", "device memory");
}

static tw_status number(const char* field, double given, int allowed, const char* what) {
  char value[40];
  if (allowed) return TW_OK;
  snprintf(value, sizeof value, "%g", given);
  return refused(field, value, what);
}

static tw_status extents(int M, int N, int K) {
  tw_status s = number("M", M, M >= 0, "at least 0");
  if (!s) s = number("N", N, N >= 0, "at least 0");
  return s ? s : number("K", K, K >= 1, "at least 1");
}

static tw_status scales(float a, float b, float c) {
  tw_status s = number("scale_a", a, isfinite(a), "a finite number");
  if (!s) s = number("scale_b", b, isfinite(b), "a finite number");
  return s ? s : number("scale_c", c, isfinite(c), "a finite number");
}

/* Takes the lock, which leave() gives back; also where this fails. */
static tw_status enter(call* c, tw_stream stream) {
  tw_error* error = NULL;
  tw_status s = TW_OK;
  pthread_mutex_lock(&lock);
  if (!used_engine && !own_engine) s = tw_engine_create(NULL, &own_engine, &error);
  if (!s && !used_device && !own_device) s = tw_device_open(0, NULL, &own_device, &error);
  if (s) return failed(s, error);
  c->engine = used_engine ? used_engine : own_engine;
  c->device = used_device ? used_device : own_device;
  c->stream = stream;
  return TW_OK;
}

static tw_status leave(tw_status s) {
  pthread_mutex_unlock(&lock);
  return s;
}

/* ---- the kernel of elements, as a task */

enum { VERIFIED = 1024 };
static const char* const candidates[] = {"compat_elements threads=256"};

static int32_t source(void* user, const char* candidate, const char** text, const char** entry, tw_launch_plan* plan) {
  (void)user, (void)candidate;
  *text = TW_ELEMENTS_TEXT;
  *entry = "tw_compat_elements";
  plan->x = (tw_grid_axis){1, 256, 0};
  plan->threads = 256;
  return 0;
}

static int32_t fill(void* user, int32_t buffer, void* bytes, size_t size, uint64_t seed) {
  (void)user, (void)buffer;
  for (size_t i = 0; i < size / 4; ++i) ((int32_t*)bytes)[i] = (int32_t)(((uint64_t)i + seed) * 2654435761u);
  return 0;
}

static tw_elements verified(const void* in, void* out, int64_t rows) {
  return (tw_elements){in, out, rows, TW_SCALE, 1, 0.5f, -0.25f, 3.0f};
}

static int32_t arguments(void* user, void* const* pointers, int64_t rows, void* params, size_t capacity) {
  (void)user;
  const tw_elements p = verified(pointers[0], pointers[1], rows);
  if (capacity < sizeof p) return -1;
  memcpy(params, &p, sizeof p);
  return (int32_t)sizeof p;
}

static const char* compare(void* user, const void* const* outputs, const void* const* inputs, int64_t rows) {
  (void)user;
  for (int64_t i = 0; i < rows; ++i) {
    int32_t want;
    tw_elements p = verified((const int32_t*)inputs[0] + i, &want, 1);
    tw_element(&p, 0);
    if (((const int32_t*)outputs[0])[i] != want) return "a scaled sum is not what the host computes";
  }
  return NULL;
}

static tw_status prepare_elements(const call* c, tw_kernel** kernel, tw_error** error) {
  const tw_task_buffer buffers[] = {{sizeof(tw_task_buffer), 0, 0, "in", 4 * VERIFIED, 4},
                                    {sizeof(tw_task_buffer), 1, 0, "out", 4 * VERIFIED, 4}};
  tw_task_spec spec = TW_TASK_SPEC_INIT;
  spec.key = "compat_elements";
  spec.rows = spec.verify_rows = VERIFIED, spec.cols = 1;
  spec.candidates = candidates, spec.candidate_count = 1;
  spec.buffers = buffers, spec.buffer_count = 2;
  spec.source = source, spec.fill = fill, spec.arguments = arguments, spec.compare = compare;
  tw_task* task = NULL;
  tw_status s = tw_task_create(&spec, &task, error);
  if (!s) s = tw_prepare_task(c->engine, task, c->device, kernel, error);
  tw_task_release(task);
  return s;
}

/* ---- what calls need */

static tw_status find_kernel(const call* c, const char* text, tw_kernel** kernel) {
  for (const prepared* p = kernels; p; p = p->next) {
    if (p->engine == c->engine && p->device == c->device && !strcmp(p->text, text)) {
      *kernel = p->kernel;
      return TW_OK;
    }
  }
  prepared* p = calloc(1, sizeof *p);
  if (!p) return refused("memory", "none", "available for a kernel's entry"), TW_OUT_OF_MEMORY;
  tw_error* error = NULL;
  tw_problem* problem = NULL;
  tw_status s;
  if (*text) {
    s = tw_problem_parse(text, &problem, &error);
    if (!s) s = tw_prepare(c->engine, problem, c->device, c->stream, &p->kernel, &error);
    tw_problem_release(problem);
  } else {
    s = prepare_elements(c, &p->kernel, &error);
  }
  if (s) {
    free(p);
    return failed(s, error);
  }
  tw_engine_retain(c->engine);
  tw_device_retain(c->device);
  p->engine = c->engine, p->device = c->device, p->next = kernels;
  snprintf(p->text, sizeof p->text, "%s", text);
  kernels = p;
  *kernel = p->kernel;
  return TW_OK;
}

/* One of the stream's two pieces of memory, of at least so many bytes. */
static tw_status find_memory(const call* c, int which, size_t bytes, void** data) {
  scratch* found = scratches;
  while (found && (found->device != c->device || found->stream != c->stream)) found = found->next;
  if (!found) {
    found = calloc(1, sizeof *found);
    if (!found) return refused("memory", "none", "available for a stream's entry"), TW_OUT_OF_MEMORY;
    tw_device_retain(c->device);
    found->device = c->device, found->stream = c->stream, found->next = scratches;
    scratches = found;
  }
  if (tw_memory_size(found->memory[which]) < bytes) {
    tw_error* error = NULL;
    tw_memory* larger = NULL;
    tw_status s = tw_memory_create(c->device, bytes, &larger, &error);
    if (!s && found->memory[which]) s = tw_device_synchronize(c->device, &error); /* launches read the one before */
    if (s) {
      tw_memory_release(larger);
      return failed(s, error);
    }
    tw_memory_release(found->memory[which]);
    found->memory[which] = larger;
  }
  *data = tw_memory_data(found->memory[which]);
  return TW_OK;
}

static tw_status launch_elements(const call* c, tw_elements p) {
  tw_kernel* kernel = NULL;
  if (p.n == 0) return TW_OK;
  tw_status s = find_kernel(c, "", &kernel);
  if (!s && (s = tw_launch(kernel, c->stream, &p, sizeof p, p.n, 1))) return failed(s, NULL);
  return s;
}

static tw_status transposed(const call* c, const int8_t* B, int N, int K, const void** out) {
  char text[160];
  tw_kernel* kernel = NULL;
  void* data = NULL;
  snprintf(text, sizeof text, "transpose x=int8 rows=%d cols=%d", K, N);
  tw_status s = find_kernel(c, text, &kernel);
  if (!s) s = find_memory(c, 0, (size_t)N * (size_t)K, &data);
  if (s) return s;
  *out = data;
  void* const buffers[] = {(void*)B, data};  // B is only read
  s = tw_launch_buffers(kernel, c->stream, buffers, 2, K, NULL, 0);
  return s ? failed(s, NULL) : TW_OK;
}

static tw_status multiply(const call* c, const char* result, const void* a, const void* b, const float* bias, void* y,
                          int M, int N, int K, float alpha) {
  char text[160];
  tw_kernel* kernel = NULL;
  tw_gemm_args args = TW_GEMM_ARGS_INIT;
  snprintf(text, sizeof text, "gemm x=int8 w=int8 %s m=1 n=%d k=%d", result, N, K);
  tw_status s = find_kernel(c, text, &kernel);
  if (s) return s;
  args.x.data = a, args.w.data = b, args.bias = bias, args.y = y, args.m = M, args.alpha = alpha;
  s = tw_launch_gemm_args(kernel, c->stream, &args);
  return s ? failed(s, NULL) : TW_OK;
}

static tw_status scaled_sums(const call* c, const void* a, const void* b, int32_t* C, int M, int N, int K,
                             float scale_a, float scale_b, float scale_c) {
  tw_status s = multiply(c, "y=int32", a, b, NULL, C, M, N, K, 1.0f);
  if (s || (scale_a == 1.0f && scale_b == 1.0f && scale_c == 1.0f)) return s;
  return launch_elements(c, (tw_elements){C, C, (int64_t)M * N, TW_SCALE, 1, scale_a, scale_b, scale_c});
}

/* ---- the functions */

tw_status int8_matmul_cuda(const int8_t* A, const int8_t* B, int32_t* C, int M, int N, int K, float scale_a,
                           float scale_b, float scale_c, tw_stream stream) {
  tw_status s = extents(M, N, K);
  if (!s) s = scales(scale_a, scale_b, scale_c);
  if (s || M == 0 || N == 0) return s;
  if ((s = pointer("A", A)) || (s = pointer("B", B)) || (s = pointer("C", C))) return s;
  call c;
  const void* b = NULL;
  s = enter(&c, stream);
  if (!s) s = transposed(&c, B, N, K, &b);
  if (!s) s = scaled_sums(&c, A, b, C, M, N, K, scale_a, scale_b, scale_c);
  return leave(s);
}

tw_status int4_matmul_cuda(const uint8_t* A_packed, const uint8_t* B_packed, int32_t* C, int M, int N, int K,
                           float scale_a, float scale_b, float scale_c, tw_stream stream) {
  tw_status s = extents(M, N, K);
  if (!s) s = scales(scale_a, scale_b, scale_c);
  if (s || M == 0 || N == 0) return s;
  if ((s = pointer("A_packed", A_packed)) || (s = pointer("B_packed", B_packed)) || (s = pointer("C", C))) return s;
  call c;
  void *a = NULL, *b = NULL;
  s = enter(&c, stream);
  if (!s) s = find_memory(&c, 0, (size_t)N * (size_t)K, &b);
  if (!s) s = find_memory(&c, 1, (size_t)M * (size_t)K, &a);
  if (!s) s = launch_elements(&c, (tw_elements){A_packed, a, (int64_t)M * K, TW_UNPACK, K, 0, 0, 0});
  if (!s) s = launch_elements(&c, (tw_elements){B_packed, b, (int64_t)N * K, TW_UNPACK_TRANSPOSED, K, 0, 0, 0});
  if (!s) s = scaled_sums(&c, a, b, C, M, N, K, scale_a, scale_b, scale_c);
  return leave(s);
}

tw_status fused_int8_matmul_bias_relu_cuda(const int8_t* A, const int8_t* B, const float* bias, float* C, int M, int N,
                                           int K, float scale_a, float scale_b, float scale_c, tw_stream stream) {
  tw_status s = extents(M, N, K);
  if (!s) s = scales(scale_a, scale_b, scale_c);
  if (s || M == 0 || N == 0) return s;
  if ((s = pointer("A", A)) || (s = pointer("B", B)) || (s = pointer("C", C))) return s;
  call c;
  const void* b = NULL;
  const char* result = bias ? "y=f32 bias=f32 act=relu" : "y=f32 act=relu";
  s = enter(&c, stream);
  if (!s) s = transposed(&c, B, N, K, &b);
  if (!s) s = multiply(&c, result, A, b, bias, C, M, N, K, scale_a * scale_b * scale_c);
  return leave(s);
}

static tw_status convert(const char* from, const void* in, void* out, int size, int op, float scale, float zero_point,
                         tw_stream stream) {
  tw_status s = number("size", size, size >= 0, "at least 0");
  const int allowed = isfinite(scale) && (op != TW_QUANTIZE || scale != 0);
  if (!s) s = number("scale", scale, allowed, op == TW_QUANTIZE ? "finite and not 0" : "a finite number");
  if (!s) s = number("zero_point", zero_point, isfinite(zero_point), "a finite number");
  if (s || size == 0) return s;
  if ((s = pointer(from, in)) || (s = pointer("output", out))) return s;
  call c;
  s = enter(&c, stream);
  if (!s) s = launch_elements(&c, (tw_elements){in, out, size, op, 1, scale, zero_point, 0});
  return leave(s);
}

tw_status quantize_cuda(const float* input, int8_t* output, int size, float scale, float zero_point, tw_stream stream) {
  return convert("input", input, output, size, TW_QUANTIZE, scale, zero_point, stream);
}

tw_status dequantize_cuda(const int8_t* quantized, void* output, int size, float scale, float zero_point,
                          tw_stream stream) {
  return convert("quantized", quantized, output, size, TW_DEQUANTIZE_F16, scale, zero_point, stream);
}

tw_status dequantize_fp32_cuda(const int8_t* quantized, float* output, int size, float scale, float zero_point,
                               tw_stream stream) {
  return convert("quantized", quantized, output, size, TW_DEQUANTIZE_F32, scale, zero_point, stream);
}
