// SPDX-License-Identifier: Apache-2.0
// Convolutions of few channels a group, depthwise ones first: there is too little to multiply for matrix units, so each
// thread keeps a tile of output pixels of its channels in registers and multiplies one by one, in single precision.
//
// A stage is a frame of the kernel, or some rows of one. A block copies what its stage reads of x into shared memory,
// padding included, so that the loops over taps ask for no bounds; lanes run along channels (ndhwc) or along the width
// (ncdhw).
#pragma once
#include "operations/conv/cuda/direct/plan.cuh"
#include "operations/conv/cuda/product.cuh"
#include "operations/conv/params.cuh"
#include "operations/gemm/cuda/reference.cuh"

namespace tw::conv {

template <class X, class W, class Epi, const DirectKnobs& knobs>
struct Direct {
  using T = gemm::element_of<X>;
  using Y = typename Epi::Out;
  static_assert(sizeof(T) == knobs.element_bytes, "element_bytes");
  static_assert(knobs.groups == 1 || knobs.features == knobs.group_out, "several groups have all their channels");
  TW_CONSTANTS(int, kThreads = knobs.threads(), kSharedBytes = knobs.shared_bytes());
  TW_CONSTANTS(int, kBytes = sizeof(T), kIn = knobs.inputs(), kOut = knobs.outputs(), kGroupIn = knobs.group_in,
               kFeatures = knobs.features, kTileW = knobs.tile_w, kTileH = knobs.tile_h, kSpan = knobs.span(),
               kTapsW = knobs.kernel_w, kRows = knobs.rows, kPitch = knobs.weight_pitch(), kRun = knobs.run);
  TW_CONSTANTS(int, kRowParts = ceil_div(knobs.kernel_h, kRows));
  TW_CONSTANTS(bool, kOneStage = knobs.stages() == 1, kStoresEarly = knobs.whole && kOneStage);
  // Rows of weights in registers.
  TW_CONSTANTS(int, kHeldTaps = (knobs.whole ? kRows : 1) * kTapsW);

  // Where a block and a thread of it are.
  struct Place {
    i64 image;
    i32 depth, row, column;              // the block's first output
    i32 group, part;                     // the block's first group, and which output channels of each
    i32 own_row, own_column, own_group;  // the thread's first ones
    int input, weights;                  // offsets of what the thread reads, in bytes and in floats
  };
  using Sums = float[kTileH][kTileW][kOut];
  using Weights = float[kHeldTaps][kGroupIn][kOut];
  using InputRow = float[kSpan][kIn];

  TW_MEMBER static Place place_of(const Shape& shape) {
    const Axis* axes = shape.axes;
    TileNumber number{block_x()};
    Place p;
    p.part = number.next(knobs.parts());
    p.group = number.next(knobs.tiles_c ? knobs.tiles_c : ceil_div(shape.groups, knobs.block_groups())) *
              knobs.block_groups();
    p.column = number.next(knobs.tiles_w ? knobs.tiles_w : ceil_div(axes[2].out, knobs.block_w())) * knobs.block_w();
    p.row = number.next(knobs.tiles_h ? knobs.tiles_h : ceil_div(axes[1].out, knobs.block_h())) * knobs.block_h();
    p.depth = number.next(knobs.frames ? knobs.frames : axes[0].out);
    p.image = number.rest;
    const int thread = static_cast<int>(thread_x());
    int c, w, h;
    if constexpr (knobs.channels_first)
      w = thread % knobs.threads_w, h = thread / knobs.threads_w % knobs.threads_h,
      c = thread / (knobs.threads_w * knobs.threads_h);
    else
      c = thread % knobs.threads_c, w = thread / knobs.threads_c % knobs.threads_w,
      h = thread / (knobs.threads_c * knobs.threads_w);
    p.own_row = p.row + h * kTileH, p.own_column = p.column + w * kTileW;
    p.own_group = p.group + c * knobs.groups;
    p.input = h * kTileH * knobs.stride_h * knobs.row_bytes() + w * knobs.step_bytes() +
              c * kIn * (knobs.channels_first ? knobs.plane_bytes() : kBytes);
    p.weights = c * kOut;
    return p;
  }
  // Whether any of a thread's outputs exists.
  TW_MEMBER static bool exists(const Shape& shape, const Place& p) {
    return p.own_row < shape.axes[1].out && p.own_column < shape.axes[2].out && p.own_group < shape.groups;
  }

