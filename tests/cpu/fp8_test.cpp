// SPDX-License-Identifier: Apache-2.0
// FP8 on CPUs: weights in panels of floats with the format's scales, x as it is stored or quantized within the launch.
#include <fmt/format.h>
#include <tilewright/error.h>
#include <tilewright/family.h>

#include <string>
#include <vector>

#include "cpu_test.h"
#include "gemms.h"
#include "operands.h"
#include "templates/common/families.h"

using namespace tilewright;
using namespace tilewright::test;

TEST_CASE("FP8: compiled and built-in kernels are right and give the same bits", "[fp8]") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Family& floats = family("gemm", "cpu_floats");
  int problems = 0, compiled = 0;
  for (const char* w : kFp8)
    for (const char* x : {"e4m3_row", "e4m3_row x_from=f32", "e4m3_row x_from=bf16", "e4m3", "e4m3_g128", "f16", "bf16",
                          "bf16 x_from=f32"})
      for (const std::int64_t m : {1, 3, 21}) {
        const bool blocks = std::string(w) == "e4m3_b128" || std::string(x) == "e4m3_g128";
        const std::string text = fmt::format("{} bias=f32", gemm(w, m, 48, blocks ? 384 : m == 3 ? 130 : 77, "", x));
        INFO(text);
        Operands o(text);
        ++problems;
        SameBits bits;
        int kernels = 0;
        for (const int threads : {1, 3}) {
          const Device device = Device::open_cpu({.threads = threads, .parallel_for = {}});
          for (const Candidate& c : floats.candidates(o.problem, host_arch())) {
            INFO(c.text());
            const Source source = floats.source(o.problem, host_arch(), c);
            std::vector<Binary> binaries;
            if (source.host) binaries.push_back(built_in(source, host_arch()));
            if (++compiled % 7 == 0) binaries.push_back(compile(source, host_arch(), llvm()));
            for (const Binary& b : binaries) bits.require(o, device, b), ++kernels;
          }
        }
        CHECK(kernels > 0);
      }
  CHECK(problems > 80);
}

TEST_CASE("FP8: a large weight that a test fills has one scale for all rows that share it", "[fp8]") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Family& floats = family("gemm", "cpu_floats");
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}});
  for (const int n : {1024, 1040}) {
    Operands o(gemm("e4m3_b128", 1, n, 4096, "", "bf16"));
    INFO(o.problem.text());
    int kernels = 0;
    for (const Candidate& c : floats.candidates(o.problem, host_arch())) {
      const Source source = floats.source(o.problem, host_arch(), c);
      if (!source.host || kernels++) continue;
      o.run(device, built_in(source, host_arch()));
      CHECK(o.wrong() == "");
    }
    CHECK(kernels > 0);
  }
}

TEST_CASE("FP8: the reason why a problem is left to the reference is one that packing heeds", "[fp8]") {
  const auto why = [](const char* text) {
    return family("gemm", "cpu_floats").why_not(Problem::parse(text), host_arch());
  };
  CHECK(why("gemm x=e4m3_row w=e4m3_row y=f32 m=1 n=64 k=64") == "w is not packed in panels; ask for pack=panels");
  CHECK(why("gemm x=f16 w=nf4 y=f32 m=1 n=64 k=64")
            .find("w is not packed in panels, and cannot be: pack=panels is not supported: w=nf4 has no panels") == 0);
  CHECK(why("gemm x=e4m3_row w=e4m3_row y=f32 m=1 n=40 k=64") ==
        "w is not packed in panels, and cannot be: n must be a multiple of 16, the rows of a panel (got 40)");
}
