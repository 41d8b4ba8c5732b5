// SPDX-License-Identifier: Apache-2.0
// The fast path of every format that is weights, against its decoder.
#include <tilewright/error.h>
#include <tilewright/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "format_includes.inc"
#include "formats_test.h"
#include "support/catch.h"

using namespace formats_test;

namespace {

// Elements at .. at + E of a row, read as a GEMM kernel reads them.
template <class F, int E>
void read_unit(const std::vector<u8>& data, const std::vector<u8>& scales, tw::i64 at, float (&v)[E]) {
  typename F::template Unit<E> unit;
  F::load(unit, data.data(), scales.data(), at);
  if constexpr (F::kCodes) {
    for (int g = 0; g < E / F::kGroup; ++g) {
      u32 codes[F::kGroup / 4];
      float scale, offset;
      F::group(unit, g, codes, scale, offset);
      for (int i = 0; i < F::kGroup; ++i) {
        const float product = scale * tw::fmt::code_at(codes, i);
        v[g * F::kGroup + i] = F::kOffset ? product - offset : product;
      }
      if (!F::kOffset) CHECK(offset == 0.0f);
    }
  } else {
    F::values(unit, 0, v);
  }
}
template <class F, int E>
void check_unit(const char* name) {
  if constexpr (F::unit_ok(E)) {
    INFO(name << " E " << E);
    constexpr tw::i64 cols = 4096;
    std::mt19937 random(E);
    std::vector<u8> data(cols / F::kBlock * F::kDataBytes), scales(cols / F::kBlock * F::kScaleBytes);
    for (u8& b : data) b = static_cast<u8>(random());
    for (u8& b : scales) b = static_cast<u8>(random());
    tw::i64 wrong = -1;
    for (tw::i64 at = 0; at < cols; at += E) {
      float v[E];
      read_unit<F>(data, scales, at, v);
      for (int i = 0; i < E; ++i) {
        const tw::i64 b = (at + i) / F::kBlock;
        const float want = F::decode(data.data() + b * F::kDataBytes, scales.data() + b * F::kScaleBytes,
                                     tw::fmt::row_item<F>{1.0f}, static_cast<int>((at + i) % F::kBlock));
        // Codes are integers: a zero has no sign in them.
        if (!same(v[i], want) && !(v[i] == 0.0f && want == 0.0f)) wrong = at + i;
      }
    }
    CHECK(wrong == -1);
  }
}
template <class F>
int check_units(const char* name) {
  check_unit<F, 1>(name), check_unit<F, 2>(name), check_unit<F, 4>(name), check_unit<F, 8>(name),
      check_unit<F, 16>(name);
  check_unit<F, 32>(name), check_unit<F, 64>(name), check_unit<F, 128>(name), check_unit<F, 256>(name);
  int count = 0;
  for (int e = 1; e <= 256; e *= 2) count += F::unit_ok(e);
  return count;
}

}  // namespace

TEST_CASE("the fast path of weights equals the decoder", "[formats]") {
#define FORMAT(NAME) CHECK((check_units<tw::fmt::NAME>(#NAME) > 0) == (tw::fmt::NAME::kGroup > 0));
#include "format_list.inc"
#undef FORMAT
}

// The lossy way of NVFP4 weights to fp8 units: cast to FP8 rows at load, against activations in FP8 rows.
