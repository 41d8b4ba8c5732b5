// SPDX-License-Identifier: Apache-2.0
// Layout, little-endian, from offset 0:
//   u64 n, n bytes of JSON, then the tensors' bytes without gaps to the end of the file; offsets count from there
//   {"__metadata__": {TEXT: TEXT, ...}, NAME: {"dtype": "F16", "shape": [N, K], "data_offsets": [BEGIN, END]}, ...}
// JSON starts with '{' and may be followed by spaces.
#include <tilewright/safetensors.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>

#include "files/checked.h"
#include "support/must_be.h"

namespace tilewright {
namespace {

using namespace readers;

static_assert(std::endian::native == std::endian::little, "the reader copies a little-endian field");

struct Dtype {
  const char* name;
  std::uint64_t bits;
  const char* format;
};
// In the reference implementation's order, by which it sorts what it writes.
constexpr Dtype kDtypes[] = {
    {"BOOL", 8, ""},        {"F4", 4, ""},          {"F6_E2M3", 6, ""},     {"F6_E3M2", 6, ""}, {"U8", 8, ""},
    {"I8", 8, "int8"},      {"F8_E5M2", 8, "e5m2"}, {"F8_E4M3", 8, "e4m3"}, {"F8_E8M0", 8, ""}, {"F8_E4M3FNUZ", 8, ""},
    {"F8_E5M2FNUZ", 8, ""}, {"I16", 16, ""},        {"U16", 16, ""},        {"F16", 16, "f16"}, {"BF16", 16, "bf16"},
    {"I32", 32, "int32"},   {"U32", 32, ""},        {"F32", 32, "f32"},     {"C64", 64, ""},    {"F64", 64, ""},
    {"I64", 64, ""},        {"U64", 64, ""},
};

const Dtype& dtype_of(const std::string& name, const std::string& field) {
  for (const Dtype& d : kDtypes)
    if (d.name == name) return d;
  std::string names;
  for (const Dtype& d : kDtypes) {
    if (!names.empty()) names += ' ';
    names += d.name;
  }
  throw must_be(field, printable(name), "one of " + names);
}

// One entry of the header, with what was seen of it.
struct Entry {
  std::string name;
  const Dtype* dtype = nullptr;
  std::optional<std::vector<std::int64_t>> shape;
  std::optional<std::vector<std::uint64_t>> offsets;

  std::string field(std::string_view part) const { return fmt::format("tensor '{}' {}", printable(name), part); }
};

// Takes the header's JSON apart as it is parsed, so that a key that occurs twice is seen, nothing is kept that the
// format does not have, and nesting costs no stack.
class Header : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<Entry> entries;
  std::vector<std::pair<std::string, std::string>> metadata;

  bool start_object(std::size_t) override {
    if (in_array()) refuse("an object", "a number");
    switch (++depth_) {
      case 1: return true;
      case 2:
        if (!in_metadata_) entries.push_back({key_, nullptr, {}, {}});
        return true;
      default: refuse("an object", in_metadata_ ? "a string" : expected());
    }
  }
  bool end_object() override {
    if (depth_-- == 2) in_metadata_ = false;
    return true;
  }
  bool key(string_t& name) override {
    key_ = name;
    if (depth_ == 1) {
      in_metadata_ = name == "__metadata__";
      if (in_metadata_ && std::exchange(had_metadata_, true)) throw_twice("__metadata__");
    } else if (!in_metadata_ && name != "dtype" && name != "shape" && name != "data_offsets") {
      throw must_be(entries.back().field("field"), printable(name), "one of dtype, shape, data_offsets");
    }
    return true;
  }
  bool string(string_t& text) override {
    if (depth_ == 2 && in_metadata_) {
      metadata.emplace_back(key_, text);
      return true;
    }
    if (depth_ != 2 || in_array() || key_ != "dtype") refuse("a string", expected());
    if (entries.back().dtype) throw_twice(entries.back().field("dtype"));
    entries.back().dtype = &dtype_of(text, entries.back().field("dtype"));
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_metadata_ || in_array() || key_ == "dtype") refuse("an array", expected());
    Entry& e = entries.back();
    if (key_ == "shape" ? e.shape.has_value() : e.offsets.has_value()) throw_twice(e.field(key_));
    if (key_ == "shape")
      shape_ = &e.shape.emplace();
    else
      offsets_ = &e.offsets.emplace();
    return true;
  }
  bool end_array() override {
    if (offsets_ && offsets_->size() != 2)
      throw must_be(entries.back().field("data_offsets"), fmt::format("{} numbers", offsets_->size()),
                    "two, the begin and the end");
    shape_ = nullptr;
    offsets_ = nullptr;
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (shape_) {
      if (value > static_cast<std::uint64_t>(INT64_MAX))
        throw Error(ErrorCode::too_large, entries.back().field("shape"), std::to_string(value),
                    "must be less than 2^63");
      if (shape_->size() == SafetensorsLimits::kDims)
        throw Error(ErrorCode::too_large, entries.back().field("shape"), "more",
                    fmt::format("must have at most {} dimensions", SafetensorsLimits::kDims));
      shape_->push_back(static_cast<std::int64_t>(value));
    } else if (offsets_) {
      if (offsets_->size() == 2)
        throw must_be(entries.back().field("data_offsets"), "more than two numbers", "two, the begin and the end");
      offsets_->push_back(value);
    } else {
      refuse("a number", expected());
    }
    return true;
  }
  bool number_integer(number_integer_t value) override { refuse(std::to_string(value), expected()); }
  bool number_float(number_float_t, const string_t& text) override { refuse(printable(text), expected()); }
  bool boolean(bool) override { refuse("a bool", expected()); }
  bool null() override { refuse("null", expected()); }
  bool binary(binary_t&) override { refuse("binary", expected()); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    throw Error(ErrorCode::invalid_argument, "header", fmt::format("byte {}", position),
                "is not JSON: " + printable(e.what()));
  }

