// SPDX-License-Identifier: Apache-2.0
// Formats by name and size, and scalar codecs against their formulas restated in double precision. (Golden vectors:
// formats_golden_test.cpp; error bounds: formats_error_test.cpp.)
#include <tilewright/error.h>
#include <tilewright/format.h>
#include <tilewright/problem.h>

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
#include "support/refusal.h"

using namespace formats_test;

namespace {

int encoder_index(Format f, const std::string& name) {
  const auto& list = f.info().encoders;
  return static_cast<int>(std::find(list.begin(), list.end(), name) - list.begin());
}

// bitsandbytes/functional.py, get_4bit_type().
constexpr double kNf4[] = {-1.0,
                           -0.6961928009986877,
                           -0.5250730514526367,
                           -0.39491748809814453,
                           -0.28444138169288635,
                           -0.18477343022823334,
                           -0.09105003625154495,
                           0.0,
                           0.07958029955625534,
                           0.16093020141124725,
                           0.24611230194568634,
                           0.33791524171829224,
                           0.44070982933044434,
                           0.5626170039176941,
                           0.7229568362236023,
                           1.0};

}  // namespace

TEST_CASE("a format's name: all of them, and the one that may have been meant", "[formats]") {
  const auto allowed = [](const char* name) {
    const Error e = refusal([&] { (void)Format::parse(name); });
    CHECK(e.code() == ErrorCode::invalid_argument);
    CHECK(e.field() == "format");
    CHECK(e.value() == name);
    for (const Format f : Format::all())
      CHECK((e.allowed() + " ").find(" " + std::string(f.name())) != std::string::npos);
    return e.allowed();
  };
  const auto ends = [](const std::string& text, const std::string& end) { return text.ends_with(end); };
  CHECK(ends(allowed("F16"), "; did you mean f16?"));
  CHECK(ends(allowed("Q4_K"), "; did you mean q4_k?"));
  CHECK(ends(allowed("q4k"), "; did you mean q4_k?"));
  CHECK(ends(allowed("nvpf4"), "; did you mean nvfp4?"));
  CHECK(ends(allowed("uint4_g12"), "; did you mean uint4_g128?"));
  for (const char* nothing : {"", "gptq", "float", "zzzzzzzzzzzz"})
    CHECK(allowed(nothing).find("did you mean") == std::string::npos);
  CHECK(allowed(std::string(100000, 'q').c_str()).find("did you mean") == std::string::npos);
}

TEST_CASE("a stream that a format does not have takes no bytes", "[formats]") {
  for (const Format f : Format::all()) {
    INFO(f.name());
    const auto streams = static_cast<int>(f.info().streams.size());
    std::int64_t total = 0;
    for (int i = 0; i < streams; ++i) {
      CHECK(f.stream_bytes(i, 256, 512) > 0);
      total += f.stream_bytes(i, 256, 512);
    }
    CHECK(f.total_bytes(256, 512) == total);
    for (const int i : {-1, streams, streams + 1, 1000}) CHECK(f.stream_bytes(i, 256, 512) == 0);
    CHECK(f.stream_bytes(streams, INT64_MAX, INT64_MAX) == 0);
  }
}

