// SPDX-License-Identifier: Apache-2.0
// A strict reader of GGUF version 3 (tensor infos, tensor bytes and metadata) and a writer. Files are untrusted: every
// count, length and offset is checked before use, and the memory for a file is limited by its size. The reader refuses
// everything that ggml's own reader refuses, such as tensors that overlap or are not stored in the order of their
// infos. It also refuses nested arrays and tensors without elements, which the format allows but nobody writes. If it
// refuses a file, an Error names the field and its value: invalid_argument for the contents, too_large beyond a stated
// limit, io if the file cannot be read. An open reader is thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <tilewright/byte_source.h>
#include <tilewright/export.h>
#include <tilewright/model_writer.h>

namespace tilewright {

struct TILEWRIGHT_EXPORT GgufTensor {
  std::string name = {};
  std::vector<std::int64_t> dims = {};  // fastest first, 1 to 4, each >= 1; a weight w[N, K] has dims {K, N}
  std::uint32_t type = 0;               // ggml's id
  std::string_view type_name = {};      // ggml's name: "q4_K"
  std::string_view format = {};         // Tilewright's format with the same bytes; empty if there is none
  std::uint64_t offset = 0;             // from the start of the file
  std::uint64_t bytes = 0;

  std::int64_t cols() const { return dims[0]; }
  std::int64_t rows() const;  // product of the other dims
};

struct GgufArray {  // contents are checked and skipped; Gguf::field() has them
  std::uint32_t element_type = 0;
  std::uint64_t count = 0;
};
using GgufValue = std::variant<std::uint64_t, std::int64_t, double, bool, std::string, GgufArray>;

// A key and its value as stored in a file: GGUF's type id, then, for an array, the type and number of its elements.
struct TILEWRIGHT_EXPORT GgufField {
  std::string key = {};
  std::uint32_t type = 0;
  std::vector<std::byte> bytes = {};

  static GgufField u32(std::string key, std::uint32_t value);
  static GgufField f32(std::string key, float value);
  static GgufField boolean(std::string key, bool value);
  static GgufField text(std::string key, std::string_view value);
  static GgufField texts(std::string key, std::span<const std::string> values);  // an array of strings
};

struct GgufLimits {
  static constexpr std::uint64_t kStringBytes = 1ull << 30;
  static constexpr std::uint64_t kArrayCount = 1ull << 30;
  static constexpr std::uint64_t kKeyBytes = 65535;
  static constexpr std::uint64_t kNameBytes = 64;
  static constexpr std::uint64_t kTensors = 1ull << 16;
  static constexpr std::uint64_t kKeys = 1ull << 16;
  static constexpr std::uint32_t kDims = 4;
};

class TILEWRIGHT_EXPORT Gguf {
 public:
  static Gguf open(const std::string& path);  // an error names the file
  explicit Gguf(std::unique_ptr<ByteSource> source);

  std::span<const GgufTensor> tensors() const { return tensors_; }  // in the file's order
  const GgufTensor* find(std::string_view name) const;              // null if there is none
  const GgufTensor& tensor(std::string_view name) const;            // throws Error, which names existing ones
  const std::vector<std::pair<std::string, GgufValue>>& metadata() const { return metadata_; }
  const GgufValue* value(std::string_view key) const;  // null if there is none
  // The value as stored, including the contents of arrays, for a GgufWriter. Throws Error (invalid_argument) if there
  // is none.
  GgufField field(std::string_view key) const;
  std::uint64_t alignment() const { return alignment_; }

  std::vector<std::byte> read(const GgufTensor& tensor) const;  // throws Error (io)
  // Reads `to.size()` bytes of the tensor from `first` on, into the caller's memory. Throws Error (invalid_argument) if
  // the tensor has fewer bytes.
  void read(const GgufTensor& tensor, std::uint64_t first, std::span<std::byte> to) const;

 private:
  std::unique_ptr<ByteSource> source_;
  std::vector<GgufTensor> tensors_;
  std::vector<std::pair<std::string, GgufValue>> metadata_;
  struct Stored {
    std::uint32_t type;
    std::uint64_t offset, bytes;
  };
  std::vector<Stored> stored_;  // of metadata_
  std::uint64_t alignment_ = 32;
};

// GGUF's type id for a format ("q4_k": 12) or for ggml's name of a type ("q4_K", "i64"); empty if there is no such
// type.
TILEWRIGHT_EXPORT std::optional<std::uint32_t> gguf_type(std::string_view name);

struct TILEWRIGHT_EXPORT GgufInfo {
  std::string name = {};                // at most 63 bytes, ggml's limit
  std::vector<std::int64_t> dims = {};  // fastest first, 1 to 4, each >= 1
  std::uint32_t type = 0;               // ggml's id
};

// Writes version 3, with keys and tensors in the given order. The alignment is 32, or the value of the field
// general.alignment. Throws Error (invalid_argument, too_large) if the reader would refuse the file.
class TILEWRIGHT_EXPORT GgufWriter : public ModelWriter {
 public:
  GgufWriter(const std::string& path, std::span<const GgufInfo> tensors, std::span<const GgufField> fields,
             Start start = Start::create);

 private:
  struct Layout;
  GgufWriter(const std::string& path, Layout layout, Start start);
};

}  // namespace tilewright
