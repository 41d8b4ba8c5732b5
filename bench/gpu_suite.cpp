// SPDX-License-Identifier: Apache-2.0
// The GPU suite: what CI cannot run. Every family and format on odd shapes against a double-precision product formed on
// the host, candidates against the tuner's verifier, casts and packed weights bit for bit, the warpgroup kernels of
// every pair of formats at ragged shapes and on hard data, threads, bad arguments.
//   tilewright_gpu_suite [--out FILE] [--quick | --one] [--only GROUP,...] [--pairs TEXT] [--cache FILE] [--verbose]
// --quick: fewer candidates. --one: one configuration of each family at odd sizes, for compute-sanitizer
// (bench/sanitize.sh). --only: groups of gemm casts pack wgmma grouped conv fake_quant order served arguments threads.
// --pairs: of gemm's problems and wgmma's pairs of formats, those with this in their text. --cache: a file that keeps
// compiled kernels from one run to the next, memory otherwise. --verbose: names before they run. Exit code 0: nothing
// failed; 1: something did; 4: no device (nothing is reported as passed).
#include <fmt/format.h>

#include <algorithm>

#include "bench/suite/suite.h"

namespace tilewright::bench {
namespace {

int run(const Request& request) {
  Options options = Options::from_env();
  if (Device::count(options.driver) == 0) {
    fmt::print("skipped: no CUDA device\n");
    return 4;
  }
  options.cache = request.cache.empty() ? ":memory:" : request.cache;
  Engine engine(options);
  const Device device = Device::open(0, options.driver);
  Suite suite(engine, device, request);
  suite.group("gemm", [&] { gemm_checks(suite); });
  suite.group("casts", [&] { cast_checks(suite); });
  suite.group("pack", [&] { pack_checks(suite); });
  suite.group("wgmma", [&] { wgmma_checks(suite); });
  suite.group("grouped", [&] { grouped_checks(suite); });
  suite.group("conv", [&] { conv_checks(suite); });
  suite.group("fake_quant", [&] { fake_quant_checks(suite); });
  if (request.extent != Extent::one) {
    suite.group("order", [&] { order_checks(suite); });
    suite.group("served", [&] { served_checks(suite); });
    suite.group("arguments", [&] { argument_checks(suite); });
    suite.group("threads", [&] { thread_checks(suite); });
  }
  int failed = 0, skipped = 0;
  Json rows = Json::array();
  for (const Result& r : suite.results()) {
    failed += r.status == "failed", skipped += r.status == "skipped";
    rows.push_back({{"name", r.name}, {"status", r.status}, {"detail", r.detail}});
  }
  if (suite.results().empty())
    throw Error(ErrorCode::invalid_argument, "--only", "", "groups, see the head of bench/gpu_suite.cpp");
  const Json env = environment(&device, options);
  write(request.out, env, rows);
  fmt::print("{} passed, {} failed, {} skipped on {} (driver {}, compiler {}, tree {})\n",
             static_cast<int>(suite.results().size()) - failed - skipped, failed, skipped, device.name(),
             device.driver_version(), env["compiler"].get<std::string>(),
             env["tree_hash"].get<std::string>().substr(0, 12));
  return failed ? 1 : 0;
}

}  // namespace
}  // namespace tilewright::bench

int main(int argc, char** argv) {
  tilewright::bench::Request request;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--out" && i + 1 < argc) {
      request.out = argv[++i];
    } else if (word == "--pairs" && i + 1 < argc) {
      request.pairs = argv[++i];
    } else if (word == "--cache" && i + 1 < argc) {
      request.cache = argv[++i];
    } else if (word == "--only" && i + 1 < argc) {
      const std::string list = argv[++i];
      for (std::size_t at = 0; at <= list.size();) {
        const std::size_t comma = std::min(list.find(',', at), list.size());
        if (comma > at) request.only.insert(list.substr(at, comma - at));
        at = comma + 1;
      }
    } else if (word == "--quick") {
      request.extent = tilewright::bench::Extent::quick;
    } else if (word == "--one") {
      request.extent = tilewright::bench::Extent::one;
    } else if (word == "--verbose") {
      request.verbose = true;
    } else {
      fmt::print(stderr, "tilewright_gpu_suite: {} is no option; see the head of bench/gpu_suite.cpp\n", word);
      return 2;
    }
  }
  try {
    return tilewright::bench::run(request);
  } catch (const std::exception& e) {
    fmt::print(stderr, "tilewright_gpu_suite: {}\n", e.what());
    return 1;
  }
}
