// SPDX-License-Identifier: Apache-2.0
// The kernels themselves: compiled and built in, at every corner of their knobs, against the oracle and each other.
#include <tilewright/family.h>
#include <tilewright/host_archs.h>
#include <tilewright/numerics.h>
#include <tilewright/operation.h>
#include <tilewright/pack.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <random>
#include <set>

#include "cpu_test.h"
#include "operands.h"
#include "templates/cpu/panels.h"
#include "templates/describe.h"
#include "templates/families.h"
#include "tiles_native.h"

using namespace tilewright;
using namespace tilewright::test;

namespace {

std::string gemm(const char* w, std::int64_t m, std::int64_t n, std::int64_t k, const char* rest,
                 const char* x = "q8_1") {
  const bool global = Format::parse(w).info().global_for;
  return fmt::format("gemm x={} w={} y=f32 m={} n={} k={} pack=panels {}{}", x, w, m, n, k, rest,
                     global ? m % 2 ? " global=mul" : " global=div" : "");
}

// Formats that have panels.
constexpr const char* kWeights[] = {"ggml_mxfp4", "ggml_nvfp4", "int4_g128", "int4_g32",   "int4_g64", "int4_row",
                                    "int8_row",   "mxfp4",      "nvfp4",     "q4_0",       "q4_k",     "q5_k",
                                    "q6_k",       "q8_0",       "uint4_g32", "uint4_g128", "uint4_g64"};

constexpr const char* kFloats[] = {"f32", "f16", "bf16"};
const char* x_of(const char* w) {
  return std::find(kFloats, std::end(kFloats), std::string(w)) < std::end(kFloats) ? "bf16" : "q8_1";
}

// Of some format: k that is a small number of its blocks, and of 32 columns.
std::int64_t columns(const char* w, std::int64_t blocks) { return std::max(Format::parse(w).block(), 32) * blocks; }

// A weight's streams.
std::vector<std::vector<std::byte>> streams_of(Format f, std::int64_t n, std::int64_t k, MutableOperand& operand) {
  std::vector<std::vector<std::byte>> all;
  for (std::size_t i = 0; i < f.info().streams.size(); ++i) {
    all.emplace_back(static_cast<std::size_t>(f.stream_bytes(static_cast<int>(i), n, k)));
    operand.set(f.info().streams[i].stream, all.back().data());
  }
  return all;
}

bool here(const Arch& target) {  // whether this machine runs it
  return std::ranges::find(host_archs(), &target) != host_archs().end();
}

}  // namespace

TEST_CASE("every kernel is right, and all give the same bits") {
  TILEWRIGHT_NEEDS_KERNELS();
  for (const char* w : kWeights)
    for (const char* rest : {"", "x_from=f32", "x_from=f32 bias=f32 alpha=0.75"})
      for (const std::int64_t m : {1, 3, 8, 21}) {
        if (*rest && m != 3 && m != 21) continue;
        const char* const x = (m + static_cast<std::int64_t>(std::strlen(rest))) % 3 == 2 ? "int8_row" : "q8_1";
        Operands o(gemm(w, m, 80, columns(w, Format::parse(w).block() == 256 ? 1 : 3), rest, x));
        INFO(o.problem.text());
        std::vector<std::byte> bits;
        int kernels = 0;
        for (const int threads : {1, 3}) {
          const Device device = Device::open_cpu({.threads = threads, .parallel_for = {}});
          for (const Family* f : families("gemm", host_arch())) {
            if (f == families("gemm", host_arch()).back()) continue;
            for (const Candidate& c : f->candidates(o.problem, host_arch())) {
              INFO(c.text() << ", " << threads << " threads");
              const Source source = f->source(o.problem, host_arch(), c);
              std::vector<Binary> binaries;
              if (threads == 1 ? kernels % 6 == m % 6 : kernels % 23 == 0)
                binaries.push_back(compile(source, host_arch(), llvm()));
              if (source.host) binaries.push_back(built_in(source, host_arch()));
              for (const Binary& b : binaries) {
                const std::vector<std::byte> y = o.run(device, b);
                if (bits.empty()) {
                  REQUIRE(o.wrong() == "");
                  bits = y;
                }
                REQUIRE(y == bits);
              }
              ++kernels;
            }
          }
        }
        CHECK(kernels > 2);
      }
}

