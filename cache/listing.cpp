// SPDX-License-Identifier: Apache-2.0
// Store's rows as text: list() and show().
#include <fmt/format.h>
#include <tilewright/text.h>
#include <tilewright/version.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "cache/key.h"
#include "cache/store_impl.h"
#include "cache/text.h"
#include "support/must_be.h"

namespace tilewright {

using namespace cache;

namespace {

constexpr std::size_t kIdDigits = 16;

std::string json(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const Character c = first_character(text);
    if (!c.valid) {
      out += "\\ufffd";
    } else if (c.value == '"' || c.value == '\\') {
      out += {'\\', text[0]};
    } else if (is_control(c.value)) {
      out += fmt::format("\\u{:04x}", static_cast<std::uint32_t>(c.value));
    } else {
      out += text.substr(0, c.bytes);
    }
    text.remove_prefix(c.bytes);
  }
  return out + '"';
}

std::string json_flag(bool value) { return value ? "true" : "false"; }
std::string json(double value) { return std::isfinite(value) ? fmt::format("{}", value) : "null"; }

// Fields of a transcript as an object, in order.
std::string json_fields(const std::string& transcript) {
  const auto key = parse_transcript(transcript);
  if (!key) return json(transcript);
  std::string out = "{";
  for (const auto& [tag, value] : key->fields()) {
    out += (out.size() > 1 ? ", " : "") + json(tag) + ": " + (tag == "resources" ? json_fields(value) : json(value));
  }
  return out + "}";
}

class JsonObject {
 public:
  JsonObject& raw(std::string_view name, const std::string& value) {
    text_ += (text_.empty() ? "{\n  " : ",\n  ") + json(name) + ": " + value;
    return *this;
  }
  JsonObject& add(std::string_view name, std::string_view value) { return raw(name, json(value)); }
  std::string text() const { return text_ + "\n}\n"; }

