// SPDX-License-Identifier: Apache-2.0
// NVFP4 in the layout of NVIDIA Model Optimizer (modelopt qtensor/nvfp4_tensor.py): 16 elements share one E4M3 scale;
// stream `data` packs two E2M1 codes a byte, even element low; stream `scales` is one byte per 16; `global` is one
// float G. value = code * (scale * G). Encoder: G = amax / (6 * 448); scale = e4m3(clamp(block amax / (6 G), 2^-9,
// 448)), 1 for a block of zeros; code = E2M1, nearest even, of x / (scale G). A problem with global=div passes 1 / G
// instead, as compressed-tensors stores it.
#pragma once
#include "formats/shared/e2m1.cuh"
#include "formats/shared/format.cuh"
#include "formats/shared/tile_fragments.cuh"

namespace tw::fmt {

struct nvfp4 {
  static constexpr const char* title() { return "NVFP4: E2M1 codes, an E4M3 scale per 16, a float per tensor"; }
  static constexpr const char* source() { return "NVIDIA Model Optimizer (qtensor/nvfp4_tensor.py)"; }
  // A scale rounds up by a sixteenth, and 5 of its steps become 4 or 6; below 2^-6 scales are multiples of 2^-9.
  static constexpr Error error(int) {
    return {0, 17.0 / 96, 0, 6.0 / 1024 / 2688, 2688 * least_float(), largest_scaled()};
  }
  TW_CONSTANTS(bool, kKeepsNan = false);
  TW_MEMBER static constexpr Infinity infinity() { return Infinity::saturates; }
  TW_CONSTANTS(bool, kCodeLanes = false);
  TW_MEMBER static constexpr CodeSteps steps(int) { return e2m1_steps(); }
  TW_CONSTANTS(int, kScaleRows = 1, kErrorColumns = 16);
  using RowItem = float;
  using Element = void;
  using TileElement = void;
  TW_CONSTANTS(int, kLayout = 2, kBlock = 16, kBits = 4);
  TW_CONSTANTS(int, kDataBytes = 8, kScaleBytes = 1);
  TW_CONSTANTS(bool, kRowScale = false, kGlobal = true, kImportance = false);
  TW_CONSTANTS(int, kEncoders = 1);
  static constexpr const char* encoder_name(int) { return "modelopt"; }
  TW_MEMBER static constexpr ScaledMma scaled_mma() { return ScaledMma::nvf4; }
  TW_MEMBER static float global_scale(float amax) { return amax > 0.0f ? div_rn(amax, 2688.0f) : 1.0f; }

  TW_MEMBER static void encode(const float* x, u8* data, u8* scales, float global, int) {
    float largest = 0.0f;
    for (int i = 0; i < 16; ++i) largest = max2(largest, abs_f(x[i]));
    float s = div_rn(largest, mul_rn(6.0f, global));
    s = largest == 0.0f ? 1.0f : min2(max2(s, 0.001953125f), 448.0f);
    scales[0] = f32_to_e4m3(s);
    const float step = mul_rn(e4m3_to_f32(scales[0]), global);
    for (int i = 0; i < 8; ++i)
      data[i] = static_cast<u8>(f32_to_e2m1(div_rn(x[2 * i], step)) | (f32_to_e2m1(div_rn(x[2 * i + 1], step)) << 4));
  }
  TW_MEMBER static float decode(const u8* data, const u8* scales, float global, int i) {
    const u32 code = i % 2 ? data[i / 2] >> 4 : data[i / 2] & 15u;
    return mul_rn(e2m1_to_f32(code), mul_rn(e4m3_to_f32(scales[0]), global));
  }

  TW_MEMBER static constexpr bool lanes_ok(int e) { return e == 4 || e == 8 || e == 16; }
  template <int E>
  TW_MEMBER static void encode_lanes(const float (&v)[E], int lane, u8* data, u8* scales, float global, int) {
    const float own = largest_or_nan(v), largest = largest_of_lanes<16 / E>(largest_number(v, own));
    float s = div_rn(largest, mul_rn(6.0f, global));
    s = largest == 0.0f ? 1.0f : min2(max2(s, 0.001953125f), 448.0f);
    const u8 stored = f32_to_e4m3(s);
    if (lane == 0) scales[0] = stored;
    u32 words[ceil_div(E, 8)];
    e2m1_codes(words, v, Divider(mul_rn(e4m3_to_f32(stored), global), largest), own);
    if constexpr (E == 4)
      reinterpret_cast<u16*>(data)[lane] = static_cast<u16>(words[0]);
    else if constexpr (E == 8)
      reinterpret_cast<u32*>(data)[lane] = words[0];
    else
      *reinterpret_cast<u32x2*>(data) = {words[0], words[1]};
  }

