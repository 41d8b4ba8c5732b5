// SPDX-License-Identifier: Apache-2.0
// Fingerprints of the machine code of a fixed set of candidates, so that a change which should leave kernels as they
// are can show that it does: bench/compare_code.py holds two such lists against each other. Needs no device.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <ctime>
#include <map>
#include <thread>

#include "bench/bench.h"

namespace tilewright::bench {
namespace {

struct Group {
  const char* target;
  const char* problem;  // "{}": m, or the rows of a cast
  std::vector<int> rows;
};

// Every operation and family, the ways in which each multiplies and stores, few and many tokens.
const std::vector<Group>& groups() {
  static const std::vector<Group> all = {
      {"sm_90a", "gemm x=bf16 w=bf16 y=bf16 m={} n=10240 k=8192 workspace=33554432", {1, 16, 64, 1024, 4096}},
      {"sm_90a", "gemm x=f16 w=f16 y=f16 m={} n=4096 k=4096 bias=f32 act=silu c=f16 beta=0.5", {4, 512}},
      {"sm_90a", "gemm x=e4m3_row w=e4m3_row y=bf16 m={} n=10240 k=8192", {16, 1024}},
      {"sm_90a", "gemm x=e4m3_row w=e4m3_row y=bf16 m={} n=10240 k=8192 accum=fast", {64, 4096}},
      {"sm_90a", "gemm x=e5m2 w=e4m3 y=f32 m={} n=4096 k=4096", {1024}},
      {"sm_90a", "gemm x=int8_row w=int8_row y=bf16 m={} n=3584 k=18944", {16, 1024}},
      {"sm_90a", "gemm x=int8_asym_row w=int8_asym_row y=bf16 m={} n=4096 k=4096", {64, 512}},
      {"sm_90a", "gemm x=int8 w=int8 y=int8 m={} n=4096 k=4096 bias=f32", {1, 64}},
      {"sm_90a", "gemm x=e4m3_g128 w=e4m3_b128 y=bf16 m={} n=4096 k=4096", {1, 16, 1024, 4096}},
      {"sm_90a",
       "gemm x=f16 w=int4_g128 y=f16 m={} n=10240 k=8192 pack=tiles workspace=33554432",
       {1, 16, 64, 1024, 4096}},
      {"sm_90a", "gemm x=f16 w=q4_0 y=f16 m={} n=10240 k=8192 pack=tiles bias=f16 act=gelu", {1, 64, 1024}},
      {"sm_90a", "gemm x=f16 w=q4_k y=f16 m={} n=10240 k=8192 pack=tiles workspace=33554432", {64, 4096}},
      {"sm_90a", "gemm x=bf16 w=q4_k y=bf16 m={} n=10240 k=8192 pack=tiles workspace=33554432", {1, 16}},
      {"sm_90a", "gemm x=f16 w=nvfp4 y=f16 m={} n=10240 k=8192 global=mul pack=tiles", {16, 1024}},
      {"sm_90a", "gemm x=bf16 w=mxfp4 y=bf16 m={} n=57344 k=8192 pack=tiles workspace=33554432", {1, 16, 4096}},
      {"sm_90a",
       "gemm x=int8_row w=int4_g128 y=bf16 m={} n=6144 k=4096 pack=tiles workspace=33554432",
       {16, 1024, 4096}},
      {"sm_90a", "gemm x=e4m3_row w=int4_g128 y=bf16 m={} n=3584 k=18944 pack=tiles workspace=33554432", {64, 4096}},
      {"sm_90a",
       "gemm x=e4m3_row w=nvfp4 y=bf16 m={} n=8192 k=8192 global=mul pack=tiles workspace=33554432",
       {1, 64, 1024}},
      {"sm_90a",
       "gemm x=e4m3_row w=nvfp4 y=bf16 m={} n=8192 k=8192 global=mul pack=tiles accum=fast workspace=33554432",
       {1024}},
      {"sm_90a", "gemm x=q8_1 w=q4_0 y=f32 m={} n=10240 k=8192 pack=tiles workspace=33554432", {1, 16, 64, 1024, 4096}},
      {"sm_90a", "gemm x=q8_1 w=q4_k y=bf16 m={} n=10240 k=8192 pack=tiles c=bf16", {1, 8, 1024}},
      {"sm_90a", "gemm x=q8_1 w=q4_0 y=f32 m={} n=4096 k=4096 x_from=f16 pack=tiles", {1}},
      {"sm_90a", "gemm x=q8_1 w=q4_0 y=f32 m={} n=4096 k=14336", {1, 16, 512}},
      {"sm_90a", "gemm x=q8_1 w=q4_k y=f32 m={} n=4096 k=4096 x_from=bf16", {4}},
      {"sm_90a", "gemm x=bf16 w=q4_k y=bf16 m={} n=4096 k=14336", {1, 16, 512}},
      {"sm_90a", "gemm x=f16 w=e4m3_row y=f16 m={} n=4096 k=4096", {64}},
      {"sm_90a", "gemm x=f32 w=f32 y=f32 m={} n=5 k=7", {3}},
      {"sm_90a", "cast x=f16 y=q8_1 rows={} cols=4096", {64}},
      {"sm_90a", "cast x=bf16 y=e4m3_g128 rows={} cols=4096", {64}},
      {"sm_90a", "cast x=f16 y=e4m3_row rows={} cols=4096", {64}},
      {"sm_90a", "cast x=q4_0 y=f16 rows={} cols=4096", {64}},
      {"sm_90a", "pack w=q5_k x=f16 n=4096 k=4096", {1}},
      {"sm_75", "gemm x=q8_1 w=q4_0 y=f32 m={} n=4096 k=4096", {1, 64}},
      {"sm_75", "gemm x=f16 w=f16 y=f16 m={} n=4096 k=4096", {4, 512}},
      {"sm_80", "gemm x=bf16 w=q4_k y=bf16 m={} n=4096 k=4096", {16}},
      {"sm_80", "gemm x=bf16 w=bf16 y=bf16 m={} n=4096 k=4096", {1024}},
      {"sm_80", "gemm x=int8_row w=int8_row y=bf16 m={} n=4096 k=4096", {64}},
      {"sm_89", "gemm x=e4m3_row w=e4m3_row y=bf16 m={} n=4096 k=4096", {16, 1024}},
      {"sm_89", "gemm x=f16 w=nvfp4 y=f16 m={} n=4096 k=4096 global=mul", {16}},
      {"sm_120a", "gemm x=nvfp4 w=nvfp4 y=bf16 m={} n=4096 k=4096 global=mul", {16, 512}},
      {"sm_120a", "gemm x=mxfp8 w=mxfp8 y=bf16 m={} n=4096 k=4096 bias=f32 act=silu", {512}},
      {"sm_120a", "gemm x=mxfp4 w=mxfp4 y=f16 m={} n=4096 k=4096", {1}},
      {"sm_90a", "conv x=bf16 w=bf16 y=bf16 n=1 c=512 in=5x60x106 k=512 kernel=1 bias=bf16 residual=bf16", {1}},
      {"sm_90a", "conv x=e4m3 w=e4m3_row y=bf16 n=4 c=256 in=1x1 k=64 kernel=1 act=silu", {1}},
      {"sm_90a", "fused_cast x=bf16 y=e4m3_row rows=64 cols=4096 residual=add norm=rms weight=bf16", {1}},
      {"sm_90a", "fused_cast x=f16 y=int8_asym_row rows=64 cols=4095 bias=f32 act=gelu", {1}},
      {"sm_90a", "fused_cast x=bf16 y=nvfp4 rows=64 cols=14336 act=silu gate=first", {1}},
      {"sm_80", "fused_cast x=bf16 y=nvfp4 rows=64 cols=14336 act=silu gate=first", {1}},
      {"sm_120a", "fused_cast x=bf16 y=nvfp4 rows=64 cols=14336 act=silu gate=first", {1}},
      {"sm_90a", "fused_cast x=f32 y=mxfp8 rows=64 cols=4096 norm=rms act=gelu_tanh", {1}},
      {"sm_90a", "fused_cast x=f16 y=q8_1 rows=64 cols=50048 residual=add norm=rms weight=f32", {1}},
      {"sm_90a", "fused_cast x=bf16 y=int4_row rows=64 cols=4096 bias=bf16 act=relu", {1}},
      {"sm_90a", "fused_cast x=bf16 y=f16 rows=64 cols=4096 act=silu gate=first", {1}},
      {"sm_90a", "fused_cast x=f16 y=ternary_row rows=64 cols=4096 residual=add norm=rms weight=f16", {1}},
      {"sm_90a", "amax x=f16 rows=64 cols=4096", {1}},
      {"sm_80", "amax x=f16 rows=64 cols=4096", {1}},
      {"sm_120a", "amax x=f16 rows=64 cols=4096", {1}},
      {"sm_90a", "transpose x=int8 rows=64 cols=4096", {1}},
      {"sm_90a", "transpose x=f16 rows=63 cols=4097", {1}},
      {"sm_80", "transpose x=f16 rows=63 cols=4097", {1}},
      {"sm_120a", "transpose x=f16 rows=63 cols=4097", {1}},
      {"sm_90a", "amax x=f32 rows=64 cols=4096", {1}},
      {"sm_90a", "fake_quant x=bf16 rows=64 cols=4096", {1}},
      {"sm_80", "fake_quant x=bf16 rows=64 cols=4096", {1}},
      {"sm_120a", "fake_quant x=bf16 rows=64 cols=4096", {1}},
      {"sm_90a", "fake_quant x=f16 rows=64 cols=4097 qmin=-8 qmax=7 scope=row grad=straight", {1}},
      {"sm_90a", "fake_quant x=f32 rows=64 cols=4096 grad=learned", {1}},
      {"sm_90a", "fake_quant x=bf16 rows=64 cols=4096 scope=row grad=learned", {1}},
      {"sm_90a", "unscale x=f32 pieces=1000", {1}},
      {"sm_90a", "unscale x=f16 pieces=1000", {1}},
      {"sm_90a", "update_scale", {1}},
      {"sm_90a", "fp4_fake_quant x=bf16 y=bf16 rows=64 cols=4096", {1}},
      {"sm_80", "fp4_fake_quant x=bf16 y=bf16 rows=64 cols=4096", {1}},
      {"sm_120a", "fp4_fake_quant x=bf16 y=bf16 rows=64 cols=4096", {1}},
      {"sm_90a", "fp4_fake_quant x=f32 y=f16 rows=64 cols=4096 block=256", {1}},
      {"sm_90a", "fp4_fake_quant x=f16 y=f16 rows=64 cols=4104 block=128", {1}},
      {"sm_90a", "fp4_fake_quant x=f32 y=bf16 rows=64 cols=4095 block=64", {1}},
      {"sm_90a", "conv x=bf16 w=bf16 y=bf16 n=8 c=96 in=56x56 k=96 kernel=7 pad=3 groups=96 bias=f32", {1}},
      {"sm_90a",
       "conv x=f16 w=f16 y=f16 n=2 c=64 in=5x30x30 k=128 kernel=3 pad=1 groups=64 x_layout=ncdhw y_layout=ncdhw "
       "act=silu",
       {1}},
      {"sm_90a",
       "conv x=f16 w=f16 y=f16 n=1 c=96 in=6x48x83 k=96 kernel=3 pad=0x1x1 cache=2 x_layout=ncdhw y_layout=ncdhw "
       "w_layout=kctrs",
       {1}},
      {"sm_90a", "conv x=f16 w=f16 y=f16 n=1 c=6 in=31x30 k=64 kernel=3 pad=1 groups=2", {1}},
      {"sm_90a", "conv x=f16 w=f16 y=f16 n=1 c=64 in=31x30 k=64 kernel=3 pad=1 bias=f32", {1}},
      {"sm_90a",
       "conv x=bf16 w=bf16 y=bf16 n=1 c=96 in=6x48x83 k=96 kernel=3 pad=0x1x1 cache=2 x_layout=ncdhw y_layout=ncdhw "
       "w_layout=kctrs workspace=33554432",
       {1}},
      {"sm_90a",
       "conv x=e4m3 w=e4m3_row y=bf16 n=1 c=192 in=6x48x83 k=192 kernel=3 pad=1 residual=bf16 accum=fast",
       {1}},
      {"sm_90a",
       "conv x=f32 w=f32 y=f32 n=1 c=40 in=31x30 k=64 kernel=3 stride=2 pad=1 accum=fast workspace=33554432",
       {1}},
      {"sm_80",
       "conv x=f32 w=f32 y=f32 n=1 c=40 in=31x30 k=64 kernel=3 stride=2 pad=1 accum=fast workspace=33554432",
       {1}},
      {"sm_120a",
       "conv x=f32 w=f32 y=f32 n=1 c=40 in=31x30 k=64 kernel=3 stride=2 pad=1 accum=fast workspace=33554432",
       {1}},
      {"sm_90a",
       "conv x=bf16 w=int4_g128 y=bf16 n=1 c=384 in=6x48x83 k=384 kernel=3 pad=0x1x1 workspace=33554432",
       {1}},
      {"sm_90a",
       "conv x=f16 w=nvfp4 y=f16 n=1 c=48 in=31x30 k=64 kernel=3 x_layout=ncdhw global=mul workspace=33554432",
       {1}},
      {"sm_90a",
       "conv x=e4m3 w=int4_row y=bf16 n=1 c=192 in=31x30 k=192 kernel=3 pad=1 accum=fast workspace=33554432",
       {1}},
      {"sm_90a",
       "conv x=bf16 w=e5m2 y=bf16 n=1 c=36 in=31x30 k=64 kernel=3 pad=1 w_layout=kctrs workspace=33554432",
       {1}},
      {"sm_90a", "conv x=bf16 w=int4_g128 y=bf16 n=2 c=640 in=16x16 k=640 kernel=3 pad=1 pack=tiles", {1}},
      {"sm_90a",
       "conv x=e4m3 w=int4_row y=bf16 n=1 c=256 in=31x30 k=192 kernel=3 pad=1 x_layout=ncdhw pack=tiles "
       "workspace=33554432",
       {1}},
      {"sm_90a", "conv x=f32 w=f32 y=f32 n=1 c=8 in=31x30 k=64 kernel=3 pad=1", {1}},
      {"sm_90a",
       "conv x=f16 w=f16 y=f16 n=1 c=33 in=9x31x30 k=64 kernel=3 pad=1 x_layout=ncdhw w_layout=kctrs "
       "workspace=33554432 quant_act=e2m1/128",
       {1}},
      {"sm_90a",
       "conv x=bf16 w=bf16 y=bf16 n=1 c=96 in=31x30 k=64 kernel=3 pad=1 workspace=33554432 quant_act=e2m1/32 "
       "order=trsc",
       {1}},
      {"sm_80",
       "conv x=bf16 w=bf16 y=bf16 n=1 c=96 in=31x30 k=64 kernel=3 pad=1 workspace=33554432 quant_act=e2m1/32 "
       "order=trsc",
       {1}},
      {"sm_120a",
       "conv x=bf16 w=bf16 y=bf16 n=1 c=96 in=31x30 k=64 kernel=3 pad=1 workspace=33554432 quant_act=e2m1/32 "
       "order=trsc",
       {1}},
      {"sm_90a",
       "conv x=f32 w=f32 y=f32 n=1 c=132 in=31x30 k=64 kernel=3 pad=1 workspace=33554432 quant_act=e2m1/256 order=trsc",
       {1}},
      {"sm_90a",
       "conv x=bf16 w=int4_g32 y=bf16 n=1 c=96 in=31x30 k=64 kernel=3 pad=1 workspace=33554432 quant_act=e2m1/16",
       {1}},
      {"sm_90a",
       "conv x=f16 w=nvfp4 y=f16 n=1 c=64 in=31x30 k=64 kernel=3 global=mul pack=tiles workspace=33554432 "
       "quant_act=e2m1/64 order=trsc",
       {1}},
  };
  return all;
}

// How many of a family's candidates for one problem are compiled: the first, and others at equal distances.
std::size_t wanted(std::string_view family, bool first_rows) {
  if (family == "wgmma") return 3;
  if (family == "reference") return first_rows ? 1 : 0;
  return 2;
}

struct Job {
  const Arch* target;
  Problem problem;
  const Family* family;
  std::size_t ordinal;
  Candidate candidate;
};

std::vector<Job> jobs() {
  std::vector<Job> out;
  for (const Group& group : groups()) {
    const Arch& target = arch(group.target);
    for (int rows : group.rows) {
      const Problem problem = Problem::parse(fmt::format(fmt::runtime(group.problem), rows));
      for (const Family* family : families(problem.op())) {
        const std::vector<Candidate> legal = family->candidates(problem, target);
        const std::size_t count = std::min(legal.size(), wanted(family->name(), rows == group.rows.front()));
        for (std::size_t i = 0; i < count; ++i) {
          const std::size_t ordinal = i * legal.size() / count;
          out.push_back({&target, problem, family, ordinal, legal[ordinal]});
        }
      }
    }
  }
  return out;
}

// FNV-1a in 128 bits.
class Hash {
 public:
  void add(const std::byte* data, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) state_ = (state_ ^ std::to_integer<unsigned>(data[i])) * kPrime;
  }
  std::string text() const {
    return fmt::format("{:016x}{:016x}", static_cast<std::uint64_t>(state_ >> 64), static_cast<std::uint64_t>(state_));
  }

