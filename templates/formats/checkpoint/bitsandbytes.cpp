// SPDX-License-Identifier: Apache-2.0
// bitsandbytes' NF4 weights (bitsandbytes/functional.py: QuantState.as_dict(), dequantize_4bit(),
// dequantize_blockwise(); csrc/kernels.cu: kDequantizeBlockwise). The codes are nf4's as they are; what is left are
// scales.
#include <tilewright/error.h>
#include <tilewright/import.h>

#include <fmt/format.h>

#include <cstring>
#include <string>

#include "formats/nf4.cuh"
#include "templates/common/exact_floats.h"
#include "templates/formats/checkpoint/layout.h"

namespace tilewright {
namespace {

using checkpoint::load;
using checkpoint::store;
constexpr std::int64_t kBlock = tw::fmt::nf4::kBlock;

void check_size(const char* name, std::span<const std::byte> bytes, std::int64_t items, std::int64_t item,
                const char* what) {
  if (static_cast<std::int64_t>(bytes.size()) != items * item)
    throw Error(ErrorCode::invalid_argument, name, fmt::format("{} bytes", bytes.size()),
                fmt::format("must have {} bytes ({} {})", items * item, items, what));
}

void check_extent(const char* name, std::int64_t value, std::int64_t multiple) {
  if (value < 1 || value > INT32_MAX || value % multiple)
    throw Error(
        ErrorCode::invalid_argument, name, std::to_string(value),
        multiple == 1 ? "must be 1 to 2147483647" : fmt::format("must be a multiple of {} below 2147483648", multiple));
}

void check_table(std::span<const std::byte> quant_map) {
  check_size("quant_map", quant_map, 16, 4, "floats");
  for (int i = 0; i < 16; ++i)
    if (load<std::uint32_t>(quant_map.data(), i) != tw::fmt::nf4::table(i))
      throw Error(ErrorCode::unsupported, fmt::format("quant_map[{}]", i),
                  fmt::format("{}", load<float>(quant_map.data(), i)),
                  fmt::format("must be {}, as in NF4's table", std::bit_cast<float>(tw::fmt::nf4::table(i))));
}

}  // namespace

void import_bitsandbytes(const BitsandbytesWeight& w, std::span<std::byte> data, std::span<std::byte> scales) {
  check_extent("n", w.n, 1);
  check_extent("k", w.k, kBlock);
  check_extent("blocksize", w.blocksize, kBlock);
  const std::int64_t elements = w.n * w.k, of_nf4 = elements / kBlock,
                     blocks = (elements + w.blocksize - 1) / w.blocksize;
  check_size("weight", w.weight, elements / 2, 1, "pairs of codes");
  if (!w.quant_map.empty()) check_table(w.quant_map);
  const bool nested = !w.nested_absmax.empty() || !w.nested_quant_map.empty();
  check_size("absmax", w.absmax, blocks, nested ? 1 : 4, nested ? "codes" : "floats");
  if (nested) {
    check_extent("nested_blocksize", w.nested_blocksize, 1);
    check_size("nested_absmax", w.nested_absmax, (blocks + w.nested_blocksize - 1) / w.nested_blocksize, 4, "floats");
    check_size("nested_quant_map", w.nested_quant_map, 256, 4, "floats");
  }
  check_size("data", data, elements / 2, 1, "pairs of codes");
  check_size("scales", scales, of_nf4, 4, "floats");

  std::memcpy(data.data(), w.weight.data(), w.weight.size());
  const ExactFloats exact;
  for (std::int64_t i = 0; i < of_nf4; ++i) {
    const std::int64_t block = i / (w.blocksize / kBlock);
    float absmax = 0;
    if (nested) {
      const auto code = std::to_integer<int>(w.absmax[static_cast<std::size_t>(block)]);
      const float value = load<float>(w.nested_quant_map.data(), code);
      // Two operations of bitsandbytes, each rounded.
      absmax = tw::add_rn(tw::mul_rn(value, load<float>(w.nested_absmax.data(), block / w.nested_blocksize)),
                          w.nested_offset);
    } else {
      absmax = load<float>(w.absmax.data(), block);
    }
    store(scales.data(), i, absmax);
  }
}

}  // namespace tilewright
