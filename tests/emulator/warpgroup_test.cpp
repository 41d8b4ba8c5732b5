// SPDX-License-Identifier: Apache-2.0
// Warpgroup instructions of the emulator, in a whole kernel and each by itself, and what it refuses.
#include "emulator/sm90_test.h"

#include <atomic>
#include <cstring>
#include <random>
#include <vector>

using namespace emulator_test;

namespace {
// ---- a whole kernel ------------------------------------------------------------------------------------------------
// c[m x N] = a[m x k] b[N x k]^T: a producer warpgroup, a consumer warpgroup, and two blocks of 64 rows that load half
// of b each, for both.
constexpr u32 kStages = 3;
template <int N>
constexpr u32 kStageBytes = (64 + (N < 8 ? 8 : N)) * 128;
template <int N>
constexpr u32 kGemmShared = kStages* kStageBytes<N> + 16 * kStages;

template <WgmmaKind kind, int N, bool registers>
void gemm(const TensorMap* a, const TensorMap* b, u32* c, u32 m, u32 steps) {
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
        const i32 panel = static_cast<i32>(i);
        barrier_wait(empty + s, (i / kStages & 1) ^ 1);
        barrier_expect(full + s, kStageBytes<N>);
        tensor_load(stage, a, PanelPlace{static_cast<i32>(row0), panel}, full + s, kEvictFirst);
        tensor_load_multicast(stage + 64 * 128 + rank * (N / 2) * 128, b,
                              PanelPlace{static_cast<i32>(rank * (N / 2)), panel}, full + s, 3, kEvictLast);
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
        const u32 of_b = wgmma_descriptor(stage + 64 * 128 + 32 * step);
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
        const int v =
            kind == WgmmaKind::s8 ? static_cast<int>(random() % 256) - 128 : static_cast<int>(random() % 9) - 4;
        const auto f = static_cast<float>(v);
        values[r * k + i] = v;
        const u16 half = kind == WgmmaKind::f16 ? f32_to_f16_bits(f) : f32_to_bf16_bits(f);
        if (kind == WgmmaKind::f16 || kind == WgmmaKind::bf16)
          std::memcpy(out + r * stride + 2 * i, &half, 2);
        else
          out[r * stride + i] = kind == WgmmaKind::s8     ? static_cast<u8>(v)
                                : kind == WgmmaKind::e4m3 ? f32_to_e4m3(f)
                                                          : f32_to_e5m2(f);
      }
  }
};

template <WgmmaKind kind, int N, bool registers>
void check_gemm() {
  constexpr u32 kElement = kind == WgmmaKind::f16 || kind == WgmmaKind::bf16 ? 2 : 1;
  constexpr u32 m = 150, k = 512 / kElement, steps = 5;  // the last step and row block are outside
  constexpr bool kMixed = kind == WgmmaKind::e4m3_e5m2, kMixedToo = kind == WgmmaKind::e5m2_e4m3;
  const Matrix a(kMixed      ? WgmmaKind::e4m3
                 : kMixedToo ? WgmmaKind::e5m2
                             : kind,
                 m, k, 528, N),
      b(kMixed      ? WgmmaKind::e5m2
        : kMixedToo ? WgmmaKind::e4m3
                    : kind,
        N, k, 512, N + 1);
  alignas(64) const TensorMap of_a = emu::tensor_map(a.bytes, kElement, k, m, 528, 128 / kElement, 64, 128);
  alignas(64) const TensorMap of_b = emu::tensor_map(b.bytes, kElement, k, N, 512, 128 / kElement, N / 2, 128);
  std::vector<u32> want(m * N);
  for (u32 r = 0; r < m; ++r)
    for (u32 c = 0; c < N; ++c) {
      int sum = 0;
      for (u32 i = 0; i < k; ++i) sum += a.values[r * k + i] * b.values[c * k + i];
      want[r * N + c] = kind == WgmmaKind::s8 ? static_cast<u32>(sum) : bits_as<u32>(static_cast<float>(sum));
    }
#if defined(__SANITIZE_THREAD__)
  constexpr std::uint64_t seeds = 2;
#else
  constexpr std::uint64_t seeds = N > 64 ? 3 : kSeeds;
#endif
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
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
  check_gemms<WgmmaKind::e5m2, false>();
  check_gemms<WgmmaKind::e4m3_e5m2, false>();
  check_gemms<WgmmaKind::e5m2_e4m3, false>();
  check_gemms<WgmmaKind::s8, false>();
}

