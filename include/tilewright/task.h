// SPDX-License-Identifier: Apache-2.0
// Task: everything that the tuner needs to choose a kernel for any computation. Engine makes one from a Problem. To
// tune a kernel of your own, make one by hand (examples/02_your_own_kernel).
// Only one thread at a time may use a Task, but the tuner's compile threads may call its functions concurrently.
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
  bool output = false;        // filled with poison before each verified run, compared after it
  std::size_t row_bytes = 0;  // if the size depends on the number of rows: bytes = row_bytes * rows; else 0.
                              // Verification then puts its canary directly after the last row of the launch
  // Fills an input with valid pseudo-random content, determined by the seed. Unused for outputs.
  std::function<void(std::span<std::byte> bytes, std::uint64_t seed)> fill = {};
  // Neither input nor output: zero before the first launch, then used by the kernels. All launches, which follow each
  // other, share it.
  bool scratch = false;
  std::string element = {};      // type of the elements of a buffer that is not a matrix: "f32", "int64"; empty: bytes
  std::size_t launch_bytes = 0;  // the part of `bytes` that a caller's launch reads, if verification needs more; else 0
};

// A matrix in the buffers: the indices of its streams, and how its format's bytes are stored there.
struct Matrix {
  std::string name = {};  // "w"
  Format format;
  std::int64_t rows = 0, cols = 0;
  int data = -1, scales = -1, global = -1;  // indices into Task::buffers; -1: there is no such stream
  bool inverse_global = false;              // the buffer holds the inverse of the factor that the format's codec takes
  bool any_axes = false;                    // a tensor whose arrays may have any axes, in any order
  // Set if the order of bytes in the buffers differs from the format's: converts from the format's order, and back.
  // Host pointers.
  std::function<void(Operand plain, MutableOperand stored)> store = {};
  std::function<void(Operand stored, MutableOperand plain)> restore = {};

  int slot(StreamName s) const { return s == StreamName::data ? data : s == StreamName::scales ? scales : global; }
  int& slot(StreamName s) { return s == StreamName::data ? data : s == StreamName::scales ? scales : global; }
};

struct Task {
  std::string key = {};  // names the computation, with the bucket instead of the number of rows: the choice's key
  std::int64_t rows = 0, cols = 0;         // extents to measure at
  std::vector<Candidate> candidates = {};  // best guess first; the last one must be legal everywhere
  std::function<Source(const Candidate&)> source = {};
  Contract contract = {};  // for the launch; may be empty for a caller's own kernel

  std::vector<Buffer> buffers = {};
  std::vector<Matrix> matrices = {};  // those in the buffers; may be empty
  int weights = -1;                   // the matrix that a model's tensor may replace
  // Makes the argument struct of a launch from device pointers (one per buffer, in order). An operation may leave this
  // to its contract.
  std::function<std::vector<std::byte>(std::span<void* const> pointers, std::int64_t rows)> arguments = {};

  // Verification at `verify_rows` rows. If `oracle` is set, that candidate runs once per seed, on the same inputs, into
  // its own copies of the output buffers, each `oracle_scale` times larger; compare() then gets all output buffers of
  // both, concatenated in order. Without an oracle, the `oracle` bytes are empty, and compare() needs only the outputs.
  // compare() returns an empty string for a correct result, else a sentence ("y[3,17] = nan, expected 0.5 +- 0.01").
  std::int64_t verify_rows = 0;
  std::function<Source()> oracle = {};
  std::size_t oracle_scale = 1;
  std::function<std::string(std::span<const std::byte> got, std::span<const std::byte> oracle,
                            std::span<const std::vector<std::byte>> inputs, std::int64_t rows)>
      compare = {};
  // Largest error in the latest compare(), relative to the allowed error (<= 1 for a correct result). May be empty.
  std::function<double()> worst_error = {};

  double min_bytes = 0, ops = 0;  // for reports
};

}  // namespace tilewright
