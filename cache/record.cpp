// SPDX-License-Identifier: Apache-2.0
#include "cache/record.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "cache/key.h"

namespace tilewright::cache {
namespace {

constexpr std::pair<OutcomeKind, std::string_view> kKinds[] = {
    {OutcomeKind::measured, "measured"},         {OutcomeKind::pruned, "pruned"}, {OutcomeKind::rejected, "rejected"},
    {OutcomeKind::not_compiled, "not_compiled"}, {OutcomeKind::wrong, "wrong"},   {OutcomeKind::failed, "failed"},
};

template <class Number>
bool to_number(std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// Cuts the next space-separated token off `text`.
std::string_view token(std::string_view& text, char separator) {
  const std::size_t end = text.find(separator);
  const std::string_view head = text.substr(0, end);
  text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  return head;
}

std::string axis_text(const GridAxis& axis) {
  return std::to_string(axis.fixed) + ',' + std::to_string(axis.per_rows) + ',' + std::to_string(axis.per_cols);
}

bool parse_axis(std::string_view text, GridAxis& axis) {
  return to_number(token(text, ','), axis.fixed) && to_number(token(text, ','), axis.per_rows) &&
         to_number(token(text, ','), axis.per_cols) && text.empty();
}

std::string map_text(const TensorMapPlan& map) {
  std::string text;
  for (const std::uint64_t value :
       {std::uint64_t{map.pointer}, std::uint64_t{map.rows_at}, map.rows, std::uint64_t{map.stride_at},
        std::uint64_t{map.inner_at}, map.inner, std::uint64_t{map.element_bytes}, std::uint64_t{map.box_inner},
        std::uint64_t{map.box_rows}, std::uint64_t{map.box_panels}})
    text += std::to_string(value) + ',';
  text += std::to_string(map.swizzle);
  // With their defaults they are left out, so that older rows stay valid.
  if (map.block != 1 || map.block_elements != 1 || map.behind || map.tile_boxes)
    text += ',' + std::to_string(map.block) + ',' + std::to_string(map.block_elements);
  if (map.behind || map.tile_boxes) text += ',' + std::to_string(map.behind);
  if (map.tile_boxes) text += ',' + std::to_string(map.tile_boxes);
  if (map.axes) {
    text += ';';
    text += std::to_string(map.axes) + ',' + std::to_string(map.axes_at);
    for (const auto& list : {map.box_axes, map.steps})
      for (const std::uint32_t value : list) text += ',' + std::to_string(value);
  }
  return text;
}

bool parse_map(std::string_view text, TensorMapPlan& map) {
  const std::string whole(text);
  std::string_view axes = text;
  text = token(axes, ';');
  const auto next = [&](auto& value) { return to_number(token(text, ','), value); };
  const auto next_of_axes = [&](auto& value) { return axes.empty() || to_number(token(axes, ','), value); };
  const auto all_of_axes = [&](auto& list) { return std::all_of(list.begin(), list.end(), next_of_axes); };
  return next(map.pointer) && next(map.rows_at) && next(map.rows) && next(map.stride_at) && next(map.inner_at) &&
         next(map.inner) && next(map.element_bytes) && next(map.box_inner) && next(map.box_rows) &&
         next(map.box_panels) && next(map.swizzle) && (text.empty() || (next(map.block) && next(map.block_elements))) &&
         (text.empty() || next(map.behind)) && (text.empty() || next(map.tile_boxes)) && next_of_axes(map.axes) &&
         next_of_axes(map.axes_at) && all_of_axes(map.box_axes) && all_of_axes(map.steps) && map_text(map) == whole;
}

std::string cpu_text(const CpuLaunch& launch) {
  std::string text;
  for (const GridAxis* axis : {&launch.blocks, &launch.first_blocks, &launch.scratch}) text += axis_text(*axis) + ';';
  return text + std::to_string(launch.parts) + ';' + std::to_string(int{launch.needs_amx});
}

bool parse_cpu(std::string_view text, CpuLaunch& launch) {
  const std::string whole(text);
  for (GridAxis* axis : {&launch.blocks, &launch.first_blocks, &launch.scratch})
    if (!parse_axis(token(text, ';'), *axis)) return false;
  if (!to_number(token(text, ';'), launch.parts)) return false;
  launch.needs_amx = text == "1";
  return cpu_text(launch) == whole;
}

// Adds the fields that only some plans have. A field with its default is left out, so that older rows stay valid.
void add_extras(Key& key, const LaunchPlan& plan) {
  if (plan.persistent) key.add("persistent", plan.persistent);
  if (plan.overlap) key.add("overlap", 1);
  if (plan.most_rows) key.add("most_rows", plan.most_rows);
  if (plan.cpu) key.add("cpu", cpu_text(*plan.cpu));
  // More maps than there is room for have no text: the line is malformed.
  for (std::size_t i = 0; i < std::min<std::size_t>(plan.map_count, plan.maps.size() + 1); ++i)
    key.add("map", i < plan.maps.size() ? map_text(plan.maps[i]) : "");
}

bool parse_extra(const std::string& tag, const std::string& value, LaunchPlan& plan) {
  if (tag == "persistent") return to_number(value, plan.persistent);
  if (tag == "overlap") return plan.overlap = value == "1";
  if (tag == "most_rows") return to_number(value, plan.most_rows);
  if (tag == "cpu") return parse_cpu(value, plan.cpu.emplace());
  return tag == "map" && plan.map_count < plan.maps.size() && parse_map(value, plan.maps[plan.map_count++]);
}

bool is_time(double value) { return std::isfinite(value) && value >= 0; }
bool is_text(const std::string& text) { return text.size() <= kMaxText; }

// A row of one's own hashes as it did in format version 1, which had no others.
std::string with_origin(FieldHash& hash, bool imported) {
  if (imported) hash.add(std::string_view("imported"));
  return hash.hex();
}

// SQLite stores -0 as 0 and keeps no NaN, but a row must read back as what was hashed.
double stored(double value) { return std::isnan(value) ? std::numeric_limits<double>::infinity() : value + 0.0; }

}  // namespace

std::string encode_candidate(const Candidate& candidate) {
  if (candidate.family.empty() || candidate.knobs.size() > kMaxKnobs) return {};
  std::string text = escape(candidate.family, " =");
  for (const auto& [name, value] : candidate.knobs) {
    if (name.empty() || value < std::numeric_limits<std::int32_t>::min() ||
        value > std::numeric_limits<std::int32_t>::max()) {
      return {};
    }
    text += ' ' + escape(name, " =") + '=' + std::to_string(value);
  }
  return is_text(text) ? text : std::string();
}

std::optional<Candidate> decode_candidate(std::string_view text) {
  if (text.size() > kMaxText) return std::nullopt;
  Candidate candidate;
  const std::string_view whole = text;
  const auto family = unescape(token(text, ' '));
  if (!family || family->empty()) return std::nullopt;
  candidate.family = *family;
  while (!text.empty()) {
    std::string_view value = token(text, ' ');
    const auto name = unescape(token(value, '='));
    std::int32_t number = 0;
    if (!name || !to_number(value, number)) return std::nullopt;
    candidate.knobs.emplace_back(*name, number);
    if (candidate.knobs.size() > kMaxKnobs) return std::nullopt;
  }
  // One text per candidate: anything that would be written differently was not written here.
  if (encode_candidate(candidate) != whole) return std::nullopt;
  return candidate;
}

std::string encode_resources(const Resources& r) {
  return Key()
      .add("registers", r.registers)
      .add("shared_bytes", r.shared_bytes)
      .add("spill_bytes", r.spill_bytes)
      .add("stack_bytes", r.stack_bytes)
      .add("serialized", r.serialized ? 1 : 0)
      .transcript();
}

bool decode_resources(std::string_view text, Resources& r) {
  const auto key = parse_transcript(text);
  if (!key || key->fields().size() != 5) return false;
  const auto& f = key->fields();
  int serialized = 0;
  const bool parsed = to_number(f[0].second, r.registers) && to_number(f[1].second, r.shared_bytes) &&
                      to_number(f[2].second, r.spill_bytes) && to_number(f[3].second, r.stack_bytes) &&
                      to_number(f[4].second, serialized);
  r.serialized = serialized != 0;
  return parsed && r.registers >= 0 && r.shared_bytes >= 0 && r.spill_bytes >= 0 && r.stack_bytes >= 0 &&
         encode_resources(r) == text;  // tags, order and spelling
}

std::string encode_metadata(const Binary& b) {
  Key key;
  key.add("target", b.target)
      .add("entry", b.entry)
      .add("x", axis_text(b.plan.x))
      .add("y", axis_text(b.plan.y))
      .add("z", axis_text(b.plan.z))
      .add("threads", b.plan.threads)
      .add("cluster", b.plan.cluster)
      .add("shared_bytes", b.plan.shared_bytes);
  add_extras(key, b.plan);
  return key.add("resources", encode_resources(b.resources)).add("log", b.log.substr(0, 4096)).transcript();
}

bool decode_metadata(std::string_view text, Binary& b) {
  const auto key = parse_transcript(text);
  if (!key || key->fields().size() < 10) return false;
  const auto& f = key->fields();
  const std::size_t resources = f.size() - 2;
  b.target = f[0].second;
  b.entry = f[1].second;
  b.log = f.back().second;
  b.plan = {};
  for (std::size_t i = 8; i < resources; ++i)
    if (!parse_extra(f[i].first, f[i].second, b.plan)) return false;
  return parse_axis(f[2].second, b.plan.x) && parse_axis(f[3].second, b.plan.y) && parse_axis(f[4].second, b.plan.z) &&
         to_number(f[5].second, b.plan.threads) && to_number(f[6].second, b.plan.cluster) &&
         to_number(f[7].second, b.plan.shared_bytes) && decode_resources(f[resources].second, b.resources) &&
         encode_metadata(b) == text;
}

std::string encode_times(const std::map<std::int64_t, double>& times) {
  std::string text;
  for (const auto& [rows, microseconds] : times) {
    char number[32];
    const auto end = std::to_chars(number, number + sizeof number, microseconds);
    text += (text.empty() ? "" : " ") + std::to_string(rows) + ':' + std::string(number, end.ptr);
  }
  return text;
}

std::optional<std::map<std::int64_t, double>> decode_times(std::string_view text) {
  std::map<std::int64_t, double> times;
  while (!text.empty()) {
    std::string_view microseconds = token(text, ' ');
    std::int64_t rows = 0;
    double value = 0;
    if (!to_number(token(microseconds, ':'), rows) || !to_number(microseconds, value) || rows < 1 ||
        !std::isfinite(value) || value <= 0)
      return std::nullopt;
    times[rows] = value;
  }
  return times;
}

std::string_view kind_name(OutcomeKind kind) {
  for (const auto& [value, name] : kKinds) {
    if (value == kind) return name;
  }
  return "failed";
}

std::optional<OutcomeKind> kind_named(std::string_view name) {
  for (const auto& [value, known] : kKinds) {
    if (known == name) return value;
  }
  return std::nullopt;
}

std::string problem_hash(std::string_view device_transcript, std::string_view problem) {
  return FieldHash("tilewright problem 1").add(device_transcript).add(problem).hex();
}

std::string ChoiceRow::content_hash() const {
  FieldHash hash("tilewright choice 1");
  hash.add(std::string_view(problem))
      .add(std::string_view(candidate))
      .add(microseconds)
      .add(std::string_view(first))
      .add(first_microseconds)
      .add(std::string_view(environment));
  return with_origin(hash, imported);
}

bool ChoiceRow::valid() const {
  return decode_candidate(candidate) && is_time(microseconds) && is_time(first_microseconds) && is_text(first);
}

std::string MeasurementRow::content_hash() const {
  FieldHash hash("tilewright measurement 1");
  hash.add(std::string_view(problem))
      .add(std::string_view(candidate))
      .add(std::string_view(kind))
      .add(std::string_view(detail))
      .add(microseconds)
      .add(low)
      .add(high)
      .add(rounds)
      .add(error)
      .add(mhz)
      .add(std::string_view(resources))
      .add(std::string_view(environment));
  return with_origin(hash, imported);
}

std::string ListRow::content_hash() const {
  FieldHash hash("tilewright list 1");
  hash.add(std::string_view(problem)).add(std::string_view(inputs)).add(std::as_bytes(std::span(steps)));
  for (const Entry& c : candidates)
    hash.add(std::string_view(c.candidate)).add(c.listed).add(std::string_view(c.times));
  return hash.hex();
}

std::size_t ListRow::bytes() const {
  std::size_t bytes = 0;
  for (const Entry& c : candidates) bytes += c.candidate.size() + c.times.size();
  return bytes;
}

std::optional<ListRow> to_row(const CandidateList& list) {
  ListRow row{{}, list.inputs, list.steps, {}};
  for (const RowCandidate& c : list.candidates)
    row.candidates.push_back({encode_candidate(c.candidate), c.listed, encode_times(c.times)});
  if (!to_list(row)) return std::nullopt;
  return row;
}

std::optional<CandidateList> to_list(const ListRow& row) {
  const auto is_place = [&](std::uint8_t step) { return step < row.candidates.size(); };
  if (row.candidates.empty() || row.candidates.size() > kMaxListed || row.bytes() > kMaxListBytes ||
      !is_text(row.inputs) || row.steps.size() > kMaxText || !std::all_of(row.steps.begin(), row.steps.end(), is_place))
    return std::nullopt;
  CandidateList list{{}, {}, row.inputs, row.steps};
  for (const ListRow::Entry& entry : row.candidates) {
    auto candidate = decode_candidate(entry.candidate);
    auto times = decode_times(entry.times);
    if (!candidate || entry.listed < 1 || !times || encode_times(*times) != entry.times) return std::nullopt;
    list.candidates.push_back({std::move(*candidate), entry.listed, std::move(*times)});
  }
  return list;
}

std::string CompilerRow::content_hash() const {
  FieldHash hash("tilewright compiler 1");
  for (const std::string* text : {&compiler.name, &library, &compiler.version, &compiler.asked_for, &compiler.path})
    hash.add(std::string_view(*text));
  return hash.add(compiler.bytes).add(compiler.modified).hex();
}

bool CompilerRow::valid() const {
  return is_text(compiler.name) && is_text(library) && is_text(compiler.version) && is_text(compiler.asked_for) &&
         is_text(compiler.path);
}

bool MeasurementRow::valid() const { return to_outcome(*this).has_value(); }

std::optional<MeasurementRow> to_row(const Outcome& o) {
  MeasurementRow row;
  row.candidate = encode_candidate(o.candidate);
  row.kind = kind_name(o.kind);
  row.detail = o.detail.substr(0, 4096);
  row.microseconds = stored(o.microseconds);
  row.low = stored(o.low);
  row.high = stored(o.high);
  row.rounds = o.rounds;
  row.error = stored(o.error);
  row.mhz = stored(o.mhz);
  row.resources = encode_resources(o.resources);
  row.imported = o.imported;
  if (!row.valid()) return std::nullopt;
  return row;
}

std::optional<Outcome> to_outcome(const MeasurementRow& row) {
  const auto candidate = decode_candidate(row.candidate);
  const auto kind = kind_named(row.kind);
  Outcome o;
  // An error may be infinite: that is how a wrong result with NaN in it is kept.
  const bool ranges = is_time(row.microseconds) && is_time(row.low) && is_time(row.high) && is_time(row.mhz) &&
                      row.error >= 0 && row.rounds >= 0 && row.rounds <= std::numeric_limits<int>::max();
  if (!candidate || !kind || !ranges || !is_text(row.detail) || !decode_resources(row.resources, o.resources)) {
    return std::nullopt;
  }
  o.candidate = *candidate;
  o.kind = *kind;
  o.detail = row.detail;
  o.microseconds = row.microseconds;
  o.low = row.low;
  o.high = row.high;
  o.rounds = static_cast<int>(row.rounds);
  o.error = row.error;
  o.mhz = row.mhz;
  o.stored = true;
  o.imported = row.imported;
  return o;
}

std::string binary_hash(std::string_view key, std::string_view transcript, std::string_view metadata,
                        std::span<const std::byte> image) {
  return FieldHash("tilewright binary 1").add(key).add(transcript).add(metadata).add(image).hex();
}

}  // namespace tilewright::cache
