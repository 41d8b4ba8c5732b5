// SPDX-License-Identifier: Apache-2.0
// Defines what backends/cuda/sm90.cuh declares in tw::emu.
#include "backends/cuda/sm90.cuh"

#include <cstring>

#include "emulator/emulator.h"
#include "emulator/fiber.h"
#include "emulator/fragments.h"
#include "emulator/scheduler.h"

namespace tw::emu {
namespace {
// A warp's part of a warpgroup's instruction, done when its last lane has come.
template <class Compute>
void of_warpgroup(Collective kind, int argument, const Deposit& mine, const Compute& compute) {
  Worker& worker = Worker::get();
  Warpgroup& group = worker.warpgroup();
  const u32 warp = worker.self().index % kWarpgroup / kWarp;
  worker.collective(kind, argument, mine, [&](Deposit* lanes) {
    const TsanQuiet quiet;
    compute(worker, group, warp, lanes);
  });
}

template <class Step>
void of_engine(const Step& step) {
  Worker& worker = Worker::get();
  {
    const TsanQuiet quiet;
    step(worker.async(), worker);
  }
  worker.step_aside();
}
}  // namespace

void pause() { Worker::get().pause(); }

// ---- transaction barriers and copies -------------------------------------------------------------------------------
void barrier_init(u64* barrier, u32 arrivals) {
  of_engine([=](Async& engine, Worker& worker) { engine.init(worker, barrier, arrivals); });
}
void barrier_init_fence() {
  of_engine([](Async& engine, Worker& worker) { engine.publish(worker); });
}
void barrier_arrive(u64* barrier, u32 transaction_bytes) {
  of_engine([=](Async& engine, Worker& worker) { engine.arrive(worker, barrier, transaction_bytes); });
}
void barrier_arrive_remote(u64* barrier, u32 rank) {
  of_engine([=](Async& engine, Worker& worker) { engine.arrive_remote(worker, barrier, rank); });
}
void barrier_wait(u64* barrier, u32 parity) {
  Worker& worker = Worker::get();
  Barrier* found = nullptr;
  {
    const TsanQuiet quiet;
    found = &worker.async().waited_for(worker, barrier, parity);
  }
  while ((found->phase & 1) == parity) worker.suspend(Wait::barrier, found, parity);
  tsan_acquire(found);
}
void bulk_load(void* shared, const void* global, u32 bytes, u64* barrier, u32 mask) {
  of_engine([=](Async& engine, Worker& worker) { engine.load(worker, shared, global, bytes, barrier, mask); });
}
void tensor_load(void* shared, const TensorMap* map, const i32* at, u32 rank, u64* barrier, u32 mask) {
  of_engine([=](Async& engine, Worker& worker) { engine.load(worker, shared, map, at, rank, barrier, mask); });
}
void store_async(void* shared, u32 value, u64* barrier, u32 rank) {
  of_engine([=](Async& engine, Worker& worker) { engine.store(worker, shared, value, barrier, rank); });
}
void fence_async() {
  of_engine([](Async& engine, Worker& worker) { engine.fence(worker); });
}

// ---- warpgroup matrix instructions ---------------------------------------------------------------------------------
void wgmma_fence() {
  of_warpgroup(Collective::wgmma_fence, 0, {},
               [](Worker&, Warpgroup& group, u32 warp, const Deposit*) { group.fence(warp); });
}

void wgmma(WgmmaKind kind, int n, u32* d, const u32* a_registers, u64 a, u64 b, bool accumulate) {
  const WgmmaCall call{kind, n, a_registers != nullptr, accumulate, a, b};
  Deposit mine;
  mine.d = d;
  mine.a = a_registers;
  mine.row = &call;
  of_warpgroup(Collective::wgmma, 0, mine, [](Worker& worker, Warpgroup& group, u32 warp, const Deposit* lanes) {
    group.issue(worker, warp, lanes);
  });
}

void wgmma_commit() {
  of_warpgroup(Collective::wgmma_commit, 0, {},
               [](Worker& worker, Warpgroup& group, u32 warp, const Deposit*) { group.commit(worker, warp); });
}

void wgmma_wait(int pending) {
  Worker& worker = Worker::get();
  if (pending < 0 || pending > 7) worker.fail("wgmma_wait for " + std::to_string(pending));
  Warpgroup& group = worker.warpgroup();
  const u32 warp = worker.self().index % kWarpgroup / kWarp;
  while (!group.committed(warp, pending)) worker.suspend(Wait::warpgroup, &group, 0);
  of_warpgroup(Collective::wgmma_wait, pending, {},
               [=](Worker& w, Warpgroup& g, u32 own, const Deposit*) { g.retire(w, own, pending); });
  tsan_acquire(&group);
}

// ---- the rest ------------------------------------------------------------------------------------------------------
namespace {
void come_to_named(u32 id, u32 threads, bool wait) {
  const std::string name = wait ? "sync_named " : "arrive_named ";
  Worker& worker = Worker::get();
  if (id < 1 || id > 15) worker.fail(name + std::to_string(id) + ", which is not 1 to 15");
  if (threads == 0 || threads % kWarp || threads > worker.launch().threads)
    worker.fail(name + "of " + std::to_string(threads) + " threads");
  worker.collective(wait ? Collective::sync_named : Collective::arrive_named, static_cast<int>(id * 2048 + threads), {},
                    [](Deposit*) {});
  worker.sync_named(id, threads, wait);
}
}  // namespace
void sync_named(u32 id, u32 threads) { come_to_named(id, threads, true); }
void arrive_named(u32 id, u32 threads) { come_to_named(id, threads, false); }

void stmatrix(void* row, const u32* in, int count, bool transpose) {
  Worker& worker = Worker::get();
  const bool used = worker.self().lane < static_cast<u32>(8 * count);
  if (used && !worker.in_shared(row, 16)) worker.fail("stmatrix writes a row that is not in shared memory");
  if (used && reinterpret_cast<std::uintptr_t>(row) % 16)
    worker.fail("stmatrix writes a row that is not 16-byte aligned");
  if (used) tsan_write(row, 16);
  Deposit mine;
  mine.a = in;
  mine.row = row;
  worker.collective(Collective::stmatrix, 2 * count + transpose, mine,
                    [=](Deposit* lanes) { store_matrices(lanes, count, transpose); });
}

void set_registers(int count) {
  Worker& worker = Worker::get();
  if (count < 24 || count > 256 || count % 8) worker.fail("set_registers to " + std::to_string(count));
  of_warpgroup(Collective::set_registers, count, {}, [=](Worker& w, Warpgroup& group, u32 warp, const Deposit*) {
    group.set_registers(w, warp, static_cast<u32>(count));
  });
}

}  // namespace tw::emu