// A compiled and a built-in kernel of each family, with every type of x, y and bias.
TEST_CASE("random problems: compiled and built-in kernels are right and give the same bits") {
  TILEWRIGHT_NEEDS_KERNELS();
  std::mt19937 random(11);
  const auto one_of = [&](auto&& list) { return list[random() % std::size(list)]; };
  for (const char* w : kWeights)
    for (int i = 0; i < 12; ++i) {
      static constexpr const char *kX[] = {"", " x_from=f32", " x_from=f16", " x_from=bf16"},
                                  *kY[] = {"f32", "f16", "bf16"},
                                  *kBias[] = {"", " bias=f32", " bias=f16", " bias=bf16"};
      Operands o(fmt::format("gemm x={} w={} y={} m={} n={} k={} pack=panels{}{} alpha={}{}",
                             random() % 2 ? "q8_1" : "int8_row", w, kY[i % 3], 1 + random() % (i % 2 ? 6 : 150),
                             16 * (1 + random() % 12), columns(w, 1 + static_cast<std::int64_t>(random() % 5)),
                             kX[i % 4], one_of(kBias), random() % 2 ? "1" : "0.375",
                             !Format::parse(w).info().global_for ? ""
                             : random() % 2                      ? " global=mul"
                                                                 : " global=div"));
      INFO(o.problem.text());
      const Device device = Device::open_cpu({.threads = 1 + static_cast<int>(random() % 4), .parallel_for = {}});
      std::vector<std::byte> bits;
      int compared = 0;
      for (const Family* f : families("gemm", host_arch())) {
        if (f == families("gemm", host_arch()).back()) continue;
        const std::vector<Candidate> all = f->candidates(o.problem, host_arch());
        const std::size_t some = random() % std::max<std::size_t>(all.size(), 1);
        for (std::size_t c = 0; c < all.size(); ++c) {
          const Source source = f->source(o.problem, host_arch(), all[c]);
          std::vector<Binary> binaries;
          if (source.host) binaries.push_back(built_in(source, host_arch()));
          if (source.host || c == 0 || c == some) binaries.push_back(compile(source, host_arch(), llvm()));
          for (const Binary& b : binaries) {
            INFO(all[c].text());
            const std::vector<std::byte> y = o.run(device, b);
            if (bits.empty()) {
              REQUIRE(o.wrong() == "");
              bits = y;
            }
            REQUIRE(y == bits);
            ++compared;
          }
        }
      }
      CHECK(compared >= 1);
    }
}

TEST_CASE("scales of every value are those of the format") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Device device = Device::open_cpu({.threads = 1, .parallel_for = {}});
  for (const char* w : {"ggml_mxfp4", "ggml_nvfp4", "q4_k", "q6_k", "mxfp4", "nvfp4"}) {
    Operands o(gemm(w, 2, 256, columns(w, 1), "x_from=f32"));
    const Gemm& g = *o.problem.as<Gemm>();
    std::vector<std::byte> plain(static_cast<std::size_t>(g.w.stream_bytes(0, g.n, g.k))), scales;
    std::mt19937 random(5);
    const std::string name = w;
    for (std::size_t row = 0; row < 256; ++row) {
      std::byte* const block = plain.data() + row * (plain.size() / 256);
      for (std::size_t i = 0; i < plain.size() / 256; ++i) block[i] = static_cast<std::byte>(random());
      const auto set = [&](std::size_t at, std::size_t value) { block[at] = static_cast<std::byte>(value); };
      if (name == "ggml_mxfp4")  // beyond 2^100 sums are no floats
        for (const std::size_t at : {0, 17}) set(at, row > 227 && row < 255 ? 0 : row);
      if (name == "ggml_nvfp4")
        for (std::size_t at = 0; at < 4; ++at) set(at, row);
      if (name == "q6_k") {
        for (std::size_t at = 192; at < 208; ++at) set(at, row + at);
        set(208, row), set(209, 0x24);
      }
      if (name == "nvfp4") scales.insert(scales.end(), 2, static_cast<std::byte>(row));
      if (name == "mxfp4") scales.insert(scales.end(), 2, static_cast<std::byte>(row > 227 && row < 255 ? 0 : row));
      if (name == "q4_k") set(0, row), set(1, 0x24), set(2, row), set(3, 0xa0);
    }
    for (std::size_t i = 0; i < o.spans.size(); ++i)
      if (o.task.buffers[i].name == "w.data")
        pack_weights(g, {plain.data(), scales.data(), nullptr}, {o.spans[i].data(), nullptr, nullptr});
    for (const Family* f : families("gemm", host_arch()))
      for (const Candidate& c : f->candidates(o.problem, host_arch())) {
        const Source source = f->source(o.problem, host_arch(), c);
        if (!source.host) continue;
        INFO(w << " " << c.text());
        const auto y = o.run(device, built_in(source, host_arch()));
        CHECK(o.wrong() == "");
        if (source.text.empty()) continue;
        CHECK(o.run(device, compile(source, host_arch(), llvm())) == y);
      }
  }
}

TEST_CASE("some kernel is built in for every number of rows, and it is right") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}});
  for (const char* w : kWeights)
    for (const std::int64_t m : kBuckets) {
      if (m > 512) break;
      Operands o(gemm(w, m, 48, columns(w, 1), "x_from=f32"));
      INFO(o.problem.text());
      int found = 0;
      for (const Family* f : families("gemm", host_arch())) {
        if (f == families("gemm", host_arch()).back()) continue;
        for (const Candidate& c : f->candidates(o.problem, host_arch())) {
          const Source source = f->source(o.problem, host_arch(), c);
          if (!source.host) continue;
          ++found;
          o.run(device, built_in(source, host_arch()));
          CHECK(o.wrong() == "");
        }
      }
      CHECK(found > 0);
    }
}

