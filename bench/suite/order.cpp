// SPDX-License-Identifier: Apache-2.0
// Launches that follow each other, each with the y of the one before, or its begin, as its x: blocks of the next begin
// while those before it run (LaunchPlan::overlap) and may read weights by then, but nothing else.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "bench/suite/pairs.h"
#include "bench/suite/trial.h"

namespace tilewright::bench {
namespace {

constexpr int kLaunches = 12, kRounds = 5;
constexpr int kOfFamily = 4;  // candidates

class Chain {
 public:
  Chain(Suite& s, const Task& task) : task_(task), stream_(s.device()) {
    std::vector<std::byte> first;
    for (const Buffer& b : task.buffers) {
      std::vector<std::byte> content(std::max<std::size_t>(b.bytes, 1));
      if (b.fill && !b.output) b.fill(content, 5);
      memory_.emplace_back(s.device(), content.size());
      memory_.back().upload(content);
      if (b.name == "x.data") first = content;
      if (b.name == "x.data" || b.output) bytes_ = std::max(bytes_, content.size());
    }
    for (int i = 0; i <= kLaunches; ++i) steps_.emplace_back(s.device(), bytes_);
    steps_[0].upload(first);
  }

  // What the launches leave, waited for one by one or not before the last.
  std::vector<std::vector<std::byte>> run(const Kernel& kernel, bool one_by_one) {
    for (int i = 1; i <= kLaunches; ++i) steps_[static_cast<std::size_t>(i)].fill(0xff);
    for (std::size_t i = 0; i < kLaunches; ++i) {
      std::vector<void*> pointers;
      for (std::size_t b = 0; b < memory_.size(); ++b) {
        const std::string& name = task_.buffers[b].name;
        pointers.push_back(name == "x.data"          ? steps_[i].data()
                           : task_.buffers[b].output ? steps_[i + 1].data()
                                                     : memory_[b].data());
      }
      kernel.launch(stream_.get(), task_.arguments(pointers, task_.rows), task_.rows, task_.cols);
      if (one_by_one) stream_.synchronize();
    }
    stream_.synchronize();
    std::vector<std::vector<std::byte>> all;
    for (int i = 1; i <= kLaunches; ++i) {
      all.emplace_back(bytes_);
      steps_[static_cast<std::size_t>(i)].download(all.back());
    }
    return all;
  }

 private:
  const Task& task_;
  OwnedStream stream_;
  std::vector<Memory> memory_, steps_;
  std::size_t bytes_ = 0;  // of x or of y, whichever has more
};

std::string in_a_row(Suite& s, const Task& task, Format y, const Kernel& kernel) {
  if (const std::string why = unacceptable(kernel); !why.empty()) throw Skipped{why};
  Chain chain(s, task);
  const std::vector<std::vector<std::byte>> expected = chain.run(kernel, true);
  // Else nothing would be told apart: values that have died out, or grown beyond what y holds.
  std::vector<float> last(static_cast<std::size_t>(task.rows * task.cols));
  y.info().decode({expected.back().data(), nullptr, nullptr}, task.rows, task.cols, last.data());
  const auto [least, most] = std::minmax_element(last.begin(), last.end());
  if (!std::all_of(last.begin(), last.end(), [](float v) { return std::isfinite(v); }) || *least == *most)
    return "the last y is not of different numbers";
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<std::vector<std::byte>> got = chain.run(kernel, false);
    for (int i = 0; i < kLaunches; ++i)
      if (got[static_cast<std::size_t>(i)] != expected[static_cast<std::size_t>(i)])
        return fmt::format("round {}: launch {} gives other bytes", round, i);
  }
  return {};
}

}  // namespace

void order_checks(Suite& s) {
  struct Item {
    std::string name;
    Task task;
    Format y;
    std::future<Kernel> kernel;
  };
  std::vector<Item> items;
  Ahead ahead(jobs_of(s));
  const bool quick = s.extent() != Extent::full;
  for (const char* formats : {"x=f16 w=q4_0 y=f16 pack=tiles", "x=bf16 w=int4_g128 y=bf16 pack=tiles",
                              "x=f16 w=q6_k y=f16 pack=tiles", "x=f16 w=f16 y=f16", "x=f16 w=q8_0 y=f16"})
    for (int m : {1, 7, 16, 64, 200})
      for (int n : {1024, 4096})
        for (const char* weights : {"constant", "variable"}) {
          if ((quick || *weights == 'v') && n > 1024) continue;
          const Problem problem = Problem::parse(
              fmt::format("gemm {} m={} n={} k={} workspace=33554432 weights={}", formats, m, n, n, weights));
          const Task task = s.engine().task(problem, s.device().arch());
          std::map<std::string, int> met;
          for (const Candidate& c : legal(s, problem, m, ""))
            if (c.family != "reference" && met[c.family]++ < (quick ? 1 : kOfFamily))
              items.push_back({fmt::format("in a row, {}: {}", problem.text(), c.text()), task, problem.as<Gemm>()->y,
                               ahead.submit(kernel_of(s, task, c))});
        }
  // Tiles from a queue, whose word in the workspace each launch has to find as the one before it leaves it. One token,
  // so that the begin of y is an x.
  for (const char* formats : {"x=f16 w=q4_0 y=f16", "x=bf16 w=int4_g128 y=bf16"})
    for (int tiles : {272, 816}) {  // for one block to a multiprocessor; for up to three
      if (quick && tiles > 272) continue;
      const Problem problem = Problem::parse(
          fmt::format("gemm {} m=1 n={} k=1024 pack=tiles workspace=33554432 weights=constant", formats, 64 * tiles));
      const Task task = s.engine().task(problem, s.device().arch());
      int met = 0;
      for (const Candidate& c : legal(s, problem, 1, "wgmma"))
        if (queued(c) && met++ < (quick ? 1 : kOfFamily))
          items.push_back({fmt::format("in a row, {}: {}", problem.text(), c.text()), task, problem.as<Gemm>()->y,
                           ahead.submit(kernel_of(s, task, c))});
    }
  for (Item& item : items) s.check(item.name, [&] { return in_a_row(s, item.task, item.y, item.kernel.get()); });
}

}  // namespace tilewright::bench
