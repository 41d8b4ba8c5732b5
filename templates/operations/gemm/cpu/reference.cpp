// SPDX-License-Identifier: Apache-2.0
// A gemm on the CPU by its formats' scalar codecs, in double precision: the last resort where no other kernel is legal,
// and the oracle that candidates are held against. A function of the library, since it is to be the same on all CPUs
// and to need no compiler.
#include <fmt/format.h>
#include <tilewright/numerics.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "templates/backends/cpu/reference_family.h"
#include "templates/backends/cpu/rows.h"
#include "templates/common/describe.h"
#include "templates/formats/shared/fast_path.h"
#include "templates/operations/gemm/cpu/gemm.h"
#include "templates/operations/gemm/params.cuh"

namespace tilewright::cpu {
namespace {

constexpr std::int64_t kColumns = 16;  // of a block: a panel's rows

// Operands of a launch, decoded by rows.
class Rows {
 public:
  Rows(const Gemm& g, const GemmArgs& args) : g_(g), args_(args) {}

  std::vector<float> x(std::int64_t row) const {
    const Format f = g_.x_stored();
    std::vector<float> values = decoded(f, args_.x, row, args_.ldx, 1);
    return g_.x_from ? through(g_.x, 1, g_.k, values) : values;
  }
  // Columns first to first + count - 1 of y, that is, rows of w.
  std::vector<float> w(std::int64_t first, std::int64_t count) const {
    if (g_.packing == Packing::none) return decoded(g_.w, args_.w, first, g_.k, count);
    const HostStreams plain(g_.w, kPanel, g_.k);
    const std::int64_t panel = first / kPanel;
    unpack_panels(g_.w, g_.k, 0, 1, static_cast<const std::byte*>(args_.w.data) + panel * panel_bytes(g_.w, g_.k),
                  plain.operand);
    return decoded(g_.w, {plain.operand.data, plain.operand.scales, args_.w.global}, 0, g_.k, count);
  }
  float at(const void* vector, Format f, std::int64_t i) const {
    const std::int64_t bytes = f.stream_bytes(0, 1, 1);
    float value = 0;
    f.info().decode({static_cast<const std::byte*>(vector) + i * bytes, nullptr, nullptr}, 1, 1, &value);
    return value;
  }

 private:
  std::vector<float> decoded(Format f, const Operand& m, std::int64_t first, std::int64_t ld,
                             std::int64_t count) const {
    std::vector<float> values(static_cast<std::size_t>(count * g_.k));
    // Codecs multiply by a tensor-wide scale.
    const float inverse = m.global && g_.global == Global::div ? 1.0f / *m.global : 1.0f;
    for (std::int64_t i = 0; i < count; ++i) {
      Operand row = from_row(f, m, first + i, ld);
      if (m.global && g_.global == Global::div) row.global = &inverse;
      float* const out = values.data() + i * g_.k;
      f.info().decode(row, 1, g_.k, out);
    }
    return values;
  }

