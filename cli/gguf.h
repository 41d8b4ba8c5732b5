// SPDX-License-Identifier: Apache-2.0
// A strict reader of GGUF version 3: tensor infos, tensor bytes and scalar metadata. A file is input from strangers, so
// every count, length and offset is checked before it is used; what a file costs in memory is bounded by what it
// holds. Refuses what the format leaves open but nobody writes (nested arrays, tensors without elements). Every
// refusal is an Error naming the field and its value: invalid_argument for what the file says, too_large beyond a
// stated limit, io when it cannot be read. Thread-safe once opened; the file is not kept mapped, so one that shrinks
// later is an Error and not a signal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tilewright::cli {

// Where the bytes come from.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual std::uint64_t size() const = 0;
  // Fills `to` from `offset`. Throws Error (io) if the bytes are not all there.
  virtual void read(std::uint64_t offset, std::span<std::byte> to) const = 0;
};

std::unique_ptr<ByteSource> open_file(const std::string& path);  // throws Error (io); a regular file only
// `bytes` must outlive the source.
std::unique_ptr<ByteSource> from_memory(std::span<const std::byte> bytes);

struct GgufTensor {
  std::string name;
  std::vector<std::int64_t> dims;  // fastest first, 1 to 4, each >= 1; a weight w[N, K] has dims {K, N}
  std::uint32_t type = 0;          // ggml's id
  const char* type_name = "";      // ggml's name: "q4_K"
  const char* format = "";         // Tilewright's name of the same bytes, empty when it has none
  std::uint64_t offset = 0;        // from the start of the file
  std::uint64_t bytes = 0;

  std::int64_t cols() const { return dims[0]; }
  std::int64_t rows() const;  // product of the other dims
};

struct GgufArray {  // contents are checked and skipped
  std::uint32_t element_type = 0;
  std::uint64_t count = 0;
};
using GgufValue = std::variant<std::uint64_t, std::int64_t, double, bool, std::string, GgufArray>;

struct GgufLimits {
  static constexpr std::uint64_t kStringBytes = 1ull << 30;
  static constexpr std::uint64_t kArrayCount = 1ull << 30;
  static constexpr std::uint64_t kKeyBytes = 65535;
  static constexpr std::uint64_t kNameBytes = 64;
  static constexpr std::uint64_t kTensors = 1ull << 16;
  static constexpr std::uint64_t kKeys = 1ull << 16;
  static constexpr std::uint32_t kDims = 4;
};

class Gguf {
 public:
  static Gguf open(const std::string& path) { return Gguf(open_file(path)); }
  explicit Gguf(std::unique_ptr<ByteSource> source);

  std::span<const GgufTensor> tensors() const { return tensors_; }  // in the file's order
  const GgufTensor* find(std::string_view name) const;              // null when there is none
  const GgufTensor& tensor(std::string_view name) const;            // throws Error naming some that exist
  const std::vector<std::pair<std::string, GgufValue>>& metadata() const { return metadata_; }
  const GgufValue* value(std::string_view key) const;  // null when there is none
  std::uint64_t alignment() const { return alignment_; }

  std::vector<std::byte> read(const GgufTensor& tensor) const;  // throws Error (io)

 private:
  std::unique_ptr<ByteSource> source_;
  std::vector<GgufTensor> tensors_;
  std::vector<std::pair<std::string, GgufValue>> metadata_;
  std::uint64_t alignment_ = 32;
};

}  // namespace tilewright::cli
