// SPDX-License-Identifier: Apache-2.0
// The kernels themselves: compiled and built in, at every corner of their knobs, against the oracle and each other.
#include <tilewright/family.h>
#include <tilewright/host_archs.h>
#include <tilewright/pack.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "cpu_test.h"
#include "gemms.h"
#include "operands.h"
#include "templates/common/families.h"
#include "templates/operations/gemm/cpu/panels.h"

using namespace tilewright;
using namespace tilewright::test;

namespace {

bool here(const Arch& target) {  // whether this machine runs it
  return std::ranges::find(host_archs(), &target) != host_archs().end();
}

// A panel may have room for codes that the format lacks: what it holds of them becomes some code of the format.
void pack_again(const Gemm& g, std::span<std::byte> panels) {
  const auto bytes = [&](std::size_t i) {
    return i < g.w.info().streams.size() ? static_cast<std::size_t>(g.w.stream_bytes(static_cast<int>(i), g.n, g.k))
                                         : 0;
  };
  std::vector<std::byte> data(bytes(0)), scales(bytes(1));
  const MutableOperand w{data.data(), scales.data(), nullptr};
  cpu::unpack_panels(g, panels.data(), w);
  cpu::pack_panels(g, w, panels.data());
}

}  // namespace

TEST_CASE("every kernel is right, and all give the same bits") {
  TILEWRIGHT_NEEDS_KERNELS();
  for (const char* w : kPanels)
    for (const char* rest : {"", "x_from=f32", "x_from=f32 bias=f32 alpha=0.75"})
      for (const std::int64_t m : {1, 3, 21}) {
        if (*rest && m == 1) continue;
        const char* const x = (m + static_cast<std::int64_t>(std::strlen(rest))) % 3 == 2 ? "int8_row" : "q8_1";
        Operands o(gemm(w, m, 80, columns(w, Format::parse(w).block() == 256 ? 1 : 3), rest, x));
        INFO(o.problem.text());
        SameBits bits;
        int kernels = 0;
        for (const int threads : {1, 3}) {
          const Device device = Device::open_cpu({.threads = threads, .parallel_for = {}});
          for (const Family* f : families("gemm", host_arch())) {
            if (f == families("gemm", host_arch()).back()) continue;
            for (const Candidate& c : f->candidates(o.problem, host_arch())) {
              INFO(c.text() << ", " << threads << " threads");
              const Source source = f->source(o.problem, host_arch(), c);
              std::vector<Binary> binaries;
              if (threads == 1 ? kernels % 13 == m % 13 : kernels % 23 == 0)
                binaries.push_back(compile(source, host_arch(), llvm()));
              if (source.host) binaries.push_back(built_in(source, host_arch()));
              for (const Binary& b : binaries) {
                bits.require(o, device, b);
              }
              ++kernels;
            }
          }
        }
        CHECK(kernels > 2);
      }
}

TEST_CASE("x in floats by codes: every kernel gives the bits of the decoded weights") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}});
  int turn = 0;
  for (const char* w : kPanels)
    for (const std::int64_t m : {1, 5, 19}) {
      const char* const x = kFloats[turn % 3];
      const std::int64_t n = 48, k = columns(w, Format::parse(w).block() == 256 ? 1 : 3);
      Operands o(gemm(w, m, n, k, "bias=f32", x)), plain(gemm("f32", m, n, k, "bias=f32", x));
      const Gemm &g = *o.problem.as<Gemm>(), &f = *plain.problem.as<Gemm>();
      INFO(o.problem.text());
      for (std::size_t i = 0; i < o.spans.size(); ++i) {
        const std::string name = o.task.buffers[i].name;
        for (std::size_t j = 0; j < plain.spans.size(); ++j)
          if (plain.task.buffers[j].name == name && name != "w.data")
            std::memcpy(plain.spans[j].data(), o.spans[i].data(), o.spans[i].size());
        if (name != "w.data") continue;
        std::vector<std::vector<std::byte>> stored;
        for (std::size_t s = 0; s < g.w.info().streams.size(); ++s)
          stored.emplace_back(static_cast<std::size_t>(g.w.stream_bytes(static_cast<int>(s), n, k)));
        stored.resize(3);
        cpu::unpack_panels(g, o.spans[i].data(), {stored[0].data(), stored[1].data(), nullptr});
        std::vector<float> values(static_cast<std::size_t>(n * k));
        const float one = 1;
        g.w.info().decode({stored[0].data(), stored[1].data(), &one}, n, k, values.data());
        for (std::size_t j = 0; j < plain.spans.size(); ++j)
          if (plain.task.buffers[j].name == "w.data")
            cpu::pack_panels(f, {values.data(), nullptr, nullptr}, plain.spans[j].data());
      }
      SameBits bits, bits_of_floats;
      const auto each = [&](Operands& of, SameBits& same, std::size_t step) {
        const Family* const floats =
            *std::ranges::find(families("gemm", host_arch()), "cpu_floats", [](const Family* f) { return f->name(); });
        const std::vector<Candidate> all = floats->candidates(of.problem, host_arch());
        REQUIRE(!all.empty());
        for (std::size_t c = static_cast<std::size_t>(turn) % step % all.size(); c < all.size(); c += step) {
          INFO(all[c].text());
          same.require(of, device, compile(floats->source(of.problem, host_arch(), all[c]), host_arch(), llvm()));
        }
      };
      each(o, bits, 5);
      if (!g.w.info().global_for) {  // whose factor is not in the values
        each(plain, bits_of_floats, 11);
        CHECK(bits.bits() == bits_of_floats.bits());
      }
      ++turn;
    }
}

