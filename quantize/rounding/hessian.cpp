// SPDX-License-Identifier: Apache-2.0
// Sums of x x^T, the errors that they give, and their triangular factor.
//
// GPTQ is usually written with U, the upper Cholesky factor of the inverse of H: H^-1 = U^T U. Here H = R R^T with R
// upper triangular, so U = R^-1, and neither an inverse nor a second factorization is needed. With D = w - q the
// paper's scaled errors are E = D R, and the weight in column i as corrected by the columns before it is
//   w_i + (sum over p < i of D_p R[p, i]) / R[i, i].
#include "quantize/rounding/hessian.h"
#include "support/must_be.h"
#include "support/threads.h"

#include <fmt/format.h>
#include <tilewright/error.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace tilewright {

using namespace quantize;

namespace {

constexpr std::int64_t kMostColumns = 131072;
constexpr std::int64_t kChunkRows = 256;
constexpr float kLargestInput = 0x1p60f;  // 64 squares of it fit single precision

void check_columns(std::int64_t k) {
  if (k < 1 || k > kMostColumns) throw must_be("k", k, fmt::format("1 to {}", kMostColumns));
}

// Rows of x, decoded, and cut into strips of 64 columns: strip s is [kChunkRows][64]. What is beyond is 0.
class Chunk {
 public:
  explicit Chunk(std::int64_t k)
      : k_(k),
        rows_(static_cast<std::size_t>(kChunkRows * k)),
        strips_(static_cast<std::size_t>(tiles_in(k) * kTile * kChunkRows)) {}
  const float* decode(Format format, const std::byte* x, std::int64_t rows) {
    format.info().decode({x, nullptr, nullptr}, rows, k_, rows_.data());
    return rows_.data();
  }
  void cut(std::int64_t rows) {
    std::fill(strips_.begin(), strips_.end(), 0.0f);
    for (std::int64_t t = 0; t < rows; ++t)
      for (std::int64_t first = 0; first < k_; first += kTile)
        std::copy_n(rows_.data() + t * k_ + first, std::min(kTile, k_ - first),
                    strips_.data() + (first * kChunkRows + t * kTile));
  }
  const float* strip(std::int64_t s) const { return strips_.data() + s * kChunkRows * kTile; }

 private:
  std::int64_t k_;
  std::vector<float> rows_, strips_;
};

// (i, j) of the n-th tile of a triangle in the order in which Tiles has them.
std::pair<std::int64_t, std::int64_t> place_of(std::int64_t n) {
  auto j = static_cast<std::int64_t>((std::sqrt(8.0 * static_cast<double>(n) + 1) - 1) / 2);
  while (j * (j + 1) / 2 > n) --j;
  while ((j + 1) * (j + 2) / 2 <= n) ++j;
  return {n - j * (j + 1) / 2, j};
}

}  // namespace

Hessian::Hessian(std::int64_t k) : sums_((check_columns(k), std::make_unique<Sums>(k))) {}

Hessian::Hessian(std::int64_t k, std::int64_t rows, std::span<const double> values, std::span<const double> magnitudes)
    : Hessian(k) {
  const auto check = [](const char* name, std::size_t size, std::int64_t want) {
    if (static_cast<std::int64_t>(size) != want)
      throw Error(ErrorCode::invalid_argument, name, fmt::format("{} elements", size),
                  fmt::format("must have {}", want));
  };
  check("values", values.size(), k * k);
  check("magnitudes", magnitudes.size(), k);
  if (rows < 0) throw must_be("rows", rows, "0 or more");
  const auto number = [](const std::string& name, double v, bool signed_) {
    if (!std::isfinite(v) || (!signed_ && v < 0))
      throw Error(ErrorCode::invalid_argument, name, fmt::format("{}", v),
                  signed_ ? "must be a finite number" : "must be a finite number, not negative");
  };
  for (std::int64_t i = 0; i < k; ++i) {
    number(fmt::format("magnitudes[{}]", i), magnitudes[static_cast<std::size_t>(i)], false);
    for (std::int64_t j = 0; j <= i; ++j) {
      const double v = values[static_cast<std::size_t>(i * k + j)];
      if (!std::isfinite(v) || (i == j && v < 0)) number(fmt::format("values[{}, {}]", i, j), v, i != j);
      sums_->tiles.tile(j / kTile, i / kTile)[i % kTile * kTile + j % kTile] = v;
      if (i / kTile == j / kTile) sums_->tiles.tile(j / kTile, i / kTile)[j % kTile * kTile + i % kTile] = v;
    }
  }
  sums_->rows = rows;
  sums_->magnitudes.assign(magnitudes.begin(), magnitudes.end());
}

