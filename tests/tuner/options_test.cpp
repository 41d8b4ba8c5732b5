// SPDX-License-Identifier: Apache-2.0
// Tests what the environment may say, and what is made of the rest.
#include <fcntl.h>
#include <tilewright/options.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>

#include "tuner/tuner_test.h"

using namespace tilewright;

namespace {

// Replaces every variable that from_env() reads; restores them all.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::string>& set) {
    for (const char* name : kNames) {
      const char* old = std::getenv(name);
      if (old) saved_[name] = old;
      ::unsetenv(name);
    }
    for (auto& [name, value] : set) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const char* name : kNames) ::unsetenv(name);
    for (auto& [name, value] : saved_) ::setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  static constexpr const char* kNames[] = {"TILEWRIGHT_CACHE",
                                           "TILEWRIGHT_SHIPPED",
                                           "TILEWRIGHT_CACHE_CAP",
                                           "TILEWRIGHT_ALLOW_SHARED",
                                           "TILEWRIGHT_SAME_NVRTC",
                                           "TILEWRIGHT_NVRTC",
                                           "TILEWRIGHT_DRIVER",
                                           "TILEWRIGHT_LLVM",
                                           "TILEWRIGHT_TUNE",
                                           "TILEWRIGHT_TEMPLATES",
                                           "TILEWRIGHT_RECORD",
                                           "TILEWRIGHT_JOBS",
                                           "XDG_CACHE_HOME",
                                           "HOME",
                                           "TILEWRIGHT_CHECK_POINTERS",
                                           "TILEWRIGHT_LOG",
                                           "TILEWRIGHT_NVTX",
                                           "VIRTUAL_ENV",
                                           "CONDA_PREFIX",
                                           "CUDA_PATH",
                                           "CUDA_HOME",
                                           "PATH"};
  std::map<std::string, std::string> saved_;
};

Options read(const std::map<std::string, std::string>& set) {
  Environment environment(set);
  return Options::from_env();
}

}  // namespace

TEST_CASE("good values are taken", "[options]") {
  Options o = read({{"TILEWRIGHT_CACHE", "/a/b.db"},
                    {"TILEWRIGHT_SHIPPED", "/x.db::/y.db:"},
                    {"TILEWRIGHT_CACHE_CAP", "1048576"},
                    {"TILEWRIGHT_ALLOW_SHARED", "1"},
                    {"TILEWRIGHT_SAME_NVRTC", "1"},
                    {"TILEWRIGHT_NVRTC", "/n.so"},
                    {"TILEWRIGHT_DRIVER", "/d.so"},
                    {"TILEWRIGHT_LLVM", "/l.so"},
                    {"TILEWRIGHT_TEMPLATES", "/t"},
                    {"TILEWRIGHT_RECORD", "/r.txt"},
                    {"TILEWRIGHT_TUNE", "1"},
                    {"TILEWRIGHT_JOBS", "256"},
                    {"TILEWRIGHT_CHECK_POINTERS", "1"}});
  CHECK(o.warnings.empty());
  CHECK(o.cache == "/a/b.db");
  CHECK(o.shipped == std::vector<std::string>{"/x.db", "/y.db"});
  CHECK(o.cache_cap == 1 << 20);
  CHECK(o.allow_shared);
  CHECK(o.same_nvrtc);
  CHECK(o.nvrtc == "/n.so");
  CHECK(o.driver == "/d.so");
  CHECK(o.llvm == "/l.so");
  CHECK(o.templates == "/t");
  CHECK(o.record == "/r.txt");
  CHECK(o.tune);
  CHECK(o.jobs == 256);
  CHECK(o.check_pointers);
}

