// SPDX-License-Identifier: Apache-2.0
// Tests what an import or an export refuses, and how it says so.
#include <tilewright/error.h>
#include <tilewright/import.h>

#include <bit>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "import_test.h"
#include "support/catch.h"
#include "support/refusal.h"

using namespace import_test;

TEST_CASE("scales keep their value or are refused by name", "[import]") {
  const auto with_scale = [](Checkpoint packing, std::int64_t group, std::uint16_t bits) {
    auto r = std::make_unique<Random>(packing, 8, 64, group, TensorType::bf16, true, false, 7);
    std::memcpy(r->scales.data() + 2 * 3, &bits, 2);
    return r;
  };
  const Format half = Format::parse("int4_g32");
  // 65280 fits, 65536 does not; 2^-24 and 3 2^-24 are the smallest that fit, 2^-25 and 5 2^-25 do not; infinity is one.
  for (std::uint16_t bits : {0x477f, 0xc77f, 0x3380, 0x3440, 0x7f80, 0x0000, 0x8000}) {
    auto r = with_scale(Checkpoint::gptq, 32, bits);
    std::uint16_t stored;
    const Streams s = imported(r->weight, half);
    std::memcpy(&stored, s.scales.data() + 2 * 3 * 2, 2);  // row 3, first of two groups
    CHECK(std::bit_cast<std::uint32_t>(tw::f16_bits_to_f32(stored)) == std::uint32_t{bits} << 16);
  }
  auto nan = with_scale(Checkpoint::gptq, 32, 0x7fc0);
  CHECK(imported(nan->weight, half).decoded()[3 * 64] != imported(nan->weight, half).decoded()[3 * 64]);
  for (std::uint16_t bits : {0x4780, 0xc780, 0x3300, 0x3420, 0x0001}) {
    auto r = with_scale(Checkpoint::gptq, 32, bits);
    const Error e = refusal([&] { imported(r->weight, half); });
    CHECK(e.code() == ErrorCode::unsupported);
    CHECK(e.field() == "scales[0, 3]");
    CHECK(e.allowed() == "must be at most 65504 and a multiple of 2^-24: int4_g32 has scales in half precision");
    auto channel = with_scale(Checkpoint::compressed_tensors, -1, bits);  // floats hold them all
    CHECK(imported(channel->weight, Format::parse("int4_row")).decoded() == formula(channel->weight));
    CHECK(refusal([&] { imported(channel->weight, half); }).field() == "weight_scale[3, 0]");
  }
}

