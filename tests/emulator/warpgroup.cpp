// SPDX-License-Identifier: Apache-2.0
#include "emulator/warpgroup.h"

#include <algorithm>
#include <cstring>

#include "emulator/fiber.h"
#include "emulator/scheduler.h"

namespace tw::emu {
namespace {
constexpr u32 kInFlight = 0x7fffffffu;  // NaN, and a large integer
constexpr int kRows = 64, kRowBytes = 32;

float value_of(WgmmaKind kind, const u8* row, int i) {
  const auto half = [&] { return static_cast<u16>(row[2 * i] | row[2 * i + 1] << 8); };
  switch (kind) {
    case WgmmaKind::f16: return f16_bits_to_f32(half());
    case WgmmaKind::bf16: return bf16_bits_to_f32(half());
    case WgmmaKind::e4m3: return e4m3_to_f32(row[i]);
    case WgmmaKind::e5m2: return e5m2_to_f32(row[i]);
    case WgmmaKind::s8: return static_cast<float>(static_cast<i8>(row[i]));
    case WgmmaKind::b1: return static_cast<float>(row[i / 8] >> (i % 8) & 1);
    case WgmmaKind::tf32: {
      u32 bits;
      std::memcpy(&bits, row + 4 * i, 4);
      return bits_as<float>(bits & 0xffffe000u);
    }
    case WgmmaKind::e4m3_e5m2:
    case WgmmaKind::e5m2_e4m3: break;  // of two
  }
  return 0;
}
WgmmaKind of_a(WgmmaKind kind) {
  return kind == WgmmaKind::e4m3_e5m2 ? WgmmaKind::e4m3 : kind == WgmmaKind::e5m2_e4m3 ? WgmmaKind::e5m2 : kind;
}
WgmmaKind of_b(WgmmaKind kind) {
  return kind == WgmmaKind::e4m3_e5m2 ? WgmmaKind::e5m2 : kind == WgmmaKind::e5m2_e4m3 ? WgmmaKind::e4m3 : kind;
}

bool legal(WgmmaKind kind, int n) {
  return n >= 8 && n <= 256 && n % 8 == 0 && (!is_integer(kind) || n <= 24 || n % 16 == 0);
}

// The operand's rows of 32 bytes, as the matrix units find them through a descriptor.
std::vector<u8> read_operand(Worker& worker, u64 descriptor, int rows) {
  const u32 start = static_cast<u32>(descriptor & 0x3fff) << 4;
  const u32 stride = static_cast<u32>(descriptor >> 32 & 0x3fff) << 4;  // of eight rows
  const auto bad = [&](const char* what) { worker.fail(std::string("wgmma: a descriptor ") + what); };
  if (descriptor >> 62 != 1) bad("of another swizzle than over 128 bytes");
  if (descriptor >> 49 & 7) bad("with a base offset");
  if (descriptor & 0x3ff1c000c000c000u & ~(7ull << 49)) bad("with bits that mean nothing");
  if ((descriptor >> 16 & 0x3fff) > 1) bad("with a leading offset, which a swizzled K-major operand does not have");
  if (start % 1024 >= 128 || start % 32) bad("that starts neither at 1024 bytes nor a step along k after them");
  if (rows > 8 && (stride == 0 || stride % 1024)) bad("whose eight rows are not a multiple of 1024 bytes");
  std::vector<u8> bytes(static_cast<std::size_t>(rows) * kRowBytes);
  const Block& block = *worker.self().block;
  for (u32 r = 0; r < static_cast<u32>(rows); ++r)
    for (u32 c = 0; c < kRowBytes; c += 16) {
      const u32 offset = swizzle(start + r / 8 * stride + r % 8 * 128 + c, 128);
      const u8* p = block.shared + offset;
      if (!worker.in_shared(p, 16)) bad("that reaches beyond shared memory");
      if (!worker.async().visible(block, offset, 16)) bad("of ordinary stores that no fence_async followed");
      TsanQuiet::read(p, 16);
      std::memcpy(&bytes[r * kRowBytes + c], p, 16);
    }
  return bytes;
}
}  // namespace

std::string describe(const WgmmaCall& call) {
  static const char* const kNames[] = {"f16", "bf16", "e4m3", "e5m2", "e4m3.e5m2", "e5m2.e4m3", "s8"};
  const auto operand = [](u64 d) { return "[" + std::to_string((d & 0x3fff) << 4) + "]"; };
  return std::string("wgmma ") + kNames[static_cast<int>(call.kind)] + " n" + std::to_string(call.n) + " " +
         (call.registers ? "registers" : operand(call.a)) + " " + operand(call.b) +
         (call.accumulate ? " accumulating" : "");
}

void Warpgroup::issue(Worker& worker, u32 warp, const Deposit* lanes) {
  used_ = true;
  OfWarp& own = warps_[warp];
  const WgmmaCall call = *static_cast<const WgmmaCall*>(lanes[0].row);
  for (u32 lane = 1; lane < kWarp; ++lane) {
    const WgmmaCall& other = *static_cast<const WgmmaCall*>(lanes[lane].row);
    if (other != call)
      worker.fail("divergent warp: " + describe(call) + " in one lane and " + describe(other) + " in another");
  }
  if (!legal(call.kind, call.n)) worker.fail(describe(call) + ": there is no such shape");
  if (!own.fenced) worker.fail(describe(call) + ": no wgmma_fence since the registers could be touched");

  // The instruction itself, which the first warp to come defines.
  if (own.issued == first_ + instructions_.size()) {
    Instruction fresh;
    fresh.call = call;
    if (!call.registers) fresh.a = read_operand(worker, call.a, kRows);
    fresh.b = read_operand(worker, call.b, call.n);
    tsan_release(this);
    instructions_.push_back(std::move(fresh));
  } else if (const WgmmaCall& first = instructions_[own.issued - first_].call; first != call) {
    worker.fail("divergent warpgroup: it is at " + describe(call) + ", where another warp was at " + describe(first));
  }
  ++own.issued;

  // This warp's registers.
  const bool integer = is_integer(call.kind);
  const auto words = static_cast<std::size_t>(call.n) / 2;
  auto d = std::find_if(own.accumulators.begin(), own.accumulators.end(),
                        [&](const Accumulator& other) { return other.lanes[0] == lanes[0].d; });
  if (d == own.accumulators.end()) {
    d = own.accumulators.emplace(d);
    d->n = call.n;
    d->integer = integer;
    d->values.resize(kWarp * words);
    for (u32 lane = 0; lane < kWarp; ++lane) {
      d->lanes[lane] = lanes[lane].d;
      std::copy_n(lanes[lane].d, words, &d->values[lane * words]);
      std::fill_n(lanes[lane].d, words, kInFlight);
    }
  }
  if (d->n != call.n || d->integer != integer) worker.fail(describe(call) + ": its d is in flight in another shape");
  ++d->in_flight;
  Part& part = own.parts.emplace_back();
  part.d = &*d;
  for (u32 lane = 0; lane < kWarp; ++lane) {
    part.a[lane] = lanes[lane].a;
    if (d->lanes[lane] != lanes[lane].d) worker.fail(describe(call) + ": its d is in flight in another order");
    if (call.registers) std::copy_n(lanes[lane].a, 4, part.a_at_issue[lane]);
  }
}

void Warpgroup::commit(Worker& worker, u32 warp) {
  used_ = true;
  OfWarp& own = warps_[warp];
  if (own.groups == first_group_ + groups_.size()) {
    groups_.push_back(own.issued);
  } else if (groups_[own.groups - first_group_] != own.issued) {
    worker.fail("divergent warpgroup: wgmma_commit of another group than another warp's");
  }
  ++own.groups;
  worker.wake(*worker.self().block, Wait::warpgroup, this);
}

bool Warpgroup::committed(u32 warp, int pending) const {
  const u64 all_but = static_cast<u64>(pending);
  return std::all_of(warps_, warps_ + 4, [&](const OfWarp& w) { return w.groups + all_but >= warps_[warp].groups; });
}

void Warpgroup::retire(Worker& worker, u32 warp, int pending) {
  used_ = true;
  OfWarp& own = warps_[warp];
  own.fenced = false;
  for (; own.groups_retired + static_cast<u64>(pending) < own.groups; ++own.groups_retired)
    for (const u64 end = groups_[own.groups_retired - first_group_]; own.retired < end; ++own.retired) {
      compute(worker, warp, instructions_[own.retired - first_], own.parts.front());
      --own.parts.front().d->in_flight;
      own.parts.pop_front();
    }
  for (auto d = own.accumulators.begin(); d != own.accumulators.end();) {
    if (d->in_flight) {
      ++d;
      continue;
    }
    const auto words = static_cast<std::size_t>(d->n) / 2;
    for (u32 lane = 0; lane < kWarp; ++lane)
      for (std::size_t i = 0; i < words; ++i) {
        if (d->lanes[lane][i] != kInFlight) worker.fail("wgmma: an accumulator was written before the wait");
        d->lanes[lane][i] = d->values[lane * words + i];
      }
    d = own.accumulators.erase(d);
  }
  // Instructions that all four have retired are removed.
  u64 retired = own.retired, groups = own.groups_retired;
  for (const OfWarp& w : warps_) retired = std::min(retired, w.retired), groups = std::min(groups, w.groups_retired);
  for (; first_ < retired; ++first_) instructions_.pop_front();
  for (; first_group_ < groups; ++first_group_) groups_.pop_front();
}

// Rows 16 warp to 16 warp + 15: exact products, their sum in double precision, one rounding.
void Warpgroup::compute(Worker& worker, u32 warp, Instruction& instruction, const Part& part) {
  const WgmmaCall& call = instruction.call;
  const int k = mma_k(call.kind), n = call.n;
  const auto columns = static_cast<std::size_t>(n);
  if (instruction.b_values.empty()) {
    const bool changed = read_operand(worker, call.b, n) != instruction.b ||
                         (!call.registers && read_operand(worker, call.a, kRows) != instruction.a);
    if (changed)
      worker.fail(describe(call) +
                  ": its shared memory changed between the issue and the wait: it had not arrived, or was overwritten");
    tsan_release(this);
    instruction.b_values.resize(columns * static_cast<std::size_t>(k));
    for (int c = 0; c < n; ++c) {
      const u8* row = &instruction.b[static_cast<std::size_t>(c) * kRowBytes];
      for (int i = 0; i < k; ++i)
        instruction.b_values[static_cast<std::size_t>(i * n + c)] = value_of(of_b(call.kind), row, i);
    }
  }
  u8 a[16][kRowBytes];
  if (!call.registers) {
    std::memcpy(a, &instruction.a[warp * sizeof a], sizeof a);
  } else {
    for (u32 lane = 0; lane < kWarp; ++lane)
      for (u32 r = 0; r < 4; ++r) {
        if (part.a[lane][r] != part.a_at_issue[lane][r])
          worker.fail(describe(call) + ": a register operand was written before the wait");
        std::memcpy(&a[lane / 4 + 8 * (r % 2)][4 * (lane % 4) + 16 * (r / 2)], &part.a[lane][r], 4);
      }
  }
  double sum[256];
  for (u32 row = 0; row < 16; ++row) {
    std::fill_n(sum, n, 0.0);
    for (int i = 0; i < k; ++i) {
      const double value = value_of(of_a(call.kind), a[row], i);
      const float* b = &instruction.b_values[static_cast<std::size_t>(i * n)];
      for (int c = 0; c < n; ++c) sum[c] += value * b[c];
    }
    for (std::size_t c = 0; c < columns; ++c) {
      const std::size_t lane = 4 * (row % 8) + c % 8 / 2;
      u32& d = part.d->values[lane * (columns / 2) + 4 * (c / 8) + 2 * (row / 8) + c % 2];
      if (is_integer(call.kind)) {
        d = (call.accumulate ? d : 0u) + static_cast<u32>(static_cast<i32>(sum[c]));
      } else {
        d = bits_as<u32>(static_cast<float>((call.accumulate ? bits_as<float>(d) : 0.0) + sum[c]));
      }
    }
  }
}

void Warpgroup::set_registers(Worker& worker, u32 warp, u32 count) {
  used_ = true;
  OfWarp& own = warps_[warp];
  own.registers.push_back(count);
  const std::size_t call = own.registers.size() - 1;
  for (const OfWarp& other : warps_)
    if (other.registers.size() > call && other.registers[call] != count)
      worker.fail("divergent warpgroup: set_registers to " + std::to_string(count) + ", and to " +
                  std::to_string(other.registers[call]) + " in another warp");
}

void Warpgroup::check_finished(const Block& block, u32 threads, const Warpgroup* warpgroups, std::size_t count) {
  // The registers that the compiler may give each thread of a block that has a multiprocessor for itself.
  const u32 at_launch = std::min(65536 / threads / 8 * 8, 256u);
  u32 registers = 0, warps = 0;
  for (std::size_t g = 0; g < count; ++g) {
    if (!warpgroups[g].used_) continue;
    for (const OfWarp& w : warpgroups[g].warps_) {
      if (!w.parts.empty()) throw Error(place(block) + ": the kernel ends with a wgmma in flight");
      if (w.registers.size() != warpgroups[g].warps_[0].registers.size())
        throw Error(place(block) + ": set_registers in some warps of a warpgroup only");
      if (!w.registers.empty()) registers += kWarp * w.registers.back(), ++warps;
    }
  }
  const u32 pool = at_launch * threads;
  registers += at_launch * (threads - kWarp * warps);
  if (warps && registers > pool)
    throw Error(place(block) + ": set_registers to " + std::to_string(registers) + " registers in all, of " +
                std::to_string(pool));
}

void Warpgroup::reset() {
  if (used_) *this = Warpgroup();
}

}  // namespace tw::emu
