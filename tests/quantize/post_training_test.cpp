// SPDX-License-Identifier: Apache-2.0
// GPTQ, AWQ and rounding to nearest: against an implementation in torch (make_post_training.py), against each other,
// and against the formats' own codecs.
#include <tilewright/error.h>
#include <tilewright/import.h>
#include <tilewright/post_training.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "quantize/correlated_layer.h"
#include "quantize/rounding/tiles.h"
#include "support/catch.h"
#include "support/paths.h"
#include "support/refusal.h"

using namespace tilewright;
using test::correlated, test::Layer;

namespace {

const Format kF32 = Format::parse("f32");

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

Hessian diagonal(std::int64_t k, double value) {
  std::vector<double> h(at(k * k)), magnitudes(at(k), 1.0);
  for (std::int64_t i = 0; i < k; ++i) h[at(i * k + i)] = value;
  return Hessian(k, 1, h, magnitudes);
}

std::vector<float> decoded(const QuantizedLinear& q) {
  std::vector<float> v(at(q.n * q.k));
  q.format.info().decode({q.data.data(), q.scales.data(), nullptr}, q.n, q.k, v.data());
  return v;
}
// The streams decode to the returned values, and the error is that of the values.
void check_consistent(const QuantizedLinear& q, const Layer& layer) {
  CHECK(static_cast<std::int64_t>(q.data.size()) == q.format.stream_bytes(0, q.n, q.k));
  CHECK(static_cast<std::int64_t>(q.scales.size()) == q.format.stream_bytes(1, q.n, q.k));
  const std::vector<float> stored = decoded(q);
  std::int64_t different = 0;
  double error = 0, energy = 0;
  const std::vector<double> h = layer.hessian.values();
  std::vector<double> d(at(q.k));
  for (std::int64_t row = 0; row < q.n; ++row) {
    for (std::int64_t i = 0; i < q.k; ++i) {
      const std::int64_t column = q.order.empty() ? i : q.order[at(i)];
      different += std::memcmp(&stored[at(row * q.k + i)], &q.values[at(row * q.k + column)], sizeof(float)) != 0;
    }
    const float* w = layer.w.data() + row * q.k;
    for (std::int64_t j = 0; j < q.k; ++j)
      d[at(j)] = static_cast<double>(w[j]) - static_cast<double>(q.values[at(row * q.k + j)]) /
                                                 (q.input_scales.empty() ? 1.0 : q.input_scales[at(j)]);
    for (std::int64_t i = 0; i < q.k; ++i)
      for (std::int64_t j = 0; j < q.k; ++j) {
        error += d[at(i)] * h[at(i * q.k + j)] * d[at(j)];
        energy += static_cast<double>(w[i]) * h[at(i * q.k + j)] * static_cast<double>(w[j]);
      }
  }
  CHECK(different == 0);
  CHECK(q.error == Approx(error).epsilon(1e-9).margin(energy * 1e-12));
  CHECK(q.energy == Approx(energy).epsilon(1e-9));
}
void check_equal(const QuantizedLinear& a, const QuantizedLinear& b) {
  CHECK(a.data == b.data);
  CHECK(a.scales == b.scales);
  CHECK(a.values == b.values);
  CHECK(a.order == b.order);
  CHECK(a.input_scales == b.input_scales);
  CHECK(a.error == b.error);
  CHECK(a.energy == b.energy);
  CHECK(a.damping == b.damping);
}

class Reader {
 public:
  explicit Reader(const std::string& name) : in_(paths::source_dir() + "/tests/quantize/" + name, std::ios::binary) {
    REQUIRE(in_);
  }
  template <class T>
  T one() {
    T v{};
    in_.read(reinterpret_cast<char*>(&v), sizeof v);
    REQUIRE(in_);
    return v;
  }
  template <class T>
  std::vector<T> many(std::int64_t count) {
    std::vector<T> v(at(count));
    in_.read(reinterpret_cast<char*>(v.data()), static_cast<std::streamsize>(v.size() * sizeof(T)));
    REQUIRE(in_);
    return v;
  }

