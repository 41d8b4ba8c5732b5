// SPDX-License-Identifier: Apache-2.0
// Converts weights of 2 to 8 bits in other libraries' checkpoints to formats, and 4-bit weights back. Lossless: the
// decoded value equals the checkpoint's (code - zero) scale, or for NF4 table[code] absmax, in single precision, bit
// for bit. Pure functions on host memory; each runs in one thread, and any thread may call them.
//
//   CheckpointWeight w = ...;                            // the tensors of one linear layer, as they lie in the file
//   const Format format = import_formats(w).front();
//   import_weights(w, format, data, scales);             // w[n, k] in that format: a Gemm's w
//   const auto order = import_order(w);                  // act-order: not empty, then x's columns are permuted
//
// Act-order. If a checkpoint assigns columns to groups by a table (g_idx), no format can store the table. The import
// therefore reorders columns so that groups are contiguous: column i of the result is column order[i] of the
// checkpoint. The product stays the same if x is reordered in the same way: x_new[:, i] = x[:, order[i]]. There are two
// ways to do this. Gather x before each gemm. Or, if another layer computes x, with only elementwise operations in
// between, reorder that layer's output features once, at load, with gather_rows() on its weights and its bias (gate and
// up for down in a gated MLP). If several layers share one x, their orders differ, and each needs its own gather.
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

// A tensor as stored in the file: row-major, little-endian, no padding, any alignment. A vector is one row.
struct CheckpointTensor {
  std::span<const std::byte> bytes = {};  // empty: the checkpoint does not have this tensor
  std::int64_t rows = 0, cols = 0;
  TensorType type = TensorType::i32;
};

// One linear layer: y[m, n] = x[m, k] w[n, k]^T.
struct CheckpointWeight {
  Checkpoint packing = Checkpoint::gptq;
  std::int64_t n = 0, k = 0;     // output features, reduction: multiples of 8 (n of compressed_tensors: any)
  int bits = 4;                  // gptq and gptq_v2: 2, 3, 4 or 8
  std::int64_t group = 128;      // elements of a row that share a scale; the whole row: -1, as in checkpoints, or k
  CheckpointTensor codes = {};   // qweight, weight_packed
  CheckpointTensor zeros = {};   // qzeros, weight_zero_point
  CheckpointTensor scales = {};  // scales, weight_scale: f16 or bf16
  CheckpointTensor g_idx = {};   // g_idx, weight_g_idx: i32
};

// Formats that can store this weight, best first: those of integer_formats() (format.h) whose codes have at least as
// many bits. Symmetric means that every zero point is 2^(bits - 1), or that there are none.
//   *_row      symmetric, one group a row
//   int*_g*    symmetric, where the format's group divides the checkpoint's, whose scales are repeated
//   uint*_g*   the same, whatever the zero points
// 8-bit codes must be symmetric (128), in groups of a multiple of 32. Their only format is q8_0, which has only the
// stream data. Throws Error (unsupported) if there is no format for bits or group, (invalid_argument) if a tensor is
// missing or contradicts n, k and group. The error names the tensor as the checkpoint does.
TILEWRIGHT_EXPORT std::vector<Format> import_formats(const CheckpointWeight& w);

// The place of column i of the imported weight in the checkpoint: k indices; empty if columns keep their places. Throws
// Error (invalid_argument) if a group does not have `group` columns.
TILEWRIGHT_EXPORT std::vector<std::int32_t> import_order(const CheckpointWeight& w);

// Writes the streams of `format`, one of import_formats(w), each exactly as large as Format::stream_bytes says. Scales
// keep their value. If a half cannot represent a bf16 scale exactly (a magnitude above 65504, or below 2^-17 and not a
// multiple of 2^-24), Error (unsupported) names the element, except for int4_row, whose scales are floats.
TILEWRIGHT_EXPORT void import_weights(const CheckpointWeight& w, Format format, std::span<std::byte> data,
                                      std::span<std::byte> scales);

// The memory of an exported CheckpointWeight.
struct CheckpointBytes {
  std::vector<std::byte> codes = {}, zeros = {}, scales = {}, g_idx = {};
};

// The inverse. `like` states packing, bits, n, k, group and the type of the scales; `order` is the result of
// import_order(), or empty. Returns `like` with its tensors in `to`. gptq always gets a g_idx, compressed_tensors only
// if there is an order. compressed_tensors gets zero points unless the format is symmetric. Throws Error (unsupported)
// if the packing cannot store the weight: a scale that its type would round, scales that differ within a group, a zero
// point that is not a code, a different number of bits from the format's codes, or an order with awq.
TILEWRIGHT_EXPORT CheckpointWeight export_weights(Format format, std::span<const std::byte> data,
                                                  std::span<const std::byte> scales, const CheckpointWeight& like,
                                                  std::span<const std::int32_t> order, CheckpointBytes& to);

// A linear layer that bitsandbytes quantized to NF4, with the names of its tensors in a checkpoint. All tensors are
// little-endian and without padding, of any alignment. With double quantization (bnb_4bit_use_double_quant) absmax is
// codes of one byte: absmax = nested_quant_map[code] * nested_absmax + nested_offset.
struct BitsandbytesWeight {
  std::int64_t n = 0, k = 0;                  // output features; reduction, a multiple of 64
  std::int64_t blocksize = 64;                // elements that share an absmax: a multiple of 64
  std::span<const std::byte> weight = {};     // n k / 2 bytes, whatever type they were stored as
  std::span<const std::byte> absmax = {};     // ceil(n k / blocksize) floats; if nested_absmax is given, bytes
  std::span<const std::byte> quant_map = {};  // NF4's 16 floats; optional
  std::span<const std::byte> nested_absmax = {}, nested_quant_map = {};  // floats: one a nested_blocksize; 256
  std::int64_t nested_blocksize = 256;                                   // absmaxes under one of nested_absmax
  float nested_offset = 0;
};

// Writes the streams of format nf4, each of exactly Format::stream_bytes. The scales equal the floats with which
// bitsandbytes dequantizes, bit for bit. Throws Error, which names the tensor: invalid_argument if its size contradicts
// n, k and the block sizes, unsupported if quant_map is not NF4's table (but FP4's, for example).
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

// Writes the streams of format ternary_row, each of exactly Format::stream_bytes. The scale of every row is
// weight_scale, or its inverse in single precision. Throws Error (invalid_argument) for wrong sizes, a code of 3, or a
// scale that is not finite.
TILEWRIGHT_EXPORT void import_bitnet(const BitnetWeight& w, std::span<std::byte> data, std::span<std::byte> scales);

// Copies order.size() rows of `cols` elements: row i of `to` is row order[i] of `from`. Use it to bring a layer's
// output features into the order of the next layer's x. A bias has one column. The two must not overlap.
TILEWRIGHT_EXPORT void gather_rows(Format format, std::int64_t cols, std::span<const std::int32_t> order, Operand from,
                                   MutableOperand to);

}  // namespace tilewright
