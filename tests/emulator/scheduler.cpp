// SPDX-License-Identifier: Apache-2.0
#include "emulator/scheduler.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "emulator/grids.h"

namespace tw::emu {
namespace {
// AddressSanitizer finds an overrun at the access; other builds find it after the block, in these bytes.
constexpr std::size_t kGuardBytes = TILEWRIGHT_EMULATOR_ASAN ? 0 : 1024;
constexpr std::size_t kMaxShared = 227 * 1024;  // of any chip so far

constexpr u32 kNobody = ~0u;

thread_local Worker* active = nullptr;

void check(bool legal, const std::string& what) {
  if (!legal) throw std::invalid_argument("emulator: " + what);
}

void check(const Launch& l) {
  check(l.threads >= 1 && l.threads <= 1024, "threads must be 1 to 1024, not " + std::to_string(l.threads));
  check(l.cluster >= 1 && l.cluster <= 16, "cluster must be 1 to 16, not " + std::to_string(l.cluster));
  check(l.grid.x >= 1 && l.grid.y >= 1 && l.grid.z >= 1, "the grid is empty");
  check(l.grid.y <= 65535 && l.grid.z <= 65535, "grid.y and grid.z must be at most 65535");
  check(l.grid.x % l.cluster == 0, "grid.x must be a multiple of the cluster");
  check(l.shared_bytes <= kMaxShared,
        "shared memory of " + std::to_string(l.shared_bytes) + " bytes is beyond any chip");
}

// "0-31, 40" of ascending numbers.
std::string ranges(const std::vector<u32>& numbers) {
  std::string text;
  for (std::size_t i = 0, end; i < numbers.size(); i = end) {
    for (end = i + 1; end < numbers.size() && numbers[end] == numbers[end - 1] + 1;) ++end;
    text += (i ? ", " : "") + std::to_string(numbers[i]);
    if (end - i > 1) text += "-" + std::to_string(numbers[end - 1]);
  }
  return text;
}
}  // namespace

std::string place(const Block& block) {
  return "block (" + std::to_string(block.index.x) + ", " + std::to_string(block.index.y) + ", " +
         std::to_string(block.index.z) + ")";
}

std::string describe(Collective kind, int argument) {
  switch (kind) {
    case Collective::sync_warp: return "sync_warp";
    case Collective::shuffle_xor: return "shuffle_xor by " + std::to_string(argument);
    case Collective::shuffle_down: return "shuffle_down by " + std::to_string(argument);
    case Collective::movmatrix: return "movmatrix";
    case Collective::ldmatrix: return "ldmatrix x" + std::to_string(argument / 2) + (argument % 2 ? " trans" : "");
    case Collective::mma: return "mma kind " + std::to_string(argument);
    case Collective::scaled_mma:
      return "scaled mma kind " + std::to_string(argument / 4) + ", byte " + std::to_string(argument % 4);
    case Collective::stmatrix: return "stmatrix x" + std::to_string(argument / 2) + (argument % 2 ? " trans" : "");
    case Collective::arrive_named:
      return "arrive_named " + std::to_string(argument / 2048) + " of " + std::to_string(argument % 2048);
    case Collective::sync_named:
      return "sync_named " + std::to_string(argument / 2048) + " of " + std::to_string(argument % 2048);
    case Collective::set_registers: return "set_registers to " + std::to_string(argument);
    case Collective::wgmma_fence: return "wgmma_fence";
    case Collective::wgmma: return "wgmma";
    case Collective::wgmma_commit: return "wgmma_commit";
    case Collective::wgmma_wait: return "wgmma_wait for " + std::to_string(argument);
  }
  return "?";
}

void poison(void* p, std::size_t bytes) {
  auto* to = static_cast<u8*>(p);
  for (std::size_t i = 0; i < bytes; ++i) to[i] = i % 2 ? 0x7f : 0xff;
}

Worker& Worker::get() {
  if (!active) throw Error("a device function was called outside of tw::emu::run");
  return *active;
}

void Worker::run(const Launch& launch, const std::function<void()>& kernel) {
  check(launch);
  check(!active, "run() was called by a kernel");
  launch_ = launch;
  kernel_ = &kernel;
  random_ = launch.seed * 0x9e3779b97f4a7c15u;
  prepare();
  std::vector<u32> clusters(static_cast<std::size_t>(launch.grid.x) / launch.cluster * launch.grid.y * launch.grid.z);
  std::iota(clusters.begin(), clusters.end(), 0u);
  if (launch.seed)
    for (std::size_t i = clusters.size(); i > 1; --i) std::swap(clusters[i - 1], clusters[random() % i]);
  active = this;
  try {
    for (const u32 c : clusters) run_cluster(c * launch.cluster);
  } catch (...) {
    active = nullptr;
    forget_fibers();
    throw;
  }
  active = nullptr;
}

// Everything that is the same for all clusters of the launch.
void Worker::prepare() {
  const u32 n = launch_.threads, total = n * launch_.cluster;
  const u32 warps = (n + kWarp - 1) / kWarp;
  while (fibers_.size() < total)
    fibers_.push_back(std::make_unique<Fiber>(&Worker::fiber_main, static_cast<unsigned>(fibers_.size())));
  if (threads_.size() < total) threads_.resize(total);
  warps_.assign(static_cast<std::size_t>(warps) * launch_.cluster, Warp{});
  warpgroups_.clear();
  warpgroups_.resize(static_cast<std::size_t>((n + kWarpgroup - 1) / kWarpgroup) * launch_.cluster);
  blocks_.assign(launch_.cluster, Block{});
  shared_.clear();
  for (u32 r = 0; r < launch_.cluster; ++r) {
    void* p = nullptr;
    if (posix_memalign(&p, 1024, launch_.shared_bytes + kGuardBytes)) throw std::bad_alloc();
    shared_.emplace_back(static_cast<u8*>(p));
    blocks_[r].rank = r;
    blocks_[r].shared = shared_.back().get();
    for (u32 t = 0; t < n; ++t) {
      Thread& thread = threads_[r * n + t];
      Warp& warp = warps_[r * warps + t / kWarp];
      if (t % kWarp == 0) warp.first = r * n + t;
      warp.size = t % kWarp + 1;
      thread.index = t;
      thread.lane = t % kWarp;
      thread.block = &blocks_[r];
      thread.warp = &warp;
    }
  }
  ready_.clear();
  ready_.reserve(total + 1);
}

void Worker::run_cluster(u32 first_block) {
  const Dim grid = launch_.grid;
  for (Block& block : blocks_) {
    const u32 linear = first_block + block.rank;
    block.index = {linear % grid.x, linear / grid.x % grid.y, linear / grid.x / grid.y};
    block.arrived = block.finished = 0;
    for (NamedBarrier& named : block.named) named = {};
    poison(block.shared, launch_.shared_bytes + kGuardBytes);
  }
  const u32 total = launch_.threads * launch_.cluster;
  for (u32 t = 0; t < total; ++t) {
    threads_[t].wait = Wait::nothing;
    threads_[t].group = 0;
    threads_[t].copies.clear();
  }
  for (Warpgroup& warpgroup : warpgroups_) warpgroup.reset();
  async_.reset(launch_.shared_bytes);
  finished_ = cluster_arrived_ = grids_awaited_ = 0;
  tsan_release(
      &launch_);  // the start; finished_ stands for the end: fibers are ordered with run() and not with each other
  running_ = kNobody;
  release(0, total);
  running_ = pop();
  main_.switch_to(*fibers_[running_]);
  tsan_acquire(&finished_);
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  if (finished_ != total) throw Error(deadlock());
  for (const Block& block : blocks_) check_guard(block);
}

void Worker::check_guard(const Block& block) const {
  const u8* end = block.shared + launch_.shared_bytes;
  for (std::size_t i = 0; i < kGuardBytes; ++i)
    if (end[i] != ((launch_.shared_bytes + i) % 2 ? 0x7f : 0xff))
      throw Error(place(block) + ": wrote " + std::to_string(i) + " bytes beyond its " +
                  std::to_string(launch_.shared_bytes) + " bytes of shared memory");
}

void Worker::fiber_main() {
  Fiber::entered();
  for (;;) {  // one turn per block: a finished fiber is used again
    Worker& worker = *active;
    tsan_acquire(&worker.launch_);
    try {
      (*worker.kernel_)();
      worker.leave();
    } catch (...) {
      worker.error_ = std::current_exception();
    }
    tsan_release(&worker.finished_);
    // Outside of the handler, which has to end on the stack it began on.
    if (worker.error_) worker.fibers_[worker.running_]->switch_to(worker.main_);
    worker.suspend(Wait::exited);
  }
}

// The running thread has come to its end. A block that has come to its end must have nothing under way.
void Worker::leave() {
  Block& block = *self().block;
  ++finished_;
  if (++block.finished < launch_.threads) return;
  const TsanQuiet quiet;
  async_.check_finished(block);
  const std::size_t count = warpgroups_.size() / launch_.cluster;
  Warpgroup::check_finished(block, launch_.threads, &warpgroups_[block.rank * count], count);
}

Warp& Worker::arrive(Collective kind, int argument, const Deposit& deposit) {
  Thread& thread = self();
  Warp& warp = *thread.warp;
  if (warp.size != kWarp) fail(describe(kind, argument) + " in a warp of " + std::to_string(warp.size) + " threads");
  if (warp.arrived == 0) {
    warp.kind = kind;
    warp.argument = argument;
    warp.opener = thread.index;
  } else if (warp.kind != kind || warp.argument != argument) {
    fail("divergent warp: it is at " + describe(kind, argument) + ", while thread " + std::to_string(warp.opener) +
         " waits at " + describe(warp.kind, warp.argument));
  }
  warp.lanes[thread.lane] = deposit;
  ++warp.arrived;
  return warp;
}

void Worker::sync_block() {
  Block& block = *self().block;
  tsan_release(&block);
  if (++block.arrived == launch_.threads) {
    block.arrived = 0;
    release(block.rank * launch_.threads, launch_.threads);
  } else {
    suspend(Wait::block);
  }
  tsan_acquire(&block);
}

void Worker::sync_cluster() {
  const u32 total = launch_.threads * launch_.cluster;
  tsan_release(&cluster_arrived_);
  if (++cluster_arrived_ == total) {
    cluster_arrived_ = 0;
    release(0, total);
  } else {
    suspend(Wait::cluster);
  }
  tsan_acquire(&cluster_arrived_);
}

// Whole warps only: the caller has made a collective of it.
void Worker::sync_named(u32 id, u32 threads, bool wait) {
  Block& block = *self().block;
  NamedBarrier& named = block.named[id];
  if (named.arrived == 0) named.threads = threads;
  if (named.threads != threads)
    fail("sync_named " + std::to_string(id) + " of " + std::to_string(threads) +
         " threads, while others wait there for " + std::to_string(named.threads));
  tsan_release(&named);
  if (++named.arrived == threads) {
    named.arrived = 0;
    wake(block, Wait::named, &named);
    step_aside();
  } else if (wait) {
    suspend(Wait::named, &named, id);
  }
  if (wait) tsan_acquire(&named);
}

void Worker::await_grids() {
  if (!written()) {
    ++grids_awaited_;
    suspend(Wait::grids, nullptr, 0);
  }
  tsan_acquire(&grids_awaited_);
}

void Worker::suspend(Wait why, const void* cause, u32 detail) {
  self().cause = cause;
  self().detail = detail;
  suspend(why);
}

void Worker::wake(const Block& block, Wait why, const void* cause) {
  const u32 first = block.rank * launch_.threads;
  order_.clear();
  for (u32 t = 0; t < launch_.threads; t += kWarp) order_.push_back(first + t);
  if (launch_.seed)
    for (std::size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random() % i]);
  for (std::size_t i = order_.size(); i-- > 0;) {
    const u32 size = threads_[order_[i]].warp->size;
    const u32 mask = launch_.seed && size == kWarp ? static_cast<u32>(random() % kWarp) : 0;
    for (u32 lane = size; lane-- > 0;) {
      const u32 t = order_[i] + (lane ^ mask);
      if (threads_[t].wait != why || threads_[t].cause != cause) continue;
      threads_[t].wait = Wait::nothing;
      ready_.push_back(t);
    }
  }
}

