// SPDX-License-Identifier: Apache-2.0
// Layout, little-endian, from offset 0:
//   "GGUF", u32 version = 3, u64 tensors, u64 keys
//   keys times:    string key, u32 type, value            string: u64 length, bytes
//   tensors times: string name, u32 dims, u64 dim[dims] (fastest first), u32 type, u64 offset
//   padding to the alignment, then the tensors' bytes; offsets count from here
#include <tilewright/gguf.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "files/checked.h"
#include "support/in_file.h"
#include "support/must_be.h"

namespace tilewright {
namespace {

using namespace readers;

static_assert(std::endian::native == std::endian::little, "the reader copies little-endian fields");

std::uint64_t checked_align(std::uint64_t a, std::uint64_t alignment, const std::string& field) {
  return checked_add(a, alignment - 1, field) & ~(alignment - 1);
}

struct Type {
  std::uint32_t id;
  const char* name;
  std::uint64_t block, bytes;
  const char* format;
};
// Ids 4, 5, 31-33 and 36-38 were removed from ggml; their bytes have no meaning any more.
constexpr Type kTypes[] = {
    {0, "f32", 1, 4, "f32"},
    {1, "f16", 1, 2, "f16"},
    {2, "q4_0", 32, 18, "q4_0"},
    {3, "q4_1", 32, 20, "q4_1"},
    {6, "q5_0", 32, 22, "q5_0"},
    {7, "q5_1", 32, 24, "q5_1"},
    {8, "q8_0", 32, 34, "q8_0"},
    {9, "q8_1", 32, 36, "q8_1"},
    {10, "q2_K", 256, 84, "q2_k"},
    {11, "q3_K", 256, 110, "q3_k"},
    {12, "q4_K", 256, 144, "q4_k"},
    {13, "q5_K", 256, 176, "q5_k"},
    {14, "q6_K", 256, 210, "q6_k"},
    {15, "q8_K", 256, 292, ""},
    {16, "iq2_xxs", 256, 66, "iq2_xxs"},
    {17, "iq2_xs", 256, 74, "iq2_xs"},
    {18, "iq3_xxs", 256, 98, "iq3_xxs"},
    {19, "iq1_s", 256, 50, "iq1_s"},
    {20, "iq4_nl", 32, 18, "iq4_nl"},
    {21, "iq3_s", 256, 110, "iq3_s"},
    {22, "iq2_s", 256, 82, "iq2_s"},
    {23, "iq4_xs", 256, 136, "iq4_xs"},
    {24, "i8", 1, 1, "int8"},
    {25, "i16", 1, 2, ""},
    {26, "i32", 1, 4, "int32"},
    {27, "i64", 1, 8, ""},
    {28, "f64", 1, 8, ""},
    {29, "iq1_m", 256, 56, "iq1_m"},
    {30, "bf16", 1, 2, "bf16"},
    {34, "tq1_0", 256, 54, "tq1_0"},
    {35, "tq2_0", 256, 66, "tq2_0"},
    {39, "mxfp4", 32, 17, "ggml_mxfp4"},
    {40, "nvfp4", 64, 36, "ggml_nvfp4"},
    {41, "q1_0", 128, 18, "q1_0"},
    {42, "q2_0", 64, 18, "q2_0"},
};

const Type& type_of(std::uint32_t id, const std::string& field) {
  for (const Type& t : kTypes)
    if (t.id == id) return t;
  const bool removed = id == 4 || id == 5 || (id >= 31 && id <= 33) || (id >= 36 && id <= 38);
  throw Error(ErrorCode::invalid_argument, field, std::to_string(id),
              removed ? "was removed from GGUF; convert the model again" : "must be a type id of 0 to 42");
}

enum Kv : std::uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64, kKvCount };
constexpr std::array<std::uint64_t, kKvCount> kKvBytes = {1, 1, 2,  2, 4, 4, 4,
                                                          1, 8, 12, 8, 8, 8};  // least, in the file

// Reads forward through the header; every read is checked against the end of the file first.
class Cursor {
 public:
  explicit Cursor(const ByteSource& source) : source_(source) {}

  std::uint64_t position() const { return position_; }
  std::uint64_t left() const { return source_.size() - position_; }

