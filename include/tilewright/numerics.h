// SPDX-License-Identifier: Apache-2.0
// What an element of a gemm's y should be, and how far a correct kernel may be off: for checks that form sums of
// products themselves. The bound is the one that candidates are verified with; docs/reference/numerics.md says where
// its terms come from. Pure functions, usable from any thread.
#pragma once

#include <tilewright/export.h>
#include <tilewright/gemm.h>

namespace tilewright {

// Of one element y[m, n], in double precision, from the decoded operands. Tensor-wide scales are in these or in
// `scale`.
struct GemmSums {
  double product = 0;    // sum over k of x w
  double magnitude = 0;  // sum over k of |x w|
  // Sum over k of |x| times how far a packed weight may be rounded when it is unpacked (docs/reference/numerics.md,
  // rounding); 0 where w is not packed.
  double rounding = 0;
  double scale = 1;  // what the sum is multiplied by: alpha (the problem's times the launch's), and tensor-wide scales
                     // that are not in the operands
  double bias = 0;   // of column n
  double residual = 0;  // beta c[m, n], beta of both too
};
struct Expected {
  double value = 0;  // (act(scale product + bias) + residual) / y_scale, clamped to what y's format holds
  double bound = 0;  // a correct kernel's |y - value| is no larger
};
TILEWRIGHT_EXPORT Expected gemm_expected(const Gemm& gemm, const GemmSums& sums);

TILEWRIGHT_EXPORT double activate(Activation act, double v);

}  // namespace tilewright