TEST_CASE("a pipelined product of a cluster, one operand in registers", "[emulator][sm90]") {
  check_gemms<WgmmaKind::f16, true>();
  check_gemms<WgmmaKind::bf16, true>();
  check_gemms<WgmmaKind::e4m3, true>();
  check_gemms<WgmmaKind::s8, true>();
}

// ---- warpgroup instructions ----------------------------------------------------------------------------------------
namespace {
// Operands of 64 and 8 rows of 128 bytes, at 0 and 8192 of shared memory: the value of all is 1, as f16.
constexpr u32 kOperands = 9 * 1024;
void fill_operands() {
  for (u32 i = thread_x(); i < kOperands / 2; i += 128) reinterpret_cast<u16*>(dynamic_shared())[i] = 0x3c00;
  fence_async();
  sync_block();
}
using Ones = Wgmma<WgmmaKind::f16, 8>;
u32 of_a() { return wgmma_descriptor(dynamic_shared()); }
u32 of_b() { return wgmma_descriptor(dynamic_shared() + 8192); }
std::string wgmma_error(const std::function<void()>& body, u32 threads = 128, std::uint64_t seed = 0) {
  return error_of({{1, 1, 1}, threads, 1, kOperands, seed}, [&] {
    fill_operands();
    body();
  });
}
}  // namespace

TEST_CASE("accumulators and operands belong to a wgmma until its wait", "[emulator][sm90]") {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    std::atomic<int> wrong = 0;
    const std::string text = wgmma_error(
        [&] {
          float d[4] = {5, 5, 5, 5}, e[4];
          const u32 a[4] = {0x40004000u, 0x40004000u, 0x40004000u, 0x40004000u};  // two
          wgmma_fence();
          Ones::ss(d, of_a(), of_b(), true);
          wrong += !is_nan(d[0]) || !is_nan(d[3]);
          wgmma_commit();
          Ones::rs(e, a, of_b(), false);
          wgmma_commit();
          wgmma_wait<1>();
          wrong += d[0] != 21 || d[3] != 21 || !is_nan(e[0]);
          wgmma_wait<0>();
          wrong += e[0] != 32 || e[3] != 32;
          wgmma_fence();
          Ones::ss(d, of_a(), of_b(), true);
          wgmma_commit();
          Ones::ss(d, of_a(), of_b(), true);  // still in flight after the first has retired
          wgmma_commit();
          wgmma_wait<1>();
          wrong += !is_nan(d[0]);
          wgmma_wait<0>();
          wrong += d[0] != 53;
        },
        128, seed);
    CHECK(text == "");
    CHECK(wrong == 0);
  }
  CHECK(has(wgmma_error([] {
              float d[4];
              wgmma_fence();
              Ones::ss(d, of_a(), of_b(), false);
              d[2] = 0;
              wgmma_commit();
              wgmma_wait<0>();
            }),
            "an accumulator was written before the wait"));
  CHECK(has(wgmma_error([] {
              float d[4];
              u32 a[4] = {};
              wgmma_fence();
              Ones::rs(d, a, of_b(), false);
              wgmma_commit();
              a[1] = 7;
              wgmma_wait<0>();
            }),
            "a register operand was written before the wait"));
#if !defined(__SANITIZE_THREAD__)  // it finds a race first
  const std::string changed = wgmma_error([] {
    float d[4];
    wgmma_fence();
    Ones::ss(d, of_a(), of_b(), false);
    wgmma_commit();
    dynamic_shared()[8 * thread_x()] = 1;
    fence_async();
    wgmma_wait<0>();
  });
  CHECK(has(changed, "wgmma f16 n8 [0] [8192]: its shared memory changed between the issue and the wait"));
#endif
}

