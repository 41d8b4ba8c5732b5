// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <span>
#include <thread>

#include "bench/suite/matrix.h"
#include "bench/suite/trial.h"

namespace tilewright::bench {

int jobs_of(Suite& s) {
  if (const int asked = s.engine().options().jobs) return asked;
  return std::min(16, static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
}

std::string first_wrong(Suite& s, std::int64_t count, const std::function<std::string(std::int64_t)>& check) {
  std::atomic<std::int64_t> next{0}, first{count};
  std::mutex mutex;
  std::string wrong;
  const auto work = [&] {
    // Ascending, so all before one that is wrong have been taken.
    for (std::int64_t i; (i = next++) < first;) {
      std::string why = check(i);
      if (why.empty()) continue;
      std::lock_guard lock(mutex);
      if (i < first) first = i, wrong = std::move(why);
    }
  };
  std::vector<std::future<void>> threads;
  for (int t = 0; t < jobs_of(s); ++t) threads.push_back(std::async(std::launch::async, work));
  for (std::future<void>& t : threads) t.get();
  return wrong;
}

std::function<Kernel()> kernel_of(Suite& s, const Task& task, const Candidate& candidate) {
  return [&s, one = task, candidate]() mutable {
    one.candidates = {candidate};
    return s.engine().prepare(one, s.device());
  };
}
std::function<Kernel()> oracle_of(Suite& s, const Task& task) {
  return [&s, one = task]() mutable {
    one.source = [oracle = one.oracle](const Candidate&) { return oracle(); };
    one.candidates = {Candidate{"oracle", {}}};
    return s.engine().prepare(one, s.device());
  };
}

std::string unacceptable(const Kernel& kernel) {
  const Resources& r = kernel.resources(1);
  return r.spill_bytes > 0 ? "spills" : r.serialized ? "serialized" : "";
}

Trial::Trial(Suite& s, const Problem& problem, std::int64_t rows, Kernel oracle)
    : suite_(s),
      gemm_(*problem.as<Gemm>()),
      task_(s.engine().task(problem.with_rows(rows), s.device().arch())),
      rows_(rows),
      oracle_(std::move(oracle)),
      stream_(s.device()) {
  for (const Buffer& b : task_.buffers) {
    content_.emplace_back(b.output ? 0 : b.bytes);
    memory_.emplace_back(s.device(), b.output ? 1 : b.bytes + 2 * kGuard);
    memory_.back().fill(static_cast<unsigned char>(kInputGuard));
  }
  y_ = Memory(s.device(), 2 * kGuard + static_cast<std::size_t>(rows * (gemm_.n + kMostPad)) * 4);
}

void Trial::fill(std::uint64_t seed) {
  for (std::size_t i = 0; i < content_.size(); ++i)
    if (!task_.buffers[i].output && task_.buffers[i].fill) task_.buffers[i].fill(content_[i], seed);
}

void Trial::upload() {
  for (std::size_t i = 0; i < content_.size(); ++i)
    if (!content_[i].empty()) memory_[i].upload(content_[i], kGuard);
}

void Trial::adopt() {
  for (std::size_t i = 0; i < content_.size(); ++i)
    if (!content_[i].empty()) memory_[i].download(content_[i], kGuard);
}

void Trial::put(const std::string& name, const std::vector<std::byte>& bytes) {
  std::vector<std::byte>& to = content(name);
  std::copy_n(bytes.begin(), std::min(bytes.size(), to.size()), to.begin());
}

namespace {

// A tensor-wide scale, where the format has one, follows from the values.
void encode(Format f, const std::vector<float>& values, std::int64_t rows, std::int64_t cols,
            const MutableOperand& to) {
  float amax = 0;
  for (float v : values) amax = std::max(amax, std::fabs(v));
  if (f.info().global_for) *to.global = f.info().global_for(amax);
  f.info().encode(values.data(), rows, cols, to, 0);
}

}  // namespace

void Trial::put_x(const std::vector<float>& values, std::int64_t rows) {
  std::vector<std::vector<std::byte>> streams;
  const MutableOperand to = streams_of(gemm_.x_stored(), rows, gemm_.k, streams);
  encode(gemm_.x_stored(), values, rows, gemm_.k, to);
  if (gemm_.global == Global::div && to.global) *to.global = 1 / *to.global;
  for (std::size_t i = 0; i < streams.size(); ++i)
    put(fmt::format("x.{}", name_of(gemm_.x_stored().info().streams[i].stream)), streams[i]);
}

void Trial::put_w(const std::vector<float>& values) {
  std::vector<std::vector<std::byte>> streams, packed;
  const MutableOperand plain = streams_of(gemm_.w, gemm_.n, gemm_.k, streams);
  encode(gemm_.w, values, gemm_.n, gemm_.k, plain);
  if (gemm_.packing == Packing::none) {
    if (gemm_.global == Global::div && plain.global) *plain.global = 1 / *plain.global;
    for (std::size_t i = 0; i < streams.size(); ++i)
      put(fmt::format("w.{}", name_of(gemm_.w.info().streams[i].stream)), streams[i]);
    return;
  }
  packed.reserve(3);
  MutableOperand tiles;
  for (const StreamName stream : kStreams) {
    packed.emplace_back(static_cast<std::size_t>(packed_bytes(gemm_, stream)));
    tiles.set(stream, packed.back().empty() ? nullptr : packed.back().data());
  }
  pack_weights(gemm_, plain, tiles);
  if (gemm_.global == Global::div && tiles.global) *tiles.global = 1 / *tiles.global;
  for (const StreamName stream : kStreams) {
    const std::string name = fmt::format("w.{}", name_of(stream));
    if (has(name)) put(name, packed[static_cast<std::size_t>(stream)]);
  }
}

GemmArgs Trial::arguments(std::int64_t m) {
  std::vector<void*> pointers;
  for (std::size_t i = 0; i < memory_.size(); ++i)
    pointers.push_back(static_cast<char*>(task_.buffers[i].output ? y_.data() : memory_[i].data()) + kGuard);
  GemmArgs args;
  const std::vector<std::byte> bytes = task_.arguments(pointers, m);
  std::memcpy(&args, bytes.data(), sizeof args);
  args.alpha = alpha_, args.beta = beta_;
  return args;
}

void Trial::consult(std::int64_t rows, bool numbers) {
  const std::size_t cells = static_cast<std::size_t>(rows * gemm_.n);
  Memory out(suite_.device(), cells * 8);
  out.fill(0xff);
  GemmArgs args = arguments(rows);
  args.y = out.data();
  oracle_.launch(stream_.get(), args);
  stream_.synchronize();
  values_.resize(cells), bounds_.resize(cells);
  out.download(std::as_writable_bytes(std::span(values_)));
  out.download(std::as_writable_bytes(std::span(bounds_)), cells * 4);
  for (std::size_t i = 0; numbers && i < cells; ++i)
    if (!std::isfinite(values_[i]) || !std::isfinite(bounds_[i]))
      throw Error(ErrorCode::invalid_argument, "oracle", fmt::format("{} +- {}", values_[i], bounds_[i]),
                  "must be a number");
}

std::string Trial::judge(const Kernel& kernel, std::int64_t m, std::int64_t pad_x, std::int64_t pad_y, bool twice,
                         const Judge& own) {
  const std::size_t element = static_cast<std::size_t>(gemm_.y.stream_bytes(0, 1, 1));
  const std::size_t row = static_cast<std::size_t>(gemm_.n) * element;
  const std::size_t stride = static_cast<std::size_t>(gemm_.n + pad_y) * element;
  const std::size_t used = static_cast<std::size_t>(m - 1) * stride + row;
  GemmArgs args = arguments(m);
  Memory padded, padded_scales;
  if (pad_x) {
    padded = pad(0, m, pad_x);
    args.x.data = padded.data();
    if (const auto& streams = gemm_.x_stored().info().streams; streams.size() > 1 && streams[1].scope == Scope::block) {
      padded_scales = pad(1, m, pad_x);
      args.x.scales = padded_scales.data();
    }
    args.ldx = gemm_.k + pad_x;
  }
  if (pad_y) args.ldy = gemm_.n + pad_y;
  const std::string at = fmt::format("m={}{}{}", m, pad_x ? fmt::format(" ldx=k+{}", pad_x) : "",
                                     pad_y ? fmt::format(" ldy=n+{}", pad_y) : "");
  std::vector<std::byte> whole(used + 2 * kGuard), got(static_cast<std::size_t>(m) * row), first;
  for (int run = 0; run < (twice ? 2 : 1); ++run) {
    const std::byte poison = run ? std::byte{0x5a} : std::byte{0xff};
    y_.fill(static_cast<unsigned char>(poison));
    kernel.launch(stream_.get(), args);
    stream_.synchronize();
    y_.download(whole);
    const auto untouched = [&](std::size_t begin, std::size_t end) {
      return std::all_of(whole.begin() + static_cast<std::ptrdiff_t>(begin),
                         whole.begin() + static_cast<std::ptrdiff_t>(end), [&](std::byte b) { return b == poison; });
    };
    if (!untouched(0, kGuard)) return at + ": wrote before y";
    if (!untouched(kGuard + used, whole.size())) return at + ": wrote behind y";
    for (std::int64_t r = 0; r < m; ++r) {
      const std::size_t from = kGuard + static_cast<std::size_t>(r) * stride;
      std::memcpy(got.data() + static_cast<std::size_t>(r) * row, whole.data() + from, row);
      if (r + 1 < m && !untouched(from + row, from + stride))
        return fmt::format("{}: wrote between rows {} and {}", at, r, r + 1);
    }
    if (run == 0) {
      const std::string why = compare(got, m, own);
      if (!why.empty()) return fmt::format("{}: {}", at, why);
      first = got;
    } else if (got != first) {
      return at + ": a second run on the same inputs differs";
    }
  }
  return {};
}

std::string Trial::unchanged() {
  std::vector<std::byte> now;
  for (std::size_t i = 0; i < content_.size(); ++i) {
    if (content_[i].empty()) continue;
    now.resize(content_[i].size() + 2 * kGuard);
    memory_[i].download(now);
    for (std::size_t b = 0; b < now.size(); ++b) {
      if (b == kGuard && task_.buffers[i].scratch) b += content_[i].size();
      const bool inside = b >= kGuard && b < kGuard + content_[i].size();
      if (now[b] != (inside ? content_[i][b - kGuard] : kInputGuard))
        return fmt::format("changed its input {} or bytes beside it", task_.buffers[i].name);
    }
  }
  return {};
}

std::size_t Trial::index(std::string_view name) const {
  for (std::size_t i = 0; i < task_.buffers.size(); ++i)
    if (task_.buffers[i].name == name) return i;
  throw Error(ErrorCode::invalid_argument, "buffer", std::string(name), "must be one of the task's");
}

Memory Trial::pad(int stream, std::int64_t m, std::int64_t by) {
  const std::size_t row = static_cast<std::size_t>(gemm_.x_stored().stream_bytes(stream, 1, gemm_.k));
  const std::size_t stride = static_cast<std::size_t>(gemm_.x_stored().stream_bytes(stream, 1, gemm_.k + by));
  std::vector<std::byte> bytes(static_cast<std::size_t>(m) * stride, std::byte{0xff});
  const std::vector<std::byte>& x = content(stream == 0 ? "x.data" : "x.scales");
  for (std::size_t r = 0; r < static_cast<std::size_t>(m); ++r)
    std::memcpy(bytes.data() + r * stride, x.data() + r * row, row);
  Memory out(suite_.device(), bytes.size());
  out.upload(bytes);
  return out;
}

std::string Trial::compare(const std::vector<std::byte>& got, std::int64_t m, const Judge& own) {
  const std::size_t cells = static_cast<std::size_t>(m * gemm_.n);
  if (values_.size() < cells) return "the oracle was not asked for so many rows";
  if (own) {
    std::vector<float> decoded(cells);
    gemm_.y.info().decode({got.data(), nullptr, nullptr}, m, gemm_.n, decoded.data());
    return own(decoded, values_, bounds_);
  }
  std::vector<std::byte> expected(cells * 8);
  std::memcpy(expected.data(), values_.data(), cells * 4);
  std::memcpy(expected.data() + cells * 4, bounds_.data(), cells * 4);
  return task_.compare(got, expected, {}, m);
}

namespace {

// With a spread over the ranked list, so that every region of the space is met.
Task sample_of(const Engine& engine, const Device& device, const std::string& text, int most) {
  Task task = engine.task(Problem::parse(text), device.arch());
  std::vector<Candidate> sample;
  const std::size_t n = task.candidates.size(), step = std::max<std::size_t>(1, n / static_cast<std::size_t>(most));
  for (std::size_t i = 0; i < n; i += step) sample.push_back(task.candidates[i]);
  task.candidates = sample;
  return task;
}

}  // namespace

std::string judged_on_host(Suite& s, const Problem& problem, const Kernel& kernel,
                           std::vector<std::vector<std::byte>> bytes, std::size_t in_place, std::size_t with) {
  constexpr std::size_t kBehind = 64;
  constexpr std::byte kUntouched{0xa5};
  Task task;
  problem.operation().describe(problem, task);
  std::vector<Memory> memory;
  std::vector<void*> pointers;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    memory.emplace_back(s.device(), bytes[i].size() + kBehind);
    memory.back().fill(std::to_integer<unsigned char>(kUntouched));
    if (!task.buffers[i].output) memory.back().upload(bytes[i]);
    pointers.push_back(memory.back().data());
  }
  if (in_place) pointers[in_place] = pointers[with];
  OwnedStream stream(s.device());
  kernel.launch(stream.get(), task.arguments(pointers, problem.rows()), problem.rows(), problem.cols());
  stream.synchronize();
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (!task.buffers[i].output) continue;
    std::vector<std::byte> got(bytes[i].size() + kBehind);
    memory[in_place && i == in_place ? with : i].download(got);
    if (std::any_of(got.end() - kBehind, got.end(), [](std::byte b) { return b != kUntouched; }))
      return fmt::format("wrote behind {}", task.buffers[i].name);
    std::copy(got.begin(), got.end() - kBehind, bytes[i].begin());
  }
  const std::vector<std::span<std::byte>> buffers(bytes.begin(), bytes.end());
  return problem.operation().check_on_host(problem, task, buffers).wrong;
}

