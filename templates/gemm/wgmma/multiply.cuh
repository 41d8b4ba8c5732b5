// SPDX-License-Identifier: Apache-2.0
// How the warpgroup kernel multiplies: a part of k of one tile, stage by stage, into a thread's sums. P is the kernel
// (wgmma.cuh), whose ring and tile these are. Seven ways, by where weights come from and whether scales apply to
// products:
//   multiply_plain     by warpgroups, sums in the matrix units, both operands from shared memory
//   multiply_unpacked  the same of coded weights, unpacked into registers
//   multiply_warps     WARPS: coded weights by single warps
//   multiply_codes     the same where x is codes too, in blocks with scales; multiply_row: of one token
//   multiply_apart     plain weights, a panel's products added up outside the matrix units
//   multiply_deferred  the same of coded ones
#pragma once
#include "arch/sm90.cuh"
#include "core/tiles.cuh"

namespace tw::gemm {

template <class X, class P>
struct WarpgroupProducts {
  using Element = tile_element<X>;
  using Product = typename P::Product;
  using Weights = typename P::Weights;
  using Scales = typename P::Scales;
  using Ring = typename P::Ring;
  using Tiles = typename P::Tiles;
  using Sums = typename P::Sums;
  static constexpr WgmmaKind kKind = P::kKind;
  static constexpr int BM = P::kColumns, BN = P::BN, STRIPS = P::kStrips, GROUPS = P::kGroups, KGROUPS = P::kKGroups,
                       PANELS = P::kPanels;
  static constexpr int kStripRows = P::kStripRows, kSums = P::kSums;
  static constexpr int kItems = PANELS / KGROUPS;  // of a stage's panels a warpgroup's: those from k_group * kItems on
  static constexpr int kPanelBytes = P::kPanelBytes, kXBytes = P::kXBytes, kStageBytes = P::kStageBytes;
  static constexpr bool TURNED = P::kTurned, kDeferred = P::kDeferred;

  TW_MEMBER static void multiply(Ring& ring, const Tiles& tiles, const Scales& scales, Sums& sums, int thread) {
    const int lane = thread % 32, warpgroup = uniform(thread / 128);
    const int group = warpgroup % GROUPS, k_group = KGROUPS > 1 ? warpgroup / GROUPS : 0;
    TW_UNROLL for (int s = 0; s < STRIPS; ++s) TW_UNROLL for (int i = 0; i < kSums; ++i) sums[s][i] = 0;
    const u32 x_base = wgmma_descriptor(ring.stages);
    if constexpr (P::kCodes && P::kBM == 1)
      multiply_row(ring, tiles, sums, group, k_group, thread, lane);
    else if constexpr (P::kCodes)
      multiply_codes(ring, tiles, sums, group, k_group, thread, lane);
    else if constexpr (P::kWarps)
      multiply_warps(ring, tiles, sums, group, k_group, thread, lane);
    else if constexpr (kDeferred && !Weights::kRegisters)
      multiply_apart(ring, tiles, scales, sums, x_base, group, k_group, lane);
    else if constexpr (kDeferred)
      multiply_deferred(ring, tiles, sums, x_base, group, k_group, thread, lane);
    else if constexpr (Weights::kRegisters)
      multiply_unpacked(ring, tiles, sums, x_base, group, k_group, thread, lane);
    else
      multiply_plain(ring, tiles, sums, x_base, group, k_group, lane);
  }

  // Descriptors count in units of 16 bytes. Known to be equal in a warp, they are not moved from its threads' registers
  // one by one. (Where tokens are many, the compiler knows.)
  TW_MEMBER static u32 stage_of(u32 base, const Ring& ring) {
    const int at = static_cast<int>(base) + ring.stage * (kStageBytes / 16);
    return static_cast<u32>(P::kFew ? uniform(at) : at);
  }
  static constexpr u32 kPanel = kPanelBytes / 16;

