// SPDX-License-Identifier: Apache-2.0
// The warpgroup kernels of every pair of formats, at ragged shapes and with NaNs, infinities and extreme values.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <set>
#include <tuple>

#include "bench/suite/pairs.h"
#include "bench/suite/trial.h"

namespace tilewright::bench {
namespace {

struct Pick {
  std::size_t problem;
  Candidate candidate;
  std::future<Kernel> kernel;
};

// Knob values that a candidate has, but for those that follow from others.
std::vector<std::string> values_of(const Candidate& c) {
  std::vector<std::string> values;
  for (const auto& [knob, value] : c.knobs)
    if (knob != "stages") values.push_back(fmt::format("{}={}", knob, value));
  return values;
}

// What a pair of formats is tested with: the first and last of some lists, then whatever has a knob's value that none
// before has, in random order, so that pairs differ in what they combine.
class Picker {
 public:
  Picker(std::vector<Pick>& picks, unsigned seed) : picks_(picks), random_(seed) {}
  void must(std::size_t problem, const Candidate& c) {
    for (const Pick& p : picks_)
      if (p.problem == problem && p.candidate == c) return;
    for (const std::string& v : values_of(c)) seen_.insert(v);
    picks_.push_back({problem, c, {}});
  }
  void offer(std::size_t problem, const std::vector<Candidate>& all) {
    for (const Candidate& c : all) pool_.emplace_back(problem, c);
  }
  void cover() {
    std::shuffle(pool_.begin(), pool_.end(), random_);
    for (;;) {
      std::size_t best = 0, most = 0;
      for (std::size_t i = 0; i < pool_.size(); ++i) {
        std::size_t fresh = 0;
        for (const std::string& v : values_of(pool_[i].second)) fresh += !seen_.count(v);
        if (fresh > most) best = i, most = fresh;
      }
      if (most == 0) return;
      must(pool_[best].first, pool_[best].second);
    }
  }

