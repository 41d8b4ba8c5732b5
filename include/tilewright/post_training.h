// SPDX-License-Identifier: Apache-2.0
// Post-training quantization of one linear layer, y[m, n] = x[m, k] w[n, k]^T, to 4-bit formats: rounding to nearest,
// GPTQ and AWQ. All three report the same error, so that you can compare them. They use host memory and host cores.
//
//   Hessian hessian(k);
//   hessian.add(Format::parse("bf16"), x, rows);              // the layer's inputs, piece by piece
//   const QuantizedLinear q = gptq({w, n, k, "mlp.down"}, hessian, {.format = Format::parse("int4_g128")});
//   q.data, q.scales                                          // w of a Gemm, or of export_weights()
//
// It is the error of the layer's outputs over the calibration rows x:
//
//   sum over rows of |(w - q) x|^2 = tr((w - q) H (w - q)^T),   H = sum over rows of x x^T
//
// Results have the same bits for any number of threads. Any thread may call these functions, but while one thread
// changes a Hessian, no other may use it.
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

// The sums over a layer's calibration inputs: H[k, k] = sum of x x^T, and the sum of |x| for each column. Takes 4 k^2
// bytes.
class TILEWRIGHT_EXPORT Hessian {
 public:
  // k of 1 to 131072, else Error (invalid_argument).
  explicit Hessian(std::int64_t k);
  // Makes a Hessian from the results of rows(), values() and magnitudes(). It reads only the lower triangle of values
  // [k, k], row-major. Throws Error (invalid_argument) if a size does not fit k, if a number is not finite, or if a
  // number on the diagonal or in magnitudes is negative.
  Hessian(std::int64_t k, std::int64_t rows, std::span<const double> values, std::span<const double> magnitudes);
  Hessian(const Hessian&);
  Hessian(Hessian&&) noexcept;
  Hessian& operator=(Hessian) noexcept;
  ~Hessian();

  // Adds x[rows, k], row-major without padding, in f32, f16 or bf16. Products of up to 64 rows are summed in single
  // precision, and these sums in double:
  //   |H[i, j] - exact| <= 2^-17.9 sum |x_i x_j| + rows 2^-149
  // One call with hundreds of rows is faster than many calls with a few. A different division into calls gives
  // different roundings within that bound. Throws Error (invalid_argument) if an element is NaN, infinite or above 2^60
  // in magnitude, or if x has another format, is null or is not k wide; then the sums do not change.
  // threads: 1 to 256, 0 for all cores.
  void add(Format format, const void* x, std::int64_t rows, std::int64_t cols, int threads = 0);
  // Adds the sums of other calibration rows. Throws Error (invalid_argument) if k differs.
  void merge(const Hessian& other);

  std::int64_t k() const;
  std::int64_t rows() const;                        // the number of added rows
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
  std::string_view name = "layer";  // for error messages
};

// The quantized format, one of integer_formats() (format.h), such as int4_row, int4_g128 (symmetric) or uint4_g128
// (with zero points).
struct QuantizeTarget {
  Format format;
  // The number of elements of a row that share a scale: 0 for the format's own group, -1 for the whole row, or a
  // multiple of the format's own group; then scales are repeated. If it does not divide k, the last group of a row is
  // shorter.
  std::int64_t group = 0;
  // Index into format.info().encoders: the rule that computes scales from the values of a group. The rule of GPTQ and
  // compressed-tensors for symmetric groups is "compressed_tensors", 1.
  int encoder = 0;
  int threads = 0;  // 1 to 256, 0 for all cores
};

struct QuantizedLinear {
  explicit QuantizedLinear(Format f) : format(f) {}

  Format format;
  std::int64_t n = 0, k = 0, group = 0;  // group in elements
  std::vector<std::byte> data, scales;   // the format's streams, as large as Format::stream_bytes says
  // Not empty after act-order: column i of the streams is column order[i] of w, as in import_order() (import.h).
  std::vector<std::int32_t> order;
  // [n, k]: the decoded streams, bit for bit, but in the order of w's columns.
  std::vector<float> values;
  // AWQ only, [k]: the streams have w[:, j] input_scales[j], so the preceding layer must return x[:, j] /
  // input_scales[j].
  std::vector<float> input_scales;

  double error = 0;   // tr((w - q) H (w - q)^T)
  double energy = 0;  // tr(w H w^T)
  // error / energy; 0 if both are 0.
  double relative_error() const { return error == 0 ? 0 : error / energy; }

  double damping = 0;             // GPTQ: the fraction that was used; more than requested if H was singular
  std::int64_t dead_columns = 0;  // GPTQ: inputs that were always 0, whose weights became 0
  double exponent = 0;            // AWQ: of mean |x|, in input_scales
};

// Rounds each weight to the nearest value of its group. If groups are the format's own, the result equals that of the
// format's encoder bit for bit.
//
// All three functions throw Error: invalid_argument if w does not have n k elements, if a weight is NaN or infinite, if
// the Hessian has another k or no rows, if format, group, encoder or threads are not as stated above, or if k is not a
// multiple of the format's block; unsupported if weights are so large that their scale overflows a half. The error's
// field begins with the layer's name.
TILEWRIGHT_EXPORT QuantizedLinear round_to_nearest(const LinearWeight& layer, const Hessian& hessian,
                                                   const QuantizeTarget& target);

// GPTQ (Frantar, Ashkboos, Hoefler, Alistarh: arXiv:2210.17323): columns are rounded one after the other, and the
// following columns compensate for the effect of each rounding on the outputs. The scales of a group are computed when
// its first column is reached, from the corrected weights.
struct GptqOptions {
  bool act_order = false;  // columns with the largest H[j, j] first; groups are formed in that order
  // Computes the scales of all groups first, from w itself. With act_order, groups are formed in the order of w, so
  // columns keep their places in the streams, and `order` is empty.
  bool static_groups = false;
  // This fraction (0 to 1) of the mean of the live columns' H[j, j] is added to each of them. If H is then not positive
  // definite, the fraction is multiplied by ten, at least to 1e-6, up to 1.
  double damping = 0.01;
};
// Also throws Error (invalid_argument), field "NAME Hessian", if no damping makes H positive definite; H is then not a
// sum of x x^T.
TILEWRIGHT_EXPORT QuantizedLinear gptq(const LinearWeight& layer, const Hessian& hessian, const QuantizeTarget& target,
                                       const GptqOptions& options = {});

// AWQ (Lin et al.: arXiv:2306.00978): input channels that are large on average get finer steps, w[:, j] s_j with
// s_j = (mean |x_j|)^a, divided by the geometric mean of the largest and the least s. a is the one of 0, 1/grid, ...,
// (grid - 1)/grid with the least error; a = 0 is rounding to nearest. The error is the output's over the calibration
// rows, which is what the paper minimizes over a sample of them.
struct AwqOptions {
  int grid = 20;  // 1 to 1000
  // Afterwards, reduces the magnitude from which each group's scale is computed, in steps of 5 % to at least half, as
  // long as this reduces the error of the group alone.
  bool clip = false;
  std::int64_t search_rows = 1024;  // evenly spaced rows of w that the search for a uses; 0: all
};
TILEWRIGHT_EXPORT QuantizedLinear awq(const LinearWeight& layer, const Hessian& hessian, const QuantizeTarget& target,
                                      const AwqOptions& options = {});

}  // namespace tilewright