TEST_CASE("a wgmma that reads before the copy's barrier is an error", "[emulator][sm90]") {
  alignas(128) static u8 x[kOperands] = {};
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed)
    for (const bool wait : {true, false}) {
#if defined(__SANITIZE_THREAD__)
      if (!wait) continue;  // it finds a race first
#endif
      const std::string text = error_of({{1, 1, 1}, 128, 1, kOperands + 8, seed}, [&] {
        u64* b = shared_barrier(kOperands, 1);
        if (thread_x() == 0) {
          barrier_expect(b, kOperands);
          bulk_load(dynamic_shared(), x, kOperands, b, kEvictNormal);
        }
        if (wait) barrier_wait(b, 0);
        float d[4];
        wgmma_fence();
        Ones::ss(d, of_a(), of_b(), false);
        wgmma_commit();
        wgmma_wait<0>();
        barrier_wait(b, 0);
        if (!wait && !(d[0] == 0)) throw emu::Error("changed: NaN");
      });
      if (seed % 3 == 0) CHECK(has(text, "changed") == !wait);  // otherwise it may arrive in time
      if (wait) CHECK(text == "");
    }
}

TEST_CASE("misuse of warpgroup instructions is an error", "[emulator][sm90]") {
  const auto issue = [](u64 a, u64 b) {
    return wgmma_error([=] {
      float d[4];
      wgmma_fence();
      emu::wgmma(WgmmaKind::f16, 8, reinterpret_cast<u32*>(d), nullptr, a, b, false);
      wgmma_commit();
      wgmma_wait<0>();
    });
  };
  const u64 a = 1ull << 16 | 64ull << 32 | 1ull << 62, b = a | 8192 / 16;
  CHECK(wgmma_error([=] {
          if (Ones::whole(of_a()) != a || Ones::whole(of_b()) != b) throw emu::Error("other");
        }) == "");
  CHECK(issue(a, b) == "");
  CHECK(issue(a + 2, b + 6) == "");
  CHECK(has(issue(a ^ 3ull << 62, b), "another swizzle"));
  CHECK(has(issue(a, b & ~(3ull << 62)), "another swizzle"));
  CHECK(has(issue(a | 1ull << 49, b), "base offset"));
  CHECK(has(issue(a | 1ull << 60, b), "mean nothing"));
  CHECK(has(issue(a | 1ull << 14, b), "mean nothing"));
  CHECK(has(issue(a | 4ull << 16, b), "leading offset"));
  CHECK(has(issue(a + 8, b), "that starts neither"));
  CHECK(has(issue(a + 1, b), "that starts neither"));
  CHECK(has(issue(a ^ 64ull << 32 ^ 32ull << 32, b), "eight rows"));
  CHECK(has(issue(a + 128, b), "beyond shared memory"));
  CHECK(has(issue(a, b + 64), "beyond shared memory"));

  const auto shape = [](WgmmaKind kind, int n) {
    return has(wgmma_error([=] {
                 u32 d[256];
                 wgmma_fence();
                 emu::wgmma(kind, n, d, nullptr, Ones::whole(of_a()), Ones::whole(of_b()), false);
               }),
               "there is no such shape");
  };
  for (const WgmmaKind kind : {WgmmaKind::f16, WgmmaKind::bf16, WgmmaKind::e4m3, WgmmaKind::s8}) {
    CHECK(shape(kind, 0));
    CHECK(shape(kind, 12));
    CHECK(shape(kind, 264));
    CHECK_FALSE(shape(kind, 24));
    CHECK(shape(kind, 40) == (kind == WgmmaKind::s8));
  }
  const auto unfenced = [](bool before, bool between) {
    return wgmma_error([=] {
      float d[4];
      if (before) wgmma_fence();
      Ones::ss(d, of_a(), of_b(), false);
      wgmma_commit();
      wgmma_wait<0>();
      if (between) wgmma_fence();
      Ones::ss(d, of_a(), of_b(), true);
      wgmma_commit();
      wgmma_wait<0>();
    });
  };
  CHECK(unfenced(true, true) == "");
  CHECK(has(unfenced(false, true), "no wgmma_fence"));
  CHECK(has(unfenced(true, false), "no wgmma_fence"));
  CHECK(has(wgmma_error([] {
              dynamic_shared()[0] = 1;
              sync_block();
              float d[4];
              wgmma_fence();
              Ones::ss(d, of_a(), of_b(), false);
            }),
            "ordinary stores that no fence_async followed"));
  CHECK(has(wgmma_error([] {
              float d[4];
              wgmma_fence();
              Ones::ss(d, thread_x() % 32 == 3 ? of_a() : of_a() + 2, of_b(), false);
            }),
            "divergent warp: wgmma f16 n8 [32] [8192] in one lane and wgmma f16 n8 [0] [8192] in another"));
  CHECK(has(wgmma_error([] {
              float d[4];
              wgmma_fence();
              Ones::ss(d, of_a(), of_b(), thread_x() < 32);
            }),
            "divergent warpgroup: it is at wgmma f16 n8 [0] [8192], where another warp was at wgmma f16 n8 [0] [8192] "
            "accumulating"));
  CHECK(has(wgmma_error([] {
              float d[4];
              wgmma_fence();
              Ones::ss(d, of_a(), of_b(), false);
              if (thread_x() < 32) wgmma_commit();
              Ones::ss(d, of_a(), of_b(), true);
              wgmma_commit();
            }),
            "wgmma_commit of another group"));
  const std::string alone = wgmma_error([] {
    float d[4];
    wgmma_fence();
    if (thread_x() >= 32) return;
    Ones::ss(d, of_a(), of_b(), false);
    wgmma_commit();
    wgmma_wait<0>();
  });
  CHECK(has(alone, "deadlock: block (0, 0, 0), threads 0-31 wait at wgmma_wait for the warpgroup's other warps"));
  CHECK(has(wgmma_error([] {
              float d[4];
              wgmma_fence();
              Ones::ss(d, of_a(), of_b(), false);
              wgmma_wait<0>();  // of groups; this one is in none
            }),
            "ends with a wgmma in flight"));
  CHECK(has(error_of({{1, 1, 1}, 96, 1, 0, 0}, [] { wgmma_fence(); }), "incomplete warpgroup"));
  CHECK(has(wgmma_error([] {
              float d[8];
              wgmma_fence();
              Ones::ss(*reinterpret_cast<float(*)[4]>(d), of_a(), of_b(), false);
              emu::wgmma(WgmmaKind::f16, 16, reinterpret_cast<u32*>(d), nullptr, Ones::whole(of_a()),
                         Ones::whole(of_a()), true);
            }),
            "in flight in another shape"));
}

