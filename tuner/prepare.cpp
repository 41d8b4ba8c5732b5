// SPDX-License-Identifier: Apache-2.0
// From choices to one Kernel that serves every number of rows.
#include <algorithm>

#include <fmt/format.h>

#include <tilewright/error.h>

#include "jit/device.h"
#include "jit/kernel.h"
#include "templates/common/families.h"
#include "tuner/build/pool.h"
#include "tuner/engine_impl.h"
#include "tuner/task.h"

namespace tilewright {
namespace {

// Why a build is passed over; empty if it may be used. Rethrows what is no fault of the candidate. `last`: nothing else
// is left. `lasts`: whether the next process will find the same; a compiler that is missing may be there then.
std::string fault(const tuner::BinaryPtr& binary, std::exception_ptr error, bool last, bool& lasts) {
  lasts = true;
  if (!error) return last ? "" : tuner::unacceptable(binary->resources);  // a reference that spills is still right
  if (last) std::rethrow_exception(error);
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    lasts = e.code() != ErrorCode::unsupported;
    if (lasts && e.code() != ErrorCode::compile_failed) throw;
    return e.what();
  }
}

}  // namespace

std::string Engine::Impl::stored_for(const std::string& key, const Device& device) {
  std::string text;
  const auto add = [&](const std::string& what) { text += (text.empty() ? "" : ", ") + what; };
  if (auto row = store.find_choice(tuner::choice_key(device), key))
    add(fmt::format("the choice {} for {}", row->candidate.text(), device.name()));
  for (const Arch& arch : archs())
    if (auto list = store.find_list(tuner::prewarm_key(arch), key))
      add(fmt::format("a prewarm's {} candidates for {}", list->candidates.size(), arch.name));
  const std::vector<std::string> unread = store.unread();
  if (text.empty()) text = unread.empty() ? "nothing" : "nothing that could be read";
  for (const std::string& reason : unread) text += "; a store is not used: " + reason;
  for (const OtherVersion& v : tuner::other_versions(store)) text += "; " + v.text();
  return text;
}

void Engine::Impl::forbid_compiling(const Source& source, const std::string& key, const Device& device) {
  const std::string compiler = builder.compiler(device.arch());
  const std::string missing = fmt::format("no store has {} for {} on {}{}", source.name, key, device.arch().name,
                                          compiler.empty()    ? ""
                                          : device.arch().cpu ? " as " + compiler + " compiles it"
                                                              : " as NVRTC " + compiler + " compiles it");
  if (!options.compile)
    throw Error(ErrorCode::would_tune, "options.compile", "false",
                fmt::format("is set, and {}; stored for it: {}; prewarm it, or allow compiling", missing,
                            stored_for(key, device)));
  if (jit::capturing(device, nullptr))
    throw Error(ErrorCode::would_tune, "stream", "capturing",
                fmt::format("must not be capturing: {}; call prepare() before the capture", missing));
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
  Key key = tuner::outcome_key(device, builder.compiler(device.arch()));
  store.put_outcome(key, problem.text(), outcome, key.transcript());
}

jit::Watch Engine::Impl::watch(const Problem& problem, const Device& device) const {
  const auto name = [problem](const Candidate& candidate, std::int64_t rows) {
    return fmt::format("{}; {}", problem.with_rows(rows).text(), candidate.text());
  };
  jit::Watch watch;
  if (nvtx.push) watch.nvtx = nvtx, watch.range_name = name;
  if (options.log_launches)
    // A Kernel may outlive its Engine, and then says nothing.
    watch.launched = [log = std::weak_ptr(shared_log), name, where = device.name()](
                         const Candidate& candidate, std::int64_t rows, double microseconds) {
      if (const auto still = log.lock())
        still->launch(fmt::format("launch: {}; {}; {}", name(candidate, rows),
                                  microseconds > 0 ? fmt::format("{:.2f} us", microseconds) : "not timed", where));
    };
  return watch;
}

Kernel Engine::Impl::assemble(const Problem& problem, const Device& device) {
  if (const std::string why = only_reference(problem, device.arch()); !why.empty()) log.warn(why);
  std::vector<Candidate> faulty;
  int not_compiled = 0;
  for (;;) {
    tuner::RowTable table;
    {
      const Store::Reading reading(store);
      table = rows_for(problem, device, faulty);
    }
    std::vector<Source> sources;
    std::vector<std::string> keys;
    for (const RowCandidate& c : table.candidates) {
      const Problem listed = problem.with_rows(c.listed);
      sources.push_back(source(listed, device.arch(), c.candidate));
      keys.push_back(listed.text());
    }
    std::vector<std::exception_ptr> errors;
    std::vector<tuner::BinaryPtr> built = build_all(sources, keys, device, errors);
    const std::size_t known = faulty.size();
    for (std::size_t i = 0; i < built.size(); ++i) {
      const Candidate& candidate = table.candidates[i].candidate;
      const bool again = std::find(faulty.begin(), faulty.end(), candidate) != faulty.end();
      const bool last = again || candidate.family == families(problem.op(), device.arch()).back()->name();
      bool lasts = true;
      const std::string why = fault(built[i], errors[i], last, lasts);
      if (why.empty()) continue;
      faulty.push_back(candidate);
      if (!lasts) {
        log(LogLevel::info, fmt::format("{}: {} is passed over: {}", problem.text(), candidate.text(), why));
        continue;
      }
      // One warning is enough: what is wrong with a compiler is wrong with every candidate.
      const bool warn = !built[i] && ++not_compiled == 1;
      pass_over(problem.with_rows(table.candidates[i].listed), device, candidate, built[i].get(),
                warn ? LogLevel::warning : LogLevel::info, why);
    }
    if (faulty.size() > known) continue;
    if (not_compiled > 1)
      log(LogLevel::warning, fmt::format("{}: {} candidates in all did not compile and are passed over; the log at "
                                         "level info names each",
                                         problem.text(), not_compiled));
    tuner::RowModel model(problem, device.arch(), tuner::model_of(device));
    Kernel kernel = jit::make_kernel(device, tuner::serving_of(table, std::move(built), model), contract_for(problem),
                                     watch(problem, device));
    if (options.check_pointers) kernel.check_pointers(true);
    return kernel;
  }
}

}  // namespace tilewright