Hessian::Hessian(const Hessian& other) : sums_(std::make_unique<Sums>(*other.sums_)) {}
Hessian::Hessian(Hessian&&) noexcept = default;
Hessian& Hessian::operator=(Hessian other) noexcept {
  sums_.swap(other.sums_);
  return *this;
}
Hessian::~Hessian() = default;

std::int64_t Hessian::k() const { return sums_->k; }
std::int64_t Hessian::rows() const { return sums_->rows; }
std::span<const double> Hessian::magnitudes() const { return sums_->magnitudes; }
double Hessian::at(std::int64_t i, std::int64_t j) const { return sums_->tiles.at(i, j); }
std::vector<double> Hessian::values() const {
  std::vector<double> all;
  all.reserve(static_cast<std::size_t>(k() * k()));
  for (std::int64_t i = 0; i < k(); ++i)
    for (std::int64_t j = 0; j < k(); ++j) all.push_back(at(i, j));
  return all;
}

void Hessian::add(Format format, const void* x, std::int64_t rows, std::int64_t cols, int threads) {
  const std::string_view name = format.name();
  if (name != "f32" && name != "f16" && name != "bf16") throw must_be("x", name, "f32, f16 or bf16");
  if (cols != k()) throw must_be("x cols", cols, fmt::format("k={}", k()));
  if (rows < 0 || rows > std::numeric_limits<std::int64_t>::max() / (4 * cols))
    throw must_be("x rows", rows, "0 or more, and x below 2^63 bytes");
  threads = thread_count(threads);
  if (!rows) return;
  if (!x) throw Error(ErrorCode::invalid_argument, "x", "null", fmt::format("must have {} x {} elements", rows, cols));

  const std::int64_t row_bytes = format.stream_bytes(0, 1, cols);
  const auto* bytes = static_cast<const std::byte*>(x);
  Chunk chunk(cols);
  for (std::int64_t first = 0; first < rows; first += kChunkRows) {
    const std::int64_t count = std::min(kChunkRows, rows - first);
    const float* values = chunk.decode(format, bytes + first * row_bytes, count);
    for (std::int64_t i = 0; i < count * cols; ++i)
      if (!(std::fabs(values[i]) <= kLargestInput))
        throw must_be(fmt::format("x[{}, {}]", first + i / cols, i % cols), fmt::format("{}", values[i]),
                      "a number of magnitude up to 2^60");
  }

  Sums& sums = *sums_;
  const std::int64_t tiles = sums.tiles.count();
  for (std::int64_t first = 0; first < rows; first += kChunkRows) {
    const std::int64_t count = std::min(kChunkRows, rows - first);
    chunk.decode(format, bytes + first * row_bytes, count);
    chunk.cut(count);
    const std::int64_t depth = tiles_in(count) * kTile;
    parallel(threads, tiles * (tiles + 1) / 2, [&](std::int64_t n) {
      const auto [i, j] = place_of(n);
      add_product(chunk.strip(j), chunk.strip(i), depth, sums.tiles.tile(i, j));
    });
    for (std::int64_t j = 0; j < cols; ++j)
      for (std::int64_t t = 0; t < count; ++t)
        sums.magnitudes[static_cast<std::size_t>(j)] +=
            static_cast<double>(std::fabs(chunk.strip(j / kTile)[t * kTile + j % kTile]));
  }
  sums.rows += rows;
}

void Hessian::merge(const Hessian& other) {
  if (other.k() != k()) throw must_be("k of the other Hessian", other.k(), fmt::format("{}", k()));
  Sums& to = *sums_;
  const Sums& from = *other.sums_;
  for (std::int64_t j = 0; j < to.tiles.count(); ++j)
    for (std::int64_t i = 0; i <= j; ++i)
      for (std::int64_t e = 0; e < kTileSize; ++e) to.tiles.tile(i, j)[e] += from.tiles.tile(i, j)[e];
  for (std::size_t j = 0; j < to.magnitudes.size(); ++j) to.magnitudes[j] += from.magnitudes[j];
  to.rows += from.rows;
}