TEST_CASE("plain formats keep what they can hold", "[formats]") {
  const std::vector<float> x = {0.0f, -0.0f, 1.0f, -2.5f, kInf, -kInf, kNan, 65504.0f};
  for (const char* name : {"f32", "f16"}) CHECK(first_difference(round_trip(Format::parse(name), x, 4), x) == -1);
  const std::vector<float> wide = {1e38f, -1.17549435e-38f, 1.0f + 1.0f / 256, 1.0f + 3.0f / 256};
  const auto bf16 = round_trip(Format::parse("bf16"), wide, 4);
  CHECK(bf16[0] == Approx(1e38).epsilon(1.0 / 256));
  CHECK(same(bf16[1], wide[1]));
  CHECK(bf16[2] == 1.0f);  // ties to even
  CHECK(bf16[3] == 1.0f + 4.0f / 256);
  // One byte, and integers: nearest even, saturating.
  const auto check = [&](const char* name, const std::vector<float>& from, const std::vector<float>& to) {
    INFO(name);
    CHECK(first_difference(round_trip(Format::parse(name), from, static_cast<std::int64_t>(from.size())), to) == -1);
  };
  check("e4m3", {448, 463.9f, kInf, -1e30f, 1.0625f, 1.1875f, 0.0009765625f, kNan, -0.0f},
        {448, 448, 448, -448, 1, 1.25f, 0, kNan, -0.0f});
  check("e5m2", {57344, 61440, kInf, -1e30f, 1.125f, 1.375f, 7.62939453125e-06f, 1.2e-5f, kNan, -0.0f},
        {57344, 57344, 57344, -57344, 1, 1.5f, 0, 1.52587890625e-05f, kNan, -0.0f});
  check("int8", {127.4f, 200, kInf, -128.5f, -kInf, 0.5f, 1.5f, -2.5f, kNan}, {127, 127, 127, -128, -128, 0, 2, -2, 0});
  check("int32", {16777216, 2.5f, -3.5f, 3e9f, -3e9f, kNan}, {16777216, 2, -4, 2147483648.0f, -2147483648.0f, 0});
  std::vector<u8> every(256);
  for (std::size_t i = 0; i < every.size(); ++i) every[i] = static_cast<u8>(i);
  const auto decoded = [&](const char* name) {
    std::vector<float> v(every.size());
    Format::parse(name).info().decode({every.data(), nullptr, nullptr}, 1, 256, v.data());
    return v;
  };
  const auto e4m3 = decoded("e4m3"), e5m2 = decoded("e5m2"), int8 = decoded("int8");
  int wrong = 0;
  for (int i = 0; i < 256; ++i) {
    const auto value = [&](int bits, int bias) {
      const int exponent = (i & 127) >> bits, mantissa = i & ((1 << bits) - 1);
      const double v =
          exponent ? std::ldexp((1 << bits) + mantissa, exponent - bias - bits) : std::ldexp(mantissa, 1 - bias - bits);
      return static_cast<float>(i < 128 ? v : -v);
    };
    const auto at = static_cast<std::size_t>(i);
    wrong += !same(e4m3[at], (i & 127) == 127 ? kNan : value(3, 7));
    wrong += !same(e5m2[at], (i & 127) > 124 ? kNan : (i & 127) == 124 ? (i < 128 ? kInf : -kInf) : value(2, 15));
    wrong += int8[at] != static_cast<float>(static_cast<signed char>(i));
  }
  CHECK(wrong == 0);
}

// Their step does not follow the values.
static bool without_scale(Format f) {
  const std::string_view name = f.name();
  return name == "e4m3" || name == "e5m2" || name == "int8" || name == "int32";
}

TEST_CASE("zeros come back as zeros and constants within the format's step", "[formats]") {
  for (Format f : Format::all())
    for (int encoder = 0; encoder < static_cast<int>(f.info().encoders.size()); ++encoder) {
      INFO(f.name() << " " << f.info().encoders[static_cast<std::size_t>(encoder)]);
      for (float v : round_trip(f, std::vector<float>(512, 0.0f), 256, encoder)) CHECK(v == 0.0f);
      if (without_scale(f)) continue;
      // Scales of MX formats are powers of two; a d of Q6_K or IQ4_XS for 1e-3 is four of the smallest halves. Nothing
      // scales those of ggml's NVFP4, which have three bits of mantissa and end at 2^-9. compressed-tensors clips 7.5
      // steps to 7.
      const std::string name(f.name());
      const bool own_scales = name == "ggml_nvfp4";
      // Lists of vectors have few that are of one level.
      const bool coarse = name.starts_with("iq") && !name.starts_with("iq4");
      const bool clips = f.info().encoders[static_cast<std::size_t>(encoder)] == std::string_view("compressed_tensors");
      const double step = name.find("mxfp") != name.npos ? 0.125
                          : name == "q6_k"               ? 0.03
                          : name == "iq4_xs"             ? 0.04
                          : own_scales || clips          ? 0.07
                          : coarse                       ? 0.82
                                                         : 0.02;
      for (float c : {1.0f, -3.0f, 0.1f, own_scales ? 0.2f : 1e-3f})
        for (float v : round_trip(f, std::vector<float>(256, c), 256, encoder,
                                  f.info().global_for ? f.info().global_for(std::fabs(c)) : 1.0f))
          CHECK(v == Approx(c).epsilon(step));
    }
}

