// SPDX-License-Identifier: Apache-2.0
// GPTQ's kernels, their text run on the CPU, against gptq() on the host, to the bit. Buffers are allocated to the byte,
// so that a sanitizer sees an access beyond any of them, and filled with NaNs.
#include <tilewright/error.h>
#include <tilewright/gptq.h>

#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "emulator/emulator.h"
#include "formats/int4_g128.cuh"
#include "formats/int4_g32.cuh"
#include "formats/int4_g64.cuh"
#include "formats/int4_row.cuh"
#include "formats/uint4_g128.cuh"
#include "formats/uint4_g32.cuh"
#include "formats/uint4_g64.cuh"
#include "operations/gptq/cuda/columns.cuh"
#include "operations/gptq/cuda/matrix.cuh"
#include "quantize/correlated_layer.h"
#include "quantize/rounding/gptq_device.h"
#include "support/catch.h"

using namespace tilewright;
using test::correlated, test::Layer;

namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

using Rounding = void (*)(const tw::gptq::Args&, const tw::gptq::Shape&);
const std::map<std::string, Rounding>& rounding() {
  namespace f = tw::fmt;
  static const std::map<std::string, Rounding> all = {
      {"int4_row", tw::gptq::Columns<f::int4_row>::run},     {"int4_g128", tw::gptq::Columns<f::int4_g128>::run},
      {"int4_g64", tw::gptq::Columns<f::int4_g64>::run},     {"int4_g32", tw::gptq::Columns<f::int4_g32>::run},
      {"uint4_g128", tw::gptq::Columns<f::uint4_g128>::run}, {"uint4_g64", tw::gptq::Columns<f::uint4_g64>::run},
      {"uint4_g32", tw::gptq::Columns<f::uint4_g32>::run}};
  return all;
}

class Emulated : public quantize::GptqMachine {
 public:
  Emulated(Format format, std::uint64_t seed) : round_(rounding().at(std::string(format.name()))), seed_(seed) {}
  void* allocate(std::size_t bytes) override {
    auto& memory = memory_.emplace_back(new std::byte[bytes], bytes);
    std::memset(memory.first.get(), 0xff, bytes);
    allocated_ += static_cast<std::int64_t>(bytes);
    return memory.first.get();
  }
  void clear(void* all) override {
    for (const auto& [memory, bytes] : memory_)
      if (memory.get() == all) std::memset(all, 0, bytes);
  }
  void upload(void* to, const void* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
  void download(void* to, const void* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
  void begin(const GptqLayer& layer) override { std::memcpy(&layer_, &layer, sizeof layer); }
  void launch(const GptqArgs& args, std::int64_t blocks) override {
    tw::gptq::Args same;
    static_assert(sizeof same == sizeof args);
    std::memcpy(&same, &args, sizeof args);
    const bool rounds = args.step == GptqArgs::Step::choose || args.step == GptqArgs::Step::round;
    tw::emu::run(
        {{static_cast<unsigned>(blocks), 1, 1}, tw::gptq::kThreads, 1, tw::gptq::kSharedBytes, seed_ ? seed_++ : 0},
        [&] { rounds ? round_(same, layer_) : tw::gptq::Matrix::run(same, layer_); });
  }

  std::int64_t allocated() const { return allocated_; }

 private:
  std::int64_t allocated_ = 0;
  Rounding round_;
  std::uint64_t seed_;
  tw::gptq::Shape layer_;
  std::vector<std::pair<std::unique_ptr<std::byte[]>, std::size_t>> memory_;
};

template <class T>
std::int64_t differences(const std::vector<T>& a, const std::vector<T>& b) {
  REQUIRE(a.size() == b.size());
  std::int64_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) count += std::memcmp(&a[i], &b[i], sizeof(T)) != 0;
  return count;
}
void check_same(const Layer& layer, const QuantizeTarget& target, const GptqOptions& options, std::uint64_t seed) {
  CAPTURE(layer.n, layer.k, target.format.name(), target.group, target.encoder, options.act_order,
          options.static_groups, options.damping);
  Emulated machine(target.format, seed);
  const QuantizedLinear got = quantize::gptq(machine, layer.weight(), layer.hessian, target, options);
  const QuantizedLinear expected = gptq(layer.weight(), layer.hessian, target, options);
  CHECK(differences(got.data, expected.data) == 0);
  CHECK(differences(got.scales, expected.scales) == 0);
  CHECK(differences(got.values, expected.values) == 0);
  CHECK(got.order == expected.order);
  CHECK(got.error == expected.error);
  CHECK(got.energy == expected.energy);
  CHECK(got.damping == expected.damping);
  CHECK(got.dead_columns == expected.dead_columns);
  CHECK((got.n == layer.n && got.k == layer.k && got.group == expected.group));
  CHECK(got.format == target.format);
  CHECK(got.input_scales.empty());
  const std::int64_t said = gptq_device_bytes(layer.n, layer.k, target.group);
  CHECK(machine.allocated() < said + (1 << 14));
  CHECK(said < 3 * machine.allocated());
}

std::string refusal(const Layer& layer, const QuantizeTarget& target, const GptqOptions& options, bool device) {
  try {
    Emulated machine(target.format, 1);
    device ? quantize::gptq(machine, layer.weight(), layer.hessian, target, options)
           : gptq(layer.weight(), layer.hessian, target, options);
  } catch (const Error& e) {
    return e.what();
  }
  return "none";
}

}  // namespace

