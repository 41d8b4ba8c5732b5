// SPDX-License-Identifier: Apache-2.0
// Shared by the commands: common flags, exit codes, output and progress.
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

#include "cli/progress.h"

namespace tilewright::cli {

using Json = nlohmann::ordered_json;

// Documented in --help and docs/use/command-line.md.
enum Exit : int {
  kOk = 0,
  kUserError = 1,      // a bad argument, problem, file or name
  kWrong = 2,          // a result beyond its error bound
  kDamage = 3,         // a cache file with damage in it
  kEnvironment = 4,    // no GPU, no libnvrtc, a driver or compiler that failed, a cache that keeps nothing
  kInterrupted = 130,  // Ctrl-C
};

// One per process; commands add themselves to `app` and set `action`.
struct Context {
  CLI::App* app = nullptr;
  std::string cache;
  bool json = false;
  bool verbose = false;
  std::function<int()> action;

  // The environment's options, with --cache and a log callback that writes to stderr: warnings and errors, what
  // TILEWRIGHT_LOG asks for, everything with -v.
  Options options() const;
};

CLI::App* add_command(Context& context, CLI::App& parent, const std::string& name, const std::string& help);

void add_catalogue(Context& context);    // formats, encoders, archs, operations, families
void add_plan(Context& context);         // plan, emit
void add_export(Context& context);       // export
void add_prewarm(Context& context);      // prewarm
void add_tune(Context& context);         // tune
void add_plot(Context& context);         // plot
void add_calibrate(Context& context);    // calibrate
void add_bench(Context& context);        // bench
void add_model_files(Context& context);  // tensors, workload
void add_run(Context& context);          // run
void add_quantize(Context& context);     // quantize
void add_cache(Context& context);        // cache ...
void add_doctor(Context& context);       // doctor
void add_completion(Context& context);   // completion
void add_man(Context& context);          // man

// PROBLEM may be one argument or one per field.
struct ProblemArgument {
  std::vector<std::string> words;
  bool given() const { return !words.empty(); }
  Problem parse() const;
};
void add_problem(CLI::App* command, ProblemArgument& argument, bool required);

// --workload: any number of files, - for standard input.
CLI::Option* add_workload(CLI::App* command, std::vector<std::string>& files);
// The argument's and those of every workload. Throws Error if there is none.
std::vector<Problem> all_problems(const ProblemArgument& argument, const std::vector<std::string>& workloads);
// Throws Error (io) naming the variables to set if no place for a cache file is known.
void need_cache(const Options& options);

// --arch; where it is empty or "native", the first GPU's, else this machine's CPU.
const Arch& arch_or_device(const std::string& name, const Options& options);
// Several of these, or "all"; each once.
std::vector<const Arch*> targets(const std::vector<std::string>& names, const Options& options);
// Throws Error (library_missing) saying that a GPU is needed for `what`, or open()'s own error.
Device need_device(int ordinal, const Options& options, const char* what);
// --device: "cpu", "cpu:TARGET" (CpuOptions::target), or a GPU's ordinal. Throws Error (invalid_argument), or as above.
Device need_device(const std::string& name, const Options& options, const char* what);
// Without a name: the first GPU, else this machine's CPU.
Device device_or_cpu(const std::string& name, const Options& options, const char* what);
CLI::Option* add_target(CLI::App* command, std::string& name);
CLI::Option* add_device(CLI::App* command, std::string& name);
void tell_of_cpu(const std::string& name, const Device& device);  // that it was taken without having been named
// What is computed on `arch`: on a CPU with w in panels, if its kernels take it so. (On a GPU kernels take weights as
// they are stored, too, and who wants them packed asks for it.)
Problem as_computed(const Problem& problem, const Arch& arch);

void print_json(const Json& value);
void print(std::string_view text);  // with a line break; printable() of it
// Without a line break. colour: an SGR parameter ("32" is green), for a terminal where NO_COLOR is not set.
void print_coloured(std::string_view text, const char* colour);
// The same to stderr, after "tilewright: ". An stderr that is closed or full loses the text and nothing else.
void tell(std::string_view text);
int finish_output(int code);  // `code`, or kEnvironment if stdout did not take everything

CLI::Validator at_least(double least);
CLI::Validator not_empty();
CLI::Validator size_in_bytes();  // 4096, 20K, 200M, 2G
std::string microseconds(double value);
std::string bytes_text(double bytes);
std::string rows_text(const RowRange& range);  // "1 to 8"
Json json(const RowRange& range);

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

}  // namespace tilewright::cli
