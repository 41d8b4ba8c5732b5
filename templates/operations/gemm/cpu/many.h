// SPDX-License-Identifier: Apache-2.0
// Many tokens by vectors: a block of w is unpacked once for all tokens of a tile. Part of kernels.h.
namespace tilewright::cpu::TILEWRIGHT_CPU_KERNELS {
namespace {

// A block of w, of some vectors of rows, unpacked in memory: of each its codes, then its scales and its minima.
template <class B>
struct Unpacked {
  typename B::Ptr at;
  PanelCodes w;
  int vectors, bytes;  // bytes: of a vector of 32 * lanes() bits

  TW_INLINE Unpacked(B& b, PanelCodes codes, const typename B::Ptr& memory, int count)
      : at(memory), w(codes), vectors(count), bytes(4 * b.lanes()) {}
  // Whether what codes stand for is in two parts of four bits (Block).
  static constexpr bool halved(B& b, PanelCodes w) { return w.wide() && !b.dot4(); }
  static constexpr int count(B& b, PanelCodes w) { return (halved(b, w) ? 16 : 8) + w.factors(); }

  TW_INLINE typename B::Ptr place(B& b, int vector, int i) const {
    return b.at(at, (vector * count(b, w) + i) * bytes);
  }
  TW_INLINE typename B::Bytes codes(B& b, int vector, int i) const { return b.load_bytes(place(b, vector, i)); }
  TW_INLINE typename B::Floats scales(B& b, int vector, int i) const {  // from i = w.scales on the minima
    return b.load_floats(place(b, vector, (halved(b, w) ? 16 : 8) + i));
  }
  TW_INLINE void store(B& b, int vector, const Block<B>& rows) const {
    for (int i = 0; i < 8; ++i) b.store_bytes(place(b, vector, i), rows.low[i]);
    const int first = halved(b, w) ? 16 : 8;
    if (first == 16)
      for (int i = 0; i < 8; ++i) b.store_bytes(place(b, vector, 8 + i), rows.high[i]);
    for (int s = 0; s < w.scales && !w.exact(); ++s) b.store_floats(place(b, vector, first + s), rows.scales[s]);
    for (int s = 0; s < w.scales && w.minima; ++s)
      b.store_floats(place(b, vector, first + w.scales + s), rows.minima[s]);
  }
};

constexpr int kMostWide = 4;       // panels side by side
constexpr int kMostProducts = 16;  // of integers that are in registers at a time

// The sums of a few tokens' products with a block's vectors of rows; those of token t and vector v at number
// v * together + t.
template <class B, class Vectors, class Together>
struct Products {
  std::array<typename B::Ints, kMostProducts> sums;

  // Of the columns of scale s. x, begin_at: of the first token.
  TW_INLINE Products(B& b, const Unpacked<B>& rows, int s, const typename B::Ptr& x, const typename B::Ptr& begin_at,
                     Vectors vectors, Together together) {
    const PanelCodes w = rows.w;
    const int each = 8 / w.scales, first = each * s;
    repeat(together, [&](auto t) TW_INLINE {
      const auto begin = begins(b, w) ? b.splat_ints(b.at(begin_at, 4 * t)) : b.zero_ints();
      repeat(vectors, [&](auto v) TW_INLINE { sums[v * together + t] = begin; });
    });
    if (b.dot4()) {
#pragma GCC unroll 8  // or GCC copies each sum once a turn
      for (int i = first; i < first + each; ++i)
        repeat(together, [&](auto t) TW_INLINE {
          const auto quad = b.splat_bytes(b.at(x, kBlock * t + 4 * i));
          repeat(vectors, [&](auto v) TW_INLINE {
            auto& sum = sums[v * together + t];
            sum = b.dot4(sum, rows.codes(b, v, i), quad);
          });
        });
    } else if (Unpacked<B>::halved(b, w)) {
      by_pairs(b, rows, first, each, 15, 0, 0, x, vectors, together);
      by_pairs(b, rows, first, each, 15, 8, 4, x, vectors, together);
    } else {
      by_pairs(b, rows, first, each, w.largest(), 0, 0, x, vectors, together);
    }
  }

