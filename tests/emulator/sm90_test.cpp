// SPDX-License-Identifier: Apache-2.0
// Transaction barriers, the copy engine and warpgroup instructions of the emulator, and what it refuses.
#include "arch/sm90.cuh"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <vector>

#include "emulator/emulator.h"
#include "support/catch.h"
#if defined(__SANITIZE_THREAD__)
#include <cstdlib>

#include <sys/wait.h>
#include <unistd.h>
#endif

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

// One thread makes the barrier at `offset`, for all.
u64* shared_barrier(u32 offset, u32 arrivals) {
  u64* b = barrier_at(offset);
  if (thread_x() == 0) {
    barrier_init(b, arrivals);
    barrier_init_fence();
  }
  sync_cluster();
  return b;
}

#if defined(__SANITIZE_THREAD__)
// Whether the sanitizer ends a process that does this.
bool dies(const std::function<void()>& action) {
  const pid_t child = fork();
  if (child == 0) {
    close(1), close(2);  // the report is expected
    action();
    std::exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}
#endif

// ---- a whole kernel ------------------------------------------------------------------------------------------------
// c[m x N] = a[m x k] b[N x k]^T: a producer warpgroup, a consumer warpgroup, and two blocks of 64 rows that load half
// of b each, for both.
constexpr u32 kStages = 3;
template <int N>
constexpr u32 kStageBytes = (64 + (N < 8 ? 8 : N)) * 128;
template <int N>
constexpr u32 kGemmShared = kStages * kStageBytes<N> + 16 * kStages;

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
        tensor_load(stage, a, static_cast<i32>(row0), panel, full + s, kEvictFirst);
        tensor_load_multicast(stage + 64 * 128 + rank * (N / 2) * 128, b, static_cast<i32>(rank * (N / 2)), panel,
                              full + s, 3, kEvictLast);
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
  const Matrix a(kind, m, k, 528, N), b(kind, N, k, 512, N + 1);
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
  check_gemms<WgmmaKind::s8, false>();
}

TEST_CASE("a pipelined product of a cluster, one operand in registers", "[emulator][sm90]") {
  check_gemms<WgmmaKind::f16, true>();
  check_gemms<WgmmaKind::bf16, true>();
  check_gemms<WgmmaKind::e4m3, true>();
  check_gemms<WgmmaKind::s8, true>();
}

// ---- transaction barriers ------------------------------------------------------------------------------------------
TEST_CASE("a transaction barrier counts arrivals by phases", "[emulator][sm90]") {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    std::vector<int> y;
    emu::run({{1, 1, 1}, 64, 1, 64, seed}, [&] {  // warp 1 produces one number at a time, warp 0 takes them
      u64* full = shared_barrier(0, 32);
      u64* empty = shared_barrier(8, 32);
      auto* value = reinterpret_cast<int*>(dynamic_shared() + 16);
      barrier_wait(empty, 1);  // "the phase before the first" has completed
      for (u32 i = 0; i < 5; ++i) {
        if (thread_x() >= 32) {
          barrier_wait(empty, (i & 1) ^ 1);
          if (thread_x() == 32) *value = static_cast<int>(i);
          sync_warp();
          barrier_arrive(full);
        } else {
          barrier_wait(full, i & 1);
          if (thread_x() == 7) y.push_back(*value);
          barrier_arrive(empty);
        }
      }
    });
    CHECK(y == std::vector<int>{0, 1, 2, 3, 4});
  }
}

