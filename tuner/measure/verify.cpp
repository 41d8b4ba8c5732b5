// SPDX-License-Identifier: Apache-2.0
#include "tuner/measure/verify.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include <fmt/format.h>

#include <tilewright/error.h>

#include "tuner/measure/launch.h"

namespace tilewright::tuner {
namespace {

// Wider than any tile's row of an output, so that a kernel that ignores a bound lands in it.
constexpr std::size_t kGuard = 4096;
constexpr unsigned char kInputGuard = 0xc3;
// All-ones bytes are NaN in every float format, fp8 included; the other is an ordinary number, for code that skips NaN.
constexpr unsigned char kPoison[2] = {0xff, 0x5a};
// Inputs larger than twice this are compared at their ends only: reading 1 GB back per candidate would cost more than
// measuring it, and a changed weight fails the next comparison with the oracle anyway.
constexpr std::size_t kInputEnd = 8u << 20;

// The oracle is the better part of a CPU's search otherwise. Of one thread.
constexpr double kMostCpuOps = 8e9;

bool all_are(std::span<const std::byte> bytes, unsigned char value) {
  return std::all_of(bytes.begin(), bytes.end(), [=](std::byte b) { return b == std::byte{value}; });
}

std::int64_t rows_to_verify(const Task& task, const Device& device) {
  std::int64_t rows = task.verify_rows > 0 ? std::min(task.verify_rows, task.rows) : task.rows;
  if (!device.arch().cpu) return rows;
  const double each = task.ops / static_cast<double>(std::max<std::int64_t>(task.rows, 1));
  // Still one more than full tiles of some size.
  while (rows > 65 && rows % 2 == 1 && each * static_cast<double>(rows) > kMostCpuOps * device.sms())
    rows = rows / 2 + 1;
  return rows;
}

std::int64_t ragged(std::int64_t rows) {
  if (rows <= 2) return rows;
  if (rows <= 16) return rows - rows / 4;  // 4 -> 3, 8 -> 6, 16 -> 12: still of this bucket
  return rows / 4 + 3;
}

}  // namespace

void* Verifier::Guarded::data() const { return static_cast<char*>(memory.data()) + kGuard; }

Verifier::Verifier(const Task& task, const Device& device, const jit::BinaryPtr& oracle)
    : task_(task), device_(device), stream_(device) {
  const std::int64_t rows = rows_to_verify(task, device);
  // A caller's kernel may know one extent only, and some operations have but one.
  std::int64_t second = task.contract.op.empty() || task.contract.rows ? rows : ragged(rows);
  trials_.push_back(prepare(1, rows, kPoison[0]));
  trials_.push_back(prepare(2, second, kPoison[1]));
  if (oracle)
    for (Trial& trial : trials_) consult(trial, oracle);
}

Verifier::Trial Verifier::prepare(std::uint64_t seed, std::int64_t rows, unsigned char poison) {
  Trial t;
  t.seed = seed;
  t.rows = rows;
  t.poison = poison;
  for (const Buffer& b : task_.buffers) {
    Guarded g;
    g.bytes = bytes_at(b, rows);
    g.memory = jit::Memory(device_, g.bytes + 2 * kGuard);
    g.memory.fill(b.output ? poison : kInputGuard);
    if (!b.output) {
      std::vector<std::byte> content(g.bytes);
      if (b.fill) b.fill(content, seed);
      g.memory.upload(content, kGuard);
      t.inputs.push_back(std::move(content));
    }
    t.buffers.push_back(std::move(g));
  }
  return t;
}

std::vector<void*> Verifier::pointers(const Trial& trial) const {
  std::vector<void*> p;
  for (const Guarded& g : trial.buffers) p.push_back(g.data());
  return p;
}

void Verifier::consult(Trial& trial, const jit::BinaryPtr& oracle) {
  Kernel kernel = kernel_of(task_, device_, oracle);
  std::vector<void*> p = pointers(trial);
  std::vector<jit::Memory> outputs;
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (!task_.buffers[i].output) continue;
    outputs.emplace_back(device_, std::max<std::size_t>(1, trial.buffers[i].bytes * task_.oracle_scale));
    outputs.back().fill(kPoison[0]);  // what the oracle leaves out is NaN, and NaN never passes
    p[i] = outputs.back().data();
  }
  launch_over(task_, kernel, stream_.get(), p, trial.rows);
  stream_.synchronize();
  for (const jit::Memory& m : outputs) {
    std::size_t at = trial.expected.size();
    trial.expected.resize(at + m.size());
    m.download(std::span(trial.expected).subspan(at));
  }
}

