// SPDX-License-Identifier: Apache-2.0
// Writes SVG, one element at a time. Names are the caller's; texts and values of attributes are escaped.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tilewright::cli {

class Svg {
 public:
  using Attributes = std::initializer_list<std::pair<std::string_view, std::string>>;

  void open(std::string_view name, Attributes attributes = {});
  void close();  // the element opened last
  void element(std::string_view name, Attributes attributes, std::string_view text = "");
  void append(const Svg& inner) { out_ += inner.out_; }  // its elements, into the open one
  // Precondition: every element is closed.
  const std::string& text() const { return out_; }

  // Fit for the text of an element and for an attribute: markup is escaped, and what XML does not allow is written as
  // printable() does.
  static std::string escaped(std::string_view text);

 private:
  void start(std::string_view name, Attributes attributes);

  std::string out_;
  std::vector<std::string> open_;
};

}  // namespace tilewright::cli
