// SPDX-License-Identifier: Apache-2.0
// Methods and scales, against tests/golden/calibration: results of a script that states every formula on its own.
#include <tilewright/calibration.h>
#include <tilewright/error.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "support/catch.h"
#include "support/paths.h"
#include "support/refusal.h"

using namespace tilewright;
using Json = nlohmann::json;

namespace {

const std::string kGolden = paths::source_dir() + "/tests/golden/calibration/";

struct Batches {
  std::size_t count = 0, each = 0;
  std::vector<float> values;
};

// Of a .npy file of the script's, whose header is known to be right; its shape is (batches, each).
Batches read_batches(const std::string& name) {
  std::ifstream file(kGolden + name + ".npy", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  REQUIRE(bytes.size() > 10);
  const std::size_t begin = 10 + static_cast<unsigned char>(bytes[8]) + 256 * static_cast<unsigned char>(bytes[9]);
  const std::string header = bytes.substr(10, begin - 10);
  Batches found;
  const char* shape = header.c_str() + header.find('(') + 1;
  found.count = std::strtoul(shape, nullptr, 10);
  found.each = std::strtoul(std::strchr(shape, ',') + 1, nullptr, 10);
  const char type = header[header.find("<f") + 2];
  found.values.resize(found.count * found.each);
  const char* data = bytes.data() + begin;
  for (std::size_t i = 0; i < found.values.size(); ++i) {
    if (type == '8') {
      double v;
      std::memcpy(&v, data + 8 * i, 8);
      found.values[i] = static_cast<float>(v);
    } else if (type == '4') {
      std::memcpy(&found.values[i], data + 4 * i, 4);
    } else {
      Format::parse("f16").info().decode({data + 2 * i, nullptr, nullptr}, 1, 1, &found.values[i]);
    }
  }
  return found;
}

Observer observed(const Batches& batches, const ObserverOptions& options) {
  Observer o(options);
  for (std::size_t b = 0; b < batches.count; ++b) {
    o.observe(std::span(batches.values).subspan(b * batches.each, batches.each));
    o.end_batch();
  }
  return o;
}

Calibration calibration(const Json& entry) {
  Calibration how;
  how.method = parse_calibration_method(entry["method"].get<std::string>());
  how.target = CalibrationTarget::parse(entry["target"].get<std::string>());
  how.symmetry = entry["symmetric"] ? Symmetry::symmetric : Symmetry::asymmetric;
  how.percentile = entry.value("percentile", 99.9);
  return how;
}

// Of all bins' middles, to the nearest value that a code has.
double squared_error(const Observation& o, const CalibrationTarget& target, const ScaleAndZero& s) {
  double sum = 0;
  const double w = std::ldexp(1.0, o.exponent);
  const auto add = [&](double middle, std::uint64_t count) {
    double least = std::numeric_limits<double>::infinity();
    for (int q = target.least(); q <= target.most(); ++q)
      least = std::min(least, std::fabs(middle - (q - s.zero_point) * static_cast<double>(s.scale)));
    sum += static_cast<double>(count) * least * least;
  };
  for (std::size_t i = 0; i < o.positive.size(); ++i) add((static_cast<double>(i) + 0.5) * w, o.positive[i]);
  for (std::size_t i = 0; i < o.negative.size(); ++i) add(-(static_cast<double>(i) + 0.5) * w, o.negative[i]);
  return sum;
}

Observer seen(const std::vector<float>& values, int bins = 2048) {
  Observer o({.bins = bins});
  o.observe(values);
  o.end_batch();
  return o;
}

std::vector<float> gaussian(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& v : values) v = normal(random);
  return values;
}

}  // namespace

