// SPDX-License-Identifier: Apache-2.0
// A strict reader of safetensors (tensor infos, tensor bytes and metadata) and a writer. Files are untrusted. The
// reader refuses everything that the format's own implementation refuses: a header of more than 100 MB, offsets that
// run backwards, tensors that overlap, leave a hole or do not fill the file to its end, and a size that contradicts
// dtype and shape. It also refuses duplicate names and unknown fields. Tensors may be listed in any order. If it
// refuses a file, an Error names the field and its value: invalid_argument for the contents, too_large beyond a stated
// limit, io if the file cannot be read. An open reader is thread-safe.
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
  std::string_view format = {};  // Tilewright's format with the same bytes; empty if there is none
  std::vector<std::int64_t> shape =
      {};                    // outermost first, row-major; a weight w[N, K] has shape {N, K}; {}: one element
  std::uint64_t offset = 0;  // from the start of the file
  std::uint64_t bytes = 0;

  std::int64_t cols() const;  // the last extent; 1 for a scalar
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
  const SafetensorsTensor* find(std::string_view name) const;              // null if there is none
  const SafetensorsTensor& tensor(std::string_view name) const;            // throws Error, which names existing ones
  const std::vector<std::pair<std::string, std::string>>& metadata() const { return metadata_; }
  const std::string* value(std::string_view key) const;  // of the metadata; null if there is none

  std::vector<std::byte> read(const SafetensorsTensor& tensor) const;  // throws Error (io)
  // Reads `to.size()` bytes of the tensor from `first` on, into the caller's memory. Throws Error (invalid_argument) if
  // the tensor has fewer bytes.
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

// Writes the same bytes as the reference implementation. Wider dtypes come first, so that every tensor is aligned, and
// names are sorted within a dtype. The header has no spaces and is padded to a multiple of eight bytes. Metadata keep
// their order. Throws Error: invalid_argument for an unknown dtype, a duplicate name, text that is not UTF-8, a
// negative extent, or elements of less than a byte that do not fill whole bytes; too_large beyond SafetensorsLimits.
class TILEWRIGHT_EXPORT SafetensorsWriter : public ModelWriter {
 public:
  SafetensorsWriter(const std::string& path, std::vector<SafetensorsInfo> tensors,
                    const std::vector<std::pair<std::string, std::string>>& metadata = {}, Start start = Start::create);

 private:
  struct Layout;
  SafetensorsWriter(const std::string& path, Layout layout, Start start);
};

// A tensor for CheckpointWeight. `bytes` are the result of read() and must outlive it. Throws Error (unsupported)
// unless the tensor is I32, F16 or BF16 and has one or two dimensions.
TILEWRIGHT_EXPORT CheckpointTensor checkpoint_tensor(const SafetensorsTensor& tensor, std::span<const std::byte> bytes);

}  // namespace tilewright