  // An aligned store.
  template <int bytes>
  TW_MEMBER static void put_words(u8* to, const u32* words) {
    if constexpr (bytes == 16)
      *reinterpret_cast<u32x4*>(to) = {words[0], words[1], words[2], words[3]};
    else if constexpr (bytes == 8)
      *reinterpret_cast<u32x2*>(to) = {words[0], words[1]};
    else if constexpr (bytes == 4)
      *reinterpret_cast<u32*>(to) = words[0];
    else
      *reinterpret_cast<u16*>(to) = static_cast<u16>(words[0]);
  }

  // ---- x to shared memory: a frame, from a kernel row on
  // What a thread copies, row by row: a piece of the channels of a column, or of a row of a channel.
  struct Item {
    i32 channel, column;  // of x; the column may lie in the padding
    int to;               // in shared memory
  };
  TW_MEMBER static Item item_at(const Place& p, i32 column0, int item) {
    if constexpr (knobs.channels_first) {
      constexpr int kPieces = knobs.copied_columns() / knobs.piece;
      const int channel = item / kPieces, column = item % kPieces * knobs.piece;
      return {p.group * kGroupIn + channel, column0 + column, channel * knobs.plane_bytes() + knobs.column_at(column)};
    } else {
      constexpr int kPieces = knobs.block_inputs() / knobs.piece;
      const int column = item / kPieces, channel = item % kPieces * knobs.piece;
      return {p.group * kGroupIn + channel, column0 + column, knobs.column_at(column) + channel * kBytes};
    }
  }
  // The first of these elements of x or the cache.
  TW_MEMBER static const u8* element(const Args& args, const Shape& shape, const Place& p, i32 channel, i32 z, i32 y,
                                     i32 x) {
    Source source{false, (i64{z} * shape.axes[1].in + y) * shape.axes[2].in + x,
                  i64{shape.axes[0].in} * shape.axes[1].in * shape.axes[2].in};
    if constexpr (knobs.cached) source = source_at(shape, z, y, x);
    return static_cast<const u8*>(source.cached ? args.cache : args.x.data) +
           element_at(knobs.channels_first, p.image, channel, shape.c, source.pixel, source.pixels) * kBytes;
  }
  // Places of ragged tiles may lie beyond the padding too, where a mirror shows nothing.
  TW_MEMBER static i32 inside(const Axis& axis, i32 place) {
    if constexpr (!knobs.mirrors) return static_cast<u32>(place) < static_cast<u32>(axis.in) ? place : -1;
    const i32 at = place_on(axis, place);
    return at < axis.in ? at : -1;
  }
  TW_MEMBER static void copy(u8* to, const u8* from, bool exists) {
    constexpr int kPieceBytes = knobs.piece * kBytes;
    if constexpr (knobs.async_copy) {
      cp_async<kPieceBytes>(to, from, exists ? kPieceBytes : 0);
    } else if constexpr (kPieceBytes == 1) {
      *to = exists ? *from : u8{0};
    } else {
      u32 words[ceil_div(kPieceBytes, 4)] = {};
      if (exists) load_words<kPieceBytes, kPieceBytes>(words, from);
      put_words<kPieceBytes>(to, words);
    }
  }
  // A piece of a row that replicates or mirrors its ends, element by element.
  TW_MEMBER static void copy_padding(const Args& args, const Shape& shape, const Place& p, const Item& item, i32 z,
                                     i32 y, u8* to) {
    TW_NO_UNROLL for (int e = 0; e < knobs.piece; ++e) {
      const i32 x = inside(shape.axes[2], item.column + e);
      T value{};
      if (x >= 0) TW_COPY(&value, element(args, shape, p, item.channel, z, y, x), sizeof(T));
      *reinterpret_cast<T*>(to + e * kBytes) = value;
    }
  }
  TW_MEMBER static void copy_item(const Args& args, const Shape& shape, const Place& p, const Item& item, i32 z,
                                  i32 row0, int from_row, int row_step) {
    const Axis &height = shape.axes[1], &width = shape.axes[2];
    u8* to = dynamic_shared() + item.to + from_row * knobs.row_bytes();
    const bool channel = item.channel < shape.c && z >= 0;
    i32 x = item.column;
    if constexpr (knobs.channels_first && knobs.piece > 1) {
      if (x < 0 || x >= width.in) {
        if (knobs.mirrors && channel && width.pad != Pad::zero) {
          TW_NO_UNROLL for (int row = from_row; row < knobs.input_rows(); row += row_step) {
            const i32 y = inside(height, row0 + row);
            if (y >= 0)
              copy_padding(args, shape, p, item, z, y, to);
            else
              copy_zeros(to);
            to += row_step * knobs.row_bytes();
          }
          return;
        }
        x = -1;
      }
    } else {
      x = inside(width, x);
    }
    const bool column = channel && x >= 0;
    if constexpr (knobs.mirrors || knobs.cached) {
      TW_UNROLL_BY(4) for (int row = from_row; row < knobs.input_rows(); row += row_step) {
        const i32 y = inside(height, row0 + row);
        const bool exists = column && y >= 0;
        copy(to, exists ? element(args, shape, p, item.channel, z, y, x) : static_cast<const u8*>(args.x.data), exists);
        to += row_step * knobs.row_bytes();
      }
    } else {
      // From row to row, the first of which need not exist.
      const i64 row_bytes = i64{width.in} * (knobs.channels_first ? 1 : shape.c) * kBytes;
      const u32 first = static_cast<u32>(row0 + from_row), rows = column ? static_cast<u32>(height.in) : 0u;
      u64 from = reinterpret_cast<u64>(column ? element(args, shape, p, item.channel, z, 0, x) : args.x.data) +
                 static_cast<u64>(static_cast<i32>(first) * row_bytes);
      TW_UNROLL_BY(4) for (int row = 0; row < knobs.input_rows() - from_row; row += row_step) {
        copy(to, reinterpret_cast<const u8*>(from), first + static_cast<u32>(row) < rows);
        to += row_step * knobs.row_bytes(), from += static_cast<u64>(row_step * row_bytes);
      }
    }
  }
  TW_MEMBER static void copy_zeros(u8* to) {
    TW_NO_UNROLL for (int e = 0; e < knobs.piece; ++e) * reinterpret_cast<T*>(to + e * kBytes) = T{};
  }
  TW_MEMBER static void copy_input(const Args& args, const Shape& shape, const Place& p, i32 z, i32 kernel_row) {
    constexpr int kItems = knobs.items(), kRowStep = kThreads / kItems > 1 ? kThreads / kItems : 1;
    const Axis &height = shape.axes[1], &width = shape.axes[2];
    const i32 row0 = p.row * knobs.stride_h - height.lo + kernel_row * knobs.dilation_h;
    const i32 column0 = p.column * knobs.stride_w - width.lo - knobs.first;
    const int thread = static_cast<int>(thread_x());
    if constexpr (kRowStep > 1) {
      if (thread < kItems * kRowStep)
        copy_item(args, shape, p, item_at(p, column0, thread % kItems), z, row0, thread / kItems, kRowStep);
    } else {
      TW_NO_UNROLL for (int i = thread; i < kItems; i += kThreads)
          copy_item(args, shape, p, item_at(p, column0, i), z, row0, 0, 1);
    }
  }

