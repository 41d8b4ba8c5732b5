// SPDX-License-Identifier: Apache-2.0
// The operation conv, its kernel families and what they share on the host.
#pragma once

#include <tilewright/conv.h>
#include <tilewright/operation.h>

#include <optional>
#include <string>

#include "templates/operations/conv/params.cuh"

namespace tilewright::conv {

const Operation& operation();

const Family& pointwise_wgmma();  // gemm's families of these names, for convolutions that are gemms in memory
const Family& pointwise_mma();
const Family& pointwise_gemv();
const Family& wgmma();      // gemm's warpgroup units, x read in boxes of pixels
const Family& mma();        // gemm's matrix units through mma.sync, x gathered on its way
const Family& kn2row();     // few output channels, each pixel times all taps
const Family& depthwise();  // depthwise ones, by matrix units
const Family& direct();     // few channels a group, without matrix units
const Family& reference();  // any convolution

// Bytes of the workspace without which wgmma does not serve a convolution that it serves with them; 0: there are none.
std::int64_t workspace_of_wgmma(const Conv& conv);
// Why x, w and y are not the matrices of as_gemm(), dense, in its order and as they are multiplied; empty if they are.
std::string not_pointwise(const Conv& conv);

Contract contract(const Conv& conv);
void describe(const Conv& conv, Task& task);  // Operation::describe(), run_on_host(), check_on_host()
void run_on_host(const Conv& conv, const Task& task, std::span<const std::span<std::byte>> buffers);
HostCheck check_on_host(const Conv& conv, const Task& task, std::span<const std::span<std::byte>> buffers);

// Why x of signs, whose pixels have a scale each, is not for a kernel that sums products of taps; empty: x has none.
std::string scaled_pixels(const Conv& conv);

// Why w in panels is not for kernels of GPUs; empty: it is not.
std::string in_panels(const Conv& conv);

// Whether x and w are both f32, which go through TF32, or where accumulation is fast are rounded to bfloat16.
bool single_precision(Format x, Format w);
// Bytes of x's elements as they are multiplied: single precision is rounded to bfloat16 where accumulation is fast, and
// signs are bytes of eight.
int multiplied_bytes(const Conv& conv);
// The largest relative error of w's values as elements of x, which kernels may write them as (cuda/wgmma); nothing if
// they do not: w is of such elements, or its values are not near any.
std::optional<double> written_rounding(Format w, Format x);
// The constants of a launch. Precondition of these: checked extents.
tw::conv::Shape shape_of(const Conv& conv);
// The gemm that a convolution is: its output pixels by its output channels, over the kernel's axes and a group's
// channels. For what depends on neither the axes nor the layouts: the epilogue, error bounds, costs. Extents beyond
// those of a gemm are left as they are.
Gemm as_gemm(const Conv& conv);

}  // namespace tilewright::conv
