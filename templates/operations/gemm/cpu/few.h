// SPDX-License-Identifier: Apache-2.0
// Few tokens, whose sums stay in registers. Part of kernels.h.
namespace tilewright::cpu::TILEWRIGHT_CPU_KERNELS {
namespace {

constexpr int kMostTokens = 8;  // of few(): their sums are in registers

// Few tokens: their sums stay in registers, so w is read once and nothing else is moved. ahead: bytes of w to ask for
// in advance; 0: the CPU finds out by itself.
template <class B, class Codes, class Tokens, class Ahead>
void few(B& b, const typename B::Arguments& a, Codes codes, const Epilogue& e, Tokens tokens, int panels, Ahead ahead) {
  const PanelCodes w = codes;
  const Launch<B> launch(b, a);
  const Output<B> output(b, launch, e);
  const Place<B> place(b, launch, a.block, panels);
  const auto x = launch.tile(b, place.tile, tokens, w);
  const auto w_at = b.load_ptr(b.at(a.args, offsetof(GemmArgs, w)));
  const auto panel_bytes = launch.panel_bytes(b, w);
  const auto first_token = b.mul(place.tile, b.constant(tokens));
  b.loop(place.first, place.last, 1, {}, [&](const typename B::I64& panel) TW_INLINE {
    const auto from = b.at(w_at, b.mul(panel, panel_bytes));
    const int parts = kPanelRows / b.lanes();
    std::array<typename B::Floats, 2 * kMostTokens> sums;
    for (int i = 0; i < parts * tokens; ++i) sums[i] = b.zero_floats();
    b.loop(b.constant(0), launch.blocks, 1, std::span(sums.data(), static_cast<std::size_t>(parts * tokens)),
           [&](const typename B::I64& block) {
             const BlockPlace<B> where(b, w, from, block);
             if (ahead > 0)
               for (int line = 0; line < w.bytes(); line += 64) b.prefetch(b.at(where.at, ahead + line));
             const auto record = b.at(x, b.mul(block, b.constant(tokens * token_bytes(w))));
             for (int part = 0; part < parts; ++part) {
               const Block<B> rows(b, w, where.group, where.at, part);
               for (int t = 0; t < tokens; ++t)
                 sums[part * tokens + t] =
                     rows.add(b, w, b.at(record, kBlock * t), b.at(record, tokens * kBlock + 4 * t), tokens,
                              sums[part * tokens + t]);
             }
           });
    const auto row = b.mul(panel, b.constant(kPanelRows));
    for (int t = 0; t < tokens; ++t) {
      const auto token = b.add(first_token, b.constant(t));
      b.if_less(token, launch.m, [&] {
        for (int part = 0; part < parts; ++part)
          output.store(b, token, b.add(row, b.constant(part * b.lanes())), sums[part * tokens + t]);
      });
    }
  });
}

}  // namespace
}  // namespace tilewright::cpu::TILEWRIGHT_CPU_KERNELS
