// SPDX-License-Identifier: Apache-2.0
// Tests what a gemm's text says of its epilogue and of operands without scales, and which families take them.
#include <tilewright/error.h>
#include <tilewright/family.h>
#include <tilewright/gemm.h>
#include <tilewright/problem.h>

#include <cstring>
#include <optional>
#include <string>

#include "support/catch.h"
#include "support/refusal.h"
#include "templates/common/describe.h"
#include "templates/common/families.h"
#include "templates/operations/gemm/params.cuh"

using namespace tilewright;

namespace {

const std::string kShape = " m=16 n=128 k=256";

// The first family that takes a problem.
std::string taken_by(const std::string& text, const char* target) {
  const Problem p = Problem::parse(text);
  for (const Family* f : families("gemm"))
    if (f->why_not(p, arch(target)).empty()) return std::string(f->name());
  return "";
}

}  // namespace

TEST_CASE("epilogue fields have one text, and none at their defaults", "[problem]") {
  for (const std::string& text :
       {"gemm x=f16 w=f16 y=f16" + kShape + " act=silu alpha=0.5 c=f16 beta=-0.25",
        "gemm x=f16 w=q4_0 y=f32" + kShape + " c=bf16 workspace=1048576 weights=constant",
        "gemm x=e4m3 w=e4m3 y=e5m2" + kShape + " accum=fast alpha=0.001 y_scale=0.125",
        "gemm x=int8 w=int8 y=int8" + kShape + " bias=f32 alpha=0.01 c=f32 y_scale=2.5",
        "gemm x=int8 w=int8 y=int32" + kShape + " bias=int32", "gemm x=int8_row w=int8 y=bf16" + kShape,
        "gemm x=e4m3_tensor w=e4m3_tensor y=bf16" + kShape + " global=div accum=fast"}) {
    const Problem p = Problem::parse(text);
    CHECK(p.text() == text);
    CHECK(Problem::parse(p.text()) == p);
    CHECK(p.with_rows(3).as<Gemm>()->c == p.as<Gemm>()->c);
    CHECK(p.with_rows(3).as<Gemm>()->y_scale == p.as<Gemm>()->y_scale);
    CHECK(p.with_rows(3).as<Gemm>()->workspace == p.as<Gemm>()->workspace);
    CHECK(p.with_rows(3).as<Gemm>()->constant_weights == p.as<Gemm>()->constant_weights);
  }
  const std::string plain = "gemm x=f16 w=f16 y=f16" + kShape;
  CHECK(Problem::parse(plain + " y_scale=1 beta=1 workspace=0 weights=variable").text() == plain);
  CHECK(Problem::parse(plain + " c=f16 beta=1").text() == plain + " c=f16");
  CHECK_FALSE(Problem::parse(plain) == Problem::parse(plain + " c=f16"));
  CHECK(Problem::parse(plain + " c=f32").min_bytes() - Problem::parse(plain).min_bytes() == 16 * 128 * 4);
}

