// SPDX-License-Identifier: Apache-2.0
// Post-training quantization of one linear layer, y[m, n] = x[m, k] w[n, k]^T, to 4-bit formats: rounding to nearest,
// GPTQ and AWQ. All three report the same error, so that they can be compared. Host memory and host cores.
//
//   Hessian hessian(k);
//   hessian.add(Format::parse("bf16"), x, rows);              // the layer's inputs, piece by piece
//   const QuantizedLinear q = gptq({w, n, k, "mlp.down"}, hessian, {.format = Format::parse("int4_g128")});
//   q.data, q.scales                                          // w of a Gemm, or of export_weights()
//
// The error is that of the layer's outputs over the calibration rows x:
//
//   sum over rows of |(w - q) x|^2 = tr((w - q) H (w - q)^T),   H = sum over rows of x x^T
//
// Results have equal bits for any number of threads. All functions may be called from any thread; a Hessian that one
// thread changes must not be used by another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <tilewright/export.h>
#include <tilewright/format.h>

namespace tilewright {

// What calibration leaves of a layer's inputs: H[k, k] = sum of x x^T, and the sum of |x| of each column. Takes 4 k^2
// bytes.
class TILEWRIGHT_EXPORT Hessian {
 public:
  // k of 1 to 131072, else Error (invalid_argument).
  explicit Hessian(std::int64_t k);
  // From what rows(), values() and magnitudes() returned. Of values [k, k], row-major, the lower triangle is read.
  // Throws Error (invalid_argument) for sizes that do not fit k, a number that is not finite, or one on the diagonal or
  // in magnitudes that is negative.
  Hessian(std::int64_t k, std::int64_t rows, std::span<const double> values, std::span<const double> magnitudes);
  Hessian(const Hessian&);
  Hessian(Hessian&&) noexcept;
  Hessian& operator=(Hessian) noexcept;
  ~Hessian();

  // Adds x[rows, k], row-major without padding, in f32, f16 or bf16. Products of up to 64 rows are summed in single
  // precision, and these sums in double:
  //   |H[i, j] - exact| <= 2^-17.9 sum |x_i x_j| + rows 2^-149
  // One call with hundreds of rows takes less time than many with a few; the same rows in other pieces give other
  // roundings within that bound. Throws Error (invalid_argument), and leaves the sums as they were, if an element is
  // NaN, infinite or above 2^60 in magnitude, or x is of another format, null or not k wide.
  // threads: 1 to 256, 0 for all cores.
  void add(Format format, const void* x, std::int64_t rows, std::int64_t cols, int threads = 0);
  // Adds the sums of other calibration rows. Throws Error (invalid_argument) if k differs.
  void merge(const Hessian& other);

  std::int64_t k() const;
  std::int64_t rows() const;                        // that were added
  double at(std::int64_t i, std::int64_t j) const;  // 0 <= i, j < k
  std::vector<double> values() const;               // [k, k]
  std::span<const double> magnitudes() const;       // [k], sums of |x|

  struct Sums;  // quantize/rounding/hessian.h
  const Sums& sums() const { return *sums_; }

 private:
  std::unique_ptr<Sums> sums_;
};

struct LinearWeight {
  std::span<const float> w = {};  // [n, k], row-major
  std::int64_t n = 0, k = 0;
  std::string_view name = "layer";  // as errors call it
};

// What a layer is quantized to: one of integer_formats() (format.h), as int4_row, int4_g128 (symmetric) or uint4_g128
// (with zero points).
struct QuantizeTarget {
  Format format;
  // Elements of a row under one scale: 0 for the format's own, -1 for the whole row, or a multiple of the format's own,
  // whose scales are then repeated. Where it does not divide k, the last group of a row is shorter.
  std::int64_t group = 0;
  // Index into format.info().encoders: how scales follow from the values of a group. GPTQ's and compressed-tensors' own
  // rule for symmetric groups is "compressed_tensors", 1.
  int encoder = 0;
  int threads = 0;  // 1 to 256, 0 for all cores
};

struct QuantizedLinear {
  explicit QuantizedLinear(Format f) : format(f) {}