TEST_CASE("encoding what was decoded changes nothing", "[formats]") {
  // This does not hold for q4_k, whose search may find another line, nor for ggml's q4_0 and nvfp4, whose extreme may
  // have been clipped or rounded away from the end of the codes.
  const auto x = gauss(2048, 0.5f, 3);
  for (const char* name : {"f32", "f16", "bf16"}) {
    const Format f = Format::parse(name);
    const Encoded once = encode(f, x, 256);
    CHECK(first_difference(once.data, encode(f, decode(f, once, x.size(), 256), 256).data) == -1);
  }
  // The largest code stays the largest, so that the scale moves by at most its last bit and the codes not at all.
  for (const char* name : {"q8_0", "q8_1"}) {
    const Format f = Format::parse(name);
    const std::size_t header = f.name() == "q8_0" ? 2 : 4, bytes = 32 + header;
    const Encoded once = encode(f, x, 256), twice = encode(f, decode(f, once, x.size(), 256), 256);
    bool equal = true;
    for (std::size_t i = 0; i < once.data.size(); ++i)
      equal = equal && (i % bytes < header || once.data[i] == twice.data[i]);
    CHECK(equal);
  }
  const Format fp8 = Format::parse("e4m3_row");
  const Encoded once = encode(fp8, x, 256);
  CHECK(first_difference(once.data, encode(fp8, decode(fp8, once, x.size(), 256), 256).data) == -1);
}

TEST_CASE("e4m3_b128: 128 rows share scales, the last ones fewer", "[formats]") {
  const Format f = Format::parse("e4m3_b128");
  const std::int64_t rows = 131, cols = 256;
  CHECK(f.stream_bytes(0, rows, cols) == rows * cols);
  CHECK(f.stream_bytes(1, rows, cols) == 2 * 2 * 4);
  CHECK(f.stream_bytes(1, 128, cols) == 2 * 4);
  CHECK(f.stream_bytes(1, 0, cols) == 0);
  CHECK(f.bits_per_element() == Approx(8 + 32.0 / (128 * 128)));
  auto x = gauss(static_cast<std::size_t>(rows * cols), 1.0f, 5);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i) / cols, col = static_cast<std::int64_t>(i) % cols;
    if (row >= 128) x[i] = col < 128 ? x[i] * 1e-3f : 0.0f;
  }
  x[57 * 256 + 200] = -44.8f, x[130 * 256 + 3] = 4.48f;  // the largest of the second and of the third block
  const Encoded e = encode(f, x, cols);
  float scales[4];
  std::memcpy(scales, e.scales.data(), sizeof scales);
  CHECK(scales[1] == Approx(0.1));
  CHECK(scales[2] == Approx(0.01));
  CHECK(scales[3] == 1.0f);  // of zeros
  const auto y = decode(f, e, x.size(), cols);
  CHECK(y[57 * 256 + 200] == Approx(-44.8));
  CHECK(y[130 * 256 + 3] == Approx(4.48));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float scale = scales[i / 256 / 128 * 2 + i % 256 / 128];
    REQUIRE(y[i] == tw::e4m3_to_f32(e.data[i]) * scale);
    REQUIRE(std::fabs(y[i] - x[i]) <= std::fabs(x[i]) / 16 + scale / 1024);
  }
}