 private:
  std::vector<Pick>& picks_;
  std::mt19937 random_;
  std::vector<std::pair<std::size_t, Candidate>> pool_;
  std::set<std::string> seen_;
};

// A problem of a pair, its sizes, and the kernels that are on their way.
struct Case {
  Problem problem;
  std::vector<std::int64_t> ms;
  std::future<Kernel> oracle;
  std::int64_t rows() const { return *std::max_element(ms.begin(), ms.end()); }
};
struct Work {
  Pair pair;
  std::vector<Case> cases;
  std::vector<Pick> picks;
};

// `available`: gains the values of every list.
Work plan_work(Suite& s, const Pair& pair, int which, std::set<std::string>& available) {
  Work work{pair, {}, {}};
  const bool one = s.extent() == Extent::one;
  // Tiles are whole in both extents; the others' last panels are of a stage of their own, their last rows of a tile.
  const std::int64_t n = one ? (pair.tiles ? 192 : 200) : pair.tiles ? 576 : 584;
  const std::int64_t k = one ? (pair.tiles ? 1024 : 9 * pair.panel()) : pair.tiles ? kWholeK : 17 * pair.panel();
  const std::vector<std::int64_t> ms =
      one ? std::vector<std::int64_t>{3, 77} : std::vector<std::int64_t>{1, 3, 16, 17, 64, 77, 130, 257, 1000};
  // The workspace is for Stream-K.
  const std::string workspace = pair.by_row() ? "" : Pair::kWorkspace;
  const Problem problem =
      Problem::parse(pair.text(which, n, k, true) + workspace + (which % 2 ? " weights=constant" : ""));
  work.cases.push_back({problem, ms, {}});
  Picker picker(work.picks, static_cast<unsigned>(which));
  std::vector<std::vector<Candidate>> lists;
  for (std::int64_t m : ms) lists.push_back(legal(s, problem, m, "wgmma"));
  const auto must = [&](std::size_t list, bool last) {
    if (!lists[list].empty()) picker.must(0, last ? lists[list].back() : lists[list].front());
  };
  if (one) {
    must(0, false), must(1, false), must(1, true);
    return work;
  }
  must(0, false), must(4, false), must(8, false);  // m = 1, 64, 1000: what prepare() takes
  if (s.extent() == Extent::quick) return work;
  const Problem deep =
      Problem::parse(pair.text(which + 1, pair.tiles ? 192 : 200, pair.tiles ? 16384 : 16384 + pair.panel(), false));
  work.cases.push_back({deep, {1, 17, 130}, {}});
  must(static_cast<std::size_t>(which) % lists.size(), true);
  const auto offer = [&](std::size_t at, const std::vector<Candidate>& list) {
    picker.offer(at, list);
    for (const Candidate& c : list)
      for (const std::string& v : values_of(c)) available.insert(v);
  };
  for (const auto& list : lists) offer(0, list);
  for (std::int64_t m : work.cases[1].ms) {
    const std::vector<Candidate> list = legal(s, deep, m, "wgmma");
    if (m == 1 && !list.empty()) picker.must(1, list.front());
    offer(1, list);
  }
  // Partial sums of few tokens, with the smallest tiles, so that blocks may have whole ones too.
  const auto must_share = [&](std::size_t at, const std::vector<Candidate>& list) {
    const Candidate* smallest = nullptr;
    const auto strips = [](const Candidate& c) { return c.at("strips") * c.at("warpgroups_n"); };
    for (const Candidate& c : list)
      if (option(c, "schedule") != 0 && c.at("warpgroups_k") > 1 && (!smallest || strips(c) < strips(*smallest)))
        smallest = &c;
    if (smallest) picker.must(at, *smallest);
  };
  must_share(0, lists[static_cast<std::size_t>(which) % 3]);
  picker.cover();
  if (pair.tiles) {
    // Tiles from a queue: more than two waves of them, of one block to a multiprocessor or of three, and of formats
    // that do not take long to encode.
    if (pair.w.name() != "q4_0" && pair.w.name() != "int4_g128") return work;
    const Problem many = Problem::parse(pair.text(which, which % 3 == 2 ? 64 * 816 : 64 * 272, 1024, true) + workspace +
                                        (which % 2 ? "" : " weights=constant"));
    work.cases.push_back({many, {1, 13, 16}, {}});
    for (std::int64_t m : work.cases[2].ms) {
      const std::vector<Candidate> list = legal(s, many, m, "wgmma");
      const auto first = std::find_if(list.begin(), list.end(), queued);
      const auto last = std::find_if(list.rbegin(), list.rend(), queued);
      if (first != list.end()) picker.must(2, *first), picker.must(2, *last);
    }
    return work;
  }
  // Blocks that take more than one tile, and store finished ones asynchronously (no y of four bytes).
  const Problem wide = Problem::parse(pair.text(which + (which % 3 == 1), 8840, 4 * pair.panel(), true) + workspace);
  work.cases.push_back({wide, {16, 130, 1000}, {}});
  must_share(2, legal(s, wide, 16, "wgmma"));
  const std::vector<Candidate> list = legal(s, wide, 1000, "wgmma");
  for (const bool swapped : {false, true}) {
    const auto found = std::find_if(list.begin(), list.end(), [&](const Candidate& c) {
      return (option(c, "swapped") != 0) == swapped && option(c, "schedule") == 0 && c.at("split_k") == 1;
    });
    if (found != list.end()) picker.must(2, *found);
  }
  return work;
}

// Elements of x that are no numbers. Row 1 has a NaN and so has the last, which has it in the last column; row 2 an
// infinity, where x has one. False: nor has it a NaN.
constexpr std::int64_t kOddRows = 19;
bool put_oddities(Trial& t, bool& infinite) {
  infinite = false;
  const std::string_view x = t.gemm().x.name();
  if (t.gemm().x_from) return false;  // what becomes of them is quantizing's
  const std::int64_t k = t.gemm().k;
  const auto poke = [&](const char* stream, std::int64_t at, int bytes, std::uint32_t bits) {
    std::memcpy(t.content(stream).data() + at * bytes, &bits, static_cast<std::size_t>(bytes));
  };
  const auto streams = t.gemm().x.info().streams;
  const bool row_codes = t.gemm().x.block() > 1 && streams.back().scope == Scope::row;
  if (x == "int8_row" || x == "int8_asym_row" || row_codes) {  // a row's item begins with its scale
    const std::int64_t words = streams[1].bytes / 4;
    poke("x.scales", words, 4, 0x7fc00000u), poke("x.scales", (kOddRows - 1) * words, 4, 0x7fc00000u);
    return true;
  }
  if (x.starts_with("int8")) return false;
  if (x == "q8_1") {  // scales of blocks are the first halves of 36 bytes
    const std::int64_t row = k / 32 * 18;
    poke("x.data", row + k / 64 * 18, 2, 0x7e00u), poke("x.data", kOddRows * row - 18, 2, 0x7e00u);
    return true;
  }
  const int bytes = t.gemm().x.info().streams[0].bytes / t.gemm().x.block();
  const std::uint32_t nan = x == "f16" ? 0x7e00u : x == "bf16" ? 0x7fc0u : 0x7fu;
  poke("x.data", k + k / 2 + 3, bytes, nan);
  poke("x.data", kOddRows * k - 1, bytes, nan);
  infinite = bytes == 2;
  if (infinite) poke("x.data", 2 * k + 5, bytes, x == "f16" ? 0x7c00u : 0x7f80u);
  return true;
}
// To the nearest that f holds.
float rounded(Format f, float v) {
  std::byte code[4];
  f.info().encode(&v, 1, 1, {code, nullptr, nullptr}, 0);
  f.info().decode({code, nullptr, nullptr}, 1, 1, &v);
  return v;
}

// NaN fills its token's row and no other; what an infinity leaves is infinite or NaN, and which of them is certain
// where unpacking is exact.
std::string judge_oddities(const Gemm& g, bool infinite, const std::vector<float>& got,
                           const std::vector<float>& expected, const std::vector<float>& bounds) {
  const bool exact = g.w == g.x || g.w.name() == "q4_0";
  for (std::int64_t i = 0; i < kOddRows; ++i)
    for (std::int64_t j = 0; j < g.n; ++j) {
      const std::size_t at = static_cast<std::size_t>(i * g.n + j);
      const float v = expected[at], y = got[at];
      std::string want;
      if (i == 1 || i == kOddRows - 1) {
        if (!std::isnan(v)) return fmt::format("the oracle's y[{},{}] = {}, expected NaN", i, j, v);
        if (!std::isnan(y)) want = "NaN";
      } else if (i == 2 && infinite) {
        if (g.act != Activation::none) continue;  // may make a number of an infinity, and differ in how
        if (exact ? !(y == v || (std::isnan(v) && std::isnan(y))) : std::isfinite(y)) want = fmt::format("{}", v);
      } else if (std::isinf(y) && rounded(g.y, v + std::copysign(bounds[at], y)) == y) {
        continue;  // y has no such number
      } else if (!(std::fabs(y - v) <= bounds[at])) {
        want = fmt::format("{} +- {}", v, bounds[at]);
      }
      if (!want.empty()) return fmt::format("y[{},{}] = {}, expected {}", i, j, y, want);
    }
  return {};
}

// Data that kernels do not meet in the tuner.
struct Hard {
  const char* name;
  float x, w;            // deviations
  float x_peak, w_peak;  // one element per row, in deviations; 0: none
  bool equal;            // all elements are the deviation
};
constexpr Hard kHard[] = {{"outliers", 1.0f, 0.02f, 700.0f, 60.0f, false},
                          {"equal", 1.0f, 0.0625f, 0, 0, true},
                          {"tiny scales", 1.0f, 2e-6f, 0, 0, false}};

void put_hard(Trial& t, const Hard& hard, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const std::int64_t k = t.gemm().k, rows = 64;
  const auto matrix = [&](std::int64_t count, float deviation, float peak) {
    std::vector<float> values(static_cast<std::size_t>(count * k));
    // Values of sixteen rows are enough to tell rows apart, and encoders are what takes time.
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = hard.equal                             ? deviation
                  : i < static_cast<std::size_t>(17 * k) ? deviation * normal(random)
                                                         : values[i - static_cast<std::size_t>(17 * k)];
    if (peak > 0)
      for (std::int64_t r = 0; r < count; ++r)
        values[static_cast<std::size_t>(r * k + r * 37 % k)] = (r % 2 ? -peak : peak) * deviation;
    return values;
  };
  t.put_x(matrix(rows, hard.x, hard.x_peak), rows);
  t.put_w(matrix(t.gemm().n, hard.w, hard.w_peak));
}

void do_work(Suite& s, Work& work, unsigned seed, std::set<std::string>& covered, int& rejected,
             std::string& rejections) {
  const std::int64_t step = work.pair.step();
  std::vector<std::optional<Kernel>> kernels(work.picks.size());
  for (std::size_t c = 0; c < work.cases.size(); ++c) {
    Case& one = work.cases[c];
    std::optional<Trial> trial;
    s.check("wgmma oracle of " + one.problem.text(), [&] {
      trial.emplace(s, one.problem, one.rows(), one.oracle.get());
      trial->fill(1), trial->upload(), trial->consult(one.rows());
      return std::string();
    });
    if (!trial) continue;
    for (std::size_t i = 0; i < work.picks.size(); ++i) {
      Pick& pick = work.picks[i];
      if (pick.problem != c) continue;
      s.check(fmt::format("{} of {}", pick.candidate.text(), one.problem.text()), [&]() -> std::string {
        const Kernel kernel = pick.kernel.get();
        if (!unacceptable(kernel).empty()) {
          ++rejected;
          rejections +=
              fmt::format("  {}: {} of {}\n", unacceptable(kernel), pick.candidate.text(), one.problem.text());
          throw Skipped{fmt::format("{}: the library would not launch it", unacceptable(kernel))};
        }
        kernels[i] = kernel;
        for (std::int64_t m : one.ms) {
          const std::string why = trial->judge(kernel, m, 0, 0, m == 3 || m == 17 || m == 77);
          if (!why.empty()) return why;
        }
        // Strides beyond the rows: of y such that rows start anywhere, and at 16 bytes.
        const std::int64_t large = *std::max_element(
            one.ms.begin(), one.ms.end(), [](auto a, auto b) { return (a > 130 ? 0 : a) < (b > 130 ? 0 : b); });
        for (const auto& [m, x, y] : std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>>{
                 {one.ms[1], step, 1}, {large, 3 * step, 8}, {large, 0, 3}}) {
          const std::string why = trial->judge(kernel, m, x, y);
          if (!why.empty()) return why;
        }
        const std::string why = trial->unchanged();
        if (why.empty())
          for (const std::string& v : values_of(pick.candidate)) covered.insert(v);
        return why;
      });
    }
    if (c > 0 || s.extent() == Extent::one) continue;
    const auto every = [&](const char* what, bool numbers, const std::function<std::string(const Kernel&)>& body) {
      s.check(fmt::format("wgmma on {}: {}", what, one.problem.text()), [&]() -> std::string {
        trial->upload(), trial->consult(64, numbers);
        for (std::size_t i = 0; i < work.picks.size(); ++i)
          if (work.picks[i].problem == c && kernels[i])
            if (const std::string why = body(*kernels[i]); !why.empty())
              return fmt::format("{}: {}", work.picks[i].candidate.text(), why);
        return {};
      });
    };
    bool infinite = false;
    if (put_oddities(*trial, infinite))
      every("NaN and Inf", false, [&](const Kernel& kernel) {
        return trial->judge(kernel, kOddRows, 0, 0, true,
                            [&](const auto& got, const auto& expected, const auto& bounds) {
                              return judge_oddities(trial->gemm(), infinite, got, expected, bounds);
                            });
      });
    for (const Hard& hard : kHard) {
      put_hard(*trial, hard, seed);
      every(hard.name, true, [&](const Kernel& kernel) {
        const std::string why = trial->judge(kernel, 5);
        return why.empty() ? trial->judge(kernel, 64) : why;
      });
    }
  }
}

}  // namespace

void wgmma_checks(Suite& s) {
  if (!s.device().arch().wgmma) {
    fmt::print("wgmma: {} has no warpgroup matrix instructions\n", s.device().name());
    return;
  }
  std::vector<Pair> pairs = wgmma_pairs(s);
  if (s.extent() == Extent::one) {  // of each x one plain and one coded w
    std::set<std::string> met;
    std::erase_if(pairs, [&](const Pair& p) {
      return p.fast || !met.insert(fmt::format("{} {} {}", p.x.name(), p.tiles, p.from.has_value())).second;
    });
  }
  if (!s.pairs().empty())
    std::erase_if(pairs,
                  [&](const Pair& p) { return p.text(0, 64, kWholeK, false).find(s.pairs()) == std::string::npos; });
  Ahead ahead(jobs_of(s));
  std::vector<Work> all;
  std::set<std::string> available, covered;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    all.push_back(plan_work(s, pairs[i], static_cast<int>(i), available));
    Work& work = all.back();
    std::vector<Task> tasks;
    for (Case& c : work.cases) {
      tasks.push_back(s.engine().task(c.problem.with_rows(c.rows()), s.device().arch()));
      c.oracle = ahead.submit(oracle_of(s, tasks.back()));
    }
    for (Pick& pick : work.picks) pick.kernel = ahead.submit(kernel_of(s, tasks[pick.problem], pick.candidate));
  }
  int rejected = 0, picks = 0;
  std::string rejections;
  for (std::size_t i = 0; i < all.size(); ++i) {
    do_work(s, all[i], static_cast<unsigned>(i), covered, rejected, rejections);
    picks += static_cast<int>(all[i].picks.size());
  }
  fmt::print(
      "wgmma: {} pairs of formats, {} kernels, {} of them not judged, since the library would not launch them\n{}",
      all.size(), picks, rejected, rejections);
  if (s.extent() != Extent::full || !s.pairs().empty()) return;
  s.check("wgmma: every knob's values were judged", [&] {
    std::string missing;
    for (const std::string& v : available)
      if (!covered.count(v)) missing += fmt::format(" {}", v);
    if (missing.empty()) fmt::print("wgmma: knobs judged: {}\n", fmt::join(covered, " "));
    return missing.empty() ? std::string() : "none of" + missing;
  });
}

}  // namespace tilewright::bench
