// SPDX-License-Identifier: Apache-2.0
#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string>

namespace tilewright::cli {

struct Progress::State {
  Style style;
  std::mutex mutex;
  bool drawn = false;
  Clock::time_point last;  // drawn, or the start
  // Where the steps that are counted began: another total is another count.
  Clock::time_point began;
  int first = 0, total = 0;

  explicit State(Style s) : style(std::move(s)), last(style.now()), began(last) {}

  // ", 3 min left", once there is something to tell it from.
  std::string left(Clock::time_point now, int done, int of) {
    if (of != total || done < first) began = now, first = done, total = of;
    const double spent = std::chrono::duration<double>(now - began).count();
    if (done <= first || done >= of || spent < 2) return {};
    const double seconds = spent / (done - first) * (of - done);
    return seconds < 90 ? fmt::format(", {:.0f} s left", seconds) : fmt::format(", {:.0f} min left", seconds / 60);
  }
};

Progress::Progress() {
  Style style;
  style.bar = ::isatty(STDERR_FILENO) && !std::getenv("NO_COLOR");
  state_ = std::make_shared<State>(std::move(style));
}

Progress::Progress(Style style) : state_(std::make_shared<State>(std::move(style))) {}

Progress::~Progress() {
  if (state_->style.bar && state_->drawn && state_.use_count() == 1) std::fputs("\r\033[K", state_->style.to);
}

void Progress::operator()(std::string_view stage, int done, int total) const {
  if (total <= 0) return;
  const Style& style = state_->style;
  const std::lock_guard lock(state_->mutex);
  const auto now = style.now();
  const std::string left = state_->left(now, done, total);
  const bool due = now - state_->last >= (style.bar ? std::chrono::milliseconds(50) : style.between);
  // A bar ends full. Lines are for waits: a stage that was short says nothing.
  if (!due && !(style.bar && done >= total)) return;
  state_->last = now;
  state_->drawn = true;
  std::string text;
  if (style.bar) {
    constexpr int kWidth = 30;
    const int filled = static_cast<int>(static_cast<long>(kWidth) * std::min(done, total) / total);
    text = fmt::format("\r\033[K[{}{}] {}/{} {}{}", std::string(filled, '#'), std::string(kWidth - filled, '.'), done,
                       total, stage, left);
  } else {
    text = fmt::format("tilewright: {}: {} of {}{}\n", stage, done, total, left);
  }
  std::fwrite(text.data(), 1, text.size(), style.to);  // what takes nothing loses it
  std::fflush(style.to);
}

}  // namespace tilewright::cli