  const Gemm& g_;
  const GemmArgs& args_;
};

// Rows of x as floats lie in the launch's scratch memory, from multiples of 64 bytes on.
constexpr std::int64_t kLine = 64 / sizeof(float);
std::int64_t lines(const Gemm& g) { return (g.k + kLine - 1) / kLine; }

bool masked(const Gemm& g) { return g.group_layout == GroupLayout::masked; }
std::int64_t rows_of_y(const Gemm& g, const GemmArgs& args) { return masked(g) ? g.groups * args.m : args.m; }

// A group's rows of x and y; without groups, all.
struct Group {
  std::int64_t first, count;
};
// Offsets and counts are made to fit, as on GPUs (operations/gemm/cuda/groups.cuh).
Group group_of(const Gemm& g, const GemmArgs& args, std::int64_t index) {
  if (!g.groups) return {0, args.m};
  const auto fitting = [&](std::int64_t i) { return std::clamp<std::int64_t>(args.group_rows[i], 0, args.m); };
  if (masked(g)) return {index * args.m, fitting(index)};
  std::int64_t first = 0;
  for (std::int64_t i = 0; i <= index; ++i) first = std::max(first, fitting(i));
  return {first, std::max(first, fitting(index + 1)) - first};
}
// A matrix of a stack of w.
Operand matrix_of(const Gemm& g, Operand w, std::int64_t index) {
  MutableOperand m{const_cast<void*>(w.data), const_cast<void*>(w.scales), const_cast<float*>(w.global)};
  const auto move = [&](StreamName stream, std::int64_t bytes) {
    if (m.at(stream)) m.set(stream, static_cast<std::byte*>(m.at(stream)) + index * bytes);
  };
  const auto& streams = g.w.info().streams;
  for (std::size_t i = 0; i < streams.size(); ++i)
    move(streams[i].stream, g.packing == Packing::panels && streams[i].stream == StreamName::data
                                ? panel_bytes(g)
                                : g.w.stream_bytes(static_cast<int>(i), g.n, g.k));
  return m;
}

void decode_x(const Gemm& g, const GemmArgs& args, float* scratch, std::int64_t row) {
  if (row >= rows_of_y(g, args) || (masked(g) && row % args.m >= group_of(g, args, row / args.m).count)) return;
  const std::vector<float> x = Rows(g, args).x(row);
  std::copy(x.begin(), x.end(), scratch + row * lines(g) * kLine);
}

// Rows of w as columns: of each column kColumns numbers, 0 where there are fewer rows.
std::vector<double> transposed(const std::vector<float>& w, std::int64_t k) {
  std::vector<double> out(static_cast<std::size_t>(kColumns * k));
  const std::int64_t count = k ? static_cast<std::int64_t>(w.size()) / k : 0;
  for (std::int64_t j = 0; j < k; ++j)
    for (std::int64_t i = 0; i < count; ++i) out[j * kColumns + i] = w[i * k + j];
  return out;
}

// Sums of one row of x by kColumns of w, each in the order of k. Lanes are neighbouring sums; kTogether of them and of
// their magnitudes take half of the registers.
void sum(const float* x, const double* w, std::int64_t k, double* products, double* magnitudes) {
  using Doubles [[gnu::vector_size(16)]] = double;
  using Bits [[gnu::vector_size(16)]] = std::int64_t;
  constexpr std::int64_t kLanes = 2, kTogether = 8;
  constexpr Bits kMagnitude = {std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::max()};
  for (std::int64_t first = 0; first < kColumns; first += kTogether) {
    Doubles p[kTogether / kLanes] = {}, a[kTogether / kLanes] = {};
    for (std::int64_t j = 0; j < k; ++j) {
      const double value = x[j];
#pragma GCC unroll 4  // or the sums would not be in registers
      for (std::int64_t i = 0; i < kTogether / kLanes; ++i) {
        Doubles of_w;
        std::memcpy(&of_w, w + j * kColumns + first + i * kLanes, sizeof of_w);
        const Doubles product = value * of_w;
        p[i] += product;
        a[i] += reinterpret_cast<Doubles>(reinterpret_cast<Bits>(product) & kMagnitude);
      }
    }
    std::memcpy(products + first, p, sizeof p);
    std::memcpy(magnitudes + first, a, sizeof a);
  }
}

// Columns block * kColumns and on of all rows; of groups, those of the first group, then the next one's. oracle: stores
// values and bounds, dense, in the place of y.
void compute(const Gemm& g, bool oracle, GemmArgs args, const float* x, std::int64_t block) {
  const std::int64_t across = (g.n + kColumns - 1) / kColumns, index = block / across;
  const std::int64_t first = block % across * kColumns, count = std::min(kColumns, g.n - first);
  const Group group = group_of(g, args, index);
  if (group.count == 0) return;
  args.w = matrix_of(g, args.w, index);
  const Rows rows(g, args);
  const std::vector<double> w = transposed(rows.w(first, count), g.k);
  const bool exact = fast_path(g.y).element == Element::i32;
  const double scale = static_cast<double>(static_cast<float>(g.alpha) * args.alpha);
  const double y_factor = 1.0 / g.y_scale;
  const std::int64_t ldy = args.ldy ? args.ldy : g.n, ldc = args.ldc ? args.ldc : g.n, all = rows_of_y(g, args);
  const std::int64_t element = g.y.stream_bytes(0, 1, 1);
  double products[kColumns], magnitudes[kColumns];
  for (std::int64_t m = group.first; m < group.first + group.count; ++m) {
    sum(x + m * lines(g) * kLine, w.data(), g.k, products, magnitudes);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t n = first + i;
      std::byte* const y = static_cast<std::byte*>(args.y) + (m * ldy + n) * element;
      GemmSums sums{products[i], magnitudes[i], 0, scale, 0, 0};
      if (exact) {  // wraps around
        auto value = static_cast<std::uint32_t>(static_cast<std::int64_t>(products[i]));
        if (g.bias) value += static_cast<const std::uint32_t*>(args.bias)[index * g.n + n];
        sums.product = static_cast<std::int32_t>(value);
        if (!oracle) std::memcpy(y, &value, sizeof value);
      } else if (g.bias) {
        sums.bias = rows.at(args.bias, *g.bias, index * g.n + n);
      }
      if (g.c)
        sums.residual =
            static_cast<double>(static_cast<float>(g.beta) * args.beta) * rows.at(args.c, *g.c, m * ldc + n);
      if (oracle) {
        const Expected expected = gemm_expected(g, sums);
        float* const out = static_cast<float*>(args.y);
        out[m * g.n + n] = static_cast<float>(expected.value);
        out[(all + m) * g.n + n] = static_cast<float>(expected.bound);
      } else if (!exact) {
        const auto value =
            static_cast<float>((activate(g.act, sums.product * sums.scale + sums.bias) + sums.residual) * y_factor);
        g.y.info().encode(&value, 1, 1, {y, nullptr, nullptr}, 0);
      }
    }
  }
}

class Reference final : public ReferenceFamily {
 public:
  std::string_view op() const override { return "gemm"; }
  std::string_view title() const override {
    return "CPU, any pair of formats, double accumulation; correctness before speed";
  }
  std::string why_not(const Problem& problem, const Arch& arch) const override {
    const Gemm* g = problem.as<Gemm>();
    if (!g) return "the problem is not a gemm";
    if (!arch.cpu) return "its kernels are for CPUs";
    if (g->packing == Packing::tiles) return "w is packed as tiles, for GPUs";
    return {};
  }
  Source source(const Problem& problem, const Arch&, const Candidate& c) const override {
    Source s;
    s.name = "gemm/cpu_reference";
    s.entry = "tilewright_reference";
    const Gemm& g = *problem.as<Gemm>();
    const auto groups = static_cast<std::uint32_t>(std::max(g.groups, 1));
    s.plan.cpu = {{groups, 0, kColumns}, {groups, 1, 0}, {groups * static_cast<std::uint32_t>(lines(g)), 1, 0}};
    const auto first = [g](const void* args, const void*, void* scratch, std::int64_t row) {
      decode_x(g, *static_cast<const GemmArgs*>(args), static_cast<float*>(scratch), row);
    };
    const auto run = [g, oracle = c.at("oracle") != 0](const void* args, const void*, void* scratch,
                                                       std::int64_t block) {
      compute(g, oracle, *static_cast<const GemmArgs*>(args), static_cast<const float*>(scratch), block);
    };
    s.host = std::make_shared<const CpuKernel>(CpuKernel{first, run});
    return s;
  }
};

}  // namespace

const Family& reference() {
  static const Reference family;
  return family;
}

}  // namespace tilewright::cpu
