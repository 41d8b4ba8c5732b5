// SPDX-License-Identifier: Apache-2.0
// Threads, barriers, shuffles, asynchronous copies and clusters of the emulator, and what it refuses.
#include "emulator/emulator_test.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <vector>

using namespace emulator_test;

namespace {
void reduce_block(const float* x, float* y, bool barrier) {
  auto* partial = reinterpret_cast<float*>(dynamic_shared());
  const float sum = sum_lanes<32>(x[block_x() * 128 + thread_x()]);
  if (thread_x() % 32 == 0) partial[thread_x() / 32] = sum;
  if (barrier) sync_block();
  if (thread_x() == 0) y[block_x()] = partial[0] + partial[1] + partial[2] + partial[3];
}
}  // namespace

TEST_CASE("every thread of every block runs once", "[emulator]") {
  for (std::uint64_t seed = 0; seed < 3; ++seed)
    for (unsigned threads : {1u, 32u, 40u, 256u, 1024u}) {
      std::vector<int> hits(3 * 2 * 4 * threads);
      emu::run({{3, 2, 4}, threads, 1, 0, seed},
               [&] { ++hits[((block_z() * 2 + block_y()) * 3 + block_x()) * threads + thread_x()]; });
      CHECK(std::count(hits.begin(), hits.end(), 1) == static_cast<long>(hits.size()));
    }
}

TEST_CASE("a block reduction is right under every order, and wrong without its barrier under some", "[emulator]") {
  std::vector<float> x(3 * 128);
  std::iota(x.begin(), x.end(), 1.0f);
  int wrong = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    float y[3], racy[3];
    emu::run({{3, 1, 1}, 128, 1, 16, seed}, [&] { reduce_block(x.data(), y, true); });
    for (int b = 0; b < 3; ++b) CHECK(y[b] == 128.0f * static_cast<float>(128 * b) + 8256.0f);
#if !defined(__SANITIZE_THREAD__)
    emu::run({{3, 1, 1}, 128, 1, 16, seed}, [&] { reduce_block(x.data(), racy, false); });
    for (int b = 0; b < 3; ++b) wrong += !(racy[b] == y[b]);
#else
    (void)racy, wrong = 1;  // the report would end the test
#endif
  }
  CHECK(wrong > 0);
}

TEST_CASE("shuffles move values as defined", "[emulator]") {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed)
    for (int step = 0; step < 32; ++step) {
      u32 by_xor[64], down[64];
      emu::run({{1, 1, 1}, 64, 1, 0, seed}, [&] {
        by_xor[thread_x()] = shuffle_xor(thread_x() * 10u, step);
        down[thread_x()] = shuffle_down(thread_x() * 10u, step);
      });
      for (u32 t = 0; t < 64; ++t) {
        const u32 lane = t % 32, base = t - lane, s = static_cast<u32>(step);
        CHECK(by_xor[t] == 10 * (base + (lane ^ s)));
        CHECK(down[t] == 10 * (lane + s < 32 ? t + s : t));
      }
    }
  float sum = 0, most = 0;
  emu::run({}, [&] {
    const float v = static_cast<float>(thread_x());
    const float s = sum_lanes<32>(v), m = max_lanes<32>(v);
    if (thread_x() == 7) sum = s, most = m;
  });
  CHECK(sum == 496);
  CHECK(most == 31);
}

TEST_CASE("shared memory starts as NaN in every block", "[emulator]") {
  int nans = 0;
  emu::run({{2, 1, 1}, 1, 1, 64, 0}, [&] {
    for (int i = 0; i < 16; ++i) nans += is_nan(reinterpret_cast<float*>(dynamic_shared())[i]);
    for (int i = 0; i < 32; ++i) {
      const u16 bits = reinterpret_cast<u16*>(dynamic_shared())[i];
      nans += is_nan(f16_bits_to_f32(bits)) && is_nan(bf16_bits_to_f32(bits));
    }
    for (int i = 0; i < 16; ++i) reinterpret_cast<float*>(dynamic_shared())[i] = 0;
  });
  CHECK(nans == 2 * 48);
}

