// SPDX-License-Identifier: Apache-2.0
// Tests what a format makes of values that are no ordinary numbers, as elements and as scales.
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

TEST_CASE("special elements when encoding", "[formats]") {
  const auto with = [](float special) {
    auto x = gauss(256, 1.0f, 9);
    x[40] = special;
    return x;
  };
  // A NaN has no part in a scale: the block's other elements are as without it. It is itself lost in integer codes
  // (code 0), becomes +6 in E2M1, as in hardware, and survives in floats.
  for (const char* name :
       {"q4_0",          "q8_0",     "nvfp4", "e4m3_row",   "int4_g32",   "uint4_g64",   "int4_row", "int8_row",
        "int8_asym_row", "e2m1_row", "mxfp4", "ggml_mxfp4", "ggml_nvfp4", "q4_1",        "q5_0",     "q5_1",
        "q2_k",          "q3_k",     "q5_k",  "q6_k",       "nf4",        "ternary_row", "sign_row", "signbit_row"}) {
    const Format f = Format::parse(name);
    auto a = round_trip(f, with(kNan), 256), b = round_trip(f, with(0.0f), 256);
    a[40] = b[40] = 0.0f;
    INFO(name);
    CHECK(first_difference(a, b) == -1);
  }
  CHECK(round_trip(Format::parse("q8_0"), with(kNan), 256)[40] == 0.0f);
  CHECK(round_trip(Format::parse("ggml_mxfp4"), with(kNan), 256)[40] == 0.0f);
  CHECK(round_trip(Format::parse("ggml_nvfp4"), with(kNan), 256)[40] == 0.0f);
  CHECK(round_trip(Format::parse("nvfp4"), with(kNan), 256)[40] > 0.0f);
  CHECK(std::isnan(round_trip(Format::parse("e4m3_row"), with(kNan), 256)[40]));
  // An infinity makes an infinite scale: its block (or row) decodes to NaN or an infinity, never to a finite number.
  for (const char* name :
       {"q4_0",          "q8_0",     "q8_1",  "e4m3_row",    "int4_g32", "uint4_g32",  "int4_row", "int8_row",
        "int8_asym_row", "e2m1_row", "mxfp4", "q4_1",        "q5_0",     "q5_1",       "q2_k",     "q3_k",
        "q5_k",          "q6_k",     "nf4",   "ternary_row", "sign_row", "signbit_row"}) {
    const Format f = Format::parse(name);
    const auto y = round_trip(f, with(kInf), 256);
    INFO(name);
    for (std::size_t i = 32; i < 64; ++i) CHECK(!std::isfinite(y[i]));
  }
  // Not so in NVFP4, whose scales end at 448: the infinity is the largest number there is.
  CHECK(round_trip(Format::parse("nvfp4"), with(-kInf), 256)[40] == -6.0f * 448.0f);
  CHECK(round_trip(Format::parse("ggml_nvfp4"), with(-kInf), 256)[40] == -6.0f * 448.0f);
  CHECK(round_trip(Format::parse("ggml_mxfp4"), with(kInf), 256)[40] == std::ldexp(6.0f, 125));
  // Too small for the scale: zero, not NaN.
  for (const char* name :
       {"q4_0",          "q8_0",     "q8_1",  "e4m3_row",    "int4_g32", "uint4_g32",  "int4_row", "int8_row",
        "int8_asym_row", "e2m1_row", "mxfp4", "q4_1",        "q5_0",     "q5_1",       "q2_k",     "q3_k",
        "q5_k",          "q6_k",     "nf4",   "ternary_row", "sign_row", "signbit_row"}) {
    auto x = std::vector<float>(256, 1e-44f);
    x[3] = 0.0f;
    for (float v : round_trip(Format::parse(name), x, 256)) CHECK(std::fabs(v) <= 1e-40f);
  }
}

TEST_CASE("special scales when decoding: they propagate as IEEE arithmetic says", "[formats]") {
  const auto with_half = [](const char* name, std::uint16_t bits) {
    const Format f = Format::parse(name);
    Encoded e = encode(f, gauss(256, 1.0f, 2), 256);
    tw::fmt::write16(e.data.data(), bits);
    return decode(f, e, 256, 256);
  };
  for (const char* name : {"q4_0", "q8_0", "q8_1", "q4_k"}) {
    INFO(name);
    const std::size_t block = std::string(name) == "q4_k" ? 256 : 32;
    const auto nan = with_half(name, 0x7e00), inf = with_half(name, 0x7c00), tiny = with_half(name, 0x0001);
    CHECK(std::all_of(nan.begin(), nan.begin() + static_cast<std::ptrdiff_t>(block),
                      [](float v) { return std::isnan(v); }));
    CHECK(std::none_of(inf.begin(), inf.begin() + static_cast<std::ptrdiff_t>(block),
                       [](float v) { return std::isfinite(v); }));
    if (block == 32) {
      const auto zero = with_half(name, 0x8000);
      CHECK(std::all_of(zero.begin(), zero.begin() + 32, [](float v) { return v == 0.0f; }));
      for (std::size_t i = 0; i < 32; ++i)
        CHECK(tiny[i] == std::nearbyint(tiny[i] * 16777216.0f) / 16777216.0f);  // codes of 2^-24
    }
  }
  const Format mx = Format::parse("mxfp4");
  Encoded nan_scale = encode(mx, gauss(64, 1.0f, 2), 64);
  nan_scale.scales[1] = 255;
  const auto half = decode(mx, nan_scale, 64, 64);
  for (std::size_t i = 0; i < 64; ++i) CHECK(std::isnan(half[i]) == (i >= 32));
  const Format fp4 = Format::parse("nvfp4");
  const auto with_e4m3 = [&](u8 scale, float global) {
    Encoded e = encode(fp4, gauss(16, 1.0f, 2), 16);
    e.scales[0] = scale;
    e.global = global;
    return decode(fp4, e, 16, 16);
  };
  for (float v : with_e4m3(0x7f, 1.0f)) CHECK(std::isnan(v));
  for (float v : with_e4m3(0xff, 1.0f)) CHECK(std::isnan(v));
  for (float v : with_e4m3(0x38, kNan)) CHECK(std::isnan(v));
  for (float v : with_e4m3(0x00, 1.0f)) CHECK(v == 0.0f);
  const auto plus = with_e4m3(0x38, 1.0f), minus = with_e4m3(0xb8, 1.0f), least = with_e4m3(0x01, 1.0f);
  for (std::size_t i = 0; i < 16; ++i) {
    CHECK(minus[i] == -plus[i]);
    CHECK(least[i] == plus[i] * 0.001953125f);
  }
  const Format fp8 = Format::parse("e4m3_row");
  Encoded e = encode(fp8, gauss(64, 1.0f, 2), 32);
  std::memcpy(e.scales.data(), &kNan, 4);
  const auto y = decode(fp8, e, 64, 32);
  CHECK(std::all_of(y.begin(), y.begin() + 32, [](float v) { return std::isnan(v); }));
  CHECK(std::none_of(y.begin() + 32, y.end(), [](float v) { return std::isnan(v); }));
}
