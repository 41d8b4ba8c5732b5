// SPDX-License-Identifier: Apache-2.0
// What an Observer accumulates: the same however the data is cut, ordered and merged, and through JSON and back.
#include <tilewright/calibration.h>
#include <tilewright/error.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "support/catch.h"
#include "support/refusal.h"

using namespace tilewright;
using Json = nlohmann::json;

namespace {

// Magnitudes over many powers of two, zeros and NaNs among them.
std::vector<float> mixed(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(n);
  for (float& v : values) {
    const unsigned kind = random() % 40;
    v = static_cast<float>(
        std::ldexp(static_cast<double>(random() % 2001) - 1000, static_cast<int>(random() % 24) - 16));
    if (kind == 0) v = 0;
    if (kind == 1) v = -0.0f;
    if (kind == 2) v = std::numeric_limits<float>::quiet_NaN();
    if (kind == 3) v = std::numeric_limits<float>::denorm_min() * static_cast<float>(random() % 9);
  }
  return values;
}

Observer seen(const std::vector<float>& values, const ObserverOptions& options = {}) {
  Observer o(options);
  o.observe(values);
  return o;
}

std::uint64_t sum(const std::vector<std::uint64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
}

}  // namespace

TEST_CASE("observer: counts are those of all values at the final width") {
  const std::vector<float> values = mixed(3000, 1);
  const Observer o = seen(values, {.bins = 512});
  const Observation& all = o.channels().at(0);
  double amax = 0;
  std::uint64_t nans = 0;
  for (const float v : values)
    if (std::isnan(v))
      ++nans;
    else
      amax = std::max(amax, std::fabs(static_cast<double>(v)));
  const double w = std::ldexp(1.0, all.exponent);
  CHECK(amax < 512 * w);
  CHECK(amax >= 256 * w);
  std::vector<std::uint64_t> negative(512), positive(512);
  for (const float v : values)
    if (!std::isnan(v)) ++(v < 0 ? negative : positive)[static_cast<std::size_t>(std::floor(std::fabs(v) / w))];
  CHECK(all.negative == negative);
  CHECK(all.positive == positive);
  CHECK(all.nans == nans);
  CHECK(all.count == values.size() - nans);
}

TEST_CASE("observer: neither order nor cuts change a bit") {
  std::vector<float> values = mixed(2000, 2);
  const Observer whole = seen(values);
  std::mt19937 random(3);
  for (int round = 0; round < 10; ++round) {
    std::shuffle(values.begin(), values.end(), random);
    Observer cut;
    for (std::size_t at = 0; at < values.size();) {
      const std::size_t n = std::min<std::size_t>(1 + random() % (round < 5 ? 7 : 900), values.size() - at);
      cut.observe(std::span(values).subspan(at, n));
      at += n;
    }
    CHECK(cut == whole);
  }
}

TEST_CASE("observer: two over two parts are one over all, to the bit") {
  for (const int bins : {0, 256, 2048})
    for (const std::size_t cut : {0u, 1u, 500u, 1999u, 2000u}) {
      INFO(bins << " " << cut);
      const std::vector<float> values = mixed(2000, 4);
      const std::vector<float> head(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(cut));
      const std::vector<float> tail(values.begin() + static_cast<std::ptrdiff_t>(cut), values.end());
      Observer a = seen(head, {.bins = bins});
      const Observer b = seen(tail, {.bins = bins});
      a.merge(b);
      const Observer whole = seen(values, {.bins = bins});
      Observation merged = a.channels()[0];
      merged.batches = 0, merged.first = {}, merged.average = {};  // the next test's
      Observation expected = whole.channels()[0];
      expected.batch.reset();
      CHECK(merged == expected);
    }
}

TEST_CASE("observer: moving averages merge to rounding errors") {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> batches(30, std::vector<float>(20));
  for (auto& batch : batches)
    for (float& v : batch) v = normal(random);
  for (const double momentum : {0.0, 0.5, 0.9, 0.999})
    for (std::size_t cut = 0; cut <= batches.size(); cut += 6) {
      INFO(momentum << " " << cut);
      Observer parts[2] = {Observer({.momentum = momentum}), Observer({.momentum = momentum})};
      double least = 0, largest = 0;
      for (std::size_t i = 0; i < batches.size(); ++i) {
        Observer& part = parts[i < cut ? 0 : 1];
        part.observe(batches[i]);
        part.end_batch();
        const auto [low, high] = std::minmax_element(batches[i].begin(), batches[i].end());
        least = i ? momentum * least + (1 - momentum) * *low : *low;
        largest = i ? momentum * largest + (1 - momentum) * *high : *high;
      }
      parts[0].merge(parts[1]);
      CHECK(parts[0].channels()[0].batches == batches.size());
      const ClipRange r =
          clip_ranges(parts[0], {.method = CalibrationMethod::moving_average, .symmetry = Symmetry::asymmetric})[0];
      const double bound = std::ldexp(32 * 4.0, -50);
      CHECK(std::fabs(r.min - least) <= bound);
      CHECK(std::fabs(r.max - largest) <= bound);
    }
}