TEST_CASE("cp_async delivers at the matching wait and not before", "[emulator]") {
  alignas(16) float x[12];
  std::iota(x, x + 12, 1.0f);
  emu::run({{1, 1, 1}, 1, 1, 64, 0}, [&] {
    auto* s = reinterpret_cast<float*>(dynamic_shared());
    for (int i = 0; i < 16; ++i) s[i] = 100;
    cp_async<16>(s, x);
    cp_async_commit();
    cp_async<8>(s + 4, x + 4, 4);
    cp_async_commit();
    cp_async<4>(s + 8, x + 8, 0);
    CHECK((is_nan(s[0]) && is_nan(s[3]) && is_nan(s[4]) && is_nan(s[5]) && s[6] == 100 && is_nan(s[8])));
    cp_async_wait<1>();
    CHECK((s[0] == 1 && s[3] == 4 && is_nan(s[4]) && is_nan(s[8])));
    cp_async_wait<0>();
    CHECK((s[4] == 5 && s[5] == 0 && s[6] == 100 && is_nan(s[8])));  // the last copy was not committed
    cp_async_commit();
    cp_async_wait<0>();
    CHECK(s[8] == 0);
  });
}

TEST_CASE("a kernel that forgets the wait or the barrier gives a wrong result", "[emulator]") {
  std::vector<float> x(256), y(256);
  std::iota(x.begin(), x.end(), 1.0f);
  const auto reverse = [&](bool wait, bool barrier, std::uint64_t seed) {
    emu::run({{1, 1, 1}, 256, 1, 1024, seed}, [&] {
      auto* s = reinterpret_cast<float*>(dynamic_shared());
      cp_async<4>(s + thread_x(), &x[thread_x()]);
      cp_async_commit();
      if (wait) cp_async_wait<0>();
      if (barrier) sync_block();
      y[thread_x()] = s[255 - thread_x()];
    });
    return std::equal(x.begin(), x.end(), y.rbegin());
  };
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    CHECK(reverse(true, true, seed));
#if !defined(__SANITIZE_THREAD__)
    CHECK_FALSE(reverse(false, true, seed));
    CHECK_FALSE(reverse(true, false, seed));
#endif
  }
}

TEST_CASE("divergence is an error that names who waits where", "[emulator]") {
  const emu::Launch launch{{1, 1, 1}, 64, 1, 0, 0};
  const std::string left = error_of(launch, [] {
    if (thread_x() >= 48) return;
    sync_block();
  });
  CHECK(left == "divergent barrier: block (0, 0, 0), threads 0-47 wait at sync_block, threads 48-63 have exited");
  const std::string other = error_of(launch, [] { thread_x() < 32 ? sync_block() : sync_cluster(); });
  CHECK(other ==
        "divergent barrier: block (0, 0, 0), threads 0-31 wait at sync_block, threads 32-63 wait at sync_cluster");
  const std::string alone = error_of(launch, [] {
    if (thread_x() == 5) shuffle_xor(1u, 1);
  });
  CHECK(has(alone, "threads 5 wait at shuffle_xor by 1"));
  const std::string mixed = error_of(launch, [] { thread_x() % 32 < 7 ? shuffle_xor(1u, 1) : shuffle_xor(1u, 2); });
  CHECK(
      mixed ==
      "block (0, 0, 0), thread 7: divergent warp: it is at shuffle_xor by 2, while thread 0 waits at shuffle_xor by 1");
  CHECK(has(error_of({{1, 1, 1}, 40, 1, 0, 0}, [] { sync_warp(); }), "thread 32: sync_warp in a warp of 8 threads"));
  emu::run(launch, [] { sync_block(); });  // and the emulator still works
}

