// SPDX-License-Identifier: Apache-2.0
// A test of the tests: formats with a mistake in their fast path, which format_checks.h must notice. What it misses in
// one of these it would miss in a new format. One format for each way to lay blocks out.
#include <cstring>

#include "format_checks.h"
#include "formats/ggml_mxfp4.cuh"
#include "formats/ggml_nvfp4.cuh"
#include "formats/int3_g64.cuh"
#include "formats/iq3_xxs.cuh"
#include "formats/mxfp8.cuh"
#include "formats/nf4.cuh"
#include "formats/nvfp4.cuh"
#include "formats/q1_0.cuh"
#include "formats/q2_k.cuh"
#include "formats/q3_k.cuh"
#include "formats/q4_0.cuh"
#include "formats/q4_k.cuh"
#include "formats/q5_1.cuh"
#include "formats/q8_1.cuh"
#include "formats/sign_row.cuh"
#include "formats/ternary_row.cuh"
#include "formats/tq1_0.cuh"
#include "formats/uint4_g128.cuh"
#include "support/catch.h"

using tw::i64;
using tw::u32;
using tw::u8;

namespace {

template <class F>
struct Forgets : F {  // load_raw reads nothing; zeros, because a format may shift by what a unit holds
  template <int E>
  static void load_raw(typename F::template Unit<E>& u, const u8*, const u8*, int, i64) {
    std::memset(static_cast<void*>(&u), 0, sizeof(u));
  }
};
template <class F>
struct FirstUnit : F {  // of a stretch, instead of the one at k
  template <int E>
  static void load_raw(typename F::template Unit<E>& u, const u8* raw, const u8* scales, int, i64 k0) {
    F::template load_raw<E>(u, raw, scales, 0, k0);
  }
};
template <class F>
struct FirstStretch : F {  // of a row, instead of the one at k0
  template <int E>
  static void load_raw(typename F::template Unit<E>& u, const u8* raw, const u8* scales, int k, i64) {
    F::template load_raw<E>(u, raw, scales, k, 0);
  }
};
template <class F>
struct OtherScales : F {  // a byte from the unit before, or after; at an address as aligned as the right one
  template <int E>
  static void load_raw(typename F::template Unit<E>& u, const u8* raw, const u8* scales, int k, i64 k0) {
    alignas(16) u8 others[16] = {};
    std::memcpy(others + (k ? 1 : 0), scales + (k ? 0 : 1), 15);
    F::template load_raw<E>(u, raw, others, k, k0);
  }
};
template <class F>
struct FlippedBit : F {  // the lowest of the first word
  template <int E>
  static void load_raw(typename F::template Unit<E>& u, const u8* raw, const u8* scales, int k, i64 k0) {
    F::template load_raw<E>(u, raw, scales, k, k0);
    u32 word;
    std::memcpy(&word, &u, sizeof(word));
    word ^= 1u;
    std::memcpy(static_cast<void*>(&u), &word, sizeof(word));
  }
};
template <class F>
struct ShiftedBytes : F {  // a stretch is copied from a byte too early
  static i64 raw_offset(i64 k0, int byte) { return F::raw_offset(k0, byte ? byte - 1 : 0); }
};
template <class F>
struct ShortCopy : F {  // its last byte is not copied
  static i64 raw_offset(i64 k0, int byte) {
    const bool last = byte + 1 == F::template raw_bytes<64>() || byte + 1 == F::template raw_bytes<128>();
    return F::raw_offset(k0, last ? 0 : byte);
  }
};
template <class F>
struct FirstLoad : F {  // of a row
  template <int E>
  static void load(typename F::template Unit<E>& u, const u8* data, const u8* scales, i64) {
    F::template load<E>(u, data, scales, 0);
  }
};
template <class F>
struct OtherScale : F {
  template <int E>
  static void group(const typename F::template Unit<E>& u, int g, u32 (&codes)[F::kGroup / 4], float& scale, float& o) {
    F::template group<E>(u, g, codes, scale, o);
    scale *= 1.0009765625f;
  }
};
template <class F>
struct SwappedCodes : F {  // the first two words of a group
  template <int E>
  static void group(const typename F::template Unit<E>& u, int g, u32 (&codes)[F::kGroup / 4], float& scale, float& o) {
    F::template group<E>(u, g, codes, scale, o);
    const u32 first = codes[0];
    codes[0] = codes[1], codes[1] = first;
  }
};
template <class F>
struct NoOffset : F {
  template <int E>
  static void group(const typename F::template Unit<E>& u, int g, u32 (&codes)[F::kGroup / 4], float& scale, float& o) {
    F::template group<E>(u, g, codes, scale, o);
    o = 0.0f;
  }
};

template <class F>
struct OtherEntry : F {  // of a table, by a unit in its last place
  template <class T, int E>
  static void pairs(const typename F::template Unit<E>& u, int g, u32 (&of)[F::kGroup / 2], float& scale) {
    F::template pairs<T>(u, g, of, scale);
    for (u32& two : of) two += two & 0x7fffu ? 1u : 0u;
  }
};

template <class F>
void check_mutants(const char* name) {
  if constexpr (F::kCodes) {
    INFO(name);
    using namespace format_checks;
    CHECK(raw_difference<Forgets<F>>() != "");
    CHECK(raw_difference<FirstUnit<F>>() != "");
    if constexpr (F::kBlock > 128) CHECK(raw_difference<FirstStretch<F>>() != "");  // a unit knows its place in a block
    if constexpr (F::kScaleBytes > 0) CHECK(raw_difference<OtherScales<F>>() != "");
    CHECK(raw_difference<FlippedBit<F>>() != "");
    CHECK(raw_difference<ShiftedBytes<F>>() != "");
    CHECK(raw_difference<ShortCopy<F>>() != "");
    CHECK(load_difference<FirstLoad<F>>() != "");
    CHECK(load_difference<OtherScale<F>>() != "");
    CHECK(load_difference<SwappedCodes<F>>() != "");
    if constexpr (F::kOffset) CHECK(load_difference<NoOffset<F>>() != "");
  }
  if constexpr (tw::fmt::is_table<F>()) {
    INFO(name);
    using namespace format_checks;
    CHECK(raw_difference<Forgets<F>>() != "");
    CHECK(raw_difference<FirstUnit<F>>() != "");
    CHECK(raw_difference<OtherScales<F>>() != "");
    CHECK(raw_difference<ShortCopy<F>>() != "");
    CHECK(load_difference<FirstLoad<F>>() != "");
    CHECK((pairs_difference<OtherEntry<F>, tw::f16>()) != "");
    CHECK((pairs_difference<OtherEntry<F>, tw::bf16>()) != "");
  }
}

}  // namespace

