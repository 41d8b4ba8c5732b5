// SPDX-License-Identifier: Apache-2.0
// What native_v3.cpp and native_v4.cpp share, to be included by them alone, between their pragmas: K is the backend,
// TW_KERNELS the namespace of its kernels' text.
namespace tilewright::cpu {
namespace {

void widen_weights(const NativeConvOptions& o, const void* args, const void* constants, void* scratch,
                   std::int64_t block) {
  K k;
  TW_KERNELS::widen_weights(k, K::arguments(args, constants, scratch, block), o.filter);
}
// A block of any knobs, by tiles of its own: sums are the same.
constexpr int tiles_of_columns(const NativeConvOptions& o, int tokens) { return o.tokens * o.tiles / tokens; }
template <Type w, int tokens>
void columns(const NativeConvOptions& o, const void* args, const void* constants, void* scratch, std::int64_t block) {
  K k;
  TW_KERNELS::columns(k, K::arguments(args, constants, scratch, block), o.filter, std::integral_constant<Type, w>(),
                      o.tokens * o.tiles, Fixed<tokens>(), Fixed<1>(), tiles_of_columns(o, tokens), o.panels * o.turns);
}
template <int tokens>
NativeConv of_columns(const NativeConvOptions& o) {
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
void widen_filters(const NativeConvOptions& o, const void* args, const void* constants, void* scratch,
                   std::int64_t block) {
  K k;
  TW_KERNELS::widen_filters(k, K::arguments(args, constants, scratch, block), o.filter);
}
void depthwise(const NativeConvOptions& o, const void* args, const void* constants, void* scratch, std::int64_t block) {
  K k;
  TW_KERNELS::depthwise(k, K::arguments(args, constants, scratch, block), o.filter, o.tokens,
                        Fixed<kDepthwiseTogether>());
}
NativeConv of_depthwise(const NativeConvOptions& o) {
  return o.together == kDepthwiseTogether ? NativeConv{&widen_filters, &depthwise} : NativeConv{};
}

}  // namespace
}  // namespace tilewright::cpu