  void need(std::uint64_t count, std::uint64_t bytes_each, const std::string& field) {
    if (checked_mul(count, bytes_each, field) > left())
      throw Error(ErrorCode::invalid_argument, field, std::to_string(count),
                  fmt::format("does not fit: only {} bytes follow at offset {} of the file", left(), position_));
  }

  template <class T>
  T get(const std::string& field) {
    need(1, sizeof(T), field);
    if (position_ < start_ || position_ + sizeof(T) > start_ + filled_) refill();
    T value;
    std::memcpy(&value, buffer_.data() + (position_ - start_), sizeof(T));
    position_ += sizeof(T);
    return value;
  }

  std::string string(std::uint64_t limit, const std::string& field) {
    const std::uint64_t length = string_length(limit, field);
    std::string text(static_cast<std::size_t>(length), '\0');
    source_.read(position_, std::as_writable_bytes(std::span(text)));
    position_ += length;
    return text;
  }

  std::uint64_t string_length(std::uint64_t limit, const std::string& field) {
    const auto length = get<std::uint64_t>(field);
    if (length > limit)
      throw Error(ErrorCode::too_large, field + " length", std::to_string(length),
                  fmt::format("must be at most {}", limit));
    need(length, 1, field);
    return length;
  }

  void skip(std::uint64_t bytes, const std::string& field) {
    need(bytes, 1, field);
    position_ += bytes;
  }

 private:
  void refill() {
    start_ = position_;
    filled_ = static_cast<std::size_t>(std::min<std::uint64_t>(buffer_.size(), left()));
    source_.read(start_, std::span(buffer_).first(filled_));
  }

  const ByteSource& source_;
  std::uint64_t position_ = 0, start_ = 0;
  std::size_t filled_ = 0;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(64 << 10);
};

GgufArray skip_array(Cursor& in, const std::string& field) {
  GgufArray array;
  array.element_type = in.get<std::uint32_t>(field);
  array.count = in.get<std::uint64_t>(field);
  if (array.element_type >= kKvCount || array.element_type == kArray)
    throw must_be(field + " element type", array.element_type, "0 to 12, and not an array again (9)");
  if (array.count > GgufLimits::kArrayCount)
    throw Error(ErrorCode::too_large, field + " count", std::to_string(array.count), "must be at most 2^30");
  in.need(array.count, kKvBytes[array.element_type], field);
  if (array.element_type != kString) {
    in.skip(array.count * kKvBytes[array.element_type], field);
    return array;
  }
  for (std::uint64_t i = 0; i < array.count; ++i) in.skip(in.string_length(GgufLimits::kStringBytes, field), field);
  return array;
}

GgufValue read_value(Cursor& in, std::uint32_t type, const std::string& field) {
  switch (type) {
    case kU8: return std::uint64_t{in.get<std::uint8_t>(field)};
    case kI8: return std::int64_t{in.get<std::int8_t>(field)};
    case kU16: return std::uint64_t{in.get<std::uint16_t>(field)};
    case kI16: return std::int64_t{in.get<std::int16_t>(field)};
    case kU32: return std::uint64_t{in.get<std::uint32_t>(field)};
    case kI32: return std::int64_t{in.get<std::int32_t>(field)};
    case kF32: return double{in.get<float>(field)};
    case kU64: return in.get<std::uint64_t>(field);
    case kI64: return in.get<std::int64_t>(field);
    case kF64: return in.get<double>(field);
    case kString: return in.string(GgufLimits::kStringBytes, field);
    case kArray: return skip_array(in, field);
    case kBool: {
      const auto b = in.get<std::uint8_t>(field);
      if (b > 1) throw must_be(field, b, "0 or 1: it is a bool");
      return b == 1;
    }
  }
  throw must_be(field + " type", type, "0 to 12");
}

std::uint64_t checked_alignment(const GgufValue& value) {
  const auto* a = std::get_if<std::uint64_t>(&value);
  if (!a || !std::has_single_bit(*a) || *a > (1ull << 30))
    throw must_be("general.alignment", a ? std::to_string(*a) : "not an unsigned integer",
                  "a power of two, at most 2^30");
  return *a;
}

std::uint64_t bytes_of(std::span<const std::int64_t> dims, const Type& type, const std::string& field) {
  std::uint64_t elements = 1;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] < 1)
      throw must_be(fmt::format("{} shape[{}]", field, i), static_cast<std::uint64_t>(dims[i]), "1 to 2^63 - 1");
    elements = checked_mul(elements, static_cast<std::uint64_t>(dims[i]), field + " shape");
  }
  if (elements > static_cast<std::uint64_t>(INT64_MAX))
    throw Error(ErrorCode::too_large, field + " shape", fmt::format("{} elements", elements), "must be less than 2^63");
  if (static_cast<std::uint64_t>(dims[0]) % type.block)
    throw must_be(field + " shape[0]", dims[0],
                  fmt::format("a multiple of {}, the block of {}", type.block, type.name));
  return checked_mul(elements / type.block, type.bytes, field + " bytes");
}

