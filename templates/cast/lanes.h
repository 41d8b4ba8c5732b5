// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tilewright/format.h>

namespace tilewright::cast {

// Bit e: the format's encode_lanes<2^e>() exists, by which 2^e neighbouring elements are encoded in one thread.
unsigned encoder_lanes(Format f);

}  // namespace tilewright::cast
