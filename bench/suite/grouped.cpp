// SPDX-License-Identifier: Apache-2.0
// Grouped gemms: prepared kernels against a double-precision product formed on the host, for rows that a mixture of
// experts may have and for offsets that it may not, and candidates against the tuner's verifier.
#include <fmt/format.h>
#include <tilewright/pack.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "bench/suite/matrix.h"
#include "bench/suite/trial.h"

namespace tilewright::bench {
namespace {

constexpr std::size_t kCanary = 4096;

// A stack of weights on the device, as the problem stores them, and its values.
struct Stack {
  std::vector<std::vector<float>> decoded;
  std::vector<Memory> device;
  Operand operand;

  Stack(Suite& s, const Gemm& g) {
    std::vector<std::vector<std::byte>> plain(std::size(kStreams)), stored(std::size(kStreams));
    for (int group = 0; group < g.groups; ++group) {
      const Matrix w = make(s.device(), g.w, g.n, g.k, static_cast<unsigned>(100 + group), 0.1f);
      decoded.push_back(w.decoded);
      const auto streams = g.w.info().streams;
      for (std::size_t i = 0; i < streams.size(); ++i) {
        std::vector<std::byte>& all = plain[static_cast<std::size_t>(streams[i].stream)];
        all.insert(all.end(), w.streams[i].begin(), w.streams[i].end());
      }
    }
    MutableOperand from, to;
    for (const StreamName stream : kStreams) {
      std::vector<std::byte>&of = plain[static_cast<std::size_t>(stream)],
      &as = stored[static_cast<std::size_t>(stream)];
      if (!of.empty()) from.set(stream, of.data());
      if (g.packing == Packing::none) {
        as = of;
      } else {
        as.resize(static_cast<std::size_t>(packed_bytes(g, stream)));
        if (!as.empty()) to.set(stream, as.data());
      }
    }
    if (g.packing == Packing::tiles) pack_weights(g, from, to);
    MutableOperand on_device;
    for (const StreamName stream : kStreams) {
      const std::vector<std::byte>& bytes = stored[static_cast<std::size_t>(stream)];
      if (bytes.empty()) continue;
      device.emplace_back(s.device(), bytes.size()).upload(bytes);
      on_device.set(stream, device.back().data());
    }
    operand = on_device;
  }
};

// The group of each row, -1 for none: what gemm.h says of offsets and counts that are not allowed, too.
std::vector<int> owners_of(const Gemm& g, std::int64_t m, const std::vector<std::int32_t>& group_rows) {
  const bool masked = g.group_layout == GroupLayout::masked;
  std::vector<int> owners(static_cast<std::size_t>(masked ? m * g.groups : m), -1);
  std::int64_t begin = 0;
  for (int i = 0; i < g.groups; ++i) {
    const std::int64_t first = std::clamp<std::int64_t>(group_rows[static_cast<std::size_t>(i)], 0, m);
    begin = masked ? i * m : std::max(begin, first);
    const std::int64_t end =
        masked ? begin + first : std::clamp<std::int64_t>(group_rows[static_cast<std::size_t>(i) + 1], 0, m);
    for (std::int64_t row = begin; row < end; ++row) owners[static_cast<std::size_t>(row)] = i;
  }
  return owners;
}

// Rows of groups: even, ragged with empty groups, one giant, and values that no caller may pass.
std::vector<std::vector<std::int32_t>> group_rows_of(const Gemm& g, std::int64_t m) {
  const bool masked = g.group_layout == GroupLayout::masked;
  std::vector<std::vector<std::int32_t>> all;
  std::mt19937 random(static_cast<unsigned>(g.groups));
  for (int kind = 0; kind < 4; ++kind) {
    std::vector<std::int32_t> list;
    if (!masked) list.push_back(kind == 1 ? 3 : 0);
    std::int64_t left = masked ? m : m - (kind == 1 ? 7 : 0);
    for (int i = 0; i < g.groups; ++i) {
      const std::int64_t even = masked ? m : m / g.groups;
      std::int64_t count = kind == 0    ? even
                           : kind == 2  ? (i == g.groups / 2 ? m : 0)
                           : kind == 3  ? static_cast<std::int64_t>(random() % (3 * m)) - m
                           : i % 3 == 1 ? 0
                                        : static_cast<std::int64_t>(random()) % (2 * even + 1);
      if (kind == 3) {
        list.push_back(static_cast<std::int32_t>(count));
        continue;
      }
      count = std::min(count, left);
      if (!masked) left -= count;
      list.push_back(static_cast<std::int32_t>(masked ? count : list.back() + count));
    }
    all.push_back(list);
  }
  return all;
}

std::string against_host(Suite& s, const Problem& problem, const Kernel& kernel, std::int64_t m) {
  const Gemm& g = *problem.as<Gemm>();
  const bool masked = g.group_layout == GroupLayout::masked;
  const std::int64_t rows = masked ? m * g.groups : m;
  const Stack w(s, g);
  const Matrix x = make(s.device(), g.x, rows, g.k, 1);
  Matrix bias;
  if (g.bias) bias = make(s.device(), *g.bias, g.groups, g.n, 3);
  const auto y_bytes = static_cast<std::size_t>(g.y.total_bytes(rows, g.n));
  const auto row_bytes = static_cast<std::size_t>(g.y.total_bytes(1, g.n));
  Memory y(s.device(), y_bytes + 2 * kCanary);
  Memory offsets(s.device(), static_cast<std::size_t>(g.groups + 1) * 4);
  const OwnedStream stream(s.device());
  const std::vector<std::vector<std::int32_t>> kinds = group_rows_of(g, m);
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    offsets.upload(std::as_bytes(std::span(kinds[kind])));
    y.fill(0xa5);
    GemmArgs args;
    args.x = x.operand, args.w = w.operand, args.y = static_cast<char*>(y.data()) + kCanary, args.m = m;
    args.bias = g.bias ? bias.operand.data : nullptr;
    args.group_rows = static_cast<const std::int32_t*>(offsets.data());
    kernel.launch(stream.get(), args);
    stream.synchronize();
    std::vector<std::byte> bytes(y_bytes + 2 * kCanary);
    y.download(bytes);
    const auto untouched = [&](std::size_t begin, std::size_t count) {
      return std::all_of(&bytes[begin], &bytes[begin] + count, [](std::byte b) { return b == std::byte{0xa5}; });
    };
    if (!untouched(0, kCanary) || !untouched(kCanary + y_bytes, kCanary))
      return fmt::format("rows {}: wrote beside y", kind);
    std::vector<float> got(static_cast<std::size_t>(rows * g.n));
    g.y.info().decode({&bytes[kCanary], nullptr, nullptr}, rows, g.n, got.data());
    const std::vector<int> owners = owners_of(g, m, kinds[kind]);
    const std::string wrong = first_wrong(s, rows, [&](std::int64_t i) -> std::string {
      const int group = owners[static_cast<std::size_t>(i)];
      if (group < 0) {
        if (!untouched(kCanary + static_cast<std::size_t>(i) * row_bytes, row_bytes))
          return fmt::format("rows {}: wrote y[{}], a row of no group", kind, i);
        return {};
      }
      for (std::int64_t j = 0; j < g.n; ++j) {
        double sum = 0, magnitude = 0;
        const float *a = &x.decoded[static_cast<std::size_t>(i * g.k)],
                    *b = &w.decoded[static_cast<std::size_t>(group)][static_cast<std::size_t>(j * g.k)];
        for (std::int64_t k = 0; k < g.k; ++k) {
          const double p = static_cast<double>(a[k]) * b[k];
          sum += p, magnitude += std::fabs(p);
        }
        // More than unpacking may round weights, on the average of their row: docs/reference/numerics.md has what it
        // may.
        const double rounding = g.packing == Packing::tiles ? magnitude * 0x1p-7 : 0;
        const double of_bias = g.bias ? bias.decoded[static_cast<std::size_t>(group * g.n + j)] : 0.0;
        const auto [expected, bound] = gemm_expected(g, {.product = sum,
                                                         .magnitude = magnitude,
                                                         .rounding = rounding,
                                                         .scale = static_cast<float>(g.alpha),
                                                         .bias = of_bias});
        const double value = got[static_cast<std::size_t>(i * g.n + j)];
        if (!(std::fabs(value - expected) <= bound))
          return fmt::format("rows {}: y[{},{}] of group {} = {}, expected {} +- {}", kind, i, j, group, value,
                             expected, bound);
      }
      return {};
    });
    if (!wrong.empty()) return wrong;
  }
  return {};
}

}  // namespace

