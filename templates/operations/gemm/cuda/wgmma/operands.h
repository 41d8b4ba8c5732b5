// SPDX-License-Identifier: Apache-2.0
// What the warpgroup kernel makes of a problem's formats, and the plans that follow.
#pragma once

#include <tilewright/arch.h>

#include <cstdint>
#include <optional>
#include <string>

#include "templates/backends/cuda/sm90.cuh"
#include "templates/formats/shared/fast_path.h"
#include "templates/operations/gemm/cuda/wgmma/plan.cuh"
#include "templates/operations/gemm/gemm.h"

namespace tilewright::gemm {

using WgmmaKnobs = tw::gemm::WgmmaKnobs;

struct WgmmaProblem {
  tw::WgmmaKind kind;     // of x's elements as they are multiplied
  int element_bytes;      // of such an element
  const TileInfo* tiles;  // of w; null: plain rows
  bool block_scales;  // w has a scale per block of rows (operations/gemm/cuda/block_scales.cuh); x may have some, too
  bool codes;         // x is blocks of bytes with scales
  bool widens;        // w's tiles are for a wider element than x's, which the producer makes of it
  bool narrows;       // or w is rounded to x's element
  bool prologue;      // x is first written to the workspace, as it is multiplied
  bool fast_accumulation;  // fp8 sums stay in the matrix units
  std::int64_t quantized;  // columns of x that arrive as floats; 0: none
  int groups;              // that the kernel has room for; 0: an ordinary gemm
  tw::gemm::WgmmaOperands operands;

  int panel_k() const { return operands.panel_k; }
  // Panels' products are promoted (tw::gemm::WgmmaOperands).
  bool promotes() const { return operands.promotes; }
  // With a prologue: bytes of the workspace up to the slots for partial sums of m tokens; and the most tokens of a
  // launch.
  std::int64_t slots_at(const Gemm& g) const;
  std::int64_t most_tokens(const Gemm& g) const;
  // Blocks that share loads of x.
  int multicast(const WgmmaKnobs& k) const { return widens ? 1 : k.neighbours(); }

  // Sets the knobs that follow from the problem and the others.
  WgmmaKnobs complete(WgmmaKnobs k) const;
  tw::gemm::WgmmaPlan plan(const WgmmaKnobs& k) const { return wgmma_plan(complete(k), operands); }
  int shared_bytes(const WgmmaKnobs& k) const { return plan(k).shared_bytes; }
  int blocks_per_sm(const WgmmaKnobs& k, const Arch& arch) const;
};

// Nothing if no instruction takes x, or w does not go with it. tokens: the problem's, or of a candidate's tile, since a
// candidate has one kernel for every number of tokens.
std::optional<WgmmaProblem> wgmma_problem(const Gemm& g, std::int64_t tokens, bool prologue);
inline WgmmaProblem wgmma_problem(const Gemm& g, const WgmmaKnobs& k) {
  return *wgmma_problem(g, k.block_m, k.prologue);
}
// Whether x is multiplied as a prologue wrote it, whatever else is chosen; and why it cannot; empty: it can, or need
// not.
bool needs_prologue(const Gemm& g);
std::string no_prologue(const Gemm& g);
// The instruction's kind for columns of x's elements; nothing if there is none.
std::optional<tw::WgmmaKind> wgmma_kind(Format x);
// The instruction whose 64-row side is `strips`. Precondition: wgmma_kind(columns).
tw::WgmmaKind wgmma_kind(Format strips, Format columns);

// Blocks per multiprocessor that the candidates try at most.
int most_blocks(const WgmmaKnobs& k);

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
// What a tile costs besides its products, as results of a multiply with all of k.
inline constexpr double kTileCost = 3000;

// Every legal choice, in a deterministic order (tiles.cpp).
std::vector<WgmmaKnobs> wgmma_knobs(const Gemm& g, const WgmmaProblem& p, const Arch& arch);
// An estimate of a thread's registers.
int wgmma_registers(const WgmmaKnobs& k, const WgmmaProblem& p);
// What sharing tiles through Stream-K costs, in waves. Measured; writing and adding partial sums weighs more where
// products take half the time.
double stream_k_cost(const WgmmaProblem& p);

}  // namespace tilewright::gemm
