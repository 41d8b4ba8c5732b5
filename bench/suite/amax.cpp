// SPDX-License-Identifier: Apache-2.0
// The largest magnitude of tensors against the host, bit for bit, with peaks, infinities and NaNs anywhere.
#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <random>

#include "bench/suite/trial.h"

namespace tilewright::bench {
namespace {

// A launch of fewer rows than the problem's, several in a row over one workspace, which nobody clears in between.
std::string amax_against_host(Suite& s, const std::string& text, const Kernel& kernel, float peak) {
  const Problem whole = Problem::parse(text);
  OwnedStream stream(s.device());
  Memory workspace(s.device(), Amax::kWorkspace);
  workspace.fill(0);
  std::mt19937 random(7);
  for (const std::int64_t rows : {whole.rows(), std::int64_t{1}, (whole.rows() + 1) / 2}) {
    const Problem problem = whole.with_rows(rows);
    const Amax& a = *problem.as<Amax>();
    Task task;
    problem.operation().describe(problem, task);
    std::vector<std::vector<std::byte>> bytes;
    for (const Buffer& b : task.buffers) bytes.emplace_back(b.bytes);
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<std::size_t>(a.rows * a.cols));
    for (float& v : values) v = normal(random);
    values[random() % values.size()] = peak;
    a.x.info().encode(values.data(), a.rows, a.cols, {bytes[0].data(), nullptr, nullptr}, 0);
    std::vector<std::span<std::byte>> buffers(bytes.begin(), bytes.end());
    problem.operation().run_on_host(problem, task, buffers);

    Memory x(s.device(), bytes[0].size()), amax(s.device(), sizeof(float));
    x.upload(bytes[0]), amax.fill(0xa5);
    kernel.launch(stream.get(), AmaxArgs{x.data(), static_cast<float*>(amax.data()), workspace.data(), a.rows});
    stream.synchronize();
    std::vector<std::byte> got(sizeof(float)), left(Amax::kWorkspace);
    amax.download(got), workspace.download(left);
    if (got != bytes[1]) {
      float is = 0, wanted = 0;
      std::memcpy(&is, got.data(), 4), std::memcpy(&wanted, bytes[1].data(), 4);
      return fmt::format("{} of {} rows, expected {}", is, rows, wanted);
    }
    if (left != std::vector<std::byte>(Amax::kWorkspace)) return fmt::format("{} rows leave the workspace dirty", rows);
  }
  return {};
}

}  // namespace

void amax_checks(Suite& s) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::string> texts;
  for (const char* x : {"f32", "f16", "bf16"})
    for (const char* sizes : {"rows=1 cols=1", "rows=3 cols=7", "rows=67 cols=4096", "rows=1000 cols=12345"}) {
      if (s.extent() == Extent::one && std::string_view(sizes) != "rows=3 cols=7") continue;
      texts.push_back(fmt::format("amax x={} {}", x, sizes));
    }
  Ahead ahead(jobs_of(s));
  std::vector<std::shared_future<Kernel>> kernels;
  for (const std::string& text : texts)
    kernels.push_back(ahead.submit([&s, text] { return s.engine().prepare(Problem::parse(text), s.device()); }));
  for (std::size_t i = 0; i < texts.size(); ++i)
    for (const float peak : {-1000.0f, kInf, kNan, 0.0f})
      s.check(fmt::format("{} with {}", texts[i], peak),
              [&, kernel = kernels[i]] { return amax_against_host(s, texts[i], kernel.get(), peak); });
  if (s.extent() == Extent::one) return;
  for (const char* text : {"amax x=bf16 rows=65 cols=2305", "amax x=f32 rows=650 cols=4097"})
    s.check("candidates of " + std::string(text), [&] { return candidates_verify(s.engine(), s.device(), text, 24); });
}

}  // namespace tilewright::bench