TEST_CASE("what is no checkpoint is refused by name", "[import]") {
  const auto check = [](Checkpoint packing, auto&& spoil, const std::string& field, const std::string& value,
                        const std::string& allowed, ErrorCode code = ErrorCode::invalid_argument) {
    Random r(packing, 24, 128, 32, TensorType::f16, false, packing != Checkpoint::awq, 2);
    CheckpointWeight w = r.weight;
    spoil(w);
    const Error e = refusal([&] { import_formats(w); });
    INFO(e.what());
    CHECK(e.code() == code);
    CHECK(e.field() == field);
    CHECK(e.value() == value);
    CHECK(e.allowed() == allowed);
    Bytes stream(24 * 128);
    CHECK_THROWS_AS(import_weights(w, Format::parse("uint4_g32"), stream, stream), Error);
  };
  using W = CheckpointWeight;
  const auto gptq = Checkpoint::gptq, v2 = Checkpoint::gptq_v2, awq = Checkpoint::awq,
             compressed = Checkpoint::compressed_tensors;
  const auto unsupported = ErrorCode::unsupported;
  check(
      gptq, [](W& w) { w.bits = 5; }, "bits", "5", "must be 2, 3, 4 or 8", unsupported);
  check(
      awq, [](W& w) { w.bits = 3; }, "bits", "3", "must be 4", unsupported);
  check(
      gptq, [](W& w) { w.packing = static_cast<Checkpoint>(9); }, "packing", "9",
      "must be gptq, gptq_v2, awq or compressed_tensors");
  check(
      gptq, [](W& w) { w.n = 12; }, "n", "12", "must be a multiple of 8 below 2147483648");
  check(
      compressed, [](W& w) { w.n = 0; }, "n", "0", "must be 1 to 2147483647");
  check(
      awq, [](W& w) { w.k = 36; }, "k", "36", "must be a multiple of 8 below 2147483648");
  check(
      awq, [](W& w) { w.k = std::int64_t{1} << 31; }, "k", "2147483648", "must be a multiple of 8 below 2147483648");
  check(
      gptq, [](W& w) { w.group = 48; }, "group", "48", "must be a divisor of k=128, or -1 for all of k");
  check(
      gptq, [](W& w) { w.group = 0; }, "group", "0", "must be a divisor of k=128, or -1 for all of k");
  check(
      gptq, [](W& w) { std::swap(w.codes.rows, w.codes.cols); }, "qweight", "i32 [24, 16]",
      "must be i32 [16, 24], that is [k / 8, n]");
  check(
      v2, [](W& w) { w.group = 64; }, "qzeros", "i32 [4, 3]", "must be i32 [2, 3], that is [k / group, n / 8]");
  check(
      awq, [](W& w) { w.codes.type = TensorType::f16; }, "qweight", "f16 [128, 3]",
      "must be i32 [128, 3], that is [k, n / 8]");
  check(
      awq, [](W& w) { w.zeros.cols = 24; }, "qzeros", "i32 [4, 24]", "must be i32 [4, 3], that is [k / group, n / 8]");
  check(
      awq, [](W& w) { w.scales.rows = 1; }, "scales", "f16 [1, 24]",
      "must be f16 or bf16 [4, 24], that is [k / group, n]");
  check(
      compressed, [](W& w) { w.codes.cols = 128; }, "weight_packed", "i32 [24, 128]",
      "must be i32 [24, 16], that is [n, k / 8]");
  check(
      compressed, [](W& w) { std::swap(w.zeros.rows, w.zeros.cols); }, "weight_zero_point", "i32 [4, 3]",
      "must be i32 [3, 4], that is [n / 8, k / group]");
  check(
      compressed, [](W& w) { w.scales.type = TensorType::i32; }, "weight_scale", "i32 [24, 4]",
      "must be f16 or bf16 [24, 4], that is [n, k / group]");
  check(
      compressed, [](W& w) { w.g_idx.cols = 64; }, "weight_g_idx", "i32 [1, 64]",
      "must be i32 [1, 128], that is [1, k]");
  check(
      gptq, [](W& w) { w.codes.bytes = w.codes.bytes.first(12); }, "qweight.bytes", "12",
      "must be 1536 for i32 [16, 24]");
  check(
      gptq, [](W& w) { w.codes.bytes = {}; }, "qweight", "missing", "must be i32 [16, 24]");
  check(
      gptq, [](W& w) { w.zeros.bytes = {}; }, "qzeros", "missing", "must be i32 [4, 3]");
  check(
      compressed, [](W& w) { w.scales.bytes = {}; }, "weight_scale", "missing", "must be f16 or bf16 [24, 4]");
  check(
      awq, [](W& w) { w.g_idx = w.scales; }, "g_idx", "given", "must be left out: awq has none", unsupported);
}

TEST_CASE("groups that no format has", "[import]") {
  for (const bool symmetric : {true, false}) {
    Random sixteen(Checkpoint::awq, 8, 64, 16, TensorType::f16, symmetric, false, 1);
    const Error e = refusal([&] { import_formats(sixteen.weight); });
    CHECK(e.code() == ErrorCode::unsupported);
    CHECK(e.field() == "group");
    CHECK(e.value() == "16");
    CHECK(e.allowed() == (symmetric ? "must be a multiple of 32, or all of k"
                                    : "must be a multiple of 32, as there are zero points other than 8"));
    Random row(Checkpoint::awq, 8, 72, -1, TensorType::f16, symmetric, false, 1);
    if (symmetric)
      CHECK(names(import_formats(row.weight)) == std::vector<std::string>{"int4_row"});
    else
      CHECK(refusal([&] { import_formats(row.weight); }).value() == "72");
  }
}

TEST_CASE("groups of other sizes than they should have", "[import]") {
  Random r(Checkpoint::gptq, 8, 64, 32, TensorType::f16, false, false, 1);
  const auto set = [&](int i, std::int32_t g) { std::memcpy(r.g_idx.data() + 4 * i, &g, 4); };
  set(5, 1);
  Error e = refusal([&] { import_order(r.weight); });
  CHECK(e.field() == "g_idx");
  CHECK(e.value() == "31 columns in group 0");
  CHECK(e.allowed() == "must have 32 in each, as group says");
  for (const std::int32_t g : {2, -1}) {
    set(5, g);
    e = refusal([&] { import_order(r.weight); });
    CHECK(e.field() == "g_idx[5]");
    CHECK(e.value() == std::to_string(g));
    CHECK(e.allowed() == "must be 0 to 1, one of k / group = 2 groups");
  }
  Bytes stream(8 * 64);
  CHECK_THROWS_AS(
      import_weights(r.weight, Format::parse("uint4_g32"), std::span(stream).first(256), std::span(stream).first(64)),
      Error);
}

