// SPDX-License-Identifier: Apache-2.0
#include "templates/operations/conv/axes.h"

#include <fmt/format.h>
#include <tilewright/error.h>

#include <limits>
#include <string_view>
#include <vector>

#include "support/must_be.h"

namespace tilewright {
namespace {

constexpr const char* kModes[] = {"zero", "replicate", "reflect"};

// One part for each axis.
std::vector<std::string> parts_of(const char* field, const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == 'x')
      parts.emplace_back();
    else
      parts.back() += c;
  }
  if (parts.size() > static_cast<std::size_t>(kMostAxes))
    throw Error(ErrorCode::invalid_argument, field, text,
                "must have values for one to three axes, with x between them");
  return parts;
}

template <class Text>
std::string joined(int rank, const Text& text) {
  std::string all;
  for (int i = 0; i < rank; ++i) all += (i ? "x" : "") + text(static_cast<std::size_t>(i));
  return all;
}

}  // namespace

Axes Wording<Axes>::parse(const char* field, const std::string& text) {
  Axes axes;
  for (const std::string& part : parts_of(field, text))
    axes.at[static_cast<std::size_t>(axes.rank++)] = parse_integer(field, part);
  return axes;
}
std::string Wording<Axes>::text(const Axes& axes) {
  return joined(axes.rank, [&](std::size_t i) { return std::to_string(axes.at[i]); });
}
std::uint64_t Wording<Axes>::bits(const Axes& axes) {
  std::uint64_t bits = static_cast<std::uint64_t>(axes.rank);
  for (const std::int64_t v : axes.at) bits = bits * 0x9e3779b97f4a7c15ull + static_cast<std::uint64_t>(v);
  return bits;
}
double Wording<Axes>::product(const Axes& axes) {
  double product = 1;
  for (int i = 0; i < axes.rank; ++i) product *= static_cast<double>(axes.at[static_cast<std::size_t>(i)]);
  return product;
}
void Wording<Axes>::erase(Axes& axes) {
  for (int i = 0; i < axes.rank; ++i) axes.at[static_cast<std::size_t>(i)] = 1;
}

Pads Wording<Pads>::parse(const char* field, const std::string& text) {
  Pads pads;
  for (const std::string& part : parts_of(field, text)) {
    const std::size_t colon = part.find(':');
    const auto at = static_cast<std::size_t>(pads.lo.rank++);
    pads.lo.at[at] = parse_integer(field, part.substr(0, colon));
    pads.hi.at[at] = colon == part.npos ? pads.lo.at[at] : parse_integer(field, part.substr(colon + 1));
  }
  pads.hi.rank = pads.lo.rank;
  return pads;
}
std::string Wording<Pads>::text(const Pads& pads) {
  return joined(pads.lo.rank, [&](std::size_t i) {
    return pads.lo.at[i] == pads.hi.at[i] ? std::to_string(pads.lo.at[i])
                                          : fmt::format("{}:{}", pads.lo.at[i], pads.hi.at[i]);
  });
}

PadModes Wording<PadModes>::parse(const char* field, const std::string& text) {
  PadModes modes;
  for (const std::string& part : parts_of(field, text))
    modes.at[static_cast<std::size_t>(modes.rank++)] = static_cast<PadMode>(parse_choice(field, part, kModes));
  return modes;
}
std::string Wording<PadModes>::text(const PadModes& modes) {
  return joined(modes.rank, [&](std::size_t i) { return std::string(kModes[static_cast<int>(modes.at[i])]); });
}
std::uint64_t Wording<PadModes>::bits(const PadModes& modes) {
  std::uint64_t bits = static_cast<std::uint64_t>(modes.rank);
  for (const PadMode mode : modes.at) bits = bits * 4 + static_cast<std::uint64_t>(mode);
  return bits;
}

QuantAct Wording<QuantAct>::parse(const char* field, const std::string& text) {
  constexpr std::string_view kElement = "e2m1/";
  if (!text.starts_with(kElement)) throw must_be(field, text, "e2m1/ and the elements of a block, as in e2m1/16");
  const std::int64_t block = parse_integer(field, text.substr(kElement.size()));
  if (block < 1 || block > std::numeric_limits<int>::max())
    throw Error(ErrorCode::invalid_argument, field, text, "must have a block of at least one element");
  return {static_cast<int>(block)};
}
std::string Wording<QuantAct>::text(const QuantAct& quant) { return fmt::format("e2m1/{}", quant.block); }

}  // namespace tilewright
