// SPDX-License-Identifier: Apache-2.0
// `bench cpu`: the CPU's kernels, built in and tuned, beside a loop that reads the weights and beside ggml's CPU
// backend. Operands are the same ones in every launch, so that small weights come from the cache. ggml is built from
// the source folder that the user names.
#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "bench/bench.h"

namespace tilewright::bench {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRivalCMake = R"text(cmake_minimum_required(VERSION 3.20)
project(rival C CXX)
set(BUILD_SHARED_LIBS OFF)
set(GGML_OPENMP OFF CACHE BOOL "")
set(GGML_BUILD_TESTS OFF CACHE BOOL "")
set(GGML_BUILD_EXAMPLES OFF CACHE BOOL "")
add_subdirectory(${GGML} ggml EXCLUDE_FROM_ALL)
add_executable(rival rival.cpp)
target_link_libraries(rival ggml)
)text";
// A product of matrices by ggml, x quantized within it, once with each type of buffer.
constexpr const char* kRival =
    R"text(// rival THREADS FORMAT M N K: microseconds of a matrix product with x quantized within it, by each type of buffer.
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  const int threads = std::atoi(argv[1]);
  const std::int64_t m = std::atoll(argv[3]), n = std::atoll(argv[4]), k = std::atoll(argv[5]);
  ggml_type type = GGML_TYPE_COUNT;
  for (int t = 0; t < GGML_TYPE_COUNT; ++t)
    if (const char* name = ggml_type_name(static_cast<ggml_type>(t)); name && !std::strcmp(name, argv[2]))
      type = static_cast<ggml_type>(t);
  if (type == GGML_TYPE_COUNT) return 3;
  ggml_backend_t cpu = ggml_backend_cpu_init();
  ggml_backend_cpu_set_n_threads(cpu, threads);
  ggml_threadpool_params params = ggml_threadpool_params_default(threads);
  ggml_backend_cpu_set_threadpool(cpu, ggml_threadpool_new(&params));
  std::vector<ggml_backend_buffer_type_t> types = {ggml_backend_cpu_buffer_type()};
  ggml_backend_dev_t device = ggml_backend_get_device(cpu);
  if (auto* more = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(ggml_backend_reg_get_proc_address(
          ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts")))
    for (ggml_backend_buffer_type_t* t = more(device); t && *t; ++t) types.push_back(*t);
  std::vector<float> values(static_cast<std::size_t>(n * k));
  unsigned state = 1;
  for (float& v : values) v = static_cast<float>((state = state * 1664525u + 1013904223u) >> 8) * 0x1p-23f - 1.0f;
  std::vector<char> codes(ggml_row_size(type, k) * static_cast<std::size_t>(n));
  ggml_quantize_chunk(type, values.data(), codes.data(), 0, n, k, nullptr);
  for (ggml_backend_buffer_type_t buffer : types) {
    ggml_context* context = ggml_init({1 << 20, nullptr, true});
    ggml_context* weights = ggml_init({1 << 20, nullptr, true});
    ggml_tensor* w = ggml_new_tensor_2d(weights, type, k, n);
    ggml_tensor* x = ggml_new_tensor_2d(context, GGML_TYPE_F32, k, m);
    ggml_backend_buffer_t in = ggml_backend_alloc_ctx_tensors_from_buft(weights, buffer);
    if (!in) continue;
    ggml_backend_buffer_set_usage(in, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    ggml_tensor* y = ggml_mul_mat(context, w, x);
    ggml_backend_alloc_ctx_tensors(context, cpu);
    ggml_cgraph* graph = ggml_new_graph(context);
    ggml_build_forward_expand(graph, y);
    // A type of buffer that has no kernel for these weights leaves them without a trait, and would fail.
    if (buffer != types[0] && (!ggml_backend_supports_op(cpu, y) || !w->extra)) continue;
    ggml_backend_tensor_set(w, codes.data(), 0, codes.size());
    ggml_backend_tensor_set(x, values.data(), 0, static_cast<std::size_t>(m * k) * 4);
    std::vector<double> us;
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 200 && (i < 5 || std::chrono::steady_clock::now() - begin < std::chrono::seconds(1)); ++i) {
      const auto from = std::chrono::steady_clock::now();
      ggml_backend_graph_compute(cpu, graph);
      us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - from).count());
    }
    std::sort(us.begin(), us.end());
    std::printf("%s %.3f\n", ggml_backend_buft_name(buffer), us[us.size() / 2]);
    std::fflush(stdout);
  }
  return 0;
}
)text";

