// SPDX-License-Identifier: Apache-2.0
// `bench x_from`: float activations times weights by products of bytes. x becomes q8_1 or e4m3_row by a cast in front
// of the gemm, or in the gemm itself (x_from): the whole of it timed, side by side, cold.
#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "bench/bench.h"
#include "bench/gemm/gemm_jobs.h"
#include "bench/rivals/cuda.h"

namespace tilewright::bench {
namespace {

// One way from floats to y.
class Way {
 public:
  // from: f32 or bf16, what a cast in front takes where the gemm takes no floats.
  Way(Engine& engine, const Cuda& cuda, const Device& device, const Problem& problem, const TunePolicy& policy,
      const char* from)
      : problem_(problem), task_(engine.task(problem, device.arch())) {
    const Gemm& g = *problem.as<Gemm>();
    if (!g.x_from) {
      const Problem cast(Cast{Format::parse(from), g.x, g.m, g.k});
      engine.tune(cast, device, policy);
      cast_.emplace(engine.prepare(cast, device));
    }
    choice_ = engine.tune(problem, device, policy).choice.candidate;
    task_.candidates = {choice_};
    gemm_.emplace(engine.prepare(task_, device));

    std::vector<Piece> pieces = pieces_of(task_);
    for (std::size_t i = 0; i < task_.buffers.size(); ++i) {
      if (task_.buffers[i].name == "x.data") x_ = static_cast<int>(i);
      if (task_.buffers[i].name == "x.scales") x_scales_ = static_cast<int>(i);
    }
    if (cast_) {
      Piece floats;
      const Format format = Format::parse(from);
      floats.bytes = static_cast<std::size_t>(format.total_bytes(g.m, g.k));
      floats.fill = [format, count = g.m * g.k](std::span<std::byte> bytes) {
        std::vector<float> v(static_cast<std::size_t>(count));
        std::uint64_t state = 1;
        for (float& each : v) {
          state = state * 6364136223846793005ull + 1442695040888963407ull;
          each = static_cast<float>(state >> 40) * 0x1p-23f - 1.0f;
        }
        format.info().encode(v.data(), 1, count, {bytes.data(), nullptr, nullptr}, 0);
      };
      floats_ = static_cast<int>(pieces.size());
      pieces.push_back(std::move(floats));
    }
    rotation_ = std::make_unique<Rotation>(cuda, device, pieces, kColdBytes);
    const auto launch = [&](int i) {
      const std::vector<void*> pointers = rotation_->pointers(i % rotation_->copies());
      if (cast_) {
        CastArgs args;
        args.x.data = pointers[static_cast<std::size_t>(floats_)];
        args.y.data = pointers[static_cast<std::size_t>(x_)];
        if (x_scales_ >= 0) args.y.scales = pointers[static_cast<std::size_t>(x_scales_)];
        args.rows = g.m;
        cast_->launch(cuda.stream(), args);
      }
      gemm_->launch(cuda.stream(), task_.arguments(std::span(pointers).first(task_.buffers.size()), g.m), g.m,
                    task_.cols);
    };
    launch(0);
    cuda.microseconds([&] { launch(1); });
    const double once = cuda.microseconds([&] { launch(rotation_->copies() - 1); });
    replay_.emplace(cuda, rotation_->launches(once), launch);
  }

  void sample(bool counts) {
    const double us = replay_->time();
    if (counts) samples_.push_back(us);
  }
  double us() const { return median(samples_); }
  Json json() const {
    return {{"problem", problem_.text()}, {"choice", choice_.text()}, {"launches", cast_ ? 2 : 1}, {"us", us()}};
  }

