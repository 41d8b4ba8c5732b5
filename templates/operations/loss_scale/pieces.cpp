// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "support/must_be.h"
#include "templates/common/checks.h"
#include "templates/formats/shared/fast_path.h"
#include "templates/operations/loss_scale/loss_scale.h"

namespace tilewright {

std::vector<UnscalePiece> unscale_pieces(Format x, std::span<const UnscaleTensor> tensors, std::int64_t elements) {
  check_float("x", x);
  if (tensors.empty()) throw invalid("tensors", "none", "must have at least one");
  check_some("elements", elements);
  const int bytes = fast_path(x).element_bytes;
  std::vector<UnscalePiece> pieces;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& [data, count] = tensors[i];
    const auto at = reinterpret_cast<std::uintptr_t>(data);
    if (count < 0) throw must_be(fmt::format("tensors[{}].elements", i), count, "0 or more");
    if (count == 0) continue;
    if (data == nullptr) throw must_be(fmt::format("tensors[{}].data", i), "null", "an address in device memory");
    if (at % static_cast<unsigned>(bytes) != 0)
      throw must_be(fmt::format("tensors[{}].data", i), fmt::format("{:#x}", at),
                    fmt::format("aligned to {} bytes, an element of {}", bytes, x.name()));
    if (count > kMaxBytes / bytes)
      throw Error(ErrorCode::too_large, fmt::format("tensors[{}].elements", i), std::to_string(count),
                  "must have at most 2^47 bytes");
    const std::int64_t more = (count - 1) / elements + 1;
    if (more > kMaxExtent - static_cast<std::int64_t>(pieces.size()))
      throw Error(ErrorCode::too_large, "elements", std::to_string(elements),
                  "must be larger: the tensors have more than 2147483647 pieces of that size");
    for (std::int64_t first = 0; first < count; first += elements)
      pieces.push_back({static_cast<std::int64_t>(at) + first * bytes, std::min(elements, count - first)});
  }
  return pieces;
}

}  // namespace tilewright
