// SPDX-License-Identifier: Apache-2.0
// Grouped gemms: each group's rows are what the plain kernel makes of them, and no other row is touched.
#include <tilewright/family.h>
#include <tilewright/operation.h>
#include <tilewright/pack.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <random>

#include "cpu_test.h"
#include "operands.h"
#include "templates/common/families.h"

using namespace tilewright;
using namespace tilewright::test;

namespace {

// Offsets or counts in GemmArgs::group_rows' place, of a launch of all rows.
void set_rows(Operands& o, const std::vector<std::int32_t>& rows) {
  GemmArgs args;
  const std::vector<std::byte> bytes = o.task.arguments(o.pointers, o.problem.rows());
  REQUIRE(bytes.size() == sizeof args);
  std::memcpy(&args, bytes.data(), sizeof args);
  std::memcpy(const_cast<std::int32_t*>(args.group_rows), rows.data(), rows.size() * sizeof(std::int32_t));
}

struct Range {
  std::int64_t first, count;
};
std::vector<Range> ranges_of(const Gemm& g, const std::vector<std::int32_t>& rows) {
  std::vector<Range> ranges;
  for (std::size_t i = 0; i < static_cast<std::size_t>(g.groups); ++i)
    ranges.push_back(g.group_layout == GroupLayout::masked ? Range{static_cast<std::int64_t>(i) * g.m, rows[i]}
                                                           : Range{rows[i], rows[i + 1] - rows[i]});
  return ranges;
}
// Ragged: some groups are empty, one has most rows, and some rows are no group's.
std::vector<std::int32_t> ragged(const Gemm& g, std::mt19937& random) {
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(n));
  };
  std::vector<std::int32_t> rows;
  std::int32_t row = below(2), left = static_cast<std::int32_t>(g.x_rows()) - row;
  const bool masked = g.group_layout == GroupLayout::masked;
  if (!masked) rows.push_back(row);
  for (int i = 0; i < g.groups; ++i) {
    const std::int32_t count = below(3) == 0 ? 0 : below(masked ? g.m + 1 : left / (i == 1 ? 1 : 2) + 1);
    left -= count;
    rows.push_back(masked ? count : row += count);
  }
  return rows;
}

std::size_t row_bytes(const Gemm& g) { return static_cast<std::size_t>(g.y.stream_bytes(0, 1, g.n)); }
bool untouched(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0xff}; });
}
void check_rows_of_none(const Gemm& g, const std::vector<Range>& ranges, const std::vector<std::byte>& y) {
  for (std::int64_t row = 0; row < g.x_rows(); ++row) {
    bool some = false;
    for (const Range& r : ranges) some |= row >= r.first && row < r.first + r.count;
    if (!some) CHECK(untouched(std::span(y).subspan(static_cast<std::size_t>(row) * row_bytes(g), row_bytes(g))));
  }
}

// What a candidate's binary for the same gemm without groups gives, launched for each group.
std::vector<std::byte> one_by_one(Operands& o, const Device& device, const Candidate& c,
                                  const std::vector<Range>& ranges) {
  Gemm plain = *o.problem.as<Gemm>();
  const Gemm g = plain;
  plain.groups = 0, plain.group_layout = GroupLayout::contiguous;
  const Problem problem(plain);
  const Source source = family("gemm", c.family).source(problem, host_arch(), c);
  const Binary binary = source.host ? built_in(source, host_arch()) : compile(source, host_arch(), llvm());
  const int first[] = {0};
  const Kernel kernel(device, std::span(&binary, 1), first, contract_for(problem));
  GemmArgs all;
  std::memcpy(&all, o.task.arguments(o.pointers, o.problem.rows()).data(), sizeof all);
  std::vector<std::byte> y(row_bytes(g) * static_cast<std::size_t>(g.x_rows()), std::byte{0xff});
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    // A launch's operands are aligned, a group's need not be.
    std::vector<std::vector<std::byte>> own;
    const auto part = [&](const void* p, std::int64_t at, std::int64_t bytes) -> void* {
      const auto* from = static_cast<const std::byte*>(p) + at;
      return own.emplace_back(from, from + bytes).data();
    };
    GemmArgs args = all;
    args.m = ranges[i].count;
    const auto rows = [&](std::int64_t bytes) { return std::pair(ranges[i].first * bytes, ranges[i].count * bytes); };
    const auto [x_at, x_bytes] = rows(g.x_stored().stream_bytes(0, 1, g.k));
    args.x.data = part(all.x.data, x_at, x_bytes);
    if (all.x.scales) args.x.scales = part(all.x.scales, rows(4).first, rows(4).second);
    const std::int64_t w_bytes = packed_bytes(plain, StreamName::data);
    args.w.data = part(all.w.data, index * w_bytes, w_bytes);
    if (all.w.global) args.w.global = all.w.global + i;
    if (g.bias) {
      const std::int64_t bytes = g.bias->stream_bytes(0, 1, g.n);
      args.bias = part(all.bias, index * bytes, bytes);
    }
    const auto [y_at, y_bytes] = rows(static_cast<std::int64_t>(row_bytes(g)));
    args.y = part(y.data(), y_at, y_bytes);
    kernel.launch(nullptr, args);
    std::copy(own.back().begin(), own.back().end(), y.begin() + y_at);
  }
  return y;
}

}  // namespace