 private:
  bool in_array() const { return shape_ || offsets_; }
  const char* expected() const {
    if (depth_ == 0 || (depth_ == 1 && !in_metadata_)) return "an object";
    if (in_metadata_) return depth_ == 1 ? "an object" : "a string";
    if (in_array()) return "an unsigned integer below 2^64";
    return key_ == "dtype" ? "a string" : "an array of unsigned integers";
  }
  std::string where() const {
    if (depth_ == 0) return "header";
    if (depth_ == 1 || in_metadata_) return fmt::format("header '{}'", printable(key_));
    return entries.back().field(key_);
  }
  [[noreturn]] void refuse(const std::string& found, const char* wanted) const {
    throw must_be(where(), found, wanted);
  }
  [[noreturn]] static void throw_twice(const std::string& what) {
    throw Error(ErrorCode::invalid_argument, what, "", "occurs twice");
  }

  int depth_ = 0;  // of objects
  bool in_metadata_ = false, had_metadata_ = false;
  std::string key_;
  std::vector<std::int64_t>* shape_ = nullptr;
  std::vector<std::uint64_t>* offsets_ = nullptr;
};

std::string read_header(const ByteSource& source) {
  std::uint64_t length = 0;
  if (source.size() < sizeof length)
    throw Error(ErrorCode::invalid_argument, "file", fmt::format("{} bytes", source.size()),
                "must have at least 8 bytes");
  source.read(0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > SafetensorsLimits::kHeaderBytes)
    throw Error(ErrorCode::too_large, "header length", std::to_string(length),
                fmt::format("must be at most {}; is this a safetensors file?", SafetensorsLimits::kHeaderBytes));
  if (length > source.size() - sizeof length)
    throw Error(ErrorCode::invalid_argument, "header length", std::to_string(length),
                fmt::format("must fit into the file, which has {} bytes", source.size()));
  std::string text(static_cast<std::size_t>(length), '\0');
  source.read(sizeof length, std::as_writable_bytes(std::span(text)));
  if (text.empty() || text.front() != '{')
    throw Error(ErrorCode::invalid_argument, "header", printable(text.substr(0, 1)), "must start with '{'");
  return text;
}

