// SPDX-License-Identifier: Apache-2.0
// The cost model: which legal candidate is probably fast. Says what is preferred, never what is legal. Pure functions
// of the problem, the target and the constants below, so that every process ranks alike.
#pragma once

#include <optional>
#include <vector>

#include <tilewright/arch.h>
#include <tilewright/family.h>
#include <tilewright/kernel.h>
#include <tilewright/problem.h>

namespace tilewright::tuner {

// The chip, as the cost model sees it.
struct DeviceModel {
  double sms = 0;
  double tbps = 0;           // device memory, TB/s
  double mma16_tf = 0;       // dense 16-bit mma.sync, TFLOP/s of the whole chip
  double shared_per_sm = 0;  // bytes
  double threads_per_sm = 0;
  double l2_bytes = 0;
};
DeviceModel model_of(const Arch& arch);
DeviceModel model_of(const Device& device);  // the device's SMs and L2, the target's typical rates

// Calibration. The figures are of one H200 (132 SMs, 1.98 GHz); the model needs their order of magnitude elsewhere.
struct CostConstants {
  double launch_us = 1.5;          // of one kernel inside a graph
  double block_us = 1.5;           // start, first load and epilogue of a block, not overlapped with anything
  double memory_latency_us = 1.5;  // of a load while the whole chip streams: 4.65 TB/s * 1.5 us / 132 = 53 KB per SM
  double l2_ratio = 1.7;           // L2 bandwidth over device memory bandwidth
  double registers_per_sm = 65536;
  double blocks_per_sm = 32;
  double shared_reserved = 1024;  // bytes per block that the driver keeps
  double mma_in_flight = 64;      // independent matrix instructions per SM that keep its units busy
  double shared_bytes_clk = 128;  // shared memory per SM and clock
  double alu_lanes = 64;          // per SM and clock, integer and conversion work
  double alu_warps = 24;          // resident warps per SM that hide the latency of dependent scalar work
  double alu_chains = 4;          // of a thread's independent chains, how many count as further warps
  double clock_ghz = 1.75;
  // Clocks of a multiprocessor's copy engine for a row of 128 bytes of a box, and for one beyond the matrix.
  double row_clk = 1.4, padding_clk = 12;
  double overlap_loss = 0.15;  // share of the shorter of (memory, mma, alu) that the longest does not hide
};

struct Prediction {
  double microseconds = 0;
  double memory_us = 0, l2_us = 0, copy_us = 0, mma_us = 0, shared_us = 0, alu_us = 0;  // each alone
  double waves = 0;
  double concurrent = 1;  // blocks at a time, of the whole chip
};
Prediction predict(const Traits& traits, const DeviceModel& model, const CostConstants& constants = {});

struct Ranked {
  const Family* family = nullptr;
  Candidate candidate;
  Traits traits;
  Prediction prediction;
};

// Every legal candidate of every family of the problem's operation, best predicted first; equal predictions keep the
// order of families and of their candidates. The last family (the reference) always comes last.
std::vector<Ranked> rank(const Problem& problem, const Arch& arch, const DeviceModel& model,
                         const CostConstants& constants = {});

// What rank() puts first, without ranking the rest; nothing if it finds nothing.
std::optional<Candidate> ranked_first(const Problem& problem, const Arch& arch, const DeviceModel& model,
                                      const CostConstants& constants = {});

// Share of knobs with equal values; 0 across families and where one has options that the other does not name.
double likeness(const Ranked& a, const Ranked& b);

// Indices into `ranked` of the candidates worth compiling, at most `most`, first choice first. Near-duplicates of
// something already taken (same family and tile) are penalised, so that the few measured ones cover the space.
// The reference is left out unless there is nothing else.
std::vector<int> select(const std::vector<Ranked>& ranked, int most);

// The measured time of a ranked candidate.
struct Measured {
  int index = 0;  // into `ranked`
  double microseconds = 0;
};
// The candidates to measure next: indices of at most `most` candidates not yet tried, best first. The model's error on
// a candidate is taken to be that on the measured ones like it, weighted by likeness, so that what made the fast ones
// fast is followed into the rest of the space. `tried` holds every index that was tried, measured or not. `narrow`:
// prefer candidates that differ from the fastest in at most two knobs; for the last few.
std::vector<int> refine(const std::vector<Ranked>& ranked, const std::vector<Measured>& measured,
                        const std::vector<int>& tried, int most, bool narrow);

}  // namespace tilewright::tuner
