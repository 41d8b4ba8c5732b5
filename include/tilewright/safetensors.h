// SPDX-License-Identifier: Apache-2.0
// A strict reader of safetensors: tensor infos, tensor bytes and metadata; and a writer. A file is input from
// strangers. What the format's own implementation refuses is refused: a header beyond 100 MB, offsets that run
// backwards, tensors that overlap, leave a hole or do not fill the file to its end, a size that is not what dtype and
// shape make it. Names that occur twice and fields the format does not have are refused besides. Tensors may be listed
// in any order. Every refusal is an Error naming the field and its value: invalid_argument for what the file says,
// too_large beyond a stated limit, io when it cannot be read. The reader is thread-safe once opened.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tilewright/byte_source.h>
#include <tilewright/export.h>
#include <tilewright/import.h>
#include <tilewright/model_writer.h>

namespace tilewright {

struct TILEWRIGHT_EXPORT SafetensorsTensor {
  std::string name = {};
  std::string_view dtype = {};   // as the file says: "BF16"
  std::string_view format = {};  // Tilewright's name of the same bytes, empty when it has none
  std::vector<std::int64_t> shape =
      {};                    // outermost first, row-major; a weight w[N, K] has shape {N, K}; {}: one element
  std::uint64_t offset = 0;  // from the start of the file
  std::uint64_t bytes = 0;

  std::int64_t cols() const;  // the last extent, 1 of a scalar
  std::int64_t rows() const;  // product of the others
};

struct SafetensorsLimits {
  static constexpr std::uint64_t kHeaderBytes = 100'000'000;  // the reference implementation's
  static constexpr std::size_t kDims = 16;
};

class TILEWRIGHT_EXPORT Safetensors {
 public:
  static Safetensors open(const std::string& path) { return Safetensors(ByteSource::file(path)); }
  explicit Safetensors(std::unique_ptr<ByteSource> source);

  std::span<const SafetensorsTensor> tensors() const { return tensors_; }  // by offset
  const SafetensorsTensor* find(std::string_view name) const;              // null when there is none
  const SafetensorsTensor& tensor(std::string_view name) const;            // throws Error naming some that exist
  const std::vector<std::pair<std::string, std::string>>& metadata() const { return metadata_; }
  const std::string* value(std::string_view key) const;  // of the metadata; null when there is none

  std::vector<std::byte> read(const SafetensorsTensor& tensor) const;  // throws Error (io)
  // `to.size()` bytes of the tensor from `first` on: a part, or into memory of the caller's. Throws Error
  // (invalid_argument) if the tensor has fewer.
  void read(const SafetensorsTensor& tensor, std::uint64_t first, std::span<std::byte> to) const;

 private:
  std::unique_ptr<ByteSource> source_;
  std::vector<SafetensorsTensor> tensors_;
  std::vector<std::pair<std::string, std::string>> metadata_;
};

struct TILEWRIGHT_EXPORT SafetensorsInfo {
  std::string name = {};
  std::string dtype = {};  // "BF16"
  std::vector<std::int64_t> shape = {};
};

// Writes what the reference implementation would: wider dtypes first and names in order within one, so that every
// tensor is aligned, a header without spaces, padded to a multiple of eight bytes. Metadata keep their order. Throws
// Error (invalid_argument) for an unknown dtype, a name twice, text that is not UTF-8, a negative extent, elements of
// less than a byte that do not fill whole ones, (too_large) beyond SafetensorsLimits.
class TILEWRIGHT_EXPORT SafetensorsWriter : public ModelWriter {
 public:
  SafetensorsWriter(const std::string& path, std::vector<SafetensorsInfo> tensors,
                    const std::vector<std::pair<std::string, std::string>>& metadata = {}, Start start = Start::create);

 private:
  struct Layout;
  SafetensorsWriter(const std::string& path, Layout layout, Start start);
};

// A tensor for CheckpointWeight: `bytes` are what read() gave, and must outlive it. Throws Error (unsupported) unless
// it is I32, F16 or BF16 and has one or two dimensions.
TILEWRIGHT_EXPORT CheckpointTensor checkpoint_tensor(const SafetensorsTensor& tensor, std::span<const std::byte> bytes);

}  // namespace tilewright
