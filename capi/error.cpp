// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdlib>
#include <new>

#include "capi/handles.h"

struct tw_error {
  tw_status status = TW_INTERNAL;
  std::string message, field, value, allowed, log, source;
};

namespace tilewright::capi {
namespace {

// Given out when there is no memory for another; never deleted.
const tw_error kOutOfMemory = {TW_OUT_OF_MEMORY, "the host's memory is exhausted", "memory", "", "", "", ""};

thread_local std::unique_ptr<tw_error> latest;
thread_local bool latest_is_memory = false;

tw_status status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument: return TW_INVALID_ARGUMENT;
    case ErrorCode::unsupported: return TW_UNSUPPORTED;
    case ErrorCode::too_large: return TW_TOO_LARGE;
    case ErrorCode::would_tune: return TW_WOULD_TUNE;
    case ErrorCode::compile_failed: return TW_COMPILE_FAILED;
    case ErrorCode::driver_failed: return TW_DRIVER_FAILED;
    case ErrorCode::library_missing: return TW_LIBRARY_MISSING;
    case ErrorCode::forked: return TW_FORKED;
    case ErrorCode::io: return TW_IO;
  }
  return TW_INTERNAL;
}

tw_error describe(const Error& e) { return {status_of(e.code()), e.what(), e.field(), e.value(), e.allowed(), "", ""}; }

tw_error describe_current() {
  try {
    throw;
  } catch (const CompileError& e) {
    tw_error error = describe(e);
    error.log = e.log();
    error.source = e.source();
    return error;
  } catch (const Error& e) {
    return describe(e);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    return {TW_INTERNAL, std::string("the library has a defect: ") + e.what(), "", "", "", "", ""};
  } catch (...) {
    return {TW_INTERNAL, "the library has a defect: an exception of an unknown type", "", "", "", "", ""};
  }
}

}  // namespace

tw_status record_exception(tw_error** error) noexcept {
  try {
    auto described = std::make_unique<tw_error>(describe_current());
    std::unique_ptr<tw_error> given = error ? std::make_unique<tw_error>(*described) : nullptr;
    latest = std::move(described);
    latest_is_memory = false;
    if (error) *error = given.release();
    return latest->status;
  } catch (...) {
    latest_is_memory = true;
    if (error) *error = const_cast<tw_error*>(&kOutOfMemory);
    return TW_OUT_OF_MEMORY;
  }
}

void refuse(const std::string& field, const std::string& value, const std::string& allowed) {
  throw Error(ErrorCode::invalid_argument, field, value, allowed);
}

void check_struct(const void* given, std::uint32_t size, std::uint32_t least, std::uint32_t known, const char* name) {
  const std::string field = std::string(name) + ".struct_size";
  if (size < least || size > kMostStruct)
    refuse(field, std::to_string(size), fmt::format("must be {}, as the struct's _INIT sets it", known));
  const auto* bytes = static_cast<const unsigned char*>(given);
  if (size > known && std::any_of(bytes + known, bytes + size, [](unsigned char byte) { return byte != 0; }))
    throw Error(
        ErrorCode::unsupported, field, std::to_string(size),
        fmt::format("is not supported: this library knows the first {} bytes, and what follows must be zero", known));
}

char* copy_text(std::string_view text) {
  char* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  if (!text.empty()) std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = 0;
  return copy;
}

std::size_t index_of(std::int32_t index, std::size_t count, const char* name) {
  if (index < 0 || static_cast<std::size_t>(index) >= count)
    refuse(name, std::to_string(index), fmt::format("must be less than {}, counted from 0", count));
  return static_cast<std::size_t>(index);
}

void check_flag(std::int32_t value, const char* name) {
  if (value != 0 && value != 1) refuse(name, std::to_string(value), "must be 0 or 1");
}

}  // namespace tilewright::capi

using namespace tilewright::capi;

extern "C" {

const char* tw_status_name(tw_status status) {
  switch (number_of(status)) {
    case TW_OK: return "ok";
    case TW_INVALID_ARGUMENT: return "invalid_argument";
    case TW_UNSUPPORTED: return "unsupported";
    case TW_TOO_LARGE: return "too_large";
    case TW_WOULD_TUNE: return "would_tune";
    case TW_COMPILE_FAILED: return "compile_failed";
    case TW_DRIVER_FAILED: return "driver_failed";
    case TW_LIBRARY_MISSING: return "library_missing";
    case TW_FORKED: return "forked";
    case TW_IO: return "io";
    case TW_OUT_OF_MEMORY: return "out_of_memory";
    case TW_INTERNAL: return "internal";
  }
  return "unknown";
}

tw_status tw_error_status(const tw_error* error) { return error ? error->status : TW_OK; }
const char* tw_error_message(const tw_error* error) { return error ? error->message.c_str() : ""; }
const char* tw_error_field(const tw_error* error) { return error ? error->field.c_str() : ""; }
const char* tw_error_value(const tw_error* error) { return error ? error->value.c_str() : ""; }
const char* tw_error_allowed(const tw_error* error) { return error ? error->allowed.c_str() : ""; }
const char* tw_error_log(const tw_error* error) { return error ? error->log.c_str() : ""; }
const char* tw_error_source(const tw_error* error) { return error ? error->source.c_str() : ""; }
void tw_error_release(tw_error* error) {
  if (error != &kOutOfMemory) delete error;
}
const tw_error* tw_last_error(void) { return latest_is_memory ? &kOutOfMemory : latest.get(); }

}  // extern "C"
