// SPDX-License-Identifier: Apache-2.0
// The kernels that are built in for CPUs with AVX-512 and VNNI, some of them for AMX, with those knobs that serve most
// problems well.
#include "templates/operations/gemm/cpu/native.h"

#if defined(__x86_64__) && !defined(TILEWRIGHT_NO_BUILT_IN_KERNELS)
#include "templates/backends/cpu/panel_list.h"
#include "templates/operations/gemm/cpu/kernels_shared.h"

#include "templates/backends/cpu/target_v4.h"
// In a namespace of this file alone: what another compiles for less would be as good to the linker.
#define TILEWRIGHT_CPU_KERNELS native_v4
#define TW_INLINE __attribute__((always_inline))
#include "templates/backends/cpu/native_v4.h"
#include "templates/operations/gemm/cpu/kernels.h"

namespace tilewright::cpu {
namespace {
using K = NativeV4;
}
}  // namespace tilewright::cpu
#define TW_KERNELS native_v4
#include "templates/operations/gemm/cpu/native_kernels.h"

namespace tilewright::cpu {
namespace {

constexpr int kTilesTokens = 128, kTilesPanels = 4, kTilesChunk = 16;

template <PanelCodes w, int together>
void by_tiles(const NativeOptions& o, const void* args, const void* constants, void* scratch, std::int64_t block) {
  K k;
  native_v4::by_tiles(k, K::arguments(args, constants, scratch, block), Codes<w>(), o.e, kTilesTokens, kTilesPanels,
                      kTilesChunk, Fixed<together>());
}
template <PanelCodes w>
NativeGemm::Function* find_tiles(const NativeOptions& o) {
  constexpr int together = 4 / w.scales;
  const bool has = o.tokens == kTilesTokens && o.panels == kTilesPanels && o.chunk == kTilesChunk;
  return has && o.together == together ? &by_tiles<w, together> : nullptr;
}

void narrow(const NativeOptions& o, const void* args, const void* constants, void* scratch, std::int64_t block) {
  K k;
  native_v4::narrow(k, K::arguments(args, constants, scratch, block), o.x.type, o.tokens, o.chunk);
}
void bf16_tiles(const NativeOptions& o, const void* args, const void* constants, void* scratch, std::int64_t block) {
  K k;
  native_v4::bf16_tiles(k, K::arguments(args, constants, scratch, block), o.e, o.tokens, o.panels, o.chunk);
}

}  // namespace

NativeGemm native_v4_gemm(const NativeOptions& o) {
  if (o.text == KernelText::floats) return of_floats<8, 3>(o);
  if (o.text == KernelText::bf16_tiles)
    return native_v4::bf16_tiles_stack(o.tokens, o.panels) <= K::kMostStack ? NativeGemm{&narrow, &bf16_tiles}
                                                                            : NativeGemm{};
  NativeGemm::Function* found = nullptr;
  if (o.text == KernelText::few) found = for_codes(o, [&](auto w) { return find_few<w.value>(o); });
  if (o.text == KernelText::many) found = for_codes(o, [&](auto w) { return find_many<w.value, 4, 4>(o); });
  if (o.text == KernelText::tiles) found = for_codes(o, [&](auto w) { return find_tiles<w.value>(o); });
  return found ? NativeGemm{&quantize, found} : NativeGemm{};
}

}  // namespace tilewright::cpu

#include "templates/backends/cpu/target_end.h"

#else
namespace tilewright::cpu {
NativeGemm native_v4_gemm(const NativeOptions&) { return {}; }
}  // namespace tilewright::cpu
#endif
