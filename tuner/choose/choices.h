// SPDX-License-Identifier: Apache-2.0
// Choices: the candidates that may serve a problem, best first, made as far as they are asked for: looking a stored
// choice up takes microseconds, ranking all legal candidates takes a hundred times that. One thread at a time.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include <tilewright/tuning.h>

namespace tilewright::tuner {

class Choices {
 public:
  Choices() = default;
  // `first` is not empty. `rest` is called once at most, when those before it are exhausted.
  Choices(std::vector<Choice> first, std::function<std::vector<Choice>()> rest)
      : list_(std::move(first)), rest_(std::move(rest)) {}

  const Choice& current() const { return list_[at_]; }
  // True if there is nothing behind the current one, which then must serve.
  bool last() {
    extend();
    return at_ + 1 == list_.size();
  }
  void next() { ++at_; }  // precondition: !last()

 private:
  void extend() {
    if (at_ + 1 < list_.size() || !rest_) return;
    for (Choice& choice : std::exchange(rest_, nullptr)()) {
      bool known = false;
      for (const Choice& c : list_) known = known || c.candidate == choice.candidate;
      if (!known) list_.push_back(std::move(choice));
    }
  }

  std::vector<Choice> list_;
  std::function<std::vector<Choice>()> rest_;
  std::size_t at_ = 0;
};

}  // namespace tilewright::tuner
