// SPDX-License-Identifier: Apache-2.0
// Products of every family and format against a double-precision product formed on the host, and candidates against the
// tuner's verifier.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "bench/suite/matrix.h"
#include "bench/suite/trial.h"

namespace tilewright::bench {
namespace {

// A kernel at several m against the host's double product, with factors of the launch at every other of them.
std::string gemm_against_host(Suite& s, const Problem& problem, const Kernel& kernel,
                              const std::vector<std::int64_t>& ms) {
  const Gemm& g = *problem.as<Gemm>();
  const std::int64_t m_max = *std::max_element(ms.begin(), ms.end());
  Matrix x = make(s.device(), g.x_stored(), m_max, g.k, 1), w = make(s.device(), g.w, g.n, g.k, 2, 0.1f);
  if (g.x_from) x.decoded = rounded_to(g.x, x.decoded, m_max, g.k);
  if (g.global == Global::div)  // the same weights, their scale handed over as its reciprocal
    for (std::size_t i = 0; i < w.device.size(); ++i)
      if (w.device[i].data() == w.operand.global) {
        float scale;
        std::memcpy(&scale, w.streams[i].data(), sizeof scale);
        scale = 1.0f / scale;
        w.device[i].upload({reinterpret_cast<const std::byte*>(&scale), sizeof scale});
      }
  Matrix bias;
  if (g.bias) bias = make(s.device(), *g.bias, 1, g.n, 3);
  Matrix c;
  if (g.c) c = make(s.device(), *g.c, m_max, g.n, 4);
  const std::size_t y_bytes = static_cast<std::size_t>(g.y.total_bytes(m_max, g.n));
  Memory y(s.device(), y_bytes + 256);
  Memory workspace(s.device(), static_cast<std::size_t>(std::max<std::int64_t>(g.workspace, 1)));
  workspace.fill(0);
  OwnedStream stream(s.device());
  for (std::int64_t m : ms) {
    y.fill(0xff);
    GemmArgs args;
    args.x = x.operand, args.w = w.operand, args.y = y.data(), args.m = m;
    args.bias = g.bias ? bias.operand.data : nullptr;
    args.c = g.c ? c.operand.data : nullptr;
    args.workspace = g.workspace ? workspace.data() : nullptr;
    if (m % 2 == 0) args.alpha = -1.5f;
    if (m % 2 == 0 && g.c) args.beta = 0.375f;
    const float alpha = static_cast<float>(g.alpha) * args.alpha, beta = static_cast<float>(g.beta) * args.beta;
    kernel.launch(stream.get(), args);
    stream.synchronize();
    std::vector<std::byte> bytes(y_bytes + 256);
    y.download(bytes);
    std::vector<float> got(static_cast<std::size_t>(m * g.n));
    g.y.info().decode({bytes.data(), nullptr, nullptr}, m, g.n, got.data());
    for (std::size_t i = static_cast<std::size_t>(g.y.total_bytes(m, g.n)); i < bytes.size(); ++i)
      if (bytes[i] != std::byte{0xff}) return fmt::format("m={}: wrote beyond y", m);
    const std::string wrong = first_wrong(s, m, [&](std::int64_t i) -> std::string {
      for (std::int64_t j = 0; j < g.n; ++j) {
        double sum = 0, magnitude = 0;
        for (std::int64_t k = 0; k < g.k; ++k) {
          const double p = static_cast<double>(x.decoded[static_cast<std::size_t>(i * g.k + k)]) *
                           w.decoded[static_cast<std::size_t>(j * g.k + k)];
          sum += p, magnitude += std::fabs(p);
        }
        const double b = g.bias ? bias.decoded[static_cast<std::size_t>(j)] : 0.0;
        const double residual =
            g.c ? static_cast<double>(beta) * c.decoded[static_cast<std::size_t>(i * g.n + j)] : 0.0;
        const auto [expected, bound] =
            gemm_expected(g, {.product = sum, .magnitude = magnitude, .scale = alpha, .bias = b, .residual = residual});
        const double value = got[static_cast<std::size_t>(i * g.n + j)];
        if (!(std::fabs(value - expected) <= bound))
          return fmt::format("m={}: y[{},{}] = {}, expected {} +- {}", m, i, j, value, expected, bound);
      }
      return {};
    });
    if (!wrong.empty()) return wrong;
  }
  return {};
}

// c as y itself gives the bytes that c apart from y gives.
std::string in_place(Suite& s, const Problem& problem, const Kernel& kernel) {
  const Gemm& g = *problem.as<Gemm>();
  constexpr std::int64_t kMost = 600;
  Matrix x = make(s.device(), g.x, kMost, g.k, 1), w = make(s.device(), g.w, g.n, g.k, 2, 0.1f),
         c = make(s.device(), *g.c, kMost, g.n, 3);
  const auto bytes = static_cast<std::size_t>(g.y.total_bytes(kMost, g.n));
  Memory apart(s.device(), bytes);
  OwnedStream stream(s.device());
  for (std::int64_t m : {1, 5, 16, 77, 600}) {
    GemmArgs args;
    args.x = x.operand, args.w = w.operand, args.c = c.operand.data, args.y = apart.data(), args.m = m;
    kernel.launch(stream.get(), args);
    Memory both(s.device(), bytes);
    both.upload(c.streams[0]);
    args.c = args.y = both.data();
    kernel.launch(stream.get(), args);
    stream.synchronize();
    std::vector<std::byte> expected(static_cast<std::size_t>(g.y.total_bytes(m, g.n))), got(expected.size());
    apart.download(expected), both.download(got);
    if (got != expected) return fmt::format("m={}: c in place gives other results", m);
  }
  return {};
}

// For compute-sanitizer: the first candidate of each family, at sizes that fill no tile.
void one_of_each(Suite& s) {
  for (const char* text :
       {"gemm x=f16 w=q4_0 y=f16 m=1 n=200 k=512", "gemm x=q8_1 w=q4_k y=f32 m=1 n=77 k=512",
        "gemm x=bf16 w=bf16 y=bf16 m=1 n=136 k=200 bias=f32 act=silu",
        "gemm x=f16 w=nvfp4 y=f32 m=1 n=100 k=320 global=mul", "gemm x=f16 w=e4m3_row y=f16 m=1 n=100 k=322",
        "gemm x=int8_row w=q2_k y=f32 m=1 n=77 k=512", "gemm x=q8_1 w=q5_0 y=f32 m=1 n=77 k=544 x_from=f32"}) {
    const Problem problem = Problem::parse(text);
    Trial trial(s, problem, 77, oracle_of(s, s.engine().task(problem.with_rows(77), s.device().arch()))());
    trial.fill(9), trial.upload(), trial.consult(77);
    for (std::int64_t m : {5, 77}) {
      const Task task = s.engine().task(problem.with_rows(m), s.device().arch());
      std::set<std::string> met;
      for (const Candidate& c : task.candidates)
        if (met.insert(c.family).second)
          s.check(fmt::format("m={} of {}: {}", m, text, c.text()),
                  [&] { return trial.judge(kernel_of(s, task, c)(), m, 0, 1); });
    }
  }
}

}  // namespace

void gemm_checks(Suite& s) {
  if (s.extent() == Extent::one) return one_of_each(s);
  const std::vector<std::pair<std::string, std::string>> pairs = {
      {"f32", "f32"},     {"f16", "f16"},       {"bf16", "bf16"},          {"f32", "f16"},
      {"f16", "bf16"},    {"q8_1", "q4_0"},     {"q8_1", "q8_0"},          {"q8_1", "q4_k"},
      {"q8_1", "nvfp4"},  {"q8_0", "q4_0"},     {"f16", "q4_0"},           {"f16", "q8_0"},
      {"f16", "q4_k"},    {"f16", "nvfp4"},     {"bf16", "q4_0"},          {"bf16", "q8_0"},
      {"bf16", "q4_k"},   {"bf16", "nvfp4"},    {"f32", "q4_0"},           {"f32", "q4_k"},
      {"f32", "nvfp4"},   {"f32", "q8_0"},      {"e4m3_row", "e4m3_row"},  {"q4_k", "q8_0"},
      {"nvfp4", "nvfp4"}, {"f16", "e4m3_b128"}, {"e4m3_g128", "e4m3_b128"}};
  // Every problem is prepared ahead of its turn: thirteen buckets take seconds.
  struct Item {
    std::string name;
    Problem problem;
    std::vector<std::int64_t> ms;  // none: c in place
    std::future<Kernel> kernel;
  };
  std::vector<Item> items;
  Ahead ahead(jobs_of(s));
  const auto asked = [&](const std::string& text) { return text.find(s.pairs()) != std::string::npos; };
  const auto add = [&](const std::string& text, std::vector<std::int64_t> ms) {
    if (!asked(text)) return;
    const Problem problem = Problem::parse(text);
    items.push_back({(ms.empty() ? "in place, " : "") + text, problem, std::move(ms),
                     ahead.submit([&s, problem] { return s.engine().prepare(problem, s.device()); })});
  };
  for (const auto& [x, w] : pairs) {
    const bool global = x == "nvfp4" || w == "nvfp4";
    const int block = std::max(Format::parse(x).block(), Format::parse(w).block());
    for (const auto& [n, blocks] : std::vector<std::pair<int, int>>{{37, 1}, {128, 5}, {200, 8}}) {
      const int k = block == 1 ? blocks * 129 : block * blocks;
      const std::string text =
          fmt::format("gemm x={} w={} y=f32 m=1 n={} k={}{}", x, w, n, k, global ? " global=mul" : "");
      add(text, {1, 2, 3, 5, 8, 13, 16, 33, 70});
    }
  }
  for (const char* epilogue : {"y=f16 bias=f16 act=gelu", "y=bf16 bias=f32 act=silu", "y=f32 bias=bf16 act=relu",
                               "y=f16 act=gelu_tanh alpha=0.5"}) {
    std::string fields = epilogue;
    const std::size_t space = fields.find(' ');
    const std::string text =
        fmt::format("gemm x=f16 w=q4_0 {} m=1 n=100 k=512{}", fields.substr(0, space), fields.substr(space));
    add(text, {1, 4, 17, 40});
  }
  for (const char* text : {"gemm x=f16 w=f16 y=f16 m=1 n=1000 k=1024 c=f16",
                           "gemm x=bf16 w=q4_0 y=f32 m=1 n=264 k=512 act=silu c=f32 beta=-0.5",
                           "gemm x=e4m3 w=e4m3 y=bf16 m=1 n=1000 k=1024 c=bf16"})
    add(text, {});
  for (const char* text : {"gemm x=f16 w=f16 y=f16 m=1 n=136 k=256 alpha=0.5 c=f16 beta=-0.5",
                           "gemm x=e4m3_row w=e4m3_row y=bf16 m=1 n=136 k=256 c=f32",
                           "gemm x=int8 w=int8 y=f32 m=1 n=136 k=256 alpha=0.001 c=bf16"})
    add(text, {1, 4, 16, 40, 70, 130});
  add("gemm x=f16 w=nvfp4 y=f32 m=1 n=40 k=64 global=div", {1, 20});
  for (const char* text :
       {"gemm x=q8_1 x_from=f32 w=q4_0 y=f32 m=1 n=200 k=1056", "gemm x=q8_1 x_from=f16 w=q4_k y=f16 m=1 n=77 k=2304",
        "gemm x=q8_1 x_from=bf16 w=nvfp4 y=f32 m=1 n=37 k=320 global=mul",
        "gemm x=q8_1 x_from=f32 w=f16 y=f32 m=1 n=40 k=64", "gemm x=bf16 x_from=f32 w=bf16 y=f32 m=1 n=40 k=65",
        "gemm x=f16 x_from=f32 w=q4_0 y=f16 m=1 n=77 k=96"})
    add(text, {1, 2, 3, 5, 8, 13, 33});
  // A scale per row: in the workspace, also one that holds 80 tokens, so that launches are divided; or by `reference`.
  for (const char* text : {"gemm x=e4m3_row x_from=bf16 w=e4m3_row y=bf16 m=1 n=136 k=512 workspace=65536",
                           "gemm x=e4m3_row x_from=f32 w=e4m3_b128 y=bf16 m=1 n=256 k=512 workspace=16777216",
                           "gemm x=int8_row x_from=f16 w=int8_row y=f32 m=1 n=200 k=1152 workspace=16777216 c=f32",
                           "gemm x=e4m3_row x_from=f16 w=q4_0 y=f32 m=1 n=37 k=96"})
    add(text, {1, 2, 5, 33, 70, 130, 400});
  const int most = s.extent() == Extent::quick ? 4 : 24;
  std::vector<std::string> samples;
  for (const char* formats : {"x=q8_1 w=q4_0 y=f32",
                              "x=q8_1 w=q4_k y=f32",
                              "x=q8_1 w=q8_0 y=f16",
                              "x=q8_1 w=nvfp4 y=bf16 global=mul",
                              "x=q8_1 x_from=f32 w=q4_0 y=f32",
                              "x=q8_1 x_from=f16 w=q4_k y=f16",
                              "x=f16 w=f16 y=f16",
                              "x=bf16 w=bf16 y=bf16",
                              "x=f16 w=q4_0 y=f16",
                              "x=bf16 w=q4_k y=bf16",
                              "x=f16 w=nvfp4 y=f16 global=mul",
                              "x=f32 w=f32 y=f32",
                              "x=int8 w=int8 y=int32 bias=int32",
                              "x=int8 w=int8 y=bf16 alpha=0.001",
                              "x=int8 w=int8_row y=int8 alpha=0.01 y_scale=0.5",
                              "x=e4m3 w=e4m3 y=bf16",
                              "x=e5m2 w=e5m2 y=f32",
                              "x=e4m3_row w=e4m3 y=e4m3 accum=fast alpha=0.1 y_scale=0.01",
                              "x=f16 w=f16 y=e5m2 act=silu",
                              "x=int8_row w=q4_k y=bf16",
                              "x=int8_row w=nvfp4 y=f16 global=mul",
                              "x=int8_row w=int4_row y=f32",
                              "x=int4_row w=int4_row y=bf16",
                              "x=f16 w=e4m3_row y=f16",
                              "x=bf16 w=e2m1_row y=f32",
                              "x=bf16 w=nf4 y=bf16",
                              "x=f16 w=nf4 y=f32",
                              "x=int8_row w=ternary_row y=f32",
                              "x=bf16 w=ternary_row y=bf16",
                              "x=q8_1 w=sign_row y=f32",
                              "x=f16 w=signbit_row y=f16",
                              "x=sign_row w=sign_row y=bf16",
                              "x=signbit_row w=sign_row y=f32 bias=f32",
                              "x=bf16 w=bf16 y=bf16 c=bf16 beta=0.5",
                              "x=bf16 w=q4_0 y=int8 c=f32 bias=f32 y_scale=0.02"}) {
    std::string f = formats, global;
    if (const auto at = f.find(" global"); at != std::string::npos) global = f.substr(at), f = f.substr(0, at);
    for (const char* shape :
         {"m=1 n=1000 k=4096", "m=7 n=555 k=2304", "m=16 n=4096 k=1024", "m=100 n=384 k=1536", "m=600 n=1100 k=768"}) {
      const std::string text = fmt::format("gemm {} {}{}", f, shape, global);
      if (!asked(text)) continue;
      samples.push_back(text);
    }
  }
  Verdicts verdicts(s, std::move(samples), most);
  for (Item& item : items)
    s.check(item.name, [&] {
      const Kernel kernel = item.kernel.get();
      return item.ms.empty() ? in_place(s, item.problem, kernel) : gemm_against_host(s, item.problem, kernel, item.ms);
    });
  verdicts.check(s);
}

}  // namespace tilewright::bench
