// SPDX-License-Identifier: Apache-2.0
// Fused casts of hard data against double precision on the host, apart and in place, with a guard behind each output.
#include <fmt/format.h>

#include <cstring>
#include <random>

#include "bench/suite/trial.h"

namespace tilewright::bench {
namespace {

// By stretches of 64: what models have, large and small values, zeros, one outlier.
std::vector<float> hard_rows(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  unsigned kind = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i % 64 == 0) kind = random() % 6;
    values[i] = normal(random);
    if (kind == 1) values[i] *= 50.0f;
    if (kind == 2) values[i] *= 1e-4f;
    if (kind == 3) values[i] = i % 2 ? -0.0f : 0.0f;
    if (kind == 4 && i % 64 == 17) values[i] = 1000.0f;
  }
  return values;
}

// A launch of `rows` of the problem's rows.
std::string fused_against_host(Suite& s, const Problem& whole, const Kernel& kernel, std::int64_t rows, bool in_place) {
  const Problem problem = whole.with_rows(rows);
  Task task;
  problem.operation().describe(problem, task);
  std::vector<std::vector<std::byte>> bytes;
  for (const Buffer& b : task.buffers) bytes.emplace_back(b.bytes);
  unsigned seed = 3;
  std::size_t residual = 0, residual_out = 0;
  for (const Matrix& m : task.matrices) {
    const auto data = static_cast<std::size_t>(m.data);
    if (m.name == "residual") residual = data;
    if (m.name == "residual_out") residual_out = data;
    if (m.name != "y" && m.name != "residual_out")
      m.format.info().encode(hard_rows(m.rows * m.cols, ++seed).data(), m.rows, m.cols,
                             {bytes[data].data(), nullptr, nullptr}, 0);
    if (m.global >= 0) {
      const float global = m.format.info().global_for(100.0f);
      std::memcpy(bytes[static_cast<std::size_t>(m.global)].data(), &global, sizeof global);
    }
  }
  if (in_place && residual_out == 0) return {};
  const std::string wrong = judged_on_host(s, problem, kernel, bytes, in_place ? residual_out : 0, residual);
  return wrong.empty() ? wrong : fmt::format("{} rows{}: {}", rows, in_place ? " in place" : "", wrong);
}

}  // namespace

void fused_cast_checks(Suite& s) {
  std::vector<std::string> texts;
  const char* const targets[] = {"e4m3_row", "int8_row", "int8_asym_row", "int4_row",    "nvfp4", "mxfp8",
                                 "mxfp4",    "q8_1",     "q4_0",          "e4m3_tensor", "e4m3",  "bf16"};
  const char* const functions[] = {"residual=add norm=rms weight=bf16", "act=silu gate=first", "bias=f32 act=gelu",
                                   "act=gelu_tanh gate=first", "bias=f16 residual=add norm=rms act=relu"};
  std::size_t turn = 0;
  for (const char* x : {"bf16", "f16", "f32"})
    for (const char* y : targets)
      for (const char* function : functions) {
        ++turn;
        if (s.extent() == Extent::one && turn % 11 != 1) continue;
        if (s.extent() == Extent::quick && turn % 4 != 1) continue;
        const int block = Format::parse(y).block();
        const std::int64_t cols[] = {block == 1 ? 1 : block, block == 1 ? 333 : 21 * block, 4096, 14336};
        texts.push_back(fmt::format("fused_cast x={} y={} rows=67 cols={} {}", x, y, cols[turn % 4], function));
      }
  for (const char* y : {"e4m3_row", "nvfp4", "int8_asym_row"})  // more than a block holds
    texts.push_back(fmt::format("fused_cast x=bf16 y={} rows=3 cols=66560 residual=add norm=rms weight=bf16", y));
  texts.push_back("fused_cast x=f16 y=e4m3_row rows=3 cols=40001 residual=add norm=rms");
  Ahead ahead(jobs_of(s));
  std::vector<std::shared_future<Kernel>> kernels;
  for (const std::string& text : texts)
    kernels.push_back(ahead.submit([&s, text] { return s.engine().prepare(Problem::parse(text), s.device()); }));
  for (std::size_t i = 0; i < texts.size(); ++i)
    s.check(texts[i], [&, kernel = kernels[i]] {
      const Problem problem = Problem::parse(texts[i]);
      for (const std::int64_t rows : {problem.rows(), std::int64_t{1}})
        for (const bool in_place : {false, true})
          if (std::string wrong = fused_against_host(s, problem, kernel.get(), rows, in_place); !wrong.empty())
            return wrong;
      return std::string();
    });
  if (s.extent() == Extent::one) return;
  for (const char* text : {"fused_cast x=bf16 y=e4m3_row rows=65 cols=4096 residual=add norm=rms weight=bf16",
                           "fused_cast x=bf16 y=nvfp4 rows=65 cols=14336 act=silu gate=first",
                           "fused_cast x=f16 y=q8_1 rows=65 cols=2304 bias=f16 act=gelu",
                           "fused_cast x=f32 y=int8_row rows=65 cols=2305 norm=rms weight=f32",
                           "fused_cast x=bf16 y=mxfp8 rows=5 cols=40960 residual=add norm=rms weight=bf16"})
    s.check("candidates of " + std::string(text), [&] { return candidates_verify(s.engine(), s.device(), text, 24); });
}

}  // namespace tilewright::bench
