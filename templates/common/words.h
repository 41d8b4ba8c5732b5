// SPDX-License-Identifier: Apache-2.0
// The text of a problem taken apart, and the fields of an operation's struct put together again.
//
//   OPERATION FIELD=VALUE ...       words between spaces; a field at most once
//
// An operation states its fields once, in a function that visits all of them:
//
//   struct Fields {
//     template <class G, class V>
//     static void visit(G& gemm, V&& visit) {
//       auto& [x, w, ..., m, ...] = gemm;   // a forgotten member does not compile
//       visit(required("x", "activations, [m, k]"), x);
//       visit(required("m", "tokens", Role::rows), m);
//       visit(optional("act", "activation"), act, kActivations);
//       ...
//
// The order of the visits is the order of the canonical text.
#pragma once

#include <tilewright/error.h>
#include <tilewright/format.h>
#include <tilewright/operation.h>

#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace tilewright {

enum class Role {
  identity,  // problems that differ in it have nothing to tell each other
  size,      // problems that differ only in such are neighbours
  rows,      // given by each launch
};

struct FieldSpec {
  const char* name;
  const char* help;
  Role role;
  bool required;
};
constexpr FieldSpec required(const char* name, const char* help, Role role = Role::identity) {
  return {name, help, role, true};
}
constexpr FieldSpec optional(const char* name, const char* help, Role role = Role::identity) {
  return {name, help, role, false};
}

using Words = std::vector<std::pair<std::string, std::string>>;

// The operation's name and its words. Throws Error (invalid_argument).
std::pair<std::string, Words> split_problem(std::string_view text);

// Throws Error (invalid_argument) for a field that the operation does not have, naming the nearest one that it has.
void check_names(std::string_view operation, std::span<const FieldInfo> fields, const Words& words);

std::int64_t parse_integer(const char* field, const std::string& text);
double parse_number(const char* field, const std::string& text);
Format parse_format(const char* field, const std::string& text);
int parse_choice(const char* field, const std::string& text, std::span<const char* const> names);

// Kinds of members that an operation brings itself: kKind, as help shows it; parse(field, text); text(member);
// bits(member), for a hash; where it may be a size, product(member) and erase(member), which makes that 1.
template <class T>
struct Wording;
template <class T>
concept HasWording = requires {
  Wording<T>::kKind;
};

// Visitors of an operation's fields. Each takes the kinds of members that structs have.

// The words, each into its member.
class ParseFields {
 public:
  explicit ParseFields(const Words& words) : words_(words) {}
  void operator()(const FieldSpec& f, Format& member) {
    if (const std::string* text = find(f)) member = parse_format(f.name, *text);
  }
  void operator()(const FieldSpec& f, std::optional<Format>& member) {
    if (const std::string* text = find(f)) member = parse_format(f.name, *text);
  }
  void operator()(const FieldSpec& f, std::int64_t& member) {
    if (const std::string* text = find(f)) member = parse_integer(f.name, *text);
  }
  void operator()(const FieldSpec& f, int& member);
  void operator()(const FieldSpec& f, double& member) {
    if (const std::string* text = find(f)) member = parse_number(f.name, *text);
  }
  template <HasWording T>
  void operator()(const FieldSpec& f, T& member) {
    if (const std::string* text = find(f)) member = Wording<T>::parse(f.name, *text);
  }
  template <class E>
  void operator()(const FieldSpec& f, E& member, std::span<const char* const> names) {
    if (const std::string* text = find(f)) member = static_cast<E>(parse_choice(f.name, *text, names));
  }

 private:
  const std::string* find(const FieldSpec& f) const;
  const Words& words_;
};

// Canonical text. `defaults`: a default-constructed struct beside the printed one; what is equal there is left out.
class PrintFields {
 public:
  PrintFields(const void* fields, const void* defaults, bool to_first_size = false)
      : fields_(static_cast<const char*>(fields)),
        defaults_(static_cast<const char*>(defaults)),
        to_first_size_(to_first_size) {}
  template <class T>
  void operator()(const FieldSpec& f, const T& member) {
    if (done(f)) return;
    if (f.required || !(member == by_default(member))) add(f, written(member));
  }
  template <class E>
  void operator()(const FieldSpec& f, const E& member, std::span<const char* const> names) {
    if (done(f)) return;
    if (f.required || !(member == by_default(member))) add(f, names[static_cast<std::size_t>(member)]);
  }
  std::string text;

