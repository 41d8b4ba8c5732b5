// SPDX-License-Identifier: Apache-2.0
#include "bench/rivals/cudnn.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include <tilewright/error.h>

#include "bench/conv/conv_check.h"
#include "bench/rivals/cudnn_backend.h"
#include "bench/rivals/cudnn_graph.h"

namespace tilewright::bench {
namespace {

using namespace cudnn;

constexpr std::size_t kFinalists = 2;  // of each variant, timed in every round
constexpr double kClose = 1.05;        // of the fastest, to be a finalist

// Tries a graph's plans and keeps the fastest.
struct Trials {
  struct Timed {
    double microseconds;
    std::string name;
    double error;
    Replay replay;
    std::shared_ptr<const Descriptor> plan;
  };

  bool out_of_time() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() > seconds;
  }

  void try_plan(const Descriptor& config, const std::string& name) {
    const Rotation& rotation = graph.inputs.rotation;
    const auto plan = std::make_shared<const Descriptor>(graph.plan_of(config));
    graph.poison();
    graph.launch(*plan, 0);  // loads its code, too
    graph.cuda.synchronize();
    const double error = graph.error_now();
    if (!(error <= graph.variant.tolerance)) {
      wrong.push_back(fmt::format("{} is off by {:.3g}", name, error));
      return;
    }
    const double once = graph.cuda.microseconds([&] { graph.launch(*plan, rotation.copies() - 1); });
    ++tried;
    // One that is far behind is not worth a graph.
    if (!timed.empty() && once > 2 * timed.front().microseconds + 20) return;
    Replay replay(graph.cuda, rotation.launches(once), [&](int i) { graph.launch(*plan, i); });
    const double us = replay.time();
    timed.push_back({us, name, error, std::move(replay), plan});
    std::sort(timed.begin(), timed.end(),
              [](const Timed& p, const Timed& q) { return p.microseconds < q.microseconds; });
    if (timed.size() > kFinalists) timed.pop_back();
  }

  void run(const std::vector<std::string>& only) {
    const std::vector<Descriptor> configs = graph.configs();
    offered = static_cast<int>(configs.size());
    for (const Descriptor& config : configs) {
      if (out_of_time() && !timed.empty()) {
        late = true;
        return;
      }
      const std::string name = fmt::format("{}, {}", graph.variant.name, name_of(config));
      if (!only.empty() && std::find(only.begin(), only.end(), name) == only.end()) continue;
      try {
        try_plan(config, name);
      } catch (const Error& e) {
        if (e.code() != ErrorCode::unsupported) graph.cuda.synchronize();  // throws if the device is lost
        refused.push_back(fmt::format("{}: {}", name, e.what()));
      }
    }
  }

  Graph& graph;
  const double seconds;
  const std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
  int offered = 0, tried = 0;
  bool late = false;
  std::vector<std::string> wrong = {}, refused = {};
  std::vector<Timed> timed = {};  // fastest first
};

}  // namespace

CudnnRival::CudnnRival(const Cudnn& library, const Cuda& cuda, const Device& device, const Engine& engine,
                       std::string_view what, const Conv& conv, double cold_bytes, double seconds,
                       const std::vector<std::string>& only) {
  const Cudnn::Impl& lib = library.impl();
  lib.must(lib.set_stream(lib.handle, cuda.stream()), "cudnnSetStream");
  std::vector<Conv> forms{conv};
  // Plans for padding that differs before and behind are rare; a program pads with a pass of its own then.
  if (!(conv.pad.lo == conv.pad.hi)) {
    Conv padded = conv;
    const std::vector<ConvAxis> axes = axes_of(conv);
    for (std::size_t i = 0; i < axes.size(); ++i) padded.in.at[i] += axes[i].before + axes[i].behind;
    padded.pad = {};
    forms.push_back(padded);
  }
  // False if it has no plan; notes_ then says why.
  const auto add = [&](const Variant& variant, const Inputs& inputs) {
    try {
      auto graph = std::make_unique<Graph>(lib, cuda, variant, inputs);
      Trials trials{.graph = *graph, .seconds = seconds};
      trials.run(only);
      for (const std::string& note : trials.wrong) notes_.push_back(note + " and was left out");
      if (trials.late)
        notes_.push_back(fmt::format("{}: out of time after {} of {} plans", variant.name,
                                     trials.tried + static_cast<int>(trials.wrong.size() + trials.refused.size()),
                                     trials.offered));
      if (trials.timed.empty()) notes_.push_back(fmt::format("{}: none of {} plans", variant.name, trials.offered));
      if (!trials.refused.empty())
        notes_.push_back(fmt::format("{}: {} of {} plans do not run; the last, {}", variant.name, trials.refused.size(),
                                     trials.offered, trials.refused.back()));
      for (Trials::Timed& t : trials.timed) {
        if (t.microseconds > kClose * trials.timed.front().microseconds) continue;
        const auto launch = [from = graph.get(), plan = t.plan](int i) { from->launch(*plan, i); };
        graph->plans.push_back(t.plan);
        times_.push_back({t.name, trials.tried, t.error, {}, 0, std::move(t.replay), launch});
      }
      if (!trials.timed.empty()) graphs_.push_back(std::move(graph));
      return !trials.timed.empty();
    } catch (const Error& e) {
      if (e.code() != ErrorCode::unsupported) throw;
      notes_.push_back(fmt::format("{}: {}", variant.name, e.what()));
      return false;
    }
  };
  std::vector<std::vector<Variant>> left = variants(what);
  for (std::size_t form = 0; form < forms.size() && !left.empty(); ++form) {
    inputs_.push_back(std::make_unique<Inputs>(cuda, device, engine, what, forms[form], cold_bytes));
    std::erase_if(left, [&](const std::vector<Variant>& equals) {
      return std::any_of(equals.begin(), equals.end(), [&](Variant variant) {
        if (form > 0) variant.name += ", input padded before";
        return add(variant, *inputs_.back());
      });
    });
    if (graphs_.empty()) inputs_.clear();  // nothing refers to them
  }
}

CudnnRival::~CudnnRival() = default;

}  // namespace tilewright::bench
