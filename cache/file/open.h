// SPDX-License-Identifier: Apache-2.0
// From a path to a usable Layer, or to the reason why there is none. Never throws for what is in or around the file.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache/layer.h"

namespace tilewright::cache {

enum class Trouble {
  none,
  absent,     // a store that is only read is not there: nothing to say about it
  transient,  // somebody holds a lock: try again later
  lasting,    // not usable in this process
};

struct Opened {
  std::unique_ptr<Layer> layer;
  std::string path;  // resolved
  const char* network = nullptr;
  Trouble trouble = Trouble::none;
  std::string reason;                                      // one sentence when there is no layer
  std::vector<std::pair<std::string, std::string>> notes;  // kind, sentence: worth a warning
};

struct OpenRequest {
  std::string path;
  std::int64_t cap = 0;
  bool allow_shared = false;
  bool read_only = false;  // look-ups only; nothing is created, changed or moved away; a file in use is copied first
  bool check = false;      // run the structural check whatever the file's size
  Clock::time_point deadline = Clock::time_point::max();
};

Opened open_own(const OpenRequest& request);
Opened open_shipped(const OpenRequest& request);
std::unique_ptr<Layer> open_memory(std::int64_t cap);
// A file named by the user for one operation (merge, import): only read, always checked, wherever it is. Read from a
// private copy if it is in use, refused if it has a rollback journal or is no regular file.
std::unique_ptr<Layer> open_source(const std::string& path);  // throws Error (io)

}  // namespace tilewright::cache