TEST_CASE("what an epilogue cannot be is refused by field and value", "[problem]") {
  const auto refused = [](const std::string& text, const char* field, const char* value) {
    const Error e = refusal("gemm " + text + kShape);
    INFO(text << ": " << e.what());
    CHECK(e.field() == field);
    CHECK(e.value() == value);
    CHECK(!e.allowed().empty());
  };
  refused("x=f16 w=f16 y=q4_0", "y", "q4_0");
  refused("x=f16 w=f16 y=e4m3_row", "y", "e4m3_row");
  refused("x=int32 w=f16 y=f16", "x", "int32");
  refused("x=int8 w=int32 y=f16", "w", "int32");
  refused("x=f16 w=f16 y=int32", "x", "f16");
  refused("x=int8 w=q4_0 y=int32", "w", "q4_0");
  refused("x=int8_row w=int8_row y=int32", "x", "int8_row");
  refused("x=int8_tensor w=int8 y=int32 global=mul", "x", "int8_tensor");
  refused("x=e4m3_tensor w=e4m3 y=bf16", "global", "none");
  refused("x=int8 w=int8 y=int32 alpha=0.5", "alpha", "0.5");
  refused("x=int8 w=int8 y=int32 act=relu", "act", "relu");
  refused("x=int8 w=int8 y=int32 bias=f32", "bias", "f32");
  refused("x=int8 w=int8 y=int32 c=f32", "c", "f32");
  refused("x=int8 w=int8 y=int32 y_scale=2", "y_scale", "2");
  refused("x=int8 w=int8 y=bf16 bias=int32", "bias", "int32");
  refused("x=f16 w=f16 y=f16 bias=e4m3", "bias", "e4m3");
  refused("x=f16 w=f16 y=f16 bias=q8_0", "bias", "q8_0");
  refused("x=f16 w=f16 y=f16 c=int8", "c", "int8");
  refused("x=f16 w=f16 y=f16 c=f17", "c", "f17");
  refused("x=f16 w=f16 y=f16 beta=2", "beta", "2");
  refused("x=f16 w=f16 y=f16 c=f16 beta=0", "beta", "0");
  refused("x=f16 w=f16 y=f16 c=f16 beta=nan", "beta", "nan");
  refused("x=f16 w=f16 y=f16 c=f16 beta=1e300", "beta", "1e+300");
  refused("x=f16 w=f16 y=f16 y_scale=2", "y_scale", "2");
  refused("x=f16 w=f16 y=int8 y_scale=0", "y_scale", "0");
  refused("x=f16 w=f16 y=int8 y_scale=-1", "y_scale", "-1");
  refused("x=f16 w=f16 y=e4m3 y_scale=inf", "y_scale", "inf");
  refused("x=f16 w=f16 y=e4m3 y_scale=two", "y_scale", "two");
  refused("x=f16 w=f16 y=f16 workspace=-1", "workspace", "-1");
  refused("x=f16 w=f16 y=f16 workspace=2147483648", "workspace", "2147483648");
  refused("x=f16 w=f16 y=f16 workspace=1MB", "workspace", "1MB");
  refused("x=f16 w=f16 y=f16 weights=const", "weights", "const");
  refused("x=int8 w=int8 y=int8 accum=fast", "accum", "fast");
  CHECK(refusal("gemm x=int8 w=int8 y=int32 m=1 n=8 k=131072").code() == ErrorCode::too_large);
  CHECK_NOTHROW(Problem::parse("gemm x=int8 w=int8 y=int32 m=1 n=8 k=131071"));
  CHECK(refusal("cast x=e4m3 y=int8 rows=1 cols=8").field() == "y");
}

TEST_CASE("operands without scales are taken where units for them are", "[problem]") {
  const std::string shape = " m=64 n=128 k=256", few = " m=1 n=128 k=256";
  for (const char* pair :
       {"x=e4m3 w=e4m3", "x=e5m2 w=e5m2", "x=int8 w=int8", "x=e4m3_row w=e4m3", "x=int8 w=int8_row"}) {
    INFO(pair);
    CHECK(taken_by(std::string("gemm ") + pair + " y=bf16" + shape, "sm_90a") == "wgmma");
  }
  CHECK(taken_by("gemm x=int8 w=int8 y=int32" + shape, "sm_90a") == "wgmma");
  CHECK(taken_by("gemm x=int8 w=int8 y=int32" + shape, "sm_75") == "mma");
  CHECK(taken_by("gemm x=int8 w=int8 y=int32" + few, "sm_75") == "gemv");
  CHECK(taken_by("gemm x=e4m3 w=e4m3 y=e4m3" + shape, "sm_89") == "mma");
  CHECK(taken_by("gemm x=e5m2 w=e5m2 y=f16" + shape, "sm_120a") == "mma");
  CHECK(taken_by("gemm x=e4m3 w=e4m3 y=e4m3" + shape, "sm_80") == "gemv");
  for (const char* pair : {"x=e4m3 w=e5m2", "x=e5m2_tensor w=e4m3_row global=mul"}) {
    INFO(pair);
    CHECK(taken_by(std::string("gemm ") + pair + " y=f16" + shape, "sm_90a") == "wgmma");
    CHECK(taken_by(std::string("gemm ") + pair + " y=f16" + shape, "sm_89") == "mma");
    CHECK(taken_by(std::string("gemm ") + pair + " y=f16" + shape, "sm_80") == "gemv");
  }
  CHECK(taken_by("gemm x=e5m2 w=e4m3_b128 y=f16" + shape, "sm_90a") == "reference");
  CHECK(taken_by("gemm x=int8 w=int8 y=int32 m=64 n=127 k=255", "sm_90a") == "reference");
  // Their scales are the epilogue's.
  CHECK(taken_by("gemm x=int8_row w=int8_row y=bf16" + shape, "sm_75") == "mma");
  CHECK(taken_by("gemm x=int8 w=int8_row y=bf16" + shape, "sm_80") == "mma");
  CHECK(taken_by("gemm x=e4m3_row w=e4m3_row y=bf16" + shape, "sm_89") == "mma");
  CHECK(taken_by("gemm x=e4m3_row w=e4m3_row y=bf16" + few, "sm_89") == "gemv");
  CHECK(taken_by("gemm x=f16 w=int8_row y=bf16" + few, "sm_75") == "gemv");
}

