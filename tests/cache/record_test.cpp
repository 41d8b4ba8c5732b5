// SPDX-License-Identifier: Apache-2.0
#include "cache/record.h"

#include <cmath>
#include <limits>
#include <random>

#include "scratch.h"
#include "support/catch.h"

using namespace tilewright;
using namespace tilewright::cache;

TEST_CASE("a candidate survives its text") {
  CHECK(encode_candidate({"mma", {{"bm", 128}, {"stages", 3}}}) == "mma bm=128 stages=3");
  for (const Candidate& c :
       {Candidate{"reference", {}}, Candidate{"a b=c\\\n", {{"x y=", -1}, {"\x7f", 2147483647}}}}) {
    const auto back = decode_candidate(encode_candidate(c));
    REQUIRE(back);
    CHECK(*back == c);
  }
}

TEST_CASE("a candidate out of range has no text, and odd texts are no candidates") {
  CHECK(encode_candidate({"", {}}).empty());
  CHECK(encode_candidate({"f", {{"", 1}}}).empty());
  CHECK(encode_candidate({"f", {{"k", std::int64_t{1} << 31}}}).empty());
  CHECK(encode_candidate({"f", std::vector<std::pair<std::string, std::int64_t>>(65, {"k", 1})}).empty());
  for (const char* text : {"", " ", "f ", "f  k=1", "f k", "f k=", "f k=x", "f k=2147483648", "f k=01", "f k=+1",
                           "f =1", "f k=1 ", "f\\ k=1", "f\tk=1"}) {
    CAPTURE(text);
    CHECK_FALSE(decode_candidate(text));
  }
}

namespace {

// A plan that has everything a plan can have.
Binary full_binary() {
  Binary binary = scratch::binary(4);
  binary.plan.persistent = 2;
  binary.plan.overlap = true;
  binary.plan.most_rows = 2032;
  binary.plan.cpu = {{1, 16, 32}, {2, 0, 0}, {~0u, 4, 0}, 7, true};
  binary.plan.map_count = 3;
  binary.plan.maps[0] = {.pointer = 8,
                         .behind = std::uint64_t{1} << 34,
                         .rows_at = 64,
                         .stride_at = 72,
                         .inner = 4096,
                         .element_bytes = 2,
                         .box_inner = 64,
                         .box_rows = 128,
                         .swizzle = 128};
  binary.plan.maps[1] = {.pointer = 24,
                         .rows = ~std::uint64_t{0},
                         .inner_at = TensorMapPlan::kConstants + 8,
                         .inner = std::uint64_t{1} << 40,
                         .block = 32,
                         .block_elements = 9,
                         .element_bytes = 1,
                         .box_inner = 32,
                         .box_rows = 256,
                         .box_panels = 4,
                         .tile_boxes = 2,
                         .swizzle = 32};
  binary.plan.maps[2] = {.pointer = 16, .inner = 96, .element_bytes = 2, .box_inner = 64, .swizzle = 128};
  binary.plan.maps[2].axes = 4, binary.plan.maps[2].axes_at = 120;
  binary.plan.maps[2].box_axes = {8, 34, 1, 1}, binary.plan.maps[2].steps = {1, 2, 1, 1};
  return binary;
}

}  // namespace

TEST_CASE("a binary's metadata survives its text, and no other text is accepted") {
  for (const Binary& binary : {scratch::binary(3), full_binary()}) {
    const std::string text = encode_metadata(binary);
    Binary back = full_binary();  // nothing of it stays
    REQUIRE(decode_metadata(text, back));
    back.image = binary.image;
    CHECK(scratch::same(back, binary));
    std::mt19937 random(5);
    for (int trial = 0; trial < 2000; ++trial) {
      std::string changed = text;
      changed[random() % changed.size()] = static_cast<char>(random());
      Binary other;
      if (!decode_metadata(changed, other)) continue;
      CHECK(encode_metadata(other) == changed);  // one text per value
    }
  }
}

