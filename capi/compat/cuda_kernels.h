/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of CUDA Quantization Kernels' cuda_kernels.h over libtilewright_c, as a library of its own:
 * libtilewright_cuda_kernels. Programs change the include line and may look at what is returned; the original returned
 * nothing, whatever happened.
 *
 * Pointers are to device memory, 16-byte aligned; matrices are dense, rows first. stream: a cudaStream_t or CUstream.
 * Work is enqueued and not waited for, but the first call of a shape, which compiles or looks into the cache, and the
 * first calls of a stream, which allocate what B is transposed into. Make one call of a shape before capturing it in a
 * CUDA graph. Functions may be called from any thread. docs/use/compatibility.md says what differs from the original.
 */
#ifndef TILEWRIGHT_COMPAT_CUDA_KERNELS_H
#define TILEWRIGHT_COMPAT_CUDA_KERNELS_H

#include <stdint.h>
#include <tilewright/tilewright_c.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The engine and the device of the calling thread's later calls; both must outlive them. Null: an engine of the
 * environment's options, and device 0. */
TW_API void cuda_kernels_use(tw_engine* engine, tw_device* device);

/* What the calling thread's latest failure said, a sentence; "" if none failed. */
TW_API const char* cuda_kernels_last_error(void);

/* C [M, N] = trunc(A [M, K] B [K, N] scale_a scale_b scale_c): sums exact, scaled from left to right in single
 * precision, limited to int32, a NaN to 0. K is at most 131071. */
TW_API tw_status int8_matmul_cuda(const int8_t* A, const int8_t* B, int32_t* C, int M, int N, int K, float scale_a,
                                  float scale_b, float scale_c, tw_stream stream);
/* The same of 4-bit codes, the value plus 8, two along K to a byte, the even one low: A_packed [M, (K + 1) / 2],
 * B_packed [(K + 1) / 2, N]. The second code of an odd K's last byte is not read. */
TW_API tw_status int4_matmul_cuda(const uint8_t* A_packed, const uint8_t* B_packed, int32_t* C, int M, int N, int K,
                                  float scale_a, float scale_b, float scale_c, tw_stream stream);
/* C [M, N] = max(0, A B (scale_a scale_b scale_c) + bias [N]); bias may be null. */
TW_API tw_status fused_int8_matmul_bias_relu_cuda(const int8_t* A, const int8_t* B, const float* bias, float* C, int M,
                                                  int N, int K, float scale_a, float scale_b, float scale_c,
                                                  tw_stream stream);
/* round(input / scale + zero_point), limited to -128 to 127 before it is rounded half away from zero; a NaN is 127. */
TW_API tw_status quantize_cuda(const float* input, int8_t* output, int size, float scale, float zero_point,
                               tw_stream stream);
/* (quantized - zero_point) scale, to float16 and to float32. */
TW_API tw_status dequantize_cuda(const int8_t* quantized, void* output, int size, float scale, float zero_point,
                                 tw_stream stream);
TW_API tw_status dequantize_fp32_cuda(const int8_t* quantized, float* output, int size, float scale, float zero_point,
                                      tw_stream stream);

#ifdef __cplusplus
}
#endif
#endif
