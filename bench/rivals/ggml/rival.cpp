// SPDX-License-Identifier: Apache-2.0
// rival THREADS FORMAT M N K COPIES BUFFER: products of M rows of floats by a matrix of N x K weights, which ggml's CPU
// backend computes. x is quantized within each product. The weights lie in the BUFFERth of the backend's types of
// buffers, COPIES times; products take them in turn.
//
// Says "ready NAME-OF-THE-BUFFER" when it can begin. Then, for each line on its standard input, a number of seconds, it
// computes for so long and answers with the microseconds of each product on one line. 3: there is no such buffer, or it
// has no kernel for these weights. "rival" alone prints ggml's version and what compiled it.
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>
#include <strings.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr std::int64_t kRows = 64;  // that are quantized; the others repeat them

ggml_type type_of(const char* name) {
  for (int t = 0; t < GGML_TYPE_COUNT; ++t)
    if (const char* of = ggml_type_name(static_cast<ggml_type>(t)); of && !strcasecmp(of, name))
      return static_cast<ggml_type>(t);
  return GGML_TYPE_COUNT;
}

std::vector<float> random(std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  unsigned state = 1;
  for (float& v : values) v = static_cast<float>((state = state * 1664525u + 1013904223u) >> 8) * 0x1p-23f - 1.0f;
  return values;
}

std::vector<ggml_backend_buffer_type_t> buffer_types(ggml_backend_t cpu) {
  std::vector<ggml_backend_buffer_type_t> types = {ggml_backend_cpu_buffer_type()};
  const ggml_backend_reg_t backend = ggml_backend_dev_backend_reg(ggml_backend_get_device(cpu));
  if (auto* more = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
          ggml_backend_reg_get_proc_address(backend, "ggml_backend_dev_get_extra_bufts")))
    for (ggml_backend_buffer_type_t* t = more(ggml_backend_get_device(cpu)); t && *t; ++t) types.push_back(*t);
  return types;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 1) {
    std::printf("%s %s, %s\n", ggml_version(), ggml_commit(), COMPILER);
    return 0;
  }
  if (argc != 8) return 2;
  const int threads = std::atoi(argv[1]);
  const ggml_type type = type_of(argv[2]);
  const std::int64_t m = std::atoll(argv[3]), n = std::atoll(argv[4]), k = std::atoll(argv[5]);
  const auto copies = static_cast<std::size_t>(std::atoll(argv[6])),
             which = static_cast<std::size_t>(std::atoll(argv[7]));
  if (type == GGML_TYPE_COUNT) return 3;

  ggml_backend_t cpu = ggml_backend_cpu_init();
  ggml_threadpool_params params = ggml_threadpool_params_default(threads);
  ggml_threadpool* const pool = ggml_threadpool_new(&params);
  ggml_backend_cpu_set_n_threads(cpu, threads);
  ggml_backend_cpu_set_threadpool(cpu, pool);
  const std::vector<ggml_backend_buffer_type_t> types = buffer_types(cpu);
  if (which >= types.size()) return 3;

  const std::vector<float> values = random(std::max(kRows, m) * k);
  const std::size_t row = ggml_row_size(type, k), part = row * static_cast<std::size_t>(kRows);
  std::vector<char> codes(part * static_cast<std::size_t>((n + kRows - 1) / kRows));
  ggml_quantize_chunk(type, values.data(), codes.data(), 0, kRows, k, nullptr);
  for (std::size_t at = part; at < codes.size(); at += part) std::memcpy(&codes[at], codes.data(), part);

  const std::size_t room = copies * (ggml_tensor_overhead() + ggml_graph_overhead_custom(8, false)) + (1 << 16);
  ggml_context* const context = ggml_init({room, nullptr, true});
  ggml_context* const weights = ggml_init({room, nullptr, true});
  ggml_tensor* const x = ggml_new_tensor_2d(context, GGML_TYPE_F32, k, m);
  std::vector<ggml_tensor*> w;
  std::vector<ggml_cgraph*> graphs;
  for (std::size_t i = 0; i < copies; ++i) w.push_back(ggml_new_tensor_2d(weights, type, k, n));
  ggml_backend_buffer_t in = ggml_backend_alloc_ctx_tensors_from_buft(weights, types[which]);
  if (!in) return 3;
  ggml_backend_buffer_set_usage(in, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  for (ggml_tensor* each : w) {
    ggml_tensor* const y = ggml_mul_mat(context, each, x);
    graphs.push_back(ggml_new_graph_custom(context, 8, false));
    ggml_build_forward_expand(graphs.back(), y);
    // A type of buffer that has no kernel for these weights leaves them without a trait, and would fail.
    if (which > 0 && (!ggml_backend_supports_op(cpu, y) || !each->extra)) return 3;
  }
  if (!ggml_backend_alloc_ctx_tensors(context, cpu)) return 3;
  for (ggml_tensor* each : w) ggml_backend_tensor_set(each, codes.data(), 0, row * static_cast<std::size_t>(n));
  ggml_backend_tensor_set(x, values.data(), 0, static_cast<std::size_t>(m * k) * sizeof(float));

  ggml_backend_graph_compute(cpu, graphs[0]);
  ggml_threadpool_pause(pool);
  std::printf("ready %s\n", ggml_backend_buft_name(types[which]));
  std::fflush(stdout);
  char line[64];
  for (std::size_t next = 0; std::fgets(line, sizeof line, stdin);) {
    using Clock = std::chrono::steady_clock;
    const auto until = Clock::now() + std::chrono::duration<double>(std::atof(line));
    std::vector<double> us;
    while (us.size() < 3 || Clock::now() < until) {
      const auto from = Clock::now();
      ggml_backend_graph_compute(cpu, graphs[next++ % copies]);
      us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - from).count());
    }
    ggml_threadpool_pause(pool);  // or its threads would go on spinning beside whoever is timed next
    for (const double each : us) std::printf("%.3f ", each);
    std::printf("\n");
    std::fflush(stdout);
  }
  return 0;
}