TEST_CASE("codes of every value are multiplied exactly") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Device device = Device::open_cpu({.threads = 1, .parallel_for = {}});
  for (const char* w : kWeights) {
    Operands o(gemm(w, 3, 32, columns(w, 2), ""));
    const cpu::PanelCodes& panel = *cpu::panel_codes(Format::parse(w));
    std::mt19937 random(7);
    // Extremes in long runs, so that partial sums of 16 bits are as large as they can be.
    for (std::size_t i = 0; i < o.spans.size(); ++i) {
      if (o.task.buffers[i].output) continue;
      const bool weights = o.task.buffers[i].name == "w.data";
      if (!weights && o.task.buffers[i].name != "x.data") continue;
      const std::size_t head = static_cast<std::size_t>(weights ? panel.head_bytes() : 0),
                        all = weights ? static_cast<std::size_t>(panel.panel_bytes(columns(w, 2))) : o.spans[i].size(),
                        group = static_cast<std::size_t>(weights ? panel.group_bytes() : 0),
                        block = static_cast<std::size_t>(weights ? panel.bytes() : 36),
                        groups = group + block * static_cast<std::size_t>(weights ? panel.blocks() : 1);
      for (std::size_t at = 0; at < o.spans[i].size(); ++at) {
        const std::size_t in_panel = at % all;
        if (in_panel < head || (in_panel - head) % groups < group) continue;  // scales stay numbers
        const std::size_t in = ((in_panel - head) % groups - group) % block;
        if (weights ? in >= static_cast<std::size_t>(panel.code_bytes()) : in < 4) continue;
        const unsigned kind = static_cast<unsigned>(at / 40) % 4;
        o.spans[i][at] = static_cast<std::byte>(kind == 0 ? 0xff : kind == 1 ? 0x80 : kind == 2 ? 0x7f : random());
      }
    }
    // Knobs change nothing of this but for few and many tokens: some of each.
    int kernels = 0;
    for (const Family* f : families("gemm", host_arch()))
      for (const Candidate& c : f->candidates(o.problem, host_arch())) {
        if (++kernels % 4 && f != families("gemm", host_arch()).back()) continue;
        INFO(o.problem.text() << " " << c.text());
        o.run(device, compile(f->source(o.problem, host_arch(), c), host_arch(), llvm()));
        CHECK(o.wrong() == "");
      }
  }
}

TEST_CASE("every target's text compiles at many knobs, and runs where this machine can") {
  std::vector<const char*> weights(std::begin(kWeights), std::end(kWeights));
  weights.insert(weights.end(), std::begin(kFloats), std::end(kFloats));
  for (const Arch& target : cpu_archs())
    for (const char* w : weights)
      for (const std::int64_t m : {4, 33}) {
        const bool floats = std::string(x_of(w)) != "q8_1";
        const char* const rest = m == 4 ? "x_from=f32 bias=f32" : "x_from=bf16 bias=f16";
        Operands o(gemm(w, m, 48, columns(w, 1), floats ? rest + 10 + (m == 4 ? 0 : 1) : rest,
                        floats   ? x_of(w)
                        : m == 4 ? "q8_1"
                                 : "int8_row"));
        int kernels = 0, all = 0;
        for (const Family* f : families("gemm", target)) {
          for (const Candidate& c : f->candidates(o.problem, target)) {
            INFO(target.name << " " << o.problem.text() << " " << c.text());
            if (all++ % (floats ? 3 : 6) != 0 && f != families("gemm", target).back()) continue;
            const Binary b = compile(f->source(o.problem, target, c), target, llvm());
            ++kernels;
            if (!here(target)) continue;
            const Device device = Device::open_cpu({.threads = 1, .parallel_for = {}, .target = target.name});
            o.run(device, b);
            CHECK(o.wrong() == "");
          }
          if (!target.cpu->vector_bytes && f != families("gemm", target).back())
            CHECK(f->why_not(o.problem, target).find("lacks AVX2") != std::string::npos);
        }
        CHECK(kernels >= (target.cpu->vector_bytes ? 3 : 1));
      }
}

TEST_CASE("the kernel by tiles, over plain C++ in place of AMX, gives the bits of the others") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Arch& target = arch("x86-64-v4+vnni+amx");
  const Family& tiles = family("gemm", "cpu_amx");
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}, .target = {}});
  for (const char* w : kWeights)
    for (const std::int64_t m : {9, 40, 70}) {
      Operands o(gemm(w, m, 96, columns(w, m == 40 ? 3 : 2), m == 40 ? "" : "x_from=f32"));
      const Source other =
          family("gemm", "cpu_codes")
              .source(o.problem, host_arch(), family("gemm", "cpu_codes").candidates(o.problem, host_arch()).front());
      const std::vector<std::byte> bits = o.run(device, compile(other, host_arch(), llvm()));
      REQUIRE(o.wrong() == "");
      int kernels = 0;
      for (const Candidate& c : tiles.candidates(o.problem, target)) {
        if (c.at("panels") != 4) continue;
        INFO(o.problem.text() << " " << c.text());
        const Source source = tiles.source(o.problem, target, c);
        Binary b;
        b.target = host_arch().name;
        b.entry = "in_plain_code";  // needs no AMX
        b.plan = source.plan;
        cpu::Epilogue e;
        e.global = o.problem.as<Gemm>()->global;
        b.host = std::make_shared<const CpuKernel>(tiles_in_native(
            *cpu::panel_codes(Format::parse(w)), {m == 40 ? cpu::Type::q8_1 : cpu::Type::f32, false}, e,
            static_cast<int>(c.at("tokens")), static_cast<int>(c.at("chunk")), static_cast<int>(c.at("together"))));
        REQUIRE(o.run(device, b) == bits);
        ++kernels;
      }
      CHECK(kernels >= 2);
    }
}

