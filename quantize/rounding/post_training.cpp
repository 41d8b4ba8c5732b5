// SPDX-License-Identifier: Apache-2.0
// Rounding to nearest, GPTQ and AWQ, of strips of 64 rows at a time: rows of a weight do not depend on each other.
// Within a strip everything is transposed, [column][row], so that the innermost loops run over rows.
#include <tilewright/error.h>
#include <tilewright/post_training.h>
#include <tilewright/text.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <string>

#include "quantize/rounding/hessian.h"
#include "quantize/rounding/job.h"
#include "support/must_be.h"
#include "support/threads.h"

namespace tilewright {

using namespace quantize;

namespace {

constexpr int kClipSteps = 10;  // of 5 % each

// 64 rows of a job. Columns are in the job's order.
class Strip {
 public:
  Strip(const Job& job, std::int64_t index)
      : job_(job),
        first_(index * kStrip),
        rows_(std::min(kStrip, job.layer.n - first_)),
        w_(at(padded() * kStrip)),
        values_(w_.size()),
        codes_(w_.size()),
        rules_(at(job.groups)) {
    for (std::int64_t i = 0; i < k(); ++i) {
      const std::int64_t column = job.order[at(i)];
      if (!job.dead.empty() && job.dead[at(column)]) continue;
      const float factor = job.multiply.empty() ? 1.0f : job.multiply[at(column)];
      for (std::int64_t r = 0; r < rows_; ++r) w_[at(i * kStrip + r)] = source(r, column) * factor;
    }
  }

  void quantize() {
    if (job_.static_groups || !job_.factor) choose_all();
    if (!job_.factor) {
      for (std::int64_t i = 0; i < k(); ++i) round(i, w_.data() + i * kStrip);
      return;
    }
    d_.resize(w_.size());
    sums_.resize(w_.size());
    summed_.assign(at(tiles_in(k())), 0);
    for (std::int64_t tile = 0; tile < tiles_in(k()); ++tile) correct_and_round(tile);
  }

  // The rows' errors and, if wanted, energies, added up in order. GPTQ has its errors already: with R R^T = H + the
  // diagonal that was added, d H d^T = |d R|^2 - added |d|^2.
  void measure(double& error, double* energy) {
    std::vector<double> d(w_.size()), scratch(at(kTileSize));
    const auto sum = [&](double& to, auto&& of) {
      for (std::int64_t i = 0; i < k(); ++i)
        for (std::int64_t r = 0; r < rows_; ++r) d[at(job_.order[at(i)] * kStrip + r)] = of(i, r);
      double all[kStrip] = {};
      add_errors(job_.hessian.tiles, d.data(), scratch.data(), all);
      to = std::accumulate(all, all + rows_, 0.0);
    };
    if (job_.factor)
      error = std::max(std::accumulate(errors_, errors_ + rows_, 0.0), 0.0);
    else
      sum(error, [&](std::int64_t i, std::int64_t r) { return difference(i, r, values_[at(i * kStrip + r)]); });
    if (energy)
      sum(*energy, [&](std::int64_t i, std::int64_t r) { return static_cast<double>(source(r, job_.order[at(i)])); });
  }

  void store(QuantizedLinear& to) const {
    const int item = job_.rounder.item_bytes(), bits = to.format.info().integer_grid->bits;
    const std::int64_t block = job_.rounder.row_scaled() ? k() : to.format.block();
    for (std::int64_t r = 0; r < rows_; ++r) {
      const std::int64_t row = first_ + r;
      for (std::int64_t i = 0; i < k(); ++i) {
        const std::int64_t place = job_.places[at(i)];
        put_code(to.data.data() + row * k() * bits / 8, place * bits, codes_[at(i * kStrip + r)]);
        to.values[at(row * k() + job_.order[at(i)])] = values_[at(i * kStrip + r)];
      }
      for (std::int64_t b = 0; b < k() / block; ++b)
        std::memcpy(to.scales.data() + (row * (k() / block) + b) * item,
                    rules_[at(b * block / job_.group)].items + r * item, at(item));
    }
  }

