// SPDX-License-Identifier: Apache-2.0
// OUTPUT.part.journal: lines of JSON. The first says from which input and by which options, each other one that a
// tensor is done: the hashes of the bytes that it became, and its report. A line that is damaged or cut counts as
// absent.
#pragma once

#include <tilewright/quantize_model.h>

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tilewright::quantize {

// A hash of a stream of bytes: SHA-256 of the SHA-256s of its pieces of 1 MiB.
class Digest {
 public:
  void update(std::span<const std::byte> bytes);
  std::string hex() const;

 private:
  std::string piece_, pieces_;
};

struct Done {
  std::vector<std::pair<std::string, std::string>> outputs;  // names and hashes
  double squares = 0, error_squares = 0, max_error = 0;
  OutputError output = {};
};

class Journal {
 public:
  // A new one, or with `resume` the one there is, which must be of this input and these options: else Error
  // (invalid_argument) that says which of them differs.
  Journal(const std::string& path, const std::string& input, const std::string& options, bool resume);
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;
  ~Journal();

  const std::map<std::string, Done>& done() const { return done_; }  // by name of the input's tensor
  void add(const std::string& tensor, const Done& done);
  void flush();  // to the disk; the tensors' bytes must be there
  void remove();

 private:
  void read(const std::string& input, const std::string& options);

  std::string path_, pending_;
  int fd_ = -1;
  std::map<std::string, Done> done_;
};

std::string read_text(const std::string& path, std::uint64_t most);  // throws Error (io, too_large)
void write_text(const std::string& path, const std::string& text);   // whole or not at all

}  // namespace tilewright::quantize