TEST_CASE("observer: a batch is what end_batch() ends, however many calls brought it") {
  Observer o({.momentum = 0.5});
  o.observe(std::vector<float>{1, 2});
  o.observe(std::vector<float>{-4});
  o.end_batch();
  o.end_batch();  // nothing since
  o.observe(std::vector<float>{NAN});
  o.end_batch();  // no number
  CHECK(o.channels()[0].batches == 1);
  o.observe(std::vector<float>{0, 6});
  o.end_batch();
  CHECK(clip_ranges(o, {.method = CalibrationMethod::moving_average, .symmetry = Symmetry::asymmetric})[0] ==
        ClipRange{-2, 4});
}

TEST_CASE("observer: channels along any axis, from any element on") {
  const std::int64_t outer = 3, channels = 5, inner = 4;
  const std::vector<float> values = mixed(60, 6);
  std::vector<std::vector<float>> by_channel(5);
  for (std::int64_t i = 0; i < outer * channels * inner; ++i)
    by_channel[static_cast<std::size_t>(i / inner % channels)].push_back(values[static_cast<std::size_t>(i)]);
  for (const std::size_t piece : {1u, 3u, 4u, 7u, 60u}) {
    INFO(piece);
    Observer o({.channels = channels, .bins = 256});
    for (std::size_t at = 0; at < values.size(); at += piece)
      o.observe(std::span(values).subspan(at, std::min(piece, values.size() - at)), static_cast<std::int64_t>(at),
                inner);
    for (std::size_t c = 0; c < 5; ++c) CHECK(o.channels()[c] == seen(by_channel[c], {.bins = 256}).channels()[0]);
    Observation whole = seen(values, {.bins = 256}).channels()[0];
    whole.batch.reset();
    CHECK(o.total() == whole);
  }
}

TEST_CASE("observer: f16 and bf16 as they are stored") {
  const std::vector<float> values = {1, -2.5f, 0.15625f, 0, -0.0f, 448, NAN};  // exact in both
  for (const char* name : {"f32", "f16", "bf16"}) {
    INFO(name);
    const Format format = Format::parse(name);
    std::vector<std::byte> bytes(1 + static_cast<std::size_t>(format.total_bytes(1, 7)));  // at an odd address
    std::vector<std::byte> encoded(bytes.size() - 1);
    format.info().encode(values.data(), 1, 7, {encoded.data(), nullptr, nullptr}, 0);
    std::memcpy(bytes.data() + 1, encoded.data(), encoded.size());
    Observer o;
    o.observe(format, std::span(bytes).subspan(1));
    CHECK(o == seen(values));
    CHECK(refusal([&] { o.observe(format, std::span(bytes)); }).field() == "bytes");
  }
  Observer o;
  CHECK(refusal([&] { o.observe(Format::parse("e4m3"), {}); }).value() == "e4m3");
}

TEST_CASE("observer: an infinity is an error that names its place, and changes nothing") {
  Observer o({.channels = 3});
  o.observe(std::vector<float>{1, 2, 3});
  const Observer before = o;
  const Error e = refusal([&] { o.observe(std::vector<float>{5, 6, 7, -INFINITY}, 10, 2); });
  CHECK(e.field() == "element 13, of channel 0");
  CHECK(e.value() == "-inf");
  CHECK(o == before);
  Observer one;
  CHECK(refusal([&] { one.observe(std::vector<float>{INFINITY}); }).field() == "element 0");
  CHECK(refusal([&] { one.observe(std::vector<float>{1}, -1); }).field() == "first");
  CHECK(refusal([&] { one.observe(std::vector<float>{1}, 0, 0); }).field() == "inner");
  CHECK(refusal([&] { one.observe(std::vector<float>{1, 2}, INT64_MAX - 1); }).field() == "first");
  one.observe({});
  CHECK(one == Observer());
}

TEST_CASE("observer: options out of range are errors that name them") {
  const auto refused = [](const ObserverOptions& o) { return refusal([&] { Observer{o}; }).field(); };
  CHECK(refused({.channels = 0}) == "channels");
  CHECK(refused({.channels = INT64_MAX}) == "channels");
  CHECK(refused({.channels = ObserverOptions::kMostChannels, .bins = 256}) == "channels");
  for (const int bins : {-1, 1, 128, 257, 131072, INT32_MIN}) CHECK(refused({.bins = bins}) == "bins");
  for (const double momentum : {-0.1, 1.0, static_cast<double>(NAN)})
    CHECK(refused({.momentum = momentum}) == "momentum");
  Observer a, b({.bins = 256});
  CHECK(refusal([&] { a.merge(b); }).field() == "options");
}