std::string quoted(const std::string& text) {  // for a shell
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// ggml's CPU backend, built in a temporary folder.
class Ggml {
 public:
  explicit Ggml(const std::string& source) {
    if (!fs::exists(fs::path(source) / "include" / "ggml-cpu.h"))
      throw Error(ErrorCode::invalid_argument, "ggml", source, "a source folder of ggml: with include/ggml-cpu.h");
    std::string name = (fs::temp_directory_path() / "tilewright_ggml_XXXXXX").string();
    if (!::mkdtemp(name.data())) throw Error(ErrorCode::io, "ggml", name, "a folder that can be made");
    folder_ = name;
    try {
      build(fs::absolute(source).string());
    } catch (...) {
      fs::remove_all(folder_);
      throw;
    }
  }
  ~Ggml() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  Ggml(const Ggml&) = delete;
  Ggml& operator=(const Ggml&) = delete;

  struct Best {
    std::string buffer;  // empty: ggml has no such product
    double us = 0;
  };
  Best best(int threads, const std::string& format, std::int64_t m, std::int64_t n, std::int64_t k) const {
    const std::string command = fmt::format("{} {} {} {} {} {} 2>/dev/null", quoted((folder_ / "build/rival").string()),
                                            threads, format, m, n, k);
    Best best;
    std::FILE* const out = ::popen(command.c_str(), "r");
    if (!out) throw Error(ErrorCode::io, "ggml", command, "a program that starts");
    char line[256], buffer[200];
    double us = 0;
    while (std::fgets(line, sizeof line, out))
      if (std::sscanf(line, "%199s %lf", buffer, &us) == 2 && (best.buffer.empty() || us < best.us))
        best = {buffer, us};
    ::pclose(out);
    return best;
  }

 private:
  void build(const std::string& source) const {
    std::ofstream(folder_ / "CMakeLists.txt") << kRivalCMake;
    std::ofstream(folder_ / "rival.cpp") << kRival;
    const std::string at = quoted(folder_.string()), log = quoted((folder_ / "log").string());
    const std::string command = fmt::format(
        "cmake -S {0} -B {0}/build -DCMAKE_BUILD_TYPE=Release -DGGML={1} > {2} 2>&1 && cmake --build {0}/build "
        "--target rival --parallel >> {2} 2>&1",
        at, quoted(source), log);
    if (std::system(command.c_str()) == 0) return;
    std::ifstream file(folder_ / "log");
    std::stringstream text;
    text << file.rdbuf();
    const std::string all = text.str();
    throw Error(ErrorCode::invalid_argument, "ggml", source,
                fmt::format("a source folder that cmake builds:\n{}",
                            all.substr(all.size() - std::min<std::size_t>(all.size(), 2000))));
  }
  fs::path folder_;
};

// GB/s of a loop that reads so many bytes again and again, each thread its part.
double read_loop(int threads, std::size_t bytes) {
  using Vector = std::uint64_t __attribute__((vector_size(32)));
  const std::size_t part = bytes / sizeof(Vector) / static_cast<std::size_t>(threads) / 4 * 4;
  std::vector<Vector> memory(part * static_cast<std::size_t>(threads), Vector{1, 1, 1, 1});
  const auto turns = std::max<std::size_t>(4, static_cast<std::size_t>(2e9 / static_cast<double>(bytes)));
  std::vector<double> speeds;
  for (int round = 0; round < 3; ++round) {
    std::vector<std::thread> workers;
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t t = 0; t < static_cast<std::size_t>(threads); ++t)
      workers.emplace_back([&, t] {
        Vector a = {}, b = {}, c = {}, d = {};
        for (std::size_t turn = 0; turn < turns; ++turn) {
          const Vector* const from = memory.data() + t * part;
          for (std::size_t i = 0; i < part; i += 4) a += from[i], b += from[i + 1], c += from[i + 2], d += from[i + 3];
          __asm__ volatile("" ::: "memory");
        }
        a += b + c + d;
        __asm__ volatile("" : : "r"(a[0] + a[1] + a[2] + a[3]));  // is used
      });
    for (std::thread& w : workers) w.join();
    const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    speeds.push_back(static_cast<double>(turns * memory.size() * sizeof(Vector)) / s * 1e-9);
  }
  return *std::max_element(speeds.begin(), speeds.end());
}