TEST_CASE("misuse of a transaction barrier is an error", "[emulator][sm90]") {
  const emu::Launch one{{1, 1, 1}, 1, 1, 256, 0}, two{{2, 1, 1}, 1, 2, 256, 0};
  static u64 elsewhere;
  alignas(16) static u8 global[64];
  CHECK(has(error_of(one, [] { barrier_init(&elsewhere, 1); }), "not in shared memory"));
  CHECK(has(error_of(one, [] { barrier_init(barrier_at(4), 1); }), "not 8-byte aligned"));
  CHECK(has(error_of(one, [] { barrier_init(barrier_at(252), 1); }), "not in shared memory"));
  CHECK(has(error_of(one, [] { barrier_init(barrier_at(0), 0); }), "0 arrivals"));
  CHECK(has(error_of(one, [] { barrier_init(barrier_at(0), 1), barrier_init(barrier_at(0), 1); }),
            "initialized already"));
  CHECK(has(error_of(one, [] { barrier_arrive(barrier_at(8)); }), "the barrier at 8 was not initialized"));
  CHECK(has(error_of(one, [] { barrier_wait(barrier_at(8), 0); }), "was not initialized"));
  CHECK(has(error_of(one, [] { barrier_wait(barrier_at(4), 0); }), "not 8-byte aligned"));
  CHECK(has(error_of(one, [] { barrier_wait(shared_barrier(0, 1), 2); }), "parity 2"));
  CHECK(has(error_of(one, [] { barrier_expect(shared_barrier(0, 1), 1 << 20); }), "too many bytes"));
  CHECK(has(error_of(one,
                     [] {
                       u64* b = shared_barrier(0, 1);
                       *b = 0;
                       barrier_arrive(b);
                     }),
            "was overwritten"));
  CHECK(has(error_of(one, [] { *shared_barrier(0, 1) = 0; }), "overwritten"));
  const std::string pending = error_of(one, [] { barrier_expect(shared_barrier(16, 1), 32); });
  CHECK(pending ==
        "block (0, 0, 0): the kernel ends with bytes pending at the barrier at 16 (phase 0, 1 of 1 arrivals, 32 bytes "
        "pending)");
  CHECK(has(error_of(one,
                     [] {
                       u64* b = shared_barrier(16, 1);
                       barrier_expect(b, 32);
                       barrier_arrive(b);
                     }),
            "one arrival too many at the barrier at 16"));
  CHECK(has(error_of(one,
                     [] {
                       u64* b = shared_barrier(16, 1);
                       bulk_load(dynamic_shared() + 32, global, 32, b, kEvictNormal);
                       barrier_expect(b, 16);
                       barrier_wait(b, 0);
                     }),
            "more bytes have arrived than expected at the barrier at 16"));
  CHECK(has(error_of(one,
                     [] {
                       u64* b = shared_barrier(16, 1);
                       bulk_load(dynamic_shared() + 32, global, 32, b, kEvictNormal);
                       barrier_expect(b, 32);
                     }),
            "bulk_load by block (0, 0, 0), thread 0 is under way to rank 0, which has exited"));
  const auto remote = [](bool fence, u32 rank) {
    barrier_init(barrier_at(0), 1);
    if (fence) barrier_init_fence();
    sync_cluster();
    barrier_arrive_remote(barrier_at(0), rank);
    sync_cluster();
  };
  CHECK(error_of(two, [&] { remote(true, 1 - cluster_rank()); }) == "");
  CHECK(error_of(two, [&] { remote(true, 1); }) == "");  // two phases
  CHECK(has(error_of(two, [&] { remote(false, 1); }), "no barrier_init_fence"));
  CHECK(has(error_of(two, [&] { remote(true, 2); }), "rank 2"));
  CHECK(has(error_of(two,
                     [] {
                       u64* b = shared_barrier(0, 1);
                       if (cluster_rank() == 0) barrier_arrive_remote(b, 1);
                     }),
            "rank 1, which has exited"));
}

TEST_CASE("a deadlock names the barriers and who waits for them", "[emulator][sm90]") {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const std::string text = error_of({{1, 1, 1}, 64, 1, 64, seed}, [] {
      u64* b = shared_barrier(8, 3);
      if (thread_x() < 2) barrier_arrive(b);
      if (thread_x() == 40) barrier_wait(b, 0);
      if (thread_x() < 32) sync_named(3, 64);
    });
    CHECK(text ==
          "deadlock: block (0, 0, 0), threads 0-31 wait at sync_named 3, threads 32-39, 41-63 have exited, threads 40 "
          "wait at barrier_wait for parity 0 of the barrier at 8 (phase 0, 2 of 3 arrivals, 0 bytes pending)");
  }
  emu::run({{1, 1, 1}, 64, 1, 64, 0}, [] { sync_block(); });  // and the emulator still works
}

// ---- copies --------------------------------------------------------------------------------------------------------
TEST_CASE("a bulk copy is NaN until its barrier has passed", "[emulator][sm90]") {
  alignas(16) float x[64];
  for (int i = 0; i < 64; ++i) x[i] = static_cast<float>(i);
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    int early = 0;
    float y[64];
    emu::run({{1, 1, 1}, 32, 1, 2048, seed}, [&] {
      u64* b = shared_barrier(1024, 1);
      auto* s = reinterpret_cast<float*>(dynamic_shared());
      if (thread_x() == 0) {
        s[0] = s[60] = 100;
        bulk_load(s, x, 160, b, kEvictNormal);
        bulk_load(s + 40, x + 40, 96, b, kEvictNormal);
        early += s[0] == 100 || s[60] == 100;
        barrier_expect(b, 256);
      }
      barrier_wait(b, 0);
      for (u32 i = thread_x(); i < 64; i += 32) y[i] = s[i];
    });
    CHECK(early == 0);
    CHECK(std::equal(x, x + 64, y));
  }
}

