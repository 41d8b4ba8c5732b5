// SPDX-License-Identifier: Apache-2.0
// Shared by families whose candidates are enumerated: a stored candidate is legal iff enumeration yields it. And the
// knobs of such a family: a struct that host and device share, whose members a candidate names.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include <tilewright/family.h>

namespace tilewright {

// A family that lists its legal candidates; the rest follows.
class EnumeratedFamily : public Family {
 public:
  std::string illegal(const Problem& problem, const Arch& arch, const Candidate& candidate) const override {
    if (candidate.family != name()) return "family is '" + candidate.family + "', not '" + std::string(name()) + "'";
    if (std::string why = why_not(problem, arch); !why.empty()) return why;
    const std::vector<Candidate> legal = candidates(problem, arch);
    if (std::find(legal.begin(), legal.end(), candidate) != legal.end()) return {};
    return not_among(candidate, legal.size());
  }

 protected:
  static std::string not_among(const Candidate& candidate, std::size_t legal) {
    return "'" + candidate.text() + "' is not among the " + std::to_string(legal) + " legal candidates";
  }
};

// A member of a struct of knobs: an integer, a bool or an enumerator. An option is a feature that most candidates do
// without: a candidate names it where it is not 0, and a search takes candidates with other options for unlike ones.
template <class Knobs>
struct Knob {
  const char* name;  // the member's
  bool enumerator, option;
  std::int64_t (*get)(const Knobs&);
  void (*set)(Knobs&, std::int64_t);
};
template <class Knobs, class T>
Knobs owner_of(T Knobs::*);
template <auto member>
constexpr auto knob(const char* name, bool option = false) {
  using Knobs = decltype(owner_of(member));
  using Value = std::decay_t<decltype(std::declval<Knobs>().*member)>;
  return Knob<Knobs>{name, std::is_enum_v<Value>, option,
                     [](const Knobs& k) { return static_cast<std::int64_t>(k.*member); },
                     [](Knobs& k, std::int64_t v) { k.*member = static_cast<Value>(v); }};
}
template <auto member>
constexpr auto option(const char* name) {
  return knob<member>(name, true);
}

// How a family's knobs are called, in the order in which candidates and generated sources name them. `derived`: members
// that follow from the problem and the others; generated sources have them, candidates do not.
template <class Knobs>
class KnobTable {
 public:
  template <std::size_t count>
  constexpr KnobTable(const char* type, const Knob<Knobs> (&knobs)[count], std::span<const Knob<Knobs>> derived = {})
      : type_(type), knobs_(knobs), derived_(derived) {}

  Candidate candidate(std::string_view family, const Knobs& k) const {
    Candidate c{std::string(family), {}};
    for (const Knob<Knobs>& knob : knobs_)
      if (named(knob, k)) c.knobs.emplace_back(knob.name, knob.get(k));
    return c;
  }
  // Throws Error (invalid_argument) if the candidate lacks one that is no option.
  Knobs knobs(const Candidate& c) const {
    Knobs k;
    for (const Knob<Knobs>& knob : knobs_) knob.set(k, knob.option && !has(c, knob) ? 0 : c.at(knob.name));
    return k;
  }
  // candidate(c.family, k) == c, without writing it out.
  bool names(const Candidate& c, const Knobs& k) const {
    std::size_t i = 0;
    for (const Knob<Knobs>& knob : knobs_) {
      if (!named(knob, k)) continue;
      if (i == c.knobs.size() || c.knobs[i].second != knob.get(k) || c.knobs[i].first != knob.name) return false;
      ++i;
    }
    return i == c.knobs.size();
  }
  // A constant of a generated source. (Assignments, since C++17 names no members in an initializer.)
  std::string text(const Knobs& k, std::string_view constant = "kKnobs") const {
    std::string s = fmt::format("inline constexpr {0} {1} = [] {{\n  {0} k;\n", type_, constant);
    for (const auto& list : {knobs_, derived_})
      for (const Knob<Knobs>& knob : list)
        s += fmt::format(fmt::runtime(knob.enumerator ? "  k.{0} = decltype(k.{0})({1});\n" : "  k.{0} = {1};\n"),
                         knob.name, knob.get(k));
    return s + "  return k;\n}();\n";
  }

 private:
  static bool named(const Knob<Knobs>& knob, const Knobs& k) { return !knob.option || knob.get(k) != 0; }
  static bool has(const Candidate& c, const Knob<Knobs>& knob) {
    return std::any_of(c.knobs.begin(), c.knobs.end(), [&](const auto& named) { return named.first == knob.name; });
  }

  const char* type_;  // "tw::gemm::GemvKnobs"
  std::span<const Knob<Knobs>> knobs_, derived_;
};

}  // namespace tilewright
