// SPDX-License-Identifier: Apache-2.0
// Reads the little of XML that the tool writes, and fails the test where it is not well-formed: elements that are not
// closed in order, attributes without quotes, markup or control characters in text.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "support/catch.h"

namespace xml {

struct Element {
  std::string name;
  std::map<std::string, std::string> attributes;  // as written, escapes included
  std::string text;                               // up to its first child
};

struct Document {
  std::vector<Element> elements;  // in the order of their beginnings
  std::vector<Element> all(const std::string& name) const {
    std::vector<Element> found;
    for (const Element& e : elements)
      if (e.name == name) found.push_back(e);
    return found;
  }
};

inline void check_text(const std::string& text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    INFO(text);
    REQUIRE((static_cast<unsigned char>(c) >= 0x20 || c == '\n'));
    REQUIRE(c != '<');
    if (c != '&') continue;
    bool known = false;
    for (const char* escape : {"&amp;", "&lt;", "&gt;", "&quot;"})
      known |= text.compare(i, std::string(escape).size(), escape) == 0;
    REQUIRE(known);
  }
}

inline Document parse(const std::string& text) {
  Document document;
  std::vector<std::size_t> open;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t next = std::min(text.find('<', at), text.size());
    const std::string between = text.substr(at, next - at);
    check_text(between);
    if (open.empty()) REQUIRE(between.find_first_not_of(" \n") == std::string::npos);
    if (!open.empty() && open.back() + 1 == document.elements.size()) document.elements.back().text += between;
    if (next == text.size()) break;
    at = next + 1;
    if (text[at] == '/') {
      const std::size_t end = text.find('>', at);
      REQUIRE_FALSE(open.empty());
      REQUIRE(text.substr(at + 1, end - at - 1) == document.elements[open.back()].name);
      open.pop_back();
      at = end + 1;
      continue;
    }
    if (open.empty()) REQUIRE(document.elements.empty());  // one root
    std::size_t end = text.find_first_of(" />", at);
    document.elements.push_back({text.substr(at, end - at), {}, {}});
    Element& element = document.elements.back();
    REQUIRE_FALSE(element.name.empty());
    for (at = end; text[at] == ' ';) {
      const std::size_t equals = text.find("=\"", at), quote = text.find('"', equals + 2);
      REQUIRE(quote != std::string::npos);
      const std::string value = text.substr(equals + 2, quote - equals - 2);
      check_text(value);
      REQUIRE(element.attributes.emplace(text.substr(at + 1, equals - at - 1), value).second);
      at = quote + 1;
    }
    const bool closed = text[at] == '/';
    at += closed;
    REQUIRE(text[at] == '>');
    ++at;
    if (!closed) open.push_back(document.elements.size() - 1);
  }
  REQUIRE(open.empty());
  REQUIRE_FALSE(document.elements.empty());
  return document;
}

}  // namespace xml
