// SPDX-License-Identifier: Apache-2.0
// Weights in panels: what they hold, who packs them, and what takes them.
#include <tilewright/family.h>
#include <tilewright/operation.h>
#include <tilewright/pack.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>

#include "cpu_test.h"
#include "gemms.h"
#include "operands.h"
#include "support/junk_bytes.h"
#include "templates/backends/cpu/panel_list.h"
#include "templates/backends/cpu/panels.h"
#include "templates/common/describe.h"
#include "templates/common/families.h"

using namespace tilewright;
using namespace tilewright::test;

namespace {

// A weight's streams.
std::vector<std::vector<std::byte>> streams_of(Format f, std::int64_t n, std::int64_t k, MutableOperand& operand) {
  std::vector<std::vector<std::byte>> all;
  for (std::size_t i = 0; i < f.info().streams.size(); ++i) {
    all.emplace_back(static_cast<std::size_t>(f.stream_bytes(static_cast<int>(i), n, k)));
    operand.set(f.info().streams[i].stream, all.back().data());
  }
  return all;
}

}  // namespace

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
  weights.insert(weights.end(), std::begin(kFp8), std::end(kFp8));
  weights.push_back("int8");
  for (const char* w : weights)
    for (const std::int64_t blocks : {1, 2, 5}) {
      const Problem problem = Problem::parse(gemm(w, 1, 48, columns(w, blocks), "", x_of(w)));
      INFO(problem.text());
      const Gemm& g = *problem.as<Gemm>();
      MutableOperand plain, back;
      auto from = streams_of(g.w, g.n, g.k, plain), to = streams_of(g.w, g.n, g.k, back);
      for (auto& stream : from)
        for (std::byte& b : stream) b = static_cast<std::byte>(random());
      keep_stored(g.w, {reinterpret_cast<std::uint8_t*>(from.front().data()), from.front().size()});
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

TEST_CASE("weights are packed from and to any address, as those of a file", "[panels]") {
  for (const char* w : {"f32", "f16", "bf16", "q4_k", "q8_0", "int4_g128"}) {
    const Problem problem = Problem::parse(gemm(w, 1, 32, columns(w, 2), "", x_of(w)));
    INFO(problem.text());
    const Gemm& g = *problem.as<Gemm>();
    MutableOperand plain;
    auto from = streams_of(g.w, g.n, g.k, plain);
    std::mt19937 random(2);
    for (auto& stream : from)
      for (std::byte& b : stream) b = static_cast<std::byte>(random());
    const auto bytes = static_cast<std::size_t>(packed_bytes(g, StreamName::data));
    std::vector<std::byte> aligned(bytes), data(from.front().size() + 1), panels(bytes + 1), back(data.size());
    pack_weights(g, plain, {aligned.data(), nullptr, nullptr});
    std::memcpy(data.data() + 1, from.front().data(), from.front().size());
    MutableOperand odd = plain, odd_back = plain;
    odd.data = data.data() + 1, odd_back.data = back.data() + 1;
    pack_weights(g, odd, {panels.data() + 1, nullptr, nullptr});
    CHECK(std::memcmp(panels.data() + 1, aligned.data(), bytes) == 0);
    unpack_weights(g, {panels.data() + 1, nullptr, nullptr}, odd_back);
    CHECK(back == data);
  }
}

TEST_CASE("a device packs weights with scales of their own, and unpacks them") {
  const Device device = Device::open_cpu({.threads = 3, .parallel_for = {}});
  for (const char* w : {"nvfp4", "int8_row", "int8", "uint4_g128", "f16", "f32"})
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

TEST_CASE("formats whose panels hold the same share an entry, for which native kernels are compiled once") {
  std::set<std::size_t> used;
  std::size_t formats = 0;
  for (const Format f : Format::all()) {
    const cpu::PanelCodes* codes = cpu::panel_codes(f);
    if (!codes) continue;
    CHECK(std::ranges::count(cpu::kPanelCodes, *codes) == (codes->native() ? 1 : 0));
    if (!codes->native()) continue;
    ++formats;
    used.insert(static_cast<std::size_t>(std::ranges::find(cpu::kPanelCodes, *codes) - cpu::kPanelCodes.begin()));
  }
  CHECK(used.size() == cpu::kPanelCodes.size());
  CHECK(used.size() < formats);
  CHECK(*cpu::panel_codes(Format::parse("q4_0")) == *cpu::panel_codes(Format::parse("int4_g32")));
}

TEST_CASE("what panels are not for is refused by name") {
  CHECK(refused("gemm x=q8_1 w=q4_0 y=f32 m=1 n=40 k=64 pack=panels") ==
        "n must be a multiple of 16, the rows of a panel (got 40)");
  CHECK(refused("gemm x=int8_row w=int8_row y=f32 m=1 n=48 k=40 pack=panels") ==
        "k must be a multiple of 32, the columns of a panel's block (got 40)");
  CHECK(refused("gemm x=mxfp8 w=q4_0 y=f32 m=1 n=48 k=64 pack=panels")
            .find("pack=panels is not supported: panels of w=q4_0 are for x=q8_1 or int8_row") == 0);
  CHECK(refused("gemm x=q8_1 w=nf4 y=f32 m=1 n=48 k=256 pack=panels")
            .find("pack=panels is not supported: w=nf4 has no panels; f32, f16, bf16, e4m3, ") == 0);
  CHECK(refused("gemm x=q8_1 w=f16 y=f32 m=1 n=48 k=64 pack=panels") ==
        "pack=panels is not supported: panels of w=f16 are for x=f32, f16 or bf16, not x=q8_1");
  CHECK(refused("gemm x=int8 w=int8_row y=f32 m=1 n=48 k=64 pack=panels") ==
        "pack=panels is not supported: panels of w=int8_row are for x=q8_1 or int8_row (x_from quantizes floats), f32, "
        "f16 or bf16, not x=int8");
  CHECK(refused("gemm x=int8_row w=int8 y=f32 m=1 n=48 k=64 pack=panels") ==
        "pack=panels is not supported: panels of w=int8 are for x=int8, not x=int8_row");
  CHECK(refused("gemm x=f16 w=f16 y=f32 m=1 n=40 k=7 pack=panels") ==
        "n must be a multiple of 16, the rows of a panel (got 40)");
  CHECK(refused("pack w=q4_0 x=q8_1 n=48 k=64 order=none") == "order must be tiles or panels (got none)");
  CHECK(refused("conv x=f16 w=f16 y=f16 n=1 c=64 k=40 in=8x8 kernel=3x3 pack=panels") ==
        "k must be a multiple of 16, the rows of a panel (got 40)");
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
  CHECK(!packed("gemm x=mxfp8 w=q4_0 y=f16 m=3 n=48 k=64", host_arch()));
  CHECK(!packed("gemm x=f16 w=f16 y=int8 m=3 n=48 k=64 act=none y_scale=2", cpu_archs().front()));
  CHECK(!packed("gemm x=f16 w=f16 y=f16 m=3 n=48 k=64", archs().front()));
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
