// SPDX-License-Identifier: Apache-2.0
// What the commands share: their common flags, exit codes, output and progress.
#pragma once

#include <tilewright/tilewright.h>
#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tilewright::cli {

using Json = nlohmann::ordered_json;

// Documented in --help and README.md.
enum Exit : int {
  kOk = 0,
  kUserError = 1,    // a bad argument, problem, file or name
  kWrong = 2,        // a result beyond its error bound
  kDamage = 3,       // a cache file with damage in it
  kEnvironment = 4,  // no GPU, no libnvrtc, a driver or compiler that failed
};

// One per process; commands add themselves to `app` and set `action`.
struct Context {
  CLI::App* app = nullptr;
  std::string cache;
  bool json = false;
  bool verbose = false;
  std::function<int()> action;

  // The environment's options, with --cache and a log callback that writes to stderr.
  Options options() const;
};

CLI::App* add_command(Context& context, CLI::App& parent, const std::string& name, const std::string& help);

void add_catalogue(Context& context);  // formats, archs, families
void add_plan(Context& context);       // plan, emit
void add_prewarm(Context& context);    // prewarm
void add_tune(Context& context);       // tune
void add_run(Context& context);        // run
void add_cache(Context& context);      // cache ...

// PROBLEM may be one argument or one per field.
struct ProblemArgument {
  std::vector<std::string> words;
  bool given() const { return !words.empty(); }
  Problem parse() const;
};
void add_problem(CLI::App* command, ProblemArgument& argument, bool required);

// --arch, else the device's, else an Error that lists the names.
const Arch& arch_or_device(const std::string& name, const Options& options);
// Throws Error (library_missing) saying that a GPU is needed for `what`, or open()'s own error.
Device need_device(int ordinal, const Options& options, const char* what);

void print_json(const Json& value);
void print(std::string_view text);  // with a line break
std::string microseconds(double value);
std::string bytes_text(double bytes);

// Rows of cells, columns aligned; markdown when asked for.
class Table {
 public:
  explicit Table(std::vector<std::string> head) : rows_{std::move(head)} {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const;
  std::string markdown() const;

 private:
  std::vector<std::size_t> widths() const;
  std::vector<std::vector<std::string>> rows_;
};

// A bar on stderr; silent unless stderr is a terminal and NO_COLOR is unset. Thread-safe.
class Progress {
 public:
  Progress();
  ~Progress();
  void operator()(std::string_view stage, int done, int total) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace tilewright::cli
