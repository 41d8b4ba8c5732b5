// SPDX-License-Identifier: Apache-2.0
// What the functions of tilewright_c.h share: handles that are counted and know what they are, the guard around every
// body, and reading and writing of structs whose size the caller says.
#pragma once

#include <tilewright/tilewright.h>
#include <tilewright/tilewright_c.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tilewright::capi {

// The first bytes of every handle. A pointer to something else, or to a handle that is gone, is found out as long as
// its memory says something else there: a help to callers, not a guarantee. A kind is the address of an array of its
// own, kKind: equal literals need not have one address.
struct Handle {
  explicit Handle(const char* kind) : kind(kind) {}
  ~Handle() { kind = nullptr; }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  const char* volatile kind;
  std::atomic<int> references{1};
};

}  // namespace tilewright::capi

struct tw_options : tilewright::capi::Handle {
  static constexpr char kKind[] = "options";
  tw_options() : Handle(kKind), value(tilewright::Options::from_env()) {}
  tilewright::Options value;
};

struct tw_problem : tilewright::capi::Handle {
  static constexpr char kKind[] = "problem";
  explicit tw_problem(tilewright::Problem p) : Handle(kKind), value(std::move(p)), text(value.text()) {}
  // Buffers and matrices, and the contract of launches.
  const tilewright::Task& described() const;

  const tilewright::Problem value;
  const std::string text;

 private:
  mutable std::once_flag once_;
  mutable tilewright::Task described_;
};

struct tw_device : tilewright::capi::Handle {
  static constexpr char kKind[] = "device";
  explicit tw_device(tilewright::Device d) : Handle(kKind), value(std::move(d)) {}
  const tilewright::Device value;
};

struct tw_memory : tilewright::capi::Handle {
  static constexpr char kKind[] = "memory";
  explicit tw_memory(tilewright::Memory m) : Handle(kKind), value(std::move(m)) {}
  tilewright::Memory value;
};

struct tw_owned_stream : tilewright::capi::Handle {
  static constexpr char kKind[] = "stream";
  explicit tw_owned_stream(tilewright::OwnedStream s) : Handle(kKind), value(std::move(s)) {}
  const tilewright::OwnedStream value;
};

struct tw_engine : tilewright::capi::Handle {
  static constexpr char kKind[] = "engine";
  explicit tw_engine(tilewright::Options options) : Handle(kKind), value(std::move(options)) {}
  mutable tilewright::Engine value;  // thread-safe
};

struct tw_kernel : tilewright::capi::Handle {
  static constexpr char kKind[] = "kernel";
  explicit tw_kernel(tilewright::Kernel k) : Handle(kKind), value(std::move(k)) {}
  tilewright::Kernel value;
};

namespace tilewright::capi {

// Records the exception that is being handled, for tw_last_error() and for `error`, and returns its status.
tw_status record_exception(tw_error** error) noexcept;

template <class Body>
tw_status guarded(tw_error** error, const Body& body) noexcept {
  try {
    if (error) *error = nullptr;
    body();
    return TW_OK;
  } catch (...) {
    return record_exception(error);
  }
}

[[noreturn]] void refuse(const std::string& field, const std::string& value, const std::string& allowed);

template <class T>
T& required(T* pointer, const char* name) {
  if (pointer == nullptr) refuse(name, "null", "must be a pointer");
  return *pointer;
}

// False for null, and for what can be told to be none.
template <class T>
bool is_handle(const T* pointer) {
  return pointer != nullptr && pointer->kind == T::kKind;
}

// The handle behind a pointer. Throws Error (invalid_argument) where it is none.
template <class T>
T& handle(T* pointer, const char* name = T::kKind) {
  if (pointer == nullptr) refuse(name, "null", std::string("must be a handle of kind '") + T::kKind + "'");
  if (!is_handle(pointer))
    refuse(name, "no such handle", std::string("must be a handle of kind '") + T::kKind + "' that was not released");
  return *pointer;
}

// These leave what is no handle of the kind alone.
template <class T>
void retain(T* pointer) {
  if (is_handle(pointer)) pointer->references.fetch_add(1, std::memory_order_relaxed);
}
template <class T>
void release(T* pointer) noexcept {
  if (is_handle(pointer) && pointer->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete pointer;
}

// Gives a new handle to `out`.
template <class T, class... Args>
void create(T** out, const char* name, Args&&... args) {
  required(out, name);
  *out = new T(std::forward<Args>(args)...);
}

// Structs of the caller's, whose size says how much of them the caller knows. One that grew is taken in the size that
// was published first, what is missing being absent; beyond what this library knows, bytes must be zero, so that a
// request that it would not follow is refused.
template <class T>
inline constexpr std::uint32_t kPublishedFirst = sizeof(T);  // to specialize for a struct that grows
inline constexpr std::uint32_t kMostStruct = 4096;
void check_struct(const void* given, std::uint32_t size, std::uint32_t least, std::uint32_t known, const char* name);

template <class T>
T read_struct(const T* given, const char* name) {
  const std::uint32_t size = required(given, name).struct_size;
  check_struct(given, size, kPublishedFirst<T>, sizeof(T), name);
  T copy = {};
  std::memcpy(&copy, given, std::min<std::size_t>(size, sizeof(T)));
  return copy;
}
// For one that the library fills in. Its struct_size stays what the caller wrote.
template <class T>
void write_struct(T* to, T filled, const char* name) {
  const std::uint32_t size = required(to, name).struct_size;
  check_struct(to, size, kPublishedFirst<T>, sizeof(T), name);
  filled.struct_size = size;
  std::memcpy(to, &filled, std::min<std::size_t>(size, sizeof(T)));
}

inline const char* word(const char* text) { return text ? text : ""; }
inline const char* text(const char* given, const char* name) { return &required(given, name); }
char* copy_text(std::string_view text);  // for tw_free()
// Throws Error (invalid_argument) unless index is one of `count`.
std::size_t index_of(std::int32_t index, std::size_t count, const char* name);
void check_flag(std::int32_t value, const char* name);  // 0 or 1

// What C may have passed as one of an enumeration: any number, which C++ must not read as one of them.
template <class E>
int number_of(const E& any) {
  int number = 0;
  static_assert(sizeof number == sizeof any);
  std::memcpy(&number, &any, sizeof number);
  return number;
}
StreamName stream_name(const tw_stream_name& stream);
Operand operand(const tw_operand& o);
MutableOperand operand(const tw_mutable_operand& o);
GemmArgs gemm_args(const tw_gemm_args* args);  // launch.cpp
ConvArgs conv_args(const tw_conv_args* args);
// All streams that the format has; throws Error (invalid_argument) naming the one that is null.
void require_streams(Format format, Operand o, const char* name);

TunePolicy policy_of(const tw_tune_policy* policy);
PrewarmPolicy policy_of(const tw_prewarm_policy* policy);
std::vector<const Arch*> archs_of(const char* const* names, std::size_t count);
tw_kernel_info info_of(const LaunchPlan& plan, const Resources& resources);

}  // namespace tilewright::capi

struct tw_tune_report : tilewright::capi::Handle {
  static constexpr char kKind[] = "tune report";
  explicit tw_tune_report(tilewright::TuneReport r);

  tilewright::TuneReport value;
  std::string candidate, first;
  std::vector<std::string> outcomes, ranges;  // texts of their candidates
};

struct tw_prewarm_report : tilewright::capi::Handle {
  static constexpr char kKind[] = "prewarm report";
  explicit tw_prewarm_report(tilewright::PrewarmReport r) : Handle(kKind), value(std::move(r)) {}
  const tilewright::PrewarmReport value;
};
