// SPDX-License-Identifier: Apache-2.0
// The launches of GPTQ on a device, step for step what hessian.cpp and post_training.cpp compute on the host.
#include "quantize/rounding/gptq_device.h"

#include <tilewright/memory.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "quantize/rounding/job.h"
#include "support/threads.h"

namespace tilewright {

using namespace quantize;

namespace {

using Step = GptqArgs::Step;

constexpr std::int64_t kColumns = 4;  // of tiles of R, as factor() in hessian.cpp takes them together

class DeviceGptq {
 public:
  DeviceGptq(GptqMachine& machine, const LinearWeight& layer, const Hessian& hessian, const QuantizeTarget& target,
             const GptqOptions& options)
      : machine_(machine),
        gptq_(layer, hessian, target, options),
        job_(gptq_.job),
        n_(layer.n),
        k_(layer.k),
        tiles_(tiles_in(k_)),
        strips_(job_.strips()),
        q_(job_.rounder.format()) {
    q_.n = n_, q_.k = k_, q_.group = job_.group;
    place(target);
  }

  QuantizedLinear run() {
    launch({.step = Step::gather, .plain = 1}, strips_ * tiles_);
    launch({.step = Step::energy}, strips_ * tiles_);
    launch({.step = Step::energy, .plain = 1}, strips_);
    for (const double energy : errors_of_strips()) q_.energy += energy;
    gptq_.damp([&](double damping) { return factor(damping); });
    round();
    for (const double error : errors_of_strips()) q_.error += std::max(error, 0.0);
    store();
    gptq_.finish(q_);
    return std::move(q_);
  }

 private:
  template <class T>
  T* allocate(std::int64_t count) {
    return static_cast<T*>(machine_.allocate(at(count) * sizeof(T)));
  }
  template <class T>
  T* uploaded(const std::vector<T>& from) {
    T* to = allocate<T>(static_cast<std::int64_t>(from.size()));
    machine_.upload(to, from.data(), from.size() * sizeof(T));
    return to;
  }
  template <class T>
  std::vector<T> downloaded(const T* from, std::int64_t count) {
    std::vector<T> to(at(count));
    machine_.download(to.data(), from, to.size() * sizeof(T));
    return to;
  }
  void launch(const GptqArgs& args, std::int64_t blocks) { machine_.launch(args, blocks); }

  void place(const QuantizeTarget& target) {
    const std::int64_t rows = strips_ * kTile, triangle = tiles_ * (tiles_ + 1) / 2 * kTileSize,
                       elements = strips_ * tiles_ * kTileSize;
    layer_.n = n_, layer_.k = k_, layer_.group = job_.group;
    layer_.static_groups = job_.static_groups, layer_.encoder = target.encoder;
    layer_.mean = gptq_.mean;
    layer_.least_pivot = static_cast<double>(k_) * std::numeric_limits<double>::epsilon();

    std::vector<std::int32_t> order = job_.order, slots(at(k_)), places(at(k_));
    for (std::int64_t i = 0; i < k_; ++i) {
      slots[at(job_.order[at(i)])] = places[at(job_.places[at(i)])] = static_cast<std::int32_t>(i);
      if (job_.dead[at(order[at(i)])]) order[at(i)] = ~order[at(i)];
    }
    layer_.order = uploaded(order), layer_.slots = uploaded(slots), layer_.places = uploaded(places);
    layer_.source = allocate<float>(n_ * k_);
    machine_.upload(layer_.source, job_.layer.w.data(), job_.layer.w.size_bytes());
    double* h = allocate<double>(triangle);
    machine_.upload(h, job_.hessian.tiles.tile(0, 0), at(triangle) * sizeof(double));
    layer_.h = h;
    layer_.r = allocate<double>(triangle);
    layer_.least = allocate<double>(tiles_ * kTile);
    layer_.failed = allocate<std::uint32_t>(1);
    layer_.w = allocate<float>(elements);
    layer_.sums = allocate<double>(elements);
    const bool corrects = !job_.static_groups && job_.groups > 1;
    layer_.corrections = allocate<double>(corrects ? strips_ * (job_.group / kTile + 2) * kTileSize : 0);
    layer_.items = allocate<std::uint32_t>(job_.groups * rows);
    layer_.codes = allocate<std::uint8_t>(elements);
    layer_.errors = allocate<double>(rows);
    layer_.bad_group = allocate<std::uint32_t>(rows);
    layer_.bad_range = allocate<float>(2 * rows);
    layer_.data = allocate<std::uint8_t>(n_ * k_ / 2);
    machine_.begin(layer_);
  }

