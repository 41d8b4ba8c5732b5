// SPDX-License-Identifier: Apache-2.0
// What a run of the GPU suite was asked for, and what it collects.
#pragma once

#include <tilewright/tilewright.h>

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "bench/report.h"

namespace tilewright::bench {

// Thrown by a check that has nothing to judge.
struct Skipped {
  std::string why;
};
struct Result {
  std::string name, status, detail;  // "passed", "failed", "skipped"
};

enum class Extent { full, quick, one };

struct Request {
  std::string out, cache, pairs;
  Extent extent = Extent::full;
  std::set<std::string> only;       // groups; empty: all
  std::vector<std::string> resume;  // results of earlier runs
  bool verbose = false;
};

class Suite {
 public:
  Suite(Engine& engine, const Device& device, const Request& request)
      : engine_(engine), device_(device), request_(request) {}

  // False if it was not asked for.
  bool group(const std::string& name, const std::function<void()>& body) {
    if (!request_.only.empty() && !request_.only.count(name)) return false;
    const std::size_t before = results_.size();
    const auto began = std::chrono::steady_clock::now();
    // What a group prepares before its checks may throw as well.
    try {
      body();
    } catch (const std::exception& e) {
      check(name, [&] { return fmt::format("threw: {}", e.what()); });
    }
    fmt::print("{}: {} checks in {:.1f} s\n", name, results_.size() - before,
               std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
    std::fflush(stdout);
    return true;
  }
  void check(const std::string& name, const std::function<std::string()>& body) {
    if (request_.verbose) fmt::print("{}\n", name), std::fflush(stdout);
    std::string why;
    try {
      why = body();
    } catch (const Skipped& skipped) {
      results_.push_back({name, "skipped", skipped.why});
      return;
    } catch (const std::exception& e) {
      why = fmt::format("threw: {}", e.what());
    }
    results_.push_back({name, why.empty() ? "passed" : "failed", why});
    if (!why.empty()) fmt::print("FAILED {}: {}\n", name, why);
  }
  const std::vector<Result>& results() const { return results_; }
  Engine& engine() { return engine_; }
  const Device& device() const { return device_; }
  Extent extent() const { return request_.extent; }
  const std::string& pairs() const { return request_.pairs; }

 private:
  Engine& engine_;
  Device device_;
  const Request& request_;
  std::vector<Result> results_;
};

// The groups, one file each: every check names itself and its case.
void gemm_checks(Suite& s);         // gemm.cpp
void cast_checks(Suite& s);         // casts.cpp
void pack_checks(Suite& s);         // pack.cpp
void served_checks(Suite& s);       // pack.cpp
void wgmma_checks(Suite& s);        // wgmma.cpp
void grouped_checks(Suite& s);      // grouped.cpp
void conv_checks(Suite& s);         // conv.cpp
void conv_layout_checks(Suite& s);  // conv.cpp
void amax_checks(Suite& s);         // amax.cpp
void fake_quant_checks(Suite& s);   // fake_quant.cpp
void fused_cast_checks(Suite& s);   // fused_cast.cpp
void training_checks(Suite& s);     // training.cpp
void gptq_checks(Suite& s);         // gptq.cpp
void observe_checks(Suite& s);      // observe.cpp
void order_checks(Suite& s);        // order.cpp
void argument_checks(Suite& s);     // arguments.cpp
void thread_checks(Suite& s);       // arguments.cpp

}  // namespace tilewright::bench
