// SPDX-License-Identifier: Apache-2.0
// What target_v3.h or target_v4.h began ends here.
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
