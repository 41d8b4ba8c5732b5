// SPDX-License-Identifier: Apache-2.0
// What a format file says of its fast path (core/format.cuh), for the host's legality rules.
#pragma once

#include <tilewright/format.h>

namespace tilewright {

struct FastPath {
  int element_bytes;        // of a plain format; 0 for others
  int group;                // elements under one scale; 0: no fast path
  bool codes, offset;
  bool global;
  bool (*unit_ok)(int elements);
  int (*unit_bytes)(int elements);  // of the data stream
};

const FastPath& fast_path(Format f);

// Largest E of `sizes` (descending) that the format can read as a unit and that divides k; 0 if none.
template <class Sizes>
int largest_unit(const FastPath& p, const Sizes& sizes, long long k) {
  for (int e : sizes)
    if (k % e == 0 && p.unit_ok(e)) return e;
  return 0;
}

}  // namespace tilewright
