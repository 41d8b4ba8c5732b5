// SPDX-License-Identifier: Apache-2.0
// Calibration and post-training quantization through C, on the host and, by the driver's double, on a device.
#include <cmath>
#include <limits>

#include "capi/capi_test.h"

namespace tilewright::test {
namespace {

using ObserverHandle = std::unique_ptr<tw_observer, Releases<tw_observer_release>>;
using DeviceObserverHandle = std::unique_ptr<tw_device_observer, Releases<tw_device_observer_release>>;
using HessianHandle = std::unique_ptr<tw_hessian, Releases<tw_hessian_release>>;
using QuantizedHandle = std::unique_ptr<tw_quantized, Releases<tw_quantized_release>>;

ObserverHandle observer(int64_t channels = 1, int32_t bins = 256) {
  tw_observer_options options = TW_OBSERVER_OPTIONS_INIT;
  options.channels = channels, options.bins = bins;
  tw_observer* made = nullptr;
  succeed([&](tw_error** e) { return tw_observer_create(&options, &made, e); });
  return ObserverHandle(made);
}

void observe(const ObserverHandle& o, const std::vector<float>& values) {
  succeed([&](tw_error** e) {
    return tw_observer_observe(o.get(), "f32", values.data(), values.size() * sizeof(float), 0, 1, e);
  });
}

TEST_CASE("an observer counts, is merged, saved and read again") {
  const ObserverHandle o = observer(2), other = observer(2);
  observe(o, {1, -2, 0.5f, std::numeric_limits<float>::quiet_NaN()});
  observe(other, {3, 4});
  tw_observation seen = TW_OBSERVATION_INIT;
  succeed([&](tw_error** e) { return tw_observer_channel(o.get(), 0, &seen, e); });
  CHECK(seen.count == 2);
  CHECK(seen.min == 0.5);
  CHECK(seen.max == 1);
  CHECK(seen.negative == nullptr);
  REQUIRE(seen.positive != nullptr);
  uint64_t sum = 0;
  for (int i = 0; i < 256; ++i) sum += seen.positive[i];
  CHECK(sum == 2);
  succeed([&](tw_error** e) { return tw_observer_channel(o.get(), 1, &seen, e); });
  CHECK(seen.count == 1);
  CHECK(seen.nans == 1);

  succeed([&](tw_error** e) { return tw_observer_end_batch(o.get(), e); });
  succeed([&](tw_error** e) { return tw_observer_merge(o.get(), other.get(), e); });
  tw_clip_range ranges[2] = {};
  succeed([&](tw_error** e) { return tw_clip_ranges(o.get(), nullptr, ranges, 2, e); });
  CHECK(ranges[0].max == 3);
  CHECK(ranges[1].min == -4);
  tw_calibration how = TW_CALIBRATION_INIT;
  how.asymmetric = 1;
  succeed([&](tw_error** e) { return tw_clip_ranges(o.get(), &how, ranges, 2, e); });
  CHECK(ranges[1].min == -2);
  float scale = 0;
  int32_t zero = -1;
  succeed([&](tw_error** e) { return tw_scale_for({-1, 3}, "uint8", 1, &scale, &zero, e); });
  CHECK(scale == 4.0f / 255);
  CHECK(zero == 64);

  char* json = nullptr;
  succeed([&](tw_error** e) { return tw_observer_json(o.get(), &json, e); });
  const Text text(json);
  tw_observer* read = nullptr;
  succeed([&](tw_error** e) { return tw_observer_from_json(text.get(), &read, e); });
  const ObserverHandle again(read);
  succeed([&](tw_error** e) { return tw_observer_json(again.get(), &json, e); });
  CHECK(std::string(Text(json).get()) == text.get());
  tw_observer_options options = TW_OBSERVER_OPTIONS_INIT;
  succeed([&](tw_error** e) { return tw_observer_describe(again.get(), &options, e); });
  CHECK(options.channels == 2);
  CHECK(options.bins == 256);
}

TEST_CASE("what an observer refuses") {
  const ObserverHandle o = observer();
  const float infinite = std::numeric_limits<float>::infinity(), one = 1;
  CHECK(failure([&](tw_error** e) { return tw_observer_observe(o.get(), "f32", nullptr, 4, 0, 1, e); }).field ==
        "values");
  CHECK(failure([&](tw_error** e) { return tw_observer_observe(o.get(), "f32", &infinite, 4, 0, 1, e); }).status ==
        TW_INVALID_ARGUMENT);
  CHECK(failure([&](tw_error** e) { return tw_observer_observe(o.get(), "q4_0", &one, 4, 0, 1, e); }).status ==
        TW_INVALID_ARGUMENT);
  CHECK(failure([&](tw_error** e) { return tw_observer_observe(o.get(), "f32", &one, 3, 0, 1, e); }).status ==
        TW_INVALID_ARGUMENT);
  CHECK(failure([&](tw_error** e) { return tw_observer_observe(o.get(), "f32", &one, 4, -1, 1, e); }).field == "first");
  CHECK(failure([&](tw_error** e) { return tw_observer_observe(o.get(), "f32", &one, 4, 0, 0, e); }).field == "inner");
  CHECK(failure([&](tw_error** e) { return tw_observer_end_batch(nullptr, e); }).value == "null");
  tw_observation seen = TW_OBSERVATION_INIT;
  for (const int64_t channel : {int64_t{-1}, int64_t{1}, std::numeric_limits<int64_t>::max()})
    CHECK(failure([&](tw_error** e) { return tw_observer_channel(o.get(), channel, &seen, e); }).field == "channel");
  seen.struct_size = 8;
  CHECK(failure([&](tw_error** e) { return tw_observer_channel(o.get(), 0, &seen, e); }).status == TW_INVALID_ARGUMENT);

  tw_clip_range range = {};
  CHECK(failure([&](tw_error** e) { return tw_clip_ranges(o.get(), nullptr, &range, 1, e); }).status ==
        TW_INVALID_ARGUMENT);  // nothing was seen
  observe(o, {1});
  CHECK(failure([&](tw_error** e) { return tw_clip_ranges(o.get(), nullptr, &range, 2, e); }).field == "count");
  CHECK(failure([&](tw_error** e) { return tw_clip_ranges(o.get(), nullptr, nullptr, 1, e); }).field == "ranges");
  tw_calibration how = TW_CALIBRATION_INIT;
  how.asymmetric = 2;
  CHECK(failure([&](tw_error** e) { return tw_clip_ranges(o.get(), &how, &range, 1, e); }).field == "asymmetric");
  float scale = 0;
  int32_t zero = 0;
  CHECK(failure([&](tw_error** e) { return tw_scale_for({0, 1}, nullptr, 0, &scale, &zero, e); }).field == "target");
  tw_observer_options options = TW_OBSERVER_OPTIONS_INIT;
  options.bins = 3;
  tw_observer* made = nullptr;
  CHECK(failure([&](tw_error** e) { return tw_observer_create(&options, &made, e); }).field == "bins");
  CHECK(made == nullptr);
}

struct Step {  // ObserveArgs of device_observer.h
  int32_t step, reserved;
  const void* x;
  int64_t elements, first, inner;
};

TEST_CASE("a device observer enqueues what it is given") {
  const DeviceHandle device = fake_device();
  const EngineHandle e = engine();
  std::vector<Step> steps;
  fake_cuda_set_launch_handler(
      [](const FakeLaunch* launch, void* user) {
        static_cast<std::vector<Step>*>(user)->push_back(*static_cast<const Step*>(launch->params[0]));
      },
      &steps);
  tw_device_observer* made = nullptr;
  succeed([&](tw_error** error) {
    return tw_device_observer_create(e.get(), device.get(), "bf16", nullptr, &made, error);
  });
  const DeviceObserverHandle o(made);
  const MemoryHandle x = memory(device, 200);
  succeed([&](tw_error** error) {
    return tw_device_observer_observe(o.get(), nullptr, tw_memory_data(x.get()), 100, 7, 3, error);
  });
  succeed([&](tw_error** error) { return tw_device_observer_end_batch(o.get(), nullptr, error); });
  REQUIRE(steps.size() == 4);
  for (int i = 0; i < 3; ++i) {
    CHECK(steps[static_cast<size_t>(i)].step == i);
    CHECK(steps[static_cast<size_t>(i)].x == tw_memory_data(x.get()));
    CHECK(steps[static_cast<size_t>(i)].elements == 100);
    CHECK(steps[static_cast<size_t>(i)].first == 7);
    CHECK(steps[static_cast<size_t>(i)].inner == 3);
  }
  CHECK(steps[3].step == 3);
  tw_observer* seen = nullptr;
  succeed([&](tw_error** error) { return tw_device_observer_observed(o.get(), &seen, error); });
  const ObserverHandle copied(seen);
  succeed([&](tw_error** error) { return tw_device_observer_clear(o.get(), error); });
  fake_cuda_set_launch_handler(nullptr, nullptr);

  CHECK(failure([&](tw_error** error) {
          return tw_device_observer_observe(o.get(), nullptr, nullptr, 1, 0, 1, error);
        }).field == "x");
  CHECK(failure([&](tw_error** error) {
          return tw_device_observer_create(e.get(), device.get(), "int8_row", nullptr, &made, error);
        }).status == TW_INVALID_ARGUMENT);
  CHECK(failure([&](tw_error** error) {
          return tw_device_observer_create(e.get(), nullptr, "f32", nullptr, &made, error);
        }).field == "device");
  CHECK(failure([&](tw_error** error) { return tw_device_observer_observed(o.get(), nullptr, error); }).field ==
        "seen");
}

// ---- post-training

constexpr int64_t kN = 3, kK = 128;

std::vector<float> numbers(size_t count, unsigned seed) {
  std::vector<float> values(count);
  for (float& v : values) {
    seed = seed * 1664525u + 1013904223u;
    v = static_cast<float>(static_cast<int32_t>(seed)) * 0x1p-31f;
  }
  return values;
}

HessianHandle hessian() {
  tw_hessian* made = nullptr;
  succeed([&](tw_error** e) { return tw_hessian_create(kK, &made, e); });
  const std::vector<float> x = numbers(200 * kK, 1);
  succeed([&](tw_error** e) { return tw_hessian_add(made, "f32", x.data(), 200, kK, 1, e); });
  return HessianHandle(made);
}

struct Job {
  std::vector<float> w = numbers(kN * kK, 2);
  tw_linear_weight layer = TW_LINEAR_WEIGHT_INIT;
  tw_quantize_target target = TW_QUANTIZE_TARGET_INIT;
  Job() {
    layer.w = w.data(), layer.n = kN, layer.k = kK, layer.name = "mlp.down";
    target.format = "int4_g64";
  }
};

tw_quantized_info described(const QuantizedHandle& q) {
  tw_quantized_info info = TW_QUANTIZED_INFO_INIT;
  succeed([&](tw_error** e) { return tw_quantized_describe(q.get(), &info, e); });
  return info;
}

TEST_CASE("a layer is quantized on the host, and the error is that of its sums") {
  const HessianHandle h = hessian();
  const Job job;
  tw_quantized *rounded = nullptr, *corrected = nullptr, *scaled = nullptr;
  succeed([&](tw_error** e) { return tw_round_to_nearest(&job.layer, h.get(), &job.target, &rounded, e); });
  succeed([&](tw_error** e) {
    return tw_gptq(nullptr, nullptr, &job.layer, h.get(), &job.target, nullptr, &corrected, e);
  });
  succeed([&](tw_error** e) { return tw_awq(&job.layer, h.get(), &job.target, nullptr, &scaled, e); });
  const QuantizedHandle nearest(rounded), gptq(corrected), awq(scaled);
  const tw_quantized_info a = described(nearest), b = described(gptq), c = described(awq);

  int64_t bytes = 0;
  succeed([&](tw_error** e) { return tw_stream_bytes("int4_g64", TW_DATA, kN, kK, &bytes, e); });
  CHECK(static_cast<int64_t>(a.data_bytes) == bytes);
  CHECK(std::string(b.format) == "int4_g64");
  CHECK(b.n == kN);
  CHECK(b.group == 64);
  CHECK(b.order == nullptr);
  CHECK(a.input_scales == nullptr);
  REQUIRE(c.input_scales != nullptr);
  CHECK(b.error < a.error);
  CHECK(c.error <= a.error);
  CHECK(b.damping == 0.01);

  std::vector<uint8_t> data(a.data_bytes), scales(a.scales_bytes);
  succeed([&](tw_error** e) {
    return tw_encode("int4_g64", nullptr, job.w.data(), kN, kK, {data.data(), scales.data(), nullptr}, e);
  });
  CHECK(std::memcmp(data.data(), a.data, data.size()) == 0);
  CHECK(std::memcmp(scales.data(), a.scales, scales.size()) == 0);
  std::vector<float> values(kN * kK);
  succeed([&](tw_error** e) { return tw_decode("int4_g64", {b.data, b.scales, nullptr}, kN, kK, values.data(), e); });
  CHECK(std::memcmp(values.data(), b.values, values.size() * sizeof(float)) == 0);

  int64_t k = 0, rows = 0;
  std::vector<double> sums(kK * kK), magnitudes(kK);
  succeed([&](tw_error** e) { return tw_hessian_read(h.get(), &k, &rows, sums.data(), magnitudes.data(), e); });
  CHECK(k == kK);
  CHECK(rows == 200);
  double error = 0;
  for (int64_t n = 0; n < kN; ++n)
    for (int64_t i = 0; i < kK; ++i)
      for (int64_t j = 0; j < kK; ++j)
        error += (job.w[static_cast<size_t>(n * kK + i)] - static_cast<double>(b.values[n * kK + i])) *
                 sums[static_cast<size_t>(i * kK + j)] *
                 (job.w[static_cast<size_t>(n * kK + j)] - static_cast<double>(b.values[n * kK + j]));
  CHECK(std::abs(error - b.error) <= 1e-6 * error);

  tw_hessian* read = nullptr;
  succeed([&](tw_error** e) { return tw_hessian_from(k, rows, sums.data(), magnitudes.data(), &read, e); });
  const HessianHandle same(read);
  succeed([&](tw_error** e) {
    return tw_gptq(nullptr, nullptr, &job.layer, same.get(), &job.target, nullptr, &corrected, e);
  });
  const QuantizedHandle again(corrected);
  CHECK(std::memcmp(described(again).data, b.data, b.data_bytes) == 0);
  succeed([&](tw_error** e) { return tw_hessian_merge(read, h.get(), e); });
  succeed([&](tw_error** e) { return tw_hessian_read(read, nullptr, &rows, nullptr, nullptr, e); });
  CHECK(rows == 400);
}

TEST_CASE("what the quantizers refuse names what it was") {
  const HessianHandle h = hessian();
  tw_quantized* made = nullptr;
  const auto refused = [&](const Job& job, const tw_gptq_options* options = nullptr) {
    return failure(
        [&](tw_error** e) { return tw_gptq(nullptr, nullptr, &job.layer, h.get(), &job.target, options, &made, e); });
  };
  Job job;
  job.layer.w = nullptr;
  CHECK(refused(job).field == "w");
  for (const int64_t n : {int64_t{0}, int64_t{-1}, int64_t{1} << 60}) {
    job = Job();
    job.layer.w = job.w.data();
    job.layer.n = n;
    CHECK(refused(job).field == "layer");
  }
  job = Job();
  job.layer.w = job.w.data();
  job.w[5] = std::numeric_limits<float>::quiet_NaN();
  CHECK(refused(job).field.rfind("mlp.down", 0) == 0);
  job.w[5] = 0;
  job.target.format = nullptr;
  CHECK(refused(job).field == "format");
  job.target.format = "q4_0";
  CHECK(refused(job).status == TW_INVALID_ARGUMENT);
  job.target.format = "int4_g64";
  job.layer.struct_size = 8;
  CHECK(refused(job).status == TW_INVALID_ARGUMENT);
  job.layer.struct_size = sizeof job.layer;
  tw_gptq_options options = TW_GPTQ_OPTIONS_INIT;
  options.act_order = 7;
  CHECK(refused(job, &options).field == "act_order");
  options.act_order = 0;
  options.damping = 2;
  CHECK(refused(job, &options).status == TW_INVALID_ARGUMENT);
  CHECK(failure([&](tw_error** e) {
          return tw_gptq(nullptr, nullptr, &job.layer, nullptr, &job.target, nullptr, &made, e);
        }).field == "hessian");
  CHECK(failure([&](tw_error** e) {
          return tw_gptq(engine().get(), nullptr, &job.layer, h.get(), &job.target, nullptr, &made, e);
        }).field == "device");
  tw_hessian* none = nullptr;
  const double one = 1;
  for (const int64_t k : {int64_t{0}, int64_t{-5}, int64_t{1} << 40}) {
    CHECK(failure([&](tw_error** e) { return tw_hessian_create(k, &none, e); }).field == "k");
    CHECK(failure([&](tw_error** e) { return tw_hessian_from(k, 1, &one, &one, &none, e); }).field == "k");
  }
  CHECK(failure([&](tw_error** e) { return tw_hessian_from(1, 1, nullptr, &one, &none, e); }).field == "values");
  CHECK(failure([&](tw_error** e) { return tw_hessian_add(h.get(), "f32", nullptr, 1, kK, 1, e); }).status ==
        TW_INVALID_ARGUMENT);
  CHECK(tw_gptq_device_bytes(4096, 14336, 128) > int64_t{14336} * 14336 * 8);
}

TEST_CASE("gptq on a device launches kernels of the layer's sizes and gives all memory back") {
  const DeviceHandle device = fake_device();
  const EngineHandle e = engine();
  const HessianHandle h = hessian();
  const Job job;
  struct Seen {
    int launches = 0;
    bool right = true;
  } seen;
  fake_cuda_set_launch_handler(
      [](const FakeLaunch* launch, void* user) {
        auto& s = *static_cast<Seen*>(user);
        const auto* sizes = static_cast<const int64_t*>(launch->params[1]);  // GptqLayer of gptq.h
        ++s.launches;
        s.right = s.right && sizes[0] == kN && sizes[1] == kK && sizes[2] == 64;
      },
      &seen);
  const long live = fake_cuda_live("memory");
  tw_quantized* made = nullptr;
  succeed([&](tw_error** error) {
    return tw_gptq(e.get(), device.get(), &job.layer, h.get(), &job.target, nullptr, &made, error);
  });
  fake_cuda_set_launch_handler(nullptr, nullptr);
  const QuantizedHandle q(made);
  CHECK(seen.launches > 5);
  CHECK(seen.right);
  CHECK(described(q).n == kN);
  CHECK(fake_cuda_live("memory") == live);
}

}  // namespace
}  // namespace tilewright::test
