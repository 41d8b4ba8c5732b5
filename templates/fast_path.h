// SPDX-License-Identifier: Apache-2.0
// What a format file says of its fast path (core/format.cuh), for the host's legality rules.
#pragma once

#include <tilewright/format.h>

namespace tilewright {

struct FastPath {
  int element_bytes;  // of a plain format; 0 for others
  int group;          // elements under one scale; 0: no fast path
  bool codes, offset;
  bool global;
  bool (*unit_ok)(int elements);
  int (*unit_bytes)(int elements);  // of the data stream
  int block, data_bytes, scale_bytes;
  int (*raw_bytes)(int elements);  // codes: of the data of 64 or 128 elements copied as stored
};

const FastPath& fast_path(Format f);

}  // namespace tilewright
