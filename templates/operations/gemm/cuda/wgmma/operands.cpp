// SPDX-License-Identifier: Apache-2.0
#include "templates/operations/gemm/cuda/wgmma/operands.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "templates/operations/gemm/cuda/family.h"

namespace tilewright::gemm {
namespace {

using tw::WgmmaKind;
using tw::gemm::kPanelBytes;

constexpr int kAsyncStages = 3;  // a ring that leaves room for asynchronous stores

// Whether w has a scale per block of rows: one factor for a strip. Scales of groups along a row would need one for each
// product.
bool block_scales(Format w) { return is_fp8(fast_path(w).element) && fast_path(w).scale_rows > 1; }

// Whether w is rows of x's elements, or of the other FP8 type; either may have a scale per row.
bool plain(const Gemm& g) {
  const Element x = fast_path(g.x).element, w = fast_path(g.w).element;
  const bool no_blocks = g.x.block() == 1 && g.w.block() == 1;
  return g.packing == Packing::none && (x == w ? block_scales(g.w) || no_blocks : is_fp8(x) && is_fp8(w) && no_blocks);
}

// Room for the part of the row of x that a block quantizes.
int quantized_bytes(const WgmmaKnobs& k, const WgmmaProblem& p) {
  const std::int64_t block_k = static_cast<std::int64_t>(k.panels) * p.panel_k(),
                     stages = (p.quantized + block_k - 1) / block_k;
  return static_cast<int>(((stages + k.split_k - 1) / k.split_k * k.panels * p.operands.x_row_bytes + 15) / 16 * 16);
}

// Whether tiles are stored asynchronously: if warps are idle and a ring deep enough remains. With two strips, coded
// weights would lose the fourth stage. Warpgroups that promote are out of step anyway, so that one multiplies while the
// other stores.
bool async_store(const WgmmaKnobs& k, const WgmmaProblem& p) {
  const tw::gemm::WgmmaOperands& o = p.operands;
  if (p.promotes() || p.widens || k.parts() > 1 || k.schedule != tw::gemm::Schedule::whole_tiles || o.c_bytes ||
      o.y_bytes > 2 || (o.coded && k.strips > 1) || !wgmma_plan(k, o).reallocates_registers)
    return false;
  WgmmaKnobs least = k;
  least.stages = kAsyncStages, least.async_store = true;
  static const int limit = arch("sm_90a").shared_per_block;  // as on every chip with these instructions
  return wgmma_plan(least, o).shared_bytes <= limit;
}

// Whether weights whose tiles are for a wider element are rounded to x's: if its sums may be coarse too, and where
// tokens are so many that products are what counts.
bool narrow(const Gemm& g, const TileInfo& tiles, std::int64_t tokens) {
  return g.accumulation == Accumulation::fast && tokens > tw::gemm::kFewTokens && may_narrow(tiles, g.x) &&
         g.k % kPanelBytes == 0;
}

std::optional<WgmmaKind> wgmma_kind(Element x) {
  switch (x) {
    case Element::f16: return WgmmaKind::f16;
    case Element::bf16: return WgmmaKind::bf16;
    case Element::e4m3: return WgmmaKind::e4m3;
    case Element::e5m2: return WgmmaKind::e5m2;
    case Element::i8: return WgmmaKind::s8;
    default: return {};
  }
}

}  // namespace

bool needs_prologue(const Gemm& g) { return quantizes_rows(g) || unpacks_rows(g); }

std::optional<WgmmaKind> wgmma_kind(Format x) {
  return blocks_of_bytes(x) ? std::optional(WgmmaKind::s8) : wgmma_kind(fast_path(x).element);
}

WgmmaKind wgmma_kind(Format strips, Format columns) {
  const Element a = fast_path(strips).element;
  const WgmmaKind b = *wgmma_kind(columns);
  if (a == Element::e4m3 && b == WgmmaKind::e5m2) return WgmmaKind::e4m3_e5m2;
  if (a == Element::e5m2 && b == WgmmaKind::e4m3) return WgmmaKind::e5m2_e4m3;
  return b;
}

std::optional<WgmmaProblem> wgmma_problem(const Gemm& stored, std::int64_t tokens, bool prologue) {
  Gemm g = stored;  // as it is multiplied
  const bool unpacks = unpacks_rows(g);
  if (unpacks && !prologue) return std::nullopt;
  if (unpacks) g.x = Format::parse("int8_row");
  const TileInfo* tiles = g.packing == Packing::tiles ? tile_info(g.w, g.x) : nullptr;
  const bool codes = blocks_of_bytes(g.x), narrows = tiles && narrow(g, *tiles, tokens),
             wider = tiles && !codes && !narrows && tiles->element != fast_path(g.x).element,
             widens = wider && !prologue;
  if (prologue && (codes || g.groups || !(wider || unpacks || quantizes_rows(g)))) return std::nullopt;
  const std::optional<WgmmaKind> kind = wider ? wgmma_kind(tiles->element) : wgmma_kind(g.x);
  if (!kind || !(tiles ? g.x.block() == 1 || codes : plain(g))) return std::nullopt;

  WgmmaProblem p{};
  p.kind = *kind, p.tiles = tiles, p.codes = codes, p.widens = widens, p.narrows = narrows, p.prologue = prologue;
  p.element_bytes = *kind == WgmmaKind::f16 || *kind == WgmmaKind::bf16 ? 2 : 1;
  p.block_scales = !tiles && block_scales(g.w);
  p.fast_accumulation = is_fp8(*kind) && g.accumulation == Accumulation::fast;
  p.quantized = g.x_from && !quantizes_rows(g) ? g.k : 0;
  p.groups = g.groups ? std::max(32, static_cast<int>(std::bit_ceil(static_cast<unsigned>(g.groups)))) : 0;

  tw::gemm::WgmmaOperands& o = p.operands;
  o.coded = tiles != nullptr;
  o.panel_k = tiles && !narrows ? tiles->panel_k : kPanelBytes / p.element_bytes;
  // Scales that the register operand cannot hold, and fp8, whose units are to sum a panel's products only.
  o.promotes =
      (p.element_bytes == 1 && tiles && tiles->scale_bytes > 0 && !narrows) || (is_fp8(*kind) && !p.fast_accumulation);
  o.x_row_bytes = codes ? fast_path(g.x).raw_bytes(kPieceK) / tw::gemm::kPanelsPerCodeBox : kPanelBytes;
  o.x_raw_bytes = widens ? o.panel_k * fast_path(g.x).element_bytes : 0;
  o.x_item_bytes = fast_path(g.x).row_bytes;
  if (tiles)
    o.code_words = tiles->words * o.panel_k / tiles->panel_k, o.scale_k = tiles->scale_k,
    o.scale_bytes = tiles->scale_bytes;
  o.y_bytes = fast_path(g.y).element_bytes;
  o.c_bytes = g.c ? fast_path(*g.c).element_bytes : 0;
  return p;
}

namespace {
// Of a row that a prologue writes, with its scale.
std::int64_t prologue_row(const Gemm& g, const WgmmaProblem& p) {
  return g.k * p.element_bytes + (quantizes_rows(g) ? 4 : 0);
}
constexpr std::int64_t kLeastTokens = 16;    // of a launch: parts have whole sixteens
constexpr std::int64_t kRoundedBytes = 128;  // what a prologue writes is rounded up to
}  // namespace

std::int64_t WgmmaProblem::slots_at(const Gemm& g) const {
  return tw::gemm::kScheduleBytes + (prologue ? g.m * prologue_row(g, *this) + kRoundedBytes : 0);
}

std::int64_t WgmmaProblem::most_tokens(const Gemm& g) const {
  const std::int64_t room = g.workspace - tw::gemm::kScheduleBytes - kRoundedBytes;
  return std::clamp<std::int64_t>(room / prologue_row(g, *this), 0, 1 << 30) / kLeastTokens * kLeastTokens;
}

std::string no_prologue(const Gemm& g) {
  if (!needs_prologue(g)) return {};
  const std::optional<WgmmaProblem> p = wgmma_problem(g, g.m, true);
  if (!p || p->most_tokens(g) > 0) return {};
  return fmt::format("workspace={} is too small: x is {} there, and {} bytes hold {} tokens", g.workspace,
                     unpacks_rows(g) ? "unpacked" : "quantized",
                     tw::gemm::kScheduleBytes + kRoundedBytes + kLeastTokens * prologue_row(g, *p), kLeastTokens);
}

WgmmaKnobs WgmmaProblem::complete(WgmmaKnobs k) const {
  k.fast_accumulation = fast_accumulation;
  k.quantized_bytes = quantized_bytes(k, *this);
  k.groups = groups;
  k.async_store = false;
  k.async_store = async_store(k, *this);
  return k;
}

int WgmmaProblem::blocks_per_sm(const WgmmaKnobs& k, const Arch& arch) const {
  const tw::gemm::WgmmaPlan p = plan(k);
  if (p.reallocates_registers) return 1;
  return std::max(
      1, std::min({arch.shared_per_sm / (p.shared_bytes + kReservedShared), 1024 / p.threads, most_blocks(k)}));
}

// Three blocks of one warpgroup of single warps win with 9 to 16 tokens, or if the number of tiles is odd; four never
// did.
int most_blocks(const WgmmaKnobs& k) { return k.warp_mma && k.math_warpgroups() == 1 ? 3 : 2; }

int wgmma_registers(const WgmmaKnobs& k, const WgmmaProblem& p) {
  return p.plan(k).accumulators + (p.tiles ? 32 : 0) + 56;
}

double stream_k_cost(const WgmmaProblem& p) { return p.element_bytes == 1 ? 0.3 : 0.1; }

}  // namespace tilewright::gemm
