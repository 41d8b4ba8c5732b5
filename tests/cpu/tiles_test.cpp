// SPDX-License-Identifier: Apache-2.0
// The kernel by tiles, over a backend that needs no AMX.
#include <tilewright/family.h>
#include <tilewright/gemm.h>

#include "cpu_test.h"
#include "gemms.h"
#include "operands.h"
#include "templates/backends/cpu/panels.h"
#include "templates/common/families.h"
#include "tiles_native.h"

using namespace tilewright;
using namespace tilewright::test;

TEST_CASE("the kernel by tiles, over plain C++ in place of AMX, gives the bits of the others") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Arch& target = arch("x86-64-v4+vnni+amx");
  const Family& tiles = family("gemm", "cpu_amx");
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}, .target = {}});
  std::vector<const char*> weights(std::begin(kWeights), std::end(kWeights));
  weights.push_back("int8");
  for (const char* w : weights)
    for (const std::int64_t m : {9, 40, 70}) {
      const bool integers = std::string(w) == "int8";
      Operands o(gemm(w, m, 96, columns(w, m == 40 ? 3 : 2), m == 40 || integers ? "" : "x_from=f32", x_of(w)));
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
        b.entry = "in_plain_code";
        b.plan = source.plan;
        b.plan.cpu->needs_amx = false;
        cpu::Epilogue e;
        e.global = o.problem.as<Gemm>()->global, e.integers = integers;
        b.host = std::make_shared<const CpuKernel>(tiles_in_native(
            *cpu::panel_codes(Format::parse(w)),
            {integers  ? cpu::Type::int8
             : m == 40 ? cpu::Type::q8_1
                       : cpu::Type::f32,
             false},
            e, static_cast<int>(c.at("tokens")), static_cast<int>(c.at("chunk")), static_cast<int>(c.at("together"))));
        REQUIRE(o.run(device, b) == bits);
        ++kernels;
      }
      CHECK(kernels >= 2);
    }
}
