// SPDX-License-Identifier: Apache-2.0
// NF4 (QLoRA, arXiv 2305.14314) as bitsandbytes stores it: blocks of 64 elements with a float `absmax` each; stream
// `data` packs two codes a byte, the even element high; value = table[code] * absmax. Encoder "bitsandbytes" (its CUDA
// kernel): absmax = the largest magnitude, code = the number of the table's midpoints that x * (1 / absmax) is above,
// so that of two values as near the lower one is taken. Where that product is a NaN, as for all elements of a block of
// zeros, the code is 0, -1: such a block decodes to -0.
#pragma once
#include "formats/shared/format.cuh"

namespace tw::fmt {

struct nf4 : StandAlone {
  static constexpr const char* title() { return "NF4: 4-bit codes of a table, one float scale per 64 (bitsandbytes)"; }
  static constexpr const char* source() { return "bitsandbytes (csrc/kernels.cu); QLoRA, arXiv 2305.14314"; }
  TW_CONSTANTS(int, kLayout = 1, kBlock = 64, kBits = 4);
  TW_CONSTANTS(int, kDataBytes = 32, kScaleBytes = 4);
  TW_CONSTANTS(int, kEncoders = 1, kErrorColumns = 64);
  static constexpr const char* encoder_name(int) { return "bitsandbytes"; }
  // Half of the widest gap, between -1 and -0.6962. The reciprocal of an absmax below 2^-128 is infinite, and the codes
  // are those of the ends then.
  static constexpr Error error(int) { return {0, 0.151905, 0, 0, 5.9e-39}; }
  TW_CONSTANTS(bool, kKeepsNan = false);
  TW_MEMBER static constexpr Infinity infinity() { return Infinity::spreads; }
  TW_MEMBER static constexpr ScaledMma scaled_mma() { return ScaledMma::none; }
  TW_CONSTANTS(bool, kCodeLanes = false);
  using Element = void;
  using TileElement = void;
  template <class>
  TW_MEMBER static constexpr bool tiles_for() {
    return false;
  }

  // Bits of the table's floats: -1, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0,
  // 0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.
  TW_MEMBER static constexpr u32 table(int code) {
    constexpr u32 kBitsOf[16] = {0xbf800000u, 0xbf3239b1u, 0xbf066b30u, 0xbeca32a0u, 0xbe91a24du, 0xbe3d353fu,
                                 0xbdba7871u, 0x00000000u, 0x3da2faffu, 0x3e24cae3u, 0x3e7c04ddu, 0x3ead033au,
                                 0x3ee1a4b8u, 0x3f1007abu, 0x3f3913b3u, 0x3f800000u};
    return kBitsOf[code];
  }
  // Between code i and the next, as bitsandbytes writes it: -0.8480964004993439, -0.6106329262256622,
  // -0.4599952697753906, -0.33967943489551544, -0.23460740596055984, -0.13791173323988914, -0.045525018125772476,
  // 0.03979014977812767, 0.1202552504837513, 0.2035212516784668, 0.2920137718319893, 0.3893125355243683,
  // 0.5016634166240692, 0.6427869200706482, 0.8614784181118011. In bits, because some are halfway between two floats
  // but for their last digit, which a compiler that reads literals in double precision loses.
  TW_MEMBER static constexpr u32 midpoint(int i) {
    constexpr u32 kBitsOf[15] = {0xbf591cd9u, 0xbf1c5270u, 0xbeeb8480u, 0xbeadea76u, 0xbe703cecu,
                                 0xbe0d38bcu, 0xbd3a7871u, 0x3d22faffu, 0x3df64863u, 0x3e5067e0u,
                                 0x3e9582d4u, 0x3ec753f9u, 0x3f006d03u, 0x3f248dafu, 0x3f5c89d9u};
    return kBitsOf[i];
  }
  TW_MEMBER static u32 code(float scaled) {
    u32 above = 0;
    TW_UNROLL for (int i = 0; i < 15; ++i) above += scaled > bits_as<float>(midpoint(i)) ? 1u : 0u;
    return above;
  }

  TW_MEMBER static void encode(const float* x, u8* data, u8* scales, float, int) {
    float absmax = 0.0f;
    for (int i = 0; i < kBlock; ++i) absmax = max_number(absmax, abs_f(x[i]));
    TW_COPY(scales, &absmax, 4);
    const float inverse = div_rn(1.0f, absmax);
    for (int i = 0; i < kDataBytes; ++i)
      data[i] = static_cast<u8>((code(mul_rn(x[2 * i], inverse)) << 4) | code(mul_rn(x[2 * i + 1], inverse)));
  }
  TW_MEMBER static float decode(const u8* data, const u8* scales, float, int i) {
    const u32 four = i % 2 ? data[i / 2] & 15u : data[i / 2] >> 4;
    u32 bits = 0;
    TW_UNROLL for (int byte = 0; byte < 4; ++byte) bits |= (looked_up<F32>(byte, four) & 255u) << (8 * byte);
    float absmax;
    TW_COPY(&absmax, scales, 4);
    return mul_rn(bits_as<float>(bits), absmax);
  }

