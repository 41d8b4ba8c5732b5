// SPDX-License-Identifier: Apache-2.0
#include "templates/cpu/panels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "templates/checks.h"

namespace tilewright::cpu {
namespace {

constexpr PanelInfo kFour = {4, 8}, kEight = {8, 128};

// A block of a row as its format stores it: a half, then codes; and where it is in the panel.
template <class Move>
void each_block(Format w, std::int64_t k, std::int64_t first, std::int64_t last, const Move& move) {
  const PanelInfo& info = *panel_info(w);
  const std::int64_t blocks = k / kPanelColumns, row_block = 2 + kPanelColumns * info.bits / 8;
  for (std::int64_t panel = first; panel < last; ++panel)
    for (std::int64_t block = 0; block < blocks; ++block)
      for (int r = 0; r < kPanel; ++r)
        move(((panel * kPanel + r) * blocks + block) * row_block, (panel * blocks + block) * info.bytes(), r);
}

std::byte flipped(std::byte code) { return code ^ std::byte{0x80}; }

}  // namespace

const PanelInfo* panel_info(Format w) { return w.name() == "q4_0" ? &kFour : w.name() == "q8_0" ? &kEight : nullptr; }

std::int64_t panel_bytes(const Gemm& g) {
  return std::max(g.groups, 1) * (g.n / kPanel) * (g.k / kPanelColumns) * panel_info(g.w)->bytes();
}

void check_panels(const char* field, std::string value, Format w, Format x, std::int64_t n) {
  if (!panel_info(w))
    throw Error(ErrorCode::unsupported, field, std::move(value),
                fmt::format("w={} has no panels; q4_0 and q8_0 have", w.name()));
  if (x.name() != "q8_1")
    throw Error(ErrorCode::unsupported, field, std::move(value),
                fmt::format("panels are for x=q8_1 (x_from quantizes floats), not x={}", x.name()));
  if (n % kPanel != 0)
    throw invalid("n", std::to_string(n), fmt::format("a multiple of {}, the rows of a panel", kPanel));
}

void pack_panels(Format w, std::int64_t k, std::int64_t first, std::int64_t last, const std::byte* from,
                 std::byte* to) {
  const PanelInfo& info = *panel_info(w);
  each_block(w, k, first, last, [&](std::int64_t row_at, std::int64_t panel_at, int r) {
    const std::byte* codes = from + row_at + 2;
    std::byte* block = to + panel_at;
    if (info.bits == 4) {
      // The format's own bytes have columns i and i + 16, too.
      for (int i = 0; i < 16; ++i) block[64 * (i / 4) + 4 * r + i % 4] = codes[i];
    } else {
      for (int i = 0; i < kPanelColumns; ++i) block[64 * (i / 4) + 4 * r + i % 4] = flipped(codes[i]);
    }
    std::memcpy(block + info.bytes() - 2 * kPanel + 2 * r, from + row_at, 2);
  });
}

void unpack_panels(Format w, std::int64_t k, std::int64_t first, std::int64_t last, const std::byte* from,
                   std::byte* to) {
  const PanelInfo& info = *panel_info(w);
  each_block(w, k, first, last, [&](std::int64_t row_at, std::int64_t panel_at, int r) {
    std::byte* codes = to + row_at + 2;
    const std::byte* block = from + panel_at;
    if (info.bits == 4) {
      for (int i = 0; i < 16; ++i) codes[i] = block[64 * (i / 4) + 4 * r + i % 4];
    } else {
      for (int i = 0; i < kPanelColumns; ++i) codes[i] = flipped(block[64 * (i / 4) + 4 * r + i % 4]);
    }
    std::memcpy(to + row_at, block + info.bytes() - 2 * kPanel + 2 * r, 2);
  });
}

void pack_panels(const Gemm& g, const void* w, void* panels) {
  pack_panels(g.w, g.k, 0, std::max(g.groups, 1) * g.n / kPanel, static_cast<const std::byte*>(w),
              static_cast<std::byte*>(panels));
}
void unpack_panels(const Gemm& g, const void* panels, void* w) {
  unpack_panels(g.w, g.k, 0, std::max(g.groups, 1) * g.n / kPanel, static_cast<const std::byte*>(panels),
                static_cast<std::byte*>(w));
}

}  // namespace tilewright::cpu