TEST_CASE("an unusable value is ignored with one warning that names it", "[options]") {
  const Options defaults = read({});
  const std::string long_path = "/" + std::string(5000, 'p');
  for (const char* name : {"TILEWRIGHT_CACHE_CAP", "TILEWRIGHT_JOBS", "TILEWRIGHT_TUNE", "TILEWRIGHT_CHECK_POINTERS",
                           "TILEWRIGHT_ALLOW_SHARED", "TILEWRIGHT_SAME_NVRTC"})
    for (const char* value : {"", "-1", "99999999999999999999999999", "many", "1\n2", "1.5", " 1", "0x10", "+1"}) {
      INFO(name << " = " << value);
      Options o = read({{name, value}});
      REQUIRE(o.warnings.size() == 1);
      CHECK(test::mentions(o.warnings[0], name));
      CHECK(o.warnings[0].find('\n') == std::string::npos);
      CHECK(o.cache_cap == defaults.cache_cap);
      CHECK(o.jobs == defaults.jobs);
      CHECK(o.tune == defaults.tune);
    }
  for (const char* name : {"TILEWRIGHT_CACHE", "TILEWRIGHT_SHIPPED", "TILEWRIGHT_NVRTC", "TILEWRIGHT_DRIVER",
                           "TILEWRIGHT_TEMPLATES", "TILEWRIGHT_RECORD"})
    for (const std::string& value : {std::string(), std::string("/a\n/b"), long_path}) {
      INFO(name);
      Options o = read({{name, value}});
      REQUIRE(o.warnings.size() == 1);
      CHECK(test::mentions(o.warnings[0], name));
      CHECK(o.warnings[0].size() < 300);
      CHECK(o.shipped.empty());
      CHECK(o.record.empty());
    }
}

TEST_CASE("where the cache is", "[options]") {
  CHECK(read({{"XDG_CACHE_HOME", "/c"}, {"HOME", "/h"}}).cache == "/c/tilewright/v1/cache.db");
  CHECK(read({{"HOME", "/h"}}).cache == "/h/.cache/tilewright/v1/cache.db");
  CHECK(read({{"XDG_CACHE_HOME", ""}, {"HOME", "/h"}}).cache == "/h/.cache/tilewright/v1/cache.db");
  CHECK(read({}).cache.empty());  // in memory: never the working directory, never /tmp
  Options relative = read({{"XDG_CACHE_HOME", "cache"}, {"HOME", "/h"}});
  CHECK(relative.cache == "/h/.cache/tilewright/v1/cache.db");
  CHECK(relative.warnings.size() == 1);
  CHECK(read({{"HOME", "relative"}}).cache.empty());
  CHECK(read({{"HOME", "/" + std::string(4090, 'h')}}).cache.empty());
  CHECK(read({{"HOME", "/\xff\xfe"}}).cache == "/\xff\xfe/.cache/tilewright/v1/cache.db");
}

TEST_CASE("a variable whose name is nearly right is pointed out", "[options]") {
  ::setenv("TILEWRIGHT_CAHCE", "/tmp/x.db", 1);
  ::setenv("TILEWRIGHT_OF_ANOTHER_PROGRAM", "1", 1);
  ::setenv("TILEWRIGHT_VLLM", "off", 1);  // the vLLM plugin's, not a misspelled TILEWRIGHT_LLVM
  const Options o = read({{"HOME", "/h"}});
  ::unsetenv("TILEWRIGHT_VLLM");
  ::unsetenv("TILEWRIGHT_CAHCE");
  ::unsetenv("TILEWRIGHT_OF_ANOTHER_PROGRAM");
  REQUIRE(o.warnings.size() == 1);
  CHECK(o.warnings[0] == "TILEWRIGHT_CAHCE is not a variable of Tilewright; did you mean TILEWRIGHT_CACHE?");
}

TEST_CASE("an Engine says once what was ignored", "[options]") {
  auto messages = std::make_shared<test::Messages>();
  Options o = test::options("", messages);
  o.warnings = {"TILEWRIGHT_JOBS = \"x\": ignored"};
  Engine engine(o);
  CHECK(messages->any("TILEWRIGHT_JOBS"));
  CHECK(engine.stats().warnings == 1);
}

TEST_CASE("the environment says where libnvrtc may be", "[options]") {
  const std::string bin = paths::binary_dir() + "/options-python/bin";
  std::filesystem::create_directories(bin);
  std::ofstream(bin + "/python3") << "#!/bin/sh\n";
  std::filesystem::permissions(bin + "/python3", std::filesystem::perms::owner_all);
  const Options o = read({{"VIRTUAL_ENV", "/venv"},
                          {"CUDA_HOME", "relative"},
                          {"CUDA_PATH", "/opt/cuda"},
                          {"HOME", "/home/u"},
                          {"PATH", "/nowhere:relative:" + bin}});
  CHECK(o.nvrtc_places.before == std::vector<std::string>{"/venv", "/opt/cuda"});
  CHECK(o.nvrtc_places.after ==
        std::vector<std::string>{paths::binary_dir() + "/options-python", "/home/u/.local", "/usr/local", "/usr"});
  CHECK(o.warnings.empty());  // other tools' variables
  CHECK(read({}).nvrtc_places.before.empty());
}

