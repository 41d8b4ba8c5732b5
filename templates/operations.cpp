// SPDX-License-Identifier: Apache-2.0
// The operations that there are. Nothing else names one.
#include <tilewright/operation.h>

#include "templates/operations/amax/amax.h"
#include "templates/operations/cast/cast.h"
#include "templates/operations/conv/conv.h"
#include "templates/operations/fake_quant/fake_quant.h"
#include "templates/operations/fp4_fake_quant/fp4_fake_quant.h"
#include "templates/operations/fused_cast/fused_cast.h"
#include "templates/operations/gemm/gemm.h"
#include "templates/operations/loss_scale/loss_scale.h"
#include "templates/operations/pack/pack.h"
#include "templates/operations/transpose/transpose.h"

namespace tilewright {

std::span<const Operation* const> operations() {
  static const Operation* const list[] = {
      &gemm::operation(),          &conv::operation(),       &cast::operation(),           &fused_cast::operation(),
      &amax::operation(),          &fake_quant::operation(), &fp4_fake_quant::operation(), &loss_scale::unscale(),
      &loss_scale::update_scale(), &pack::operation(),       &transpose::operation()};
  return list;
}

}  // namespace tilewright