TEST_CASE("every family: ragged groups are right, and have the bits of plain launches") {
  TILEWRIGHT_NEEDS_KERNELS();
  std::mt19937 random(3);
  std::map<std::string, int> tested;
  const char* const problems[] = {
      "gemm x=q8_1 w=q4_0 y=f32 m=3 n=80 k=96 pack=panels groups=7 bias=f32",
      "gemm x=q8_1 w=q4_k y=bf16 m=30 n=48 k=512 pack=panels groups=5 bias=bf16 act=silu alpha=0.5",
      "gemm x=int8_row w=nvfp4 y=f16 m=20 n=96 k=64 pack=panels groups=6 global=mul",
      "gemm x=int8_row w=int8_row y=int8 m=17 n=64 k=96 pack=panels groups=4 y_scale=0.05 bias=f16",
      "gemm x=q8_1 x_from=f32 w=q4_0 y=f32 m=11 n=64 k=96 pack=panels groups=6",
      "gemm x=int8_row x_from=f16 w=int8_row y=f32 m=5 n=48 k=96 pack=panels groups=5",
      "gemm x=bf16 x_from=f32 w=bf16 y=f32 m=12 n=48 k=96 pack=panels groups=4",
      "gemm x=q8_1 w=ggml_mxfp4 y=f32 m=1 n=32 k=64 pack=panels groups=40",
      "gemm x=bf16 w=bf16 y=bf16 m=9 n=80 k=77 pack=panels groups=6 bias=f32",
      "gemm x=bf16 w=bf16 y=f32 m=14 n=112 k=160 pack=panels groups=5 act=relu",
      "gemm x=f16 w=f32 y=f32 m=40 n=48 k=130 pack=panels groups=3",
      "gemm x=bf16 w=q4_0 y=f32 m=5 n=19 k=64 groups=5 bias=f32",
      "gemm x=f32 w=e4m3_b128 y=bf16 m=3 n=33 k=256 groups=4",
      "gemm x=int8 w=int8 y=int32 m=4 n=21 k=40 groups=3 bias=int32",
      "gemm x=int8 w=int8 y=int32 m=6 n=32 k=64 pack=panels groups=5 bias=int32",
  };
  for (const char* text : problems)
    for (const char* layout : {"", " group_layout=masked"}) {
      Operands o(std::string(text) + layout);
      const Gemm& g = *o.problem.as<Gemm>();
      const std::vector<std::int32_t> rows = ragged(g, random);
      set_rows(o, rows);
      const std::vector<Range> ranges = ranges_of(g, rows);
      INFO(o.problem.text() << ", rows " << fmt::format("{}", fmt::join(rows, " ")));
      std::map<std::string, std::vector<std::byte>> bits;  // of families that add up in different ways
      for (const Family* f : families("gemm", host_arch())) {
        const std::vector<Candidate> all = f->candidates(o.problem, host_arch());
        for (std::size_t i = 0; i < all.size(); ++i) {
          const Source source = f->source(o.problem, host_arch(), all[i]);
          if (!source.host && i % 7 != 0) continue;
          std::vector<Binary> binaries;
          if (source.host) binaries.push_back(built_in(source, host_arch()));
          if (!source.text.empty()) binaries.push_back(compile(source, host_arch(), llvm()));
          const bool reference = source.text.empty();
          std::vector<std::byte>& same = bits[reference                     ? "reference"
                                              : f->name() == "cpu_amx_bf16" ? "tiles"
                                                                            : "registers"];
          for (const Binary& b : binaries)
            for (const int threads : {1, 2, 3, 4}) {
              INFO(all[i].text() << (b.host ? ", built in, " : ", compiled, ") << threads << " threads");
              const Device device = Device::open_cpu({.threads = threads, .parallel_for = {}});
              const std::vector<std::byte> y = o.run(device, b);
              if (same.empty()) {
                REQUIRE(o.wrong() == "");
                check_rows_of_none(g, ranges, y);
                if (g.packing == Packing::panels && !reference) REQUIRE(y == one_by_one(o, device, all[i], ranges));
                same = y;
              }
              REQUIRE(y == same);
            }
          ++tested[std::string(f->name())];
        }
      }
      CHECK(bits.contains("reference"));
      CHECK(bits.contains("registers") == (g.packing == Packing::panels));
    }
  CHECK(tested["cpu_gemv"] > 0);
  CHECK(tested["cpu_codes"] > 0);
  CHECK(tested["cpu_floats"] > 0);
  CHECK((tested["cpu_amx"] > 0) == host_arch().cpu->tiles);
  CHECK((tested["cpu_amx_bf16"] > 0) == host_arch().cpu->tiles);
}

