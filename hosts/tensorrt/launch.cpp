// SPDX-License-Identifier: Apache-2.0
#include "hosts/tensorrt/launch.h"

#include <tilewright/cast.h>
#include <tilewright/error.h>
#include <tilewright/transpose.h>

#include <algorithm>
#include <span>
#include <string>

#include "hosts/tensorrt/binaries.h"
#include "hosts/tensorrt/recipe_inputs.h"

namespace tilewright::tensorrt {
namespace {

constexpr std::size_t kAlign = 256;

std::size_t aligned(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

Device device_for(const Recipe& recipe) {
  const std::optional<Device> device = current_device();
  if (!device)
    throw Error(ErrorCode::unsupported, "device", "", "is missing: this process has no GPU that the driver can use");
  if (std::string_view(device->arch().name) != recipe.arch->name)
    throw Error(ErrorCode::unsupported, "target", recipe.arch->name,
                "is what the engine was built for, but " + device->name() + " is " + device->arch().name +
                    "; build the engine with target=" + device->arch().name);
  return *device;
}

std::int64_t launch_rows(const Recipe& recipe, const Dims& x) {
  return std::max<std::int64_t>(recipe.conv() ? elements(x) / recipe.conv()->c : rows_of(x), 0);
}

// As Layer::scratch_bytes(), without a device.
std::size_t cast_bytes(const Problem& cast, std::int64_t rows) {
  const Cast& c = *cast.as<Cast>();
  std::size_t bytes = 0;
  const auto streams = c.y.info().streams;
  for (std::size_t i = 0; i < streams.size(); ++i)
    if (streams[i].stream != StreamName::global)
      bytes += aligned(static_cast<std::size_t>(c.y.stream_bytes(static_cast<int>(i), rows, c.cols)));
  return bytes;
}

std::size_t workspace_bytes(const Recipe& recipe) {
  return static_cast<std::size_t>(recipe.gemm() ? recipe.gemm()->workspace : recipe.conv()->workspace);
}

}  // namespace

Scratch scratch_of(const Recipe& recipe, const Dims& x) {
  Scratch scratch;
  const auto take = [&](std::size_t bytes) {
    const std::size_t at = scratch.bytes;
    scratch.bytes += aligned(bytes);
    return at;
  };
  if (recipe.problems.cast) scratch.x_bytes = cast_bytes(*recipe.problems.cast, launch_rows(recipe, x));
  scratch.x = take(scratch.x_bytes);
  if (recipe.weights == Weights::transposed) {
    const WeightBytes& bytes = recipe.weight_bytes;
    for (int i = 0; i < 2; ++i) scratch.stored[i] = take(bytes.stored[i]);
    if (recipe.problems.repack)
      for (int i = 0; i < 2; ++i) scratch.packed[i] = take(bytes.launched[i]);
  }
  return scratch;
}

// ---- weights

Operand DeviceWeights::constants(const Recipe& recipe, const Device& device) {
  const std::lock_guard lock(mutex_);
  const auto [at, added] = constants_.try_emplace(device.ordinal());
  Kept& kept = at->second;
  if (added) {
    const Bytes* const from[] = {&recipe.data, &recipe.scales, &recipe.global};
    try {
      for (std::size_t i = 0; i < 3; ++i) {
        if (from[i]->empty()) continue;
        kept.memory[i] = Memory(device, from[i]->size());
        kept.memory[i].upload(*from[i]);
      }
    } catch (...) {
      constants_.erase(at);
      throw;
    }
    kept.w = {kept.memory[0].data(), kept.memory[1].data(), static_cast<const float*>(kept.memory[2].data())};
  }
  return kept.w;
}

const float* DeviceWeights::one(const Device& device) {
  const std::lock_guard lock(mutex_);
  Memory& memory = ones_[device.ordinal()];
  if (memory.size() == 0) {
    const float one = 1;
    Memory made(device, sizeof one);
    made.upload(std::as_bytes(std::span(&one, 1)));
    memory = std::move(made);
  }
  return static_cast<const float*>(memory.data());
}

std::optional<Operand> DeviceWeights::reordered(const Device& device, const void* data) {
  const std::lock_guard lock(mutex_);
  const auto found = reordered_.find({device.ordinal(), data});
  if (found == reordered_.end()) return {};
  return found->second.w;
}

Operand DeviceWeights::keep(const Device& device, const void* data, std::array<Memory, 2> memory, Operand w) {
  device.synchronize();  // other streams may read the copy from now on
  const std::lock_guard lock(mutex_);
  Kept& kept = reordered_[{device.ordinal(), data}];
  if (!kept.w.data) {
    kept.memory[0] = std::move(memory[0]), kept.memory[1] = std::move(memory[1]);
    kept.w = w;
  }
  return kept.w;
}

// ---- launches

Execution::Execution(std::shared_ptr<const Recipe> recipe, std::shared_ptr<DeviceWeights> weights, const void* context)
    : recipe_(std::move(recipe)), weights_(std::move(weights)), device_(device_for(*recipe_)) {
  if (!recipe_->binaries.empty()) add_to_cache(recipe_->binaries);
  layer_ = layer_of(device_, recipe_->problem, recipe_->options);
  if (recipe_->weights == Weights::constants) weights_->constants(*recipe_, device_);
  if (recipe_->weights == Weights::transposed) {
    weights_->one(device_);
    transpose_data_ = engine().prepare(transpose_data(*recipe_->gemm()), device_);
    transpose_scales_ = engine().prepare(transpose_scales(*recipe_->gemm()), device_);
    if (recipe_->problems.repack) engine().prepare(*recipe_->problems.repack, device_);
  }
  if (const std::size_t bytes = workspace_bytes(*recipe_)) {
    workspaces_ = Workspaces::of(context, device_);
    workspaces_->reserve(bytes);
  }
}

void Execution::set_candidate(const std::string& candidate, std::int64_t rows) {
  if (candidate.empty()) {
    candidate_.reset();
    return;
  }
  Task task = engine().task(recipe_->problem.with_rows(rows), *recipe_->arch);
  const Candidate wanted = Candidate::parse(candidate);
  if (std::find(task.candidates.begin(), task.candidates.end(), wanted) == task.candidates.end())
    throw Error(ErrorCode::unsupported, "tactic", candidate,
                "is not a kernel of this library any more; build the engine again");
  task.candidates = {wanted, task.candidates.back()};
  task.key += " tactic " + candidate;  // no choice is stored for it, so the first candidate is taken
  Kernel kernel = engine().prepare(task, device_);
  if (recipe_->problems.cast && !cast_) cast_ = engine().prepare(*recipe_->problems.cast, device_);
  candidate_ = std::move(kernel);
  bucket_ = bucket_index(rows);
}

void Execution::set_shapes(const Dims* inputs, std::int32_t count) {
  recipe_->check_shapes(inputs, count);
  if (recipe_->conv()) layer_ = layer_of(device_, recipe_->with_shape(inputs[0]), recipe_->options);
}

Operand Execution::weights(const std::array<const void*, kSlots>& given, std::byte* scratch, const Scratch& at,
                           Stream stream) {
  const auto slot = [&](Slot s) { return given[static_cast<std::size_t>(s)]; };
  const void *const data = slot(Slot::w), *const scales = slot(Slot::w_scales);
  switch (recipe_->weights) {
    case Weights::constants: return weights_->constants(*recipe_, device_);
    case Weights::inputs: return {data, scales, static_cast<const float*>(slot(Slot::w_global))};
    case Weights::transposed: break;
  }
  if (recipe_->constant_inputs)
    if (const std::optional<Operand> kept = weights_->reordered(device_, data)) return *kept;

  const float* const one = weights_->one(device_);
  // During a capture nothing can be allocated, so the graph reorders w.
  const bool keep = recipe_->constant_inputs && !capturing(stream);
  const bool packs = recipe_->problems.repack.has_value();
  MutableOperand stored{scratch + at.stored[0], scratch + at.stored[1], nullptr};
  MutableOperand packed{scratch + at.packed[0], scratch + at.packed[1], nullptr};
  std::array<Memory, 2> memory;
  if (keep) {
    for (std::size_t i = 0; i < 2; ++i) memory[i] = Memory(device_, recipe_->weight_bytes.launched[i]);
    (packs ? packed : stored) = {memory[0].data(), memory[1].data(), nullptr};
  }
  TransposeArgs codes, factors;
  codes.x = data, codes.y = stored.data;
  factors.x = scales, factors.y = stored.scales;
  transpose_data_->launch(stream, codes);
  transpose_scales_->launch(stream, factors);
  Operand w{stored.data, stored.scales, one};
  if (packs) {
    layer_->pack(stream, w, packed);
    w = {packed.data, packed.scales, one};
  }
  return keep ? weights_->keep(device_, data, std::move(memory), w) : w;
}

template <class Args>
void Execution::fill_in(Args& args, const std::array<const void*, kSlots>& given, void* output, std::byte* scratch,
                        const Scratch& at, Stream stream) {
  const auto slot = [&](Slot s) { return given[static_cast<std::size_t>(s)]; };
  args.x = {slot(Slot::x), slot(Slot::x_scales), static_cast<const float*>(slot(Slot::x_global))};
  args.w = weights(given, scratch, at, stream);
  args.bias = slot(Slot::bias);
  args.y = output;
  if (workspaces_) args.workspace = workspaces_->on(stream);
}

// As Layer::launch(): a cast if x needs one, and the kernel.
void Execution::launch_candidate(GemmArgs args, std::byte* scratch, Stream stream) const {
  if (recipe_->problems.cast) {
    const Cast& c = *recipe_->problems.cast->as<Cast>();
    CastArgs cast;
    cast.x.data = args.x.data;
    cast.rows = args.m;
    cast.y.data = scratch;
    cast.y.global = const_cast<float*>(args.x.global);  // which a cast reads
    const auto streams = c.y.info().streams;
    for (std::size_t i = 0; i < streams.size(); ++i)
      if (streams[i].stream == StreamName::scales)
        cast.y.scales = scratch + aligned(static_cast<std::size_t>(c.y.stream_bytes(0, args.m, c.cols)));
    cast_->launch(stream, cast);
    args.x = cast.y;
  }
  candidate_->launch(stream, args);
}

void Execution::launch(const nvinfer1::PluginTensorDesc* shapes, const void* const* inputs, void* output, void* scratch,
                       Stream stream) {
  std::array<const void*, kSlots> given = {};
  for (std::size_t i = 0; i < recipe_->inputs.size(); ++i)
    given[static_cast<std::size_t>(recipe_->inputs[i].slot)] = inputs[i];
  const Dims& x = shapes[0].dims;
  const std::int64_t rows = launch_rows(*recipe_, x);
  if (rows == 0) return;
  const Scratch at = scratch_of(*recipe_, x);
  if (layer_->scratch_bytes(rows) > at.x_bytes)
    throw Error(ErrorCode::unsupported, "workspace", std::to_string(at.x_bytes) + " bytes",
                "must be " + std::to_string(layer_->scratch_bytes(rows)) + " bytes; report this as a defect");
  auto* const bytes = static_cast<std::byte*>(scratch);
  if (recipe_->conv()) {
    ConvArgs args;
    fill_in(args, given, output, bytes, at, stream);
    args.residual = given[static_cast<std::size_t>(Slot::c)];
    args.amax = static_cast<const float*>(given[static_cast<std::size_t>(Slot::amax)]);
    layer_->launch(stream, args, bytes + at.x);
  } else {
    GemmArgs args;
    fill_in(args, given, output, bytes, at, stream);
    args.c = given[static_cast<std::size_t>(Slot::c)];
    args.m = rows;
    if (candidate_ && bucket_index(rows) == bucket_)
      launch_candidate(args, bytes + at.x, stream);
    else
      layer_->launch(stream, args, bytes + at.x);
  }
}

}  // namespace tilewright::tensorrt
