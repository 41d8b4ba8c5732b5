// SPDX-License-Identifier: Apache-2.0
#include "tuner/keys.h"

#include <algorithm>
#include <deque>
#include <map>

#include <fmt/format.h>

#include "templates/common/specialize.h"

namespace tilewright::tuner {
namespace {

std::string folder_of(const std::string& name) {
  std::size_t slash = name.rfind('/');
  return slash == name.npos ? "" : name.substr(0, slash + 1);
}

std::string grid_text(const GridAxis& a) {
  return std::to_string(a.fixed) + "/" + std::to_string(a.per_rows) + "/" + std::to_string(a.per_cols);
}

std::string map_text(const TensorMapPlan& m) {
  std::string text = " map=";
  for (std::uint64_t v : {std::uint64_t{m.pointer}, std::uint64_t{m.rows_at}, m.rows, std::uint64_t{m.stride_at},
                          std::uint64_t{m.inner_at}, m.inner, std::uint64_t{m.element_bytes},
                          std::uint64_t{m.box_inner}, std::uint64_t{m.box_rows}, std::uint64_t{m.box_panels}})
    text += std::to_string(v) + "/";
  text += std::to_string(m.swizzle);
  if (m.block != 1 || m.block_elements != 1) text += fmt::format("/{}/{}", m.block, m.block_elements);
  if (m.behind) text += fmt::format(" behind={}", m.behind);
  if (m.tile_boxes) text += fmt::format(" tile_boxes={}", m.tile_boxes);
  if (m.axes)
    text += fmt::format(" axes={}/{}/{}/{}", m.axes, m.axes_at, fmt::join(m.box_axes, "/"), fmt::join(m.steps, "/"));
  return text;
}

std::string plan_text(const LaunchPlan& p) {
  std::string text = "x=" + grid_text(p.x) + " y=" + grid_text(p.y) + " z=" + grid_text(p.z) +
                     " threads=" + std::to_string(p.threads) + " cluster=" + std::to_string(p.cluster) +
                     " shared=" + std::to_string(p.shared_bytes);
  // Only where a plan has them, so that the keys of all others stay what they were.
  if (p.cpu)
    text += fmt::format(" blocks={} first={} scratch={} parts={} amx={}", grid_text(p.cpu->blocks),
                        grid_text(p.cpu->first_blocks), grid_text(p.cpu->scratch), p.cpu->parts, p.cpu->needs_amx);
  if (p.persistent) text += " persistent=" + std::to_string(p.persistent);
  if (p.overlap) text += " overlap=1";
  if (p.most_rows) text += " most_rows=" + std::to_string(p.most_rows);
  if (p.map_count) text += " maps=" + std::to_string(p.map_count);
  for (std::size_t i = 0; i < std::min<std::size_t>(p.map_count, p.maps.size()); ++i) text += map_text(p.maps[i]);
  return text;
}

}  // namespace

std::vector<std::string> included_names(std::string_view text) {
  std::vector<std::string> names;
  for (std::size_t at = text.find('#'); at != text.npos; at = text.find('#', at + 1)) {
    std::size_t word = text.find_first_not_of(" \t", at + 1);
    if (word == text.npos || text.compare(word, 7, "include") != 0) continue;
    std::size_t open = text.find_first_not_of(" \t", word + 7);
    if (open == text.npos || (text[open] != '"' && text[open] != '<')) continue;
    std::size_t close = text.find(text[open] == '"' ? '"' : '>', open + 1);
    std::string name(text.substr(open + 1, close == text.npos ? close : close - open - 1));
    if (close != text.npos && name.find('\n') == name.npos) names.push_back(std::move(name));
  }
  return names;
}

std::shared_ptr<const HeaderIndex::Known> HeaderIndex::known(const Header& header) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<const Known>& slot = known_[header.name];
  if (slot && slot->text == header.text) return slot;
  // The build hashed what it embedded.
  const EmbeddedFile* file = embedded(header.name);
  std::string hash = file && file->text() == header.text.view() ? file->sha256 : sha256_hex(header.text);
  slot = std::make_shared<Known>(Known{header.text, std::move(hash), included_names(header.text)});
  return slot;
}

std::vector<std::pair<std::string, std::string>> HeaderIndex::closure(const Source& source) {
  std::unordered_map<std::string_view, const Header*> by_name;
  for (const Header& h : source.headers) by_name.emplace(h.name, &h);
  std::map<std::string, std::string> reached;
  std::deque<const Header*> open;
  auto visit = [&](const std::string& name, const std::string& folder) {
    // The compiler looks for a name as written and beside the including file. Both count: a wider key is never wrong.
    for (const std::string& spelled : {name, folder + name}) {
      auto it = by_name.find(spelled);
      if (it == by_name.end() || reached.count(spelled)) continue;
      reached[spelled] = "";
      open.push_back(it->second);
    }
  };
  for (const std::string& name : included_names(source.text)) visit(name, "");
  while (!open.empty()) {
    const Header* header = open.front();
    open.pop_front();
    auto facts = known(*header);
    reached[header->name] = facts->hash;
    for (const std::string& name : facts->includes) visit(name, folder_of(header->name));
  }
  return {reached.begin(), reached.end()};
}

Key binary_key(const Source& source, const Arch& arch, const std::string& compiler, HeaderIndex& headers) {
  Key key;
  key.add("kind", "binary").add("library", kLibraryVersion).add("target", arch.name).add("compiler", compiler);
  key.add("entry", source.entry).add("plan", plan_text(source.plan));
  // In the order given: the order of options can matter.
  for (const std::string& option : source.options) key.add("option", option);
  key.add("source", sha256_hex(source.text));
  for (auto& [name, hash] : headers.closure(source)) key.add("header " + name, hash);
  return key;
}

Key choice_key(const Device& device, std::string_view version) {
  Key key;
  key.add("kind", "choice").add("device", device.name()).add("sms", std::int64_t(device.sms()));
  key.add("l2", device.l2_bytes()).add("target", device.arch().name).add("library", version);
  return key;
}

Key rows_key(const Device& device) {
  Key key = choice_key(device);
  key.add("rows", "all");
  return key;
}

Key outcome_key(const Device& device, const std::string& compiler) {
  Key key = choice_key(device);
  key.add("driver", device.driver_version()).add("compiler", compiler);
  return key;
}

Key prewarm_key(const Arch& arch) {
  Key key;
  key.add("kind", "prewarm").add("target", arch.name).add("library", kLibraryVersion);
  return key;
}

}  // namespace tilewright::tuner
