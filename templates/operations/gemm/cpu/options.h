// SPDX-License-Identifier: Apache-2.0
// What a CPU's kernel is written for, besides its knobs: what x is and what follows the sums. Data alone, so that it
// may be shared by code for several targets.
#pragma once

#include <tilewright/gemm.h>

namespace tilewright::cpu {

enum class Type { f32, f16, bf16, int8, e4m3, e5m2, int32, q8_1, int8_row };  // of x, bias, c and y in memory

constexpr bool has_scale(Type y) { return y == Type::int8 || y == Type::e4m3 || y == Type::e5m2; }

struct Input {
  Type type = Type::q8_1;
  bool rows = false;    // a scale for each row of x instead of each block (int8_row)
  Type as = Type::f32;  // of floats: what x is rounded to first; f32: it is not. e4m3: under scales, if there are
  int columns = 0;      // e4m3: of a row of x that share a scale; 0: the row, if `rows`, or there is none
};

struct Epilogue {
  Type y = Type::f32;     // int32: exact, and so is the bias
  bool integers = false;  // sums are integers of 32 bits, in the place of floats (PanelCodes::exact())
  bool has_bias = false;
  Type bias = Type::f32;
  Global global = Global::none;  // of w
  Activation act = Activation::none;
  bool has_c = false;
  Type c = Type::f32;
};

}  // namespace tilewright::cpu
