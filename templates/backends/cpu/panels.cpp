// SPDX-License-Identifier: Apache-2.0
#include "templates/backends/cpu/panels.h"

#include <fmt/format.h>

#include <string>
#include <type_traits>

#include "format_hosts.inc"
#include "format_includes.inc"
#include "support/must_be.h"
#include "templates/backends/cpu/panel_format.h"
#include "templates/common/checks.h"
#include "templates/common/exact_floats.h"
#include "templates/formats/shared/fast_path.h"

namespace tilewright::cpu {
namespace {

template <class F>
constexpr PanelFormat panel_format(const char* name) {
  if constexpr (!std::is_void_v<typename HostFormat<F>::Panels>) return HostFormat<F>::Panels::format(name);
  return {};
}
constexpr PanelFormat kFormats[] = {
#define FORMAT(NAME) panel_format<tw::fmt::NAME>(#NAME),
#include "format_list.inc"
#undef FORMAT
};

const PanelFormat* find(Format w) {
  for (const PanelFormat& f : kFormats)
    if (f.name && w.name() == f.name) return &f;
  return nullptr;
}

const PanelFloats* panel_floats_of(const PanelFormat* f) { return f && f->floats.bytes ? &f->floats : nullptr; }

}  // namespace

const PanelCodes* panel_codes(Format w) {
  const PanelFormat* f = find(w);
  return f ? f->codes : nullptr;
}

const PanelFloats* panel_floats(Format w) { return panel_floats_of(find(w)); }

std::int64_t panel_bytes(Format w, std::int64_t k) {
  const PanelFormat& f = *find(w);
  return f.codes ? f.codes->panel_bytes(k) : f.floats.panel_bytes(k);
}

namespace {
// Formats of x that panels of w are for, as a text; without panels none.
const char* partners(const PanelFormat* f) {
  return !f                  ? ""
         : f->converts       ? "f32, f16, bf16, e4m3, e4m3_row or e4m3_g128"
         : !f->codes         ? "f32, f16 or bf16"
         : f->codes->exact() ? "int8"
                             : "q8_1 or int8_row (x_from quantizes floats), f32, f16 or bf16";
}
bool partner(const PanelFormat* f, Format x) {
  if (!f) return false;
  if (f->codes && f->codes->exact()) return x.name() == "int8";
  if (f->codes) return is_float(x) || x.name() == "q8_1" || x.name() == "int8_row";
  const FastPath& path = fast_path(x);
  return is_float(x) || (f->converts && path.element == Element::e4m3 && !path.global && path.scale_rows == 1);
}
}  // namespace

bool have_panels(Format w, Format x, std::int64_t n, std::int64_t k) {
  const PanelFormat* f = find(w);
  return partner(f, x) && n % kPanel == 0 && (!f->codes || k % kPanelColumns == 0);
}

void check_panels(const char* field, std::string value, Format w, Format x, std::int64_t n, std::int64_t k,
                  const char* n_field) {
  const PanelFormat* const format = find(w);
  if (!format) {
    std::string all = "f32, f16, bf16";
    for (const PanelFormat& f : kFormats)
      if (f.name && (f.codes || f.converts)) all += fmt::format(", {}", f.name);
    throw Error(ErrorCode::unsupported, field, std::move(value),
                fmt::format("is not supported: w={} has no panels; {} have", w.name(), all));
  }
  if (!partner(format, x))
    throw Error(
        ErrorCode::unsupported, field, std::move(value),
        fmt::format("is not supported: panels of w={} are for x={}, not x={}", w.name(), partners(format), x.name()));
  if (n % kPanel != 0) throw must_be(n_field, n, fmt::format("a multiple of {}, the rows of a panel", kPanel));
  if (format->codes && k % kPanelColumns != 0)
    throw must_be("k", k, fmt::format("a multiple of {}, the columns of a panel's block", kPanelColumns));
}

void pack_panels(Format w, std::int64_t k, std::int64_t first, std::int64_t last, Operand from, std::byte* to) {
  const ExactFloats exact;
  find(w)->pack(k, first, last, from, reinterpret_cast<std::uint8_t*>(to));
}
void unpack_panels(Format w, std::int64_t k, std::int64_t first, std::int64_t last, const std::byte* from,
                   MutableOperand to) {
  const ExactFloats exact;
  find(w)->unpack(k, first, last, reinterpret_cast<const std::uint8_t*>(from), to);
}

}  // namespace tilewright::cpu
