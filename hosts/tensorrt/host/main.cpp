// SPDX-License-Identifier: Apache-2.0
// tensorrt-host LIBRARY [--target NAME] [--driver PATH] [--double] [--launches N] [--only TEXT] [--binaries] [--write
// FOLDER]
//               [--read FOLDER] [--has-gpu]
//
// Drives the plugins as TensorRT does. Without a GPU everything up to the first launch; with one, launches over two
// execution contexts and in CUDA graphs, compared with sums in double precision. `--driver PATH --double`: the driver
// double of the tests, which launches and computes nothing. `--binaries`: engines contain the compiled kernels.
// `--write` and `--read`: engines are written to a folder, or read from it instead of being built. `--has-gpu`: only
// says by its status whether there is a GPU.
#include <tilewright/kernel.h>

#include <charconv>
#include <cstdio>
#include <exception>
#include <string>

#include "hosts/tensorrt/host/cases.h"
#include "hosts/tensorrt/host/launches.h"
#include "hosts/tensorrt/host/refusals.h"
#include "hosts/tensorrt/host/session.h"

namespace tilewright::tensorrt::host {
namespace {

struct Arguments {
  std::string library, target, only, write, read;
  bool has_gpu = false;
  bool binaries = false;
  Place place;
  std::int64_t launches = 100;
};

Arguments parse(int count, char** words) {
  Arguments a;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const auto value = [&]() -> std::string {
      if (++i == count) throw Failure(word + " needs a value");
      return words[i];
    };
    if (word == "--target") {
      a.target = value();
    } else if (word == "--driver") {
      a.place.driver = value();
    } else if (word == "--double") {
      a.place.is_double = true;
    } else if (word == "--only") {
      a.only = value();
    } else if (word == "--write") {
      a.write = value();
    } else if (word == "--read") {
      a.read = value();
    } else if (word == "--has-gpu") {
      a.has_gpu = true;
    } else if (word == "--binaries") {
      a.binaries = true;
    } else if (word == "--launches") {
      const std::string text = value();
      if (std::from_chars(text.data(), text.data() + text.size(), a.launches).ec != std::errc() || a.launches < 1)
        throw Failure("--launches must be a positive number (got " + text + ")");
    } else if (a.library.empty() && !word.starts_with("--")) {
      a.library = word;
    } else {
      throw Failure("unknown argument " + word);
    }
  }
  if (a.library.empty()) throw Failure("the path of libtilewright_tensorrt.so is required");
  return a;
}

// With a GPU: an engine that was built for another one. Empty, or what is wrong.
std::string other_target(const Library& library, Logger& logger, const std::string& target) {
  const Case c = all_cases(target == "sm_80" ? "sm_90a" : "sm_80").front();
  Filled data = filled(c.problem(c.rows_per), 1);
  Engine engine = build(library, logger, c, data);
  const PluginHandle plugin = deserialized(library, logger, c, engine);
  Context context;
  const PluginHandle attached(plugin.runtime().attachToContext(&context));
  const std::string said = logger.take_errors();
  if (attached) return "it is accepted";
  return said.find("is what the engine was built for") == std::string::npos ? "says '" + said + "'" : "";
}

int run(const Arguments& given) {
  Logger logger;
  const Library library(given.library, logger);
  const bool gpu = Device::count(given.place.driver) > 0;
  std::string target = given.target;
  if (target.empty()) target = gpu ? Device::open(0, given.place.driver).arch().name : "sm_90a";

  int passed = 0, failed = 0;
  Launches all;
  int number = 0;
  for (Case& c : all_cases(target)) {
    const std::string file = "/" + std::to_string(number++) + ".engine";
    if (c.name.find(given.only) == std::string::npos) continue;
    if (given.binaries) c.fields.push_back({"binaries", 1});
    try {
      Filled data = filled(c.problem(c.rows_per), 1);
      Engine engine = given.read.empty() ? build(library, logger, c, data) : read(given.read + file);
      if (!given.write.empty()) write(engine, given.write + file);
      check_weights(engine, data);
      deserialized(library, logger, c, engine);
      if (gpu) {
        const Launches l = host::run(library, logger, c, engine, given.place, given.launches);
        all.launched += l.launched, all.replayed += l.replayed, all.compared += l.compared;
        all.tactics += l.tactics;
        std::printf("  %-58s workspace %zu, %lld compared, at most %.3f of the bound\n", c.name.c_str(),
                    engine.workspace, static_cast<long long>(l.compared), l.worst);
      }
      ++passed;
    } catch (const std::exception& e) {
      std::printf("  failed: %s: %s\n", c.name.c_str(), e.what());
      ++failed;
    }
    std::fflush(stdout);
  }
  std::printf("plugins      %4d passed %4d failed, target %s\n", passed, failed, target.c_str());
  if (gpu)
    std::printf("launches     %4lld, %lld replays of graphs, %lld tactics\n", static_cast<long long>(all.launched),
                static_cast<long long>(all.replayed), static_cast<long long>(all.tactics));
  else
    std::printf("skipped: launches: no GPU\n");
  if (gpu && given.place.is_double) std::printf("skipped: results: the driver double computes nothing\n");

  Counts refused = refusals(library, logger, target);
  if (gpu) {
    const std::string why = other_target(library, logger, target);
    ++(why.empty() ? refused.passed : refused.failed);
    if (!why.empty()) std::printf("  failed: an engine for another GPU: %s\n", why.c_str());
  } else {
    std::printf("skipped: an engine for another GPU: no GPU\n");
  }
  std::printf("bad input    %4d passed %4d failed\n", refused.passed, refused.failed);
  return failed || refused.failed || passed == 0;
}

}  // namespace
}  // namespace tilewright::tensorrt::host

int main(int count, char** words) {
  using namespace tilewright::tensorrt::host;
  try {
    const Arguments given = parse(count, words);
    return given.has_gpu ? tilewright::Device::count() == 0 : run(given);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "tensorrt-host: error: %s\n", e.what());
    return 2;
  }
}
