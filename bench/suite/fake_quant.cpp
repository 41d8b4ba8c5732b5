// SPDX-License-Identifier: Apache-2.0
// Fake quantizations of hard data against the host, bit for bit, apart and in place.
#include <fmt/format.h>

#include <cstring>
#include <random>

#include "bench/suite/trial.h"

namespace tilewright::bench {
namespace {

constexpr std::size_t kGuard = 64;

// Values of every size, by stretches of eight: floats of random bits, zeros, midpoints of E2M1, what models have.
std::vector<float> hard(std::int64_t count, unsigned seed) {
  constexpr float kHalves[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f, 6.0f};
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  unsigned kind = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i % 64 == 0) kind = random() % 8;
    const auto bits = static_cast<std::uint32_t>(random());
    values[i] = normal(random);
    if (kind == 0 && random() % 16 == 0) std::memcpy(&values[i], &bits, 4);
    if (kind == 1) std::memcpy(&values[i], &bits, 4);
    if (kind == 2) values[i] = 0;
    if (kind == 3) values[i] = kHalves[i % 8] * (bits % 2 ? 1.0f : -1.0f);
    if (kind == 4) values[i] *= 1e-5f;
  }
  return values;
}

std::string difference(const std::vector<std::byte>& got, const std::vector<std::byte>& want) {
  for (std::size_t i = 0; i < got.size(); ++i)
    if (const std::byte wanted = i < want.size() ? want[i] : std::byte{0xa5}; got[i] != wanted)
      return fmt::format("byte {} of {} is {:02x}, expected {:02x}", i, want.size(), static_cast<int>(got[i]),
                         static_cast<int>(wanted));
  return {};
}

std::string fake_quant_against_host(Suite& s, const Problem& problem, const Kernel& kernel, float amax) {
  const Fp4FakeQuant& p = *problem.as<Fp4FakeQuant>();
  Task task;
  problem.operation().describe(problem, task);
  std::vector<std::vector<std::byte>> bytes;
  for (const Buffer& b : task.buffers) bytes.emplace_back(b.bytes);
  p.x.info().encode(hard(p.rows * p.cols, 5).data(), p.rows, p.cols, {bytes[0].data(), nullptr, nullptr}, 0);
  std::memcpy(bytes[2].data(), &amax, sizeof amax);
  std::vector<std::span<std::byte>> buffers(bytes.begin(), bytes.end());
  problem.operation().run_on_host(problem, task, buffers);

  OwnedStream stream(s.device());
  const auto launched = [&](bool in_place) {
    Memory x(s.device(), bytes[0].size() + kGuard), y(s.device(), bytes[1].size() + kGuard), a(s.device(), 4);
    x.fill(0xa5), y.fill(0xa5);
    x.upload(bytes[0]), a.upload(bytes[2]);
    Memory& to = in_place ? x : y;
    kernel.launch(stream.get(), Fp4FakeQuantArgs{x.data(), to.data(), static_cast<const float*>(a.data()), p.rows});
    stream.synchronize();
    std::vector<std::byte> got(bytes[1].size() + kGuard);
    to.download(got);
    return difference(got, bytes[1]);
  };
  if (std::string wrong = launched(false); !wrong.empty()) return wrong;
  if (p.x != p.y) return {};
  const std::string wrong = launched(true);
  return wrong.empty() ? wrong : "in place: " + wrong;
}

}  // namespace

void fake_quant_checks(Suite& s) {
  std::vector<std::string> texts;
  const auto add = [&](const char* x, const char* y, int block, std::int64_t rows, std::int64_t cols) {
    texts.push_back(fmt::format("fp4_fake_quant x={} y={} rows={} cols={}{}", x, y, rows, cols,
                                block == 16 ? "" : fmt::format(" block={}", block)));
  };
  for (const char* x : {"f32", "f16", "bf16"})
    for (const int block : {8, 16, 32, 64, 128, 256}) {
      add(x, x, block, 130, 9 * block);
      add(x, x, block, 67, 7 * block + 3);
      add(x, x, block, 67, 24 * 17);
      if (s.extent() == Extent::one) break;
    }
  for (const char* x : {"f32", "f16", "bf16"})
    for (const char* y : {"f32", "f16", "bf16"})
      if (std::string_view(x) != y && s.extent() == Extent::full) {
        add(x, y, 16, 1, 16 * 12345);
        add(x, y, 128, 33, 999);
      }
  Ahead ahead(jobs_of(s));
  std::vector<std::shared_future<Kernel>> kernels;
  for (const std::string& text : texts)
    kernels.push_back(ahead.submit([&s, text] { return s.engine().prepare(Problem::parse(text), s.device()); }));
  for (std::size_t i = 0; i < texts.size(); ++i)
    for (const float amax : {3.0f, 2688.0f, 0.0f})
      s.check(fmt::format("{} under {}", texts[i], amax), [&, kernel = kernels[i]] {
        return fake_quant_against_host(s, Problem::parse(texts[i]), kernel.get(), amax);
      });
  if (s.extent() == Extent::one) return;
  for (const char* text :
       {"fp4_fake_quant x=bf16 y=bf16 rows=65 cols=2304", "fp4_fake_quant x=f32 y=f32 rows=65 cols=2304 block=256",
        "fp4_fake_quant x=f16 y=f16 rows=65 cols=2307 block=128"})
    s.check("candidates of " + std::string(text), [&] { return candidates_verify(s.engine(), s.device(), text, 24); });
}

}  // namespace tilewright::bench
