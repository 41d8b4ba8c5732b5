// SPDX-License-Identifier: Apache-2.0
// Weights of checkpoints, made up, and what an import makes of them.
#pragma once

#include <tilewright/import.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "backends/cuda/numeric.cuh"

namespace import_test {

using namespace tilewright;

using Bytes = std::vector<std::byte>;

struct Streams {
  Format format;
  std::int64_t n, k;
  Bytes data, scales;
  Streams(Format f, std::int64_t rows, std::int64_t cols)
      : format(f),
        n(rows),
        k(cols),
        data(static_cast<std::size_t>(f.stream_bytes(0, rows, cols)), std::byte{0xee}),
        scales(static_cast<std::size_t>(f.stream_bytes(1, rows, cols)), std::byte{0xee}) {}
  std::vector<float> decoded() const {
    std::vector<float> v(static_cast<std::size_t>(n * k));
    format.info().decode({data.data(), scales.data(), nullptr}, n, k, v.data());
    return v;
  }
};
inline Streams imported(const CheckpointWeight& w, Format f) {
  Streams s(f, w.n, w.k);
  import_weights(w, f, s.data, s.scales);
  return s;
}

// w[n, k] in the checkpoint's own order of columns, element by element as the packing's text in import.h says.
inline std::vector<float> formula(const CheckpointWeight& w) {
  const std::int64_t group = w.group == -1 ? w.k : w.group, groups = w.k / group;
  const auto word = [](const CheckpointTensor& t, std::int64_t row, std::int64_t col) {
    std::uint32_t v;
    std::memcpy(&v, t.bytes.data() + 4 * (row * t.cols + col), 4);
    return v;
  };
  const int awq_nibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};  // where column j of eight lies
  const auto nibble = [](std::uint32_t v, std::int64_t i) { return static_cast<int>(v >> (4 * i) & 15u); };
  std::vector<float> values;
  for (std::int64_t n = 0; n < w.n; ++n)
    for (std::int64_t k = 0; k < w.k; ++k) {
      const std::int64_t g = w.g_idx.bytes.empty() ? k / group : static_cast<std::int32_t>(word(w.g_idx, 0, k));
      int code = 0, zero = 8;
      switch (w.packing) {
        case Checkpoint::gptq:
        case Checkpoint::gptq_v2:
          code = nibble(word(w.codes, k / 8, n), k % 8);
          zero = nibble(word(w.zeros, g, n / 8) + (w.packing == Checkpoint::gptq ? 0x11111111u : 0u), n % 8);
          break;
        case Checkpoint::awq:
          code = nibble(word(w.codes, k, n / 8), awq_nibble[n % 8]);
          zero = nibble(word(w.zeros, g, n / 8), awq_nibble[n % 8]);
          break;
        case Checkpoint::compressed_tensors:
          code = nibble(word(w.codes, n, k / 8), k % 8);
          if (!w.zeros.bytes.empty()) zero = nibble(word(w.zeros, n / 8, g), n % 8);
      }
      std::uint16_t bits;
      const bool by_group = w.packing != Checkpoint::compressed_tensors;
      std::memcpy(&bits, w.scales.bytes.data() + 2 * (by_group ? g * w.n + n : n * groups + g), 2);
      const float scale = w.scales.type == TensorType::bf16 ? std::bit_cast<float>(std::uint32_t{bits} << 16)
                                                            : tw::f16_bits_to_f32(bits);
      values.push_back(static_cast<float>(code - zero) * scale);
    }
  return values;
}
inline std::vector<std::string> names(const std::vector<Format>& formats) {
  std::vector<std::string> list;
  for (Format f : formats) list.emplace_back(f.name());
  return list;
}

// A weight with any bits as codes and zero points, and finite scales that both 16-bit types hold.
struct Random {
  CheckpointWeight weight;
  Bytes codes, zeros, scales, g_idx;
  Random(Checkpoint packing, std::int64_t n, std::int64_t k, std::int64_t group, TensorType type, bool symmetric,
         bool act_order, unsigned seed) {
    std::mt19937 random(seed);
    const std::int64_t size = group == -1 ? k : group, groups = k / size;
    weight.packing = packing, weight.n = n, weight.k = k, weight.group = group;
    const auto words = [&](Bytes& bytes, std::int64_t rows, std::int64_t cols, auto&& next) {
      for (std::int64_t i = 0; i < rows * cols; ++i) {
        const std::uint32_t v = next(i);
        const auto* p = reinterpret_cast<const std::byte*>(&v);
        bytes.insert(bytes.end(), p, p + 4);
      }
      return CheckpointTensor{bytes, rows, cols, TensorType::i32};
    };
    const auto any = [&](std::int64_t) { return static_cast<std::uint32_t>(random()); };
    const auto eights = [&](std::int64_t) { return packing == Checkpoint::gptq ? 0x77777777u : 0x88888888u; };
    const bool compressed = packing == Checkpoint::compressed_tensors;
    weight.codes = packing == Checkpoint::awq ? words(codes, k, n / 8, any)
                   : compressed               ? words(codes, n, k / 8, any)
                                              : words(codes, k / 8, n, any);
    const std::int64_t tall = compressed ? (n + 7) / 8 : groups, wide = compressed ? groups : n / 8;
    if (!symmetric)
      weight.zeros = words(zeros, tall, wide, any);
    else if (!compressed)
      weight.zeros = words(zeros, tall, wide, eights);
    if (compressed && !symmetric && n % 8)  // the packer leaves what is beyond the last row 0
      for (std::int64_t g = 0; g < groups; ++g) {
        std::uint32_t last;
        std::byte* at = zeros.data() + 4 * ((tall - 1) * groups + g);
        std::memcpy(&last, at, 4);
        last &= (1u << (4 * (n % 8))) - 1u;
        std::memcpy(at, &last, 4);
      }
    for (std::int64_t i = 0; i < n * groups; ++i) {
      const float v = static_cast<float>(static_cast<int>(random() % 255) - 127) * 0.0009765625f;
      const std::uint16_t bits = type == TensorType::bf16 ? tw::f32_to_bf16_bits(v) : tw::f32_to_f16_bits(v);
      scales.push_back(static_cast<std::byte>(bits & 255)), scales.push_back(static_cast<std::byte>(bits >> 8));
    }
    weight.scales = compressed ? CheckpointTensor{scales, n, groups, type} : CheckpointTensor{scales, groups, n, type};
    if (packing == Checkpoint::awq || (compressed && !act_order)) return;
    std::vector<std::uint32_t> group_of(static_cast<std::size_t>(k));
    for (std::size_t i = 0; i < group_of.size(); ++i)
      group_of[i] = static_cast<std::uint32_t>(static_cast<std::int64_t>(i) / size);
    if (act_order) std::shuffle(group_of.begin(), group_of.end(), random);
    weight.g_idx = words(g_idx, 1, k, [&](std::int64_t i) { return group_of[static_cast<std::size_t>(i)]; });
  }
  Random(const Random&) = delete;
};

}  // namespace import_test