  // ---- weights to shared memory, a row's columns side by side
  TW_MEMBER static float* weights() { return reinterpret_cast<float*>(dynamic_shared() + knobs.input_bytes()); }
  TW_MEMBER static void copy_weights(const Args& args, const Shape& shape, const Place& p, i32 frame, i32 kernel_row) {
    constexpr int kColumns = knobs.stage_taps() * kGroupIn, kItems = kColumns * knobs.block_outputs();
    constexpr int kAhead = 8;  // loads under way
    float* const to = weights();
    const i64 columns = shape.columns(), taps = shape.taps();
    const i64 row0 = i64{p.group} * knobs.group_out, rows = shape.k - row0;
    // Whole rows of the block's channels are copied as they lie.
    constexpr bool kDense = kOneStage && knobs.parts() == 1;
    const int dense = rows < knobs.block_outputs() ? static_cast<int>(rows) * kColumns : kItems;
    TW_NO_UNROLL for (int first = static_cast<int>(thread_x()); first < kItems; first += kAhead * kThreads) {
      float v[kAhead];
      TW_UNROLL for (int a = 0; a < kAhead; ++a) {
        const int i = first + a * kThreads, own = i / kColumns;
        v[a] = 0;
        if constexpr (kDense) {
          if (i < dense) v[a] = weight(args.w, row0 + own, row0 * kColumns + i, kColumns);
        } else {
          const int column = i % kColumns, tap = column / kGroupIn, c = column % kGroupIn;
          const i32 feature = p.part * kFeatures + own % kFeatures;
          const i64 row = row0 + own / kFeatures * knobs.group_out + feature;
          if (i < kItems && row < shape.k && feature < knobs.group_out && kernel_row + tap / kTapsW < knobs.kernel_h) {
            const i64 t = (i64{frame} * knobs.kernel_h + kernel_row) * kTapsW + tap;
            v[a] = weight(args.w, row, row * columns + (shape.w_channels_first ? c * taps + t : t * kGroupIn + c),
                          columns);
          }
        }
      }
      TW_UNROLL for (int a = 0; a < kAhead; ++a) {
        const int i = first + a * kThreads, own = i / kColumns;
        int column = i - own * kColumns;
        if (kDense && kGroupIn > 1 && shape.w_channels_first)
          column = column % knobs.stage_taps() * kGroupIn + column / knobs.stage_taps();
        if (i < kItems) to[column * kPitch + own] = v[a];
      }
    }
  }
  // Element `at` of w, which is one of the row.
  TW_MEMBER static float weight(const Operand& w, i64 row, i64 at, i64 columns) {
    if constexpr (same<gemm::element_of<W>, void>() || W::kBlock > 1) {
      return gemm::Row<W>(w, row, columns, columns).at(at - row * columns);
    } else {
      // Loaded whole; the codec reads bytes.
      const gemm::element_of<W> element = static_cast<const gemm::element_of<W>*>(w.data)[at];
      return W::decode(reinterpret_cast<const u8*>(&element), nullptr, fmt::row_item_at<W>(w.scales, row), 0);
    }
  }

