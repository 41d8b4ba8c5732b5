// SPDX-License-Identifier: Apache-2.0
// Blocks of a panel of codes (panels.h), unpacked to registers, and their products with a token. Part of kernels.h.
namespace tilewright::cpu::TILEWRIGHT_CPU_KERNELS {
namespace {

// Whether sums of products begin with what unsigned codes add too much.
template <class B>
bool begins(B& b, PanelCodes w) {
  return !w.minima && !b.signed_codes();
}

// acc + a sum of products of codes times the scales of both; where there are none, as integers.
template <class B>
TW_INLINE inline typename B::Floats add_scaled(B& b, PanelCodes w, const typename B::Ints& sum,
                                               const typename B::Floats& scale, const typename B::Floats& d,
                                               const typename B::Floats& acc) {
  return w.exact() ? b.of_bits(b.add(b.bits(acc), sum)) : b.fma(b.floats(sum), b.mul(scale, d), acc);
}

// A block of w, of lanes() rows. Codes, or the levels that they name, are unsigned bytes, but for signed_codes(), four
// columns a row; without dot4() wide ones are nibbles, since sums of larger products do not fit in 16 bits.
template <class B>
struct Block {
  std::array<typename B::Bytes, 8> low, high;
  std::array<typename B::Floats, 2> scales;
  std::array<typename B::Floats, 2> minima;  // of the columns of each scale

  // `part`: of the panel's rows.
  TW_INLINE Block(B& b, PanelCodes w, const typename B::Ptr& group, const typename B::Ptr& block, int part) {
    const int bytes = 4 * b.lanes(), step = 4 * kPanelRows;  // of four columns
    const auto vector = [&](int i) { return b.load_bytes(b.at(block, step * i + bytes * part)); };
    if (w.bits == 8) {
      for (int i = 0; i < 8; ++i) {
        const auto v = vector(i);
        if (b.dot4())
          low[i] = v;
        else
          low[i] = b.field(v, 0, 4, 0), high[i] = b.field(v, 4, 4, 0);
      }
    } else {
      for (int i = 0; i < 4; ++i) {
        const auto v = vector(i);
        low[i] = b.field(v, 0, 4, 0), low[i + 4] = b.field(v, 4, 4, 0);
      }
      for (int i = 0; i < 8 && w.named(); ++i) {
        low[i] = b.level(low[i], w.levels);
        if (w.wide() && !b.dot4()) high[i] = b.field(low[i], 4, 4, 0), low[i] = b.field(low[i], 0, 4, 0);
      }
      for (int v = 0; v < w.bits - 4; ++v) {
        const auto upper = vector(4 + v);
        const int count = 8 / (w.bits - 4);  // of groups of four columns
        for (int i = 0; i < count; ++i) {
          auto& code = low[count * v + i];
          code = b.either(code, b.field(upper, (w.bits - 4) * i, w.bits - 4, 4));
        }
      }
    }
    if (b.signed_codes())
      for (auto& code : low) code = b.less_offset(code, w.offset);
    const int first = b.lanes() * part;  // row
    if (w.scale == PanelScale::row) scales[0] = b.load_floats(b.at(group, 4 * first));
    if (w.scale == PanelScale::front) {
      scales[0] = b.load_halves(b.at(group, 2 * first));
      if (w.minima) minima[0] = b.mul(b.load_halves(b.at(group, 2 * (kPanelRows + first))), scales[0]);
      return;
    }
    for (int s = 0; s < w.scales && w.scale != PanelScale::row && !w.exact(); ++s) {
      const int at = w.code_bytes() + kPanelRows * (w.scale == PanelScale::grouped ? 1 : 2) * s;
      scales[s] = w.scale == PanelScale::grouped
                      ? b.mul(in_front(b, w, b.at(group, 2 * first)), b.floats(b.load_codes(b.at(block, at + first))))
                  : w.scale == PanelScale::half ? b.load_halves(b.at(block, at + 2 * first))
                                                : b.load_bf16s(b.at(block, at + 2 * first));
    }
    for (int s = 0; s < w.scales && w.minima; ++s) {
      const int number = kPanelRows * (w.scales + s) + first;
      minima[s] = w.scale == PanelScale::half ? b.load_halves(b.at(block, w.code_bytes() + 2 * number))
                                              : b.mul(b.load_halves(b.at(group, 2 * (kPanelRows + first))),
                                                      b.floats(b.load_codes(b.at(block, w.code_bytes() + number))));
    }
  }