TEST_CASE("what problems say of scales that rows share", "[formats]") {
  struct Case {
    const char *text, *field, *value, *allowed;
  };
  for (const Case& c :
       {Case{"gemm x=e4m3_b128 w=e4m3_b128 y=f16 m=4 n=64 k=128", "x", "e4m3_b128", "shares a scale between 128 rows"},
        Case{"cast x=f32 y=e4m3_b128 rows=128 cols=128", "y", "e4m3_b128", "shares a scale between 128 rows"},
        Case{"gemm x=e4m3_g128 w=e4m3_b128 y=f16 m=4 n=64 k=192", "k", "192", "a multiple of 128"},
        Case{"gemm x=e4m3_row w=e4m3_b128 y=f16 m=4 n=64 k=128 accum=fast", "accum", "fast", "w=e4m3_b128"}}) {
    INFO(c.text);
    try {
      (void)Problem::parse(c.text);
      FAIL("no error");
    } catch (const Error& e) {
      CHECK(e.field() == c.field);
      CHECK(e.value() == c.value);
      CHECK(e.allowed().find(c.allowed) != std::string::npos);
    }
  }
  CHECK_NOTHROW(Problem::parse("cast x=e4m3_b128 y=f32 rows=130 cols=256"));
}

TEST_CASE("q4_0 amax7 and q8_1 sum_x follow their formulas", "[formats]") {
  const Format q4 = Format::parse("q4_0"), q8 = Format::parse("q8_1");
  for (unsigned seed = 0; seed < 200; ++seed) {
    auto x = gauss(32, std::ldexp(1.0f, static_cast<int>(seed % 21) - 10), seed);
    if (seed % 5 == 0)
      for (float& v : x) v = std::nearbyint(v * 2) / 2;  // ties
    const float amax = largest(x), d = amax / 7.0f, inverse = d > 0 ? 1.0f / d : 0.0f;
    const Encoded a = encode(q4, x, 32, encoder_index(q4, "amax7"));
    CHECK(tw::fmt::read16(a.data.data()) == tw::f32_to_f16_bits(d));
    for (int i = 0; i < 32; ++i) {
      const double code = std::clamp(std::round(double(x[static_cast<std::size_t>(i)] * inverse)), -8.0, 7.0) + 8;
      const u8 byte = a.data[static_cast<std::size_t>(2 + i % 16)];
      CHECK((i < 16 ? byte & 15 : byte >> 4) == static_cast<int>(code));
      CHECK(code >= 1);
    }
    const Encoded b = encode(q8, x, 32, encoder_index(q8, "sum_x"));
    float sum = 0.0f;
    for (float v : x) sum += v;
    CHECK(tw::fmt::read16(b.data.data()) == tw::f32_to_f16_bits(amax / 127.0f));
    CHECK(tw::fmt::read16(b.data.data() + 2) == tw::f32_to_f16_bits(sum));
    const Encoded c = encode(q8, x, 32, encoder_index(q8, "ggml"));  // the same but for the sum
    CHECK(std::equal(b.data.begin() + 4, b.data.end(), c.data.begin() + 4));
  }
}

