// SPDX-License-Identifier: Apache-2.0
// The emulator's inside: which fiber runs next, and who waits for what. One Worker per OS thread, no sharing.
//
// Ready threads form a stack. Whoever completes a collective pushes those it released and they run next, so one warp
// runs as far ahead of the others as its barriers allow: the order in which a missing barrier does the most harm.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "emulator/async.h"
#include "emulator/emulator.h"
#include "emulator/fiber.h"
#include "emulator/warpgroup.h"

namespace tw::emu {

constexpr u32 kWarp = 32;

enum class Collective : u8 {
  sync_warp,
  shuffle_xor,
  shuffle_down,
  ldmatrix,
  movmatrix,
  mma,
  scaled_mma,
  stmatrix,
  sync_named,
  arrive_named,
  set_registers,
  wgmma_fence,
  wgmma,
  wgmma_commit,
  wgmma_wait
};
enum class Wait : u8 { nothing, warp, block, cluster, barrier, named, warpgroup, grids, exited };

// A lane's contribution to a collective. The pointers are to its own, suspended, stack.
struct Deposit {
  u32 value = 0;
  u32* d = nullptr;
  const u32* a = nullptr;
  const u32* b = nullptr;
  const void* row = nullptr;
  u32 scale_a = 0, scale_b = 0;
};

struct Warp {
  u32 first = 0;  // thread, counted through the cluster
  u32 size = 0;
  u32 arrived = 0;
  u32 opener = 0;  // who came first to the collective that is under way
  Collective kind{};
  int argument = 0;
  Deposit lanes[kWarp];
};

// State of a barrier of sync_named and arrive_named.
struct NamedBarrier {
  u32 arrived = 0;
  u32 threads = 0;
};

struct Block {
  Dim index{};
  u32 rank = 0;
  u32 arrived = 0;
  u32 finished = 0;
  u8* shared = nullptr;
  NamedBarrier named[16];
};

struct Copy {
  u8* to;
  const u8* from;
  u32 bytes, valid, group;
};

struct Thread {
  u32 index = 0;  // within the block
  u32 lane = 0;
  Wait wait = Wait::nothing;
  const void* cause = nullptr;  // what a Wait::barrier, named or warpgroup waits for
  u32 detail = 0;               // the parity, or the named barrier's number
  Block* block = nullptr;
  Warp* warp = nullptr;
  u32 group = 0;  // cp_async groups committed so far
  std::vector<Copy> copies;
};

class Worker {
 public:
  // The one of this OS thread while run() is under way; Error elsewhere.
  static Worker& get();

  void run(const Launch& launch, const std::function<void()>& kernel);

  Thread& self() { return threads_[running_]; }
  const Launch& launch() const { return launch_; }
  Block& block_of_rank(u32 rank) { return blocks_[rank]; }

  // Waits for the other lanes; the last one to come runs compute(lanes), then all go on. Returns this lane's deposit,
  // which compute may have changed.
  template <class Compute>
  Deposit& collective(Collective kind, int argument, const Deposit& deposit, const Compute& compute) {
    Warp& warp = arrive(kind, argument, deposit);
    const u32 lane = self().lane;
    if (warp.arrived == kWarp) {
      compute(warp.lanes);
      warp.arrived = 0;
      release(warp.first, kWarp);
    } else {
      suspend(Wait::warp);
    }
    return warp.lanes[lane];
  }
  void sync_block();
  void sync_cluster();
  void sync_named(u32 id, u32 threads, bool wait);
  void await_grids();  // emulator/grids.h

  // Until somebody wakes those who wait so.
  void suspend(Wait why, const void* cause, u32 detail);
  void wake(const Block& block, Wait why, const void* cause);
  void step_aside();  // under a seed, now and then, others go first
  void pause();       // all others go first
  u64 random();
  Async& async() { return async_; }
  Warpgroup& warpgroup();  // of the running thread

  [[noreturn]] void fail(const std::string& what);  // Error with the running thread's place in front
  std::string where();
  bool in_shared(const void* p, std::size_t bytes);

 private:
  struct Free {
    void operator()(u8* p) const { std::free(p); }
  };

  static void fiber_main();
  void prepare();
  void run_cluster(u32 first_block);
  void check_guard(const Block& block) const;
  Warp& arrive(Collective kind, int argument, const Deposit& deposit);
  void release(u32 first, u32 count);
  void suspend(Wait why);
  void leave();
  void deliver();
  void switch_to_next();
  void push_warp(u32 first, u32 count);
  u32 pop();
  std::string deadlock() const;
  void forget_fibers();

  Launch launch_;
  const std::function<void()>* kernel_ = nullptr;
  Fiber main_;
  std::vector<std::unique_ptr<Fiber>> fibers_;  // by thread of the cluster, kept from run to run
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<Block> blocks_;
  std::vector<Warpgroup> warpgroups_;
  Async async_;
  std::vector<std::unique_ptr<u8, Free>> shared_;
  std::vector<u32> ready_;
  std::vector<u32> order_;  // scratch of release()
  u32 running_ = 0;
  u32 finished_ = 0;
  u32 cluster_arrived_ = 0;
  u32 grids_awaited_ = 0;  // by threads
  u64 random_ = 0;
  std::exception_ptr error_;
};

std::string describe(Collective kind, int argument);
std::string place(const Block& block);
// Shared memory that nobody has written: NaN as f16, bf16 and f32, and large as bytes. `p` is even.
void poison(void* p, std::size_t bytes);

}  // namespace tw::emu