void grouped_checks(Suite& s) {
  const std::vector<const char*> pairs = {"x=bf16 w=bf16 y=bf16 bias=f32 act=silu",
                                          "x=f16 w=f16 y=f32",
                                          "x=e4m3_row w=e4m3_row y=bf16",
                                          "x=e4m3_tensor w=e4m3_tensor y=bf16 global=mul accum=fast",
                                          "x=e4m3_g128 w=e4m3_b128 y=bf16",
                                          "x=int8_row w=int8_row y=bf16",
                                          "x=f16 w=q4_0 y=f16 pack=tiles",
                                          "x=bf16 w=int4_g128 y=bf16 pack=tiles bias=bf16",
                                          "x=bf16 w=nvfp4 y=bf16 pack=tiles global=mul",
                                          "x=e4m3_row w=nvfp4 y=bf16 pack=tiles global=mul",
                                          "x=e4m3_row w=int4_row y=bf16 pack=tiles",
                                          "x=q8_1 w=q4_k y=f32 pack=tiles"};
  const int most = s.extent() == Extent::full ? 6 : s.extent() == Extent::quick ? 3 : 1;
  Ahead ahead(jobs_of(s));
  struct Item {
    std::string name;
    Problem problem;
    std::int64_t m;
    std::future<Kernel> kernel;
  };
  std::vector<Item> items;
  std::vector<std::string> samples;
  for (const char* pair : pairs)
    for (const char* layout : {"contiguous", "masked"}) {
      // Few rows of many groups, some of some, many of one.
      using Sizes = std::vector<std::pair<int, int>>;
      const bool masked = layout == std::string_view("masked");
      for (const auto& [groups, m] : masked ? Sizes{{6, 100}} : Sizes{{40, 5}, {1, 300}}) {
        const Problem problem =
            Problem::parse(fmt::format("gemm {} m={} n=384 k=512 groups={} group_layout={}", pair, m, groups, layout));
        const std::int64_t rows = problem.as<Gemm>()->group_layout == GroupLayout::masked ? m : m * groups - groups / 2;
        items.push_back({"host product, " + problem.text(), problem, rows,
                         ahead.submit([&s, problem] { return s.engine().prepare(problem, s.device()); })});
        if (s.extent() == Extent::one) break;
      }
      for (const char* shape : {"m=3 n=192 k=1024 groups=64", "m=40 n=320 k=1024 groups=17",
                                "m=200 n=576 k=512 groups=9", "m=1000 n=1088 k=512 groups=5"}) {
        samples.push_back(fmt::format("gemm {} {} group_layout={}", pair, shape, layout));
        if (s.extent() == Extent::one) break;
      }
    }
  Verdicts verdicts(s, std::move(samples), most);
  for (Item& item : items) s.check(item.name, [&] { return against_host(s, item.problem, item.kernel.get(), item.m); });
  verdicts.check(s);
}

}  // namespace tilewright::bench