TEST_CASE("words stored into a neighbour arrive with its barrier", "[emulator][sm90]") {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    float y[4][32];
    emu::run({{4, 1, 1}, 32, 2, 1024, seed}, [&] {
      u64* b = shared_barrier(512, 1);
      auto* s = reinterpret_cast<float*>(dynamic_shared());
      const u32 other = 1 - cluster_rank();
      if (thread_x() == 0) barrier_expect(b, 128);
      store_cluster_async(s + thread_x(), static_cast<float>(100 * cluster_rank() + thread_x()), b, other);
      barrier_wait(b, 0);
      y[block_x()][thread_x()] = s[31 - thread_x()];
    });
    for (u32 i = 0; i < 128; ++i) CHECK(y[i / 32][i % 32] == static_cast<float>(100 * (1 - i / 32 % 2) + 31 - i % 32));
  }
  const emu::Launch two{{2, 1, 1}, 1, 2, 64, 0};
  const auto store = [](u32 offset, u32 rank) {
    u64* b = shared_barrier(0, 1);
    store_cluster_async(reinterpret_cast<float*>(dynamic_shared() + offset), 1, b, rank);
    sync_cluster();
  };
  CHECK(has(error_of(two, [&] { store(18, 0); }), "misaligned"));
  CHECK(has(error_of(two, [&] { store(64, 0); }), "not in shared memory"));
  CHECK(has(error_of(two, [&] { store(16, 2); }), "rank 2"));
}

TEST_CASE("a tensor copy swizzles by address and fills with zeros", "[emulator][sm90]") {
  constexpr u32 kInner = 192, kRows = 20;  // of u16
  alignas(16) static u16 x[kRows][200];
  for (u32 r = 0; r < kRows; ++r)
    for (u32 i = 0; i < 200; ++i) x[r][i] = static_cast<u16>(i < kInner ? 1 + r * 200 + i : 0xffff);
  for (const u32 span : {0u, 32u, 64u, 128u})
    for (const u32 panels : {1u, 2u})
      for (const i32 panel : {0, 1, 2, -1, 50})
        for (const i32 row : {0, 13, -3, 50})
          for (const u32 to : {0u, 1024u, 128u * 3}) {
            const u32 inner = span ? span / 2 : 48;
            alignas(64) const TensorMap map = emu::tensor_map(x, 2, kInner, kRows, 400, inner, 16, span, panels);
            int wrong = 0;
            emu::run({{1, 1, 1}, 32, 1, 8192, 1}, [&] {
              u64* b = shared_barrier(8184, 1);
              if (thread_x() == 0) {
                barrier_expect(b, inner * 2 * 16 * panels);
                tensor_load(dynamic_shared() + to, &map, row, panel, b, kEvictNormal);
              }
              barrier_wait(b, 0);
              for (u32 p = 0; p < panels && thread_x() == 31; ++p)
                for (u32 r = 0; r < 16; ++r)
                  for (u32 i = 0; i < inner; ++i) {
                    u32 at = to + ((p * 16 + r) * inner + i) * 2;
                    if (span == 128) at ^= at / 128 % 8 * 16;
                    if (span == 64) at ^= at / 128 % 4 * 16;
                    if (span == 32) at ^= at / 128 % 2 * 16;
                    const i32 y = row + static_cast<i32>(r),
                              first = (panel + static_cast<i32>(p)) * static_cast<i32>(inner);
                    const bool inside =
                        y >= 0 && y < static_cast<i32>(kRows) && first >= 0 && first < static_cast<i32>(kInner);
                    wrong += *reinterpret_cast<u16*>(dynamic_shared() + at) !=
                             (inside ? x[y][first + static_cast<i32>(i)] : 0);
                  }
            });
            CHECK(wrong == 0);
          }
}

