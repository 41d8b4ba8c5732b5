// SPDX-License-Identifier: Apache-2.0
#include "cli/command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <tilewright/operation.h>
#include <tilewright/text.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <iostream>

namespace tilewright::cli {

Options Context::options() const {
  Options o = Options::from_env();
  if (!cache.empty()) o.cache = cache;
  if (verbose) {
    o.log_level = LogLevel::debug;
    o.log = log_to_stderr;
  } else if (!o.log) {  // TILEWRIGHT_LOG is not set: what a person needs to know, without the time
    o.log_level = LogLevel::warning;
    o.log = [](LogLevel level, std::string_view text) {
      tell(fmt::format("{}: {}", level == LogLevel::error ? "error" : "warning", text));
    };
  }
  return o;
}

CLI::App* add_command(Context& context, CLI::App& parent, const std::string& name, const std::string& help) {
  CLI::App* command = parent.add_subcommand(name, help);
  command
      ->add_option("--cache", context.cache, "Cache file; :memory: for none (default: TILEWRIGHT_CACHE, else per user)")
      ->type_name("FILE")
      ->check(not_empty());
  command->add_flag("--json", context.json, "Print one JSON object, errors too, instead of text");
  command->add_flag("-v,--verbose", context.verbose, "Log everything to stderr, as TILEWRIGHT_LOG=debug does");
  return command;
}

void add_problem(CLI::App* command, ProblemArgument& argument, bool required) {
  auto* option = command->add_option("problem", argument.words, "e.g. gemm x=q8_1 w=q4_0 y=f32 m=1 n=4096 k=4096");
  option->type_name("PROBLEM");
  command->footer("\n'tilewright operations' lists what a PROBLEM may say, 'tilewright --help' its grammar.\n");
  if (required) option->required();
}

Problem ProblemArgument::parse() const {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return Problem::parse(text);
}

std::vector<Problem> workload(const std::string& file) {
  return file == "-" ? read_workload(std::cin, "standard input") : read_workload(file);
}

CLI::Option* add_workload(CLI::App* command, std::vector<std::string>& files) {
  return command->add_option("--workload", files, "A file of one problem per line, - for standard input; repeatable")
      ->allow_extra_args(false)
      ->type_name("FILE");
}

std::vector<Problem> all_problems(const ProblemArgument& argument, const std::vector<std::string>& workloads) {
  std::vector<Problem> problems;
  if (argument.given()) problems.push_back(argument.parse());
  for (const std::string& file : workloads)
    for (Problem& p : workload(file)) problems.push_back(std::move(p));
  if (!argument.given() && workloads.empty())
    throw Error(ErrorCode::invalid_argument, "PROBLEM", "", "must be given, or --workload FILE, or both");
  if (problems.empty())
    throw Error(ErrorCode::invalid_argument, "--workload", fmt::format("{}", fmt::join(workloads, ", ")),
                "must have at least one problem");
  return problems;
}

void need_cache(const Options& options) {
  if (options.cache.empty())
    throw Error(ErrorCode::io, "cache", "",
                "has no known directory: set HOME or XDG_CACHE_HOME, or name a file with --cache or TILEWRIGHT_CACHE");
}

std::vector<const Arch*> targets(const std::vector<std::string>& names, const Options& options) {
  std::vector<const Arch*> found;
  const auto add = [&](const Arch& a) {
    if (std::find(found.begin(), found.end(), &a) == found.end()) found.push_back(&a);
  };
  if (names.empty()) add(arch_or_device("", options));
  for (const std::string& name : names) {
    if (name == "all")
      for (const Arch& a : archs()) add(a);
    else
      add(arch_or_device(name, options));
  }
  return found;
}

const Arch& arch_or_device(const std::string& name, const Options& options) {
  if (name == "cpu") return host_arch();
  if (!name.empty() && name != "native") return arch(name);
  if (Device::count(options.driver) > 0) return arch(Device::open(0, options.driver).arch().name);
  if (name.empty()) tell("no GPU was found; this machine's CPU is the target (--arch names another)");
  return host_arch();
}

Device need_device(int ordinal, const Options& options, const char* what) {
  if (Device::count(options.driver) == 0)
    throw Error(ErrorCode::library_missing, "device", std::to_string(ordinal),
                fmt::format("was not found: {} needs an NVIDIA GPU and its driver", what));
  return Device::open(ordinal, options.driver);
}

Device need_device(const std::string& name, const Options& options, const char* what) {
  if (name == "cpu") return Device::open_cpu();
  constexpr std::string_view kTarget = "cpu:";
  if (name.starts_with(kTarget) && name.size() > kTarget.size())
    return Device::open_cpu({.parallel_for = {}, .target = name.substr(kTarget.size())});
  int ordinal = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), ordinal);
  if (error != std::errc() || end != name.data() + name.size() || ordinal < 0)
    throw Error(ErrorCode::invalid_argument, "--device", name,
                "must be cpu, cpu:TARGET, or the ordinal of a GPU: 0, 1 ...");
  return need_device(ordinal, options, what);
}

