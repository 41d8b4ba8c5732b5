// SPDX-License-Identifier: Apache-2.0
// The error bound of gemm against numbers worked out by hand from docs/reference/numerics.md.
#include <tilewright/numerics.h>
#include <tilewright/problem.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "support/catch.h"
#include "templates/operations/gemm/judge.h"

using namespace tilewright;

namespace {

Gemm gemm_of(const std::string& fields) { return *Problem::parse("gemm " + fields + " m=16 n=128 k=256").as<Gemm>(); }

// Within the few parts in a thousand by which the formula's constants are rounded up, and never below.
void check_bound(const Expected& e, double least) {
  CHECK(e.bound >= least);
  CHECK(e.bound <= 1.005 * least);
}

}  // namespace

TEST_CASE("the error bound counts additions, the epilogue and the store", "[numerics]") {
  // k = 256: 64 additions in sequence and 64 more.
  const double sums = 1.2 * 0.5 * 100 * 128 * std::ldexp(1, -24);
  const double epilogue = std::ldexp(1, -20) * (5 + 4 + 1);  // |linear + bias|, |linear|, |bias|
  const Gemm g = gemm_of("x=f16 w=f16 y=f16 bias=f32");
  const Expected e = gemm_expected(g, {.product = 8, .magnitude = 100, .scale = 0.5, .bias = 1});
  CHECK(e.value == 5);
  const double b = sums + epilogue;
  check_bound(e, b + std::ldexp(1, -11) * (5 + b) + std::ldexp(1, -24));
}

TEST_CASE("the error bound allows matrix units to cut off what they add", "[numerics]") {
  const GemmSums sums{.product = 0, .magnitude = 1000};
  const double additions = 1.2 * 1000 * 128 * std::ldexp(1, -24);
  const auto cut = [&](const std::string& fields) {
    return gemm_expected(gemm_of(fields), sums).bound / (1 + std::ldexp(1, -24)) - additions * 1.0016;
  };
  const double one = 1.2 * 1000 * std::ldexp(1, -10);  // a sum of 32 products
  CHECK(std::fabs(cut("x=f16 w=f16 y=f32")) < 1e-2 * one);
  CHECK(cut("x=e4m3 w=e5m2 y=f32") == Approx(4 * one).epsilon(1e-3));
  CHECK(cut("x=e4m3 w=e4m3 y=f32 accum=fast") == Approx(256 / 32 * one).epsilon(1e-3));
  CHECK(cut("x=e4m3_row w=int4_row y=f32") == Approx(4 * one).epsilon(1e-3));
  CHECK(cut("x=e4m3_row w=int4_row y=f32 pack=tiles") == Approx(4 * one).epsilon(1e-3));
  CHECK(std::fabs(cut("x=e4m3_row w=q8_0 y=f32")) < 1e-2 * one);  // its products are not FP8's
  CHECK(std::fabs(cut("x=f16 w=e4m3_row y=f32")) < 1e-2 * one);
  CHECK(cut("x=mxfp8 w=mxfp8 y=f32") == Approx(4 * one).epsilon(1e-3));  // blocks that the units scale
  CHECK(std::fabs(cut("x=f16 w=mxfp8 y=f32")) < 1e-2 * one);
}

TEST_CASE("the error bound of rounded weights, residuals and scaled outputs", "[numerics]") {
  const Expected rounded = gemm_expected(gemm_of("x=f16 w=q4_0 y=f32 pack=tiles"), {.rounding = 10, .scale = -2});
  check_bound(rounded, 1.2 * 2 * 10 * (1 + std::ldexp(1, -24)));
  // y = (4 + 2) / 0.5: the error is divided as well.
  const Expected scaled =
      gemm_expected(gemm_of("x=int8_row w=int8_row y=int8 c=f32 y_scale=0.5"), {.product = 4, .residual = 2});
  CHECK(scaled.value == 12);
  check_bound(scaled, std::ldexp(1, -20) * (4 + 4 + 2) * 2 + std::ldexp(1, -20) * 12 + 0.5);
}

