// SPDX-License-Identifier: Apache-2.0
// Transaction barriers, the copy engine and warpgroup instructions of the emulator, and what it refuses.
#include "arch/sm90.cuh"

#include <cstring>
#include <random>
#include <vector>

#include "emulator/emulator.h"
#include "support/catch.h"

using namespace tw;

namespace {
constexpr std::uint64_t kSeeds = 8;

// The message of the Error that `kernel` ends with.
std::string error_of(const emu::Launch& launch, const std::function<void()>& kernel) {
  try {
    emu::run(launch, kernel);
  } catch (const emu::Error& e) {
    return e.what();
  }
  return "";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

u64* barrier_at(u32 offset) { return reinterpret_cast<u64*>(dynamic_shared() + offset); }

// ---- a whole kernel --------------------------------------------------------------------------------------------------
// c[m x N] = a[m x k] b[N x k]^T: a producer warpgroup, a consumer warpgroup, and two blocks of 64 rows that load half of
// b each, for both.
constexpr u32 kStages = 3;
template <int N>
constexpr u32 kStageBytes = (64 + (N < 8 ? 8 : N)) * 128;
template <int N>
constexpr u32 kGemmShared = kStages * kStageBytes<N> + 16 * kStages;

template <WgmmaKind kind, int N, bool registers>
void gemm(const TensorMap* a, const TensorMap* b, u32* c, u32 m, u32 steps) {
  constexpr int kPerStep = kind == WgmmaKind::f16 || kind == WgmmaKind::bf16 ? 64 : 128;
  u8* shared = dynamic_shared();
  u64* full = reinterpret_cast<u64*>(shared + kStages * kStageBytes<N>);
  u64* empty = full + kStages;
  const u32 row0 = 64 * block_x(), rank = cluster_rank();
  if (thread_x() == 0) {
    for (u32 s = 0; s < kStages; ++s) {
      barrier_init(full + s, 1);
      barrier_init(empty + s, 2);
    }
    barrier_init_fence();
  }
  sync_cluster();
  if (thread_x() < 128) {
    give_registers<40>();
    if (thread_x() == 0) {
      prefetch_map(a);
      for (u32 i = 0; i < steps; ++i) {
        const u32 s = i % kStages;
        u8* stage = shared + s * kStageBytes<N>;
        const i32 c0 = static_cast<i32>(i) * kPerStep;
        barrier_wait(empty + s, (i / kStages & 1) ^ 1);
        barrier_expect(full + s, kStageBytes<N>);
        tensor_load(stage, a, c0, static_cast<i32>(row0), full + s, kEvictFirst);
        tensor_load_multicast(stage + 64 * 128 + rank * (N / 2) * 128, b, c0, static_cast<i32>(rank * (N / 2)), full + s,
                              3, kEvictLast);
      }
    }
  } else {
    take_registers<232>();
    const u32 t = thread_x() % 128, lane = t % 32, row = t / 32 * 16 + lane / 4;
    typename Wgmma<kind, N>::D d[N / 2];
    u32 fragments[4][4];
    for (u32 i = 0; i < steps; ++i) {
      const u32 s = i % kStages;
      const u8* stage = shared + s * kStageBytes<N>;
      barrier_wait(full + s, i / kStages & 1);
      if (registers)
        for (u32 step = 0; step < 4; ++step)
          for (u32 r = 0; r < 4; ++r) {
            const u32 at = (row + r % 2 * 8) * 128 + step * 32 + r / 2 * 16 + lane % 4 * 4;
            std::memcpy(&fragments[step][r], stage + (at ^ (at / 128 % 8 * 16)), 4);
          }
      wgmma_fence();
      for (u32 step = 0; step < 4; ++step) {
        const u64 of_b = wgmma_descriptor(stage + 64 * 128 + 32 * step);
        if (registers)
          Wgmma<kind, N>::rs(d, fragments[step], of_b, i + step > 0);
        else
          Wgmma<kind, N>::ss(d, wgmma_descriptor(stage + 32 * step), of_b, i + step > 0);
      }
      wgmma_commit();
      wgmma_wait<0>();
      if (registers) sync_named(1, 128);  // all have read a
      if (t < 2) barrier_arrive_remote(empty + s, t);
    }
    for (u32 j = 0; j < N / 8; ++j)
      for (u32 h = 0; h < 2; ++h)
        for (u32 e = 0; e < 2; ++e)
          if (row0 + row + 8 * h < m)
            c[(row0 + row + 8 * h) * N + 8 * j + lane % 4 * 2 + e] = bits_as<u32>(d[4 * j + 2 * h + e]);
  }
  sync_cluster();
}

// Small integers, which every kind holds.
struct Matrix {
  std::vector<int> values;
  std::vector<u8> memory;
  const u8* bytes = nullptr;  // 16-byte aligned
  Matrix(WgmmaKind kind, u32 rows, u32 k, u64 stride, u32 seed) : values(rows * k), memory(rows * stride + 16, 0xff) {
    std::mt19937 random(seed);
    auto* out = memory.data() + (16 - reinterpret_cast<std::uintptr_t>(memory.data()) % 16);
    bytes = out;
    for (u32 r = 0; r < rows; ++r)
      for (u32 i = 0; i < k; ++i) {
        const int v = kind == WgmmaKind::s8 ? static_cast<int>(random() % 256) - 128 : static_cast<int>(random() % 9) - 4;
        const auto f = static_cast<float>(v);
        values[r * k + i] = v;
        const u16 half = kind == WgmmaKind::f16 ? f32_to_f16_bits(f) : f32_to_bf16_bits(f);
        if (kind == WgmmaKind::f16 || kind == WgmmaKind::bf16)
          std::memcpy(out + r * stride + 2 * i, &half, 2);
        else
          out[r * stride + i] = kind == WgmmaKind::s8 ? static_cast<u8>(v) : f32_to_e4m3(f);
      }
  }
};

template <WgmmaKind kind, int N, bool registers>
void check_gemm() {
  constexpr u32 kElement = kind == WgmmaKind::f16 || kind == WgmmaKind::bf16 ? 2 : 1;
  constexpr u32 m = 150, k = 560 / kElement, steps = 5;  // the last step is partly, the last row blocks are outside
  const Matrix a(kind, m, k, 576, N), b(kind, N, k, 560, N + 1);
  alignas(64) const TensorMap of_a = emu::tensor_map(a.bytes, kElement, k, m, 576, 128 / kElement, 64, 128);
  alignas(64) const TensorMap of_b = emu::tensor_map(b.bytes, kElement, k, N, 560, 128 / kElement, N / 2, 128);
  std::vector<u32> want(m * N);
  for (u32 r = 0; r < m; ++r)
    for (u32 c = 0; c < N; ++c) {
      int sum = 0;
      for (u32 i = 0; i < k; ++i) sum += a.values[r * k + i] * b.values[c * k + i];
      want[r * N + c] = kind == WgmmaKind::s8 ? static_cast<u32>(sum) : bits_as<u32>(static_cast<float>(sum));
    }
  for (std::uint64_t seed = 0; seed < (N > 64 ? 3 : kSeeds); ++seed) {
    std::vector<u32> c(m * N, 0x7fffffffu);
    emu::run({{4, 1, 1}, 256, 2, kGemmShared<N>, seed},
             [&] { gemm<kind, N, registers>(&of_a, &of_b, c.data(), m, steps); });
    CHECK(c == want);
  }
}
template <WgmmaKind kind, bool registers>
void check_gemms() {
  check_gemm<kind, 8, registers>();
  check_gemm<kind, 24, registers>();
  check_gemm<kind, 64, registers>();
  check_gemm<kind, 128, registers>();
  check_gemm<kind, 256, registers>();
}
}  // namespace

TEST_CASE("a pipelined product of a cluster, both operands in shared memory", "[emulator][sm90]") {
  check_gemms<WgmmaKind::f16, false>();
  check_gemms<WgmmaKind::bf16, false>();
  check_gemms<WgmmaKind::e4m3, false>();
  check_gemms<WgmmaKind::s8, false>();
}

TEST_CASE("a pipelined product of a cluster, one operand in registers", "[emulator][sm90]") {
  check_gemms<WgmmaKind::f16, true>();
  check_gemms<WgmmaKind::bf16, true>();
  check_gemms<WgmmaKind::e4m3, true>();
  check_gemms<WgmmaKind::s8, true>();
}