void read_shape(Cursor& in, GgufTensor& t, const std::string& field) {
  const auto dims = in.get<std::uint32_t>(field + " dims");
  if (dims < 1 || dims > GgufLimits::kDims) throw must_be(field + " dims", dims, "1 to 4");
  for (std::uint32_t i = 0; i < dims; ++i)
    t.dims.push_back(static_cast<std::int64_t>(in.get<std::uint64_t>(field + " shape")));
  t.type = in.get<std::uint32_t>(field + " type");
  const Type& type = type_of(t.type, field + " type");
  t.type_name = type.name;
  t.format = type.format;
  t.bytes = bytes_of(t.dims, type, field);
}

std::vector<GgufTensor> read_infos(Cursor& in, std::uint64_t count) {
  std::vector<GgufTensor> tensors;
  for (std::uint64_t i = 0; i < count; ++i) {
    GgufTensor t;
    t.name = in.string(GgufLimits::kNameBytes, fmt::format("tensor {} name", i));
    const std::string field = fmt::format("tensor '{}'", printable(t.name));
    if (t.name.empty()) throw Error(ErrorCode::invalid_argument, fmt::format("tensor {} name", i), "", "is empty");
    read_shape(in, t, field);
    t.offset = in.get<std::uint64_t>(field + " offset");
    tensors.push_back(std::move(t));
  }
  std::unordered_set<std::string_view> names;
  for (const GgufTensor& t : tensors)
    if (!names.insert(t.name).second)
      throw Error(ErrorCode::invalid_argument, "tensor name", printable(t.name), "occurs twice");
  return tensors;
}

// Turns offsets into positions in the file. As ggml demands, each tensor begins where the one before it ends, rounded
// up to the alignment, in the order of the infos; so none overlap.
void place(std::vector<GgufTensor>& tensors, std::uint64_t data, std::uint64_t alignment, std::uint64_t file) {
  std::uint64_t next = 0;
  for (GgufTensor& t : tensors) {
    const std::string field = fmt::format("tensor '{}'", printable(t.name));
    if (t.offset != next)
      throw must_be(
          field + " offset", t.offset,
          fmt::format("{}: where the tensor before it ends, in steps of {} (the alignment)", next, alignment));
    t.offset = checked_add(data, t.offset, field + " offset");
    if (checked_add(t.offset, t.bytes, field + " end") > file)
      throw Error(ErrorCode::invalid_argument, field + " bytes", fmt::format("{} at {}", t.bytes, t.offset),
                  fmt::format("must lie in the file, which ends at {}", file));
    next = checked_align(checked_add(next, t.bytes, field + " end"), alignment, field + " end");
  }
}

void read_preamble(Cursor& in) {
  const auto magic = in.get<std::uint32_t>("magic");
  if (magic != 0x46554747) throw must_be("magic", fmt::format("{:#010x}", magic), "'GGUF'; is this a GGUF file?");
  const auto version = in.get<std::uint32_t>("version");
  if (version != 3)
    throw Error(ErrorCode::invalid_argument, "version", std::to_string(version),
                version == 0x03000000 ? "is not supported: big-endian files cannot be read" : "must be 3");
}

// A count that the rest of the file cannot hold is refused before anything is allocated for it.
std::uint64_t read_count(Cursor& in, std::uint64_t limit, const char* field) {
  const auto count = in.get<std::uint64_t>(field);
  if (count > limit)
    throw Error(ErrorCode::too_large, field, std::to_string(count), fmt::format("must be at most {}", limit));
  return count;
}

}  // namespace

std::int64_t GgufTensor::rows() const {
  std::int64_t n = 1;
  for (std::size_t i = 1; i < dims.size(); ++i) n *= dims[i];
  return n;
}