 private:
  std::ifstream in_;
};

}  // namespace

TEST_CASE("codes, orders, scales and errors are those of the implementation in torch", "[quantize]") {
  Reader in("post_training.bin");
  const auto cases = in.one<std::uint32_t>();
  REQUIRE(cases >= 19);
  for (std::uint32_t i = 0; i < cases; ++i) {
    const auto name = in.many<char>(in.one<std::uint32_t>());
    const Format format = Format::parse(std::string(name.begin(), name.end()));
    const auto encoder = static_cast<int>(in.one<std::uint32_t>());
    const auto method = in.one<std::uint32_t>();
    const std::int64_t n = in.one<std::uint32_t>(), k = in.one<std::uint32_t>(), rows = in.one<std::uint32_t>();
    const std::int64_t group = in.one<std::uint32_t>();
    const bool act_order = in.one<std::uint32_t>(), static_groups = in.one<std::uint32_t>();
    const bool clip = in.one<std::uint32_t>();
    const auto damping = in.one<double>();
    CAPTURE(i, format.name(), method, n, k, group, act_order, static_groups, clip);
    Layer layer{n, k, in.many<float>(n * k), Hessian(k)};
    std::vector<float> x;
    for (const std::int8_t eighths : in.many<std::int8_t>(rows * k)) x.push_back(static_cast<float>(eighths) / 8);
    layer.hessian.add(kF32, x.data(), rows, k, 2);
    const auto order = in.many<std::uint32_t>(k);
    const auto codes = in.many<std::uint8_t>(n * k);
    const auto values = in.many<float>(n * k);
    const auto input_scales = in.many<float>(k);
    const auto exponent = in.one<double>(), error = in.one<double>(), energy = in.one<double>();

    const QuantizeTarget target{.format = format, .group = group, .encoder = encoder, .threads = 2};
    const QuantizedLinear q = method == 0 ? round_to_nearest(layer.weight(), layer.hessian, target)
                              : method == 1
                                  ? gptq(layer.weight(), layer.hessian, target,
                                         {.act_order = act_order, .static_groups = static_groups, .damping = damping})
                                  : awq(layer.weight(), layer.hessian, target, {.clip = clip});
    check_consistent(q, layer);
    CHECK(q.group == group);
    for (std::int64_t j = 0; j < k; ++j)
      REQUIRE((q.order.empty() ? j : q.order[at(j)]) == static_cast<std::int64_t>(order[at(j)]));
    std::int64_t other_codes = 0, other_values = 0;
    for (std::int64_t e = 0; e < n * k; ++e) {
      other_codes += (static_cast<std::uint8_t>(q.data[at(e / 2)]) >> (4 * (e % 2)) & 15) != codes[at(e)];
      other_values += q.values[at(e)] != values[at(e)];
    }
    if (method == 2) {
      CHECK(q.exponent == exponent);
      for (std::int64_t j = 0; j < k; ++j) REQUIRE(q.input_scales[at(j)] == Approx(input_scales[at(j)]).epsilon(1e-6));
      // pow() of another library may differ in the last bit, and a weight then rounds the other way.
      CHECK(other_codes <= n * k / 1000);
      CHECK(q.error == Approx(error).epsilon(1e-3));
    } else {
      CHECK(other_codes == 0);
      CHECK(other_values == 0);
      CHECK(q.damping == (method == 1 ? damping : 0));
      CHECK(q.error == Approx(error).epsilon(1e-9));
    }
    CHECK(q.energy == Approx(energy).epsilon(1e-9));
  }
}

