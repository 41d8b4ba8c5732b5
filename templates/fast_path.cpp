// SPDX-License-Identifier: Apache-2.0
#include "templates/fast_path.h"

#include <tilewright/error.h>

#include <string>

#include "format_includes.inc"

namespace tilewright {
namespace {

struct Entry {
  const char* name;
  FastPath path;
};

template <class F>
constexpr int raw_bytes(int elements) {
  if constexpr (F::kCodes) return elements == 64 ? F::template raw_bytes<64>() : F::template raw_bytes<128>();
  return 0 * elements;
}

template <class F>
constexpr FastPath path_of() {
  constexpr bool plain = F::kBlock == 1 && !F::kRowScale;
  return {plain ? F::kDataBytes : 0,
          F::kGroup,
          F::kCodes,
          F::kOffset,
          F::kGlobal,
          [](int e) { return F::unit_ok(e); },
          [](int e) { return e * F::kDataBytes / F::kBlock; },
          F::kBlock,
          F::kDataBytes,
          F::kScaleBytes,
          &raw_bytes<F>};
}

constexpr Entry kEntries[] = {
#define FORMAT(NAME) {#NAME, path_of<tw::fmt::NAME>()},
#include "format_list.inc"
#undef FORMAT
};

}  // namespace

const FastPath& fast_path(Format f) {
  for (const Entry& e : kEntries)
    if (f.name() == e.name) return e.path;
  throw Error(ErrorCode::invalid_argument, "format", std::string(f.name()), "a file of templates/formats");
}

}  // namespace tilewright
