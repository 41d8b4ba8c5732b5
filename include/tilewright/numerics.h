// SPDX-License-Identifier: Apache-2.0
// The expected value of an element of a gemm's y, and the largest error of a correct kernel, for checks that compute
// sums of products themselves. Candidates are verified with the same bound; docs/reference/numerics.md explains its
// terms. Pure functions; any thread may call them.
#pragma once

#include <tilewright/export.h>
#include <tilewright/gemm.h>

namespace tilewright {

// For one element y[m, n], in double precision, from the decoded operands. Tensor-wide scales are part of the operands
// or of `scale`.
struct GemmSums {
  double product = 0;    // sum over k of x w
  double magnitude = 0;  // sum over k of |x w|
  // Sum over k of |x| times the rounding error of a packed weight when it is unpacked (docs/reference/numerics.md,
  // rounding); 0 if w is not packed.
  double rounding = 0;
  double scale = 1;  // the factor of the sum: alpha (the problem's times the launch's), times tensor-wide scales that
                     // are not in the operands
  double bias = 0;   // of column n
  double residual = 0;  // beta c[m, n], with the problem's beta times the launch's
};
struct Expected {
  double value = 0;  // (act(scale product + bias) + residual) / y_scale, clamped to the range of y's format
  double bound = 0;  // a correct kernel's |y - value| is no larger
};
TILEWRIGHT_EXPORT Expected gemm_expected(const Gemm& gemm, const GemmSums& sums);

TILEWRIGHT_EXPORT double activate(Activation act, double v);

}  // namespace tilewright
