// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <functional>

#include "capi/handles.h"

namespace tilewright::capi {
namespace {

std::int64_t integer(const char* name, std::string_view value) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size())
    refuse(name, std::string(value), "must be a decimal integer");
  return number;
}

int small_integer(const char* name, std::string_view value) {
  const std::int64_t number = integer(name, value);
  if (number < 0 || number > 1 << 20) refuse(name, std::string(value), "must be 0 to 1048576");
  return static_cast<int>(number);
}

bool flag(const char* name, std::string_view value) {
  if (value != "0" && value != "1") refuse(name, std::string(value), "must be 0 or 1");
  return value == "1";
}

LogLevel level(const char* name, std::string_view value) {
  if (value == "error") return LogLevel::error;
  if (value == "warn" || value == "warning") return LogLevel::warning;
  if (value == "info") return LogLevel::info;
  if (value == "debug") return LogLevel::debug;
  refuse(name, std::string(value), "must be error, warn, info or debug");
}

struct Setting {
  const char* name;
  void (*set)(Options& options, const char* name, std::string_view value);
};

#define TEXT(field)                                                                   \
  {                                                                                   \
#field, [](Options & o, const char*, std::string_view value) { o.field = value; } \
  }
#define INTEGER(field)                                                                                    \
  {                                                                                                       \
#field, [](Options & o, const char* name, std::string_view value) { o.field = integer(name, value); } \
  }
#define FLAG(field)                                                                                    \
  {                                                                                                    \
#field, [](Options & o, const char* name, std::string_view value) { o.field = flag(name, value); } \
  }
constexpr Setting kSettings[] = {
    TEXT(cache),
    {"shipped",
     [](Options& o, const char*, std::string_view value) {
       if (value.empty())
         o.shipped.clear();
       else
         o.shipped.emplace_back(value);
     }},
    INTEGER(cache_cap),
    INTEGER(prepared_cap),
    FLAG(cache_read_only),
    FLAG(allow_shared),
    TEXT(nvrtc),
    FLAG(same_nvrtc),
    TEXT(llvm),
    TEXT(driver),
    TEXT(templates),
    TEXT(record),
    FLAG(tune),
    FLAG(compile),
    {"jobs", [](Options& o, const char* name, std::string_view value) { o.jobs = small_integer(name, value); }},
    FLAG(check_pointers),
    FLAG(log_launches),
    TEXT(nvtx),
    {"log_level", [](Options& o, const char* name, std::string_view value) { o.log_level = level(name, value); }},
};
#undef TEXT
#undef INTEGER
#undef FLAG

std::string setting_names() {
  std::string names;
  for (const Setting& s : kSettings) names += (names.empty() ? "" : ", ") + std::string(s.name);
  return names;
}

}  // namespace
}  // namespace tilewright::capi

using namespace tilewright;
using namespace tilewright::capi;

extern "C" {

tw_status tw_options_create(tw_options** options, tw_error** error) {
  return guarded(error, [&] { create(options, "options"); });
}

tw_status tw_options_set(tw_options* options, const char* name, const char* value, tw_error** error) {
  return guarded(error, [&] {
    tw_options& o = handle(options);
    const std::string_view wanted = text(name, "name");
    for (const Setting& s : kSettings) {
      if (wanted == s.name) return s.set(o.value, s.name, text(value, s.name));
    }
    refuse("name", std::string(wanted), "must be one of " + setting_names());
  });
}

tw_status tw_options_set_log(tw_options* options, void (*log)(void*, tw_log_level, const char*), void* user,
                             tw_error** error) {
  return guarded(error, [&] {
    handle(options).value.log = {};
    if (log == nullptr) return;
    options->value.log = [log, user](LogLevel level, std::string_view text) {
      log(user, static_cast<tw_log_level>(level), std::string(text).c_str());
    };
  });
}

void tw_options_release(tw_options* options) { release(options); }

}  // extern "C"