void Worker::step_aside() {
  if (!launch_.seed || random() % 4) return;
  ready_.push_back(running_);
  std::swap(ready_.back(), ready_[random() % ready_.size()]);
  switch_to_next();
}

void Worker::pause() {
  {
    const TsanQuiet quiet;  // moves the others by memmove(), which it watches
    ready_.insert(ready_.begin(), running_);
  }
  switch_to_next();
}

// Under most seeds, copies arrive in the midst of everything; otherwise nothing arrives while anybody can run.
void Worker::deliver() {
  static constexpr u32 kEagerness[3] = {0, 1, 8};
  const u32 eagerness = launch_.seed ? kEagerness[launch_.seed % 3] : 0;
  const TsanQuiet quiet;
  try {
    while (async_.busy() && (ready_.empty() || random() % 16 < eagerness)) async_.deliver(*this);
  } catch (...) {
    error_ = std::current_exception();  // whoever runs here has nothing to do with it
  }
}

void Worker::suspend(Wait why) {
  self().wait = why;
  switch_to_next();
}

void Worker::switch_to_next() {
  const u32 from = running_;
  if (async_.busy()) {
    deliver();
    if (error_) return fibers_[from]->switch_to(main_);
  }
  if (ready_.empty() && grids_awaited_) {
    grids_awaited_ = 0;
    write();
    tsan_release(&grids_awaited_);
    for (const Block& block : blocks_) wake(block, Wait::grids, nullptr);
  }
  if (ready_.empty()) return fibers_[from]->switch_to(main_);
  running_ = pop();
  if (running_ != from) fibers_[from]->switch_to(*fibers_[running_]);
}