 private:
  std::string text_;
};

// One line of a multi-line text.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// Rows of one kind, as parts of statements. ?2 and ?3 are StoreFilter::target and problem.
struct Listing {
  const char* kind;
  const char* id;     // what `uses` has; empty: no order of use
  const char* shown;  // id, summary, and the device's or binary's transcript
  const char* bytes;
  const char* kernel;
  const char* table;
  const char* joins;
  const char* where;  // of a filter that is not empty
};
#define TILEWRIGHT_OF_TARGET(key) "(?2='' OR instr(char(10)||" key ",char(10)||'target='||?2||char(10))>0)"
#define TILEWRIGHT_OF_PROBLEM TILEWRIGHT_OF_TARGET("p.device") " AND (?3='' OR instr(p.problem,?3)>0)"
constexpr Listing kListings[] = {
    {"binary", "b.key", "b.key,b.metadata,b.transcript", "length(b.image)+length(b.transcript)+length(b.metadata)",
     "coalesce(v.kernel,'')", "binaries b", "LEFT JOIN builds v ON v.key=b.key",
     TILEWRIGHT_OF_TARGET("b.transcript") " AND ?3=''"},
    {"choice", "c.problem",
     "c.problem,coalesce(p.problem,'?')||' -> '||c.candidate||"
     "CASE WHEN c.microseconds>0 THEN ' '||round(c.microseconds,3)||' us' ELSE ', not measured' END||"
     "CASE WHEN c.imported THEN ', imported' ELSE '' END,coalesce(p.device,'')",
     "length(c.candidate)+length(c.first)+200", "''", "choices c", "LEFT JOIN problems p ON p.hash=c.problem",
     TILEWRIGHT_OF_PROBLEM},
    {"measurement", "m.problem",
     "m.hash,coalesce(p.problem,'?')||' : '||m.candidate||' '||m.kind||"
     "CASE WHEN m.kind='measured' THEN ' '||round(m.microseconds,3)||' us' ELSE '' END||"
     "CASE WHEN m.imported THEN ', imported' ELSE '' END,coalesce(p.device,'')",
     "length(m.candidate)+length(m.detail)+300", "''", "measurements m", "LEFT JOIN problems p ON p.hash=m.problem",
     TILEWRIGHT_OF_PROBLEM},
    {"list", "l.problem",
     "l.problem,coalesce(p.problem,'?')||' : '||(SELECT count(*) FROM candidates c WHERE c.problem=l.problem)||"
     "' candidates'||CASE WHEN length(l.steps)>0 THEN ' for all rows' ELSE ', compiled ahead' "
     "END,coalesce(p.device,'')",
     "length(l.steps)+200+(SELECT coalesce(sum(length(c.candidate)+length(c.times)+80),0) FROM candidates c"
     " WHERE c.problem=l.problem)",
     "''", "lists l", "LEFT JOIN problems p ON p.hash=l.problem", TILEWRIGHT_OF_PROBLEM},
    {"compiler", "", "k.hash,k.name||' '||k.version||' '||k.path,'library='||k.library||char(10)",
     "length(k.version)+length(k.asked_for)+length(k.path)+100", "''", "compilers k", "", "?2='' AND ?3=''"},
    {"environment", "", "e.hash,e.text,''", "length(e.text)+64", "''", "environments e", "", "?2='' AND ?3=''"},
};

// A filter is left out where it is empty: SQLite leaves out a join that nothing asks for.
Statement prepare(Layer& layer, const StoreFilter& filter, const Listing& listing, const std::string& select_from,
                  const char* rest) {
  const bool all = filter.target.empty() && filter.problem.empty();
  Statement rows = layer.db().prepare(
      fmt::format("{} {} WHERE {} {}", select_from, listing.joins, all ? "1" : listing.where, rest).c_str());
  if (!all) rows.bind(2, filter.target).bind(3, filter.problem);
  return rows;
}

// Those used last come first. `most`: negative for all.
Statement prepare_list(Layer& layer, const StoreFilter& filter, const Listing& listing, std::int64_t most) {
  std::string select = fmt::format("SELECT {},{},{}", listing.shown, listing.bytes, listing.kernel);
  const char* order = "ORDER BY u.sequence DESC LIMIT ?1";
  if (*listing.id == '\0') {
    select += fmt::format(",0 FROM {}", listing.table);
    order = "LIMIT ?1";
  } else if (most < 0) {
    select += fmt::format(",coalesce(u.sequence,0) FROM {} LEFT JOIN uses u ON u.id={}", listing.table, listing.id);
  } else {  // in the order of use, up to the last row that is wanted
    select += fmt::format(",u.sequence FROM uses u CROSS JOIN {} ON u.id={}", listing.table, listing.id);
  }
  Statement rows = prepare(layer, filter, listing, select, order);
  rows.bind(1, most);
  return rows;
}

std::string summary_of(const std::string& kind, const std::string& text) {
  if (kind == "environment") {
    std::string line = text.substr(0, 160);
    std::replace(line.begin(), line.end(), '\n', ' ');
    return line;
  }
  Binary binary;
  if (kind == "binary" && decode_metadata(text, binary)) return binary.target + ' ' + binary.entry;
  return first_line(text);
}

bool wanted(const Listing& listing, const StoreFilter& filter) {
  return filter.kind.empty() || filter.kind == listing.kind;
}

// Stops at the filter's limit.
void list_layer(Layer& layer, const StoreFilter& filter, std::vector<StoreEntry>& entries) {
  for (const Listing& listing : kListings) {
    const std::int64_t room = filter.limit > 0 ? filter.limit - static_cast<std::int64_t>(entries.size()) : -1;
    if (!wanted(listing, filter) || room == 0) continue;
    Statement rows = prepare_list(layer, filter, listing, room);
    while (rows.step()) {
      try {
        const std::string key = rows.text(2);
        StoreEntry entry;
        entry.kind = listing.kind;
        entry.id = rows.text(0).substr(0, kIdDigits);
        entry.summary = printable(summary_of(entry.kind, rows.text(1)));
        entry.bytes = rows.integer(3);
        entry.kernel = rows.text(4);
        entry.sequence = rows.integer(5);
        entry.layer = layer.name();
        entry.target = printable(field_of(key, "target"));
        entry.device = printable(field_of(key, "device"));
        entry.version = printable(field_of(key, kVersionTag));
        entries.push_back(std::move(entry));
      } catch (const BadValue&) {  // a damaged row, which verify() reports
      }
    }
  }
}

std::string show_binary(Layer& layer, std::int64_t id) {
  Statement row = layer.db().prepare("SELECT key,transcript,metadata,hash,image FROM binaries WHERE rowid=?");
  row.bind(1, id).step();
  const auto image = row.bytes(4);
  const std::string key = row.text(0), transcript = row.text(1), metadata = row.text(2);
  const bool valid = binary_hash(key, transcript, metadata, image) == row.text(3);
  return JsonObject()
      .add("kind", "binary")
      .add("layer", layer.name())
      .add("id", key)
      .raw("key", json_fields(transcript))
      .raw("metadata", json_fields(metadata))
      .raw("image_bytes", std::to_string(image.size()))
      .add("image_sha256", sha256_hex({reinterpret_cast<const char*>(image.data()), image.size()}))
      .add("content_hash", row.text(3))
      .raw("valid", json_flag(valid))
      .text();
}

std::string show_choice(Layer& layer, std::int64_t id) {
  Statement row = layer.db().prepare(
      "SELECT " TILEWRIGHT_CHOICE_COLUMNS
      ",c.hash,coalesce(p.device,''),coalesce(p.problem,''),coalesce(e.text,''),"
      "(SELECT count(*) FROM measurements m WHERE m.problem=c.problem)"
      " FROM choices c LEFT JOIN problems p ON p.hash=c.problem LEFT JOIN environments e ON e.hash=c.environment"
      " WHERE c.rowid=?");
  row.bind(1, id).step();
  const ChoiceRow choice = read_choice(row);
  return JsonObject()
      .add("kind", "choice")
      .add("layer", layer.name())
      .add("id", choice.problem)
      .raw("device", json_fields(row.text(8)))
      .add("problem", row.text(9))
      .add("candidate", choice.candidate)
      .raw("microseconds", json(choice.microseconds))
      .add("first", choice.first)
      .raw("first_microseconds", json(choice.first_microseconds))
      .raw("environment", json_fields(row.text(10)))
      .raw("imported", json_flag(choice.imported))
      .raw("measurements", std::to_string(row.integer(11)))
      .add("content_hash", row.text(7))
      .raw("valid", json_flag(choice.content_hash() == row.text(7)))
      .text();
}

std::string show_measurement(Layer& layer, std::int64_t id) {
  Statement row = layer.db().prepare(
      "SELECT " TILEWRIGHT_MEASUREMENT_COLUMNS
      ",m.hash,coalesce(p.device,''),coalesce(p.problem,''),coalesce(e.text,'') FROM measurements m"
      " LEFT JOIN problems p ON p.hash=m.problem LEFT JOIN environments e ON e.hash=m.environment WHERE m.id=?");
  row.bind(1, id).step();
  const MeasurementRow m = read_measurement(row);
  return JsonObject()
      .add("kind", "measurement")
      .add("layer", layer.name())
      .add("id", row.text(13))
      .raw("device", json_fields(row.text(14)))
      .add("problem", row.text(15))
      .add("candidate", m.candidate)
      .add("outcome", m.kind)
      .add("detail", m.detail)
      .raw("microseconds", json(m.microseconds))
      .raw("low", json(m.low))
      .raw("high", json(m.high))
      .raw("rounds", std::to_string(m.rounds))
      .raw("error", json(m.error))
      .raw("mhz", json(m.mhz))
      .raw("resources", json_fields(m.resources))
      .raw("environment", json_fields(row.text(16)))
      .raw("imported", json_flag(m.imported))
      .raw("valid", json_flag(m.content_hash() == row.text(13)))
      .text();
}

std::string show_environment(Layer& layer, std::int64_t id) {
  Statement row = layer.db().prepare("SELECT hash,text FROM environments WHERE rowid=?");
  row.bind(1, id).step();
  return JsonObject()
      .add("kind", "environment")
      .add("layer", layer.name())
      .add("id", row.text(0))
      .raw("text", json_fields(row.text(1)))
      .raw("valid", json_flag(sha256_hex(row.text(1)) == row.text(0)))
      .text();
}

std::string json(const ListRow::Entry& c) {
  std::string times;
  for (const auto& [rows, microseconds] : decode_times(c.times).value_or(std::map<std::int64_t, double>()))
    times += (times.empty() ? "" : ", ") + json(std::to_string(rows)) + ": " + json(microseconds);
  return fmt::format("{{\"candidate\": {}, \"listed\": {}, \"microseconds\": {{{}}}}}", json(c.candidate), c.listed,
                     times);
}

std::string show_list(Layer& layer, std::int64_t id) {
  Statement row = layer.db().prepare(
      "SELECT l.problem,l.hash,coalesce(p.device,''),coalesce(p.problem,'') FROM lists l"
      " LEFT JOIN problems p ON p.hash=l.problem WHERE l.rowid=?");
  row.bind(1, id).step();
  const auto read = read_list(layer.db(), row.text(0)).value_or(ReadList());
  std::string candidates;
  for (const ListRow::Entry& c : read.row.candidates) candidates += (candidates.empty() ? "" : ",\n    ") + json(c);
  return JsonObject()
      .add("kind", "list")
      .add("layer", layer.name())
      .add("id", row.text(0))
      .raw("device", json_fields(row.text(2)))
      .add("problem", row.text(3))
      .add("inputs", read.row.inputs)
      .raw("candidates", '[' + candidates + ']')
      .raw("steps", fmt::format("[{}]", fmt::join(read.row.steps, ", ")))
      .add("content_hash", row.text(1))
      .raw("valid", json_flag(read.intact))
      .text();
}

std::string show_compiler(Layer& layer, std::int64_t id) {
  Statement row = layer.db().prepare("SELECT " TILEWRIGHT_COMPILER_COLUMNS ",k.hash FROM compilers k WHERE k.rowid=?");
  row.bind(1, id).step();
  const CompilerRow compiler = read_compiler(row);
  return JsonObject()
      .add("kind", "compiler")
      .add("layer", layer.name())
      .add("id", row.text(7))
      .add("name", compiler.compiler.name)
      .add("library", compiler.library)
      .add("version", compiler.compiler.version)
      .add("asked_for", compiler.compiler.asked_for)
      .add("path", compiler.compiler.path)
      .raw("bytes", std::to_string(compiler.compiler.bytes))
      .raw("modified", std::to_string(compiler.compiler.modified))
      .raw("valid", json_flag(compiler.content_hash() == row.text(7)))
      .text();
}

struct Showing {
  const char* kind;
  const char* find;  // id and row id of everything in [?1, ?2)
  std::string (*show)(Layer& layer, std::int64_t row);
};
constexpr Showing kShowings[] = {
    {"binary", "SELECT key,rowid FROM binaries WHERE key>=? AND key<?", show_binary},
    {"choice", "SELECT problem,rowid FROM choices WHERE problem>=? AND problem<?", show_choice},
    {"measurement", "SELECT hash,rowid FROM measurements WHERE hash>=? AND hash<?", show_measurement},
    {"list", "SELECT problem,rowid FROM lists WHERE problem>=? AND problem<?", show_list},
    {"compiler", "SELECT hash,rowid FROM compilers WHERE hash>=? AND hash<?", show_compiler},
    {"environment", "SELECT hash,rowid FROM environments WHERE hash>=? AND hash<?", show_environment},
};

}  // namespace

