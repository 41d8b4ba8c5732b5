// SPDX-License-Identifier: Apache-2.0
// From choices to one Kernel that serves every number of rows.
#include <algorithm>

#include <fmt/format.h>

#include <tilewright/error.h>

#include "jit/device.h"
#include "jit/kernel.h"
#include "templates/families.h"
#include "tuner/engine_impl.h"
#include "tuner/pool.h"
#include "tuner/task.h"

namespace tilewright {
namespace {

// Buckets of one problem on their way to a binary: its choices are tried in order.
struct Slot {
  Problem problem;
  tuner::Choices choices;
  int source = -1;  // of this round; -1: already has its binary
  tuner::BinaryPtr binary;

  const Candidate& candidate() const { return choices.current().candidate; }
};

// Same text, plan and options: the same binary. Cheaper than a key, and enough within one call.
bool same_source(const Source& a, const Source& b) {
  return a.text == b.text && a.entry == b.entry && a.plan == b.plan && a.options == b.options;
}

// Why a build is passed over; empty if it may be used. Rethrows what is no fault of the candidate.
std::string fault(const tuner::BinaryPtr& binary, std::exception_ptr error, tuner::Choices& choices) {
  if (!error) {
    const std::string why = tuner::unacceptable(binary->resources);
    return why.empty() || choices.last() ? "" : why;  // a reference that spills is still right
  }
  if (choices.last()) std::rethrow_exception(error);
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::compile_failed) throw;
    return e.what();
  }
}

// One Source per distinct kernel that the open slots want next, and the text of a problem that wants it.
std::vector<Source> wanted(Engine::Impl& engine, const Arch& arch, std::vector<Slot>& slots,
                           std::vector<std::string>& keys) {
  std::vector<Source> sources;
  for (Slot& slot : slots) {
    slot.source = -1;
    if (slot.binary) continue;
    Source s = engine.source(slot.problem, arch, slot.candidate());
    auto found = std::find_if(sources.begin(), sources.end(), [&](const Source& t) { return same_source(s, t); });
    slot.source = static_cast<int>(found - sources.begin());
    if (found != sources.end()) continue;
    sources.push_back(std::move(s));
    keys.push_back(slot.problem.text());
  }
  return sources;
}

// `by_bucket`: the slot of each bucket.
Kernel join(const Device& device, const std::vector<Slot>& slots, std::span<const int> by_bucket, Contract contract) {
  std::vector<tuner::BinaryPtr> binaries;
  std::vector<int> binary_of;
  std::vector<Candidate> candidates;
  for (const int index : by_bucket) {
    const Slot& slot = slots[static_cast<std::size_t>(index)];
    const auto found = std::find(binaries.begin(), binaries.end(), slot.binary);
    binary_of.push_back(static_cast<int>(found - binaries.begin()));
    if (found == binaries.end()) binaries.push_back(slot.binary);
    candidates.push_back(slot.candidate());
  }
  return jit::make_kernel(device, binaries, binary_of, std::move(contract), std::move(candidates));
}

}  // namespace

std::string Engine::Impl::stored_for(const std::string& key, const Device& device) {
  std::string text;
  const auto add = [&](const std::string& what) { text += (text.empty() ? "" : ", ") + what; };
  if (auto row = store.find_choice(tuner::choice_key(device), key))
    add(fmt::format("the choice {} for {}", row->candidate.text(), device.name()));
  for (const Arch& arch : archs())
    if (auto row = store.find_choice(tuner::prewarm_key(arch), key))
      add(fmt::format("a prewarm's {} candidates for {}",
                      std::count(row->environment.begin(), row->environment.end(), '\n'), arch.name));
  const std::vector<std::string> unread = store.unread();
  if (text.empty()) text = unread.empty() ? "nothing" : "nothing that could be read";
  for (const std::string& reason : unread) text += "; a store is not used: " + reason;
  return text;
}

void Engine::Impl::forbid_compiling(const Source& source, const std::string& key, const Device& device) {
  const std::string compiler = builder.compiler();
  const std::string missing = fmt::format("no store has {} for {} on {}{}", source.name, key, device.arch().name,
                                          compiler.empty() ? "" : " as NVRTC " + compiler + " compiles it");
  if (!options.compile)
    throw Error(ErrorCode::would_tune, "options.compile", "false",
                fmt::format("{}; stored for it: {}; prewarm it, or allow compiling", missing, stored_for(key, device)));
  if (jit::capturing(device, nullptr))
    throw Error(ErrorCode::would_tune, "stream", "capturing",
                fmt::format("{}; call prepare() before the capture", missing));
}

std::vector<tuner::BinaryPtr> Engine::Impl::build_all(const std::vector<Source>& sources,
                                                      const std::vector<std::string>& keys, const Device& device,
                                                      std::vector<std::exception_ptr>& errors) {
  const Arch& arch = device.arch();
  std::vector<tuner::BinaryPtr> binaries(sources.size());
  errors.assign(sources.size(), nullptr);
  std::vector<std::size_t> missing;
  {
    const Store::Reading reading(store);
    for (std::size_t i = 0; i < sources.size(); ++i) {
      binaries[i] = builder.find(sources[i], arch, &device);
      if (!binaries[i]) missing.push_back(i);
    }
  }
  if (missing.empty()) return binaries;
  forbid_compiling(sources[missing.front()], keys[missing.front()], device);
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
                             const Binary* binary, LogLevel level, const std::string& why) {
  log(level, fmt::format("{}: {} is passed over: {}", problem.text(), candidate.text(), why));
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
  std::vector<int> by_bucket;
  {
    const Store::Reading reading(store);
    for (std::int64_t rows : kBuckets) {
      // A problem whose rows are fixed is the same in every bucket.
      if (Problem bucket = problem.with_rows(rows); slots.empty() || !(slots.back().problem == bucket)) {
        tuner::Choices order = choices(bucket, device);
        slots.push_back({std::move(bucket), std::move(order), -1, nullptr});
      }
      by_bucket.push_back(static_cast<int>(slots.size()) - 1);
    }
  }
  int not_compiled = 0;
  for (bool open = true; open;) {
    open = false;
    std::vector<std::exception_ptr> errors;
    std::vector<std::string> keys;
    const std::vector<Source> sources = wanted(*this, device.arch(), slots, keys);
    const std::vector<tuner::BinaryPtr> built = build_all(sources, keys, device, errors);
    for (Slot& slot : slots) {
      if (slot.source < 0) continue;
      std::size_t s = static_cast<std::size_t>(slot.source);
      std::string why = fault(built[s], errors[s], slot.choices);
      if (why.empty()) {
        slot.binary = built[s];
        continue;
      }
      // One warning is enough: what is wrong with a compiler is wrong with every candidate.
      const bool warn = !built[s] && ++not_compiled == 1;
      pass_over(slot.problem, device, slot.candidate(), built[s].get(), warn ? LogLevel::warning : LogLevel::info, why);
      slot.choices.next();
      open = true;
    }
  }
  if (not_compiled > 1)
    log(LogLevel::warning, fmt::format("{}: {} candidates in all did not compile and are passed over; the log at level "
                                       "info names each",
                                       problem.text(), not_compiled));
  Kernel kernel = join(device, slots, by_bucket, contract_for(problem));
  if (options.check_pointers) kernel.check_pointers(true);
  return kernel;
}

}  // namespace tilewright