TEST_CASE("rounding to nearest gives the streams of the format's encoder", "[quantize]") {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const std::int64_t n = 150, k = 256;
  std::vector<float> w;
  for (std::int64_t row = 0; row < n; ++row)
    for (std::int64_t i = 0; i < k; ++i) {
      // Among the rows: zeros, one value, subnormal halves and floats, ties, one outlier, one sign, large ones.
      const float v = normal(random);
      const float kinds[] = {v,
                             0.0f,
                             -0.25f,
                             v * 1e-7f,
                             v * 1e-41f,
                             std::rint(v * 2) * 0.5f + (i ? 0 : 7),
                             i ? v : 1e4f,
                             std::fabs(v),
                             v * 3e4f,
                             i % 2 ? 0.0f : -0.0f};
      w.push_back(kinds[row % 10]);
    }
  const Layer layer{n, k, w, diagonal(k, 1)};
  for (const Format format : integer_formats()) {
    for (int encoder = 0; encoder < static_cast<int>(format.info().encoders.size()); ++encoder) {
      CAPTURE(format.name(), encoder);
      const auto q = round_to_nearest(layer.weight(), layer.hessian, {.format = format, .encoder = encoder});
      std::vector<std::byte> data(q.data.size()), scales(q.scales.size());
      format.info().encode(w.data(), n, k, {data.data(), scales.data(), nullptr}, encoder);
      CHECK(q.data == data);
      CHECK(q.scales == scales);
      CHECK(q.damping == 0);
      // H is the identity, so the error is that of the weights.
      double error = 0;
      for (std::size_t i = 0; i < w.size(); ++i) {
        const double d = static_cast<double>(w[i]) - static_cast<double>(q.values[i]);
        error += d * d;
      }
      CHECK(q.error == Approx(error));
    }
  }
}

TEST_CASE("columns that are not correlated are rounded to nearest by GPTQ", "[quantize]") {
  const Layer layer = correlated(70, 256, 10, 3);
  for (const Format format : integer_formats())
    for (const bool act_order : {false, true})
      for (const bool static_groups : {false, true}) {
        CAPTURE(format.name(), act_order, static_groups);
        const QuantizeTarget target{.format = format};
        const Hessian h = diagonal(256, 3);
        auto q = gptq(layer.weight(), h, target, {.act_order = act_order, .static_groups = static_groups});
        CHECK(q.damping == 0.01);
        q.damping = 0;
        QuantizedLinear nearest = round_to_nearest(layer.weight(), h, target);
        CHECK(q.error == Approx(nearest.error).epsilon(1e-12));
        nearest.error = q.error;  // the sums are others
        check_equal(q, nearest);
      }
}

TEST_CASE("on correlated inputs GPTQ and AWQ have smaller errors than rounding to nearest", "[quantize]") {
  for (unsigned seed = 0; seed < 3; ++seed) {
    const Layer layer = correlated(40, 384, 1000, seed);
    for (const Format format : integer_formats()) {
      CAPTURE(seed, format.name());
      const QuantizeTarget target{.format = format};
      const auto nearest = round_to_nearest(layer.weight(), layer.hessian, target);
      const auto plain = gptq(layer.weight(), layer.hessian, target);
      const auto ordered = gptq(layer.weight(), layer.hessian, target, {.act_order = true});
      const auto fixed = gptq(layer.weight(), layer.hessian, target, {.act_order = true, .static_groups = true});
      const auto aware = awq(layer.weight(), layer.hessian, target);
      for (const auto* q : {&nearest, &plain, &ordered, &fixed, &aware}) check_consistent(*q, layer);
      CHECK(plain.error < 0.8 * nearest.error);
      CHECK(ordered.error < 0.8 * nearest.error);
      CHECK(fixed.error < 0.8 * nearest.error);
      CHECK(aware.error <= nearest.error);  // an exponent of 0 is rounding to nearest
      CHECK(aware.exponent > 0);
      CHECK(plain.relative_error() == plain.error / nearest.energy);
      CHECK(ordered.order.empty() == (format.name() == "int4_row"));
      CHECK(fixed.order.empty());
    }
  }
}