TEST_CASE("kernels of GPTQ give the host's bits, in all formats and options", "[quantize][gptq]") {
  const Layer layer = correlated(70, 384, 800, 3, {0, 5, 130, 383});
  std::uint64_t seed = 1;
  for (const auto& [name, run] : rounding()) {
    const Format format = Format::parse(name);
    for (int encoder = 0; encoder < static_cast<int>(format.info().encoders.size()); ++encoder)
      for (const bool act_order : {false, true})
        for (const bool static_groups : {false, true})
          check_same(layer, {.format = format, .encoder = encoder, .threads = 2},
                     {.act_order = act_order, .static_groups = static_groups}, ++seed);
  }
}

TEST_CASE("the memory of a layer on a device can be asked for any size", "[quantize][gptq]") {
  constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
  CHECK(gptq_device_bytes(kAny, kAny, 128) == kAny);
  CHECK(gptq_device_bytes(kAny, 64, kAny) == kAny);
  CHECK(gptq_device_bytes(std::int64_t{1} << 31, std::int64_t{1} << 31) == kAny);
  CHECK(gptq_device_bytes(0, 0) == 0);
  CHECK(gptq_device_bytes(64, 64) > 64 * 64 * (16 + 13));
  CHECK(gptq_device_bytes(64, 128) > gptq_device_bytes(64, 64));
}

TEST_CASE("kernels of GPTQ give the host's bits for groups and sizes that are no whole tiles", "[quantize][gptq]") {
  std::uint64_t seed = 100;
  for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{1, 32}, {3, 96}, {64, 160}, {129, 416}}) {
    const Layer layer = correlated(n, k, 300, static_cast<unsigned>(k));
    for (const std::int64_t group : {0, 96, 160, 192, -1})
      for (const bool act_order : {false, true})
        check_same(layer, {.format = Format::parse(act_order ? "int4_g32" : "uint4_g32"), .group = group, .threads = 2},
                   {.act_order = act_order}, ++seed);
    check_same(layer, {.format = Format::parse("uint4_g32"), .group = 64, .threads = 2},
               {.act_order = true, .static_groups = true}, ++seed);
  }
  // A row's scale has no blocks at all.
  check_same(correlated(5, 38, 100, 9), {.format = Format::parse("int4_row"), .threads = 1}, {.act_order = true}, 7);
}

TEST_CASE("kernels of GPTQ damp as the host does", "[quantize][gptq]") {
  const Layer singular = correlated(8, 192, 20, 31);  // 20 rows: rank 20 of 192
  for (const double damping : {0.0, 1e-17, 0.01, 1.0})
    check_same(singular, {.format = Format::parse("int4_g64"), .threads = 2}, {.damping = damping}, 5);
  // All columns dead.
  const Layer dead{3, 64, std::vector<float>(192, 1.0f),
                   Hessian(64, 1, std::vector<double>(4096), std::vector<double>(64))};
  check_same(dead, {.format = Format::parse("uint4_g64")}, {}, 6);
}

TEST_CASE("kernels of GPTQ refuse what the host refuses, in its words", "[quantize][gptq]") {
  const QuantizeTarget target{.format = Format::parse("int4_g64"), .threads = 1};
  std::vector<double> indefinite(128 * 128), ones(128, 1.0);
  for (int i = 0; i < 128; ++i) indefinite[at(i * 129)] = 1;
  indefinite[1 * 128 + 0] = 5;
  Layer layer{70, 128, std::vector<float>(70 * 128, 0.25f), Hessian(128, 1, indefinite, ones)};
  CHECK(refusal(layer, target, {}, true) == refusal(layer, target, {}, false));
  CHECK(refusal(layer, target, {}, true).find("not positive definite") != std::string::npos);

  layer = correlated(200, 128, 300, 4);
  layer.w[at(199 * 128)] = 1e30f, layer.w[at(150 * 128 + 100)] = 2e30f, layer.w[at(149 * 128 + 70)] = -3e30f;
  for (const bool static_groups : {false, true}) {
    const std::string why = refusal(layer, target, {.static_groups = static_groups}, true);
    CHECK(why == refusal(layer, target, {.static_groups = static_groups}, false));
    CHECK(why.find("down w, row ") != std::string::npos);
  }
  layer.w[3] = std::numeric_limits<float>::quiet_NaN();
  CHECK(refusal(layer, target, {}, true) == refusal(layer, target, {}, false));
  CHECK(refusal(layer, target, {.damping = 2}, true) == refusal(layer, target, {.damping = 2}, false));
}
