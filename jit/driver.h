// SPDX-License-Identifier: Apache-2.0
// The CUDA driver API, opened at run time and never linked. Own declarations: no CUDA header is needed to build.
// One Driver per library path, loaded once per process and never closed. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace tilewright::jit {

using CUresult = int;
using CUdevice = int;
using CUcontext = struct CUctx_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUgraph = struct CUgraph_st*;
using CUgraphExec = struct CUgraphExec_st*;
using CUdeviceptr = unsigned long long;

}  // namespace tilewright::jit
