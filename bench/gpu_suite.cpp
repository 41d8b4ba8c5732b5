// SPDX-License-Identifier: Apache-2.0
// The GPU suite: what CI cannot run. Every family and format on odd shapes against a double-precision product formed on
// the host, candidates against the tuner's verifier, casts and packed weights bit for bit, the warpgroup kernels of
// every pair of formats at ragged shapes and on hard data, threads, bad arguments.
//   tilewright_gpu_suite [--out FILE] [--resume FILE,...] [--quick | --one] [--only GROUP,...] [--pairs TEXT]
//                        [--cache FILE] [--verbose]
// --out: written after each group. --resume: groups that these results have, of the same checks, text and device, are
// taken from them, so that a run that was cut goes on, and groups that ran side by side (`--only`) become one result.
// --quick: fewer candidates. --one: one configuration of each family at odd sizes, for compute-sanitizer
// (bench/sanitize.sh). --only: groups of gemm casts pack wgmma grouped conv conv_layouts amax fused_cast fake_quant
// training gptq observe order served arguments threads.
// --pairs: of gemm's problems and wgmma's pairs of formats, those with this in their text. --cache: a file that keeps
// compiled kernels from one run to the next, memory otherwise. --verbose: names before they run. Exit code 0: nothing
// failed; 1: something did; 4: no device (nothing is reported as passed).
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <span>
#include <utility>

#include "bench/suite/suite.h"

namespace tilewright::bench {
namespace {

// What a run has found, written after each group, so that one that is cut short is not lost.
class Findings {
 public:
  Findings(const Request& request, Json environment) : out_(request.out), environment_(std::move(environment)) {
    environment_["groups"] = Json::array();
    environment_["checks"] = fmt::format("{}{}{}", kExtents[static_cast<int>(request.extent)],
                                         request.pairs.empty() ? "" : " of ", request.pairs);
    for (const std::string& file : request.resume) resume(file);
  }
  bool has(const std::string& group) const {
    const Json& groups = environment_["groups"];
    return std::find(groups.begin(), groups.end(), group) != groups.end();
  }
  void add(const std::string& group, std::span<const Result> results) {
    for (const Result& r : results) rows_.push_back({{"name", r.name}, {"status", r.status}, {"detail", r.detail}});
    environment_["groups"].push_back(group);
    write(out_, environment_, rows_);
  }
  std::ptrdiff_t count(std::string_view status) const {
    return std::count_if(rows_.begin(), rows_.end(), [&](const Json& r) { return r["status"] == status; });
  }
  const Json& environment() const { return environment_; }

 private:
  static constexpr const char* kExtents[] = {"all", "quick", "one"};

  // Groups of an earlier run of the same checks and text, on a device of the same name.
  void resume(const std::string& name) {
    std::ifstream file(name);
    const Json earlier = Json::parse(file, nullptr, false);
    if (earlier.is_discarded() || !earlier.contains("environment") || !earlier["environment"].contains("groups"))
      throw Error(ErrorCode::invalid_argument, "--resume", name, "must be a result of this program");
    for (const char* same : {"checks", "tree_hash", "device", "driver", "compiler"})
      if (earlier["environment"].value(same, "") != environment_.value(same, ""))
        throw Error(ErrorCode::invalid_argument, "--resume", earlier["environment"].value(same, ""),
                    fmt::format("must be a result whose {} is {}", same, environment_.value(same, "")));
    for (const std::string group : earlier["environment"]["groups"]) {
      if (has(group)) throw Error(ErrorCode::invalid_argument, "--resume", group, "must be in one result only");
      environment_["groups"].push_back(group);
    }
    for (const Json& row : earlier["results"]) rows_.push_back(row);
    write(out_, environment_, rows_);
  }

  std::string out_;
  Json environment_, rows_ = Json::array();
};

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
  Findings findings(request, environment(&device, options));
  const auto group = [&](const char* name, void (*checks)(Suite&)) {
    const std::size_t before = suite.results().size();
    if (!findings.has(name) && suite.group(name, [&] { checks(suite); }))
      findings.add(name, std::span(suite.results()).subspan(before));
  };
  group("gemm", gemm_checks);
  group("casts", cast_checks);
  group("pack", pack_checks);
  group("wgmma", wgmma_checks);
  group("grouped", grouped_checks);
  group("conv", conv_checks);
  if (request.extent != Extent::one) group("conv_layouts", conv_layout_checks);
  group("amax", amax_checks);
  group("fused_cast", fused_cast_checks);
  group("fake_quant", fake_quant_checks);
  group("training", training_checks);
  group("gptq", gptq_checks);
  group("observe", observe_checks);
  if (request.extent != Extent::one) {
    group("order", order_checks);
    group("served", served_checks);
    group("arguments", argument_checks);
    group("threads", thread_checks);
  }
  const Json& env = findings.environment();
  if (env["groups"].empty())
    throw Error(ErrorCode::invalid_argument, "--only", "", "must name groups; see the head of bench/gpu_suite.cpp");
  fmt::print("{} passed, {} failed, {} skipped on {} (driver {}, compiler {}, tree {})\n", findings.count("passed"),
             findings.count("failed"), findings.count("skipped"), device.name(), device.driver_version(),
             env["compiler"].get<std::string>(), env["tree_hash"].get<std::string>().substr(0, 12));
  return findings.count("failed") ? 1 : 0;
}

// "a,b" as a and b.
std::vector<std::string> words(std::string_view list) {
  std::vector<std::string> names;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t comma = std::min(list.find(',', at), list.size());
    if (comma > at) names.emplace_back(list.substr(at, comma - at));
    at = comma + 1;
  }
  return names;
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
      for (std::string& name : tilewright::bench::words(argv[++i])) request.only.insert(std::move(name));
    } else if (word == "--resume" && i + 1 < argc) {
      request.resume = tilewright::bench::words(argv[++i]);
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