  // ---- from shared memory to registers
  template <int N>
  TW_MEMBER static void read(const u8* from, float (&v)[N]) {
    constexpr int kAlign = fmt::run_alignment(N * kBytes);
    if constexpr (kAlign == 1) {
      TW_UNROLL for (int i = 0; i < N; ++i) v[i] = to_f32(reinterpret_cast<const T*>(from)[i]);
    } else {
      u32 words[ceil_div(N * kBytes, 4)];
      load_shared_words<N * kBytes, kAlign>(words, from);
      TW_UNROLL for (int i = 0; i < N; ++i) {
        if constexpr (kBytes == 4)
          v[i] = to_f32(bits_as<T>(words[i]));
        else if constexpr (kBytes == 2)
          v[i] = i % 2 ? high_half<T>(words[i / 2]) : low_half<T>(words[i / 2]);
        else
          v[i] = fmt::byte_at<T>(words, i);
      }
    }
  }
  TW_MEMBER static void read_row(const Place& p, int row, InputRow& x) {
    const u8* const from = dynamic_shared() + p.input + row * knobs.row_bytes();
    if constexpr (knobs.channels_first) {
      // Whole vectors of columns.
      constexpr int kVector = fmt::run_alignment(knobs.step() * kBytes) / kBytes;
      TW_UNROLL for (int c = 0; c < kIn; ++c) {
        TW_UNROLL for (int v = knobs.first / kVector; v * kVector < knobs.first + kSpan; ++v) {
          float columns[kVector];
          read<kVector>(from + c * knobs.plane_bytes() + v * kVector * kBytes, columns);
          TW_UNROLL for (int i = 0; i < kVector; ++i) {
            const int column = v * kVector + i - knobs.first;
            if (column >= 0 && column < kSpan) x[column][c] = columns[i];
          }
        }
      }
    } else {
      TW_UNROLL for (int column = 0; column < kSpan; ++column) {
        if (knobs.needs_column(column)) read<kIn>(from + knobs.column_at(column), x[column]);
      }
    }
  }
  // Those of the stage's taps from `tap` on.
  TW_MEMBER static void read_weights(const Place& p, int tap, Weights& w) {
    const float* const from = weights() + p.weights + tap * kGroupIn * kPitch;
    constexpr int kVector = fmt::run_alignment(kOut * 4) / 4;
    TW_UNROLL for (int t = 0; t < kHeldTaps; ++t) {
      TW_UNROLL for (int c = 0; c < kGroupIn; ++c) {
        TW_UNROLL for (int o = 0; o < kOut; o += kVector) {
          u32 words[kVector];
          load_shared_words<kVector * 4, kVector * 4>(
              words, reinterpret_cast<const u8*>(from + (t * kGroupIn + c) * kPitch + o));
          TW_UNROLL for (int i = 0; i < kVector; ++i) w[t][c][o + i] = bits_as<float>(words[i]);
        }
      }
    }
  }