 private:
  // Of at most eight bits, which may be in two bytes, into bits that are zero.
  static void put_code(std::byte* row, std::int64_t bit, unsigned code) {
    const unsigned placed = code << bit % 8;
    row[bit / 8] |= std::byte(placed & 255);
    if (placed > 255) row[bit / 8 + 1] |= std::byte(placed >> 8);
  }
  std::int64_t k() const { return job_.layer.k; }
  std::int64_t padded() const { return tiles_in(k()) * kTile; }
  float source(std::int64_t r, std::int64_t column) const { return job_.layer.w[at((first_ + r) * k() + column)]; }
  // The layer's w less what a stored value stands for there.
  double difference(std::int64_t i, std::int64_t r, float value) const {
    const std::int64_t column = job_.order[at(i)];
    const double stands_for = static_cast<double>(value);
    return static_cast<double>(source(r, column)) -
           (job_.multiply.empty() ? stands_for : stands_for / static_cast<double>(job_.multiply[at(column)]));
  }

  struct Range {
    float low[kStrip] = {}, high[kStrip] = {};
    void include(const float* w) {
      for (std::int64_t r = 0; r < kStrip; ++r) {
        if (w[r] < low[r]) low[r] = w[r];
        if (w[r] > high[r]) high[r] = w[r];
      }
    }
  };
  void choose(std::int64_t group, const Range& range) {
    if (job_.rounder.choose(range.low, range.high, rules_[at(group)])) return;
    for (std::int64_t r = 0; r < rows_; ++r)
      if (!std::isfinite(rules_[at(group)].scale[r])) job_.refuse_scale(first_ + r, group, range.low[r], range.high[r]);
  }
  void choose_all() {
    std::vector<Range> ranges(at(job_.groups));
    for (std::int64_t i = 0; i < k(); ++i) ranges[at(job_.group_of(i))].include(w_.data() + i * kStrip);
    for (std::int64_t g = 0; g < job_.groups; ++g) {
      choose(g, ranges[at(g)]);
      if (job_.clip) choose_clipped(g, ranges[at(g)]);
    }
  }
  // Only without act-order: columns are w's.
  void choose_clipped(std::int64_t g, const Range& range) {
    const std::int64_t first = g * job_.group, count = std::min(job_.group, k() - first);
    std::vector<double> d(at(count * kStrip));
    double best[kStrip];
    Range chosen = range;
    for (int step = 0; step <= kClipSteps; ++step) {
      Range clipped = range;
      for (std::int64_t r = 0; r < kStrip; ++r) {
        const float most = std::max(-range.low[r], range.high[r]) * (1 - 0.05f * static_cast<float>(step));
        clipped.low[r] = std::max(range.low[r], -most);
        clipped.high[r] = std::min(range.high[r], most);
      }
      choose(g, clipped);
      for (std::int64_t i = 0; i < count; ++i) {
        round(first + i, w_.data() + (first + i) * kStrip);
        for (std::int64_t r = 0; r < rows_; ++r)
          d[at(i * kStrip + r)] = difference(first + i, r, values_[at((first + i) * kStrip + r)]);
      }
      double error[kStrip] = {};
      for (std::int64_t i = 0; i < count; ++i) {
        double sum[kStrip] = {};  // of H[i, j] d[j] over j <= i, those left of the diagonal twice
        for (std::int64_t j = 0; j <= i; ++j) {
          const double h = job_.hessian.tiles.at(first + i, first + j) * (i == j ? 1 : 2);
          for (std::int64_t r = 0; r < kStrip; ++r) sum[r] += h * d[at(j * kStrip + r)];
        }
        for (std::int64_t r = 0; r < kStrip; ++r) error[r] += sum[r] * d[at(i * kStrip + r)];
      }
      for (std::int64_t r = 0; r < kStrip; ++r)
        if (step == 0 || error[r] < best[r])
          best[r] = error[r], chosen.low[r] = clipped.low[r], chosen.high[r] = clipped.high[r];
    }
    choose(g, chosen);
  }

  void round(std::int64_t i, const float* w) {
    job_.rounder.round(rules_[at(job_.group_of(i))], w, codes_.data() + i * kStrip, values_.data() + i * kStrip);
  }