TEST_CASE("a mistake in a format's load_raw, load or group is noticed", "[formats]") {
  check_mutants<tw::fmt::q4_0>("q4_0");
  check_mutants<tw::fmt::q5_1>("q5_1");
  check_mutants<tw::fmt::q8_1>("q8_1");
  check_mutants<tw::fmt::q2_k>("q2_k");
  check_mutants<tw::fmt::q3_k>("q3_k");
  check_mutants<tw::fmt::q4_k>("q4_k");
  check_mutants<tw::fmt::iq3_xxs>("iq3_xxs");
  check_mutants<tw::fmt::tq1_0>("tq1_0");
  check_mutants<tw::fmt::q1_0>("q1_0");
  check_mutants<tw::fmt::ggml_mxfp4>("ggml_mxfp4");
  check_mutants<tw::fmt::ggml_nvfp4>("ggml_nvfp4");
  check_mutants<tw::fmt::int3_g64>("int3_g64");
  check_mutants<tw::fmt::uint4_g128>("uint4_g128");
  check_mutants<tw::fmt::nvfp4>("nvfp4");
  check_mutants<tw::fmt::mxfp8>("mxfp8");
  check_mutants<tw::fmt::nf4>("nf4");
  check_mutants<tw::fmt::ternary_row>("ternary_row");
  check_mutants<tw::fmt::sign_row>("sign_row");
}