Gguf Gguf::open(const std::string& path) {
  return in_file(path, [&] { return Gguf(ByteSource::file(path)); });
}

Gguf::Gguf(std::unique_ptr<ByteSource> source) : source_(std::move(source)) {
  Cursor in(*source_);
  read_preamble(in);
  const std::uint64_t tensors = read_count(in, GgufLimits::kTensors, "tensor count");
  const std::uint64_t keys = read_count(in, GgufLimits::kKeys, "key count");
  in.need(tensors, 33, "tensor count");  // the shortest info: name of 1, one dim
  in.need(keys, 14, "key count");        // the shortest pair: key of 1, a byte
  for (std::uint64_t i = 0; i < keys; ++i) {
    std::string key = in.string(GgufLimits::kKeyBytes, fmt::format("key {}", i));
    const std::string field = fmt::format("key '{}'", printable(key));
    if (key.empty()) throw Error(ErrorCode::invalid_argument, fmt::format("key {}", i), "", "is empty");
    const auto type = in.get<std::uint32_t>(field);
    const std::uint64_t begin = in.position();
    GgufValue value = read_value(in, type, field);
    stored_.push_back({type, begin, in.position() - begin});
    if (key == "general.alignment") alignment_ = checked_alignment(value);
    metadata_.emplace_back(std::move(key), std::move(value));
  }
  std::unordered_set<std::string_view> seen;
  for (const auto& [key, value] : metadata_)
    if (!seen.insert(key).second) throw Error(ErrorCode::invalid_argument, "key", printable(key), "occurs twice");
  tensors_ = read_infos(in, tensors);
  place(tensors_, checked_align(in.position(), alignment_, "data offset"), alignment_, source_->size());
}

const GgufTensor* Gguf::find(std::string_view name) const {
  const auto it = std::find_if(tensors_.begin(), tensors_.end(), [&](const GgufTensor& t) { return t.name == name; });
  return it == tensors_.end() ? nullptr : &*it;
}

const GgufTensor& Gguf::tensor(std::string_view name) const {
  if (const GgufTensor* t = find(name)) return *t;
  throw_no_tensor(tensors_, name);
}

const GgufValue* Gguf::value(std::string_view key) const {
  for (const auto& [k, v] : metadata_)
    if (k == key) return &v;
  return nullptr;
}

std::vector<std::byte> Gguf::read(const GgufTensor& tensor) const {
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes));
  source_->read(tensor.offset, bytes);
  return bytes;
}

void Gguf::read(const GgufTensor& tensor, std::uint64_t first, std::span<std::byte> to) const {
  read_part(*source_, tensor, first, to);
}

GgufField Gguf::field(std::string_view key) const {
  for (std::size_t i = 0; i < metadata_.size(); ++i) {
    if (metadata_[i].first != key) continue;
    GgufField field{metadata_[i].first, stored_[i].type, {}};
    field.bytes.resize(static_cast<std::size_t>(stored_[i].bytes));
    source_->read(stored_[i].offset, field.bytes);
    return field;
  }
  throw must_be("key", printable(key), fmt::format("one of the {} there are", metadata_.size()));
}

std::optional<std::uint32_t> gguf_type(std::string_view name) {
  for (const Type& t : kTypes)
    if (name == t.name || (!name.empty() && name == t.format)) return t.id;
  return std::nullopt;
}

namespace {

template <class T>
void put(std::vector<std::byte>& to, T value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  to.insert(to.end(), bytes.begin(), bytes.end());
}
void put_text(std::vector<std::byte>& to, std::string_view text) {
  put<std::uint64_t>(to, text.size());
  const auto bytes = std::as_bytes(std::span(text));
  to.insert(to.end(), bytes.begin(), bytes.end());
}
template <class T>
GgufField scalar(std::string key, std::uint32_t type, T value) {
  GgufField field{std::move(key), type, {}};
  put(field.bytes, value);
  return field;
}

}  // namespace

