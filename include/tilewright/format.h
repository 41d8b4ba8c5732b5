// SPDX-License-Identifier: Apache-2.0
// Format: defines how the numbers of a matrix are stored. Each format is one file in templates/formats; this header
// gives the host access to them. Values are immutable; any thread may use them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <tilewright/export.h>

namespace tilewright {

// A matrix is stored in up to three streams of bytes. Rows are contiguous; there is no padding between them.
enum class Scope { block, row, tensor };  // one record of the stream per block, per row, or for the whole matrix

enum class StreamName { data, scales, global };
inline constexpr StreamName kStreams[] = {StreamName::data, StreamName::scales, StreamName::global};
// As buffers and errors name it: "data", "scales", "global".
constexpr const char* name_of(StreamName stream) {
  return stream == StreamName::data ? "data" : stream == StreamName::scales ? "scales" : "global";
}

struct StreamSpec {
  StreamName stream = StreamName::data;
  Scope scope = Scope::block;
  int bytes = 0;  // of one record
  int rows = 1;   // that share a record, counted from the first row; the last record may have fewer rows
};

// Pointers to the streams of one matrix; a stream that the format does not have is null.
// Standard layout, and the same on the device (templates/backends/cuda/types.cuh).
struct Operand {
  const void* data = nullptr;
  const void* scales = nullptr;
  const float* global = nullptr;  // one float; kernels read it from device memory

  const void* at(StreamName s) const {
    return s == StreamName::data ? data : s == StreamName::scales ? scales : global;
  }
};

struct MutableOperand {
  void* data = nullptr;
  void* scales = nullptr;
  float* global = nullptr;

  operator Operand() const { return {data, scales, global}; }
  void* at(StreamName s) const { return s == StreamName::data ? data : s == StreamName::scales ? scales : global; }
  void set(StreamName s, void* pointer) {
    if (s == StreamName::data) data = pointer;
    if (s == StreamName::scales) scales = pointer;
    if (s == StreamName::global) global = static_cast<float*>(pointer);
  }
};

// The largest error of a decoded element, for a finite encoded number x of magnitude `largest` at most. The factors of
// `amax` and `range` apply to the group of x, the elements that share its innermost scale (FormatInfo::error_columns):
// its largest magnitude, and its largest value minus its smallest, where 0 counts as one of the values. `outer` applies
// to the largest magnitude under the next scale: in the block, or in the tensor. templates/formats derives each number,
// and tests/templates/formats_error_test.cpp checks the encoders.
struct ErrorBound {
  double element = 0, amax = 0, range = 0, outer = 0, least = 0;
  double largest = 0;
  // The factor covers the roundings of single precision.
  double at(double x, double group_amax, double group_range, double outer_amax) const {
    const double sum = element * (x < 0 ? -x : x) + amax * group_amax + range * group_range + outer * outer_amax;
    return sum * (1 + 1.0 / 4096) + least;
  }
};

// The result for an infinity: an infinity, the largest number, or a scale that makes every element of its group
// infinite or NaN.
enum class Infinity { stays, saturates, spreads };

// Integers with a scale in stream `scales`, for algorithms that round one weight after the other (post_training.h,
// import.h). Code i of a row begins at bit i * bits of its stream `data`, lowest bit first.
struct IntegerGrid {
  int bits;
  bool zero_points;  // a record has the scale, then the zero point, both halves; else the zero point is 2^(bits - 1)
  // For `groups` groups, each with values from low to high, including 0: writes the records of stream `scales` as
  // `encoder` chooses them, and the scales in these records.
  void (*choose)(const float* low, const float* high, std::int64_t groups, int encoder, std::byte* items,
                 float* scales);
  // For one weight of each group: writes the nearest code and its value.
  void (*nearest)(const float* w, std::int64_t groups, int encoder, const std::byte* items, std::uint8_t* codes,
                  float* values);
};

// How a safetensors checkpoint stores the weights of a linear layer in this format: one byte per element with a scale
// per row, codes in the packings of import.h, or NVFP4 as Model Optimizer writes it.
enum class CheckpointForm { none, fp8_rows, int8_rows, integers, nvfp4 };

struct FormatInfo {
  const char* name;    // "q4_0", as written in a problem
  const char* title;   // one line for humans
  int layout_version;  // raised when the bytes change meaning; part of every cache key
  int block;           // elements that share one record of the block-scoped streams; cols % block == 0
  int bits;            // significant bits of one stored code, for reports
  std::span<const StreamSpec> streams;
  std::span<const char* const> encoders;  // names of the encoding rules, default first ("ggml", "amax7")
  // Reference codec, any host. `cols` % block == 0. encode() writes data and scales of `rows` rows and reads *global if
  // the format has one; decode() is exact in float. Both give the same bits for every rounding mode and every treatment
  // of subnormal numbers (FTZ, DAZ) of the calling thread.
  void (*encode)(const float* src, std::int64_t rows, std::int64_t cols, MutableOperand dst, int encoder);
  void (*decode)(Operand src, std::int64_t rows, std::int64_t cols, float* dst);
  float (*global_for)(float amax);  // the global scale for a tensor whose largest magnitude is amax; null if none
  const char* source;               // where the layout and the encoding rules come from
  int error_columns;  // neighbouring elements of a row that share the innermost scale; 0: a row, or the tensor
  std::span<const ErrorBound> errors;  // by encoder
  bool keeps_nan;                      // else a NaN becomes some number
  Infinity infinity;
  // encode() with ggml's search, with a weight of at least 0 for each column from an importance matrix. The result
  // equals that of llama-quantize --imatrix bit for bit. Null if the format has no such search. importance: cols
  // floats.
  void (*encode_weighted)(const float* src, std::int64_t rows, std::int64_t cols, const float* importance,
                          MutableOperand dst);
  const IntegerGrid* integer_grid;  // null: the format has none
  bool gguf;                        // GGUF files have weights of this format, under its name
  CheckpointForm checkpoint;
};

class TILEWRIGHT_EXPORT Format {
 public:
  // Throws Error (invalid_argument), which names all formats and the most similar one.
  static Format parse(std::string_view name);
  static std::span<const Format> all();  // in alphabetical order

  explicit constexpr Format(const FormatInfo* info) : info_(info) {}
  const FormatInfo& info() const { return *info_; }
  std::string_view name() const { return info_->name; }
  int block() const { return info_->block; }

  // Bytes of stream i (index into info().streams) of a rows x cols matrix; 0 if the format has no such stream.
  // cols % block() == 0. Throws Error (too_large) on overflow of int64.
  std::int64_t stream_bytes(int i, std::int64_t rows, std::int64_t cols) const;
  std::int64_t total_bytes(std::int64_t rows, std::int64_t cols) const;
  double bits_per_element() const;  // of the block-scoped streams

  friend bool operator==(Format a, Format b) { return a.info_ == b.info_; }

 private:
  const FormatInfo* info_;
};

// Formats with an integer grid, in the order in which they are preferred: without zero points first, fewer bits first,
// wider groups first.
TILEWRIGHT_EXPORT std::span<const Format> integer_formats();

}  // namespace tilewright
