// SPDX-License-Identifier: Apache-2.0
#include "templates/specialize.h"

#include <fmt/format.h>
#include <tilewright/error.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>

namespace tilewright {
namespace {

using Reader = std::function<std::string(const std::string& name)>;

// Names in `#include "name"` lines, in order.
std::vector<std::string> includes_of(std::string_view text) {
  std::vector<std::string> names;
  constexpr std::string_view kDirective = "#include \"";
  for (std::size_t at = 0; (at = text.find(kDirective, at)) != std::string_view::npos;) {
    const bool line_start = at == 0 || text[at - 1] == '\n';
    at += kDirective.size();
    const std::size_t end = text.find('"', at);
    if (line_start && end != std::string_view::npos) names.emplace_back(text.substr(at, end - at));
  }
  return names;
}

void collect(const std::string& name, const Reader& read, std::set<std::string>& seen, std::vector<Header>& out) {
  if (!seen.insert(name).second) return;
  Header header{name, read(name)};
  for (const std::string& next : includes_of(header.text)) collect(next, read, seen, out);
  out.push_back(std::move(header));
}

std::vector<Header> closure(std::string_view text, const Reader& read) {
  std::set<std::string> seen;
  std::vector<Header> headers;
  for (const std::string& name : includes_of(text)) collect(name, read, seen, headers);
  std::sort(headers.begin(), headers.end(), [](const Header& a, const Header& b) { return a.name < b.name; });
  return headers;
}

std::string read_embedded(const std::string& name) {
  const EmbeddedFile* file = embedded(name);
  if (!file) throw Error(ErrorCode::io, "template", name, "an embedded file of templates/");
  return std::string(file->text());
}

}  // namespace

const EmbeddedFile* embedded(std::string_view name) {
  for (std::size_t i = 0; i < kEmbeddedCount; ++i)
    if (name == kEmbedded[i].name) return &kEmbedded[i];
  return nullptr;
}

Source specialize(const Specialization& s) {
  Source source;
  source.name = s.name;
  source.entry = "tilewright_kernel";
  source.options = s.options;
  source.options.push_back(kMinimal);
  source.plan = s.plan;
  for (const std::string& include : s.includes) source.text += fmt::format("#include \"{}\"\n", include);
  std::string parameters, arguments;
  for (std::uint32_t i = 0; i < s.plan.map_count; ++i) {
    parameters += fmt::format(", TW_PARAM tw::TensorMap map{}", i);
    arguments += fmt::format(", &map{}", i);
  }
  source.text += s.prelude;
  source.text += fmt::format(
      "using Plan = {};\n"
      "static_assert(Plan::kThreads == {} && Plan::kSharedBytes == {}, \"host and device disagree\");\n"
      "TW_GLOBAL void TW_BOUNDS({}, {}) tilewright_kernel(TW_PARAM {}::Args args, TW_PARAM {}::Shape shape{}) {{\n"
      "  Plan::run(args, shape{});\n"
      "}}\n",
      s.plan_type, s.plan.threads, s.plan.shared_bytes, s.plan.threads, s.blocks_per_sm, s.space, s.space, parameters,
      arguments);
  source.headers = closure(source.text, read_embedded);
  return source;
}

Source with_templates_from(Source source, const std::string& root) {
  source.headers = closure(source.text, [&](const std::string& name) {
    std::ifstream file(root + "/" + name, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    if (!file) throw Error(ErrorCode::io, "template", root + "/" + name, "a readable file");
    return text.str();
  });
  return source;
}

}  // namespace tilewright
