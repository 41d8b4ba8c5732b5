// SPDX-License-Identifier: Apache-2.0
#include "cli/command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace tilewright::cli {

Options Context::options() const {
  Options o = Options::from_env();
  if (!cache.empty()) o.cache = cache;
  o.log = [verbose = verbose](LogLevel level, std::string_view text) {
    if (level > LogLevel::warning && !verbose) return;
    constexpr const char* kNames[] = {"error", "warning", "info", "debug"};
    fmt::print(stderr, "tilewright: {}: {}\n", kNames[static_cast<int>(level)], text);
  };
  return o;
}

CLI::App* add_command(Context& context, CLI::App& parent, const std::string& name, const std::string& help) {
  CLI::App* command = parent.add_subcommand(name, help);
  command
      ->add_option("--cache", context.cache, "Cache file; :memory: for none (default: TILEWRIGHT_CACHE, else per user)")
      ->type_name("FILE");
  command->add_flag("--json", context.json, "Print one JSON object instead of text");
  command->add_flag("-v,--verbose", context.verbose, "Also log what the library notes, to stderr");
  return command;
}

void add_problem(CLI::App* command, ProblemArgument& argument, bool required) {
  auto* option = command->add_option("problem", argument.words, "e.g. gemm x=q8_1 w=q4_0 y=f32 m=1 n=4096 k=4096");
  option->type_name("PROBLEM");
  if (required) option->required();
}

Problem ProblemArgument::parse() const {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return Problem::parse(text);
}

const Arch& arch_or_device(const std::string& name, const Options& options) {
  if (!name.empty()) return arch(name);
  if (Device::count(options.driver) > 0) return arch(Device::open(0, options.driver).arch().name);
  std::string names;
  for (const Arch& a : archs()) names += (names.empty() ? "" : ", ") + std::string(a.name);
  throw Error(ErrorCode::invalid_argument, "--arch", "", "needed on a machine without a GPU; one of " + names);
}

Device need_device(int ordinal, const Options& options, const char* what) {
  if (Device::count(options.driver) == 0)
    throw Error(ErrorCode::library_missing, "device", std::to_string(ordinal),
                fmt::format("{} needs an NVIDIA GPU and its driver; none was found", what));
  return Device::open(ordinal, options.driver);
}

void print_json(const Json& value) {
  print(value.dump(2, ' ', false, Json::error_handler_t::replace));  // bytes that are not UTF-8 must not stop it
}

void print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (text.empty() || text.back() != '\n') std::fputc('\n', stdout);
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
    for (const std::string& cell : rows_[r]) out += "| " + cell + " ";
    out += "|\n";
    if (r > 0) continue;
    for (std::size_t i = 0; i < rows_[0].size(); ++i) out += "|---";
    out += "|\n";
  }
  return out;
}

struct Progress::State {
  std::mutex mutex;
  bool on = false;
  bool drawn = false;
  std::chrono::steady_clock::time_point last{};
};

Progress::Progress() : state_(std::make_shared<State>()) {
  state_->on = ::isatty(STDERR_FILENO) && !std::getenv("NO_COLOR");
}

Progress::~Progress() {
  if (state_->on && state_->drawn && state_.use_count() == 1) std::fputs("\r\033[K", stderr);
}

void Progress::operator()(std::string_view stage, int done, int total) const {
  if (!state_->on || total <= 0) return;
  const std::lock_guard lock(state_->mutex);
  const auto now = std::chrono::steady_clock::now();
  if (done < total && now - state_->last < std::chrono::milliseconds(50)) return;
  state_->last = now;
  state_->drawn = true;
  constexpr int kWidth = 30;
  const int filled = static_cast<int>(static_cast<long>(kWidth) * std::min(done, total) / total);
  fmt::print(stderr, "\r\033[K[{}{}] {}/{} {}", std::string(filled, '#'), std::string(kWidth - filled, '.'), done,
             total, stage);
  std::fflush(stderr);
}

}  // namespace tilewright::cli