// Threads [first, first + count) may go on. The running one just does, unless the seed asks for another order.
void Worker::release(u32 first, u32 count) {
  if (count <= kWarp) {
    push_warp(first, count);
  } else {
    order_.clear();
    for (u32 t = first; t < first + count; t += threads_[t].warp->size) order_.push_back(t);
    if (launch_.seed)
      for (std::size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random() % i]);
    for (std::size_t i = order_.size(); i-- > 0;) push_warp(order_[i], threads_[order_[i]].warp->size);
  }
  if (launch_.seed && running_ != kNobody) {
    ready_.push_back(running_);
    std::swap(ready_.back(), ready_[ready_.size() - 1 - random() % std::min<std::size_t>(count, ready_.size())]);
    switch_to_next();
  }
}

void Worker::push_warp(u32 first, u32 count) {
  const u32 mask = launch_.seed && count == kWarp ? static_cast<u32>(random() % kWarp) : 0;
  for (u32 i = count; i-- > 0;) {
    const u32 t = first + (i ^ mask);
    threads_[t].wait = Wait::nothing;
    if (t != running_) ready_.push_back(t);
  }
}

// Under a seed, now and then somebody else than the one whose turn it is.
u32 Worker::pop() {
  if (launch_.seed && random() % 8 == 0) std::swap(ready_.back(), ready_[random() % ready_.size()]);
  const u32 t = ready_.back();
  ready_.pop_back();
  return t;
}

