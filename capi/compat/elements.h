/* SPDX-License-Identifier: Apache-2.0 */
/* What happens to each element around the products, as code for the host and, by TW_ELEMENTS_TEXT, as a kernel's text.
 * C and CUDA at once, so there are no directives between. */
#ifndef TILEWRIGHT_COMPAT_ELEMENTS_H
#define TILEWRIGHT_COMPAT_ELEMENTS_H

#define TW_ELEMENTS(FN)                                                                                                \
  typedef struct tw_elements {                                                                                         \
    const void* in;                                                                                                    \
    void* out;                                                                                                         \
    long long n;                                                                                                       \
    int op, cols;                                                                                                      \
    float a, b, c;                                                                                                     \
  } tw_elements;                                                                                                       \
  /* Nearest even, subnormals and NaNs kept, to infinity beyond. */                                                    \
  FN unsigned short tw_half_of(float f) {                                                                              \
    union {                                                                                                            \
      float f;                                                                                                         \
      unsigned u;                                                                                                      \
    } v;                                                                                                               \
    unsigned sign, m, e, shift, half;                                                                                  \
    v.f = f;                                                                                                           \
    sign = v.u >> 16 & 0x8000u;                                                                                        \
    m = v.u & 0x7fffffffu;                                                                                             \
    if (m > 0x7f800000u) return (unsigned short)(sign | 0x7fffu);                                                      \
    if (m >= 0x47800000u) return (unsigned short)(sign | 0x7c00u);                                                     \
    e = m >> 23;                                                                                                       \
    if (e < 102u) return (unsigned short)sign;                                                                         \
    shift = e < 113u ? 126u - e : 13u;                                                                                 \
    m = e < 113u ? (m & 0x7fffffu) | 0x800000u : m - 0x38000000u;                                                      \
    half = m >> shift;                                                                                                 \
    m &= (1u << shift) - 1u;                                                                                           \
    if (m > 1u << (shift - 1u) || (m == 1u << (shift - 1u) && (half & 1u))) ++half;                                    \
    return (unsigned short)(sign | half);                                                                              \
  }                                                                                                                    \
  FN void tw_element(const tw_elements* p, long long i) {                                                              \
    float x;                                                                                                           \
    long long row = i / p->cols, col = i % p->cols, rows = p->n / p->cols;                                             \
    switch (p->op) {                                                                                                   \
      case 0: /* scale */                                                                                              \
        x = (float)((const int*)p->in)[i] * p->a * p->b * p->c;                                                        \
        if (x != x) x = 0.0f;                                                                                          \
        x = fmaxf(x, -2147483648.0f);                                                                                  \
        ((int*)p->out)[i] = x >= 2147483648.0f ? 2147483647 : (int)x;                                                  \
        break;                                                                                                         \
      case 1: /* quantize */                                                                                           \
        x = fmaxf(fminf(((const float*)p->in)[i] / p->a + p->b, 127.0f), -128.0f);                                     \
        ((signed char*)p->out)[i] = (signed char)(int)roundf(x);                                                       \
        break;                                                                                                         \
      case 2: /* dequantize to float32 */                                                                              \
        ((float*)p->out)[i] = ((float)((const signed char*)p->in)[i] - p->b) * p->a;                                   \
        break;                                                                                                         \
      case 3: /* dequantize to float16 */                                                                              \
        ((unsigned short*)p->out)[i] = tw_half_of(((float)((const signed char*)p->in)[i] - p->b) * p->a);              \
        break;                                                                                                         \
      case 4: /* [rows, (cols + 1) / 2] of two codes to [rows, cols] */                                                \
        ((signed char*)p->out)[i] =                                                                                    \
            (signed char)((((const unsigned char*)p->in)[row * ((p->cols + 1) / 2) + col / 2] >> 4 * (col & 1) & 15) - \
                          8);                                                                                          \
        break;                                                                                                         \
      default: /* [(cols + 1) / 2, rows] to [rows, cols] */                                                            \
        ((signed char*)p->out)[i] =                                                                                    \
            (signed char)((((const unsigned char*)p->in)[col / 2 * rows + row] >> 4 * (col & 1) & 15) - 8);            \
    }                                                                                                                  \
  }

#define TW_ELEMENTS_STRING(...) #__VA_ARGS__
#define TW_ELEMENTS_EXPANDED(...) TW_ELEMENTS_STRING(__VA_ARGS__)
#define TW_ELEMENTS_TEXT                                                       \
  TW_ELEMENTS_EXPANDED(TW_ELEMENTS(static __device__))                         \
  "\nextern \"C\" __global__ void tw_compat_elements(const tw_elements p) {\n" \
  "  const long long i = blockIdx.x * 256ll + threadIdx.x;\n  if (i < p.n) tw_element(&p, i);\n}\n"

enum { TW_SCALE, TW_QUANTIZE, TW_DEQUANTIZE_F32, TW_DEQUANTIZE_F16, TW_UNPACK, TW_UNPACK_TRANSPOSED };

#endif
