// SPDX-License-Identifier: Apache-2.0
// Observers of values on the host and on a device, ranges and scales.
#include <fmt/format.h>

#include <span>

#include "capi/handles.h"

struct tw_observer : tilewright::capi::Handle {
  static constexpr char kKind[] = "observer";
  explicit tw_observer(tilewright::Observer o) : Handle(kKind), value(std::move(o)) {}
  tilewright::Observer value;
};

struct tw_device_observer : tilewright::capi::Handle {
  static constexpr char kKind[] = "device observer";
  explicit tw_device_observer(tilewright::DeviceObserver o) : Handle(kKind), value(std::move(o)) {}
  tilewright::DeviceObserver value;
};

using namespace tilewright;
using namespace tilewright::capi;

namespace {

ObserverOptions options_of(const tw_observer_options* given) {
  const tw_observer_options initial = TW_OBSERVER_OPTIONS_INIT;
  const tw_observer_options o = read_struct(given ? given : &initial, "options");
  return {o.channels, o.bins, o.momentum};
}

Symmetry symmetry_of(std::int32_t asymmetric) {
  check_flag(asymmetric, "asymmetric");
  return asymmetric ? Symmetry::asymmetric : Symmetry::symmetric;
}

}  // namespace

extern "C" {

tw_status tw_observer_create(const tw_observer_options* options, tw_observer** observer, tw_error** error) {
  return guarded(error, [&] { create(observer, "observer", Observer(options_of(options))); });
}

tw_status tw_observer_observe(tw_observer* observer, const char* format, const void* values, size_t bytes,
                              int64_t first, int64_t inner, tw_error** error) {
  return guarded(error, [&] {
    if (bytes != 0 && values == nullptr) refuse("values", "null", fmt::format("must be memory of {} bytes", bytes));
    handle(observer).value.observe(Format::parse(text(format, "format")),
                                   {static_cast<const std::byte*>(values), bytes}, first, inner);
  });
}

tw_status tw_observer_end_batch(tw_observer* observer, tw_error** error) {
  return guarded(error, [&] { handle(observer).value.end_batch(); });
}

tw_status tw_observer_merge(tw_observer* observer, const tw_observer* other, tw_error** error) {
  return guarded(error, [&] { handle(observer).value.merge(handle(other, "other").value); });
}

tw_status tw_observer_json(const tw_observer* observer, char** json, tw_error** error) {
  return guarded(error, [&] {
    char*& text = required(json, "json");
    text = copy_text(handle(observer).value.json());
  });
}

tw_status tw_observer_from_json(const char* json, tw_observer** observer, tw_error** error) {
  return guarded(error, [&] { create(observer, "observer", Observer::from_json(text(json, "json"))); });
}

tw_status tw_observer_describe(const tw_observer* observer, tw_observer_options* options, tw_error** error) {
  return guarded(error, [&] {
    const ObserverOptions& o = handle(observer).value.options();
    write_struct(options, {0, o.bins, o.channels, o.momentum}, "options");
  });
}

tw_status tw_observer_channel(const tw_observer* observer, int64_t channel, tw_observation* observation,
                              tw_error** error) {
  return guarded(error, [&] {
    const std::vector<Observation>& all = handle(observer).value.channels();
    if (channel < 0 || channel >= static_cast<std::int64_t>(all.size()))
      refuse("channel", std::to_string(channel), fmt::format("must be 0 to {}", all.size() - 1));
    const Observation& o = all[static_cast<std::size_t>(channel)];
    write_struct(observation,
                 {0, o.exponent, o.count, o.nans, o.min, o.max, o.batches,
                  o.negative.empty() ? nullptr : &o.negative[0], o.positive.empty() ? nullptr : &o.positive[0]},
                 "observation");
  });
}

void tw_observer_release(tw_observer* observer) { release(observer); }

tw_status tw_clip_ranges(const tw_observer* observer, const tw_calibration* calibration, tw_clip_range* ranges,
                         size_t count, tw_error** error) {
  return guarded(error, [&] {
    const tw_calibration initial = TW_CALIBRATION_INIT;
    const tw_calibration c = read_struct(calibration ? calibration : &initial, "calibration");
    Calibration how;
    if (c.method) how.method = parse_calibration_method(c.method);
    if (c.target) how.target = CalibrationTarget::parse(c.target);
    how.percentile = c.percentile;
    how.symmetry = symmetry_of(c.asymmetric);
    const std::vector<ClipRange> found = clip_ranges(handle(observer).value, how);
    if (count != found.size())
      refuse("count", std::to_string(count), fmt::format("must be {}, the number of channels", found.size()));
    tw_clip_range* to = &required(ranges, "ranges");
    for (const ClipRange& range : found) *to++ = {range.min, range.max};
  });
}

tw_status tw_scale_for(tw_clip_range range, const char* target, int32_t asymmetric, float* scale, int32_t* zero_point,
                       tw_error** error) {
  return guarded(error, [&] {
    const ScaleAndZero s =
        scale_for({range.min, range.max}, CalibrationTarget::parse(text(target, "target")), symmetry_of(asymmetric));
    required(scale, "scale");
    required(zero_point, "zero_point") = s.zero_point;
    *scale = s.scale;
  });
}

tw_status tw_device_observer_create(tw_engine* engine, const tw_device* device, const char* format,
                                    const tw_observer_options* options, tw_device_observer** observer,
                                    tw_error** error) {
  return guarded(error, [&] {
    required(observer, "observer");
    create(observer, "observer",
           DeviceObserver(handle(engine).value, handle(device).value, Format::parse(text(format, "format")),
                          options_of(options)));
  });
}

tw_status tw_device_observer_observe(tw_device_observer* observer, tw_stream stream, const void* x, int64_t elements,
                                     int64_t first, int64_t inner, tw_error** error) {
  return guarded(error, [&] { handle(observer).value.observe(stream, x, elements, first, inner); });
}

tw_status tw_device_observer_end_batch(tw_device_observer* observer, tw_stream stream, tw_error** error) {
  return guarded(error, [&] { handle(observer).value.end_batch(stream); });
}

tw_status tw_device_observer_observed(const tw_device_observer* observer, tw_observer** seen, tw_error** error) {
  return guarded(error, [&] {
    required(seen, "seen");
    create(seen, "seen", handle(observer).value.observed());
  });
}

tw_status tw_device_observer_clear(tw_device_observer* observer, tw_error** error) {
  return guarded(error, [&] { handle(observer).value.clear(); });
}

void tw_device_observer_release(tw_device_observer* observer) { release(observer); }

}  // extern "C"