  bool factor(double damping) {
    machine_.clear(layer_.failed);
    added_ = damping * gptq_.mean;
    launch({.step = Step::arrange, .added = added_}, tiles_ * tiles_);
    const auto subtract = [&](std::int64_t first, std::int64_t count, std::int64_t from, std::int64_t end) {
      if (from < end)
        launch({.step = Step::subtract, .first = first, .count = count, .from = from, .end = end},
               (first + count) * count);
    };
    for (std::int64_t end = tiles_; end > 0; end -= std::min(end, kColumns)) {
      const std::int64_t first = std::max<std::int64_t>(end - kColumns, 0);
      subtract(first, end - first, end, tiles_);
      for (std::int64_t j = end - 1; j >= first; --j) {
        subtract(j, 1, j + 1, end);
        launch({.step = Step::diagonal, .first = j}, 1);
        if (j) launch({.step = Step::solve, .first = j}, j);
      }
    }
    launch({.step = Step::transpose}, tiles_ * tiles_);
    return downloaded(layer_.failed, 1)[0] == 0;
  }

  void round() {
    launch({.step = Step::gather}, strips_ * tiles_);
    machine_.clear(layer_.sums);
    machine_.clear(layer_.errors);
    machine_.clear(layer_.bad_group);
    if (job_.static_groups) launch({.step = Step::choose}, strips_);
    std::vector<std::int64_t> summed(at(tiles_), 0);  // tiles whose part of a tile's sums is there
    for (std::int64_t tile = 0; tile < tiles_; ++tile) {
      // Groups that begin in this tile want the sums of all their tiles.
      std::int64_t last = tile + 1;
      const std::int64_t begun = std::min((tile + 1) * kTile, k_) - 1, start = begun / job_.group * job_.group;
      if (!job_.static_groups && start >= tile * kTile) last = tiles_in(std::min(start + job_.group, k_));
      for (std::int64_t t = tile, end; t < last; t = end) {
        for (end = t + 1; end < last && summed[at(end)] == summed[at(t)];) ++end;
        if (summed[at(t)] < tile)
          launch({.step = Step::add, .first = t, .count = end - t, .from = summed[at(t)], .end = tile},
                 strips_ * (end - t));
      }
      std::fill(summed.begin() + tile, summed.begin() + last, tile);
      launch({.step = Step::round, .first = tile, .added = added_}, strips_);
    }
  }

  // Sums over their rows, in order.
  std::vector<double> errors_of_strips() {
    const std::vector<double> rows = downloaded(layer_.errors, strips_ * kTile);
    std::vector<double> sums;
    for (std::int64_t first = 0; first < n_; first += kTile)
      sums.push_back(std::accumulate(rows.begin() + first, rows.begin() + std::min(first + kTile, n_), 0.0));
    return sums;
  }

  void store() {
    const std::vector<std::uint32_t> bad = downloaded(layer_.bad_group, n_);
    if (const auto any = std::find_if(bad.begin(), bad.end(), [](auto b) { return b != 0; }); any != bad.end()) {
      // The host's strips stop at their first group that has such a row.
      const std::int64_t strip = (any - bad.begin()) / kTile, end = std::min(n_, (strip + 1) * kTile);
      const auto worse = [](std::uint32_t a, std::uint32_t b) { return a - 1 < b - 1; };  // 0, none, is behind all
      const std::int64_t row = std::min_element(bad.begin() + strip * kTile, bad.begin() + end, worse) - bad.begin();
      const std::vector<float> range = downloaded(layer_.bad_range, 2 * n_);
      job_.refuse_scale(row, bad[at(row)] - 1, range[at(2 * row)], range[at(2 * row + 1)]);
    }
    launch({.step = Step::store}, strips_ * tiles_);
    const std::int64_t rows = strips_ * kTile;
    const std::vector<std::uint32_t> items = downloaded(layer_.items, job_.groups * rows);
    const int item = job_.rounder.item_bytes();
    const std::int64_t block = job_.rounder.row_scaled() ? k_ : q_.format.block(), blocks = k_ / block;
    q_.scales.resize(at(q_.format.stream_bytes(1, n_, k_)));
    for (std::int64_t row = 0; row < n_; ++row)
      for (std::int64_t b = 0; b < blocks; ++b)  // an item's bytes are the word's first, which is little-endian
        std::memcpy(&q_.scales[at((row * blocks + b) * item)], &items[at(b * block / job_.group * rows + row)],
                    at(item));
    q_.data.resize(at(q_.format.stream_bytes(0, n_, k_)));
    machine_.download(q_.data.data(), layer_.data, q_.data.size());
    q_.values = downloaded(layer_.source, n_ * k_);
  }