 private:
  // Adds products of `each` groups of columns in words of 16 bits, as many as fit, shifted by `shift` bits.
  TW_INLINE void by_pairs(B& b, const Unpacked<B>& rows, int first, int each, int largest, int codes, int shift,
                          const typename B::Ptr& x, Vectors vectors, Together together) {
    const int fit = 32767 / (2 * 128 * largest),
              whole = fit >= 8   ? 8
                      : fit >= 4 ? 4
                                 : fit,
              n = whole < each ? whole : each;
    std::array<typename B::Words, kMostProducts> words;
    const auto quad = [&](int i, auto t) TW_INLINE { return b.splat_bytes(b.at(x, kBlock * t + 4 * i)); };
    for (int begin = first; begin < first + each; begin += n) {
      repeat(together, [&](auto t) TW_INLINE {
        const auto four = quad(begin, t);
        repeat(vectors,
               [&](auto v) TW_INLINE { words[v * together + t] = b.pairs(rows.codes(b, v, codes + begin), four); });
      });
      for (int i = begin + 1; i < begin + n; ++i)
        repeat(together, [&](auto t) TW_INLINE {
          const auto four = quad(i, t);
          repeat(vectors, [&](auto v) TW_INLINE {
            auto& word = words[v * together + t];
            word = b.add(word, b.pairs(rows.codes(b, v, codes + i), four));
          });
        });
      repeat(vectors, [&](auto v) TW_INLINE {
        repeat(together, [&](auto t) TW_INLINE {
          const auto sum = b.pair_sums(words[v * together + t]);
          auto& all = sums[v * together + t];
          all = b.add(all, shift ? b.shifted(sum, shift) : sum);
        });
      });
    }
  }
};

// Many tokens: sums of a tile are in memory, near enough to be fast, and a block of w is unpacked once for all of them.
// wide: panels side by side; together: tokens whose products with them are computed together. vectors of rows *
// together <= kMostProducts; `panels` is a multiple of wide, tokens of together.
template <class B, class Codes, class Tokens, class Wide, class Together>
void many(B& b, const typename B::Arguments& a, Codes codes, const Epilogue& e, Tokens tokens, int panels, Wide wide,
          Together together) {
  const PanelCodes w = codes;
  const Launch<B> launch(b, a);
  const int parts = kPanelRows / b.lanes(), bytes = 4 * b.lanes();
  const auto vectors = vectors_of(b, wide);
  const auto sums = b.stack(bytes * vectors * (tokens + Unpacked<B>::count(b, w)));
  const Unpacked<B> rows(b, w, b.at(sums, bytes * vectors * tokens), vectors);
  const Output<B> output(b, launch, e);
  const Place<B> place(b, launch, a.block, panels);
  const auto x = launch.tile(b, place.tile, tokens, w);
  const auto w_at = b.load_ptr(b.at(a.args, offsetof(GemmArgs, w)));
  const auto panel_bytes = launch.panel_bytes(b, w);
  const auto first_token = b.mul(place.tile, b.constant(tokens));
  const auto count = b.min(b.sub(launch.m, first_token), b.constant(tokens));
  // Sums of vector v and token t are at number t * vectors + v.
  const auto sum_at = [&](const typename B::Ptr& token, int t, int v) {
    return b.at(token, bytes * (t * vectors + v));
  };
  b.loop(place.first, place.last, wide, {}, [&](const typename B::I64& panel) {
    // Where fewer panels are left, the last one stands for those that are missing, and is stored once.
    std::array<typename B::Ptr, kMostWide> from;
    for (int p = 0; p < wide; ++p)
      from[p] = b.at(w_at, b.mul(b.min(b.add(panel, b.constant(p)), b.sub(place.last, b.constant(1))), panel_bytes));
    b.loop(b.constant(0), b.constant(std::int64_t{bytes} * vectors * tokens), bytes, {},
           [&](const typename B::I64& at) { b.store_floats(b.at(sums, at), b.zero_floats()); });
    b.loop(b.constant(0), launch.blocks, 1, {}, [&](const typename B::I64& block) {
      for (int p = 0; p < wide; ++p) {
        const BlockPlace<B> where(b, w, from[p], block);
        for (int part = 0; part < parts; ++part)
          rows.store(b, p * parts + part, Block<B>(b, w, where.group, where.at, part));
      }
      const auto record = b.at(x, b.mul(block, b.constant(tokens * token_bytes(w))));
      // Tokens beyond the last of a tile are computed where `together` has them, and not stored.
      b.loop(b.constant(0), count, together, {}, [&](const typename B::I64& t) {
        const auto token_codes = b.at(record, b.mul(t, b.constant(kBlock)));
        const auto token_scale = b.at(b.at(record, tokens * kBlock), b.mul(t, b.constant(4)));
        const auto token_sums = b.at(sums, b.mul(t, b.constant(bytes * vectors)));
        for (int s = 0; s < w.scales; ++s) {
          const Products<B, std::remove_const_t<decltype(vectors)>, Together> products(
              b, rows, s, token_codes, b.at(token_scale, 4 * tokens * (s + 1)), vectors, together);
          repeat(together, [&](auto i) TW_INLINE {
            const auto d = b.splat_floats(b.at(token_scale, 4 * i));
            repeat(vectors, [&](auto v) TW_INLINE {
              const auto at = sum_at(token_sums, i, v);
              auto acc = add_scaled(b, w, products.sums[v * together + i], w.exact() ? d : rows.scales(b, v, s), d,
                                    b.load_floats(at));
              for (int q = 0; q < w.scales && w.minima && s + 1 == w.scales; ++q)
                acc = b.fma(rows.scales(b, v, w.scales + q),
                            b.splat_floats(b.at(token_scale, 4 * (tokens * (q + 1) + i))), acc);
              b.store_floats(at, acc);
            });
          });
        }
      });
    });
    const auto row = b.mul(panel, b.constant(kPanelRows));
    b.loop(b.constant(0), count, 1, {}, [&](const typename B::I64& t) {
      const auto token_sums = b.at(sums, b.mul(t, b.constant(bytes * vectors)));
      for (int p = 0; p < wide; ++p)
        b.if_less(b.add(panel, b.constant(p)), place.last, [&] {
          for (int v = parts * p; v < parts * (p + 1); ++v)
            output.store(b, b.add(first_token, t), b.add(row, b.constant(v * b.lanes())),
                         b.load_floats(sum_at(token_sums, 0, v)));
        });
    });
  });
}

}  // namespace
}  // namespace tilewright::cpu::TILEWRIGHT_CPU_KERNELS