  // R[p, j] at [p % 64][j % 64]
  const double* factor_row(std::int64_t p, std::int64_t tile) const {
    return job_.factor->tile(p / kTile, tile) + p % kTile * kTile;
  }
  double pivot(std::int64_t i) const { return factor_row(i, i / kTile)[i % kTile]; }

  // sums_[j] = sum of d[p] R[p, j] over the tiles of p that are before `end`, for the columns j of a tile.
  double* sums_before(std::int64_t end, std::int64_t tile) {
    double* sums = sums_.data() + tile * kTileSize;
    for (std::int64_t& done = summed_[at(tile)]; done < end; ++done)
      add_product(job_.factor->tile(done, tile), d_.data() + done * kTileSize, kTile, sums);
    return sums;
  }

  void correct_and_round(std::int64_t tile) {
    double* sums = sums_before(tile, tile);
    for (std::int64_t i = tile * kTile; i < std::min((tile + 1) * kTile, k()); ++i) {
      if (!job_.static_groups && i % job_.group == 0) choose_corrected(i);
      const float* w = w_.data() + i * kStrip;
      double* d = d_.data() + i * kStrip;
      float corrected[kStrip];
      for (std::int64_t r = 0; r < kStrip; ++r)
        corrected[r] = static_cast<float>(static_cast<double>(w[r]) + sums[i % kTile * kStrip + r] / pivot(i));
      round(i, corrected);
      for (std::int64_t r = 0; r < kStrip; ++r) {
        d[r] = static_cast<double>(w[r]) - static_cast<double>(values_[at(i * kStrip + r)]);
        const double scaled = sums[i % kTile * kStrip + r] + d[r] * pivot(i);
        errors_[r] += scaled * scaled - job_.added * d[r] * d[r];
      }
      const double* row = factor_row(i, tile);
      const std::int64_t next = i % kTile + 1;
      add_outer(row + next, d, kTile - next, sums + next * kStrip);
    }
  }

  // The rule of the group that begins with column i, from its weights as corrected by the columns before i. Those are
  // w + v, where v R = sums within the group: what the paper's U adds to them one column after the other.
  void choose_corrected(std::int64_t i) {
    const std::int64_t end = std::min(i + job_.group, k()), tile = i / kTile;
    Range range;
    if (i == 0) {  // nothing to correct
      for (std::int64_t j = 0; j < end; ++j) range.include(w_.data() + j * kStrip);
      return choose(0, range);
    }
    correction_.assign(at((tiles_in(end) - tile) * kTileSize), 0.0);
    double* v = correction_.data();
    for (std::int64_t t = tile; t < tiles_in(end); ++t) {
      const double* sums = t == tile ? sums_.data() + tile * kTileSize : sums_before(tile, t);
      std::copy_n(sums, kTileSize, v + (t - tile) * kTileSize);
      if (t > tile && i % kTile)  // d is still 0 from i on
        add_product(job_.factor->tile(tile, t), d_.data() + tile * kTileSize, kTile, v + (t - tile) * kTileSize);
    }
    for (std::int64_t p = i; p < end; ++p) {
      double* solved = v + (p - tile * kTile) * kStrip;
      float corrected[kStrip];
      double taken[kStrip];
      for (std::int64_t r = 0; r < kStrip; ++r) {
        solved[r] /= pivot(p);
        taken[r] = -solved[r];
        corrected[r] = static_cast<float>(static_cast<double>(w_[at(p * kStrip + r)]) + solved[r]);
      }
      range.include(corrected);
      for (std::int64_t t = p / kTile; t < tiles_in(end); ++t) {
        const double* row = factor_row(p, t);
        const std::int64_t j = std::max(p + 1, t * kTile), count = std::min(end, (t + 1) * kTile) - j;
        if (count > 0) add_outer(row + j % kTile, taken, count, v + (j - tile * kTile) * kStrip);
      }
    }
    choose(i / job_.group, range);
  }

