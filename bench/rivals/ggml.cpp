// SPDX-License-Identifier: Apache-2.0
#include "bench/rivals/ggml.h"

#include <fmt/format.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <tilewright/error.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

namespace tilewright::bench {
namespace {

namespace fs = std::filesystem;

constexpr int kMostBuffers = 4;  // plain, repacked, AMX, and one more

std::string quoted(const std::string& text) {  // for a shell
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// ggml's options for x86, and what they are called in CpuTarget::features.
constexpr std::pair<const char*, const char*> kOptions[] = {
    {"SSE42", "+sse4.2"},      {"AVX", "+avx"},           {"F16C", "+f16c"},
    {"FMA", "+fma"},           {"BMI2", "+bmi2"},         {"AVX2", "+avx2"},
    {"AVX_VNNI", "+avxvnni"},  {"AVX512", "+avx512f"},    {"AVX512_VNNI", "+avx512vnni"},
    {"AMX_TILE", "+amx-tile"}, {"AMX_INT8", "+amx-int8"},
};

}  // namespace

std::string ggml_options(const Arch& target) {
  if (&target == &host_arch()) return "-DGGML_NATIVE=ON";
  const std::string features = std::string(target.cpu->features) + ",";
  std::string options = "-DGGML_NATIVE=OFF";
  if (features.starts_with("+neon")) return options + " -DGGML_CPU_ARM_ARCH=armv8.2-a+dotprod";
  for (const auto& [option, feature] : kOptions)
    options +=
        fmt::format(" -DGGML_{}={}", option, features.find(feature + std::string(",")) != features.npos ? "ON" : "OFF");
  return options;
}

GgmlProduct::GgmlProduct(const std::string& program, const std::vector<std::string>& arguments) {
  int ends[2] = {-1, -1};
  // One socket is the program's input and output.
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw Error(ErrorCode::io, "ggml", program, "cannot be talked to");
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], 0);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  ::posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", 1, 0);
  std::vector<char*> words = {const_cast<char*>(program.c_str())};
  for (const std::string& a : arguments) words.push_back(const_cast<char*>(a.c_str()));
  words.push_back(nullptr);
  const int failed = ::posix_spawn(&child_, program.c_str(), &actions, nullptr, words.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  if (failed) child_ = -1;
  talk_ = failed ? nullptr : ::fdopen(ends[0], "r");
  if (!talk_) {
    ::close(ends[0]);
    throw Error(ErrorCode::io, "ggml", program, "cannot be started");
  }
  if (const std::string said = line(); said.starts_with("ready ")) buffer_ = said.substr(6);
}

GgmlProduct::GgmlProduct(GgmlProduct&& other) noexcept
    : child_(std::exchange(other.child_, -1)),
      talk_(std::exchange(other.talk_, nullptr)),
      buffer_(std::exchange(other.buffer_, {})) {}

GgmlProduct::~GgmlProduct() {
  if (talk_) std::fclose(talk_);  // its input ends, and so does it
  if (child_ > 0) ::waitpid(child_, nullptr, 0);
}

std::string GgmlProduct::line() {
  std::string text;
  for (int c; (c = std::fgetc(talk_)) != EOF && c != '\n';) text += static_cast<char>(c);
  return text;
}

std::vector<double> GgmlProduct::run(double seconds) {
  const std::string order = fmt::format("{}\n", seconds);
  if (::send(::fileno(talk_), order.data(), order.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(order.size()))
    return {};
  std::istringstream answer(line());
  std::vector<double> us;
  for (double each; answer >> each;) us.push_back(each);
  return us;
}

Ggml::Ggml(const std::string& source, const Arch& target) {
  if (!fs::exists(fs::path(source) / "include" / "ggml-cpu.h"))
    throw Error(ErrorCode::invalid_argument, "--ggml", source,
                "must be a source folder of ggml: one with include/ggml-cpu.h");
  std::string name = (fs::temp_directory_path() / "tilewright_ggml_XXXXXX").string();
  if (!::mkdtemp(name.data())) throw Error(ErrorCode::io, "--ggml", name, "cannot be created");
  folder_ = name;
  try {
    build(fs::absolute(source).string(), ggml_options(target));
  } catch (...) {
    fs::remove_all(folder_);
    throw;
  }
  if (std::FILE* const out = ::popen(quoted(program()).c_str(), "r")) {
    char text[256] = "";
    if (std::fgets(text, sizeof text, out)) version_ = std::string(text, std::string(text).find('\n'));
    ::pclose(out);
  }
}

Ggml::~Ggml() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

void Ggml::build(const std::string& source, const std::string& options) const {
  const std::string at = quoted((folder_ / "build").string()), log = quoted((folder_ / "log").string());
  const std::string command = fmt::format(
      "cmake -S {0} -B {1} -DCMAKE_BUILD_TYPE=Release -DGGML={2} {3} >{4} 2>&1 && "
      "cmake --build {1} --target rival --parallel >>{4} 2>&1",
      quoted(TILEWRIGHT_BENCH_GGML), at, quoted(source), options, log);
  if (std::system(command.c_str()) == 0) return;
  std::ifstream file(folder_ / "log");
  std::stringstream text;
  text << file.rdbuf();
  const std::string all = text.str();
  throw Error(ErrorCode::invalid_argument, "--ggml", source,
              fmt::format("must be a source folder that cmake builds:\n{}",
                          all.substr(all.size() - std::min<std::size_t>(all.size(), 2000))));
}

std::vector<GgmlProduct> Ggml::products(int threads, const std::string& format, std::int64_t m, std::int64_t n,
                                        std::int64_t k, std::size_t copies) const {
  std::vector<GgmlProduct> list;
  for (int buffer = 0; buffer < kMostBuffers; ++buffer) {
    GgmlProduct product(program(), {fmt::format("{}", threads), format, fmt::format("{}", m), fmt::format("{}", n),
                                    fmt::format("{}", k), fmt::format("{}", copies), fmt::format("{}", buffer)});
    if (product) list.push_back(std::move(product));
  }
  return list;
}

}  // namespace tilewright::bench