std::vector<std::byte> Verifier::run(Trial& trial, const Kernel& kernel, std::string& bad) {
  for (std::size_t i = 0; i < trial.buffers.size(); ++i)
    if (task_.buffers[i].output) trial.buffers[i].memory.fill(trial.poison);
  launch_over(task_, kernel, stream_.get(), pointers(trial), trial.rows);
  stream_.synchronize();
  std::vector<std::byte> got, whole;
  for (std::size_t i = 0; i < trial.buffers.size(); ++i) {
    if (!task_.buffers[i].output) continue;
    const Guarded& g = trial.buffers[i];
    whole.resize(g.bytes + 2 * kGuard);
    g.memory.download(whole);
    std::span<const std::byte> all = whole;
    if (bad.empty() && !all_are(all.first(kGuard), trial.poison))
      bad = fmt::format("wrote before {}", task_.buffers[i].name);
    if (bad.empty() && !all_are(all.last(kGuard), trial.poison))
      bad = fmt::format("wrote behind {} ({} rows)", task_.buffers[i].name, trial.rows);
    got.insert(got.end(), whole.begin() + kGuard, whole.end() - kGuard);
  }
  return got;
}

std::string Verifier::changed_input(const Trial& trial) const {
  std::size_t input = 0;
  std::vector<std::byte> part;
  for (std::size_t i = 0; i < trial.buffers.size(); ++i) {
    if (task_.buffers[i].output) continue;
    const Guarded& g = trial.buffers[i];
    const std::vector<std::byte>& was = trial.inputs[input++];
    auto same = [&](std::size_t begin, std::size_t end) {  // of the whole allocation
      part.resize(end - begin);
      g.memory.download(part, begin);
      for (std::size_t at = begin; at < end; ++at) {
        bool guard = at < kGuard || at >= kGuard + g.bytes;
        if (part[at - begin] != (guard ? std::byte{kInputGuard} : was[at - kGuard])) return false;
      }
      return true;
    };
    std::size_t size = g.bytes + 2 * kGuard;
    bool kept = task_.buffers[i].scratch ? same(0, kGuard) && same(size - kGuard, size)
                : size <= 2 * kInputEnd  ? same(0, size)
                                         : same(0, kInputEnd) && same(size - kInputEnd, size);
    if (!kept) return fmt::format("changed its input {} or bytes beside it", task_.buffers[i].name);
  }
  return {};
}

void Verifier::restore(Trial& trial) {
  std::size_t input = 0;
  for (std::size_t i = 0; i < trial.buffers.size(); ++i) {
    if (task_.buffers[i].output) continue;
    trial.buffers[i].memory.fill(kInputGuard);
    trial.buffers[i].memory.upload(trial.inputs[input++], kGuard);
  }
}

Verdict Verifier::judge(Trial& trial, const Kernel& kernel, bool twice) {
  std::string bad;
  std::vector<std::byte> got = run(trial, kernel, bad);
  if (!bad.empty()) return {OutcomeKind::wrong, bad, 0};
  std::string why;
  if (task_.compare) why = task_.compare(got, trial.expected, trial.inputs, trial.rows);
  if (!why.empty()) return {OutcomeKind::wrong, fmt::format("seed {}, {} rows: {}", trial.seed, trial.rows, why), 0};
  double error = task_.worst_error ? task_.worst_error() : 0;
  if (twice) {
    std::vector<std::byte> again = run(trial, kernel, bad);
    if (!bad.empty()) return {OutcomeKind::wrong, bad, 0};
    auto differs = std::mismatch(got.begin(), got.end(), again.begin()).first;
    if (differs != got.end())
      return {OutcomeKind::wrong,
              fmt::format("a second run on the same inputs differs at output byte {}", differs - got.begin()), 0};
  }
  std::string input = changed_input(trial);
  if (!input.empty()) return {OutcomeKind::wrong, input, 0};
  return {OutcomeKind::measured, {}, error};
}

Verdict Verifier::check(const jit::BinaryPtr& binary) {
  try {
    std::optional<Kernel> kernel;
    try {
      kernel = kernel_of(task_, device_, binary);
    } catch (const Error& e) {
      // The launch plan is beyond this device's limits: nothing was launched.
      return {e.code() == ErrorCode::invalid_argument ? OutcomeKind::pruned : OutcomeKind::failed, e.what(), 0};
    }
    double error = 0;
    for (std::size_t i = 0; i < trials_.size(); ++i) {
      Verdict v = judge(trials_[i], *kernel, i + 1 == trials_.size());
      if (v.kind != OutcomeKind::measured) {
        restore(trials_[i]);  // it may have written anywhere, and the next candidate must not be blamed
        return v;
      }
      error = std::max(error, v.error);
    }
    return {OutcomeKind::measured, {}, error};
  } catch (const Error& e) {
    // Most launch errors leave the context usable; an illegal address does not, and then every later call fails.
    device_.synchronize();
    return {OutcomeKind::failed, e.what(), 0};
  }
}

}  // namespace tilewright::tuner
