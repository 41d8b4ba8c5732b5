// SPDX-License-Identifier: Apache-2.0
// Layers from C, on this machine's CPU: described, loaded, launched, and refused by name.
#include <cmath>
#include <string>

#include "capi/capi_test.h"

namespace tilewright::test {
namespace {

using LayerHandle = std::unique_ptr<tw_layer, Releases<tw_layer_release>>;

DeviceHandle cpu() {
  tw_device* opened = nullptr;
  succeed([&](tw_error** e) { return tw_device_open_cpu(2, nullptr, nullptr, &opened, e); });
  return DeviceHandle(opened);
}

TEST_CASE("a layer is described for a target without a GPU") {
  const ProblemHandle asked = problem("gemm x=q8_1 w=q4_0 y=f16 m=1 n=128 k=256");
  tw_layer_problems found = TW_LAYER_PROBLEMS_INIT;
  succeed([&](tw_error** e) { return tw_layer_describe(asked.get(), "sm_90a", "f16", 1, &found, e); });
  const ProblemHandle main(found.main), cast(found.cast), fused(found.fused), repack(found.repack);
  CHECK(std::string(tw_problem_text(main.get())).find("pack=tiles") != std::string::npos);
  CHECK(std::string(tw_problem_operation(cast.get())) == "cast");
  CHECK(std::string(tw_problem_text(fused.get())).find("x_from=f16") != std::string::npos);
  CHECK(std::string(tw_problem_operation(repack.get())) == "pack");
  CHECK(found.few == 1);
  const auto field = [&](const char* arch, const char* x_from, int32_t pack) {
    return failure([&](tw_error** e) { return tw_layer_describe(asked.get(), arch, x_from, pack, &found, e); }).field;
  };
  CHECK(field("sm_1", "f16", 1) == "arch");
  CHECK(field("sm_90a", "f17", 1) == "format");
  CHECK(field("sm_90a", "f16", 2) == "pack");
}

TEST_CASE("a layer keeps its weights and launches for every number of rows") {
  const int64_t n = 64, k = 96;
  const EngineHandle engine = test::engine();
  const DeviceHandle device = cpu();
  const ProblemHandle asked = problem("gemm x=q8_1 w=q4_0 y=f32 m=1 n=64 k=96");
  tw_layer* made = nullptr;
  succeed([&](tw_error** e) { return tw_layer_create(engine.get(), asked.get(), device.get(), "f32", 1, &made, e); });
  const LayerHandle layer(made);
  tw_layer_problems found = TW_LAYER_PROBLEMS_INIT;
  succeed([&](tw_error** e) { return tw_layer_get_problems(layer.get(), &found, e); });
  const ProblemHandle main(found.main), repack(found.repack);
  CHECK(std::string(tw_problem_text(main.get())).find("x_from=f32") != std::string::npos);
  CHECK(found.cast == nullptr);  // a CPU quantizes x within every launch
  std::vector<float> values(static_cast<std::size_t>(n * k)), decoded = values;
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
  std::vector<std::byte> w(static_cast<std::size_t>(n * k / 32 * 18));
  const tw_operand stored = {w.data(), nullptr, nullptr};
  succeed([&](tw_error** e) {
    return tw_encode("q4_0", nullptr, values.data(), n, k, {w.data(), nullptr, nullptr}, e);
  });
  succeed([&](tw_error** e) { return tw_decode("q4_0", stored, n, k, decoded.data(), e); });

  std::vector<float> x(static_cast<std::size_t>(5 * k)), y(static_cast<std::size_t>(5 * n));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::cos(static_cast<float>(i));
  tw_gemm_args args = TW_GEMM_ARGS_INIT;
  args.x.data = x.data();
  args.y = y.data();
  args.m = 1;
  CHECK(launch_failure(tw_layer_launch_gemm(layer.get(), nullptr, &args, nullptr)).field == "w.data");

  size_t bytes = 0;
  succeed([&](tw_error** e) { return tw_layer_weight_bytes(layer.get(), TW_DATA, &bytes, e); });
  CHECK(bytes >= w.size());
  succeed([&](tw_error** e) { return tw_layer_load(layer.get(), nullptr, stored, e); });
  for (const int64_t m : {1, 5}) {
    args.m = m;
    std::vector<std::byte> scratch(tw_layer_scratch_bytes(layer.get(), m));
    REQUIRE(tw_layer_launch_gemm(layer.get(), nullptr, &args, scratch.data()) == TW_OK);
    for (int64_t row = 0; row < m; ++row)
      for (int64_t col = 0; col < n; ++col) {
        double sum = 0;
        for (int64_t i = 0; i < k; ++i)
          sum += static_cast<double>(x[static_cast<std::size_t>(row * k + i)]) *
                 static_cast<double>(decoded[static_cast<std::size_t>(col * k + i)]);
        CHECK(std::abs(y[static_cast<std::size_t>(row * n + col)] - sum) < 0.1);  // of x in q8_1
      }
  }

  tw_kernel* kernel = nullptr;
  succeed([&](tw_error** e) { return tw_layer_kernel(layer.get(), &kernel, e); });
  const KernelHandle held(kernel);
  if (tw_layer_packed(layer.get())) {  // the layer has a copy of its own; a caller may keep one instead
    std::vector<std::byte> own(bytes);
    succeed([&](tw_error** e) {
      return tw_layer_pack(layer.get(), nullptr, stored, {own.data(), nullptr, nullptr}, e);
    });
    std::vector<float> again(y.size());
    args.w.data = own.data();
    args.y = again.data();
    REQUIRE(tw_layer_launch_gemm(layer.get(), nullptr, &args, nullptr) == TW_OK);
    CHECK(again == y);
  }
}

TEST_CASE("what is no layer is refused, or left alone") {
  tw_gemm_args args = TW_GEMM_ARGS_INIT;
  CHECK(launch_failure(tw_layer_launch_gemm(nullptr, nullptr, &args, nullptr)).field == "layer");
  CHECK(tw_layer_packed(nullptr) == 0);
  CHECK(tw_layer_scratch_bytes(nullptr, 4) == 0);
  tw_layer_retain(nullptr);
  tw_layer_release(nullptr);
}

}  // namespace
}  // namespace tilewright::test