  TW_CONSTANTS(int, kGroup = 16);
  TW_CONSTANTS(bool, kCodes = true, kOffset = false);
  TW_MEMBER static constexpr bool unit_ok(int e) { return e == 16 || e == 32 || e == 64 || e == 128 || e == 256; }
  template <int E>
  struct Unit {
    u32 raw[E / 8], scales[ceil_div(E, 64)];
  };
  template <int E>
  TW_MEMBER static void load(Unit<E>& u, const u8* data, const u8* scales, i64 k) {
    load_words<E / 2, run_alignment(E / 2)>(u.raw, data + k / 2);
    if constexpr (E == 16)
      u.scales[0] = load_global1(scales + k / 16);
    else
      load_words<E / 16, run_alignment(E / 16)>(u.scales, scales + k / 16);
  }
  template <int BK>
  TW_MEMBER static constexpr int raw_bytes() {
    return BK / 2;
  }
  TW_MEMBER static i64 raw_offset(i64 k0, int byte) { return k0 / 2 + byte; }
  template <int E>
  TW_MEMBER static void load_raw(Unit<E>& u, const u8* raw, const u8* scales, int k, i64) {
    load_shared_words<E / 2, run_alignment(E / 2)>(u.raw, raw + k / 2);
    if constexpr (E == 16)
      u.scales[0] = scales[k / 16];
    else
      load_shared_words<E / 16, run_alignment(E / 16)>(u.scales, scales + k / 16);
  }
  template <int E>
  TW_MEMBER static void group(const Unit<E>& u, int g, u32 (&codes)[4], float& scale, float& offset) {
    TW_UNROLL for (int i = 0; i < 2; ++i) e2m1_bytes(u.raw[2 * g + i], codes[2 * i], codes[2 * i + 1]);
    scale = e4m3_to_f32(static_cast<u8>(u.scales[g / 4] >> (8 * (g % 4)))) * 0.5f;
    offset = 0.0f;
  }