TEST_CASE("AWQ without an exponent is rounding to nearest, and clipping lowers a group's error", "[quantize]") {
  const Layer layer = correlated(70, 256, 500, 11);
  const QuantizeTarget target{.format = Format::parse("int4_g64")};
  auto q = awq(layer.weight(), layer.hessian, target, {.grid = 1});
  CHECK(q.input_scales == std::vector<float>(256, 1.0f));
  q.input_scales.clear();
  check_equal(q, round_to_nearest(layer.weight(), layer.hessian, target));

  // Where groups do not meet in H, the layer's error is the sum of the groups', which the search minimizes.
  std::vector<double> blocks = layer.hessian.values();
  for (std::int64_t i = 0; i < 256; ++i)
    for (std::int64_t j = 0; j < 256; ++j)
      if (i / 64 != j / 64) blocks[at(i * 256 + j)] = 0;
  const Hessian h(256, 500, blocks, layer.hessian.magnitudes());
  for (const char* name : {"int4_g64", "uint4_g64"}) {
    const auto open = awq(layer.weight(), h, {.format = Format::parse(name)});
    const auto clipped = awq(layer.weight(), h, {.format = Format::parse(name)}, {.clip = true});
    CHECK(clipped.exponent == open.exponent);
    CHECK(clipped.error < open.error);
  }
}

TEST_CASE("a search over some rows finds what is best for them", "[quantize]") {
  Layer layer = correlated(256, 128, 500, 12);
  const QuantizeTarget target{.format = Format::parse("int4_g32")};
  const auto all = awq(layer.weight(), layer.hessian, target, {.search_rows = 0});
  check_consistent(all, layer);
  check_equal(all, awq(layer.weight(), layer.hessian, target));                      // 256 < 1024
  const auto some = awq(layer.weight(), layer.hessian, target, {.search_rows = 1});  // rows 0 to 63
  const Layer first{64, 128, {layer.w.begin(), layer.w.begin() + 64 * 128}, layer.hessian};
  CHECK(some.exponent == awq(first.weight(), first.hessian, target).exponent);
}

TEST_CASE("results have equal bits for any number of threads", "[quantize]") {
  const std::int64_t n = 300, k = 320, rows = 700;
  const Layer layer = correlated(n, k, rows, 5);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(at(rows * k));
  for (float& v : x) v = normal(random);
  Hessian one(k), three(k);
  one.add(kF32, x.data(), rows, k, 1);
  three.add(kF32, x.data(), rows, k, 3);
  CHECK(one.values() == three.values());
  for (const char* name : {"int4_g64", "uint4_g32", "int4_row"}) {
    const Format format = Format::parse(name);
    const auto both = [&](auto&& make) {
      check_equal(make(QuantizeTarget{.format = format, .threads = 1}),
                  make(QuantizeTarget{.format = format, .threads = 5}));
    };
    both([&](const QuantizeTarget& t) { return round_to_nearest(layer.weight(), layer.hessian, t); });
    both([&](const QuantizeTarget& t) { return gptq(layer.weight(), layer.hessian, t, {.act_order = true}); });
    both([&](const QuantizeTarget& t) { return gptq(layer.weight(), layer.hessian, t); });
    both([&](const QuantizeTarget& t) { return awq(layer.weight(), layer.hessian, t, {.clip = true}); });
  }
}

