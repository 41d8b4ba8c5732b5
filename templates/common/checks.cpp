// SPDX-License-Identifier: Apache-2.0
#include "templates/common/checks.h"

#include <fmt/format.h>

#include <cmath>

#include "templates/formats/shared/fast_path.h"

namespace tilewright {

Error invalid(std::string field, std::string value, std::string allowed) {
  return Error(ErrorCode::invalid_argument, std::move(field), std::move(value), std::move(allowed));
}
Error unsupported(std::string field, Format format, std::string allowed) {
  return Error(ErrorCode::unsupported, std::move(field), std::string(format.name()), std::move(allowed));
}

void check_float(const char* field, Format f) {
  if (!is_float(f)) throw unsupported(field, f, "must be f32, f16 or bf16");
}

void check_extent(const char* field, std::int64_t value) {
  if (value < 0) throw must_be(field, value, "0 to 2147483647");
  if (value > kMaxExtent) throw Error(ErrorCode::too_large, field, std::to_string(value), "must be 0 to 2147483647");
}

void check_some(const char* field, std::int64_t value, const char* may_be_zero) {
  check_extent(field, value);
  if (value == 0)
    throw must_be(field, "0",
                  fmt::format("1 to 2147483647{}", may_be_zero ? fmt::format(" (only {} may be 0)", may_be_zero) : ""));
}

void check_matrix(const char* field, Format f, std::int64_t rows, std::int64_t cols, const char* cols_field) {
  if (cols % f.block() != 0)
    throw must_be(cols_field, cols, fmt::format("a multiple of {}, the block of {}={}", f.block(), field, f.name()));
  if (f.total_bytes(rows, cols) > kMaxBytes)
    throw Error(ErrorCode::too_large, field, fmt::format("{} of {} x {}", f.name(), rows, cols),
                "must have at most 2^47 bytes");
}

void check_rows_stand_alone(const char* field, Format f) {
  for (const StreamSpec& s : f.info().streams)
    if (s.rows > 1)
      throw unsupported(
          field, f,
          fmt::format("must be a format whose rows stand alone: {} shares a scale between {} rows", f.name(), s.rows));
}

void check_factor(const char* field, double value) {
  const auto single = static_cast<float>(value);
  if (!std::isfinite(single) || (single == 0.0f) != (value == 0.0))
    throw must_be(field, fmt::format("{}", value), "a finite number that fits single precision");
}

bool is_plain(Format f) { return f.info().block == 1 && f.info().streams.size() == 1; }
bool is_float(Format f) {
  const Element e = fast_path(f).element;
  return is_plain(f) && (e == Element::f32 || e == Element::f16 || e == Element::bf16);
}
bool has_global(Format f) {
  for (const StreamSpec& s : f.info().streams)
    if (s.scope == Scope::tensor) return true;
  return false;
}

}  // namespace tilewright