TEST_CASE("bytes with zero points: on both sides, and no longer than their sums", "[problem]") {
  const std::string pair = "gemm x=int8_asym_row w=int8_asym_row y=bf16 n=128";
  CHECK(taken_by(pair + " m=64 k=256", "sm_90a") == "wgmma");
  CHECK(taken_by(pair + " m=64 k=256", "sm_75") == "mma");
  CHECK(taken_by(pair + " m=1 k=256", "sm_75") == "gemv");
  CHECK(taken_by(pair + " m=64 k=32896", "sm_90a") == "wgmma");
  CHECK(taken_by(pair + " m=64 k=33024", "sm_90a") == "wgmma");
  CHECK(taken_by(pair + " m=64 k=33152", "sm_90a") == "reference");
  for (const char* name : {"wgmma", "mma", "gemv"}) {
    INFO(name);
    const auto why = [&](const std::string& formats, const char* k = "256") {
      return family("gemm", name)
          .why_not(Problem::parse("gemm " + formats + " y=bf16 m=4 n=128 k=" + k), arch("sm_90a"));
    };
    CHECK(why("x=int8_asym_row w=int8_asym_row", "33152") ==
          "k=33152 is too large: 32-bit sums hold 33025 products of bytes with zero points");
    CHECK(why("x=int8_row w=int8_row", "131072") == "k=131072 is too large: 32-bit sums hold 131071 products of bytes");
    CHECK(why("x=int8_asym_row w=int8_row") ==
          "x=int8_asym_row has zero points, and w=int8_row no sums of its rows, which these need: int8_asym_row on "
          "both sides has");
    CHECK(why("x=int8 w=int8_asym_row").find("w=int8_asym_row has zero points, and x=int8 no sums") == 0);
  }
  CHECK(taken_by("gemm x=int8_asym_row w=int4_row y=bf16 m=64 n=128 k=256 pack=tiles", "sm_90a") == "reference");
  CHECK(taken_by("gemm x=f16 w=int8_asym_row y=bf16 m=1 n=128 k=256", "sm_90a") == "reference");
}

TEST_CASE("fp8 with scales of 128 columns has units where fp8 has", "[problem]") {
  for (const char* pair :
       {"x=e4m3_g128 w=e4m3_b128 y=bf16", "x=e4m3_g128 w=e4m3_g128 y=bf16", "x=e4m3_row w=e4m3_b128 y=bf16",
        "x=e4m3_g128 w=e4m3_row y=bf16", "x=e4m3_tensor w=e4m3_b128 y=bf16 global=mul"}) {
    INFO(pair);
    const std::string text = std::string("gemm ") + pair + " m=64 n=130 k=256";
    CHECK(taken_by(text, "sm_120a") == "mma");
    CHECK(taken_by(text, "sm_80") == "reference");
  }
  const auto why = [](const char* text, const char* target) {
    return family("gemm", "mma").why_not(Problem::parse(text), arch(target));
  };
  CHECK(why("gemm x=e4m3_g128 w=int4_g128 y=bf16 m=64 n=128 k=256", "sm_120a").find("w=int4_g128 is coded") == 0);
  CHECK(why("gemm x=e4m3_g128 w=int8_row y=bf16 m=64 n=128 k=256", "sm_120a") ==
        "w=int8_row has other elements than x=e4m3_g128");
  CHECK(why("gemm x=e4m3_g128 w=e4m3_b128 y=bf16 m=64 n=128 k=256", "sm_90a") ==
        "sm_90a has no fp8 mma.sync of its own");
}

TEST_CASE("a contract says what c may be", "[problem]") {
  const Contract with = contract_for(Problem::parse("gemm x=f16 w=f16 y=f16" + kShape + " c=f16"));
  REQUIRE(with.overlap);
  CHECK(with.overlap->in_place);
  CHECK_FALSE(contract_for(Problem::parse("gemm x=f16 w=f16 y=f16" + kShape + " c=f32")).overlap->in_place);
  CHECK_FALSE(contract_for(Problem::parse("gemm x=f16 w=f16 y=f16" + kShape)).overlap);
  CHECK(std::string(with.pointers.at(2).name) == "c");
  CHECK(std::string(with.strides.back().name) == "ldc");
  CHECK(with.strides.back().pointer == with.pointers[2].offset);
}