TEST_CASE("panels hold what their description says, and unpack to the bytes that were packed") {
  for (const char* w : {"q4_0", "q8_0"}) {
    const Problem problem = Problem::parse(gemm(w, 1, 32, 64, ""));
    const Gemm& g = *problem.as<Gemm>();
    const int row_block = std::string(w) == "q4_0" ? 18 : 34, block = 16 * row_block;
    std::vector<std::byte> plain(static_cast<std::size_t>(g.w.stream_bytes(0, 32, 64))), packed(plain.size()),
        back(plain.size());
    CHECK(packed_bytes(g, StreamName::data) == static_cast<std::int64_t>(plain.size()));
    CHECK(packed_bytes(g, StreamName::scales) == 0);
    std::mt19937 random(3);
    for (std::byte& b : plain) b = static_cast<std::byte>(random());
    pack_weights(g, {plain.data(), nullptr, nullptr}, {packed.data(), nullptr, nullptr});
    unpack_weights(g, {packed.data(), nullptr, nullptr}, {back.data(), nullptr, nullptr});
    CHECK(back == plain);
    for (int row = 0; row < 32; ++row)
      for (int column = 0; column < 64; ++column) {
        const std::byte* from = plain.data() + (row * 2 + column / 32) * row_block;
        const std::byte* to = packed.data() + ((row / 16) * 2 + column / 32) * block;
        const int c = column % 32, r = row % 16;
        if (row_block == 18) {
          const int wanted = std::to_integer<int>(from[2 + c % 16]) >> (c < 16 ? 0 : 4) & 15;
          const int found = std::to_integer<int>(to[64 * (c % 16 / 4) + 4 * r + c % 4]) >> (c < 16 ? 0 : 4) & 15;
          REQUIRE(found == wanted);
        } else {
          REQUIRE(to[64 * (c / 4) + 4 * r + c % 4] == (from[2 + c] ^ std::byte{0x80}));
        }
        REQUIRE(std::memcmp(to + block - 32 + 2 * r, from, 2) == 0);
      }
  }
}

TEST_CASE("weights of any bytes come back from panels as they were") {
  std::mt19937 random(9);
  std::vector<const char*> weights(std::begin(kWeights), std::end(kWeights));
  weights.insert(weights.end(), std::begin(kFloats), std::end(kFloats));
  for (const char* w : weights)
    for (const std::int64_t blocks : {1, 2, 5}) {
      const Problem problem = Problem::parse(gemm(w, 1, 48, columns(w, blocks), "", x_of(w)));
      INFO(problem.text());
      const Gemm& g = *problem.as<Gemm>();
      MutableOperand plain, back;
      auto from = streams_of(g.w, g.n, g.k, plain), to = streams_of(g.w, g.n, g.k, back);
      for (auto& stream : from)
        for (std::byte& b : stream) b = static_cast<std::byte>(random());
      // Guarded: what packing reads or writes beyond a stream ends the test.
      const Guarded packed(static_cast<std::size_t>(packed_bytes(g, StreamName::data)), 16);
      float global = 0;
      CHECK(packed_bytes(g, StreamName::scales) == 0);
      CHECK(packed_bytes(g, StreamName::global) == (g.global == Global::none ? 0 : 4));
      const MutableOperand panels{packed.data(), nullptr, &global};
      pack_weights(g, plain, panels);
      unpack_weights(g, panels, back);
      CHECK(to == from);
      // Parts of a matrix: as the threads of a device pack it.
      std::vector<std::byte> again(static_cast<std::size_t>(packed_bytes(g, StreamName::data)));
      for (std::int64_t panel = 2; panel >= 0; --panel)
        cpu::pack_panels(g.w, g.k, panel, panel + 1, plain, again.data());
      CHECK(std::memcmp(again.data(), packed.data(), again.size()) == 0);
      if (plain.scales) {
        const MutableOperand without{plain.data, nullptr, plain.global};
        CHECK(refusal([&] { pack_weights(g, without, panels); }).field() == "from.scales");
      }
    }
}

TEST_CASE("a device packs weights with scales of their own, and unpacks them") {
  const Device device = Device::open_cpu({.threads = 3, .parallel_for = {}});
  for (const char* w : {"nvfp4", "int8_row", "uint4_g128", "f16", "f32"})
    for (const char* inverse : {"", " inverse=1"}) {
      Operands o(fmt::format("pack w={} x={} n=96 k=384 order=panels{}", w, x_of(w), inverse));
      INFO(o.problem.text());
      const Family& panels = *families("pack", host_arch()).front();
      REQUIRE(panels.why_not(o.problem, host_arch()) == "");
      const Source source = panels.source(o.problem, host_arch(), panels.candidates(o.problem, host_arch()).front());
      o.run(device, built_in(source, host_arch()));
      CHECK(o.wrong() == "");
    }
}

TEST_CASE("what panels are not for is refused by name") {
  CHECK(refused("gemm x=q8_1 w=q4_0 y=f32 m=1 n=40 k=64 pack=panels") == "n=40: a multiple of 16, the rows of a panel");
  CHECK(refused("gemm x=int8_row w=int8_row y=f32 m=1 n=48 k=40 pack=panels") ==
        "k=40: a multiple of 32, the columns of a panel's block");
  CHECK(refused("gemm x=f16 w=q4_0 y=f32 m=1 n=48 k=64 pack=panels")
            .find("pack=panels: panels of w=q4_0 are for x=q8_1 or int8_row") == 0);
  CHECK(refused("gemm x=q8_1 w=q2_k y=f32 m=1 n=48 k=256 pack=panels")
            .find("pack=panels: w=q2_k has no panels; f32, f16, bf16, ggml_mxfp4, ") == 0);
  CHECK(refused("gemm x=q8_1 w=f16 y=f32 m=1 n=48 k=64 pack=panels") ==
        "pack=panels: panels of w=f16 are for x=f32, f16 or bf16, not x=q8_1");
  CHECK(refused("gemm x=f16 w=f16 y=f32 m=1 n=40 k=7 pack=panels") == "n=40: a multiple of 16, the rows of a panel");
  CHECK(refused("pack w=q4_0 x=q8_1 n=48 k=64 order=none") == "order=none: tiles or panels");
  CHECK(refused("conv x=f16 w=f16 y=f16 n=1 c=64 k=64 in=8x8 kernel=3x3 pack=panels").find("pack") == 0);
}