TEST_CASE("groups: offsets and counts that do not fit count as the nearest that do") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}});
  const auto check = [&](const char* layout, const std::vector<std::int32_t>& bad,
                         const std::vector<std::int32_t>& fitting) {
    Operands o(fmt::format("gemm x=q8_1 w=q4_0 y=f32 m=4 n=32 k=64 pack=panels groups=4{}", layout));
    for (const Family* f : families("gemm", host_arch())) {
      const std::vector<Candidate> all = f->candidates(o.problem, host_arch());
      if (all.empty()) continue;
      const Source source = f->source(o.problem, host_arch(), all.front());
      std::vector<Binary> binaries;
      if (source.host) binaries.push_back(built_in(source, host_arch()));
      if (!source.text.empty()) binaries.push_back(compile(source, host_arch(), llvm()));
      for (const Binary& b : binaries) {
        INFO(o.problem.text() << " " << all.front().text());
        set_rows(o, fitting);
        const std::vector<std::byte> y = o.run(device, b);
        CHECK(o.wrong() == "");
        CHECK_FALSE(untouched(y));
        set_rows(o, bad);
        CHECK(o.run(device, b) == y);
      }
    }
  };
  check("", {-3, 5, 2, 400, 9}, {0, 5, 5, 16, 16});
  check("", {2, 2, 1, -2147483647, 2147483647}, {2, 2, 2, 2, 16});
  check(" group_layout=masked", {-1, 2147483647, 4, -2147483647}, {0, 4, 4, 0});
}

TEST_CASE("groups: without rows nothing is written") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}});
  for (const char* layout : {"", " group_layout=masked"})
    for (const Family* f : families("gemm", host_arch())) {
      Operands o(fmt::format("gemm x=q8_1 w=q4_0 y=f32 m=4 n=32 k=64 pack=panels groups=3{}", layout));
      set_rows(o, std::vector<std::int32_t>(*layout ? 3 : 4));
      const std::vector<Candidate> all = f->candidates(o.problem, host_arch());
      if (all.empty()) continue;
      const Source source = f->source(o.problem, host_arch(), all.front());
      CHECK(
          untouched(o.run(device, source.host ? built_in(source, host_arch()) : compile(source, host_arch(), llvm()))));
    }
}

TEST_CASE("groups: what a launch must not be is refused by name") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Device device = Device::open_cpu({.threads = 1, .parallel_for = {}});
  Operands o("gemm x=q8_1 w=q4_0 y=f32 m=4 n=32 k=64 pack=panels groups=3");
  const Family& f = family("gemm", "cpu_gemv");
  const Binary b =
      compile(f.source(o.problem, host_arch(), f.candidates(o.problem, host_arch()).front()), host_arch(), llvm());
  const int first[] = {0};
  const Kernel kernel(device, std::span(&b, 1), first, contract_for(o.problem));
  GemmArgs args;
  std::memcpy(&args, o.task.arguments(o.pointers, 4).data(), sizeof args);
  const std::int32_t* const rows = args.group_rows;
  args.group_rows = nullptr;
  const Error none = refusal([&] { kernel.launch(nullptr, args); });
  CHECK(none.field() == "group_rows");
  CHECK(none.value() == "null");
  args.group_rows = reinterpret_cast<const std::int32_t*>(reinterpret_cast<const char*>(rows) + 2);
  const Error odd = refusal([&] { kernel.launch(nullptr, args); });
  CHECK(odd.field() == "group_rows");
  CHECK(odd.allowed() == "must be aligned to 4 bytes");
  args.group_rows = rows, args.m = -1;
  CHECK(refusal([&] { kernel.launch(nullptr, args); }).field() == "m");
  // A check on the host names the offset that is wrong.
  set_rows(o, {0, 5, 3, 12});
  const Error wrong = refusal([&] { o.wrong(); });
  CHECK(wrong.field() == "group_rows[2]");
  CHECK(wrong.value() == "3");
  CHECK(wrong.allowed() == "must be 5 to 12");
}

