// SPDX-License-Identifier: Apache-2.0
#include "cli/oracle.h"

#include <fmt/format.h>
#include <tilewright/error.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <thread>

namespace tilewright::cli {
namespace {

constexpr double kMostMacs = 2e9;  // of one check; a few seconds on two cores

double activate(Activation act, double v) {
  switch (act) {
    case Activation::none: return v;
    case Activation::relu: return v > 0 || v != v ? v : 0;
    case Activation::gelu: return 0.5 * v * (1 + std::erf(v * 0.70710678118654752440));
    case Activation::gelu_tanh: return 0.5 * v * (1 + std::tanh(0.79788456080286535588 * (v + 0.044715 * v * v * v)));
    case Activation::silu: return v / (1 + std::exp(-v));
  }
  return v;
}

// body(i) for i in [0, count), on every core.
void parallel(std::size_t count, const std::function<void(std::size_t)>& body) {
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i; (i = next.fetch_add(1)) < count;) body(i);
  };
  std::vector<std::jthread> threads;
  const std::size_t cores = std::max(1u, std::thread::hardware_concurrency());
  for (std::size_t i = 1; i < std::min(cores, count); ++i) threads.emplace_back(work);
  work();
}

std::vector<std::int64_t> spread(std::int64_t extent, std::int64_t count) {
  std::vector<std::int64_t> at;
  count = std::clamp<std::int64_t>(count, 1, extent);
  for (std::int64_t i = 0; i < count; ++i) at.push_back(count == 1 ? 0 : i * (extent - 1) / (count - 1));
  return at;
}

// What rounding to an output format costs, and where it saturates.
struct Resolution {
  double unit, tiny, least = -std::numeric_limits<double>::infinity(), most = std::numeric_limits<double>::infinity();
};
Resolution resolution(Format y) {
  if (y.name() == "f16") return {4.89e-4, 6e-8};
  if (y.name() == "bf16") return {3.91e-3, 1e-40};
  if (y.name() == "e4m3") return {0.0626, 0.00196, -448, 448};
  if (y.name() == "e5m2") return {0.1251, 1.53e-5, -57344, 57344};
  if (y.name() == "int8") return {0, 0.5001, -128, 127};
  if (y.name() == "int32") return {5.97e-8, 0.25};
  return {5.97e-8, 1.5e-45};
}

double residual_at(const Gemm& g, const HostMatrix* c, std::int64_t row, std::int64_t col) {
  return c ? g.beta * c->values[static_cast<std::size_t>(row * g.n + col)] : 0;
}

}  // namespace

MutableOperand HostMatrix::operand() {
  MutableOperand o;
  const auto specs = format.info().streams;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const std::string_view name = specs[i].name;
    void* p = streams[i].data();
    if (name == "data") o.data = p;
    if (name == "scales") o.scales = p;
    if (name == "global") o.global = static_cast<float*>(p);
  }
  return o;
}

std::vector<float> random_values(std::int64_t count, float deviation, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
  float magnitude = 1;
  for (std::size_t i = 0; i < values.size(); ++i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    if (i % 64 == 0) magnitude = 0.25f + 1.5f * static_cast<float>(state >> 40) * 0x1p-24f;
    float sum = 0;  // of four uniforms: close to a Gaussian that ends at 3.5 deviations
    for (int part = 0; part < 4; ++part) sum += static_cast<float>(state >> (16 * part) & 0xffff) * 0x1p-16f;
    values[i] = (sum - 2.0f) * 1.7320508f * magnitude * deviation;
  }
  return values;
}

HostMatrix encoded(Format format, std::int64_t rows, std::int64_t cols, std::vector<float> source, int encoder) {
  HostMatrix m{format, rows, cols, {}, {}, {}};
  const FormatInfo& info = format.info();
  for (int i = 0; i < static_cast<int>(info.streams.size()); ++i)
    m.streams.emplace_back(static_cast<std::size_t>(format.stream_bytes(i, rows, cols)));
  const MutableOperand to = m.operand();
  if (to.global) {
    float amax = 0;
    for (float v : source) amax = std::max(amax, std::fabs(v));
    *to.global = info.global_for(amax);
  }
  info.encode(source.data(), rows, cols, to, encoder);
  m.values = std::move(source);
  info.decode(to, rows, cols, m.values.data());
  return m;
}

HostMatrix from_model(const Gguf& file, const std::string& name, Format wanted, std::int64_t rows, std::int64_t cols) {
  const GgufTensor& t = file.tensor(name);
  if (t.rows() != rows || t.cols() != cols)
    throw Error(ErrorCode::invalid_argument, "--tensor", name,
                fmt::format("is {} x {} (n x k), the problem wants {} x {}", t.rows(), t.cols(), rows, cols));
  const std::string_view format = t.format;
  if (format.empty())
    throw Error(ErrorCode::unsupported, "--tensor", name, fmt::format("has type {}, which is not read", t.type_name));
  HostMatrix m{Format::parse(format), rows, cols, {file.read(t)}, {}, {}};
  m.values.resize(static_cast<std::size_t>(rows * cols));
  m.format.info().decode(m.operand(), rows, cols, m.values.data());
  m.origin = fmt::format("{} ({}, as stored)", name, format);
  if (m.format == wanted) return m;
  if (format != "f32" && format != "f16" && format != "bf16")
    throw Error(ErrorCode::invalid_argument, "w", std::string(wanted.name()),
                fmt::format("tensor '{}' is {}; ask for that, or name a tensor of floats", name, format));
  HostMatrix out = encoded(wanted, rows, cols, std::move(m.values));
  out.origin = fmt::format("{} ({}, encoded to {})", name, format, wanted.name());
  return out;
}

