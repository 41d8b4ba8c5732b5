// SPDX-License-Identifier: Apache-2.0
// What native_v3.cpp and native_v4.cpp share, to be included by them alone, between their pragmas: K is the backend,
// TW_KERNELS the namespace of its kernels' text.
namespace tilewright::cpu {
namespace {

template <int n>
using Fixed = std::integral_constant<int, n>;
template <PanelCodes w>
using Codes = std::integral_constant<PanelCodes, w>;

K::Arguments arguments(const void* args, const void* constants, void* scratch, std::int64_t block) {
  return {static_cast<K::Ptr>(args), static_cast<K::Ptr>(constants), static_cast<K::Ptr>(scratch), block};
}

void quantize(const NativeOptions& o, const void* args, const void* constants, void* scratch, std::int64_t block) {
  K k;
  TW_KERNELS::quantize(k, arguments(args, constants, scratch, block), o.x,
                       o.text == KernelText::tiles ? TW_KERNELS::kTileTokens : o.tokens, o.w);
}
void widen(const NativeOptions& o, const void* args, const void* constants, void* scratch, std::int64_t block) {
  K k;
  TW_KERNELS::widen(k, arguments(args, constants, scratch, block), o.x, o.tokens);
}

constexpr int kFewPanels = 4, kFewAhead = 2048, kManyPanels = 4, kManyTokens = 64;

template <PanelCodes w, int tokens>
void few(const NativeOptions& o, const void* args, const void* constants, void* scratch, std::int64_t block) {
  K k;
  TW_KERNELS::few(k, arguments(args, constants, scratch, block), Codes<w>(), o.e, Fixed<tokens>(), kFewPanels,
                  Fixed<kFewAhead>());
}
template <PanelCodes w, int wide, int together>
void many(const NativeOptions& o, const void* args, const void* constants, void* scratch, std::int64_t block) {
  K k;
  TW_KERNELS::many(k, arguments(args, constants, scratch, block), Codes<w>(), o.e, Fixed<kManyTokens>(), kManyPanels,
                   Fixed<wide>(), Fixed<together>());
}
template <PanelCodes w>
NativeFunction* find_few(const NativeOptions& o) {
  if (o.panels != kFewPanels || o.ahead != kFewAhead) return nullptr;
  return o.tokens == 1 ? &few<w, 1> : o.tokens == 4 ? &few<w, 4> : nullptr;
}
template <PanelCodes w, int wide, int together>
NativeFunction* find_many(const NativeOptions& o) {
  const bool has = o.tokens == kManyTokens && o.panels == kManyPanels && o.wide == wide && o.together == together;
  return has ? &many<w, wide, together> : nullptr;
}
// find<w>(o) of o's w.
template <class Find, std::size_t... i>
NativeFunction* for_codes(const NativeOptions& o, const Find& find, std::index_sequence<i...>) {
  NativeFunction* found = nullptr;
  ((o.w == kPanelCodes[i] ? void(found = find(Codes<kPanelCodes[i]>())) : void()), ...);
  return found;
}
template <class Find>
NativeFunction* for_codes(const NativeOptions& o, const Find& find) {
  return for_codes(o, find, std::make_index_sequence<std::size(kPanelCodes)>());
}

template <Type w, int tokens, int panels>
void floats(const NativeOptions& o, const void* args, const void* constants, void* scratch, std::int64_t block) {
  K k;
  TW_KERNELS::floats(k, arguments(args, constants, scratch, block), std::integral_constant<Type, w>(), o.float_scales,
                     o.e, Fixed<tokens>(), Fixed<panels>(), o.tiles);
}
// One token by four panels, or `tokens` by `panels`.
template <int tokens, int panels>
NativeKernel of_floats(const NativeOptions& o) {
  static_assert(std::int64_t{TW_KERNELS::kMostInBlock} * 4 * kPanel <= K::kMostStack);
  const auto of = [&]<Type w>(std::integral_constant<Type, w>) -> NativeFunction* {
    if (o.tokens == 1 && o.panels == 4) return &floats<w, 1, 4>;
    return o.tokens == tokens && o.panels == panels ? &floats<w, tokens, panels> : nullptr;
  };
  NativeFunction* const found = o.floats == Type::f32   ? of(std::integral_constant<Type, Type::f32>())
                                : o.floats == Type::f16 ? of(std::integral_constant<Type, Type::f16>())
                                                        : of(std::integral_constant<Type, Type::bf16>());
  return found ? NativeKernel{&widen, found} : NativeKernel{};
}

void widen_weights(const NativeOptions& o, const void* args, const void* constants, void* scratch, std::int64_t block) {
  K k;
  TW_KERNELS::widen_weights(k, arguments(args, constants, scratch, block), o.filter);
}
// A block of any knobs, by tiles of its own: sums are the same.
constexpr int tiles_of_columns(const NativeOptions& o, int tokens) { return o.tokens * o.tiles / tokens; }
template <Type w, int tokens>
void columns(const NativeOptions& o, const void* args, const void* constants, void* scratch, std::int64_t block) {
  K k;
  TW_KERNELS::columns(k, arguments(args, constants, scratch, block), o.filter, std::integral_constant<Type, w>(),
                      o.tokens * o.tiles, Fixed<tokens>(), Fixed<1>(), tiles_of_columns(o, tokens), o.panels * o.turns);
}
template <int tokens>
NativeKernel of_columns(const NativeOptions& o) {
  // A block's last tile is computed as a whole: others than of whole tiles are left to the candidates that are.
  if (o.tokens * o.tiles % tokens != 0) return {};
  const std::int64_t stack = TW_KERNELS::columns_stack(tokens, 1, tiles_of_columns(o, tokens), o.panels * o.turns);
  if (stack > K::kMostStack) return {};
  if (!o.filter.packed) return {&widen_weights, &columns<Type::f32, tokens>};
  return {nullptr, o.filter.w == Type::f32   ? &columns<Type::f32, tokens>
                   : o.filter.w == Type::f16 ? &columns<Type::f16, tokens>
                                             : &columns<Type::bf16, tokens>};
}

constexpr int kDepthwiseTogether = 4;
void widen_filters(const NativeOptions& o, const void* args, const void* constants, void* scratch, std::int64_t block) {
  K k;
  TW_KERNELS::widen_filters(k, arguments(args, constants, scratch, block), o.filter);
}
void depthwise(const NativeOptions& o, const void* args, const void* constants, void* scratch, std::int64_t block) {
  K k;
  TW_KERNELS::depthwise(k, arguments(args, constants, scratch, block), o.filter, o.tokens, Fixed<kDepthwiseTogether>());
}
NativeKernel of_depthwise(const NativeOptions& o) {
  return o.together == kDepthwiseTogether ? NativeKernel{&widen_filters, &depthwise} : NativeKernel{};
}

}  // namespace
}  // namespace tilewright::cpu
