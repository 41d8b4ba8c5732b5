// SPDX-License-Identifier: Apache-2.0
// Task: everything the tuner needs in order to choose a kernel, for any computation. Engine makes one from a Problem;
// a caller makes one by hand for a kernel of their own (examples/02_your_own_kernel).
// A Task is used by one thread at a time; its functions may be called from the tuner's compile threads concurrently.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <tilewright/candidate.h>
#include <tilewright/format.h>
#include <tilewright/kernel.h>
#include <tilewright/source.h>

namespace tilewright {

// Device memory that a launch reads or writes.
struct Buffer {
  std::string name = {};  // "w.data"
  std::size_t bytes = 0;
  bool output = false;        // poisoned before each verified run, compared after it
  std::size_t row_bytes = 0;  // if the size follows the number of rows: bytes = row_bytes * rows; else 0. Verification
                              // then puts its canary right behind the last row of the launch
  // Fills an input with valid pseudo-random content. Deterministic in the seed. Unused for outputs.
  std::function<void(std::span<std::byte> bytes, std::uint64_t seed)> fill = {};
  // Neither input nor output: zero before the first launch, then the kernels'. One for all launches, which follow each
  // other.
  bool scratch = false;
  std::string element = {};      // of a buffer that is no matrix, what it holds: "f32", "int32", "int64"; empty: bytes
  std::size_t launch_bytes = 0;  // what a caller's launch reads of `bytes`, if verification needs more; else 0
};

// A matrix that lies in buffers: where its streams are, and how its format's bytes get there.
struct Matrix {
  std::string name = {};  // "w"
  Format format;
  std::int64_t rows = 0, cols = 0;
  int data = -1, scales = -1, global = -1;  // indices into Task::buffers; -1: there is no such stream
  bool inverse_global = false;              // the buffer holds 1 / the factor that the format's codec takes
  bool any_axes = false;                    // a tensor whose arrays may have any axes, in any order
  // Where the buffers hold another order than the format's: from that to it, and back. Host pointers.
  std::function<void(Operand plain, MutableOperand stored)> store = {};
  std::function<void(Operand stored, MutableOperand plain)> restore = {};

  int slot(StreamName s) const { return s == StreamName::data ? data : s == StreamName::scales ? scales : global; }
  int& slot(StreamName s) { return s == StreamName::data ? data : s == StreamName::scales ? scales : global; }
};

struct Task {
  std::string key = {};             // what is computed, without the number of rows beyond its bucket: the choice's key
  std::int64_t rows = 0, cols = 0;  // extents to measure at
  std::vector<Candidate> candidates = {};  // best guess first; the last one is trusted to be legal everywhere
  std::function<Source(const Candidate&)> source = {};
  Contract contract = {};  // for the launch; may be empty for a caller's own kernel

  std::vector<Buffer> buffers = {};
  std::vector<Matrix> matrices = {};  // of the buffers, those that are one; may be empty
  int weights = -1;                   // the matrix that a model's tensor may stand in for
  // The argument struct of a launch over the given device pointers (one per buffer, in order). An operation may leave
  // it to its contract.
  std::function<std::vector<std::byte>(std::span<void* const> pointers, std::int64_t rows)> arguments = {};

  // Verification at `verify_rows` rows. If `oracle` is set, that candidate runs once per seed, on the same inputs, into
  // its own copies of the output buffers, each `oracle_scale` times larger; compare() then gets all output buffers of
  // both, concatenated in order. Without an oracle, `oracle` bytes are empty and compare() judges alone.
  // compare() returns an empty string for a right result, else a sentence ("y[3,17] = nan, expected 0.5 +- 0.01").
  std::int64_t verify_rows = 0;
  std::function<Source()> oracle = {};
  std::size_t oracle_scale = 1;
  std::function<std::string(std::span<const std::byte> got, std::span<const std::byte> oracle,
                            std::span<const std::vector<std::byte>> inputs, std::int64_t rows)>
      compare = {};
  // Largest error the latest compare() saw, relative to what it permits (<= 1 for a right result). May be empty.
  std::function<double()> worst_error = {};

  double min_bytes = 0, ops = 0;  // for reports
};

}  // namespace tilewright
