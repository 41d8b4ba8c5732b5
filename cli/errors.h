// SPDX-License-Identifier: Apache-2.0
// How the tool fails: one line on stderr, an exit code, and with --json the same as an object on stdout:
//   {"error": {"code", "field", "value", "allowed", "message"}, "exit": 1}
// as tilewright/error.h defines them; a compiler's error has "options" and "log" besides. The code is "internal" for
// what is no Error of the library.
#pragma once

#include <exception>
#include <string>

namespace tilewright::cli {

// Each gives the exit code.
int report(const std::exception& error, bool json);
int report_usage(const std::string& message, bool json);  // arguments that are no command line

// Before the arguments are parsed, which may be what fails.
bool wants_json(int argc, char** argv);

}  // namespace tilewright::cli
