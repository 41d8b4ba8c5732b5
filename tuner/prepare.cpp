// SPDX-License-Identifier: Apache-2.0
// From choices to one Kernel that serves every number of rows.
#include <algorithm>

#include <fmt/format.h>

#include <tilewright/error.h>

#include "jit/device.h"
#include "templates/families.h"
#include "tuner/engine_impl.h"
#include "tuner/pool.h"
#include "tuner/task.h"

namespace tilewright {
namespace {

// A bucket on its way to a binary: its choices are tried in order.
struct Slot {
  Problem problem;
  std::vector<Choice> choices;
  std::size_t next = 0;
  int source = -1;  // of this round; -1: already has its binary
  tuner::BinaryPtr binary;

  const Candidate& candidate() const { return choices[next].candidate; }
  bool last() const { return next + 1 == choices.size(); }
};

// Same text, plan and options: the same binary. Cheaper than a key, and enough within one call.
bool same_source(const Source& a, const Source& b) {
  return a.text == b.text && a.entry == b.entry && a.plan == b.plan && a.options == b.options;
}

// Why a build is passed over; empty if it may be used. Rethrows what is no fault of the candidate.
std::string fault(const tuner::BinaryPtr& binary, std::exception_ptr error, bool last) {
  if (!error) return last ? "" : tuner::unacceptable(binary->resources);  // a reference that spills is still right
  if (last) std::rethrow_exception(error);
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::compile_failed) throw;
    return e.what();
  }
}

// One Source per distinct kernel that the open slots want next.
std::vector<Source> wanted(Engine::Impl& engine, const Arch& arch, std::vector<Slot>& slots) {
  std::vector<Source> sources;
  for (Slot& slot : slots) {
    slot.source = -1;
    if (slot.binary) continue;
    Source s = engine.source(slot.problem, arch, slot.candidate());
    auto found = std::find_if(sources.begin(), sources.end(), [&](const Source& t) { return same_source(s, t); });
    slot.source = static_cast<int>(found - sources.begin());
    if (found == sources.end()) sources.push_back(std::move(s));
  }
  return sources;
}

Kernel join(const Device& device, const std::vector<Slot>& slots, Contract contract) {
  std::vector<Binary> binaries;
  std::vector<const Binary*> taken;
  std::vector<int> by_bucket;
  for (const Slot& slot : slots) {
    auto found = std::find(taken.begin(), taken.end(), slot.binary.get());
    by_bucket.push_back(static_cast<int>(found - taken.begin()));
    if (found != taken.end()) continue;
    taken.push_back(slot.binary.get());
    binaries.push_back(*slot.binary);
  }
  return Kernel(device, binaries, by_bucket, std::move(contract));
}

}  // namespace

void Engine::Impl::forbid_compiling(const Source& source, const Device* device) const {
  if (!options.compile)
    throw Error(ErrorCode::would_tune, "options.compile", "false",
                fmt::format("{} is in no cache; prewarm it, or allow compiling", source.name));
  if (device && jit::capturing(*device, nullptr))
    throw Error(ErrorCode::would_tune, "stream", "capturing",
                fmt::format("{} would have to be compiled; call prepare() before the capture", source.name));
}

std::vector<tuner::BinaryPtr> Engine::Impl::build_all(const std::vector<Source>& sources, const Arch& arch,
                                                      const Device* device, std::vector<std::exception_ptr>& errors) {
  std::vector<tuner::BinaryPtr> binaries(sources.size());
  errors.assign(sources.size(), nullptr);
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    binaries[i] = builder.find(builder.key(sources[i], arch));
    if (!binaries[i]) missing.push_back(i);
  }
  if (missing.empty()) return binaries;
  forbid_compiling(sources[missing.front()], device);
  tuner::Pool pool(std::min(tuner::thread_count(options.jobs), static_cast<int>(missing.size())));
  std::vector<std::future<tuner::Built>> builds;
  for (std::size_t i : missing) builds.push_back(pool.submit([&, i] { return builder.build(sources[i], arch); }));
  for (std::size_t j = 0; j < missing.size(); ++j) {
    try {
      binaries[missing[j]] = builds[j].get().binary;
    } catch (...) {
      errors[missing[j]] = std::current_exception();
    }
  }
  return binaries;
}

void Engine::Impl::pass_over(const Problem& problem, const Device& device, const Candidate& candidate,
                             const Binary* binary, const std::string& why) {
  log(binary ? LogLevel::info : LogLevel::warning,
      fmt::format("{}: {} is passed over: {}", problem.text(), candidate.text(), why));
  // Written down, so that the next process neither loads nor compiles it to find out again.
  Outcome outcome;
  outcome.candidate = candidate;
  outcome.kind = binary ? OutcomeKind::rejected : OutcomeKind::not_compiled;
  outcome.detail = why;
  if (binary) outcome.resources = binary->resources;
  Key key = tuner::outcome_key(device, builder.compiler());
  store.put_outcome(key, problem.text(), outcome, key.transcript());
}

Kernel Engine::Impl::assemble(const Problem& problem, const Device& device) {
  std::vector<Slot> slots;
  for (std::int64_t rows : kBuckets) {
    Slot slot{problem.with_rows(rows), {}, 0, -1, nullptr};
    slot.choices = choices(slot.problem, device);
    slots.push_back(std::move(slot));
  }
  for (bool open = true; open;) {
    open = false;
    std::vector<std::exception_ptr> errors;
    std::vector<tuner::BinaryPtr> built =
        build_all(wanted(*this, device.arch(), slots), device.arch(), &device, errors);
    for (Slot& slot : slots) {
      if (slot.source < 0) continue;
      std::size_t s = static_cast<std::size_t>(slot.source);
      std::string why = fault(built[s], errors[s], slot.last());
      if (why.empty()) {
        slot.binary = built[s];
        continue;
      }
      pass_over(slot.problem, device, slot.candidate(), built[s].get(), why);
      ++slot.next;
      open = true;
    }
  }
  Kernel kernel = join(device, slots, contract_for(problem));
  if (options.check_pointers) kernel.check_pointers(true);
  return kernel;
}

}  // namespace tilewright
