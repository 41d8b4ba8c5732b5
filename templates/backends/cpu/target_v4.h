// SPDX-License-Identifier: Apache-2.0
// Up to target_end.h, functions are compiled for AVX-512 with VNNI, which the rest of the library may not use.
#if defined(__clang__)
#pragma clang attribute push(                                                                        \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vnni"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC optimize("O3")
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vnni")
// GCC 12 warns of turns of a loop that it peels although they are not reached.
#pragma GCC diagnostic ignored "-Warray-bounds"
// Of its own intrinsics, whose unused lanes are left undefined.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