TEST_CASE("calibration: every method gives what the script computed") {
  const Json expected = Json::parse(std::ifstream(kGolden + "expected.json"));
  const ObserverOptions options{.bins = expected["bins"], .momentum = expected["momentum"]};
  std::size_t compared = 0;
  for (const auto& [name, entries] : expected["cases"].items()) {
    const Observer observer = observed(read_batches(name), options);
    for (const Json& entry : entries) {
      INFO(name << " " << entry.dump());
      const Calibration how = calibration(entry);
      const ClipRange range = clip_ranges(observer, how).at(0);
      const ScaleAndZero s = scale_for(range, how.target, how.symmetry);
      ++compared;
      if (entry.contains("least_error")) {  // of all pairs of ends; each end in turn may stop before
        const double error = squared_error(observer.channels()[0], how.target, s);
        CHECK(error >= entry["least_error"].get<double>() * (1 - 1e-9));
        CHECK(error <= entry["least_error"].get<double>() * 1.05);
        continue;
      }
      if (how.method == CalibrationMethod::moving_average) {  // in another order of operations
        CHECK(range.min == Approx(entry["min"].get<double>()).epsilon(1e-14));
        CHECK(range.max == Approx(entry["max"].get<double>()).epsilon(1e-14));
        CHECK(s.scale == Approx(entry["scale"].get<double>()).epsilon(1e-6));
      } else {
        CHECK(range.min == entry["min"].get<double>());
        CHECK(range.max == entry["max"].get<double>());
        CHECK(s.scale == entry["scale"].get<float>());
      }
      CHECK(s.zero_point == entry["zero_point"].get<int>());
    }
  }
  CHECK(compared > 300);
}

TEST_CASE("calibration: a percentile is at most one bin above the value of its rank") {
  const std::vector<float> values = gaussian(5000, 1);
  const Observer observer = seen(values);
  std::vector<double> sorted, magnitudes;
  for (const float v : values) sorted.push_back(v), magnitudes.push_back(std::fabs(v));
  std::sort(sorted.begin(), sorted.end());
  std::sort(magnitudes.begin(), magnitudes.end());
  const double w = std::ldexp(1.0, observer.channels()[0].exponent);
  CHECK(w <= magnitudes.back() / 1024);
  for (const double p : {1e-9, 0.1, 10.0, 50.0, 97.0, 99.9, 99.99}) {
    INFO(p);
    const auto rank = static_cast<std::size_t>(std::ceil(p * 5000 / 100));
    const ClipRange r = clip_ranges(observer, {.method = CalibrationMethod::percentile, .percentile = p})[0];
    CHECK(r.min == -r.max);
    CHECK(r.max >= magnitudes[rank - 1]);
    CHECK(r.max <= magnitudes[rank - 1] + w);
    const auto upper = static_cast<std::size_t>(std::ceil((100 + p) * 5000 / 200));
    const ClipRange a = clip_ranges(
        observer, {.method = CalibrationMethod::percentile, .percentile = p, .symmetry = Symmetry::asymmetric})[0];
    CHECK(a.max >= sorted[upper - 1]);
    CHECK(a.max <= sorted[upper - 1] + w);
    CHECK(a.min <= sorted[5000 - upper]);
    CHECK(a.min >= sorted[5000 - upper] - w);
  }
  const ClipRange all = clip_ranges(observer, {.method = CalibrationMethod::percentile, .percentile = 100})[0];
  CHECK(all.max == magnitudes.back());
}

TEST_CASE("calibration: mse clips a lone outlier, and its error is no larger than that of other ranges") {
  std::vector<float> values = gaussian(4000, 2);
  values.push_back(40);
  const Observer observer = seen(values);
  for (const char* name : {"int8", "int4", "int2"}) {
    INFO(name);
    const CalibrationTarget target = CalibrationTarget::parse(name);
    const ClipRange best = clip_ranges(observer, {.method = CalibrationMethod::mse, .target = target})[0];
    CHECK(best.max > 0.5);
    if (target.bits() < 8) CHECK(best.max < 12);
    const auto error = [&](double t) {
      const double s = scale_for({-t, t}, target, Symmetry::symmetric).scale;
      double sum = 0;
      for (const float v : values) {
        const double q = std::clamp(std::nearbyint(v / s), -target.largest(), target.largest());
        sum += (v - q * s) * (v - q * s);
      }
      return sum;
    };
    // The histogram has each value to half a bin, 1/64: far less than the steps of these targets' ranges.
    for (const double t : {0.5, 1.0, 2.0, 3.0, 4.0, 8.0, 40.0}) CHECK(error(best.max) <= error(t) * 1.02 + 0.3);
  }
}

