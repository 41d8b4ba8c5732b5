// SPDX-License-Identifier: Apache-2.0
// Calibration: chooses the range of a tensor's values that quantization keeps, and the scale and zero point for this
// range. An Observer accumulates data, for the tensor or for each channel, in memory that does not grow with the data.
// clip_ranges() then applies a method, and scale_for() computes the numbers for quantization. docs/use/calibration.md
// has the formulas and their sources.
//
//   Observer seen;
//   while (next(batch)) seen.observe(batch), seen.end_batch();
//   const ClipRange range = clip_ranges(seen, {.method = CalibrationMethod::percentile, .percentile = 99.9})[0];
//   const ScaleAndZero s = scale_for(range, CalibrationTarget::parse("int8"), Symmetry::symmetric);
//
// Everything here is deterministic. The bits of a result do not depend on the order of the data or on its division into
// calls; only the moving average depends on the order of batches. NaNs are counted and skipped. An infinity is an Error
// (invalid_argument) that names its position. Any thread may use these values and functions, but only one thread at a
// time an Observer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tilewright/export.h>
#include <tilewright/format.h>

namespace tilewright {

struct ObserverOptions {
  std::int64_t channels = 1;  // 1 to kMostChannels; 1 observes the tensor as a whole
  int bins = 2048;  // of each sign's histogram: a power of two from 256 to 65536; 0: no histogram, for min_max and
                    // moving_average only. channels * bins is at most kMostBins
  double momentum = 0.9;  // of the moving average: in [0, 1), the weight of the earlier average when a batch ends

  static constexpr std::int64_t kMostChannels = std::int64_t{1} << 18;
  static constexpr std::int64_t kMostBins = std::int64_t{1} << 25;  // 512 MiB of counters
  friend bool operator==(const ObserverOptions&, const ObserverOptions&) = default;
};

// The observations of one channel.
struct Observation {
  std::uint64_t count = 0;  // of values that are not NaN
  std::uint64_t nans = 0;
  double min = 0, max = 0;  // exact; meaningless while count is 0

  // Histograms of magnitudes. Bin i of either sign counts magnitudes in [i w, (i + 1) w), w = 2^exponent; zeros of both
  // signs are positive. The width is the smallest power of two for which the largest magnitude has a bin, so at least
  // half of the bins are in use. When the range grows, bins are merged in pairs. This is exact: the counts equal those
  // of all values at the final width.
  int exponent = 0;
  std::vector<std::uint64_t> negative, positive;  // of `bins` counts, or empty

  // The moving average over batches b_1 to b_n of the batches' least and largest values (0: least):
  //   a_1 = b_1,  a_j = momentum a_(j-1) + (1 - momentum) b_j,  a_n = average + momentum^n first
  // `average` is this recurrence with a start at 0, so that two observers can be merged.
  std::uint64_t batches = 0;
  std::array<double, 2> first = {}, average = {};
  std::optional<std::array<double, 2>> batch;  // of the batch that has not ended

  friend bool operator==(const Observation&, const Observation&) = default;
};

class TILEWRIGHT_EXPORT Observer {
 public:
  // Throws Error (invalid_argument, too_large) naming the option.
  explicit Observer(const ObserverOptions& options = {});

  // Observes consecutive elements of a row-major array; the first element has the index `first`. Element i belongs to
  // channel (i / inner) % channels, so `inner` is the product of the extents after the channels' axis. An Error does
  // not change the observer.
  void observe(std::span<const float> values, std::int64_t first = 0, std::int64_t inner = 1);
  // The same for stored f32, f16 or bf16; `bytes` has whole elements, of any alignment.
  void observe(Format format, std::span<const std::byte> bytes, std::int64_t first = 0, std::int64_t inner = 1);

  // Ends a batch of the moving average. Does nothing if none of its values was a number.
  void end_batch();

  // Adds the observations of `other`, as if this one had observed them after its own; batches that have not ended are
  // ended in both. The result has the same bits, except the moving average, whose error is at most 2^-50 times the
  // number of merges and batches, times the largest magnitude. Throws Error (invalid_argument) if the options differ.
  void merge(const Observer& other);

  // The state as JSON, and back with the same bits. from_json() checks its text like an untrusted file, and throws
  // Error (invalid_argument, too_large), which names the mistake.
  std::string json() const;
  static Observer from_json(std::string_view text);

  const ObserverOptions& options() const { return options_; }
  const std::vector<Observation>& channels() const { return channels_; }
  Observation total() const;  // all channels together, without batches

  friend bool operator==(const Observer&, const Observer&) = default;

