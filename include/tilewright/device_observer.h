// SPDX-License-Identifier: Apache-2.0
// An Observer (calibration.h) of tensors in GPU memory, without a copy to the host. Its observations have the same bits
// as an Observer's, whatever the order of work on the device.
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

// Only one thread at a time may use it. If calls use several streams, order them so that the work of each call comes
// after that of the earlier calls.
class TILEWRIGHT_EXPORT DeviceObserver {
 public:
  // Of tensors of f32, f16 or bf16. Prepares the kernel, and allocates 16 bytes for each bin and 80 for each channel.
  // Throws Error: invalid_argument and too_large for the format and the options as Observer does; those of
  // Engine::prepare(); driver_failed.
  DeviceObserver(Engine& engine, const Device& device, Format x, const ObserverOptions& options = {});
  DeviceObserver(DeviceObserver&&) noexcept;
  DeviceObserver& operator=(DeviceObserver&&) noexcept;
  ~DeviceObserver();

  // As Observer::observe(), for `elements` elements at x, in device memory and aligned to an element. Enqueues three
  // launches and does not wait. Under stream capture, `elements` is counted once, not with each replay. observed()
  // reports an infinity. Throws Error (invalid_argument) naming the argument; driver_failed.
  void observe(Stream stream, const void* x, std::int64_t elements, std::int64_t first = 0, std::int64_t inner = 1);
  // As Observer::end_batch(). Enqueues a launch.
  void end_batch(Stream stream);

  // Waits for the device and returns the observations so far as an Observer, which can be used and merged. Throws
  // Error: invalid_argument if an element was infinite, which names the first one (call clear() to continue);
  // driver_failed.
  Observer observed() const;
  // Waits for the device and deletes all observations.
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
