// SPDX-License-Identifier: Apache-2.0
#include "emulator/fragments.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace tw::emu {
namespace {
// Within the warp, lane 4g + t holds: of A, row g (and g + 8), of B, column g, of D, row g (and g + 8) and columns 2t
// and 2t + 1. A register holds neighbouring k: 2t, 2t + 1 of 16-bit elements, 4t .. 4t + 3 of bytes.
float to_float(u16 bits, bool bf) { return bf ? bf16_bits_to_f32(bits) : f16_bits_to_f32(bits); }

template <int k>
void multiply_floats(Deposit* lanes, bool bf) {
  float a[16][k], b[k][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int r = 0; r < k / 4; ++r)  // A: rows g, g + 8 of the first 8 columns, then of the next 8
      for (int half = 0; half < 2; ++half)
        a[g + 8 * (r % 2)][8 * (r / 2) + 2 * t + half] =
            to_float(static_cast<u16>(lanes[lane].a[r] >> (16 * half)), bf);
    for (int r = 0; r < k / 8; ++r)
      for (int half = 0; half < 2; ++half)
        b[8 * r + 2 * t + half][g] = to_float(static_cast<u16>(lanes[lane].b[r] >> (16 * half)), bf);
  }
  for (int m = 0; m < 16; ++m) {
    float sum[8];
    u32* d[4];  // the lanes of row m
    for (int t = 0; t < 4; ++t) {
      d[t] = lanes[4 * (m % 8) + t].d + 2 * (m / 8);
      for (int half = 0; half < 2; ++half) sum[2 * t + half] = bits_as<float>(d[t][half]);
    }
    for (int i = 0; i < k; ++i)
      for (int n = 0; n < 8; ++n) sum[n] += a[m][i] * b[i][n];
    for (int n = 0; n < 8; ++n) d[n / 2][n % 2] = bits_as<u32>(sum[n]);
  }
}

// 16 x 8 x 8 of single precision, of which the unit reads 19 bits.
void multiply_tf32(Deposit* lanes) {
  float a[16][8], b[8][8];
  const auto read = [](u32 bits) { return bits_as<float>(bits & 0xffffe000u); };
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int r = 0; r < 4; ++r) a[g + 8 * (r % 2)][4 * (r / 2) + t] = read(lanes[lane].a[r]);
    for (int r = 0; r < 2; ++r) b[4 * r + t][g] = read(lanes[lane].b[r]);
  }
  for (int m = 0; m < 16; ++m)
    for (int n = 0; n < 8; ++n) {
      u32& d = lanes[4 * (m % 8) + n / 2].d[2 * (m / 8) + n % 2];
      float sum = bits_as<float>(d);
      for (int i = 0; i < 8; ++i) sum += a[m][i] * b[i][n];
      d = bits_as<u32>(sum);
    }
}

// 16 x 8 x 32 of fp8.
void multiply_f8(Deposit* lanes, float (*decode_a)(u8), float (*decode_b)(u8)) {
  float a[16][32], b[32][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int r = 0; r < 4; ++r)
      for (int i = 0; i < 4; ++i)
        a[g + 8 * (r % 2)][16 * (r / 2) + 4 * t + i] = decode_a(static_cast<u8>(lanes[lane].a[r] >> (8 * i)));
    for (int r = 0; r < 2; ++r)
      for (int i = 0; i < 4; ++i) b[16 * r + 4 * t + i][g] = decode_b(static_cast<u8>(lanes[lane].b[r] >> (8 * i)));
  }
  for (int m = 0; m < 16; ++m)
    for (int n = 0; n < 8; ++n) {
      u32& d = lanes[4 * (m % 8) + n / 2].d[2 * (m / 8) + n % 2];
      double sum = bits_as<float>(d);
      for (int i = 0; i < 32; ++i) sum += static_cast<double>(a[m][i]) * b[i][n];
      d = bits_as<u32>(static_cast<float>(sum));
    }
}

// rows x 8 x k; sums wrap around, as without .satfinite.
template <int rows, int k>
void multiply_bytes(Deposit* lanes) {
  i32 a[rows][k], b[k][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int r = 0; r < rows / 8 * (k / 16); ++r)
      for (int i = 0; i < 4; ++i)
        a[g + 8 * (r % (rows / 8))][16 * (r / (rows / 8)) + 4 * t + i] = static_cast<i8>(lanes[lane].a[r] >> (8 * i));
    for (int r = 0; r < k / 16; ++r)
      for (int i = 0; i < 4; ++i) b[16 * r + 4 * t + i][g] = static_cast<i8>(lanes[lane].b[r] >> (8 * i));
  }
  for (int m = 0; m < rows; ++m) {
    u32 sum[8] = {};
    for (int i = 0; i < k; ++i)
      for (int n = 0; n < 8; ++n) sum[n] += static_cast<u32>(a[m][i] * b[i][n]);
    for (int n = 0; n < 8; ++n) lanes[4 * (m % 8) + n / 2].d[2 * (m / 8) + n % 2] += sum[n];
  }
}