std::string candidates_verify(Engine& engine, const Device& device, const std::string& text, int most) {
  const Task task = sample_of(engine, device, text, most);
  TunePolicy policy;
  policy.exhaustive = policy.retune = true;
  policy.cold_bytes = 1e6;
  const TuneReport report = engine.tune(task, device, policy);
  int measured = 0;
  for (const Outcome& o : report.outcomes) {
    if (o.kind != OutcomeKind::measured && o.kind != OutcomeKind::rejected)
      return fmt::format("{}: {}: {}", o.candidate.text(), to_string(o.kind), o.detail);
    measured += o.kind == OutcomeKind::measured;
  }
  return measured ? "" : "no candidate was measured";
}

Verdicts::Verdicts(Suite& s, std::vector<std::string> texts, int most)
    : texts_(std::move(texts)), verdicts_(texts_.size()) {
  constexpr int kEngines = 6;
  Options options = s.engine().options();
  options.jobs = std::max(2, jobs_of(s) / 2);
  for (int t = 0; t < std::min(kEngines, static_cast<int>(texts_.size())); ++t)
    threads_.push_back(std::async(std::launch::async, [this, options, device = s.device(), most] {
      Engine engine(options);
      for (std::size_t i; !given_up_ && (i = next_++) < texts_.size();) {
        try {
          verdicts_[i] = candidates_verify(engine, device, texts_[i], most);
        } catch (const std::exception& e) {
          verdicts_[i] = e.what();
        }
      }
    }));
}
Verdicts::~Verdicts() {
  given_up_ = true;
  for (std::future<void>& t : threads_)
    if (t.valid()) t.wait();
}
void Verdicts::check(Suite& s) {
  for (std::future<void>& t : threads_) t.get();
  for (std::size_t i = 0; i < texts_.size(); ++i) s.check("candidates of " + texts_[i], [&] { return verdicts_[i]; });
}

}  // namespace tilewright::bench