  // ---- products
  // An input row and a kernel row, the held_row-th that registers hold, to an output row.
  TW_MEMBER static void multiply(const InputRow& x, const Weights& w, int held_row, float (&sums)[kTileW][kOut]) {
    TW_UNROLL for (int s = 0; s < kTapsW; ++s) {
      TW_UNROLL for (int c = 0; c < kGroupIn; ++c) {
        TW_UNROLL for (int j = 0; j < kTileW; ++j) {
          TW_UNROLL for (int o = 0; o < kOut; ++o) {
            const float v = x[j * knobs.stride_w + s * knobs.dilation_w][o / kFeatures * kGroupIn + c];
            sums[j][o] += v * w[held_row * kTapsW + s][c][o];
          }
        }
      }
    }
  }

  // ---- to y
  using Residual = select<Epi::kC, typename Epi::Residual, float>;
  // A place among the outputs, in both tensors.
  struct Output {
    u8* y;
    const u8* residual;
    TW_MEMBER void move(i64 bytes) {
      y += bytes;
      if constexpr (Epi::kC) residual += bytes / static_cast<i64>(sizeof(Y)) * static_cast<i64>(sizeof(Residual));
    }
  };
  struct Finish {
    gemm::Args args;
    gemm::Shape shape;
    float scale, bias[kOut];
    Output next;                             // the first of the row that is stored next
    i64 row_step, column_step, output_step;  // from each to the next, in bytes of y
    i32 rows, columns, outputs;              // of the thread, that exist
  };
  TW_MEMBER static Finish finish_of(const Args& args, const Shape& shape, const Place& p) {
    Finish f{};
    f.args = product_args(args, 0), f.shape = product_shape(shape, shape.k, 0);
    f.scale = gemm::tensor_scale<X, W>(f.args, f.shape);
    const i32 feature = p.own_group * knobs.group_out + p.part * kFeatures;
    const i32 width = shape.axes[2].out, height = shape.axes[1].out;
    const i64 pixels = shape.pixels(), pixel = (i64{p.depth} * height + p.own_row) * width + p.own_column;
    const i64 at = element_at(knobs.channels_first, p.image, feature, shape.k, pixel, pixels);
    f.next.y = reinterpret_cast<u8*>(static_cast<Y*>(args.y) + at);
    if constexpr (Epi::kC)
      f.next.residual = reinterpret_cast<const u8*>(static_cast<const Residual*>(args.residual) + at);
    // Opaque: from sums of them the compiler makes products again, for each output.
    const i64 column_step = knobs.channels_first ? 1 : shape.k, bytes = sizeof(Y);
    f.column_step = opaque(column_step * bytes), f.output_step = opaque((knobs.channels_first ? pixels : 1) * bytes);
    f.row_step = opaque(column_step * width * bytes);
    f.rows = height - p.own_row, f.columns = width - p.own_column;
    f.outputs = (knobs.parts() == 1 ? shape.k : (p.own_group + 1) * knobs.group_out) - feature;
    TW_UNROLL for (int o = 0; o < kOut; ++o) {
      if (Epi::kBias && o < f.outputs) f.bias[o] = Epi::bias_at(args.bias, feature + o);
    }
    return f;
  }
  // kRun neighbours, aligned to all of them.
  TW_MEMBER static void read_residual(const Residual* from, float (&v)[kRun]) {
    constexpr int kRead = kRun * static_cast<int>(sizeof(Residual));
    if constexpr (kRun == 1) {
      v[0] = to_f32(*from);
    } else {
      u32 words[kRead / 4];
      load_shared_words<kRead, fmt::run_alignment(kRead)>(words, reinterpret_cast<const u8*>(from));
      TW_UNROLL for (int i = 0; i < kRun; ++i) {
        if constexpr (sizeof(Residual) == 4)
          v[i] = bits_as<float>(words[i]);
        else
          v[i] = i % 2 ? high_half<Residual>(words[i / 2]) : low_half<Residual>(words[i / 2]);
      }
    }
  }
  TW_MEMBER static void store_run(const Finish& f, const Output& output, int i0, const float (&sums)[kRun],
                                  const float (&bias)[kRun]) {
    float residual[kRun] = {}, v[kRun];
    if constexpr (Epi::kC) read_residual(reinterpret_cast<const Residual*>(output.residual) + i0, residual);
    TW_UNROLL for (int i = 0; i < kRun; ++i) v[i] =
        Epi::finish(f.args, f.shape, sums[i], f.scale, bias[i], residual[i]);
    Y* const to = reinterpret_cast<Y*>(output.y) + i0;
    if constexpr (kRun == 1 && sizeof(Y) == 2) {
      to->bits = static_cast<u16>(pack2<Y>(v[0], v[0]));  // one instruction
    } else if constexpr (kRun == 1) {
      Epi::store(to, 0, v[0]);
    } else {
      constexpr int kStored = kRun * static_cast<int>(sizeof(Y));
      u32 words[ceil_div(kStored, 4)];
      if constexpr (sizeof(Y) == 4) {
        TW_UNROLL for (int i = 0; i < kRun; ++i) words[i] = bits_as<u32>(v[i]);
      } else if constexpr (sizeof(Y) == 2) {
        TW_UNROLL for (int i = 0; i < kRun / 2; ++i) words[i] = pack2<Y>(v[2 * i], v[2 * i + 1]);
      } else if constexpr (kRun == 2) {
        words[0] = pack2<Y>(v[0], v[1]);
      } else {
        TW_UNROLL for (int i = 0; i < kRun / 4; ++i) words[i] =
            (pack2<Y>(v[4 * i], v[4 * i + 1]) & 0xffffu) | (pack2<Y>(v[4 * i + 2], v[4 * i + 3]) << 16);
      }
      put_words<kStored>(reinterpret_cast<u8*>(to), words);
    }
  }
  // The next row.
  TW_MEMBER static void store_row(Finish& f, int row, const float (&sums)[kTileW][kOut]) {
    float run[kRun], bias[kRun];
    Output output = f.next;
    f.next.move(f.row_step);
    if (row >= f.rows) return;
    if constexpr (knobs.channels_first) {
      TW_UNROLL for (int o = 0; o < kOut; ++o) {
        TW_UNROLL for (int j = 0; j < kTileW; j += kRun) {
          TW_UNROLL for (int i = 0; i < kRun; ++i) run[i] = sums[j + i][o], bias[i] = f.bias[o];
          if (j < f.columns && o < f.outputs) store_run(f, output, j, run, bias);
        }
        output.move(f.output_step);
      }
    } else {
      TW_UNROLL for (int j = 0; j < kTileW; ++j) {
        TW_UNROLL for (int o = 0; o < kOut; o += kRun) {
          TW_UNROLL for (int i = 0; i < kRun; ++i) run[i] = sums[j][o + i], bias[i] = f.bias[o + i];
          if (j < f.columns && o < f.outputs) store_run(f, output, o, run, bias);
        }
        output.move(f.column_step);
      }
    }
  }