  TW_MEMBER static void multiply_plain(Ring& ring, const Tiles& tiles, Sums& sums, u32 x_base, int group, int k_group,
                                       int lane) {
    int previous = -1;
    TW_NO_UNROLL for (u32 kb = tiles.k_begin; kb < tiles.k_end; ++kb) {
      const u32 x = stage_of(x_base, ring), w = x + kXBytes / 16 + group * STRIPS * kStripRows * 8;
      barrier_wait(ring.full + ring.stage, ring.phase);
      wgmma_fence();
      TW_UNROLL for (int i = 0; i < kItems; ++i) {
        const int p = k_group * kItems + i;
        TW_UNROLL for (int step = 0; step < 4; ++step)  // 32 bytes of a row each
            TW_UNROLL for (int s = 0; s < STRIPS; ++s) Wgmma<kKind, BM>::ss(
                sums[s], w + static_cast<u32>(p * BN * 128 + s * kStripRows * 128 + step * 32) / 16,
                x + static_cast<u32>(p * kPanelBytes + step * 32) / 16, true);
      }
      wgmma_commit();
      wgmma_wait<1>();  // the stage before is read
      if (previous >= 0) P::release(ring, previous, lane);
      previous = ring.stage;
      ring.advance();
    }
    wgmma_wait<0>();
    if (previous >= 0) P::release(ring, previous, lane);
  }

  // A batch of steps is unpacked while the one before multiplies: a whole panel where registers allow two panels'
  // fragments, else a step. Its codes have been read from shared memory one panel before.
  TW_MEMBER static void multiply_unpacked(Ring& ring, const Tiles& tiles, Sums& sums, u32 x_base, int group,
                                          int k_group, int thread, int lane) {
    constexpr int kBatches = kItems * STRIPS;
    constexpr bool kWhole = STRIPS * kSums <= 64 && kBatches % 2 == 0;
    u32 a[kWhole ? 2 : 1][4][4];  // until the last wait: products read it
    u32 words[2][Weights::kWords];
    typename Weights::Tile::Scales scales[2];
    int previous = -1;
    for (u32 kb = tiles.k_begin; kb < tiles.k_end; ++kb) {
      const u32 x_stage = stage_of(x_base, ring);
      barrier_wait(ring.full + ring.stage, ring.phase);
      const auto read = [&](int item) {
        const int i = item / STRIPS, strip = group * STRIPS + item % STRIPS;
        Weights::template read_codes<kItems>(ring.w(), strip, k_group, i, thread % 128, words[item % 2]);
        scales[item % 2] = Weights::template read_scales<kItems>(ring.w(), strip, kb, k_group, i, thread % 128);
      };
      read(0);
      TW_UNROLL for (int item = 0; item < kBatches; ++item) {
        const int p = k_group * kItems + item / STRIPS, s = item % STRIPS;
        const u32 x = x_stage + p * kPanel;
        if (item + 1 < kBatches) read(item + 1);
        if constexpr (kWhole) {
          u32(&batch)[4][4] = a[item % 2];
          wgmma_wait<4>();  // what this batch held is read
          if (item == 1 && previous >= 0) P::release(ring, previous, lane);
          TW_UNROLL for (int step = 0; step < 4; ++step)
              Weights::Tile::fragment(words[item % 2], step, scales[item % 2], batch[step]),
              pin(batch[step]);
          TW_UNROLL for (int step = 0; step < 4; ++step) {
            wgmma_fence();
            Wgmma<kKind, BM>::rs(sums[s], batch[step], x + step * 2, true);
            wgmma_commit();
          }
        } else {
          TW_UNROLL for (int step = 0; step < 4; ++step) {
            wgmma_wait<3>();
            if (item == 0 && step == 3 && previous >= 0) P::release(ring, previous, lane);
            Weights::Tile::fragment(words[item % 2], step, scales[item % 2], a[0][step]);
            wgmma_fence();
            Wgmma<kKind, BM>::rs(sums[s], a[0][step], x + step * 2, true);
            wgmma_commit();
          }
        }
      }
      previous = ring.stage;
      ring.advance();
    }
    wgmma_wait<0>();
    if (previous >= 0) P::release(ring, previous, lane);
  }