// 16 x 8 x 256 of bits: those that are 1 on both sides are counted.
void multiply_bits(Deposit* lanes) {
  u32 a[16][8], b[8][8];  // words of a row
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int r = 0; r < 4; ++r) a[g + 8 * (r % 2)][4 * (r / 2) + t] = lanes[lane].a[r];
    for (int r = 0; r < 2; ++r) b[g][4 * r + t] = lanes[lane].b[r];
  }
  for (int m = 0; m < 16; ++m)
    for (int n = 0; n < 8; ++n) {
      u32& d = lanes[4 * (m % 8) + n / 2].d[2 * (m / 8) + n % 2];
      for (int i = 0; i < 8; ++i) d += static_cast<u32>(std::popcount(a[m][i] & b[n][i]));
    }
}
}  // namespace

void load_matrices(Deposit* lanes, int count, bool transpose) {
  for (int i = 0; i < count; ++i) {
    u16 matrix[8][8];
    for (int r = 0; r < 8; ++r) std::memcpy(matrix[r], lanes[8 * i + r].row, 16);
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = 2 * (lane % 4);
      const u32 lo = transpose ? matrix[t][g] : matrix[g][t], hi = transpose ? matrix[t + 1][g] : matrix[g][t + 1];
      lanes[lane].d[i] = lo | (hi << 16);
    }
  }
}

void store_matrices(const Deposit* lanes, int count, bool transpose) {
  for (int i = 0; i < count; ++i) {
    u16 matrix[8][8];
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = 2 * (lane % 4);
      const u32 pair = lanes[lane].a[i];
      (transpose ? matrix[t][g] : matrix[g][t]) = static_cast<u16>(pair);
      (transpose ? matrix[t + 1][g] : matrix[g][t + 1]) = static_cast<u16>(pair >> 16);
    }
    for (int r = 0; r < 8; ++r) std::memcpy(const_cast<void*>(lanes[8 * i + r].row), matrix[r], 16);
  }
}

void multiply(Mma kind, Deposit* lanes) {
  switch (kind) {
    case Mma::f16_k8: return multiply_floats<8>(lanes, false);
    case Mma::f16_k16: return multiply_floats<16>(lanes, false);
    case Mma::bf16_k8: return multiply_floats<8>(lanes, true);
    case Mma::bf16_k16: return multiply_floats<16>(lanes, true);
    case Mma::tf32_k8: return multiply_tf32(lanes);
    case Mma::s8_k16_m8: return multiply_bytes<8, 16>(lanes);
    case Mma::s8_k32: return multiply_bytes<16, 32>(lanes);
    case Mma::b1_k256: return multiply_bits(lanes);
    case Mma::e4m3_k32: return multiply_f8(lanes, e4m3_to_f32, e4m3_to_f32);
    case Mma::e5m2_k32: return multiply_f8(lanes, e5m2_to_f32, e5m2_to_f32);
    case Mma::e4m3_e5m2_k32: return multiply_f8(lanes, e4m3_to_f32, e5m2_to_f32);
    case Mma::e5m2_e4m3_k32: return multiply_f8(lanes, e5m2_to_f32, e4m3_to_f32);
  }
}

void multiply_scaled(ScaledMma kind, int byte, Deposit* lanes) {
  const bool nibbles = kind != ScaledMma::mxf8;
  const int k = nibbles ? 64 : 32, each = nibbles ? 8 : 4;  // columns, codes of a register
  const int block = kind == ScaledMma::nvf4 ? 16 : 32;      // columns under a scale
  const auto code = [&](u32 word, int i) -> double {
    return nibbles ? e2m1_to_f32((word >> (4 * i)) & 15u) : e4m3_to_f32(static_cast<u8>(word >> (8 * i)));
  };
  const auto scale = [&](u32 word, int column) -> double {
    const u32 bits = (word >> (8 * (byte + column / block))) & 255u;
    if (kind == ScaledMma::nvf4) return e4m3_to_f32(static_cast<u8>(bits & 127u));  // its sign is not read
    return bits == 255 ? NAN : std::ldexp(1.0, static_cast<int>(bits) - 127);
  };
  double a[16][64], b[64][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int r = 0; r < 4; ++r)
      for (int i = 0; i < each; ++i) {
        const int row = g + 8 * (r % 2), column = k / 2 * (r / 2) + each * t + i;
        a[row][column] = code(lanes[lane].a[r], i) * scale(lanes[4 * (row % 8) + row / 8].scale_a, column);
      }
    for (int r = 0; r < 2; ++r)
      for (int i = 0; i < each; ++i) {
        const int row = k / 2 * r + each * t + i;
        b[row][g] = code(lanes[lane].b[r], i) * scale(lanes[4 * g].scale_b, row);
      }
  }
  for (int m = 0; m < 16; ++m)
    for (int n = 0; n < 8; ++n) {
      u32& d = lanes[4 * (m % 8) + n / 2].d[2 * (m / 8) + n % 2];
      double sum = bits_as<float>(d);
      for (int i = 0; i < k; ++i) sum += a[m][i] * b[i][n];
      d = bits_as<u32>(static_cast<float>(sum));
    }
}

}  // namespace tw::emu