TEST_CASE("products of tiles are fused and summed in order, on any machine", "[quantize]") {
  using namespace quantize;
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  const std::int64_t depth = 2 * kTile;
  std::vector<double> a(at(depth * kTile)), b(a.size()), c(at(kTileSize));
  for (auto* v : {&a, &b, &c})
    for (double& e : *v) e = normal(random) * std::exp2(normal(random) * 20);
  const std::vector<float> af(a.begin(), a.end()), bf(b.begin(), b.end());
  const auto expect = [&](const auto& x, const auto& y, double sign) {
    std::vector<double> to = c;
    for (std::int64_t i = 0; i < kTile; ++i)
      for (std::int64_t j = 0; j < kTile; ++j)
        for (std::int64_t first = 0; first < depth; first += kTile) {
          std::decay_t<decltype(x[0])> sum = 0;
          for (std::int64_t t = first; t < first + kTile; ++t)
            sum = std::fma(x[at(t * kTile + i)], y[at(t * kTile + j)], sum);
          to[at(i * kTile + j)] += sign * static_cast<double>(sum);
        }
    return to;
  };
  std::vector<double> to = c;
  add_product(a.data(), b.data(), depth, to.data());
  CHECK(to == expect(a, b, 1));
  to = c;
  subtract_product(a.data(), b.data(), depth, to.data());
  CHECK(to == expect(a, b, -1));
  to = c;
  add_product(af.data(), bf.data(), depth, to.data());
  CHECK(to == expect(af, bf, 1));
  for (const std::int64_t count : {0, 1, 5, 63}) {
    to = c;
    add_outer(a.data(), b.data(), count, to.data());
    std::vector<double> expected = c;
    for (std::int64_t j = 0; j < count; ++j)
      for (std::int64_t r = 0; r < kTile; ++r)
        expected[at(j * kTile + r)] = std::fma(a[at(j)], b[at(r)], expected[at(j * kTile + r)]);
    CHECK(to == expected);
  }
}

TEST_CASE("GPTQ's error is that of its values, however much was added to the diagonal", "[quantize]") {
  const Layer layer = correlated(70, 256, 700, 11);
  for (const double damping : {0.0, 0.01, 1.0})
    for (const bool act_order : {false, true}) {
      CAPTURE(damping, act_order);
      const QuantizedLinear q =
          gptq(layer.weight(), layer.hessian, {.format = Format::parse("uint4_g64"), .threads = 2},
               {.act_order = act_order, .damping = damping});
      double error = 0;
      for (std::int64_t row = 0; row < layer.n; ++row)
        for (std::int64_t i = 0; i < layer.k; ++i)
          for (std::int64_t j = 0; j < layer.k; ++j) {
            const auto d = [&](std::int64_t c) {
              return static_cast<double>(layer.w[at(row * layer.k + c)]) - q.values[at(row * layer.k + c)];
            };
            error += d(i) * layer.hessian.at(i, j) * d(j);
          }
      CHECK(q.error == Approx(error).epsilon(1e-9));
    }
}

TEST_CASE("act-order survives a GPTQ checkpoint with g_idx, to the bit", "[quantize]") {
  const Layer layer = correlated(24, 256, 600, 21);
  for (const char* name : {"uint4_g64", "int4_g32", "uint4_g128"})
    for (const Checkpoint packing : {Checkpoint::gptq, Checkpoint::gptq_v2, Checkpoint::compressed_tensors})
      for (const std::int64_t group : {std::int64_t{0}, std::int64_t{128}}) {
        CAPTURE(name, to_string(packing), group);
        const Format format = Format::parse(name);
        const auto q = gptq(layer.weight(), layer.hessian, {.format = format, .group = group}, {.act_order = true});
        REQUIRE(!q.order.empty());
        CheckpointWeight like{.packing = packing, .n = q.n, .k = q.k, .group = q.group};
        like.scales.type = TensorType::f16;
        CheckpointBytes bytes;
        const CheckpointWeight w = export_weights(format, q.data, q.scales, like, q.order, bytes);
        CHECK(import_order(w) == q.order);
        std::vector<std::byte> data(q.data.size()), scales(q.scales.size());
        import_weights(w, format, data, scales);
        CHECK(data == q.data);
        CHECK(scales == q.scales);
      }
}

