/* SPDX-License-Identifier: Apache-2.0 */
/* The library from C: y[m, n] = x[m, k] w[n, k]^T with x in F16 and w in Q4_0. Without a GPU it shows what would run.
 */
#include <stdio.h>
#include <stdlib.h>
#include <tilewright/tilewright_c.h>

enum { M = 2, N = 4096, K = 4096 };

/* Prints what went wrong and ends the program. A library would hand the error on. */
static void check(tw_status status, tw_error* error) {
  if (status == TW_OK) return;
  fprintf(stderr, "%s: %s\n", tw_status_name(status),
          error ? tw_error_message(error) : tw_error_message(tw_last_error()));
  tw_error_release(error);
  exit(1);
}

static void show_plan(tw_engine* engine, const tw_problem* problem) {
  tw_error* error = NULL;
  tw_plan* plan = NULL;
  check(tw_plan_create(engine, problem, "sm_90a", &plan, &error), error);
  printf("No GPU here. On an H100 or H200 these would be tried first:\n");
  for (int32_t i = 0; i < 3 && i < tw_plan_count(plan); ++i) {
    tw_planned planned = TW_PLANNED_INIT;
    check(tw_plan_at(plan, i, &planned, &error), error);
    printf("  %s\n", planned.candidate);
  }
  tw_plan_release(plan);
}

/* rows x cols equal values, encoded on the host and uploaded. */
static tw_memory* upload(const tw_device* device, const char* format, int64_t rows, int64_t cols, float value) {
  tw_error* error = NULL;
  int64_t bytes = 0;
  check(tw_stream_bytes(format, TW_DATA, rows, cols, &bytes, &error), error);
  float* values = malloc((size_t)(rows * cols) * sizeof *values);
  void* encoded = malloc((size_t)bytes);
  if (!values || !encoded) exit(1);
  for (int64_t i = 0; i < rows * cols; ++i) values[i] = value;
  const tw_mutable_operand to = {encoded, NULL, NULL};
  check(tw_encode(format, NULL, values, rows, cols, to, &error), error);
  tw_memory* memory = NULL;
  check(tw_memory_create(device, (size_t)bytes, &memory, &error), error);
  check(tw_memory_upload(memory, 0, encoded, (size_t)bytes, &error), error);
  free(values);
  free(encoded);
  return memory;
}

static void run(tw_engine* engine, const tw_problem* problem) {
  tw_error* error = NULL;
  tw_device* device = NULL;
  tw_kernel* kernel = NULL;
  tw_memory* y = NULL;
  check(tw_device_open(0, NULL, &device, &error), error);
  check(tw_prepare(engine, problem, device, NULL, &kernel, &error), error); /* compiled now, or found in the cache */
  tw_memory* x = upload(device, "f16", M, K, 0.5f);
  tw_memory* w = upload(device, "q4_0", N, K, -0.25f);
  check(tw_memory_create(device, M * N * sizeof(float), &y, &error), error);

  check(tw_launch_gemm(kernel, NULL, tw_memory_data(x), tw_memory_data(w), NULL, tw_memory_data(y), M), NULL);
  float first = 0;
  check(tw_memory_download(y, 0, &first, sizeof first, &error), error);
  printf("y[0,0] = %g; %g was expected\n", first, 0.5 * -0.25 * K);

  tw_memory_release(x);
  tw_memory_release(w);
  tw_memory_release(y);
  tw_kernel_release(kernel);
  tw_device_release(device);
}

int main(void) {
  tw_error* error = NULL;
  tw_engine* engine = NULL;
  tw_problem* problem = NULL;
  tw_gemm gemm = TW_GEMM_INIT;
  gemm.x = "f16";
  gemm.w = "q4_0";
  gemm.y = "f32";
  gemm.m = M;
  gemm.n = N;
  gemm.k = K;
  check(tw_problem_from_gemm(&gemm, &problem, &error), error);
  check(tw_engine_create(NULL, &engine, &error), error);
  if (tw_device_count(NULL) == 0) {
    show_plan(engine, problem);
  } else {
    run(engine, problem);
  }
  tw_problem_release(problem);
  tw_engine_release(engine);
  return 0;
}
