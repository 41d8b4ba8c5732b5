// SPDX-License-Identifier: Apache-2.0
// What SafetensorsWriter and GgufWriter have in common: a model file whose tensors are declared first and streamed
// then. Until finish() the bytes are in PATH.part, whose first eight bytes are zero, so that neither name nor content
// looks like a whole model; finish() completes it, flushes it to the disk and renames it to PATH, replacing what is
// there. A writer that is destroyed before removes PATH.part, unless it was resumed or keep_part() was called. Space is
// reserved at the start, so a full disk is an error before the work and not after it. PATH.part is locked: a second
// process is refused.
// Functions throw Error (io) naming the file, (invalid_argument) for what does not fit the declaration. Not
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
  // resume: PATH.part must be there, as long as declared and with the header that the declaration makes; its tensors
  // are taken over by skip(). Otherwise Error (invalid_argument).
  enum class Start { create, resume };

  ModelWriter(ModelWriter&&) noexcept;
  ModelWriter& operator=(ModelWriter&&) = delete;
  virtual ~ModelWriter();

  // The next bytes of a tensor; tensors may come in any order and take turns.
  void write(std::string_view tensor, std::span<const std::byte> bytes);
  // The tensor's bytes are those that PATH.part has: whoever resumes has compared them with what it knows of them.
  void skip(std::string_view tensor);
  // What PATH.part has of a tensor, `to.size()` bytes from `first` on.
  void read(std::string_view tensor, std::uint64_t first, std::span<std::byte> to) const;
  std::uint64_t bytes(std::string_view tensor) const;

  void sync();       // what was written has reached the disk
  void keep_part();  // if it is not finished, so that it can be resumed
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
