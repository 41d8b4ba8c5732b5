// SPDX-License-Identifier: Apache-2.0
// `bench gptq`: one layer quantized by GPTQ on the device, from a Hessian that is already summed. Times are those of
// whole calls, from w and H in host memory to streams and values there.
#include <fmt/format.h>
#include <tilewright/gptq.h>
#include <tilewright/npy.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <random>
#include <thread>

#include "bench/bench.h"
#include "bench/gemm/gemm_jobs.h"

namespace tilewright::bench {
namespace {

constexpr std::int64_t kTokens = 2048 * 128;
constexpr int kCalls = 4;  // the first one may compile

struct Layer {
  std::int64_t n = 0, k = 0;
  std::vector<float> w;
  std::optional<Hessian> hessian;
};

// Of inputs with sizes of their own, of which each has a share of the one before it, and eight things in common: what
// kTokens of them sum up to on average.
Layer synthetic(std::int64_t n, std::int64_t k) {
  constexpr int kShared = 8;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  Layer layer;
  layer.n = n, layer.k = k;
  layer.w.resize(static_cast<std::size_t>(n * k));
  for (float& v : layer.w) v = normal(random) * 0.02f;
  std::vector<double> size, magnitudes, share(static_cast<std::size_t>(k));
  std::vector<float> common(static_cast<std::size_t>(k * kShared));
  for (float& v : common) v = normal(random);
  for (double& v : share) v = std::pow(0.9, static_cast<double>(&v - share.data()));
  for (std::int64_t j = 0; j < k; ++j) size.push_back(std::exp(normal(random))), magnitudes.push_back(size.back());
  std::vector<double> h(static_cast<std::size_t>(k * k));
  std::vector<std::jthread> crew;
  const std::int64_t threads = std::max(1u, std::thread::hardware_concurrency());
  for (std::int64_t first = 0; first < threads; ++first)
    crew.emplace_back([&, first] {
      for (std::int64_t i = first; i < k; i += threads)
        for (std::int64_t j = 0; j <= i; ++j) {
          float all = 0;
          for (int f = 0; f < kShared; ++f)
            all +=
                common[static_cast<std::size_t>(i * kShared + f)] * common[static_cast<std::size_t>(j * kShared + f)];
          h[static_cast<std::size_t>(i * k + j)] =
              static_cast<double>(kTokens) * size[static_cast<std::size_t>(i)] * size[static_cast<std::size_t>(j)] *
              (share[static_cast<std::size_t>(i - j)] + 0.1 * static_cast<double>(all));
        }
    });
  crew.clear();
  layer.hessian.emplace(k, kTokens, h, magnitudes);
  return layer;
}

// [rows, cols] of a .npy file.
template <class T>
std::vector<T> read(const std::string& path, const char* dtype, std::int64_t& rows, std::int64_t& cols) {
  const Npy npy = Npy::open(path);
  if (npy.dtype() != dtype || npy.shape().size() != 2)
    throw Error(ErrorCode::invalid_argument, path, fmt::format("{} of {} dimensions", npy.dtype(), npy.shape().size()),
                fmt::format("must be a matrix of {}", dtype));
  rows = npy.shape()[0], cols = npy.shape()[1];
  std::vector<T> values(static_cast<std::size_t>(rows * cols));
  npy.read(0, std::as_writable_bytes(std::span(values)));
  return values;
}
Layer from_files(const std::string& folder) {
  Layer layer;
  layer.w = read<float>(folder + "/w.npy", "<f4", layer.n, layer.k);
  std::int64_t rows = 0, cols = 0;
  const std::vector<double> h = read<double>(folder + "/h.npy", "<f8", rows, cols);
  if (rows != layer.k || cols != layer.k)
    throw Error(ErrorCode::invalid_argument, folder + "/h.npy", fmt::format("{} x {}", rows, cols),
                fmt::format("must be {0} x {0}, as w is wide", layer.k));
  layer.hessian.emplace(layer.k, kTokens, h, std::vector<double>(static_cast<std::size_t>(layer.k)));
  return layer;
}

template <class F>
double seconds(F f) {
  const auto began = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

}  // namespace

Json gptqs(const Device& device, const Settings& settings) {
  Options options = Options::from_env();
  options.cache = settings.cache.empty() ? ":memory:" : settings.cache;
  Engine engine(options);
  std::vector<Shape> shapes = shapes_of(settings.shapes);
  if (shapes.empty()) shapes = {{4096, 14336}};
  if (!settings.layer.empty()) shapes = {{0, 0}};
  Table table({"n", "k", "first call, s", "s", "relative error", "on the host, s", "the same bits"});
  Json rows = Json::array();
  for (const auto& [n, k] : shapes) {
    const Layer layer = settings.layer.empty() ? synthetic(n, k) : from_files(settings.layer);
    const LinearWeight weight{layer.w, layer.n, layer.k, "layer"};
    const QuantizeTarget target{.format = Format::parse("int4_g128"), .encoder = 1};
    std::optional<QuantizedLinear> q;
    std::vector<double> times;
    for (int call = 0; call < kCalls; ++call) {
      q.reset();
      times.push_back(seconds([&] { q = gptq(engine, device, weight, *layer.hessian, target); }));
      fmt::print("{} x {}: {:.3f} s\n", layer.n, layer.k, times.back());
      std::fflush(stdout);
    }
    const double first = times.front(), later = median({times.begin() + 1, times.end()});
    Json row = {{"n", layer.n},
                {"k", layer.k},
                {"tokens", kTokens},
                {"format", "int4_g128"},
                {"encoder", "compressed_tensors"},
                {"first_seconds", first},
                {"seconds", later},
                {"calls", times},
                {"relative_error", q->relative_error()},
                {"error", q->error},
                {"damping", q->damping}};
    double host = 0;
    bool same = false;
    if (settings.host) {
      std::optional<QuantizedLinear> expected;
      host = seconds([&] { expected = gptq(weight, *layer.hessian, target); });
      same = expected->data == q->data && expected->scales == q->scales && expected->error == q->error;
      row["host_seconds"] = host;
      row["host_threads"] = std::thread::hardware_concurrency();
      row["same_bits"] = same;
    }
    if (!settings.layer.empty())
      if (std::ifstream file(settings.layer + "/torch.json"); file) row["torch"] = Json::parse(file);
    table.row({fmt::format("{}", layer.n), fmt::format("{}", layer.k), fmt::format("{:.3f}", first),
               fmt::format("{:.3f}", later), fmt::format("{:.6e}", q->relative_error()),
               settings.host ? fmt::format("{:.1f}", host) : "-", settings.host ? (same ? "yes" : "NO") : "-"});
    rows.push_back(std::move(row));
  }
  fmt::print("{}", table.text());
  return rows;
}

}  // namespace tilewright::bench