TEST_CASE("bad addresses and launches are errors", "[emulator]") {
  alignas(16) static u8 global[64];
  const emu::Launch launch{{1, 1, 1}, 32, 1, 512, 0};
  u32 d[4];
  CHECK(has(error_of(launch, [&] { ldmatrix_x4(d, dynamic_shared() + 8); }), "16-byte aligned"));
  CHECK(has(error_of(launch, [&] { ldmatrix_x4(d, global); }), "not in shared memory"));
  CHECK(has(error_of(launch, [&] { cp_async<16>(dynamic_shared() + 500, global); }), "not in shared memory"));
  CHECK(has(error_of(launch, [&] { cp_async<16>(dynamic_shared() + 8, global); }), "misaligned"));
  CHECK(has(error_of(launch, [&] { cp_async<16>(dynamic_shared(), global + 4); }), "misaligned"));
  CHECK(has(error_of(launch, [&] { cp_async<16>(dynamic_shared(), global, 17); }), "17 valid bytes"));
  CHECK_THROWS_AS(emu::run({{0, 1, 1}, 32, 1, 0, 0}, [] {}), std::invalid_argument);
  CHECK_THROWS_AS(emu::run({{3, 1, 1}, 32, 2, 0, 0}, [] {}), std::invalid_argument);
  CHECK_THROWS_AS(emu::run({{1, 1, 1}, 2048, 1, 0, 0}, [] {}), std::invalid_argument);
  CHECK_THROWS_AS(emu::run({{1, 1, 1}, 32, 1, 1 << 20, 0}, [] {}), std::invalid_argument);
  CHECK_THROWS_AS(sync_block(), emu::Error);  // not in a kernel
  CHECK_THROWS_AS(emu::run({}, [] { throw 1; }), int);
}

TEST_CASE("a cluster's blocks run together and read each other's shared memory", "[emulator]") {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    float sums[8];
    const emu::Launch launch{{8, 1, 1}, 64, 4, 256, seed};
    emu::run(launch, [&] {
      auto* s = reinterpret_cast<float*>(dynamic_shared());
      s[thread_x()] = static_cast<float>(block_x() * 100 + thread_x());
      sync_cluster();
      float sum = 0;
      for (u32 r = 0; r < 4; ++r) sum += load_cluster(s + thread_x(), r);
      if (thread_x() == 63) sums[block_x()] = sum;
      CHECK(cluster_rank() == block_x() % 4);
      sync_cluster();  // nobody leaves while others read
    });
    for (int b = 0; b < 8; ++b) CHECK(sums[b] == (b < 4 ? 600 : 2200) + 4 * 63);
  }
  const std::string gone = error_of({{2, 1, 1}, 32, 2, 4, 0}, [] {
    sync_cluster();
    if (cluster_rank() == 1) load_cluster(reinterpret_cast<float*>(dynamic_shared()), 0);
  });
  CHECK(has(gone, "load_cluster from rank 0, which has exited"));
}

TEST_CASE("writes beyond shared memory are found", "[emulator]") {
  const auto overrun = [] {
    emu::run({{1, 1, 1}, 32, 1, 100, 0}, [] { dynamic_shared()[thread_x() == 31 ? 100 : thread_x()] = 0; });
  };
#if defined(__SANITIZE_ADDRESS__)
  CHECK(dies(overrun));
#else
  CHECK_THROWS_AS(overrun(), emu::Error);
#endif
}

#if defined(__SANITIZE_THREAD__)
TEST_CASE("unordered accesses of two CUDA threads are found", "[emulator]") {
  enum Barrier { none, warp, block };
  const auto exchange = [](Barrier barrier, u32 with) {
    u32 y[64];
    emu::run({{1, 1, 1}, 64, 1, 256, 0}, [&] {
      auto* s = reinterpret_cast<u32*>(dynamic_shared());
      s[thread_x()] = thread_x();
      if (barrier == warp) sync_warp();
      if (barrier == block) sync_block();
      y[thread_x()] = s[thread_x() ^ with];
    });
    if (y[3] != (3 ^ with)) std::abort();
  };
  CHECK_FALSE(dies([&] { exchange(block, 32); }));
  CHECK_FALSE(dies([&] { exchange(warp, 1); }));
  CHECK(dies([&] { exchange(warp, 32); }));
  CHECK(dies([&] { exchange(none, 1); }));
}
#endif