SafetensorsTensor tensor_of(Entry&& e) {
  for (const auto& [there, part] : {std::pair{e.dtype != nullptr, "dtype"},
                                    {e.shape.has_value(), "shape"},
                                    {e.offsets.has_value(), "data_offsets"}})
    if (!there) throw Error(ErrorCode::invalid_argument, e.field(part), "", "is missing");
  const auto [begin, end] = std::pair{(*e.offsets)[0], (*e.offsets)[1]};
  if (end < begin)
    throw Error(ErrorCode::invalid_argument, e.field("data_offsets"), fmt::format("[{}, {}]", begin, end),
                "must not run backwards");
  std::uint64_t elements = 1;
  for (const std::int64_t extent : *e.shape)
    elements = checked_mul(elements, static_cast<std::uint64_t>(extent), e.field("shape"));
  if (elements > static_cast<std::uint64_t>(INT64_MAX))
    throw Error(ErrorCode::too_large, e.field("shape"), fmt::format("{} elements", elements), "must be less than 2^63");
  const std::uint64_t bits = checked_mul(elements, e.dtype->bits, e.field("bytes"));
  if (bits % 8 || bits / 8 != end - begin)
    throw Error(ErrorCode::invalid_argument, e.field("data_offsets"), fmt::format("[{}, {}]", begin, end),
                fmt::format("must hold {} elements of {}, which are {} bits", elements, e.dtype->name, bits));
  return {std::move(e.name), e.dtype->name, e.dtype->format, std::move(*e.shape), begin, end - begin};
}

// Sorts by offset. Each tensor must begin where the one before it ends, and the last one end with the file.
void place(std::vector<SafetensorsTensor>& tensors, std::uint64_t data, std::uint64_t file) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  std::uint64_t next = 0;
  for (SafetensorsTensor& t : tensors) {
    if (t.offset != next)
      throw must_be(fmt::format("tensor '{}' data_offsets", printable(t.name)), t.offset,
                    fmt::format("{}, where the tensor before it ends: {}", next,
                                t.offset < next ? "they overlap" : "there is a hole"));
    next += t.bytes;
    t.offset += data;
  }
  if (next != file - data)
    throw Error(ErrorCode::invalid_argument, "data_offsets", fmt::format("{} bytes in all", next),
                fmt::format("must cover the {} bytes that follow the header", file - data));
}

}  // namespace

std::int64_t SafetensorsTensor::cols() const { return shape.empty() ? 1 : shape.back(); }

std::int64_t SafetensorsTensor::rows() const {
  std::int64_t n = 1;
  for (std::size_t i = 0; i + 1 < shape.size(); ++i) n *= shape[i];
  return n;
}

Safetensors::Safetensors(std::unique_ptr<ByteSource> source) : source_(std::move(source)) {
  const std::string text = read_header(*source_);
  Header header;
  nlohmann::json::sax_parse(text, &header);
  metadata_ = std::move(header.metadata);
  std::unordered_set<std::string_view> seen;
  for (const auto& [key, value] : metadata_)
    if (!seen.insert(key).second)
      throw Error(ErrorCode::invalid_argument, "__metadata__ key", printable(key), "occurs twice");
  for (Entry& e : header.entries) tensors_.push_back(tensor_of(std::move(e)));
  seen.clear();
  for (const SafetensorsTensor& t : tensors_)
    if (!seen.insert(t.name).second)
      throw Error(ErrorCode::invalid_argument, "tensor name", printable(t.name), "occurs twice");
  place(tensors_, sizeof(std::uint64_t) + text.size(), source_->size());
}

const SafetensorsTensor* Safetensors::find(std::string_view name) const {
  const auto it = std::find_if(tensors_.begin(), tensors_.end(), [&](const auto& t) { return t.name == name; });
  return it == tensors_.end() ? nullptr : &*it;
}

const SafetensorsTensor& Safetensors::tensor(std::string_view name) const {
  if (const SafetensorsTensor* t = find(name)) return *t;
  throw_no_tensor(tensors_, name);
}

const std::string* Safetensors::value(std::string_view key) const {
  for (const auto& [k, v] : metadata_)
    if (k == key) return &v;
  return nullptr;
}

std::vector<std::byte> Safetensors::read(const SafetensorsTensor& tensor) const {
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes));
  source_->read(tensor.offset, bytes);
  return bytes;
}

void Safetensors::read(const SafetensorsTensor& tensor, std::uint64_t first, std::span<std::byte> to) const {
  read_part(*source_, tensor, first, to);
}

struct SafetensorsWriter::Layout {
  std::string header;
  std::vector<Place> places;
  std::uint64_t size = 0;