TEST_CASE("impossible maps and copies are errors", "[emulator][sm90]") {
  alignas(128) static u8 x[4096];
  const auto map = [](const void* base, int element, u64 inner, u64 rows, u64 stride, u32 box_inner, u32 box_rows,
                      u32 span) {
    try {
      emu::tensor_map(base, element, inner, rows, stride, box_inner, box_rows, span);
    } catch (const std::invalid_argument& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(map(x, 2, 64, 8, 128, 64, 8, 128) == "");
  CHECK(has(map(x + 8, 2, 64, 8, 128, 64, 8, 128), "base"));
  CHECK(has(map(nullptr, 2, 64, 8, 128, 64, 8, 128), "base"));
  CHECK(has(map(x, 3, 64, 8, 128, 64, 8, 128), "elements of 3"));
  CHECK(has(map(x, 2, 0, 8, 128, 64, 8, 128), "extents"));
  CHECK(has(map(x, 2, 64, 8, 136, 64, 8, 128), "multiple of 16"));
  CHECK(has(map(x, 2, 64, 8, 112, 64, 8, 128), "overlap"));
  CHECK(has(map(x, 1, 544, 8, 544, 272, 8, 0), "256"));
  CHECK(has(map(x, 2, 64, 8, 128, 64, 257, 128), "256"));
  CHECK(has(map(x, 2, 64, 8, 128, 64, 8, 48), "48 bytes"));
  CHECK(has(map(x, 2, 60, 8, 128, 12, 8, 32), "multiple of 16"));
  CHECK(has(map(x, 2, 60, 8, 128, 16, 8, 32), "not whole panels"));
  CHECK(has(map(x, 2, 64, 8, 128, 64, 8, 64), "longer"));

  const emu::Launch one{{1, 1, 1}, 1, 1, 4096, 0};
  alignas(64) static TensorMap good = emu::tensor_map(x, 2, 64, 8, 128, 64, 8, 128), bad{};
  const auto tensor = [&](const TensorMap* m, u32 to, u32 barrier, u32 mask = 0) {
    return error_of(one, [=] {
      shared_barrier(4080, 1);
      tensor_load_multicast(dynamic_shared() + to, m, 0, 0, barrier_at(barrier), mask, kEvictNormal);
    });
  };
  CHECK(has(tensor(&bad, 0, 4080), "not a map"));
  CHECK(has(tensor(reinterpret_cast<const TensorMap*>(reinterpret_cast<const u8*>(&good) + 16), 0, 4080),
            "64-byte aligned"));
  CHECK(has(tensor(&good, 64, 4080), "128-byte aligned"));
  CHECK(has(tensor(&good, 3200, 4080), "not in shared memory"));
  CHECK(has(tensor(&good, 0, 4088), "was not initialized"));
  CHECK(has(tensor(&good, 0, 4080, 2), "blocks that the cluster does not have"));
  const auto bulk = [&](u32 to, const void* from, u32 bytes) {
    return error_of(one, [=] { bulk_load(dynamic_shared() + to, from, bytes, shared_barrier(4080, 1), kEvictNormal); });
  };
  CHECK(has(bulk(8, x, 16), "to a misaligned"));
  CHECK(has(bulk(16, x + 8, 16), "from a misaligned"));
  CHECK(has(bulk(16, x, 24), "24 bytes"));
  CHECK(has(bulk(16, x, 0), "0 bytes"));
  CHECK(has(bulk(4080, x, 32), "not in shared memory"));
  CHECK(has(error_of(one,
                     [] {
                       u64* b = shared_barrier(4080, 1);
                       bulk_load(dynamic_shared(), x, 64, b, kEvictNormal);
                       bulk_load(dynamic_shared() + 48, x, 64, b, kEvictNormal);
                     }),
            "bulk_load over a bulk_load by block (0, 0, 0), thread 0 that is under way"));
  CHECK(has(error_of(one,
                     [] {
                       barrier_init(barrier_at(4080), 1);
                       bulk_load(dynamic_shared(), x, 64, barrier_at(4080), kEvictNormal);
                     }),
            "no barrier_init_fence"));
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

// ---- the rest ------------------------------------------------------------------------------------------------------
TEST_CASE("named barriers hold back the threads they count", "[emulator][sm90]") {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    u32 y[96];
    emu::run({{1, 1, 1}, 128, 1, 512, seed}, [&] {
      auto* s = reinterpret_cast<u32*>(dynamic_shared());
      for (u32 i = 0; i < 3; ++i) {
        if (thread_x() >= 32) {
          s[thread_x()] = thread_x() + i;
          sync_named(2, 96);
          y[thread_x() - 32] = s[159 - thread_x()];
          sync_named(15, 96);
        }
      }
    });
    for (u32 t = 32; t < 128; ++t) CHECK(y[t - 32] == 159 - t + 2);
  }
  const emu::Launch launch{{1, 1, 1}, 128, 1, 0, 0};
  CHECK(has(error_of(launch, [] { sync_named(0, 128); }), "sync_named 0"));
  CHECK(has(error_of(launch, [] { sync_named(16, 128); }), "sync_named 16"));
  CHECK(has(error_of(launch, [] { sync_named(1, 48); }), "48 threads"));
  CHECK(has(error_of(launch, [] { sync_named(1, 160); }), "160 threads"));
  CHECK(has(error_of(launch, [] { sync_named(1, thread_x() < 32 ? 64 : 96); }), "while others wait there for 64"));
  CHECK(has(error_of(launch,
                     [] {
                       if (thread_x() < 64) sync_named(1, 96);
                     }),
            "threads 0-63 wait at sync_named 1"));
  CHECK(has(error_of(launch, [] { sync_named(1 + thread_x() % 2, 64); }), "divergent warp"));
}

TEST_CASE("stmatrix is the reverse of ldmatrix", "[emulator][sm90]") {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    u16 x4[32][8], x2[16][8], plain[32][8];
    u32 back[32][4];
    emu::run({{1, 1, 1}, 32, 1, 32 * 16, seed}, [&] {
      const u32 lane = thread_x(), row = lane / 4, column = 2 * (lane % 4);
      u8* own = dynamic_shared() + 16 * lane;
      u32 v[4];  // element (r, c) of matrix i is 100 i + 8 r + c, and a register holds (row, column), (row, column + 1)
      for (u32 i = 0; i < 4; ++i) v[i] = (100 * i + 8 * row + column) | (100 * i + 8 * row + column + 1) << 16;
      stmatrix_x4_transposed(own, v);
      sync_warp();
      if (lane == 0) std::memcpy(x4, dynamic_shared(), sizeof x4);
      emu::ldmatrix(back[lane], own, 4, true);
      for (u32 i = 0; i < 4; ++i) back[lane][i] -= v[i];
      sync_warp();
      stmatrix_x2_transposed(own, v[2], v[3]);
      sync_warp();
      if (lane == 0) std::memcpy(x2, dynamic_shared(), sizeof x2);
      sync_warp();
      emu::stmatrix(own, v, 4, false);
      sync_warp();
      if (lane == 0) std::memcpy(plain, dynamic_shared(), sizeof plain);
    });
    for (u32 i = 0; i < 128; ++i) CHECK(back[i / 4][i % 4] == 0);
    for (u32 i = 0; i < 4; ++i)
      for (u32 r = 0; r < 8; ++r)
        for (u32 c = 0; c < 8; ++c) {
          CHECK(x4[8 * i + c][r] == 100 * i + 8 * r + c);
          CHECK(plain[8 * i + r][c] == 100 * i + 8 * r + c);
          if (i >= 2) CHECK(x2[8 * (i - 2) + c][r] == 100 * i + 8 * r + c);
        }
  }
  const emu::Launch launch{{1, 1, 1}, 32, 1, 512, 0};
  CHECK(has(error_of(launch, [] { stmatrix_x2_transposed(dynamic_shared() + 8, 0, 0); }), "16-byte aligned"));
  CHECK(has(error_of(launch, [] { stmatrix_x2_transposed(dynamic_shared() + 512, 0, 0); }), "not in shared memory"));
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

#if defined(__SANITIZE_THREAD__)
TEST_CASE("a stage that is used without its barrier is found", "[emulator][sm90]") {
  alignas(16) static float x[64] = {};
  const auto pipeline = [](bool full_wait, bool empty_wait) {
    float sum = 0;
    emu::run({{1, 1, 1}, 64, 1, 256, 0}, [&] {
      u64* full = shared_barrier(128, 1);
      u64* empty = shared_barrier(136, 1);
      auto* s = reinterpret_cast<float*>(dynamic_shared());
      for (u32 i = 0; i < 3; ++i) {
        if (thread_x() == 0) {
          if (empty_wait) barrier_wait(empty, (i & 1) ^ 1);
          barrier_expect(full, 128);
          bulk_load(s, x, 128, full, kEvictNormal);
          if (!empty_wait) barrier_wait(full, i & 1);
        }
        if (thread_x() == 40) {
          if (full_wait) barrier_wait(full, i & 1);
          sum += s[5];
          barrier_arrive(empty);
        }
      }
      if (thread_x() == 0) barrier_wait(full, 0);
    });
    if (full_wait && !(sum == 0)) std::abort();
  };
  CHECK_FALSE(dies([&] { pipeline(true, true); }));
  CHECK(dies([&] { pipeline(false, true); }));
  CHECK(dies([&] { pipeline(true, false); }));
}
#endif