  TW_MEMBER static constexpr bool lanes_ok(int e) { return e == 4 || e == 8 || e == 16 || e == 32; }
  template <int E>
  TW_MEMBER static void encode_lanes(const float (&v)[E], int lane, u8* data, u8* scales, float, int) {
    const float absmax = largest_of<kBlock / E>(v), inverse = div_rn(1.0f, absmax);
    if (lane == 0) *reinterpret_cast<float*>(scales) = absmax;
    TW_UNROLL for (int i = 0; i < E; i += 4) {
      u32 codes[4];
      TW_UNROLL for (int j = 0; j < 4; ++j) codes[j] = code(mul_rn(v[i + j], inverse));
      *reinterpret_cast<u16*>(data + (E * lane + i) / 2) =
          static_cast<u16>((codes[0] << 4) | codes[1] | (codes[2] << 12) | (codes[3] << 8));
    }
  }

  // The table in three types: bits of an entry. Rounded to 16 bits they are within rounding<T>() of it, relatively.
  struct F32 {
    TW_MEMBER static constexpr u32 bits(int code) { return table(code); }
  };
  template <class T>
  struct Half {
    TW_MEMBER static constexpr u32 bits(int code) {
      const u32 v = table(code), magnitude = v & 0x7fffffffu;
      if (magnitude == 0) return 0;
      // A half's exponent is 112 less, and it has three bits of mantissa more.
      constexpr bool kHalf = same<T, tw::f16>();
      const u32 wide = kHalf ? magnitude - (112u << 23) : magnitude, drop = kHalf ? 13 : 16;
      return ((wide + (1u << (drop - 1)) - 1u + ((wide >> drop) & 1u)) >> drop) | ((v >> 16) & 0x8000u);
    }
  };
  template <class T>
  TW_MEMBER static constexpr double rounding() {
    return same<T, tw::f16>() ? 3.26e-4 : 3.12e-3;
  }
  // Byte `byte` of the entries that the lower four nibbles of `codes` name, as the bytes of a word.
  template <class Entry>
  TW_MEMBER static u32 looked_up(int byte, u32 codes) {
    const auto word = [byte](int first) {
      u32 w = 0;
      TW_UNROLL for (int i = 0; i < 4; ++i) w |= ((Entry::bits(first + i) >> (8 * byte)) & 255u) << (8 * i);
      return w;
    };
    const u32 index = codes & 0x7777u, upper = prmt(0x0000ff00u, 0u, (codes >> 3) & 0x1111u);
    return (prmt(word(0), word(4), index) & ~upper) | (prmt(word(8), word(12), index) & upper);
  }

  // A group is half a block: as much as a thread loads at once.
  TW_CONSTANTS(int, kGroup = 32);
  TW_CONSTANTS(bool, kCodes = false, kOffset = false);
  TW_MEMBER static constexpr bool unit_ok(int e) { return e == 32; }
  template <int E>
  struct Unit {
    u32 raw[E / 8];
    float absmax;
    // Codes i to i + 3 as nibbles in order; i a multiple of 4.
    TW_MEMBER u32 codes(int i) const {
      const u32 swapped = ((raw[i / 8] >> 4) & 0x0f0f0f0fu) | ((raw[i / 8] & 0x0f0f0f0fu) << 4);
      return swapped >> (4 * (i % 8));
    }
  };
  template <int E>
  TW_MEMBER static void load(Unit<E>& u, const u8* data, const u8* scales, i64 k) {
    load_words<E / 2, 16>(u.raw, data + k / 2);
    u32 word[1];
    load_words<4, 4>(word, scales + k / kBlock * kScaleBytes);
    u.absmax = bits_as<float>(word[0]);
  }
  template <int E>
  TW_MEMBER static void values(const Unit<E>& u, int, float (&v)[E]) {
    TW_UNROLL for (int i = 0; i < E; i += 4) {
      const u32 codes = u.codes(i);
      u32 b[4];
      TW_UNROLL for (int byte = 0; byte < 4; ++byte) b[byte] = looked_up<F32>(byte, codes);
      TW_UNROLL for (int j = 0; j < 4; ++j) {
        const u32 pair = j < 2 ? 0x5140u : 0x7362u;
        v[i + j] = mul_rn(
            bits_as<float>(prmt(prmt(b[0], b[1], pair), prmt(b[2], b[3], pair), j % 2 ? 0x7632u : 0x5410u)), u.absmax);
      }
    }
  }

  template <int BK>
  TW_MEMBER static constexpr int raw_bytes() {
    return BK / 2;
  }
  TW_MEMBER static i64 raw_offset(i64 k0, int byte) { return k0 / 2 + byte; }
  template <int E>
  TW_MEMBER static void load_raw(Unit<E>& u, const u8* raw, const u8* scales, int k, i64) {
    load_shared_words<E / 2, 16>(u.raw, raw + k / 2);
    u.absmax = *reinterpret_cast<const float*>(scales + k / kBlock * kScaleBytes);
  }
  template <class T, int E>
  TW_MEMBER static void pairs(const Unit<E>& u, int g, u32 (&of)[kGroup / 2], float& scale) {
    TW_UNROLL for (int i = 0; i < kGroup; i += 4) {
      const u32 codes = u.codes(kGroup * g + i);
      const u32 low = looked_up<Half<T>>(0, codes), high = looked_up<Half<T>>(1, codes);
      of[i / 2] = prmt(low, high, 0x5140u), of[i / 2 + 1] = prmt(low, high, 0x7362u);
    }
    scale = u.absmax;
  }
};

}  // namespace tw::fmt