  // A stage's products. Where it is the only one, output rows are stored as soon as their last input row was read, and
  // their registers serve another.
  TW_MEMBER static void multiply_stage(const Args& args, const Shape& shape, const Place& p, Sums& sums) {
    Weights w;
    InputRow x;
    if constexpr (knobs.whole) {
      Finish f = finish_of(args, shape, p);
      read_weights(p, 0, w);
      TW_UNROLL for (int row = 0; row < knobs.tile_rows(); ++row) {
        if (!knobs.needs_row(row)) continue;
        read_row(p, row, x);
        TW_UNROLL for (int o = 0; o < kTileH; ++o) {
          const int behind = row - o * knobs.stride_h;
          if (behind < 0 || behind % knobs.dilation_h != 0 || behind / knobs.dilation_h >= kRows) continue;
          multiply(x, w, behind / knobs.dilation_h, sums[o]);
          if (kStoresEarly && behind / knobs.dilation_h == kRows - 1) store_row(f, o, sums[o]);
        }
      }
    } else {
      TW_NO_UNROLL for (int r = 0; r < kRows; ++r) {
        read_weights(p, r * kTapsW, w);
        TW_UNROLL for (int o = 0; o < kTileH; ++o) {
          read_row(p, o * knobs.stride_h + r * knobs.dilation_h, x);
          multiply(x, w, 0, sums[o]);
        }
      }
    }
  }