TEST_CASE("a Hessian that is singular is damped until it is not, and that is reported", "[quantize]") {
  const std::int64_t k = 128;
  Layer layer = correlated(8, k, 20, 31);  // 20 rows: rank 20 of 128
  const QuantizeTarget target{.format = Format::parse("int4_g32")};
  const auto asked = gptq(layer.weight(), layer.hessian, target);
  CHECK(asked.damping == 0.01);
  CHECK(asked.dead_columns == 0);
  const auto raised = gptq(layer.weight(), layer.hessian, target, {.damping = 0});
  CHECK(raised.damping == 1e-6);
  check_consistent(raised, layer);
  CHECK(raised.error < round_to_nearest(layer.weight(), layer.hessian, target).error);

  // An eigenvalue of -0.05 times the mean of the diagonal: 0.01 is too little, 0.1 enough.
  std::vector<double> h(at(k * k)), magnitudes(at(k), 1.0);
  for (std::int64_t i = 0; i < k; ++i) h[at(i * k + i)] = 1;
  h[1] = h[at(k)] = 1.05;
  CHECK(gptq(layer.weight(), Hessian(k, 1, h, magnitudes), target).damping == 0.1);
  h[1] = h[at(k)] = 2.5;
  const Error e = refusal([&] { gptq(layer.weight(), Hessian(k, 1, h, magnitudes), target); });
  CHECK(e.field() == "down Hessian");
  CHECK(e.value() == "not positive definite with a damping of 1");
}

TEST_CASE("inputs that are always 0", "[quantize]") {
  const std::int64_t n = 8, k = 96;
  const Layer layer = correlated(n, k, 50, 41);
  const QuantizeTarget target{.format = Format::parse("uint4_g32")};
  Hessian none(k);
  const std::vector<float> zeros(at(3 * k));
  none.add(kF32, zeros.data(), 3, k);
  for (const bool act_order : {false, true}) {
    const auto q = gptq(layer.weight(), none, target, {.act_order = act_order});
    CHECK(q.dead_columns == k);
    CHECK(q.values == std::vector<float>(at(n * k)));
    CHECK(q.error == 0);
    CHECK(q.relative_error() == 0);
  }
  const auto q = awq(layer.weight(), none, target, {.clip = true});
  CHECK(q.exponent == 0);
  CHECK(q.relative_error() == 0);
}

TEST_CASE("one row, one block", "[quantize]") {
  const float w[2] = {0.5f, -1.0f}, x[2] = {1.0f, 2.0f};
  Hessian h(2);
  h.add(kF32, x, 1, 2);
  const auto q = gptq({w, 1, 2}, h, {.format = Format::parse("int4_row")});
  CHECK(q.values[1] == -1.0f);
  CHECK(q.data.size() == 1);
}

