// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tilewright/format.h>

#include <string>

#include "templates/formats/shared/fast_path.h"

namespace tilewright::cast {

// Bit e: the format's encode_lanes<2^e>() exists, by which 2^e neighbouring elements are encoded in one thread.
unsigned encoder_lanes(Format f);

// Whether kernels write the codes of a row with a scale: they make whole bytes, of `most` codes at most (rows.cuh), and
// the scale of the row's largest magnitudes. Why not; empty if they do.
std::string no_row_codes(const FastPath& y, int most);

}  // namespace tilewright::cast
