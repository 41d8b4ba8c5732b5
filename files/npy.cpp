// SPDX-License-Identifier: Apache-2.0
// Layout (numpy.lib.format), little-endian, from offset 0:
//   "\x93NUMPY", u8 major, u8 minor, then u16 n in version 1.0 and u32 n in 2.0 and 3.0
//   n bytes of text: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), } as Python writes a dict, with spaces
//   and a line break to the end
//   the elements, to the end of the file
#include <tilewright/npy.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <iterator>

#include "files/checked.h"
#include "support/must_be.h"

namespace tilewright {
namespace {

using namespace readers;

static_assert(std::endian::native == std::endian::little, "elements are handed out as they are stored");

struct Dtype {
  std::string_view name;
  std::uint64_t bytes;
  std::string_view format;
};
constexpr Dtype kDtypes[] = {{"<f2", 2, "f16"}, {"<f4", 4, "f32"}, {"<f8", 8, ""}, {"<V2", 2, "bf16"}};

// The header's dict. It is a literal of Python, of which NumPy writes strings without escapes, bools, and a tuple.
class Header {
 public:
  const Dtype* dtype = nullptr;
  std::vector<std::int64_t> shape;

  explicit Header(std::string_view text) : text_(text) {
    bool has_order = false, has_shape = false;
    need('{');
    while (!take('}')) {
      const std::string_view key = string();
      need(':');
      const auto once = [&](bool seen) {
        if (seen) throw Error(ErrorCode::invalid_argument, field(key), "", "occurs twice");
      };
      if (key == "descr") {
        once(dtype != nullptr);
        read_dtype();
      } else if (key == "fortran_order") {
        once(has_order);
        has_order = true;
        read_order();
      } else if (key == "shape") {
        once(has_shape);
        has_shape = true;
        read_shape();
      } else {
        throw must_be("header key", printable(key), "one of descr, fortran_order, shape");
      }
      if (take(',')) continue;
      need('}');
      break;
    }
    for (const auto& [there, key] :
         {std::pair{dtype != nullptr, "descr"}, {has_order, "fortran_order"}, {has_shape, "shape"}})
      if (!there) throw Error(ErrorCode::invalid_argument, field(key), "", "is missing");
    if (peek() != '\0') refuse("only spaces");
  }

 private:
  static std::string field(std::string_view key) { return fmt::format("header '{}'", key); }

  // The next character that is no space; 0 at the end.
  char peek() {
    while (!text_.empty() && (text_.front() == ' ' || text_.front() == '\n')) text_.remove_prefix(1);
    return text_.empty() ? '\0' : text_.front();
  }
  bool take(char c) {
    if (peek() != c || c == '\0') return false;
    text_.remove_prefix(1);
    return true;
  }
  void need(char c) {
    if (!take(c)) refuse(fmt::format("'{}'", c));
  }
  [[noreturn]] void refuse(const std::string& wanted) const {
    throw Error(ErrorCode::invalid_argument, "header",
                text_.empty() ? "its end" : fmt::format("'{}'", printable(text_.substr(0, 16))),
                "must have " + wanted + " here");
  }
  std::string_view string() {
    const char quote = peek();
    const std::size_t end = quote == '\'' || quote == '"' ? text_.find(quote, 1) : text_.npos;
    if (end == text_.npos) refuse("a string in quotes");
    const std::string_view value = text_.substr(1, end - 1);
    text_.remove_prefix(end + 1);
    return value;
  }