// A compiled and a built-in kernel of each family, with every type of x, y and bias.
TEST_CASE("random problems: compiled and built-in kernels are right and give the same bits") {
  TILEWRIGHT_NEEDS_KERNELS();
  std::mt19937 random(11);
  const auto one_of = [&](auto&& list) { return list[random() % std::size(list)]; };
  int turn = 0;
  for (const char* w : kPanels)
    for (int i = turn++ % 2; i < 8; i += 2) {
      static constexpr const char *kX[] = {"", " x_from=f32", " x_from=f16", " x_from=bf16"},
                                  *kY[] = {"f32", "f16", "bf16"},
                                  *kBias[] = {"", " bias=f32", " bias=f16", " bias=bf16"};
      const char* const x = i > 5 ? one_of(kFloats) : random() % 2 ? "q8_1" : "int8_row";
      Operands o(fmt::format("gemm x={} w={} y={} m={} n={} k={} pack=panels{}{} alpha={}{}", x, w, kY[i % 3],
                             1 + random() % (i % 2 ? 6 : 150), 16 * (1 + random() % 12),
                             columns(w, 1 + static_cast<std::int64_t>(random() % 5)), i > 5 ? "" : kX[i % 4],
                             one_of(kBias), random() % 2 ? "1" : "0.375",
                             !Format::parse(w).info().global_for ? ""
                             : random() % 2                      ? " global=mul"
                                                                 : " global=div"));
      INFO(o.problem.text());
      const Device device = Device::open_cpu({.threads = 1 + static_cast<int>(random() % 4), .parallel_for = {}});
      SameBits bits;
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
            bits.require(o, device, b);
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
  for (const char* w : kPanels)
    for (const std::int64_t m : kBuckets) {
      if (m > 512 || !cpu::panel_codes(Format::parse(w))->native()) break;
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
  for (const char* w : kPanels) {
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
      if (weights) pack_again(*o.problem.as<Gemm>(), o.spans[i]);
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
  std::vector<const char*> weights(std::begin(kPanels), std::end(kPanels));
  weights.insert(weights.end(), std::begin(kFloats), std::end(kFloats));
  int turn = 0;  // so that problems compile other places of their lists
  for (const Arch& target : cpu_archs())
    for (const char* w : weights)
      for (const std::int64_t m : {4, 33, 6}) {  // 6: of x in floats, for a quarter of the formats
        if (m == 6 && turn % 4 != 0) {
          ++turn;
          continue;
        }
        const bool floats = m == 6 || std::string(x_of(w)) != "q8_1";
        const char* const rest = m == 4 ? "x_from=f32 bias=f32" : "x_from=bf16 bias=f16";
        Operands o(gemm(w, m, 48, columns(w, 1), floats ? rest + 10 + (m == 4 ? 0 : 1) : rest,
                        m == 6   ? "f16"
                        : floats ? x_of(w)
                        : m == 4 ? "q8_1"
                                 : "int8_row"));
        int kernels = 0, all = turn++;
        for (const Family* f : families("gemm", target)) {
          for (const Candidate& c : f->candidates(o.problem, target)) {
            INFO(target.name << " " << o.problem.text() << " " << c.text());
            if (all++ % (m == 6 ? 11 : floats ? 7 : 27) != 0 && f != families("gemm", target).back()) continue;
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
        CHECK(kernels >= (target.cpu->vector_bytes ? 2 : 1));
      }
}
