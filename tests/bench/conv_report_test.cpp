// SPDX-License-Identifier: Apache-2.0
// What is concluded from times, which are made up here.
#include "bench/conv/conv_report.h"

#include <cmath>
#include <iterator>

#include "support/catch.h"

using namespace tilewright::bench;

namespace {

constexpr double kCopyTbps = 2, kFmaTflops = 50;

// A row that takes so long, its rival so long; 0: there is none.
ConvResult row(const std::string& layer, double us, double rival_us, ConvGoal goal) {
  ConvResult r;
  r.job.label = "f16", r.job.layer = layer, r.job.rivals = {"f16"}, r.job.goal = std::move(goal);
  r.us = us, r.rival_us = rival_us, r.ratio = rival_us / us, r.tbps = 1, r.tflops = 10;
  return r;
}

}  // namespace

TEST_CASE("bench conv: a row is judged by what is asked of it") {
  ConvReport report(kCopyTbps, kFmaTflops);
  report.add(row("1", 10, 12, {ConvMeasure::ratio, 1.2, "fast"}));
  report.add(row("2", 10, 8, {ConvMeasure::ratio, 1.2, "fast"}));
  report.add(row("3", 10, 0, {ConvMeasure::ratio, 1.2, "alone"}));
  report.add(row("4", 10, 12, {ConvMeasure::copy_rate, 0.5, "copies"}));
  report.add(row("5", 10, 12, {ConvMeasure::fma_rate, 0.25, "products"}));
  ConvJob lost;
  lost.label = "f16", lost.layer = "6", lost.goal = {ConvMeasure::ratio, 1.2, "none"};
  report.missing(lost, "no kernel");
  const Json json = report.finish();
  const char* const marks[] = {"pass", "SHORT", "-", "pass", "SHORT", "SHORT"};
  for (std::size_t i = 0; i < std::size(marks); ++i) {
    INFO("row " << i);
    CHECK(json["rows"][i]["mark"] == marks[i]);
  }
  CHECK(json["rows"][2]["note"] == "no rival");
  CHECK(json["rows"][3]["value"] == 0.5);
  CHECK(json["rows"][4]["value"] == 0.2);
  const Json& fast = json["summary"][0];
  CHECK(fast["group"] == "fast");
  CHECK(fast["worst"] == 0.8);
  CHECK(std::abs(fast["mean"].get<double>() - std::sqrt(1.2 * 0.8)) < 1e-12);
  CHECK((fast["rows"] == 2 && fast["reached"] == 1 && fast["mark"] == "SHORT"));
  CHECK(json["summary"][1]["mark"] == "-");  // nobody to compare with
  CHECK(json["summary"][4]["without_kernel"] == 1);
}

TEST_CASE("bench conv: a size is compared with the fastest larger one, whichever is measured first") {
  const ConvGoal goal{ConvMeasure::larger, 1.05, "sizes"};
  ConvReport report(kCopyTbps, kFmaTflops);
  const double times[] = {10.4, 12, 10};
  for (int i = 0; i < 3; ++i) {
    ConvResult r = row(std::to_string(i), times[i], 0, goal);
    r.job.whole = "a layer", r.ops = i + 1;
    report.add(r);
  }
  const Json json = report.finish();
  CHECK(json["rows"][0]["value"] == 1.04);
  CHECK(json["rows"][0]["mark"] == "pass");
  CHECK(json["rows"][1]["value"] == 1.2);
  CHECK(json["rows"][1]["mark"] == "SHORT");
  CHECK(json["rows"][2]["mark"] == "-");  // the largest
}