// What the kernels are to give, bit for bit: parts of 64 columns, their products added by fused operations.
TEST_CASE("products of floats are summed in the stated order") {
  TILEWRIGHT_NEEDS_KERNELS();
  std::mt19937 random(17);
  int compiled = 0;
  for (const char* x : kFloats)
    for (const char* w : kFloats)
      for (const std::int64_t m : {1, 2, 7, 40}) {
        const std::int64_t ks[] = {1, 7, 64, 65, 130, 200, 256, 259}, n = 16 * (1 + random() % 7), k = ks[random() % 8];
        Operands o(gemm(w, m, n, k, "", x));
        INFO(o.problem.text());
        const auto values = [&](const char* name) {
          for (const Matrix& matrix : o.task.matrices)
            if (matrix.name == name) return decoded(matrix, o.spans);
          return std::vector<float>();
        };
        const std::vector<float> xs = values("x"), ws = values("w");
        std::vector<float> wanted;
        for (std::int64_t t = 0; t < m; ++t)
          for (std::int64_t r = 0; r < n; ++r) {
            float all = 0;
            for (std::int64_t first = 0; first < k; first += 64) {
              float part = 0;
              for (std::int64_t i = first; i < std::min(first + 64, k); ++i)
                part = std::fma(ws[r * k + i], xs[t * k + i], part);
              all += part;
            }
            wanted.push_back(all);
          }
        int kernels = 0;
        for (const int threads : {1, 3}) {
          const Device device = Device::open_cpu({.threads = threads, .parallel_for = {}});
          const Family& floats = family("gemm", "cpu_floats");
          for (const Candidate& c : floats.candidates(o.problem, host_arch())) {
            INFO(c.text());
            const Source source = floats.source(o.problem, host_arch(), c);
            std::vector<Binary> binaries;
            if (source.host) binaries.push_back(built_in(source, host_arch()));
            if (++compiled % 5 == 0) binaries.push_back(compile(source, host_arch(), llvm()));
            for (const Binary& b : binaries) {
              const std::vector<std::byte> y = o.run(device, b);
              REQUIRE(o.wrong() == "");
              REQUIRE(std::memcmp(y.data(), wanted.data(), y.size()) == 0);
              ++kernels;
            }
          }
        }
        CHECK(kernels > 0);
      }
}

TEST_CASE("random problems of floats: compiled and built-in kernels are right and give the same bits") {
  TILEWRIGHT_NEEDS_KERNELS();
  std::mt19937 random(23);
  const auto one_of = [&](auto&& list) { return list[random() % std::size(list)]; };
  const Family& floats = family("gemm", "cpu_floats");
  for (int i = 0; i < 60; ++i) {
    static constexpr const char* kBias[] = {"", " bias=f32", " bias=f16", " bias=bf16"};
    Operands o(fmt::format("gemm x={} w={} y={} m={} n={} k={} pack=panels{} alpha={}", one_of(kFloats),
                           one_of(kFloats), one_of(kFloats), 1 + random() % (i % 2 ? 9 : 200), 16 * (1 + random() % 12),
                           1 + random() % 700, one_of(kBias), random() % 2 ? "1" : "0.375"));
    INFO(o.problem.text());
    const Device device = Device::open_cpu({.threads = 1 + static_cast<int>(random() % 4), .parallel_for = {}});
    const std::vector<Candidate> all = floats.candidates(o.problem, host_arch());
    REQUIRE(!all.empty());
    const std::size_t some = random() % all.size();
    std::vector<std::byte> bits;
    for (std::size_t c = 0; c < all.size(); ++c) {
      const Source source = floats.source(o.problem, host_arch(), all[c]);
      std::vector<Binary> binaries;
      if (source.host) binaries.push_back(built_in(source, host_arch()));
      if (c == some) binaries.push_back(compile(source, host_arch(), llvm()));
      for (const Binary& b : binaries) {
        INFO(all[c].text());
        const std::vector<std::byte> y = o.run(device, b);
        if (bits.empty()) {
          REQUIRE(o.wrong() == "");
          bits = y;
        }
        REQUIRE(y == bits);
      }
    }
  }
}

TEST_CASE("floats: rows whose copy would be large are several launches") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}});
  Operands o("gemm x=f16 w=f16 y=f32 m=75 n=16 k=200000 pack=panels c=f32 bias=f32");
  const Family& floats = family("gemm", "cpu_floats");
  int kernels = 0;
  for (const Candidate& c : floats.candidates(o.problem, host_arch())) {
    const Source source = floats.source(o.problem, host_arch(), c);
    if (!source.host) continue;
    CHECK(source.plan.most_rows == 32);
    o.run(device, built_in(source, host_arch()));
    CHECK(o.wrong() == "");
    if (++kernels == 2) break;
  }
  CHECK(kernels > 0);
}

