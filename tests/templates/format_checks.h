// SPDX-License-Identifier: Apache-2.0
// A format's fast path against its scalar decoder, for any type with a format's members: the library's formats, and in
// formats_mutants_test.cpp copies of them with a mistake. Each check returns the first difference in words, "" if there
// is none.
#pragma once

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "formats/shared/format.cuh"

namespace format_checks {

using tw::i64;
using tw::u32;
using tw::u8;

// A row of any bytes.
template <class F>
struct Row {
  static constexpr i64 kColumns = 2048;
  std::vector<u8> data, scales;

  explicit Row(unsigned seed) : data(bytes(F::kDataBytes)), scales(bytes(F::kScaleBytes)) {
    std::mt19937 random(seed);
    for (u8& b : data) b = static_cast<u8>(random());
    for (u8& b : scales) b = static_cast<u8>(random());
  }
  float at(i64 k) const {
    const i64 block = k / F::kBlock;
    return F::decode(data.data() + block * F::kDataBytes, scales.data() + block * F::kScaleBytes,
                     tw::fmt::row_item<F>{1.0f}, static_cast<int>(k % F::kBlock));
  }

 private:
  static std::size_t bytes(int per_block) { return static_cast<std::size_t>(kColumns / F::kBlock * per_block); }
};

// Codes are integers: a zero has no sign in them. Every NaN is the same.
inline bool alike(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::memcmp(&a, &b, 4) == 0 || (a == 0.0f && b == 0.0f);
}

// The elements of a unit as a kernel takes them, against those of the row from column `at` on.
template <class F, int E>
std::string unit_difference(const typename F::template Unit<E>& unit, const Row<F>& row, i64 at) {
  float v[E];
  if constexpr (F::kCodes) {
    for (int g = 0; g < E / F::kGroup; ++g) {
      u32 codes[F::kGroup / 4];
      float scale, offset;
      F::template group<E>(unit, g, codes, scale, offset);
      if (!F::kOffset && offset != 0.0f) return "an offset, which kOffset denies";
      for (int i = 0; i < F::kGroup; ++i) {
        const float product = scale * tw::fmt::code_at(codes, i);
        v[g * F::kGroup + i] = F::kOffset ? product - offset : product;
      }
    }
  } else {
    F::template values<E>(unit, 0, v);
  }
  for (int i = 0; i < E; ++i)
    if (const float want = row.at(at + i); !alike(v[i], want))
      return "E " + std::to_string(E) + ", element " + std::to_string(at + i) + ": " + std::to_string(v[i]) +
             " instead of " + std::to_string(want);
  return {};
}

template <class F, int E>
std::string load_difference() {
  if constexpr (F::unit_ok(E)) {
    const Row<F> row(E);
    for (i64 at = 0; at < Row<F>::kColumns; at += E) {
      typename F::template Unit<E> unit;
      F::template load<E>(unit, row.data.data(), row.scales.data(), at);
      if (std::string difference = unit_difference<F, E>(unit, row, at); !difference.empty()) return difference;
    }
  }
  return {};
}
// load() and group() or values().
template <class F>
std::string load_difference() {
  for (const std::string& difference : {load_difference<F, 1>(), load_difference<F, 2>(), load_difference<F, 4>(),
                                        load_difference<F, 8>(), load_difference<F, 16>(), load_difference<F, 32>(),
                                        load_difference<F, 64>(), load_difference<F, 128>(), load_difference<F, 256>()})
    if (!difference.empty()) return "load: " + difference;
  return {};
}

// A stretch of BK columns as the mma family copies it (operations/gemm/cuda/mma/staging.cuh): raw_bytes() of a row's
// data, its scales behind those of all rows.
template <class F, int BK, int E>
std::string raw_difference() {
  if constexpr (F::unit_ok(E)) {
    constexpr int kBytes = F::template raw_bytes<BK>();
    if (kBytes > 1 << 15) return {};  // no such stretch (formats/shared/int4.cuh)
    const Row<F> row(BK + E);
    struct alignas(16) Piece {
      u8 bytes[16];
    };
    for (i64 k0 = 0; k0 < Row<F>::kColumns; k0 += BK) {
      std::vector<Piece> data_pieces((kBytes + 15) / 16);
      u8* data = data_pieces[0].bytes;
      for (int byte = 0; byte < kBytes; ++byte) {
        const i64 from = F::raw_offset(k0, byte);
        if (from < 0 || from >= static_cast<i64>(row.data.size()))
          return "raw_offset(" + std::to_string(k0) + ", " + std::to_string(byte) + ") is outside the row";
        data[byte] = row.data[static_cast<std::size_t>(from)];
      }
      constexpr int kScaleBytes = F::kScaleBytes ? BK / F::kBlock * F::kScaleBytes : 0;
      std::vector<Piece> scales((kScaleBytes + 15) / 16 + 1);
      if constexpr (kScaleBytes > 0)
        std::memcpy(scales[0].bytes, &row.scales[static_cast<std::size_t>(k0 / F::kBlock * F::kScaleBytes)],
                    kScaleBytes);
      for (int k = 0; k < BK; k += E) {
        typename F::template Unit<E> unit;
        std::memset(static_cast<void*>(&unit), 0x5a, sizeof(unit));
        F::template load_raw<E>(unit, data, scales[0].bytes, k, k0);
        if (std::string difference = unit_difference<F, E>(unit, row, k0 + k); !difference.empty())
          return "BK " + std::to_string(BK) + ", " + difference;
      }
    }
  }
  return {};
}
// load_raw(), raw_bytes() and raw_offset(), by the units that the mma family unpacks.
template <class F>
std::string raw_difference() {
  if constexpr (F::kCodes || tw::fmt::is_table<F>()) {
    std::string differences[4] = {raw_difference<F, 64, 64>(), raw_difference<F, 128, 64>(), {}, {}};
    if constexpr (F::kBlock <= 128)
      differences[2] = raw_difference<F, 64, 32>(), differences[3] = raw_difference<F, 128, 32>();
    for (const std::string& difference : differences)
      if (!difference.empty()) return "load_raw: " + difference;
  }
  return {};
}

// A table's entries as pairs of T, times their scale, against the row's elements: as near as rounding<T>() says, and
// not twice as near.
template <class F, class T>
std::string pairs_difference() {
  constexpr int kUnit = F::kGroup;
  const Row<F> row(kUnit);
  double worst = 0;
  for (i64 at = 0; at < Row<F>::kColumns; at += kUnit) {
    typename F::template Unit<kUnit> unit;
    F::template load<kUnit>(unit, row.data.data(), row.scales.data(), at);
    u32 pairs[kUnit / 2];
    float scale;
    F::template pairs<T>(unit, 0, pairs, scale);
    for (int i = 0; i < kUnit; ++i) {
      const double want = row.at(at + i);
      const double entry = i % 2 ? tw::high_half<T>(pairs[i / 2]) : tw::low_half<T>(pairs[i / 2]);
      if (!std::isfinite(want) || std::fabs(want) < 1e-30) continue;
      worst = std::max(worst, std::fabs(entry * scale - want) / std::fabs(want));
      if (worst > F::template rounding<T>() + 6e-8)
        return "element " + std::to_string(at + i) + ": " + std::to_string(entry) + " times " + std::to_string(scale) +
               " instead of " + std::to_string(want);
    }
  }
  return worst > 0.5 * F::template rounding<T>() ? "" : "errors are half of what rounding() says at most";
}

}  // namespace format_checks