 private:
  Problem problem_;
  Task task_;
  Candidate choice_;
  std::optional<Kernel> cast_, gemm_;
  int x_ = 0, x_scales_ = -1, floats_ = -1;
  std::unique_ptr<Rotation> rotation_;
  std::optional<Replay> replay_;
  std::vector<double> samples_;
};

}  // namespace

Json x_from(const Device& device, const Settings& settings) {
  Options options = Options::from_env();
  options.cache = settings.cache.empty() ? ":memory:" : settings.cache;
  Engine engine(options);
  const Cuda cuda(device, options.driver);
  TunePolicy policy;
  policy.max_candidates = settings.candidates;
  policy.budget_seconds = settings.tune_seconds;
  Table table(
      {"weights", "m", "n", "k", "cast, gemm", "cast, gemm on tiles", "gemm with x_from", "on tiles", "speedup"});
  Json rows = Json::array();
  const auto asked = [&](const std::string& label) {
    return settings.rows.empty() || label.find(settings.rows) != label.npos;
  };
  for (const char* w : {"q4_0", "q8_0"})
    for (const auto& [n, k] : {std::pair{4096, 4096}, {14336, 4096}, {4096, 14336}})
      for (const int m : {1, 4}) {
        if (!asked(fmt::format("x=q8_1 w={}", w))) continue;
        const std::string text = fmt::format("gemm x=q8_1 w={} y=f32 m={} n={} k={} weights=constant", w, m, n, k);
        std::vector<std::unique_ptr<Way>> ways;
        const auto add = [&](const char* more) {
          ways.push_back(std::make_unique<Way>(engine, cuda, device, Problem::parse(text + more), policy, "f32"));
        };
        for (const char* more : {"", " pack=tiles", " x_from=f32"}) add(more);
        const bool fused_on_tiles = m == 1;  // that kernel has one token at a time
        if (fused_on_tiles) add(" x_from=f32 pack=tiles");
        for (int round = -kWarmRounds; round < settings.rounds; ++round)
          for (const auto& way : ways) way->sample(round >= 0);
        const double apart = std::min(ways[0]->us(), ways[1]->us()), fused = std::min(ways[2]->us(), ways.back()->us());
        table.row({w, fmt::format("{}", m), fmt::format("{}", n), fmt::format("{}", k),
                   fmt::format("{:.2f}", ways[0]->us()), fmt::format("{:.2f}", ways[1]->us()),
                   fmt::format("{:.2f}", ways[2]->us()), fused_on_tiles ? fmt::format("{:.2f}", ways.back()->us()) : "",
                   fmt::format("{:.2f}", apart / fused)});
        fmt::print("{} m={} {}x{}: {:.2f} us, {:.2f} apart\n", w, m, n, k, fused, apart);
        std::fflush(stdout);
        Json row = {{"w", w}, {"m", m}, {"n", n}, {"k", k}, {"speedup", apart / fused}, {"ways", Json::array()}};
        for (const auto& way : ways) row["ways"].push_back(way->json());
        rows.push_back(row);
      }
  fmt::print("{}", table.text());

  // A scale per row, in the workspace.
  Table by_row({"weights", "m", "n", "k", "cast, gemm", "gemm with x_from", "speedup"});
  for (const char* w : {"nvfp4 global=mul pack=tiles", "e4m3_row accum=fast"})
    for (const int m : {1, 16, 64, 256, 1024}) {
      if (!asked(fmt::format("x=e4m3_row w={}", w))) continue;
      constexpr int kN = 8192, kK = 8192;
      const std::string text = fmt::format("gemm x=e4m3_row w={} y=bf16 m={} n={} k={} weights=constant workspace={}",
                                           w, m, kN, kK, kProblemWorkspace);
      Way apart(engine, cuda, device, Problem::parse(text), policy, "bf16"),
          fused(engine, cuda, device, Problem::parse(text + " x_from=bf16"), policy, "bf16");
      for (int round = -kWarmRounds; round < settings.rounds; ++round)
        for (Way* way : {&apart, &fused}) way->sample(round >= 0);
      const double speedup = apart.us() / fused.us();
      by_row.row({w, fmt::format("{}", m), fmt::format("{}", kN), fmt::format("{}", kK),
                  fmt::format("{:.2f}", apart.us()), fmt::format("{:.2f}", fused.us()),
                  fmt::format("{:.2f}", speedup)});
      fmt::print("{} m={}: {:.2f} us, {:.2f} apart\n", w, m, fused.us(), apart.us());
      std::fflush(stdout);
      rows.push_back(
          {{"w", w}, {"m", m}, {"n", kN}, {"k", kK}, {"speedup", speedup}, {"ways", {apart.json(), fused.json()}}});
    }
  fmt::print("{}", by_row.text());
  return rows;
}

}  // namespace tilewright::bench