  // Exact. A code's fields moved to those of an f16 are 2^-14 of its value, so that products lack 2^14 and are whole
  // multiples of 2^-24, which an f16 holds; as a bf16 2^-126 of it, and a scale times 2^118, so that they lack 2^8.
  template <class Element>
  TW_MEMBER static constexpr bool tiles_for() {
    return same<Element, tw::f16>() || same<Element, tw::bf16>();
  }
  struct TileBase {
    TW_CONSTANTS(int, kBits = 4, kScaleK = 64, kScaleBytes = 4);
    TW_CONSTANTS(bool, kOffset = false);
    TW_MEMBER static constexpr double rounding() { return 0; }
    TW_MEMBER static u32 code(const u8* block, int i) { return (block[i / 2] >> (4 * (i % 2))) & 15u; }
    TW_MEMBER static void put_code(u8* block, int i, u32 code) {
      block[i / 2] |= static_cast<u8>(code << (4 * (i % 2)));
    }
    TW_MEMBER static void put_scales(u8* out, const u8*, const u8* scales, i64 k) {
      for (int i = 0; i < 4; ++i) out[i] = scales[k / 16 + i];
    }
    TW_MEMBER static void take_scales(const u8* in, u8*, u8* scales, i64 k) {
      for (int i = 0; i < 4; ++i) scales[k / 16 + i] = in[i];
    }
  };
  struct AfterMmaTile : TileBase {
    using Place = E2m1Place<tw::bf16>;
    TW_CONSTANTS(int, kGroups = 4);
    TW_MEMBER static constexpr float factor() { return 1.0f; }
    TW_CONSTANTS(bool, kScaleAfterMma = true);
    struct Scales {
      u32 s[2][2];
    };  // [row][pair of groups]
    TW_MEMBER static Scales scales(const u8* chunk, int pair, int) {
      const u32x2 q = *reinterpret_cast<const u32x2*>(chunk + 8 * pair);
      const u32 words[2] = {q.x, q.y};
      Scales out;
      TW_UNROLL for (int i = 0; i < 4; ++i) out.s[i / 2][i % 2] =
          e4m3x2_to_f16x2(static_cast<u16>(words[i / 2] >> (16 * (i % 2))));
      return out;
    }
    TW_MEMBER static float row_scale(const Scales& s, int row, int step) {
      const u32 both = s.s[row][step / 2];
      return step % 2 ? high_half<tw::f16>(both) : low_half<tw::f16>(both);
    }
    template <int words>
    TW_MEMBER static void fragment(const u32 (&w)[words], int step, const Scales&, u32 (&a)[4]) {
      TW_UNROLL for (int r = 0; r < 4; ++r) a[r] = e2m1_values(w[step], r);
    }
  };
  // Two panels of the tile for f16 as one of E4M3, rounded to its three bits of mantissa. 2^-3 of a value, 336 at most,
  // is in range; where that is below 2^-6, steps are 2^-9. In a step of 32 columns a thread has four neighbouring ones
  // of every sixteen, the tile two pairs eight apart. So it reads the words of two threads, and of each the lower pairs
  // if its four columns are among the lower eight, else the upper ones.
  struct NarrowedTile : TileBase {
    using Place = E2m1Place<tw::f16>;
    TW_CONSTANTS(bool, kScaleAfterMma = false);
    TW_MEMBER static constexpr float factor() { return 8.0f; }
    TW_MEMBER static constexpr double rounding() { return 0.0625; }
    TW_MEMBER static constexpr double least() { return 0.0078125; }
    struct Scales {
      u32 rows[2];
    };
    TW_MEMBER static Scales scales(const u8* chunk, int pair, int) {
      const u32x2 q = *reinterpret_cast<const u32x2*>(chunk + 8 * pair);
      return {{q.x, q.y}};
    }
    // Sixteen columns of row `row`, group `group` of a panel: `first`, `second`: the words of two threads.
    TW_MEMBER static u32 narrowed(u32 first, u32 second, const Place::Move& move, const Scales& s, int row, int group) {
      constexpr u32 k2048 = 0x68006800u;  // the tile's 2^-14 becomes 2^-3
      const u32 scale = spread(e4m3x2_to_f16x2(static_cast<u16>(s.rows[row] >> (group / 2 * 16))), group % 2);
      const u32 low = f16x2_to_e4m3x2(mul_f16x2(mul_f16x2(move.pair(first), k2048), scale));
      const u32 high = f16x2_to_e4m3x2(mul_f16x2(mul_f16x2(move.pair(second), k2048), scale));
      return prmt(low, high, 0x5410u);
    }
  };
  template <class Element>
  struct Tile : TileBase {
    using Place = E2m1Place<Element>;
    using Narrowed = select<same<Element, tw::f16>(), NarrowedTile, void>;
    using AfterMma = AfterMmaForBf16<Element, AfterMmaTile, Tile>;
    TW_CONSTANTS(bool, kHalf = same<Element, tw::f16>());
    TW_MEMBER static constexpr float factor() { return kHalf ? 16384.0f : 256.0f; }
    TW_CONSTANTS(bool, kScaleAfterMma = false);
    struct Scales {
      u32 s[2][4];
    };  // [row][group], both halves alike
    TW_MEMBER static u32 scale_bf16(u32 word, int byte) {
      const float moved = e4m3_to_f32(static_cast<u8>(word >> (8 * byte))) * 3.3230699894622897e35f;
      return pack_bf16x2(moved, moved);
    }
    TW_MEMBER static Scales scales(const u8* chunk, int pair, int) {
      const u32x2 q = *reinterpret_cast<const u32x2*>(chunk + 8 * pair);
      const u32 words[2] = {q.x, q.y};
      Scales out;
      TW_UNROLL for (int r = 0; r < 2; ++r) TW_UNROLL for (int g = 0; g < 4; ++g) {
        if constexpr (kHalf)
          out.s[r][g] = spread(e4m3x2_to_f16x2(static_cast<u16>(words[r] >> (g / 2 * 16))), g % 2);
        else
          out.s[r][g] = scale_bf16(words[r], g);
      }
      return out;
    }
    template <int words>
    TW_MEMBER static void fragment(const u32 (&w)[words], int step, const Scales& scales, u32 (&a)[4]) {
      TW_UNROLL for (int r = 0; r < 4; ++r) {
        const u32 v = Place::pair(w[step], r);
        a[r] = kHalf ? mul_f16x2(v, scales.s[r % 2][step]) : fma2<tw::bf16>(v, scales.s[r % 2][step], kNegativeZeros);
      }
    }
  };
};

}  // namespace tw::fmt
