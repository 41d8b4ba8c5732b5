// SPDX-License-Identifier: Apache-2.0
// Kernels for AArch64, run under qemu by the library's own loader (arm/runner.cpp): the same bits as here.
#include <spawn.h>
#include <sys/wait.h>
#include <tilewright/family.h>
#include <tilewright/operation.h>
#include <unistd.h>

#include <fmt/format.h>

#include <array>
#include <fstream>

#include "cpu_test.h"
#include "templates/common/families.h"

#if defined(TILEWRIGHT_ARM_RUNNER)

using namespace tilewright;
using namespace tilewright::test;

namespace {

void write(std::ofstream& out, std::span<const std::byte> bytes) {
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

// The outputs of a problem on random operands, one behind the other.
class Case {
 public:
  explicit Case(const std::string& text) : problem_(Problem::parse(text)) {
    problem_.operation().describe(problem_, task_);
    for (const Buffer& b : task_.buffers) {
      memory_.emplace_back(b.bytes);
      spans_.emplace_back(memory_.back());
      if (!b.output && b.fill) b.fill(memory_.back(), 1);
    }
    for (auto& m : memory_) pointers_.push_back(m.data());
  }
  const Problem& problem() const { return problem_; }
  std::string wrong() const { return problem_.operation().check_on_host(problem_, task_, spans_).wrong; }

  std::vector<std::byte> here(const Candidate& c) { return run(compile(source(c, host_arch()), host_arch(), llvm())); }
  std::vector<std::byte> on_arm(const Candidate& c, const Arch& target) {
    const Source text = source(c, target);
    const Binary compiled = compile(text, target, llvm());
    // What a launch gives the kernel is what the one under qemu gets.
    Binary b;
    b.target = host_arch().name, b.entry = compiled.entry, b.plan = compiled.plan;
    const auto emulate = [&](const void* args, const void* constants, void*, std::int64_t block) {
      if (block == 0) emulated(compiled, args, constants);
    };
    b.host = std::make_shared<const CpuKernel>(CpuKernel{{}, emulate});
    return run(b);
  }

 private:
  Source source(const Candidate& c, const Arch& target) const {
    return family(problem_.op(), c.family).source(problem_, target, c);
  }
  std::vector<std::byte> run(const Binary& binary) {
    for (std::size_t i = 0; i < spans_.size(); ++i)
      if (task_.buffers[i].output) std::memset(spans_[i].data(), 0xff, spans_[i].size());
    const Device device = Device::open_cpu({.threads = 1, .parallel_for = {}});
    const int first[] = {0};
    const Kernel kernel(device, std::span(&binary, 1), first, contract_for(problem_));
    kernel.launch(nullptr, task_.arguments(pointers_, problem_.rows()), problem_.rows(), problem_.cols());
    std::vector<std::byte> y;
    for (std::size_t i = 0; i < spans_.size(); ++i)
      if (task_.buffers[i].output) y.insert(y.end(), spans_[i].begin(), spans_[i].end());
    return y;
  }
  void emulated(const Binary& binary, const void* args, const void* constants) {
    const std::filesystem::path folder = std::filesystem::temp_directory_path() / fmt::format("arm_{}", ::getpid());
    std::filesystem::create_directories(folder);
    const std::string object = folder / "object", job = folder / "job", result = folder / "result";
    {
      std::ofstream out(object, std::ios::binary);
      write(out, binary.image);
    }
    const Contract contract = contract_for(problem_);
    std::vector<std::pair<std::int64_t, std::int64_t>> places;
    for (std::size_t at = 0; at + sizeof(void*) <= contract.args_bytes; at += sizeof(void*))
      for (std::size_t i = 0; i < pointers_.size(); ++i)
        if (std::memcmp(static_cast<const char*>(args) + at, &pointers_[i], sizeof(void*)) == 0)
          places.emplace_back(at, i);
    const auto m = problem_.rows(), n = problem_.cols();
    {
      std::ofstream out(job, std::ios::binary);
      const auto number = [&](auto v) {
        const auto value = static_cast<std::int64_t>(v);
        write(out, std::as_bytes(std::span(&value, 1)));
      };
      const CpuLaunch& launch = *binary.plan.cpu;
      const std::uint64_t first = launch.parts ? launch.parts : launch.first_blocks.blocks(m, n),
                          scratch = launch.scratch.blocks(m, n) * CpuLaunch::kUnit;
      for (const std::uint64_t v :
           {first, launch.blocks.blocks(m, n), scratch, std::uint64_t{contract.args_bytes},
            std::uint64_t{contract.constants.size()}, std::uint64_t{spans_.size()}, std::uint64_t{places.size()}})
        number(v);
      write(out, {static_cast<const std::byte*>(args), contract.args_bytes});
      write(out, {static_cast<const std::byte*>(constants), contract.constants.size()});
      for (const auto& s : spans_) number(s.size()), write(out, s);
      for (const auto& [at, buffer] : places) number(at), number(buffer);
    }
    std::array<const char*, 6> words = {TILEWRIGHT_QEMU_ARM, TILEWRIGHT_ARM_RUNNER, object.c_str(),
                                        job.c_str(),         result.c_str(),        nullptr};
    pid_t child = 0;
    REQUIRE(::posix_spawn(&child, words[0], nullptr, nullptr, const_cast<char**>(words.data()), environ) == 0);
    int status = 0;
    ::waitpid(child, &status, 0);
    REQUIRE(status == 0);
    std::ifstream in(result, std::ios::binary);
    for (const auto& s : spans_) in.read(reinterpret_cast<char*>(s.data()), static_cast<std::streamsize>(s.size()));
    CHECK(in.good());
    std::filesystem::remove_all(folder);
  }

  Problem problem_;
  Task task_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::span<std::byte>> spans_;
  std::vector<void*> pointers_;
};

}  // namespace

TEST_CASE("kernels for AArch64 give the bits of this machine's") {
  TILEWRIGHT_NEEDS_KERNELS();
  if (::access(TILEWRIGHT_QEMU_ARM, X_OK) != 0 || ::access(TILEWRIGHT_ARM_RUNNER, R_OK) != 0) {
    WARN("not tested: " TILEWRIGHT_QEMU_ARM " or " TILEWRIGHT_ARM_RUNNER " is missing");
    return;
  }
  for (const char* text : {
           "gemm x=q8_1 w=q4_0 y=f32 m=5 n=48 k=96 pack=panels x_from=f32 bias=f32 alpha=0.75",
           "gemm x=q8_1 w=q8_0 y=f16 m=5 n=32 k=64 pack=panels x_from=f16 act=silu",
           "gemm x=q8_1 w=q4_k y=f32 m=6 n=32 k=256 pack=panels",
           "gemm x=q8_1 w=q5_k y=bf16 m=3 n=32 k=256 pack=panels x_from=bf16",
           "gemm x=q8_1 w=q6_k y=f32 m=5 n=16 k=256 pack=panels x_from=f32 act=gelu",
           "gemm x=q8_1 w=ggml_mxfp4 y=f32 m=4 n=32 k=64 pack=panels x_from=f32",
           "gemm x=q8_1 w=nvfp4 y=f32 m=3 n=32 k=64 pack=panels x_from=f32 global=mul",
           "gemm x=q8_1 w=uint4_g64 y=f32 m=3 n=32 k=128 pack=panels x_from=f32",
           "gemm x=int8_row w=int8_row y=f32 m=9 n=32 k=64 pack=panels x_from=f32",
           "gemm x=int8 w=int8 y=int32 m=9 n=32 k=64 pack=panels bias=int32",
           "gemm x=f16 w=f16 y=f32 m=5 n=32 k=70 pack=panels",
           "gemm x=f32 w=bf16 y=f16 m=5 n=32 k=70 pack=panels act=gelu_tanh",
           "conv x=f32 w=f32 y=f32 n=2 c=12 in=6x9 k=40 kernel=3 stride=1x2 pad=1 bias=f32 act=silu",
           "conv x=bf16 w=int8_row y=f16 n=1 c=70 in=3x5x4 k=18 kernel=2x3x1 groups=2 cache=1 pad=0x1x0 "
           "pad_mode=zeroxreflectxzero residual=f32 x_layout=ncdhw y_layout=ncdhw w_layout=kctrs",
       }) {
    Case c(text);
    INFO(text);
    std::vector<std::byte> bits;
    for (const Family* f : families(c.problem().op(), host_arch())) {
      const auto all = f->candidates(c.problem(), host_arch());
      if (all.empty() || f == families(c.problem().op(), host_arch()).back()) continue;
      bits = c.here(all.front());
      REQUIRE(c.wrong() == "");
      break;
    }
    REQUIRE(!bits.empty());
    for (const char* name : {"armv8.2+dotprod", "armv8.2+dotprod+i8mm"}) {
      const Arch& target = arch(name);
      int kernels = 0;
      for (const Family* f : families(c.problem().op(), target)) {
        if (f == families(c.problem().op(), target).back()) continue;
        const auto all = f->candidates(c.problem(), target);
        for (std::size_t i = 0; i < all.size(); i += 7) {
          INFO(name << " " << all[i].text());
          REQUIRE(c.on_arm(all[i], target) == bits);
          ++kernels;
        }
      }
      CHECK(kernels >= 1);
    }
  }
}

#else
TEST_CASE("kernels for AArch64 give the bits of this machine's") {
  WARN("not tested: aarch64-linux-gnu-g++ or qemu-aarch64-static is missing");
}
#endif
