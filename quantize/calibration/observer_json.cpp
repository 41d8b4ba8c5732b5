// SPDX-License-Identifier: Apache-2.0
// An observer as JSON:
//   {"tilewright_observer": 1, "channels": 1, "bins": 2048, "momentum": 0.9, "state": [one object for each channel]}
//   {"count", "nans", "min", "max", "exponent", "negative": [[bin, count], ...], "positive": likewise, of counts that
//    are not zero, "batches", "first": [least, largest], "average": likewise, "batch": likewise or null}
#include <fmt/format.h>
#include <tilewright/error.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "quantize/calibration/observation.h"
#include "support/must_be.h"

namespace tilewright {
namespace {

using Json = nlohmann::json;
using namespace quantize;

constexpr int kVersion = 1;
constexpr double kLargest = std::numeric_limits<float>::max();

Json sparse(const std::vector<std::uint64_t>& counts) {
  Json list = Json::array();
  for (std::size_t i = 0; i < counts.size(); ++i)
    if (counts[i]) list.push_back({i, counts[i]});
  return list;
}

Json to_json(const Observation& o) {
  return {{"count", o.count},
          {"nans", o.nans},
          {"min", o.min},
          {"max", o.max},
          {"exponent", o.exponent},
          {"negative", sparse(o.negative)},
          {"positive", sparse(o.positive)},
          {"batches", o.batches},
          {"first", o.first},
          {"average", o.average},
          {"batch", o.batch ? Json(*o.batch) : Json()}};
}

// One object of the text, whose members must be as they are asked for.
class Reader {
 public:
  Reader(const Json& json, std::string name) : json_(json), name_(std::move(name)) {
    if (!json.is_object()) throw must_be(name_, json.type_name(), "an object");
  }

  std::string field(const char* key) const { return fmt::format("{} '{}'", name_, key); }
  [[noreturn]] void refuse(const char* key, const std::string& wanted) const {
    std::string found = json_.contains(key) ? json_[key].dump(-1, ' ', true, Json::error_handler_t::replace) : "";
    if (found.size() > 64) found = found.substr(0, 64) + "...";
    throw Error(ErrorCode::invalid_argument, field(key), found, wanted);
  }
  const Json& at(const char* key) const {
    if (!json_.contains(key)) refuse(key, "is missing");
    return json_[key];
  }
  std::uint64_t count(const char* key) const {
    if (!at(key).is_number_unsigned()) refuse(key, "must be an integer of at least 0");
    return at(key).get<std::uint64_t>();
  }
  int integer(const char* key) const {
    constexpr std::int64_t kMost = 1 << 30;
    const Json& j = at(key);
    const bool fits = j.is_number_unsigned() ? j.get<std::uint64_t>() <= kMost
                                             : j.is_number_integer() && j.get<std::int64_t>() >= -kMost;
    if (!fits) refuse(key, "must be an integer, of magnitude 2^30 at most");
    return j.get<int>();
  }
  double number(const char* key) const { return number(key, at(key)); }
  std::array<double, 2> pair(const char* key) const {
    const Json& j = at(key);
    if (!j.is_array() || j.size() != 2) refuse(key, "must be two numbers");
    return {number(key, j[0]), number(key, j[1])};
  }
  std::vector<std::uint64_t> counts(const char* key, int bins) const {
    const Json& list = at(key);
    if (!list.is_array()) refuse(key, "must be an array");
    std::vector<std::uint64_t> counts(list.empty() ? 0 : static_cast<std::size_t>(bins));
    std::int64_t last = -1;
    for (const Json& entry : list) {
      const bool right = entry.is_array() && entry.size() == 2 && entry[0].is_number_unsigned() &&
                         entry[1].is_number_unsigned() && entry[0].get<std::uint64_t>() < counts.size() &&
                         entry[0].get<std::int64_t>() > last && entry[1].get<std::uint64_t>() > 0;
      if (!right) refuse(key, fmt::format("must be pairs of a bin, ascending and below {}, and its count", bins));
      last = entry[0].get<std::int64_t>();
      counts[static_cast<std::size_t>(last)] = entry[1].get<std::uint64_t>();
    }
    return counts;
  }

