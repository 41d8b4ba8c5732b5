// SPDX-License-Identifier: Apache-2.0
// Weights of 2 to 8 bits of other libraries' checkpoints, to formats, and those of 4 bits back. Lossless: the decoded
// value is the checkpoint's own (code - zero) scale, or of NF4 table[code] absmax, in single precision, bit for bit.
// Host memory, one thread; pure functions, usable from any thread.
//
//   CheckpointWeight w = ...;                            // the tensors of one linear layer, as they lie in the file
//   const Format format = import_formats(w).front();
//   import_weights(w, format, data, scales);             // w[n, k] in that format: a Gemm's w
//   const auto order = import_order(w);                  // act-order: not empty, then x's columns are permuted
//
// Act-order. Where a checkpoint assigns columns to groups by a table (g_idx), no format can say so: columns are
// reordered so that groups are contiguous, column i of the result being column order[i] of the checkpoint. The product
// is the same if x is reordered alike: x_new[:, i] = x[:, order[i]]. Either whoever calls the gemm gathers x, or, where
// x is what another layer computed with only elementwise operations in between, that layer's output features are
// reordered once, at load, by gather_rows() on its weights and its bias (gate and up for down in a gated MLP). Where
// several layers read one x, their orders differ, and each needs a gather of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <tilewright/export.h>
#include <tilewright/format.h>