TEST_CASE("a contract's pointers are the task's buffers, in order", "[problem]") {
  const Problem p = Problem::parse("gemm x=f16 w=f16 y=f16" + kShape + " c=f16");
  Contract contract = contract_for(p);
  Task task;
  p.operation().describe(p, task);
  CHECK_NOTHROW(take_arguments(contract, task));
  std::swap(contract.pointers[2], contract.pointers[3]);
  CHECK_THROWS_WITH(take_arguments(contract, task),
                    "gemm: buffer 2 of the task is c.data, and pointer 2 of the contract is y");
  contract = contract_for(p);
  contract.pointers.pop_back();
  CHECK_THROWS_WITH(take_arguments(contract, task),
                    "gemm: buffer 3 of the task is y.data, and pointer 3 of the contract is nothing");
}

TEST_CASE("a contract asks for the workspace that a problem names", "[problem]") {
  const std::string plain = "gemm x=f16 w=f16 y=f16" + kShape;
  const auto rules = [](const std::string& text) {
    int found = 0;
    for (const PointerRule& rule : contract_for(Problem::parse(text)).pointers)
      if (std::string(rule.name) == "workspace") {
        ++found;
        CHECK(rule.offset == offsetof(GemmArgs, workspace));
        CHECK(rule.required);
      }
    return found;
  };
  CHECK(rules(plain) == 0);
  CHECK(rules(plain + " workspace=65536") == 1);
}

TEST_CASE("a contract passes on that weights are constant", "[problem]") {
  const std::string plain = "gemm x=f16 w=f16 y=f16" + kShape;
  const auto passed = [](const std::string& text) {
    tw::gemm::Shape shape{};
    const Contract c = contract_for(Problem::parse(text));
    REQUIRE(c.constants.size() == sizeof shape);
    std::memcpy(&shape, c.constants.data(), sizeof shape);
    return shape.constant_weights;
  };
  CHECK(passed(plain) == 0);
  CHECK(passed(plain + " weights=constant") == 1);
}

TEST_CASE("rows of x that are read in pieces of 16 bytes start on one, whatever scales they have", "[problem]") {
  const std::pair<const char*, std::int64_t> multiples[] = {{"x=f16 w=f16", 8},
                                                            {"x=e4m3 w=e4m3", 16},
                                                            {"x=e4m3_row w=e4m3_row", 16},
                                                            {"x=int8_row w=int8_row", 16},
                                                            {"x=e5m2 w=e5m2", 16},
                                                            {"x=e4m3_tensor w=e4m3_tensor global=mul", 16},
                                                            {"x=e4m3_g128 w=e4m3_b128", 128}};
  for (const auto& [formats, multiple] : multiples) {
    INFO(formats);
    std::string text = formats, global;
    if (const auto at = text.find(" global"); at != std::string::npos)
      global = text.substr(at), text = text.substr(0, at);
    const Contract contract = contract_for(Problem::parse("gemm " + text + " y=f32" + kShape + global));
    CHECK(contract.strides[0].name == std::string("ldx"));
    CHECK(contract.strides[0].multiple == multiple);
    CHECK(contract.pointers[0].align == 16);
  }
}

TEST_CASE("a launch gives alpha and beta where the problem leaves them open", "[problem]") {
  const auto rule = [](const std::string& text, const char* name) {
    for (const FactorRule& r : contract_for(Problem::parse("gemm " + text + kShape)).factors)
      if (r.name == std::string(name)) return std::string(r.only_one ? r.only_one : "any");
    return std::string("none");
  };
  CHECK(rule("x=f16 w=f16 y=f16", "alpha") == "any");
  CHECK(rule("x=f16 w=f16 y=f16", "beta") == "the problem has no c");
  CHECK(rule("x=f16 w=f16 y=f16 alpha=3 c=f16", "alpha") == "any");
  CHECK(rule("x=f16 w=f16 y=f16 alpha=3 c=f16", "beta") == "any");
  CHECK(rule("x=int8 w=int8 y=int32", "alpha") == "y=int32 is exact");
  CHECK(GemmArgs{}.alpha == 1.0f);
  CHECK(GemmArgs{}.beta == 1.0f);
}