  // What grouped scales count in.
  TW_INLINE static typename B::Floats in_front(B& b, PanelCodes w, const typename B::Ptr& halves) {
    const auto d = b.load_halves(halves);
    return w.halvings ? b.mul(d, b.splat(1.0f / static_cast<float>(1 << w.halvings))) : d;
  }
  // Four columns' codes, whole ones.
  typename B::Bytes whole(B& b, PanelCodes w, int i) const {
    return w.wide() && !b.dot4() ? b.either(low[i], b.field(high[i], 0, 4, 4)) : low[i];
  }
  // Products of the columns of scale s.
  TW_INLINE typename B::Ints products(B& b, PanelCodes w, int s, int largest,
                                      const std::array<typename B::Bytes, 8>& codes,
                                      const std::array<typename B::Bytes, 8>& x) const {
    const int each = 8 / w.scales, fit = 32767 / (2 * 128 * largest), together = fit >= 8 ? 8 : fit >= 4 ? 4 : fit;
    const int step = together < each ? together : each;
    typename B::Ints sum;
    for (int first = each * s; first < each * (s + 1); first += step) {
      auto words = b.pairs(codes[first], x[first]);
      for (int i = 1; i < step; ++i) words = b.add(words, b.pairs(codes[first + i], x[first + i]));
      sum = first == each * s ? b.pair_sums(words) : b.add(sum, b.pair_sums(words));
    }
    return sum;
  }
  // acc + the products with one token, whose codes and scale are at `token` and `scale`.
  TW_INLINE typename B::Floats add(B& b, PanelCodes w, const typename B::Ptr& token, const typename B::Ptr& scale,
                                   int tokens, typename B::Floats acc) const {
    std::array<typename B::Bytes, 8> x;
    for (int i = 0; i < 8; ++i) x[i] = b.splat_bytes(b.at(token, 4 * i));
    const auto d = b.splat_floats(scale);
    for (int s = 0; s < w.scales; ++s) {
      const auto begin = b.at(scale, 4 * tokens * (s + 1));
      auto sum = begins(b, w) ? b.splat_ints(begin) : b.zero_ints();
      if (b.dot4()) {
        for (int i = 8 / w.scales * s; i < 8 / w.scales * (s + 1); ++i) sum = b.dot4(sum, low[i], x[i]);
      } else if (w.wide()) {
        sum = b.add(sum, products(b, w, s, 15, low, x));
        sum = b.add(sum, b.shifted(products(b, w, s, 15, high, x), 4));
      } else {
        sum = b.add(sum, products(b, w, s, w.largest(), low, x));
      }
      acc = add_scaled(b, w, sum, scales[s], d, acc);
    }
    for (int s = 0; s < w.scales && w.minima; ++s)
      acc = b.fma(minima[s], b.splat_floats(b.at(scale, 4 * tokens * (s + 1))), acc);
    return acc;
  }
};

// Where block `block` of a panel is, and what stands in front of its group, or of the panel.
template <class B>
struct BlockPlace {
  typename B::Ptr at, group;
  TW_INLINE BlockPlace(B& b, PanelCodes w, const typename B::Ptr& panel, const typename B::I64& block)
      : at(b.at(b.at(panel, w.head_bytes()), b.mul(block, b.constant(w.bytes())))), group(panel) {
    if (w.group_bytes() == 0) return;
    const auto number = b.div(block, b.constant(w.blocks()));
    group = b.at(panel, b.mul(number, b.constant(w.blocks() * w.bytes() + w.group_bytes())));
    at = b.at(b.at(at, b.mul(number, b.constant(w.group_bytes()))), w.group_bytes());
  }
};

}  // namespace
}  // namespace tilewright::cpu::TILEWRIGHT_CPU_KERNELS
