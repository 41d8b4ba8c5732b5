// SPDX-License-Identifier: Apache-2.0
// Format: how the numbers of a matrix are stored. One file in templates/formats is one format; this header is the
// host's view of that folder. Values are immutable and free-threaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <tilewright/export.h>

namespace tilewright {

// A matrix is stored in up to three streams of bytes. Rows are contiguous; there is no padding between them.
enum class Scope { block, row, tensor };  // one item of the stream per block of a row, per row, or for the whole matrix

struct StreamSpec {
  const char* name = nullptr;  // "data", "scales", "global"
  Scope scope = Scope::block;
  int bytes = 0;  // of one item
  int rows = 1;   // that share an item, counted from the first row; the last ones may be fewer
};

// Pointers to the streams of one matrix; a stream that the format does not have is null.
// Standard layout, and the same on the device (templates/core/types.cuh).
struct Operand {
  const void* data = nullptr;
  const void* scales = nullptr;
  const float* global = nullptr;  // one float; kernels read it from device memory
};

struct MutableOperand {
  void* data = nullptr;
  void* scales = nullptr;
  float* global = nullptr;
  operator Operand() const { return {data, scales, global}; }
};

struct FormatInfo {
  const char* name;    // "q4_0", as written in a problem
  const char* title;   // one line for humans
  int layout_version;  // raised when the bytes change meaning; part of every cache key
  int block;           // elements that share one item of the block-scoped streams; cols % block == 0
  int bits;            // significant bits of one stored code, for reports
  std::span<const StreamSpec> streams;
  std::span<const char* const> encoders;  // names of the encoding rules, default first ("ggml", "amax7")
  // Reference codec, any host. `cols` % block == 0. encode() writes data and scales of `rows` rows and reads
  // *global if the format has one; decode() is exact in float.
  void (*encode)(const float* src, std::int64_t rows, std::int64_t cols, MutableOperand dst, int encoder);
  void (*decode)(Operand src, std::int64_t rows, std::int64_t cols, float* dst);
  float (*global_for)(float amax);  // the global scale for a tensor whose largest magnitude is amax; null if none
};

class TILEWRIGHT_EXPORT Format {
 public:
  // Throws Error (invalid_argument, names the allowed formats).
  static Format parse(std::string_view name);
  static std::span<const Format> all();  // in alphabetical order

  explicit constexpr Format(const FormatInfo* info) : info_(info) {}
  const FormatInfo& info() const { return *info_; }
  std::string_view name() const { return info_->name; }
  int block() const { return info_->block; }

  // Bytes of stream i (index into info().streams) of a rows x cols matrix. cols % block() == 0.
  // Throws Error (too_large) on overflow of int64.
  std::int64_t stream_bytes(int i, std::int64_t rows, std::int64_t cols) const;
  std::int64_t total_bytes(std::int64_t rows, std::int64_t cols) const;
  double bits_per_element() const;  // of the block-scoped streams

  friend bool operator==(Format a, Format b) { return a.info_ == b.info_; }

 private:
  const FormatInfo* info_;
};

}  // namespace tilewright
