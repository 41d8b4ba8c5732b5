// SPDX-License-Identifier: Apache-2.0
// Weights reordered once, at load, for kernels that want them so: what a problem with pack=tiles is given. Lossless.
// One packed copy serves every number of rows. Engine::pack() does it on the GPU; these run on any machine.
// Free-threaded.
//
// Streams of a packed w:
//   data    the codes in tiles of 64 rows: as many bytes as they have bits
//   scales  what the format keeps beside its codes, in the order of the tiles; also for formats whose blocks hold their
//           scales. A format with a float per row keeps that stream as it is; mxfp4's are bf16 here, a byte more each
//   global  as it is
#pragma once

#include <cstdint>
#include <string_view>

#include <tilewright/export.h>
#include <tilewright/format.h>
#include <tilewright/problem.h>

namespace tilewright {

// Bytes of stream "data", "scales" or "global" of the problem's w, packed or not as the problem says; 0: it has none.
TILEWRIGHT_EXPORT std::int64_t packed_bytes(const Gemm& gemm, std::string_view stream);

// From w as its format stores it to what the problem (pack=tiles) wants, and back; every stream is written. `global`
// may be null on both sides, or the same on both. Host pointers; one thread. Throws Error (invalid_argument) if the
// problem is not packed or a stream is null.
TILEWRIGHT_EXPORT void pack_weights(const Gemm& gemm, Operand from, MutableOperand to);
TILEWRIGHT_EXPORT void unpack_weights(const Gemm& gemm, Operand from, MutableOperand to);

}  // namespace tilewright