  TW_MEMBER static void run(const Args& args, const Shape& shape) {
    const Place p = place_of(shape);
    const Axis& depth = shape.axes[0];
    Sums sums = {};
    bool first = true;
    TW_NO_UNROLL for (int stage = 0; stage < knobs.stages(); ++stage) {
      const i32 frame = stage / kRowParts, kernel_row = stage % kRowParts * kRows;
      const i32 z = source_of(depth, p.depth, frame);
      if (!kOneStage && z < 0) continue;  // else zeros are multiplied
      if (!first) sync_block();           // the stage before is no longer read
      first = false;
      if (shape.constant_weights) copy_weights(args, shape, p, frame, kernel_row);
      wait_prerequisite_grids();
      copy_input(args, shape, p, z, kernel_row);
      if constexpr (knobs.async_copy) cp_async_commit();
      if (!shape.constant_weights) copy_weights(args, shape, p, frame, kernel_row);
      if constexpr (knobs.async_copy) cp_async_wait<0>();
      sync_block();
      if (kOneStage) launch_dependent_grids();
      if (exists(shape, p)) multiply_stage(args, shape, p, sums);
    }
    if (kStoresEarly || !exists(shape, p)) return;
    wait_prerequisite_grids();  // all frames may have been padding
    Finish f = finish_of(args, shape, p);
    TW_UNROLL for (int row = 0; row < kTileH; ++row) store_row(f, row, sums[row]);
  }
};

}  // namespace tw::conv