std::vector<StoreEntry> Store::list(const StoreFilter& filter) const {
  return impl().maintain([&] {
    std::vector<StoreEntry> entries;
    for (Impl::Layer* layer : impl_->layers()) list_layer(*layer, filter, entries);
    return entries;
  });
}

std::vector<std::pair<Key, CandidateList>> Store::all_lists(const StoreFilter& filter) const {
  return impl().maintain([&] {
    std::vector<std::pair<Key, CandidateList>> all;
    for (Impl::Layer* layer : impl_->layers()) {
      for (auto& list : layer->all_lists(filter)) all.push_back(std::move(list));
    }
    return all;
  });
}

std::map<std::string, StoreTotal> Store::totals(const StoreFilter& filter) const {
  return impl().maintain([&] {
    std::map<std::string, StoreTotal> totals;
    for (Impl::Layer* layer : impl_->layers()) {
      for (const Listing& listing : kListings) {
        if (!wanted(listing, filter)) continue;
        Statement row =
            prepare(*layer, filter, listing,
                    fmt::format("SELECT count(*),coalesce(sum({}),0) FROM {}", listing.bytes, listing.table), "");
        if (!row.step() || row.integer(0) == 0) continue;
        StoreTotal& total = totals[listing.kind];
        total.rows += row.integer(0);
        total.bytes += row.integer(1);
      }
    }
    return totals;
  });
}

