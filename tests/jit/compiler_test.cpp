// SPDX-License-Identifier: Apache-2.0
#include "jit/compile/compiler.h"

#include <atomic>
#include <thread>

#include "jit/elf.h"
#include "jit_test.h"

using namespace tilewright;
using namespace tilewright::test;

namespace {

const char* const kAdd = R"(
extern "C" __global__ void k(float* a) { __shared__ float s[128]; s[threadIdx.x] = a[threadIdx.x]; __syncthreads();
  a[threadIdx.x] = s[threadIdx.x ^ 1]; })";

}  // namespace

TEST_CASE("compile: a cubin with its entry, plan and resources") {
  Source source = source_of(kAdd);
  source.plan = {.x = {.per_rows = 128}, .y = {}, .z = {}, .threads = 128, .cluster = 1, .shared_bytes = 16};
  for (const Arch& arch : {sm_80(), sm_90a()}) {
    const Binary binary = compile(source, arch, real_compiler());
    CHECK(binary.target == arch.name);
    CHECK(binary.entry == "k");
    CHECK(binary.plan == source.plan);
    CHECK(binary.resources.registers >= 8);
    CHECK(binary.resources.shared_bytes == 512);
    CHECK(binary.resources.spill_bytes == 0);
    CHECK_FALSE(binary.resources.serialized);
    CHECK(binary.seconds > 0);
    CHECK(jit::elf_entries(binary.image) == std::vector<std::string>{"k"});
    CHECK(binary.log == "");
  }
}

TEST_CASE("compile: equal sources give equal images and logs") {
  const Binary a = compile(source_of(kAdd), sm_90a(), real_compiler());
  const Binary b = compile(source_of(kAdd), sm_90a(), real_compiler());
  CHECK(a.image == b.image);
  CHECK(a.log == b.log);
}

TEST_CASE("compile: spills and stack are reported") {
  const Binary binary = compile(source_of(R"(
extern "C" __global__ void __launch_bounds__(256, 8) k(float* a, int i) {
  float v[64];
  for (int j = 0; j < 64; j++) v[j] = a[j * i];
  __syncthreads();
  for (int j = 0; j < 64; j++) a[j * i * 3] = v[63 - j] * a[j];
})"),
                                sm_90a(), real_compiler());
  CHECK(binary.resources.registers <= 32);
  CHECK(binary.resources.spill_bytes > 0);
  CHECK(binary.resources.stack_bytes > 0);
}

TEST_CASE("compile: a real serialized wgmma is noticed") {
  // The accumulators are touched between the two instructions of one pipeline stage.
  const Binary binary = compile(source_of(R"(
extern "C" __global__ void k(float* a, unsigned long long d) {
  float x0 = a[0], x1 = a[1], x2 = a[2], x3 = a[3];
  asm volatile("wgmma.fence.sync.aligned;");
  for (int i = 0; i < 2; ++i) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, 1, 0;"
                 "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0,%1,%2,%3}, %4, %4, p, 1, 1, 0, 0;}"
                 : "+f"(x0), "+f"(x1), "+f"(x2), "+f"(x3) : "l"(d));
    x0 += a[4 + i];
  }
  asm volatile("wgmma.commit_group.sync.aligned;");
  asm volatile("wgmma.wait_group.sync.aligned 0;");
  a[threadIdx.x] = x0 + x1 + x2 + x3;
})"),
                                sm_90a(), real_compiler());
  CHECK(binary.resources.serialized);
  CHECK(binary.log.find("serialized") != std::string::npos);
}

TEST_CASE("compile: headers come from the source alone") {
  Source source = source_of("#include \"a/b.cuh\"\nextern \"C\" __global__ void k(int* p) { *p = kValue; }");
  source.headers = {{"a/b.cuh", "#include \"c.cuh\"\n"}, {"c.cuh", "constexpr int kValue = 7;\n"}};
  CHECK_NOTHROW(compile(source, sm_90a(), real_compiler()));
  source.headers.pop_back();
  CHECK_THROWS_AS(compile(source, sm_90a(), real_compiler()), CompileError);
}