TEST_CASE("floats: some kernel is built in for every number of rows") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Family& floats = family("gemm", "cpu_floats");
  for (const std::int64_t m : kBuckets) {
    const Problem problem = Problem::parse(gemm("f16", m, 48, 100, "", "f16"));
    INFO(problem.text());
    int found = 0;
    for (const Candidate& c : floats.candidates(problem, host_arch()))
      found += floats.source(problem, host_arch(), c).host != nullptr;
    CHECK(found > 0);
  }
}

TEST_CASE("weights that stand in panels are offered to a CPU, and to it alone") {
  TILEWRIGHT_NEEDS_KERNELS();
  const auto packed = [](const char* text, const Arch& arch) {
    const Problem problem = Problem::parse(text);
    const std::optional<Problem> p = problem.operation().packed(problem, arch);
    return p && p->as<Gemm>()->packing == Packing::panels;
  };
  CHECK(packed("gemm x=f16 w=f16 y=f16 m=3 n=48 k=100", host_arch()));
  CHECK(packed("gemm x=int8_row w=uint4_g128 y=f16 m=3 n=48 k=128 x_from=bf16", host_arch()));
  CHECK(!packed("gemm x=f16 w=f16 y=f16 m=3 n=40 k=100", host_arch()));
  CHECK(!packed("gemm x=int8_row w=int8_row y=f16 m=3 n=48 k=40", host_arch()));
  CHECK(!packed("gemm x=f16 w=q4_0 y=f16 m=3 n=48 k=64", host_arch()));
  CHECK(!packed("gemm x=f16 w=f16 y=int8 m=3 n=48 k=64 act=none y_scale=2", cpu_archs().front()));
  CHECK(!packed("gemm x=f16 w=f16 y=f16 m=3 n=48 k=64", archs().front()));
}

namespace {

// Every family's built-in kernels, and one compiled one of each: equal, and right.
void check_alike(Operands& o, const Device& device) {
  std::vector<std::byte> bits;
  std::map<std::string, int> families_seen;
  for (const Family* f : families("gemm", host_arch())) {
    if (f == families("gemm", host_arch()).back()) continue;
    for (const Candidate& c : f->candidates(o.problem, host_arch())) {
      const Source source = f->source(o.problem, host_arch(), c);
      std::vector<Binary> binaries;
      if (source.host) binaries.push_back(built_in(source, host_arch()));
      if (families_seen[std::string(f->name())]++ == 0) binaries.push_back(compile(source, host_arch(), llvm()));
      for (const Binary& b : binaries) {
        INFO(o.problem.text() << " " << c.text());
        const std::vector<std::byte> y = o.run(device, b);
        REQUIRE(o.wrong() == "");
        if (bits.empty()) bits = y;
        REQUIRE(y == bits);
      }
    }
  }
  REQUIRE(!bits.empty());
}

std::span<std::byte> buffer_of(Operands& o, const char* name) {
  for (std::size_t i = 0; i < o.spans.size(); ++i)
    if (o.task.buffers[i].name == name) return o.spans[i];
  return {};
}

}  // namespace

TEST_CASE("activations, residuals and int8 with a scale follow the sums, in every family") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}});
  int turn = 0;
  for (const char* operands : {"x=q8_1 w=q4_0", "x=int8_row w=int8_row", "x=bf16 w=f16"})
    for (const char* act : {"none", "relu", "gelu", "gelu_tanh", "silu"})
      for (const char* y : {"y=f32", "y=f16", "y=bf16", "y=int8 y_scale=0.02", "y=e4m3 y_scale=0.01", "y=e5m2"})
        for (const char* c : {"", " c=f32 beta=-0.5", " c=bf16", " c=f16 beta=3"}) {
          if (++turn % 2 && *c) continue;
          Operands o(fmt::format("gemm {} {} m={} n=48 k=64 pack=panels act={}{}{}", operands, y,
                                 turn % 3 == 0 ? 1 : 5 + turn % 40, act, c, turn % 4 ? "" : " bias=f32"));
          check_alike(o, device);
        }
}

// What is activated is the bias alone, since x is 0.
TEST_CASE("activations of every kind of number") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Device device = Device::open_cpu({.threads = 1, .parallel_for = {}});
  constexpr std::int64_t n = 4096;
  std::vector<float> values(n);
  const float special[] = {0.0f,    -0.0f,    INFINITY, -INFINITY, NAN,     1e-45f, -1e-45f, 1e-38f, -1e-38f,
                           3.4e38f, -3.4e38f, 1e20f,    -1e20f,    87.3f,   -87.3f, 88.7f,   -88.7f, 89.5f,
                           -89.5f,  103.0f,   -103.0f,  104.5f,    -104.5f, 200.0f, -200.0f, 1e-8f,  -1e-8f,
                           6.0f,    -6.0f,    28.0f,    -28.0f,    28.3f,   -28.3f};
  for (std::size_t i = 0; i < n; ++i)
    values[i] = i < std::size(special) ? special[i] : (static_cast<float>(i) - 2000.0f) * (i % 3 ? 0.003f : 0.05f);
  for (const char* act : {"relu", "gelu", "gelu_tanh", "silu"})
    for (const char* operands : {"x=f32 w=f32", "x=q8_1 w=q8_0"}) {
      Operands o(fmt::format("gemm {} y=f32 m=1 n={} k=32 pack=panels bias=f32 act={}", operands, n, act));
      std::memset(buffer_of(o, "x.data").data(), 0, buffer_of(o, "x.data").size());
      std::memcpy(buffer_of(o, "bias.data").data(), values.data(), 4 * n);
      check_alike(o, device);
      const Activation which = o.problem.as<Gemm>()->act;
      const float* const y = reinterpret_cast<const float*>(buffer_of(o, "y.data").data());
      for (std::size_t i = 0; i < n; ++i) {
        const double wanted = activate(which, static_cast<double>(values[i]));
        INFO(act << "(" << values[i] << ") = " << y[i] << ", wanted " << wanted);
        if (std::isnan(wanted))
          REQUIRE(std::isnan(y[i]));
        else if (std::isinf(wanted))
          REQUIRE(y[i] == wanted);
        else  // stricter than the bound, which allows 9.6e-7
          REQUIRE(std::fabs(y[i] - wanted) <= 3e-7 * std::fabs(values[i]) + 1e-44);
      }
    }
}