std::vector<std::pair<Key, StoredChoice>> Store::all_choices(const StoreFilter& filter) const {
  return impl().maintain([&] {
    std::vector<std::pair<Key, StoredChoice>> all;
    for (Impl::Layer* layer : impl_->layers()) {
      for (auto& choice : layer->all_choices(filter)) all.push_back(std::move(choice));
    }
    return all;
  });
}

std::vector<OtherVersion> Store::other_versions() const {
  return impl().maintain([&] { return impl_->other_versions(); });
}

std::string OtherVersion::text() const {
  return fmt::format(
      "{}: {} binaries, {} choices and {} measurements are of version {}, and version {} uses none of them: {}", layer,
      binaries, choices, measurements, version, TILEWRIGHT_VERSION_STRING,
      writable ? "kernels are compiled and tuned again; tilewright cache gc --stale frees the space"
               : "prewarm, tune and export it again with this version");
}

std::string Store::show(std::string_view id_prefix) const {
  if (id_prefix.empty() || id_prefix.find_first_not_of("0123456789abcdef") != std::string_view::npos) {
    throw must_be("id", id_prefix, "the first digits of an id that list() gives");
  }
  return impl().maintain([&] {
    std::set<std::pair<std::string, std::string>> ids;  // kind, id
    std::string text;
    for (Impl::Layer* layer : impl_->layers()) {
      for (const Showing& showing : kShowings) {
        Statement rows = layer->db().prepare(showing.find);
        rows.bind(1, id_prefix).bind(2, std::string(id_prefix) + 'g');
        while (rows.step()) {
          // The first layer that has a row is the one that look-ups see.
          if (ids.emplace(showing.kind, rows.text(0)).second && ids.size() == 1) {
            text = showing.show(*layer, rows.integer(1));
          }
        }
      }
    }
    if (ids.empty())
      throw Error(ErrorCode::invalid_argument, "id", std::string(id_prefix), "is not the start of any id in the cache");
    if (ids.size() == 1) return text;
    std::string all;
    for (const auto& [kind, id] : ids) all += (all.empty() ? "" : ", ") + kind + ' ' + id.substr(0, kIdDigits);
    throw Error(ErrorCode::invalid_argument, "id", std::string(id_prefix), "must have more digits: it could be " + all);
  });
}

}  // namespace tilewright
