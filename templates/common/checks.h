// SPDX-License-Identifier: Apache-2.0
// What operations check of their fields. Each throws Error.
#pragma once

#include <tilewright/error.h>
#include <tilewright/format.h>

#include <cstdint>
#include <string>

#include "support/must_be.h"

namespace tilewright {

inline constexpr std::int64_t kMaxExtent = (1ll << 31) - 1;
inline constexpr std::int64_t kMaxBytes = 1ll << 47;  // of a matrix

Error invalid(std::string field, std::string value, std::string allowed);
Error unsupported(std::string field, Format format, std::string allowed);
void check_float(const char* field, Format f);  // f32, f16 or bf16

void check_extent(const char* field, std::int64_t value);                                   // 0 to kMaxExtent
void check_some(const char* field, std::int64_t value, const char* may_be_zero = nullptr);  // 1 to kMaxExtent
// `cols_field`: the field that holds its columns, whole blocks of the format.
void check_matrix(const char* field, Format f, std::int64_t rows, std::int64_t cols, const char* cols_field);
// Rows that share scales cannot come one by one: only for formats of weights.
void check_rows_stand_alone(const char* field, Format f);
// A factor that kernels apply in single precision: finite there, and zero there only if it is zero.
void check_factor(const char* field, double value);

bool is_plain(Format f);  // elements stored one by one, with no scale
bool is_float(Format f);  // plain, f32 f16 or bf16
bool has_global(Format f);

}  // namespace tilewright
