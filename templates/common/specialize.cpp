// SPDX-License-Identifier: Apache-2.0
#include "templates/common/specialize.h"

#include <fmt/format.h>
#include <tilewright/error.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>

namespace tilewright {
namespace {

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

// Headers that `text` reaches, in the order of their names.
std::vector<Header> closure(std::string_view text, const std::function<std::string(const std::string& name)>& read) {
  std::map<std::string, Header> reached;
  std::vector<std::string> open = includes_of(text);
  while (!open.empty()) {
    std::string name = std::move(open.back());
    open.pop_back();
    if (reached.count(name)) continue;
    const Header& header = reached[name] = {name, read(name)};
    for (std::string& next : includes_of(header.text)) open.push_back(std::move(next));
  }
  std::vector<Header> headers;
  for (auto& [name, header] : reached) headers.push_back(std::move(header));
  return headers;
}

// The embedded files as headers, in the order of their names, with what each includes: looked for once a process.
class EmbeddedHeaders {
 public:
  static const EmbeddedHeaders& get() {
    static const EmbeddedHeaders headers;
    return headers;
  }
  std::vector<Header> closure(std::string_view text) const {
    std::vector<bool> reached(files_.size());
    std::vector<std::size_t> open;
    const auto reach = [&](const std::vector<std::string>& names) {
      for (const std::string& name : names)
        if (const std::size_t i = find(name); !reached[i]) {
          reached[i] = true;
          open.push_back(i);
        }
    };
    reach(includes_of(text));
    while (!open.empty()) {
      const File& file = files_[open.back()];
      open.pop_back();
      reach(file.includes);
    }
    std::vector<Header> headers;
    for (std::size_t i = 0; i < files_.size(); ++i)
      if (reached[i]) headers.push_back(files_[i].header);
    return headers;
  }

 private:
  struct File {
    Header header;
    std::vector<std::string> includes;
  };
  EmbeddedHeaders() {
    for (std::size_t i = 0; i < kEmbeddedCount; ++i)
      files_.push_back(
          {{kEmbedded[i].name, SharedText::of_static(kEmbedded[i].text())}, includes_of(kEmbedded[i].text())});
    std::sort(files_.begin(), files_.end(), [](const File& a, const File& b) { return a.header.name < b.header.name; });
  }
  std::size_t find(const std::string& name) const {
    const auto at = std::lower_bound(files_.begin(), files_.end(), name,
                                     [](const File& file, const std::string& n) { return file.header.name < n; });
    if (at == files_.end() || at->header.name != name)
      throw Error(ErrorCode::io, "template", name, "must be an embedded file of templates/");
    return static_cast<std::size_t>(at - files_.begin());
  }

  std::vector<File> files_;
};

}  // namespace

const EmbeddedFile* embedded(std::string_view name) {
  for (std::size_t i = 0; i < kEmbeddedCount; ++i)
    if (name == kEmbedded[i].name) return &kEmbedded[i];
  return nullptr;
}

std::string format_type(Format f) { return fmt::format("tw::fmt::{}", f.name()); }
std::string format_file(Format f) { return fmt::format("formats/{}.cuh", f.name()); }

namespace {

// "tw_gemm_q8_1_q4_0_f32_wgmma": what a profiler shows. Made of nothing but what the rest of the text has anyway, so
// that it tells no two binaries apart.
std::string entry_of(const Specialization& s) {
  const std::size_t slash = std::min(s.name.find('/'), s.name.size());
  std::string entry = "tw_" + s.name.substr(0, slash);
  constexpr std::string_view kFolder = "formats/", kEnd = ".cuh";
  for (const std::string& include : s.includes)
    if (include.starts_with(kFolder))
      entry += "_" + include.substr(kFolder.size(), include.size() - kFolder.size() - kEnd.size());
  entry += s.name.substr(slash);
  std::replace_if(
      entry.begin(), entry.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return entry;
}

}  // namespace

Source specialize(const Specialization& s) {
  Source source;
  source.name = s.name;
  source.entry = entry_of(s);
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
      "TW_GLOBAL void TW_BOUNDS({}, {}) {}(TW_PARAM {}::Args args, TW_PARAM {}::Shape shape{}) {{\n"
      "  Plan::run(args, shape{});\n"
      "}}\n",
      s.plan_type, s.plan.threads, s.plan.shared_bytes, s.plan.threads, s.blocks_per_sm, source.entry, s.space, s.space,
      parameters, arguments);
  source.headers = EmbeddedHeaders::get().closure(source.text);
  return source;
}

Task kernel_task(const Specialization& s, std::size_t args_bytes) {
  Task task;
  task.key = s.name;
  task.rows = 1;
  task.candidates = {{"steps", {}}};
  task.source = [s](const Candidate&) { return specialize(s); };
  task.arguments = [=](std::span<void* const>, std::int64_t) { return std::vector<std::byte>(args_bytes); };
  task.contract.args_bytes = static_cast<std::uint32_t>(args_bytes);
  return task;
}

Source with_templates_from(Source source, const std::string& root) {
  source.headers = closure(source.text, [&](const std::string& name) {
    std::ifstream file(root + "/" + name, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    if (!file) throw Error(ErrorCode::io, "template", root + "/" + name, "must be a readable file");
    return text.str();
  });
  return source;
}

}  // namespace tilewright