TEST_CASE("metadata as it was before plans had extras is what a plan without them has") {
  const std::string before =
      "target=sm_90a\nentry=kernel_3\nx=1,128,0\ny=1,0,64\nz=2,0,0\nthreads=256\ncluster=1\nshared_bytes=49152\n"
      "resources=registers=168\\x0ashared_bytes=1024\\x0aspill_bytes=0\\x0astack_bytes=16\\x0aserialized=0\\x0a\n"
      "log=line one\\x0aline \"two\"\\x0a\n";
  CHECK(encode_metadata(scratch::binary(3)) == before);
  Binary back;
  REQUIRE(decode_metadata(before, back));
  CHECK(back.plan == scratch::binary(3).plan);
}

TEST_CASE("extras of a plan that make no sense have no text that is read") {
  const std::string text = encode_metadata(full_binary());
  Binary other;
  Binary many = full_binary();
  for (const std::uint32_t count : {4u, 0xffffffffu}) {
    many.plan.map_count = count;
    CHECK_FALSE(decode_metadata(encode_metadata(many), other));
  }
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    const std::size_t at = changed.find(from);
    REQUIRE(at != std::string::npos);
    return changed.replace(at, from.size(), to);
  };
  for (const auto& [from, to] : {std::pair<const char*, const char*>{"persistent=2\n", "persistent=0\n"},
                                 {"persistent=2\n", "persistent=2\npersistent=2\n"},
                                 {"persistent=2\noverlap=1\n", "overlap=1\npersistent=2\n"},
                                 {"overlap=1\n", "overlap=2\n"},
                                 {"overlap=1\n", "other=1\n"},
                                 {"map=8,64,", "map=64,"},
                                 {"map=8,64,", "map=8,64,0,"},
                                 {"most_rows=2032\n", "most_rows=0\n"},
                                 {"cpu=1,16,32;", "cpu=1,16;"},
                                 {";7;1\n", ";7;2\n"},
                                 {",128,0,128,1,1,17179869184\n", ",128,0,4294967296,1,1,17179869184\n"},
                                 {",1,1,17179869184\n", ",1,1,0\n"},
                                 {",1,1,17179869184\n", ",1,1\n"}}) {
    CAPTURE(from, to);
    CHECK_FALSE(decode_metadata(with(from, to), other));
  }
}

TEST_CASE("an outcome survives its row, a NaN error as infinite") {
  Outcome o = scratch::outcome(64, 12.5, OutcomeKind::wrong);
  o.error = std::nan("");
  o.microseconds = -0.0;
  const auto row = to_row(o);
  REQUIRE(row);
  const auto back = to_outcome(*row);
  REQUIRE(back);
  CHECK(back->candidate == o.candidate);
  CHECK(back->kind == o.kind);
  CHECK(std::isinf(back->error));
  CHECK_FALSE(std::signbit(back->microseconds));
  CHECK(back->resources == o.resources);
  CHECK(back->stored);
}

TEST_CASE("values out of range are refused") {
  const double bad[] = {-1.0, std::nan(""), std::numeric_limits<double>::infinity()};
  for (double value : bad) {
    Outcome o = scratch::outcome(64, 1);
    o.microseconds = value;
    CHECK_FALSE(to_row(o));
    ChoiceRow row{"h", "mma bm=1", value, "", 0, ""};
    CHECK_FALSE(row.valid());
  }
  Outcome o = scratch::outcome(64, 1);
  o.rounds = -1;
  CHECK_FALSE(to_row(o));
  o = scratch::outcome(64, 1);
  o.resources.registers = -1;
  CHECK_FALSE(to_row(o));
}

TEST_CASE("every field of a row is under its hash") {
  const ChoiceRow choice{"p", "mma bm=1", 1, "f", 2, "e"};
  for (const ChoiceRow& other :
       {ChoiceRow{"q", "mma bm=1", 1, "f", 2, "e"}, ChoiceRow{"p", "mma bm=2", 1, "f", 2, "e"},
        ChoiceRow{"p", "mma bm=1", 1.5, "f", 2, "e"}, ChoiceRow{"p", "mma bm=1", 1, "g", 2, "e"},
        ChoiceRow{"p", "mma bm=1", 1, "f", 3, "e"}, ChoiceRow{"p", "mma bm=1", 1, "f", 2, ""}}) {
    CHECK(other.content_hash() != choice.content_hash());
  }
}