TEST_CASE("calibration: entropy clips an outlier, and keeps a uniform range") {
  std::vector<float> values = gaussian(20000, 3);
  values.push_back(50);
  const ClipRange clipped = clip_ranges(seen(values), {.method = CalibrationMethod::entropy})[0];
  CHECK(clipped.max < 25);
  CHECK(clipped.max > 2);
  std::vector<float> uniform;
  for (int i = 0; i < 4096; ++i) uniform.push_back(static_cast<float>(i) / 4096);
  const ClipRange kept = clip_ranges(seen(uniform), {.method = CalibrationMethod::entropy})[0];
  CHECK(kept.max == uniform.back());
  const ClipRange one_side = clip_ranges(seen(uniform), {.method = CalibrationMethod::entropy,
                                                         .target = CalibrationTarget::parse("uint8"),
                                                         .symmetry = Symmetry::asymmetric})[0];
  CHECK(one_side == ClipRange{0, uniform.back()});
}

TEST_CASE("calibration: scales and zero points") {
  const auto symmetric = [](double t, const char* name) {
    return scale_for({-t, t}, CalibrationTarget::parse(name), Symmetry::symmetric);
  };
  const auto asymmetric = [](double min, double max, const char* name) {
    return scale_for({min, max}, CalibrationTarget::parse(name), Symmetry::asymmetric);
  };
  CHECK(symmetric(127, "int8") == ScaleAndZero{1, 0});
  CHECK(symmetric(127, "uint8") == ScaleAndZero{1, 128});
  CHECK(symmetric(3.5, "int4") == ScaleAndZero{0.5, 0});
  CHECK(symmetric(448, "e4m3") == ScaleAndZero{1, 0});
  CHECK(symmetric(57344, "e5m2") == ScaleAndZero{1, 0});
  CHECK(symmetric(3, "e2m1") == ScaleAndZero{0.5, 0});
  CHECK(asymmetric(0, 255, "uint8") == ScaleAndZero{1, 0});
  CHECK(asymmetric(0, 255, "int8") == ScaleAndZero{1, -128});
  CHECK(asymmetric(10, 255, "uint8") == ScaleAndZero{1, 0});  // 0 is in the range
  CHECK(asymmetric(-255, -3, "uint8") == ScaleAndZero{1, 255});
  CHECK(asymmetric(-0.5, 254.5, "uint8") == ScaleAndZero{1, 0});  // ties to even
  CHECK(asymmetric(-1.5, 253.5, "uint8") == ScaleAndZero{1, 2});
  CHECK(symmetric(0, "int8") == ScaleAndZero{1, 0});
  CHECK(asymmetric(0, 0, "int8") == ScaleAndZero{1, -128});
  CHECK(symmetric(1e-45, "int8").scale == std::numeric_limits<float>::min());
  CHECK(std::isfinite(asymmetric(-3.4e38, 3.4e38, "uint2").scale));
  for (const double bad : {std::nan(""), HUGE_VAL, 1e39})
    CHECK(refusal([&] { symmetric(bad, "int8"); }).field() == "range");
  CHECK(refusal([&] { asymmetric(2, 1, "int8"); }).value() == "[2, 1]");
  CHECK(refusal([&] { asymmetric(0, 1, "e4m3"); }).code() == ErrorCode::unsupported);
}