namespace quantize {

void add_errors(const Tiles& hessian, const double* d, double* scratch, double* to) {
  for (std::int64_t i = 0; i < hessian.count(); ++i) {
    // What lies right of the diagonal counts twice.
    std::fill_n(scratch, kTileSize, 0.0);
    for (std::int64_t j = i + 1; j < hessian.count(); ++j)
      add_product(hessian.tile(i, j), d + j * kTileSize, kTile, scratch);
    for (std::int64_t e = 0; e < kTileSize; ++e) scratch[e] *= 2;
    add_product(hessian.tile(i, i), d + i * kTileSize, kTile, scratch);
    for (std::int64_t c = 0; c < kTile; ++c)
      for (std::int64_t r = 0; r < kTile; ++r) to[r] += scratch[c * kTile + r] * d[i * kTileSize + c * kTile + r];
  }
}

namespace {

// The factor of one tile on the diagonal, in place, column-major; false if a pivot is no larger than its rounding
// errors, `least` of the diagonal. Below the diagonal it becomes 0.
bool factor_tile(double* t, const double* least) {
  for (std::int64_t j = kTile - 1; j >= 0; --j) {
    double* column = t + j * kTile;
    if (!(column[j] > least[j])) return false;
    const double root = std::sqrt(column[j]);
    column[j] = root;
    for (std::int64_t i = 0; i < j; ++i) column[i] /= root;
    for (std::int64_t i = j + 1; i < kTile; ++i) column[i] = 0;
    for (std::int64_t m = 0; m < j; ++m)
      for (std::int64_t i = 0; i <= m; ++i) t[m * kTile + i] -= column[i] * column[m];
  }
  return true;
}

// x of x r^T = t, in place of t, with r a factored tile on the diagonal. Both column-major.
void solve_tile(const double* r, double* t) {
  for (std::int64_t m = kTile - 1; m >= 0; --m) {
    double* column = t + m * kTile;
    double taken[kTile];
    for (std::int64_t i = 0; i < kTile; ++i) {
      column[i] /= r[m * kTile + m];
      taken[i] = -column[i];
    }
    add_outer(r + m * kTile, taken, m, t);
  }
}

}  // namespace

std::optional<Tiles> factor(const Hessian::Sums& hessian, std::span<const std::int32_t> order, double mean,
                            double damping, int threads) {
  const std::int64_t k = hessian.k;
  Tiles r(k);
  const std::int64_t count = r.count();
  parallel(threads, count * (count + 1) / 2, [&](std::int64_t n) {
    const auto [ti, tj] = place_of(n);
    double* t = r.tile(ti, tj);
    for (std::int64_t c = 0; c < kTile; ++c)
      for (std::int64_t q = 0; q < kTile; ++q) {
        const std::int64_t i = ti * kTile + q, j = tj * kTile + c;
        double& to = t[c * kTile + q];
        if (i >= k || j >= k)
          to = i == j;
        else
          to = hessian.tiles.at(order[static_cast<std::size_t>(i)], order[static_cast<std::size_t>(j)]);
        if (i == j && i < k) to = (to == 0 ? mean : to) + damping * mean;
      }
  });

  // A few columns of tiles at a time: first what the columns behind them take from all their tiles, which is most of
  // the work and is done by all threads, then what they take from each other.
  constexpr std::int64_t kColumns = 4;
  const auto subtract = [&](std::int64_t i, std::int64_t j, std::int64_t first, std::int64_t end) {
    for (std::int64_t m = first; m < end; ++m) subtract_product(r.tile(j, m), r.tile(i, m), kTile, r.tile(i, j));
  };
  std::vector<double> least(static_cast<std::size_t>(count * kTile));  // pivots: rounding errors can make this of 0
  for (std::int64_t j = 0; j < count; ++j)
    for (std::int64_t c = 0; c < kTile; ++c)
      least[static_cast<std::size_t>(j * kTile + c)] =
          static_cast<double>(k) * std::numeric_limits<double>::epsilon() * r.tile(j, j)[c * kTile + c];
  for (std::int64_t end = count; end > 0; end -= std::min(end, kColumns)) {
    const std::int64_t first = std::max<std::int64_t>(end - kColumns, 0);
    parallel(threads, (end - first) * end, [&](std::int64_t n) {
      const std::int64_t j = first + n % (end - first), i = n / (end - first);
      if (i <= j) subtract(i, j, end, count);
    });
    for (std::int64_t j = end - 1; j >= first; --j) {
      subtract(j, j, j + 1, end);
      if (!factor_tile(r.tile(j, j), least.data() + j * kTile)) return std::nullopt;
      parallel(threads, j, [&](std::int64_t i) {
        subtract(i, j, j + 1, end);
        solve_tile(r.tile(j, j), r.tile(i, j));
      });
    }
  }
  parallel(threads, count * (count + 1) / 2, [&](std::int64_t n) {
    const auto [i, j] = place_of(n);
    double* t = r.tile(i, j);
    for (std::int64_t c = 0; c < kTile; ++c)
      for (std::int64_t q = 0; q < c; ++q) std::swap(t[c * kTile + q], t[q * kTile + c]);
  });
  return r;
}

}  // namespace quantize
}  // namespace tilewright