TEST_CASE("observer: one value, zeros, the least and the largest float") {
  for (const float v : {0.0f, 1e-45f, -1e-45f, 3.4028235e38f, -3.4028235e38f, 1.0f, -2048.0f}) {
    INFO(v);
    const Observer o = seen({v});
    const Observation& c = o.channels()[0];
    CHECK(c.min == v);
    CHECK(c.max == v);
    CHECK(sum(c.negative) == (v < 0 ? 1u : 0u));
    CHECK(sum(c.positive) == (v < 0 ? 0u : 1u));
    Observer both = seen({3.4028235e38f});
    both.merge(o);
    CHECK(both.channels()[0].count == 2);
    CHECK(Observer::from_json(o.json()) == o);
  }
}

TEST_CASE("observer: to JSON and back to the bit") {
  for (const ObserverOptions& options :
       {ObserverOptions{}, ObserverOptions{.channels = 7, .bins = 256, .momentum = 0.3},
        ObserverOptions{.channels = 2, .bins = 0}}) {
    Observer o(options);
    CHECK(Observer::from_json(o.json()) == o);
    for (unsigned i = 0; i < 3; ++i) {
      o.observe(mixed(100, 7 + i));
      CHECK(Observer::from_json(o.json()) == o);  // inside a batch
      o.end_batch();
      CHECK(Observer::from_json(o.json()) == o);
    }
    Observer more = Observer::from_json(o.json());
    more.observe(mixed(50, 9));
    o.observe(mixed(50, 9));
    CHECK(more == o);
  }
}

TEST_CASE("observer: JSON that is not an observer's is refused by name") {
  Observer o({.bins = 256});
  o.observe(std::vector<float>{-1, 2, 3});
  o.end_batch();
  const Json right = Json::parse(o.json());
  const auto refused = [&](const std::string& path, const Json& value, const std::string& field) {
    Json wrong = right;
    wrong[Json::json_pointer(path)] = value;
    INFO(path << " " << value);
    const Error e = refusal([&] { Observer::from_json(wrong.dump()); });
    CHECK(e.field().find(field) != std::string::npos);
  };
  refused("/tilewright_observer", 2, "'tilewright_observer'");
  refused("/channels", 2, "'state'");
  refused("/channels", -1, "'state'");
  refused("/channels", 1.5, "'channels'");
  refused("/channels", INT64_MIN, "'channels'");
  refused("/bins", 100, "bins");
  refused("/bins", 512, "'exponent'");
  refused("/momentum", 1, "momentum");
  refused("/state", Json::object(), "'state'");
  refused("/state/0", 5, "channel 0");
  refused("/state/0/count", 4, "'count'");
  refused("/state/0/count", -3, "'count'");
  refused("/state/0/nans", "1", "'nans'");
  refused("/state/0/min", 1e300, "'min'");
  refused("/state/0/min", -1.0000000001, "'min'");
  refused("/state/0/min", nullptr, "'min'");
  refused("/state/0/max", -5, "'max'");
  refused("/state/0/max", 300, "'exponent'");
  refused("/state/0/max", 2.5, "'positive'");
  refused("/state/0/exponent", 1 << 29, "'exponent'");
  refused("/state/0/negative", Json::array(), "'negative'");
  refused("/state/0/positive", Json::parse("[[128, 1], [192, 1], [300, 1]]"), "'positive'");
  refused("/state/0/positive", Json::parse("[[192, 1], [128, 1]]"), "'positive'");
  refused("/state/0/positive", Json::parse("[[128, 0], [192, 1]]"), "'positive'");
  refused("/state/0/positive", Json::parse("[[128, 18446744073709551615], [192, 2]]"), "'count'");
  refused("/state/0/batches", nullptr, "'batches'");
  refused("/state/0/first", Json::parse("[1]"), "'first'");
  refused("/state/0/average", Json::parse("[1, 1e39]"), "'average'");
  refused("/state/0/batch", Json::parse("[2, 1]"), "'batch'");
  for (const char* key : {"channels", "bins", "momentum", "state"}) {
    Json wrong = right;
    wrong.erase(key);
    CHECK(refusal([&] { Observer::from_json(wrong.dump()); }).allowed() == "is missing");
  }
  for (const std::string text : {"", "[", "5", "null", "{\"tilewright_observer\": 1e999}"})
    CHECK(refusal([&] { Observer::from_json(text); }).field().find("observer") != std::string::npos);
  CHECK(refusal([&] { Observer::from_json(std::string(100000, '[')); }).field() == "observer");
}