  GptqMachine& machine_;
  GptqJob gptq_;
  Job& job_;
  std::int64_t n_, k_, tiles_, strips_;
  GptqLayer layer_;
  double added_ = 0;  // to the diagonal
  QuantizedLinear q_;
};

class DeviceMachine : public GptqMachine {
 public:
  DeviceMachine(Engine& engine, const Device& device, Format format)
      : engine_(engine), device_(device), stream_(device), format_(format) {}
  void* allocate(std::size_t bytes) override {
    return memory_.emplace_back(device_, std::max<std::size_t>(bytes, 16)).data();
  }
  void clear(void* all) override {
    stream_.synchronize();
    of(all).fill(0);
  }
  void upload(void* to, const void* from, std::size_t bytes) override {
    stream_.synchronize();
    of(to).upload({static_cast<const std::byte*>(from), bytes});
  }
  void download(void* to, const void* from, std::size_t bytes) override {
    stream_.synchronize();
    of(from).download({static_cast<std::byte*>(to), bytes});
  }
  void begin(const GptqLayer& layer) override {
    std::vector<Task> tasks = gptq_tasks(format_);
    const auto bytes = std::as_bytes(std::span(&layer, 1));
    for (Task& task : tasks) task.contract.constants.assign(bytes.begin(), bytes.end());
    kernels_.resize(tasks.size());
    parallel(2, 2, [&](std::int64_t i) { kernels_[at(i)] = engine_.prepare(tasks[at(i)], device_); });  // may compile
  }
  void launch(const GptqArgs& args, std::int64_t blocks) override {
    const bool rounds = args.step == Step::choose || args.step == Step::round;
    kernels_[rounds]->launch(stream_.get(), std::as_bytes(std::span(&args, 1)), blocks, 0);
  }

 private:
  Memory& of(const void* data) {
    return *std::find_if(memory_.begin(), memory_.end(), [&](const Memory& m) { return m.data() == data; });
  }

  Engine& engine_;
  Device device_;
  OwnedStream stream_;
  Format format_;
  std::vector<Memory> memory_;
  std::vector<std::optional<Kernel>> kernels_;
};

}  // namespace

std::int64_t gptq_device_bytes(std::int64_t n, std::int64_t k, std::int64_t group) {
  // Of any n and k: in floating point, which does not overflow and is exact for what a device has.
  constexpr double kMost = 0x1p63, kSide = kTile;
  const double wide = static_cast<double>(k), high = static_cast<double>(n);
  const double rows = std::ceil(high / kSide) * kSide, tiles = std::ceil(wide / kSide), columns = tiles * kSide;
  const double of_group = static_cast<double>(group ? group : 128);
  const double corrections = group < 0 ? 0 : (std::floor(std::min(of_group, wide) / kSide) + 2) * kSide;
  const double bytes = tiles * (tiles + 1) / 2 * kTileSize * 16 + rows * columns * 13 + high * wide / 2 * 9 +
                       rows * corrections * 8 + rows * (wide / 8 + 20);
  return bytes < kMost ? static_cast<std::int64_t>(bytes) : std::numeric_limits<std::int64_t>::max();
}

namespace quantize {

QuantizedLinear gptq(GptqMachine& machine, const LinearWeight& layer, const Hessian& hessian,
                     const QuantizeTarget& target, const GptqOptions& options) {
  return DeviceGptq(machine, layer, hessian, target, options).run();
}

}  // namespace quantize

QuantizedLinear gptq(Engine& engine, const Device& device, const LinearWeight& layer, const Hessian& hessian,
                     const QuantizeTarget& target, const GptqOptions& options) {
  DeviceMachine machine(engine, device, target.format);
  return gptq(machine, layer, hessian, target, options);
}

}  // namespace tilewright
