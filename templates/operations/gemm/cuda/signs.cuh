// SPDX-License-Identifier: Apache-2.0
// Signs by signs: a kernel for bytes, whose bytes are eight signs each (fmt::SignBytes) and whose k counts bytes.
#pragma once
#include "formats/shared/sign_row.cuh"
#include "operations/gemm/params.cuh"

namespace tw::gemm {

template <class Kernel>
struct SignProducts : Kernel {
  template <class... Maps>
  TW_MEMBER static void run(const Args& args, const Shape& shape, Maps... maps) {
    Args of_bytes = args;
    of_bytes.ldx /= 8;
    Shape bytes = shape;
    bytes.k /= 8;
    Kernel::run(of_bytes, bytes, maps...);
  }
};

}  // namespace tw::gemm