// What is stored is the bias alone, since x is 0.
TEST_CASE("y of one byte is what its codec makes of every kind of number") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Device device = Device::open_cpu({.threads = 1, .parallel_for = {}});
  constexpr std::int64_t n = 1 << 14;
  std::vector<float> values(n);
  std::mt19937 random(41);
  for (std::int64_t i = 0; i < n; ++i) {
    // Any float; and those around every fp8 number and the middle between two.
    std::uint32_t bits = static_cast<std::uint32_t>(random());
    if (i % 4) bits = (bits & 0x80000000u) | ((bits & 0x7fu) + 90u) << 23 | ((bits >> 8 & 15u) << 19);
    if (i % 4 > 1) bits += static_cast<std::uint32_t>(i % 3) - 1;
    std::memcpy(&values[static_cast<std::size_t>(i)], &bits, 4);
  }
  const float special[] = {0.0f,    -0.0f,    INFINITY, -INFINITY, NAN,      -NAN,    448.0f,  464.0f,
                           463.99f, 57344.0f, 61440.0f, 0.5f,      1.5f,     -0.5f,   -127.5f, 127.5f,
                           -128.5f, 126.5f,   1e-45f,   -1e-45f,   0x1p-10f, 0x1p-17f};
  std::copy(std::begin(special), std::end(special), values.begin());
  for (const char* name : {"int8", "e4m3", "e5m2"})
    for (const char* operands : {"x=f32 w=f32", "x=q8_1 w=q8_0"}) {
      Operands o(fmt::format("gemm {} y={} m=1 n={} k=32 pack=panels bias=f32", operands, name, n));
      std::memset(buffer_of(o, "x.data").data(), 0, buffer_of(o, "x.data").size());
      std::memcpy(buffer_of(o, "bias.data").data(), values.data(), 4 * n);
      check_alike(o, device);
      std::vector<std::byte> wanted(n);
      Format::parse(name).info().encode(values.data(), 1, n, {wanted.data(), nullptr, nullptr}, 0);
      const auto y = buffer_of(o, "y.data");
      for (std::size_t i = 0; i < n; ++i) {
        INFO(name << " of " << values[i]);
        // A zero has no sign behind a sum.
        if (values[i] != 0) REQUIRE(y[i] == wanted[i]);
      }
    }
}

TEST_CASE("c may be y, and a launch has factors of its own") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Device device = Device::open_cpu({.threads = 3, .parallel_for = {}});
  for (const char* operands : {"x=q8_1 w=q4_k", "x=f16 w=bf16"})
    for (const std::int64_t m : {2, 70}) {
      Operands o(fmt::format("gemm {} y=f32 m={} n=80 k=256 pack=panels c=f32 beta=0.5 alpha=2", operands, m));
      const auto c = buffer_of(o, "c.data"), y = buffer_of(o, "y.data");
      for (const Family* f : families("gemm", host_arch()))
        for (const Candidate& candidate : f->candidates(o.problem, host_arch())) {
          const Source source = f->source(o.problem, host_arch(), candidate);
          if (!source.host) continue;
          INFO(o.problem.text() << " " << candidate.text());
          const Binary b = built_in(source, host_arch());
          const int first[] = {0};
          const Kernel kernel(device, std::span(&b, 1), first, contract_for(o.problem));
          const auto launch = [&](const void* from, void* to, float alpha, float beta) {
            std::vector<std::byte> bytes = o.task.arguments(o.pointers, o.problem.rows());
            GemmArgs args;
            std::memcpy(&args, bytes.data(), sizeof args);
            args.c = from, args.y = to, args.alpha = alpha, args.beta = beta;
            kernel.launch(nullptr, args);
          };
          launch(c.data(), y.data(), 1, 1);
          std::vector<float> in_place(y.size() / 4), doubled(in_place.size()), none(in_place.size());
          std::memcpy(in_place.data(), c.data(), c.size());
          launch(in_place.data(), in_place.data(), 1, 1);
          CHECK(std::memcmp(in_place.data(), y.data(), y.size()) == 0);
          launch(c.data(), doubled.data(), 2, 2);
          launch(c.data(), none.data(), 0, 1);
          for (std::size_t i = 0; i < doubled.size(); ++i) {
            float once = 0, addend = 0;
            std::memcpy(&once, y.data() + 4 * i, 4);
            std::memcpy(&addend, c.data() + 4 * i, 4);
            REQUIRE(doubled[i] == 2 * once);
            REQUIRE(none[i] == 0.5f * addend);
          }
        }
    }
}