TEST_CASE("every code of the integer formats of weights decodes by its formula", "[formats]") {
  const auto check = [](const char* name, const std::vector<u8>& data, const std::vector<u8>& scales, auto want) {
    const Format f = Format::parse(name);
    std::vector<float> y(data.size() * 8 / static_cast<std::size_t>(f.info().bits));
    f.info().decode({data.data(), scales.data(), nullptr}, 1, static_cast<std::int64_t>(y.size()), y.data());
    INFO(name);
    int wrong = 0;
    for (std::size_t i = 0; i < y.size(); ++i) wrong += y[i] != static_cast<float>(want(i));
    CHECK(wrong == 0);
  };
  const auto floats = [](float v) {
    std::vector<u8> bytes(4);
    std::memcpy(bytes.data(), &v, 4);
    return bytes;
  };
  std::vector<u8> data(256);  // every byte, and so every pair of codes
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<u8>(i);
  const auto nibble = [&](std::size_t i) { return double(i % 2 ? data[i / 2] >> 4 : data[i / 2] & 15); };
  const float row = 0.3137f;
  check("int8_row", data, floats(row), [&](std::size_t i) { return double(static_cast<signed char>(data[i])) * row; });
  std::vector<u8> item(16);
  const int zero = -77;
  std::memcpy(item.data(), &row, 4), std::memcpy(item.data() + 4, &zero, 4);
  check("int8_asym_row", data, item,
        [&](std::size_t i) { return double(static_cast<signed char>(data[i]) - zero) * row; });
  check("int4_row", data, floats(row), [&](std::size_t i) { return (nibble(i) - 8) * row; });
  check("e2m1_row", data, floats(row), [&](std::size_t i) {
    const double values[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6}, c = nibble(i);
    return (c < 8 ? values[static_cast<int>(c)] : -values[static_cast<int>(c) - 8]) * double(row);
  });
  check("ternary_row", data, floats(row),
        [&](std::size_t i) { return ((data[i / 4] >> (2 * (i % 4)) & 3) - 1) * row; });
  const auto bit = [&](std::size_t i) { return data[i / 8] >> (i % 8) & 1; };
  std::vector<u8> signs(16);
  std::memcpy(signs.data(), &row, 4);
  check("sign_row", data, signs, [&](std::size_t i) { return bit(i) ? row : -row; });
  check("signbit_row", data, signs, [&](std::size_t i) { return bit(i) ? -row : row; });
  // Every byte under scales of 1, of the largest and the smallest float, of 0 and below it.
  std::vector<u8> scales;
  for (const float v : {1.0f, 3.4028235e38f, 1e-45f, 0.0f, -0.3f, 0.25f, 7.0f, 1e-20f})
    for (const u8 b : floats(v)) scales.push_back(b);
  check("nf4", data, scales, [&](std::size_t i) {
    float scale;
    std::memcpy(&scale, &scales[i / 64 * 4], 4);
    return static_cast<float>(kNf4[i % 2 ? data[i / 2] & 15 : data[i / 2] >> 4]) * scale;
  });
  std::vector<u8> exponents;  // 0 is 2^-127, a denormal; 254 is 2^127
  for (int i = 0; i < 16; ++i)
    exponents.push_back(static_cast<u8>(i == 0 ? 0 : i == 1 ? 1 : i == 2 ? 252 : 100 + 4 * i));
  check("mxfp4", data, exponents, [&](std::size_t i) {
    const double values[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6}, c = nibble(i);
    return std::ldexp(c < 8 ? values[static_cast<int>(c)] : -values[static_cast<int>(c) - 8], exponents[i / 32] - 127);
  });
  for (std::size_t group : {32, 64, 128}) {
    // Scales of 2^-24 (the smallest half), 65504 (the largest) and between; zero points 0..15.
    std::vector<u8> halves, pairs;
    for (std::size_t i = 0; i < 512 / group; ++i) {
      const u32 h = i == 0 ? 1u : i == 1 ? 0x7bffu : 0x2c37u + static_cast<u32>(i);
      const u32 z = tw::f32_to_f16_bits(static_cast<float>(i));
      for (u32 b : {h, h >> 8}) halves.push_back(static_cast<u8>(b)), pairs.push_back(static_cast<u8>(b));
      for (u32 b : {z, z >> 8}) pairs.push_back(static_cast<u8>(b));
    }
    const auto scale = [&](std::size_t i) {
      return double(tw::f16_bits_to_f32(tw::fmt::read16(&halves[i / group * 2])));
    };
    check(("int4_g" + std::to_string(group)).c_str(), data, halves,
          [&](std::size_t i) { return (nibble(i) - 8) * scale(i); });
    check(("uint4_g" + std::to_string(group)).c_str(), data, pairs,
          [&](std::size_t i) { return (nibble(i) - double(i / group)) * scale(i); });
  }
}