TEST_CASE("the error bound allows entries of a table to be rounded to x's sixteen bits", "[numerics]") {
  const auto slack = [](const char* fields) {
    return gemm::slack_of_weights(gemm_of(fields), Matrix{.name = "w", .format = Format::parse("nf4")},
                                  {1.0f, -2.0f, 0.0f}, {});
  };
  const std::vector<float> f16 = slack("x=f16 w=nf4 y=f32"), bf16 = slack("x=bf16 w=nf4 y=f32");
  REQUIRE(f16.size() == 3);
  REQUIRE(bf16.size() == 3);
  // A half's rounding is at most 2^-11, a bfloat16's 2^-8; NF4's sixteen entries happen to be nearer.
  CHECK(f16[0] == Approx(3.26e-4));
  CHECK(bf16[0] == Approx(3.12e-3));
  for (const auto& s : {f16, bf16}) {
    CHECK(s[1] == 2 * s[0]);
    CHECK(s[2] == 0);
  }
  for (const char* fields : {"x=f32 w=nf4 y=f32", "x=int8_row w=nf4 y=f32", "x=q8_1 w=nf4 y=f32", "x=f16 w=q4_0 y=f32",
                             "x=bf16 w=ternary_row y=f32", "x=f16 w=sign_row y=f32"}) {
    INFO(fields);
    CHECK(slack(fields).empty());
  }
}

TEST_CASE("expected values are clamped to what y holds", "[numerics]") {
  CHECK(gemm_expected(gemm_of("x=int8 w=int8 y=int8"), {.product = 1e6}).value == 127);
  CHECK(gemm_expected(gemm_of("x=int8 w=int8 y=int8"), {.product = -1e6}).value == -128);
  CHECK(gemm_expected(gemm_of("x=e4m3 w=e4m3 y=e4m3"), {.product = -1e6}).value == -448);
  CHECK(gemm_expected(gemm_of("x=f16 w=f16 y=f16"), {.product = 1e6}).value == 1e6);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(gemm_expected(gemm_of("x=int8 w=int8 y=int8"), {.product = nan}).value == 0);
  CHECK(std::isnan(gemm_expected(gemm_of("x=e4m3 w=e4m3 y=e4m3"), {.product = nan}).value));
}

TEST_CASE("an infinite term leaves no error but the store's", "[numerics]") {
  const double inf = std::numeric_limits<double>::infinity();
  struct Y {
    const char* name;
    double most, step;  // what storing the largest value may cost
  };
  for (const auto& [name, most, step] :
       {Y{"int8", 127, 0.5001}, Y{"e4m3", 448, 448 * 0.0626 + 0.00196}, Y{"e5m2", 57344, 57344 * 0.1251 + 1.53e-5}})
    for (const double sign : {1.0, -1.0})
      for (const bool bias : {false, true}) {
        INFO(name << " " << sign << " " << bias);
        const Gemm g = gemm_of(std::string("x=f16 w=f16 bias=f32 c=f32 y_scale=0.5 y=") + name);
        const Expected e = bias ? gemm_expected(g, {.product = 3, .magnitude = 5, .bias = sign * inf})
                                : gemm_expected(g, {.product = 3, .magnitude = 5, .residual = sign * inf});
        CHECK(e.value == (sign > 0 ? most : std::string(name) == "int8" ? -128 : -most));
        CHECK(e.bound == Approx(step).epsilon(1e-6));
      }
  // Of x or w; and what an activation makes of it.
  const Expected of_operand = gemm_expected(gemm_of("x=f16 w=f16 y=int8"), {.product = inf, .magnitude = inf});
  CHECK(of_operand.value == 127);
  CHECK(of_operand.bound == Approx(0.5001));
  const Expected relu = gemm_expected(gemm_of("x=f16 w=f16 y=f32 act=relu"), {.product = -inf, .magnitude = inf});
  CHECK(relu.value == 0);
  CHECK(relu.bound < 1e-40);
}

TEST_CASE("integers are exact", "[numerics]") {
  const Expected e =
      gemm_expected(gemm_of("x=int8 w=int8 y=int32 bias=int32"), {.product = 1000, .magnitude = 5000, .bias = 7});
  CHECK(e.value == 1007);
  CHECK(e.bound < 1);
}

TEST_CASE("activations", "[numerics]") {
  CHECK(activate(Activation::none, -3) == -3);
  CHECK(activate(Activation::relu, -3) == 0);
  CHECK(activate(Activation::gelu, 1) == Approx(0.841344746068543).epsilon(1e-12));
  CHECK(activate(Activation::gelu_tanh, 1) == Approx(0.841191990608276).epsilon(1e-12));
  CHECK(activate(Activation::silu, -1) == Approx(-0.268941421369995).epsilon(1e-12));
  CHECK(std::isnan(activate(Activation::relu, std::numeric_limits<double>::quiet_NaN())));
}
