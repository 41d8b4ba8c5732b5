// SPDX-License-Identifier: Apache-2.0
// All that TensorRT's headers need of CUDA's: handles that this library only passes on. So it is built without a CUDA
// toolkit.
#pragma once

typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