  void read_dtype() {
    if (peek() == '[')
      throw Error(ErrorCode::unsupported, field("descr"), printable(text_.substr(0, 32)),
                  "must be one of <f2, <f4, <f8, <V2: records cannot be read");
    const std::string_view name = string();
    dtype = std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const Dtype& d) { return d.name == name; });
    if (dtype == std::end(kDtypes))
      throw Error(ErrorCode::unsupported, field("descr"), printable(name),
                  "must be one of <f2, <f4, <f8, or <V2, which is bfloat16 of ml_dtypes");
  }
  void read_order() {
    for (const std::string_view word : {"False", "True"}) {
      if (peek() != word.front() || !text_.starts_with(word)) continue;
      text_.remove_prefix(word.size());
      if (word == "True")
        throw Error(ErrorCode::unsupported, field("fortran_order"), "True",
                    "must be False; numpy.ascontiguousarray gives such an array");
      return;
    }
    refuse("False or True");
  }
  void read_shape() {
    need('(');
    bool comma = true;
    while (!take(')')) {
      if (!comma) refuse("',' or ')'");
      std::int64_t extent = 0;
      peek();
      const auto [end, bad] = std::from_chars(text_.data(), text_.data() + text_.size(), extent);
      if (bad == std::errc::result_out_of_range)
        throw Error(ErrorCode::too_large, field("shape"), printable(text_.substr(0, 32)), "must be less than 2^63");
      if (bad != std::errc() || extent < 0) refuse("an extent of at least 0");
      if (shape.size() == NpyLimits::kDims)
        throw Error(ErrorCode::too_large, field("shape"), "more",
                    fmt::format("must have at most {} dimensions", NpyLimits::kDims));
      text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
      shape.push_back(extent);
      comma = take(',');
    }
    if (shape.size() == 1 && !comma) refuse("a tuple, as in (3,),");
  }

  std::string_view text_;
};

constexpr std::string_view kMagic = "\x93NUMPY";

}  // namespace

Npy::Npy(std::unique_ptr<ByteSource> source) : source_(std::move(source)) {
  const std::uint64_t size = source_->size();
  unsigned char start[12] = {};
  const std::size_t there = static_cast<std::size_t>(std::min<std::uint64_t>(size, sizeof start));
  source_->read(0, std::as_writable_bytes(std::span(start, there)));
  if (there < 10 || std::memcmp(start, kMagic.data(), kMagic.size()) != 0)
    throw must_be("magic", printable({reinterpret_cast<const char*>(start), std::min(there, kMagic.size())}),
                  "\"\\x93NUMPY\", a version and a length; is this a .npy file?");
  const int major = start[6], minor = start[7];
  if (major < 1 || major > 3 || minor != 0)
    throw Error(ErrorCode::unsupported, "version", fmt::format("{}.{}", major, minor), "must be 1.0, 2.0 or 3.0");
  const std::uint64_t begin = major == 1 ? 10 : 12;
  if (size < begin)
    throw Error(ErrorCode::invalid_argument, "file", fmt::format("{} bytes", size), "ends in the header's length");
  std::uint64_t length = 0;
  std::memcpy(&length, start + 8, static_cast<std::size_t>(begin - 8));
  if (length > NpyLimits::kHeaderBytes)
    throw Error(ErrorCode::too_large, "header length", std::to_string(length),
                fmt::format("must be at most {}", NpyLimits::kHeaderBytes));
  if (length > size - begin)
    throw Error(ErrorCode::invalid_argument, "header length", std::to_string(length),
                fmt::format("must fit into the file, which has {} bytes", size));
  std::string text(static_cast<std::size_t>(length), '\0');
  source_->read(begin, std::as_writable_bytes(std::span(text)));
  Header header(text);
  std::uint64_t bytes = header.dtype->bytes;
  for (const std::int64_t extent : header.shape)
    bytes = checked_mul(bytes, static_cast<std::uint64_t>(extent), "header 'shape' bytes");
  offset_ = begin + length;
  if (bytes != size - offset_)
    throw Error(ErrorCode::invalid_argument, "header 'shape'", fmt::format("{} bytes", bytes),
                fmt::format("must make {} bytes, those that follow the header", size - offset_));
  bytes_ = bytes;
  dtype_ = header.dtype->name;
  format_ = header.dtype->format;
  shape_ = std::move(header.shape);
}

void Npy::read(std::uint64_t first, std::span<std::byte> to) const {
  if (first > bytes_ || to.size() > bytes_ - first)
    throw Error(ErrorCode::invalid_argument, "part of the array", fmt::format("{} bytes from {}", to.size(), first),
                fmt::format("must lie in the array, which has {} bytes", bytes_));
  source_->read(offset_ + first, to);
}

}  // namespace tilewright