TEST_CASE("sums of x x^T", "[quantize]") {
  const std::int64_t k = 70;  // not a whole number of tiles
  std::mt19937 random(51);
  std::normal_distribution<float> normal;
  const std::int64_t rows = 333;
  std::vector<float> x(at(rows * k));
  for (float& v : x) v = normal(random);

  for (const char* name : {"f32", "f16", "bf16"}) {
    CAPTURE(name);
    const Format format = Format::parse(name);
    std::vector<std::byte> stored(at(format.stream_bytes(0, rows, k)));
    format.info().encode(x.data(), rows, k, {stored.data(), nullptr, nullptr}, 0);
    std::vector<float> seen(x.size());
    format.info().decode({stored.data(), nullptr, nullptr}, rows, k, seen.data());
    Hessian h(k);
    h.add(format, stored.data(), rows, k);
    CHECK(h.rows() == rows);
    for (std::int64_t i = 0; i < k; ++i)
      for (std::int64_t j = 0; j < k; ++j) {
        double exact = 0, magnitude = 0;
        for (std::int64_t t = 0; t < rows; ++t) {
          const double product = static_cast<double>(seen[at(t * k + i)]) * static_cast<double>(seen[at(t * k + j)]);
          exact += product, magnitude += std::fabs(product);
        }
        REQUIRE(std::fabs(h.at(i, j) - exact) <= std::pow(2, -17.9) * magnitude);
        REQUIRE(h.at(i, j) == h.at(j, i));
      }
    for (std::int64_t j = 0; j < k; ++j) {
      double sum = 0;
      for (std::int64_t t = 0; t < rows; ++t) sum += std::fabs(static_cast<double>(seen[at(t * k + j)]));
      CHECK(h.magnitudes()[at(j)] == Approx(sum).epsilon(1e-12));
    }
  }

  // Two halves, merged; and saved as numbers.
  Hessian whole(k), first(k), second(k);
  whole.add(kF32, x.data(), 256, k);
  first.add(kF32, x.data(), 64, k);
  second.add(kF32, x.data() + 64 * k, 192, k);
  first.merge(second);
  CHECK(first.rows() == 256);
  const auto a = first.values(), b = whole.values();
  for (std::size_t i = 0; i < a.size(); ++i) REQUIRE(a[i] == Approx(b[i]).epsilon(1e-6).margin(1e-3));
  const Hessian again(k, whole.rows(), b, whole.magnitudes());
  CHECK(again.values() == b);
  CHECK(again.rows() == 256);
  const std::vector<float> w(at(2 * k), 0.5f);
  const QuantizeTarget target{.format = Format::parse("int4_row")};
  check_equal(gptq({w, 2, k}, again, target), gptq({w, 2, k}, whole, target));

  Hessian copy = whole;
  copy.add(kF32, x.data(), 0, k);
  CHECK(copy.values() == b);
  copy.add(kF32, x.data(), 1, k);
  CHECK(copy.values() != b);
  CHECK(whole.values() == b);
}

TEST_CASE("what Hessians refuse", "[quantize]") {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  const auto text = [](const Error& e) { return std::string(e.what()); };
  CHECK(text(refusal([] { Hessian(0); })) == "k must be 1 to 131072 (got 0)");
  CHECK(text(refusal([] { Hessian(131073); })) == "k must be 1 to 131072 (got 131073)");
  Hessian h(4);
  std::vector<float> x(at(300 * 4), 1.0f);
  h.add(kF32, x.data(), 300, 4);
  const auto before = h.values();
  for (const float bad : {nan, infinity, -infinity, 0x1.1p60f}) {
    x[at(299 * 4 + 2)] = bad;
    const Error e = refusal([&] { h.add(kF32, x.data(), 300, 4); });
    CHECK(e.field() == "x[299, 2]");
    CHECK(h.values() == before);
    CHECK(h.rows() == 300);
  }
  CHECK(refusal([&] { h.add(Format::parse("int8"), x.data(), 1, 4); }).field() == "x");
  CHECK(text(refusal([&] { h.add(kF32, x.data(), 1, 5); })) == "x cols must be k=4 (got 5)");
  CHECK(refusal([&] { h.add(kF32, x.data(), -1, 4); }).field() == "x rows");
  CHECK(refusal([&] { h.add(kF32, x.data(), INT64_MAX, 4); }).field() == "x rows");
  CHECK(text(refusal([&] { h.add(kF32, nullptr, 1, 4); })) == "x must have 1 x 4 elements (got null)");
  CHECK(text(refusal([&] { h.add(kF32, x.data(), 1, 4, 257); })) ==
        "threads must be 1 to 256, or 0 for all cores (got 257)");
  CHECK(refusal([&] { h.add(kF32, x.data(), 1, 4, -1); }).field() == "threads");
  CHECK(text(refusal([&] { h.merge(Hessian(5)); })) == "k of the other Hessian must be 4 (got 5)");
  std::vector<double> values(4), magnitudes(2);
  CHECK(text(refusal([&] { Hessian(2, 1, std::span(values).first(3), magnitudes); })) ==
        "values must have 4 (got 3 elements)");
  CHECK(text(refusal([&] { Hessian(2, 1, values, values); })) == "magnitudes must have 2 (got 4 elements)");
  CHECK(text(refusal([&] { Hessian(2, -1, values, magnitudes); })) == "rows must be 0 or more (got -1)");
  values[2] = static_cast<double>(nan);
  CHECK(refusal([&] { Hessian(2, 1, values, magnitudes); }).field() == "values[1, 0]");
  values[2] = 0, values[3] = -1;
  CHECK(refusal([&] { Hessian(2, 1, values, magnitudes); }).field() == "values[1, 1]");
  values[3] = 1, magnitudes[1] = -1;
  CHECK(refusal([&] { Hessian(2, 1, values, magnitudes); }).field() == "magnitudes[1]");
}