 private:
  friend class DeviceObservation;  // quantize/calibration/device_observer.h
  ObserverOptions options_;
  std::vector<Observation> channels_;
};

// The type of quantized values: integers of 2 to 8 bits, signed ("int8") or not ("uint8"), or the floats e4m3, e5m2 and
// e2m1.
class TILEWRIGHT_EXPORT CalibrationTarget {
 public:
  static CalibrationTarget parse(std::string_view name);  // throws Error (invalid_argument) that names them all

  std::string name() const;
  bool is_float() const { return kind_ != Kind::integer; }
  bool is_signed() const { return signed_; }
  int bits() const { return bits_; }
  int least() const { return signed_ ? -(1 << (bits_ - 1)) : 0; }  // of an integer's codes
  int most() const { return least() + (1 << bits_) - 1; }
  double largest() const;  // the code of the largest magnitude with a symmetric scale: 2^(bits - 1) - 1, 448, 57344, 6
  std::vector<double> magnitudes() const;  // of such codes, ascending from 0

  friend bool operator==(const CalibrationTarget&, const CalibrationTarget&) = default;

 private:
  enum class Kind { integer, e4m3, e5m2, e2m1 };
  CalibrationTarget(Kind kind, bool is_signed, int bits) : kind_(kind), signed_(is_signed), bits_(bits) {}
  Kind kind_;
  bool signed_;
  int bits_;
};

enum class Symmetry { symmetric, asymmetric };

enum class CalibrationMethod { min_max, moving_average, percentile, entropy, mse };
TILEWRIGHT_EXPORT std::string_view name_of(CalibrationMethod method);                 // "moving-average"
TILEWRIGHT_EXPORT CalibrationMethod parse_calibration_method(std::string_view name);  // throws Error that names them

struct Calibration {
  CalibrationMethod method = CalibrationMethod::min_max;
  double percentile = 99.9;  // in (0, 100]
  CalibrationTarget target = CalibrationTarget::parse("int8");
  Symmetry symmetry = Symmetry::symmetric;
};

// Values outside are clipped to it. Symmetric: min = -max.
struct ClipRange {
  double min = 0, max = 0;
  friend bool operator==(const ClipRange&, const ClipRange&) = default;
};

// The range of each channel. w is the width of the channel's bins, at most amax / (bins / 2), where amax is its largest
// magnitude.
//
//   min_max          the least and the largest value; symmetric: [-amax, amax]
//   moving_average   of the batches' least and largest values; symmetric: the larger magnitude of the two
//   percentile       symmetric: the upper end of the bin with the value of rank ceil(percentile n / 100) among n
//                    magnitudes: not below that value, and above it by at most w. Asymmetric: each end leaves out
//                    (100 - percentile) / 2, the upper one by rank ceil((100 + percentile) n / 200), the lower one in
//                    the same way of the negated values. 100 gives min_max
//   entropy          the magnitude whose clipped histogram differs least, by Kullback-Leibler divergence, from itself
//                    in 2^(bits - 1) equal levels: TensorRT's method. Asymmetric: the data's ends, clipped to it
//   mse              the ends of bins at which the sum of squared errors is least, with all values of a bin at its
//                    middle. Symmetric: the least of all. Asymmetric: each end in turn until neither improves the sum
//
// No range is wider than the data's, except to make it symmetric. If two ranges are equally good, the wider one is
// used. Throws Error (invalid_argument): no data (naming the channel), no batch ended for moving_average, no histogram,
// a percentile that is not in (0, 100]; (unsupported): an asymmetric range for floats.
TILEWRIGHT_EXPORT std::vector<ClipRange> clip_ranges(const Observer& observer, const Calibration& how);

struct ScaleAndZero {
  float scale = 1;     // value = (code - zero_point) * scale
  int zero_point = 0;  // the code of 0
  friend bool operator==(const ScaleAndZero&, const ScaleAndZero&) = default;
};

// Symmetric: scale = max(|min|, |max|) / target.largest(); the zero point is 0, or 2^(bits - 1) of unsigned integers.
// Asymmetric, integers only: with min = min(min, 0) and max = max(max, 0), scale = (max - min) / (2^bits - 1) and
// zero_point = least - min / scale, to the nearest, ties to even, within the codes. Scales are rounded to nearest and
// at least 2^-126, so that 1 / scale is finite; that of an empty range is 1. Throws Error (invalid_argument) if a bound
// is not finite or min > max; (unsupported) if asymmetric and a float.
TILEWRIGHT_EXPORT ScaleAndZero scale_for(const ClipRange& range, const CalibrationTarget& target, Symmetry symmetry);

}  // namespace tilewright