GgufField GgufField::u32(std::string key, std::uint32_t value) { return scalar(std::move(key), kU32, value); }
GgufField GgufField::f32(std::string key, float value) { return scalar(std::move(key), kF32, value); }
GgufField GgufField::boolean(std::string key, bool value) {
  return scalar(std::move(key), kBool, static_cast<std::uint8_t>(value));
}
GgufField GgufField::text(std::string key, std::string_view value) {
  GgufField field{std::move(key), kString, {}};
  put_text(field.bytes, value);
  return field;
}
GgufField GgufField::texts(std::string key, std::span<const std::string> values) {
  GgufField field = scalar(std::move(key), kArray, static_cast<std::uint32_t>(kString));
  put<std::uint64_t>(field.bytes, values.size());
  for (const std::string& value : values) put_text(field.bytes, value);
  return field;
}

struct GgufWriter::Layout {
  std::string header;
  std::vector<Place> places;
  std::uint64_t size = 0;

  Layout(std::span<const GgufInfo> tensors, std::span<const GgufField> fields) {
    within("tensors", tensors.size(), GgufLimits::kTensors);
    within("keys", fields.size(), GgufLimits::kKeys);
    std::vector<std::byte> out;
    put<std::uint32_t>(out, 0x46554747);  // "GGUF"
    put<std::uint32_t>(out, 3);
    put<std::uint64_t>(out, tensors.size());
    put<std::uint64_t>(out, fields.size());
    std::uint64_t alignment = 32;
    std::unordered_set<std::string_view> seen;
    for (const GgufField& f : fields) {
      if (!seen.insert(f.key).second) throw Error(ErrorCode::invalid_argument, "key", printable(f.key), "occurs twice");
      const GgufValue value = checked(f);
      if (f.key == "general.alignment") alignment = checked_alignment(value);
      put_text(out, f.key);
      put(out, f.type);
      out.insert(out.end(), f.bytes.begin(), f.bytes.end());
    }
    seen.clear();
    std::uint64_t next = 0;
    for (const GgufInfo& t : tensors) {
      const std::string field = fmt::format("tensor '{}'", printable(t.name));
      if (t.name.empty() || t.name.size() >= GgufLimits::kNameBytes)
        throw must_be("tensor name", printable(t.name), "1 to 63 bytes long");
      if (!seen.insert(t.name).second)
        throw Error(ErrorCode::invalid_argument, "tensor name", printable(t.name), "occurs twice");
      if (t.dims.empty() || t.dims.size() > GgufLimits::kDims) throw must_be(field + " dims", t.dims.size(), "1 to 4");
      const std::uint64_t bytes = bytes_of(t.dims, type_of(t.type, field + " type"), field);
      put_text(out, t.name);
      put(out, static_cast<std::uint32_t>(t.dims.size()));
      for (const std::int64_t extent : t.dims) put(out, extent);
      put(out, t.type);
      put(out, next);
      places.push_back({t.name, next, bytes});
      next = checked_align(checked_add(next, bytes, field + " end"), alignment, field + " end");
    }
    header.assign(reinterpret_cast<const char*>(out.data()), out.size());
    header.resize(static_cast<std::size_t>(checked_align(header.size(), alignment, "data offset")), '\0');
    for (Place& p : places) p.offset += header.size();
    size = checked_add(header.size(), next, "file size");
  }

 private:
  static void within(const char* what, std::size_t count, std::uint64_t most) {
    if (count > most)
      throw Error(ErrorCode::too_large, what, std::to_string(count), fmt::format("must be at most {}", most));
  }
  // The bytes are one whole value of the type: the reader reads them.
  static GgufValue checked(const GgufField& f) {
    if (f.key.empty() || f.key.size() > GgufLimits::kKeyBytes)
      throw must_be("key", printable(f.key), fmt::format("1 to {} bytes long", GgufLimits::kKeyBytes));
    const std::string field = fmt::format("key '{}'", printable(f.key));
    const auto source = ByteSource::memory(f.bytes);
    Cursor in(*source);
    GgufValue value = read_value(in, f.type, field);
    if (in.left())
      throw Error(ErrorCode::invalid_argument, field, fmt::format("{} bytes", f.bytes.size()),
                  fmt::format("must have {} bytes", in.position()));
    return value;
  }
};

GgufWriter::GgufWriter(const std::string& path, std::span<const GgufInfo> tensors, std::span<const GgufField> fields,
                       Start start)
    : GgufWriter(path, Layout(tensors, fields), start) {}

GgufWriter::GgufWriter(const std::string& path, Layout layout, Start start)
    : ModelWriter(path, std::move(layout.header), std::move(layout.places), layout.size, start) {}

}  // namespace tilewright
