// SPDX-License-Identifier: Apache-2.0
// What native_v3.cpp and native_v4.cpp share, to be included by them alone, between their pragmas: K is the backend,
// TW_KERNELS the namespace of its kernels' text.
namespace tilewright::cpu {
namespace {

template <PanelCodes w>
using Codes = std::integral_constant<PanelCodes, w>;

void quantize(const NativeOptions& o, const void* args, const void* constants, void* scratch, std::int64_t block) {
  K k;
  TW_KERNELS::quantize(k, K::arguments(args, constants, scratch, block), o.x,
                       o.text == KernelText::tiles ? TW_KERNELS::kTileTokens : o.tokens, o.w);
}
void widen(const NativeOptions& o, const void* args, const void* constants, void* scratch, std::int64_t block) {
  K k;
  TW_KERNELS::widen(k, K::arguments(args, constants, scratch, block), o.x, o.tokens);
}

constexpr int kFewPanels = 4, kFewAhead = 2048, kManyPanels = 4, kManyTokens = 64;

template <PanelCodes w, int tokens>
void few(const NativeOptions& o, const void* args, const void* constants, void* scratch, std::int64_t block) {
  K k;
  TW_KERNELS::few(k, K::arguments(args, constants, scratch, block), Codes<w>(), o.e, Fixed<tokens>(), kFewPanels,
                  Fixed<kFewAhead>());
}
template <PanelCodes w, int wide, int together>
void many(const NativeOptions& o, const void* args, const void* constants, void* scratch, std::int64_t block) {
  K k;
  TW_KERNELS::many(k, K::arguments(args, constants, scratch, block), Codes<w>(), o.e, Fixed<kManyTokens>(), kManyPanels,
                   Fixed<wide>(), Fixed<together>());
}
template <PanelCodes w>
NativeGemm::Function* find_few(const NativeOptions& o) {
  if (o.panels != kFewPanels || o.ahead != kFewAhead) return nullptr;
  return o.tokens == 1 ? &few<w, 1> : o.tokens == 4 ? &few<w, 4> : nullptr;
}
template <PanelCodes w, int wide, int together>
NativeGemm::Function* find_many(const NativeOptions& o) {
  const bool has = o.tokens == kManyTokens && o.panels == kManyPanels && o.wide == wide && o.together == together;
  return has ? &many<w, wide, together> : nullptr;
}
// find<w>(o) of o's w.
template <class Find, std::size_t... i>
NativeGemm::Function* for_codes(const NativeOptions& o, const Find& find, std::index_sequence<i...>) {
  NativeGemm::Function* found = nullptr;
  ((o.w == kPanelCodes[i] ? void(found = find(Codes<kPanelCodes[i]>())) : void()), ...);
  return found;
}
template <class Find>
NativeGemm::Function* for_codes(const NativeOptions& o, const Find& find) {
  return for_codes(o, find, std::make_index_sequence<std::size(kPanelCodes)>());
}

template <Type w, int tokens, int panels>
void floats(const NativeOptions& o, const void* args, const void* constants, void* scratch, std::int64_t block) {
  K k;
  TW_KERNELS::floats(k, K::arguments(args, constants, scratch, block), std::integral_constant<Type, w>(),
                     o.float_scales, o.e, Fixed<tokens>(), Fixed<panels>(), o.tiles);
}
// One token by four panels, or `tokens` by `panels`.
template <int tokens, int panels>
NativeGemm of_floats(const NativeOptions& o) {
  static_assert(std::int64_t{TW_KERNELS::kMostInBlock} * 4 * kPanel <= K::kMostStack);
  const auto of = [&]<Type w>(std::integral_constant<Type, w>) -> NativeGemm::Function* {
    if (o.tokens == 1 && o.panels == 4) return &floats<w, 1, 4>;
    return o.tokens == tokens && o.panels == panels ? &floats<w, tokens, panels> : nullptr;
  };
  NativeGemm::Function* const found = o.floats == Type::f32   ? of(std::integral_constant<Type, Type::f32>())
                                      : o.floats == Type::f16 ? of(std::integral_constant<Type, Type::f16>())
                                                              : of(std::integral_constant<Type, Type::bf16>());
  return found ? NativeGemm{&widen, found} : NativeGemm{};
}

}  // namespace
}  // namespace tilewright::cpu
