// SPDX-License-Identifier: Apache-2.0
// The matrix instructions of four warps, and their registers.
//
// An instruction only begins when the warps issue it. A warp's accumulators hold NaNs from then on, until its wait that
// retires the last instruction on them; only there its rows are computed. Operands are read at the issue and again
// there (those in shared memory, at the first warp's wait), and must not have changed in between. The arrays that a
// kernel passes as d and a must therefore outlive the wait.
#pragma once

#include <deque>
#include <list>
#include <string>
#include <vector>

#include "backends/cuda/sm90.cuh"

namespace tw::emu {

class Worker;
struct Block;
struct Deposit;

constexpr u32 kWarpgroup = 128;

struct WgmmaCall {
  WgmmaKind kind{};
  int n = 0;
  bool registers = false, accumulate = false;
  u64 a = 0, b = 0;
  bool operator==(const WgmmaCall&) const = default;
};
std::string describe(const WgmmaCall& call);

class Warpgroup {
 public:
  // Called for a warp (0 to 3) whose lanes have all arrived, under a TsanQuiet.
  void fence(u32 warp) { warps_[warp].fenced = true; }
  void issue(Worker& worker, u32 warp, const Deposit* lanes);  // Deposit: d, a, and as row the lane's WgmmaCall
  void commit(Worker& worker, u32 warp);
  void retire(Worker& worker, u32 warp, int pending);
  void set_registers(Worker& worker, u32 warp, u32 count);

  // Whether all four warps have committed all groups but `pending` of this warp's.
  bool committed(u32 warp, int pending) const;

  static void check_finished(const Block& block, u32 threads, const Warpgroup* warpgroups, std::size_t count);
  void reset();

 private:
  struct Instruction {
    WgmmaCall call;
    std::vector<u8> a, b;         // rows of 32 bytes, as they were at the issue
    std::vector<float> b_values;  // [k][column], once the bytes are known not to have changed
  };
  struct Accumulator {
    u32* lanes[32];
    int n = 0;
    bool integer = false;
    u32 in_flight = 0;
    std::vector<u32> values;  // [lane][n / 2]
  };
  struct Part {  // of an instruction, a warp's
    Accumulator* d = nullptr;
    const u32* a[32];
    u32 a_at_issue[32][4];
  };
  struct OfWarp {
    u64 issued = 0, retired = 0;  // instructions
    u64 groups = 0, groups_retired = 0;
    bool fenced = false;
    std::list<Accumulator> accumulators;  // in flight
    std::deque<Part> parts;               // in flight
    std::vector<u32> registers;           // every call of set_registers
  };

  void compute(Worker& worker, u32 warp, Instruction& instruction, const Part& part);

  OfWarp warps_[4];
  u64 first_ = 0;  // number of instructions_.front()
  std::deque<Instruction> instructions_;
  u64 first_group_ = 0;
  std::deque<u64> groups_;  // where each ends
  bool used_ = false;
};

}  // namespace tw::emu