namespace tilewright {

// How a checkpoint packs eight 4-bit codes into an int32. Shapes are [rows, cols], groups = k / group; nibble i is bits
// 4i to 4i + 3. templates/formats/checkpoint has a file for each, with its source.
//   gptq     qweight [k/8, n]: nibble i of word [r, c] is the code of row c of w, column 8r + i; qzeros [groups, n/8]:
//            nibble i of word [g, c] is the zero point of row 8c + i, minus 1; scales [groups, n]; g_idx [k], optional
//   gptq_v2  the same with the zero point itself in qzeros
//            Both also of 2, 3 and 8 bits: qweight [k bits/32, n], where code i of a column is bits i * bits of its
//            words taken together, lowest first (of 3 bits, 32 codes are three words), and qzeros [groups, n bits/32]
//            alike along n. n and k are multiples of 16, 32 and 8.
//   awq      qweight [k, n/8], qzeros [groups, n/8]: nibble i belongs to row 8c + (0 2 4 6 1 3 5 7)[i];
//            scales [groups, n]. AutoAWQ's version "gemm"; its others and llm-awq's pack differently
//   compressed_tensors
//            format "pack-quantized": weight_packed [n, k/8]: nibble i of word [r, c] is the code, plus 8, of row r,
//            column 8c + i; weight_scale [n, groups]; weight_zero_point [ceil(n/8), groups], nibble i of word [r, g]
//            being that of row 8r + i, plus 8, none if symmetric; weight_g_idx [k], optional
enum class Checkpoint { gptq, gptq_v2, awq, compressed_tensors };
TILEWRIGHT_EXPORT std::string_view to_string(Checkpoint packing);  // "gptq", "gptq_v2", "awq", "compressed_tensors"

enum class TensorType { i32, f16, bf16 };

// A tensor as stored: row-major, little-endian, no padding, any alignment. A vector is one row.
struct CheckpointTensor {
  std::span<const std::byte> bytes = {};  // empty: the checkpoint does not have it
  std::int64_t rows = 0, cols = 0;
  TensorType type = TensorType::i32;
};

// One linear layer: y[m, n] = x[m, k] w[n, k]^T.
struct CheckpointWeight {
  Checkpoint packing = Checkpoint::gptq;
  std::int64_t n = 0, k = 0;     // output features, reduction: multiples of 8 (n of compressed_tensors: any)
  int bits = 4;                  // gptq and gptq_v2: 2, 3, 4 or 8
  std::int64_t group = 128;      // elements of a row under one scale; -1, as checkpoints write it, or k: all
  CheckpointTensor codes = {};   // qweight, weight_packed
  CheckpointTensor zeros = {};   // qzeros, weight_zero_point
  CheckpointTensor scales = {};  // scales, weight_scale: f16 or bf16
  CheckpointTensor g_idx = {};   // g_idx, weight_g_idx: i32
};

// Formats that hold this weight, best first: those of integer_formats() (format.h) whose codes have as many bits or
// more. Symmetric means that every zero point is 2^(bits - 1), or that there are none.
//   *_row      symmetric, one group a row
//   int*_g*    symmetric, where the format's group divides the checkpoint's, whose scales are repeated
//   uint*_g*   the same, whatever the zero points
// Codes of 8 bits must be symmetric (128), in groups of a multiple of 32, and have one format, q8_0, whose only stream
// is data. Throws Error (unsupported) if bits or group have no format, (invalid_argument) if a tensor is missing or is
// not what n, k and group make it, each naming the tensor as the checkpoint does.
TILEWRIGHT_EXPORT std::vector<Format> import_formats(const CheckpointWeight& w);

// Where column i of the imported weight was: k indices; empty if columns keep their places. Throws Error
// (invalid_argument) if a group does not have `group` columns.
TILEWRIGHT_EXPORT std::vector<std::int32_t> import_order(const CheckpointWeight& w);

// Writes the streams of `format`, one of import_formats(w), each exactly as large as Format::stream_bytes says.
// Scales keep their value: a bf16 scale that a half does not hold exactly (a magnitude above 65504, or below 2^-17 and
// not a multiple of 2^-24) is an Error (unsupported) naming the element, but for int4_row, whose scales are floats.
TILEWRIGHT_EXPORT void import_weights(const CheckpointWeight& w, Format format, std::span<std::byte> data,
                                      std::span<std::byte> scales);

// What an exported CheckpointWeight looks at.
struct CheckpointBytes {
  std::vector<std::byte> codes = {}, zeros = {}, scales = {}, g_idx = {};
};

// The inverse. `like` says packing, bits, n, k, group and the type of the scales; `order` is import_order()'s, or
// empty. Returns `like` with its tensors in `to`. gptq always gets a g_idx, compressed_tensors only with an order, and
// zero points unless the format is symmetric. Throws Error (unsupported) where the packing cannot hold the weight: a
// scale that its type rounds, scales that differ within a group, a zero point that is no code, other bits than the
// format's codes have, an order in awq.
TILEWRIGHT_EXPORT CheckpointWeight export_weights(Format format, std::span<const std::byte> data,
                                                  std::span<const std::byte> scales, const CheckpointWeight& like,
                                                  std::span<const std::int32_t> order, CheckpointBytes& to);

// A linear layer that bitsandbytes quantized to NF4, by the names that its state has in a checkpoint. All tensors are
// little-endian and without padding, of any alignment. With double quantization (bnb_4bit_use_double_quant) absmax is
// codes of one byte: absmax = nested_quant_map[code] * nested_absmax + nested_offset.
struct BitsandbytesWeight {
  std::int64_t n = 0, k = 0;                  // output features; reduction, a multiple of 64
  std::int64_t blocksize = 64;                // elements under one absmax: a multiple of 64
  std::span<const std::byte> weight = {};     // n k / 2 bytes, whatever type they were stored as
  std::span<const std::byte> absmax = {};     // ceil(n k / blocksize) floats; if nested_absmax is given, bytes
  std::span<const std::byte> quant_map = {};  // 16 floats, NF4's; may be left out
  std::span<const std::byte> nested_absmax = {}, nested_quant_map = {};  // floats: one a nested_blocksize; 256
  std::int64_t nested_blocksize = 256;                                   // absmaxes under one of nested_absmax
  float nested_offset = 0;
};

// Writes the streams of format nf4, each exactly as large as Format::stream_bytes says: the scales are the floats that
// bitsandbytes dequantizes with, bit for bit. Throws Error, naming the tensor: invalid_argument if it is not as large
// as n, k and the block sizes make it, unsupported if quant_map is another table than NF4's (FP4's, say).
TILEWRIGHT_EXPORT void import_bitsandbytes(const BitsandbytesWeight& w, std::span<std::byte> data,
                                           std::span<std::byte> scales);

// A BitNet b1.58 layer as transformers packs it (microsoft/bitnet-b1.58-2B-4T), four rows a byte.
struct BitnetWeight {
  std::int64_t n = 0, k = 0;               // output features; reduction, a multiple of 4
  std::span<const std::byte> weight = {};  // U8 [ceil(n / 4), k]
  float scale = 1;                         // weight_scale
  bool divides = false;                    // of the config's linear_class: "autobitlinear" multiplies by weight_scale,
                                           // "bitlinear", the default there, divides by it
};

// Writes the streams of format ternary_row, each exactly as large as Format::stream_bytes says; all rows' scales are
// weight_scale, or its inverse in single precision. Throws Error (invalid_argument) for sizes, a code of 3, or a scale
// that is not finite.
TILEWRIGHT_EXPORT void import_bitnet(const BitnetWeight& w, std::span<std::byte> data, std::span<std::byte> scales);

// Row i of `to` is row order[i] of `from`, of order.size() rows of `cols` elements: a layer's output features in the
// order in which the next one wants its x. A bias has one column. The two must not overlap.
TILEWRIGHT_EXPORT void gather_rows(Format format, std::int64_t cols, std::span<const std::int32_t> order, Operand from,
                                   MutableOperand to);

}  // namespace tilewright