 private:
  using Word = unsigned __int128;
  static constexpr Word kPrime = (Word{1} << 88) + 0x13b;
  Word state_ = (Word{0x6c62272e07bb0142u} << 64) + 0x62b821756295c58du;
};

// Of an ELF file's sections by name: instructions, and constants that the compiler made of literals. Left out are
// parameters (bank 0), variables and their addresses (bank 4), symbols and debug information.
std::string fingerprint(const std::vector<std::byte>& image) {
  const auto read = [&]<class T>(std::size_t offset, T) {
    T value;
    if (offset + sizeof(T) > image.size())
      throw Error(ErrorCode::compile_failed, "cubin", "", "must be a whole ELF file");
    std::memcpy(&value, image.data() + offset, sizeof(T));
    return value;
  };
  const std::size_t table = read(0x28, std::uint64_t{}), size = read(0x3a, std::uint16_t{}),
                    count = read(0x3c, std::uint16_t{}), names = table + size * read(0x3e, std::uint16_t{});
  const std::size_t strings = read(names + 0x18, std::uint64_t{});
  std::map<std::string, Hash> sections;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t header = table + i * size;
    const std::string name = reinterpret_cast<const char*>(image.data() + strings + read(header, std::uint32_t{}));
    const bool literals = name.rfind(".nv.constant2", 0) == 0 || name.rfind(".nv.constant3", 0) == 0;
    if (name.rfind(".text.", 0) != 0 && !literals) continue;
    const std::size_t offset = read(header + 0x18, std::uint64_t{}), bytes = read(header + 0x20, std::uint64_t{});
    if (read(header + 4, std::uint32_t{}) == 8) continue;  // SHT_NOBITS
    read(offset + bytes - 1, std::byte{});
    sections[name.substr(0, name.find('.', 1))].add(image.data() + offset, bytes);
  }
  Hash all;
  for (const auto& [name, hash] : sections) {
    const std::string text = hash.text();
    all.add(reinterpret_cast<const std::byte*>(text.data()), text.size());
  }
  return all.text();
}

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