Device device_or_cpu(const std::string& name, const Options& options, const char* what) {
  if (!name.empty()) return need_device(name, options, what);
  return Device::count(options.driver) > 0 ? Device::open(0, options.driver) : Device::open_cpu();
}

CLI::Option* add_target(CLI::App* command, std::string& name) {
  return command->add_option("--arch", name, "Target, e.g. sm_90a, cpu or native (default: the first GPU, else cpu)");
}

CLI::Option* add_device(CLI::App* command, std::string& name) {
  return command->add_option(
      "--device", name,
      "Ordinal of the GPU, an error if there is none; cpu; or cpu:TARGET, another target of this CPU (default: "
      "the first GPU, else cpu)");
}

void tell_of_cpu(const std::string& name, const Device& device) {
  if (name.empty() && device.arch().cpu) tell("no GPU was found; this machine's CPU is used");
}

Problem as_computed(const Problem& problem, const Arch& arch) {
  return arch.cpu ? problem.operation().packed(problem, arch).value_or(problem) : problem;
}

void print_json(const Json& value) {
  // Bytes that are not UTF-8 must not stop it, and none that a terminal obeys may pass.
  print(value.dump(2, ' ', true, Json::error_handler_t::replace));
}

void print(std::string_view text) {
  const std::string out = printable(text);
  std::fwrite(out.data(), 1, out.size(), stdout);
  if (out.empty() || out.back() != '\n') std::fputc('\n', stdout);
}

void print_coloured(std::string_view text, const char* colour) {
  const bool coloured = ::isatty(STDOUT_FILENO) && !std::getenv("NO_COLOR");
  const std::string out = coloured ? fmt::format("\033[{}m{}\033[0m", colour, printable(text)) : printable(text);
  std::fwrite(out.data(), 1, out.size(), stdout);
}

void tell(std::string_view text) {
  // One call, so that the lines of threads do not mix.
  const std::string out = "tilewright: " + printable(text) + "\n";
  std::fwrite(out.data(), 1, out.size(), stderr);
}

int finish_output(int code) {
  if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return code;
  tell("error: standard output could not be written to its end");
  return code == kOk ? kEnvironment : code;
}

CLI::Validator at_least(double least) {
  return CLI::Validator(
      [least](std::string& text) {
        double value = 0;
        const bool number = CLI::detail::lexical_cast(text, value);
        return number && value >= least ? std::string() : fmt::format("{}: a number, at least {}", text, least);
      },
      "");
}

CLI::Validator not_empty() {
  return CLI::Validator([](std::string& text) { return text.empty() ? "must not be empty" : std::string(); }, "");
}

CLI::Validator size_in_bytes() {
  return CLI::Validator(
      [](std::string& text) {
        const bool negative = text.starts_with('-');  // which AsSizeValue takes for a large one
        return negative ? text + ": a number of bytes, such as 4096, 200M or 2G" : CLI::AsSizeValue(false)(text);
      },
      "");
}

std::string microseconds(double value) {
  if (value <= 0) return "-";
  return value < 100   ? fmt::format("{:.2f} us", value)
         : value < 1e5 ? fmt::format("{:.0f} us", value)
                       : fmt::format("{:.1f} ms", value / 1e3);
}

std::string bytes_text(double bytes) {
  if (bytes < 1024) return fmt::format("{:.0f} B", bytes);
  if (bytes < 1024 * 1024) return fmt::format("{:.1f} KiB", bytes / 1024);
  return fmt::format("{:.1f} MiB", bytes / (1024 * 1024));
}

std::string rows_text(const RowRange& range) {
  if (range.last == 0) return fmt::format("{} and more", range.first);
  return range.last == range.first ? fmt::format("{}", range.first) : fmt::format("{} to {}", range.first, range.last);
}

Json json(const RowRange& range) {
  return {{"first", range.first},
          {"last", range.last == 0 ? Json() : Json(range.last)},
          {"candidate", range.candidate.text()},
          {"microseconds", range.microseconds},
          {"measured", range.measured}};
}

std::vector<std::size_t> Table::widths() const {
  std::vector<std::size_t> widths(rows_[0].size());
  for (const auto& row : rows_)
    for (std::size_t i = 0; i < row.size() && i < widths.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  return widths;
}

std::string Table::text() const {
  const auto width = widths();
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], width[i]);
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

std::string Table::markdown() const {
  std::string out;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    for (const std::string& cell : rows_[r]) {
      out += "| ";
      for (const char c : cell) out += c == '|' ? std::string("\\|") : std::string(1, c);  // it would end the cell
      out += " ";
    }
    out += "|\n";
    if (r > 0) continue;
    for (std::size_t i = 0; i < rows_[0].size(); ++i) out += "|---";
    out += "|\n";
  }
  return out;
}

}  // namespace tilewright::cli
