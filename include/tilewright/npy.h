// SPDX-License-Identifier: Apache-2.0
// A strict reader of NumPy's .npy files with one array of floats in C order. Files are untrusted: everything is checked
// before use. The reader supports versions 1.0, 2.0 and 3.0 of the format, as numpy.lib.format documents them, with
// these types of elements:
//
//   <f2  <f4  <f8    IEEE half, single and double precision, little-endian
//   <V2              bfloat16, which is what the package ml_dtypes calls its type in such files. NumPy's own untyped
//                    bytes are |V2 and are refused
//
// It refuses other types, big-endian numbers, Fortran order, keys that are missing, unknown or duplicate, and bytes
// after the array. If it refuses a file, an Error names the field and its value: invalid_argument, unsupported for
// files that NumPy may write but this reader does not support, too_large beyond a stated limit, io if the file cannot
// be read. An open reader is thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tilewright/byte_source.h>
#include <tilewright/export.h>

namespace tilewright {

struct NpyLimits {
  static constexpr std::uint64_t kHeaderBytes = 65536;
  static constexpr std::size_t kDims = 64;  // NumPy's
};

class TILEWRIGHT_EXPORT Npy {
 public:
  static Npy open(const std::string& path) { return Npy(ByteSource::file(path)); }
  explicit Npy(std::unique_ptr<ByteSource> source);

  std::string_view dtype() const { return dtype_; }    // as the file says: "<f4"
  std::string_view format() const { return format_; }  // f16, f32, bf16; empty for <f8, which has no format
  const std::vector<std::int64_t>& shape() const { return shape_; }  // outermost first; {}: one element
  std::uint64_t offset() const { return offset_; }                   // of the array in the file
  std::uint64_t bytes() const { return bytes_; }                     // of the array

  // Reads `to.size()` bytes of the array from `first` on. Throws Error (invalid_argument) if it has fewer bytes, or
  // (io).
  void read(std::uint64_t first, std::span<std::byte> to) const;

 private:
  std::unique_ptr<ByteSource> source_;
  std::string_view dtype_, format_;
  std::vector<std::int64_t> shape_;
  std::uint64_t offset_ = 0, bytes_ = 0;
};

}  // namespace tilewright