  Layout(std::vector<SafetensorsInfo>&& tensors, const std::vector<std::pair<std::string, std::string>>& metadata) {
    using Sorted = std::pair<const Dtype*, SafetensorsInfo>;
    std::vector<Sorted> sorted;
    for (SafetensorsInfo& t : tensors) {
      const auto field = fmt::format("tensor '{}' dtype", printable(t.name));
      const Dtype& dtype = dtype_of(t.dtype, field);
      sorted.emplace_back(&dtype, std::move(t));
    }
    std::sort(sorted.begin(), sorted.end(), [](const Sorted& a, const Sorted& b) {
      return a.first != b.first ? a.first > b.first : a.second.name < b.second.name;
    });
    std::string names;
    const auto add = [&](const std::string& name, const std::string& value) {
      names += fmt::format("{}{}:{}", names.empty() ? "" : ",", quoted(name), value);
    };
    if (!metadata.empty()) {
      std::string values;
      std::unordered_set<std::string_view> seen;
      for (const auto& [key, value] : metadata) {
        if (!seen.insert(key).second)
          throw Error(ErrorCode::invalid_argument, "__metadata__ key", printable(key), "occurs twice");
        values += fmt::format("{}{}:{}", values.empty() ? "" : ",", quoted(key), quoted(value));
      }
      add("__metadata__", "{" + values + "}");
    }
    std::uint64_t next = 0;
    std::unordered_set<std::string_view> seen = {"__metadata__"};
    for (const auto& [dtype, t] : sorted) {
      if (!seen.insert(t.name).second)
        throw Error(ErrorCode::invalid_argument, "tensor name", printable(t.name), "occurs twice");
      const std::uint64_t bytes = bytes_of(*dtype, t);
      const std::uint64_t end = checked_add(next, bytes, "data_offsets");
      add(t.name, fmt::format(R"({{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", dtype->name,
                              fmt::join(t.shape, ","), next, end));
      places.push_back({t.name, next, bytes});
      next = end;
    }
    std::string text = "{" + names + "}";
    text.resize((text.size() + 7) / 8 * 8, ' ');
    if (text.size() > SafetensorsLimits::kHeaderBytes)
      throw Error(ErrorCode::too_large, "header length", std::to_string(text.size()),
                  fmt::format("must be at most {}", SafetensorsLimits::kHeaderBytes));
    const std::uint64_t length = text.size();
    header.assign(reinterpret_cast<const char*>(&length), sizeof length);
    header += text;
    for (Place& p : places) p.offset += header.size();
    size = checked_add(header.size(), next, "file size");
  }

 private:
  static std::string quoted(const std::string& text) {
    try {
      return nlohmann::json(text).dump();
    } catch (const nlohmann::json::exception&) {
      throw must_be("text", printable(text), "UTF-8");
    }
  }
  static std::uint64_t bytes_of(const Dtype& dtype, const SafetensorsInfo& t) {
    const auto field = fmt::format("tensor '{}' shape", printable(t.name));
    if (t.shape.size() > SafetensorsLimits::kDims)
      throw Error(ErrorCode::too_large, field, fmt::format("{} dimensions", t.shape.size()),
                  fmt::format("must have at most {}", SafetensorsLimits::kDims));
    std::uint64_t bits = dtype.bits;
    for (const std::int64_t extent : t.shape) {
      if (extent < 0) throw must_be(field, extent, "0 or more");
      bits = checked_mul(bits, static_cast<std::uint64_t>(extent), field);
    }
    if (bits % 8) throw must_be(field, fmt::format("{} bits", bits), "whole bytes");
    return bits / 8;
  }
};

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<SafetensorsInfo> tensors,
                                     const std::vector<std::pair<std::string, std::string>>& metadata, Start start)
    : SafetensorsWriter(path, Layout(std::move(tensors), metadata), start) {}

SafetensorsWriter::SafetensorsWriter(const std::string& path, Layout layout, Start start)
    : ModelWriter(path, std::move(layout.header), std::move(layout.places), layout.size, start) {}

CheckpointTensor checkpoint_tensor(const SafetensorsTensor& tensor, std::span<const std::byte> bytes) {
  const bool known = tensor.dtype == "I32" || tensor.dtype == "F16" || tensor.dtype == "BF16";
  if (!known)
    throw Error(ErrorCode::unsupported, fmt::format("tensor '{}' dtype", printable(tensor.name)),
                std::string(tensor.dtype), "must be I32, F16 or BF16");
  if (tensor.shape.empty() || tensor.shape.size() > 2)
    throw Error(ErrorCode::unsupported, fmt::format("tensor '{}' shape", printable(tensor.name)),
                fmt::format("{} dimensions", tensor.shape.size()), "must be one or two");
  return {bytes, tensor.rows(), tensor.cols(),
          tensor.dtype == "I32"   ? TensorType::i32
          : tensor.dtype == "F16" ? TensorType::f16
                                  : TensorType::bf16};
}

}  // namespace tilewright