Sample choose_sample(std::int64_t m, std::int64_t n, std::int64_t k) {
  const double pairs = std::max(64.0, kMostMacs / static_cast<double>(k));
  if (static_cast<double>(m) * static_cast<double>(n) <= pairs) return {spread(m, m), spread(n, n)};
  Sample s;
  s.rows = spread(m, 16);
  s.cols = spread(n, static_cast<std::int64_t>(pairs / static_cast<double>(s.rows.size())));
  return s;
}

std::vector<Expected> gemm_oracle(const Gemm& g, const HostMatrix& x, const HostMatrix& w, const HostMatrix* bias,
                                  const HostMatrix* added, const Sample& sample) {
  std::vector<Expected> out(static_cast<std::size_t>(sample.size()));
  const Resolution stored = resolution(g.y);
  const bool exact = g.y.name() == "int32";
  const auto is_fp8 = [](Format f) { return f.name().starts_with("e4m3") || f.name().starts_with("e5m2"); };
  const double fp8 =
      !is_fp8(g.x) ? 0 : 9.765625e-4 * (g.accumulation == Accumulation::fast ? static_cast<double>(g.k) / 32 : 4.0);
  parallel(sample.cols.size(), [&](std::size_t c) {
    const float* wr = w.values.data() + sample.cols[c] * g.k;
    for (std::size_t r = 0; r < sample.rows.size(); ++r) {
      const float* xr = x.values.data() + sample.rows[r] * g.k;
      double sum = 0, magnitude = 0;
      for (std::int64_t i = 0; i < g.k; ++i) {
        const double product = static_cast<double>(xr[i]) * wr[i];
        sum += product;
        magnitude += std::fabs(product);
      }
      const double b = bias ? bias->values[static_cast<std::size_t>(sample.cols[c])] : 0;
      const double residual = residual_at(g, added, sample.rows[r], sample.cols[c]);
      const double linear = g.alpha * sum, value = linear + b;
      const double y = (activate(g.act, value) + residual) / g.y_scale;
      const double additions = static_cast<double>(g.k) / 4 + 64;
      double before = 1.2 * std::fabs(g.alpha) * magnitude * (additions * 5.97e-8 + fp8) +
                      9.6e-7 * (std::fabs(value) + std::fabs(linear) + std::fabs(b) + std::fabs(residual));
      if (g.y_scale != 1.0) before = before / g.y_scale + 9.6e-7 * std::fabs(y);
      if (exact) before = 0;
      const double clamped = std::clamp(y, stored.least, stored.most);
      out[r * sample.cols.size() + c] = {clamped, before + stored.unit * (std::fabs(clamped) + before) + stored.tiny};
    }
  });
  return out;
}

std::vector<float> gemm_on_cpu(const Gemm& g, const HostMatrix& x, const HostMatrix& w, const HostMatrix* bias,
                               const HostMatrix* added, const Sample& sample) {
  std::vector<float> out(static_cast<std::size_t>(sample.size()));
  parallel(sample.cols.size(), [&](std::size_t c) {
    const float* wr = w.values.data() + sample.cols[c] * g.k;
    for (std::size_t r = 0; r < sample.rows.size(); ++r) {
      const float* xr = x.values.data() + sample.rows[r] * g.k;
      float lanes[8] = {};  // short chains of additions, as in a kernel
      for (std::int64_t i = 0; i < g.k; ++i) lanes[i % 8] += xr[i] * wr[i];
      const float sum =
          ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
      const float b = bias ? bias->values[static_cast<std::size_t>(sample.cols[c])] : 0;
      const double y = activate(g.act, static_cast<float>(g.alpha) * sum + b) +
                       residual_at(g, added, sample.rows[r], sample.cols[c]);
      out[r * sample.cols.size() + c] = static_cast<float>(y / g.y_scale);
    }
  });
  return encoded(g.y, 1, sample.size(), std::move(out)).values;
}

Verdict judge(const std::vector<Expected>& expected, const std::vector<float>& got, const Sample& sample) {
  Verdict verdict;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double value = expected[i].value, g = got[i];
    const bool overflows = std::isinf(g) && std::fabs(value) > 65504;  // of f16, where the exact value does too
    const double error = std::fabs(g - value);
    if (!overflows && !(error <= expected[i].bound)) {  // NaN never passes
      if (verdict.wrong.empty())
        verdict.wrong = fmt::format("y[{},{}] = {}, expected {} +- {:.2g}", sample.rows[i / sample.cols.size()],
                                    sample.cols[i % sample.cols.size()], g, value, expected[i].bound);
      verdict.of_bound = std::numeric_limits<double>::infinity();
    }
    if (overflows) continue;
    verdict.largest = error > verdict.largest || error != error ? error : verdict.largest;
    if (expected[i].bound > 0) verdict.of_bound = std::max(verdict.of_bound, error / expected[i].bound);
  }
  return verdict;
}

}  // namespace tilewright::cli