TEST_CASE("what the algorithms refuse", "[quantize]") {
  const Layer layer = correlated(2, 96, 200, 61);
  const Format g32 = Format::parse("int4_g32");
  const auto every = [&](const LinearWeight& w, const Hessian& h, const QuantizeTarget& target, const char* field) {
    INFO(field);
    CHECK(refusal([&] { round_to_nearest(w, h, target); }).field() == field);
    CHECK(refusal([&] { gptq(w, h, target); }).field() == field);
    CHECK(refusal([&] { awq(w, h, target); }).field() == field);
  };
  const LinearWeight good = layer.weight();
  every(good, Hessian(96), {.format = g32}, "down Hessian");
  every(good, diagonal(64, 1), {.format = g32}, "down k");
  every({std::span(layer.w).first(80), 1, 80, "down"}, diagonal(80, 1), {.format = g32}, "down k");
  every({good.w, 3, 96, "down"}, layer.hessian, {.format = g32}, "down w");
  every({{}, 0, 96, "down"}, layer.hessian, {.format = g32}, "down n");
  every({{}, 1LL << 62, 96, "down"}, layer.hessian, {.format = g32}, "down n");
  every(good, layer.hessian, {.format = Format::parse("q4_0")}, "down format");
  every(good, layer.hessian, {.format = g32, .encoder = 2}, "down encoder");
  every(good, layer.hessian, {.format = g32, .encoder = -1}, "down encoder");
  for (const std::int64_t group : {std::int64_t{48}, std::int64_t{16}, std::int64_t{-2}})
    every(good, layer.hessian, {.format = g32, .group = group}, "down group");
  every(good, layer.hessian, {.format = Format::parse("int4_row"), .group = 32}, "down group");
  every(good, layer.hessian, {.format = g32, .threads = -1}, "threads");
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> w = layer.w;
    w[100] = bad;
    every({w, 2, 96, "down"}, layer.hessian, {.format = g32}, "down w[1, 4]");
  }
  std::vector<float> large = layer.w;
  large[100] = 1e6f;
  const Error e = refusal([&] { round_to_nearest({large, 2, 96, "a\nb"}, layer.hessian, {.format = g32}); });
  CHECK(e.field() == "a\nb w, row 1, group 0");
  CHECK(e.code() == ErrorCode::unsupported);
  CHECK_NOTHROW(round_to_nearest({large, 2, 96}, layer.hessian, {.format = Format::parse("int4_row")}));
  for (const double damping : {-0.1, 1.1, std::numeric_limits<double>::quiet_NaN()})
    CHECK(refusal([&] { gptq(good, layer.hessian, {.format = g32}, {.damping = damping}); }).field() == "down damping");
  CHECK(refusal([&] { awq(good, layer.hessian, {.format = g32}, {.grid = 0}); }).field() == "down grid");
  CHECK(refusal([&] { awq(good, layer.hessian, {.format = g32}, {.grid = 1001}); }).field() == "down grid");
  CHECK(refusal([&] { awq(good, layer.hessian, {.format = g32}, {.search_rows = -1}); }).field() == "down search_rows");
}
