// SPDX-License-Identifier: Apache-2.0
// A test of the tests: every format with a mistake in its fast path, which format_checks.h must notice. What it misses
// in one of these it would miss in a new format.
#include <cstring>

#include "format_checks.h"
#include "format_includes.inc"
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

TEST_CASE("a mistake in any format's load_raw, load or group is noticed", "[formats]") {
#define FORMAT(NAME) check_mutants<tw::fmt::NAME>(#NAME);
#include "format_list.inc"
#undef FORMAT
}