  const Job& job_;
  std::int64_t first_, rows_;
  std::vector<float> w_, values_;
  std::vector<std::uint8_t> codes_;
  std::vector<Rule> rules_;
  std::vector<double> d_, sums_, correction_;
  std::vector<std::int64_t> summed_;
  double errors_[kStrip] = {};
};

// Quantizes all strips and measures them.
QuantizedLinear run(const Job& job) {
  QuantizedLinear q(job.rounder.format());
  q.n = job.layer.n, q.k = job.layer.k, q.group = job.group;
  q.data.resize(at(q.format.stream_bytes(0, q.n, q.k)));
  q.scales.resize(at(q.format.stream_bytes(1, q.n, q.k)));
  q.values.resize(at(q.n * q.k));
  std::vector<double> errors(at(job.strips())), energies(errors.size());
  parallel(job.threads, job.strips(), [&](std::int64_t i) {
    Strip strip(job, i);
    strip.quantize();
    strip.store(q);
    strip.measure(errors[at(i)], &energies[at(i)]);
  });
  q.error = std::accumulate(errors.begin(), errors.end(), 0.0);
  q.energy = std::accumulate(energies.begin(), energies.end(), 0.0);
  return q;
}

// The least error's exponent, and the columns' factors that it gives.
std::pair<double, std::vector<float>> search_exponent(const Job& job, const AwqOptions& options) {
  const std::int64_t k = job.layer.k, strips = job.strips();
  const std::int64_t looked_at =
      options.search_rows ? std::min(strips, (options.search_rows + kStrip - 1) / kStrip) : strips;
  std::pair<double, std::vector<float>> best;
  double least = 0;
  for (int step = 0; step < options.grid; ++step) {
    const double exponent = static_cast<double>(step) / options.grid;
    std::vector<double> s(at(k));
    for (std::int64_t j = 0; j < k; ++j)
      s[at(j)] =
          std::max(std::pow(job.hessian.magnitudes[at(j)] / static_cast<double>(job.hessian.rows), exponent), 1e-4);
    const auto [low, high] = std::minmax_element(s.begin(), s.end());
    const double mean = std::sqrt(*low * *high);
    Job trial = job;
    for (double v : s) trial.multiply.push_back(static_cast<float>(v / mean));
    std::vector<double> errors(at(looked_at));
    parallel(job.threads, looked_at, [&](std::int64_t i) {
      Strip strip(trial, i * strips / looked_at);
      strip.quantize();
      strip.measure(errors[at(i)], nullptr);
    });
    const double error = std::accumulate(errors.begin(), errors.end(), 0.0);
    if (step == 0 || error < least) least = error, best = {exponent, std::move(trial.multiply)};
  }
  return best;
}

}  // namespace

QuantizedLinear round_to_nearest(const LinearWeight& layer, const Hessian& hessian, const QuantizeTarget& target) {
  return run(Job(layer, hessian, target));
}

QuantizedLinear gptq(const LinearWeight& layer, const Hessian& hessian, const QuantizeTarget& target,
                     const GptqOptions& options) {
  GptqJob gptq(layer, hessian, target, options);
  Job& job = gptq.job;
  std::optional<Tiles> factor_of;
  gptq.damp([&](double damping) {
    factor_of = factor(job.hessian, job.order, gptq.mean, damping, job.threads);
    return factor_of.has_value();
  });
  job.factor = &*factor_of;
  job.added = gptq.damping * gptq.mean;
  QuantizedLinear q = run(job);
  gptq.finish(q);
  return q;
}

QuantizedLinear awq(const LinearWeight& layer, const Hessian& hessian, const QuantizeTarget& target,
                    const AwqOptions& options) {
  Job job(layer, hessian, target);
  if (options.grid < 1 || options.grid > 1000)
    throw must_be(fmt::format("{} grid", job.name), options.grid, "1 to 1000");
  if (options.search_rows < 0)
    throw must_be(fmt::format("{} search_rows", job.name), options.search_rows, "1 or more, or 0 for all");
  auto [exponent, scales] = search_exponent(job, options);
  job.multiply = scales;
  job.clip = options.clip;
  QuantizedLinear q = run(job);
  q.input_scales = std::move(scales);
  q.exponent = exponent;
  return q;
}

}  // namespace tilewright