 private:
  double number(const char* key, const Json& j) const {
    if (!j.is_number() || !(std::fabs(j.get<double>()) <= kLargest)) refuse(key, "must be a number, finite as a float");
    return j.get<double>();
  }

  const Json& json_;
  std::string name_;
};

bool is_float(double value) { return static_cast<double>(static_cast<float>(value)) == value; }

// The last bin of a sign that is in use must be the one of that sign's largest magnitude.
bool ends_at(const std::vector<std::uint64_t>& counts, double magnitude, int exponent) {
  std::size_t used = counts.size();
  while (used > 0 && counts[used - 1] == 0) --used;
  return magnitude < 0 ? used == 0 : static_cast<double>(used) == std::floor(std::ldexp(magnitude, -exponent)) + 1;
}

Observation from_json(const Reader& in, const ObserverOptions& options) {
  Observation o;
  o.count = in.count("count");
  o.nans = in.count("nans");
  o.min = in.number("min");
  o.max = in.number("max");
  if (!is_float(o.min)) in.refuse("min", "must be a number of single precision");
  if (!is_float(o.max) || o.max < o.min || (o.count == 0 && (o.min != 0 || o.max != 0)))
    in.refuse("max", "must be a number of single precision, not less than min, and 0 like min if count is 0");
  o.exponent = in.integer("exponent");
  if (const int right = options.bins ? exponent_for(amax(o), options.bins) : 0; o.exponent != right)
    in.refuse("exponent", fmt::format("must be {}, as min and max make it", right));
  o.negative = in.counts("negative", options.bins);
  o.positive = in.counts("positive", options.bins);
  if (options.bins) {
    const bool any = o.count > 0;
    if (!ends_at(o.negative, any && o.min < 0 ? -o.min : -1, o.exponent))
      in.refuse("negative", "must end with the bin of min");
    if (!ends_at(o.positive, any && o.max >= 0 ? o.max : -1, o.exponent))
      in.refuse("positive", "must end with the bin of max");
    std::uint64_t rest = o.count;
    for (const auto* counts : {&o.negative, &o.positive})
      for (const std::uint64_t n : *counts) {
        if (n > rest) in.refuse("count", "must be the sum of the histograms' counts");
        rest -= n;
      }
    if (rest) in.refuse("count", "must be the sum of the histograms' counts");
  }
  o.batches = in.count("batches");
  o.first = in.pair("first");
  o.average = in.pair("average");
  if (!in.at("batch").is_null()) o.batch = in.pair("batch");
  if (o.count == 0 && (o.batches || o.batch)) in.refuse("batches", "must be 0 without values");
  if (o.batch && (*o.batch)[0] > (*o.batch)[1]) in.refuse("batch", "must be the least and the largest value");
  return o;
}

}  // namespace

std::string Observer::json() const {
  Json state = Json::array();
  for (const Observation& o : channels_) state.push_back(to_json(o));
  return Json{{"tilewright_observer", kVersion},
              {"channels", options_.channels},
              {"bins", options_.bins},
              {"momentum", options_.momentum},
              {"state", std::move(state)}}
      .dump();
}

Observer Observer::from_json(std::string_view text) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& e) {  // what is no JSON, or a number beyond double precision
    throw must_be("observer", "", std::string("JSON: ") + e.what());
  }
  const Reader in(json, "observer");
  if (in.integer("tilewright_observer") != kVersion)
    in.refuse("tilewright_observer", fmt::format("must be {}, the version that is read", kVersion));
  ObserverOptions options;
  options.channels = in.integer("channels");
  options.bins = in.integer("bins");
  options.momentum = in.number("momentum");
  const Json& state = in.at("state");
  if (!state.is_array() || state.size() != static_cast<std::size_t>(std::max<std::int64_t>(options.channels, 0)))
    in.refuse("state", fmt::format("must be an array of {} objects", options.channels));
  Observer observer(options);
  for (std::size_t i = 0; i < state.size(); ++i)
    observer.channels_[i] = tilewright::from_json(Reader(state[i], fmt::format("channel {}", i)), options);
  return observer;
}

}  // namespace tilewright
