// SPDX-License-Identifier: Apache-2.0
// The register layouts of the warp-wide matrix instructions, as the PTX manual draws them.
#pragma once

#include "emulator/scheduler.h"

namespace tw::emu {

// ldmatrix: lane 8i + r passes row r of 8x8 matrix i; every lane gets two elements of each.
void load_matrices(Deposit* lanes, int count, bool transpose);
// stmatrix: the reverse; the registers are the lanes' a.
void store_matrices(const Deposit* lanes, int count, bool transpose);
// mma: d += a b. Products and sums of 16-bit floats are made in fp32, in ascending k.
void multiply(Mma kind, Deposit* lanes);
// The same of blocks with scales. Products are exact, their sums rounded once.
void multiply_scaled(ScaledMma kind, int byte, Deposit* lanes);

}  // namespace tw::emu