TEST_CASE("groups: fewer rows than the problem's, and strides of their own") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}});
  Operands o("gemm x=int8_row w=int4_g64 y=f32 m=8 n=48 k=128 pack=panels groups=3");
  const Gemm& g = *o.problem.as<Gemm>();
  const std::vector<std::int32_t> rows = {0, 6, 7, 11};
  set_rows(o, rows);
  for (const char* name : {"cpu_gemv", "cpu_codes"}) {
    INFO(name);
    const Family& f = family("gemm", name);
    const Source source = f.source(o.problem, host_arch(), f.candidates(o.problem, host_arch()).front());
    const Binary b = compile(source, host_arch(), llvm());
    const std::vector<std::byte> dense = o.run(device, b);
    const int first[] = {0};
    const Kernel kernel(device, std::span(&b, 1), first, contract_for(o.problem));
    GemmArgs args;
    std::memcpy(&args, o.task.arguments(o.pointers, g.m).data(), sizeof args);
    constexpr std::int64_t kLdx = 144, kLdy = 51;
    std::vector<std::byte> x(11 * kLdx), y(11 * kLdy * 4);
    for (std::size_t row = 0; row < 11; ++row)
      std::memcpy(x.data() + row * kLdx, static_cast<const std::byte*>(args.x.data) + row * 128, 128);
    args.m = 11, args.x.data = x.data(), args.y = y.data(), args.ldx = kLdx, args.ldy = kLdy;
    kernel.launch(nullptr, args);
    for (std::size_t row = 0; row < 11; ++row)
      CHECK(std::memcmp(y.data() + row * kLdy * 4, dense.data() + row * 48 * 4, 48 * 4) == 0);
  }
}

TEST_CASE("groups whose copy of x would be large are computed one behind the other") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}});
  Operands o("gemm x=bf16 w=bf16 y=f32 m=32 n=16 k=65536 pack=panels groups=6");
  const std::vector<std::int32_t> rows = {0, 7, 150, 150, 151, 180, 192};  // 36 MiB alone, and with others more
  set_rows(o, rows);
  const Family& floats = family("gemm", "cpu_floats");
  int kernels = 0;
  for (const Candidate& c : floats.candidates(o.problem, host_arch())) {
    const Source source = floats.source(o.problem, host_arch(), c);
    if (!source.host) continue;
    CHECK(source.plan.most_rows == 0);
    o.run(device, built_in(source, host_arch()));
    CHECK(o.wrong() == "");
    ++kernels;
    break;
  }
  CHECK(kernels > 0);
}

TEST_CASE("groups: binaries are shared by problems that differ in n and k, and every target's text compiles") {
  const auto text_of = [](const char* text, const Arch& target, const char* name) {
    const Family& f = family("gemm", name);
    const Problem problem = Problem::parse(text);
    const std::vector<Candidate> all = f.candidates(problem, target);
    REQUIRE(!all.empty());
    return f.source(problem, target, all.front()).text;
  };
  for (const Arch& target : cpu_archs()) {
    if (!target.cpu->vector_bytes) continue;
    INFO(target.name);
    for (const char* name : {"cpu_gemv", "cpu_codes"})
      CHECK(text_of("gemm x=q8_1 w=q4_0 y=f32 m=4 n=64 k=128 pack=panels groups=3", target, name) ==
            text_of("gemm x=q8_1 w=q4_0 y=f32 m=4 n=128 k=256 pack=panels groups=60", target, name));
    for (const char* text : {"gemm x=int8_row w=nvfp4 y=f32 m=4 n=64 k=128 pack=panels groups=3 global=div bias=f16",
                             "gemm x=f16 w=bf16 y=e4m3 m=4 n=64 k=128 pack=panels groups=3 group_layout=masked"}) {
      const Problem problem = Problem::parse(text);
      for (const Family* f : families("gemm", target)) {
        const std::vector<Candidate> all = f->candidates(problem, target);
        if (all.empty()) continue;
        INFO(text << " " << all.front().text());
        const Binary b = compile(f->source(problem, target, all.front()), target, llvm());
        CHECK((b.host || b.image.size() > 0));
      }
    }
  }
}
