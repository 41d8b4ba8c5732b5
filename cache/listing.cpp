// SPDX-License-Identifier: Apache-2.0
// Store's rows as text: list() and show().
#include <fmt/format.h>
#include <tilewright/text.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "cache/key.h"
#include "cache/store_impl.h"
#include "cache/text.h"

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

const char* kListing[] = {
    "SELECT 'binary',b.key,b.metadata,length(b.image)+length(b.transcript)+length(b.metadata),coalesce(u.sequence,0),"
    "coalesce(v.kernel,'') FROM binaries b LEFT JOIN uses u ON u.id=b.key LEFT JOIN builds v ON v.key=b.key",
    "SELECT 'choice',c.problem,coalesce(p.problem,'?')||' -> '||c.candidate||"
    "CASE WHEN c.microseconds>0 THEN ' '||round(c.microseconds,3)||' us' ELSE ', not measured' END||"
    "CASE WHEN c.imported THEN ', imported' ELSE '' END,"
    "length(c.candidate)+length(c.first)+200,coalesce(u.sequence,0) FROM choices c"
    " LEFT JOIN problems p ON p.hash=c.problem LEFT JOIN uses u ON u.id=c.problem",
    "SELECT 'measurement',m.hash,coalesce(p.problem,'?')||' : '||m.candidate||' '||m.kind||"
    "CASE WHEN m.kind='measured' THEN ' '||round(m.microseconds,3)||' us' ELSE '' END||"
    "CASE WHEN m.imported THEN ', imported' ELSE '' "
    "END,length(m.candidate)+length(m.detail)+300,coalesce(u.sequence,0) FROM measurements m"
    " LEFT JOIN problems p ON p.hash=m.problem LEFT JOIN uses u ON u.id=m.problem",
    "SELECT 'environment',e.hash,e.text,length(e.text)+64,0 FROM environments e",
};

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

void list_layer(Layer& layer, std::vector<StoreEntry>& entries) {
  for (const char* sql : kListing) {
    Statement rows = layer.db().prepare(sql);
    while (rows.step()) {
      try {
        const std::string kind = rows.text(0);
        entries.push_back({kind, rows.text(1).substr(0, kIdDigits), printable(summary_of(kind, rows.text(2))),
                           rows.integer(3), rows.integer(4), layer.name(),
                           kind == "binary" ? rows.text(5) : std::string()});
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

struct Showing {
  const char* kind;
  const char* find;  // id and row id of everything in [?1, ?2)
  std::string (*show)(Layer& layer, std::int64_t row);
};
constexpr Showing kShowings[] = {
    {"binary", "SELECT key,rowid FROM binaries WHERE key>=? AND key<?", show_binary},
    {"choice", "SELECT problem,rowid FROM choices WHERE problem>=? AND problem<?", show_choice},
    {"measurement", "SELECT hash,rowid FROM measurements WHERE hash>=? AND hash<?", show_measurement},
    {"environment", "SELECT hash,rowid FROM environments WHERE hash>=? AND hash<?", show_environment},
};

}  // namespace

std::vector<StoreEntry> Store::list() const {
  return impl().maintain([&] {
    std::vector<StoreEntry> entries;
    for (Impl::Layer* layer : impl_->layers()) list_layer(*layer, entries);
    return entries;
  });
}

std::vector<std::pair<Key, StoredChoice>> Store::all_choices() const {
  return impl().maintain([&] {
    std::vector<std::pair<Key, StoredChoice>> all;
    for (Impl::Layer* layer : impl_->layers()) {
      for (auto& choice : layer->all_choices()) all.push_back(std::move(choice));
    }
    return all;
  });
}

std::string Store::show(std::string_view id_prefix) const {
  if (id_prefix.empty() || id_prefix.find_first_not_of("0123456789abcdef") != std::string_view::npos) {
    throw Error(ErrorCode::invalid_argument, "id", std::string(id_prefix),
                "the first digits of an id that list() gives");
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
      throw Error(ErrorCode::invalid_argument, "id", std::string(id_prefix), "nothing in the cache starts so");
    if (ids.size() == 1) return text;
    std::string all;
    for (const auto& [kind, id] : ids) all += (all.empty() ? "" : ", ") + kind + ' ' + id.substr(0, kIdDigits);
    throw Error(ErrorCode::invalid_argument, "id", std::string(id_prefix), "more digits; it could be " + all);
  });
}

}  // namespace tilewright
