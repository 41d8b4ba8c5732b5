// SPDX-License-Identifier: Apache-2.0
// The CPU's kernels, each written once over a backend B (ir.h, native_*). Those of codes, for weights in panels
// (panels.h) and x in blocks of 32 codes (few.h, many.h, tiles.h):
//
//   y[t, r] = alpha sum over blocks of ((sum of code_w code_x) d_w - minimum_w (sum of code_x)) d_x + bias[r]
//
// The products of columns that share a scale are summed exactly in integers, as ggml does, and so are codes of x;
// scales are exact, too. What is rounded is one addition for each of these sums, in the order of k, whatever a kernel's
// knobs, threads and vectors are. So all of them give the same bits. Where scales are floats, a product of two is
// rounded, too. Where w has no scales sums stay integers, and y=int32 is exact. Kernels of floats (floats.h) say
// how they add.
//
// This text is compiled for several targets: no function of it may be one that the rest of the library shares.
// Whoever includes it names a namespace of its own: TILEWRIGHT_CPU_KERNELS.
#include "templates/operations/gemm/cpu/kernels_shared.h"

// Native's kernels are fast where everything that depends on the format is known to the compiler, so all is one
// function there; Ir's are text, for which that would be code without a use.
#if !defined(TW_INLINE)
#define TW_INLINE
#endif

// Each needs those before it.
// clang-format off
#include "templates/operations/gemm/cpu/epilogue.h"
#include "templates/operations/gemm/cpu/launch.h"
#include "templates/operations/gemm/cpu/quantize.h"
#include "templates/operations/gemm/cpu/blocks.h"
#include "templates/operations/gemm/cpu/few.h"
#include "templates/operations/gemm/cpu/many.h"
#include "templates/operations/gemm/cpu/tiles.h"
#include "templates/operations/gemm/cpu/floats.h"
#include "templates/operations/gemm/cpu/bf16_tiles.h"
// clang-format on
