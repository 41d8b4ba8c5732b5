// SPDX-License-Identifier: Apache-2.0
// Family: a kernel template with its knobs, its legality and its source text. It is a folder in templates/ and an entry
// in families() of its operation's operation.cpp. A family says what is legal, never what is preferred. Stateless; any
// thread may use it.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tilewright/arch.h>
#include <tilewright/candidate.h>
#include <tilewright/export.h>
#include <tilewright/problem.h>
#include <tilewright/source.h>

namespace tilewright {

// Facts about one candidate that a cost model may use. Units in the names.
struct Traits {
  int tile_rows = 1, tile_cols = 1;  // of the output, per block
  int threads = 0;                   // per block
  int shared_bytes = 0;              // per block, static + dynamic
  int registers = 0;                 // estimate per thread
  double blocks = 0;                 // of the whole launch
  double global_bytes = 0;           // read + written through L2 by the whole launch, with re-reads
  double unique_bytes = 0;           // of device memory, each byte once
  double bytes_in_flight = 0;        // per thread: outstanding loads
  double copied_rows = 0;            // rows of boxes that the copy engine reads in the whole launch, 128 bytes each
  double padding_rows = 0;           // those of them that are outside the matrix
  double mma_ops = 0;                // operations on matrix units, padding included
  double mma_rate = 1;               // relative to 16-bit mma.sync
  double mma_in_flight = 32;         // independent matrix instructions of a warp
  double shared_traffic = 0;         // bytes read from and written to shared memory by the whole launch
  double alu_ops = 0;                // scalar operations, all threads
  double alu_in_flight = 1;          // independent chains of them in a thread
  double later_wave_cost = 1;        // start-up cost of a wave after the first, relative to the first's
  double last_wave = 1;              // least share of a wave's time for the last one; 0: all blocks share its work
};

class TILEWRIGHT_EXPORT Family {
 public:
  virtual ~Family() = default;
  virtual std::string_view op() const = 0;     // "gemm"
  virtual std::string_view name() const = 0;   // "mma"; unique within the operation
  virtual std::string_view title() const = 0;  // one line for humans

  // Why no candidate of this family can compute the problem; empty if some can.
  virtual std::string why_not(const Problem& problem, const Arch& arch) const = 0;
  // Every legal candidate, in a deterministic order. Empty if why_not() is not, or if no launch has room for the rows.
  virtual std::vector<Candidate> candidates(const Problem& problem, const Arch& arch) const = 0;
  // Why a candidate (perhaps stored by an older version) is not legal; empty if it is.
  virtual std::string illegal(const Problem& problem, const Arch& arch, const Candidate& candidate) const = 0;
  // Precondition of both: illegal() is empty.
  virtual Source source(const Problem& problem, const Arch& arch, const Candidate& candidate) const = 0;
  virtual Traits traits(const Problem& problem, const Arch& arch, const Candidate& candidate) const = 0;

  // The candidate with the least cost, the first of equal ones; empty if there is none. A family may find it without a
  // list of all candidates.
  struct Costed {
    Candidate candidate;
    double cost = 0;
  };
  virtual std::optional<Costed> cheapest(const Problem& problem, const Arch& arch,
                                         const std::function<double(const Traits&)>& cost) const;
};

// The families of an operation for GPUs, the most specialized first and the reference last. With a target: the families
// for it; there may be none for a CPU.
TILEWRIGHT_EXPORT std::span<const Family* const> families(std::string_view op);
TILEWRIGHT_EXPORT std::span<const Family* const> families(std::string_view op, const Arch& arch);
// For GPUs or for CPUs. Throws Error (invalid_argument).
TILEWRIGHT_EXPORT const Family& family(std::string_view op, std::string_view name);

}  // namespace tilewright
