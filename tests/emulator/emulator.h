// SPDX-License-Identifier: Apache-2.0
// Runs a kernel's real text on a CPU. A test includes the kernel's .cuh, which a host compiler sees as ordinary
// functions, and passes a call of it to run(): every CUDA thread becomes a fiber, and the wrappers of
// backends/cuda/ptx.cuh reach the functions of tw::emu that are defined here.
//
// The emulator is stricter than a chip, so that what passes here is right there:
//   - dynamic shared memory holds NaNs at the start of each block, and so does a copy's destination from its
//     issue until the matching wait (cp_async) or until it arrives (the copy engine: whenever the seed likes, at the
//     latest when nobody can run), and so do the accumulators of a wgmma until the wait that retires it;
//   - a barrier needs every thread of the block, a warp collective all 32 lanes with the same operands, in the same
//     order, a warpgroup's instruction its four warps likewise;
//   - a transaction barrier must be initialized, gets no arrival too many, and has no bytes pending at the end; nobody
//     sends to a block that has exited; who waits for what never comes is named;
//   - misaligned or foreign shared addresses are errors; AddressSanitizer sees the end of shared memory exactly;
//   - operands of a wgmma that change under it, or that ordinary stores wrote without a fence_async, are errors;
//   - `seed` chooses the order in which threads and blocks run; a missing barrier is a wrong result for some order, and
//     a report in a ThreadSanitizer build, where each CUDA thread is a thread of its own. To it a wgmma's wait orders
//     the operands' reads in shared memory, and no lane's own accesses.
// Blocks run one after another, those of a cluster together. run() may be called from several OS threads at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "backends/cuda/sm90.cuh"

namespace tw::emu {

struct Launch {
  Dim grid{1, 1, 1};
  unsigned threads = 32;         // of a block, along x
  unsigned cluster = 1;          // blocks along x that run together
  std::size_t shared_bytes = 0;  // dynamic, of each block
  std::uint64_t seed = 0;        // 0: threads in order, each as far as it gets
};

// A kernel did what CUDA forbids. The message names the block, the threads and the operation.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Returns when all blocks have finished. Throws Error, std::invalid_argument for an impossible launch, or whatever the
// kernel throws.
void run(const Launch& launch, const std::function<void()>& kernel);

// The map of a row-major matrix of `rows` rows of `inner` elements, cut into panels of box_inner elements: boxes are
// box_rows rows of box_panels panels, and arrive swizzled over 0 (not at all), 32, 64 or 128 bytes. Throws
// std::invalid_argument where the driver would refuse, and for rows that are not whole panels. Only the emulator can
// read it.
TensorMap tensor_map(const void* base, int element_bytes, u64 inner, u64 rows, u64 row_stride_bytes, u32 box_inner,
                     u32 box_rows, u32 swizzle_bytes, u32 box_panels = 1);

// The map of a tensor, its axes behind the innermost one from inside to outside. Throws as above.
struct MapAxis {
  u64 size, stride;       // elements from one place to the next
  u32 box = 1, step = 1;  // places of a box, every step-th one
};
TensorMap tensor_map(const void* base, int element_bytes, u64 inner, u32 box_inner, u32 swizzle_bytes,
                     const std::vector<MapAxis>& axes);

}  // namespace tw::emu