u64 Worker::random() {  // splitmix64
  u64 z = random_ += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

std::string Worker::deadlock() const {
  std::string text = "divergent barrier";
  for (u32 t = 0; t < launch_.threads * launch_.cluster; ++t)
    if (threads_[t].wait == Wait::barrier || threads_[t].wait == Wait::warpgroup) text = "deadlock";
  for (const Block& block : blocks_) {
    std::vector<std::pair<std::string, std::vector<u32>>> groups;
    for (u32 t = 0; t < launch_.threads; ++t) {
      const Thread& thread = threads_[block.rank * launch_.threads + t];
      const Warp& warp = *thread.warp;
      const std::string state = thread.wait == Wait::exited    ? "have exited"
                                : thread.wait == Wait::block   ? "wait at sync_block"
                                : thread.wait == Wait::cluster ? "wait at sync_cluster"
                                : thread.wait == Wait::grids   ? "wait at wait_prerequisite_grids"
                                : thread.wait == Wait::barrier
                                    ? "wait at barrier_wait for parity " + std::to_string(thread.detail) + " of " +
                                          Async::describe(*static_cast<const Barrier*>(thread.cause))
                                : thread.wait == Wait::named     ? "wait at sync_named " + std::to_string(thread.detail)
                                : thread.wait == Wait::warpgroup ? "wait at wgmma_wait for the warpgroup's other warps"
                                                                 : "wait at " + describe(warp.kind, warp.argument);
      auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == state; });
      if (group == groups.end()) group = groups.insert(group, {state, {}});
      group->second.push_back(t);
    }
    text += (block.rank ? "; " : ": ") + place(block);
    for (const auto& [state, members] : groups) text += ", threads " + ranges(members) + " " + state;
  }
  return text;
}

std::string Worker::where() { return place(*self().block) + ", thread " + std::to_string(self().index); }

void Worker::fail(const std::string& what) { throw Error(where() + ": " + what); }

Warpgroup& Worker::warpgroup() {
  const Thread& thread = self();
  const u32 group = thread.index / kWarpgroup;
  if ((group + 1) * kWarpgroup > launch_.threads) fail("a warpgroup's instruction in an incomplete warpgroup");
  return warpgroups_[thread.block->rank * (warpgroups_.size() / launch_.cluster) + group];
}

bool Worker::in_shared(const void* p, std::size_t bytes) {
  const auto offset = reinterpret_cast<std::uintptr_t>(p) - reinterpret_cast<std::uintptr_t>(self().block->shared);
  return offset <= launch_.shared_bytes && bytes <= launch_.shared_bytes - offset;
}

// After an error some fibers are suspended in the middle of the kernel and cannot be used again.
void Worker::forget_fibers() {
  fibers_.clear();
  ready_.clear();
}

void run(const Launch& launch, const std::function<void()>& kernel) {
  static thread_local Worker worker;
  worker.run(launch, kernel);
}

}  // namespace tw::emu