TEST_CASE("registers are moved between warpgroups within what a block has", "[emulator][sm90]") {
  const emu::Launch launch{{1, 1, 1}, 384, 1, 0, 0};
  const auto moved = [&](auto producer, auto consumer) {
    return error_of(launch, [=] { thread_x() < 128 ? producer() : consumer(); });
  };
  CHECK(moved([] { give_registers<40>(); }, [] { take_registers<232>(); }) == "");
  CHECK(moved([] { give_registers<24>(); }, [] { take_registers<240>(); }) == "");
  CHECK(has(moved([] { give_registers<40>(); }, [] { take_registers<240>(); }), "66560 registers in all, of 64512"));
  CHECK(has(moved([] {}, [] { take_registers<232>(); }), "registers in all"));
  CHECK(has(moved([] { give_registers<20>(); }, [] {}), "set_registers to 20"));
  CHECK(has(moved([] { give_registers<36>(); }, [] {}), "set_registers to 36"));
  CHECK(has(moved([] {}, [] { take_registers<264>(); }), "set_registers to 264"));
  CHECK(has(moved(
                [] {
                  if (thread_x() < 96) give_registers<40>();
                },
                [] {}),
            "some warps of a warpgroup only"));
  CHECK(
      has(moved([] { thread_x() < 96 ? give_registers<40>() : give_registers<32>(); }, [] {}), "divergent warpgroup"));
  emu::run(launch, [] { wait_prerequisite_grids(), launch_dependent_grids(); });
}