// Rows of floats that int8_row's encoder finds hard: quotients in the middle between two codes, scales that are
// subnormal, infinite, or 1 because the row is zero, and NaN.
TEST_CASE("rows of x are quantized to what their format's encoder makes of them") {
  TILEWRIGHT_NEEDS_KERNELS();
  constexpr std::int64_t kRows = 12, kColumns = 96;
  std::vector<float> x(kRows * kColumns);
  std::mt19937 random(31);
  const auto row = [&](std::int64_t r) { return x.data() + r * kColumns; };
  for (std::int64_t i = 0; i < kColumns; ++i) {
    row(0)[i] = 0.0f;
    row(1)[i] = static_cast<float>(i % 2 ? 1 : -1) * (static_cast<float>(i) + 0.5f);
    row(2)[i] = std::ldexp(static_cast<float>(random() % 255), -149);
    row(3)[i] = std::ldexp(static_cast<float>(random() % 63), -149);
    row(4)[i] = i == 40 ? INFINITY : 1.0f;
    row(5)[i] = i % 9 == 4 ? NAN : static_cast<float>(i) - 30.0f;
    row(6)[i] = NAN;
    row(7)[i] = std::ldexp(static_cast<float>(random() % 1000) - 500.0f, 118);
    for (std::int64_t r = 8; r < kRows; ++r)
      row(r)[i] = std::ldexp(static_cast<float>(random()) - 2147483648.0f, static_cast<int>(random() % 40) - 40);
  }
  row(1)[0] = 127.0f;
  // y = x: w is the identity, of codes 1 and scales 1.
  Operands o(gemm("int8_row", kRows, kColumns, kColumns, "x_from=f32", "int8_row"));
  std::vector<signed char> codes(kColumns * kColumns);
  std::vector<float> scales(kColumns, 1.0f);
  for (std::size_t i = 0; i < kColumns; ++i) codes[i * kColumns + i] = 1;
  std::vector<signed char> quantized(kRows * kColumns);
  std::vector<float> row_scales(kRows), wanted(kRows * kColumns);
  const Format f = Format::parse("int8_row");
  f.info().encode(x.data(), kRows, kColumns, {quantized.data(), row_scales.data(), nullptr}, 0);
  f.info().decode({quantized.data(), row_scales.data(), nullptr}, kRows, kColumns, wanted.data());
  std::size_t out = 0;
  for (std::size_t i = 0; i < o.spans.size(); ++i) {
    if (o.task.buffers[i].name == "w.data")
      pack_weights(*o.problem.as<Gemm>(), {codes.data(), scales.data(), nullptr},
                   {o.spans[i].data(), nullptr, nullptr});
    if (o.task.buffers[i].name == "x.data") std::memcpy(o.spans[i].data(), x.data(), o.spans[i].size());
    if (o.task.buffers[i].output) out = i;
  }
  const Device device = Device::open_cpu({.threads = 1, .parallel_for = {}});
  for (const Family* f : families("gemm", host_arch()))
    for (const Candidate& c : f->candidates(o.problem, host_arch())) {
      const Source source = f->source(o.problem, host_arch(), c);
      if (!source.host || source.text.empty()) continue;
      for (const Binary& b : {built_in(source, host_arch()), compile(source, host_arch(), llvm())}) {
        o.run(device, b);
        const float* const y = reinterpret_cast<const float*>(o.spans[out].data());
        for (std::size_t i = 0; i < wanted.size(); ++i) {
          INFO(c.text() << " [" << i / kColumns << "," << i % kColumns << "] " << x[i]);
          if (i / kColumns == 4)
            REQUIRE(std::isnan(y[i]));
          else
            REQUIRE(y[i] == wanted[i]);
        }
      }
    }
}

TEST_CASE("GPUs have no kernels for panels, and CPUs none for tiles") {
  const Problem panels = Problem::parse(gemm("q4_0", 1, 64, 128, "")),
                tiles = Problem::parse("gemm x=q8_1 w=q4_0 y=f32 m=1 n=64 k=128 pack=tiles");
  for (const Arch& target : archs())
    for (const Family* f : families("gemm", target)) {
      INFO(target.name << " " << f->name());
      CHECK(f->why_not(panels, target) != "");
    }
  for (const Arch& target : cpu_archs())
    for (const Family* f : families("gemm", target)) CHECK(f->why_not(tiles, target) != "");
}

TEST_CASE("the CPU's reference computes what no kernel does") {
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}});
  for (const char* text :
       {"gemm x=f32 w=f32 y=f32 m=3 n=19 k=7", "gemm x=f16 w=q6_k y=bf16 m=2 n=5 k=256 act=gelu bias=f16",
        "gemm x=bf16 w=int8_row y=f32 m=4 n=33 k=100 c=f32 beta=0.5",
        "gemm x=f16 w=nvfp4 y=f16 m=2 n=17 k=64 global=div",
        "gemm x=e4m3_tensor w=e4m3_b128 y=f32 m=3 n=130 k=256 global=mul",
        "gemm x=q8_1 w=q4_0 y=int8 m=2 n=16 k=64 x_from=bf16 y_scale=0.05",
        "gemm x=q8_1 w=q4_0 y=f32 m=2 n=16 k=64 pack=panels act=silu"}) {
    Operands o(text);
    INFO(text);
    const Family& reference = family("gemm", "cpu_reference");
    REQUIRE(reference.why_not(o.problem, host_arch()) == "");
    o.run(device, built_in(reference.source(o.problem, host_arch(), {"cpu_reference", {{"oracle", 0}}}), host_arch()));
    CHECK(o.wrong() == "");
  }
}
