// SPDX-License-Identifier: Apache-2.0
// What conv's wgmma makes of a problem, and its candidates: what its files share on the host.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "templates/common/knobs.h"
#include "templates/operations/conv/conv.h"
#include "templates/operations/conv/cuda/wgmma/plan.cuh"
#include "templates/operations/conv/cuda/wgmma/prologue.cuh"
#include "templates/operations/gemm/cuda/wgmma/operands.h"

namespace tilewright::conv {

using WgmmaKnobs = tw::conv::WgmmaKnobs;

// What the candidates depend on.
struct WgmmaLayer {
  Gemm gemm;
  tw::conv::Shape shape;  // of what is multiplied
  gemm::WgmmaProblem product;
  tw::WgmmaKind filters_first, pixels_first;  // the instruction, by its 64-row side
  bool writes_x, writes_w;                    // to the workspace first
  bool unfolds;                               // x is written unfolded
  std::optional<Format> as;                   // the elements as which both are multiplied; nothing: as they are

  const tw::conv::Axis& axis(int i) const { return shape.axes[2 - i]; }  // width, height, depth
  // Frames are read one by one where they come from two tensors or are padded by others than zeros.
  bool one_frame() const { return (shape.cache > 0 && !writes_x) || axis(2).pad != tw::conv::Pad::zero; }
  tw::WgmmaKind kind(const WgmmaKnobs& k) const { return k.swapped ? pixels_first : filters_first; }

  // With the knobs that follow from the problem.
  WgmmaKnobs complete(WgmmaKnobs k) const;
  tw::gemm::WgmmaPlan plan(const WgmmaKnobs& k) const { return wgmma_plan(complete(k).product(), product.operands); }
  // Shared memory in front of the barriers that writing takes.
  int room_to_write(const WgmmaKnobs& k) const { return writing_room(complete(k), plan(k).threads); }
  std::int64_t filter_bytes() const {  // of w as it is written
    return writes_w ? tw::conv::written_filter_bytes(shape.k, shape.taps(), shape.c, product.element_bytes) : 0;
  }
  double tiles(const WgmmaKnobs& k) const;  // of a launch
};

// Nothing if no instruction takes x, or w does not go with it.
std::optional<WgmmaLayer> layer_of(const Conv& c);
// Bytes of the workspace that x and w take where they are written there.
double written_bytes(const WgmmaLayer& l);

// Every knob by name, for candidates' texts and kernels' sources (boxes.cpp).
const KnobTable<WgmmaKnobs>& wgmma_table();
// The cheapest boxes of each way to multiply, in a deterministic order; and whether a candidate's knobs are legal,
// among the cheapest or not.
std::vector<WgmmaKnobs> wgmma_boxes(const WgmmaLayer& l, const Arch& arch);
bool wgmma_offers(const WgmmaLayer& l, const Arch& arch, const Candidate& candidate);
// Time of a tile's products and copies, in results of a multiply with all of k: what boxes are compared by.
double cost_of_tile(const WgmmaLayer& l, const WgmmaKnobs& k);

inline int rounded_up(std::int64_t v, int step) { return static_cast<int>(gemm::ceil_div(v, step) * step); }

}  // namespace tilewright::conv
