// SPDX-License-Identifier: Apache-2.0
// Arguments that a launch must refuse, and launches from many threads.
#include <fmt/format.h>

#include <cmath>
#include <thread>

#include "bench/suite/matrix.h"
#include "bench/suite/pairs.h"
#include "bench/suite/trial.h"

namespace tilewright::bench {
namespace {

std::string expect_error(const std::function<void()>& body, ErrorCode code, std::string_view field) {
  try {
    body();
  } catch (const Error& e) {
    if (e.code() != code || e.field() != field)
      return fmt::format("threw {} about {}: {}", to_string(e.code()), e.field(), e.what());
    return {};
  }
  return "did not throw";
}

void bad_arguments(Suite& s) {
  const Problem problem = Problem::parse("gemm x=f16 w=q4_0 y=f16 m=4 n=64 k=256");
  Kernel kernel = s.engine().prepare(problem, s.device());
  kernel.check_pointers(true);
  Matrix x = make(s.device(), Format::parse("f16"), 4, 256, 1), w = make(s.device(), Format::parse("q4_0"), 64, 256, 2);
  Memory y(s.device(), 4 * 64 * 2);
  OwnedStream stream(s.device());
  GemmArgs good;
  good.x = x.operand, good.w = w.operand, good.y = y.data(), good.m = 4;
  const auto launch = [&](const std::function<void(GemmArgs&)>& change) {
    return [&, change] {
      GemmArgs args = good;
      change(args);
      kernel.launch(stream.get(), args);
    };
  };
  std::vector<std::byte> host(4096);
  const auto invalid = ErrorCode::invalid_argument;
  s.check("arguments/null",
          [&] { return expect_error(launch([](GemmArgs& a) { a.w.data = nullptr; }), invalid, "w.data"); });
  for (int by : {1, 2, 4, 8})
    s.check(fmt::format("arguments/misaligned by {}", by), [&] {
      return expect_error(launch([by](GemmArgs& a) { a.x.data = static_cast<const char*>(a.x.data) + by; }), invalid,
                          "x.data");
    });
  s.check("arguments/host pointer", [&] {
    return expect_error(launch([&](GemmArgs& a) {
                          a.y = host.data() + (16 - reinterpret_cast<std::uintptr_t>(host.data()) % 16) % 16;
                        }),
                        invalid, "y");
  });
  s.check("arguments/ldx below the row",
          [&] { return expect_error(launch([](GemmArgs& a) { a.ldx = 128; }), invalid, "ldx"); });
  s.check("arguments/negative m", [&] { return expect_error(launch([](GemmArgs& a) { a.m = -1; }), invalid, "m"); });
  s.check("arguments/zero rows", [&] {
    launch([](GemmArgs& a) { a.m = 0; })();
    stream.synchronize();
    return std::string();
  });
}

void wgmma_arguments(Suite& s) {
  if (!s.device().arch().wgmma) return;
  const auto invalid = ErrorCode::invalid_argument;
  for (const char* text :
       {"gemm x=f16 w=q4_0 y=f16 m=64 n=128 k=512 pack=tiles", "gemm x=f16 w=f16 y=f32 m=64 n=136 k=512",
        "gemm x=int8_row w=int8_row y=bf16 m=64 n=128 k=512"}) {
    const Problem problem = Problem::parse(text);
    const bool tiles = problem.as<Gemm>()->packing == Packing::tiles,
               bytes = problem.as<Gemm>()->x.name() == "int8_row";
    const Task task = s.engine().task(problem, s.device().arch());
    Trial trial(s, problem, 64, oracle_of(s, task)());
    trial.fill(3), trial.upload(), trial.consult(64);
    const Kernel kernel = kernel_of(s, task, legal(s, problem, 64, "wgmma").at(0))();
    const auto launch = [&](const std::function<void(GemmArgs&)>& change) {
      return [&, change] {
        GemmArgs args = trial.arguments(64);
        change(args);
        kernel.launch(trial.stream(), args);
      };
    };
    const auto check = [&](const char* what, const std::function<std::string()>& body) {
      s.check(fmt::format("arguments/wgmma {}: {}", what, text), body);
    };
    const auto refused = [&](const char* what, ErrorCode code, const char* field,
                             const std::function<void(GemmArgs&)>& change) {
      check(what, [&] { return expect_error(launch(change), code, field); });
    };
    const auto shifted = [](const void* p, int by) { return static_cast<const char*>(p) + by; };
    for (int by : {1, 8}) {
      const std::string name = fmt::format("misaligned by {}", by);
      refused((name + ", x").c_str(), invalid, "x.data", [&](GemmArgs& a) { a.x.data = shifted(a.x.data, by); });
      refused((name + ", w").c_str(), invalid, tiles ? "w.data (tiles)" : "w.data",
              [&](GemmArgs& a) { a.w.data = shifted(a.w.data, by); });
      if (tiles)
        refused((name + ", scales").c_str(), invalid, "w.scales (tiles)",
                [&](GemmArgs& a) { a.w.scales = shifted(a.w.scales, by); });
      refused((name + ", y").c_str(), invalid, "y", [&](GemmArgs& a) { a.y = static_cast<char*>(a.y) + by; });
    }
    if (tiles) refused("null scales", invalid, "w.scales (tiles)", [](GemmArgs& a) { a.w.scales = nullptr; });
    refused("ldx below the row", invalid, "ldx", [](GemmArgs& a) { a.ldx = 256; });
    refused("ldy below the row", invalid, "ldy", [](GemmArgs& a) { a.ldy = 64; });
    refused("negative m", invalid, "m", [](GemmArgs& a) { a.m = -1; });
    refused("alpha of no number", invalid, "alpha", [](GemmArgs& a) { a.alpha = NAN; });
    refused("beta without c", invalid, "beta", [](GemmArgs& a) { a.beta = 0.5f; });
    check("factors of the launch", [&] {
      trial.factors(-1.5f, 1.0f), trial.consult(64);
      const std::string why = trial.judge(kernel, 61);
      trial.factors(1.0f, 1.0f), trial.consult(64);
      return why;
    });
    // Rows of x that do not start at 16 bytes.
    for (int by : {2, 8}) {
      const int elements = bytes ? by : by / 2;
      refused(by == 2 ? "ldx of 2 bytes too many" : "ldx of 8 bytes too many", invalid, "ldx",
              [elements](GemmArgs& a) { a.ldx = 512 + elements; });
    }
    check("zero rows", [&] {
      launch([](GemmArgs& a) { a.m = 0; })();
      trial.synchronize();
      return std::string();
    });
    check("after all these", [&] { return trial.judge(kernel, 61, 16, 1, true); });
  }
}

std::string many_threads(Suite& s) {
  const Problem problem = Problem::parse("gemm x=q8_1 w=q4_0 y=f32 m=1 n=512 k=1024");
  const Kernel kernel = s.engine().prepare(problem, s.device());
  Matrix x = make(s.device(), Format::parse("q8_1"), 64, 1024, 1),
         w = make(s.device(), Format::parse("q4_0"), 512, 1024, 2);
  const auto run = [&](std::int64_t m, std::vector<std::byte>& out) {
    Memory y(s.device(), 64 * 512 * 4);
    OwnedStream stream(s.device());
    GemmArgs args;
    args.x = x.operand, args.w = w.operand, args.y = y.data(), args.m = m;
    for (int i = 0; i < 50; ++i) kernel.launch(stream.get(), args);
    stream.synchronize();
    out.resize(static_cast<std::size_t>(m) * 512 * 4);
    y.download(out);
  };
  std::vector<std::vector<std::byte>> alone(8), together(8);
  for (int i = 0; i < 8; ++i) run(1 << (i % 7), alone[static_cast<std::size_t>(i)]);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&, i] { run(1 << (i % 7), together[static_cast<std::size_t>(i)]); });
  for (auto& t : threads) t.join();
  for (std::size_t i = 0; i < 8; ++i)
    if (alone[i] != together[i]) return fmt::format("m={} differs between one thread and eight", 1 << (i % 7));
  return {};
}

}  // namespace

void argument_checks(Suite& s) {
  bad_arguments(s);
  wgmma_arguments(s);
}

void thread_checks(Suite& s) {
  s.check("threads and streams", [&] { return many_threads(s); });
}

}  // namespace tilewright::bench
