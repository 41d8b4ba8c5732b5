// SPDX-License-Identifier: Apache-2.0
// Transaction barriers and the engine that copies to shared memory behind the threads' backs.
//
// A copy's destination holds NaNs from its issue on. Without a seed a copy arrives when nobody can run any more, in the
// order of issue; under a seed, in any order and at any moment. What it reads, it reads when it arrives.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "backends/cuda/sm90.cuh"

namespace tw::emu {

class Worker;
struct Block;

struct Barrier {
  Block* block = nullptr;
  u32 offset = 0;  // within shared memory
  u32 count = 0;
  u32 arrivals = 0;  // in this phase
  i64 bytes = 0;     // expected and not yet arrived; negative when they come first
  u32 phase = 0;     // how many have completed
  u32 initializer = 0;
  bool published = false;  // by its initializer's barrier_init_fence
};

// The contents of a TensorMap: extents and strides in bytes, innermost first. A matrix of panels has three axes.
struct Tensor {
  u64 mark;
  const u8* base;
  u64 size[5], stride[5];  // size[0]: bytes
  u16 box[5];              // box[0]: bytes; else places, every steps-th one
  u8 steps[5], rank, swizzle;
  u32 bytes() const {
    u32 bytes = 1;
    for (u32 i = 0; i < rank; ++i) bytes *= box[i];
    return bytes;
  }
};

struct Transfer {
  enum class What : u8 { bulk, tensor, word } what{};
  Block* block = nullptr;  // that gets it
  u32 offset = 0;          // there
  u32 bytes = 0;
  Barrier* barrier = nullptr;
  const Block* issuer = nullptr;
  u32 thread = 0;
  const u8* from = nullptr;     // of a bulk copy
  const Tensor* box = nullptr;  // of a tensor copy
  i32 at[5] = {};
  u32 value = 0;  // of a word
};

// The swizzles are functions of the address: the 16-byte chunk's number within 128 bytes is XORed with the line's.
inline u32 swizzle(u32 offset, u32 span) { return offset ^ ((((offset >> 7) & (span / 16 - 1)) << 4)); }

// Its functions are called under a TsanQuiet.
class Async {
 public:
  void init(Worker& worker, const void* address, u32 count);
  void publish(Worker& worker);
  void arrive(Worker& worker, const void* address, u32 bytes);
  void arrive_remote(Worker& worker, const void* address, u32 rank);
  Barrier& waited_for(Worker& worker, const void* address, u32 parity);
  void load(Worker& worker, void* to, const void* from, u32 bytes, const void* barrier, u32 mask);
  void load(Worker& worker, void* to, const TensorMap* map, const i32* at, u32 rank, const void* barrier, u32 mask);

  void store(Worker& worker, void* to, u32 value, const void* barrier, u32 rank);

  // The engine and the matrix units see what the engine itself has written to shared memory, and ordinary stores only
  // after a fence. (On a chip, only those of the thread that fences.)
  void fence(Worker& worker);
  bool visible(const Block& block, u32 offset, u32 bytes);  // whether that is what the threads see

  bool busy() const { return !transfers_.empty(); }
  void deliver(Worker& worker);  // one copy
  void check_finished(const Block& block) const;
  void reset(std::size_t shared_bytes);
  static std::string describe(const Barrier& barrier);

 private:
  Barrier& find(Worker& worker, const void* address, const char* operation);
  Barrier& find(Worker& worker, Block& block, u32 offset, const char* operation);
  Barrier& find_published(Worker& worker, u32 rank, u32 offset, const char* operation);
  void arrive(Worker& worker, Barrier& barrier, u32 bytes);
  void complete(Worker& worker, Barrier& barrier);
  void issue(Worker& worker, Transfer transfer, const void* to, const void* barrier, u32 mask);
  void write(const Block& block, u32 offset, const void* from, u32 bytes);  // null: NaNs
  std::vector<u8>& view(const Block& block);

  std::map<const u8*, Barrier> barriers_;  // by address
  std::deque<Transfer> transfers_;
  std::map<const Block*, std::vector<u8>> views_;
  std::size_t shared_bytes_ = 0;
};

}  // namespace tw::emu
