// SPDX-License-Identifier: Apache-2.0
// Transaction barriers, the copy engine and stmatrix of the emulator, and what it refuses.
#include "emulator/sm90_test.h"

#include <algorithm>
#include <cstring>
#include <vector>

using namespace emulator_test;

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
                tensor_load(dynamic_shared() + to, &map, PanelPlace{row, panel}, b, kEvictNormal);
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

TEST_CASE("a tensor copy of five axes takes every steps-th place, and zeros outside", "[emulator][sm90]") {
  constexpr int kInner = 40, kWidth = 7, kHeight = 5, kDepth = 3, kImages = 2;  // of u16
  alignas(16) static u16 x[kImages][kDepth][kHeight][kWidth][kInner];
  u16 next = 1;
  for (auto& image : x)
    for (auto& frame : image)
      for (auto& row : frame)
        for (auto& pixel : row)
          for (u16& v : pixel) v = next++;
  constexpr u64 kRow = kWidth * kInner, kFrame = kHeight * kRow;
  alignas(64) const TensorMap map = emu::tensor_map(
      x, 2, kInner, 64, 128,
      {{kWidth, kInner, 4, 2}, {kHeight, kRow, 2, 1}, {kDepth, kFrame, 1, 1}, {kImages, kDepth * kFrame, 1, 1}});
  for (const i32 inner : {0, 32})
    for (const i32 column : {-3, 0, 4})
      for (const i32 row : {-1, 3})
        for (const i32 frame : {-1, 1, 2}) {
          int wrong = 0;
          emu::run({{1, 1, 1}, 32, 1, 4096, 1}, [&] {
            u64* b = shared_barrier(4088, 1);
            if (thread_x() == 0) {
              barrier_expect(b, 8 * 128);
              tensor_load(dynamic_shared(), &map, TensorPlace{inner, {column, row, frame, 1}}, b, kEvictNormal);
            }
            barrier_wait(b, 0);
            for (int pixel = 0; pixel < 8 && thread_x() == 5; ++pixel)
              for (int i = 0; i < 64; ++i) {
                const u32 at = static_cast<u32>(pixel * 128 + i * 2);
                const int px = column + pixel % 4 * 2, py = row + pixel / 4, c = inner + i;
                const bool inside =
                    px >= 0 && px < kWidth && py >= 0 && py < kHeight && frame >= 0 && frame < kDepth && c < kInner;
                wrong += *reinterpret_cast<u16*>(dynamic_shared() + (at ^ (at / 128 % 8 * 16))) !=
                         (inside ? x[1][frame][py][px][c] : 0);
              }
          });
          CHECK(wrong == 0);
        }
  CHECK(has(error_of({{1, 1, 1}, 1, 1, 4096, 0},
                     [&] {
                       shared_barrier(4080, 1);
                       tensor_load(dynamic_shared(), &map, PanelPlace{0, 0}, barrier_at(4080), kEvictNormal);
                     }),
            "another rank"));
  const auto refused = [&](u32 box, u32 step) {
    try {
      emu::tensor_map(x, 2, kInner, 64, 128, {{kWidth, kInner, box, step}});
    } catch (const std::invalid_argument& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(refused(4, 2) == "");
  CHECK(has(refused(4, 9), "eighth"));
  CHECK(has(refused(129, 2), "256"));
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
      tensor_load_multicast(dynamic_shared() + to, m, PanelPlace{0, 0}, barrier_at(barrier), mask, kEvictNormal);
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
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {  // who arrives does not wait; two warps take turns
    u32 y[16], at = 0;
    emu::run({{1, 1, 1}, 64, 1, 0, seed}, [&] {
      const u32 own = thread_x() / 32;
      if (own == 1) arrive_named(5, 64);
      for (u32 i = 0; i < 8; ++i) {
        sync_named(5 + own, 64);
        if (thread_x() % 32 == 0) y[at++] = own;
        arrive_named(6 - own, 64);
      }
    });
    for (u32 i = 0; i < 16; ++i) CHECK(y[i] == i % 2);
  }
  const emu::Launch launch{{1, 1, 1}, 128, 1, 0, 0};
  CHECK(has(error_of(launch, [] { arrive_named(0, 128); }), "arrive_named 0"));
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
      stmatrix_transposed(own, v);
      sync_warp();
      if (lane == 0) std::memcpy(x4, dynamic_shared(), sizeof x4);
      ldmatrix_transposed(back[lane], own);
      for (u32 i = 0; i < 4; ++i) back[lane][i] -= v[i];
      sync_warp();
      const u32 last[2] = {v[2], v[3]};
      stmatrix_transposed(own, last);
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
  CHECK(has(error_of(launch, [] { stmatrix_transposed(dynamic_shared() + 8, {0, 0}); }), "16-byte aligned"));
  CHECK(has(error_of(launch, [] { stmatrix_transposed(dynamic_shared() + 512, {0}); }), "not in shared memory"));
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