TEST_CASE("TILEWRIGHT_LOG is the least urgent level that is logged", "[options]") {
  CHECK_FALSE(read({}).log_level);
  CHECK(read({{"TILEWRIGHT_LOG", "error"}}).log_level == LogLevel::error);
  CHECK(read({{"TILEWRIGHT_LOG", "warn"}}).log_level == LogLevel::warning);
  CHECK(read({{"TILEWRIGHT_LOG", "info"}}).log_level == LogLevel::info);
  CHECK(read({{"TILEWRIGHT_LOG", "debug"}}).log_level == LogLevel::debug);
  CHECK(read({{"TILEWRIGHT_LOG", "launch"}}).log_launches);
  CHECK(read({{"TILEWRIGHT_LOG", "launch"}}).log_level == LogLevel::warning);
  CHECK(read({{"TILEWRIGHT_LOG", "debug,launch"}}).log_launches);
  CHECK(read({{"TILEWRIGHT_LOG", "debug,launch"}}).log_level == LogLevel::debug);
  CHECK_FALSE(read({{"TILEWRIGHT_LOG", "debug"}}).log_launches);
  const Options o = read({{"TILEWRIGHT_LOG", "loud"}});
  CHECK(o.log_level == LogLevel::warning);  // it is named
  REQUIRE(o.warnings.size() == 1);
  CHECK(o.warnings[0].find("loud") != std::string::npos);

  Options quiet;
  quiet.cache = ":memory:";
  quiet.warnings = {"one that an Engine logs"};
  int lines = 0;
  quiet.log = [&](LogLevel, std::string_view) { ++lines; };
  { const Engine engine(quiet); }
  CHECK(lines == 1);
  quiet.log_level = LogLevel::error;
  { const Engine engine(quiet); }
  CHECK(lines == 1);
}

namespace {

// What `action` writes to file descriptor 2.
std::string stderr_of(const std::function<void()>& action) {
  const test::TempDir folder;
  const std::string path = folder / "stderr";
  const int kept = ::dup(2), file = ::open(path.c_str(), O_CREAT | O_WRONLY, 0600);
  ::dup2(file, 2);
  ::close(file);
  action();
  std::fflush(stderr);
  ::dup2(kept, 2);
  ::close(kept);
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST_CASE("TILEWRIGHT_NVTX is 1 or a library", "[options]") {
  CHECK(read({}).nvtx.empty());
  CHECK(read({{"TILEWRIGHT_NVTX", "0"}}).nvtx.empty());
  CHECK(read({{"TILEWRIGHT_NVTX", "1"}}).nvtx == "1");
  CHECK(read({{"TILEWRIGHT_NVTX", "/opt/libnvToolsExt.so.1"}}).nvtx == "/opt/libnvToolsExt.so.1");
}

TEST_CASE("TILEWRIGHT_LOG reaches the stderr of a program that sets no callback", "[options]") {
  const test::TempDir folder;
  const std::string open_to_all = folder / "open";
  std::filesystem::create_directory(open_to_all);
  std::filesystem::permissions(open_to_all, std::filesystem::perms::all);
  std::map<std::string, std::string> set = {{"TILEWRIGHT_CACHE", open_to_all + "/cache.db"},
                                            {"TILEWRIGHT_SHIPPED", "/nonexistent/shipped.db"}};
  const auto said = [&] { return stderr_of([&] { const Engine engine(read(set)); }); };
  CHECK(said().empty());
  set["TILEWRIGHT_LOG"] = "debug";
  ::setenv("TILEWRIGHT_JOB", "2", 1);  // misspelt
  const std::string all = said();
  ::unsetenv("TILEWRIGHT_JOB");
  INFO(all);
  CHECK(test::mentions(all, "shipped store not used: /nonexistent/shipped.db"));
  CHECK(test::mentions(all, "TILEWRIGHT_JOBS"));
  CHECK(test::mentions(all, open_to_all));
  CHECK(test::mentions(all, "Z warning: "));
  Options own = read(set);
  int lines = 0;
  own.log = [&](LogLevel, std::string_view) { ++lines; };
  CHECK(stderr_of([&] { const Engine engine(own); }).empty());
  CHECK(lines > 0);
}