TEST_CASE("a compile error carries log, options and source") {
  try {
    compile(source_of("extern \"C\" __global__ void k() { int x = ; }"), sm_90a(), real_compiler());
    FAIL("compiled");
  } catch (const CompileError& error) {
    CHECK(error.code() == ErrorCode::compile_failed);
    CHECK(error.log().find("expected an expression") != std::string::npos);
    CHECK(error.options().find("--gpu-architecture=sm_90a") != std::string::npos);
    CHECK(error.options().find("--no-cache") != std::string::npos);
    CHECK(error.source().find("int x = ;") != std::string::npos);
    CHECK(error.field() == "source test/k");
  }
}

TEST_CASE("a flood of warnings is cut to 4096 bytes") {
  std::string text;
  for (int i = 0; i < 9000; ++i) text += "#warning this is a warning about nothing in particular\n";
  const Binary binary = compile(source_of(text + kAdd), sm_90a(), real_compiler());
  CHECK(binary.log.size() == 4096);
  CHECK(binary.resources.shared_bytes == 512);  // said after the flood
  try {
    compile(source_of(text + "int x = ;"), sm_90a(), real_compiler());
    FAIL("compiled");
  } catch (const CompileError& error) {
    CHECK(error.log().size() == 4096);
    CHECK(std::string(error.what()).size() < 1000);
  }
}

TEST_CASE("success without the entry is an error") {
  const auto empty = error_of(ErrorCode::compile_failed, [] { compile(source_of(""), sm_90a(), real_compiler()); });
  CHECK(empty.value() == "k");
  const auto mangled = error_of(ErrorCode::compile_failed, [] {
    compile(source_of("__global__ void k(int* p) { *p = 1; }"), sm_90a(), real_compiler());
  });
  CHECK(mentions(mangled, "_Z1kPi"));
}

TEST_CASE("a target that this NVRTC does not know") {
  const auto error =
      error_of(ErrorCode::library_missing, [] { compile(source_of(kAdd), target("sm_310a", 31, 0), real_compiler()); });
  CHECK(mentions(error, "sm_310a"));
  CHECK(mentions(error, "libnvrtc"));
  CHECK(mentions(error, "sm_90"));
}

TEST_CASE("compile: the target is not an option of the source") {
  Source source = source_of(kAdd);
  source.options = {"-arch=sm_80"};
  error_of(ErrorCode::invalid_argument, [&] { compile(source, sm_90a(), real_compiler()); });
  source.options = {"--std=c++20", "-DVALUE=3"};
  CHECK_NOTHROW(compile(source, sm_90a(), real_compiler()));
}

TEST_CASE("compile: from many threads at once") {
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      try {
        for (int i = 0; i < 3; ++i) {
          const std::string entry = "k" + std::to_string(t * 10 + i);
          const Binary binary =
              compile(source_of("extern \"C\" __global__ void " + entry + "(int* p) { *p = 1; }", entry), sm_80(),
                      real_compiler());
          good += jit::elf_has_entry(binary.image, entry);
        }
      } catch (const std::exception&) {
        // counted as missing
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(good == 12);
}

TEST_CASE("parse_resources: several functions, and the right one is taken") {
  const char* log = R"(ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k2' for 'sm_90a'
ptxas info    : Function properties for k2
ptxas         .     152 bytes stack frame, 100 bytes spill stores, 52 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 152 bytes cumulative stack size
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
ptxas         .     8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 512 bytes smem, 364 bytes cmem[0]
ptxas info    : Function properties for helper_k
ptxas         .     999 bytes stack frame, 9 bytes spill stores, 9 bytes spill loads
)";
  CHECK(jit::parse_resources(log, "k2") == Resources{32, 0, 152, 152, false});
  CHECK(jit::parse_resources(log, "k") == Resources{40, 512, 0, 8, false});
  CHECK(jit::parse_resources(log, "other") == Resources{});
  CHECK(jit::parse_resources("", "k") == Resources{});
  CHECK(jit::without_statistics(log, 4096) == "");
}