  // Fragments are those of the warpgroup instruction, a quarter of it to a warp; x's come through ldmatrix.
  TW_MEMBER static void multiply_warps(Ring& ring, const Tiles& tiles, Sums& sums, int group, int k_group, int thread,
                                       int lane) {
    using Tile = typename Weights::Tile;
    constexpr int kTokens = BM / 8;
    constexpr int kXGroups = x_groups<Tile>;
    [[maybe_unused]] constexpr int kAtOnce =
        kXGroups > 0 ? 2 / STRIPS : kItems;  // with more in flight registers run out
    // Of this lane's pieces of x, the two of a panel.
    const int row = P::kBM == 1 ? 0 : lane % 8;
    const u8* const own = ring.stages + k_group * (kItems * kPanelBytes) + row * 128;
    const u8* const pieces[2] = {own + ((lane / 8) ^ row) * 16, own + ((4 + lane / 8) ^ row) * 16};
    for (u32 kb = tiles.k_begin; kb < tiles.k_end; ++kb) {
      barrier_wait(ring.full + ring.stage, ring.phase);
      const int stage = ring.stage * kStageBytes;
      const SharedRows rows[2] = {SharedRows(pieces[0] + stage), SharedRows(pieces[1] + stage)};
      TW_UNROLL_BY(kAtOnce) for (int i = 0; i < kItems; ++i) {
        u32 b[kTokens][2][4];
        TW_UNROLL for (int t = 0; t < kTokens; ++t) TW_UNROLL for (int h = 0; h < 2; ++h) rows[h].ldmatrix_x4(
            b[t][h], i * kPanelBytes + t * 1024);
        const auto multiply_step = [&](int step, const u32(&a)[4], Product(&products)[kTokens][4]) {
          TW_UNROLL for (int t = 0; t < kTokens; ++t) {
            const u32 pair[2] = {b[t][step / 2][step % 2 * 2], b[t][step / 2][step % 2 * 2 + 1]};
            if constexpr (kKind == WgmmaKind::s8)
              mma_s8_k32(products[t], a, pair);
            else
              mma_k16<Element>(products[t], a, pair);
          }
        };
        Product x_sums[max2(1, kXGroups)][kTokens][4] = {};  // the same for all rows
        if constexpr (kXGroups > 0) {
          static_assert(same<Element, bf16>, "ones");
          constexpr u32 kOnes[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
          TW_UNROLL for (int step = 0; step < 4; ++step) multiply_step(step, kOnes, x_sums[step * kXGroups / 4]);
        }
        TW_UNROLL for (int s = 0; s < STRIPS; ++s) {
          u32 words[Weights::kWords];
          Weights::template read_codes<kItems>(ring.w(), group * STRIPS + s, k_group, i, thread % 128, words);
          const typename Tile::Scales scales =
              Weights::template read_scales<kItems>(ring.w(), group * STRIPS + s, kb, k_group, i, thread % 128);
          const auto multiply_weights = [&](int step, Product(&products)[kTokens][4]) {
            u32 a[4];
            Tile::fragment(words, step, scales, a);
            multiply_step(step, a, products);
          };
          if constexpr (kDeferred) {
            constexpr int kGroups = Tile::kGroups, kSteps = 4 / kGroups;  // of a panel, and steps of each
            TW_UNROLL for (int g = 0; g < kGroups; ++g) {
              Product products[kTokens][4] = {};
              TW_UNROLL for (int step = g * kSteps; step < (g + 1) * kSteps; ++step) multiply_weights(step, products);
              TW_UNROLL for (int t = 0; t < kTokens; ++t) TW_UNROLL for (int j = 0; j < 4; ++j) {
                if constexpr (kXGroups > 0)
                  sums[s][4 * t + j] += Tile::row_minimum(scales, j / 2, g * kSteps) * x_sums[g][t][j];
                sums[s][4 * t + j] += Tile::row_scale(scales, j / 2, g * kSteps) * static_cast<float>(products[t][j]);
              }
            }
          } else {
            Product products[kTokens][4];
            TW_UNROLL for (int t = 0; t < kTokens; ++t) TW_UNROLL for (int j = 0; j < 4; ++j) products[t][j] =
                static_cast<Product>(sums[s][4 * t + j]);
            TW_UNROLL for (int step = 0; step < 4; ++step) multiply_weights(step, products);
            TW_UNROLL for (int t = 0; t < kTokens; ++t) TW_UNROLL for (int j = 0; j < 4; ++j) sums[s][4 * t + j] =
                products[t][j];
          }
        }
      }
      P::release(ring, ring.stage, lane);
      ring.advance();
    }
  }

  // Codes by codes: a group's products are exact integers, to which the scales of both sides apply. x's blocks are read
  // as they are stored, two panels of a row together; a lane has token lane / 4's codes and, of products, tokens 2
  // (lane % 4) and the next.
  TW_MEMBER static void multiply_codes(Ring& ring, const Tiles& tiles, Sums& sums, int group, int k_group, int thread,
                                       int lane) {
    using Tile = typename Weights::Tile;
    constexpr int kRowBytes = P::kRowBytes, kTogether = P::kTogether, kGroups = 2,
                  kBlock = X::kDataBytes;  // of a panel; bytes of a group
    static_assert(kRowBytes == kTogether * kGroups * kBlock && Tile::kGroups <= kGroups, "blocks of 32");
    const u8* const own = ring.stages + k_group * (kItems * kPanelBytes);
    const u8 *const codes = own + lane / 4 * kRowBytes + X::kCodesAt + lane % 4 * 2, *const scales_of_x =
                                                                                         own + lane % 4 * 2 * kRowBytes;
    // Added to 1.5 2^23, whose mantissa ends with the units, a sum of products (at most 2^20) is a float's bits: times
    // a scale, less what that makes of 1.5 2^23, which is exact as well, it is rounded once, and no conversion is
    // needed. (Zeros that ptxas does not know to be such keep it from moving four constants before each product.)
    constexpr float kUnits = 12582912.0f;
    i32 none[4];
    TW_UNROLL for (int j = 0; j < 4; ++j) none[j] = bits_as<i32>(kUnits) + static_cast<i32>(tiles.k_end >> (28 + j));
    for (u32 kb = tiles.k_begin; kb < tiles.k_end; ++kb) {
      barrier_wait(ring.full + ring.stage, ring.phase);
      const int stage = ring.stage * kStageBytes;
      TW_UNROLL_BY(kTogether) for (int i = 0; i < kItems; ++i) {
        const int panel = stage + i / kTogether * (kTogether * kPanelBytes) + i % kTogether * (kGroups * kBlock);
        u32 words[STRIPS][Weights::kWords];
        typename Tile::Scales scales[STRIPS];
        TW_UNROLL for (int s = 0; s < STRIPS; ++s) {
          Weights::template read_codes<kItems>(ring.w(), group * STRIPS + s, k_group, i, thread % 128, words[s]);
          scales[s] = Weights::template read_scales<kItems>(ring.w(), group * STRIPS + s, kb, k_group, i, thread % 128);
        }
        TW_UNROLL for (int g = 0; g < kGroups; ++g) {
          u32 a[STRIPS][4];
          float of_w[STRIPS][2], less[STRIPS][2];
          TW_UNROLL for (int s = 0; s < STRIPS; ++s) {
            Tile::Bytes::fragment(words[s], g, a[s]);
            TW_UNROLL for (int row = 0; row < 2; ++row) of_w[s][row] = Tile::row_scale(scales[s], row, 2 * g),
                                                        less[s][row] = -kUnits * of_w[s][row];
          }
          TW_UNROLL for (int t = 0; t < BM / 8; ++t) {
            const int at = panel + g * kBlock + t * 8 * kRowBytes;
            u32 b[2];
            TW_UNROLL for (int h = 0; h < 2; ++h) b[h] =
                prmt(read_pair(codes + at + 16 * h), read_pair(codes + at + 16 * h + 8), Tile::Bytes::kOrder);
            float of_x[2];
            TW_UNROLL for (int token = 0; token < 2; ++token) of_x[token] =
                low_half<f16>(read_pair(scales_of_x + at + token * kRowBytes));
            float sum_of_x[2];
            if constexpr (Tile::kOffset) {
              constexpr u32 kOnes[4] = {0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u};
              i32 codes_of_x[4] = {};  // the same for all rows
              mma_s8_k32(codes_of_x, kOnes, b);
              TW_UNROLL for (int token = 0; token < 2; ++token) sum_of_x[token] =
                  of_x[token] * static_cast<float>(codes_of_x[token]);
            }
            TW_UNROLL for (int s = 0; s < STRIPS; ++s) {
              i32 products[4];
              mma_s8_k32(products, a[s], b, none);
              TW_UNROLL for (int j = 0; j < 4; ++j) sums[s][4 * t + j] +=
                  fma_rn(bits_as<float>(products[j]), of_w[s][j / 2], less[s][j / 2]) * of_x[j % 2];
              if constexpr (Tile::kOffset)
                TW_UNROLL for (int j = 0; j < 4; ++j) sums[s][4 * t + j] +=
                    Tile::row_minimum(scales[s], j / 2, 2 * g) * sum_of_x[j % 2];
            }
          }
        }
      }
      P::release(ring, ring.stage, lane);
      ring.advance();
    }
  }

  // The same of one token, whose groups take the place of tokens: of eight groups in turn each is multiplied by its
  // part of x in one column and zeros in the others, so that products of all come to lie side by side, and scales apply
  // to eight groups at once.
  TW_MEMBER static void multiply_row(Ring& ring, const Tiles& tiles, Sums& sums, int group, int k_group, int thread,
                                     int lane) {
    using Tile = typename Weights::Tile;
    constexpr int kGroups = 2, kBlock = X::kDataBytes, kTaken = 4;  // of a panel; bytes of a group; panels at a time
    static_assert(P::kRowBytes == P::kTogether * kGroups * kBlock && Tile::kGroups <= kGroups, "blocks of 32");
    static_assert(kItems % kTaken == 0, "knobs");
    const int column = lane / 4,
              pair = lane % 4;  // this lane's codes of x are column's, its products those of groups 2 pair and the next
    const u8* const own = (P::kQuantizes ? ring.row : ring.stages) + k_group * (kItems * kPanelBytes);
    const u8 *const codes = own + column * kBlock + X::kCodesAt + pair * 2, *const scales_of_x =
                                                                                own + pair * kGroups * kBlock;
    for (u32 kb = tiles.k_begin; kb < tiles.k_end; ++kb) {
      barrier_wait(ring.full + ring.stage, ring.phase);
      const int stage =
          P::kQuantizes ? static_cast<int>(kb - ring.row_begin) * (PANELS * kPanelBytes) : ring.stage * kStageBytes;
      TW_UNROLL for (int first = 0; first < kItems; first += kTaken) {
        const int at = stage + first * kPanelBytes;
        u32 b[2];
        TW_UNROLL for (int h = 0; h < 2; ++h) b[h] =
            prmt(read_pair(codes + at + 16 * h), read_pair(codes + at + 16 * h + 8), Tile::Bytes::kOrder);
        i32 products[STRIPS][4] = {}, codes_of_x[4] = {};  // the latter the same for all rows
        TW_UNROLL for (int i = 0; i < kTaken; ++i) {
          u32 words[STRIPS][Weights::kWords];
          TW_UNROLL for (int s = 0; s < STRIPS; ++s) Weights::template read_codes<kItems>(
              ring.w(), group * STRIPS + s, k_group, first + i, thread % 128, words[s]);
          TW_UNROLL for (int g = 0; g < kGroups; ++g) {
            const bool own_column = column == i * kGroups + g;
            const u32 only[2] = {own_column ? b[0] : 0u, own_column ? b[1] : 0u};
            TW_UNROLL for (int s = 0; s < STRIPS; ++s) {
              u32 a[4];
              Tile::Bytes::fragment(words[s], g, a);
              mma_s8_k32(products[s], a, only);
            }
            if constexpr (Tile::kOffset) {
              constexpr u32 kOnes[4] = {0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u};
              mma_s8_k32(codes_of_x, kOnes, only);
            }
          }
        }
        float of_x[kGroups];
        TW_UNROLL for (int g = 0; g < kGroups; ++g) of_x[g] = low_half<f16>(read_pair(scales_of_x + at + g * kBlock));
        TW_UNROLL for (int s = 0; s < STRIPS; ++s) {
          const typename Tile::Scales scales = Weights::template read_scales<kItems>(
              ring.w(), group * STRIPS + s, kb, k_group, first + pair, thread % 128);
          TW_UNROLL for (int j = 0; j < 4; ++j) {
            const int row = j / 2, g = j % 2;
            sums[s][j] += (Tile::row_scale(scales, row, 2 * g) * of_x[g]) * static_cast<float>(products[s][j]);
            if constexpr (Tile::kOffset)
              sums[s][j] += Tile::row_minimum(scales, row, 2 * g) * (of_x[g] * static_cast<float>(codes_of_x[j]));
          }
        }
      }
      P::release(ring, ring.stage, lane);
      ring.advance();
    }
    // Of all columns, the token's.
    TW_UNROLL for (int s = 0; s < STRIPS; ++s) TW_UNROLL for (int row = 0; row < 2; ++row) {
      float sum = sums[s][2 * row] + sums[s][2 * row + 1];
      sum += shuffle_xor(sum, 1);
      sum += shuffle_xor(sum, 2);
      sums[s][2 * row] = sums[s][2 * row + 1] = sum;
    }
  }
  TW_MEMBER static u32 read_pair(const u8* at) { return *reinterpret_cast<const u16*>(at); }

  template <class Scales>
  TW_MEMBER static float row_scale(const Scales& scales, int row) {
    if constexpr (Weights::kDeferred)
      return Weights::Tile::row_scale(scales, row);
    else
      return 1.0f;
  }

  // Both operands in shared memory. The matrix units are the other warpgroup's while this one adds.
  TW_MEMBER static void multiply_apart(Ring& ring, const Tiles& tiles, const Scales& scales, Sums& sums, u32 x_base,
                                       int group, int k_group, int lane) {
    // Scales come from L2 and later than a panel's products: where registers allow, they are fetched a panel ahead,
    // into one set of registers while the other is used. Stages of one panel are therefore taken in twos.
    constexpr bool kAhead = Scales::kAny && TURNED;
    constexpr int kStages = kAhead ? 1 + kItems % 2 : 1;
    Product products[kSums];
    typename Scales::Factors factors[2];
    if constexpr (kAhead) factors[0] = scales.at(tiles.k_begin * PANELS);
    for (u32 first = tiles.k_begin; first < tiles.k_end; first += kStages)
      TW_UNROLL for (int stage = 0; stage < kStages; ++stage) {
        const u32 kb = first + stage;
        if (stage > 0 && kb == tiles.k_end) break;
        barrier_wait(ring.full + ring.stage, ring.phase);
        const u32 at = stage_of(x_base, ring);
        TW_UNROLL for (int i = 0; i < kItems; ++i) TW_UNROLL for (int s = 0; s < STRIPS; ++s) {
          const int p = k_group * kItems + i, set = kAhead ? (stage * kItems + i) % 2 : 0;
          if constexpr (Scales::kAny && !kAhead) {
            if (s == 0) factors[0] = scales.at(kb * PANELS + p);
          }
          const u32 x = at + p * kPanel, w = at + kXBytes / 16 + (p * BN + (group * STRIPS + s) * kStripRows) * 8;
          await_turn(group, k_group);
          wgmma_fence();
          TW_UNROLL for (int step = 0; step < 4; ++step)
              Wgmma<kKind, BM>::ss(products, w + step * 2, x + step * 2, step > 0);
          wgmma_commit();
          pass_turn(group, k_group);
          if constexpr (kAhead) {
            if (s == 0) factors[1 - set] = scales.at(kb * PANELS + p + 1);
          }
          wgmma_wait<0>();
          if (i + 1 == kItems && s + 1 == STRIPS) P::release(ring, ring.stage, lane);
          TW_UNROLL for (int j = 0; j < kSums; ++j) {
            if constexpr (Scales::kAny)
              sums[s][j] += factors[set].of(s, j) * products[j];
            else
              sums[s][j] += products[j];
          }
        }
        ring.advance();
      }
  }

  // Warpgroups whose products are kept apart take turns with the matrix units: one adds while another multiplies. Left
  // to themselves they multiply at the same time, and then all add. (Two strips of many tokens without scales have no
  // register left for it.)
  static constexpr bool kTurns = kDeferred && !Weights::kRegisters && BM > 64 && GROUPS* KGROUPS > 1 &&
                                 (STRIPS == 1 || TURNED);
  static constexpr u32 kTurnBarrier = 9;  // and those after it, one for each warpgroup
  TW_MEMBER static void await_turn(int group, int k_group) {
    if constexpr (kTurns) sync_named(kTurnBarrier + static_cast<u32>(k_group * GROUPS + group), 256);
  }
  TW_MEMBER static void pass_turn(int group, int k_group) {
    if constexpr (kTurns)
      arrive_named(kTurnBarrier + static_cast<u32>((k_group * GROUPS + group + 1) % (GROUPS * KGROUPS)), 256);
  }

  // A panel's products are complete before its scales apply: the other warpgroup has the matrix units meanwhile. The
  // next panel's fragments are unpacked while this one's multiply.
  TW_MEMBER static void multiply_deferred(Ring& ring, const Tiles& tiles, Sums& sums, u32 x_base, int group,
                                          int k_group, int thread, int lane) {
    static_assert(STRIPS == 1 && kItems % 2 == 0, "two batches of fragments take turns");
    if (tiles.k_begin >= tiles.k_end) return;
    u32 a[2][4][4];
    typename Weights::Tile::Scales scales[2];
    Product products[kSums];
    const auto unpack = [&](const Ring& from, u32 kb, int i, u32(&to)[4][4],
                            typename Weights::Tile::Scales& to_scales) {
      u32 words[Weights::kWords];
      Weights::template read_codes<kItems>(from.w(), group, k_group, i, thread % 128, words);
      to_scales = Weights::template read_scales<kItems>(from.w(), group, kb, k_group, i, thread % 128);
      TW_UNROLL for (int step = 0; step < 4; ++step) {
        Weights::Tile::fragment(words, step, to_scales, to[step]);
        pin(to[step]);
      }
    };
    barrier_wait(ring.full + ring.stage, ring.phase);
    unpack(ring, tiles.k_begin, 0, a[0], scales[0]);
    for (u32 kb = tiles.k_begin; kb < tiles.k_end; ++kb) {
      const u32 x_stage = stage_of(x_base, ring) + k_group * kItems * kPanel;
      TW_UNROLL for (int i = 0; i < kItems; ++i) {
        // (Where tokens are many, the long way: ptxas orders the loop after it so that what is fastest takes up to 6 %
        // less.)
        const u32 x = P::kFew ? x_stage + i * kPanel
                              : x_base + (ring.stage * kStageBytes + (k_group * kItems + i) * kPanelBytes) / 16;
        wgmma_fence();
        TW_UNROLL for (int step = 0; step < 4; ++step)
            Wgmma<kKind, BM>::rs(products, a[i % 2][step], x + step * 2, step > 0);
        wgmma_commit();
        Ring next = ring;
        u32 next_kb = kb;
        if (i + 1 == kItems && kb + 1 < tiles.k_end) {
          next.advance(), ++next_kb;
          barrier_wait(next.full + next.stage, next.phase);
        }
        unpack(next, next_kb, (i + 1) % kItems, a[(i + 1) % 2],
               scales[(i + 1) % 2]);  // after the last: again, and not used
        if constexpr (P::kAhead)
          TW_UNROLL for (int step = 0; step < 4; ++step)
              complete(a[(i + 1) % 2][step], static_cast<i32>(kb) < 0, ring.stages);
        wgmma_wait<0>();
        if (i + 1 == kItems) P::release(ring, ring.stage, lane);
        TW_UNROLL for (int j = 0; j < kSums; ++j) sums[0][j] +=
            row_scale(scales[i % 2], j % 4 / 2) * static_cast<float>(products[j]);
      }
      ring.advance();
    }
  }
};

}  // namespace tw::gemm
