// SPDX-License-Identifier: Apache-2.0
// Values for the axes of a convolution as words of a problem's text, outermost first: 6x480x832, 2:0x1x1, zero; and how
// its input is fake quantized: e2m1/16.
#pragma once

#include <tilewright/conv.h>

#include <string>

#include "templates/common/words.h"

namespace tilewright {

template <>
struct Wording<Axes> {
  static constexpr const char* kKind = "INTEGERxINTEGER..";
  static Axes parse(const char* field, const std::string& text);
  static std::string text(const Axes& axes);
  static std::uint64_t bits(const Axes& axes);
  static double product(const Axes& axes);
  static void erase(Axes& axes);  // the same rank, of ones
};
template <>
struct Wording<Pads> {
  static constexpr const char* kKind = "INTEGER[:INTEGER]x..";
  static Pads parse(const char* field, const std::string& text);
  static std::string text(const Pads& pads);
  static std::uint64_t bits(const Pads& pads) {
    return 31 * Wording<Axes>::bits(pads.lo) + Wording<Axes>::bits(pads.hi);
  }
};
template <>
struct Wording<PadModes> {
  static constexpr const char* kKind = "zero|replicate|reflectx..";
  static PadModes parse(const char* field, const std::string& text);
  static std::string text(const PadModes& modes);
  static std::uint64_t bits(const PadModes& modes);
};
template <>
struct Wording<QuantAct> {
  static constexpr const char* kKind = "e2m1/INTEGER";
  static QuantAct parse(const char* field, const std::string& text);
  static std::string text(const QuantAct& quant);
  static std::uint64_t bits(const QuantAct& quant) { return static_cast<std::uint64_t>(quant.block); }
};

}  // namespace tilewright
