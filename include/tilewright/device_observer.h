// SPDX-License-Identifier: Apache-2.0
// An Observer (calibration.h) of tensors on a GPU, in memory there, without a copy to the host. What it has seen is an
// Observer's to the bit, whatever the order in which the device worked.
//
//   DeviceObserver seen(engine, device, Format::parse("bf16"));
//   while (next(batch)) seen.observe(stream, batch.data, batch.elements), seen.end_batch(stream);
//   const ClipRange range = clip_ranges(seen.observed(), {.method = CalibrationMethod::entropy})[0];
#pragma once

#include <cstdint>
#include <memory>

#include <tilewright/calibration.h>
#include <tilewright/engine.h>
#include <tilewright/export.h>
#include <tilewright/task.h>

namespace tilewright {

// One thread at a time. Streams that are given to its calls must have an order of their own: each call's work comes
// after that of the ones before.
class TILEWRIGHT_EXPORT DeviceObserver {
 public:
  // Of tensors of f32, f16 or bf16. Prepares the kernel, and allocates 16 bytes for each bin and 80 for each channel.
  // Throws Error: invalid_argument and too_large for the format and the options as Observer does; those of
  // Engine::prepare(); driver_failed.
  DeviceObserver(Engine& engine, const Device& device, Format x, const ObserverOptions& options = {});
  DeviceObserver(DeviceObserver&&) noexcept;
  DeviceObserver& operator=(DeviceObserver&&) noexcept;
  ~DeviceObserver();

  // As Observer::observe(), of `elements` elements at x, in device memory and aligned to an element. Enqueues three
  // launches and waits for nothing, also under stream capture, but then `elements` counts once and not with each
  // replay. An infinity is noticed by observed(). Throws Error (invalid_argument) naming the argument; driver_failed.
  void observe(Stream stream, const void* x, std::int64_t elements, std::int64_t first = 0, std::int64_t inner = 1);
  // As Observer::end_batch(). Enqueues a launch.
  void end_batch(Stream stream);

  // Waits for the device and copies what was seen so far, to be used or merged like any Observer. Throws Error
  // (invalid_argument) naming the first infinite element there was: no later call helps then but clear();
  // driver_failed.
  Observer observed() const;
  // Waits for the device and forgets all.
  void clear();

  const ObserverOptions& options() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Its kernel, for Engine::prewarm(). Throws Error (invalid_argument) for another format.
TILEWRIGHT_EXPORT Task observe_task(Format x);

// ---- What this kernel takes. Keys are floats as integers in the order of their values; 0: none.

struct ObserveChannel {
  std::uint32_t least = 0, most = 0;              // ~key of the least value, key of the largest
  std::uint32_t batch_least = 0, batch_most = 0;  // of the batch that has not ended
  std::int32_t exponent = 0, reserved = 0;        // as in Observation, like all that follows
  std::uint64_t nans = 0, batches = 0;
  double first[2] = {}, average[2] = {};
};

// The second parameter: the observer, in device memory.
struct ObserveState {
  std::int64_t channels = 0;
  std::int32_t bins = 0, log2_bins = 0;
  double momentum = 0;
  ObserveChannel* state = nullptr;    // [channels]
  std::uint64_t* counts = nullptr;    // [channels][negative, positive][bins]
  std::uint64_t* infinite = nullptr;  // ~(2 index + sign) of the first infinite element
};

// The first parameter.
struct ObserveArgs {
  enum class Step : std::int32_t {
    range,     // any number of blocks: least, largest, NaNs and infinities of x
    settle,    // a block for each channel: the width of its bins
    count,     // any number of blocks: x's bins
    end_batch  // a block for 256 channels
  };
  Step step = Step::range;
  std::int32_t reserved = 0;
  const void* x = nullptr;
  std::int64_t elements = 0, first = 0, inner = 1;
};

}  // namespace tilewright
