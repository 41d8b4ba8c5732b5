// SPDX-License-Identifier: Apache-2.0
// The base of SafetensorsWriter and GgufWriter: a model file whose tensors are first declared, then written piece by
// piece. Until finish() the bytes are in PATH.part, whose first eight bytes are zero, so that neither its name nor its
// content looks like a complete model. finish() completes the file, flushes it to the disk and renames it to PATH,
// replacing any file there. If a writer is destroyed earlier, it removes PATH.part, unless it was resumed or
// keep_part() was called. Space is reserved at the start, so a full disk is an error before the work. PATH.part is
// locked against a second process.
// Functions throw Error: io, which names the file; invalid_argument if something does not match the declaration. Not
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tilewright/export.h>

namespace tilewright {

class TILEWRIGHT_EXPORT ModelWriter {
 public:
  // resume: PATH.part must exist and have the declared size and header, else Error (invalid_argument). Use skip() to
  // keep its tensors.
  enum class Start { create, resume };

  ModelWriter(ModelWriter&&) noexcept;
  ModelWriter& operator=(ModelWriter&&) = delete;
  virtual ~ModelWriter();

  // Writes the next bytes of a tensor. Tensors may be written in any order, also alternately.
  void write(std::string_view tensor, std::span<const std::byte> bytes);
  // Keeps the bytes that PATH.part has for this tensor. The caller must have verified them.
  void skip(std::string_view tensor);
  // Reads bytes of a tensor from PATH.part, `to.size()` bytes from `first` on.
  void read(std::string_view tensor, std::uint64_t first, std::span<std::byte> to) const;
  std::uint64_t bytes(std::string_view tensor) const;

  void sync();       // returns when all written bytes are on the disk
  void keep_part();  // do not remove an unfinished file, so that it can be resumed
  // Throws Error (invalid_argument) naming a tensor whose bytes are not complete.
  void finish();

 protected:
  struct Place {
    std::string name = {};
    std::uint64_t offset = 0;  // from the start of the file
    std::uint64_t bytes = 0;
  };
  // `header`: the file's first bytes, at least eight; `size`: of the whole file.
  ModelWriter(const std::string& path, std::string header, std::vector<Place> places, std::uint64_t size, Start start);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tilewright
