// SPDX-License-Identifier: Apache-2.0
// How far a long command is: a bar on a terminal, a line every few seconds anywhere else (a pipe, a CI log).
#pragma once

#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string_view>

namespace tilewright::cli {

class Progress {
 public:
  using Clock = std::chrono::steady_clock;
  struct Style {
    std::FILE* to = stderr;
    bool bar = false;
    Clock::duration between = std::chrono::seconds(5);  // lines; a bar is drawn twenty times a second
    std::function<Clock::time_point()> now = Clock::now;
  };

  Progress();  // stderr; a bar if that is a terminal and NO_COLOR is unset
  explicit Progress(Style style);
  ~Progress();

  // `done` of `total` steps of `stage` are finished. Thread-safe. Copies share what was drawn.
  void operator()(std::string_view stage, int done, int total) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace tilewright::cli
