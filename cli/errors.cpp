// SPDX-License-Identifier: Apache-2.0
#include "cli/errors.h"

#include <fmt/format.h>
#include <tilewright/error.h>
#include <tilewright/text.h>

#include <cstdio>
#include <string_view>

#include "cli/command.h"

namespace tilewright::cli {
namespace {

int exit_code(const Error& error) {
  switch (error.code()) {
    case ErrorCode::invalid_argument:
    case ErrorCode::unsupported:
    case ErrorCode::too_large: return kUserError;
    case ErrorCode::io: return error.field() == "cache" ? kEnvironment : kUserError;  // a place that keeps nothing
    default: return kEnvironment;
  }
}

int finish(Json error, int code, bool json) {
  tell("error: " + error["message"].get_ref<const std::string&>());
  if (json) print_json(Json{{"error", std::move(error)}, {"exit", code}});
  return code;
}

Json fields(const Error& e) {
  return {{"code", to_string(e.code())},
          {"field", e.field()},
          {"value", e.value()},
          {"allowed", e.allowed()},
          {"message", e.what()}};
}

}  // namespace

int report(const std::exception& error, bool json) {
  if (const auto* compile = dynamic_cast<const CompileError*>(&error)) {
    Json all = fields(*compile);
    all["options"] = compile->options();
    all["log"] = compile->log();
    const int code = finish(std::move(all), kEnvironment, json);
    tell(fmt::format("options: {}\n{}", compile->options(), compile->log()));
    return code;
  }
  if (const auto* e = dynamic_cast<const Error*>(&error)) return finish(fields(*e), exit_code(*e), json);
  return finish({{"code", "internal"}, {"field", ""}, {"value", ""}, {"allowed", ""}, {"message", error.what()}},
                kEnvironment, json);
}

int report_usage(const std::string& message, bool json) {
  const int code = finish(
      {{"code", "invalid_argument"}, {"field", "arguments"}, {"value", ""}, {"allowed", message}, {"message", message}},
      kUserError, json);
  tell("see tilewright --help");
  return code;
}

bool wants_json(int argc, char** argv) {
  for (int i = 1; i < argc; ++i)
    if (std::string_view(argv[i]) == "--json") return true;
  return false;
}

}  // namespace tilewright::cli