TEST_CASE("nf4: the code is that of the nearest value, and the even element's is the upper nibble", "[formats]") {
  const Format f = Format::parse("nf4");
  for (unsigned seed = 0; seed < 60; ++seed) {
    const auto x = gauss(256, std::ldexp(1.0f, static_cast<int>(seed) * 4 - 120), seed);
    const Encoded e = encode(f, x, 128);
    for (std::size_t i = 0; i < x.size(); ++i) {
      float absmax;
      std::memcpy(&absmax, &e.scales[i / 64 * 4], 4);
      REQUIRE(absmax == largest({x.begin() + static_cast<std::ptrdiff_t>(i / 64 * 64),
                                 x.begin() + static_cast<std::ptrdiff_t>(i / 64 * 64 + 64)}));
      const int code = i % 2 ? e.data[i / 2] & 15 : e.data[i / 2] >> 4;
      double least = 2;
      for (const double v : kNf4) least = std::min(least, std::fabs(v - double(x[i]) / absmax));
      CHECK(std::fabs(kNf4[code] - double(x[i]) / absmax) <= least + 2e-7);
    }
  }
}

TEST_CASE("rows of ternary codes and of signs: the scale is the mean magnitude", "[formats]") {
  for (const char* name : {"ternary_row", "sign_row", "signbit_row"}) {
    const Format f = Format::parse(name);
    INFO(name);
    for (unsigned seed = 0; seed < 40; ++seed) {
      const std::int64_t cols = 8 * (seed % 9 + 1);
      auto x = gauss(static_cast<std::size_t>(2 * cols), std::ldexp(1.0f, static_cast<int>(seed) * 6 - 120), seed);
      x[3] = 0.0f, x[5] = -0.0f;
      const Encoded e = encode(f, x, cols);
      const auto y = decode(f, e, x.size(), cols);
      for (std::int64_t row = 0; row < 2; ++row) {
        double mean = 0;
        for (std::int64_t i = row * cols; i < (row + 1) * cols; ++i)
          mean += std::fabs(x[static_cast<std::size_t>(i)]) / static_cast<double>(cols);
        const std::size_t item = name[0] == 's' ? 16 : 4;
        float scale;
        std::memcpy(&scale, &e.scales[item * static_cast<std::size_t>(row)], 4);
        CHECK(scale == Approx(mean).epsilon(1e-6).margin(1e-44));
        if (name[0] == 's') {
          int ones, expected = 0;
          std::memcpy(&ones, &e.scales[item * static_cast<std::size_t>(row) + 4], 4);
          for (std::int64_t i = row * cols; i < (row + 1) * cols; ++i)
            expected += (x[static_cast<std::size_t>(i)] < 0) == (std::string(name) == "signbit_row");
          CHECK(ones == expected);
        }
        for (std::int64_t i = row * cols; i < (row + 1) * cols; ++i) {
          const auto at = static_cast<std::size_t>(i);
          // The nearest of the values that there are; a zero's sign is positive.
          const double want = name[0] == 's'                    ? (x[at] < 0 ? -scale : scale)
                              : std::fabs(x[at]) <= 0.5 * scale ? 0
                                                                : std::copysign(double(scale), x[at]);
          CHECK(y[at] == want);
        }
      }
    }
  }
  // The two formats of signs differ in every bit, and in what a NaN becomes.
  auto x = gauss(64, 1.0f, 4);
  const Encoded a = encode(Format::parse("sign_row"), x, 64), b = encode(Format::parse("signbit_row"), x, 64);
  CHECK(std::equal(a.scales.begin(), a.scales.begin() + 4, b.scales.begin()));
  CHECK(a.scales[4] + b.scales[4] == 64);  // set bits
  for (std::size_t i = 0; i < a.data.size(); ++i) CHECK((a.data[i] ^ b.data[i]) == 0xff);
  x[9] = kNan;
  CHECK(round_trip(Format::parse("sign_row"), x, 64)[9] < 0);
  CHECK(round_trip(Format::parse("signbit_row"), x, 64)[9] > 0);
}

