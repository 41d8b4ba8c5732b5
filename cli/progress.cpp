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

  explicit State(Style s) : style(std::move(s)), last(style.now()) {}
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
  const bool due = now - state_->last >= (style.bar ? std::chrono::milliseconds(50) : style.between);
  // A bar ends full. Lines are for waits: a stage that was short says nothing.
  if (!due && !(style.bar && done >= total)) return;
  state_->last = now;
  state_->drawn = true;
  std::string text;
  if (style.bar) {
    constexpr int kWidth = 30;
    const int filled = static_cast<int>(static_cast<long>(kWidth) * std::min(done, total) / total);
    text = fmt::format("\r\033[K[{}{}] {}/{} {}", std::string(filled, '#'), std::string(kWidth - filled, '.'), done,
                       total, stage);
  } else {
    text = fmt::format("tilewright: {}: {} of {}\n", stage, done, total);
  }
  std::fwrite(text.data(), 1, text.size(), style.to);  // what takes nothing loses it
  std::fflush(style.to);
}

}  // namespace tilewright::cli