Json code(const Settings& settings) {
  const CompileOptions options = CompileOptions::of(Options::from_env());
  std::vector<Job> all = jobs();
  if (!settings.rows.empty())
    std::erase_if(all, [&](const Job& job) {
      return fmt::format("{}; {}; {}", job.target->name, job.family->name(), job.problem.text()).find(settings.rows) ==
             std::string::npos;
    });
  std::vector<Json> rows(all.size());
  std::atomic<std::size_t> next = 0, failed = 0;
  const auto work = [&] {
    for (std::size_t i; (i = next++) < all.size();) {
      const Job& job = all[i];
      Json& row = rows[i];
      row = {{"target", job.target->name},
             {"problem", job.problem.text()},
             {"family", job.family->name()},
             {"ordinal", job.ordinal},
             {"candidate", job.candidate.text()}};
      try {
        const double before = thread_seconds();
        const Binary binary =
            compile(job.family->source(job.problem, *job.target, job.candidate), *job.target, options);
        row["code"] = fingerprint(binary.image);
        row["registers"] = binary.resources.registers;
        row["shared_bytes"] = binary.plan.shared_bytes + static_cast<std::uint32_t>(binary.resources.shared_bytes);
        row["spill_bytes"] = binary.resources.spill_bytes;
        row["cpu_s"] = std::round(1e3 * (thread_seconds() - before)) / 1e3;
      } catch (const Error& e) {
        row["error"] = e.what();
        ++failed;
      }
    }
  };
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) threads.emplace_back(work);
  threads.clear();
  for (const Json& row : rows)
    if (row.contains("error"))
      throw Error(ErrorCode::compile_failed, "candidate", row["candidate"].get<std::string>(),
                  fmt::format("is one of {} that failed: {}", failed.load(), row["error"].get<std::string>()));
  std::vector<double> hopper;
  for (const Json& row : rows)
    if (row.contains("cpu_s") && row["family"].get<std::string>().rfind("wgmma", 0) == 0)
      hopper.push_back(row["cpu_s"]);
  fmt::print("{} candidates compiled; median of the {} by wgmma and wgmma_codes: {:.3f} s of CPU time\n", rows.size(),
             hopper.size(), hopper.empty() ? 0.0 : median(hopper));
  return rows;
}

}  // namespace tilewright::bench