TEST_CASE("what an import writes to", "[import]") {
  Random r(Checkpoint::awq, 8, 64, 32, TensorType::f16, false, false, 1);
  Bytes data(8 * 64 / 2), scales(8 * 2 * 4), one(1);
  const auto into = [&](const char* format, std::span<std::byte> d, std::span<std::byte> s) {
    return refusal([&] { import_weights(r.weight, Format::parse(format), d, s); });
  };
  CHECK(into("int4_g32", data, scales).field() == "format");
  CHECK(into("q4_0", data, scales).allowed() == "must be one of uint4_g32");
  Error e = into("uint4_g32", one, scales);
  CHECK(e.field() == "data");
  CHECK(e.value() == "1 bytes");
  CHECK(e.allowed() == "must be 256 for uint4_g32 of 8 x 64");
  e = into("uint4_g32", data, data);
  CHECK(e.field() == "scales");
  CHECK(e.allowed() == "must be 64 for uint4_g32 of 8 x 64");
}

TEST_CASE("what a checkpoint cannot hold is not exported", "[import]") {
  const Format uint4 = Format::parse("uint4_g32"), int4 = Format::parse("int4_g32"), row = Format::parse("int4_row");
  const std::int64_t n = 8, k = 64;
  CheckpointBytes bytes;
  const auto exporting = [&](const Streams& s, CheckpointWeight like, const std::vector<std::int32_t>& order = {}) {
    like.n = n, like.k = k;
    return refusal([&] { export_weights(s.format, s.data, s.scales, like, order, bytes); });
  };
  const auto like = [](Checkpoint packing, std::int64_t group, TensorType type) {
    CheckpointWeight w{.packing = packing, .group = group, .codes = {}, .zeros = {}, .scales = {}, .g_idx = {}};
    w.scales.type = type;
    return w;
  };
  const auto gptq = like(Checkpoint::gptq, 32, TensorType::f16);
  const auto halves = [](Streams& s, std::vector<float> values) {
    for (std::size_t at = 0; at < s.scales.size() / 2; ++at) {
      const std::uint16_t bits = tw::f32_to_f16_bits(values[at % values.size()]);
      std::memcpy(s.scales.data() + 2 * at, &bits, 2);
    }
  };
  Streams s(uint4, n, k);
  halves(s, {1.0f, 8.0f, 1.0f, 15.0f});
  for (const float zero : {7.5f, 16.0f, -1.0f}) {
    Streams odd(uint4, n, k);
    halves(odd, {1.0f, 8.0f, 1.0f, zero});
    const Error e = exporting(odd, gptq);
    CHECK(e.code() == ErrorCode::unsupported);
    CHECK(e.field() == "zero point of row 0, group 1");
    CHECK(e.allowed() == "must be an integer of 0 to 15");
  }
  CHECK(exporting(s, like(Checkpoint::gptq, 64, TensorType::f16)).value() ==
        "row 0, block 1, differs from its group's first");
  CHECK(exporting(s, like(Checkpoint::awq, 16, TensorType::f16)).field() == "group");
  CHECK(exporting(s, like(Checkpoint::awq, 32, TensorType::i32)).field() == "scales.type");
  CHECK(exporting(s, like(Checkpoint::awq, 32, TensorType::f16), {1, 0}).allowed() ==
        "must be left out: awq has no g_idx");
  CHECK(exporting(s, gptq, {1, 0}).allowed() == "must have 64 (k), or be left out");
  std::vector<std::int32_t> order(64);
  CHECK(exporting(s, gptq, order).field() == "order[1]");
  std::iota(order.begin(), order.end(), 0);
  order[9] = 64;
  CHECK(exporting(s, gptq, order).field() == "order[9]");
  Streams fine(int4, n, k);
  halves(fine, {1.0f, 1.0009765625f});
  Error e = exporting(fine, like(Checkpoint::compressed_tensors, 32, TensorType::bf16));
  CHECK(e.field() == "weight_scale[0, 1]");
  CHECK(e.allowed() == "must be a number that bf16 holds exactly");
  Streams rows(row, n, k);
  for (int i = 0; i < 8; ++i) {
    const float v = 1e-30f;
    std::memcpy(rows.scales.data() + 4 * i, &v, 4);
  }
  CHECK(exporting(rows, like(Checkpoint::awq, -1, TensorType::f16)).field() == "scales[0, 0]");
  CHECK(exporting(rows, gptq).field() == "format");
  rows.scales.pop_back();
  CHECK(exporting(rows, like(Checkpoint::awq, -1, TensorType::f16)).field() == "scales");
  CHECK(exporting(Streams(Format::parse("int8_row"), n, k), gptq).field() == "format");
  auto eight = gptq;
  eight.bits = 8;
  CHECK(exporting(s, eight).field() == "bits");
}
