// SPDX-License-Identifier: Apache-2.0
// Recorder: appends each distinct problem to a workload file. Thread-safe; several processes may share the file, whose
// lines are then repeated at worst. A file that cannot be written costs one warning and nothing else.
#pragma once

#include <mutex>
#include <set>
#include <string>

#include <tilewright/problem.h>

#include "tuner/log.h"

namespace tilewright::tuner {

class Recorder {
 public:
  Recorder(std::string path, Log& log) : path_(std::move(path)), log_(log) {}
  bool on() const { return !path_.empty(); }
  void add(const Problem& problem);

 private:
  void load();

  const std::string path_;
  Log& log_;
  std::mutex mutex_;
  std::set<std::string> seen_;
  bool loaded_ = false, failed_ = false;
};

}  // namespace tilewright::tuner