TEST_CASE("calibration: targets and methods by name") {
  CHECK(CalibrationTarget::parse("int8").magnitudes().size() == 128);
  CHECK(CalibrationTarget::parse("uint4").most() == 15);
  CHECK(CalibrationTarget::parse("int2").least() == -2);
  CHECK(CalibrationTarget::parse("e2m1").magnitudes() == std::vector<double>{0, .5, 1, 1.5, 2, 3, 4, 6});
  CHECK(CalibrationTarget::parse("e4m3").magnitudes().size() == 127);
  CHECK(CalibrationTarget::parse("e4m3").magnitudes()[1] == std::ldexp(1, -9));
  CHECK(CalibrationTarget::parse("e5m2").magnitudes().size() == 124);
  CHECK(CalibrationTarget::parse("e5m2").magnitudes()[1] == std::ldexp(1, -16));
  for (const char* name : {"", "int9", "int1", "float", "int8 ", "uint"}) {
    INFO(name);
    const Error e = refusal([&] { CalibrationTarget::parse(name); });
    CHECK(e.field() == "target");
    CHECK(e.value() == name);
  }
  for (const char* name : {"min-max", "moving-average", "percentile", "entropy", "mse"})
    CHECK(name_of(parse_calibration_method(name)) == name);
  CHECK(refusal([] { parse_calibration_method("max"); }).allowed().find("percentile") != std::string::npos);
}

TEST_CASE("calibration: what cannot be calibrated is an error that names it") {
  const auto refused = [](const Observer& o, const Calibration& how) { return refusal([&] { clip_ranges(o, how); }); };
  for (const auto method : {CalibrationMethod::min_max, CalibrationMethod::moving_average,
                            CalibrationMethod::percentile, CalibrationMethod::entropy, CalibrationMethod::mse}) {
    CHECK(refused(Observer(), {.method = method}).field() == "data");
    CHECK(refused(seen({NAN, NAN}), {.method = method}).value() == "2 NaNs");
    Observer two({.channels = 2});
    two.observe(std::vector<float>{1}, 1);
    two.end_batch();
    CHECK(refused(two, {.method = method}).field() == "data of channel 0");
  }
  const Observer one = seen({1, 2, 3});
  for (const double p : {0.0, -1.0, 100.0001, 200.0, std::nan("")})
    CHECK(refused(one, {.method = CalibrationMethod::percentile, .percentile = p}).field() == "percentile");
  CHECK(refused(seen({1}, 0), {.method = CalibrationMethod::mse}).field() == "bins");
  CHECK(clip_ranges(seen({1}, 0), {}).at(0) == ClipRange{-1, 1});
  Observer open;
  open.observe(std::vector<float>{1});
  CHECK(refused(open, {.method = CalibrationMethod::moving_average}).allowed().find("end_batch") != std::string::npos);
  CHECK(refused(one, {.target = CalibrationTarget::parse("e4m3"), .symmetry = Symmetry::asymmetric}).code() ==
        ErrorCode::unsupported);
}

TEST_CASE("calibration: no range is wider than the data") {
  std::mt19937 random(4);
  for (int round = 0; round < 60; ++round) {
    std::uniform_real_distribution<float> ends(-8, 8);
    const float a = ends(random), b = ends(random);
    std::uniform_real_distribution<float> values(std::min(a, b), std::max(a, b));
    std::vector<float> data(1 + random() % 300);
    for (float& v : data) v = values(random);
    const Observer observer = seen(data, 256);
    const double amax = std::max(std::fabs(observer.channels()[0].min), std::fabs(observer.channels()[0].max));
    for (const auto method : {CalibrationMethod::min_max, CalibrationMethod::moving_average,
                              CalibrationMethod::percentile, CalibrationMethod::entropy, CalibrationMethod::mse})
      for (const char* name : {"int8", "uint4", "int2"}) {
        INFO(round << " " << name_of(method) << " " << name);
        Calibration how{.method = method, .percentile = 90, .target = CalibrationTarget::parse(name)};
        const ClipRange symmetric = clip_ranges(observer, how)[0];
        CHECK(symmetric.min == -symmetric.max);
        CHECK(symmetric.max <= amax);
        CHECK(symmetric.max > 0);
        how.symmetry = Symmetry::asymmetric;
        const ClipRange range = clip_ranges(observer, how)[0];
        CHECK(range.min >= observer.channels()[0].min);
        CHECK(range.max <= observer.channels()[0].max);
        CHECK(range.min <= range.max);
        scale_for(range, how.target, how.symmetry);  // accepted
      }
  }
}