// Microseconds of a launch, the median.
double time_of(const Kernel& kernel, const Problem& problem, const Task& task, std::span<void* const> pointers) {
  const std::vector<std::byte> args = task.arguments(pointers, problem.rows());
  std::vector<double> us;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 400 && (i < 5 || std::chrono::steady_clock::now() - begin < std::chrono::seconds(1)); ++i) {
    const auto from = std::chrono::steady_clock::now();
    kernel.launch(nullptr, args, problem.rows(), problem.cols());
    us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - from).count());
  }
  return median(us);
}

}  // namespace

Json cpu(const Settings& settings) {
  Options options = Options::from_env();
  options.cache = settings.cache.empty() ? ":memory:" : settings.cache;
  Engine tuned(options);
  options.cache = ":memory:";
  options.llvm = "/nonexistent";  // leaves what is built in
  Engine built_in(options);
  const Device device = Device::open_cpu({.threads = settings.threads, .parallel_for = {}});
  std::optional<Ggml> ggml;
  if (!settings.ggml.empty()) ggml.emplace(settings.ggml);
  TunePolicy policy;
  policy.max_candidates = settings.candidates;
  policy.budget_seconds = settings.tune_seconds;
  fmt::print("{}, {}, {} threads; GFLOP/s\n", device.name(), device.arch().name, device.sms());
  Table table({"w", "m", "n", "k", "built in", "tuned", "GB/s of w", "read loop", "ggml", "buffer", "tuned / ggml"});
  Json rows = Json::array();
  const auto begin = std::chrono::steady_clock::now();
  for (const char* w : {"q4_0", "q8_0", "q4_k", "q5_k", "q6_k", "ggml_mxfp4", "ggml_nvfp4"})
    for (const std::int64_t k : {4096, 14336})
      for (const std::int64_t m : {1, 512}) {
        constexpr std::int64_t n = 4096;
        const std::string text =
            fmt::format("gemm x=q8_1 w={} y=f32 m={} n={} k={} pack=panels x_from=f32", w, m, n, k);
        if (!settings.rows.empty() && text.find(settings.rows) == text.npos) continue;
        if (std::chrono::steady_clock::now() - begin > std::chrono::duration<double>(settings.seconds)) continue;
        const Problem problem = Problem::parse(text);
        const Task task = tuned.task(problem, device.arch());
        std::vector<Memory> memory;
        std::vector<void*> pointers;
        std::size_t w_bytes = 0;
        for (const Buffer& b : task.buffers) {
          std::vector<std::byte> bytes(b.bytes);
          if (!b.output && b.fill) b.fill(bytes, 1);
          memory.emplace_back(device, b.bytes);
          memory.back().upload(bytes);
          pointers.push_back(memory.back().data());
          if (b.name == "w.data") w_bytes = b.bytes;
        }
        const TuneReport report = tuned.tune(problem, device, policy);
        const double default_us = time_of(built_in.prepare(problem, device), problem, task, pointers);
        const double us = time_of(tuned.prepare(problem, device), problem, task, pointers);
        const double read = read_loop(device.sms(), w_bytes);
        const auto gflops = [&](double t) { return problem.ops() / t * 1e-3; };
        const double gbps = static_cast<double>(w_bytes) / us * 1e-3;
        Json row = {{"problem", text},
                    {"choice", report.choice.candidate.text()},
                    {"threads", device.sms()},
                    {"built_in_us", default_us},
                    {"tuned_us", us},
                    {"built_in_gflops", gflops(default_us)},
                    {"tuned_gflops", gflops(us)},
                    {"w_gbps", gbps},
                    {"read_gbps", read}};
        Ggml::Best best;
        if (ggml) {
          const std::string name = w;
          best = ggml->best(device.sms(), name.starts_with("ggml_") ? name.substr(5) : name, m, n, k);
        }
        if (!best.buffer.empty()) {
          row["ggml_us"] = best.us;
          row["ggml_buffer"] = best.buffer;
          row["ratio"] = best.us / us;
        }
        rows.push_back(row);
        table.row(
            {w, fmt::format("{}", m), fmt::format("{}", n), fmt::format("{}", k),
             fmt::format("{:.0f}", gflops(default_us)), fmt::format("{:.0f}", gflops(us)), fmt::format("{:.1f}", gbps),
             fmt::format("{:.1f}", read), best.buffer.empty() ? "-" : fmt::format("{:.0f}", gflops(best.us)),
             best.buffer.empty() ? "-" : best.buffer, best.buffer.empty() ? "-" : fmt::format("{:.2f}", best.us / us)});
      }
  fmt::print("{}", table.text());
  return rows;
}

}  // namespace tilewright::bench