TEST_CASE("int8_asym_row: a row's item is its scale, its zero point and the sum of its codes", "[formats]") {
  const Format f = Format::parse("int8_asym_row");
  const std::int64_t cols = 259;
  for (unsigned seed = 0; seed < 40; ++seed) {
    std::vector<float> x = gauss(static_cast<std::size_t>(2 * cols), 1.0f, seed);
    for (std::size_t i = 0; i < static_cast<std::size_t>(cols); ++i)
      x[i] += static_cast<float>(seed) - 20.0f;  // zero at either end, too
    const Encoded e = encode(f, x, cols);
    const std::vector<float> y = decode(f, e, x.size(), cols);
    for (std::size_t r = 0; r < 2; ++r) {
      float scale = 0;
      std::int32_t rest[3];
      std::memcpy(&scale, &e.scales[16 * r], 4), std::memcpy(rest, &e.scales[16 * r + 4], 12);
      std::int32_t sum = 0;
      double worst = 0;
      for (std::size_t i = r * cols; i < (r + 1) * cols; ++i)
        sum += static_cast<signed char>(e.data[i]), worst = std::max(worst, std::fabs(double(y[i]) - x[i]));
      CHECK(scale > 0);
      CHECK(rest[0] >= -128);
      CHECK(rest[0] <= 127);
      CHECK(rest[1] == sum);
      CHECK(rest[2] == 0);
      CHECK(worst <= 1.001 * scale);
    }
  }
}

TEST_CASE("NVFP4 weights as FP8 rows keep the direction of a product", "[formats]") {
  constexpr std::int64_t m = 16, n = 64, k = 4096;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  const auto matrix = [&](std::int64_t rows, float deviation) {
    std::vector<float> v(static_cast<std::size_t>(rows * k));
    for (float& e : v) e = deviation * normal(random);
    return v;
  };
  const auto through = [](const char* name, std::int64_t rows, const std::vector<float>& v, float global) {
    const tilewright::Format f = tilewright::Format::parse(name);
    std::vector<unsigned char> data(static_cast<std::size_t>(f.stream_bytes(0, rows, k)));
    std::vector<unsigned char> scales(static_cast<std::size_t>(f.stream_bytes(1, rows, k)));
    const tilewright::MutableOperand to{data.data(), scales.data(), &global};
    f.info().encode(v.data(), rows, k, to, 0);
    std::vector<float> out(v.size());
    f.info().decode(to, rows, k, out.data());
    return out;
  };
  const std::vector<float> x = matrix(m, 1.0f);
  const std::vector<float> w = through("nvfp4", n, matrix(n, 0.02f), 0.1f / 2688.0f);
  const std::vector<float> x8 = through("e4m3_row", m, x, 1.0f), w8 = through("e4m3_row", n, w, 1.0f);
  double dot = 0, exact = 0, lossy = 0;
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      double a = 0, b = 0;
      for (std::int64_t l = 0; l < k; ++l) {
        a += static_cast<double>(x[static_cast<std::size_t>(i * k + l)]) * w[static_cast<std::size_t>(j * k + l)];
        b += static_cast<double>(x8[static_cast<std::size_t>(i * k + l)]) * w8[static_cast<std::size_t>(j * k + l)];
      }
      dot += a * b, exact += a * a, lossy += b * b;
    }
  const double cosine = dot / std::sqrt(exact * lossy);
  INFO("cosine " << cosine);
  CHECK(cosine > 0.99);
  CHECK(cosine < 0.99999);  // it is lossy
}
