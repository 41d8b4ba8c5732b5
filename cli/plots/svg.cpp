// SPDX-License-Identifier: Apache-2.0
#include "cli/plots/svg.h"

#include <tilewright/text.h>

namespace tilewright::cli {

std::string Svg::escaped(std::string_view text) {
  std::string out;
  for (const char c : printable(text)) switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  return out;
}

void Svg::start(std::string_view name, Attributes attributes) {
  out_.append(2 * open_.size(), ' ').append("<").append(name);
  for (const auto& [key, value] : attributes) out_.append(" ").append(key).append("=\"" + escaped(value) + "\"");
}

void Svg::open(std::string_view name, Attributes attributes) {
  start(name, attributes);
  out_ += ">\n";
  open_.emplace_back(name);
}

void Svg::close() {
  const std::string name = std::move(open_.back());
  open_.pop_back();
  out_.append(2 * open_.size(), ' ').append("</" + name + ">\n");
}

void Svg::element(std::string_view name, Attributes attributes, std::string_view text) {
  start(name, attributes);
  if (text.empty())
    out_ += "/>\n";
  else
    out_.append(">" + escaped(text) + "</").append(name).append(">\n");
}

}  // namespace tilewright::cli