 private:
  bool done(const FieldSpec& f);
  void add(const FieldSpec& f, std::string_view value);
  static std::string written(Format member) { return std::string(member.name()); }
  static std::string written(const std::optional<Format>& member) { return std::string(member->name()); }
  static std::string written(std::int64_t member) { return std::to_string(member); }
  static std::string written(int member) { return std::to_string(member); }
  static std::string written(double member);
  template <HasWording T>
  static std::string written(const T& member) {
    return Wording<T>::text(member);
  }
  template <class T>
  const T& by_default(const T& member) const {
    return *reinterpret_cast<const T*>(defaults_ + (reinterpret_cast<const char*>(&member) - fields_));
  }

  const char *fields_, *defaults_;
  bool to_first_size_, ended_ = false;
};

// Equal for structs that are equal but for their rows.
class HashFields {
 public:
  template <class T>
  void operator()(const FieldSpec& f, const T& member) {
    if (f.role != Role::rows) mix(bits(member));
  }
  template <class E>
  void operator()(const FieldSpec&, const E& member, std::span<const char* const>) {
    mix(static_cast<std::uint64_t>(member));
  }
  std::uint64_t hash = 0;

 private:
  void mix(std::uint64_t v) {
    hash = (hash ^ v) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 29;
  }
  static std::uint64_t bits(Format f) { return reinterpret_cast<std::uintptr_t>(&f.info()); }
  static std::uint64_t bits(const std::optional<Format>& f) { return f ? bits(*f) : 0; }
  static std::uint64_t bits(int v) { return static_cast<std::uint64_t>(v); }
  static std::uint64_t bits(std::int64_t v) { return static_cast<std::uint64_t>(v); }
  static std::uint64_t bits(double v) { return std::bit_cast<std::uint64_t>(v); }
  template <HasWording T>
  static std::uint64_t bits(const T& v) {
    return Wording<T>::bits(v);
  }
};

class DescribeFields {
 public:
  template <class T>
  void operator()(const FieldSpec& f, const T& member) {
    list.push_back({f.name, kind(member), f.help, f.required});
  }
  template <class E>
  void operator()(const FieldSpec& f, const E&, std::span<const char* const> names) {
    std::string values;
    for (std::size_t i = f.required ? 0 : 1; i < names.size(); ++i) {  // the first is the default
      if (!values.empty()) values += '|';
      values += names[i];
    }
    list.push_back({f.name, values.empty() ? "NAME" : values, f.help, f.required});
  }
  std::vector<FieldInfo> list;

 private:
  static const char* kind(Format) { return "FORMAT"; }
  static const char* kind(const std::optional<Format>&) { return "FORMAT"; }
  static const char* kind(std::int64_t) { return "INTEGER"; }
  static const char* kind(int) { return "INTEGER"; }
  static const char* kind(double) { return "NUMBER"; }
  template <HasWording T>
  static const char* kind(const T&) {
    return Wording<T>::kKind;
  }
};

// The sizes, and then (second pass) the same sizes for everybody.
class SizeFields {
 public:
  explicit SizeFields(bool erase) : erase_(erase) {}
  template <class T>
  void operator()(const FieldSpec& f, T& member) {
    if (f.role != Role::size) return;
    if constexpr (std::is_same_v<T, std::int64_t>) {
      any = true;
      product *= static_cast<double>(member);
      if (erase_) member = 1;
    } else if constexpr (requires { Wording<T>::erase(member); }) {
      any = true;
      product *= Wording<T>::product(member);
      if (erase_) Wording<T>::erase(member);
    }
  }
  template <class E>
  void operator()(const FieldSpec&, E&, std::span<const char* const>) {}
  double product = 1;
  bool any = false;

 private:
  bool erase_;
};

}  // namespace tilewright