  Format format;
  std::int64_t n = 0, k = 0, group = 0;  // group in elements
  std::vector<std::byte> data, scales;   // the format's streams, as large as Format::stream_bytes says
  // Not empty after act-order: column i of the streams is column order[i] of w, as import_order() in import.h says it.
  std::vector<std::int32_t> order;
  // [n, k]: what the streams decode to, to the bit, but in the order of w's columns.
  std::vector<float> values;
  // AWQ only, [k]: the streams are those of w[:, j] input_scales[j], so the layer in front must return x[:, j] /
  // input_scales[j].
  std::vector<float> input_scales;

  double error = 0;   // tr((w - q) H (w - q)^T)
  double energy = 0;  // tr(w H w^T)
  // error / energy; 0 if both are 0.
  double relative_error() const { return error == 0 ? 0 : error / energy; }

  double damping = 0;             // GPTQ: the fraction that was used; more than asked for if H was singular
  std::int64_t dead_columns = 0;  // GPTQ: inputs that were always 0, whose weights became 0
  double exponent = 0;            // AWQ: of mean |x|, in input_scales
};

// Rounds each weight to the nearest of its group's values: bit for bit what Format's encoder gives where groups are the
// format's own.
//
// All three functions throw Error: invalid_argument for w of another size than n k, NaN or infinite weights, k of the
// Hessian, a Hessian without rows, format, group, encoder or threads outside what is stated above, k that is no
// multiple of the format's block; unsupported for weights so large that a half cannot hold their scale. The field
// begins with the layer's name.
TILEWRIGHT_EXPORT QuantizedLinear round_to_nearest(const LinearWeight& layer, const Hessian& hessian,
                                                   const QuantizeTarget& target);

// GPTQ (Frantar, Ashkboos, Hoefler, Alistarh: arXiv:2210.17323): columns are rounded one after the other, and what a
// column's rounding does to the outputs is made up for by the columns that follow. The scales of a group are chosen
// when its first column is reached, from the weights as corrected by then.
struct GptqOptions {
  bool act_order = false;  // columns with the largest H[j, j] first; groups are then of neighbours in that order
  // The scales of all groups are chosen before, from w itself. With act_order, groups are of neighbours in w, so
  // columns keep their places in the streams, and `order` is empty.
  bool static_groups = false;
  // Of the mean of the live columns' H[j, j], added to each of them: 0 to 1. Where H is not positive definite with it,
  // ten times as much is tried, 1e-6 at least, up to 1.
  double damping = 0.01;
};
// Throws also Error (invalid_argument), field "NAME Hessian", if no damping makes H positive definite: H is no sum of
// x x^T then.
TILEWRIGHT_EXPORT QuantizedLinear gptq(const LinearWeight& layer, const Hessian& hessian, const QuantizeTarget& target,
                                       const GptqOptions& options = {});

// AWQ (Lin et al.: arXiv:2306.00978): input channels that are large on average get finer steps, w[:, j] s_j with
// s_j = (mean |x_j|)^a, divided by the geometric mean of the largest and the least s. a is the one of 0, 1/grid, ...,
// (grid - 1)/grid with the least error; a = 0 is rounding to nearest. The error is the output's over the calibration
// rows, which is what the paper minimizes over a sample of them.
struct AwqOptions {
  int grid = 20;  // 1 to 1000
  // Afterwards, for each group, the largest magnitude that its scale is chosen for is lowered in steps of 5 % to no
  // less than half, as far as that lowers the error that the group alone makes.
  bool clip = false;
  std::int64_t search_rows = 1024;  // of w, that the search of a looks at, evenly spaced; 0: all
};
TILEWRIGHT_EXPORT QuantizedLinear awq(const LinearWeight& layer, const Hessian& hessian, const QuantizeTarget& target,
                                      const AwqOptions& options = {});

}  // namespace tilewright
