// SPDX-License-Identifier: Apache-2.0
// Defines what backends/cuda/ptx.cuh declares in tw::emu.
#include "emulator/emulator.h"

#include <cstring>

#include "emulator/fiber.h"
#include "emulator/fragments.h"
#include "emulator/scheduler.h"

namespace tw::emu {
namespace {
bool aligned(const void* p, std::uintptr_t bytes) { return reinterpret_cast<std::uintptr_t>(p) % bytes == 0; }
constexpr auto kNothing = [](Deposit*) {};
}  // namespace

// ---- where am I ----------------------------------------------------------------------------------------------------
u32 thread() { return Worker::get().self().index; }
Dim block() { return Worker::get().self().block->index; }
Dim grid() { return Worker::get().launch().grid; }
u8* shared() { return Worker::get().self().block->shared; }
u32 cluster_rank() { return Worker::get().self().block->rank; }

// ---- barriers ------------------------------------------------------------------------------------------------------
void sync_block() { Worker::get().sync_block(); }
void sync_cluster() { Worker::get().sync_cluster(); }
void sync_warp() {
  Worker& worker = Worker::get();
  Warp* warp = worker.self().warp;
  tsan_release(warp);
  worker.collective(Collective::sync_warp, 0, {}, kNothing);
  tsan_acquire(warp);
}

// ---- shuffles ------------------------------------------------------------------------------------------------------
u32 shuffle_xor(u32 value, int mask) {
  Worker& worker = Worker::get();
  if (mask < 0 || mask > 31) worker.fail("shuffle_xor by " + std::to_string(mask));
  Deposit mine;
  mine.value = value;
  return worker
      .collective(Collective::shuffle_xor, mask, mine,
                  [mask](Deposit* lanes) {
                    u32 in[kWarp];
                    for (u32 i = 0; i < kWarp; ++i) in[i] = lanes[i].value;
                    for (u32 i = 0; i < kWarp; ++i) lanes[i].value = in[i ^ static_cast<u32>(mask)];
                  })
      .value;
}

u32 shuffle_down(u32 value, int delta) {
  Worker& worker = Worker::get();
  if (delta < 0 || delta > 31) worker.fail("shuffle_down by " + std::to_string(delta));
  Deposit mine;
  mine.value = value;
  return worker
      .collective(Collective::shuffle_down, delta, mine,
                  [delta](Deposit* lanes) {  // ascending: the source is still untouched
                    for (u32 i = 0; i + static_cast<u32>(delta) < kWarp; ++i)
                      lanes[i].value = lanes[i + static_cast<u32>(delta)].value;
                  })
      .value;
}

// ---- matrix fragments ----------------------------------------------------------------------------------------------
void ldmatrix(u32* out, const void* row, int count, bool transpose) {
  Worker& worker = Worker::get();
  const bool used = worker.self().lane < static_cast<u32>(8 * count);
  if (used && !worker.in_shared(row, 16)) worker.fail("ldmatrix reads a row that is not in shared memory");
  if (used && !aligned(row, 16)) worker.fail("ldmatrix reads a row that is not 16-byte aligned");
  if (used) tsan_read(row, 16);
  Deposit mine;
  mine.d = out;
  mine.row = row;
  worker.collective(Collective::ldmatrix, 2 * count + transpose, mine,
                    [=](Deposit* lanes) { load_matrices(lanes, count, transpose); });
}

u32 movmatrix(u32 elements) {
  Deposit mine;
  mine.value = elements;
  return Worker::get()
      .collective(Collective::movmatrix, 0, mine,
                  [](Deposit* lanes) {
                    u16 matrix[8][8];
                    for (u32 i = 0; i < kWarp; ++i)
                      for (u32 half = 0; half < 2; ++half)
                        matrix[i / 4][i % 4 * 2 + half] = static_cast<u16>(lanes[i].value >> (16 * half));
                    for (u32 i = 0; i < kWarp; ++i)
                      lanes[i].value = matrix[i % 4 * 2][i / 4] | static_cast<u32>(matrix[i % 4 * 2 + 1][i / 4]) << 16;
                  })
      .value;
}

void mma(Mma kind, u32* d, const u32* a, const u32* b) {
  Deposit mine;
  mine.d = d;
  mine.a = a;
  mine.b = b;
  Worker::get().collective(Collective::mma, static_cast<int>(kind), mine,
                           [kind](Deposit* lanes) { multiply(kind, lanes); });
}

void scaled_mma(ScaledMma kind, u32* d, const u32* a, const u32* b, u32 scale_a, u32 scale_b, int byte) {
  Deposit mine;
  mine.d = d;
  mine.a = a;
  mine.b = b;
  mine.scale_a = scale_a;
  mine.scale_b = scale_b;
  Worker::get().collective(Collective::scaled_mma, 4 * static_cast<int>(kind) + byte, mine,
                           [=](Deposit* lanes) { multiply_scaled(kind, byte, lanes); });
}

// ---- asynchronous copies -------------------------------------------------------------------------------------------
// The latest legal moment: nothing arrives before the wait, and the destination is unusable from the issue on.
void cp_async(void* shared, const void* global, int bytes, int valid_bytes) {
  Worker& worker = Worker::get();
  Thread& thread = worker.self();
  if (bytes != 4 && bytes != 8 && bytes != 16) worker.fail("cp_async of " + std::to_string(bytes) + " bytes");
  if (valid_bytes < 0 || valid_bytes > bytes)
    worker.fail("cp_async with " + std::to_string(valid_bytes) + " valid bytes");
  const auto size = static_cast<u32>(bytes);
  if (!worker.in_shared(shared, size)) worker.fail("cp_async to an address that is not in shared memory");
  if (!aligned(shared, size)) worker.fail("cp_async to a misaligned address");
  if (valid_bytes && !aligned(global, size)) worker.fail("cp_async from a misaligned address");
  tsan_write(shared, size);
  poison(shared, size);
  thread.copies.push_back(
      {static_cast<u8*>(shared), static_cast<const u8*>(global), size, static_cast<u32>(valid_bytes), thread.group});
}

void cp_async_commit() { ++Worker::get().self().group; }

void cp_async_wait(int pending) {
  Thread& thread = Worker::get().self();
  std::size_t done = 0;
  for (; done < thread.copies.size(); ++done) {
    const Copy& copy = thread.copies[done];
    if (copy.group + static_cast<u32>(pending) >= thread.group) break;
    tsan_write(copy.to, copy.bytes);
    std::memset(copy.to, 0, copy.bytes);
    if (copy.valid) std::memcpy(copy.to, copy.from, copy.valid);
  }
  thread.copies.erase(thread.copies.begin(), thread.copies.begin() + static_cast<std::ptrdiff_t>(done));
}

// ---- clusters ------------------------------------------------------------------------------------------------------
u32 load_cluster(const u32* shared, u32 rank) {
  Worker& worker = Worker::get();
  if (rank >= worker.launch().cluster) worker.fail("load_cluster from rank " + std::to_string(rank));
  if (!worker.in_shared(shared, 4)) worker.fail("load_cluster of an address that is not in shared memory");
  if (!aligned(shared, 4)) worker.fail("load_cluster of a misaligned address");
  const Block& other = worker.block_of_rank(rank);
  if (other.finished == worker.launch().threads)
    worker.fail("load_cluster from rank " + std::to_string(rank) + ", which has exited");
  const u8* p = other.shared + (reinterpret_cast<const u8*>(shared) - worker.self().block->shared);
  tsan_read(p, 4);
  u32 value;
  std::memcpy(&value, p, 4);
  return value;
}

}  // namespace tw::emu
